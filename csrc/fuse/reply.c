#include <errno.h>
#include <poll.h>

#include "fuse/internal.h"
#include "fuse/sys.h"

static int write_whole(kvd_split *split, const struct iovec *iov, int count)
{
	for (;;) {
		ssize_t put = kvd_sys_fuse_writev(split->config.fuse_fd, iov, count);

		if (put >= 0)
			return 0;
		if (put == -EINTR)
			continue;
		if (put != -EAGAIN)
			return (int)put;
		struct pollfd room = { .fd = split->config.fuse_fd, .events = POLLOUT };

		if (poll(&room, 1, KVD_WRITE_WAIT_MS) == 0)
			return -EAGAIN;
	}
}

int kvd_reply_raw(kvd_split *split, const void *message, size_t bytes)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = bytes };

	return write_whole(split, &iov, 1);
}

int kvd_reply_data(kvd_split *split, uint64_t unique, const void *data, size_t bytes)
{
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + bytes), .unique = unique };
	struct iovec iov[] = {
		{ .iov_base = &out, .iov_len = sizeof(out) },
		{ .iov_base = (void *)(uintptr_t)data, .iov_len = bytes },
	};

	return write_whole(split, iov, bytes ? 2 : 1);
}

int kvd_reply_error(kvd_split *split, uint64_t unique, int error)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = error, .unique = unique };

	kvd_count(&split->counters.errors, 1);
	return kvd_reply_raw(split, &out, sizeof(out));
}
