/*
 * Inside of the mover. A lane is one direction: its thread, its ring, its bounce buffers and its jobs. Everything in a
 * lane belongs to its thread, except what is said to be under the mover's lock.
 *
 * A job in flight is never freed under the kernel: a request that neither ends nor can be cancelled within
 * KVD_LANE_GRACE_MS is orphaned. Its job ends; its buffer stays unused until the kernel gives it back, if ever.
 */
#ifndef KVD_MOVER_LANE_H
#define KVD_MOVER_LANE_H

#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "mover/mover.h"

enum {
	KVD_LANE_BLOCK_BYTES = 4096, /* what O_DIRECT offsets and lengths are rounded to */
	KVD_LANE_GRACE_MS = 2000,    /* how long a stopped job waits for the requests it has in flight */
};

enum kvd_job_phase {
	KVD_JOB_FREE,
	KVD_JOB_WAITING,
	KVD_JOB_PREPARING,  /* allocating space in dst, a run at a time */
	KVD_JOB_COPYING,
	KVD_JOB_SYNC_DATA,
	KVD_JOB_SYNC_DIR,
	KVD_JOB_STOPPING,   /* status is set; waits for its requests in flight */
	KVD_JOB_DONE,       /* to be retired */
};

struct kvd_job {
	TAILQ_ENTRY(kvd_job) link; /* under the lock: of the lane's free, waiting or active jobs */
	struct kvd_mover_job spec;
	bool cancelled;            /* under the lock */
	enum kvd_job_phase phase;
	int status;
	uint64_t bad_page;
	uint64_t deadline_ns;
	uint64_t abandon_ns;       /* while stopping: when its requests become orphans */
	uint64_t start_ns;         /* 0: never started */
	uint64_t bytes;
	uint32_t in_flight;
	uint64_t next_prealloc;    /* the run to allocate next */
	uint64_t next_run;         /* the run, the page in it and the sum that the next request begins with */
	uint64_t next_page;
	uint64_t next_crc;
};
TAILQ_HEAD(kvd_job_list, kvd_job);

/* One I/O request. Those with a buffer carry data; the others allocate or sync, and a job has at most one of them. */
struct kvd_req {
	SLIST_ENTRY(kvd_req) link; /* of the free requests */
	bool busy;
	struct kvd_job *job;       /* NULL while busy: an orphan */
	uint8_t *buffer;
	uint64_t offset;
	uint64_t first_page;
	uint64_t first_crc;
	uint32_t bytes;            /* of the object */
	uint32_t io_bytes;         /* the same, rounded up where the descriptor is O_DIRECT */
	uint32_t done;             /* of io_bytes */
};
SLIST_HEAD(kvd_req_list, kvd_req);

struct kvd_lane {
	struct kvd_mover *mover;
	uint32_t kind;
	uint32_t io_bytes;
	pthread_t thread;
	int wake_fd;

	/* Under the mover's lock. */
	struct kvd_job_list free_jobs, waiting, active;
	uint32_t held;             /* jobs waiting, running or with a result not yet reaped */
	uint32_t queued;           /* jobs waiting or running */
	bool stop, exited;
	uint64_t jobs, failed, bytes, busy_ns;
	uint64_t busy_since_ns;    /* 0: idle */

	struct io_uring ring;
	struct kvd_job *job_table;
	struct kvd_req *reqs;
	uint32_t n_reqs;
	struct kvd_req_list free_data, free_control;
	uint32_t orphans;
	uint8_t *pool;    /* the buffers, from a huge page's border on, in: */
	void *map;
	size_t map_bytes;
	struct kvd_req wake;       /* the read of wake_fd that waits in the ring */
	uint64_t wake_count;
};

/* lane.c */
int kvd_lane_init(struct kvd_lane *lane, struct kvd_mover *mover, uint32_t kind, const struct kvd_mover_config *config);
void kvd_lane_fini(struct kvd_lane *lane);
void *kvd_lane_main(void *arg);
void kvd_lane_wake(struct kvd_lane *lane);

/* request.c: a request taken from a list goes back with put, once the kernel is through with it. */
struct kvd_req *kvd_req_take(struct kvd_req_list *list, struct kvd_job *job);
void kvd_req_put(struct kvd_lane *lane, struct kvd_req *req);
struct io_uring_sqe *kvd_req_sqe(struct kvd_lane *lane);
void kvd_req_cancel_all(struct kvd_lane *lane, const struct kvd_job *job);
void kvd_req_orphan_all(struct kvd_lane *lane, struct kvd_job *job);

/* job.c: how a job goes from phase to phase. */
int kvd_job_check(const struct kvd_mover_job *spec, uint32_t io_bytes);
void kvd_job_start(struct kvd_lane *lane, struct kvd_job *job);
void kvd_job_advance(struct kvd_lane *lane, struct kvd_job *job);
void kvd_job_stop(struct kvd_lane *lane, struct kvd_job *job, int status);
void kvd_job_control_done(struct kvd_lane *lane, struct kvd_req *req, int res);
bool kvd_job_direct(const struct kvd_job *job);

/* copy.c: the data requests of a job. */
bool kvd_copy_has_next(const struct kvd_job *job);
void kvd_copy_next(struct kvd_lane *lane, struct kvd_job *job);
void kvd_copy_done(struct kvd_lane *lane, struct kvd_req *req, int res);

/* mover.c */
uint64_t kvd_mover_now_ns(void);
void kvd_mover_lock(struct kvd_mover *mover);
void kvd_mover_unlock(struct kvd_mover *mover);
/* Moves a done job's result to the caller's side; the lock is held. */
void kvd_mover_publish(struct kvd_lane *lane, struct kvd_job *job);
/* Tells kvd_mover_fini that the thread is about to end; the lock is held. */
void kvd_mover_lane_exited(struct kvd_lane *lane);

#endif
