/* TOUCH: what the software has read or written, as hardware notes it of itself; and FLUSH. */
#include "engine/internal.h"

struct touch {
	uint64_t bits;
	uint64_t pages;
};

static void touch_leaf(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count)
{
	struct touch *touch = context;

	(void)first_page;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pte = __atomic_load_n(&entries[i].pte, __ATOMIC_RELAXED);

		if (!pte)
			continue;
		touch->pages++;
		/* The store is saved where the bits are set already: pages that are used a lot stay clean in the cache. */
		if ((pte & touch->bits) != touch->bits)
			__atomic_fetch_or(&entries[i].pte, touch->bits, __ATOMIC_RELAXED);
	}
}

uint64_t kvd_touch(const struct kvd_engine *engine, const struct kvd_link *root, uint64_t first, uint64_t end,
		   bool dirty)
{
	struct touch touch = {.bits = KVD_ABI_PTE_ACCESSED_MASK | (dirty ? KVD_ABI_PTE_DIRTY_MASK : 0)};

	kvd_table_walk(engine, root, first, end, touch_leaf, &touch);
	return touch.pages;
}

uint32_t kvd_op_touch(struct kvd_engine *engine, struct kvd_call *call)
{
	bool dirty = call->cmd.flags & KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK;
	uint64_t end;

	if (!kvd_range(&call->cmd, &end))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	call->cpl->result0 = kvd_touch(engine, &call->session->slots[call->cmd.slot], call->cmd.first_page, end, dirty);
	return KVD_ABI_STATUS_OK;
}

/*
 * Whoever walks the tables sees each change as soon as it is made, but for what the CPU still holds back: an exchange
 * waits for that. (A fence would say so more directly; ThreadSanitizer does not know fences.)
 */
uint32_t kvd_op_flush(struct kvd_engine *engine, struct kvd_call *call)
{
	uint32_t barrier = 0;

	__atomic_exchange_n(&barrier, 1, __ATOMIC_SEQ_CST);
	call->cpl->result0 = engine->head->commands;
	return KVD_ABI_STATUS_OK;
}
