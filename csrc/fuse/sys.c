#include "fuse/sys.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuse/wire.h"

ssize_t kvd_sys_fuse_read(int fuse_fd, void *buffer, size_t bytes)
{
	ssize_t got = read(fuse_fd, buffer, bytes);

	return got < 0 ? -errno : got;
}

ssize_t kvd_sys_fuse_writev(int fuse_fd, const struct iovec *iov, int count)
{
	ssize_t put = writev(fuse_fd, iov, count);

	return put < 0 ? -errno : put;
}

ssize_t kvd_sys_pread(int fd, void *buffer, size_t bytes, uint64_t offset)
{
	ssize_t got = pread(fd, buffer, bytes, (off_t)offset);

	return got < 0 ? -errno : got;
}

int kvd_sys_backing_open(int fuse_fd, int fd)
{
	struct kvd_wire_backing_map map = { .fd = fd };
	int id = ioctl(fuse_fd, KVD_WIRE_BACKING_OPEN, &map);

	return id < 0 ? -errno : id;
}

int kvd_sys_backing_close(int fuse_fd, int backing_id)
{
	uint32_t id = (uint32_t)backing_id;

	return ioctl(fuse_fd, KVD_WIRE_BACKING_CLOSE, &id) < 0 ? -errno : 0;
}

bool kvd_sys_may_back(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

	if (syscall(SYS_capget, &header, data))
		return false;
	return (data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) != 0;
}
