/* The ageing scan's inner loops for AVX-512: eight entries at once. */
#include "engine/age.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))
#define LANES 8u

bool kvd_age_has_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}

AVX512 KVD_AGE_LOADER static uint32_t quiet(const union kvd_entry *entries, uint32_t count,
					    const struct kvd_age_look *look)
{
	__m512i present = _mm512_set1_epi64(look->present);
	__m512i byte = _mm512_set1_epi64(KVD_AGE_GENERATIONS - 1);
	__m512i least = _mm512_set1_epi64(look->least);
	__m512i most = _mm512_set1_epi64(KVD_AGE_MAX);
	__m512i tier_mask = _mm512_set1_epi64((int64_t)look->tier_mask);
	__m512i tier_bits = _mm512_set1_epi64((int64_t)look->tier_bits);
	__m512i accessed = _mm512_set1_epi64(KVD_ABI_PTE_ACCESSED_MASK);
	__m512i valid = _mm512_set1_epi64(KVD_ABI_PTE_VALID_MASK);
	uint32_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		__m512i pte = _mm512_loadu_si512(entries + i);
		__m512i shifted = _mm512_srli_epi64(pte, KVD_ABI_PTE_GENERATION_SHIFT);
		__m512i distance = _mm512_and_si512(_mm512_sub_epi64(present, shifted), byte);
		uint32_t calls = _mm512_mask_cmpge_epu64_mask(
			_mm512_cmpeq_epi64_mask(_mm512_and_si512(pte, tier_mask), tier_bits), distance, least);

		calls |= _mm512_cmpgt_epu64_mask(distance, most);
		calls |= _mm512_test_epi64_mask(pte, accessed);
		calls &= _mm512_test_epi64_mask(pte, valid);
		if (calls)
			return i + (uint32_t)__builtin_ctz(calls);
	}
	return i + kvd_age_scalar.quiet(entries + i, count - i, look);
}

AVX512 KVD_AGE_LOADER static uint32_t alike(const union kvd_entry *entries, uint32_t count, uint64_t pte)
{
	__m512i lanes = _mm512_slli_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), KVD_ABI_PTE_FRAME_SHIFT);
	__m512i expected = _mm512_add_epi64(_mm512_set1_epi64((int64_t)pte), lanes);
	__m512i step = _mm512_set1_epi64(LANES * (int64_t)KVD_AGE_FRAME_STEP);
	uint32_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		if (_mm512_cmpneq_epi64_mask(_mm512_loadu_si512(entries + i), expected))
			break;
		expected = _mm512_add_epi64(expected, step);
	}
	return i + kvd_age_scalar.alike(entries + i, count - i, pte + i * KVD_AGE_FRAME_STEP);
}

const struct kvd_age_kernels kvd_age_avx512 = {.name = "avx512", .quiet = quiet, .alike = alike};

#else

/* Nothing here on other CPUs; ISO C wants a declaration in each source. */
typedef int kvd_age_avx512_absent;

#endif
