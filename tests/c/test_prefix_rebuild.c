/* What is derived is made anew from the entries alone, and an interrupted command has happened or it has not. */
#include <stdlib.h>

#include "test_prefix.h"

#define CHAINS 40u
#define UNITS_MAX (1u << 20)

static uint64_t hashes[TEST_HASHES * TEST_WORDS];

static struct blocks chain(uint64_t number)
{
	test_hashes(number, hashes, TEST_HASHES, TEST_WORDS);
	return (struct blocks){.key = 5, .count = TEST_HASHES, .hash_bytes = TEST_WORDS * 8, .hashes = hashes};
}

struct claims {
	kvd_engine *engine;
	uint64_t nodes;
	bool taken[UNITS_MAX / KVD_PREFIX_NODE_UNITS];
};

static bool claim(void *context, uint64_t node, uint32_t node_class)
{
	struct claims *claims = context;
	const struct kvd_head *head = claims->engine->head;

	assert_int_equal(node_class, KVD_NODE_CLASSES - 1);
	if (node * KVD_UNIT_BYTES < head->heap_at || node * KVD_UNIT_BYTES >= head->heap_next ||
	    claims->taken[node / KVD_PREFIX_NODE_UNITS])
		return false;
	claims->taken[node / KVD_PREFIX_NODE_UNITS] = true;
	claims->nodes++;
	return true;
}

/* Recovery as the engine does it, in an engine that has no page tables: the index alone owns nodes. */
static struct kvd_prefix_recovery recover(kvd_engine *engine)
{
	struct claims *claims = calloc(1, sizeof(*claims));
	struct kvd_prefix_recovery recovery = {0};
	struct kvd_head *head = engine->head;

	assert_non_null(claims);
	claims->engine = engine;
	kvd_prefix_claim(engine, claim, claims, &recovery);
	memset(head->free_nodes, 0, sizeof(head->free_nodes));
	head->table_bytes = claims->nodes * KVD_NODE_BYTES_MAX;
	for (uint64_t at = head->heap_at; at < head->heap_next; at += KVD_NODE_BYTES_MAX) {
		uint32_t unit = (uint32_t)(at / KVD_UNIT_BYTES);

		if (claims->taken[unit / KVD_PREFIX_NODE_UNITS])
			continue;
		kvd_entries(engine, unit)->pte = head->free_nodes[KVD_NODE_CLASSES - 1];
		head->free_nodes[KVD_NODE_CLASSES - 1] = unit;
	}
	free(claims);
	kvd_prefix_rebuild(engine, &recovery);
	assert_consistent(engine);
	return recovery;
}

/* Chains of two sessions; every fifth is gone again, and every seventh ends early. */
static kvd_engine *filled(uint64_t session[2])
{
	kvd_engine *engine = engine_new(&test_config);

	session[0] = session_new(engine, 1);
	session[1] = session_new(engine, 2);
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct blocks all = chain(i);

		all.count = i % 7 ? all.count : 30;
		assert_reply(insert(engine, session[i % 2], &all), all.count, 0);
	}
	for (uint32_t i = 0; i < CHAINS; i += 5) {
		struct blocks all = chain(i);

		assert_reply(take_out(engine, 0, &all), i % 7 ? all.count : 30, 0);
	}
	return engine;
}

static void assert_filled(kvd_engine *engine, const uint64_t session[2])
{
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct blocks all = chain(i);
		uint64_t length = i % 7 ? all.count : 30;

		length = i % 5 ? length : 0;
		assert_reply(match(engine, &all), length, length ? session[i % 2] : 0);
	}
}

/* Everything that is derived is spoilt. */
static void spoil(kvd_engine *engine)
{
	struct kvd_abi_prefix_head *head = &engine->head->prefix;
	uint64_t units = (engine->head->heap_next - engine->head->heap_at) / KVD_UNIT_BYTES;

	for (uint64_t i = 0; i < units; i++) {
		struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(engine, (uint32_t)(engine->head->heap_at / 64 + i));

		if (!kvd_session_find(engine, entry->holder))
			continue;
		entry->next = UINT32_MAX;
		entry->previous = 77;
	}
	kvd_session_at(engine, 0)->prefix_head = 99;
	kvd_session_at(engine, 1)->prefix_head = UINT32_MAX;
	head->entries = UINT64_MAX;
	head->slabs = 3;
	head->entry_free = 5;
	head->fresh = 6;
	head->fresh_end = UINT32_MAX;
	head->bucket_free = 7;
	head->root = 8;
	head->buckets = 9;
	head->removals = 11;
}

static void test_rebuild_equals_before(void **state)
{
	uint64_t session[2];
	kvd_engine *engine = filled(session);
	uint64_t entries = engine->head->prefix.entries;
	struct kvd_prefix_recovery recovery;

	(void)state;
	for (uint32_t round = 0; round < 3; round++) {
		spoil(engine);
		recovery = recover(engine);
		assert_int_equal(recovery.entries, entries);
		assert_int_equal(recovery.lost_entries, 0);
		assert_int_equal(recovery.lost_slabs, 0);
		assert_int_equal(engine->head->prefix.entries, entries);
		assert_filled(engine, session);
	}
	/* And it goes on. */
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct blocks all = chain(i);

		assert_int_equal(insert(engine, session[i % 2], &all).status, KVD_ABI_STATUS_OK);
		assert_reply(match(engine, &all), TEST_HASHES, session[i % 2]);
	}
	assert_ok(destroy(engine, session[0]));
	assert_ok(destroy(engine, session[1]));
	recovery = recover(engine);
	assert_int_equal(recovery.entries, 0);
	engine_end(engine);
}

static void test_rebuild_of_nothing(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	struct kvd_prefix_recovery recovery = recover(engine);

	(void)state;
	assert_int_equal(recovery.entries, 0);
	assert_false(recovery.done);
	engine_end(engine);
}

/* The session's context was freed, and then the writer died. */
static void test_holder_went(void **state)
{
	uint64_t session[2];
	kvd_engine *engine = filled(session);
	struct kvd_session *context = kvd_session_find(engine, session[0]);
	struct kvd_prefix_recovery recovery;
	struct blocks all;

	(void)state;
	context->generation += 5;
	recovery = recover(engine);
	assert_int_equal(recovery.lost_entries, 0);
	all = chain(2);
	assert_reply(match(engine, &all), 0, 0);
	all = chain(1);
	assert_reply(match(engine, &all), TEST_HASHES, session[1]);
	assert_reply(insert(engine, session[1], &all), 0, 0);
	engine_end(engine);
}

/* What can't be is cut out, counted, and never found. */
static void test_garbage_is_cut_out(void **state)
{
	uint64_t session[2];
	kvd_engine *engine = filled(session);
	uint64_t entries = engine->head->prefix.entries;
	uint32_t *directory = kvd_prefix_node(engine, engine->head->prefix.directory);
	struct kvd_prefix_recovery recovery;
	struct kvd_abi_prefix_entry *entry;
	struct blocks all = chain(1);

	(void)state;
	entry_of(engine, &all, 10)->place |= 7;
	entry_of(engine, &all, 20)->hash[3] = 9;
	entry_of(engine, &all, 30)->holder = 1;
	entry_of(engine, &all, 31)->holder |= 0x0fffffff;
	entry = entry_of(engine, &all, 40);
	*entry = *entry_of(engine, &all, 41);
	recovery = recover(engine);
	assert_int_equal(recovery.lost_entries, 5);
	assert_int_equal(recovery.entries, entries - 5);
	assert_reply(match(engine, &all), 10, session[1]);
	all.first += 41;
	all.hashes += 41ul * TEST_WORDS;
	all.count -= 41;
	assert_reply(match(engine, &all), all.count, session[1]);
	directory[1] = UINT32_MAX;
	directory[2] = directory[3];
	directory[900] = directory[4];
	recovery = recover(engine);
	assert_int_equal(recovery.lost_slabs, 3);
	assert_true(recovery.entries >= entries - 5 - 2ul * KVD_PREFIX_NODE_UNITS);
	engine->head->prefix.directory++;
	recovery = recover(engine);
	assert_int_equal(recovery.entries, 0);
	assert_true(recovery.lost_slabs > 0);
	assert_reply(insert(engine, session[0], &all), all.count, 0);
	engine_end(engine);
}

/* A command that stopped between its first flag and its last: both sides of the one store that makes it happen. */
static void test_interrupted_command(void **state)
{
	(void)state;
	for (uint32_t done = 0; done < 2; done++) {
		for (uint32_t removing = 0; removing < 2; removing++) {
			uint64_t session[2];
			kvd_engine *engine = filled(session);
			struct kvd_prefix_recovery recovery;
			struct blocks all = chain(1);

			for (uint32_t i = 60; i < TEST_HASHES; i++)
				entry_of(engine, &all, i)->holder |= removing ? KVD_PREFIX_REMOVING : KVD_PREFIX_INSERTING;
			engine->head->prefix.stage = 77ull << 1 | done;
			engine->head->prefix.result0 = 68;
			engine->head->prefix.removals = 1;
			recovery = recover(engine);
			assert_int_equal(recovery.command, 77);
			assert_int_equal(recovery.done, done);
			assert_int_equal(recovery.result0, 68);
			assert_int_equal(recovery.lost_entries, 0);
			assert_reply(match(engine, &all), removing == done ? 60 : TEST_HASHES, session[1]);
			engine_end(engine);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rebuild_equals_before),
		cmocka_unit_test(test_rebuild_of_nothing),
		cmocka_unit_test(test_holder_went),
		cmocka_unit_test(test_garbage_is_cut_out),
		cmocka_unit_test(test_interrupted_command),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
