/* One function a command, for those that answer with two results. */
#ifndef KVD_TESTS_TEST_ENGINE_OPS_H
#define KVD_TESTS_TEST_ENGINE_OPS_H

#include "test_engine.h"

struct ops_reply {
	uint32_t status;
	uint64_t result0;
	uint64_t result1;
};

static inline struct ops_reply submit_two(kvd_engine *engine, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_cpl cpl = {.status = UINT16_MAX, .result0 = 2, .result1 = 3};

	cmd.id = 78;
	kvd_engine_submit(engine, &cmd, &cpl, 1);
	assert_int_equal(cpl.id, 78);
	return (struct ops_reply){cpl.status, cpl.result0, cpl.result1};
}

static inline struct test_reply transition(kvd_engine *engine, uint64_t session, uint64_t key)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_SESSION_TRANSITION, .session = session, .key = key});
}

static inline struct test_reply touch(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t first,
				      uint64_t count, uint16_t flags)
{
	return submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_TOUCH,
						       .flags = flags,
						       .session = session,
						       .slot = slot,
						       .first_page = first,
						       .count = count});
}

/* The PTE of a page, as hardware finds it; 0: none. */
static inline uint64_t pte_of(const kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t page)
{
	const union kvd_entry *entry =
		kvd_table_find(engine, &kvd_session_find(engine, session)->slots[slot], page);

	return entry ? entry->pte : 0;
}

/* Change bits of a PTE as hardware does. */
static inline void pte_set(const kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t page, uint64_t bits)
{
	union kvd_entry *entry = kvd_table_find(engine, &kvd_session_find(engine, session)->slots[slot], page);

	assert_non_null(entry);
	__atomic_fetch_or(&entry->pte, bits, __ATOMIC_RELAXED);
}

#endif
