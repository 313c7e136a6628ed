/* The fake twin of csrc/fuse/sys.c: a socket is /dev/fuse, and errors can be injected. */
#include <errno.h>
#include <unistd.h>

#include "fuse/sys.h"
#include "split_rig.h"

atomic_int fake_read_error;
atomic_int fake_write_error;
atomic_bool fake_may_back = true;
atomic_int fake_backing_closed;

ssize_t kvd_sys_fuse_read(int fuse_fd, void *buffer, size_t bytes)
{
	int error = atomic_exchange(&fake_read_error, 0);
	ssize_t got;

	if (error)
		return -error;
	got = read(fuse_fd, buffer, bytes);
	return got < 0 ? -errno : got;
}

ssize_t kvd_sys_fuse_writev(int fuse_fd, const struct iovec *iov, int count)
{
	int error = atomic_exchange(&fake_write_error, 0);
	ssize_t put;

	if (error)
		return -error;
	put = writev(fuse_fd, iov, count);
	return put < 0 ? -errno : put;
}

int kvd_sys_backing_open(int fuse_fd, int fd)
{
	return fuse_fd >= 0 && fd >= 0 ? 7 : -EBADF;
}

int kvd_sys_backing_close(int fuse_fd, int backing_id)
{
	atomic_store(&fake_backing_closed, backing_id);
	return fuse_fd >= 0 ? 0 : -EBADF;
}

bool kvd_sys_may_back(void)
{
	return atomic_load(&fake_may_back);
}
