/* The ageing scan's inner loops for AVX2: four entries at once. */
#include "engine/age.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define LANES 4u

bool kvd_age_has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

/* All ones in each lane whose entry has the bit. */
AVX2 static inline __m256i has(__m256i pte, int64_t bit)
{
	__m256i mask = _mm256_set1_epi64x(bit);

	return _mm256_cmpeq_epi64(_mm256_and_si256(pte, mask), mask);
}

AVX2 KVD_AGE_LOADER static uint32_t quiet(const union kvd_entry *entries, uint32_t count,
					  const struct kvd_age_look *look)
{
	__m256i present = _mm256_set1_epi64x(look->present);
	__m256i byte = _mm256_set1_epi64x(KVD_AGE_GENERATIONS - 1);
	__m256i least = _mm256_set1_epi64x((int64_t)look->least - 1);
	__m256i most = _mm256_set1_epi64x(KVD_AGE_MAX);
	__m256i tier_mask = _mm256_set1_epi64x((int64_t)look->tier_mask);
	__m256i tier_bits = _mm256_set1_epi64x((int64_t)look->tier_bits);
	uint32_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m256i pte = _mm256_loadu_si256((const __m256i *)(const void *)(entries + i));
		__m256i shifted = _mm256_srli_epi64(pte, KVD_ABI_PTE_GENERATION_SHIFT);
		__m256i distance = _mm256_and_si256(_mm256_sub_epi64(present, shifted), byte);
		__m256i told = _mm256_and_si256(_mm256_cmpgt_epi64(distance, least),
						_mm256_cmpeq_epi64(_mm256_and_si256(pte, tier_mask), tier_bits));
		__m256i calls = _mm256_or_si256(_mm256_or_si256(told, _mm256_cmpgt_epi64(distance, most)),
						has(pte, KVD_ABI_PTE_ACCESSED_MASK));
		uint32_t lanes = (uint32_t)_mm256_movemask_pd(
			_mm256_castsi256_pd(_mm256_and_si256(calls, has(pte, KVD_ABI_PTE_VALID_MASK))));

		if (lanes)
			return i + (uint32_t)__builtin_ctz(lanes);
	}
	return i + kvd_age_scalar.quiet(entries + i, count - i, look);
}

AVX2 KVD_AGE_LOADER static uint32_t alike(const union kvd_entry *entries, uint32_t count, uint64_t pte)
{
	__m256i step = _mm256_set1_epi64x(LANES * (int64_t)KVD_AGE_FRAME_STEP);
	__m256i lanes = _mm256_set_epi64x(3 * (int64_t)KVD_AGE_FRAME_STEP, 2 * (int64_t)KVD_AGE_FRAME_STEP,
					  (int64_t)KVD_AGE_FRAME_STEP, 0);
	__m256i expected = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)pte), lanes);
	uint32_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m256i found = _mm256_loadu_si256((const __m256i *)(const void *)(entries + i));

		if (_mm256_movemask_epi8(_mm256_cmpeq_epi64(found, expected)) != -1)
			break;
		expected = _mm256_add_epi64(expected, step);
	}
	return i + kvd_age_scalar.alike(entries + i, count - i, pte + i * KVD_AGE_FRAME_STEP);
}

const struct kvd_age_kernels kvd_age_avx2 = {.name = "avx2", .quiet = quiet, .alike = alike};

#else

/* Nothing here on other CPUs; ISO C wants a declaration in each source. */
typedef int kvd_age_avx2_absent;

#endif
