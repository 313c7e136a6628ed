/* Ends of things: the arena, the sessions, the frames, the page numbers; and configurations that cannot be. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_engine.h"

#define ALL KVD_PAGES_MAX

static void assert_refused(struct kvd_engine_config config)
{
	kvd_engine *engine = NULL;

	assert_int_equal(kvd_engine_init(&config, &engine), -EINVAL);
	assert_null(engine);
}

static void test_bad_configurations(void **state)
{
	struct kvd_engine_config config;

	(void)state;
#define REFUSED(field, value) (config = test_config, config.field = (value), assert_refused(config))
	REFUSED(page_bytes, 0);
	REFUSED(page_bytes, 65537);
	REFUSED(page_bytes, 2048);
	REFUSED(page_bytes, 4u << 20);
	REFUSED(flags, 4);
	REFUSED(flags, KVD_ENGINE_ATTACH);
	REFUSED(flags, KVD_ENGINE_READ_ONLY);
	REFUSED(reserved2, 1);
	REFUSED(sessions_max, 0);
	REFUSED(sessions_max, KVD_SESSIONS_MAX + 1);
	REFUSED(arena_bytes, 0);
	REFUSED(arena_bytes, 4096);
	REFUSED(arena_bytes, KVD_ARENA_BYTES_MAX + 1);
	REFUSED(capacity_blocks[KVD_ABI_TIER_NONE], 1);
	REFUSED(capacity_blocks[KVD_ABI_TIER_DDR], KVD_BLOCKS_MAX + 1);
	REFUSED(capacity_blocks[KVD_ABI_TIER_DDR], KVD_FRAMES_MAX + 1);
	REFUSED(total_frames[KVD_ABI_TIER_CARD], 1);
	REFUSED(total_frames[KVD_ABI_TIER_DDR], KVD_FRAMES_MAX + 1);
#undef REFUSED
	config = test_config;
	memset(config.capacity_blocks, 0, sizeof(config.capacity_blocks));
	assert_refused(config);
	kvd_engine_fini(NULL);
}

static void test_sessions_run_out(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t sessions[8];

	(void)state;
	for (uint64_t i = 0; i < 8; i++)
		sessions[i] = session_new(engine, i * 1000);
	assert_status(create(engine, 1), KVD_ABI_STATUS_NO_TABLE);
	assert_status(create(engine, 3000), KVD_ABI_STATUS_EXISTS);
	assert_ok(destroy(engine, sessions[3]));
	assert_ok(destroy(engine, sessions[5]));
	assert_ok(create(engine, 1));
	assert_ok(create(engine, UINT64_MAX));
	assert_status(create(engine, 2), KVD_ABI_STATUS_NO_TABLE);
	engine_end(engine);
}

/* Fill the arena with the widest tables; a MAP that does not get its tables leaves nothing. */
static void test_arena_runs_out(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t session, mapped = 0;
	struct test_reply reply;
	struct kvd_engine_stats stats;

	(void)state;
	/* Free nodes are not joined again, so how much can be used again depends a little on where the heap ends. */
	config.arena_bytes = (1u << 20) + 11 * KVD_NODE_BYTES_MAX;
	engine = engine_new(&config);
	session = session_new(engine, 1);
	for (;; mapped++) {
		const struct kvd_abi_map_run runs[] = {
			{mapped << 30 | 511, 2, 1, 0},
			{mapped << 30 | 1 << 20, 1, 1, 0},
		};

		reply = map_runs(engine, session, 0, KVD_ABI_TIER_NVME, runs, 2, 0);
		if (reply.status)
			break;
		assert_true(mapped < 1000);
	}
	assert_status(reply, KVD_ABI_STATUS_NO_TABLE);
	assert_true(mapped > 10);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_NVME).used_frames, mapped * 3);
	assert_consistent(engine);
	assert_int_equal(unmap(engine, session, 0, 0, ALL).result0, mapped * 3);
	kvd_engine_stats(engine, &stats);
	assert_int_equal(stats.table_bytes, 0);
	assert_int_equal(stats.mapped_pages, 0);
	/* All that was freed can be used again. */
	for (uint64_t i = 0; i < mapped; i++)
		assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, i << 30 | 511, 2, 1));
	engine_end(engine);
}

static void test_frames_run_out(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t session;

	(void)state;
	config.total_frames[KVD_ABI_TIER_DDR] = 4099;
	config.capacity_blocks[KVD_ABI_TIER_DDR] = 100000;
	engine = engine_new(&config);
	session = session_new(engine, 1);
	assert_status(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 4100, 1), KVD_ABI_STATUS_NO_SPACE);
	assert_status(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, ALL, 16), KVD_ABI_STATUS_NO_SPACE);
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 4099, 1));
	assert_int_equal(one_run(engine, session, 0, 0, ALL).count, 4099);
	assert_status(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 1, 1), KVD_ABI_STATUS_NO_SPACE);
	/* The holes are found again, from where the last one was taken and round. */
	for (uint64_t page = 0; page < 4099; page += 64)
		assert_int_equal(unmap(engine, session, 0, page, 1).result0, 1);
	assert_consistent(engine);
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 65, 1));
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 4099);
	assert_int_equal(unmap(engine, session, 0, 0, ALL).result0, 4099 - 65);
	assert_ok(map(engine, session, 2, KVD_ABI_TIER_DDR, 0, 4099 - 65, 1));
	engine_end(engine);
}

/* What is mapped together stays together: holes are used only when there is nothing behind. */
static void test_frames_come_in_runs(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 1000, 1));
	for (uint64_t page = 0; page < 1000; page += 2)
		assert_int_equal(unmap(engine, session, 0, page, 1).result0, 1);
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 500, 1));
	assert_int_equal(one_run(engine, session, 1, 0, ALL).count, 500);
	engine_end(engine);
}

static void test_frames_of_one_word(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t session;

	(void)state;
	for (uint64_t frames = 1; frames <= 130; frames++) {
		config.total_frames[KVD_ABI_TIER_DDR] = frames;
		engine = engine_new(&config);
		session = session_new(engine, 1);
		assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, frames, 1));
		assert_status(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 1, 1), KVD_ABI_STATUS_NO_SPACE);
		assert_int_equal(unmap(engine, session, 0, frames / 2, 1).result0, 1);
		assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 1, 1));
		assert_int_equal(one_run(engine, session, 1, 0, 1).first_frame, frames / 2);
		engine_end(engine);
	}
}

/* A page anywhere costs a thin path; tables get low again when the high pages go. */
static void test_sparse_tables_are_thin(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	const uint64_t far[] = {0, 7, 511, 512, 1ull << 18, (1ull << 27) - 1, 1ull << 36, 1ull << 46, KVD_PAGES_MAX - 1};
	const size_t count = sizeof(far) / sizeof(far[0]);
	uint64_t small;

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 8, 1));
	small = engine->head->table_bytes;
	assert_int_equal(small, 64);
	for (size_t i = 0; i < count; i++) {
		struct kvd_abi_run run;

		assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, far[i], 1, 1));
		run = one_run(engine, session, 0, far[i], 1);
		assert_int_equal(run.first_page, far[i]);
		assert_int_equal(run.count, 1);
		assert_consistent(engine);
	}
	assert_true(engine->head->table_bytes < small + count * 4 * KVD_NODE_BYTES_MAX);
	assert_status(map(engine, session, 0, KVD_ABI_TIER_DDR, 1ull << 46, 1, 1), KVD_ABI_STATUS_ALREADY_MAPPED);
	assert_int_equal(session_info(engine, session).mapped_pages[KVD_ABI_TIER_DDR], count + 8);
	assert_int_equal(unmap(engine, session, 0, 512, UINT64_MAX).result0, count - 3);
	assert_int_equal(session_info(engine, session).mapped_pages[KVD_ABI_TIER_DDR], 3 + 8);
	assert_int_equal(engine->head->table_bytes, small + KVD_NODE_BYTES_MAX);
	engine_end(engine);
}

static void test_dense_tables_are_small(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 0, 5000, 1));
	assert_true(engine->head->table_bytes <= 5000 * 9);
	for (uint64_t page = 0; page < 520; page++)
		assert_ok(map(engine, session, 1, KVD_ABI_TIER_NVME, page, 1, 1));
	assert_true(engine->head->table_bytes <= 5520 * 9);
	assert_ok(destroy(engine, session));
	/* Whatever its size, an object costs less than 16 bytes a page, and one node. */
	for (uint64_t pages = 1; pages < 2000; pages++) {
		session = session_new(engine, 1);
		assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 0, pages, 1));
		assert_true(engine->head->table_bytes <= KVD_UNIT_BYTES + pages * 16);
		assert_ok(destroy(engine, session));
	}
	engine_end(engine);
}

static void check_reset(kvd_engine *engine)
{
	uint64_t session = session_new(engine, 1);
	uint64_t again;

	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 100, 1));
	assert_ok(reserve(engine, session, KVD_ABI_TIER_DDR, 100));
	assert_ok(lease(engine, session, 1));
	assert_ok(resize(engine, KVD_ABI_TIER_DDR, 1000));
	assert_int_equal(kvd_engine_reset(engine), 0);
	assert_consistent(engine);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).capacity_blocks, 1000);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).reserved_blocks, 0);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 0);
	again = session_new(engine, 1);
	assert_true(again != session);
	assert_status(unmap(engine, session, 0, 0, 1), KVD_ABI_STATUS_NO_SESSION);
	assert_ok(map(engine, again, 0, KVD_ABI_TIER_DDR, 0, 1000, 1));
	engine_end(engine);
}

static void test_reset_drops_all(void **state)
{
	(void)state;
	check_reset(engine_new(&test_config));
}

/* The arena in a file: the same bytes, seen from outside. */
static void test_arena_in_a_file(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t magic = 0;

	(void)state;
	config.arena_fd = memfd_create("arena", MFD_CLOEXEC);
	assert_true(config.arena_fd >= 0);
	assert_int_equal(pwrite(config.arena_fd, "junk", 4, 1 << 20), 4);
	engine = engine_new(&config);
	assert_int_equal(pread(config.arena_fd, &magic, sizeof(magic), 0), sizeof(magic));
	assert_int_equal(magic, KVD_ARENA_MAGIC);
	close(config.arena_fd);
	check_reset(engine);
	assert_int_equal(kvd_engine_init(&config, &engine), -EBADF);
}

static void test_arena_in_a_file_that_cannot_grow(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine = NULL;
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	config.arena_fd = ends[1];
	assert_int_equal(kvd_engine_init(&config, &engine), -EINVAL);
	assert_null(engine);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_configurations),
		cmocka_unit_test(test_sessions_run_out),
		cmocka_unit_test(test_arena_runs_out),
		cmocka_unit_test(test_frames_run_out),
		cmocka_unit_test(test_frames_come_in_runs),
		cmocka_unit_test(test_frames_of_one_word),
		cmocka_unit_test(test_sparse_tables_are_thin),
		cmocka_unit_test(test_dense_tables_are_small),
		cmocka_unit_test(test_reset_drops_all),
		cmocka_unit_test(test_arena_in_a_file),
		cmocka_unit_test(test_arena_in_a_file_that_cannot_grow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
