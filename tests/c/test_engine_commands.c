/* Each command: what it does and everything that it refuses. */
#include <stdalign.h>

#include "test_engine.h"

#define ALL KVD_PAGES_MAX

static void test_unknown_command(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	struct kvd_engine_stats stats;

	(void)state;
	assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = 0}), KVD_ABI_STATUS_BAD_COMMAND);
	assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_COUNT}), KVD_ABI_STATUS_BAD_COMMAND);
	assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = UINT16_MAX}), KVD_ABI_STATUS_BAD_COMMAND);
	assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .flags = 1}),
		      KVD_ABI_STATUS_BAD_ARGUMENT);
	kvd_engine_stats(engine, &stats);
	assert_int_equal(stats.commands, 4);
	assert_int_equal(stats.refused, 4);
	engine_end(engine);
}

static void test_session_lives_and_dies(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 42);
	struct test_reply again = create(engine, 42);
	struct kvd_engine_stats stats;

	(void)state;
	assert_status(again, KVD_ABI_STATUS_EXISTS);
	assert_int_equal(again.result0, session);
	assert_int_equal(session_info(engine, session).key, 42);
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 3, 5, 16));
	assert_ok(reserve(engine, session, KVD_ABI_TIER_NVME, 9));
	assert_int_equal(destroy(engine, session).result0, 5);
	assert_status(destroy(engine, session), KVD_ABI_STATUS_NO_SESSION);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_blocks, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_NVME).reserved_blocks, 0);
	/* The context is used again, the handle is not. */
	assert_true(session_new(engine, 43) != session);
	assert_status(unmap(engine, session, 0, 0, 1), KVD_ABI_STATUS_NO_SESSION);
	kvd_engine_stats(engine, &stats);
	assert_int_equal(stats.sessions, 1);
	assert_int_equal(stats.table_bytes, 0);
	engine_end(engine);
}

static void test_no_session(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const uint64_t wrong[] = {0, session + 1, session ^ (1ull << 32), UINT64_MAX, session & UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_status(destroy(engine, wrong[i]), KVD_ABI_STATUS_NO_SESSION);
		assert_status(lease(engine, wrong[i], 1), KVD_ABI_STATUS_NO_SESSION);
		assert_status(reserve(engine, wrong[i], KVD_ABI_TIER_DDR, 1), KVD_ABI_STATUS_NO_SESSION);
		assert_status(map(engine, wrong[i], 0, KVD_ABI_TIER_DDR, 0, 1, 1), KVD_ABI_STATUS_NO_SESSION);
		assert_status(translate(engine, wrong[i], 0, 0, 1, NULL, 0), KVD_ABI_STATUS_NO_SESSION);
		assert_status(remap(engine, wrong[i], 0, 1, KVD_ABI_TIER_DDR, 0, 1, 0), KVD_ABI_STATUS_NO_SESSION);
		assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_QUERY_SESSION,
									 .session = wrong[i]}),
			      KVD_ABI_STATUS_NO_SESSION);
	}
	engine_end(engine);
}

static void test_lease_holds(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 1, 1));
	assert_int_equal(lease(engine, session, 2).result0, 2);
	assert_status(destroy(engine, session), KVD_ABI_STATUS_LEASED);
	assert_status(remap(engine, session, 0, 1, KVD_ABI_TIER_NVME, 0, 1, 0), KVD_ABI_STATUS_LEASED);
	assert_status(lease(engine, session, -3), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(lease(engine, session, INT64_MIN), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(lease(engine, session, INT64_MAX), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(session_info(engine, session).leases, 2);
	assert_int_equal(lease(engine, session, -2).result0, 0);
	assert_ok(remap(engine, session, 0, 1, KVD_ABI_TIER_NVME, 0, 1, 0));
	assert_ok(destroy(engine, session));
	engine_end(engine);
}

static void test_reserve_is_exact(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1);
	uint64_t b = session_new(engine, 2);

	(void)state;
	assert_ok(reserve(engine, a, KVD_ABI_TIER_DDR, 4000));
	assert_status(reserve(engine, b, KVD_ABI_TIER_DDR, 97), KVD_ABI_STATUS_NO_SPACE);
	assert_status(reserve(engine, b, KVD_ABI_TIER_DDR, UINT64_MAX), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(reserve(engine, b, KVD_ABI_TIER_DDR, 96));
	assert_ok(reserve(engine, a, KVD_ABI_TIER_DDR, 4000));
	assert_status(reserve(engine, a, KVD_ABI_TIER_DDR, 4001), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(reserve(engine, a, KVD_ABI_TIER_DDR, 1));
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).reserved_blocks, 97);
	assert_int_equal(session_info(engine, b).reserved_blocks[KVD_ABI_TIER_DDR], 96);
	assert_status(reserve(engine, a, KVD_ABI_TIER_CARD, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(reserve(engine, a, KVD_ABI_TIER_NONE, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(reserve(engine, a, KVD_ABI_TIER_COUNT, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(reserve(engine, a, UINT32_MAX, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

static void test_map_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const struct kvd_abi_map_run bad[] = {
		{.first_page = 0, .count = 0, .blocks = 1},
		{.first_page = 0, .count = 1, .blocks = 0},
		{.first_page = 0, .count = 1, .blocks = TEST_PAGE_BLOCKS + 1},
		{.first_page = 0, .count = 1, .blocks = UINT32_MAX},
		{.first_page = KVD_PAGES_MAX, .count = 1, .blocks = 1},
		{.first_page = KVD_PAGES_MAX - 1, .count = 2, .blocks = 1},
		{.first_page = 1, .count = UINT64_MAX, .blocks = 1},
		{.first_page = 0, .count = 1, .blocks = 1, .reserved = 1},
	};
	const struct kvd_abi_map_run good = {.first_page = 0, .count = 1, .blocks = 1};
	alignas(8) unsigned char askew[sizeof(good) + 1];
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_MAP, .session = session, .tier = KVD_ABI_TIER_DDR, .count = 1};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const struct kvd_abi_map_run pair[] = {good, bad[i]};

		assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, pair, 2, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	}
	assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, &good, 1, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(map(engine, session, KVD_ENGINE_SLOTS_MAX, KVD_ABI_TIER_DDR, 0, 1, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(map(engine, session, 0, KVD_ABI_TIER_POOL, 0, 1, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.buffer = (uintptr_t)&good;
	cmd.buffer_bytes = sizeof(good) - 1;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.buffer_bytes = sizeof(good);
	cmd.count = UINT64_MAX;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.count = 1;
	memcpy(askew + 1, &good, sizeof(good));
	cmd.buffer = (uintptr_t)(askew + 1);
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.buffer = 8;
	cmd.buffer_bytes = UINT64_MAX - 7;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.buffer = 0;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 0);
	engine_end(engine);
}

static void test_map_is_all_or_nothing(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const struct kvd_abi_map_run taken[] = {{0, 600, 1, 0}, {2000, 3, 2, 0}, {1001, 1, 1, 0}};
	const struct kvd_abi_map_run overlap[] = {{0, 600, 1, 0}, {590, 600, 1, 0}};

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 1000, 2, 3));
	assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, taken, 3, 0), KVD_ABI_STATUS_ALREADY_MAPPED);
	assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, overlap, 2, 0), KVD_ABI_STATUS_ALREADY_MAPPED);
	assert_status(map(engine, session, 0, KVD_ABI_TIER_DDR, 900, 101, 1), KVD_ABI_STATUS_ALREADY_MAPPED);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_blocks, 6);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 2);
	assert_int_equal(one_run(engine, session, 0, 0, ALL).first_page, 1000);
	assert_int_equal(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, taken, 2, 0).result0, 603);
	assert_ok(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, NULL, 0, 0));
	/* Another slot and another session are other pages. */
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 1000, 2, 3));
	assert_ok(map(engine, session_new(engine, 2), 0, KVD_ABI_TIER_DDR, 1000, 2, 3));
	engine_end(engine);
}

static void test_map_keeps_the_books(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t a = session_new(engine, 1);
	uint64_t b = session_new(engine, 2);
	const struct kvd_abi_map_run run = {.first_page = 0, .count = 10, .blocks = 10};
	struct kvd_abi_tier_info info;

	(void)state;
	assert_ok(reserve(engine, a, KVD_ABI_TIER_DDR, TEST_DDR_BLOCKS - 50));
	assert_status(map_runs(engine, b, 0, KVD_ABI_TIER_DDR, &run, 1, 0), KVD_ABI_STATUS_NO_SPACE);
	/* Without the flag even the owner of the reservation is refused; with it, the reservation is eaten. */
	assert_status(map_runs(engine, a, 0, KVD_ABI_TIER_DDR, &run, 1, 0), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(map_runs(engine, a, 0, KVD_ABI_TIER_DDR, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK));
	info = tier_info(engine, KVD_ABI_TIER_DDR);
	assert_int_equal(info.used_blocks, 100);
	assert_int_equal(info.used_frames, 10);
	assert_int_equal(info.reserved_blocks, TEST_DDR_BLOCKS - 150);
	assert_int_equal(session_info(engine, a).reserved_blocks[KVD_ABI_TIER_DDR], TEST_DDR_BLOCKS - 150);
	assert_int_equal(session_info(engine, a).mapped_pages[KVD_ABI_TIER_DDR], 10);
	assert_int_equal(session_info(engine, a).mapped_blocks[KVD_ABI_TIER_DDR], 100);
	/* More than the reservation: the rest comes from the pool. */
	assert_ok(reserve(engine, a, KVD_ABI_TIER_DDR, 20));
	assert_ok(map(engine, b, 0, KVD_ABI_TIER_DDR, 0, 247, 16));
	assert_status(map_runs(engine, a, 1, KVD_ABI_TIER_DDR, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK), KVD_ABI_STATUS_NO_SPACE);
	assert_int_equal(unmap(engine, b, 0, 0, 5).result0, 5);
	assert_ok(map_runs(engine, a, 1, KVD_ABI_TIER_DDR, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK));
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).reserved_blocks, 0);
	engine_end(engine);
}

static void test_resize_keeps_promises(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const struct kvd_abi_map_run run = {.first_page = 0, .count = 10, .blocks = 1};
	const struct kvd_abi_map_run next = {.first_page = 10, .count = 1, .blocks = 1};

	(void)state;
	assert_ok(reserve(engine, session, KVD_ABI_TIER_DDR, 10));
	assert_ok(resize(engine, KVD_ABI_TIER_DDR, 0));
	assert_status(reserve(engine, session, KVD_ABI_TIER_DDR, 11), KVD_ABI_STATUS_NO_SPACE);
	assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, &run, 1, 0), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, &run, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK));
	assert_status(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, &next, 1, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(resize(engine, KVD_ABI_TIER_DDR, 11));
	assert_ok(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, &next, 1, 0));
	assert_status(resize(engine, KVD_ABI_TIER_CARD, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(resize(engine, KVD_ABI_TIER_DDR, KVD_BLOCKS_MAX + 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).capacity_blocks, 11);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).total_frames, TEST_DDR_BLOCKS);
	engine_end(engine);
}

static void test_unmap(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 100, 1000, 2));
	assert_int_equal(unmap(engine, session, 0, 0, 100).result0, 0);
	assert_int_equal(unmap(engine, session, 0, 150, 0).result0, 0);
	assert_int_equal(unmap(engine, session, 0, 0, 101).result0, 1);
	assert_int_equal(unmap(engine, session, 0, 500, 100).result0, 100);
	assert_int_equal(unmap(engine, session, 0, 500, 100).result0, 0);
	assert_int_equal(unmap(engine, session, 0, 1000, UINT64_MAX).result0, 100);
	assert_status(unmap(engine, session, 0, KVD_PAGES_MAX, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(unmap(engine, session, KVD_ENGINE_SLOTS_MAX, 0, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(session_info(engine, session).mapped_blocks[KVD_ABI_TIER_DDR], 2 * 799);
	assert_int_equal(unmap(engine, session, 0, 0, ALL).result0, 799);
	engine_end(engine);
}

/* Neighbouring pages whose frames have following numbers, in two tiers: each goes back to its own. */
static void test_unmap_of_mixed_tiers(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_NVME, 0, 1, 1));
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 1, 1));
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 1, 1, 1));
	assert_int_equal(one_run(engine, session, 0, 0, 1).first_frame + 1,
			 one_run(engine, session, 0, 1, 1).first_frame);
	assert_int_equal(unmap(engine, session, 0, 0, ALL).result0, 2);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_NVME).used_frames, 1);
	engine_end(engine);
}

static void test_translate(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run runs[3] = {{0}};
	struct kvd_abi_map_run two[] = {{0, 700, 1, 0}, {700, 10, 2, 0}};

	(void)state;
	assert_int_equal(translate(engine, session, 0, 0, ALL, NULL, 0).result0, 0);
	assert_ok(map_runs(engine, session, 0, KVD_ABI_TIER_DDR, two, 2, 0));
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 5000, 1, 1));
	assert_status(translate(engine, session, 0, 0, ALL, NULL, 0), KVD_ABI_STATUS_BUFFER_SMALL);
	assert_status(translate(engine, session, 0, 0, ALL, runs, 2), KVD_ABI_STATUS_BUFFER_SMALL);
	assert_int_equal(translate(engine, session, 0, 0, ALL, runs, 2).result0, 3);
	assert_int_equal(translate(engine, session, 0, 0, ALL, runs, 3).result0, 3);
	/* Contiguous frames over leaves of the table make one run; another charge or tier starts a new one. */
	assert_int_equal(runs[0].count, 700);
	assert_int_equal(runs[0].blocks, 1);
	assert_int_equal(runs[1].first_page, 700);
	assert_int_equal(runs[1].first_frame, runs[0].first_frame + 700);
	assert_int_equal(runs[1].blocks, 2);
	assert_int_equal(runs[2].first_page, 5000);
	assert_int_equal(runs[2].tier, KVD_ABI_TIER_NVME);
	assert_int_equal(one_run(engine, session, 0, 650, 20).first_frame, runs[0].first_frame + 650);
	assert_int_equal(one_run(engine, session, 0, 650, 20).count, 20);
	assert_int_equal(translate(engine, session, 0, 4999, 1, runs, 3).result0, 0);
	assert_int_equal(translate(engine, session, 0, 5000, 0, runs, 3).result0, 0);
	assert_status(translate(engine, session, 0, KVD_PAGES_MAX, 1, runs, 3), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(translate(engine, session, KVD_ENGINE_SLOTS_MAX, 0, 1, runs, 3), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(translate(engine, session, 0, 0, 1, NULL, 1), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

static void test_query_refusals(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_session_info info;
	struct kvd_abi_cmd cmd = {.session = session, .tier = KVD_ABI_TIER_DDR, .buffer = (uintptr_t)&info};

	(void)state;
	cmd.op = KVD_ABI_OP_QUERY_SESSION;
	cmd.buffer_bytes = sizeof(info) - 1;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BUFFER_SMALL);
	assert_int_equal(submit_one(engine, cmd).result0, 1);
	cmd.op = KVD_ABI_OP_QUERY_TIER;
	cmd.buffer_bytes = sizeof(struct kvd_abi_tier_info) - 1;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BUFFER_SMALL);
	cmd.buffer_bytes = sizeof(info);
	cmd.tier = KVD_ABI_TIER_CARD;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.tier = KVD_ABI_TIER_DDR;
	cmd.buffer = 0;
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown_command),
		cmocka_unit_test(test_session_lives_and_dies),
		cmocka_unit_test(test_no_session),
		cmocka_unit_test(test_lease_holds),
		cmocka_unit_test(test_reserve_is_exact),
		cmocka_unit_test(test_map_refuses_nonsense),
		cmocka_unit_test(test_map_is_all_or_nothing),
		cmocka_unit_test(test_map_keeps_the_books),
		cmocka_unit_test(test_resize_keeps_promises),
		cmocka_unit_test(test_unmap),
		cmocka_unit_test(test_unmap_of_mixed_tiers),
		cmocka_unit_test(test_translate),
		cmocka_unit_test(test_query_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
