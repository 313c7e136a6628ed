/* A server that answers wrong, late or never, at each point: a named error in time, and then the handle is gone. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "vfio_server.h"

enum { IOVA = 0x100000 };

static char why[KVD_VFIO_TEXT_BYTES];
static _Alignas(SERVER_PAGE_BYTES) uint8_t memory[SERVER_PAGE_BYTES];

/* The answers that have no payload, or one whose length is free. */
static bool is_harmless(uint16_t command, enum server_fault fault)
{
	bool empty = command == KVD_VFU_DMA_MAP || command == KVD_VFU_DEVICE_SET_IRQS ||
		     command == KVD_VFU_DEVICE_RESET;
	bool early_hang_up = command == KVD_VFU_DEVICE_RESET && fault == FAULT_HANG_UP_EARLY;

	return !fault || fault >= FAULT_STRAY_FDS || ((fault == FAULT_SHORT || fault == FAULT_EMPTY) && empty &&
						      !early_hang_up);
}

static int expected(uint16_t command, enum server_fault fault)
{
	if (is_harmless(command, fault))
		return 0;
	switch (fault) {
	case FAULT_SILENCE:
	case FAULT_TRICKLE:
	case FAULT_FLOOD:
		return -ETIMEDOUT;
	case FAULT_ERROR:
		return -EEXIST;
	case FAULT_ERROR_ZERO:
	case FAULT_ERROR_WILD:
		return -EIO;
	case FAULT_SHORT:
		/* JSON without its end; a capability without its. */
		return command == KVD_VFU_VERSION || command == KVD_VFU_DEVICE_GET_REGION_INFO ? -EPROTO : -ENODEV;
	default:
		return -ENODEV;
	}
}

/* Everything that a client does, once; the first error. */
static int session(kvd_vfio *vfio, int memory_fd)
{
	int eventfd_of = eventfd(0, EFD_CLOEXEC);
	uint64_t value = 0;
	int err = kvd_vfio_read(vfio, KVD_VFIO_BAR4, 8, &value, sizeof(value));

	if (!err)
		err = kvd_vfio_write(vfio, KVD_VFIO_BAR4, 8, &value, sizeof(value));
	if (!err)
		err = kvd_vfio_dma_map(vfio, memory, sizeof(memory), IOVA, memory_fd, 0, 1);
	if (!err)
		err = kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 0, 1, &eventfd_of);
	if (!err)
		err = kvd_vfio_dma_unmap(vfio, IOVA, sizeof(memory));
	if (!err)
		err = kvd_vfio_reset(vfio);
	close(eventfd_of);
	return err;
}

static bool is_opening(uint16_t command)
{
	return command == KVD_VFU_VERSION || command == KVD_VFU_DEVICE_GET_INFO ||
	       command == KVD_VFU_DEVICE_GET_REGION_INFO || command == KVD_VFU_DEVICE_GET_IRQ_INFO;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void check_gone(kvd_vfio *vfio, int err)
{
	bool gone = err == -ENODEV || err == -ETIMEDOUT;
	uint32_t value;

	assert_int_equal(kvd_vfio_is_gone(vfio), gone);
	if (!gone)
		return;
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_CONFIG, 0, &value, sizeof(value)), -ENODEV);
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_CONFIG, 0, &value, sizeof(value)), -ENODEV);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, sizeof(memory), IOVA, -1, 0, 1), -ENODEV);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, sizeof(memory)), -ENODEV);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 0, 0, NULL), -ENODEV);
	assert_int_equal(kvd_vfio_reset(vfio), -ENODEV);
	assert_true(kvd_vfio_is_gone(vfio));
}

static void one(uint16_t command, enum server_fault fault, int memory_fd)
{
	bool late = expected(command, fault) == -ETIMEDOUT;
	struct server server = {
		.fault_command = command,
		.fault = fault,
		/* Identity and command register are read before. */
		.fault_after = command == KVD_VFU_REGION_READ ? 4 : command == KVD_VFU_REGION_WRITE ? 1 : 0,
	};
	kvd_vfio *vfio = NULL;
	double start = seconds();
	int err;

	server_start(&server);
	err = kvd_vfio_open_user(server.path, late ? SERVER_IMPATIENT_MS : SERVER_DEADLINE_MS, why, &vfio);
	if (is_opening(command) || err) {
		assert_int_equal(err, expected(command, fault));
		assert_true(!err || strlen(why) > 40);
	}
	if (vfio) {
		err = session(vfio, memory_fd);
		assert_int_equal(err, is_opening(command) ? 0 : expected(command, fault));
		check_gone(vfio, err);
	}
	assert_true(seconds() - start < SERVER_DEADLINE_MS / 2000.0);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
}

static void test_matrix(void **state)
{
	static const uint16_t commands[] = {
		KVD_VFU_VERSION, KVD_VFU_DEVICE_GET_INFO, KVD_VFU_DEVICE_GET_REGION_INFO, KVD_VFU_DEVICE_GET_IRQ_INFO,
		KVD_VFU_REGION_READ, KVD_VFU_REGION_WRITE, KVD_VFU_DMA_MAP, KVD_VFU_DMA_UNMAP, KVD_VFU_DEVICE_SET_IRQS,
		KVD_VFU_DEVICE_RESET,
	};
	int memory_fd = memfd_create("memory", MFD_CLOEXEC);
	uint32_t fds = server_open_fds();

	(void)state;
	for (uint32_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		for (enum server_fault fault = FAULT_NONE; fault < FAULT_COUNT; fault++) {
			print_message("command %u, fault %d\n", commands[i], fault);
			one(commands[i], fault, memory_fd);
			/* Descriptors that came are closed, whatever happened. */
			assert_int_equal(server_open_fds(), fds);
		}
	}
	close(memory_fd);
}

/* An error reply leaves the device as it was. */
static void test_error_goes_on(void **state)
{
	struct server server = {.fault = FAULT_ERROR, .fault_command = KVD_VFU_DMA_MAP};
	kvd_vfio *vfio = NULL;

	(void)state;
	server_start(&server);
	assert_int_equal(kvd_vfio_open_user(server.path, SERVER_DEADLINE_MS, why, &vfio), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, sizeof(memory), IOVA, -1, 0, 1), -EEXIST);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, sizeof(memory), IOVA, -1, 0, 1), 0);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
}

/* A deadline that was set later counts. */
static void test_other_deadline(void **state)
{
	struct server server = {.fault = FAULT_SILENCE, .fault_command = KVD_VFU_DMA_MAP};
	kvd_vfio *vfio = NULL;
	double start = seconds();

	(void)state;
	server_start(&server);
	assert_int_equal(kvd_vfio_open_user(server.path, SERVER_DEADLINE_MS, why, &vfio), 0);
	kvd_vfio_deadline(vfio, SERVER_IMPATIENT_MS);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, sizeof(memory), IOVA, -1, 0, 1), -ETIMEDOUT);
	assert_true(seconds() - start < SERVER_DEADLINE_MS / 2000.0);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
}

static void test_nobody(void **state)
{
	char path[200];
	kvd_vfio *vfio = NULL;

	(void)state;
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(kvd_vfio_open_user(path, SERVER_DEADLINE_MS, why, &vfio), -ENAMETOOLONG);
	assert_int_equal(kvd_vfio_open_user("/tmp/kvd-vfio-nobody", SERVER_DEADLINE_MS, why, &vfio), -ENOENT);
	assert_non_null(strstr(why, "/tmp/kvd-vfio-nobody"));
}

/* Somebody listens and takes nobody: connect(2) too has an end. */
static void test_full_queue(void **state)
{
	struct server busy = {0};
	kvd_vfio *first = NULL, *vfio = NULL;
	int err = 0;

	(void)state;
	server_start(&busy);
	assert_int_equal(kvd_vfio_open_user(busy.path, SERVER_DEADLINE_MS, why, &first), 0);
	/* The queue holds a few that are never answered, then no more. */
	for (uint32_t i = 0; i < 4; i++) {
		err = kvd_vfio_open_user(busy.path, SERVER_IMPATIENT_MS, why, &vfio);
		assert_int_equal(err, -ETIMEDOUT);
	}
	kvd_vfio_close(first);
	server_stop(&busy);
	server_free(&busy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_matrix), cmocka_unit_test(test_error_goes_on), cmocka_unit_test(test_nobody),
		cmocka_unit_test(test_full_queue), cmocka_unit_test(test_other_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
