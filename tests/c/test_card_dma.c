/* What the client lets the card reach, and how it takes that away. */
#include "card_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE 4096ull
#define R KVD_VFU_DMA_F_READ
#define W KVD_VFU_DMA_F_WRITE
#define MODE_MMAP 4u
#define MODE_FILE 8u

static void test_contiguous(void **state)
{
	struct rig *rig = *state;
	int a = rig_file(4 * PAGE), b = rig_file(4 * PAGE);
	uint8_t *at;

	rig_bus_master(rig, true);
	/* Two files, side by side for the client, are side by side for the card; the second begins at its second page. */
	assert_int_equal(rig_map(rig, 0x10000, 2 * PAGE, R | W, a, 0), 0);
	assert_int_equal(rig_map(rig, 0x10000 + 2 * PAGE, 3 * PAGE, R | W | MODE_MMAP, b, PAGE), 0);
	at = kvd_card_dma(rig->card, 0x10000 + PAGE, 3 * PAGE, true);
	assert_non_null(at);
	memset(at, 0x5a, 3 * PAGE);
	for (uint64_t i = 0; i < 4 * PAGE; i += PAGE) {
		uint8_t byte;

		assert_int_equal(pread(a, &byte, 1, (off_t)i), 1);
		assert_int_equal(byte, i == PAGE ? 0x5a : 0);
		assert_int_equal(pread(b, &byte, 1, (off_t)i), 1);
		assert_int_equal(byte, i == PAGE || i == 2 * PAGE ? 0x5a : 0);
	}
	assert_non_null(kvd_card_dma(rig->card, 0x10000, 5 * PAGE, false));
	assert_null(kvd_card_dma(rig->card, 0x10000, 5 * PAGE + 1, false));
	assert_null(kvd_card_dma(rig->card, 0x10000 - 1, 1, false));
	assert_null(kvd_card_dma(rig->card, 0x10000, 0, false));
	assert_null(kvd_card_dma(rig->card, UINT64_MAX - 1, 4, false));
	assert_null(kvd_card_dma(rig->card, 0x10000, UINT64_MAX, false));
	close(a);
	close(b);
}

static void test_permissions(void **state)
{
	struct rig *rig = *state;
	int fd = rig_file(4 * PAGE);
	char path[64];
	int reader;

	rig_bus_master(rig, true);
	assert_int_equal(rig_map(rig, 0, PAGE, R, fd, 0), 0);
	assert_int_equal(rig_map(rig, PAGE, PAGE, W, fd, 0), 0);
	assert_non_null(kvd_card_dma(rig->card, 0, PAGE, false));
	assert_null(kvd_card_dma(rig->card, 0, PAGE, true));
	assert_null(kvd_card_dma(rig->card, PAGE, PAGE, false));
	assert_non_null(kvd_card_dma(rig->card, PAGE, PAGE, true));
	assert_null(kvd_card_dma(rig->card, 0, 2 * PAGE, false));
	/* Without bus mastering a device reaches nothing. */
	rig_bus_master(rig, false);
	assert_null(kvd_card_dma(rig->card, 0, PAGE, false));
	/* A descriptor for reading is no way to write. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reader = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(reader >= 0);
	assert_int_equal(rig_map(rig, 4 * PAGE, PAGE, R | W, reader, 0), -EACCES);
	assert_int_equal(rig_map(rig, 4 * PAGE, PAGE, R, reader, 0), 0);
	close(reader);
	close(fd);
}

static void test_map_refused(void **state)
{
	struct rig *rig = *state;
	const uint64_t window = rig->card->dma.window_bytes;
	int fd = rig_file(4 * PAGE), pipes[2];
	struct kvd_vfu_dma_map short_args = {sizeof(short_args) - 1, R, 0, 0, PAGE};

	assert_int_equal(rig_map(rig, 0, 0, R, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE - 1, R, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 1, PAGE, R, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R, fd, 1), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, 0, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R | 16, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R | MODE_MMAP, -1, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R | MODE_FILE, -1, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R | MODE_FILE, fd, 0), -ENOTSUP);
	assert_int_equal(rig_call_fds(rig, KVD_VFU_DMA_MAP, &short_args, sizeof(short_args), &fd, 1), -EINVAL);
	/* Behind the file's end, and numbers that overflow. */
	assert_int_equal(rig_map(rig, 0, 5 * PAGE, R, fd, 0), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R, fd, 4 * PAGE), -EINVAL);
	assert_int_equal(rig_map(rig, 0, PAGE, R, fd, UINT64_MAX - PAGE + 1), -EINVAL);
	assert_int_equal(rig_map(rig, 0, UINT64_MAX - PAGE + 1, R, fd, 0), -ERANGE);
	assert_int_equal(rig_map(rig, UINT64_MAX - PAGE + 1, PAGE, R, fd, 0), -ERANGE);
	/* Above the window, with and without a descriptor. */
	assert_int_equal(rig_map(rig, window, PAGE, R, fd, 0), -ERANGE);
	assert_int_equal(rig_map(rig, window - PAGE, 2 * PAGE, R, -1, 0), -ERANGE);
	assert_int_equal(rig_map(rig, window - PAGE, PAGE, R, fd, 0), 0);
	/* Not a file. */
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(rig_map(rig, 0, PAGE, R, pipes[0], 0), -EINVAL);
	assert_int_equal(rig->card->dma.count, 1);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
}

static void test_overlap(void **state)
{
	struct rig *rig = *state;
	int fd = rig_file(16 * PAGE);

	assert_int_equal(rig_map(rig, 4 * PAGE, 4 * PAGE, R | W, fd, 0), 0);
	assert_int_equal(rig_map(rig, 4 * PAGE, 4 * PAGE, R | W, fd, 0), -EEXIST);
	assert_int_equal(rig_map(rig, 3 * PAGE, 2 * PAGE, R | W, fd, 0), -EEXIST);
	assert_int_equal(rig_map(rig, 7 * PAGE, 2 * PAGE, R | W, -1, 0), -EEXIST);
	assert_int_equal(rig_map(rig, 5 * PAGE, PAGE, R | W, -1, 0), -EEXIST);
	assert_int_equal(rig_map(rig, 0, 16 * PAGE, R | W, fd, 0), -EEXIST);
	assert_int_equal(rig_map(rig, 3 * PAGE, PAGE, R | W, fd, 0), 0);
	assert_int_equal(rig_map(rig, 8 * PAGE, PAGE, R | W, fd, 0), 0);
	close(fd);
}

static void test_unmap(void **state)
{
	struct rig *rig = *state;
	int fd = rig_file(16 * PAGE);

	rig_bus_master(rig, true);
	assert_int_equal(rig_unmap(rig, 0, PAGE, 0), 0); /* nothing is there */
	assert_int_equal(rig_map(rig, 0, 4 * PAGE, R | W, fd, 0), 0);
	assert_int_equal(rig_map(rig, 4 * PAGE, 4 * PAGE, R | W, fd, 0), 0);
	/* Nothing is cut. */
	assert_int_equal(rig_unmap(rig, 0, PAGE, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, PAGE, 3 * PAGE, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, 0, 5 * PAGE, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, 0, 0, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, PAGE, UINT64_MAX, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, PAGE, 0 - PAGE, 0), -EINVAL); /* to the last address: cuts the first map */
	assert_int_equal(rig_unmap(rig, 8 * PAGE, 0 - 8 * PAGE, 0), 0);
	assert_int_equal(rig_unmap(rig, 8 * PAGE, 1 - 8 * PAGE, 0), -EINVAL);
	assert_int_equal(rig_unmap(rig, 0, 4 * PAGE, 1), -EINVAL);
	assert_int_equal(rig_unmap(rig, 0, 4 * PAGE, 2), -EINVAL);
	assert_non_null(kvd_card_dma(rig->card, 0, 8 * PAGE, true));
	/* One map, exactly; its neighbour stays. */
	assert_int_equal(rig_unmap(rig, 0, 4 * PAGE, 0), 0);
	assert_null(kvd_card_dma(rig->card, 0, PAGE, true));
	assert_non_null(kvd_card_dma(rig->card, 4 * PAGE, 4 * PAGE, true));
	assert_int_equal(rig_unmap(rig, 0, 4 * PAGE, 0), 0);
	assert_int_equal(rig->card->dma.count, 1);
	/* Several whole ones at once, as QEMU's virtual IOMMU does it. */
	assert_int_equal(rig_map(rig, 10 * PAGE, PAGE, R | W, -1, 0), 0);
	assert_int_equal(rig->card->dma.indirect, 1);
	assert_int_equal(rig_unmap(rig, 0, 64 * PAGE, 0), 0);
	assert_int_equal(rig->card->dma.count, 0);
	assert_int_equal(rig->card->dma.indirect, 0);
	/* All. */
	assert_int_equal(rig_map(rig, 0, 4 * PAGE, R | W, fd, 0), 0);
	assert_int_equal(rig_map(rig, 64 * PAGE, 4 * PAGE, R | W, -1, 0), 0);
	assert_int_equal(rig_unmap(rig, 0, 0, VFIO_DMA_UNMAP_FLAG_ALL), 0);
	assert_int_equal(rig_unmap(rig, 0, 0, VFIO_DMA_UNMAP_FLAG_ALL), 0);
	assert_int_equal(rig->card->dma.count, 0);
	assert_null(kvd_card_dma(rig->card, 0, PAGE, true));
	close(fd);
}

/* A client that leaves takes its memory with it, and every descriptor. */
static void test_leaving(void **state)
{
	struct rig *rig = *state;
	uint32_t before = rig_open_fds();
	int fd = rig_file(4 * PAGE);

	assert_int_equal(rig_map(rig, 0, 4 * PAGE, R | W, fd, 0), 0);
	close(fd);
	assert_int_equal(rig_open_fds(), before);
	rig_connect(rig);
	rig_hello(rig);
	rig_bus_master(rig, true);
	assert_null(kvd_card_dma(rig->card, 0, PAGE, false));
	assert_int_equal(rig->card->dma.count, 0);
}

/* A file that is cut under the card ends the copy, not the card. */
static void test_cut_file(void **state)
{
	struct rig *rig = *state;
	uint8_t data[2 * PAGE];
	int fd = rig_file(2 * PAGE);

	assert_int_equal(kvd_card_guard_init(), 0); /* cmocka has taken the signals */
	rig_bus_master(rig, true);
	assert_int_equal(rig_map(rig, 0, 2 * PAGE, R | W, fd, 0), 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, 0, data, sizeof(data), false), 0);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, 0, data, PAGE, true), 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, 0, data, sizeof(data), false), -EFAULT);
	assert_int_equal(kvd_card_dma_copy(rig->card, PAGE, data, 8, true), -EFAULT);
	assert_int_equal(kvd_card_dma_copy(rig->card, 2 * PAGE, data, 8, true), -EFAULT);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	close(fd);
}

static void test_many_maps(void **state)
{
	struct rig *rig = *state;
	int fd = rig_file(PAGE);

	rig_bus_master(rig, true);
	/* Each second one before the first: the list is sorted by address, not by time. */
	for (uint64_t i = 0; i < KVD_CARD_MAPS_MAX; i++)
		assert_int_equal(rig_map(rig, ((i ^ 1) + 1) * 2 * PAGE, PAGE, R, fd, 0), 0);
	assert_int_equal(rig_map(rig, 0, PAGE, R, fd, 0), -ENOSPC);
	for (uint64_t i = 1; i <= KVD_CARD_MAPS_MAX; i += 997) {
		assert_non_null(kvd_card_dma(rig->card, i * 2 * PAGE, PAGE, false));
		assert_null(kvd_card_dma(rig->card, i * 2 * PAGE, PAGE + 1, false));
	}
	assert_int_equal(rig_unmap(rig, 0, 0, VFIO_DMA_UNMAP_FLAG_ALL), 0);
	close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_contiguous), TEST(test_permissions), TEST(test_map_refused), TEST(test_overlap), TEST(test_unmap),
		TEST(test_leaving), TEST(test_cut_file), TEST(test_many_maps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
