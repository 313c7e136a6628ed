/* Growth by what a file is on: a disk, huge pages, a file that refuses. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "split_rig.h"

enum { KIB = 1 << 10 };

static uint8_t data[RIG_IO_BYTES];
static uint8_t back[RIG_IO_BYTES];

static void set_up(struct rig *rig)
{
	rig_pattern(data, sizeof(data));
	rig_start(rig, 1);
}

/* On a disk the holes come from SEEK_HOLE. */
static void test_grow_on_disk(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	struct statfs fs;
	int disk = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	uint64_t unique;

	(void)state;
	set_up(&rig);
	assert_true(disk >= 0);
	assert_int_equal(fstatfs(disk, &fs), 0);
	assert_int_not_equal(fs.f_type, TMPFS_MAGIC);
	assert_int_equal(pwrite(disk, data, 8 * KIB, 0), 8 * KIB);
	assert_int_equal(pwrite(disk, data, 4 * KIB, 16 * KIB), 4 * KIB);
	assert_int_equal(fsync(disk), 0);
	rig_add(&rig, 6, disk, rig_held_bytes(disk));
	expect_write_reply(&rig, send_write(&rig, 6, 0, data, 8 * KIB), 8 * KIB);
	unique = send_write(&rig, 6, 100, data, 22 * KIB);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, rig_held_bytes(disk) + 12 * KIB);
	close(disk);
	rig_close(&rig);
}

/* A tmpfs of huge pages takes 2 MiB for a byte. */
static void test_grow_by_huge_pages(void **state)
{
	enum { HUGE_KIB = 2048 };
	char dir[] = "/tmp/kvd-test-XXXXXX";
	struct kvd_split_ask ask;
	struct rig rig;
	uint64_t unique;
	int huge;

	(void)state;
	set_up(&rig);
	assert_non_null(mkdtemp(dir));
	assert_int_equal(mount("kvd-test", dir, "tmpfs", MS_NODEV, "size=16m,huge=always"), 0);
	huge = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	assert_int_equal(umount2(dir, MNT_DETACH), 0);
	assert_int_equal(rmdir(dir), 0);
	assert_true(huge >= 0);
	rig_add(&rig, 6, huge, HUGE_KIB * KIB);
	expect_write_reply(&rig, send_write(&rig, 6, 5, data, 4 * KIB), 4 * KIB);
	assert_true(rig_held_bytes(huge) <= HUGE_KIB * KIB);
	/* More in the same page, and a step over its end. */
	expect_write_reply(&rig, send_write(&rig, 6, 512 * KIB, data, RIG_IO_BYTES), RIG_IO_BYTES);
	unique = send_write(&rig, 6, (HUGE_KIB - 1) * KIB, data, 2 * KIB);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 2 * HUGE_KIB * KIB);
	assert_int_equal(kvd_split_object_limit(rig.split, 6, ask.need_bytes), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	expect_write_reply(&rig, unique, 2 * KIB);
	assert_true(rig_held_bytes(huge) <= ask.need_bytes);
	close(huge);
	rig_close(&rig);
}

/* The file itself refuses to grow: what fitted is told, then the error. */
static void test_write_fails(void **state)
{
	struct rig rig;
	int sealed = memfd_create("kvd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct kvd_split_event event;

	(void)state;
	set_up(&rig);
	assert_int_equal(ftruncate(sealed, 8 * KIB), 0);
	assert_int_equal(fcntl(sealed, F_ADD_SEALS, F_SEAL_GROW), 0);
	rig_add(&rig, 6, sealed, UINT64_MAX);
	expect_write_reply(&rig, send_write(&rig, 6, 0, data, 16 * KIB), 8 * KIB);
	assert_int_equal(pread(sealed, back, 8 * KIB, 0), 8 * KIB);
	assert_memory_equal(back, data, 8 * KIB);
	kernel_expect_error(&rig, send_write(&rig, 6, 8 * KIB, data, 1), EPERM);
	event = expect_event(&rig, KVD_EVENT_IO_ERROR);
	assert_int_equal(event.node, 6);
	assert_int_equal(event.value, EPERM);
	kernel_expect_error(&rig, send_fallocate(&rig, 6, 0, 0, 64 * KIB), EPERM);
	expect_event(&rig, KVD_EVENT_IO_ERROR);
	/* No claim was left behind. */
	assert_int_equal(kvd_split_object_limit(rig.split, 6, 8 * KIB), 0);
	expect_write_reply(&rig, send_write(&rig, 6, 0, data, 8 * KIB), 8 * KIB);
	close(sealed);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_grow_on_disk),
		cmocka_unit_test(test_grow_by_huge_pages),
		cmocka_unit_test(test_write_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
