/* What a server asks of the client: DMA by message, and what nobody knows. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vfio_server.h"

enum {
	IOVA = 0x100000,
	MEMORY_BYTES = 1 << 20,
	NEIGHBOUR_BYTES = 4096,
};

static char why[KVD_VFIO_TEXT_BYTES];
static _Alignas(SERVER_PAGE_BYTES) uint8_t memory[MEMORY_BYTES + NEIGHBOUR_BYTES];

/* A client with memory, and a neighbour that the device may only read. */
static kvd_vfio *client_of(struct server *server)
{
	kvd_vfio *vfio = NULL;

	server_start(server);
	assert_int_equal(kvd_vfio_open_user(server->path, SERVER_DEADLINE_MS, why, &vfio), 0);
	for (uint32_t i = 0; i < sizeof(memory); i++)
		memory[i] = (uint8_t)(i % 251);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, MEMORY_BYTES, IOVA, -1, 0, 1), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory + MEMORY_BYTES, NEIGHBOUR_BYTES, IOVA + MEMORY_BYTES, -1, 0, 0),
			 0);
	return vfio;
}

/* Let the server ask, in the midst of a write to BAR0; what it was answered is in the server. */
static void let_ask(struct server *server, kvd_vfio *vfio, uint64_t what, uint64_t iova, uint64_t bytes)
{
	server->ask_iova = iova;
	server->ask_bytes = bytes;
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR0, what, "12345678", 8), 0);
}

static void expect_refusal(struct server *server, int error)
{
	assert_int_equal(server->asked_flags, KVD_VFU_TYPE_REPLY | KVD_VFU_ERROR);
	assert_int_equal(server->asked_error, error);
	assert_int_equal(server->asked_bytes, 0);
}

static void finish(struct server *server, kvd_vfio *vfio)
{
	assert_false(kvd_vfio_is_gone(vfio));
	kvd_vfio_close(vfio);
	server_stop(server);
	server_free(server);
}

static void test_read(void **state)
{
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	let_ask(&server, vfio, SERVER_ASK_READ, IOVA + 1, 1000);
	assert_int_equal(server.asked_flags, KVD_VFU_TYPE_REPLY);
	assert_int_equal(server.asked_bytes, sizeof(struct kvd_vfu_dma_access) + 1000);
	assert_memory_equal(server.asked + sizeof(struct kvd_vfu_dma_access), memory + 1, 1000);
	/* Over the edge between two mappings. */
	let_ask(&server, vfio, SERVER_ASK_READ, IOVA + MEMORY_BYTES - 5, 10);
	assert_memory_equal(server.asked + sizeof(struct kvd_vfu_dma_access), memory + MEMORY_BYTES - 5, 10);
	/* As much as we said that we take. */
	let_ask(&server, vfio, SERVER_ASK_READ, IOVA, 1 << 20);
	assert_memory_equal(server.asked + sizeof(struct kvd_vfu_dma_access), memory, 1 << 20);
	finish(&server, vfio);
}

static void test_read_refused(void **state)
{
	static const struct {
		uint64_t iova, bytes;
		int error;
	} bad[] = {
		{IOVA - 1, 2, EFAULT},
		{IOVA + MEMORY_BYTES + NEIGHBOUR_BYTES - 1, 2, EFAULT},
		{IOVA, (1 << 20) + 1, EINVAL},
		{IOVA, UINT64_MAX, EINVAL},
		{UINT64_MAX, 2, EFAULT},
		{0, 1, EFAULT},
		{UINT64_MAX - (1 << 20) + 1, 1 << 20, EFAULT},
	};
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		let_ask(&server, vfio, SERVER_ASK_READ, bad[i].iova, bad[i].bytes);
		expect_refusal(&server, bad[i].error);
	}
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, MEMORY_BYTES), 0);
	let_ask(&server, vfio, SERVER_ASK_READ, IOVA, 8);
	expect_refusal(&server, EFAULT);
	finish(&server, vfio);
}

static void test_write(void **state)
{
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	let_ask(&server, vfio, SERVER_ASK_WRITE, IOVA + 3, 500);
	assert_int_equal(server.asked_flags, KVD_VFU_TYPE_REPLY);
	assert_int_equal(server.asked_bytes, sizeof(struct kvd_vfu_dma_access));
	assert_int_equal(memory[2], 2);
	assert_int_equal(memory[3], 0xab);
	assert_int_equal(memory[502], 0xab);
	assert_int_equal(memory[503], 503 % 251);
	/* Half of it may not be written: nothing is. */
	let_ask(&server, vfio, SERVER_ASK_WRITE, IOVA + MEMORY_BYTES - 2, 4);
	expect_refusal(&server, EFAULT);
	assert_int_equal(memory[MEMORY_BYTES - 1], (MEMORY_BYTES - 1) % 251);
	/* It says more than it brings. */
	let_ask(&server, vfio, SERVER_ASK_SHORT, IOVA, 100);
	expect_refusal(&server, EINVAL);
	assert_int_equal(memory[0], 0);
	let_ask(&server, vfio, SERVER_ASK_SILENT, IOVA, 1);
	assert_int_equal(memory[0], 0xab);
	let_ask(&server, vfio, SERVER_ASK_NONSENSE, IOVA, 1);
	expect_refusal(&server, ENOTSUP);
	finish(&server, vfio);
}

/* Both send more than the sockets hold, at once: neither waits for the other. */
static void test_crossing(void **state)
{
	struct server server = {.ask_iova = IOVA, .ask_bytes = 1 << 20};
	kvd_vfio *vfio = client_of(&server);
	uint8_t *bytes = malloc(1 << 20);

	(void)state;
	memset(bytes, 0x77, 1 << 20);
	atomic_store(&server.cross, true);
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR4, 0, bytes, 1 << 20), 0);
	atomic_store(&server.cross, false);
	assert_memory_equal(server.bar4, bytes, 1 << 20);
	memset(bytes, 0xab, 1 << 20);
	assert_memory_equal(memory, bytes, 1 << 20);
	finish(&server, vfio);
	free(bytes);
}

/* A request that comes while the client asks nothing is answered when somebody looks. */
static void test_look(void **state)
{
	struct kvd_vfu_header header = {.id = 5, .command = KVD_VFU_DMA_WRITE, .bytes = sizeof(header) + 16 + 4};
	struct {
		struct kvd_vfu_dma_access access;
		uint8_t data[4];
	} write_4 = {{IOVA, 4}, {1, 2, 3, 4}};
	struct kvd_vfu_header unasked = {.id = 1, .flags = KVD_VFU_TYPE_REPLY, .bytes = sizeof(unasked)};
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);
	struct pollfd poll_fd = {.fd = kvd_vfio_gone_fd(vfio), .events = POLLIN};

	(void)state;
	header.flags = KVD_VFU_NO_REPLY;
	assert_true(server_send(&server, &header, &write_4, 16 + 4, NULL, 0));
	assert_int_equal(poll(&poll_fd, 1, SERVER_DEADLINE_MS), 1);
	assert_false(kvd_vfio_is_gone(vfio));
	assert_memory_equal(memory, write_4.data, 4);
	assert_int_equal(poll(&poll_fd, 1, 0), 0);
	/* But an answer to nothing ends it. */
	assert_true(server_send(&server, &unasked, NULL, 0, NULL, 0));
	assert_int_equal(poll(&poll_fd, 1, SERVER_DEADLINE_MS), 1);
	assert_true(kvd_vfio_is_gone(vfio));
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_CONFIG, 0, memory, 1), -ENODEV);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),     cmocka_unit_test(test_read_refused), cmocka_unit_test(test_write),
		cmocka_unit_test(test_crossing), cmocka_unit_test(test_look),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
