/* Files with checksums, and those that are striped: what the other files of the split see of verify.c and parts.c. */
#ifndef KVD_FUSE_VERIFY_H
#define KVD_FUSE_VERIFY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fuse/split.h"

struct kvd_object;

#define KVD_PAGE_NONE UINT64_MAX

/* verify.c */
/* Bytes read, less than asked at the end of the file only, or -errno. */
ssize_t kvd_pread_full(const struct kvd_object *object, uint8_t *buffer, size_t bytes, uint64_t offset);
/* Fill `buffer` with the whole pages that hold [from, to), `from` being a page's first byte. -EBADMSG, *bad_page: wrong sum. */
int kvd_verify_read(const struct kvd_object *object, uint8_t *buffer, uint64_t from, uint64_t to, uint64_t *bad_page);
/* Copy the sums of a file of `size_bytes` bytes. -EBADMSG: they tell of pages beyond its end. */
int kvd_verify_init(struct kvd_object *object, const struct kvd_split_sums *sums, uint64_t size_bytes);
void kvd_verify_fini(struct kvd_object *object);
/* SEEK_DATA and SEEK_HOLE by the runs: where, or -errno. */
int64_t kvd_verify_seek(const struct kvd_object *object, uint64_t offset, uint32_t whence);

/* parts.c */
/* After kvd_verify_init. */
int kvd_parts_init(struct kvd_object *object, const struct kvd_split_object *want);
void kvd_parts_fini(struct kvd_object *object);
/* The file that has the byte at `offset`; *bytes is cut at the end of its stripe. */
int kvd_parts_at(const struct kvd_object *object, uint64_t offset, size_t *bytes);
uint32_t kvd_parts_device(const struct kvd_object *object, uint64_t offset);

#endif
