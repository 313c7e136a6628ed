/* PREFIX_INSERT, PREFIX_MATCH, PREFIX_REMOVE: each rule and each refusal. */
#include <stdlib.h>

#include "test_prefix.h"

static uint64_t hashes[TEST_HASHES * KVD_PREFIX_WORDS_MAX];

static struct blocks chain(uint64_t number, uint64_t count)
{
	test_hashes(number, hashes, TEST_HASHES, TEST_WORDS);
	return (struct blocks){.key = 5, .count = count, .hash_bytes = TEST_WORDS * 8, .hashes = hashes};
}

/* `count` blocks of a chain from its block `from` on. */
static struct blocks part(struct blocks blocks, uint64_t from, uint64_t count)
{
	blocks.first += from;
	blocks.count = count;
	blocks.hashes += from * (blocks.hash_bytes / 8);
	return blocks;
}

static void test_longest_prefix(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct blocks all = chain(0, 100);
	struct blocks some = part(all, 0, 70);

	(void)state;
	assert_reply(match(engine, &all), 0, 0);
	assert_reply(insert(engine, session, &some), 70, 0);
	assert_reply(match(engine, &all), 70, session);
	assert_reply(match(engine, &some), 70, session);
	some = part(all, 0, 1);
	assert_reply(match(engine, &some), 1, session);
	some = part(all, 69, 2);
	assert_reply(match(engine, &some), 1, session);
	some = part(all, 70, 2);
	assert_reply(match(engine, &some), 0, 0);
	assert_reply(insert(engine, session, &all), 30, 0);
	assert_reply(insert(engine, session, &all), 0, 0);
	assert_reply(match(engine, &all), 100, session);
	some = part(all, 0, 0);
	assert_reply(match(engine, &some), 0, 0);
	assert_reply(insert(engine, session, &some), 0, 0);
	assert_reply(take_out(engine, 0, &some), 0, 0);
	engine_end(engine);
}

/* Only namespace, position and hash together are a block. */
static void test_no_false_match(void **state)
{
	static uint64_t other[TEST_HASHES * KVD_PREFIX_WORDS_MAX];
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	for (uint16_t words = 1; words <= KVD_PREFIX_WORDS_MAX; words++) {
		struct blocks all = chain(words, 8);
		struct blocks wrong;

		test_hashes(words, hashes, TEST_HASHES, words);
		all.hash_bytes = (uint16_t)(words * 8);
		assert_reply(insert(engine, session, &all), 8, 0);
		assert_reply(match(engine, &all), 8, session);
		wrong = all;
		wrong.key++;
		assert_reply(match(engine, &wrong), 0, 0);
		wrong = all;
		wrong.first++;
		assert_reply(match(engine, &wrong), 0, 0);
		for (uint32_t bit = 0; bit < words * 64u; bit++) {
			memcpy(other, hashes, sizeof(other));
			other[3 * words + bit / 64] ^= 1ull << (bit % 64);
			wrong = all;
			wrong.hashes = other;
			assert_reply(match(engine, &wrong), 3, session);
		}
	}
	engine_end(engine);
}

/* A short hash is not a long one that ends in zeros. */
static void test_hash_length_is_part_of_the_name(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	uint64_t words[KVD_PREFIX_WORDS_MAX] = {77, 0, 0, 0};
	struct blocks blocks = {.key = 1, .count = 1, .hash_bytes = 8, .hashes = words};

	(void)state;
	assert_reply(insert(engine, session, &blocks), 1, 0);
	for (uint16_t bytes = 16; bytes <= 32; bytes = (uint16_t)(bytes + 8)) {
		blocks.hash_bytes = bytes;
		assert_reply(match(engine, &blocks), 0, 0);
		assert_reply(insert(engine, session, &blocks), 1, 0);
	}
	/* All zero is a hash as well. */
	words[0] = 0;
	assert_reply(match(engine, &blocks), 0, 0);
	assert_reply(insert(engine, session, &blocks), 1, 0);
	assert_reply(match(engine, &blocks), 1, session);
	engine_end(engine);
}

static void test_remove_in_the_middle(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct blocks all = chain(0, 40);
	struct blocks middle = part(all, 20, 1);

	(void)state;
	assert_reply(insert(engine, session, &all), 40, 0);
	assert_reply(take_out(engine, 0, &middle), 1, 0);
	assert_reply(take_out(engine, 0, &middle), 0, 0);
	assert_reply(match(engine, &all), 20, session);
	assert_consistent(engine);
	assert_reply(insert(engine, session, &middle), 1, 0);
	assert_reply(match(engine, &all), 40, session);
	assert_reply(take_out(engine, 0, &all), 40, 0);
	assert_reply(match(engine, &all), 0, 0);
	assert_int_equal(engine->head->prefix.entries, 0);
	engine_end(engine);
}

static void test_first_holder_stays(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t first = session_new(engine, 1);
	uint64_t second = session_new(engine, 2);
	struct blocks all = chain(0, 40);
	struct blocks head = part(all, 0, 10);

	(void)state;
	assert_reply(insert(engine, first, &head), 10, 0);
	assert_reply(insert(engine, second, &all), 30, 0);
	assert_reply(match(engine, &head), 10, first);
	assert_reply(match(engine, &all), 40, second);
	/* Each takes its own only. */
	assert_reply(take_out(engine, second, &head), 0, 0);
	assert_reply(take_out(engine, first, &all), 10, 0);
	assert_reply(match(engine, &all), 0, 0);
	assert_reply(insert(engine, first, &head), 10, 0);
	assert_ok(destroy(engine, first));
	assert_reply(match(engine, &all), 0, 0);
	assert_status(take_out(engine, first, &all), KVD_ABI_STATUS_NO_SESSION);
	assert_reply(insert(engine, second, &all), 10, 0);
	assert_reply(match(engine, &all), 40, second);
	assert_ok(destroy(engine, second));
	assert_int_equal(engine->head->prefix.entries, 0);
	engine_end(engine);
}

/* A holder that is gone without having let go: its entries never match, and who inserts takes them over. */
static void test_stale_holder(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t gone = session_new(engine, 1);
	uint64_t next = session_new(engine, 2);
	struct kvd_session *context = kvd_session_find(engine, gone);
	struct blocks all = chain(0, 40);
	struct blocks head = part(all, 0, 30);

	(void)state;
	assert_reply(insert(engine, gone, &all), 40, 0);
	context->generation += 100;
	assert_reply(match(engine, &all), 0, 0);
	assert_reply(take_out(engine, 0, &all), 0, 0);
	assert_reply(insert(engine, next, &head), 30, 0);
	assert_reply(match(engine, &all), 30, next);
	context->generation -= 100;
	assert_reply(match(engine, &all), 40, gone);
	assert_consistent(engine);
	engine_end(engine);
}

static void refuse(kvd_engine *engine, struct kvd_abi_cmd cmd, uint32_t status)
{
	struct kvd_abi_prefix_head before = engine->head->prefix;

	for (cmd.op = KVD_ABI_OP_PREFIX_INSERT; cmd.op <= KVD_ABI_OP_PREFIX_REMOVE; cmd.op++) {
		struct prefix_reply reply = prefix_submit(engine, cmd);

		assert_int_equal(reply.status, status);
		assert_int_equal(reply.result0, 0);
		assert_int_equal(reply.result1, 0);
		assert_memory_equal(&engine->head->prefix, &before, sizeof(before));
	}
}

static void test_hostile_arguments(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct blocks all = chain(0, 8);
	struct kvd_abi_cmd good = prefix_cmd(0, session, &all);
	static const uint16_t sizes[] = {0, 1, 7, 9, 31, 33, 40, 256, UINT16_MAX};
	struct kvd_abi_cmd bad;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		bad = good;
		bad.slot = sizes[i];
		refuse(engine, bad, KVD_ABI_STATUS_BAD_ARGUMENT);
	}
#define REFUSE(member, value)                                                                                          \
	do {                                                                                                           \
		bad = good;                                                                                            \
		bad.member = (value);                                                                                  \
		refuse(engine, bad, KVD_ABI_STATUS_BAD_ARGUMENT);                                                      \
	} while (0)
	REFUSE(count, 9);
	REFUSE(count, KVD_PREFIX_COUNT_MAX + 1);
	REFUSE(count, UINT64_MAX);
	REFUSE(count, 1ull << 60);
	REFUSE(first_page, KVD_PAGES_MAX);
	REFUSE(first_page, KVD_PAGES_MAX - 7);
	REFUSE(first_page, UINT64_MAX);
	REFUSE(buffer, good.buffer + 4);
	REFUSE(buffer, 0);
	REFUSE(buffer, UINT64_MAX - 7);
	REFUSE(buffer_bytes, 127);
	REFUSE(buffer_bytes, 0);
	REFUSE(buffer_bytes, UINT64_MAX);
	REFUSE(flags, 1);
#undef REFUSE
	bad = good;
	bad.op = KVD_ABI_OP_PREFIX_INSERT;
	bad.session = 0;
	assert_status(prefix_submit(engine, bad), KVD_ABI_STATUS_NO_SESSION);
	bad.session = session + (1ull << 32);
	assert_status(prefix_submit(engine, bad), KVD_ABI_STATUS_NO_SESSION);
	bad.op = KVD_ABI_OP_PREFIX_REMOVE;
	assert_status(prefix_submit(engine, bad), KVD_ABI_STATUS_NO_SESSION);
	good.op = KVD_ABI_OP_PREFIX_INSERT;
	good.first_page = KVD_PAGES_MAX - 8;
	assert_reply(prefix_submit(engine, good), 8, 0);
	good.op = KVD_ABI_OP_PREFIX_MATCH;
	assert_reply(prefix_submit(engine, good), 8, session);
	engine_end(engine);
}

/* A device that can't reach the hashes says so before anything changes. */
static void *reach_nothing(void *context, uint64_t address, uint64_t bytes, int writable)
{
	(void)context;
	(void)address;
	assert_int_equal(bytes, 8 * TEST_WORDS * 8);
	assert_false(writable);
	return NULL;
}

static void test_unreachable_hashes(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct blocks all = chain(0, 8);
	struct prefix_reply reply;

	(void)state;
	engine->reach = reach_nothing;
	reply = insert(engine, session, &all);
	assert_int_equal(reply.status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(reply.result0, (uintptr_t)all.hashes);
	assert_int_equal(match(engine, &all).status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(take_out(engine, session, &all).status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(engine->head->prefix.directory, 0);
	engine_end(engine);
}

/* With the memory full an insertion leaves nothing behind; what was there is still found, and room can be made. */
static void test_memory_full(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t session;
	struct blocks all;
	struct prefix_reply reply;
	uint64_t chains = 0;

	(void)state;
	config.arena_bytes = 256u << 10;
	engine = engine_new(&config);
	session = session_new(engine, 1);
	for (;; chains++) {
		uint64_t entries = engine->head->prefix.entries;

		assert_true(chains < 100);
		all = chain(chains, TEST_HASHES);
		reply = insert(engine, session, &all);
		if (reply.status == KVD_ABI_STATUS_OK)
			continue;
		assert_int_equal(reply.status, KVD_ABI_STATUS_NO_TABLE);
		assert_int_equal(reply.result0, 0);
		assert_int_equal(engine->head->prefix.entries, entries);
		assert_reply(match(engine, &all), 0, 0);
		break;
	}
	assert_true(chains > 3);
	assert_consistent(engine);
	for (uint64_t i = 0; i < chains; i++) {
		all = chain(i, TEST_HASHES);
		assert_reply(match(engine, &all), TEST_HASHES, session);
	}
	all = chain(0, TEST_HASHES);
	assert_reply(take_out(engine, 0, &all), TEST_HASHES, 0);
	all = chain(chains, TEST_HASHES);
	assert_reply(insert(engine, session, &all), TEST_HASHES, 0);
	assert_reply(match(engine, &all), TEST_HASHES, session);
	engine_end(engine);
}

/* Chains grow to several buckets, are split, shrink again; nothing is lost on the way. */
static void test_growth(void **state)
{
	struct kvd_engine_config config = test_config;
	kvd_engine *engine;
	uint64_t session;
	uint32_t long_chains = 0;
	struct blocks all;

	(void)state;
	config.arena_bytes = 64u << 20;
	engine = engine_new(&config);
	session = session_new(engine, 1);
	for (uint64_t i = 0; i < 400; i++) {
		all = chain(i, TEST_HASHES);
		assert_reply(insert(engine, session, &all), TEST_HASHES, 0);
	}
	assert_consistent(engine);
	assert_true(engine->head->prefix.buckets > 400 * TEST_HASHES / (KVD_PREFIX_LOAD + 1));
	for (uint32_t i = 0; i < engine->head->prefix.buckets; i++)
		long_chains += kvd_prefix_bucket(engine, i)->more != 0;
	assert_true(long_chains > 0);
	for (uint64_t i = 0; i < 400; i++) {
		all = chain(i, TEST_HASHES);
		assert_reply(match(engine, &all), TEST_HASHES, session);
		if (i % 3)
			assert_reply(take_out(engine, 0, &all), TEST_HASHES, 0);
	}
	assert_consistent(engine);
	for (uint64_t i = 0; i < 400; i++) {
		all = chain(i, TEST_HASHES);
		assert_reply(match(engine, &all), i % 3 ? 0 : TEST_HASHES, i % 3 ? 0 : session);
	}
	assert_ok(destroy(engine, session));
	assert_int_equal(engine->head->prefix.entries, 0);
	assert_int_equal(kvd_engine_reset(engine), 0);
	assert_int_equal(engine->head->prefix.buckets, 0);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_longest_prefix),
		cmocka_unit_test(test_no_false_match),
		cmocka_unit_test(test_hash_length_is_part_of_the_name),
		cmocka_unit_test(test_remove_in_the_middle),
		cmocka_unit_test(test_first_holder_stays),
		cmocka_unit_test(test_stale_holder),
		cmocka_unit_test(test_hostile_arguments),
		cmocka_unit_test(test_unreachable_hashes),
		cmocka_unit_test(test_memory_full),
		cmocka_unit_test(test_growth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
