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
	KVD_EVENT_FREED = 7,    /* an object of the hot table lost its last lease (kvd_hot_watch) */
};

struct kvd_split_event {
	uint64_t node;
	uint64_t value;
	uint32_t kind;
	uint32_t device;          /* 1 + that of a cold read with an IO_ERROR; 0: none is to blame */
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
	uint32_t hot_inodes_max;  /* of the hot table; also of its folders. 0: there is none */
	uint32_t hot_names_max;   /* of the hot table, those known not to be there included. 0: there is none */
	uint32_t hot_absent_ms;   /* how long the kernel may keep that a name is not there */
	uint32_t read_wait_ms;    /* what a READ waits for the pages of a stream, or for its turn with a device; then EIO */
	uint32_t device_wait_ms;  /* what a device may take for a READ of a cold object; then EIO, and IO_ERROR with ETIMEDOUT */
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
	const int32_t *part_fds;  /* of a striped verified file (duplicated), the first is fd; each has its length */
	uint64_t stripe_bytes;    /* that go to one part before the next one's turn; a multiple of page_bytes */
	uint32_t n_parts;         /* 0 or 1: fd is the whole file; at most KVD_SPLIT_PARTS_MAX */
	uint32_t reserved;
	const uint32_t *devices;  /* of a verified file: each part's, below KVD_SPLIT_DEVICES_MAX; NULL: all 0 */
	/*
	 * 0, or a struct kvd_stream (common/stream.h) with a non-blocking eventfd: `fd` is being filled. DIRECT or CACHED,
	 * read-only, of its final length, with sums whose `crc` is not looked at. The caller's until object_remove or
	 * object_switch has returned: the former answers READs that still wait with EIO, the latter serves them anew.
	 */
	uint64_t stream_address;
	/* Of a writable PASSTHROUGH: while its file system has less free, what may make the file grow asks first. */
	uint64_t gate_free_bytes;
};

struct kvd_split_ask {
	uint64_t need_bytes;
	uint64_t offset;
	uint64_t length;
	uint32_t opcode;          /* FUSE_WRITE or FUSE_FALLOCATE; FUSE_GETXATTR: a write(2) in passthrough is held up */
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
	uint64_t waiting;         /* READs that wait for pages of a stream */
	uint64_t waited;          /* how many ever did */
	uint64_t cold_reading;    /* READs of cold objects that are queued or under way */
	uint64_t cold_given_up;   /* those that a device keeps though nobody waits for them any more */
	/* Answered from the hot table. */
	uint64_t hot_lookups;     /* of names that are there */
	uint64_t hot_negatives;   /* of names that are not */
	uint64_t hot_getattrs;
	uint64_t hot_opens;
	uint64_t hot_releases;
	uint64_t hot_readdirs;    /* READDIR and READDIRPLUS */
	/* What it holds. */
	uint64_t hot_inodes;
	uint64_t hot_names;
	uint64_t hot_folders;
	uint64_t hot_shared;      /* objects whose OPENs for reading it answers */
	uint64_t hot_leases;      /* opens that it gave, and that were not released */
};

/*
 * The hot table (docs/concurrency.md): what the split answers LOOKUP, GETATTR, OPEN, RELEASE, READDIR(PLUS) and FORGET from.
 * Only the control plane changes it, from one thread: it makes an entry unsure, changes what the entry tells, and settles it.
 * Once such a call has returned, no answer made from what was before is on its way.
 */
enum kvd_hot_folder_state {
	KVD_HOT_PARTIAL = 0,  /* a name that the table does not hold may be there */
	KVD_HOT_COMPLETE = 1, /* the table holds every name: misses and listings are answered */
};

enum {
	KVD_HOT_BLKSIZE_BYTES = 65536, /* the st_blksize that is told */
	KVD_HOT_NAME_BYTES_MAX = 255,
};

struct kvd_hot_attr {
	uint64_t node;
	uint64_t size;
	uint64_t held_bytes;       /* st_blocks in bytes */
	int64_t atime_ns;
	int64_t mtime_ns;
	int64_t ctime_ns;
	uint32_t mode;
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint32_t rdev;
	uint32_t entry_timeout_ms; /* how long the kernel may keep a name of it */
	uint32_t attr_timeout_ms;
	uint32_t reserved;
};

/* What the table counted of an inode, and hands to the caller. */
struct kvd_hot_gone {
	uint64_t node;
	uint64_t lookups;
	uint64_t leases;
	uint64_t opens;           /* since the last kvd_hot_used that told of it */
};

struct kvd_hot_use {
	uint64_t node;
	uint32_t opens;           /* since the last time */
	uint32_t leases;          /* now */
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
/*
 * Exchange the file behind a DIRECT or CACHED object (promotion while open). Waits for I/O in flight on the old one, but for
 * reads of a cold one: those are served anew.
 */
int kvd_split_object_switch(kvd_split *split, const struct kvd_split_object *object);
int kvd_split_object_limit(kvd_split *split, uint64_t node, uint64_t limit_bytes);
/* Of a device that is not usable READs of cold objects are EIO at once, also those that it keeps; all are usable at first. */
int kvd_split_device(kvd_split *split, uint32_t device, uint32_t usable);
/* Waits for I/O in flight on it, but for reads of a cold one: those are EIO. -EBUSY: the hot table has leases on it (kvd_hot_shut). */
int kvd_split_object_remove(kvd_split *split, uint64_t node);
void kvd_split_stats(const kvd_split *split, struct kvd_split_stats *out);
/* Tell the kernel to forget what it caches of a node's data and attributes. Never from within a handler. */
int kvd_split_invalidate(kvd_split *split, uint64_t node);
/*
 * Tell the kernel to forget a name and what is below it. wait 1: when this returns it has; never from within a handler, as
 * it waits for the requests in that directory. wait 0: soon; -ENOBUFS when too many such words wait.
 */
int kvd_split_forget(kvd_split *split, uint64_t parent, const char *name, uint32_t name_bytes, uint32_t wait);
/* Tell the kernel to look up every name again; waits for nothing. -EINVAL: it can't (before Linux 6.16). */
int kvd_split_forget_all(kvd_split *split);

/* Insert an inode, or settle it: sure from now on. Its counts stay. -ENOSPC: the table is full, or off. */
int kvd_hot_put(kvd_split *split, const struct kvd_hot_attr *attr);
/* Forward what is asked about an inode from now on; FORGET, and RELEASE of what the table gave, go on. -ENOENT is fine. */
int kvd_hot_unsure(kvd_split *split, uint64_t node);
/* Take an inode out: its counts are the caller's from now on, its names stay and are forwarded. -ENOENT. */
int kvd_hot_drop(kvd_split *split, uint64_t node, struct kvd_hot_gone *gone);
/* The node has a split object: OPENs for reading are answered while the inode is sure. -ENOENT: no inode, or no object. */
int kvd_hot_share(kvd_split *split, uint64_t node);
/*
 * No OPEN is answered any more; leases and opens are the caller's, and those leases' RELEASEs are forwarded. Look-ups stay.
 * -EBUSY: there are leases, and `only_idle` was asked; nothing changed. -ENOENT: no such inode.
 */
int kvd_hot_shut(kvd_split *split, uint64_t node, uint32_t only_idle, struct kvd_hot_gone *gone);
/*
 * Insert or settle a name. `cookie` is the catalogue's, which READDIR tells plus 2; with 0 the name is found, but not listed.
 * `node` 0: known not to be there, which a complete folder need not hold; the oldest of those make room for new ones. An
 * inode that is not in the table is forwarded. -ENOSPC: no room: the folder is PARTIAL from now on, the name forwarded.
 */
int kvd_hot_name(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes, uint64_t cookie, uint64_t node);
/* Forward the name from now on, and READDIR of its folder while any name there is unsure. -ENOSPC as for kvd_hot_name. */
int kvd_hot_name_unsure(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes);
/* Settle a name as not there. */
int kvd_hot_name_gone(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes);
/* -ENOSPC: no room for a folder. */
int kvd_hot_folder(kvd_split *split, uint64_t parent, uint32_t state);
/* The inode of "..", of a folder that was made COMPLETE: READDIR from the beginning needs it. -ENOENT: no such folder. */
int kvd_hot_folder_parent(kvd_split *split, uint64_t node, uint64_t parent);
/* PARTIAL from now on, and without names but those that are unsure; its inodes stay. -ENOENT is fine. */
int kvd_hot_forget_folder(kvd_split *split, uint64_t parent);
/* How many look-ups and listings the folder answered since the last time. */
uint64_t kvd_hot_folder_uses(kvd_split *split, uint64_t parent);
/*
 * Publish `count` names of a folder with their inodes, in one step; `names` holds them one behind the other. What is unsure
 * stays so: this settles nothing. -ENOSPC: as kvd_hot_name; what came before is in.
 */
int kvd_hot_fill(kvd_split *split, uint64_t parent, const struct kvd_hot_attr *attrs, const uint64_t *cookies,
		 const uint32_t *name_bytes, const char *names, uint32_t count);
/* Which objects were opened since they were last told; how many are told. No count is lost. */
uint32_t kvd_hot_used(kvd_split *split, struct kvd_hot_use *out, uint32_t max);
/* How many leases of an object there are now. */
uint32_t kvd_hot_leases(kvd_split *split, uint64_t node);
/* One KVD_EVENT_FREED at the next RELEASE that leaves an object without leases. Look for idle ones after the call. */
int kvd_hot_watch(kvd_split *split);
/* cffi: end */

/* The handle of an OPEN that the hot table answered: this and the node. */
#define KVD_HOT_FH (1ull << 63)

#define KVD_ASK_GROW "/kvd.grow"
#define KVD_SPLIT_PARTS_MAX 64
#define KVD_SPLIT_DEVICES_MAX 64
#define KVD_NAME_TMPFILE "/kvd.tmpfile"

#endif
