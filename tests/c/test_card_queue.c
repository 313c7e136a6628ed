/* Rings, doorbells and the engine behind them. */
#include "card_host.h"

#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX
#define BAR2 VFIO_PCI_BAR2_REGION_INDEX

static void test_commands(void **state)
{
	struct host *host = *state;
	struct kvd_abi_run *runs = host_buffer(host);
	struct kvd_abi_cpl cpl;
	uint64_t session;

	host_enable(host);
	session = host_session(host, 99);
	assert_int_equal(host_map(host, session, 10, 3).status, KVD_ABI_STATUS_OK);
	assert_int_equal(rig_signals(host->eventfds[0]), 2);
	cpl = host_call(host, (struct kvd_abi_cmd){
		.id = 5, .op = KVD_ABI_OP_TRANSLATE, .session = session, .count = 100, .buffer = host_buffer_iova(),
		.buffer_bytes = sizeof(*runs),
	});
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	assert_int_equal(cpl.result0, 1);
	assert_int_equal(runs->first_page, 10);
	assert_int_equal(runs->count, 3);
	assert_int_equal(runs->tier, KVD_ABI_TIER_DDR);
	/* A refusal is a completion too. */
	assert_int_not_equal(host_session(host, 98), session);
	cpl = host_call(host, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 99});
	assert_int_equal(cpl.status, KVD_ABI_STATUS_EXISTS);
	assert_int_equal(cpl.result0, session);
	cpl = host_call(host, (struct kvd_abi_cmd){.op = 200});
	assert_int_equal(cpl.status, KVD_ABI_STATUS_BAD_COMMAND);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_COMMANDS_AT), 6);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_REFUSED_AT), 2);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_DOORBELLS_AT), 6);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_INTERRUPTS_AT), 6);
	assert_true(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_READ_BYTES_AT) >= sizeof(struct kvd_abi_map_run));
	assert_true(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_WRITTEN_BYTES_AT) >= sizeof(*runs));
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_FAULTS_AT), 0);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_EXECUTED_AT), 6);
	/* The tables are software's after a reset, in good order and with what was done. */
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_check(host, true);
	host_describe(host, false);
	host_enable(host);
	cpl = host_call(host, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 99});
	assert_int_equal(cpl.result0, session);
}

/* Many rounds, on both queues, of every length: each command once, in order, each phase right. */
static void test_rounds(void **state)
{
	struct host *host = *state;
	uint32_t put[2] = {0}, taken[2] = {0};
	struct kvd_abi_cpl cpl;

	host_enable(host);
	for (uint32_t round = 0; round < 1000; round++) {
		uint32_t queue = round % 3 == 0, count = round % HOST_DEPTH;

		for (uint32_t i = 0; i < count; i++)
			host_put(host, queue, (struct kvd_abi_cmd){.id = put[queue]++, .op = KVD_ABI_OP_SESSION_CREATE, .key = 7});
		host_ring(host, queue);
		host_work(host);
		assert_int_equal(rig_signals(host->eventfds[queue]), count != 0); /* one for all */
		while (host_take(host, queue, &cpl)) {
			assert_int_equal(cpl.id, taken[queue]++);
			/* The first of all made the session. */
			assert_int_equal(cpl.status, cpl.id || queue ? KVD_ABI_STATUS_EXISTS : KVD_ABI_STATUS_OK);
			assert_int_equal(cpl.reserved, 0);
		}
		assert_int_equal(taken[queue], put[queue]);
		assert_false(host_take(host, !queue, &cpl));
	}
}

/* With a full completion ring the card waits, and goes on when there is room. */
static void test_full_completion_ring(void **state)
{
	struct host *host = *state;
	struct kvd_abi_cpl cpl;

	host_enable(host);
	for (uint32_t i = 0; i < HOST_DEPTH - 1; i++)
		host_put(host, 0, (struct kvd_abi_cmd){.id = i, .op = KVD_ABI_OP_FLUSH});
	host_ring(host, 0);
	host_work(host);
	for (uint32_t i = 0; i < 3; i++)
		host_put(host, 0, (struct kvd_abi_cmd){.id = HOST_DEPTH - 1 + i, .op = KVD_ABI_OP_FLUSH});
	host_ring(host, 0);
	host_work(host);
	assert_int_equal(host->rig.card->queues[0].executed, HOST_DEPTH - 1);
	assert_true(host_take(host, 0, &cpl));
	assert_int_equal(cpl.id, 0);
	host_work(host);
	assert_int_equal(host->rig.card->queues[0].executed, HOST_DEPTH);
	for (uint32_t i = 1; i < HOST_DEPTH + 2; i++) {
		assert_true(host_take(host, 0, &cpl));
		assert_int_equal(cpl.id, i);
		host_work(host);
	}
	assert_false(host_take(host, 0, &cpl));
}

static void ring_wrong(struct host *host, uint32_t word, uint32_t value)
{
	host_enable(host);
	for (uint32_t i = 0; i < 3; i++)
		host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	host_ring(host, 0);
	host_work(host);
	host->doorbells[word] = value;
	host_work(host);
	host_stopped(host, KVD_ABI_SYNDROME_BAD_DOORBELL, value);
	assert_int_equal(rig_read32(&host->rig, BAR0, KVD_ABI_BAR0_SYNDROME_QUEUE_AT), word / 16);
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	assert_int_equal(host->doorbells[word], 0);
	host_check(host, true);
	host_describe(host, false);
}

static void test_wrong_doorbells(void **state)
{
	struct host *host = *state;

	ring_wrong(host, 0, HOST_DEPTH);
	ring_wrong(host, 0, UINT32_MAX);
	ring_wrong(host, 16, HOST_DEPTH + 1);
	ring_wrong(host, 1, HOST_DEPTH);
	ring_wrong(host, 1, 4);  /* only three completions are there */
	ring_wrong(host, 17, 1); /* none is */
	/* A tail that goes back over what waits. */
	host_enable(host);
	for (uint32_t i = 0; i < HOST_DEPTH - 1; i++)
		host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	host_ring(host, 0);
	host_work(host);
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_FLUSH});
	host_ring(host, 0); /* the completion ring is full: these wait */
	host_work(host);
	host->doorbells[0] = 0;
	host_work(host);
	host_stopped(host, KVD_ABI_SYNDROME_BAD_DOORBELL, 0);
}

static void describe_wrong(struct host *host, uint32_t at, uint64_t value, enum kvd_abi_syndrome syndrome, uint64_t info)
{
	const uint64_t queue = KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_STRIDE;

	if (at == KVD_ABI_BAR0_QUEUE_DEPTH_AT || at == KVD_ABI_BAR0_QUEUE_VECTOR_AT)
		rig_write32(&host->rig, BAR0, queue + at, (uint32_t)value);
	else
		rig_write64(&host->rig, BAR0, queue + at, value);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, syndrome, info);
	assert_int_equal(rig_read32(&host->rig, BAR0, KVD_ABI_BAR0_SYNDROME_QUEUE_AT), 1);
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
}

static void test_wrong_queues(void **state)
{
	struct host *host = *state;

	describe_wrong(host, KVD_ABI_BAR0_QUEUE_DEPTH_AT, 1, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_DEPTH_AT, 6, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_DEPTH_AT, 128, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_VECTOR_AT, 64, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT, HOST_RINGS_IOVA + 64, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT, HOST_RINGS_IOVA + 8, KVD_ABI_SYNDROME_BAD_QUEUE, 1);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT, 0x1000, KVD_ABI_SYNDROME_DMA_FAULT, 0x1000);
	describe_wrong(host, KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT, UINT64_MAX - 4095, KVD_ABI_SYNDROME_DMA_FAULT,
		       UINT64_MAX - 4095);
	/* A queue without entries is not used. */
	rig_write32(&host->rig, BAR0, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_STRIDE + KVD_ABI_BAR0_QUEUE_DEPTH_AT, 0);
	host_enable(host);
	host->doorbells[16] = 5;
	host_work(host);
	assert_int_equal(host_call(host, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE}).status, KVD_ABI_STATUS_OK);
}

static void test_locked_while_enabled(void **state)
{
	struct host *host = *state;

	host_enable(host);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT, 1);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8, 1);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_QUEUE_AT, 1);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT), HOST_TABLES_IOVA);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8), 0);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_QUEUE_AT), HOST_RINGS_IOVA);
	/* Off, they can be written, and on again begins with empty rings. */
	assert_int_equal(host_control(host, 0), KVD_ABI_BAR0_STATUS_RESET);
	host_check(host, true);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8, 1);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8), 1);
}

static void test_quiesce(void **state)
{
	struct host *host = *state;
	struct kvd_abi_cpl cpl;
	uint64_t session;

	host_enable(host);
	session = host_session(host, 5);
	assert_int_equal(host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK | KVD_ABI_BAR0_CONTROL_QUIESCE_MASK),
			 KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK | KVD_ABI_BAR0_STATUS_QUIET_MASK);
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_DESTROY, .session = session});
	host_ring(host, 0);
	host_work(host);
	assert_false(host_take(host, 0, &cpl));
	host_check(host, true); /* the tables are software's */
	assert_int_equal(host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK),
			 KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK);
	host_work(host);
	assert_true(host_take(host, 0, &cpl));
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
}

/* Software that did not give the tables back must not be joined in them. */
static void test_quiesce_not_given_back(void **state)
{
	const struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH, .arena_fd = ((struct host *)*state)->tables_fd};
	struct host *host = *state;
	kvd_engine *engine;

	host_enable(host);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK | KVD_ABI_BAR0_CONTROL_QUIESCE_MASK);
	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, KVD_ABI_SYNDROME_BAD_TABLES, 0);
	/* Nor at the beginning. */
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, KVD_ABI_SYNDROME_BAD_TABLES, 0);
	kvd_engine_fini(engine);
	host_check(host, true);
}

/* Tables that contradict themselves: the command is told, and the card stops. */
static void test_bad_tables(void **state)
{
	struct host *host = *state;
	struct kvd_abi_cpl cpl;

	host_enable(host);
	(void)host_session(host, 5);
	kvd_engine_leave(host->rig.card->engine); /* an engine that does not have the tables refuses as a broken one does */
	for (uint32_t i = 0; i < 3; i++)
		host_put(host, 0, (struct kvd_abi_cmd){.id = i, .op = KVD_ABI_OP_SESSION_CREATE});
	host_ring(host, 0);
	host_work(host);
	assert_true(host_take(host, 0, &cpl));
	assert_int_equal(cpl.id, 0);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_BAD_TABLES);
	assert_false(host_take(host, 0, &cpl));
	assert_int_equal(rig_signals(host->eventfds[0]), 2); /* for the session, and for this */
	host_stopped(host, KVD_ABI_SYNDROME_BAD_TABLES, 1);
}

static void test_masked_vectors(void **state)
{
	const uint64_t bit = 1ull << HOST_VECTOR;
	struct host *host = *state;

	host_enable(host);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_IRQ_MASK_AT, bit);
	(void)host_session(host, 1);
	(void)host_session(host, 2);
	assert_int_equal(rig_signals(host->eventfds[0]), 0);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_IRQ_PENDING_AT), bit);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_IRQ_PENDING_AT, 0); /* is not for writing */
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_IRQ_MASK_AT, ~bit);
	assert_int_equal(rig_signals(host->eventfds[0]), 1);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_IRQ_PENDING_AT), 0);
	(void)host_session(host, 3);
	assert_int_equal(rig_signals(host->eventfds[0]), 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, host_setup, host_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_commands), TEST(test_rounds), TEST(test_full_completion_ring), TEST(test_wrong_doorbells),
		TEST(test_wrong_queues), TEST(test_locked_while_enabled), TEST(test_quiesce), TEST(test_quiesce_not_given_back),
		TEST(test_bad_tables), TEST(test_masked_vectors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
