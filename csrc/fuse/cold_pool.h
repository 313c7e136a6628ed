/*
 * The threads that read cold objects, as cold.c, cold_work.c and cold_keep.c share them.
 *
 * A drive that hangs keeps whoever asked it in the kernel, and nothing can end that. So each device has a lane: a queue of
 * READs and a few threads, and nobody else asks it. What a thread does while a drive may keep it (kvd_verify_read) touches
 * its job's buffer and object only, never the split, which may be gone when it returns.
 *
 * kvd_cold.lock is a leaf. A job is queued, running or, while its answer is written, `busy`. Its `wait` is the READ: who
 * takes that out under the lock answers it. A running job whose READ was taken is a stray: its thread, buffer and object are
 * given up until the drive returns it. Of these there are at most as many as threads; then the lane refuses. A READ of a
 * striped object goes from lane to lane with its buffer.
 */
#ifndef KVD_FUSE_COLD_POOL_H
#define KVD_FUSE_COLD_POOL_H

#include "fuse/cold.h"
#include "fuse/wait_list.h"

enum {
	KVD_COLD_THREADS = 8,     /* of a device: enough reads of 1 MiB to keep it busy */
	KVD_COLD_QUEUE_MAX = 4096, /* READs that wait for a thread of a device */
	KVD_COLD_CARRIED_MAX = 64, /* of these, with a buffer that another device has filled in part */
	KVD_COLD_SPARES_MAX = 16, /* buffers kept for the next READs */
	KVD_COLD_GRACE_MS = 2000, /* how long a stop waits for threads that a drive keeps */
};
#define KVD_COLD_NEVER_NS UINT64_MAX

struct kvd_cold_job {
	TAILQ_ENTRY(kvd_cold_job) link; /* of its lane's queued or running */
	struct kvd_wait *wait;          /* NULL: a stray */
	struct kvd_object *object;
	uint8_t *buffer;                /* of whole pages; NULL before it has run */
	uint64_t from;                  /* a page's first byte: of the buffer's */
	uint64_t at;                    /* up to here it is filled */
	uint64_t to;
	uint64_t deadline_ns;           /* of the READ; once it runs, of the device */
	uint32_t device;
};
TAILQ_HEAD(kvd_cold_jobs, kvd_cold_job);

struct kvd_cold_worker {
	pthread_t thread;
	struct kvd_cold_lane *lane;
	bool exited;
};

struct kvd_cold_lane {
	struct kvd_cold *cold;
	pthread_cond_t more;
	struct kvd_cold_jobs queued;
	struct kvd_cold_jobs running;
	uint32_t n_queued;
	uint32_t carried;
	uint32_t idle;  /* threads */
	uint32_t strays;
	uint32_t n_workers;
	bool down;      /* its directory is offline: READs are EIO at once */
	struct kvd_cold_worker workers[KVD_COLD_THREADS];
};

struct kvd_cold {
	kvd_split *split;    /* not to be touched by who holds a stray, or after the stop */
	size_t buffer_bytes;
	uint64_t device_ns;  /* what a device may take for a read */
	pthread_mutex_t lock;
	pthread_cond_t keep; /* the keeper has an earlier deadline */
	pthread_cond_t quiet; /* fewer are busy, or a thread ends */
	pthread_t keeper;
	bool keeps;
	bool stopping;
	bool abandoned;      /* the last thread frees all this */
	uint32_t threads;    /* workers that have not exited */
	uint32_t busy;
	uint64_t keep_ns;    /* when the keeper looks next */
	atomic_uint jobs;
	uint32_t n_spares;
	uint8_t *spares[KVD_COLD_SPARES_MAX];
	struct kvd_cold_lane lanes[KVD_SPLIT_DEVICES_MAX];
};

/* cold_keep.c, with the lock. */
/* A READ that is queued or running, taken from its job; one that was queued is gone with it. */
struct kvd_wait *kvd_cold_take(struct kvd_cold_lane *lane, struct kvd_cold_job *job, bool running);
/* All of a lane, of one object or (NULL) of any, into a list. */
void kvd_cold_take_all(struct kvd_cold_lane *lane, const struct kvd_object *object, struct kvd_wait_list *taken);
/* The keeper must look at `deadline_ns`, too. */
void kvd_cold_keep_until(struct kvd_cold *cold, uint64_t deadline_ns);
/* The thread that answers what is past its deadline. */
void *kvd_cold_keeper_main(void *cold);

/* cold.c, with the lock. */
/* Free a job, which is in no list and has no READ any more. True: the caller frees its object, without the lock. */
bool kvd_cold_job_free(struct kvd_cold *cold, struct kvd_cold_job *job);
/* Queue a job for its device. -EIO: that is not to be asked; -ENOMEM: too many wait; -ENOTCONN: the split stops. */
int kvd_cold_queue(struct kvd_cold *cold, struct kvd_cold_job *job);
/* Without the lock, by who is last. */
void kvd_cold_free(struct kvd_cold *cold);
/* cold_work.c: a thread of a lane. */
void *kvd_cold_worker_main(void *worker);

#endif
