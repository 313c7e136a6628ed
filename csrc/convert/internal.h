/* The kernels behind convert.h, for its own sources and the tests that hold them against each other. */
#ifndef KVD_CONVERT_INTERNAL_H
#define KVD_CONVERT_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "convert/convert.h"

#define CONVERT_INLINE __attribute__((always_inline))

enum {
	CONVERT_WIDE_BYTES = 2,
	CONVERT_LINE_BYTES = 64,      /* of a cache */
	CONVERT_FACTORS = 32,         /* equal ones that a kernel needs for one scale: the most that it does at once */
	CONVERT_TILE_CHANNELS = 1024, /* worked on together: a block of them, 128 KiB, stays in the L2 cache */
	CONVERT_F32_MANTISSA_BITS = 23,
	CONVERT_F32_BIAS = 127,
};

#define CONVERT_F32_SIGN 0x80000000u
#define CONVERT_F32_EXPONENT 0x7f800000u
#define CONVERT_F32_NAN 0x7fc00000u
#define CONVERT_FP16_NAN 0x7e00
#define CONVERT_FP16_INF 0x7c00
#define CONVERT_BF16_INF 0x7f80
#define CONVERT_BF16_NAN 0x7fc0
#define CONVERT_FP16_MAX 65504.0f
#define CONVERT_BF16_MAX 0x1.fep127f
#define CONVERT_INT8_MAX 127
#define CONVERT_INT4_MAX 15
#define CONVERT_FP8_NAN 0x7f
#define CONVERT_E5M2_INF 0x7c

/*
 * Rounding to FP8. With E the value's binary exponent, but at least that of the smallest normal code, the sum of the
 * magnitude and 2^(E + shift) has its last mantissa bit where the code has it: the FP32 adder rounds, ties to even. What
 * it added below 2^(E + shift) are the code's mantissa bits (a carry included), on top of those of the exponent:
 *   code = bits(sum) - bits(2^(E + shift)) + (bits(2^(E + shift)) >> shift) - offset
 * and subnormals are just the smallest E.
 */
struct convert_fp8 {
	float max;
	int mantissa_bits;
	int exponent_min;
};

static const struct convert_fp8 convert_e4m3 = {.max = 448.0f, .mantissa_bits = 3, .exponent_min = -6};
static const struct convert_fp8 convert_e5m2 = {.max = 57344.0f, .mantissa_bits = 2, .exponent_min = -14};

CONVERT_INLINE static inline const struct convert_fp8 *convert_fp8_of(enum kvd_convert_narrow narrow)
{
	return narrow == KVD_CONVERT_E4M3 ? &convert_e4m3 : &convert_e5m2;
}

CONVERT_INLINE static inline int convert_fp8_shift(const struct convert_fp8 *format)
{
	return CONVERT_F32_MANTISSA_BITS - format->mantissa_bits;
}

/* The bits of FP32 2^exponent_min. */
CONVERT_INLINE static inline int convert_fp8_exponent_min_bits(const struct convert_fp8 *format)
{
	return (format->exponent_min + CONVERT_F32_BIAS) << CONVERT_F32_MANTISSA_BITS;
}

CONVERT_INLINE static inline int convert_fp8_offset(const struct convert_fp8 *format)
{
	return (format->exponent_min + CONVERT_F32_BIAS + convert_fp8_shift(format)) << format->mantissa_bits;
}

CONVERT_INLINE static inline float convert_wide_max(enum kvd_convert_wide wide)
{
	return wide == KVD_CONVERT_FP16 ? CONVERT_FP16_MAX : CONVERT_BF16_MAX;
}

/* E4M3's exponent is biased by 7 and FP16's by 15: its bits, put where FP16 has them, read as 2^-8 of the value. */
#define CONVERT_E4M3_IN_FP16 256.0f

/*
 * Encode or decode `count` values. Value i is multiplied by factor[i & mask], where the mask is SIZE_MAX (a factor a
 * channel) or 0 (CONVERT_FACTORS equal ones). For encoding a factor is the scale's reciprocal.
 */
typedef void convert_kernel(void *dst, const void *src, size_t count, const float *factor, size_t mask);

/* most[i] becomes the larger of itself and the bits of |src[i]|, where that is less than `inf_bits`. */
typedef void convert_absmax_kernel(uint16_t *most, const void *src, size_t count, uint16_t inf_bits);

struct convert_kernels {
	const char *name;
	convert_kernel *encode[KVD_CONVERT_WIDE_COUNT][KVD_CONVERT_NARROW_COUNT];
	convert_kernel *decode[KVD_CONVERT_WIDE_COUNT][KVD_CONVERT_NARROW_COUNT];
	convert_absmax_kernel *absmax;
};

extern const struct convert_kernels kvd_convert_scalar;

#if defined(__x86_64__)
/* AVX2 and F16C; AVX-512 F, BW and VL. Use only where the CPU has them. */
bool kvd_convert_has_avx2(void);
bool kvd_convert_has_avx512(void);
extern const struct convert_kernels kvd_convert_avx2;
extern const struct convert_kernels kvd_convert_avx512;
#endif

enum { CONVERT_KERNELS_MAX = 3 };

/* Fill `out` with the kernels that this CPU can run, the fastest first; their number. */
size_t kvd_convert_usable(const struct convert_kernels *out[CONVERT_KERNELS_MAX]);
/* The fastest. */
const struct convert_kernels *kvd_convert_chosen(void);

/* The bits of the FP16 number that is nearest to a magnitude from above; 65504 where none is. */
uint16_t kvd_convert_fp16_up(float value);
/* The value of a finite FP16 or BF16. */
float kvd_convert_widen(uint16_t bits, enum kvd_convert_wide wide);
bool kvd_convert_formats_valid(enum kvd_convert_wide wide, enum kvd_convert_narrow narrow);
bool kvd_convert_scale_valid(float scale);
/* What kvd_convert_absmax_scale answers for a largest magnitude. */
float kvd_convert_scale_for(uint16_t most_bits, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow);
/* An element of an array of scales; an FP16 one is rounded up. */
float kvd_convert_scale_load(const void *scales, size_t index, enum kvd_convert_scale_format format);
void kvd_convert_scale_store(void *scales, size_t index, enum kvd_convert_scale_format format, float scale);

/* Are the formats of an array ones that there are? */
bool kvd_convert_blocks_valid(const struct kvd_convert_blocks *blocks);

/*
 * Each implementation has two inline functions, `encode` and `decode`, with the formats as constant arguments; this
 * makes the kernels from them, compiled with the attributes `with`, and their table.
 */
#define CONVERT_KERNEL(with, way, wide, narrow)                                                                        \
	with static void way##_##wide##_##narrow(void *dst, const void *src, size_t count, const float *factor,        \
						 size_t mask)                                                          \
	{                                                                                                              \
		way(dst, src, count, factor, mask, KVD_CONVERT_##wide, KVD_CONVERT_##narrow);                          \
	}
#define CONVERT_KERNELS_WIDE(with, way, wide)                                                                          \
	CONVERT_KERNEL(with, way, wide, E4M3)                                                                          \
	CONVERT_KERNEL(with, way, wide, E5M2)                                                                          \
	CONVERT_KERNEL(with, way, wide, INT8)
#define CONVERT_ROW(way, wide) {way##_##wide##_E4M3, way##_##wide##_E5M2, way##_##wide##_INT8}
#define CONVERT_TABLE(with, table)                                                                                     \
	CONVERT_KERNELS_WIDE(with, encode, FP16)                                                                       \
	CONVERT_KERNELS_WIDE(with, encode, BF16)                                                                       \
	CONVERT_KERNELS_WIDE(with, decode, FP16)                                                                       \
	CONVERT_KERNELS_WIDE(with, decode, BF16)                                                                       \
	const struct convert_kernels kvd_convert_##table = {                                                           \
		.name = #table,                                                                                        \
		.encode = {CONVERT_ROW(encode, FP16), CONVERT_ROW(encode, BF16)},                                      \
		.decode = {CONVERT_ROW(decode, FP16), CONVERT_ROW(decode, BF16)},                                      \
		.absmax = absmax,                                                                                      \
	};

#endif
