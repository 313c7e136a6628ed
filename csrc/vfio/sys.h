/* The system calls of the kernel's VFIO; tests link a fake twin (tests/c/vfio_sys_fake.c). */
#ifndef KVD_VFIO_SYS_H
#define KVD_VFIO_SYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The descriptor or -errno. */
int kvd_vfio_sys_open(const char *path);
void kvd_vfio_sys_close(int fd);
/* What ioctl(2) returns, or -errno. */
int kvd_vfio_sys_ioctl(int fd, unsigned long request, void *argument);
/* Bytes or -errno. */
ssize_t kvd_vfio_sys_pread(int fd, void *data, size_t bytes, uint64_t offset);
ssize_t kvd_vfio_sys_pwrite(int fd, const void *data, size_t bytes, uint64_t offset);
int kvd_vfio_sys_mmap(int fd, uint64_t offset, size_t bytes, int prot, void **out);
void kvd_vfio_sys_munmap(void *address, size_t bytes);
/* The last part of where a symbolic link leads. */
int kvd_vfio_sys_link_name(const char *path, char *out, size_t room);
/* The name in a folder that begins with `prefix`; -ENOENT: there is none. */
int kvd_vfio_sys_entry(const char *folder, const char *prefix, char *out, size_t room);

#endif
