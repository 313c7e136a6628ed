/* What is forwarded and how, what is answered without the peer, and how files are opened. */
#include <errno.h>
#include <unistd.h>

#include "split_rig.h"

static struct message message;

struct created {
	struct fuse_entry_out entry;
	struct kvd_wire_open_out open;
};

/* Any request body will do for what is passed on unread. */
static const uint8_t body[64] = { 1, 2, 3, 0, 5 };

static void test_forwarded_unchanged(void **state)
{
	static const uint32_t opcodes[] = {
		FUSE_LOOKUP, FUSE_GETATTR, FUSE_SETATTR, FUSE_READLINK, FUSE_SYMLINK, FUSE_MKNOD, FUSE_MKDIR,
		FUSE_UNLINK, FUSE_RMDIR, FUSE_RENAME, FUSE_RENAME2, FUSE_LINK, FUSE_OPEN, FUSE_STATFS, FUSE_RELEASE,
		FUSE_FSYNC, FUSE_SETXATTR, FUSE_GETXATTR, FUSE_LISTXATTR, FUSE_REMOVEXATTR, FUSE_READDIR, FUSE_FSYNCDIR,
		FUSE_CREATE, FUSE_READDIRPLUS, FUSE_READ,
	};
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++) {
		uint64_t unique = kernel_send(&rig, opcodes[i], 77, body, sizeof(body), NULL, 0);

		peer_expect(&rig, &message, opcodes[i], unique);
		assert_int_equal(message.bytes, sizeof(struct fuse_in_header) + sizeof(body));
		assert_int_equal(message.in.header.nodeid, 77);
		assert_int_equal(message.in.header.pid, 4242);
		assert_memory_equal(message.in.body, body, sizeof(body));
		peer_send(&rig, unique, -EACCES, NULL, 0);
		kernel_expect_error(&rig, unique, EACCES);
	}
	rig_close(&rig);
}

static void test_reply_bytes_pass_through(void **state)
{
	uint8_t reply[200];
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_pattern(reply, sizeof(reply));
	rig_start(&rig, 1);
	unique = kernel_send(&rig, FUSE_READDIR, 1, body, 40, NULL, 0);
	peer_expect(&rig, &message, FUSE_READDIR, unique);
	peer_send(&rig, unique, 0, reply, sizeof(reply));
	kernel_recv(&rig, &message);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header) + sizeof(reply));
	assert_memory_equal(message.out.body, reply, sizeof(reply));
	rig_close(&rig);
}

static void test_answered_without_the_peer(void **state)
{
	static const struct {
		uint32_t opcode;
		int error;
		const char *bytes;
		size_t skip;
	} rules[] = {
		{ FUSE_FLUSH, ENOSYS, "", 0 },
		{ FUSE_IOCTL, ENOTTY, "", 0 },
		{ FUSE_POLL, ENOSYS, "", 0 },
		{ FUSE_BMAP, ENOSYS, "", 0 },
		{ FUSE_COPY_FILE_RANGE, ENOSYS, "", 0 },
		{ FUSE_GETLK, ENOSYS, "", 0 },
		{ FUSE_SETLKW, ENOSYS, "", 0 },
		{ 50 /* SYNCFS */, ENOSYS, "", 0 },
		{ 52 /* STATX */, ENOSYS, "", 0 },
		{ 53 /* COPY_FILE_RANGE_64 */, ENOSYS, "", 0 },
		{ 4096 /* CUSE_INIT */, ENOSYS, "", 0 },
		{ UINT32_MAX, ENOSYS, "", 0 },
		{ FUSE_LSEEK, EINVAL, "", 32 },
		{ FUSE_FALLOCATE, EINVAL, "", 32 },
		{ FUSE_SETXATTR, EOPNOTSUPP, KVD_ASK_GROW, 8 },
		{ FUSE_SETXATTR, EOPNOTSUPP, "/", 8 },
		{ FUSE_GETXATTR, ENODATA, KVD_ASK_GROW, 8 },
		{ FUSE_REMOVEXATTR, ENODATA, "/x", 0 },
		{ FUSE_SETXATTR, EOPNOTSUPP, "security.capability", 8 },
		{ FUSE_GETXATTR, ENODATA, "security.capability", 8 },
		{ FUSE_REMOVEXATTR, ENODATA, "security.capability", 0 },
	};
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		uint8_t skipped[64] = { 0 };

		unique = kernel_send(&rig, rules[i].opcode, 5, skipped, rules[i].skip, rules[i].bytes,
				     strlen(rules[i].bytes) + 1);
		kernel_expect_error(&rig, unique, rules[i].error);
	}
	/* FALLOCATE of a node without an object must not switch it off for the mount. */
	unique = send_fallocate(&rig, 5, 0, 0, 4096);
	kernel_expect_error(&rig, unique, EOPNOTSUPP);
	assert_int_equal(rig_stats(&rig).forwarded, 1); /* INIT */
	rig_close(&rig);
}

static void test_no_reply_requests(void **state)
{
	static const uint32_t opcodes[] = { FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_NOTIFY_REPLY };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	await_idle(&rig); /* INIT */
	for (size_t i = 0; i < 3; i++) {
		uint64_t unique = kernel_send(&rig, opcodes[i], 5, body, 24, NULL, 0);

		peer_expect(&rig, &message, opcodes[i], unique);
		assert_int_equal(rig_stats(&rig).pending, 0);
	}
	kernel_expect_silence(&rig);
	rig_close(&rig);
}

static void test_tmpfile_is_a_create(void **state)
{
	struct fuse_create_in in = { .flags = 2, .mode = 0100600, .umask = 022 };
	struct created out = { .entry.nodeid = 33, .open.fh = 5 };
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	unique = kernel_send(&rig, KVD_WIRE_OP_TMPFILE, 1, &in, sizeof(in), "/", 2);
	peer_expect(&rig, &message, FUSE_CREATE, unique);
	assert_int_equal(message.bytes,
			 sizeof(struct fuse_in_header) + sizeof(in) + sizeof(KVD_NAME_TMPFILE));
	assert_memory_equal(message.in.body, &in, sizeof(in));
	assert_string_equal((char *)message.in.body + sizeof(in), KVD_NAME_TMPFILE);
	peer_send(&rig, unique, 0, &out, sizeof(out));
	kernel_recv(&rig, &message);
	assert_int_equal(message.out.header.error, 0);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header) + sizeof(out));
	rig_close(&rig);
}

static void expect_open_flags(struct rig *rig, uint32_t opcode, uint64_t node, uint32_t flags, int backing_id)
{
	/* The peer says KEEP_CACHE and, wrongly, PASSTHROUGH with an id. */
	struct created out = {
		.entry.nodeid = node,
		.open = { .fh = 0x1122334455667788, .open_flags = FOPEN_KEEP_CACHE | 1u << 7, .backing_id = 99 },
	};
	bool create = opcode == FUSE_CREATE;
	uint64_t unique = kernel_send(rig, opcode, create ? 1 : node, body, 16, "n", 2);
	const void *reply = create ? (void *)&out : (void *)&out.open;
	size_t bytes = create ? sizeof(out) : sizeof(out.open);
	struct kvd_wire_open_out got;

	peer_expect(rig, &message, opcode, unique);
	peer_send(rig, unique, 0, reply, bytes);
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header) + bytes);
	memcpy(&got, message.out.body + bytes - sizeof(got), sizeof(got));
	assert_int_equal(got.fh, out.open.fh);
	assert_int_equal(got.open_flags, flags);
	assert_int_equal(got.backing_id, backing_id);
}

static void test_open_and_create_by_mode(void **state)
{
	static const uint32_t opcodes[] = { FUSE_OPEN, FUSE_CREATE };
	struct kvd_split_object object = { .fd = rig_file(10), .backing_id = 7 };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_split_backing_open(rig.split, object.fd), 7);
	for (uint32_t mode = KVD_MODE_PASSTHROUGH; mode <= KVD_MODE_CACHED; mode++) {
		object.node = 10 + mode;
		object.mode = mode;
		assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	}
	for (size_t i = 0; i < 2; i++) {
		expect_open_flags(&rig, opcodes[i], 11, 1u << 7, 7);
		expect_open_flags(&rig, opcodes[i], 12, FOPEN_DIRECT_IO, 0);
		expect_open_flags(&rig, opcodes[i], 13, FOPEN_KEEP_CACHE, 0);
		/* A virtual file. */
		expect_open_flags(&rig, opcodes[i], 14, FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO, 0);
	}
	assert_int_equal(kvd_split_backing_close(rig.split, 7), 0);
	assert_int_equal(atomic_load(&fake_backing_closed), 7);
	close(object.fd);
	rig_close(&rig);
}

static void test_read_and_write_without_an_object(void **state)
{
	static uint8_t data[RIG_IO_BYTES];
	struct fuse_read_in read_in;
	struct fuse_write_in write_in;
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_pattern(data, sizeof(data));
	rig_start(&rig, 1);
	unique = send_read(&rig, 5, 100, RIG_IO_BYTES);
	peer_expect(&rig, &message, FUSE_READ, unique);
	memcpy(&read_in, message.in.body, sizeof(read_in));
	assert_int_equal(read_in.offset, 100);
	assert_int_equal(read_in.size, 128 << 10);
	peer_send(&rig, unique, 0, "virtual", 7);
	kernel_recv(&rig, &message);
	assert_memory_equal(message.out.body, "virtual", 7);

	unique = send_write(&rig, 5, 0, data, sizeof(data));
	peer_expect(&rig, &message, FUSE_WRITE, unique);
	assert_int_equal(message.bytes, sizeof(struct fuse_in_header) + sizeof(write_in) + (128 << 10));
	memcpy(&write_in, message.in.body, sizeof(write_in));
	assert_int_equal(write_in.size, 128 << 10);
	assert_memory_equal(message.in.body + sizeof(write_in), data, 128 << 10);
	peer_send(&rig, unique, -EPERM, NULL, 0);
	kernel_expect_error(&rig, unique, EPERM);
	rig_close(&rig);
}

static void test_malformed_requests(void **state)
{
	struct fuse_in_header header = { .len = 60, .opcode = FUSE_GETATTR, .unique = 1000, .nodeid = 1 };
	struct rig rig;
	int fd = rig_file(10);

	(void)state;
	rig_start(&rig, 1);
	rig_add(&rig, 5, fd, UINT64_MAX);
	kernel_send_raw(&rig, &header, 39);
	kernel_send_raw(&rig, &header, sizeof(header));
	kernel_expect_error(&rig, 1000, EIO);
	header.len = sizeof(header);
	header.unique = 0;
	kernel_send_raw(&rig, &header, sizeof(header));
	header.unique = 1ull << 63 | 2;
	kernel_send_raw(&rig, &header, sizeof(header));
	kernel_expect_error(&rig, header.unique, EIO);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_READ, 5, body, 39, NULL, 0), EINVAL);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_WRITE, 5, body, 39, NULL, 0), EINVAL);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_OPEN, 5, body, 7, NULL, 0), EINVAL);
	kernel_expect_error(&rig, kernel_send(&rig, KVD_WIRE_OP_TMPFILE, 5, body, 15, NULL, 0), EINVAL);
	kernel_expect_error(&rig, send_read(&rig, 5, 0, RIG_IO_BYTES + 1), EINVAL);
	kernel_expect_error(&rig, send_read(&rig, 5, UINT64_MAX - 5, 10), EINVAL);
	kernel_expect_error(&rig, send_fallocate(&rig, 5, 0, INT64_MAX, 10), EINVAL);
	kernel_expect_silence(&rig);
	close(fd);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forwarded_unchanged),
		cmocka_unit_test(test_reply_bytes_pass_through),
		cmocka_unit_test(test_answered_without_the_peer),
		cmocka_unit_test(test_no_reply_requests),
		cmocka_unit_test(test_tmpfile_is_a_create),
		cmocka_unit_test(test_open_and_create_by_mode),
		cmocka_unit_test(test_read_and_write_without_an_object),
		cmocka_unit_test(test_malformed_requests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
