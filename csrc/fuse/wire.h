/*
 * Parts of the FUSE wire protocol that differ between the linux/fuse.h of 7.31 and 7.45, under names of our own, so that
 * one source builds with any of them. What has been the same since 7.31 is taken from linux/fuse.h.
 */
#ifndef KVD_FUSE_WIRE_H
#define KVD_FUSE_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include <linux/fuse.h>

enum {
	KVD_WIRE_MAJOR = 7,
	KVD_WIRE_MINOR_MIN = 31,  /* the least that has all that we need; also what the peer is shown */
	KVD_WIRE_MINOR_MAX = 41,  /* the newest we know */
	KVD_WIRE_STACK_DEPTH = 1, /* tier files are on a plain file system: passthrough may stack once */
};

enum {
	KVD_WIRE_OP_TMPFILE = 51,
};

/* INIT flags 0..31. */
#define KVD_WIRE_INIT_EXT (1u << 30)
/* INIT flags 32..63, as they stand in flags2. */
#define KVD_WIRE_DIRECT_IO_ALLOW_MMAP2 (1u << (36 - 32))
#define KVD_WIRE_PASSTHROUGH2 (1u << (37 - 32))

enum {
	KVD_WIRE_NOTIFY_INC_EPOCH = 8, /* Linux 6.16, FUSE 7.44; needs no negotiation */
	KVD_WIRE_NAME_BYTES_MAX = 255,
};

#define KVD_WIRE_FOPEN_PASSTHROUGH (1u << 7)

struct kvd_wire_init_in {
	uint32_t major;
	uint32_t minor;
	uint32_t max_readahead;
	uint32_t flags;
	uint32_t flags2; /* with INIT_EXT, like the rest */
	uint32_t reserved[11];
};
static_assert(sizeof(struct kvd_wire_init_in) == 64, "fuse_init_in");

/* What a kernel before INIT_EXT sends, and what the peer is shown. */
enum { KVD_WIRE_INIT_IN_SHORT = 16 };
static_assert(offsetof(struct kvd_wire_init_in, flags2) == KVD_WIRE_INIT_IN_SHORT, "fuse_init_in of 7.31");

struct kvd_wire_init_out {
	uint32_t major;
	uint32_t minor;
	uint32_t max_readahead;
	uint32_t flags;
	uint16_t max_background;
	uint16_t congestion_threshold;
	uint32_t max_write;
	uint32_t time_gran;
	uint16_t max_pages;
	uint16_t map_alignment;
	uint32_t flags2;
	uint32_t max_stack_depth;
	uint32_t reserved[6];
};
static_assert(sizeof(struct kvd_wire_init_out) == 64, "fuse_init_out");
static_assert(offsetof(struct kvd_wire_init_out, flags2) == 32, "fuse_init_out.flags2");
static_assert(offsetof(struct kvd_wire_init_out, max_stack_depth) == 36, "fuse_init_out.max_stack_depth");

struct kvd_wire_open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id; /* with FOPEN_PASSTHROUGH */
};
static_assert(sizeof(struct kvd_wire_open_out) == sizeof(struct fuse_open_out), "fuse_open_out");

/* SETXATTR without FUSE_SETXATTR_EXT, which is never negotiated. */
struct kvd_wire_setxattr_in {
	uint32_t size;
	uint32_t flags;
};
static_assert(sizeof(struct kvd_wire_setxattr_in) == 8, "fuse_setxattr_in of 7.31");

struct kvd_wire_backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t reserved;
};
static_assert(sizeof(struct kvd_wire_backing_map) == 16, "fuse_backing_map");

#define KVD_WIRE_BACKING_OPEN _IOW(229, 1, struct kvd_wire_backing_map)
#define KVD_WIRE_BACKING_CLOSE _IOW(229, 2, uint32_t)

/* Structures from linux/fuse.h whose bytes are patched or built here. */
static_assert(sizeof(struct fuse_in_header) == 40, "fuse_in_header");
static_assert(sizeof(struct fuse_out_header) == 16, "fuse_out_header");
static_assert(sizeof(struct fuse_entry_out) == 128, "fuse_entry_out");
static_assert(sizeof(struct fuse_read_in) == 40, "fuse_read_in");
static_assert(sizeof(struct fuse_write_in) == 40, "fuse_write_in");
static_assert(sizeof(struct fuse_fallocate_in) == 32, "fuse_fallocate_in");
static_assert(sizeof(struct fuse_lseek_in) == 24, "fuse_lseek_in");
static_assert(sizeof(struct fuse_release_in) == 24, "fuse_release_in");
static_assert(sizeof(struct fuse_notify_inval_inode_out) == 24, "fuse_notify_inval_inode_out");
static_assert(sizeof(struct fuse_notify_inval_entry_out) == 16, "fuse_notify_inval_entry_out");

#endif
