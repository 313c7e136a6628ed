/* TOUCH: what the software has read or written, as hardware notes it of itself. */
#include "engine/internal.h"

static void touch_leaf(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count)
{
	const uint64_t *bits = context;

	(void)first_page;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		/* The store is saved where the bits are set already: pages that are used a lot stay clean in the cache. */
		if (pte & KVD_ABI_PTE_VALID_MASK && (pte & *bits) != *bits)
			kvd_set_bits(&entries[i].pte, *bits);
	}
}

void kvd_touch(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end, bool dirty)
{
	uint64_t bits = KVD_ABI_PTE_ACCESSED_MASK | (dirty ? KVD_ABI_PTE_DIRTY_MASK : 0);

	kvd_table_walk(engine, root, first, end, touch_leaf, &bits);
}

uint32_t kvd_op_touch(struct kvd_engine *engine, struct kvd_call *call)
{
	const uint64_t *root = &call->session->slots[call->cmd.slot];
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	call->cpl->result0 = kvd_table_count(engine, root, call->cmd.first_page, end);
	if (!call->cpl->result0)
		return KVD_ABI_STATUS_OK;
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_redo_touch(engine, call);
	return KVD_ABI_STATUS_OK;
}

void kvd_redo_touch(struct kvd_engine *engine, struct kvd_call *call)
{
	bool dirty = call->cmd.flags & KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK;
	uint64_t end;

	if (call->session && kvd_range(&call->cmd, &end))
		kvd_touch(engine, &call->session->slots[call->cmd.slot], call->cmd.first_page, end, dirty);
}
