/*
 * REMAP: give the pages of a range that are in another tier a frame in this one.
 *
 * Three passes over the range: survey (what is asked, is anything in the way), copy (KEEP: make the places in the
 * other slot, the last thing that can fail), commit (one store a page, cannot fail). A reader of the table sees each
 * page in its old frame or in its new one.
 */
#include "engine/internal.h"

struct remap {
	struct kvd_engine *engine;
	struct kvd_link *root;
	struct kvd_link *other;
	uint32_t tier;
	bool keep;
	bool take;
	uint32_t status;    /* of the first page that is in the way */
	uint64_t end;       /* the first page that could not be copied, or the end of the range */
	uint64_t pages;
	uint64_t blocks;
	struct kvd_grant grant;
	struct kvd_release release;
	void (*each)(struct remap *remap, uint64_t page, union kvd_entry *entry);
};

static void visit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct remap *remap = context;

	for (uint32_t i = 0; i < count && !remap->status; i++) {
		if (entries[i].pte && kvd_pte_tier(entries[i].pte) != remap->tier)
			remap->each(remap, page + i, &entries[i]);
	}
}

static void each_page(struct remap *remap, uint64_t first, uint64_t end,
		      void (*each)(struct remap *remap, uint64_t page, union kvd_entry *entry))
{
	remap->each = each;
	kvd_table_walk(remap->engine, remap->root, first, end, visit, remap);
}

static void survey(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	const union kvd_entry *other =
		remap->keep || remap->take ? kvd_table_find(remap->engine, remap->other, page) : NULL;

	if (remap->take && (!other || kvd_pte_tier(other->pte) != remap->tier))
		remap->status = KVD_ABI_STATUS_NOT_MAPPED;
	else if (!remap->take && other)
		remap->status = KVD_ABI_STATUS_ALREADY_MAPPED;
	remap->pages++;
	remap->blocks += kvd_pte_blocks(entry->pte);
}

static void copy(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	struct kvd_link *leaf;

	if (!kvd_table_reach(remap->engine, remap->other, page, page, &leaf)) {
		remap->status = KVD_ABI_STATUS_NO_TABLE;
		remap->end = page;
		return;
	}
	kvd_entries(remap->engine, leaf->node)[page % KVD_FANOUT] = *entry;
	leaf->used++;
}

static void uncopy(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	(void)entry;
	kvd_table_clear(remap->engine, remap->other, page, page + 1, NULL, NULL);
}

static void commit(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	uint64_t old = entry->pte;
	union kvd_entry *other;

	if (!remap->take) {
		uint64_t frame = kvd_grant_next(remap->engine, &remap->grant);

		__atomic_store_n(&entry->pte, kvd_pte_make(remap->tier, kvd_pte_blocks(old), frame) | (old & KVD_PTE_USE_MASK),
				 __ATOMIC_RELEASE);
	} else {
		other = kvd_table_find(remap->engine, remap->other, page);
		__atomic_store_n(&entry->pte, other->pte, __ATOMIC_RELEASE);
		if (remap->keep)
			__atomic_store_n(&other->pte, old, __ATOMIC_RELEASE);
		else
			kvd_table_clear(remap->engine, remap->other, page, page + 1, NULL, NULL);
	}
	if (!remap->keep)
		kvd_release_add(&remap->release, old);
}

/* Refused in this order: bad arguments, leased, a page in the way, no space, no table. */
uint32_t kvd_op_remap(struct kvd_engine *engine, struct kvd_call *call)
{
	struct remap remap = {
		.engine = engine,
		.root = &call->session->slots[call->cmd.slot],
		.tier = call->tier,
		.keep = call->cmd.flags & KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK,
		.take = call->cmd.flags & KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK,
		.grant.tier = &engine->head->tiers[call->tier],
		.release.engine = engine,
	};
	bool reserved = call->cmd.flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK;
	uint64_t first = call->cmd.first_page;

	if (!kvd_range(&call->cmd, &remap.end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (remap.keep || remap.take) {
		if (call->cmd.other_slot >= KVD_ENGINE_SLOTS_MAX || call->cmd.other_slot == call->cmd.slot)
			return KVD_ABI_STATUS_BAD_ARGUMENT;
		remap.other = &call->session->slots[call->cmd.other_slot];
	}
	if (call->session->leases)
		return KVD_ABI_STATUS_LEASED;
	each_page(&remap, first, remap.end, survey);
	if (remap.status)
		return remap.status;
	if (!remap.take && !kvd_books_admit(engine, call->session, call->tier, remap.pages, remap.blocks, reserved))
		return KVD_ABI_STATUS_NO_SPACE;
	if (remap.keep && !remap.take) {
		each_page(&remap, first, remap.end, copy);
		if (remap.status)
			goto uncopy;
	}
	remap.grant.wanted = remap.take ? 0 : remap.pages;
	each_page(&remap, first, remap.end, commit);
	if (!remap.take)
		kvd_books_charge(engine, call->session, call->tier, remap.pages, remap.blocks, reserved);
	kvd_release_settle(&remap.release, call->session);
	call->cpl->result0 = remap.pages;
	return KVD_ABI_STATUS_OK;

uncopy:
	remap.status = KVD_ABI_STATUS_OK;
	each_page(&remap, first, remap.end, uncopy);
	return KVD_ABI_STATUS_NO_TABLE;
}
