/*
 * SHARE: the pages of a range get the frames that another session's pages, of the same numbers, have.
 *
 * Both sides' entries get the shared bit: a frame that is met twice without it is damage. The bit may outlive the sharing;
 * how many have a frame is said by shares.c alone.
 */
#include "engine/internal.h"

struct share {
	struct kvd_engine *engine;
	uint64_t *root;
	uint32_t status;
	uint64_t end; /* the first page that has no entry yet */
	struct kvd_books books[KVD_ABI_TIER_COUNT];
};

/* One page, without valid bit; false: no table for it. */
static bool prepare_page(struct share *share, uint64_t page, union kvd_entry *from, uint64_t was)
{
	struct kvd_engine *engine = share->engine;
	uint64_t pte = was | KVD_ABI_PTE_SHARED_MASK;
	uint32_t tier = kvd_pte_tier(pte);
	uint64_t count = kvd_shares_of(engine, was);
	struct kvd_leaf leaf;

	if (!kvd_shares_set(engine, tier, kvd_pte_frame(pte), count + 1))
		return false;
	if (!kvd_table_reach(engine, share->root, page, page, &leaf)) {
		kvd_shares_set(engine, tier, kvd_pte_frame(pte), count);
		return false;
	}
	kvd_set_bits(&from->pte, KVD_ABI_PTE_SHARED_MASK);
	kvd_put(&leaf.entries[page % KVD_FANOUT].pte,
		pte & ~(uint64_t)(KVD_ABI_PTE_VALID_MASK | KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK));
	kvd_leaf_more(&leaf, 1);
	share->books[tier].pages++;
	share->books[tier].blocks += kvd_pte_blocks(pte);
	return true;
}

static void prepare(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct share *share = context;

	for (uint32_t i = 0; i < count && !share->status; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (!(pte & KVD_ABI_PTE_VALID_MASK) || !kvd_pte_sound(share->engine, pte))
			continue;
		if (!prepare_page(share, page + i, &entries[i], pte)) {
			share->status = KVD_ABI_STATUS_NO_TABLE;
			share->end = page + i;
		}
	}
}

/* Refused in this order: bad arguments, no source, a page mapped already, no table. */
uint32_t kvd_op_share(struct kvd_engine *engine, struct kvd_call *call)
{
	struct share share = {.engine = engine, .root = &call->session->slots[call->cmd.slot]};
	struct kvd_release undo = {.engine = engine};
	uint64_t first = call->cmd.first_page;
	struct kvd_session *source;

	if (!kvd_range(&call->cmd, &share.end) || call->cmd.other_slot >= KVD_ENGINE_SLOTS_MAX)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	source = kvd_session_find(engine, call->cmd.key);
	if (!source)
		return KVD_ABI_STATUS_NO_SESSION;
	if (source == call->session && call->cmd.other_slot == call->cmd.slot)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (kvd_table_count(engine, share.root, first, share.end))
		return KVD_ABI_STATUS_ALREADY_MAPPED;
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_PREPARE);
	kvd_table_walk(engine, &source->slots[call->cmd.other_slot], first, share.end, prepare, &share);
	if (share.status) {
		kvd_table_clear(engine, share.root, first, share.end, kvd_release_visit, &undo);
		kvd_release_flush(&undo);
		return share.status;
	}
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		call->cpl->result0 += share.books[tier].pages;
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_table_validate(engine, share.root, first, share.end);
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		kvd_books_charge(engine, call->session, tier, &share.books[tier], false);
	return KVD_ABI_STATUS_OK;
}
