#include "convert/internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c")))
#define AVX2_INLINE AVX2 CONVERT_INLINE inline

enum {
	LANES = 8,           /* FP32 */
	AT_ONCE = 4 * LANES, /* what packs into one register of bytes */
	HALVES = 16,
};

static_assert((int)AT_ONCE <= (int)CONVERT_FACTORS, "a kernel reads as many factors as it encodes at once");

bool kvd_convert_has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

static AVX2_INLINE __m256 load_wide(const uint8_t *src, enum kvd_convert_wide wide)
{
	__m128i halves = _mm_loadu_si128((const __m128i *)(const void *)src);

	if (wide == KVD_CONVERT_FP16)
		return _mm256_cvtph_ps(halves);
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* The code of each lane, 0 to 255; see struct convert_fp8. */
static AVX2_INLINE __m256i narrow_fp8(__m256 value, const struct convert_fp8 *format)
{
	__m256 sign_bit = _mm256_set1_ps(-0.0f);
	/* In this order a NaN stays one. */
	__m256 magnitude = _mm256_min_ps(_mm256_set1_ps(format->max), _mm256_andnot_ps(sign_bit, value));
	__m256i exponent = _mm256_and_si256(_mm256_castps_si256(magnitude), _mm256_set1_epi32(CONVERT_F32_EXPONENT));
	__m256i least = _mm256_set1_epi32(convert_fp8_exponent_min_bits(format));
	int shift = convert_fp8_shift(format);
	__m256i unit = _mm256_add_epi32(_mm256_max_epi32(exponent, least),
					_mm256_set1_epi32(shift << CONVERT_F32_MANTISSA_BITS));
	__m256i sum = _mm256_castps_si256(_mm256_add_ps(magnitude, _mm256_castsi256_ps(unit)));
	__m256i code = _mm256_add_epi32(_mm256_sub_epi32(sum, unit), _mm256_srli_epi32(unit, shift));
	__m256i sign = _mm256_srli_epi32(_mm256_castps_si256(_mm256_and_ps(value, sign_bit)), 24);
	__m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));

	code = _mm256_sub_epi32(code, _mm256_set1_epi32(convert_fp8_offset(format)));
	code = _mm256_blendv_epi8(code, _mm256_set1_epi32(CONVERT_FP8_NAN), nan);
	return _mm256_or_si256(code, sign);
}

static AVX2_INLINE __m256i narrow_int8(__m256 value)
{
	__m256 limit = _mm256_set1_ps(CONVERT_INT8_MAX);
	__m256 ordered = _mm256_and_ps(value, _mm256_cmp_ps(value, value, _CMP_ORD_Q));
	__m256 clamped = _mm256_max_ps(_mm256_min_ps(ordered, limit), _mm256_sub_ps(_mm256_setzero_ps(), limit));

	return _mm256_cvtps_epi32(clamped);
}

static AVX2_INLINE __m256i narrow_eight(const uint8_t *src, const float *factor, enum kvd_convert_wide wide,
				 enum kvd_convert_narrow narrow)
{
	__m256 value = _mm256_mul_ps(load_wide(src, wide), _mm256_loadu_ps(factor));

	return narrow == KVD_CONVERT_INT8 ? narrow_int8(value) : narrow_fp8(value, convert_fp8_of(narrow));
}

/* Four registers of codes to one of bytes, in order. */
static AVX2_INLINE __m256i pack(const __m256i codes[4], enum kvd_convert_narrow narrow)
{
	/* Packing keeps to 128-bit halves: of 4-byte groups it makes 0 2 4 6 1 3 5 7. */
	__m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256i low = _mm256_packs_epi32(codes[0], codes[1]);
	__m256i high = _mm256_packs_epi32(codes[2], codes[3]);
	__m256i bytes = narrow == KVD_CONVERT_INT8 ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);

	return _mm256_permutevar8x32_epi32(bytes, order);
}

static AVX2_INLINE void encode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	size_t i = 0;

	for (; count - i >= AT_ONCE; i += AT_ONCE) {
		const uint8_t *from = src + i * CONVERT_WIDE_BYTES;
		const float *by = factor + (i & mask);
		__m256i codes[4];

		for (size_t part = 0; part < 4; part++)
			codes[part] = narrow_eight(from + part * LANES * CONVERT_WIDE_BYTES, by + part * LANES, wide, narrow);
		_mm256_storeu_si256((__m256i *)(void *)(dst + i), pack(codes, narrow));
	}
	kvd_convert_scalar.encode[wide][narrow](dst + i, src + i * CONVERT_WIDE_BYTES, count - i, factor + (i & mask), mask);
}

/* The values of eight codes. An FP8 code is brought to where FP16 has its fields: the CPU widens that. */
static AVX2_INLINE __m256 load_narrow(const uint8_t *src, enum kvd_convert_narrow narrow)
{
	__m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)src);
	__m128i magnitude, sign, half, nan;

	if (narrow == KVD_CONVERT_INT8)
		return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
	codes = _mm_cvtepu8_epi16(codes);
	magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f));
	sign = _mm_slli_epi16(_mm_srli_epi16(codes, 7), 15);
	if (narrow == KVD_CONVERT_E4M3) {
		half = _mm_slli_epi16(magnitude, 7);
		nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(CONVERT_FP8_NAN));
	} else {
		half = _mm_slli_epi16(magnitude, 8);
		nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(CONVERT_E5M2_INF));
	}
	half = _mm_blendv_epi8(half, _mm_set1_epi16(CONVERT_FP16_NAN), nan);
	return _mm256_cvtph_ps(_mm_or_si128(half, sign));
}

static AVX2_INLINE __m256 scale(__m256 value, const float *factor, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	__m256 most = _mm256_set1_ps(convert_wide_max(wide));
	__m256 least = _mm256_set1_ps(-convert_wide_max(wide));
	__m256 inf = _mm256_set1_ps(__builtin_inff());
	__m256 product = value, clamped, is_inf;

	if (narrow == KVD_CONVERT_E4M3)
		product = _mm256_mul_ps(product, _mm256_set1_ps(CONVERT_E4M3_IN_FP16));
	product = _mm256_mul_ps(product, _mm256_loadu_ps(factor));
	/* In this order a NaN stays one. */
	clamped = _mm256_max_ps(least, _mm256_min_ps(most, product));
	if (narrow != KVD_CONVERT_E5M2)
		return clamped;
	is_inf = _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), value), inf, _CMP_EQ_OQ);
	return _mm256_blendv_ps(clamped, value, is_inf);
}

static AVX2_INLINE __m128i narrow_wide(__m256 value, enum kvd_convert_wide wide)
{
	__m256i bits = _mm256_castps_si256(value), odd;

	if (wide == KVD_CONVERT_FP16)
		return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
	bits = _mm256_srli_epi32(bits, 16);
	return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

static AVX2_INLINE void decode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m256 value = scale(load_narrow(src + i, narrow), factor + (i & mask), wide, narrow);

		_mm_storeu_si128((__m128i *)(void *)(dst + i * CONVERT_WIDE_BYTES), narrow_wide(value, wide));
	}
	kvd_convert_scalar.decode[wide][narrow](dst + i * CONVERT_WIDE_BYTES, src + i, count - i, factor + (i & mask), mask);
}

AVX2 static void absmax(uint16_t *most, const void *src, size_t count, uint16_t inf_bits)
{
	const uint8_t *from = src;
	__m256i inf = _mm256_set1_epi16((int16_t)inf_bits);
	size_t i = 0;

	for (; count - i >= HALVES; i += HALVES) {
		__m256i *into = (__m256i *)(void *)(most + i);
		__m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(from + i * CONVERT_WIDE_BYTES));

		bits = _mm256_and_si256(bits, _mm256_set1_epi16(INT16_MAX));
		bits = _mm256_and_si256(bits, _mm256_cmpgt_epi16(inf, bits));
		_mm256_storeu_si256(into, _mm256_max_epi16(bits, _mm256_loadu_si256(into)));
	}
	kvd_convert_scalar.absmax(most + i, from + i * CONVERT_WIDE_BYTES, count - i, inf_bits);
}

CONVERT_TABLE(AVX2, avx2)

#else

/* Nothing here on other CPUs; ISO C wants a declaration in each source. */
typedef int kvd_convert_avx2_absent;

#endif
