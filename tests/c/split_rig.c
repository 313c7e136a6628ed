#include "split_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

uint32_t rig_read_wait_ms = 60000;
uint32_t rig_device_wait_ms = 60000;

enum { RIG_DEADLINE_MS = 10000, RIG_SOCKET_BYTES = 16 << 20 };

static void set_up_socket(int fd)
{
	struct timeval deadline = { .tv_sec = RIG_DEADLINE_MS / 1000 };
	int bytes = RIG_SOCKET_BYTES;

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof(deadline)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)), 0);
}

void rig_open(struct rig *rig, uint32_t readers)
{
	rig_open_hot(rig, readers, RIG_HOT_MAX, RIG_HOT_MAX);
}

void rig_open_hot(struct rig *rig, uint32_t readers, uint32_t hot_inodes_max, uint32_t hot_names_max)
{
	int kernel[2];
	int peer[2];
	struct kvd_split_config config = {
		.readers = readers,
		.io_bytes_max = RIG_IO_BYTES,
		.readahead_bytes = 4 << 20,
		.background = 64,
		.pending_max = RIG_PENDING_MAX,
		.features = RIG_FEATURES,
		.read_wait_ms = rig_read_wait_ms,
		.device_wait_ms = rig_device_wait_ms,
		.hot_inodes_max = hot_inodes_max,
		.hot_names_max = hot_names_max,
		.hot_absent_ms = RIG_HOT_ABSENT_MS,
	};

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, kernel), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, peer), 0);
	for (int i = 0; i < 2; i++) {
		set_up_socket(kernel[i]);
		set_up_socket(peer[i]);
	}
	*rig = (struct rig){
		.kernel = kernel[0],
		.split_kernel = kernel[1],
		.peer = peer[0],
		.split_peer = peer[1],
		.unique = 2,
	};
	config.fuse_fd = kernel[1];
	config.peer_fd = peer[1];
	assert_int_equal(kvd_split_init(&config, &rig->split), 0);
	assert_int_equal(kvd_split_start(rig->split), 0);
}

void rig_start(struct rig *rig, uint32_t readers)
{
	struct kvd_wire_init_in offer = { .major = 7, .minor = 45, .max_readahead = 128 << 10, .flags = UINT32_MAX,
					  .flags2 = UINT32_MAX };
	struct message *message = malloc(sizeof(*message));
	uint64_t unique;

	rig_open(rig, readers);
	unique = kernel_send(rig, FUSE_INIT, 0, &offer, sizeof(offer), NULL, 0);
	peer_expect(rig, message, FUSE_INIT, unique);
	peer_send(rig, unique, 0, &offer, 64);
	kernel_recv(rig, message);
	assert_int_equal(message->out.header.unique, unique);
	assert_int_equal(message->out.header.error, 0);
	expect_event(rig, KVD_EVENT_INIT);
	free(message);
}

void rig_close(struct rig *rig)
{
	kvd_split_fini(rig->split);
	close(rig->kernel);
	close(rig->split_kernel);
	close(rig->peer);
	close(rig->split_peer);
}

void kernel_send_raw(struct rig *rig, const void *data, size_t bytes)
{
	assert_int_equal(send(rig->kernel, data, bytes, MSG_NOSIGNAL), bytes);
}

uint64_t kernel_send(struct rig *rig, uint32_t opcode, uint64_t node, const void *body, size_t bytes, const void *tail,
		     size_t tail_bytes)
{
	struct fuse_in_header header = {
		.len = (uint32_t)(sizeof(header) + bytes + tail_bytes),
		.opcode = opcode,
		.unique = rig->unique += 2,
		.nodeid = node,
		.uid = 1000,
		.gid = 100,
		.pid = 4242,
	};
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)(uintptr_t)body, .iov_len = bytes },
		{ .iov_base = (void *)(uintptr_t)tail, .iov_len = tail_bytes },
	};

	assert_int_equal(writev(rig->kernel, iov, 3), header.len);
	return header.unique;
}

static void receive(int fd, struct message *message)
{
	ssize_t got = recv(fd, message->raw, sizeof(message->raw), MSG_TRUNC);

	assert_true(got > 0 && (size_t)got <= sizeof(message->raw));
	message->bytes = (size_t)got;
}

void kernel_recv(struct rig *rig, struct message *message)
{
	receive(rig->kernel, message);
	assert_int_equal(message->out.header.len, message->bytes);
}

void kernel_expect_error(struct rig *rig, uint64_t unique, int error)
{
	struct fuse_out_header out;

	assert_int_equal(recv(rig->kernel, &out, sizeof(out), MSG_TRUNC), sizeof(out));
	assert_int_equal(out.len, sizeof(out));
	assert_int_equal(out.unique, unique);
	assert_int_equal(out.error, -error);
}

void kernel_expect_silence(struct rig *rig)
{
	uint8_t body[32] = { 0 };
	uint64_t unique = kernel_send(rig, FUSE_IOCTL, 1, body, sizeof(body), NULL, 0);

	kernel_expect_error(rig, unique, ENOTTY);
}

void peer_recv(struct rig *rig, struct message *message)
{
	receive(rig->peer, message);
	assert_int_equal(message->in.header.len, message->bytes);
}

void peer_expect(struct rig *rig, struct message *message, uint32_t opcode, uint64_t unique)
{
	peer_recv(rig, message);
	assert_int_equal(message->in.header.opcode, opcode);
	assert_int_equal(message->in.header.unique, unique);
}

void peer_send(struct rig *rig, uint64_t unique, int error, const void *body, size_t bytes)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + bytes),
		.error = error,
		.unique = unique,
	};
	struct iovec iov[] = {
		{ .iov_base = &out, .iov_len = sizeof(out) },
		{ .iov_base = (void *)(uintptr_t)body, .iov_len = bytes },
	};

	assert_int_equal(writev(rig->peer, iov, 2), out.len);
}

void peer_send_raw(struct rig *rig, const void *data, size_t bytes)
{
	assert_int_equal(send(rig->peer, data, bytes, MSG_NOSIGNAL), bytes);
}

uint64_t send_read(struct rig *rig, uint64_t node, uint64_t offset, uint32_t size)
{
	struct fuse_read_in in = { .fh = 9, .offset = offset, .size = size };

	return kernel_send(rig, FUSE_READ, node, &in, sizeof(in), NULL, 0);
}

uint64_t send_write(struct rig *rig, uint64_t node, uint64_t offset, const void *data, uint32_t size)
{
	struct fuse_write_in in = { .fh = 9, .offset = offset, .size = size };

	return kernel_send(rig, FUSE_WRITE, node, &in, sizeof(in), data, size);
}

uint64_t send_fallocate(struct rig *rig, uint64_t node, uint32_t mode, uint64_t offset, uint64_t length)
{
	struct fuse_fallocate_in in = { .fh = 9, .offset = offset, .length = length, .mode = mode };

	return kernel_send(rig, FUSE_FALLOCATE, node, &in, sizeof(in), NULL, 0);
}

uint64_t send_interrupt(struct rig *rig, uint64_t target)
{
	struct {
		struct fuse_in_header header;
		struct fuse_interrupt_in body;
	} message = {
		.header = { .len = sizeof(message), .opcode = FUSE_INTERRUPT, .unique = target | 1 },
		.body = { .unique = target },
	};

	kernel_send_raw(rig, &message, sizeof(message));
	return message.header.unique;
}

void expect_read(struct rig *rig, uint64_t node, uint64_t offset, uint32_t size, const void *want, size_t bytes)
{
	struct message *message = malloc(sizeof(*message));
	uint64_t unique = send_read(rig, node, offset, size);

	kernel_recv(rig, message);
	assert_int_equal(message->out.header.unique, unique);
	assert_int_equal(message->out.header.error, 0);
	assert_int_equal(message->bytes - sizeof(message->out.header), bytes);
	assert_memory_equal(message->out.body, want, bytes);
	free(message);
}

void expect_write_reply(struct rig *rig, uint64_t unique, uint32_t bytes)
{
	struct {
		struct fuse_out_header header;
		struct fuse_write_out body;
	} reply;

	assert_int_equal(recv(rig->kernel, &reply, sizeof(reply), MSG_TRUNC), sizeof(reply));
	assert_int_equal(reply.header.unique, unique);
	assert_int_equal(reply.header.error, 0);
	assert_int_equal(reply.body.size, bytes);
}

void expect_ask(struct rig *rig, uint64_t unique, struct kvd_split_ask *ask)
{
	struct message *message = malloc(sizeof(*message));
	uint32_t value_bytes = sizeof(*ask);
	size_t name_at = sizeof(struct kvd_wire_setxattr_in);

	peer_expect(rig, message, FUSE_SETXATTR, unique);
	assert_int_equal(message->bytes,
			 sizeof(message->in.header) + name_at + sizeof(KVD_ASK_GROW) + sizeof(*ask));
	assert_int_equal(message->in.header.uid, 1000);
	assert_memory_equal(message->in.body, &value_bytes, sizeof(value_bytes));
	assert_string_equal((char *)message->in.body + name_at, KVD_ASK_GROW);
	memcpy(ask, message->in.body + name_at + sizeof(KVD_ASK_GROW), sizeof(*ask));
	free(message);
}

bool has_event(struct rig *rig)
{
	struct pollfd fd = { .fd = kvd_split_eventfd(rig->split), .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

struct kvd_split_event expect_event(struct rig *rig, uint32_t kind)
{
	struct pollfd fd = { .fd = kvd_split_eventfd(rig->split), .events = POLLIN };
	struct kvd_split_event event;
	uint64_t count;

	assert_int_equal(poll(&fd, 1, RIG_DEADLINE_MS), 1);
	assert_int_equal(read(fd.fd, &count, sizeof(count)), sizeof(count));
	assert_int_equal(kvd_split_events(rig->split, &event, 1), 1);
	assert_int_equal(event.kind, kind);
	return event;
}

struct kvd_split_stats rig_stats(struct rig *rig)
{
	struct kvd_split_stats stats;

	kvd_split_stats(rig->split, &stats);
	return stats;
}

void await_idle(struct rig *rig)
{
	time_t deadline = time(NULL) + RIG_DEADLINE_MS / 1000;

	while (rig_stats(rig).pending > 0) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
}

uint64_t rig_held_bytes(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

void rig_pattern(uint8_t *out, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(i * 31 + (i >> 12) * 7 + 1);
}

int rig_file(size_t bytes)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);
	uint8_t *data = malloc(bytes + 1);

	assert_true(fd >= 0);
	rig_pattern(data, bytes);
	assert_int_equal(pwrite(fd, data, bytes, 0), bytes);
	free(data);
	return fd;
}

void rig_add(struct rig *rig, uint64_t node, int fd, uint64_t limit_bytes)
{
	struct kvd_split_object object = {
		.node = node,
		.mode = KVD_MODE_DIRECT,
		.fd = fd,
		.writable = 1,
		.limit_bytes = limit_bytes,
		.size_max_bytes = 1ull << 40,
	};

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
}
