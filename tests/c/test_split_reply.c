/* What becomes of the peer's replies and notifications, and of requests that somebody gave up. */
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "split_rig.h"

static struct message message;

struct created {
	struct fuse_entry_out entry;
	struct kvd_wire_open_out open;
};

/* Any request body will do for what is passed on unread. */
static const uint8_t body[64] = { 1, 2, 3, 0, 5 };

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

static void expect_forgotten(struct rig *rig, uint64_t parent, const char *name)
{
	struct fuse_notify_inval_entry_out entry;

	kernel_recv(rig, &message);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header) + sizeof(entry) + strlen(name) + 1);
	assert_int_equal(message.out.header.len, message.bytes);
	assert_int_equal(message.out.header.unique, 0);
	assert_int_equal(message.out.header.error, FUSE_NOTIFY_INVAL_ENTRY);
	memcpy(&entry, message.out.body, sizeof(entry));
	assert_int_equal(entry.parent, parent);
	assert_int_equal(entry.namelen, strlen(name));
	assert_string_equal((const char *)message.out.body + sizeof(entry), name);
}

static void test_names_are_forgotten(void **state)
{
	char longest[KVD_WIRE_NAME_BYTES_MAX + 2];
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_split_forget(rig.split, 7, "now", 3, 1), 0);
	expect_forgotten(&rig, 7, "now");
	assert_int_equal(kvd_split_forget(rig.split, 8, "soon", 4, 0), 0);
	expect_forgotten(&rig, 8, "soon");
	memset(longest, 'x', sizeof(longest));
	assert_int_equal(kvd_split_forget(rig.split, 8, longest, KVD_WIRE_NAME_BYTES_MAX + 1, 1), -ENAMETOOLONG);
	longest[KVD_WIRE_NAME_BYTES_MAX] = 0;
	assert_int_equal(kvd_split_forget(rig.split, 8, longest, KVD_WIRE_NAME_BYTES_MAX, 1), 0);
	expect_forgotten(&rig, 8, longest);
	/* What the kernel does not hold needs no forgetting. */
	atomic_store(&fake_write_error, ENOENT);
	assert_int_equal(kvd_split_forget(rig.split, 8, "x", 1, 1), 0);

	assert_int_equal(kvd_split_forget_all(rig.split), 0);
	kernel_recv(&rig, &message);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header));
	assert_int_equal(message.out.header.error, KVD_WIRE_NOTIFY_INC_EPOCH);
	atomic_store(&fake_write_error, EINVAL); /* a kernel that does not know the word */
	assert_int_equal(kvd_split_forget_all(rig.split), -EINVAL);
	kernel_expect_silence(&rig);
	rig_close(&rig);
}

/* Let only a few answers wait to be read. */
static void make_kernel_slow(struct rig *rig)
{
	int bytes = 4096;

	assert_int_equal(setsockopt(rig->split_kernel, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
}

static void test_slow_kernel_gets_each_answer(void **state)
{
	enum { MANY = 300 };
	struct rig rig;
	uint64_t first = 0;

	(void)state;
	rig_start(&rig, 1);
	make_kernel_slow(&rig);
	for (int i = 0; i < MANY; i++) {
		uint64_t unique = kernel_send(&rig, FUSE_IOCTL, 1, NULL, 0, NULL, 0);

		first = first ? first : unique;
	}
	for (uint64_t i = 0; i < MANY; i++)
		kernel_expect_error(&rig, first + 2 * i, ENOTTY);
	rig_close(&rig);
}

/* A notification that waits in the kernel holds up neither replies nor the stop, and more than can be kept are dropped. */
static void test_notices_are_bounded(void **state)
{
	enum { MANY = 5000 };
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} notice = { { sizeof(notice), FUSE_NOTIFY_INVAL_INODE, 0 }, { 1, 0, 0 } };
	static const uint8_t large[(64 << 10) + 1];
	struct fuse_out_header header = { .len = sizeof(large), .error = FUSE_NOTIFY_STORE };
	time_t deadline = time(NULL) + 10;
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	make_kernel_slow(&rig);
	for (int i = 0; i < MANY; i++)
		peer_send_raw(&rig, &notice, sizeof(notice));
	while (rig_stats(&rig).late_replies == 0) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
	assert_true(rig_stats(&rig).late_replies < MANY - 4096 + 1);
	memcpy(message.raw, large, sizeof(large));
	memcpy(message.raw, &header, sizeof(header));
	peer_send_raw(&rig, message.raw, sizeof(large));
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

/* The write of the reply fails: nobody has what the peer gave, so it is taken back. */
static void lose(struct rig *rig, uint32_t opcode, const void *reply, size_t bytes)
{
	uint64_t unique = kernel_send(rig, opcode, 21, body, 16, "n", 2);

	peer_expect(rig, &message, opcode, unique);
	atomic_store(&fake_write_error, ENOENT);
	peer_send(rig, unique, 0, reply, bytes);
}

static void expect_release(struct rig *rig, uint64_t node)
{
	struct fuse_release_in in;

	peer_recv(rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_RELEASE);
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
	expect_release(&rig, 21);
	lose(&rig, FUSE_CREATE, &out, sizeof(out));
	expect_release(&rig, 31);
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
			expect_release(&rig, 21);
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
		cmocka_unit_test(test_late_and_malformed_replies),
		cmocka_unit_test(test_notifications_pass),
		cmocka_unit_test(test_names_are_forgotten),
		cmocka_unit_test(test_slow_kernel_gets_each_answer),
		cmocka_unit_test(test_notices_are_bounded),
		cmocka_unit_test(test_pending_is_bounded),
		cmocka_unit_test(test_peer_ends),
		cmocka_unit_test(test_lost_replies_are_undone),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_interrupt_before_its_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
