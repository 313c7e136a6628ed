/*
 * Inside of the mover. A lane is one device: its thread, its ring, its bounce buffers. A job is a move; a leg is what
 * one device does of it. Everything in a lane and in a leg belongs to the lane's thread, except what is said to be
 * under the mover's lock or is atomic.
 *
 * A leg that fails ends its job: the others are told, and the result comes when the last of them is through. A request
 * in flight is never freed under the kernel: one that neither ends nor can be cancelled within KVD_LANE_GRACE_MS is
 * orphaned. Its leg ends; its buffer stays unused until the kernel gives it back, if ever.
 */
#ifndef KVD_MOVER_LANE_H
#define KVD_MOVER_LANE_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/stream.h"
#include "mover/mover.h"

enum {
	KVD_LANE_BLOCK_BYTES = 4096, /* what O_DIRECT offsets and lengths are rounded to */
	KVD_LANE_GRACE_MS = 2000,    /* how long a stopped leg waits for the requests it has in flight */
	KVD_LANE_TURN_REQUESTS = 16, /* what a leg takes before others of its class get their turn */
	KVD_LANE_OP_FTRUNCATE = 55,  /* IORING_OP_FTRUNCATE, of Linux 6.9 */
};
#define KVD_LANE_NS_PER_MS UINT64_C(1000000)
#define KVD_LANE_NEVER_NS UINT64_MAX

/* In order: what comes first is served first, within the limits of classes.c. */
enum kvd_lane_class {
	KVD_LANE_PROMOTE,
	KVD_LANE_AHEAD,
	KVD_LANE_DEMOTE,
	KVD_LANE_VERIFY,
	KVD_LANE_CLASSES,
};

enum kvd_leg_phase {
	KVD_LEG_WAITING,
	KVD_LEG_SIZING,   /* a demotion's file gets its length */
	KVD_LEG_RESERVING, /* and its space, a piece at a time */
	KVD_LEG_COPYING,
	KVD_LEG_CUTTING,  /* its exact length, where whole blocks were written */
	KVD_LEG_SYNCING,
	KVD_LEG_STOPPING, /* status is set; waits for its requests in flight */
	KVD_LEG_DONE,     /* to be retired */
};

/* Where in a job's runs a leg is. */
struct kvd_cursor {
	uint64_t run;
	uint64_t page; /* in the run */
	uint64_t crc;  /* of that page */
};

/* Pages that lie together in a part. */
struct kvd_piece {
	uint64_t first_page;
	uint64_t count;
	uint64_t first_crc;
};

struct kvd_job;
struct kvd_lane;

struct kvd_leg {
	TAILQ_ENTRY(kvd_leg) link; /* of the lane's arrived (under the lock), ready or busy legs */
	struct kvd_job *job;
	struct kvd_lane *lane;
	struct kvd_mover_part part;
	uint32_t index;            /* its place among the parts */
	uint32_t in_flight;
	uint32_t turn;             /* requests since others had theirs */
	enum kvd_leg_phase phase;
	int status;
	bool blames_device;        /* the status is the device's doing */
	bool ready;                /* in a ready list; otherwise in busy */
	bool ended;                /* under the lock: its lane has nothing to do with it any more */
	uint64_t bad_page;
	uint64_t bytes;
	uint64_t stuck_ns;         /* age of the lane's oldest request when the leg was stopped */
	uint64_t abandon_ns;       /* while stopping: when its requests become orphans */
	uint64_t pages_left;       /* not yet asked for */
	uint64_t want_seen;        /* of the stream */
	struct kvd_cursor at, reserved_to;
};
TAILQ_HEAD(kvd_leg_list, kvd_leg);

struct kvd_job {
	TAILQ_ENTRY(kvd_job) link; /* under the lock: of the free or the live jobs */
	struct kvd_mover_job spec; /* `parts` is not valid any more */
	enum kvd_lane_class class;
	uint64_t deadline_ns;
	_Atomic bool cancelled;
	_Atomic bool failed;       /* a leg did */
	_Atomic bool holes_marked;
	_Atomic uint64_t *asked;   /* with a stream: a bit a page that was asked for */
	/* Under the lock. */
	uint32_t legs_left;
	int status;
	int device;
	uint64_t stuck_ns;
	uint64_t bad_page;
	uint64_t bytes;
	uint64_t start_ns;         /* 0: never started */
	struct kvd_leg legs[KVD_MOVE_PARTS_MAX];
};
TAILQ_HEAD(kvd_job_list, kvd_job);

/* One I/O request. Those with a buffer carry data; the others change a file's length or space, or sync. */
struct kvd_req {
	SLIST_ENTRY(kvd_req) link; /* of the free requests */
	bool busy;
	enum kvd_lane_class class;
	struct kvd_leg *leg;   /* NULL while busy: an orphan */
	_Atomic uint64_t start_ns; /* 0: not in flight */
	uint8_t *buffer;
	uint64_t offset;
	struct kvd_piece piece;
	uint32_t bytes;            /* of the object */
	uint32_t io_bytes;         /* the same, rounded up where the descriptor is O_DIRECT */
	uint32_t done;             /* of io_bytes */
};
SLIST_HEAD(kvd_req_list, kvd_req);

struct kvd_lane {
	struct kvd_mover *mover;
	uint32_t device;
	uint32_t io_bytes;
	uint32_t depth;
	uint64_t request_ns;       /* how long the device may take for one */
	pthread_t thread;
	int wake_fd;

	/* Under the mover's lock. */
	struct kvd_leg_list arrived;
	bool stop, exited;

	_Atomic uint32_t queued;   /* legs */
	_Atomic uint32_t orphans, orphaned_buffers;
	_Atomic uint64_t read_bytes, written_bytes;

	struct io_uring ring;
	bool fixed_buffers;        /* the pool is registered with the ring */
	bool async_truncate;       /* the kernel can */
	struct kvd_leg_list ready[KVD_LANE_CLASSES], busy;
	uint32_t in_flight[KVD_LANE_CLASSES]; /* data requests, orphans included */
	struct kvd_req *reqs;
	uint32_t n_reqs;
	struct kvd_req_list free_data, free_control;
	uint8_t *pool;    /* the buffers, from a huge page's border on, in: */
	void *map;
	size_t map_bytes;
	struct kvd_req wake;       /* the read of wake_fd that waits in the ring */
	uint64_t wake_count;
};

struct kvd_mover_entry {
	struct kvd_mover_result result;
	enum kvd_lane_class class; /* whose place is given back when it is reaped */
};

struct kvd_mover {
	pthread_mutex_t lock;
	pthread_cond_t exited; /* a lane's thread is about to end */
	int event_fd;
	uint32_t queue_jobs;
	uint32_t io_bytes;
	uint32_t n_lanes;
	struct kvd_lane *lanes;
	struct kvd_job *job_table;
	struct kvd_job_list free_jobs, live_jobs;
	uint32_t held[KVD_LANE_CLASSES]; /* jobs waiting, running or with a result not yet reaped */
	/* A ring with room for the result of every job that was accepted. */
	struct kvd_mover_entry *results;
	uint32_t n_results, first_result, ring_results;
	struct kvd_mover_stats stats; /* without the time of what is busy now */
	uint32_t running[KVD_MOVE_KINDS];
	uint64_t busy_since_ns[KVD_MOVE_KINDS];
};

/* lane.c: setting up and taking down; worker.c: the thread. */
int kvd_lane_init(struct kvd_lane *lane, struct kvd_mover *mover, uint32_t device,
		  const struct kvd_mover_config *config);
void kvd_lane_fini(struct kvd_lane *lane);
void *kvd_lane_main(void *arg);
void kvd_lane_wake(struct kvd_lane *lane);
/* Age of the oldest request in flight; 0: none is. Any thread. */
uint64_t kvd_lane_oldest_ns(const struct kvd_lane *lane, uint64_t now_ns);

/* classes.c: the class that gets the next free buffer, or KVD_LANE_CLASSES: none. */
uint32_t kvd_lane_next_class(const uint32_t in_flight[KVD_LANE_CLASSES], const bool ready[KVD_LANE_CLASSES],
			     uint32_t depth);

/* request.c: a request taken from a list goes back with put, once the kernel is through with it. */
struct kvd_req *kvd_req_take(struct kvd_req_list *list, struct kvd_leg *leg);
void kvd_req_put(struct kvd_lane *lane, struct kvd_req *req);
struct io_uring_sqe *kvd_req_sqe(struct kvd_lane *lane);
/* What was prepared in `sqe` is the request's; its time starts. */
void kvd_req_begin(struct kvd_req *req, struct io_uring_sqe *sqe);
void kvd_req_cancel_all(struct kvd_lane *lane, const struct kvd_leg *leg);
void kvd_req_orphan_all(struct kvd_lane *lane, struct kvd_leg *leg);

/* cursor.c: which pages are a leg's, and in what order. */
void kvd_cursor_init(struct kvd_leg *leg);
/* The leg's pages among the runs. */
uint64_t kvd_cursor_pages(const struct kvd_mover_job *spec, uint32_t index);
/* The next piece at `at`, at most `pages_max`; false: the end. No look at what was asked for. */
bool kvd_cursor_next(const struct kvd_leg *leg, struct kvd_cursor *at, uint64_t pages_max, struct kvd_piece *piece);
/* The next piece to ask for, following the stream; the leg has pages left. */
void kvd_cursor_take(struct kvd_leg *leg, uint64_t pages_max, struct kvd_piece *piece);

/* leg.c: how a leg goes from phase to phase. */
void kvd_leg_start(struct kvd_lane *lane, struct kvd_leg *leg);
void kvd_leg_advance(struct kvd_lane *lane, struct kvd_leg *leg);
/* End it with `status`, unless it is ending already: the first reason stays. */
void kvd_leg_stop(struct kvd_lane *lane, struct kvd_leg *leg, int status, bool blames_device);
void kvd_leg_control_done(struct kvd_lane *lane, struct kvd_req *req, int res);
/* There is something to ask for. */
bool kvd_leg_has_next(const struct kvd_leg *leg);
/* Put it into the list where it belongs now. */
void kvd_leg_place(struct kvd_lane *lane, struct kvd_leg *leg);

/* copy.c: the data requests of a leg. */
void kvd_copy_next(struct kvd_lane *lane, struct kvd_leg *leg);
void kvd_copy_done(struct kvd_lane *lane, struct kvd_req *req, int res);

/* job.c: jobs, from submission to result. */
int kvd_job_check(const struct kvd_mover *mover, const struct kvd_mover_job *spec);
/* A leg of it begins. */
void kvd_job_started(struct kvd_mover *mover, struct kvd_job *job);
/* A leg of it is through, and in no list; it and, after the last, the job are not touched any more. */
void kvd_job_leg_ended(struct kvd_mover *mover, struct kvd_leg *leg);

/* mover.c */
uint64_t kvd_mover_now_ns(void);
void kvd_mover_lock(struct kvd_mover *mover);
void kvd_mover_unlock(struct kvd_mover *mover);
/* Tells kvd_mover_fini that the thread is about to end; the lock is held. */
void kvd_mover_lane_exited(struct kvd_lane *lane);

#endif
