#include "mover/lane.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LANE_RING_ENTRIES_PER_REQ = 4, /* in one turn: an operation, what was left of it, and their cancellations */
	LANE_HUGE_PAGE_BYTES = 2 << 20,
	LANE_REFUSED_WAIT_MS = 1,      /* before the kernel is asked again */
};
#define LANE_NEVER_NS UINT64_MAX
#define LANE_NS_PER_S 1000000000u

/*
 * Direct requests from memory in 4 KiB pages are cut at the disk's limit of segments; from huge pages they go whole. On
 * a virtio disk with 254 segments that made 1.2 GB/s into 3.3 (docs/benchmarks.md). So: aligned, and asked for.
 */
static int pool_init(struct kvd_lane *lane, uint32_t depth)
{
	size_t bytes = (size_t)depth * lane->io_bytes;
	uintptr_t start;
	void *pool;

	bytes = (bytes + LANE_HUGE_PAGE_BYTES - 1) & ~((size_t)LANE_HUGE_PAGE_BYTES - 1);
	lane->map_bytes = bytes + LANE_HUGE_PAGE_BYTES;
	pool = mmap(NULL, lane->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool == MAP_FAILED)
		return -errno;
	lane->map = pool;
	start = ((uintptr_t)pool + LANE_HUGE_PAGE_BYTES - 1) & ~((uintptr_t)LANE_HUGE_PAGE_BYTES - 1);
	lane->pool = (uint8_t *)start;
	(void)madvise(lane->pool, bytes, MADV_HUGEPAGE); /* a wish */
	return 0;
}

static int tables_init(struct kvd_lane *lane, const struct kvd_mover_config *config)
{
	lane->n_reqs = config->queue_depth + config->queue_jobs;
	lane->job_table = calloc(config->queue_jobs, sizeof(*lane->job_table));
	lane->reqs = calloc(lane->n_reqs, sizeof(*lane->reqs));
	if (!lane->job_table || !lane->reqs)
		return -ENOMEM;
	TAILQ_INIT(&lane->free_jobs);
	TAILQ_INIT(&lane->waiting);
	TAILQ_INIT(&lane->active);
	SLIST_INIT(&lane->free_data);
	SLIST_INIT(&lane->free_control);
	for (uint32_t i = 0; i < config->queue_jobs; i++)
		TAILQ_INSERT_TAIL(&lane->free_jobs, &lane->job_table[i], link);
	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		struct kvd_req *req = &lane->reqs[i];

		if (i < config->queue_depth)
			req->buffer = lane->pool + (size_t)i * lane->io_bytes;
		SLIST_INSERT_HEAD(req->buffer ? &lane->free_data : &lane->free_control, req, link);
	}
	return 0;
}

static void tables_fini(struct kvd_lane *lane)
{
	free(lane->reqs);
	free(lane->job_table);
}

int kvd_lane_init(struct kvd_lane *lane, struct kvd_mover *mover, uint32_t kind, const struct kvd_mover_config *config)
{
	int err;

	lane->mover = mover;
	lane->kind = kind;
	lane->io_bytes = config->io_bytes;
	lane->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (lane->wake_fd < 0)
		return -errno;
	err = pool_init(lane, config->queue_depth);
	if (err)
		goto close_wake;
	err = tables_init(lane, config);
	if (err)
		goto free_tables;
	err = io_uring_queue_init(lane->n_reqs * LANE_RING_ENTRIES_PER_REQ, &lane->ring, 0);
	if (err)
		goto free_tables;
	err = -pthread_create(&lane->thread, NULL, kvd_lane_main, lane);
	if (err)
		goto exit_ring;
	return 0;

exit_ring:
	io_uring_queue_exit(&lane->ring);
free_tables:
	tables_fini(lane);
	munmap(lane->map, lane->map_bytes);
close_wake:
	close(lane->wake_fd);
	return err;
}

/* The thread has exited and no request is left. */
void kvd_lane_fini(struct kvd_lane *lane)
{
	pthread_join(lane->thread, NULL);
	io_uring_queue_exit(&lane->ring);
	tables_fini(lane);
	munmap(lane->map, lane->map_bytes);
	close(lane->wake_fd);
}

void kvd_lane_wake(struct kvd_lane *lane)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(lane->wake_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	assert(n == sizeof(one));
}

static void arm_wake(struct kvd_lane *lane)
{
	struct io_uring_sqe *sqe;

	if (lane->wake.busy)
		return;
	sqe = kvd_req_sqe(lane);
	if (!sqe)
		return;
	io_uring_prep_read(sqe, lane->wake_fd, &lane->wake_count, sizeof(lane->wake_count), 0);
	io_uring_sqe_set_data(sqe, &lane->wake);
	lane->wake.busy = true;
}

/* Stop what is cancelled or late, abandon what can't be stopped. When to look again, or LANE_NEVER_NS. */
static uint64_t look_at_job(struct kvd_lane *lane, struct kvd_job *job, uint64_t now_ns)
{
	if (job->cancelled || lane->stop)
		kvd_job_stop(lane, job, -ECANCELED);
	else if (now_ns >= job->deadline_ns)
		kvd_job_stop(lane, job, -ETIMEDOUT);
	if (job->phase == KVD_JOB_STOPPING && now_ns >= job->abandon_ns) {
		kvd_req_orphan_all(lane, job);
		job->phase = KVD_JOB_DONE;
	}
	if (job->phase == KVD_JOB_DONE)
		return LANE_NEVER_NS;
	return job->phase == KVD_JOB_STOPPING ? job->abandon_ns : job->deadline_ns;
}

/* A waiting job that ends goes through the active list as all others do. */
static uint64_t look_at_jobs(struct kvd_lane *lane)
{
	uint64_t now_ns = kvd_mover_now_ns(), next_ns = LANE_NEVER_NS;
	struct kvd_job *job, *following;

	kvd_mover_lock(lane->mover);
	for (job = TAILQ_FIRST(&lane->waiting); job; job = following) {
		uint64_t at_ns = look_at_job(lane, job, now_ns);

		following = TAILQ_NEXT(job, link);
		next_ns = at_ns < next_ns ? at_ns : next_ns;
		if (job->phase == KVD_JOB_DONE) {
			TAILQ_REMOVE(&lane->waiting, job, link);
			TAILQ_INSERT_TAIL(&lane->active, job, link);
		}
	}
	TAILQ_FOREACH(job, &lane->active, link) {
		uint64_t at_ns = look_at_job(lane, job, now_ns);

		next_ns = at_ns < next_ns ? at_ns : next_ns;
	}
	kvd_mover_unlock(lane->mover);
	return next_ns;
}

static struct kvd_job *begin_waiting(struct kvd_lane *lane)
{
	struct kvd_job *job;

	kvd_mover_lock(lane->mover);
	job = TAILQ_FIRST(&lane->waiting);
	if (job) {
		TAILQ_REMOVE(&lane->waiting, job, link);
		TAILQ_INSERT_TAIL(&lane->active, job, link);
		if (!lane->busy_since_ns)
			lane->busy_since_ns = kvd_mover_now_ns();
	}
	kvd_mover_unlock(lane->mover);
	return job;
}

/* Give free buffers to the oldest jobs first; begin waiting ones with what is left. */
static void pump(struct kvd_lane *lane)
{
	struct kvd_job *job;

	TAILQ_FOREACH(job, &lane->active, link)
		while (kvd_copy_has_next(job) && !SLIST_EMPTY(&lane->free_data))
			kvd_copy_next(lane, job);
	while (!SLIST_EMPTY(&lane->free_data) && !SLIST_EMPTY(&lane->free_control)) {
		job = begin_waiting(lane);
		if (!job)
			return;
		kvd_job_start(lane, job);
		while (kvd_copy_has_next(job) && !SLIST_EMPTY(&lane->free_data))
			kvd_copy_next(lane, job);
	}
}

/* Publish the jobs that are done. */
static void retire(struct kvd_lane *lane)
{
	struct kvd_job *job, *following;

	for (job = TAILQ_FIRST(&lane->active); job; job = following) {
		following = TAILQ_NEXT(job, link);
		if (job->phase != KVD_JOB_DONE)
			continue;
		kvd_mover_lock(lane->mover);
		TAILQ_REMOVE(&lane->active, job, link);
		kvd_mover_publish(lane, job);
		TAILQ_INSERT_HEAD(&lane->free_jobs, job, link);
		if (TAILQ_EMPTY(&lane->active)) {
			lane->busy_ns += lane->busy_since_ns ? kvd_mover_now_ns() - lane->busy_since_ns : 0;
			lane->busy_since_ns = 0;
		}
		kvd_mover_unlock(lane->mover);
	}
}

static void complete(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_job *job = req->job;

	if (req == &lane->wake) {
		req->busy = false;
	} else if (!job) {
		kvd_req_put(lane, req);
	} else if (job->phase == KVD_JOB_STOPPING) {
		kvd_req_put(lane, req);
		if (job->in_flight == 0)
			job->phase = KVD_JOB_DONE;
	} else if (req->buffer) {
		kvd_copy_done(lane, req, res);
	} else {
		kvd_job_control_done(lane, req, res);
	}
}

/*
 * After each completion the disk gets its next request: it must not idle while the rest of a batch is checked. A batch
 * is bounded, so that deadlines are looked at under load too.
 */
static void complete_batch(struct kvd_lane *lane)
{
	struct io_uring_cqe *cqe;

	for (uint32_t n = 0; n < lane->n_reqs && io_uring_peek_cqe(&lane->ring, &cqe) == 0; n++) {
		struct kvd_req *req = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&lane->ring, cqe);
		if (!req)
			continue; /* of a cancellation; what it was for comes by itself */
		complete(lane, req, res);
		pump(lane);
		retire(lane);
		if (io_uring_sq_ready(&lane->ring) > 0)
			io_uring_submit(&lane->ring);
	}
}

static void wait_until(struct kvd_lane *lane, uint64_t until_ns)
{
	uint64_t now_ns = kvd_mover_now_ns();
	uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct __kernel_timespec timeout = {
		.tv_sec = (long long)(wait_ns / LANE_NS_PER_S),
		.tv_nsec = (long long)(wait_ns % LANE_NS_PER_S),
	};
	struct io_uring_cqe *cqe;
	int n = io_uring_submit_and_wait_timeout(&lane->ring, &cqe, 1, until_ns == LANE_NEVER_NS ? NULL : &timeout, NULL);

	/* The kernel is out of memory or the like: let it breathe. */
	if (n < 0 && n != -ETIME && n != -EINTR)
		(void)poll(NULL, 0, LANE_REFUSED_WAIT_MS);
}

/* Looked at before, so that a late job does not begin; and after, because beginning may have stopped some. */
static uint64_t turn(struct kvd_lane *lane)
{
	uint64_t next_ns;

	(void)look_at_jobs(lane);
	retire(lane);
	pump(lane);
	next_ns = look_at_jobs(lane);
	retire(lane);
	return next_ns;
}

/* Nothing left to do, for ever; then the thread ends. */
static bool exits(struct kvd_lane *lane)
{
	bool over;

	kvd_mover_lock(lane->mover);
	over = lane->stop && TAILQ_EMPTY(&lane->waiting) && TAILQ_EMPTY(&lane->active);
	if (over)
		kvd_mover_lane_exited(lane);
	kvd_mover_unlock(lane->mover);
	return over;
}

void *kvd_lane_main(void *arg)
{
	struct kvd_lane *lane = arg;

	for (;;) {
		uint64_t next_ns;

		arm_wake(lane);
		next_ns = turn(lane);
		if (exits(lane))
			return NULL;
		wait_until(lane, next_ns);
		complete_batch(lane);
	}
}
