/* MAP, UNMAP and TRANSLATE. */
#include "engine/internal.h"

bool kvd_range(const struct kvd_abi_cmd *cmd, uint64_t *end)
{
	if (cmd->first_page >= KVD_PAGES_MAX)
		return false;
	*end = cmd->count < KVD_PAGES_MAX - cmd->first_page ? cmd->first_page + cmd->count : KVD_PAGES_MAX;
	return true;
}

/* What the runs of a MAP ask for; the sums stop growing past KVD_BLOCKS_MAX, which no tier has. */
static bool survey_runs(const struct kvd_engine *engine, const struct kvd_abi_cmd *cmd, uint64_t *pages,
			uint64_t *blocks)
{
	const struct kvd_abi_map_run *runs = (const void *)cmd->buffer;

	*pages = 0;
	*blocks = 0;
	if (cmd->count > cmd->buffer_bytes / sizeof(*runs))
		return false;
	for (uint64_t i = 0; i < cmd->count; i++) {
		const struct kvd_abi_map_run *run = &runs[i];

		if (run->reserved || !run->blocks || run->blocks > engine->page_blocks || !run->count ||
		    run->first_page >= KVD_PAGES_MAX || run->count > KVD_PAGES_MAX - run->first_page)
			return false;
		if (*blocks > KVD_BLOCKS_MAX)
			continue;
		*pages += run->count;
		*blocks += run->count * run->blocks;
	}
	return true;
}

/* Map one run; `done` pages of it, from its first, are mapped on return. */
static uint32_t map_run(struct kvd_engine *engine, struct kvd_link *root, uint32_t tier,
			const struct kvd_abi_map_run *run, struct kvd_grant *grant, uint64_t *done)
{
	uint64_t end = run->first_page + run->count;
	struct kvd_link *leaf;

	*done = 0;
	for (uint64_t page = run->first_page; page < end; page = run->first_page + *done) {
		uint64_t leaf_end = (page | (KVD_FANOUT - 1)) + 1;
		uint64_t stop = end < leaf_end ? end : leaf_end;
		union kvd_entry *entry;

		if (!kvd_table_reach(engine, root, page, end - 1, &leaf))
			return KVD_ABI_STATUS_NO_TABLE;
		entry = kvd_entries(engine, leaf->node) + page % KVD_FANOUT;
		for (; page < stop; page++, entry++) {
			if (entry->pte)
				return KVD_ABI_STATUS_ALREADY_MAPPED;
			entry->pte = kvd_pte_make(tier, run->blocks, kvd_grant_next(engine, grant)) | kvd_pte_age(engine);
			leaf->used++;
			(*done)++;
		}
	}
	return KVD_ABI_STATUS_OK;
}

/* Refused in this order: bad runs, no space for all of them, a page mapped already or no table (first met). */
uint32_t kvd_op_map(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_abi_map_run *runs = (const void *)call->cmd.buffer;
	struct kvd_link *root = &call->session->slots[call->cmd.slot];
	bool reserved = call->cmd.flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK;
	struct kvd_release undo = {.engine = engine};
	struct kvd_grant grant = {.tier = &engine->head->tiers[call->tier]};
	uint32_t status = KVD_ABI_STATUS_OK;
	uint64_t pages, blocks;
	uint64_t done = 0;
	uint64_t i;

	if (!survey_runs(engine, &call->cmd, &pages, &blocks))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (!kvd_books_admit(engine, call->session, call->tier, pages, blocks, reserved))
		return KVD_ABI_STATUS_NO_SPACE;
	grant.wanted = pages;
	for (i = 0; i < call->cmd.count; i++) {
		status = map_run(engine, root, call->tier, &runs[i], &grant, &done);
		if (status)
			goto unmap;
	}
	kvd_books_charge(engine, call->session, call->tier, pages, blocks, reserved);
	call->cpl->result0 = pages;
	return KVD_ABI_STATUS_OK;

unmap:
	kvd_table_clear(engine, root, runs[i].first_page, runs[i].first_page + done, kvd_release_visit, &undo);
	while (i-- > 0)
		kvd_table_clear(engine, root, runs[i].first_page, runs[i].first_page + runs[i].count,
				kvd_release_visit, &undo);
	kvd_release_flush(&undo);
	kvd_grant_end(engine, &grant);
	return status;
}

uint32_t kvd_op_unmap(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_release release = {.engine = engine};
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	kvd_table_clear(engine, &call->session->slots[call->cmd.slot], call->cmd.first_page, end, kvd_release_visit,
			&release);
	call->cpl->result0 = kvd_release_settle(&release, call->session);
	return KVD_ABI_STATUS_OK;
}

/* The run that grows, and where finished ones go: those past `room` are only counted. */
struct translation {
	struct kvd_abi_run run;
	struct kvd_abi_run *out;
	uint64_t room;
	uint64_t found;
};

static void put_run(struct translation *to)
{
	if (!to->run.count)
		return;
	if (to->found < to->room)
		to->out[to->found] = to->run;
	to->found++;
}

static void translate_leaf(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct translation *to = context;

	for (uint32_t i = 0; i < count; i++, page++) {
		uint64_t pte = entries[i].pte;

		if (!pte)
			continue;
		if (page == to->run.first_page + to->run.count && kvd_pte_tier(pte) == to->run.tier &&
		    kvd_pte_blocks(pte) == to->run.blocks &&
		    kvd_pte_frame(pte) == to->run.first_frame + to->run.count) {
			to->run.count++;
			continue;
		}
		put_run(to);
		to->run = (struct kvd_abi_run){
			.first_page = page,
			.count = 1,
			.first_frame = kvd_pte_frame(pte),
			.tier = kvd_pte_tier(pte),
			.blocks = kvd_pte_blocks(pte),
		};
	}
}

/* The most frequent question, without the recursion of a walk. */
static void translate_page(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t page,
			   struct translation *to)
{
	union kvd_entry *entry = kvd_table_find(engine, root, page);

	if (entry)
		translate_leaf(to, page, entry, 1);
}

uint32_t kvd_op_translate(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_link *root = &call->session->slots[call->cmd.slot];
	struct translation to = {
		.out = (void *)call->cmd.buffer,
		.room = call->cmd.buffer_bytes / sizeof(struct kvd_abi_run),
	};
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (call->cmd.count == 1)
		translate_page(engine, root, call->cmd.first_page, &to);
	else
		kvd_table_walk(engine, root, call->cmd.first_page, end, translate_leaf, &to);
	put_run(&to);
	call->cpl->result0 = to.found;
	return to.found <= to.room ? KVD_ABI_STATUS_OK : KVD_ABI_STATUS_BUFFER_SMALL;
}
