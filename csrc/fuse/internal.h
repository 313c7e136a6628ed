/*
 * What the files of the split share.
 *
 * Threads: `readers` that read fuse_fd and do all I/O of DDR (reader.c, data.c), some a device for cold objects (cold.c), one that reads peer_fd (peer.c), one that
 * writes the peer's notifications (notify.c; such a write may wait in the kernel for a lock whose holder waits for an
 * answer of the peer). Callers of split.h come from any thread. Only readers send to the peer: the peer's thread never
 * waits for the peer, so a full socket can't close a circle.
 *
 * Locks, each a leaf, no two are held at once but where said:
 *   kvd_split.life            start and stop; taken before any other
 *   kvd_hot.lock              the hot table (hot.h); kvd_hot.used_lock or kvd_objects.lock may follow
 *   kvd_pending.lock          table of requests in the peer's hands, work queue, parked bytes, early interrupts
 *   kvd_objects.lock          table of objects and their reference counts
 *   kvd_object.grow_lock      claims of one object; fstat and lseek of its file happen under it
 *   kvd_waits.lock            READs that wait for a stream, in the lists of their objects too (wait_list.h)
 *   kvd_cold.lock             READs of cold objects, the threads that do them (cold_pool.h)
 *   kvd_events.lock           queue of events
 *   kvd_notices.lock          queue of notifications
 * Counters and the flags `stopping` and `unmounted` are atomics.
 *
 * Invariants: a request from the kernel is answered by whoever took its entry out of the pending table or its READ out of
 * the lists of those that wait or of the cold reads, or by the reader that read it if it never went in. An object is freed by
 * who took it out of the table, once its references are gone; while a drive keeps a read of it, by who gets that back.
 */
#ifndef KVD_FUSE_INTERNAL_H
#define KVD_FUSE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fuse/cold.h"
#include "fuse/hot.h"
#include "fuse/split.h"
#include "fuse/verify.h"
#include "fuse/wait.h"
#include "fuse/wire.h"

enum {
	KVD_BLOCK_BYTES = 4096,              /* what tmpfs and ext4 allocate, and what O_DIRECT wants */
	KVD_READERS_MAX = 64,
	KVD_IO_BYTES_MAX = 16 << 20,
	KVD_PENDING_MAX = 1 << 20,
	KVD_PAGE_BYTES_MAX = 1 << 20,        /* of a verified file */
	KVD_REQUEST_ROOM_BYTES = 128 << 10,  /* headers, and a whole SETXATTR: XATTR_SIZE_MAX is 64 KiB */
	/*
	 * READ and WRITE of a node without an object are cut to this, so that any message fits the default socket
	 * buffer of the peer's end. Such a node is opened with FOPEN_DIRECT_IO, where a short answer is a short read(2).
	 */
	KVD_FORWARD_BYTES_MAX = 128 << 10,
	KVD_PARKED_BYTES_MAX = 64 << 20,     /* payloads that wait for an answer to KVD_ASK_GROW */
	KVD_ASKS_MAX = 16,                   /* of one request, each after the tmpfs had less room than was agreed */
	KVD_EARLY_INTERRUPTS = 64,
	KVD_EVENTS_MAX = 256,
	KVD_NOTICES_MAX = 4096,
	KVD_NOTICE_BYTES_MAX = 64 << 10,
	KVD_ERRNO_MAX = 511,                 /* the kernel refuses an answer with a greater one */
	KVD_WRITE_WAIT_MS = 1000,            /* fuse_fd always takes an answer; a socket in its place may be full */
};

/* Requests to the peer that no kernel made carry this bit; their replies are swallowed. */
#define KVD_UNIQUE_OWN (1ull << 63)

/* What woke a reader; with STREAM the rest of the number is the node. */
enum { KVD_SOURCE_FUSE, KVD_SOURCE_STOP, KVD_SOURCE_WORK };
#define KVD_SOURCE_STREAM (1ull << 63)

struct kvd_request {
	struct fuse_in_header *header;
	void *body;
	size_t body_bytes;
	uint64_t asked_bytes; /* > 0: the peer was asked for this much storage, and agreed */
	uint32_t asks;        /* how often */
	uint64_t deadline_ns; /* > 0: a READ that has waited for a stream, and until when it may */
};

/* The copy of a request that waits for the answer to an ask. */
struct kvd_parked {
	size_t bytes;
	uint64_t asked_bytes;
	uint32_t asks;
	_Alignas(8) uint8_t message[];
};

enum kvd_pending_state {
	KVD_PENDING_FORWARDED,
	KVD_PENDING_PARKED,    /* forwarded as an ask; `parked` is the request */
	KVD_PENDING_ABANDONED, /* answered EINTR; the late reply is swallowed */
	KVD_PENDING_GRANTED,   /* in the work queue: do the parked request */
	KVD_PENDING_UNDO,      /* in the work queue: tell the peer that nobody has what it gave */
};

struct kvd_entry {
	uint64_t unique;
	uint64_t node;
	uint64_t fh;
	struct kvd_parked *parked;
	uint32_t opcode;
	uint32_t open_flags;
	enum kvd_pending_state state;
	uint32_t release_opcode; /* UNDO: RELEASE or 0 */
	uint32_t forgets;        /* UNDO: look-ups to give back */
	struct kvd_entry *next;  /* in a bucket, the free list or the work queue */
};

struct kvd_pending {
	pthread_mutex_t lock;
	struct kvd_entry *entries;
	struct kvd_entry **buckets;
	struct kvd_entry *free;
	struct kvd_entry *work_first;
	struct kvd_entry **work_last;
	size_t n_buckets; /* a power of two */
	size_t parked_bytes;
	int refusal;      /* 0, or the -errno of every addition: the peer is gone, or stopped */
	uint32_t early_next;
	uint64_t early[KVD_EARLY_INTERRUPTS];
	atomic_uint in_work;
	atomic_uint used;
};

struct kvd_run {
	uint64_t first_page;
	uint64_t count;
	uint64_t crc_index; /* of the sum of first_page */
};

struct kvd_object {
	uint64_t node;
	struct kvd_object *next;
	uint32_t mode;
	int32_t backing_id;
	int fd;
	bool writable;
	bool unbuffered; /* fd was opened with O_DIRECT */
	bool tmpfs;
	bool dead;       /* out of the table */
	uint32_t refs;
	uint64_t size_max_bytes;
	/* Of a verified file. */
	uint64_t size_bytes;
	uint32_t page_bytes;
	uint32_t n_runs;
	struct kvd_run *runs;
	uint32_t *crc;
	/* Of a striped one: its files; none where fd is the whole. */
	int *part_fds;
	uint32_t n_parts;
	uint64_t stripe_bytes;
	uint32_t *devices; /* of each part; NULL: 0 */
	/* Under kvd_cold.lock. */
	uint32_t cold_jobs;
	uint32_t cold_busy; /* of these, those whose answer is being written */
	bool cold_orphan;   /* the last job frees it */
	/* Of a file that is being filled; then it is verified before, not here. */
	struct kvd_stream *stream;
	struct kvd_wait_list waits; /* under kvd_waits.lock */
	/* Of a writable file. */
	atomic_ullong limit_bytes; /* no lock: the peer raises it in its event loop */
	pthread_mutex_t grow_lock;
	uint64_t claimed_bytes;    /* by writes in flight */
	uint64_t gate_held_bytes;  /* what the file held when the last write(2) in passthrough began */
	uint64_t gate_free_bytes;
};

struct kvd_objects {
	pthread_mutex_t lock;
	pthread_cond_t idle; /* a dead object lost its last reference */
	struct kvd_object **buckets;
	size_t n_buckets; /* a power of two */
	size_t count;
};

struct kvd_events {
	pthread_mutex_t lock;
	int fd;
	uint32_t first;
	uint32_t count;
	struct kvd_split_event ring[KVD_EVENTS_MAX];
};

struct kvd_notice;

struct kvd_notices {
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct kvd_notice *first;
	struct kvd_notice **last;
	uint32_t count;
	bool stopping;
};

struct kvd_counters {
	atomic_ullong requests;
	atomic_ullong forwarded;
	atomic_ullong reads;
	atomic_ullong read_bytes;
	atomic_ullong writes;
	atomic_ullong write_bytes;
	atomic_ullong asks;
	atomic_ullong interrupted;
	atomic_ullong late_replies;
	atomic_ullong errors;
	atomic_ullong waited;
	atomic_ullong hot_lookups;
	atomic_ullong hot_negatives;
	atomic_ullong hot_getattrs;
	atomic_ullong hot_opens;
	atomic_ullong hot_releases;
	atomic_ullong hot_readdirs;
};

struct kvd_reader {
	kvd_split *split;
	pthread_t thread;
	int epoll_fd;
	uint8_t *request; /* a message of the kernel */
	size_t request_bytes;
	uint8_t *data;    /* what READ answers; block-aligned */
	size_t data_bytes;
};

enum kvd_life { KVD_LIFE_NEW, KVD_LIFE_RUNNING, KVD_LIFE_STOPPED };

struct kvd_split {
	struct kvd_split_config config;
	pthread_mutex_t life;
	enum kvd_life state;
	int stop_fd; /* readable for ever once the threads must end */
	int work_fd; /* readable when the work queue got something */
	atomic_bool stopping;
	atomic_bool unmounted;
	atomic_uint features;
	atomic_bool init_seen;
	struct kvd_wire_init_out init_out; /* written before the peer is told of INIT, read after its reply */
	struct kvd_reader *readers;
	pthread_t peer_thread;
	pthread_t notify_thread;
	uint8_t *peer_buffer;
	size_t peer_buffer_bytes;
	struct kvd_pending pending;
	struct kvd_objects objects;
	struct kvd_waits waits;
	struct kvd_cold *cold;
	struct kvd_hot hot;
	struct kvd_events events;
	struct kvd_notices notices;
	struct kvd_counters counters;
};

static inline void kvd_count(atomic_ullong *counter, uint64_t more)
{
	atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static inline uint64_t kvd_align_down(uint64_t value, uint64_t unit)
{
	return value & ~(unit - 1);
}

static inline uint64_t kvd_align_up(uint64_t value, uint64_t unit)
{
	return kvd_align_down(value + unit - 1, unit);
}

/* Fibonacci hashing: node ids and uniques count upwards. `buckets` is a power of two. */
static inline size_t kvd_hash(uint64_t key, size_t buckets)
{
	return (size_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (buckets - 1);
}

/* reply.c: answers to the kernel. 0 or -errno. */
int kvd_reply_raw(kvd_split *split, const void *message, size_t bytes);
int kvd_reply_data(kvd_split *split, uint64_t unique, const void *data, size_t bytes);
int kvd_reply_error(kvd_split *split, uint64_t unique, int error);

/* pending.c */
int kvd_pending_init(struct kvd_pending *pending, uint32_t max);
void kvd_pending_fini(struct kvd_pending *pending);
/*
 * Enter a request that is about to be sent to the peer; owns `parked` if it returns 0. -ENOMEM: full; -EINTR: the kernel
 * gave it up before it came here; -EEXIST: that unique is there; or why nothing may be added any more.
 */
int kvd_pending_add(struct kvd_pending *pending, const struct fuse_in_header *header, uint32_t open_flags,
		    struct kvd_parked *parked);
/* Take out an entry, or any entry; NULL if there is none. It is then the caller's, to post or to free. */
struct kvd_entry *kvd_pending_take(struct kvd_pending *pending, uint64_t unique);
struct kvd_entry *kvd_pending_take_any(struct kvd_pending *pending);
void kvd_pending_free(struct kvd_pending *pending, struct kvd_entry *entry);
/* From now on additions fail with `refusal`. */
void kvd_pending_close(struct kvd_pending *pending, int refusal);
/* True if the request was given up and the caller has to answer EINTR. */
bool kvd_pending_interrupt(struct kvd_pending *pending, uint64_t unique);
/* Whether a request was interrupted before it was entered anywhere. */
bool kvd_pending_came_early(struct kvd_pending *pending, uint64_t unique);
void kvd_pending_post(struct kvd_pending *pending, struct kvd_entry *entry);
struct kvd_entry *kvd_pending_work(struct kvd_pending *pending);
/* A copy of a request within the bound of parked bytes; NULL if there is no room. */
struct kvd_parked *kvd_parked_new(struct kvd_pending *pending, const struct kvd_request *request);
void kvd_parked_free(struct kvd_pending *pending, struct kvd_parked *parked);

/* object.c */
int kvd_objects_init(struct kvd_objects *objects);
void kvd_objects_fini(struct kvd_objects *objects, struct kvd_cold *cold);
struct kvd_object *kvd_object_get(struct kvd_objects *objects, uint64_t node);
void kvd_object_put(struct kvd_objects *objects, struct kvd_object *object);
void kvd_object_free(struct kvd_object *object);
/* Fill in how the kernel shall do I/O on what is opened; false: the node has no object. */
bool kvd_object_open_out(kvd_split *split, uint64_t node, struct kvd_wire_open_out *out);

/*
 * storage.c: claim the storage that [offset, offset + length) may add to the file; to be released once it is written.
 * -EDQUOT: not allowed, with *need what the file would have to be allowed; -ENOSPC: the peer agreed to `asked_bytes`, yet
 * allows less.
 */
int kvd_storage_claim(struct kvd_object *object, uint64_t offset, uint64_t length, uint64_t asked_bytes,
		      uint64_t *claimed, uint64_t *need);
void kvd_storage_release(struct kvd_object *object, uint64_t claimed);
/* A write(2) in passthrough begins: 0, or -EDQUOT with *need: it has to be held up until the file may hold that much. */
int kvd_storage_gate(struct kvd_object *object, uint64_t *need);
/* What the gate compares with begins with what the file holds now. 0 or -errno. */
int kvd_storage_gate_init(struct kvd_object *object, uint64_t free_bytes);

/* Handlers: 0 if the request was answered or handed on, or a -errno that the caller answers. */
/* init.c */
int kvd_init_request(kvd_split *split, const struct kvd_request *request);
void kvd_init_reply(kvd_split *split, uint64_t unique, int error);
/* data.c */
int kvd_data_read(struct kvd_reader *reader, const struct kvd_request *request);
int kvd_data_write(kvd_split *split, const struct kvd_request *request);
int kvd_data_fallocate(kvd_split *split, const struct kvd_request *request);
int kvd_data_lseek(kvd_split *split, const struct kvd_request *request);
/* The kernel is about to write by itself, or to cut. */
int kvd_data_gate(kvd_split *split, const struct kvd_request *request);
/* forward.c */
int kvd_forward(kvd_split *split, const struct kvd_request *request);
int kvd_forward_silent(kvd_split *split, const struct kvd_request *request);
int kvd_forward_io(kvd_split *split, const struct kvd_request *request);
int kvd_forward_tmpfile(kvd_split *split, const struct kvd_request *request);
int kvd_forward_init(kvd_split *split, const struct kvd_request *request, const struct kvd_wire_init_in *shown);
int kvd_forward_ask(kvd_split *split, const struct kvd_request *request, const struct kvd_split_ask *ask);
void kvd_forward_undo(kvd_split *split, const struct kvd_entry *entry);

/* hot_answer.c, hot_list.c: what the hot table does not answer is handed on. */
int kvd_hot_lookup(kvd_split *split, const struct kvd_request *request);
int kvd_hot_getattr(kvd_split *split, const struct kvd_request *request);
int kvd_hot_open(kvd_split *split, const struct kvd_request *request);
int kvd_hot_release(kvd_split *split, const struct kvd_request *request);
int kvd_hot_opendir(kvd_split *split, const struct kvd_request *request);
int kvd_hot_releasedir(kvd_split *split, const struct kvd_request *request);
int kvd_hot_forget(kvd_split *split, const struct kvd_request *request);
int kvd_hot_batch_forget(kvd_split *split, const struct kvd_request *request);
int kvd_hot_readdir(struct kvd_reader *reader, const struct kvd_request *request);
/* hot_answer.c for hot_list.c. */
void kvd_hot_entry_out(const struct kvd_hot_inode *inode, struct fuse_entry_out *out);
/* False: it is at its maximum. */
bool kvd_hot_count_up(atomic_uint *count);
/* How much of `by` was there to be taken; *last, if wanted: nothing is left. */
uint32_t kvd_hot_count_down(atomic_uint *count, uint64_t by, bool *last);
/* Tell the peer of a look-up less; not in a read section. */
void kvd_hot_give_back_lookup(kvd_split *split, const struct kvd_request *request, uint64_t node);
/* hot.c: what the table holds. */
void kvd_hot_sizes(const kvd_split *split, struct kvd_split_stats *out);
/* hot.c: the object of a node goes. -EBUSY: the table has leases on it. */
int kvd_hot_unshare(kvd_split *split, uint64_t node);

/* reader.c, peer.c, notify.c: the threads. */
int kvd_reader_init(struct kvd_reader *reader, kvd_split *split);
void kvd_reader_fini(struct kvd_reader *reader);
void *kvd_reader_main(void *reader);
void *kvd_peer_main(void *split);
/* Answer what the peer holds with `error`, for good. */
void kvd_peer_drain(kvd_split *split, int error);
int kvd_notices_init(struct kvd_notices *notices);
void kvd_notices_fini(struct kvd_notices *notices);
void kvd_notices_stop(struct kvd_notices *notices);
void *kvd_notify_main(void *split);
int kvd_notify_post(kvd_split *split, const void *message, size_t bytes);

/* event.c */
int kvd_events_init(struct kvd_events *events);
void kvd_events_fini(struct kvd_events *events);
void kvd_event_post(kvd_split *split, enum kvd_split_event_kind kind, uint64_t node, uint64_t value);
void kvd_event_post_device(kvd_split *split, enum kvd_split_event_kind kind, uint64_t node, uint64_t value, uint32_t device);

/* split.c: make every thread end. */
void kvd_split_signal_stop(kvd_split *split);
/* split.c: make a reader look at the work queue. */
void kvd_split_signal_work(kvd_split *split);

#endif
