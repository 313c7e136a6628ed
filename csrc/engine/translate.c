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

/* Translate one part of a list as it is at one moment; a list that lies where others write is read once a try. */
static uint32_t translate_chunk(struct kvd_call *call, uint64_t *list, uint64_t count)
{
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	uint64_t chunk[LIST_CHUNK];
	struct kvd_try try = {0};

	while (kvd_read_try(call, &try)) {
		bool alive;

		memcpy(chunk, list, count * sizeof(*chunk));
		kvd_table_lookup(call->engine, root, chunk, count);
		alive = !call->reading || kvd_session_find(call->engine, call->cmd.session) == call->session;
		if (!kvd_read_good(call, &try))
			continue;
		if (!alive)
			return KVD_ABI_STATUS_NO_SESSION;
		memcpy(list, chunk, count * sizeof(*chunk));
		return KVD_ABI_STATUS_OK;
	}
	return KVD_ABI_STATUS_BUSY;
}

/* result0 says how many pages were replaced, also where the list could not be gone through to its end. */
static uint32_t translate_list(struct kvd_call *call)
{
	uint64_t count = call->cmd.count;
	uint32_t status = KVD_ABI_STATUS_OK;
	uint64_t *list;

	if (count > call->cmd.buffer_bytes / sizeof(*list))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	list = kvd_call_buffer(call, call->cmd.buffer, count * sizeof(*list), true);
	if (!list)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	for (uint64_t done = 0; done < count && !status; done += LIST_CHUNK) {
		uint64_t some = count - done < LIST_CHUNK ? count - done : LIST_CHUNK;

		status = translate_chunk(call, list + done, some);
		call->cpl->result0 += status ? 0 : some;
	}
	return status;
}

uint32_t kvd_op_translate(struct kvd_engine *engine, struct kvd_call *call)
{
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	struct translation to = {.room = call->cmd.buffer_bytes / sizeof(struct kvd_abi_run)};
	uint64_t end;

	if (call->cmd.flags & KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK)
		return translate_list(call);
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
