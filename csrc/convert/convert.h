/*
 * Conversion between the 16-bit floats that models compute with and the 8-bit formats that a KV cache is kept in.
 *
 * Wide formats: FP16 (IEEE binary16) and BF16. Narrow formats: E4M3 and E5M2 as OCP OFP8 1.0 defines them (E4M3 has no
 * infinity), and INT8, symmetric: -127 to 127. A narrow code stands for `code * scale`.
 *
 * Encoding computes y = x * (1 / scale), with the reciprocal and the product each rounded to FP32, and rounds y once,
 * to the nearest code, ties to even:
 *   |y| beyond the largest code   saturates: +-448, +-57344, +-127
 *   +-Inf                         saturates too (OFP8's saturating mode), so encoding never makes an infinity
 *   NaN                           0x7f with the sign kept; INT8 has none and takes 0
 *   subnormals                    values like others, on both sides; -0 stays -0 in FP8
 * Decoding computes code * scale, rounded to FP32, and rounds that to the wide format, ties to even:
 *   beyond the largest value      saturates, so a finite code never becomes an infinity
 *   E5M2's infinities             +-Inf
 *   NaN (each of its codes)       0x7e00 for FP16, 0x7fc0 for BF16, with the sign kept
 *   -128 of INT8                  decodes as it reads, though encoding never makes it
 *
 * Results are the same bits on every CPU, provided that the floating-point environment is the default one: round to
 * nearest, subnormals not flushed. Arrays may have any alignment; source and destination must not overlap. All
 * functions may be called from several threads at once.
 */
#ifndef KVD_CONVERT_CONVERT_H
#define KVD_CONVERT_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A scale must lie between these (which leaves its reciprocal a normal number too), otherwise -EINVAL. */
#define KVD_CONVERT_SCALE_MIN 0x1p-122f
#define KVD_CONVERT_SCALE_MAX 0x1p122f

enum kvd_convert_limit {
	KVD_CONVERT_BLOCK_TOKENS = 64, /* that share one scale a channel */
};

enum kvd_convert_wide {
	KVD_CONVERT_FP16 = 0,
	KVD_CONVERT_BF16 = 1,
	KVD_CONVERT_WIDE_COUNT = 2,
};

enum kvd_convert_narrow {
	KVD_CONVERT_E4M3 = 0,
	KVD_CONVERT_E5M2 = 1,
	KVD_CONVERT_INT8 = 2,
	KVD_CONVERT_NARROW_COUNT = 3,
};

enum kvd_convert_scale_format {
	KVD_CONVERT_SCALE_FP16 = 0,
	KVD_CONVERT_SCALE_FP32 = 1,
	KVD_CONVERT_SCALE_FORMAT_COUNT = 2,
};

/* `count` values with one scale: 0 or -EINVAL (the scale), and then nothing is written. */
int kvd_convert_fp16_to_e4m3(uint8_t *dst, const void *src, size_t count, float scale);
int kvd_convert_fp16_to_e5m2(uint8_t *dst, const void *src, size_t count, float scale);
int kvd_convert_fp16_to_int8(int8_t *dst, const void *src, size_t count, float scale);
int kvd_convert_bf16_to_e4m3(uint8_t *dst, const void *src, size_t count, float scale);
int kvd_convert_bf16_to_e5m2(uint8_t *dst, const void *src, size_t count, float scale);
int kvd_convert_bf16_to_int8(int8_t *dst, const void *src, size_t count, float scale);

int kvd_convert_e4m3_to_fp16(void *dst, const uint8_t *src, size_t count, float scale);
int kvd_convert_e5m2_to_fp16(void *dst, const uint8_t *src, size_t count, float scale);
int kvd_convert_int8_to_fp16(void *dst, const int8_t *src, size_t count, float scale);
int kvd_convert_e4m3_to_bf16(void *dst, const uint8_t *src, size_t count, float scale);
int kvd_convert_e5m2_to_bf16(void *dst, const uint8_t *src, size_t count, float scale);
int kvd_convert_int8_to_bf16(void *dst, const int8_t *src, size_t count, float scale);

/*
 * The scale at which the largest finite magnitude becomes the largest code: their quotient, rounded to FP32 and raised
 * to KVD_CONVERT_SCALE_MIN; 1 where every value is zero, infinite or NaN. -EINVAL: no such format.
 */
int kvd_convert_absmax_scale(float *scale, const void *src, size_t count, enum kvd_convert_wide wide,
			     enum kvd_convert_narrow narrow);

/*
 * An array [tokens][channels] with a scale for each channel of each block of KVD_CONVERT_BLOCK_TOKENS tokens (the last
 * block may be shorter): scales are [blocks][channels], kvd_convert_blocks_scales_count of them.
 */
struct kvd_convert_blocks {
	size_t tokens;
	size_t channels;
	enum kvd_convert_wide wide;
	enum kvd_convert_narrow narrow;
	enum kvd_convert_scale_format scale_format;
};

size_t kvd_convert_blocks_scales_count(const struct kvd_convert_blocks *blocks);
/* Is each of them in its range? */
bool kvd_convert_blocks_scales_valid(const void *scales, const struct kvd_convert_blocks *blocks);

/*
 * Encode, each scale chosen by the rule of kvd_convert_absmax_scale and written to `scales`. An FP16 scale is rounded
 * up, so that nothing finite saturates, and is at most 65504, so that BF16 values from 65504 times the largest code on
 * do saturate. 0 or -EINVAL (no such format; nothing is written).
 */
int kvd_convert_blocks_encode(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks);
/* Encode with scales that are given. 0 or -EINVAL (no such format, or any scale out of range; nothing is written). */
int kvd_convert_blocks_encode_with(void *dst, const void *scales, const void *src,
				   const struct kvd_convert_blocks *blocks);
int kvd_convert_blocks_decode(void *dst, const void *scales, const void *src, const struct kvd_convert_blocks *blocks);

/*
 * The same in INT4, which is asymmetric: a channel's codes of a block are INT8's at a scale with which they lie within 16, less
 * the smallest of them, its *zero*, which is kept beside the scale. The scale is a 15th of the distance from the smallest to
 * the largest finite value, but at least a 127th of the largest magnitude, and at most KVD_CONVERT_SCALE_MAX; an FP16 scale is
 * rounded up. A code that rounding puts beyond zero + 15, and what is not finite, saturates; a NaN is like 0.
 *
 * Two codes are in a byte, the even channel's in the low half. A token's codes take kvd_convert_int4_row_bytes; with an odd
 * number of channels the last half is 0, and is not looked at. Zeros are [blocks][channels] as scales are. `blocks->narrow`
 * is KVD_CONVERT_INT8, whose arithmetic this is. Decoding takes any zero; a sum beyond INT8, which encoding never makes, wraps.
 */
size_t kvd_convert_int4_row_bytes(size_t channels);
int kvd_convert_int4_encode(void *dst, void *scales, int8_t *zeros, const void *src,
			    const struct kvd_convert_blocks *blocks);
int kvd_convert_int4_decode(void *dst, const void *scales, const int8_t *zeros, const void *src,
			    const struct kvd_convert_blocks *blocks);

/* What became of values: sums over them, in double precision. */
struct kvd_convert_difference {
	uint64_t values;
	double square;            /* of the values */
	double square_difference;
	double most;              /* the largest difference's magnitude */
};

/* Add `count` values and what was made of them; all finite. The order of summing, so the last bits, depend on the CPU. */
void kvd_convert_compare(struct kvd_convert_difference *sum, const void *src, const void *made, size_t count,
			 enum kvd_convert_wide wide);
/* Is none of the values an infinity or a NaN? */
bool kvd_convert_finite(const void *src, size_t count, enum kvd_convert_wide wide);

#endif
