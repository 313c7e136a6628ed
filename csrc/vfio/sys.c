#include "vfio/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

int kvd_vfio_sys_open(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

void kvd_vfio_sys_close(int fd)
{
	close(fd);
}

int kvd_vfio_sys_ioctl(int fd, unsigned long request, void *argument)
{
	int got = ioctl(fd, request, argument);

	return got < 0 ? -errno : got;
}

ssize_t kvd_vfio_sys_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
	ssize_t got = pread(fd, data, bytes, (off_t)offset);

	return got < 0 ? -errno : got;
}

ssize_t kvd_vfio_sys_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
	ssize_t put = pwrite(fd, data, bytes, (off_t)offset);

	return put < 0 ? -errno : put;
}

int kvd_vfio_sys_mmap(int fd, uint64_t offset, size_t bytes, int prot, void **out)
{
	void *address = mmap(NULL, bytes, prot, MAP_SHARED, fd, (off_t)offset);

	if (address == MAP_FAILED)
		return -errno;
	*out = address;
	return 0;
}

void kvd_vfio_sys_munmap(void *address, size_t bytes)
{
	munmap(address, bytes);
}

static int copy_name(const char *name, char *out, size_t room)
{
	int bytes = snprintf(out, room, "%s", name);

	return bytes < 0 || (size_t)bytes >= room ? -ENAMETOOLONG : 0;
}

int kvd_vfio_sys_link_name(const char *path, char *out, size_t room)
{
	char target[PATH_MAX];
	ssize_t bytes = readlink(path, target, sizeof(target) - 1);
	const char *slash;

	if (bytes < 0)
		return -errno;
	target[bytes] = '\0';
	slash = strrchr(target, '/');
	return copy_name(slash ? slash + 1 : target, out, room);
}

int kvd_vfio_sys_entry(const char *folder, const char *prefix, char *out, size_t room)
{
	DIR *open_folder = opendir(folder);
	struct dirent *entry;
	int err = -ENOENT;

	if (!open_folder)
		return -errno;
	while (err == -ENOENT && (entry = readdir(open_folder))) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
			err = copy_name(entry->d_name, out, room);
	}
	closedir(open_folder);
	return err;
}
