/* SHARE and UNSHARE: what they do, what they refuse, and who is charged. */
#include "test_engine.h"

#define ALL KVD_PAGES_MAX
#define DDR KVD_ABI_TIER_DDR
#define NVME KVD_ABI_TIER_NVME

static struct test_reply share(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t source, uint16_t other,
			       uint64_t first, uint64_t count)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_SHARE,
					  .session = session,
					  .slot = slot,
					  .other_slot = other,
					  .key = source,
					  .first_page = first,
					  .count = count,
				  });
}

static struct test_reply unshare(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t first, uint64_t count,
				 struct kvd_abi_copy_run *runs, uint64_t room, uint16_t flags)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_UNSHARE,
					  .flags = flags,
					  .session = session,
					  .slot = slot,
					  .first_page = first,
					  .count = count,
					  .buffer = (uintptr_t)runs,
					  .buffer_bytes = room * sizeof(*runs),
				  });
}

/* A frame is charged once, a page in the books of each session that has it. */
static void test_share_and_unmap(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1), b = session_new(engine, 2), c = session_new(engine, 3);
	struct kvd_abi_run from, to;

	(void)state;
	assert_ok(map(engine, a, 0, DDR, 10, 600, 3));
	assert_int_equal(share(engine, b, 1, a, 0, 0, ALL).result0, 600);
	assert_int_equal(share(engine, c, 0, b, 1, 100, 100).result0, 100);
	from = one_run(engine, a, 0, 0, ALL);
	to = one_run(engine, b, 1, 0, ALL);
	assert_memory_equal(&from, &to, sizeof(from));
	assert_int_equal(tier_info(engine, DDR).used_frames, 600);
	assert_int_equal(tier_info(engine, DDR).used_blocks, 1800);
	assert_int_equal(session_info(engine, c).mapped_pages[DDR], 100);
	assert_int_equal(session_info(engine, c).mapped_blocks[DDR], 300);
	assert_consistent(engine);
	/* The one who had them first may go: the frames stay while anybody has them. */
	assert_int_equal(destroy(engine, a).result0, 600);
	assert_int_equal(tier_info(engine, DDR).used_frames, 600);
	assert_consistent(engine);
	assert_int_equal(unmap(engine, b, 1, 0, ALL).result0, 600);
	assert_int_equal(tier_info(engine, DDR).used_blocks, 300);
	assert_consistent(engine);
	/* The last one is alone again, and may be moved. */
	assert_int_equal(remap(engine, c, 0, 0, NVME, 0, ALL, 0).result0, 100);
	assert_int_equal(tier_info(engine, DDR).used_frames, 0);
	engine_end(engine);
}

static void test_share_refuses(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1), b = session_new(engine, 2);

	(void)state;
	assert_ok(map(engine, a, 0, DDR, 0, 10, 1));
	assert_ok(map(engine, b, 0, NVME, 4, 1, 1));
	assert_status(share(engine, b, 0, a, 0, 0, 10), KVD_ABI_STATUS_ALREADY_MAPPED);
	assert_status(share(engine, b, 0, a + 1, 0, 0, 10), KVD_ABI_STATUS_NO_SESSION);
	assert_status(share(engine, b + 7, 0, a, 0, 0, 10), KVD_ABI_STATUS_NO_SESSION);
	assert_status(share(engine, a, 0, a, 0, 0, 10), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(share(engine, b, 1, a, KVD_ENGINE_SLOTS_MAX, 0, 10), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(share(engine, b, KVD_ENGINE_SLOTS_MAX, a, 0, 0, 10), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(share(engine, b, 1, a, 0, KVD_PAGES_MAX, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(share(engine, b, 1, a, 3, 0, 10).result0, 0);
	assert_int_equal(share(engine, b, 1, a, 0, 3, 4).result0, 4);
	/* What is shared is not moved; what is beside it is. */
	assert_status(remap(engine, a, 0, 0, NVME, 0, 10, 0), KVD_ABI_STATUS_SHARED);
	assert_status(remap(engine, b, 1, 0, NVME, 0, 10, 0), KVD_ABI_STATUS_SHARED);
	assert_int_equal(remap(engine, a, 0, 0, NVME, 7, 3, 0).result0, 3);
	engine_end(engine);
}

/* Wherever the arena ends on the way, nothing is left of the try. */
static void test_share_without_table_room(void **state)
{
	struct kvd_engine_config config = test_config;
	unsigned int refused = 0, done = 0;

	(void)state;
	for (config.arena_bytes = 64u << 10; !done; config.arena_bytes += KVD_NODE_BYTES_MAX) {
		uint64_t a, b, before, bytes;
		struct test_reply reply;
		kvd_engine *engine;

		if (kvd_engine_init(&config, &engine))
			continue;
		a = session_new(engine, 1);
		b = session_new(engine, 2);
		for (uint64_t i = 0; i < 5; i++)
			map(engine, a, 0, NVME, (i << 20) + 250, 10, 1);
		before = session_info(engine, a).mapped_pages[NVME];
		bytes = engine->head->table_bytes;
		reply = share(engine, b, 0, a, 0, 0, ALL);
		done += reply.status == KVD_ABI_STATUS_OK && before == 50;
		refused += reply.status == KVD_ABI_STATUS_NO_TABLE;
		assert_true(!reply.status || (!session_info(engine, b).mapped_pages[NVME] &&
					      engine->head->table_bytes == bytes));
		assert_int_equal(session_info(engine, a).mapped_pages[NVME], before);
		engine_end(engine);
	}
	assert_true(refused > 2);
}

static void test_unshare(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1), b = session_new(engine, 2);
	struct kvd_abi_copy_run runs[4] = {{0}};
	struct kvd_abi_run old, now;
	struct test_reply reply;

	(void)state;
	assert_ok(map(engine, a, 0, DDR, 0, 100, 3));
	assert_ok(share(engine, b, 0, a, 0, 20, 50));
	assert_ok(map(engine, b, 0, NVME, 70, 5, 2));
	old = one_run(engine, a, 0, 30, 10);
	reply = unshare(engine, b, 0, 30, 10, runs, 4, 0);
	assert_ok(reply);
	assert_int_equal(reply.result0, 1);
	assert_int_equal(reply.result1, 10);
	now = one_run(engine, b, 0, 30, 10);
	assert_int_equal(runs[0].first_page, 30);
	assert_int_equal(runs[0].count, 10);
	assert_int_equal(runs[0].old_frame, old.first_frame);
	assert_int_equal(runs[0].new_frame, now.first_frame);
	assert_int_equal(runs[0].tier, DDR);
	assert_int_equal(runs[0].blocks, 3);
	assert_int_equal(tier_info(engine, DDR).used_blocks, 330);
	assert_consistent(engine);
	/* The rest in two pieces; a page that was never shared is left alone. */
	assert_status(unshare(engine, b, 0, 0, ALL, runs, 1, 0), KVD_ABI_STATUS_BUFFER_SMALL);
	assert_int_equal(unshare(engine, b, 0, 0, ALL, runs, 1, 0).result0, 2);
	assert_int_equal(tier_info(engine, DDR).used_frames, 110);
	reply = unshare(engine, b, 0, 0, ALL, runs, 2, 0);
	assert_int_equal(reply.result1, 40);
	assert_int_equal(unshare(engine, b, 0, 0, ALL, NULL, 0, 0).result0, 0);
	assert_int_equal(unshare(engine, a, 0, 0, ALL, NULL, 0, 0).result0, 0);
	assert_int_equal(remap(engine, a, 0, 0, NVME, 0, ALL, 0).result0, 100);
	assert_status(unshare(engine, a, 0, KVD_PAGES_MAX, 1, NULL, 0, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

/* Two slots of one session that share with each other only: the last one keeps the frames. */
static void test_unshare_of_own_pages(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1);
	struct kvd_abi_copy_run run;

	(void)state;
	assert_ok(map(engine, a, 0, DDR, 0, 8, 1));
	assert_ok(share(engine, a, 1, a, 0, 0, 8));
	assert_int_equal(unshare(engine, a, 0, 0, 8, &run, 1, 0).result1, 8);
	assert_int_equal(unshare(engine, a, 1, 0, 8, &run, 1, 0).result1, 0);
	assert_int_equal(tier_info(engine, DDR).used_frames, 16);
	engine_end(engine);
}

static void test_unshare_without_space(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1), b = session_new(engine, 2);
	struct kvd_abi_copy_run run;

	(void)state;
	assert_ok(map(engine, a, 0, DDR, 0, 200, 16));
	assert_ok(share(engine, b, 0, a, 0, 0, ALL));
	assert_status(unshare(engine, b, 0, 0, ALL, &run, 1, 0), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(reserve(engine, b, DDR, 896));
	assert_status(unshare(engine, b, 0, 0, 56, &run, 1, 0), KVD_ABI_STATUS_NO_SPACE);
	assert_status(unshare(engine, b, 0, 0, 57, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK), KVD_ABI_STATUS_NO_SPACE);
	assert_int_equal(tier_info(engine, DDR).used_frames, 200);
	assert_consistent(engine);
	assert_ok(unshare(engine, b, 0, 0, 56, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK));
	assert_int_equal(tier_info(engine, DDR).reserved_blocks, 0);
	assert_int_equal(tier_info(engine, DDR).used_blocks, TEST_DDR_BLOCKS);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_share_and_unmap),
		cmocka_unit_test(test_share_refuses),
		cmocka_unit_test(test_share_without_table_room),
		cmocka_unit_test(test_unshare),
		cmocka_unit_test(test_unshare_of_own_pages),
		cmocka_unit_test(test_unshare_without_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
