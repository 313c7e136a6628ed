/*
 * The writer dies after each of its stores in turn: what it leaves is recovered, and then the command has happened or
 * it has not, as the journal says, and the index is what it was before or what it is after.
 *
 * The engine is built with a hook in every store (KVD_ENGINE_STORE_HOOK). The hook copies the tables and recovers the
 * copy; and now and then it lets the recovery die too, and recovers what that left.
 */
#include <stdlib.h>

#include "test_prefix.h"

#define CHAINS 8u
#define BLOCKS 14u
#define SESSIONS 3u
#define COMMANDS_FULL 40u /* so many fill the cramped tables */
#ifdef __SANITIZE_THREAD__
#define COMMANDS 2u /* there is one thread: nothing to find, and all that copying takes minutes */
#else
#define COMMANDS COMMANDS_FULL
#endif
#define DEATHS_MAX (1u << 20)
#define SECOND_DEATH_EVERY 61u
#define DEPTH_MAX 2u
#define CRAMPED_NODES 5u /* directory, a slab, and three of the hash */

struct death {
	uint64_t executed; /* commands */
	uint64_t digest;   /* of the index */
};

static struct {
	kvd_engine *engine;
	uint64_t bytes;
	unsigned char *copies[DEPTH_MAX];
	uint32_t depth;
	bool armed;
	uint64_t stores;
	struct death deaths[DEATHS_MAX];
	uint64_t deaths_count;
	uint64_t hashes[CHAINS][BLOCKS * TEST_WORDS];
	uint64_t session[SESSIONS];
	uint64_t random;
} test;

static uint32_t draw(uint32_t limit)
{
	test.random += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(test_mix(test.random) >> 32) % limit;
}

static struct blocks blocks_of(uint32_t chain, uint32_t first, uint32_t count)
{
	return (struct blocks){.key = 3, .first = first, .count = count, .hash_bytes = TEST_WORDS * 8,
			       .hashes = test.hashes[chain] + first * TEST_WORDS};
}

/* Who holds which block. */
static uint64_t digest(const kvd_engine *engine)
{
	uint64_t sum = 0;

	for (uint32_t chain = 0; chain < CHAINS; chain++) {
		for (uint32_t i = 0; i < BLOCKS; i++) {
			struct blocks one = blocks_of(chain, i, 1);
			struct kvd_abi_cmd cmd = prefix_cmd(KVD_ABI_OP_PREFIX_MATCH, 0, &one);
			struct kvd_abi_cpl cpl;

			kvd_engine_read(engine, &cmd, &cpl);
			assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
			sum = test_mix(sum + cpl.result1);
		}
	}
	return sum;
}

/* The writer has died now: recover a copy of what it left. */
static void die(const void *tables)
{
	unsigned char *copy = test.copies[test.depth];
	struct kvd_engine_recovery recovery = {0};
	kvd_engine *engine = NULL;

	assert_true(test.deaths_count < DEATHS_MAX);
	memcpy(copy, tables, test.bytes);
	test.depth++;
	test.armed = test.depth < DEPTH_MAX;
	assert_int_equal(kvd_engine_attach(copy, test.bytes, NULL, NULL, &engine), 0);
	assert_int_equal(kvd_engine_dirty(engine), 1);
	assert_int_equal(kvd_engine_recover(engine, &recovery), 0);
	test.armed = false;
	assert_int_equal(recovery.losses_count, 0);
	assert_consistent(engine);
	test.deaths[test.deaths_count++] = (struct death){kvd_engine_sequence(engine), digest(engine)};
	kvd_engine_fini(engine);
	test.depth--;
}

void kvd_engine_stored(void);
void kvd_engine_stored(void)
{
	uint32_t depth = test.depth;

	if (!test.armed || (depth && ++test.stores % SECOND_DEATH_EVERY))
		return;
	test.armed = false;
	die(depth ? test.copies[depth - 1] : test.engine->base);
	test.depth = depth;
	test.armed = true;
}

/* Execute a command, dying after each of its stores. */
static struct kvd_abi_cpl execute(struct kvd_abi_cmd cmd)
{
	uint64_t before = digest(test.engine);
	uint64_t sequence = kvd_engine_sequence(test.engine);
	struct kvd_abi_cpl cpl;
	uint64_t after, happened = 0;

	test.deaths_count = 0;
	test.armed = true;
	kvd_engine_submit(test.engine, &cmd, &cpl, 1);
	test.armed = false;
	after = digest(test.engine);
	assert_consistent(test.engine);
	assert_true(test.deaths_count > 0);
	for (uint64_t i = 0; i < test.deaths_count; i++) {
		bool done = test.deaths[i].executed == sequence + 1;

		assert_true(done || test.deaths[i].executed == sequence);
		assert_int_equal(test.deaths[i].digest, done ? after : before);
		happened += done;
	}
	assert_true(happened > 0);
	return cpl;
}

static void step(uint64_t *refused)
{
	uint32_t kind = draw(12);
	uint32_t number = draw(SESSIONS);
	uint32_t first = draw(3) ? 0 : draw(BLOCKS);
	struct blocks blocks = blocks_of(draw(CHAINS), first, 1 + draw(BLOCKS - first));
	struct kvd_abi_cpl cpl;

	if (kind < 8) {
		cpl = execute(prefix_cmd(KVD_ABI_OP_PREFIX_INSERT, test.session[number], &blocks));
		*refused += cpl.status == KVD_ABI_STATUS_NO_TABLE;
		return;
	}
	if (kind < 11) {
		cpl = execute(prefix_cmd(KVD_ABI_OP_PREFIX_REMOVE, draw(2) ? test.session[number] : 0, &blocks));
		assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
		return;
	}
	cpl = execute((struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_DESTROY, .session = test.session[number]});
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	test.session[number] = session_new(test.engine, 10 + number);
}

static void run(uint64_t seed, uint64_t arena_bytes, uint32_t commands, bool cramped)
{
	struct kvd_engine_config config = test_config;
	uint64_t refused = 0;

	config.arena_bytes = arena_bytes;
	test.random = seed;
	test.bytes = arena_bytes;
	test.engine = engine_new(&config);
	for (uint32_t i = 0; i < DEPTH_MAX; i++) {
		test.copies[i] = aligned_alloc(KVD_NODE_BYTES_MAX, arena_bytes);
		assert_non_null(test.copies[i]);
	}
	for (uint32_t i = 0; i < CHAINS; i++)
		test_hashes(i, test.hashes[i], BLOCKS, TEST_WORDS);
	for (uint32_t i = 0; i < SESSIONS; i++)
		test.session[i] = session_new(test.engine, 10 + i);
	for (uint32_t i = 0; i < commands; i++)
		step(&refused);
	if (commands >= COMMANDS_FULL)
		assert_int_equal(refused > 0, cramped);
	for (uint32_t i = 0; i < DEPTH_MAX; i++)
		free(test.copies[i]);
	engine_end(test.engine);
}

static void test_death_after_each_store(void **state)
{
	(void)state;
	run(1, 128u << 10, COMMANDS, false);
}

/* With room for one slab: insertions are taken back, and die in that. */
static void test_death_without_room(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t bytes = engine->layout.heap_at + CRAMPED_NODES * KVD_NODE_BYTES_MAX;

	(void)state;
	engine_end(engine);
	run(2, bytes, COMMANDS, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_death_after_each_store),
		cmocka_unit_test(test_death_without_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
