/*
 * Killed after any store: SESSION_TRANSITION, TOUCH, WINDOW_ADVANCE and AGE_SCAN.
 *
 * The engine is built with a hook that it calls after each store to its tables. There the tables are copied, as a process
 * that dies would leave them; an engine that attaches to the copy recovers it. The command must then be executed, or not;
 * in the latter case the tables are as before, and executing it leads to the same end.
 */
#include <stdlib.h>

#include "test_engine_ops.h"

#define ARENA_BYTES (1u << 20)
#define PAGES 600u /* two leaves */
#define SLOT 1u
#define RUNS 64u
#define AGEING_BITS (KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_GENERATION_MASK)

/* What can be known of the tables. */
struct digest {
	uint64_t ptes[PAGES];
	struct kvd_abi_session_info info;
	struct kvd_abi_tier_info tier;
	uint32_t age;
	uint32_t age_floor;
};

struct trial {
	kvd_engine *engine;
	uint64_t session;
	struct kvd_abi_cmd cmd;
	unsigned char buffer[sizeof(struct kvd_abi_window) + RUNS * sizeof(struct kvd_abi_cold_run)];
	struct digest before;
	struct digest after;
	struct kvd_abi_cpl cpl;
	uint64_t sequence;
	uint64_t executed;
	uint64_t undone;
};

static struct trial *armed;

static void take_digest(kvd_engine *engine, uint64_t session, struct digest *digest)
{
	memset(digest, 0, sizeof(*digest));
	for (uint32_t i = 0; i < PAGES; i++)
		digest->ptes[i] = pte_of(engine, session, SLOT, i);
	digest->info = session_info(engine, session);
	digest->tier = tier_info(engine, KVD_ABI_TIER_DDR);
	digest->age = engine->head->age;
	digest->age_floor = engine->head->age_floor;
}

/* The command, with a buffer of its own. */
static struct kvd_abi_cpl submit(kvd_engine *engine, const struct trial *trial)
{
	_Alignas(8) unsigned char buffer[sizeof(trial->buffer)];
	struct kvd_abi_cmd cmd = trial->cmd;
	struct kvd_abi_cpl cpl;

	memcpy(buffer, trial->buffer, sizeof(buffer));
	if (cmd.buffer_bytes)
		cmd.buffer = (uintptr_t)buffer;
	kvd_engine_submit(engine, &cmd, &cpl, 1);
	return cpl;
}

static void assert_digest(kvd_engine *engine, uint64_t session, const struct digest *expected, uint64_t ignore)
{
	struct digest found, wanted = *expected;

	take_digest(engine, session, &found);
	for (uint32_t i = 0; i < PAGES; i++) {
		found.ptes[i] &= ~ignore;
		wanted.ptes[i] &= ~ignore;
	}
	assert_memory_equal(&found, &wanted, sizeof(found));
}

static void die_and_recover(struct trial *trial)
{
	uint64_t ignore = trial->cmd.op == KVD_ABI_OP_AGE_SCAN ? AGEING_BITS : 0;
	unsigned char *copy = aligned_alloc(4096, ARENA_BYTES);
	struct kvd_engine_recovery result = {0};
	struct kvd_abi_cpl cpl;
	kvd_engine *twin;

	assert_non_null(copy);
	memcpy(copy, trial->engine->base, ARENA_BYTES);
	assert_int_equal(kvd_engine_attach(copy, ARENA_BYTES, NULL, NULL, &twin), 0);
	assert_int_equal(kvd_engine_dirty(twin), 1);
	assert_int_equal(kvd_engine_recover(twin, &result), 0);
	assert_int_equal(result.losses_count, 0);
	assert_consistent(twin);
	if (kvd_engine_sequence(twin) == trial->sequence) {
		trial->undone++;
		assert_digest(twin, trial->session, &trial->before, ignore);
		cpl = submit(twin, trial);
		assert_memory_equal(&cpl, &trial->cpl, sizeof(cpl));
	} else {
		trial->executed++;
		assert_int_equal(kvd_engine_sequence(twin), trial->sequence + 1);
		assert_int_equal(kvd_engine_completion(twin, trial->sequence + 1, &cpl), 0);
		assert_memory_equal(&cpl, &trial->cpl, sizeof(cpl));
	}
	assert_consistent(twin);
	assert_digest(twin, trial->session, &trial->after, 0);
	kvd_engine_fini(twin);
	free(copy);
}

void kvd_engine_stored(void);
void kvd_engine_stored(void)
{
	struct trial *trial = armed;

	if (!trial)
		return;
	armed = NULL;
	die_and_recover(trial);
	armed = trial;
}

static void trial_new(struct trial *trial)
{
	struct kvd_engine_config config = test_config;

	memset(trial, 0, sizeof(*trial));
	config.arena_bytes = ARENA_BYTES;
	trial->engine = engine_new(&config);
	trial->session = session_new(trial->engine, 1);
	trial->cmd.session = trial->session;
	trial->cmd.slot = SLOT;
	assert_ok(map(trial->engine, trial->session, SLOT, KVD_ABI_TIER_DDR, 0, 100, 1));
	assert_ok(map(trial->engine, trial->session, SLOT, KVD_ABI_TIER_DDR, 490, 100, 2));
	assert_ok(touch(trial->engine, trial->session, SLOT, 480, 20, 0));
}

/* What the command comes to is seen on tables of the same content first. */
static void trial_run(struct trial *trial)
{
	unsigned char *copy = aligned_alloc(4096, ARENA_BYTES);
	struct kvd_engine_recovery result = {0};
	kvd_engine *twin;
	struct kvd_abi_cpl cpl;

	assert_non_null(copy);
	memcpy(copy, trial->engine->base, ARENA_BYTES);
	assert_int_equal(kvd_engine_attach(copy, ARENA_BYTES, NULL, NULL, &twin), 0);
	assert_int_equal(kvd_engine_recover(twin, &result), 0);
	take_digest(twin, trial->session, &trial->before);
	take_digest(trial->engine, trial->session, &trial->after);
	assert_memory_equal(&trial->before, &trial->after, sizeof(trial->before));
	trial->cpl = submit(twin, trial);
	assert_int_equal(trial->cpl.status, KVD_ABI_STATUS_OK);
	take_digest(twin, trial->session, &trial->after);
	assert_memory_not_equal(&trial->before, &trial->after, sizeof(trial->before));
	kvd_engine_fini(twin);
	free(copy);

	trial->sequence = kvd_engine_sequence(trial->engine);
	armed = trial;
	cpl = submit(trial->engine, trial);
	armed = NULL;
	assert_memory_equal(&cpl, &trial->cpl, sizeof(cpl));
	assert_digest(trial->engine, trial->session, &trial->after, 0);
	assert_true(trial->undone > 0);
	assert_true(trial->executed > 0);
	print_message("killed after %lu stores: %lu times not executed, %lu times executed\n",
		      (unsigned long)(trial->undone + trial->executed), (unsigned long)trial->undone,
		      (unsigned long)trial->executed);
	engine_end(trial->engine);
}

static void test_transition(void **state)
{
	static struct trial trial;

	(void)state;
	trial_new(&trial);
	trial.cmd.op = KVD_ABI_OP_SESSION_TRANSITION;
	trial.cmd.slot = 0;
	trial.cmd.key = KVD_ABI_EVENT_WRITE;
	trial_run(&trial);
}

static void test_touch(void **state)
{
	static struct trial trial;

	(void)state;
	trial_new(&trial);
	trial.cmd.op = KVD_ABI_OP_TOUCH;
	trial.cmd.flags = KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK;
	trial.cmd.first_page = 90;
	trial.cmd.count = 440;
	trial_run(&trial);
}

/* Three planes of 196 pages: leaves get empty, and the table gets lower. */
static void test_window(void **state)
{
	static struct trial trial;
	const struct kvd_abi_window window = {
		.plane_bytes = 196ull * TEST_PAGE_BLOCKS * KVD_BLOCK_BYTES,
		.planes = 3,
		.token_bytes = TEST_PAGE_BLOCKS * KVD_BLOCK_BYTES,
		.tokens = 196,
		.window_tokens = 2,
		.sink_tokens = 1,
	};

	(void)state;
	trial_new(&trial);
	trial.cmd.op = KVD_ABI_OP_WINDOW_ADVANCE;
	trial.cmd.buffer = 8;
	trial.cmd.buffer_bytes = sizeof(trial.buffer);
	memcpy(trial.buffer, &window, sizeof(window));
	trial_run(&trial);
}

static void test_age_scan(void **state)
{
	static struct trial trial;

	(void)state;
	trial_new(&trial);
	trial.cmd.op = KVD_ABI_OP_AGE_SCAN;
	trial.cmd.session = 0;
	trial.cmd.slot = 0;
	trial.cmd.flags = KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK;
	trial.cmd.count = UINT64_MAX;
	trial.cmd.buffer = 8;
	trial.cmd.buffer_bytes = sizeof(trial.buffer);
	trial_run(&trial);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transition),
		cmocka_unit_test(test_touch),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_age_scan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
