/* MAP and UNMAP. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define RUNS_ROOM_MIN 64u

bool kvd_range(const struct kvd_abi_cmd *cmd, uint64_t *end)
{
	if (cmd->first_page >= KVD_PAGES_MAX)
		return false;
	*end = cmd->count < KVD_PAGES_MAX - cmd->first_page ? cmd->first_page + cmd->count : KVD_PAGES_MAX;
	return true;
}

/* Copy the runs of a MAP: what is checked must be what is mapped. NULL, and a status: they can't be had. */
static const struct kvd_abi_map_run *copy_runs(struct kvd_call *call, uint32_t *status)
{
	struct kvd_engine *engine = call->engine;
	uint64_t count = call->cmd.count;
	const void *runs;

	*status = KVD_ABI_STATUS_BAD_ARGUMENT;
	if (count > KVD_MAP_RUNS_MAX || count > call->cmd.buffer_bytes / sizeof(*engine->runs))
		return NULL;
	*status = KVD_ABI_STATUS_BAD_ADDRESS;
	runs = kvd_call_buffer(call, call->cmd.buffer, count * sizeof(*engine->runs), false);
	if (!runs)
		return NULL;
	if (count > engine->runs_room || !engine->runs) {
		uint64_t room = count > RUNS_ROOM_MIN ? count : RUNS_ROOM_MIN;
		struct kvd_abi_map_run *more = realloc(engine->runs, room * sizeof(*more));

		*status = KVD_ABI_STATUS_NO_TABLE;
		if (!more)
			return NULL;
		engine->runs = more;
		engine->runs_room = room;
	}
	if (count)
		memcpy(engine->runs, runs, count * sizeof(*engine->runs));
	return engine->runs;
}

/* What the runs of a MAP ask for; the sums stop growing past KVD_BLOCKS_MAX, which no tier has. */
static bool survey_runs(const struct kvd_engine *engine, const struct kvd_abi_map_run *runs, uint64_t count,
			struct kvd_books *asked)
{
	for (uint64_t i = 0; i < count; i++) {
		const struct kvd_abi_map_run *run = &runs[i];

		if (run->reserved || !run->blocks || run->blocks > engine->page_blocks || !run->count ||
		    run->first_page >= KVD_PAGES_MAX || run->count > KVD_PAGES_MAX - run->first_page)
			return false;
		if (asked->blocks > KVD_BLOCKS_MAX)
			continue;
		asked->pages += run->count;
		asked->blocks += run->count * run->blocks;
	}
	return true;
}

/* Fill entries of a leaf, without their valid bit; stops at one that is not 0, or where the frames end. */
static uint32_t fill(struct kvd_engine *engine, const struct kvd_leaf *leaf, uint64_t page, uint32_t count,
		     uint64_t pte, struct kvd_grant *grant)
{
	union kvd_entry *entry = leaf->entries + page % KVD_FANOUT;
	uint32_t done = 0;

	for (; done < count && !entry[done].pte; done++) {
		uint64_t frame = kvd_grant_next(engine, grant);

		if (frame == KVD_FRAME_NONE)
			break;
		kvd_put(&entry[done].pte, pte | frame << KVD_ABI_PTE_FRAME_SHIFT);
	}
	if (done)
		kvd_leaf_more(leaf, done);
	return done;
}

/* Prepare one run; `done` pages of it, from its first, have an entry on return. */
static uint32_t prepare_run(struct kvd_engine *engine, uint64_t *root, uint32_t tier, const struct kvd_abi_map_run *run,
			    struct kvd_grant *grant, uint64_t *done)
{
	uint64_t pte = kvd_pte_new(engine, tier, run->blocks, 0) & ~(uint64_t)KVD_ABI_PTE_VALID_MASK;
	uint64_t end = run->first_page + run->count;
	struct kvd_leaf leaf;

	*done = 0;
	for (uint64_t page = run->first_page; page < end; page = run->first_page + *done) {
		uint64_t leaf_end = (page | (KVD_FANOUT - 1)) + 1;
		uint32_t count = (uint32_t)((end < leaf_end ? end : leaf_end) - page);
		uint32_t filled;

		if (!kvd_table_reach(engine, root, page, end - 1, &leaf))
			return KVD_ABI_STATUS_NO_TABLE;
		filled = fill(engine, &leaf, page, count, pte, grant);
		*done += filled;
		if (filled < count)
			return leaf.entries[(page + filled) % KVD_FANOUT].pte ? KVD_ABI_STATUS_ALREADY_MAPPED :
										KVD_ABI_STATUS_NO_SPACE;
	}
	return KVD_ABI_STATUS_OK;
}

/* Give every run's pages an entry without valid bit, or none. */
static uint32_t prepare(struct kvd_call *call, const struct kvd_abi_map_run *runs, uint64_t pages)
{
	struct kvd_engine *engine = call->engine;
	uint64_t *root = &call->session->slots[call->cmd.slot];
	struct kvd_grant grant = {.tier = &engine->head->tiers[call->tier], .wanted = pages};
	struct kvd_release undo = {.engine = engine};
	uint32_t status = KVD_ABI_STATUS_OK;
	uint64_t done = 0;
	uint64_t i;

	for (i = 0; i < call->cmd.count; i++) {
		status = prepare_run(engine, root, call->tier, &runs[i], &grant, &done);
		if (status)
			goto clear;
	}
	return KVD_ABI_STATUS_OK;

clear:
	kvd_table_clear(engine, root, runs[i].first_page, runs[i].first_page + done, kvd_release_visit, &undo);
	while (i-- > 0)
		kvd_table_clear(engine, root, runs[i].first_page, runs[i].first_page + runs[i].count,
				kvd_release_visit, &undo);
	kvd_release_flush(&undo);
	kvd_grant_end(engine, &grant);
	return status;
}

/* Refused in this order: bad runs, no space for all of them, a page mapped already or no table (first met). */
uint32_t kvd_op_map(struct kvd_engine *engine, struct kvd_call *call)
{
	bool reserved = call->cmd.flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK;
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	struct kvd_books asked = {0};
	const struct kvd_abi_map_run *runs;
	uint32_t status;

	runs = copy_runs(call, &status);
	if (!runs)
		return status;
	if (!survey_runs(engine, runs, call->cmd.count, &asked))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (!kvd_books_admit(engine, call->session, call->tier, asked.pages, asked.blocks, reserved))
		return KVD_ABI_STATUS_NO_SPACE;
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_PREPARE);
	status = prepare(call, runs, asked.pages);
	if (status)
		return status;
	call->cpl->result0 = asked.pages;
	kvd_books_intend(call, call->tier, asked.blocks, reserved);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	for (uint64_t i = 0; i < call->cmd.count; i++)
		kvd_table_validate(engine, root, runs[i].first_page, runs[i].first_page + runs[i].count);
	kvd_books_apply(call);
	kvd_books_charge(engine, call->session, call->tier, &asked, true);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_unmap(struct kvd_engine *engine, struct kvd_call *call)
{
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	call->cpl->result0 =
		kvd_table_count(engine, &call->session->slots[call->cmd.slot], call->cmd.first_page, end);
	if (!call->cpl->result0)
		return KVD_ABI_STATUS_OK;
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_redo_unmap(engine, call);
	return KVD_ABI_STATUS_OK;
}

void kvd_redo_unmap(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_release release = {.engine = engine};
	uint64_t end;

	if (!call->session || !kvd_range(&call->cmd, &end))
		return;
	kvd_table_clear(engine, &call->session->slots[call->cmd.slot], call->cmd.first_page, end, kvd_release_visit,
			&release);
	kvd_release_settle(&release, call->session);
}
