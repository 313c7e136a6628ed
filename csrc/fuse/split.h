/*
 * The FUSE split: reads /dev/fuse, answers what is data, forwards what is names and policy.
 *
 * Kernel side: a /dev/fuse descriptor. Peer side: a SOCK_SEQPACKET socket at whose other end libfuse (pyfuse3) takes
 * itself to be alone with a kernel. The two sides negotiate INIT apart from each other: the peer is shown a small, old
 * kernel; the kernel is answered with what this file can do.
 *
 * Data belongs to *objects*, keyed by node id; a node id without an object is the peer's in everything. While an inode
 * is open it has one I/O mode, chosen at the first open and kept until the last release: the kernel refuses mixtures.
 *
 * What libfuse does not speak is asked in words it knows: a SETXATTR on the node with a reserved name that begins with
 * '/', which no client can set (the split answers EOPNOTSUPP to such a name from the kernel):
 *   KVD_ASK_GROW  value = struct kvd_split_ask: may this object hold need_bytes of storage? The peer raises the limit
 *                 with kvd_split_object_limit before it answers 0, or answers the errno for the writer.
 * FUSE_TMPFILE is forwarded as CREATE with the name KVD_NAME_TMPFILE.
 */
#ifndef KVD_FUSE_SPLIT_H
#define KVD_FUSE_SPLIT_H

#include <stdint.h>

/* cffi: begin */
typedef struct kvd_split kvd_split;

enum kvd_split_mode {
	KVD_MODE_PASSTHROUGH = 1, /* the kernel reads and writes the backing file itself */
	KVD_MODE_DIRECT = 2,      /* READ and WRITE come here, past the page cache (FOPEN_DIRECT_IO) */
	KVD_MODE_CACHED = 3,      /* READ and WRITE come here through the page cache: for kernels without
				     FUSE_DIRECT_IO_ALLOW_MMAP */
};

enum kvd_split_feature {
	KVD_FEATURE_PASSTHROUGH = 1,
	KVD_FEATURE_DIRECT_MMAP = 2,
	KVD_FEATURE_READDIRPLUS = 4,
	KVD_FEATURE_ATOMIC_TRUNC = 8,
};

enum kvd_split_event_kind {
	KVD_EVENT_INIT = 1,     /* negotiated; value = features */
	KVD_EVENT_UNMOUNTED = 2, /* the kernel side ended: umount or abort */
	KVD_EVENT_PEER_GONE = 3, /* the peer's socket ended while mounted; requests are answered EIO */
	KVD_EVENT_BAD_PAGE = 4, /* node, value = page whose checksum differs */
	KVD_EVENT_IO_ERROR = 5, /* node, value = errno of a tier file's I/O */
	KVD_EVENT_REFUSED = 6,  /* the kernel is too old; value = its minor version */
};

struct kvd_split_event {
	uint64_t node;
	uint64_t value;
	uint32_t kind;
	uint32_t reserved;
};

struct kvd_split_config {
	int32_t fuse_fd;          /* not owned; becomes non-blocking */
	int32_t peer_fd;          /* not owned */
	uint32_t readers;         /* threads that read fuse_fd */
	uint32_t io_bytes_max;    /* of one READ or WRITE; also max_write and max_pages */
	uint32_t readahead_bytes;
	uint32_t background;      /* max_background */
	uint32_t pending_max;     /* requests in the peer's hands; more are answered ENOMEM */
	uint32_t features;        /* wanted; what the kernel or the caller's rights do not give is left out */
};

/* A page-verified file: sums of the pages that hold data, in order of the runs; a page in no run is a hole. */
struct kvd_split_sums {
	uint32_t page_bytes;
	uint32_t n_runs;
	const uint64_t *runs;     /* n_runs pairs: first page, count */
	const uint32_t *crc;
};

struct kvd_split_object {
	uint64_t node;
	uint32_t mode;
	int32_t fd;               /* the tier file; duplicated, so the caller may close its own */
	int32_t backing_id;       /* with PASSTHROUGH */
	uint32_t writable;        /* WRITE and FALLOCATE are allowed */
	uint64_t limit_bytes;     /* storage that the file may hold (st_blocks); beyond it WRITE and FALLOCATE ask */
	uint64_t size_max_bytes;  /* file size; beyond it EFBIG */
	const struct kvd_split_sums *sums; /* read-only verified file (copied), or NULL */
};

struct kvd_split_ask {
	uint64_t need_bytes;
	uint64_t offset;
	uint64_t length;
	uint32_t opcode;          /* FUSE_WRITE or FUSE_FALLOCATE */
	uint32_t mode;            /* of FALLOCATE */
};

struct kvd_split_stats {
	uint64_t requests;
	uint64_t forwarded;
	uint64_t reads;
	uint64_t read_bytes;
	uint64_t writes;
	uint64_t write_bytes;
	uint64_t asks;
	uint64_t interrupted;
	uint64_t late_replies;    /* the peer answered what had been answered or ended, or sent no sound message */
	uint64_t errors;          /* answers with an error that this file made itself */
	uint64_t pending;
	uint64_t objects;
};

/* All return 0 or -errno unless said otherwise. All are thread-safe. */
int kvd_split_init(const struct kvd_split_config *config, kvd_split **out);
int kvd_split_start(kvd_split *split);
/* Answer what is pending with ENOTCONN, stop the threads. fuse_fd and peer_fd stay open. Idempotent. */
void kvd_split_stop(kvd_split *split);
void kvd_split_fini(kvd_split *split);
/* Readable when events wait; reading it resets it. */
int kvd_split_eventfd(const kvd_split *split);
uint32_t kvd_split_events(kvd_split *split, struct kvd_split_event *out, uint32_t max);
/* Negotiated features, once KVD_EVENT_INIT was seen; 0 before. */
uint32_t kvd_split_features(const kvd_split *split);
/* Register a backing file: > 0 its id, or -errno (-EPERM: no CAP_SYS_ADMIN). */
int kvd_split_backing_open(kvd_split *split, int fd);
int kvd_split_backing_close(kvd_split *split, int backing_id);
/* -EEXIST: the node has one; -EBADMSG: the file is shorter than its sums say; -EINVAL: also O_DIRECT and writable. */
int kvd_split_object_add(kvd_split *split, const struct kvd_split_object *object);
/* Exchange the file behind a DIRECT or CACHED object (promotion while open). Waits for I/O in flight on the old one. */
int kvd_split_object_switch(kvd_split *split, const struct kvd_split_object *object);
int kvd_split_object_limit(kvd_split *split, uint64_t node, uint64_t limit_bytes);
/* Waits for I/O in flight on it. */
int kvd_split_object_remove(kvd_split *split, uint64_t node);
void kvd_split_stats(const kvd_split *split, struct kvd_split_stats *out);
/* Tell the kernel to forget what it caches of a node's data and attributes. Never from within a handler. */
int kvd_split_invalidate(kvd_split *split, uint64_t node);
/* cffi: end */

#define KVD_ASK_GROW "/kvd.grow"
#define KVD_NAME_TMPFILE "/kvd.tmpfile"

#endif
