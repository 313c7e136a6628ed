/*
 * The planes of an array's bytes: what is alike (signs and exponents) lies together, apart from what is noise.
 *
 * Written for the compiler's vectors: constant widths, no pointer that could be another.
 */
#include <string.h>

#include "format/internal.h"

__attribute__((always_inline)) static inline void split(uint8_t *restrict dst, const uint8_t *restrict src, size_t count,
						       size_t width)
{
	for (size_t plane = 0; plane < width; plane++)
		for (size_t i = 0; i < count; i++)
			dst[plane * count + i] = src[i * width + plane];
}

__attribute__((always_inline)) static inline void join(uint8_t *restrict dst, const uint8_t *restrict src, size_t count,
						      size_t width)
{
	for (size_t plane = 0; plane < width; plane++)
		for (size_t i = 0; i < count; i++)
			dst[i * width + plane] = src[plane * count + i];
}

/* Two planes in one pass: what nearly all objects have. */
static void join_pairs(uint8_t *restrict dst, const uint8_t *restrict low, const uint8_t *restrict high, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		dst[2 * i] = low[i];
		dst[2 * i + 1] = high[i];
	}
}

void kvd_format_planes_split(uint8_t *dst, const uint8_t *src, size_t bytes, uint32_t width)
{
	size_t count = bytes / width;

	switch (width) {
	case 2:
		split(dst, src, count, 2);
		break;
	case 4:
		split(dst, src, count, 4);
		break;
	case 8:
		split(dst, src, count, 8);
		break;
	default:
		memcpy(dst, src, bytes);
		return;
	}
	memcpy(dst + count * width, src + count * width, bytes - count * width);
}

void kvd_format_planes_join(uint8_t *dst, const uint8_t *src, size_t bytes, uint32_t width)
{
	size_t count = bytes / width;

	switch (width) {
	case 2:
		join_pairs(dst, src, src + count, count);
		break;
	case 4:
		join(dst, src, count, 4);
		break;
	case 8:
		join(dst, src, count, 8);
		break;
	default:
		memcpy(dst, src, bytes);
		return;
	}
	memcpy(dst + count * width, src + count * width, bytes - count * width);
}
