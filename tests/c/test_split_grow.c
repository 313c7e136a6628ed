/* WRITE and FALLOCATE: what they may grow a file to, and the ask in between. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "split_rig.h"

enum { NODE = 5, KIB = 1 << 10 };

static struct message message;
static uint8_t data[RIG_IO_BYTES];
static uint8_t back[RIG_IO_BYTES];

static void expect_data(int fd, uint64_t offset, size_t bytes)
{
	assert_int_equal(pread(fd, back, bytes, (off_t)offset), bytes);
	assert_memory_equal(back, data, bytes);
}

static void expect_ok(struct rig *rig, uint64_t unique)
{
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.out.header.error, 0);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header));
}

static int set_up(struct rig *rig, uint64_t limit_bytes)
{
	int fd = rig_file(0);

	rig_pattern(data, sizeof(data));
	rig_start(rig, 1);
	rig_add(rig, NODE, fd, limit_bytes);
	return fd;
}

static void tear_down(struct rig *rig, int fd)
{
	close(fd);
	rig_close(rig);
}

static void test_write_within_the_limit(void **state)
{
	struct rig rig;
	int fd = set_up(&rig, RIG_IO_BYTES);

	(void)state;
	expect_write_reply(&rig, send_write(&rig, NODE, 0, data, RIG_IO_BYTES), RIG_IO_BYTES);
	expect_data(fd, 0, RIG_IO_BYTES);
	/* Written again the file holds no more. */
	expect_write_reply(&rig, send_write(&rig, NODE, 100, data, RIG_IO_BYTES - 100), RIG_IO_BYTES - 100);
	expect_data(fd, 100, RIG_IO_BYTES - 100);
	expect_write_reply(&rig, send_write(&rig, NODE, 0, data, 0), 0);
	assert_int_equal(rig_stats(&rig).asks, 0);
	assert_int_equal(rig_stats(&rig).writes, 3);
	assert_int_equal(rig_stats(&rig).write_bytes, 2 * RIG_IO_BYTES - 100);
	tear_down(&rig, fd);
}

static void test_write_rules(void **state)
{
	struct rig rig;
	int fd = set_up(&rig, UINT64_MAX);
	struct kvd_split_object object = { .node = 6, .mode = KVD_MODE_DIRECT, .fd = fd };

	(void)state;
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	kernel_expect_error(&rig, send_write(&rig, 6, 0, data, 10), EBADF);
	kernel_expect_error(&rig, send_fallocate(&rig, 6, 0, 0, 10), EBADF);
	kernel_expect_error(&rig, send_fallocate(&rig, 6, 3, 0, 10), EBADF);
	kernel_expect_error(&rig, send_write(&rig, NODE, (1ull << 40) - 5, data, 6), EFBIG);
	kernel_expect_error(&rig, send_fallocate(&rig, NODE, 0, 0, (1ull << 40) + 1), EFBIG);
	kernel_expect_error(&rig, send_fallocate(&rig, NODE, FALLOC_FL_ZERO_RANGE, 0, 10), EOPNOTSUPP);
	kernel_expect_error(&rig, send_fallocate(&rig, NODE, 0, 0, 0), EINVAL);
	assert_int_equal(rig_held_bytes(fd), 0);
	tear_down(&rig, fd);
}

static void test_grow_is_granted(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 8 * KIB);
	uint64_t unique;

	(void)state;
	expect_write_reply(&rig, send_write(&rig, NODE, 0, data, 6 * KIB), 6 * KIB);
	/* 4096 to 20480 touches one block that is there and three that are not. */
	unique = send_write(&rig, NODE, 4 * KIB, data, 16 * KIB);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 20 * KIB);
	assert_int_equal(ask.offset, 4 * KIB);
	assert_int_equal(ask.length, 16 * KIB);
	assert_int_equal(ask.opcode, FUSE_WRITE);
	assert_int_equal(ask.mode, 0);
	kernel_expect_silence(&rig);
	assert_int_equal(rig_held_bytes(fd), 8 * KIB);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, ask.need_bytes), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	expect_write_reply(&rig, unique, 16 * KIB);
	expect_data(fd, 4 * KIB, 16 * KIB);
	assert_int_equal(rig_held_bytes(fd), 20 * KIB);
	assert_int_equal(rig_stats(&rig).asks, 1);
	await_idle(&rig);
	tear_down(&rig, fd);
}

static void test_grow_is_refused(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);
	uint64_t unique = send_write(&rig, NODE, 0, data, 10);

	(void)state;
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 4 * KIB);
	peer_send(&rig, unique, -EDQUOT, NULL, 0);
	kernel_expect_error(&rig, unique, EDQUOT);
	/* Agreed, yet the limit was not raised. */
	unique = send_write(&rig, NODE, 0, data, 10);
	expect_ask(&rig, unique, &ask);
	peer_send(&rig, unique, 0, NULL, 0);
	kernel_expect_error(&rig, unique, ENOSPC);
	/* Agreed, yet the object went away: then the peer gets the WRITE itself. */
	unique = send_write(&rig, NODE, 0, data, 10);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(kvd_split_object_remove(rig.split, NODE), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	peer_expect(&rig, &message, FUSE_WRITE, unique);
	peer_send(&rig, unique, -EBADF, NULL, 0);
	kernel_expect_error(&rig, unique, EBADF);
	assert_int_equal(rig_held_bytes(fd), 0);
	tear_down(&rig, fd);
}

/* Two writers are allowed the same room: who comes second asks again instead of failing. */
static void test_grow_asks_again_if_another_took_it(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);
	uint64_t first = send_write(&rig, NODE, 0, data, 4 * KIB);
	uint64_t second;

	(void)state;
	expect_ask(&rig, first, &ask);
	second = send_write(&rig, NODE, 4 * KIB, data, 4 * KIB);
	expect_ask(&rig, second, &ask);
	assert_int_equal(ask.need_bytes, 4 * KIB);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, 4 * KIB), 0);
	peer_send(&rig, first, 0, NULL, 0);
	expect_write_reply(&rig, first, 4 * KIB);
	peer_send(&rig, second, 0, NULL, 0);
	expect_ask(&rig, second, &ask);
	assert_int_equal(ask.need_bytes, 8 * KIB);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, 8 * KIB), 0);
	peer_send(&rig, second, 0, NULL, 0);
	expect_write_reply(&rig, second, 4 * KIB);
	tear_down(&rig, fd);
}

static void test_grow_is_interrupted(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);
	uint64_t unique = send_write(&rig, NODE, 0, data, 10);

	(void)state;
	expect_ask(&rig, unique, &ask);
	send_interrupt(&rig, unique);
	kernel_expect_error(&rig, unique, EINTR);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, ask.need_bytes), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	/* The late grant writes nothing. */
	unique = kernel_send(&rig, FUSE_GETATTR, NODE, NULL, 0, NULL, 0);
	peer_expect(&rig, &message, FUSE_GETATTR, unique);
	peer_send(&rig, unique, -EIO, NULL, 0);
	kernel_expect_error(&rig, unique, EIO);
	assert_int_equal(rig_held_bytes(fd), 0);
	assert_int_equal(rig_stats(&rig).late_replies, 1);
	assert_int_equal(rig_stats(&rig).interrupted, 1);
	await_idle(&rig);
	tear_down(&rig, fd);
}

static void test_stop_while_parked(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);
	uint64_t unique = send_write(&rig, NODE, 0, data, RIG_IO_BYTES);

	(void)state;
	expect_ask(&rig, unique, &ask);
	kvd_split_stop(rig.split);
	kernel_expect_error(&rig, unique, ENOTCONN);
	tear_down(&rig, fd);
}

static void test_parked_bytes_are_bounded(void **state)
{
	enum { ROOM = 63 }; /* of RIG_IO_BYTES and a header each in 64 MiB */
	uint64_t unique[ROOM];
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);

	(void)state;
	for (int i = 0; i < ROOM; i++) {
		unique[i] = send_write(&rig, NODE, 0, data, RIG_IO_BYTES);
		expect_ask(&rig, unique[i], &ask);
	}
	kernel_expect_error(&rig, send_write(&rig, NODE, 0, data, RIG_IO_BYTES), ENOMEM);
	for (int i = 0; i < ROOM; i++) {
		peer_send(&rig, unique[i], -ENOSPC, NULL, 0);
		kernel_expect_error(&rig, unique[i], ENOSPC);
	}
	await_idle(&rig);
	unique[0] = send_write(&rig, NODE, 0, data, RIG_IO_BYTES);
	expect_ask(&rig, unique[0], &ask);
	tear_down(&rig, fd);
}

static void test_fallocate(void **state)
{
	struct kvd_split_ask ask;
	struct rig rig;
	int fd = set_up(&rig, 0);
	uint64_t unique = send_fallocate(&rig, NODE, 0, 0, 64 * KIB);
	struct stat st;

	(void)state;
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 64 * KIB);
	assert_int_equal(ask.length, 64 * KIB);
	assert_int_equal(ask.opcode, FUSE_FALLOCATE);
	assert_int_equal(kvd_split_object_limit(rig.split, NODE, 64 * KIB), 0);
	peer_send(&rig, unique, 0, NULL, 0);
	expect_ok(&rig, unique);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 64 * KIB);
	assert_int_equal(rig_held_bytes(fd), 64 * KIB);

	unique = send_fallocate(&rig, NODE, FALLOC_FL_KEEP_SIZE, 64 * KIB, 4 * KIB);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 68 * KIB);
	assert_int_equal(ask.mode, FALLOC_FL_KEEP_SIZE);
	peer_send(&rig, unique, -ENOSPC, NULL, 0);
	kernel_expect_error(&rig, unique, ENOSPC);

	/* A punched hole is never asked about, and is asked for again when it is filled. */
	expect_ok(&rig, send_fallocate(&rig, NODE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 32 * KIB));
	assert_int_equal(rig_held_bytes(fd), 32 * KIB);
	assert_int_equal(rig_stats(&rig).asks, 2);
	expect_write_reply(&rig, send_write(&rig, NODE, 0, data, 32 * KIB), 32 * KIB);
	assert_int_equal(rig_held_bytes(fd), 64 * KIB);
	tear_down(&rig, fd);
}

/* A write into what was allocated and not yet written needs no more room (SEEK_HOLE calls it a hole). */
static void test_write_into_allocated(void **state)
{
	struct rig rig;
	int fd = set_up(&rig, 64 * KIB);
	struct kvd_split_ask ask;
	uint64_t unique;

	(void)state;
	expect_ok(&rig, send_fallocate(&rig, NODE, 0, 0, 64 * KIB));
	assert_int_equal(rig_held_bytes(fd), 64 * KIB);
	expect_write_reply(&rig, send_write(&rig, NODE, 1000, data, 32 * KIB), 32 * KIB);
	expect_data(fd, 1000, 32 * KIB);
	unique = send_write(&rig, NODE, 60 * KIB, data, 8 * KIB);
	expect_ask(&rig, unique, &ask);
	assert_int_equal(ask.need_bytes, 68 * KIB);
	tear_down(&rig, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write_within_the_limit),
		cmocka_unit_test(test_write_rules),
		cmocka_unit_test(test_grow_is_granted),
		cmocka_unit_test(test_grow_is_refused),
		cmocka_unit_test(test_grow_asks_again_if_another_took_it),
		cmocka_unit_test(test_grow_is_interrupted),
		cmocka_unit_test(test_stop_while_parked),
		cmocka_unit_test(test_parked_bytes_are_bounded),
		cmocka_unit_test(test_fallocate),
		cmocka_unit_test(test_write_into_allocated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
