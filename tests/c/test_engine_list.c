/* TRANSLATE of a list: as many PTEs as pages, the same as one by one. */
#include "test_engine.h"

#define LIST_MAX 1500u

static struct test_reply list(kvd_engine *engine, uint64_t session, uint64_t *pages, uint64_t count)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_TRANSLATE,
					  .flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
					  .session = session,
					  .count = count,
					  .buffer = (uintptr_t)pages,
					  .buffer_bytes = count * sizeof(*pages),
				  });
}

static void test_list_equals_find(void **state)
{
	static uint64_t pages[LIST_MAX], wanted[LIST_MAX];
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const uint64_t *root = &kvd_session_find(engine, session)->slots[0];
	uint64_t found = 0;

	(void)state;
	pages[0] = 5;
	assert_int_equal(list(engine, session, pages, 1).result0, 1);
	assert_int_equal(pages[0], 0);
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 3, 5000, 2));
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 1ull << 40, 100, 7));
	for (uint64_t i = 0; i < LIST_MAX; i++) {
		const union kvd_entry *entry;

		pages[i] = i % 3 == 0 ? i * 7919 % 6000 : i % 3 == 1 ? (1ull << 40) + i % 200 : ~0ull << (i % 60);
		entry = kvd_table_find(engine, root, pages[i]);
		wanted[i] = entry ? entry->pte : 0;
		found += entry != NULL;
	}
	assert_true(found > LIST_MAX / 3 && found < LIST_MAX);
	assert_int_equal(list(engine, session, pages, LIST_MAX).result0, LIST_MAX);
	assert_memory_equal(pages, wanted, sizeof(pages));
	engine_end(engine);
}

static void test_list_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	uint64_t page = 0;
	struct kvd_abi_cmd cmd = {
		.op = KVD_ABI_OP_TRANSLATE,
		.flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
		.session = session,
		.count = 2,
		.buffer = (uintptr_t)&page,
		.buffer_bytes = sizeof(page),
	};

	(void)state;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.count = UINT64_MAX;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.count = 0;
	cmd.buffer = 0;
	cmd.buffer_bytes = 0;
	assert_ok(submit_one(engine, cmd));
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_list_equals_find),
		cmocka_unit_test(test_list_refuses_nonsense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
