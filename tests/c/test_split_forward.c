/* What is forwarded, what is answered without the peer, and what becomes of the peer's replies. */
#include <errno.h>
#include <sys/socket.h>
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
		FUSE_FSYNC, FUSE_SETXATTR, FUSE_GETXATTR, FUSE_LISTXATTR, FUSE_REMOVEXATTR, FUSE_OPENDIR, FUSE_READDIR,
		FUSE_RELEASEDIR, FUSE_FSYNCDIR, FUSE_ACCESS, FUSE_CREATE, FUSE_READDIRPLUS, FUSE_READ,
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
	/* A directory is as the peer says. */
	expect_open_flags(&rig, FUSE_OPENDIR, 11, FOPEN_KEEP_CACHE | 1u << 7, 99);
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

static void test_late_and_malformed_replies(void **state)
{
	struct fuse_out_header out = { .len = 20, .unique = 4 };
	uint8_t longer[32] = { 0 };
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	peer_send(&rig, 12345, 0, NULL, 0);
	peer_send_raw(&rig, &out, sizeof(out)); /* says 20 bytes, has 16 */
	peer_send_raw(&rig, &out, 7);
	peer_send_raw(&rig, &out, 0);
	memcpy(longer, &out, sizeof(out));
	peer_send_raw(&rig, longer, sizeof(longer));
	/* An errno that the kernel refuses, an error with a body, and an OPEN without its handle. */
	for (int i = 0; i < 3; i++) {
		uint32_t opcode = i == 2 ? FUSE_OPEN : FUSE_GETATTR;

		unique = kernel_send(&rig, opcode, 5, body, 16, NULL, 0);
		peer_expect(&rig, &message, opcode, unique);
		peer_send(&rig, unique, i == 0 ? 5 : i == 1 ? -EIO : 0, longer, i == 1 ? 8 : 0);
		kernel_expect_error(&rig, unique, EIO);
		/* Answered: once more is late. */
		peer_send(&rig, unique, 0, NULL, 0);
	}
	unique = kernel_send(&rig, FUSE_GETATTR, 5, body, 16, NULL, 0);
	peer_expect(&rig, &message, FUSE_GETATTR, unique);
	peer_send(&rig, unique, -ENOENT, NULL, 0);
	kernel_expect_error(&rig, unique, ENOENT);
	assert_int_equal(rig_stats(&rig).late_replies, 5 + 3 + 3);
	kernel_expect_silence(&rig);
	rig_close(&rig);
}

static void test_notifications_pass(void **state)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_entry_out body;
		char name[8];
	} entry = { { sizeof(entry), FUSE_NOTIFY_INVAL_ENTRY, 0 }, { 1, 7, 0 }, "sevenby" };
	struct fuse_notify_inval_inode_out inode;
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	peer_send_raw(&rig, &entry, sizeof(entry));
	kernel_recv(&rig, &message);
	assert_int_equal(message.bytes, sizeof(entry));
	assert_memory_equal(message.raw, &entry, sizeof(entry));

	assert_int_equal(kvd_split_invalidate(rig.split, 55), 0);
	kernel_recv(&rig, &message);
	assert_int_equal(message.out.header.unique, 0);
	assert_int_equal(message.out.header.error, FUSE_NOTIFY_INVAL_INODE);
	memcpy(&inode, message.out.body, sizeof(inode));
	assert_int_equal(inode.ino, 55);
	assert_int_equal(inode.off, 0);
	assert_int_equal(inode.len, 0);
	/* What the kernel does not hold needs no forgetting. */
	atomic_store(&fake_write_error, ENOENT);
	assert_int_equal(kvd_split_invalidate(rig.split, 55), 0);
	atomic_store(&fake_write_error, ENODEV);
	assert_int_equal(kvd_split_invalidate(rig.split, 55), -ENODEV);
	rig_close(&rig);
}

static void test_pending_is_bounded(void **state)
{
	uint64_t unique[RIG_PENDING_MAX];
	uint64_t more;
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	for (int i = 0; i < RIG_PENDING_MAX; i++) {
		unique[i] = kernel_send(&rig, FUSE_LOOKUP, 1, "x", 2, NULL, 0);
		peer_expect(&rig, &message, FUSE_LOOKUP, unique[i]);
	}
	more = kernel_send(&rig, FUSE_LOOKUP, 1, "x", 2, NULL, 0);
	kernel_expect_error(&rig, more, ENOMEM);
	for (int i = 0; i < RIG_PENDING_MAX; i++) {
		peer_send(&rig, unique[i], -ENOENT, NULL, 0);
		kernel_expect_error(&rig, unique[i], ENOENT);
	}
	await_idle(&rig);
	more = kernel_send(&rig, FUSE_LOOKUP, 1, "x", 2, NULL, 0);
	peer_expect(&rig, &message, FUSE_LOOKUP, more);
	rig_close(&rig);
}

static void test_peer_ends(void **state)
{
	uint8_t want[100];
	struct rig rig;
	uint64_t unique[2];
	int fd = rig_file(sizeof(want));

	(void)state;
	rig_pattern(want, sizeof(want));
	rig_start(&rig, 1);
	rig_add(&rig, 5, fd, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		unique[i] = kernel_send(&rig, FUSE_LOOKUP, 1, "x", 2, NULL, 0);
		peer_expect(&rig, &message, FUSE_LOOKUP, unique[i]);
	}
	assert_int_equal(shutdown(rig.peer, SHUT_RDWR), 0);
	for (int i = 0; i < 2; i++) {
		kernel_recv(&rig, &message);
		assert_int_equal(message.out.header.error, -EIO);
		assert_true(message.out.header.unique == unique[0] || message.out.header.unique == unique[1]);
	}
	expect_event(&rig, KVD_EVENT_PEER_GONE);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_LOOKUP, 1, "x", 2, NULL, 0), EIO);
	kernel_send(&rig, FUSE_FORGET, 5, body, 8, NULL, 0);
	expect_read(&rig, 5, 0, 4096, want, sizeof(want));
	close(fd);
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

/* The write of the reply fails: nobody has what the peer gave, so it is taken back. */
static void lose(struct rig *rig, uint32_t opcode, const void *reply, size_t bytes)
{
	uint64_t unique = kernel_send(rig, opcode, 21, body, 16, "n", 2);

	peer_expect(rig, &message, opcode, unique);
	atomic_store(&fake_write_error, ENOENT);
	peer_send(rig, unique, 0, reply, bytes);
}

static void expect_release(struct rig *rig, uint32_t opcode, uint64_t node)
{
	struct fuse_release_in in;

	peer_recv(rig, &message);
	assert_int_equal(message.in.header.opcode, opcode);
	assert_int_equal(message.in.header.unique >> 63, 1);
	assert_int_equal(message.in.header.nodeid, node);
	assert_int_equal(message.bytes, sizeof(struct fuse_in_header) + sizeof(in));
	memcpy(&in, message.in.body, sizeof(in));
	assert_int_equal(in.fh, 77);
	assert_int_equal(in.flags, 0x00030201); /* of the request */
	peer_send(rig, message.in.header.unique, 0, NULL, 0);
}

static void expect_forget(struct rig *rig, uint64_t node)
{
	struct fuse_forget_in in;

	peer_recv(rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_FORGET);
	assert_int_equal(message.in.header.nodeid, node);
	memcpy(&in, message.in.body, sizeof(in));
	assert_int_equal(in.nlookup, 1);
}

static void test_lost_replies_are_undone(void **state)
{
	static const uint32_t entries[] = { FUSE_LOOKUP, FUSE_MKNOD, FUSE_MKDIR, FUSE_SYMLINK, FUSE_LINK };
	struct created out = { .entry.nodeid = 31, .open.fh = 77 };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	lose(&rig, FUSE_OPEN, &out.open, sizeof(out.open));
	expect_release(&rig, FUSE_RELEASE, 21);
	lose(&rig, FUSE_OPENDIR, &out.open, sizeof(out.open));
	expect_release(&rig, FUSE_RELEASEDIR, 21);
	lose(&rig, FUSE_CREATE, &out, sizeof(out));
	expect_release(&rig, FUSE_RELEASE, 31);
	expect_forget(&rig, 31);
	for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
		lose(&rig, entries[i], &out.entry, sizeof(out.entry));
		expect_forget(&rig, 31);
	}
	/* A negative entry and an error leave nothing to undo. */
	out.entry.nodeid = 0;
	lose(&rig, FUSE_LOOKUP, &out.entry, sizeof(out.entry));
	lose(&rig, FUSE_GETATTR, body, 8);
	peer_send(&rig, kernel_send(&rig, FUSE_LOOKUP, 1, "n", 2, NULL, 0), -ENOENT, NULL, 0);
	peer_recv(&rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_LOOKUP);
	rig_close(&rig);
}

static void test_interrupts(void **state)
{
	static const uint32_t given_up[] = { FUSE_OPEN, FUSE_FSYNC, FUSE_READ, FUSE_WRITE };
	static const uint32_t kept[] = { FUSE_SETATTR, FUSE_LOOKUP, FUSE_CREATE, FUSE_SETXATTR };
	struct fuse_write_in write_in = { 0 };
	struct kvd_wire_open_out open_out = { .fh = 77 };
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	for (size_t i = 0; i < 4; i++) {
		bool writes = given_up[i] == FUSE_WRITE;
		bool opens = given_up[i] == FUSE_OPEN;

		unique = kernel_send(&rig, given_up[i], 21, writes ? (const void *)&write_in : body, sizeof(write_in),
				     NULL, 0);
		peer_expect(&rig, &message, given_up[i], unique);
		send_interrupt(&rig, unique);
		kernel_expect_error(&rig, unique, EINTR);
		/* Interrupted twice, answered once. */
		send_interrupt(&rig, unique);
		peer_send(&rig, unique, 0, &open_out, opens ? sizeof(open_out) : 0);
		if (opens)
			expect_release(&rig, FUSE_RELEASE, 21);
	}
	/* An OPEN that failed late has nothing to release. */
	unique = kernel_send(&rig, FUSE_OPEN, 21, body, 16, NULL, 0);
	peer_expect(&rig, &message, FUSE_OPEN, unique);
	send_interrupt(&rig, unique);
	kernel_expect_error(&rig, unique, EINTR);
	peer_send(&rig, unique, -EIO, NULL, 0);
	for (size_t i = 0; i < 4; i++) {
		unique = kernel_send(&rig, kept[i], 21, body, 40, NULL, 0);
		peer_expect(&rig, &message, kept[i], unique);
		send_interrupt(&rig, unique);
		kernel_expect_silence(&rig);
		peer_send(&rig, unique, -EROFS, NULL, 0);
		kernel_expect_error(&rig, unique, EROFS);
	}
	/* Of what was never there. */
	send_interrupt(&rig, 99998);
	kernel_expect_silence(&rig);
	assert_int_equal(rig_stats(&rig).interrupted, 5);
	assert_int_equal(rig_stats(&rig).late_replies, 5);
	rig_close(&rig);
}

/* One reader may read the interrupt before another has entered the request. */
static void test_interrupt_before_its_request(void **state)
{
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	send_interrupt(&rig, rig.unique + 2);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_FSYNC, 5, body, 16, NULL, 0), EINTR);
	send_interrupt(&rig, rig.unique + 2);
	peer_send(&rig, kernel_send(&rig, FUSE_SETATTR, 5, body, 16, NULL, 0), -EROFS, NULL, 0);
	peer_recv(&rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_SETATTR);
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
		cmocka_unit_test(test_late_and_malformed_replies),
		cmocka_unit_test(test_notifications_pass),
		cmocka_unit_test(test_pending_is_bounded),
		cmocka_unit_test(test_peer_ends),
		cmocka_unit_test(test_malformed_requests),
		cmocka_unit_test(test_lost_replies_are_undone),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_interrupt_before_its_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
