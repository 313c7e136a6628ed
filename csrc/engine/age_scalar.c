/* The ageing scan's inner loops in plain C: what the vector versions must agree with. */
#include "engine/age.h"

static uint32_t quiet(const union kvd_entry *entries, uint32_t count, const struct kvd_age_look *look)
{
	uint32_t i = 0;

	while (i < count && !kvd_age_calls(__atomic_load_n(&entries[i].pte, __ATOMIC_RELAXED), look))
		i++;
	return i;
}

static uint32_t alike(const union kvd_entry *entries, uint32_t count, uint64_t pte)
{
	uint32_t i = 0;

	while (i < count && __atomic_load_n(&entries[i].pte, __ATOMIC_RELAXED) == pte) {
		pte += KVD_AGE_FRAME_STEP;
		i++;
	}
	return i;
}

const struct kvd_age_kernels kvd_age_scalar = {.name = "scalar", .quiet = quiet, .alike = alike};
