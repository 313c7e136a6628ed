/*
 * Frames that several pages have: a radix table a tier, with the number of pages at the number of the frame.
 *
 * A frame without an entry has one page. The tables are derived: what they say is what the PTEs say together. A page whose
 * PTE has not the shared bit is alone, so pages that were never shared never look here.
 */
#include "engine/internal.h"

uint64_t kvd_shares_of(const struct kvd_engine *engine, uint64_t pte)
{
	const union kvd_entry *entry;

	if (!(pte & KVD_ABI_PTE_SHARED_MASK) || !kvd_pte_sound(engine, pte))
		return 1;
	entry = kvd_table_entry(engine, &engine->head->tiers[kvd_pte_tier(pte)].shares, kvd_pte_frame(pte));
	return entry ? entry->pte : 1;
}

bool kvd_shares_set(struct kvd_engine *engine, uint32_t tier, uint64_t frame, uint64_t count)
{
	uint64_t *root = &engine->head->tiers[tier].shares;
	union kvd_entry *entry = kvd_table_entry(engine, root, frame);
	struct kvd_leaf leaf;

	if (count <= 1) {
		if (entry)
			kvd_table_clear(engine, root, frame, frame + 1, NULL, NULL);
		return true;
	}
	if (entry) {
		kvd_put(&entry->pte, count);
		return true;
	}
	if (!kvd_table_reach(engine, root, frame, frame, &leaf))
		return false;
	kvd_put(&leaf.entries[frame % KVD_FANOUT].pte, count);
	kvd_leaf_more(&leaf, 1);
	return true;
}

void kvd_shares_shift(struct kvd_engine *engine, uint64_t pte, int64_t delta)
{
	uint64_t *root = &engine->head->tiers[kvd_pte_tier(pte)].shares;
	union kvd_entry *entry = kvd_table_entry(engine, root, kvd_pte_frame(pte));

	if (entry)
		kvd_add(&entry->pte, (uint64_t)delta);
}

bool kvd_shares_drop(struct kvd_engine *engine, uint64_t pte)
{
	uint64_t count = kvd_shares_of(engine, pte);

	/* Less always has room. */
	if (count > 1)
		kvd_shares_set(engine, kvd_pte_tier(pte), kvd_pte_frame(pte), count - 1);
	return count > 1;
}
