/* What is derived is made anew from the entries alone, and an interrupted command has happened or it has not. */
#include <stdlib.h>

#include "test_prefix.h"

#define CHAINS 40u

static uint64_t hashes[TEST_HASHES * TEST_WORDS];

static struct blocks chain(uint64_t number)
{
	test_hashes(number, hashes, TEST_HASHES, TEST_WORDS);
	return (struct blocks){.key = 5, .count = TEST_HASHES, .hash_bytes = TEST_WORDS * 8, .hashes = hashes};
}

struct outcome {
	uint64_t losses;
	uint64_t finished;
	uint64_t undone;
	uint64_t entries;
};

static struct outcome recover(kvd_engine *engine)
{
	char text[FAULTS_BYTES];
	struct kvd_engine_recovery recovery = {.text = text, .text_bytes = sizeof(text)};

	assert_int_equal(kvd_engine_recover(engine, &recovery), 0);
	assert_consistent(engine);
	if (recovery.losses_count)
		assert_non_null(strstr(text, "blocks of the prefix index are lost"));
	return (struct outcome){
		.losses = recovery.losses_count,
		.finished = recovery.finished,
		.undone = recovery.undone,
		.entries = engine->head->prefix.entries,
	};
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
	uint64_t units = kvd_check_units(engine);

	for (uint64_t i = 0; i < units; i++) {
		struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(engine, (uint32_t)(engine->unit_first + i));

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
	struct outcome recovery;

	(void)state;
	for (uint32_t round = 0; round < 3; round++) {
		spoil(engine);
		recovery = recover(engine);
		assert_int_equal(recovery.entries, entries);
		assert_int_equal(recovery.losses, 0);
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
	struct outcome recovery = recover(engine);

	(void)state;
	assert_int_equal(recovery.entries, 0);
	assert_int_equal(recovery.losses, 0);
	engine_end(engine);
}

/* The session's context was freed, and then the writer died. */
static void test_holder_went(void **state)
{
	uint64_t session[2];
	kvd_engine *engine = filled(session);
	struct kvd_session *context = kvd_session_find(engine, session[0]);
	struct outcome recovery;
	struct blocks all;

	(void)state;
	context->generation += 5;
	recovery = recover(engine);
	assert_int_equal(recovery.losses, 0);
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
	struct outcome recovery;
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
	assert_int_equal(recovery.losses, 1);
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
	assert_int_equal(recovery.losses, 1);
	/* Of a slab that is named twice nobody knows whose it is: it goes too. */
	assert_true(recovery.entries >= entries - 5 - 4ul * KVD_PREFIX_NODE_UNITS && recovery.entries < entries);
	engine->head->prefix.directory++;
	recovery = recover(engine);
	assert_int_equal(recovery.entries, 0);
	assert_int_equal(recovery.losses, 1);
	assert_reply(insert(engine, session[0], &all), all.count, 0);
	engine_end(engine);
}

/* A command that stopped between its first flag and its last: both sides of the one store that makes it happen. */
static void interrupted(uint16_t op, bool commit)
{
	uint64_t session[2];
	kvd_engine *engine = filled(session);
	struct kvd_intent *intent = &engine->head->intent;
	bool removing = op == KVD_ABI_OP_PREFIX_REMOVE;
	struct blocks all = chain(1);
	struct outcome recovery;
	struct kvd_abi_cpl cpl;

	for (uint32_t i = 60; i < TEST_HASHES; i++)
		entry_of(engine, &all, i)->holder |= removing ? KVD_PREFIX_REMOVING : KVD_PREFIX_INSERTING;
	engine->head->prefix.removals = 1;
	intent->sequence = engine->head->sequence + 1;
	intent->cmd = (struct kvd_abi_cmd){.op = op, .id = 9};
	intent->cpl = (struct kvd_abi_cpl){.id = 9, .result0 = 68};
	intent->stage = commit ? KVD_ABI_STAGE_COMMIT : KVD_ABI_STAGE_PREPARE;
	recovery = recover(engine);
	assert_int_equal(recovery.losses, 0);
	assert_int_equal(recovery.finished, commit);
	assert_int_equal(recovery.undone, !commit);
	if (commit) {
		assert_int_equal(kvd_engine_completion(engine, kvd_engine_sequence(engine), &cpl), 0);
		assert_int_equal(cpl.id, 9);
		assert_int_equal(cpl.result0, 68);
	}
	assert_reply(match(engine, &all), removing == commit ? 60 : TEST_HASHES, session[1]);
	engine_end(engine);
}

static void test_interrupted_command(void **state)
{
	(void)state;
	interrupted(KVD_ABI_OP_PREFIX_INSERT, false);
	interrupted(KVD_ABI_OP_PREFIX_INSERT, true);
	interrupted(KVD_ABI_OP_PREFIX_REMOVE, false);
	interrupted(KVD_ABI_OP_PREFIX_REMOVE, true);
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
