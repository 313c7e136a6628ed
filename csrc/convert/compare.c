/* What a conversion did to values: sums of squares, and the largest difference; and whether all are finite. */
#include <math.h>

#include "convert/internal.h"

enum { MAGNITUDE = 0x7fff };

static void compare_scalar(struct kvd_convert_difference *sum, const uint8_t *src, const uint8_t *made, size_t count,
			   enum kvd_convert_wide wide)
{
	for (size_t i = 0; i < count; i++) {
		uint16_t from, to;
		double value, difference;

		memcpy(&from, src + i * CONVERT_WIDE_BYTES, sizeof(from));
		memcpy(&to, made + i * CONVERT_WIDE_BYTES, sizeof(to));
		value = (double)kvd_convert_widen(from, wide);
		difference = fabs(value - (double)kvd_convert_widen(to, wide));
		sum->square += value * value;
		sum->square_difference += difference * difference;
		if (difference > sum->most)
			sum->most = difference;
	}
}

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c")))

enum { LANES = 8, HALVES = 16 };

AVX2 CONVERT_INLINE static inline __m256 load_wide(const uint8_t *src, enum kvd_convert_wide wide)
{
	__m128i halves = _mm_loadu_si128((const __m128i *)(const void *)src);

	if (wide == KVD_CONVERT_FP16)
		return _mm256_cvtph_ps(halves);
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* The squares of eight values, added to four sums in double precision. */
AVX2 CONVERT_INLINE static inline __m256d add_squares(__m256d sum, __m256 value)
{
	__m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
	__m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));

	return _mm256_add_pd(sum, _mm256_add_pd(_mm256_mul_pd(low, low), _mm256_mul_pd(high, high)));
}

AVX2 static double total(__m256d sums)
{
	double parts[4];

	_mm256_storeu_pd(parts, sums);
	return parts[0] + parts[1] + parts[2] + parts[3];
}

AVX2 CONVERT_INLINE static inline size_t compare_avx2(struct kvd_convert_difference *sum, const uint8_t *src,
						      const uint8_t *made, size_t count, enum kvd_convert_wide wide)
{
	__m256d square = _mm256_setzero_pd(), square_difference = _mm256_setzero_pd();
	__m256 most = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
	float parts[LANES];
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m256 value = load_wide(src + i * CONVERT_WIDE_BYTES, wide);
		__m256 difference = _mm256_sub_ps(value, load_wide(made + i * CONVERT_WIDE_BYTES, wide));

		square = add_squares(square, value);
		square_difference = add_squares(square_difference, difference);
		most = _mm256_max_ps(most, _mm256_andnot_ps(sign, difference));
	}
	sum->square += total(square);
	sum->square_difference += total(square_difference);
	_mm256_storeu_ps(parts, most);
	for (size_t lane = 0; lane < LANES; lane++)
		if ((double)parts[lane] > sum->most)
			sum->most = (double)parts[lane];
	return i;
}

AVX2 static size_t compare_fast(struct kvd_convert_difference *sum, const uint8_t *src, const uint8_t *made,
				size_t count, enum kvd_convert_wide wide)
{
	return wide == KVD_CONVERT_FP16 ? compare_avx2(sum, src, made, count, KVD_CONVERT_FP16)
					: compare_avx2(sum, src, made, count, KVD_CONVERT_BF16);
}

/* Are the first *done values finite: as many of `count` as fill registers? */
AVX2 static bool finite_avx2(const uint8_t *src, size_t count, uint16_t inf_bits, size_t *done)
{
	__m256i magnitude = _mm256_set1_epi16(MAGNITUDE), most = _mm256_set1_epi16((int16_t)(inf_bits - 1));
	__m256i specials = _mm256_setzero_si256();
	size_t i = 0;

	for (; count - i >= HALVES; i += HALVES) {
		__m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(src + i * CONVERT_WIDE_BYTES));

		specials = _mm256_or_si256(specials, _mm256_cmpgt_epi16(_mm256_and_si256(bits, magnitude), most));
	}
	*done = i;
	return _mm256_testz_si256(specials, specials);
}

#endif

void kvd_convert_compare(struct kvd_convert_difference *sum, const void *src, const void *made, size_t count,
			 enum kvd_convert_wide wide)
{
	size_t done = 0;

#if defined(__x86_64__)
	if (kvd_convert_has_avx2())
		done = compare_fast(sum, src, made, count, wide);
#endif
	compare_scalar(sum, (const uint8_t *)src + done * CONVERT_WIDE_BYTES,
		       (const uint8_t *)made + done * CONVERT_WIDE_BYTES, count - done, wide);
	sum->values += count;
}

bool kvd_convert_finite(const void *src, size_t count, enum kvd_convert_wide wide)
{
	uint16_t inf = wide == KVD_CONVERT_FP16 ? CONVERT_FP16_INF : CONVERT_BF16_INF;
	const uint8_t *from = src;
	size_t i = 0;

#if defined(__x86_64__)
	if (kvd_convert_has_avx2() && !finite_avx2(src, count, inf, &i))
		return false;
#endif
	for (; i < count; i++) {
		uint16_t bits;

		memcpy(&bits, from + i * CONVERT_WIDE_BYTES, sizeof(bits));
		if ((bits & MAGNITUDE) >= inf)
			return false;
	}
	return true;
}
