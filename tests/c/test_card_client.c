/* The program kvd-card and the client that kvd has, both whole: what works, and what is left when the program dies. */
#include "card_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STARTED (KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK)

enum {
	AFTER = 5, /* commands that are executed before a fault */
	PAGES = 100,
};

static const char *program;

static struct kvd_abi_cpl create(struct client *client, uint64_t key)
{
	return client_call(client, &(struct kvd_abi_cmd){.id = 9, .op = KVD_ABI_OP_SESSION_CREATE, .key = key});
}

/* Map pages of a session; the completion is not waited for. */
static void put_map(struct client *client, uint64_t session)
{
	struct kvd_abi_map_run *run = (void *)(client->rings + CLIENT_BUFFER_AT);

	*run = (struct kvd_abi_map_run){.count = PAGES, .blocks = 16};
	client_put(client, &(struct kvd_abi_cmd){
		.id = 77, .op = KVD_ABI_OP_MAP, .session = session, .tier = KVD_ABI_TIER_DDR, .count = 1,
		.buffer = CLIENT_RINGS_IOVA + CLIENT_BUFFER_AT, .buffer_bytes = sizeof(*run),
	});
	client_ring(client);
}

static void wait_event(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	uint64_t count;

	assert_int_equal(poll(&poll_fd, 1, CLIENT_DEADLINE_MS), 1);
	assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
}

static void test_whole_way(void **state)
{
	struct kvd_vfio_info info;
	struct client client;
	struct kvd_abi_cpl cpl;
	uint64_t session;

	(void)state;
	client_start(&client, program, (const char *const[]){"--card-ddr", "2M", "--spin", "0", NULL});
	for (int round = 0; round < 2; round++) {
		client_open(&client);
		kvd_vfio_info(client.vfio, &info);
		assert_int_equal(info.vendor, KVD_ABI_PCI_VENDOR_ID_RESET);
		assert_int_equal(info.device, KVD_ABI_PCI_DEVICE_ID_RESET);
		assert_int_equal(info.irqs[KVD_VFIO_IRQ_MSIX], 64);
		assert_int_equal(info.regions[KVD_VFIO_BAR4].bytes, 2 << 20);
		assert_true(info.regions[KVD_VFIO_BAR2].mappable && info.regions[KVD_VFIO_BAR4].mappable);
		assert_false(info.regions[KVD_VFIO_BAR0].mappable);
		assert_int_equal(client_read64(&client, 0), KVD_ABI_BAR0_MAGIC_RESET);
		assert_int_equal(client_enable(&client), STARTED);
		/* The interrupt comes after the completion, and the second client finds what the first one made. */
		cpl = create(&client, 5);
		wait_event(client.eventfd);
		assert_int_equal(cpl.status, round ? KVD_ABI_STATUS_EXISTS : KVD_ABI_STATUS_OK);
		session = cpl.result0;
		put_map(&client, session);
		assert_true(client_take(&client, &cpl, CLIENT_DEADLINE_MS));
		assert_int_equal(cpl.status, round ? KVD_ABI_STATUS_ALREADY_MAPPED : KVD_ABI_STATUS_OK);
		/* A reset, and on. */
		assert_int_equal(kvd_vfio_reset(client.vfio), 0);
		assert_int_equal(client_read32(&client, KVD_ABI_BAR0_STATUS_AT), KVD_ABI_BAR0_STATUS_RESET);
		client_describe(&client);
		assert_int_equal(client_enable(&client), STARTED);
		assert_int_equal(create(&client, 5).result0, session);
		client_close(&client);
	}
	assert_int_equal(client_stop(&client), 0);
	client_end(&client);
}

/* More vectors than descriptors go into one message. */
static void test_all_vectors(void **state)
{
	struct client client;
	int fds[64];

	(void)state;
	client_start(&client, program, (const char *const[]){NULL});
	client_open(&client);
	for (int i = 0; i < 64; i++) {
		fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		assert_true(fds[i] >= 0);
	}
	assert_int_equal(kvd_vfio_irqs(client.vfio, KVD_VFIO_IRQ_MSIX, 0, 64, fds), 0);
	client_write32(&client, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_VECTOR_AT, 63);
	assert_int_equal(client_enable(&client), STARTED);
	(void)create(&client, 1);
	wait_event(fds[63]);
	for (int i = 0; i < 64; i++)
		close(fds[i]);
	client_close(&client);
	assert_int_equal(client_stop(&client), 0);
	client_end(&client);
}

/* The tables that a dead program leaves: recover, check, and say whether the command in hand was executed. */
static bool recover(struct client *client, uint64_t sequence, struct kvd_abi_cpl *cpl)
{
	const struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH, .arena_fd = client->tables_fd};
	struct kvd_engine_recovery result = {0};
	char text[1024];
	kvd_engine *engine;
	bool executed;

	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	assert_true(kvd_engine_dirty(engine));
	assert_int_equal(kvd_engine_recover(engine, &result), 0);
	assert_int_equal(result.losses_count, 0);
	if (kvd_engine_check(engine, text, sizeof(text)))
		fail_msg("%s", text);
	executed = kvd_engine_sequence(engine) >= sequence;
	assert_int_equal(kvd_engine_completion(engine, sequence, cpl), executed ? 0 : -ENOENT);
	kvd_engine_fini(engine);
	return executed;
}

/* SIGKILL at the sixth command, which is MAP: the driver notices, and the journal tells what was done. */
static void dies(const char *fault, bool executed)
{
	struct client client;
	struct kvd_abi_cpl cpl;
	uint64_t session = 0;

	client_start(&client, program, (const char *const[]){"--fault", fault, NULL});
	client_open(&client);
	assert_int_equal(client_enable(&client), STARTED);
	for (uint64_t i = 0; i < AFTER; i++)
		session = create(&client, i).result0;
	put_map(&client, session);
	assert_int_equal(client_died(&client), SIGKILL);
	assert_false(client_take(&client, &cpl, 0));
	assert_int_equal(kvd_vfio_is_gone(client.vfio), 1);
	assert_int_equal(recover(&client, AFTER + 1, &cpl), executed);
	if (executed) {
		assert_int_equal(cpl.id, 77);
		assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	}
	client_close(&client);
	client_end(&client);
}

static void test_dies_before(void **state)
{
	(void)state;
	dies("die=5", false);
}

/* The first store behind the head is done and no other: far from the point where the command counts. */
static void test_dies_within(void **state)
{
	(void)state;
	dies("die-within=5", false);
}

static void test_dies_after(void **state)
{
	(void)state;
	dies("die-after=5", true);
}

/* The driver is asked to go, does not, and is thrown out; the next one has the card. */
static void test_removed(void **state)
{
	int request = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct client client;
	struct pollfd gone;

	(void)state;
	client_start(&client, program, (const char *const[]){"--fault", "remove=5", "--grace", "10", NULL});
	client_open(&client);
	assert_int_equal(kvd_vfio_irqs(client.vfio, KVD_VFIO_IRQ_REQUEST, 0, 1, &request), 0);
	assert_int_equal(client_enable(&client), STARTED);
	for (uint64_t i = 0; i <= AFTER; i++)
		assert_int_equal(create(&client, i).status, KVD_ABI_STATUS_OK);
	wait_event(request);
	gone = (struct pollfd){.fd = kvd_vfio_gone_fd(client.vfio), .events = POLLIN};
	assert_int_equal(poll(&gone, 1, CLIENT_DEADLINE_MS), 1);
	assert_int_equal(kvd_vfio_is_gone(client.vfio), 1);
	client_close(&client);
	close(request);
	client_open(&client);
	assert_int_equal(client_enable(&client), STARTED);
	assert_int_equal(create(&client, 0).status, KVD_ABI_STATUS_EXISTS);
	client_close(&client);
	assert_int_equal(client_stop(&client), 0);
	client_end(&client);
}

static void test_dead_bar(void **state)
{
	struct client client;
	uint32_t value;

	(void)state;
	client_start(&client, program, (const char *const[]){"--fault", "dead-bar=5", NULL});
	client_open(&client);
	assert_int_equal(client_enable(&client), STARTED);
	for (uint64_t i = 0; i < AFTER; i++)
		assert_int_equal(create(&client, i).status, KVD_ABI_STATUS_OK);
	(void)client_read32(&client, 0); /* the card looks at its faults before it answers */
	assert_int_equal(kvd_vfio_load32((const void *)(uintptr_t)client.doorbells, &value), -ENODEV);
	client_close(&client);
	client_open(&client);
	assert_int_equal(client_enable(&client), KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK);
	assert_int_equal(create(&client, 0).status, KVD_ABI_STATUS_EXISTS);
	client_close(&client);
	assert_int_equal(client_stop(&client), 0);
	client_end(&client);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_way), cmocka_unit_test(test_all_vectors),
		cmocka_unit_test(test_dies_before), cmocka_unit_test(test_dies_within),
		cmocka_unit_test(test_dies_after), cmocka_unit_test(test_removed), cmocka_unit_test(test_dead_bar),
	};

	if (argc != 2)
		return 2;
	program = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
