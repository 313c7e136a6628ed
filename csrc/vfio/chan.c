#include "vfio/chan.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vfio/internal.h"

union chan_control {
	struct cmsghdr align;
	uint8_t bytes[CMSG_SPACE(KVD_VFU_MSG_FDS_MAX * sizeof(int))];
};

uint64_t kvd_vfio_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * KVD_VFIO_NS_PER_S + (uint64_t)now.tv_nsec;
}

int kvd_vfio_chan_init(struct kvd_vfio_chan *chan, int fd, size_t in_room)
{
	*chan = (struct kvd_vfio_chan){.fd = fd, .in = malloc(in_room), .in_room = in_room};
	return chan->in ? 0 : -ENOMEM;
}

void kvd_vfio_chan_fini(struct kvd_vfio_chan *chan)
{
	kvd_vfio_chan_drop(chan);
	free(chan->in);
	if (chan->fd >= 0)
		close(chan->fd);
	*chan = (struct kvd_vfio_chan){.fd = -1};
}

void kvd_vfio_chan_drop(struct kvd_vfio_chan *chan)
{
	for (uint32_t i = 0; i < chan->n_fds; i++) {
		if (chan->fds[i] >= 0)
			close(chan->fds[i]);
	}
	chan->n_fds = 0;
	chan->in_have = 0;
}

int kvd_vfio_chan_take_fd(struct kvd_vfio_chan *chan)
{
	int fd = chan->n_fds ? chan->fds[0] : -1;

	if (chan->n_fds)
		chan->fds[0] = -1;
	return fd;
}

/* Bytes that the message under way still lacks; 0: it is whole. */
static size_t lacks(const struct kvd_vfio_chan *chan)
{
	struct kvd_vfu_header header;

	if (chan->in_have < sizeof(header))
		return sizeof(header) - chan->in_have;
	memcpy(&header, chan->in, sizeof(header));
	return header.bytes - chan->in_have;
}

/* Keep the descriptors that came; the message may have as many as fit. */
static int keep_fds(struct kvd_vfio_chan *chan, struct msghdr *message)
{
	int err = message->msg_flags & MSG_CTRUNC ? -ENODEV : 0;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
		size_t n = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + i * sizeof(fd), sizeof(fd));
			if (chan->n_fds < KVD_VFU_MSG_FDS_MAX) {
				chan->fds[chan->n_fds++] = fd;
			} else {
				close(fd);
				err = -ENODEV;
			}
		}
	}
	return err;
}

/* One read; never beyond the end of the message, whose descriptors then stay apart from the next one's. */
static int take(struct kvd_vfio_chan *chan)
{
	union chan_control control;
	struct iovec into = {.iov_base = chan->in + chan->in_have, .iov_len = lacks(chan)};
	struct msghdr message = {
		.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	struct kvd_vfu_header header;
	ssize_t n = recvmsg(chan->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int err;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -ENODEV;
	err = keep_fds(chan, &message);
	if (err || n == 0)
		return -ENODEV;
	chan->in_have += (size_t)n;
	if (chan->in_have == sizeof(header)) {
		memcpy(&header, chan->in, sizeof(header));
		if (header.bytes < sizeof(header) || header.bytes > chan->in_room)
			return -ENODEV;
	}
	return 0;
}

/* Wait for one of `events`; which came, or -errno. */
static int wait_for(struct kvd_vfio_chan *chan, short events, uint64_t until_ns)
{
	for (;;) {
		struct pollfd poll_fd = {.fd = chan->fd, .events = events};
		uint64_t now_ns = kvd_vfio_now_ns();
		uint64_t left_ms;
		int n;

		if (now_ns >= until_ns)
			return -ETIMEDOUT;
		left_ms = (until_ns - now_ns + KVD_VFIO_NS_PER_MS - 1) / KVD_VFIO_NS_PER_MS;
		n = poll(&poll_fd, 1, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			return poll_fd.revents;
	}
}

int kvd_vfio_chan_look(struct kvd_vfio_chan *chan)
{
	while (lacks(chan)) {
		int err = take(chan);

		if (err)
			return err;
	}
	return 0;
}

int kvd_vfio_chan_receive(struct kvd_vfio_chan *chan, uint64_t until_ns)
{
	/* Waits before it reads, as hardly ever an answer is there at once. */
	while (lacks(chan)) {
		int err = wait_for(chan, POLLIN, until_ns);

		if (err < 0)
			return err;
		err = kvd_vfio_chan_look(chan);
		if (err != -EAGAIN)
			return err;
	}
	return 0;
}

/* Step over what was sent. */
static void advance(struct msghdr *message, size_t bytes)
{
	while (bytes) {
		struct iovec *piece = message->msg_iov;
		size_t step = bytes < piece->iov_len ? bytes : piece->iov_len;

		piece->iov_base = (uint8_t *)piece->iov_base + step;
		piece->iov_len -= step;
		bytes -= step;
		if (!piece->iov_len) {
			message->msg_iov++;
			message->msg_iovlen--;
		}
	}
}

/* The socket takes nothing: wait until it does, reading on if something comes. */
static int wait_to_send(struct kvd_vfio_chan *chan, uint64_t until_ns)
{
	short events = lacks(chan) ? POLLOUT | POLLIN : POLLOUT;
	int got = wait_for(chan, events, until_ns);
	int err = 0;

	if (got < 0)
		return got;
	if (got & POLLIN && lacks(chan))
		err = take(chan);
	return err == -EAGAIN ? 0 : err;
}

static void attach(struct msghdr *message, union chan_control *control, const int *fds, uint32_t n_fds)
{
	struct cmsghdr *part;

	memset(control, 0, sizeof(*control));
	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(n_fds * sizeof(*fds));
	part = CMSG_FIRSTHDR(message);
	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(n_fds * sizeof(*fds));
	memcpy(CMSG_DATA(part), fds, n_fds * sizeof(*fds));
}

int kvd_vfio_chan_send(struct kvd_vfio_chan *chan, const struct iovec *pieces, uint32_t n_pieces, const int *fds,
		       uint32_t n_fds, uint64_t until_ns)
{
	union chan_control control;
	struct iovec copy[KVD_VFIO_CHAN_PIECES_MAX];
	struct msghdr message = {.msg_iov = copy};
	size_t left = 0;

	if (n_pieces > KVD_VFIO_CHAN_PIECES_MAX || n_fds > KVD_VFU_MSG_FDS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < n_pieces; i++) {
		/* Pieces without bytes are left out, so that each step of `advance` gets on. */
		if (pieces[i].iov_len)
			copy[message.msg_iovlen++] = pieces[i];
		left += pieces[i].iov_len;
	}
	if (n_fds)
		attach(&message, &control, fds, n_fds);
	while (left) {
		ssize_t n = sendmsg(chan->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
		int err;

		if (n >= 0) {
			left -= (size_t)n;
			advance(&message, (size_t)n);
			message.msg_control = NULL;
			message.msg_controllen = 0;
			continue;
		}
		if (errno == EINTR)
			continue;
		/* The descriptors themselves were refused, nothing is sent yet. */
		if (message.msg_control && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
			return -errno;
		err = errno == EAGAIN ? wait_to_send(chan, until_ns) : -ENODEV;
		if (err)
			return err;
	}
	return 0;
}
