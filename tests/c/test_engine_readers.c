/*
 * Readers beside one writer: what a command changes is seen wholly or not at all.
 *
 * The writer keeps this true at the end of each command: a session's slot 0 has its pages in one tier all together, and as
 * many as its books say, or none. A reader that sees anything else has read something torn.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "test_engine.h"

#define READERS 3u
#define SESSIONS 4u
#define ROUNDS 3000u
#define ROUNDS_MAX 1000000u /* a machine that has no time for the readers */
#define YIELD_EVERY 16u
#define MAPPED_MIN 100u /* ranges with pages that each reader has to see */
#define PAGES 700u /* over the edge of a leaf, and of two levels */
#define FAR_PAGE (1ull << 20)

struct shared {
	kvd_engine *engine;
	uint64_t handle[SESSIONS];
	uint32_t stop;
};

struct reader {
	struct shared *shared;
	pthread_t thread;
	uint64_t random;
	uint64_t good, busy, gone, mapped;
};

static uint64_t next(uint64_t *at)
{
	*at ^= *at << 13;
	*at ^= *at >> 7;
	*at ^= *at << 17;
	return *at;
}

/* Not an assertion of cmocka: those are for the thread that runs the tests. */
static void demand(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "torn read: %s\n", what);
	abort();
}

static uint32_t read_one(struct reader *reader, const struct kvd_abi_cmd *cmd, uint64_t *result0)
{
	struct kvd_abi_cpl cpl;

	kvd_engine_read(reader->shared->engine, cmd, &cpl);
	demand(cpl.id == cmd->id, "id");
	reader->good += cpl.status == KVD_ABI_STATUS_OK;
	reader->busy += cpl.status == KVD_ABI_STATUS_BUSY;
	reader->gone += cpl.status == KVD_ABI_STATUS_NO_SESSION;
	demand(cpl.status == KVD_ABI_STATUS_OK || cpl.status == KVD_ABI_STATUS_BUSY ||
		       cpl.status == KVD_ABI_STATUS_NO_SESSION,
	       "status");
	*result0 = cpl.result0;
	return cpl.status;
}

/* All pages of slot 0 are mapped, in one tier, or none is. */
static void read_range(struct reader *reader, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_run runs[PAGES];
	uint64_t count, pages = 0;

	cmd.op = KVD_ABI_OP_TRANSLATE;
	cmd.count = KVD_PAGES_MAX;
	cmd.buffer = (uintptr_t)runs;
	cmd.buffer_bytes = sizeof(runs);
	if (read_one(reader, &cmd, &count))
		return;
	for (uint64_t i = 0; i < count; i++) {
		demand(runs[i].tier == runs[0].tier && runs[i].blocks == 2, "tier");
		pages += runs[i].count;
	}
	demand(pages == 0 || pages == PAGES, "pages");
	kvd_add(&reader->mapped, pages != 0);
}

static void read_list(struct reader *reader, struct kvd_abi_cmd cmd)
{
	uint64_t pages[3] = {0, PAGES / 2, FAR_PAGE + PAGES - PAGES / 2 - 1};
	uint64_t count;

	cmd.op = KVD_ABI_OP_TRANSLATE;
	cmd.flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK;
	pages[1] = FAR_PAGE;
	cmd.count = 3;
	cmd.buffer = (uintptr_t)pages;
	cmd.buffer_bytes = sizeof(pages);
	if (read_one(reader, &cmd, &count))
		return;
	for (uint32_t i = 1; i < 3; i++)
		demand(kvd_pte_tier(pages[i]) == kvd_pte_tier(pages[0]), "tiers of a list");
	demand(!pages[0] == !pages[2], "pages of a list");
}

static void read_books(struct reader *reader, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_session_info info;
	uint64_t ignored, pages;

	cmd.op = KVD_ABI_OP_QUERY_SESSION;
	cmd.buffer = (uintptr_t)&info;
	cmd.buffer_bytes = sizeof(info);
	if (read_one(reader, &cmd, &ignored))
		return;
	pages = info.mapped_pages[KVD_ABI_TIER_DDR] + info.mapped_pages[KVD_ABI_TIER_NVME];
	demand(pages == 0 || pages == PAGES, "pages of the books");
	demand(info.mapped_blocks[KVD_ABI_TIER_DDR] == 2 * info.mapped_pages[KVD_ABI_TIER_DDR], "blocks of the books");
}

static void read_tier(struct reader *reader, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_tier_info info;
	uint64_t ignored;

	cmd.op = KVD_ABI_OP_QUERY_TIER;
	cmd.tier = KVD_ABI_TIER_DDR;
	cmd.buffer = (uintptr_t)&info;
	cmd.buffer_bytes = sizeof(info);
	if (read_one(reader, &cmd, &ignored))
		return;
	demand(info.used_blocks == 2 * info.used_frames && info.used_frames % PAGES == 0, "books of the tier");
}

static void *reader_main(void *context)
{
	struct reader *reader = context;

	while (!__atomic_load_n(&reader->shared->stop, __ATOMIC_ACQUIRE)) {
		uint64_t *handle = &reader->shared->handle[next(&reader->random) % SESSIONS];
		struct kvd_abi_cmd cmd = {.id = (uint32_t)reader->random, .session = kvd_get(handle)};

		switch (next(&reader->random) % 4) {
		case 0:
			read_range(reader, cmd);
			break;
		case 1:
			read_list(reader, cmd);
			break;
		case 2:
			read_books(reader, cmd);
			break;
		default:
			read_tier(reader, cmd);
			break;
		}
	}
	return NULL;
}

static void write_round(struct shared *shared, uint64_t *random)
{
	const struct kvd_abi_map_run runs[] = {{0, PAGES / 2, 2, 0}, {FAR_PAGE, PAGES - PAGES / 2, 2, 0}};
	kvd_engine *engine = shared->engine;
	uint64_t number = next(random) % SESSIONS;
	uint64_t handle = shared->handle[number];
	uint32_t tier = next(random) % 2 ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME;
	struct test_reply reply;

	switch (next(random) % 4) {
	case 0:
		assert_ok(destroy(engine, handle));
		__atomic_store_n(&shared->handle[number], session_new(engine, number), __ATOMIC_RELEASE);
		break;
	case 1:
		assert_ok(unmap(engine, handle, 0, 0, KVD_PAGES_MAX));
		break;
	case 2:
		reply = remap(engine, handle, 0, 1, tier, 0, KVD_PAGES_MAX, 0);
		assert_true(!reply.status || reply.status == KVD_ABI_STATUS_NO_SPACE);
		break;
	default:
		reply = map_runs(engine, handle, 0, tier, runs, 2, 0);
		assert_true(!reply.status || reply.status == KVD_ABI_STATUS_NO_SPACE ||
			    reply.status == KVD_ABI_STATUS_ALREADY_MAPPED);
		break;
	}
}

/* Has each reader had its turn? */
static bool all_read(const struct reader *readers)
{
	for (uint32_t i = 0; i < READERS; i++) {
		if (kvd_get(&readers[i].mapped) < MAPPED_MIN)
			return false;
	}
	return true;
}

static void test_readers_beside_a_writer(void **state)
{
	struct shared shared = {.engine = engine_new(&test_config)};
	struct reader readers[READERS];
	uint64_t random = 99;

	(void)state;
	for (uint64_t i = 0; i < SESSIONS; i++)
		shared.handle[i] = session_new(shared.engine, i);
	for (uint32_t i = 0; i < READERS; i++) {
		readers[i] = (struct reader){.shared = &shared, .random = i + 1};
		assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
	}
	for (uint32_t i = 0; i < ROUNDS || (i < ROUNDS_MAX && !all_read(readers)); i++) {
		write_round(&shared, &random);
		if (i % YIELD_EVERY == 0)
			sched_yield();
	}
	__atomic_store_n(&shared.stop, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < READERS; i++) {
		assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
		print_message("reader %u: %u read, %u busy, %u of no session\n", i, (unsigned int)readers[i].good,
			      (unsigned int)readers[i].busy, (unsigned int)readers[i].gone);
	}
	assert_true(all_read(readers));
	engine_end(shared.engine);
}

/* What a reader may not do, and what it says when the writer never ends. */
static void test_reads_only(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	uint64_t *version = &kvd_session_find(engine, session)->version;
	uint64_t sequence = kvd_engine_sequence(engine);
	struct kvd_abi_run run;
	struct kvd_abi_cmd cmd = {
		.op = KVD_ABI_OP_TRANSLATE,
		.session = session,
		.count = 1,
		.buffer = (uintptr_t)&run,
		.buffer_bytes = sizeof(run),
	};
	struct kvd_abi_cpl cpl;

	(void)state;
	kvd_engine_read(engine, &cmd, &cpl);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	*version += 1;
	kvd_engine_read(engine, &cmd, &cpl);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_BUSY);
	*version += 1;
	for (uint16_t op = 0; op < KVD_ABI_OP_COUNT + 2; op++) {
		bool reads = op < KVD_ABI_OP_COUNT && kvd_engine_ops[op].needs & KVD_READS;

		cmd.op = op;
		kvd_engine_read(engine, &cmd, &cpl);
		assert_true(reads || cpl.status == KVD_ABI_STATUS_BAD_COMMAND);
	}
	assert_int_equal(kvd_engine_sequence(engine), sequence);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_readers_beside_a_writer),
		cmocka_unit_test(test_reads_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
