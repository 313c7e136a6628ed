/*
 * The mover: copies objects between tier files with io_uring, checking or making the CRC32C of every page on the way.
 *
 * One worker thread and one ring for each direction, so that a promotion (somebody waits for it) never stands behind
 * demotions. Jobs wait in bounded queues; a result is announced on an eventfd and collected with kvd_mover_reap.
 */
#ifndef KVD_MOVER_MOVER_H
#define KVD_MOVER_MOVER_H

#include <stdint.h>

/* cffi: begin */
typedef struct kvd_mover kvd_mover;

enum kvd_mover_kind {
	KVD_MOVE_PROMOTE = 0, /* src: nvme file, dst: ddr file; `crc` holds the expected sums */
	KVD_MOVE_DEMOTE = 1,  /* src: ddr file, dst: nvme file; `crc` is filled; data and directory are made durable */
	KVD_MOVE_VERIFY = 2,  /* src: nvme file; reads and checks only */
};
enum { KVD_MOVE_KINDS = 3 };

/* `count` pages from `first_page`. */
struct kvd_mover_run {
	uint64_t first_page;
	uint64_t count;
};

struct kvd_mover_job {
	uint64_t token;      /* the caller's, returned in the result */
	uint32_t kind;
	uint32_t page_bytes;
	int32_t src_fd;
	int32_t dst_fd;      /* -1 for VERIFY */
	int32_t dir_fd;      /* DEMOTE: directory of dst to make durable, or -1 */
	uint32_t nvme_direct; /* the nvme side's descriptor was opened with O_DIRECT */
	uint64_t size_bytes; /* of the object: dst ends exactly there; the last page is short */
	uint64_t deadline_ms; /* from submission; then -ETIMEDOUT */
	uint64_t n_runs;
	const struct kvd_mover_run *runs; /* ascending, not overlapping; stays valid until the result is reaped */
	uint32_t *crc;       /* one per page of the runs, in order; of the page's bytes up to the object's size */
};

struct kvd_mover_result {
	uint64_t token;
	int32_t status;      /* 0, -EBADMSG (a checksum differs), -ETIMEDOUT, -ECANCELED, -errno of the I/O */
	uint32_t reserved;
	uint64_t bad_page;   /* with -EBADMSG */
	uint64_t bytes;
	uint64_t duration_ns; /* from start of the copy to its end, without the wait in the queue */
};

struct kvd_mover_config {
	uint32_t queue_jobs;  /* jobs waiting, running or not yet reaped, for each direction; more is -EAGAIN */
	uint32_t queue_depth; /* I/O requests in flight for each direction */
	uint32_t io_bytes;    /* of one request; a multiple of page_bytes */
	uint32_t reserved;
};

struct kvd_mover_stats {
	uint64_t jobs[3];
	uint64_t bytes[3];
	uint64_t busy_ns[3];
	uint64_t failed[3];
	uint64_t queued[3];   /* waiting or running now */
};

int kvd_mover_init(const struct kvd_mover_config *config, kvd_mover **out);
/* Cancels what runs or waits, waits (bounded) for the threads, frees; see lane.h for a disk that hangs. */
void kvd_mover_fini(kvd_mover *mover);
/* 0, -EAGAIN (queue full), -EINVAL. */
int kvd_mover_submit(kvd_mover *mover, const struct kvd_mover_job *job);
/* 0 or -ENOENT; a cancelled job still yields its result. */
int kvd_mover_cancel(kvd_mover *mover, uint64_t token);
/* Readable when results wait; reading it resets it. */
int kvd_mover_eventfd(const kvd_mover *mover);
uint32_t kvd_mover_reap(kvd_mover *mover, struct kvd_mover_result *out, uint32_t max);
void kvd_mover_stats(const kvd_mover *mover, struct kvd_mover_stats *out);
/* Free the storage of a file's range, which then reads as zeros. 0 or -errno. */
int kvd_mover_punch(int fd, uint64_t offset, uint64_t bytes);
/* cffi: end */

#endif
