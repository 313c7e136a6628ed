/* The kernels for any CPU, and the definition that the others are held against, bit by bit. */
#include "convert/internal.h"

enum {
	FP16_MANTISSA_BITS = 10,
	FP16_BIAS = 15,
	FP16_EXPONENT_MIN = -14,
	FP16_SIGN = 0x8000,
	FP8_SIGN = 0x80,
};

/* FP32 numbers of this magnitude have no bits below 1: adding it rounds to an integer, ties to even. */
#define ROUND_TO_INTEGER 0x1.8p23f

CONVERT_INLINE static inline uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

CONVERT_INLINE static inline float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

CONVERT_INLINE static inline uint32_t widen_fp16(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & FP16_SIGN) << 16;
	uint32_t magnitude = half & (FP16_SIGN - 1u);

	if (magnitude >= CONVERT_FP16_INF)
		return sign | CONVERT_F32_EXPONENT | (magnitude > CONVERT_FP16_INF ? CONVERT_F32_NAN : 0);
	if (magnitude < 1u << FP16_MANTISSA_BITS) /* subnormal: units of 2^-24 */
		return sign | bits_of((float)magnitude * 0x1p-24f);
	return sign | ((magnitude << (CONVERT_F32_MANTISSA_BITS - FP16_MANTISSA_BITS)) +
		       ((uint32_t)(CONVERT_F32_BIAS - FP16_BIAS) << CONVERT_F32_MANTISSA_BITS));
}

CONVERT_INLINE static inline uint32_t widen_bits(uint16_t bits, enum kvd_convert_wide wide)
{
	return wide == KVD_CONVERT_FP16 ? widen_fp16(bits) : (uint32_t)bits << 16;
}

float kvd_convert_widen(uint16_t bits, enum kvd_convert_wide wide)
{
	return float_of(widen_bits(bits, wide));
}

/* Round a magnitude of at most `format->max`; see struct convert_fp8. */
CONVERT_INLINE static inline uint32_t round_fp8(float magnitude, const struct convert_fp8 *format)
{
	uint32_t exponent = bits_of(magnitude) & CONVERT_F32_EXPONENT;
	uint32_t least = (uint32_t)convert_fp8_exponent_min_bits(format);
	uint32_t shift = (uint32_t)convert_fp8_shift(format);
	uint32_t unit = (exponent > least ? exponent : least) + (shift << CONVERT_F32_MANTISSA_BITS);

	return bits_of(magnitude + float_of(unit)) - unit + (unit >> shift) - (uint32_t)convert_fp8_offset(format);
}

CONVERT_INLINE static inline uint8_t narrow_fp8(float value, const struct convert_fp8 *format)
{
	uint32_t sign = bits_of(value) >> 24 & FP8_SIGN;
	float magnitude = float_of(bits_of(value) & ~CONVERT_F32_SIGN);

	if (value != value)
		return (uint8_t)(sign | CONVERT_FP8_NAN);
	return (uint8_t)(sign | round_fp8(magnitude < format->max ? magnitude : format->max, format));
}

CONVERT_INLINE static inline uint8_t narrow_int8(float value)
{
	if (value != value)
		return 0;
	if (value > CONVERT_INT8_MAX)
		value = CONVERT_INT8_MAX;
	if (value < -CONVERT_INT8_MAX)
		value = -CONVERT_INT8_MAX;
	return (uint8_t)(bits_of(value + ROUND_TO_INTEGER) & 0xff);
}

CONVERT_INLINE static inline void encode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			   enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	for (size_t i = 0; i < count; i++) {
		uint16_t bits;
		float value;

		memcpy(&bits, src + i * CONVERT_WIDE_BYTES, sizeof(bits));
		value = kvd_convert_widen(bits, wide) * factor[i & mask];
		dst[i] = narrow == KVD_CONVERT_INT8 ? narrow_int8(value) : narrow_fp8(value, convert_fp8_of(narrow));
	}
}

/* The value of a code, as FP32 bits. */
CONVERT_INLINE static inline uint32_t code_bits(uint8_t code, enum kvd_convert_narrow narrow)
{
	uint32_t sign = (uint32_t)(code & FP8_SIGN) << 24;
	uint32_t magnitude = code & (FP8_SIGN - 1u);

	switch (narrow) {
	case KVD_CONVERT_E4M3:
		if (magnitude == CONVERT_FP8_NAN)
			return sign | CONVERT_F32_NAN;
		return sign | bits_of(float_of(widen_fp16((uint16_t)(magnitude << 7))) * CONVERT_E4M3_IN_FP16);
	case KVD_CONVERT_E5M2:
		return sign | widen_fp16((uint16_t)(magnitude << 8));
	default:
		return bits_of((float)(int8_t)code);
	}
}

/* Round a finite number of at most FP16's largest magnitude, as FP8 is rounded. */
CONVERT_INLINE static inline uint16_t narrow_fp16(float value)
{
	static const struct convert_fp8 fp16 = {
		.max = CONVERT_FP16_MAX, .mantissa_bits = FP16_MANTISSA_BITS, .exponent_min = FP16_EXPONENT_MIN};
	uint32_t sign = bits_of(value) >> 16 & FP16_SIGN;

	return (uint16_t)(sign | round_fp8(float_of(bits_of(value) & ~CONVERT_F32_SIGN), &fp16));
}

CONVERT_INLINE static inline uint16_t narrow_bf16(float value)
{
	uint32_t bits = bits_of(value);

	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* NaN and infinity take no part in arithmetic, so that no CPU's rules for them matter. */
CONVERT_INLINE static inline uint16_t special(uint32_t bits, enum kvd_convert_wide wide)
{
	uint32_t sign = bits >> 16 & FP16_SIGN;

	if ((bits & ~CONVERT_F32_SIGN) == CONVERT_F32_EXPONENT)
		return (uint16_t)(sign | (wide == KVD_CONVERT_FP16 ? CONVERT_FP16_INF : CONVERT_BF16_INF));
	return (uint16_t)(sign | (wide == KVD_CONVERT_FP16 ? CONVERT_FP16_NAN : CONVERT_BF16_NAN));
}

CONVERT_INLINE static inline uint16_t decode_one(uint32_t bits, float factor, enum kvd_convert_wide wide)
{
	float most = convert_wide_max(wide), value;

	if ((bits & CONVERT_F32_EXPONENT) == CONVERT_F32_EXPONENT)
		return special(bits, wide);
	value = float_of(bits) * factor;
	if (value > most)
		value = most;
	if (value < -most)
		value = -most;
	return wide == KVD_CONVERT_FP16 ? narrow_fp16(value) : narrow_bf16(value);
}

CONVERT_INLINE static inline void decode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			   enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	for (size_t i = 0; i < count; i++) {
		uint16_t bits = decode_one(code_bits(src[i], narrow), factor[i & mask], wide);

		memcpy(dst + i * CONVERT_WIDE_BYTES, &bits, sizeof(bits));
	}
}

static void absmax(uint16_t *most, const void *src, size_t count, uint16_t inf_bits)
{
	for (size_t i = 0; i < count; i++) {
		uint16_t bits;

		memcpy(&bits, (const uint8_t *)src + i * CONVERT_WIDE_BYTES, sizeof(bits));
		bits &= FP16_SIGN - 1;
		if (bits < inf_bits && bits > most[i])
			most[i] = bits;
	}
}

uint16_t kvd_convert_fp16_up(float value)
{
	uint16_t bits;

	if (value >= CONVERT_FP16_MAX)
		return narrow_fp16(CONVERT_FP16_MAX);
	bits = narrow_fp16(value);
	return (uint16_t)(bits + (kvd_convert_widen(bits, KVD_CONVERT_FP16) < value));
}

CONVERT_TABLE(, scalar)
