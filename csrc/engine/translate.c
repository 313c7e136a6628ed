/* TRANSLATE: a range into runs, or a list of pages into PTEs. */
#include <string.h>

#include "engine/internal.h"

#define LIST_CHUNK 512u

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
		uint64_t pte = kvd_get(&entries[i].pte);

		if (!(pte & KVD_ABI_PTE_VALID_MASK))
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
static void translate_page(const struct kvd_engine *engine, const uint64_t *root, uint64_t page,
			   struct translation *to)
{
	union kvd_entry *entry = kvd_table_find(engine, root, page);

	if (entry)
		translate_leaf(to, page, entry, 1);
}

/* The pages are copied chunk by chunk, so the list may lie where others write, and is left as it was where a page is
 * out of range. */
static uint32_t translate_list(struct kvd_engine *engine, struct kvd_call *call)
{
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	uint64_t count = call->cmd.count;
	uint64_t chunk[LIST_CHUNK];
	uint64_t *list;

	if (count > call->cmd.buffer_bytes / sizeof(*list))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	list = kvd_call_buffer(call, call->cmd.buffer, count * sizeof(*list), true);
	if (!list)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	for (uint64_t done = 0; done < count; done += LIST_CHUNK) {
		uint64_t some = count - done < LIST_CHUNK ? count - done : LIST_CHUNK;

		memcpy(chunk, list + done, some * sizeof(*chunk));
		kvd_table_lookup(engine, root, chunk, some);
		memcpy(list + done, chunk, some * sizeof(*chunk));
	}
	call->cpl->result0 = count;
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_translate(struct kvd_engine *engine, struct kvd_call *call)
{
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	struct translation to = {.room = call->cmd.buffer_bytes / sizeof(struct kvd_abi_run)};
	uint64_t end;

	if (call->cmd.flags & KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK)
		return translate_list(engine, call);
	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	to.out = kvd_call_buffer(call, call->cmd.buffer, to.room * sizeof(*to.out), true);
	if (!to.out)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	if (call->cmd.count == 1)
		translate_page(engine, root, call->cmd.first_page, &to);
	else
		kvd_table_walk(engine, root, call->cmd.first_page, end, translate_leaf, &to);
	put_run(&to);
	call->cpl->result0 = to.found;
	return to.found <= to.room ? KVD_ABI_STATUS_OK : KVD_ABI_STATUS_BUFFER_SMALL;
}
