/* REMAP: between tiers, with and without the other slot. */
#include "test_engine.h"

#define ALL KVD_PAGES_MAX
#define LIVE 0
#define COPY 1

static void test_remap_moves(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run run;

	(void)state;
	assert_ok(map(engine, session, LIVE, KVD_ABI_TIER_DDR, 10, 1000, 3));
	assert_int_equal(remap(engine, session, LIVE, 0, KVD_ABI_TIER_DDR, 0, ALL, 0).result0, 0);
	assert_int_equal(remap(engine, session, LIVE, 0, KVD_ABI_TIER_NVME, 0, 510, 0).result0, 500);
	assert_int_equal(remap(engine, session, LIVE, 0, KVD_ABI_TIER_NVME, 0, ALL, 0).result0, 500);
	run = one_run(engine, session, LIVE, 0, ALL);
	assert_int_equal(run.first_page, 10);
	assert_int_equal(run.count, 1000);
	assert_int_equal(run.tier, KVD_ABI_TIER_NVME);
	assert_int_equal(run.blocks, 3);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_blocks, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_NVME).used_blocks, 3000);
	engine_end(engine);
}

/* Promotion keeps the copy, demotion takes it: the frames on NVMe are the same throughout. */
static void test_promote_and_demote(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run before, copy;

	(void)state;
	assert_ok(map(engine, session, LIVE, KVD_ABI_TIER_NVME, 500, 200, 16));
	before = one_run(engine, session, LIVE, 0, ALL);
	assert_ok(reserve(engine, session, KVD_ABI_TIER_DDR, TEST_DDR_BLOCKS));
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_DDR, 0, ALL, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK), KVD_ABI_STATUS_NO_SPACE);
	assert_int_equal(
		remap(engine, session, LIVE, COPY, KVD_ABI_TIER_DDR, 0, ALL, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK | KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK).result0,
		200);
	copy = one_run(engine, session, COPY, 0, ALL);
	assert_memory_equal(&copy, &before, sizeof(copy));
	assert_int_equal(one_run(engine, session, LIVE, 0, ALL).tier, KVD_ABI_TIER_DDR);
	assert_int_equal(session_info(engine, session).mapped_pages[KVD_ABI_TIER_NVME], 200);
	assert_int_equal(session_info(engine, session).reserved_blocks[KVD_ABI_TIER_DDR], TEST_DDR_BLOCKS - 3200);
	assert_consistent(engine);
	assert_int_equal(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_NVME, 0, ALL, KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK).result0, 200);
	copy = one_run(engine, session, LIVE, 0, ALL);
	assert_memory_equal(&copy, &before, sizeof(copy));
	assert_int_equal(translate(engine, session, COPY, 0, ALL, NULL, 0).result0, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 0);
	engine_end(engine);
}

static void test_keep_and_take_exchange(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run live, copy, now;

	(void)state;
	assert_ok(map(engine, session, LIVE, KVD_ABI_TIER_DDR, 0, 9, 4));
	assert_ok(map(engine, session, COPY, KVD_ABI_TIER_NVME, 0, 9, 5));
	live = one_run(engine, session, LIVE, 0, ALL);
	copy = one_run(engine, session, COPY, 0, ALL);
	assert_int_equal(
		remap(engine, session, LIVE, COPY, KVD_ABI_TIER_NVME, 0, ALL, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK | KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK).result0, 9);
	now = one_run(engine, session, LIVE, 0, ALL);
	assert_memory_equal(&now, &copy, sizeof(now));
	now = one_run(engine, session, COPY, 0, ALL);
	assert_memory_equal(&now, &live, sizeof(now));
	engine_end(engine);
}

static void test_remap_is_all_or_nothing(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run before, now;

	(void)state;
	assert_ok(map(engine, session, LIVE, KVD_ABI_TIER_NVME, 0, 300, 16));
	before = one_run(engine, session, LIVE, 0, ALL);
	assert_status(remap(engine, session, LIVE, 0, KVD_ABI_TIER_DDR, 0, ALL, 0), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(map(engine, session, COPY, KVD_ABI_TIER_NVME, 200, 1, 1));
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_DDR, 150, 100, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK),
		      KVD_ABI_STATUS_ALREADY_MAPPED);
	/* To be taken, a page must be there and in the right tier. */
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_DDR, 200, 1, KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK), KVD_ABI_STATUS_NOT_MAPPED);
	assert_ok(remap(engine, session, COPY, 0, KVD_ABI_TIER_DDR, 200, 1, 0));
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_DDR, 200, 2, KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK), KVD_ABI_STATUS_NOT_MAPPED);
	now = one_run(engine, session, LIVE, 0, ALL);
	assert_memory_equal(&now, &before, sizeof(now));
	assert_int_equal(one_run(engine, session, COPY, 0, ALL).first_page, 200);
	engine_end(engine);
}

static void test_remap_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, LIVE, KVD_ABI_TIER_DDR, 0, 1, 1));
	assert_status(remap(engine, session, LIVE, LIVE, KVD_ABI_TIER_NVME, 0, 1, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, LIVE, LIVE, KVD_ABI_TIER_NVME, 0, 1, KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, LIVE, KVD_ENGINE_SLOTS_MAX, KVD_ABI_TIER_NVME, 0, 1, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK),
		      KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, KVD_ENGINE_SLOTS_MAX, 0, KVD_ABI_TIER_NVME, 0, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_CARD, 0, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_NVME, 0, 1, 8), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(remap(engine, session, LIVE, COPY, KVD_ABI_TIER_NVME, KVD_PAGES_MAX, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_int_equal(one_run(engine, session, LIVE, 0, ALL).tier, KVD_ABI_TIER_DDR);
	engine_end(engine);
}

/* Five distant pieces, each over the edge of a half-sized leaf; false: the arena is too small for them. */
static bool map_pieces(kvd_engine *engine, uint64_t session)
{
	struct kvd_abi_map_run runs[5];

	for (uint64_t i = 0; i < 5; i++)
		runs[i] = (struct kvd_abi_map_run){.first_page = (i << 20) + 250, .count = 10, .blocks = 1};
	return map_runs(engine, session, LIVE, KVD_ABI_TIER_DDR, runs, 5, 0).status == KVD_ABI_STATUS_OK;
}

/* KEEP has to make tables for the other slot; wherever the arena ends on the way, nothing is left of the try. */
static void test_keep_without_table_room(void **state)
{
	struct kvd_engine_config config = test_config;
	unsigned int refused = 0;
	unsigned int done = 0;

	(void)state;
	config.arena_bytes = KVD_NODE_BYTES_MAX;
	while (!done) {
		struct test_reply reply;
		kvd_engine *engine;
		uint64_t session, before;

		config.arena_bytes += KVD_NODE_BYTES_MAX;
		if (kvd_engine_init(&config, &engine))
			continue;
		session = session_new(engine, 1);
		if (map_pieces(engine, session)) {
			before = engine->head->table_bytes;
			reply = remap(engine, session, LIVE, COPY, KVD_ABI_TIER_NVME, 0, ALL, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK);
			done += reply.status == KVD_ABI_STATUS_OK;
			refused += reply.status == KVD_ABI_STATUS_NO_TABLE;
			assert_int_equal(done ? 50 : 0, tier_info(engine, KVD_ABI_TIER_NVME).used_frames);
			assert_true(done || before == engine->head->table_bytes);
			assert_int_equal(translate(engine, session, COPY, 0, ALL, NULL, 0).result0, done ? 5 : 0);
		}
		engine_end(engine);
	}
	assert_true(refused > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_remap_moves),
		cmocka_unit_test(test_promote_and_demote),
		cmocka_unit_test(test_keep_and_take_exchange),
		cmocka_unit_test(test_remap_is_all_or_nothing),
		cmocka_unit_test(test_remap_refuses_nonsense),
		cmocka_unit_test(test_keep_without_table_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
