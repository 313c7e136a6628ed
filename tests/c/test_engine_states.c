/* SESSION_TRANSITION: every event in every state; TOUCH; FLUSH. */
#include "test_engine_ops.h"

static uint32_t state_of(kvd_engine *engine, uint64_t session)
{
	return session_info(engine, session).state;
}

/* Put the session into a state, whatever leads there. */
static void put_state(kvd_engine *engine, uint64_t session, uint32_t state)
{
	kvd_session_find(engine, session)->state = state;
}

static void test_a_new_session_is_new(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_int_equal(state_of(engine, session), KVD_ABI_STATE_NEW);
	assert_int_equal(transition(engine, session, KVD_ABI_EVENT_WRITE).result0, KVD_ABI_STATE_FILLING);
	assert_ok(destroy(engine, session));
	/* The context is used again, its state is not. */
	assert_int_equal(state_of(engine, session_new(engine, 1)), KVD_ABI_STATE_NEW);
	engine_end(engine);
}

static void test_every_event_in_every_state(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_engine_stats stats;
	uint64_t refused = 0;

	(void)state;
	for (uint32_t from = 0; from < KVD_ABI_STATE_COUNT; from++) {
		for (uint32_t event = 0; event < KVD_ABI_EVENT_COUNT; event++) {
			uint8_t to = kvd_abi_next_state[from][event];
			struct test_reply reply;

			put_state(engine, session, from);
			reply = transition(engine, session, event);
			if (to == KVD_ABI_STATE_COUNT) {
				assert_status(reply, KVD_ABI_STATUS_BAD_TRANSITION);
				assert_int_equal(reply.result0, from);
				assert_int_equal(state_of(engine, session), from);
				refused++;
			} else {
				assert_ok(reply);
				assert_int_equal(reply.result0, to);
				assert_int_equal(state_of(engine, session), to);
			}
		}
	}
	kvd_engine_stats(engine, &stats);
	assert_true(refused > 0);
	assert_int_equal(stats.refused_transitions, refused);
	assert_int_equal(stats.refused, refused);
	engine_end(engine);
}

/* The life of an object that is written, read, cooled, brought back and given up. */
static void test_a_life(void **state)
{
	static const uint8_t steps[][2] = {
		{KVD_ABI_EVENT_WRITE, KVD_ABI_STATE_FILLING},   {KVD_ABI_EVENT_SEAL, KVD_ABI_STATE_ACTIVE},
		{KVD_ABI_EVENT_CLOSE, KVD_ABI_STATE_IDLE},      {KVD_ABI_EVENT_TICK, KVD_ABI_STATE_COOLING},
		{KVD_ABI_EVENT_DEMOTED, KVD_ABI_STATE_COLD},    {KVD_ABI_EVENT_OPEN, KVD_ABI_STATE_WARMING},
		{KVD_ABI_EVENT_PROMOTED, KVD_ABI_STATE_IDLE},   {KVD_ABI_EVENT_RELEASE, KVD_ABI_STATE_RELEASED},
		{KVD_ABI_EVENT_EXPIRE, KVD_ABI_STATE_EXPIRED},  {KVD_ABI_EVENT_EVICT, KVD_ABI_STATE_CLOSED},
	};
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		assert_int_equal(transition(engine, session, steps[i][0]).result0, steps[i][1]);
		assert_int_equal(state_of(engine, session), steps[i][1]);
	}
	assert_status(transition(engine, session, KVD_ABI_EVENT_OPEN), KVD_ABI_STATUS_BAD_TRANSITION);
	engine_end(engine);
}

static void test_destroyed_in_any_state(void **state)
{
	kvd_engine *engine = engine_new(&test_config);

	(void)state;
	for (uint32_t from = 0; from < KVD_ABI_STATE_COUNT; from++) {
		uint64_t session = session_new(engine, from);

		put_state(engine, session, from);
		assert_ok(destroy(engine, session));
		assert_status(transition(engine, session, KVD_ABI_EVENT_OPEN), KVD_ABI_STATUS_NO_SESSION);
	}
	engine_end(engine);
}

static void test_transition_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_SESSION_TRANSITION, .session = session, .flags = 1};

	(void)state;
	assert_status(transition(engine, session, KVD_ABI_EVENT_COUNT), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(transition(engine, session, UINT64_MAX), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(transition(engine, session, 1ull << 8), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(submit_one(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(transition(engine, 12345, KVD_ABI_EVENT_OPEN), KVD_ABI_STATUS_NO_SESSION);
	assert_int_equal(state_of(engine, session), KVD_ABI_STATE_NEW);
	/* Tables that were damaged do not lead out of the table of states. */
	put_state(engine, session, KVD_ABI_STATE_COUNT);
	assert_status(transition(engine, session, KVD_ABI_EVENT_OPEN), KVD_ABI_STATUS_BAD_TABLES);
	put_state(engine, session, UINT32_MAX);
	assert_status(transition(engine, session, KVD_ABI_EVENT_OPEN), KVD_ABI_STATUS_BAD_TABLES);
	put_state(engine, session, KVD_ABI_STATE_NEW);
	engine_end(engine);
}

#define USE_BITS (KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK)

static void test_touch(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct kvd_abi_run run;
	uint64_t before;

	(void)state;
	assert_ok(map(engine, session, 2, KVD_ABI_TIER_DDR, 510, 4, 1));
	before = pte_of(engine, session, 2, 511);
	assert_int_equal(before & USE_BITS, 0);
	assert_int_equal(touch(engine, session, 2, 511, 2, 0).result0, 2);
	assert_int_equal(pte_of(engine, session, 2, 510) & USE_BITS, 0);
	assert_int_equal(pte_of(engine, session, 2, 511), before | KVD_ABI_PTE_ACCESSED_MASK);
	assert_int_equal(touch(engine, session, 2, 0, UINT64_MAX, KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK).result0, 4);
	assert_int_equal(pte_of(engine, session, 2, 511), before | USE_BITS);
	assert_int_equal(pte_of(engine, session, 2, 513) & USE_BITS, USE_BITS);
	/* Asking where pages are is no use of them, and their frames are the same. */
	assert_ok(unmap(engine, session, 2, 0, KVD_PAGES_MAX));
	assert_ok(map(engine, session, 2, KVD_ABI_TIER_DDR, 0, 3, 1));
	assert_ok(translate(engine, session, 2, 0, 3, &run, 1));
	assert_int_equal(run.count, 3);
	assert_int_equal(pte_of(engine, session, 2, 0) & USE_BITS, 0);
	/* A new place holds the bytes as they are, and the page has not been used by that. */
	assert_ok(touch(engine, session, 2, 0, 1, KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK));
	assert_ok(remap(engine, session, 2, 0, KVD_ABI_TIER_NVME, 0, 3, 0));
	assert_int_equal(pte_of(engine, session, 2, 0) & USE_BITS, KVD_ABI_PTE_ACCESSED_MASK);
	assert_int_equal(pte_of(engine, session, 2, 1) & USE_BITS, 0);
	engine_end(engine);
}

static void test_touch_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);

	(void)state;
	assert_int_equal(touch(engine, session, 0, 0, UINT64_MAX, 0).result0, 0);
	assert_status(touch(engine, session, 0, KVD_PAGES_MAX, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(touch(engine, session, KVD_ENGINE_SLOTS_MAX, 0, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(touch(engine, session, 0, 0, 1, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(touch(engine, 999, 0, 0, 1, 0), KVD_ABI_STATUS_NO_SESSION);
	engine_end(engine);
}

static void test_flush_counts(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	struct test_reply reply = submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	uint64_t before = reply.result0;

	(void)state;
	assert_ok(reply);
	session_new(engine, 1);
	session_new(engine, 2);
	reply = submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	assert_int_equal(reply.result0, before + 3);
	assert_status(submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH, .flags = 1}), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_new_session_is_new),
		cmocka_unit_test(test_every_event_in_every_state),
		cmocka_unit_test(test_a_life),
		cmocka_unit_test(test_destroyed_in_any_state),
		cmocka_unit_test(test_transition_refuses_nonsense),
		cmocka_unit_test(test_touch),
		cmocka_unit_test(test_touch_refuses_nonsense),
		cmocka_unit_test(test_flush_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
