/*
 * REMAP: give the pages of a range that are in another tier a frame in this one.
 *
 * Three passes over the range: survey (what is asked, is anything in the way), copy (KEEP: make the places in the
 * other slot, the last thing that can fail), commit (page by page, cannot fail). A reader of the table sees each
 * page in its old frame or in its new one. A page that is done is in the tier, so the commit can be begun again; where it
 * changes two entries of a page, the intent's step has them both.
 */
#include "engine/internal.h"

struct remap {
	struct kvd_engine *engine;
	uint64_t *root;
	uint64_t *other;
	uint32_t tier;
	bool keep;
	bool take;
	uint32_t status;    /* of the first page that is in the way */
	uint64_t end;       /* the first page that could not be copied, or the end of the range */
	struct kvd_books asked;
	struct kvd_books moved;
	struct kvd_grant grant;
	struct kvd_release release;
	void (*each)(struct remap *remap, uint64_t page, union kvd_entry *entry);
};

static void visit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct remap *remap = context;

	for (uint32_t i = 0; i < count && !remap->status; i++) {
		if (entries[i].pte & KVD_ABI_PTE_VALID_MASK && kvd_pte_tier(entries[i].pte) != remap->tier)
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

	if (kvd_shares_of(remap->engine, entry->pte) > 1)
		remap->status = KVD_ABI_STATUS_SHARED;
	else if (remap->take && (!other || kvd_pte_tier(other->pte) != remap->tier))
		remap->status = KVD_ABI_STATUS_NOT_MAPPED;
	else if (!remap->take && other)
		remap->status = KVD_ABI_STATUS_ALREADY_MAPPED;
	remap->asked.pages++;
	remap->asked.blocks += kvd_pte_blocks(entry->pte);
}

/* An entry without valid bit, until the commit comes to the page. */
static void copy(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	struct kvd_leaf leaf;

	if (!kvd_table_reach(remap->engine, remap->other, page, page, &leaf)) {
		remap->status = KVD_ABI_STATUS_NO_TABLE;
		remap->end = page;
		return;
	}
	kvd_put(&leaf.entries[page % KVD_FANOUT].pte, entry->pte & ~(uint64_t)KVD_ABI_PTE_VALID_MASK);
	kvd_leaf_more(&leaf, 1);
}

static void uncopy(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	(void)entry;
	kvd_table_clear(remap->engine, remap->other, page, page + 1, NULL, NULL);
}

static void count(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	(void)page;
	(void)entry;
	remap->grant.wanted++;
}

/* A new frame for a page; its old one stays in the other slot or is given back. */
static void move(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	uint64_t old = kvd_get(&entry->pte);
	union kvd_entry *other = remap->keep ? kvd_table_entry(remap->engine, remap->other, page) : NULL;
	uint64_t frame, now;

	/* Only damage can make one of these fail; then the page stays where it is. */
	if (remap->keep && !other)
		return;
	frame = kvd_grant_next(remap->engine, &remap->grant);
	if (frame == KVD_FRAME_NONE)
		return;
	now = kvd_pte_moved(old, remap->tier, frame);
	if (other) {
		kvd_intent_step(remap->engine, &other->pte, old, &entry->pte, now);
		kvd_put(&other->pte, old);
	}
	kvd_put(&entry->pte, now);
	remap->moved.pages++;
	remap->moved.blocks += kvd_pte_blocks(now);
	if (!other)
		kvd_release_add(&remap->release, old);
}

/* The frame of the other slot for a page; its old one takes that place or is given back. */
static void take(struct remap *remap, uint64_t page, union kvd_entry *entry)
{
	union kvd_entry *other = kvd_table_find(remap->engine, remap->other, page);
	uint64_t old = entry->pte;

	if (!other)
		return;
	kvd_intent_step(remap->engine, &entry->pte, other->pte, &other->pte, remap->keep ? old : 0);
	kvd_put(&entry->pte, other->pte);
	if (remap->keep) {
		kvd_put(&other->pte, old);
		return;
	}
	kvd_table_clear(remap->engine, remap->other, page, page + 1, NULL, NULL);
	kvd_release_add(&remap->release, old);
}

static struct remap remap_of(struct kvd_engine *engine, const struct kvd_call *call)
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

	if (!kvd_range(&call->cmd, &remap.end))
		remap.status = KVD_ABI_STATUS_BAD_ARGUMENT;
	if (!remap.keep && !remap.take)
		return remap;
	if (call->cmd.other_slot >= KVD_ENGINE_SLOTS_MAX || call->cmd.other_slot == call->cmd.slot)
		remap.status = KVD_ABI_STATUS_BAD_ARGUMENT;
	else
		remap.other = &call->session->slots[call->cmd.other_slot];
	return remap;
}

/* Refused in this order: bad arguments, leased, a page in the way, no space, no table. */
uint32_t kvd_op_remap(struct kvd_engine *engine, struct kvd_call *call)
{
	struct remap remap = remap_of(engine, call);
	bool reserved = call->cmd.flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK;
	uint64_t first = call->cmd.first_page;

	if (remap.status)
		return remap.status;
	if (call->session->leases)
		return KVD_ABI_STATUS_LEASED;
	each_page(&remap, first, remap.end, survey);
	if (remap.status)
		return remap.status;
	if (!remap.take && !kvd_books_admit(engine, call->session, call->tier, remap.asked.pages, remap.asked.blocks,
					    reserved))
		return KVD_ABI_STATUS_NO_SPACE;
	call->cpl->result0 = remap.asked.pages;
	if (!remap.asked.pages)
		return KVD_ABI_STATUS_OK;
	kvd_intent_open(call);
	if (remap.keep && !remap.take) {
		kvd_intent_stage(call, KVD_ABI_STAGE_PREPARE);
		each_page(&remap, first, remap.end, copy);
		if (remap.status)
			goto uncopy;
	}
	if (!remap.take)
		kvd_books_intend(call, call->tier, remap.asked.blocks, reserved);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_books_apply(call);
	kvd_redo_remap(engine, call);
	return KVD_ABI_STATUS_OK;

uncopy:
	remap.status = KVD_ABI_STATUS_OK;
	each_page(&remap, first, remap.end, uncopy);
	call->cpl->result0 = 0;
	return KVD_ABI_STATUS_NO_TABLE;
}

void kvd_redo_remap(struct kvd_engine *engine, struct kvd_call *call)
{
	struct remap remap;
	uint64_t first = call->cmd.first_page;

	if (!call->session)
		return;
	remap = remap_of(engine, call);
	if (remap.status)
		return;
	if (!remap.take)
		each_page(&remap, first, remap.end, count);
	each_page(&remap, first, remap.end, remap.take ? take : move);
	kvd_books_charge(engine, call->session, call->tier, &remap.moved, true);
	kvd_release_settle(&remap.release, call->session);
	kvd_grant_end(engine, &remap.grant);
}
