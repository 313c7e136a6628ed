#include "split_cold.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/crc32c.h"

uint8_t cold_want[FILE_BYTES];
uint32_t cold_crc[PAGES];
static const uint64_t runs[] = { 0, PAGES };

struct kvd_split_sums cold_sums(void)
{
	return (struct kvd_split_sums){ .page_bytes = PAGE, .n_runs = 1, .runs = runs, .crc = cold_crc };
}

int cold_file(void)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);

	rig_pattern(cold_want, sizeof(cold_want));
	assert_int_equal(pwrite(fd, cold_want, sizeof(cold_want), 0), sizeof(cold_want));
	for (size_t page = 0; page < PAGES; page++) {
		size_t bytes = page == PAGES - 1 ? FILE_BYTES - page * PAGE : PAGE;

		cold_crc[page] = kvd_crc32c(0, cold_want + page * PAGE, bytes);
	}
	return fd;
}

void cold_add(struct rig *rig, uint64_t node, int fd, uint32_t device)
{
	struct kvd_split_sums sums = cold_sums();
	struct kvd_split_object object = { .node = node, .mode = KVD_MODE_DIRECT, .fd = fd, .sums = &sums,
					   .devices = &device };

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
}

/* Two parts, on BAD and on GOOD. */
void cold_add_striped(struct rig *rig, const int *fds)
{
	static const uint32_t devices[] = { BAD, GOOD };
	struct kvd_split_sums sums = cold_sums();
	struct kvd_split_object object = { .node = NODE, .mode = KVD_MODE_DIRECT, .fd = fds[0], .sums = &sums,
					   .part_fds = fds, .n_parts = 2, .stripe_bytes = STRIPE, .devices = devices };

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
}

void cold_hang(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	atomic_store(&fake_hang_ino, st.st_ino);
}

void cold_await_hanging(int count)
{
	time_t deadline = time(NULL) + DEADLINE_S;

	while (atomic_load(&fake_hanging) != count) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
}

void cold_await_given_up(struct rig *rig, uint64_t count)
{
	time_t deadline = time(NULL) + DEADLINE_S;

	while (rig_stats(rig).cold_given_up != count) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
}

void cold_heal(struct rig *rig)
{
	atomic_store(&fake_hang_ino, 0);
	cold_await_hanging(0);
	cold_await_given_up(rig, 0);
}

void cold_expect_whole(struct rig *rig, uint64_t node)
{
	expect_read(rig, node, 0, RIG_IO_BYTES, cold_want, FILE_BYTES);
}
