/* The system calls that only a real /dev/fuse can answer, and reads of files; tests link a fake twin (tests/c/split_sys_fake.c). */
#ifndef KVD_FUSE_SYS_H
#define KVD_FUSE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Bytes, 0 at the end of a socket, or -errno. */
ssize_t kvd_sys_fuse_read(int fuse_fd, void *buffer, size_t bytes);
/* Bytes or -errno. */
ssize_t kvd_sys_fuse_writev(int fuse_fd, const struct iovec *iov, int count);
ssize_t kvd_sys_pread(int fd, void *buffer, size_t bytes, uint64_t offset);
/* > 0 the id, or -errno. */
int kvd_sys_backing_open(int fuse_fd, int fd);
int kvd_sys_backing_close(int fuse_fd, int backing_id);
/* Whether this process holds CAP_SYS_ADMIN, which backing files need. */
bool kvd_sys_may_back(void);

#endif
