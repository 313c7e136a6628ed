#include "convert/internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define AVX512_INLINE AVX512 CONVERT_INLINE inline

enum {
	LANES = 16, /* FP32 */
	HALVES = 32,
};

static_assert((int)LANES <= (int)CONVERT_FACTORS, "a kernel reads as many factors as it encodes at once");

bool kvd_convert_has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl");
}

static AVX512_INLINE __m512 load_wide(const uint8_t *src, enum kvd_convert_wide wide)
{
	__m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)src);

	if (wide == KVD_CONVERT_FP16)
		return _mm512_cvtph_ps(halves);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* The code of each lane, in its low 8 bits; see struct convert_fp8. */
static AVX512_INLINE __m512i narrow_fp8(__m512 value, const struct convert_fp8 *format)
{
	/* a & b | c, as the instruction numbers the functions of three bits. */
	enum { AND_OR = 0xea };
	/* In this order a NaN stays one. */
	__m512 magnitude = _mm512_min_ps(_mm512_set1_ps(format->max), _mm512_abs_ps(value));
	__m512i exponent = _mm512_and_si512(_mm512_castps_si512(magnitude), _mm512_set1_epi32(CONVERT_F32_EXPONENT));
	__m512i least = _mm512_set1_epi32(convert_fp8_exponent_min_bits(format));
	unsigned int shift = (unsigned int)convert_fp8_shift(format);
	__m512i unit = _mm512_add_epi32(_mm512_max_epi32(exponent, least),
					_mm512_set1_epi32((int)shift << CONVERT_F32_MANTISSA_BITS));
	__m512i sum = _mm512_castps_si512(_mm512_add_ps(magnitude, _mm512_castsi512_ps(unit)));
	__m512i code = _mm512_add_epi32(_mm512_sub_epi32(sum, unit), _mm512_srli_epi32(unit, shift));
	__mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);

	code = _mm512_sub_epi32(code, _mm512_set1_epi32(convert_fp8_offset(format)));
	code = _mm512_mask_mov_epi32(code, nan, _mm512_set1_epi32(CONVERT_FP8_NAN));
	return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(value), 24), _mm512_set1_epi32(0x80), code,
					 AND_OR);
}

static AVX512_INLINE __m512i narrow_int8(__m512 value)
{
	__m512 most = _mm512_set1_ps(CONVERT_INT8_MAX);
	__m512 least = _mm512_set1_ps(-CONVERT_INT8_MAX);
	__mmask16 ordered = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);

	return _mm512_maskz_cvtps_epi32(ordered, _mm512_max_ps(_mm512_min_ps(value, most), least));
}

static AVX512_INLINE void encode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			  enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m512 value = _mm512_mul_ps(load_wide(src + i * CONVERT_WIDE_BYTES, wide),
					     _mm512_loadu_ps(factor + (i & mask)));
		__m512i codes = narrow == KVD_CONVERT_INT8 ? narrow_int8(value)
							   : narrow_fp8(value, convert_fp8_of(narrow));

		_mm_storeu_si128((__m128i *)(void *)(dst + i), _mm512_cvtepi32_epi8(codes));
	}
	kvd_convert_scalar.encode[wide][narrow](dst + i, src + i * CONVERT_WIDE_BYTES, count - i, factor + (i & mask), mask);
}

/* The values of sixteen codes. An FP8 code is brought to where FP16 has its fields: the CPU widens that. */
static AVX512_INLINE __m512 load_narrow(const uint8_t *src, enum kvd_convert_narrow narrow)
{
	__m128i codes = _mm_loadu_si128((const __m128i *)(const void *)src);
	__m256i wide, magnitude, sign, half;
	__mmask16 nan;

	if (narrow == KVD_CONVERT_INT8)
		return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
	wide = _mm256_cvtepu8_epi16(codes);
	magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
	sign = _mm256_slli_epi16(_mm256_srli_epi16(wide, 7), 15);
	if (narrow == KVD_CONVERT_E4M3) {
		half = _mm256_slli_epi16(magnitude, 7);
		nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(CONVERT_FP8_NAN));
	} else {
		half = _mm256_slli_epi16(magnitude, 8);
		nan = _mm256_cmpgt_epi16_mask(magnitude, _mm256_set1_epi16(CONVERT_E5M2_INF));
	}
	half = _mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(CONVERT_FP16_NAN));
	return _mm512_cvtph_ps(_mm256_or_si256(half, sign));
}

static AVX512_INLINE __m512 scale(__m512 value, const float *factor, enum kvd_convert_wide wide,
			   enum kvd_convert_narrow narrow)
{
	__m512 most = _mm512_set1_ps(convert_wide_max(wide));
	__m512 least = _mm512_set1_ps(-convert_wide_max(wide));
	__m512 product = value, clamped;

	if (narrow == KVD_CONVERT_E4M3)
		product = _mm512_mul_ps(product, _mm512_set1_ps(CONVERT_E4M3_IN_FP16));
	product = _mm512_mul_ps(product, _mm512_loadu_ps(factor));
	/* In this order a NaN stays one. */
	clamped = _mm512_max_ps(least, _mm512_min_ps(most, product));
	if (narrow != KVD_CONVERT_E5M2)
		return clamped;
	return _mm512_mask_mov_ps(
		clamped, _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(__builtin_inff()), _CMP_EQ_OQ), value);
}

static AVX512_INLINE __m256i narrow_wide(__m512 value, enum kvd_convert_wide wide)
{
	__m512i bits = _mm512_castps_si512(value), odd;

	if (wide == KVD_CONVERT_FP16)
		return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
	return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

static AVX512_INLINE void decode(uint8_t *dst, const uint8_t *src, size_t count, const float *factor, size_t mask,
			  enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m512 value = scale(load_narrow(src + i, narrow), factor + (i & mask), wide, narrow);

		_mm256_storeu_si256((__m256i *)(void *)(dst + i * CONVERT_WIDE_BYTES), narrow_wide(value, wide));
	}
	kvd_convert_scalar.decode[wide][narrow](dst + i * CONVERT_WIDE_BYTES, src + i, count - i, factor + (i & mask), mask);
}

AVX512 static void absmax(uint16_t *most, const void *src, size_t count, uint16_t inf_bits)
{
	const uint8_t *from = src;
	__m512i inf = _mm512_set1_epi16((int16_t)inf_bits);
	size_t i = 0;

	for (; count - i >= HALVES; i += HALVES) {
		__m512i bits = _mm512_loadu_si512(from + i * CONVERT_WIDE_BYTES);

		bits = _mm512_and_si512(bits, _mm512_set1_epi16(INT16_MAX));
		bits = _mm512_maskz_mov_epi16(_mm512_cmpgt_epi16_mask(inf, bits), bits);
		_mm512_storeu_si512(most + i, _mm512_max_epi16(bits, _mm512_loadu_si512(most + i)));
	}
	kvd_convert_scalar.absmax(most + i, from + i * CONVERT_WIDE_BYTES, count - i, inf_bits);
}

CONVERT_TABLE(AVX512, avx512)

#else

/* Nothing here on other CPUs; ISO C wants a declaration in each source. */
typedef int kvd_convert_avx512_absent;

#endif
