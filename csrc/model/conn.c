/* Messages on a socket: each way at most one under way, none of them waited for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "model/internal.h"

#define HEADER_BYTES ((uint32_t)sizeof(struct kvd_vfu_header))

int kvd_card_conn_init(struct kvd_card_conn *conn, int fd)
{
	*conn = (struct kvd_card_conn){.fd = fd};
	conn->in = malloc(KVD_CARD_PAYLOAD_BYTES_MAX);
	conn->out = malloc(HEADER_BYTES + KVD_CARD_PAYLOAD_BYTES_MAX);
	if (!conn->in || !conn->out) {
		kvd_card_conn_fini(conn);
		return -ENOMEM;
	}
	return 0;
}

static void close_all(const int *fds, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

void kvd_card_conn_fini(struct kvd_card_conn *conn)
{
	while (conn->deferred_count)
		kvd_card_conn_deferred_next(conn);
	close_all(conn->fds, conn->fd_count);
	free(conn->in);
	free(conn->out);
	if (conn->fd >= 0)
		close(conn->fd);
	*conn = (struct kvd_card_conn){.fd = -1};
}

static int take_fds(struct kvd_card_conn *conn, struct msghdr *message)
{
	int err = message->msg_flags & MSG_CTRUNC ? -EPROTO : 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		uint32_t count;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (uint32_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (conn->fd_count < KVD_CARD_FDS_MAX) {
				conn->fds[conn->fd_count++] = fd;
				continue;
			}
			close(fd);
			err = -EPROTO;
		}
	}
	return err;
}

/* Read up to `bytes`: never beyond the present message, so that its descriptors are its own. */
static int read_some(struct kvd_card_conn *conn, void *data, uint32_t bytes)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * KVD_CARD_FDS_MAX)];
		struct cmsghdr align;
	} control;
	struct iovec iov = {.iov_base = data, .iov_len = bytes};
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space),
	};
	ssize_t n;
	int err;

	do
		n = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	err = take_fds(conn, &message);
	if (err)
		return err;
	if (!n)
		return -EPIPE;
	conn->have += (uint32_t)n;
	return 1;
}

int kvd_card_conn_receive(struct kvd_card_conn *conn)
{
	int got;

	while (conn->have < HEADER_BYTES) {
		got = read_some(conn, (uint8_t *)&conn->header + conn->have, HEADER_BYTES - conn->have);
		if (got <= 0)
			return got;
	}
	if (conn->header.bytes < HEADER_BYTES || conn->header.bytes - HEADER_BYTES > KVD_CARD_PAYLOAD_BYTES_MAX)
		return -EPROTO;
	while (conn->have < conn->header.bytes) {
		got = read_some(conn, conn->in + (conn->have - HEADER_BYTES), conn->header.bytes - conn->have);
		if (got <= 0)
			return got;
	}
	return 1;
}

void kvd_card_conn_request(struct kvd_card_conn *conn, struct kvd_card_request *out)
{
	*out = (struct kvd_card_request){
		.header = conn->header,
		.payload = conn->in,
		.bytes = conn->header.bytes - HEADER_BYTES,
		.fds = conn->fds,
		.fd_count = conn->fd_count,
	};
}

void kvd_card_conn_next(struct kvd_card_conn *conn)
{
	close_all(conn->fds, conn->fd_count);
	conn->fd_count = 0;
	conn->have = 0;
}

int kvd_card_conn_defer(struct kvd_card_conn *conn)
{
	uint32_t bytes = conn->header.bytes - HEADER_BYTES;
	struct kvd_card_deferred *deferred;

	if (conn->deferred_count == KVD_CARD_DEFERRED_MAX)
		return -ENOBUFS;
	deferred = &conn->deferred[(conn->deferred_first + conn->deferred_count) % KVD_CARD_DEFERRED_MAX];
	*deferred = (struct kvd_card_deferred){.header = conn->header, .fd_count = conn->fd_count};
	deferred->payload = malloc(bytes + 1); /* never of 0 bytes */
	deferred->fds = malloc((conn->fd_count + 1) * sizeof(int));
	if (!deferred->payload || !deferred->fds) {
		free(deferred->payload);
		free(deferred->fds);
		return -ENOBUFS;
	}
	memcpy(deferred->payload, conn->in, bytes);
	memcpy(deferred->fds, conn->fds, conn->fd_count * sizeof(int));
	conn->deferred_count++;
	conn->fd_count = 0;
	conn->have = 0;
	return 0;
}

bool kvd_card_conn_deferred(struct kvd_card_conn *conn, struct kvd_card_request *out)
{
	struct kvd_card_deferred *deferred = &conn->deferred[conn->deferred_first];

	if (!conn->deferred_count)
		return false;
	*out = (struct kvd_card_request){
		.header = deferred->header,
		.payload = deferred->payload,
		.bytes = deferred->header.bytes - HEADER_BYTES,
		.fds = deferred->fds,
		.fd_count = deferred->fd_count,
	};
	return true;
}

void kvd_card_conn_deferred_next(struct kvd_card_conn *conn)
{
	struct kvd_card_deferred *deferred = &conn->deferred[conn->deferred_first];

	close_all(deferred->fds, deferred->fd_count);
	free(deferred->payload);
	free(deferred->fds);
	conn->deferred_first = (conn->deferred_first + 1) % KVD_CARD_DEFERRED_MAX;
	conn->deferred_count--;
}

void kvd_card_conn_reply_begin(struct kvd_card_conn *conn, struct kvd_card_reply *reply)
{
	*reply = (struct kvd_card_reply){.payload = conn->out + HEADER_BYTES};
}

int kvd_card_conn_send(struct kvd_card_conn *conn, const struct kvd_vfu_header *header,
		       const struct kvd_card_reply *reply)
{
	struct kvd_vfu_header whole = *header;

	whole.bytes = HEADER_BYTES + reply->bytes;
	memcpy(conn->out, &whole, sizeof(whole));
	conn->out_bytes = whole.bytes;
	conn->out_sent = 0;
	conn->out_fd_count = reply->fd_count;
	memcpy(conn->out_fds, reply->fds, sizeof(conn->out_fds));
	return kvd_card_conn_flush(conn);
}

int kvd_card_conn_flush(struct kvd_card_conn *conn)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = {0};

	while (conn->out_sent < conn->out_bytes) {
		struct iovec iov = {
			.iov_base = conn->out + conn->out_sent,
			.iov_len = conn->out_bytes - conn->out_sent,
		};
		struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
		ssize_t n;

		if (conn->out_fd_count) {
			control.header.cmsg_level = SOL_SOCKET;
			control.header.cmsg_type = SCM_RIGHTS;
			control.header.cmsg_len = CMSG_LEN(sizeof(int));
			memcpy(CMSG_DATA(&control.header), conn->out_fds, sizeof(int));
			message.msg_control = control.space;
			message.msg_controllen = sizeof(control.space);
		}
		n = sendmsg(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 1 : -errno;
		conn->out_sent += (uint32_t)n;
		conn->out_fd_count = 0;
	}
	return 0;
}
