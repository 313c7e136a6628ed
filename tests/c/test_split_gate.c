/* Writers in passthrough: the kernel's question before each write(2) is answered when the file may grow. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include "split_rig.h"

enum { NODE = 5, KIB = 1 << 10, SMALL_KIB = 64 };

static const char capability[] = "security.capability";
static uint8_t data[RIG_IO_BYTES];

static uint64_t send_gate(struct rig *rig, uint64_t node, uint32_t room)
{
	struct fuse_getxattr_in in = { .size = room };

	return kernel_send(rig, FUSE_GETXATTR, node, &in, sizeof(in), capability, sizeof(capability));
}

static void add(struct rig *rig, int fd, uint64_t limit_bytes, uint64_t gate_free_bytes)
{
	struct kvd_split_object object = {
		.node = NODE,
		.mode = KVD_MODE_PASSTHROUGH,
		.backing_id = 1,
		.fd = fd,
		.writable = 1,
		.limit_bytes = limit_bytes,
		.size_max_bytes = UINT64_MAX,
		.gate_free_bytes = gate_free_bytes,
	};

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
}

/* What the kernel does once it was let through. */
static void grow(int fd, uint64_t offset, size_t bytes)
{
	assert_int_equal(pwrite(fd, data, bytes, (off_t)offset), bytes);
}

static void test_held_up_once_it_outgrew_its_limit(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	uint64_t unique;
	int fd = rig_file(0);

	(void)state;
	rig_start(&rig, 1);
	add(&rig, fd, 32 * KIB, 0);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	grow(fd, 0, 16 * KIB);
	/* The next is taken to be as large, and fits; the one after it does not. */
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	grow(fd, 16 * KIB, 16 * KIB);
	unique = send_gate(&rig, NODE, 0);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.opcode, FUSE_GETXATTR);
	assert_int_equal(ask.need_bytes, 48 * KIB);
	kernel_expect_silence(&rig);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, 48 * KIB), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	kernel_expect_error(&rig, unique, ENODATA);
	/* What is written over what is there needs nothing. */
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	assert_int_equal(rig_stats(&rig).asks, 1);
	await_idle(&rig);
	close(fd);
	rig_close(&rig);
}

static void test_refused_and_given_up(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	uint64_t unique;
	int fd = rig_file(0);

	(void)state;
	rig_start(&rig, 1);
	add(&rig, fd, 0, 0);
	unique = send_gate(&rig, NODE, 0);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 4 * KIB);
	peer_send(&rig, unique, -ENOSPC, NULL, 0);
	kernel_expect_error(&rig, unique, ENOSPC);
	/* Agreed, yet the limit is what it was: it has waited, and goes. */
	unique = send_gate(&rig, NODE, 0);
	expect_ask(&rig, unique, &ask);
	peer_send(&rig, unique, 0, NULL, 0);
	kernel_expect_error(&rig, unique, ENODATA);
	/* A writer that is killed. */
	unique = send_gate(&rig, NODE, 0);
	expect_ask(&rig, unique, &ask);
	send_interrupt(&rig, unique);
	kernel_expect_error(&rig, unique, EINTR);
	peer_send(&rig, unique, 0, NULL, 0);
	await_idle(&rig);
	close(fd);
	rig_close(&rig);
}

/* Who wants to see capabilities, a file that was full before it was opened, and files that the kernel does not write itself. */
static void test_who_is_let_through(void **state)
{
	struct rig rig;
	int fd = rig_file(16 * KIB);

	(void)state;
	rig_start(&rig, 1);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	add(&rig, fd, 16 * KIB, 0);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, 0), 0);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 64), ENODATA);
	assert_int_equal(kvd_split_object_remove(rig.split, NODE), 0);
	rig_add(&rig, NODE, fd, 0);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	assert_int_equal(rig_stats(&rig).asks, 0);
	close(fd);
	rig_close(&rig);
}

static int small_tmpfs(void)
{
	char dir[] = "/tmp/kvd-test-XXXXXX";
	int fd;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(mount("kvd-test", dir, "tmpfs", MS_NODEV, "size=64k"), 0);
	fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(umount2(dir, MNT_DETACH), 0);
	assert_int_equal(rmdir(dir), 0);
	return fd;
}

static void test_held_up_while_the_tmpfs_has_too_little(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	uint64_t unique;
	int fd;

	(void)state;
	if (geteuid() != 0)
		skip();
	fd = small_tmpfs();
	rig_start(&rig, 1);
	add(&rig, fd, UINT64_MAX, 16 * KIB);
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	grow(fd, 0, 52 * KIB);
	unique = send_gate(&rig, NODE, 0);
	expect_ask(&rig, unique, &ask);
	peer_send(&rig, unique, 0, NULL, 0);
	kernel_expect_error(&rig, unique, ENODATA);
	/* It wrote nothing that made it grow. */
	kernel_expect_error(&rig, send_gate(&rig, NODE, 0), ENODATA);
	close(fd);
	rig_close(&rig);
}

/* WRITE and FALLOCATE that may hold more than the tmpfs has: the peer is asked until there is room, or says no. */
static void test_full_tmpfs_is_waited_for(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	uint64_t unique;
	int fd;

	(void)state;
	if (geteuid() != 0)
		skip();
	fd = small_tmpfs();
	rig_start(&rig, 1);
	rig_add(&rig, NODE, fd, UINT64_MAX);
	grow(fd, 0, SMALL_KIB * KIB);
	unique = send_write(&rig, NODE, SMALL_KIB * KIB, data, 4 * KIB);
	for (int i = 0; i < 3; i++) {
		expect_ask(&rig, unique, &ask);
		assert_int_equal(ask.need_bytes, (SMALL_KIB + 4) * KIB);
		if (i == 2)
			assert_int_equal(ftruncate(fd, 8 * KIB), 0);
		peer_send(&rig, unique, 0, NULL, 0);
	}
	expect_write_reply(&rig, unique, 4 * KIB);
	unique = send_fallocate(&rig, NODE, 0, 0, SMALL_KIB * KIB + 1);
	expect_ask(&rig, unique, &ask);
	/* What it had got is given back. */
	assert_int_equal(rig_held_bytes(fd), 12 * KIB);
	peer_send(&rig, unique, -ENOSPC, NULL, 0);
	kernel_expect_error(&rig, unique, ENOSPC);
	/* Bounded, should the peer agree for ever. */
	unique = send_fallocate(&rig, NODE, 0, 0, SMALL_KIB * KIB + 1);
	for (int i = 0; i < 16; i++) {
		expect_ask(&rig, unique, &ask);
		peer_send(&rig, unique, 0, NULL, 0);
	}
	kernel_expect_error(&rig, unique, ENOSPC);
	expect_event(&rig, KVD_EVENT_IO_ERROR);
	await_idle(&rig);
	close(fd);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_held_up_once_it_outgrew_its_limit),
		cmocka_unit_test(test_refused_and_given_up),
		cmocka_unit_test(test_who_is_let_through),
		cmocka_unit_test(test_held_up_while_the_tmpfs_has_too_little),
		cmocka_unit_test(test_full_tmpfs_is_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
