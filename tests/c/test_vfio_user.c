/* The client of vfio-user with a server that does everything right. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "vfio_server.h"

enum {
	IOVA = 0x100000,
	MEMORY_BYTES = 2 << 20,
	COMMAND_AT = 4, /* of configuration space: PCI_COMMAND */
};

static char why[KVD_VFIO_TEXT_BYTES];

static kvd_vfio *client_of(struct server *server)
{
	kvd_vfio *vfio = NULL;

	server_start(server);
	assert_int_equal(kvd_vfio_open_user(server->path, SERVER_DEADLINE_MS, why, &vfio), 0);
	return vfio;
}

static void finish(struct server *server, kvd_vfio *vfio)
{
	kvd_vfio_close(vfio);
	server_stop(server);
}

/* Shared memory with a file, as a tier's. */
static uint8_t *memory(int *fd)
{
	uint8_t *address;

	*fd = memfd_create("memory", MFD_CLOEXEC);
	assert_int_equal(ftruncate(*fd, MEMORY_BYTES), 0);
	address = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(address, MAP_FAILED);
	return address;
}

static void forget(uint8_t *address, int fd)
{
	munmap(address, MEMORY_BYTES);
	close(fd);
}

static void test_info(void **state)
{
	struct server server = {.regions = 1000, .minor = 1};
	struct kvd_vfio_info info;
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	kvd_vfio_info(vfio, &info);
	assert_int_equal(info.vendor, 0x1d1d);
	assert_int_equal(info.device, 0x1234);
	assert_int_equal(info.class_code, 0x123456);
	assert_string_equal(info.transport, "vfio-user");
	assert_int_equal(info.can_reset, 1);
	assert_int_equal(info.iova_page_bytes, SERVER_PAGE_BYTES);
	assert_int_equal(info.mappings_max, 3);
	assert_int_equal(info.iova_first, 0);
	assert_true(info.iova_last == UINT64_MAX);
	assert_int_equal(info.irqs[KVD_VFIO_IRQ_MSIX], SERVER_VECTORS);
	assert_int_equal(info.irqs[KVD_VFIO_IRQ_INTX], 0);
	assert_int_equal(info.regions[KVD_VFIO_BAR0].bytes, SERVER_BAR0_BYTES);
	assert_int_equal(info.regions[KVD_VFIO_BAR0].mappable, 1);
	assert_int_equal(info.regions[KVD_VFIO_BAR4].mappable, 0);
	assert_int_equal(info.regions[1].bytes, 0);
	assert_false(kvd_vfio_is_gone(vfio));
	assert_true(kvd_vfio_gone_fd(vfio) >= 0);
	assert_int_equal(server.config[COMMAND_AT], 0x06);
	finish(&server, vfio);
	/* It may no longer reach memory. */
	assert_int_equal(server.config[COMMAND_AT], 0x02);
	server_free(&server);
}

/* A server that says nothing has the defaults of the specification. */
static void test_defaults(void **state)
{
	struct server server = {.no_json = true};
	struct kvd_vfio_info info;
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	kvd_vfio_info(vfio, &info);
	assert_int_equal(info.mappings_max, 65535);
	assert_int_equal(info.iova_page_bytes, 4096);
	finish(&server, vfio);
	server_free(&server);
}

static void test_large_pages(void **state)
{
	struct server server = {.json = "{\"capabilities\":{\"pgsizes\":1075904512}}"}; /* 64 KiB, 2 MiB, 1 GiB */
	struct kvd_vfio_info info;
	kvd_vfio *vfio = client_of(&server);

	(void)state;
	kvd_vfio_info(vfio, &info);
	assert_int_equal(info.iova_page_bytes, 64 << 10);
	assert_int_equal(kvd_vfio_dma_map(vfio, (void *)(uintptr_t)(1 << 20), 4096, 0, -1, 0, 1), -EINVAL);
	finish(&server, vfio);
	server_free(&server);
}

/* Access by message: what was written is read, cut where the server takes no more, and never out of the region. */
static void test_access(void **state)
{
	struct server server = {.json = "{\"capabilities\":{\"max_data_xfer_size\":1000000}}"};
	kvd_vfio *vfio = client_of(&server);
	uint8_t *out = malloc(SERVER_BAR4_BYTES), *in = malloc(SERVER_BAR4_BYTES);
	uint32_t calls;

	(void)state;
	for (uint32_t i = 0; i < SERVER_BAR4_BYTES; i++)
		out[i] = (uint8_t)(i * 7 + i / 251);
	calls = server.n_calls;
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR4, 0, out, SERVER_BAR4_BYTES), 0);
	assert_int_equal(server.n_calls - calls, 5);
	assert_int_equal(server.calls[calls].count, 1000000);
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_BAR4, 0, in, SERVER_BAR4_BYTES), 0);
	assert_memory_equal(in, out, SERVER_BAR4_BYTES);
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_BAR4, 5, in, 3), 0);
	assert_memory_equal(in, out + 5, 3);
	calls = server.n_calls;
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_BAR4, SERVER_BAR4_BYTES - 7, in, 8), -EINVAL);
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR4, UINT64_MAX, in, 8), -EINVAL);
	assert_int_equal(kvd_vfio_read(vfio, 1, 0, in, 1), -EINVAL);
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_REGIONS_MAX, 0, in, 1), -EINVAL);
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_BAR4, 0, in, 0), 0);
	assert_int_equal(server.n_calls, calls);
	finish(&server, vfio);
	server_free(&server);
	free(out);
	free(in);
}

static void test_region_map(void **state)
{
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);
	uint32_t value;
	void *bar0, *bar2, *other;

	(void)state;
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 0, SERVER_PAGE_BYTES, &bar0), -EINVAL);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 4096, 8192, &bar0), -EINVAL);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 4097, 8, &bar0), -EINVAL);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 4096, 0, &bar0), -EINVAL);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR4, 0, 4096, &bar0), -EINVAL);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 4096, 4096, &bar0), 0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR2, 0, SERVER_BAR2_BYTES, &bar2), 0);
	/* It is the server's file, at the place that it named. */
	assert_int_equal(kvd_vfio_store32(bar2, 0x12345678), 0);
	assert_int_equal(pread(server.bar2_fd, &value, sizeof(value), SERVER_PAGE_BYTES), sizeof(value));
	assert_int_equal(value, 0x12345678);
	assert_int_equal(kvd_vfio_store32(bar0, 9), 0);
	assert_int_equal(pread(server.bar0_fd, &value, sizeof(value), SERVER_PAGE_BYTES), sizeof(value));
	assert_int_equal(value, 9);
	for (uint32_t i = 2; i < 64; i++)
		assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR2, 0, 4096, &other), 0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR2, 0, 4096, &other), -ENOSPC);
	finish(&server, vfio);
	server_free(&server);
}

static void test_dma_map(void **state)
{
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);
	uint8_t byte = 0, *address;
	int fd;

	(void)state;
	address = memory(&fd);
	address[4096] = 0x5a;
	assert_int_equal(kvd_vfio_dma_map(vfio, address + 4096, 8192, IOVA, fd, 4096, 1), 0);
	assert_int_equal(server.calls[server.n_calls - 1].n_fds, 1);
	assert_int_equal(pread(server.dma_fd, &byte, 1, 4096), 1);
	assert_int_equal(byte, 0x5a);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, IOVA + 4096, fd, 0, 1), -EEXIST);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, IOVA + 100, fd, 0, 1), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4097, 0, fd, 0, 1), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 0, 0, fd, 0, 1), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 8192, -4096ull, fd, 0, 1), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, 0, fd, INT64_MAX & -4096ull, 1), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, -4096ull, fd, 0, 1), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, 0, fd, 0, 0), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, 8192, fd, 0, 1), -ENOSPC);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, 4096), -ENOENT);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA + 4096, 8192), -ENOENT);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, 0), -ENOENT);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, 8192), 0);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, 8192), -ENOENT);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, 8192, fd, 0, 1), 0);
	finish(&server, vfio);
	/* The server was told before the connection went: first that it stops, then of each mapping. */
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(server.calls[server.n_calls - i].command, KVD_VFU_DMA_UNMAP);
	assert_int_equal(server.calls[server.n_calls - 4].command, KVD_VFU_REGION_WRITE);
	server_free(&server);
	forget(address, fd);
}

static void fill_eventfds(int *fds, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

/* Vectors go in runs of one kind, no longer than the server takes descriptors. */
static void test_irqs(void **state)
{
	struct server server = {0};
	kvd_vfio *vfio = client_of(&server);
	uint64_t one = 1, got = 0;
	int fds[SERVER_VECTORS], some[4];
	uint32_t at = server.n_calls;

	(void)state;
	fill_eventfds(fds, SERVER_VECTORS);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 0, SERVER_VECTORS, fds), 0);
	assert_int_equal(server.n_calls - at, 2);
	assert_int_equal(server.calls[at].n_fds, 8);
	assert_int_equal(server.calls[at + 1].irqs.start, 8);
	assert_int_equal(server.calls[at + 1].irqs.count, 4);
	assert_int_equal(write(server.irq_fds[9], &one, sizeof(one)), sizeof(one));
	assert_int_equal(read(fds[9], &got, sizeof(got)), sizeof(got));
	memcpy(some, (int[]){fds[0], -1, -1, fds[1]}, sizeof(some));
	at = server.n_calls;
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 2, 4, some), 0);
	assert_int_equal(server.n_calls - at, 3);
	assert_int_equal(server.calls[at + 1].n_fds, 0);
	assert_int_equal(server.calls[at + 1].irqs.flags, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER);
	assert_int_equal(server.irq_fds[3], -1);
	assert_true(server.irq_fds[5] >= 0);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_INTX, 0, 1, fds), -EINVAL);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 1, SERVER_VECTORS, fds), -EINVAL);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 1, 0, NULL), -EINVAL);
	assert_int_equal(kvd_vfio_irqs(vfio, 5, 0, 0, NULL), -EINVAL);
	/* A reset switches them off, and the device on again. */
	server.config[COMMAND_AT] = 0;
	at = server.n_calls;
	assert_int_equal(kvd_vfio_reset(vfio), 0);
	assert_int_equal(server.calls[at].irqs.flags, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER);
	assert_int_equal(server.calls[at + 1].command, KVD_VFU_DEVICE_RESET);
	assert_int_equal(server.irq_fds[5], -1);
	assert_int_equal(server.config[COMMAND_AT], 0x06);
	finish(&server, vfio);
	server_free(&server);
	for (uint32_t i = 0; i < SERVER_VECTORS; i++)
		close(fds[i]);
}

static void test_no_fds(void **state)
{
	struct server server = {.json = "{\"capabilities\":{\"max_msg_fds\":0}}", .flags_off = VFIO_DEVICE_FLAGS_RESET};
	kvd_vfio *vfio = client_of(&server);
	uint8_t *address;
	int fd;

	(void)state;
	address = memory(&fd);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 0, 1, &fd), -EOPNOTSUPP);
	assert_int_equal(kvd_vfio_dma_map(vfio, address, 4096, IOVA, fd, 4096, 1), 0);
	assert_int_equal(server.calls[server.n_calls - 1].n_fds, 0);
	assert_int_equal(kvd_vfio_reset(vfio), -EOPNOTSUPP);
	finish(&server, vfio);
	server_free(&server);
	forget(address, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_info),       cmocka_unit_test(test_defaults), cmocka_unit_test(test_large_pages),
		cmocka_unit_test(test_access),     cmocka_unit_test(test_dma_map),  cmocka_unit_test(test_irqs),
		cmocka_unit_test(test_region_map), cmocka_unit_test(test_no_fds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
