/*
 * The mover: copies objects between tier files with io_uring, checking or making the CRC32C of every page on the way.
 *
 * Each NVMe device (a directory) has a queue of its own: a thread, a ring and buffers, so that one that hangs or is slow
 * holds up no other. Jobs wait in bounded queues, by class; a result is announced on an eventfd and collected with
 * kvd_mover_reap. A job whose object is striped runs on several devices at once and has one result.
 */
#ifndef KVD_MOVER_MOVER_H
#define KVD_MOVER_MOVER_H

#include <stdint.h>

/* cffi: begin */
typedef struct kvd_mover kvd_mover;

enum kvd_mover_kind {
	KVD_MOVE_PROMOTE = 0, /* from the parts to the ddr file; `crc` holds the expected sums */
	KVD_MOVE_DEMOTE = 1,  /* from the ddr file to fresh parts; `crc` is filled; data and folders are made durable */
	KVD_MOVE_VERIFY = 2,  /* the parts are read and checked only */
};
enum { KVD_MOVE_KINDS = 3 };

enum kvd_mover_flags {
	KVD_MOVE_AHEAD = 1,         /* a promotion that nobody waits for yet: behind those that somebody waits for */
	KVD_MOVE_SYNC_METADATA = 2, /* a demotion also makes durable what is not needed to read the bytes (attributes) */
	KVD_MOVE_MORE = 4,          /* more of the same files follows, so nothing is made durable yet: they end at a page */
};

enum {
	KVD_MOVE_PARTS_MAX = 16,
	KVD_MOVE_DEVICES_MAX = 64,
	KVD_MOVE_DEPTH_MIN = 4, /* so that each class has a share of it */
	KVD_MOVE_NO_DEVICE = -1,
};

/* `count` pages from `first_page`. */
struct kvd_mover_run {
	uint64_t first_page;
	uint64_t count;
};

/* A file on NVMe that holds the object's pages with `offset / stripe_bytes % n_parts` being its place in the list. */
struct kvd_mover_part {
	int32_t fd;
	uint32_t device; /* whose queue; no two parts of a job have the same */
	uint32_t direct; /* the descriptor was opened with O_DIRECT */
	int32_t dir_fd;  /* DEMOTE: the folder to make durable, or -1 */
};

struct kvd_mover_job {
	uint64_t token;      /* the caller's, returned in the result */
	uint32_t kind;
	uint32_t page_bytes;
	int32_t ddr_fd;      /* -1 for VERIFY */
	uint32_t flags;
	uint32_t n_parts;
	uint32_t reserved;
	uint64_t stripe_bytes; /* a multiple of page_bytes; 0 with one part */
	uint64_t size_bytes; /* of the object: what is written ends exactly there; the last page is short */
	uint64_t deadline_ms; /* from submission; then -ETIMEDOUT */
	uint64_t n_runs;
	const struct kvd_mover_run *runs; /* ascending, not overlapping; stays valid until the result is reaped */
	uint32_t *crc;       /* one per page of the runs, in order; of the page's bytes up to the object's size */
	const struct kvd_mover_part *parts; /* copied */
	uint64_t stream;     /* PROMOTE: address of a struct kvd_stream of the object's pages that lives as `runs`; or 0 */
};

struct kvd_mover_result {
	uint64_t token;
	int32_t status;      /* 0, -EBADMSG (a checksum differs), -ETIMEDOUT, -ECANCELED, -errno of the I/O */
	int32_t device;      /* which failed; KVD_MOVE_NO_DEVICE where none did, or the ddr file */
	uint64_t bad_page;   /* with -EBADMSG */
	uint64_t bytes;
	uint64_t duration_ns; /* from start of the copy to its end, without the wait in the queue */
};

struct kvd_mover_config {
	uint32_t queue_jobs;  /* jobs waiting, running or not yet reaped, of each class; more is -EAGAIN */
	uint32_t queue_depth; /* data requests in flight for each device */
	uint32_t io_bytes;    /* of one request; a multiple of page_bytes */
	uint32_t n_devices;
	uint32_t request_ms;  /* how long a device may take for one request; then its job ends with -ETIMEDOUT */
	uint32_t reserved;
};

/* By kind. */
struct kvd_mover_stats {
	uint64_t jobs[3];
	uint64_t bytes[3];
	uint64_t busy_ns[3];
	uint64_t failed[3];
	uint64_t queued[3];   /* waiting or running now */
};

struct kvd_mover_device {
	uint32_t queue_depth;
	uint32_t in_flight;   /* requests that it has not answered, those given up included */
	uint32_t given_up;    /* of them, those whose job has ended */
	uint32_t queued;      /* jobs with a part there, waiting or running now */
	uint64_t oldest_ns;   /* age of the oldest request in flight */
	uint64_t read_bytes;
	uint64_t written_bytes;
};

int kvd_mover_init(const struct kvd_mover_config *config, kvd_mover **out);
/* Cancels what runs or waits, waits (bounded) for the threads, frees; see lane.h for a disk that hangs. */
void kvd_mover_fini(kvd_mover *mover);
/*
 * 0, -EAGAIN (queue full), -EINVAL, -ENOMEM, -EBUSY (a device of the job holds all its buffers in requests that were
 * given up: it does not answer). A stream is ended by the mover only if this was 0.
 */
int kvd_mover_submit(kvd_mover *mover, const struct kvd_mover_job *job);
/* 0 or -ENOENT; a cancelled job still yields its result. */
int kvd_mover_cancel(kvd_mover *mover, uint64_t token);
/* Readable when results wait; reading it resets it. */
int kvd_mover_eventfd(const kvd_mover *mover);
uint32_t kvd_mover_reap(kvd_mover *mover, struct kvd_mover_result *out, uint32_t max);
void kvd_mover_stats(const kvd_mover *mover, struct kvd_mover_stats *out);
/* 0 or -EINVAL. */
int kvd_mover_device_stats(const kvd_mover *mover, uint32_t device, struct kvd_mover_device *out);
/* Free what a file holds in a range, which reads as zeroes then; the length stays. 0 or -errno. */
int kvd_mover_punch(int fd, uint64_t offset, uint64_t bytes);
/* Give a file storage in a range that it has none in; it reads as zeroes, and the length stays. 0 or -errno. */
int kvd_mover_allocate(int fd, uint64_t offset, uint64_t bytes);
/* Continue the CRC32C `crc` (0 for a new one) over a buffer. */
uint32_t kvd_mover_crc32c(uint32_t crc, const void *data, uint64_t bytes);
/* cffi: end */

#endif
