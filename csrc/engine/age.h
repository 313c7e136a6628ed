/* The ageing scan's inner loops, for age.c, the sources that implement them and the tests that compare them. */
#ifndef KVD_ENGINE_AGE_H
#define KVD_ENGINE_AGE_H

#include <stddef.h>

#include "engine/internal.h"

#define KVD_AGE_GENERATIONS 256u /* they are counted modulo this: a PTE's field */
#define KVD_AGE_MAX 127u         /* generations; who is older is held at it */
#define KVD_AGE_AHEAD 255u       /* a scan that never ended had begun the next generation here: age 0 */
static_assert(KVD_AGE_GENERATIONS == (KVD_ABI_PTE_GENERATION_MASK >> KVD_ABI_PTE_GENERATION_SHIFT) + 1,
	      "a generation fits its field");

/* What an entry is held against. */
struct kvd_age_look {
	uint32_t present;  /* generation */
	uint32_t least;    /* age that is reported */
	uint64_t tier_mask; /* 0: any tier */
	uint64_t tier_bits;
};

static inline uint32_t kvd_age_distance(uint64_t pte, uint32_t present)
{
	uint32_t generation = (uint32_t)((pte & KVD_ABI_PTE_GENERATION_MASK) >> KVD_ABI_PTE_GENERATION_SHIFT);

	return (present - generation) % KVD_AGE_GENERATIONS;
}

/* Must the scan stop at this entry: to change it, or to report it? */
static inline bool kvd_age_calls(uint64_t pte, const struct kvd_age_look *look)
{
	uint32_t distance = kvd_age_distance(pte, look->present);

	return pte & KVD_ABI_PTE_VALID_MASK &&
	       (pte & KVD_ABI_PTE_ACCESSED_MASK || distance > KVD_AGE_MAX ||
		(distance >= look->least && (pte & look->tier_mask) == look->tier_bits));
}

struct kvd_age_kernels {
	const char *name;
	/* How many entries from the first one on the scan may pass over. */
	uint32_t (*quiet)(const union kvd_entry *entries, uint32_t count, const struct kvd_age_look *look);
	/* How many entries from the first one on are `pte`, each with the frame after that of the one before. */
	uint32_t (*alike)(const union kvd_entry *entries, uint32_t count, uint64_t pte);
};

#define KVD_AGE_FRAME_STEP (1ull << KVD_ABI_PTE_FRAME_SHIFT)

extern const struct kvd_age_kernels kvd_age_scalar;

#if defined(__x86_64__)
/* Use only where the CPU has them. */
bool kvd_age_has_avx2(void);
bool kvd_age_has_avx512(void);
extern const struct kvd_age_kernels kvd_age_avx2;
extern const struct kvd_age_kernels kvd_age_avx512;
#endif

enum { KVD_AGE_KERNELS_MAX = 3 };

/* Fill `out` with what this CPU can run, the fastest first; their number. */
size_t kvd_age_usable(const struct kvd_age_kernels *out[KVD_AGE_KERNELS_MAX]);

/*
 * Vector loads of entries that others may set bits of at the same time. Each 8-byte word that the CPU loads is whole,
 * and what was set after the load is seen by the next scan; C has no atomic vectors, so ThreadSanitizer is told to look
 * away here, and only here.
 */
#define KVD_AGE_LOADER __attribute__((no_sanitize("thread")))

#endif
