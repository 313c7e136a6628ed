/* The choice of kernels, the formats' scales, and arrays with one scale. */
#include "convert/convert.h"

#include <errno.h>

#include "convert/internal.h"

static const struct convert_kernels *chosen;

size_t kvd_convert_usable(const struct convert_kernels *out[CONVERT_KERNELS_MAX])
{
	size_t count = 0;

#if defined(__x86_64__)
	if (kvd_convert_has_avx512())
		out[count++] = &kvd_convert_avx512;
	if (kvd_convert_has_avx2())
		out[count++] = &kvd_convert_avx2;
#endif
	out[count++] = &kvd_convert_scalar;
	return count;
}

/* Before main, and so before any thread could ask. */
__attribute__((constructor)) static void choose(void)
{
	const struct convert_kernels *usable[CONVERT_KERNELS_MAX];

	kvd_convert_usable(usable);
	chosen = usable[0];
}

const struct convert_kernels *kvd_convert_chosen(void)
{
	return chosen;
}

bool kvd_convert_formats_valid(enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	return (unsigned int)wide < KVD_CONVERT_WIDE_COUNT && (unsigned int)narrow < KVD_CONVERT_NARROW_COUNT;
}

/* Not of a NaN either: comparisons with it are false. */
bool kvd_convert_scale_valid(float scale)
{
	return scale >= KVD_CONVERT_SCALE_MIN && scale <= KVD_CONVERT_SCALE_MAX;
}

float kvd_convert_scale_for(uint16_t most_bits, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	float most_code = narrow == KVD_CONVERT_INT8 ? CONVERT_INT8_MAX : convert_fp8_of(narrow)->max;
	float scale = kvd_convert_widen(most_bits, wide) / most_code;

	if (most_bits == 0)
		return 1.0f;
	return scale > KVD_CONVERT_SCALE_MIN ? scale : KVD_CONVERT_SCALE_MIN;
}

int kvd_convert_absmax_scale(float *scale, const void *src, size_t count, enum kvd_convert_wide wide,
			     enum kvd_convert_narrow narrow)
{
	uint16_t most[CONVERT_TILE_CHANNELS] = {0}, all = 0;
	const uint8_t *at = src;

	if (!kvd_convert_formats_valid(wide, narrow))
		return -EINVAL;
	while (count > 0) {
		size_t part = count < CONVERT_TILE_CHANNELS ? count : CONVERT_TILE_CHANNELS;

		chosen->absmax(most, at, part, wide == KVD_CONVERT_FP16 ? CONVERT_FP16_INF : CONVERT_BF16_INF);
		at += part * CONVERT_WIDE_BYTES;
		count -= part;
	}
	for (size_t i = 0; i < CONVERT_TILE_CHANNELS; i++)
		if (most[i] > all)
			all = most[i];
	*scale = kvd_convert_scale_for(all, wide, narrow);
	return 0;
}

static int convert(convert_kernel *kernel, void *dst, const void *src, size_t count, float scale, bool encoding)
{
	float factor[CONVERT_FACTORS];

	if (!kvd_convert_scale_valid(scale))
		return -EINVAL;
	for (size_t i = 0; i < CONVERT_FACTORS; i++)
		factor[i] = encoding ? 1.0f / scale : scale;
	kernel(dst, src, count, factor, 0);
	return 0;
}

int kvd_convert_fp16_to_e4m3(uint8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_FP16][KVD_CONVERT_E4M3], dst, src, count, scale, true);
}

int kvd_convert_fp16_to_e5m2(uint8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_FP16][KVD_CONVERT_E5M2], dst, src, count, scale, true);
}

int kvd_convert_fp16_to_int8(int8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_FP16][KVD_CONVERT_INT8], dst, src, count, scale, true);
}

int kvd_convert_bf16_to_e4m3(uint8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_BF16][KVD_CONVERT_E4M3], dst, src, count, scale, true);
}

int kvd_convert_bf16_to_e5m2(uint8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_BF16][KVD_CONVERT_E5M2], dst, src, count, scale, true);
}

int kvd_convert_bf16_to_int8(int8_t *dst, const void *src, size_t count, float scale)
{
	return convert(chosen->encode[KVD_CONVERT_BF16][KVD_CONVERT_INT8], dst, src, count, scale, true);
}

int kvd_convert_e4m3_to_fp16(void *dst, const uint8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_FP16][KVD_CONVERT_E4M3], dst, src, count, scale, false);
}

int kvd_convert_e5m2_to_fp16(void *dst, const uint8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_FP16][KVD_CONVERT_E5M2], dst, src, count, scale, false);
}

int kvd_convert_int8_to_fp16(void *dst, const int8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_FP16][KVD_CONVERT_INT8], dst, src, count, scale, false);
}

int kvd_convert_e4m3_to_bf16(void *dst, const uint8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_BF16][KVD_CONVERT_E4M3], dst, src, count, scale, false);
}

int kvd_convert_e5m2_to_bf16(void *dst, const uint8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_BF16][KVD_CONVERT_E5M2], dst, src, count, scale, false);
}

int kvd_convert_int8_to_bf16(void *dst, const int8_t *src, size_t count, float scale)
{
	return convert(chosen->decode[KVD_CONVERT_BF16][KVD_CONVERT_INT8], dst, src, count, scale, false);
}
