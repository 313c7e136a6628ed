/* The fake twin of csrc/fuse/sys.c: a socket is /dev/fuse, and errors can be injected. */
#include <errno.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuse/sys.h"
#include "split_rig.h"

atomic_int fake_read_error;
atomic_int fake_write_error;
atomic_bool fake_may_back = true;
atomic_int fake_backing_closed;
atomic_ullong fake_hang_ino;
atomic_int fake_hanging;
atomic_bool fake_dawdles;
void (*_Atomic fake_on_lost)(uint64_t unique);

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
	static atomic_uint turn;
	void (*on_lost)(uint64_t unique) = atomic_load(&fake_on_lost);
	ssize_t put;

	if (atomic_load(&fake_dawdles) && atomic_fetch_add(&turn, 1) % 4 == 0)
		sched_yield();
	if (error && on_lost)
		on_lost(((const struct fuse_out_header *)iov[0].iov_base)->unique);
	if (error)
		return -error;
	put = writev(fuse_fd, iov, count);
	return put < 0 ? -errno : put;
}

static bool hangs(int fd)
{
	unsigned long long ino = atomic_load(&fake_hang_ino);
	struct stat st;

	return ino != 0 && fstat(fd, &st) == 0 && st.st_ino == ino;
}

ssize_t kvd_sys_pread(int fd, void *buffer, size_t bytes, uint64_t offset)
{
	ssize_t got;

	if (hangs(fd)) {
		atomic_fetch_add(&fake_hanging, 1);
		while (hangs(fd))
			sched_yield();
		atomic_fetch_sub(&fake_hanging, 1);
	}
	got = pread(fd, buffer, bytes, (off_t)offset);
	return got < 0 ? -errno : got;
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
