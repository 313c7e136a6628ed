/* Faults that are asked for: each as it is described, when it is due, once; and the card can be taken back after it. */
#include "card_host.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX
#define AFTER 2 /* commands that are executed before */

static struct host host;

static void begin(enum kvd_card_fault_kind kind, uint64_t after)
{
	struct kvd_card_config config = rig_config;

	config.fault_count = 1;
	config.faults[0] = (struct kvd_card_fault){kind, after};
	host_open(&host, &config);
	host_enable(&host);
}

/* Commands that execute as they should. */
static void good(uint32_t count)
{
	static uint64_t key = 100000;

	for (uint32_t i = 0; i < count; i++)
		(void)host_session(&host, key++);
}

static void put_one(uint32_t id)
{
	host_put(&host, 0, (struct kvd_abi_cmd){.id = id, .op = KVD_ABI_OP_SESSION_CREATE, .key = 2000 + id});
	host_ring(&host, 0);
	host_work(&host);
}

/* A new client has a card that works, on the same tables. */
static void take_back_and_end(void)
{
	host_describe(&host, true);
	host_enable(&host);
	for (uint64_t key = 3000; key < 3008; key++)
		(void)host_session(&host, key);
	assert_int_equal(rig_signals(host.eventfds[0]) > 0, 1);
	host_control(&host, 0);
	host_check(&host, true);
	host_close(&host);
}

static void test_all_ones(void **state)
{
	(void)state;
	begin(KVD_CARD_FAULT_ALL_ONES, AFTER);
	good(AFTER - 1);
	assert_int_equal(rig_read64(&host.rig, BAR0, 0), KVD_ABI_BAR0_MAGIC_RESET);
	good(1);
	assert_int_equal(rig_read64(&host.rig, BAR0, 0), UINT64_MAX);
	assert_int_equal(rig_read32(&host.rig, BAR0, KVD_ABI_BAR0_STATUS_AT), UINT32_MAX);
	assert_int_equal(rig_read32(&host.rig, VFIO_PCI_CONFIG_REGION_INDEX, 0), UINT32_MAX);
	rig_connect(&host.rig);
	rig_hello(&host.rig);
	assert_int_equal(rig_read64(&host.rig, BAR0, 0), KVD_ABI_BAR0_MAGIC_RESET);
	take_back_and_end();
}

static void test_all_ones_from_the_start(void **state)
{
	struct kvd_card_config config = rig_config;
	struct rig *rig = malloc(sizeof(*rig));

	(void)state;
	assert_non_null(rig);
	config.fault_count = 1;
	config.faults[0] = (struct kvd_card_fault){KVD_CARD_FAULT_ALL_ONES, 0};
	rig_open(rig, &config);
	rig_connect(rig);
	rig_hello(rig);
	assert_int_equal(rig_read64(rig, BAR0, 0), UINT64_MAX);
	rig_close(rig);
	free(rig);
}

static void test_unknown_id(void **state)
{
	struct kvd_abi_cpl cpl;

	(void)state;
	begin(KVD_CARD_FAULT_UNKNOWN_ID, AFTER);
	good(AFTER);
	put_one(5);
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, ~5u);
	put_one(6);
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, 6);
	take_back_and_end();
}

static void test_unknown_status(void **state)
{
	struct kvd_abi_cpl cpl;

	(void)state;
	begin(KVD_CARD_FAULT_UNKNOWN_STATUS, AFTER);
	good(AFTER);
	put_one(5);
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, 5);
	assert_true(cpl.status >= KVD_ABI_STATUS_COUNT);
	take_back_and_end();
}

static void test_lying_phase(void **state)
{
	struct kvd_abi_cpl cpl;

	(void)state;
	begin(KVD_CARD_FAULT_LYING_PHASE, AFTER);
	good(AFTER);
	put_one(5);
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, 5);
	/* One command was sent, and two completions are there. */
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, 0);
	host_work(&host);
	host_stopped(&host, KVD_ABI_SYNDROME_BAD_DOORBELL, AFTER + 2); /* who believes it is told */
	take_back_and_end();
}

static void test_never_completes(void **state)
{
	struct kvd_abi_cpl cpl;

	(void)state;
	begin(KVD_CARD_FAULT_NEVER_COMPLETES, AFTER);
	good(AFTER);
	put_one(5);
	put_one(6);
	assert_false(host_take(&host, 0, &cpl));
	assert_int_equal(rig_read64(&host.rig, BAR0, KVD_ABI_BAR0_COMMANDS_AT), AFTER);
	/* It hangs, but it can be reset. */
	host_control(&host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_check(&host, true);
	host_describe(&host, false);
	host_enable(&host);
	put_one(7);
	assert_true(host_take(&host, 0, &cpl));
	assert_int_equal(cpl.id, 7);
	take_back_and_end();
}

static void test_no_interrupt(void **state)
{
	(void)state;
	begin(KVD_CARD_FAULT_NO_INTERRUPT, AFTER);
	good(AFTER);
	assert_int_equal(rig_signals(host.eventfds[0]), AFTER);
	good(AFTER);
	assert_int_equal(rig_signals(host.eventfds[0]), 0);
	/* The card believes that it did. */
	assert_int_equal(rig_read64(&host.rig, BAR0, KVD_ABI_BAR0_INTERRUPTS_AT), 2 * AFTER);
	take_back_and_end();
}

static sigjmp_buf bus_error;

static void on_bus_error(int number)
{
	(void)number;
	siglongjmp(bus_error, 1);
}

/* Is memory dead? */
static bool raises(volatile uint32_t *at)
{
	struct sigaction action = {.sa_handler = on_bus_error}, old;
	volatile bool raised = false;

	assert_int_equal(sigaction(SIGBUS, &action, &old), 0);
	if (sigsetjmp(bus_error, 1))
		raised = true;
	else
		(void)*at;
	assert_int_equal(sigaction(SIGBUS, &old, NULL), 0);
	return raised;
}

static void test_dead_bar(void **state)
{
	int fd;
	uint32_t *ddr;

	(void)state;
	RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT();
	begin(KVD_CARD_FAULT_DEAD_BAR, AFTER);
	fd = rig_region_fd(&host.rig, VFIO_PCI_BAR4_REGION_INDEX);
	ddr = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(ddr, MAP_FAILED);
	close(fd);
	good(AFTER);
	assert_false(raises(host.doorbells));
	/* The next one that is rung for is not executed: the card is gone. */
	host_put(&host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE});
	host_ring(&host, 0);
	host_work(&host);
	assert_true(raises(host.doorbells));
	assert_true(raises(ddr));
	assert_int_equal(host.rig.card->taken, AFTER);
	/* By messages it reads as what is not there. */
	assert_int_equal(rig_read32(&host.rig, VFIO_PCI_BAR2_REGION_INDEX, 0), UINT32_MAX);
	assert_int_equal(rig_read32(&host.rig, VFIO_PCI_BAR4_REGION_INDEX, 64), UINT32_MAX);
	rig_write32(&host.rig, VFIO_PCI_BAR4_REGION_INDEX, 64, 1);
	assert_int_equal(rig_call(&host.rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	munmap(ddr, 4096);
	take_back_and_end();
}

static void test_remove(void **state)
{
	int request = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct kvd_card_config config = rig_config;

	(void)state;
	config.fault_count = 1;
	config.faults[0] = (struct kvd_card_fault){KVD_CARD_FAULT_REMOVE, AFTER};
	config.grace_ms = 3600000;
	host_open(&host, &config);
	host_enable(&host);
	assert_int_equal(rig_irqs(&host.rig, VFIO_PCI_REQ_IRQ_INDEX,
				  VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 1, NULL, 0, &request, 1), 0);
	good(AFTER);
	assert_int_equal(kvd_card_wait_ms(host.rig.card), -1);
	good(1);
	assert_int_equal(rig_signals(request), 1);
	/* In the grace time it works on. */
	good(1);
	assert_in_range(kvd_card_wait_ms(host.rig.card), 1, 3600000);
	assert_false(rig_hung_up(&host.rig));
	/* The time is over. */
	host.rig.card->remove_at_ms = 1;
	assert_int_equal(kvd_card_wait_ms(host.rig.card), 0);
	assert_true(rig_hung_up(&host.rig));
	host_check(&host, true);
	close(request);
	take_back_and_end();
}

static void test_reset_in_a_batch(void **state)
{
	struct kvd_abi_cpl cpl;

	(void)state;
	begin(KVD_CARD_FAULT_RESET, AFTER + 2);
	good(AFTER);
	for (uint32_t i = 0; i < 5; i++)
		host_put(&host, 0, (struct kvd_abi_cmd){.id = i, .op = KVD_ABI_OP_SESSION_CREATE, .key = 2000 + i});
	host_ring(&host, 0);
	host_work(&host);
	for (uint32_t i = 0; i < 2; i++) {
		assert_true(host_take(&host, 0, &cpl));
		assert_int_equal(cpl.id, i);
	}
	assert_false(host_take(&host, 0, &cpl));
	assert_int_equal(rig_read32(&host.rig, BAR0, KVD_ABI_BAR0_STATUS_AT), KVD_ABI_BAR0_STATUS_RESET);
	assert_int_equal(rig_read64(&host.rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT), 0);
	host_check(&host, true);
	take_back_and_end();
}

/* Several, each at its time. */
static void test_several(void **state)
{
	struct kvd_card_config config = rig_config;
	struct kvd_abi_cpl cpl;

	(void)state;
	config.fault_count = 3;
	config.faults[0] = (struct kvd_card_fault){KVD_CARD_FAULT_UNKNOWN_ID, 3};
	config.faults[1] = (struct kvd_card_fault){KVD_CARD_FAULT_UNKNOWN_STATUS, 1};
	config.faults[2] = (struct kvd_card_fault){KVD_CARD_FAULT_UNKNOWN_STATUS, 3};
	host_open(&host, &config);
	host_enable(&host);
	for (uint32_t i = 0; i < 6; i++) {
		put_one(i);
		assert_true(host_take(&host, 0, &cpl));
		assert_int_equal(cpl.id, i == 3 ? ~i : i);
		assert_int_equal(cpl.status == KVD_ABI_STATUS_OK, i != 1 && i != 3);
	}
	take_back_and_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_ones), cmocka_unit_test(test_all_ones_from_the_start),
		cmocka_unit_test(test_unknown_id), cmocka_unit_test(test_unknown_status), cmocka_unit_test(test_lying_phase),
		cmocka_unit_test(test_never_completes), cmocka_unit_test(test_no_interrupt), cmocka_unit_test(test_dead_bar),
		cmocka_unit_test(test_remove), cmocka_unit_test(test_reset_in_a_batch), cmocka_unit_test(test_several),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
