/* Messages to the peer. Only readers send. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "fuse/internal.h"

/* Wait for room in the peer's socket, or for the stop. */
static int wait_room(kvd_split *split)
{
	struct pollfd fds[] = {
		{ .fd = split->config.peer_fd, .events = POLLOUT },
		{ .fd = split->stop_fd, .events = POLLIN },
	};

	while (poll(fds, 2, -1) < 0)
		if (errno != EINTR)
			return -errno;
	return fds[1].revents ? -ENOTCONN : 0;
}

static int send_peer(kvd_split *split, struct iovec *iov, size_t count)
{
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = count };
	int error;

	while (sendmsg(split->config.peer_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -EIO; /* the peer's thread sees its end too, and says so */
		error = wait_room(split);
		if (error)
			return error;
	}
	kvd_count(&split->counters.forwarded, 1);
	return 0;
}

/*
 * Enter a request as pending, then send it; the peer may answer before the send returns. If it can't be sent and was not
 * given up meanwhile, the error is the caller's to answer.
 */
static int send_pending(kvd_split *split, const struct fuse_in_header *entered, uint32_t open_flags,
			struct kvd_parked *parked, struct iovec *iov, size_t count)
{
	struct kvd_pending *pending = &split->pending;
	struct kvd_entry *entry;
	bool answered;
	int error = kvd_pending_add(pending, entered, open_flags, parked);

	if (error) {
		if (error == -EINTR)
			kvd_count(&split->counters.interrupted, 1);
		kvd_parked_free(pending, parked);
		return error;
	}
	error = send_peer(split, iov, count);
	if (!error)
		return 0;
	entry = kvd_pending_take(pending, entered->unique);
	if (!entry)
		return 0; /* drained, and so answered */
	answered = entry->state == KVD_PENDING_ABANDONED;
	kvd_pending_free(pending, entry);
	return answered ? 0 : error;
}

static struct iovec whole(const struct kvd_request *request)
{
	return (struct iovec){ .iov_base = request->header, .iov_len = request->header->len };
}

int kvd_forward(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_open_in *open_in = request->body;
	bool opens = request->header->opcode == FUSE_OPEN || request->header->opcode == FUSE_CREATE;
	struct iovec iov = whole(request);

	if (opens && request->body_bytes < sizeof(*open_in))
		return -EINVAL;
	/* fuse_create_in begins with the flags as well. */
	return send_pending(split, request->header, opens ? open_in->flags : 0, NULL, &iov, 1);
}

int kvd_forward_silent(kvd_split *split, const struct kvd_request *request)
{
	struct iovec iov = whole(request);

	/* Nobody waits; without a peer there is nothing left to forget. */
	(void)send_peer(split, &iov, 1);
	return 0;
}

int kvd_forward_io(kvd_split *split, const struct kvd_request *request)
{
	struct fuse_in_header *header = request->header;
	struct iovec iov;

	/* fuse_read_in and fuse_write_in have `size` in one place. */
	static_assert(offsetof(struct fuse_read_in, size) == offsetof(struct fuse_write_in, size), "size");
	struct fuse_write_in *in = request->body;

	if (in->size > KVD_FORWARD_BYTES_MAX) {
		if (header->opcode == FUSE_WRITE)
			header->len -= in->size - KVD_FORWARD_BYTES_MAX;
		in->size = KVD_FORWARD_BYTES_MAX;
	}
	iov = whole(request);
	return send_pending(split, header, 0, NULL, &iov, 1);
}

int kvd_forward_tmpfile(kvd_split *split, const struct kvd_request *request)
{
	struct fuse_in_header header = *request->header;
	struct fuse_create_in in;
	char name[] = KVD_NAME_TMPFILE;
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = &in, .iov_len = sizeof(in) },
		{ .iov_base = name, .iov_len = sizeof(name) },
	};

	if (request->body_bytes < sizeof(in))
		return -EINVAL;
	memcpy(&in, request->body, sizeof(in));
	header.opcode = FUSE_CREATE;
	header.len = sizeof(header) + sizeof(in) + sizeof(name);
	return send_pending(split, &header, in.flags, NULL, iov, 3);
}

int kvd_forward_init(kvd_split *split, const struct kvd_request *request, const struct kvd_wire_init_in *shown)
{
	struct fuse_in_header header = *request->header;
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)(uintptr_t)shown, .iov_len = KVD_WIRE_INIT_IN_SHORT },
	};

	header.len = sizeof(header) + KVD_WIRE_INIT_IN_SHORT;
	return send_pending(split, &header, 0, NULL, iov, 2);
}

int kvd_forward_ask(kvd_split *split, const struct kvd_request *request, const struct kvd_split_ask *ask)
{
	struct fuse_in_header header = *request->header;
	struct kvd_wire_setxattr_in in = { .size = sizeof(*ask) };
	char name[] = KVD_ASK_GROW;
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = &in, .iov_len = sizeof(in) },
		{ .iov_base = name, .iov_len = sizeof(name) },
		{ .iov_base = (void *)(uintptr_t)ask, .iov_len = sizeof(*ask) },
	};
	struct kvd_parked *parked = kvd_parked_new(&split->pending, request);

	/* To wait for room would take this reader from the requests that make room. */
	if (!parked)
		return -ENOMEM;
	parked->asked_bytes = ask->need_bytes;
	parked->asks = request->asks + 1;
	header.opcode = FUSE_SETXATTR;
	header.len = sizeof(header) + sizeof(in) + sizeof(name) + sizeof(*ask);
	kvd_count(&split->counters.asks, 1);
	return send_pending(split, &header, 0, parked, iov, 4);
}

static void send_release(kvd_split *split, const struct kvd_entry *entry)
{
	struct {
		struct fuse_in_header header;
		struct fuse_release_in body;
	} message = {
		.header = {
			.len = sizeof(message),
			.opcode = entry->release_opcode,
			.unique = entry->unique | KVD_UNIQUE_OWN,
			.nodeid = entry->node,
		},
		.body = { .fh = entry->fh, .flags = entry->open_flags },
	};
	struct iovec iov = { .iov_base = &message, .iov_len = sizeof(message) };

	(void)send_peer(split, &iov, 1);
}

void kvd_forward_undo(kvd_split *split, const struct kvd_entry *entry)
{
	struct {
		struct fuse_in_header header;
		struct fuse_forget_in body;
	} message = {
		.header = {
			.len = sizeof(message),
			.opcode = FUSE_FORGET,
			.unique = entry->unique | KVD_UNIQUE_OWN,
			.nodeid = entry->node,
		},
		.body = { .nlookup = entry->forgets },
	};
	struct iovec iov = { .iov_base = &message, .iov_len = sizeof(message) };

	if (entry->release_opcode)
		send_release(split, entry);
	if (entry->forgets)
		(void)send_peer(split, &iov, 1);
}
