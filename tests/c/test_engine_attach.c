/* Tables that outlive who made them: attaching, leaving, the journal, buffers behind a device's addresses. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test_engine.h"

#define ARENA_BYTES (1u << 20)
#define ALL KVD_PAGES_MAX

static int arena_file(void)
{
	int fd = memfd_create("arena", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static struct kvd_engine_config file_config(int fd)
{
	struct kvd_engine_config config = test_config;

	config.arena_bytes = ARENA_BYTES;
	config.arena_fd = fd;
	return config;
}

static int attach_file(int fd, uint32_t flags, kvd_engine **out)
{
	struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH | flags, .arena_fd = fd};

	return kvd_engine_init(&config, out);
}

static void test_tables_outlive_their_engine(void **state)
{
	int fd = arena_file();
	struct kvd_engine_config config = file_config(fd);
	kvd_engine *engine = engine_new(&config), *reader;
	uint64_t session = session_new(engine, 9);
	uint64_t sequence;
	struct kvd_abi_run before, now;

	(void)state;
	assert_ok(map(engine, session, 2, KVD_ABI_TIER_NVME, 77, 300, 5));
	before = one_run(engine, session, 2, 0, ALL);
	sequence = kvd_engine_sequence(engine);
	assert_int_equal(sequence, 3);
	engine_end(engine);
	assert_int_equal(attach_file(fd, 0, &engine), 0);
	assert_int_equal(kvd_engine_dirty(engine), 0);
	assert_int_equal(kvd_engine_sequence(engine), sequence);
	assert_int_equal(create(engine, 9).result0, session);
	now = one_run(engine, session, 2, 0, ALL);
	assert_memory_equal(&now, &before, sizeof(now));
	/* Another one reads beside it, and can do nothing else. */
	assert_int_equal(attach_file(fd, KVD_ENGINE_READ_ONLY, &reader), 0);
	assert_int_equal(kvd_engine_dirty(reader), 1);
	assert_consistent(reader);
	assert_status(destroy(reader, session), KVD_ABI_STATUS_BAD_TABLES);
	assert_int_equal(kvd_engine_reset(reader), -EROFS);
	assert_int_equal(kvd_engine_recover(reader, &(struct kvd_engine_recovery){0}), -EROFS);
	kvd_engine_fini(reader);
	assert_ok(destroy(engine, session));
	engine_end(engine);
	close(fd);
}

static void test_leave_and_return(void **state)
{
	kvd_engine *host = engine_new(&test_config), *card;
	uint64_t session = session_new(host, 1);
	struct kvd_engine_recovery result = {0};
	struct kvd_abi_cpl cpl;

	(void)state;
	/* While the host has the tables, the card finds them in use. */
	assert_int_equal(kvd_engine_attach(host->base, test_config.arena_bytes, NULL, NULL, &card), 0);
	assert_int_equal(kvd_engine_dirty(card), 1);
	kvd_engine_fini(card);
	kvd_engine_leave(host);
	assert_status(destroy(host, session), KVD_ABI_STATUS_BAD_TABLES);
	assert_int_equal(kvd_engine_attach(host->base, test_config.arena_bytes, NULL, NULL, &card), 0);
	assert_int_equal(kvd_engine_dirty(card), 0);
	assert_ok(map(card, session, 0, KVD_ABI_TIER_DDR, 0, 10, 1));
	assert_int_equal(kvd_engine_return(host), -EBUSY);
	kvd_engine_leave(card);
	assert_int_equal(kvd_engine_return(host), 0);
	assert_int_equal(unmap(host, session, 0, 0, ALL).result0, 10);
	/* The card dies with the tables: what it did is in the journal. */
	kvd_engine_leave(host);
	assert_int_equal(kvd_engine_return(card), 0);
	assert_ok(map(card, session, 0, KVD_ABI_TIER_DDR, 0, 20, 1));
	assert_int_equal(kvd_engine_return(host), -EBUSY);
	assert_int_equal(kvd_engine_recover(host, &result), 0);
	assert_int_equal(result.losses_count + result.finished + result.undone, 0);
	assert_int_equal(kvd_engine_completion(host, kvd_engine_sequence(host), &cpl), 0);
	assert_int_equal(cpl.id, 77);
	assert_int_equal(cpl.result0, 20);
	card->dirty = true;
	kvd_engine_fini(card);
	engine_end(host);
}

static void test_journal_is_a_ring(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	struct kvd_abi_cpl cpl;
	uint64_t last;

	(void)state;
	assert_int_equal(kvd_engine_completion(engine, 0, &cpl), -ENOENT);
	assert_int_equal(kvd_engine_completion(engine, 1, &cpl), -ENOENT);
	for (uint32_t i = 1; i <= 3 * KVD_ENGINE_JOURNAL_ENTRIES; i++) {
		struct kvd_abi_cmd cmd = {.op = i % 2 ? KVD_ABI_OP_FLUSH : KVD_ABI_OP_COUNT, .id = i};

		kvd_engine_submit(engine, &cmd, &cpl, 1);
		assert_true(i % 2 == 0 || cpl.result0 == i);
	}
	last = kvd_engine_sequence(engine);
	assert_int_equal(last, 3 * KVD_ENGINE_JOURNAL_ENTRIES);
	for (uint64_t i = last - KVD_ENGINE_JOURNAL_ENTRIES + 1; i <= last; i++) {
		assert_int_equal(kvd_engine_completion(engine, i, &cpl), 0);
		assert_int_equal(cpl.id, i);
		assert_int_equal(cpl.status, i % 2 ? KVD_ABI_STATUS_OK : KVD_ABI_STATUS_BAD_COMMAND);
	}
	assert_int_equal(kvd_engine_completion(engine, last - KVD_ENGINE_JOURNAL_ENTRIES, &cpl), -ENOENT);
	assert_int_equal(kvd_engine_completion(engine, last + 1, &cpl), -ENOENT);
	engine_end(engine);
}

/* A head that is not as it should be is refused, whatever is wrong with it. */
static void test_bad_heads(void **state)
{
	kvd_engine *engine = engine_new(&test_config), *other = NULL;
	struct kvd_head *head = engine->head, good;
	int fd = arena_file();

	(void)state;
	kvd_engine_leave(engine);
	good = *head;
#define REFUSED(field, value, error)                                                                                   \
	(head->field = (value), assert_int_equal(kvd_engine_attach(head, test_config.arena_bytes, NULL, NULL, &other), error), \
	 *head = good)
	REFUSED(magic, 1, -EINVAL);
	REFUSED(version, 1, -EPROTO);
	REFUSED(page_bytes, 0, -EINVAL);
	REFUSED(page_bytes, 12345, -EINVAL);
	REFUSED(arena_bytes, test_config.arena_bytes + 1, -EINVAL);
	REFUSED(arena_bytes, 0, -EINVAL);
	REFUSED(sessions_at, 8, -EINVAL);
	REFUSED(sessions_max, 0, -EINVAL);
	REFUSED(sessions_max, UINT64_MAX, -EINVAL);
	REFUSED(sessions_max, KVD_SESSIONS_MAX, -EINVAL);
	REFUSED(hash_at, UINT64_MAX - 7, -EINVAL);
	REFUSED(hash_mask, UINT64_MAX, -EINVAL);
	REFUSED(journal_at, 0, -EINVAL);
	REFUSED(journal_entries, 1u << 30, -EINVAL);
	REFUSED(heap_at, 0, -EINVAL);
	REFUSED(heap_end, UINT64_MAX, -EINVAL);
	REFUSED(tiers[0].total_frames, 1, -EINVAL);
	REFUSED(tiers[1].total_frames, KVD_FRAMES_MAX + 1, -EINVAL);
	REFUSED(tiers[1].total_frames, KVD_FRAMES_MAX, -EINVAL);
	REFUSED(tiers[1].capacity_blocks, UINT64_MAX, -EINVAL);
	REFUSED(tiers[1].levels, 8, -EINVAL);
	REFUSED(tiers[1].level_at[0], 1u << 30, -EINVAL);
#undef REFUSED
	assert_int_equal(kvd_engine_attach(NULL, 1 << 20, NULL, NULL, &other), -EINVAL);
	assert_int_equal(kvd_engine_attach(engine->base + 8, 1 << 20, NULL, NULL, &other), -EINVAL);
	assert_int_equal(kvd_engine_attach(head, sizeof(*head) - 1, NULL, NULL, &other), -EINVAL);
	assert_int_equal(kvd_engine_attach(head, test_config.arena_bytes - 1, NULL, NULL, &other), -EINVAL);
	assert_int_equal(attach_file(fd, 0, &other), -EINVAL);
	assert_int_equal(attach_file(-1, 0, &other), -EINVAL);
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	assert_int_equal(attach_file(fd, 0, &other), -EINVAL);
	assert_null(other);
	close(fd);
	assert_int_equal(kvd_engine_return(engine), 0);
	engine_end(engine);
}

/* Memory that a device sees at an address of its own. */
struct window {
	unsigned char *at;
	uint64_t base;
	uint64_t bytes;
	int writes;
};

static void *reach(void *context, uint64_t address, uint64_t bytes, int writable)
{
	struct window *window = context;

	window->writes += writable;
	if (address < window->base || address - window->base > window->bytes ||
	    bytes > window->bytes - (address - window->base))
		return NULL;
	return window->at + (address - window->base);
}

static void test_buffers_behind_addresses(void **state)
{
	kvd_engine *host = engine_new(&test_config), *card;
	uint64_t session = session_new(host, 1);
	struct kvd_abi_map_run runs[4] = {{0, 4, 1, 0}};
	struct window window = {(void *)runs, 1ull << 40, sizeof(runs), 0};
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_MAP, .session = session, .tier = KVD_ABI_TIER_DDR, .count = 1};
	const uint16_t reads[] = {KVD_ABI_OP_TRANSLATE, KVD_ABI_OP_QUERY_TIER, KVD_ABI_OP_UNSHARE};

	(void)state;
	kvd_engine_leave(host);
	assert_int_equal(kvd_engine_attach(host->base, test_config.arena_bytes, reach, &window, &card), 0);
	cmd.buffer = window.base;
	cmd.buffer_bytes = sizeof(runs[0]);
	assert_int_equal(submit_one(card, cmd).result0, 4);
	assert_int_equal(window.writes, 0);
	cmd.buffer = window.base + 4096;
	assert_status(submit_one(card, cmd), KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(submit_one(card, cmd).result0, cmd.buffer);
	for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
		cmd.op = reads[i];
		cmd.buffer_bytes = 4096;
		assert_status(submit_one(card, cmd), KVD_ABI_STATUS_BAD_ADDRESS);
		cmd.buffer = window.base;
		cmd.buffer_bytes = sizeof(runs);
		assert_ok(submit_one(card, cmd));
		cmd.buffer = window.base + 4096;
	}
	assert_true(window.writes > 0);
	cmd.op = KVD_ABI_OP_QUERY_SESSION;
	cmd.buffer_bytes = 4096;
	assert_status(submit_one(card, cmd), KVD_ABI_STATUS_BAD_ADDRESS);
	cmd = (struct kvd_abi_cmd){.op = KVD_ABI_OP_TRANSLATE,
				   .flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
				   .session = session,
				   .count = 3,
				   .buffer = 8,
				   .buffer_bytes = 24};
	assert_status(submit_one(card, cmd), KVD_ABI_STATUS_BAD_ADDRESS);
	kvd_engine_fini(card);
	assert_int_equal(kvd_engine_return(host), 0);
	assert_int_equal(kvd_engine_tier_memory(host, KVD_ABI_TIER_NONE, 0, 1), -EINVAL);
	assert_int_equal(kvd_engine_tier_memory(host, KVD_ABI_TIER_COUNT, 0, 1), -EINVAL);
	assert_int_equal(kvd_engine_tier_memory(host, KVD_ABI_TIER_DDR, 4096, UINT64_MAX), -EINVAL);
	assert_int_equal(kvd_engine_tier_memory(host, KVD_ABI_TIER_DDR, 4096, 8192), 0);
	assert_int_equal(host->tier_memory[KVD_ABI_TIER_DDR].bytes, 8192);
	engine_end(host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables_outlive_their_engine),
		cmocka_unit_test(test_leave_and_return),
		cmocka_unit_test(test_journal_is_a_ring),
		cmocka_unit_test(test_bad_heads),
		cmocka_unit_test(test_buffers_behind_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
