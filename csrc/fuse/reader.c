/* The threads that read the kernel's requests, and what becomes of each. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "fuse/internal.h"
#include "fuse/sys.h"

enum { KVD_WAKERS_AT_ONCE = 8 };

static int watch(int epoll_fd, int fd, uint32_t events, uint64_t source)
{
	struct epoll_event event = { .events = events, .data.u64 = source };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

int kvd_reader_init(struct kvd_reader *reader, kvd_split *split)
{
	int error = -ENOMEM;

	reader->split = split;
	reader->request_bytes = split->config.io_bytes_max + KVD_REQUEST_ROOM_BYTES;
	/* Whole pages around any range. */
	reader->data_bytes = split->config.io_bytes_max + 2 * KVD_PAGE_BYTES_MAX;
	reader->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (reader->epoll_fd < 0)
		return -errno;
	reader->request = aligned_alloc(KVD_BLOCK_BYTES, kvd_align_up(reader->request_bytes, KVD_BLOCK_BYTES));
	reader->data = aligned_alloc(KVD_BLOCK_BYTES, kvd_align_up(reader->data_bytes, KVD_BLOCK_BYTES));
	if (!reader->request || !reader->data)
		goto out;
	/* One request wakes one reader. */
	error = watch(reader->epoll_fd, split->config.fuse_fd, EPOLLIN | EPOLLEXCLUSIVE, KVD_SOURCE_FUSE);
	if (!error)
		error = watch(reader->epoll_fd, split->stop_fd, EPOLLIN, KVD_SOURCE_STOP);
	if (!error)
		error = watch(reader->epoll_fd, split->work_fd, EPOLLIN | EPOLLEXCLUSIVE, KVD_SOURCE_WORK);
	if (!error)
		return 0;
out:
	kvd_reader_fini(reader);
	return error;
}

void kvd_reader_fini(struct kvd_reader *reader)
{
	free(reader->data);
	free(reader->request);
	close(reader->epoll_fd);
}

/* The name in an xattr request that starts after `skip` bytes; NULL if it does not end. */
static const char *xattr_name(const struct kvd_request *request, size_t skip)
{
	const char *name = (const char *)request->body + skip;

	if (request->body_bytes <= skip || !memchr(name, 0, request->body_bytes - skip))
		return NULL;
	return name;
}

/*
 * Names that no peer is asked for: the reserved ones, and capabilities, which the kernel asks for at every write. They have
 * no effect on a mount that is nosuid, so there are none.
 */
static bool is_ours(const char *name)
{
	return name && (name[0] == '/' || strcmp(name, "security.capability") == 0);
}

/*
 * Before each write(2) that it passes through, and before it cuts a file, the kernel asks how long the file's capabilities
 * are. Others who ask for those give it room for an answer.
 */
static bool is_gate(const struct kvd_request *request)
{
	const struct fuse_getxattr_in *in = request->body;
	const char *name = xattr_name(request, sizeof(*in));

	return name && in->size == 0 && strcmp(name, "security.capability") == 0;
}

static int handle_xattr(kvd_split *split, const struct kvd_request *request)
{
	switch (request->header->opcode) {
	case FUSE_SETXATTR:
		if (is_ours(xattr_name(request, sizeof(struct kvd_wire_setxattr_in))))
			return -EOPNOTSUPP;
		break;
	case FUSE_GETXATTR:
		if (is_gate(request))
			return kvd_data_gate(split, request);
		if (is_ours(xattr_name(request, sizeof(struct fuse_getxattr_in))))
			return -ENODATA;
		break;
	default:
		if (is_ours(xattr_name(request, 0)))
			return -ENODATA;
		break;
	}
	return kvd_forward(split, request);
}

static int handle_interrupt(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_interrupt_in *in = request->body;

	if (request->body_bytes < sizeof(*in))
		return 0;
	if (kvd_pending_interrupt(&split->pending, in->unique) || kvd_wait_interrupt(split, in->unique) ||
	    kvd_cold_interrupt(split, in->unique)) {
		kvd_count(&split->counters.interrupted, 1);
		kvd_reply_error(split, in->unique, -EINTR);
	}
	return 0;
}

/* What the hot table may answer. */
static int dispatch_hot(struct kvd_reader *reader, const struct kvd_request *request)
{
	kvd_split *split = reader->split;

	switch (request->header->opcode) {
	case FUSE_LOOKUP:
		return kvd_hot_lookup(split, request);
	case FUSE_GETATTR:
		return kvd_hot_getattr(split, request);
	case FUSE_OPEN:
		return kvd_hot_open(split, request);
	case FUSE_RELEASE:
		return kvd_hot_release(split, request);
	case FUSE_OPENDIR:
		return kvd_hot_opendir(split, request);
	case FUSE_RELEASEDIR:
		return kvd_hot_releasedir(split, request);
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		return kvd_hot_readdir(reader, request);
	case FUSE_FORGET:
		return kvd_hot_forget(split, request);
	default:
		return kvd_hot_batch_forget(split, request);
	}
}

/* Each opcode that the peer can answer is named; what is not named is refused. */
static int dispatch(struct kvd_reader *reader, const struct kvd_request *request)
{
	kvd_split *split = reader->split;

	switch (request->header->opcode) {
	case FUSE_INIT:
		return kvd_init_request(split, request);
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_OPEN:
	case FUSE_RELEASE:
	case FUSE_OPENDIR:
	case FUSE_RELEASEDIR:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		return dispatch_hot(reader, request);
	case FUSE_READ:
		return kvd_data_read(reader, request);
	case FUSE_WRITE:
		return kvd_data_write(split, request);
	case FUSE_FALLOCATE:
		return kvd_data_fallocate(split, request);
	case FUSE_LSEEK:
		return kvd_data_lseek(split, request);
	case FUSE_IOCTL:
		return -ENOTTY;
	case FUSE_SETXATTR:
	case FUSE_GETXATTR:
	case FUSE_REMOVEXATTR:
		return handle_xattr(split, request);
	case FUSE_INTERRUPT:
		return handle_interrupt(split, request);
	case FUSE_NOTIFY_REPLY:
		return kvd_forward_silent(split, request);
	case KVD_WIRE_OP_TMPFILE:
		return kvd_forward_tmpfile(split, request);
	case FUSE_SETATTR:
	case FUSE_READLINK:
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
	case FUSE_CREATE:
	case FUSE_STATFS:
	case FUSE_FSYNC:
	case FUSE_LISTXATTR:
	case FUSE_FSYNCDIR:
	case FUSE_DESTROY:
		return kvd_forward(split, request);
	default:
		/*
		 * FLUSH, ACCESS, POLL, BMAP, COPY_FILE_RANGE, STATX, locks, and what is newer: the kernel has its own
		 * way, remembers the answer, and does not ask again.
		 */
		return -ENOSYS;
	}
}

static bool wants_answer(uint32_t opcode)
{
	return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT &&
	       opcode != FUSE_NOTIFY_REPLY;
}

/* `parked`: what waited, and is done now; NULL for what the kernel just sent. */
static void handle_message(struct kvd_reader *reader, uint8_t *message, size_t bytes, const struct kvd_parked *parked)
{
	kvd_split *split = reader->split;
	struct kvd_request request = { .header = (void *)message };
	int error;

	if (parked) {
		request.asked_bytes = parked->asked_bytes;
		request.asks = parked->asks;
	}
	kvd_count(&split->counters.requests, !parked);
	/* Without a unique there is nobody to answer, and unique 0 would be a notification. */
	if (bytes < sizeof(*request.header) || request.header->unique == 0) {
		kvd_count(&split->counters.errors, 1);
		return;
	}
	request.body = request.header + 1;
	request.body_bytes = bytes - sizeof(*request.header);
	if (request.header->len != bytes || (request.header->unique & KVD_UNIQUE_OWN))
		error = -EIO;
	else
		error = dispatch(reader, &request);
	if (error && wants_answer(request.header->opcode))
		kvd_reply_error(split, request.header->unique, error);
}

static void do_work(struct kvd_reader *reader)
{
	kvd_split *split = reader->split;
	struct kvd_entry *entry;

	while (!atomic_load(&split->stopping) && (entry = kvd_pending_work(&split->pending)) != NULL) {
		struct kvd_parked *parked = entry->parked;

		/* What is left must not wait for this one's I/O. */
		if (atomic_load(&split->pending.in_work))
			kvd_split_signal_work(split);
		entry->parked = NULL;
		if (entry->state == KVD_PENDING_UNDO)
			kvd_forward_undo(split, entry);
		/* Free the entry first: the request may have to ask again. */
		kvd_pending_free(&split->pending, entry);
		if (parked) {
			handle_message(reader, parked->message, parked->bytes, parked);
			kvd_parked_free(&split->pending, parked);
		}
	}
}

/* Wait until there may be something to do; -1 ms: for ever. */
static void wait_any(struct kvd_reader *reader, int timeout_ms)
{
	struct epoll_event events[KVD_WAKERS_AT_ONCE];
	uint64_t count;
	int n = epoll_wait(reader->epoll_fd, events, KVD_WAKERS_AT_ONCE, timeout_ms);

	for (int i = 0; i < n; i++) {
		uint64_t source = events[i].data.u64;

		if (source & KVD_SOURCE_STREAM)
			kvd_wait_wake(reader->split, source & ~KVD_SOURCE_STREAM);
		else if (source == KVD_SOURCE_WORK && read(reader->split->work_fd, &count, sizeof(count)) < 0)
			continue; /* EAGAIN: another reader has it */
	}
}

/* READs that wait for a stream have their turn also while requests keep coming. */
static void look_after_waits(struct kvd_reader *reader)
{
	if (atomic_load(&reader->split->waits.count) == 0)
		return;
	wait_any(reader, 0);
	kvd_wait_expire(reader->split);
	kvd_wait_work(reader);
}

static void unmounted(kvd_split *split, int error)
{
	if (!atomic_exchange(&split->unmounted, true))
		kvd_event_post(split, KVD_EVENT_UNMOUNTED, 0, (uint64_t)-error);
	kvd_split_signal_stop(split);
}

void *kvd_reader_main(void *arg)
{
	struct kvd_reader *reader = arg;
	kvd_split *split = reader->split;

	while (!atomic_load(&split->stopping)) {
		ssize_t got;

		do_work(reader);
		look_after_waits(reader);
		got = kvd_sys_fuse_read(split->config.fuse_fd, reader->request, reader->request_bytes);
		if (got > 0)
			handle_message(reader, reader->request, (size_t)got, NULL);
		else if (got == -EAGAIN)
			wait_any(reader, kvd_wait_timeout_ms(split));
		/* ENOENT: the request was aborted while it was read. */
		else if (got != -EINTR && got != -ENOENT)
			unmounted(split, got ? (int)got : -ENODEV);
	}
	return NULL;
}
