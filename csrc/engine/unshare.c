/*
 * UNSHARE: pages whose frame others have too get one of their own.
 *
 * The new entries are made in a table of the intent, the scratch table, so that the runs that are told are the ones that
 * come true, whatever happens in between; then they move into the slot, one store a page. Pages of the range that share with
 * each other are taken in order: the last one keeps the frame.
 */
#include "engine/internal.h"

struct unshare {
	struct kvd_engine *engine;
	struct kvd_session *session;
	uint64_t *root;
	uint64_t *scratch;
	bool reserved;
	uint32_t status;
	struct kvd_grant grants[KVD_ABI_TIER_COUNT];
	struct kvd_books books[KVD_ABI_TIER_COUNT];
	struct kvd_release release;
	struct kvd_abi_copy_run run; /* that grows */
	struct kvd_abi_copy_run *out;
	uint64_t room;
	uint64_t found;
};

static void put_run(struct unshare *to)
{
	if (!to->run.count)
		return;
	if (to->found < to->room)
		to->out[to->found] = to->run;
	to->found++;
}

static void tell(struct unshare *to, uint64_t page, uint64_t old, uint64_t now)
{
	uint64_t count = to->run.count;

	if (count && page == to->run.first_page + count && kvd_pte_frame(old) == to->run.old_frame + count &&
	    kvd_pte_frame(now) == to->run.new_frame + count && kvd_pte_tier(now) == to->run.tier &&
	    kvd_pte_blocks(now) == to->run.blocks) {
		to->run.count++;
		return;
	}
	put_run(to);
	to->run = (struct kvd_abi_copy_run){
		.first_page = page,
		.count = 1,
		.old_frame = kvd_pte_frame(old),
		.new_frame = kvd_pte_frame(now),
		.tier = kvd_pte_tier(now),
		.blocks = kvd_pte_blocks(now),
	};
}

/* At most this many frames are needed. */
static void survey(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct unshare *unshare = context;

	(void)page;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (pte & KVD_ABI_PTE_VALID_MASK && kvd_shares_of(unshare->engine, pte) > 1)
			unshare->grants[kvd_pte_tier(pte)].wanted++;
	}
}

static uint32_t prepare_page(struct unshare *unshare, uint64_t page, uint64_t old)
{
	uint32_t tier = kvd_pte_tier(old);
	struct kvd_books *books = &unshare->books[tier];
	struct kvd_leaf leaf;
	uint64_t frame, now;

	if (!kvd_books_admit(unshare->engine, unshare->session, tier, 0, books->blocks + kvd_pte_blocks(old),
			     unshare->reserved))
		return KVD_ABI_STATUS_NO_SPACE;
	if (!kvd_table_reach(unshare->engine, unshare->scratch, page, page, &leaf))
		return KVD_ABI_STATUS_NO_TABLE;
	frame = kvd_grant_next(unshare->engine, &unshare->grants[tier]);
	if (frame == KVD_FRAME_NONE)
		return KVD_ABI_STATUS_NO_SPACE;
	now = kvd_pte_moved(old, tier, frame);
	kvd_put(&leaf.entries[page % KVD_FANOUT].pte, now);
	kvd_leaf_more(&leaf, 1);
	kvd_shares_shift(unshare->engine, old, -1);
	books->pages++;
	books->blocks += kvd_pte_blocks(old);
	tell(unshare, page, old, now);
	return KVD_ABI_STATUS_OK;
}

static void prepare(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct unshare *unshare = context;

	for (uint32_t i = 0; i < count && !unshare->status; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (pte & KVD_ABI_PTE_VALID_MASK && kvd_shares_of(unshare->engine, pte) > 1)
			unshare->status = prepare_page(unshare, page + i, pte);
	}
}

/* Count the pages as sharers again: they are until they get their new entry. */
static void restore(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct unshare *unshare = context;

	for (uint32_t i = 0; i < count; i++) {
		const union kvd_entry *old;

		if (!entries[i].pte)
			continue;
		old = kvd_table_find(unshare->engine, unshare->root, page + i);
		if (old)
			kvd_shares_shift(unshare->engine, old->pte, 1);
	}
}

static void end_grants(struct unshare *unshare)
{
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		kvd_grant_end(unshare->engine, &unshare->grants[tier]);
}

/* The frames of the scratch table are nobody's again. */
static void give_back(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct unshare *unshare = context;

	(void)page;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (pte && kvd_pte_sound(unshare->engine, pte))
			kvd_frames_give(unshare->engine, &unshare->engine->head->tiers[kvd_pte_tier(pte)],
					kvd_pte_frame(pte), 1);
	}
}

static struct unshare unshare_of(struct kvd_engine *engine, const struct kvd_call *call)
{
	struct unshare unshare = {
		.engine = engine,
		.session = call->session,
		.root = &call->session->slots[call->cmd.slot],
		.scratch = &engine->head->intent.scratch,
		.reserved = call->cmd.flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK,
		.release.engine = engine,
		.room = call->cmd.buffer_bytes / sizeof(struct kvd_abi_copy_run),
	};

	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		unshare.grants[tier].tier = &engine->head->tiers[tier];
	return unshare;
}

/* Refused in this order: bad arguments, no space or no table (first met), no room for the runs. */
uint32_t kvd_op_unshare(struct kvd_engine *engine, struct kvd_call *call)
{
	struct unshare unshare = unshare_of(engine, call);
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	unshare.out = kvd_call_buffer(call, call->cmd.buffer, unshare.room * sizeof(*unshare.out), true);
	if (!unshare.out)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	kvd_table_walk(engine, unshare.root, call->cmd.first_page, end, survey, &unshare);
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_PREPARE);
	kvd_table_walk(engine, unshare.root, call->cmd.first_page, end, prepare, &unshare);
	put_run(&unshare);
	end_grants(&unshare);
	kvd_table_walk(engine, unshare.scratch, 0, KVD_PAGES_MAX, restore, &unshare);
	if (!unshare.status && unshare.found > unshare.room) {
		call->cpl->result0 = unshare.found;
		unshare.status = KVD_ABI_STATUS_BUFFER_SMALL;
	}
	if (unshare.status) {
		kvd_table_clear(engine, unshare.scratch, 0, KVD_PAGES_MAX, give_back, &unshare);
		return unshare.status;
	}
	call->cpl->result0 = unshare.found;
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++) {
		call->cpl->result1 += unshare.books[tier].pages;
		kvd_books_intend(call, tier, unshare.books[tier].blocks, unshare.reserved);
	}
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_books_apply(call);
	kvd_redo_unshare(engine, call);
	return KVD_ABI_STATUS_OK;
}

static void commit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct unshare *unshare = context;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t now = kvd_get(&entries[i].pte);
		union kvd_entry *entry;
		uint64_t old;

		if (!now)
			continue;
		entry = kvd_table_find(unshare->engine, unshare->root, page + i);
		if (!entry || !kvd_pte_sound(unshare->engine, now))
			continue;
		old = entry->pte;
		if (kvd_pte_tier(old) == kvd_pte_tier(now) && kvd_pte_frame(old) == kvd_pte_frame(now))
			continue;
		kvd_put(&entry->pte, now);
		unshare->books[kvd_pte_tier(now)].pages++;
		unshare->books[kvd_pte_tier(now)].blocks += kvd_pte_blocks(now);
		kvd_release_add(&unshare->release, old);
	}
}

void kvd_redo_unshare(struct kvd_engine *engine, struct kvd_call *call)
{
	struct unshare unshare;

	if (!call->session)
		return;
	unshare = unshare_of(engine, call);
	kvd_table_walk(engine, unshare.scratch, 0, KVD_PAGES_MAX, commit, &unshare);
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		kvd_books_charge(engine, call->session, tier, &unshare.books[tier], true);
	kvd_release_settle(&unshare.release, call->session);
	kvd_table_clear(engine, unshare.scratch, 0, KVD_PAGES_MAX, NULL, NULL);
}
