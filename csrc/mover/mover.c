#include "mover/mover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "mover/lane.h"

enum {
	MOVER_QUEUE_MAX = 4096,            /* jobs, and requests, of a lane */
	MOVER_IO_BYTES_MAX = 64 << 20,
	MOVER_EXIT_MS = 2 * KVD_LANE_GRACE_MS, /* for a thread to end after it was told to */
};
#define MOVER_NS_PER_S 1000000000u
#define MOVER_NS_PER_MS 1000000u
#define MOVER_DEADLINE_MS_MAX (UINT64_C(365) * 24 * 3600 * 1000)

static const char *const mover_thread_names[KVD_MOVE_KINDS] = {"kvd-promote", "kvd-demote", "kvd-verify"};

/* A result and the lane whose place it gives back when it is reaped. */
struct mover_entry {
	struct kvd_mover_result result;
	struct kvd_lane *lane;
};

struct kvd_mover {
	pthread_mutex_t lock;
	pthread_cond_t exited; /* a lane's thread is about to end */
	int event_fd;
	uint32_t queue_jobs;
	uint32_t io_bytes;
	struct kvd_lane lanes[KVD_MOVE_KINDS];
	/* A ring with room for the result of every job that was accepted. */
	struct mover_entry *results;
	uint32_t n_results, first_result, ring_results;
};

uint64_t kvd_mover_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * MOVER_NS_PER_S + (uint64_t)now.tv_nsec;
}

void kvd_mover_lock(struct kvd_mover *mover)
{
	pthread_mutex_lock(&mover->lock);
}

void kvd_mover_unlock(struct kvd_mover *mover)
{
	pthread_mutex_unlock(&mover->lock);
}

void kvd_mover_publish(struct kvd_lane *lane, struct kvd_job *job)
{
	struct kvd_mover *mover = lane->mover;
	uint32_t at = (mover->first_result + mover->n_results) % mover->ring_results;
	uint64_t one = 1;
	ssize_t n;

	assert(mover->n_results < mover->ring_results);
	mover->results[at] = (struct mover_entry){
		.lane = lane,
		.result = {
			.token = job->spec.token,
			.status = job->status,
			.bad_page = job->status == -EBADMSG ? job->bad_page : 0,
			.bytes = job->bytes,
			.duration_ns = job->start_ns ? kvd_mover_now_ns() - job->start_ns : 0,
		},
	};
	mover->n_results++;
	job->phase = KVD_JOB_FREE;
	lane->queued--;
	lane->jobs++;
	lane->failed += job->status != 0;
	lane->bytes += job->bytes;
	do
		n = write(mover->event_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	assert(n == sizeof(one) || errno == EAGAIN);
}

void kvd_mover_lane_exited(struct kvd_lane *lane)
{
	lane->exited = true;
	pthread_cond_signal(&lane->mover->exited);
}

/* Wait until the lane's thread is about to end. false: it hangs, or the kernel still holds requests of it. */
static bool lane_came_to_rest(struct kvd_mover *mover, struct kvd_lane *lane)
{
	uint64_t until_ns = kvd_mover_now_ns() + (uint64_t)MOVER_EXIT_MS * MOVER_NS_PER_MS;
	struct timespec until = {
		.tv_sec = (time_t)(until_ns / MOVER_NS_PER_S),
		.tv_nsec = (long)(until_ns % MOVER_NS_PER_S),
	};
	bool rests;
	int err = 0;

	kvd_mover_lock(mover);
	while (!lane->exited && err != ETIMEDOUT)
		err = pthread_cond_timedwait(&mover->exited, &mover->lock, &until);
	rests = lane->exited && lane->orphans == 0;
	kvd_mover_unlock(mover);
	return rests;
}

/*
 * Stop the first `n` lanes and free them. A thread that hangs in the kernel with its requests (a dead disk) is let go,
 * with its buffers: they are never freed under the kernel, and nobody waits for ever. true: nothing was left behind.
 */
static bool lanes_fini(struct kvd_mover *mover, uint32_t n)
{
	bool clean = true;

	kvd_mover_lock(mover);
	for (uint32_t i = 0; i < n; i++)
		mover->lanes[i].stop = true;
	kvd_mover_unlock(mover);
	for (uint32_t i = 0; i < n; i++)
		kvd_lane_wake(&mover->lanes[i]);
	for (uint32_t i = 0; i < n; i++) {
		if (lane_came_to_rest(mover, &mover->lanes[i])) {
			kvd_lane_fini(&mover->lanes[i]);
		} else {
			pthread_detach(mover->lanes[i].thread);
			clean = false;
		}
	}
	return clean;
}

static void mover_free(struct kvd_mover *mover)
{
	close(mover->event_fd);
	pthread_cond_destroy(&mover->exited);
	pthread_mutex_destroy(&mover->lock);
	free(mover->results);
	free(mover);
}

/* Signals are the callers' business: the threads take none. */
static int lanes_init(struct kvd_mover *mover, const struct kvd_mover_config *config)
{
	sigset_t all, before;
	int err = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t kind = 0; kind < KVD_MOVE_KINDS && !err; kind++) {
		err = kvd_lane_init(&mover->lanes[kind], mover, kind, config);
		if (err)
			(void)lanes_fini(mover, kind); /* idle threads: they end */
		else
			pthread_setname_np(mover->lanes[kind].thread, mover_thread_names[kind]);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

static int config_check(const struct kvd_mover_config *config)
{
	if (config->queue_jobs == 0 || config->queue_jobs > MOVER_QUEUE_MAX || config->queue_depth == 0 ||
	    config->queue_depth > MOVER_QUEUE_MAX || config->io_bytes == 0 || config->io_bytes > MOVER_IO_BYTES_MAX ||
	    config->io_bytes % KVD_LANE_BLOCK_BYTES || config->reserved)
		return -EINVAL;
	return 0;
}

int kvd_mover_init(const struct kvd_mover_config *config, kvd_mover **out)
{
	pthread_condattr_t monotonic;
	struct kvd_mover *mover;
	int err = config_check(config);

	if (err)
		return err;
	mover = calloc(1, sizeof(*mover));
	if (!mover)
		return -ENOMEM;
	mover->queue_jobs = config->queue_jobs;
	mover->io_bytes = config->io_bytes;
	mover->ring_results = config->queue_jobs * KVD_MOVE_KINDS;
	mover->results = calloc(mover->ring_results, sizeof(*mover->results));
	mover->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&mover->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&mover->exited, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (!mover->results)
		err = -ENOMEM;
	else if (mover->event_fd < 0)
		err = -errno;
	else
		err = lanes_init(mover, config);
	if (err) {
		mover_free(mover);
		return err;
	}
	*out = mover;
	return 0;
}

void kvd_mover_fini(kvd_mover *mover)
{
	if (mover && lanes_fini(mover, KVD_MOVE_KINDS))
		mover_free(mover);
}

int kvd_mover_submit(kvd_mover *mover, const struct kvd_mover_job *spec)
{
	int err = kvd_job_check(spec, mover->io_bytes);
	uint64_t deadline_ms = spec->deadline_ms < MOVER_DEADLINE_MS_MAX ? spec->deadline_ms : MOVER_DEADLINE_MS_MAX;
	struct kvd_lane *lane;
	struct kvd_job *job = NULL;

	if (err)
		return err;
	lane = &mover->lanes[spec->kind];
	kvd_mover_lock(mover);
	if (lane->held < mover->queue_jobs) {
		job = TAILQ_FIRST(&lane->free_jobs);
		assert(job);
		TAILQ_REMOVE(&lane->free_jobs, job, link);
		*job = (struct kvd_job){
			.spec = *spec,
			.phase = KVD_JOB_WAITING,
			.deadline_ns = kvd_mover_now_ns() + deadline_ms * MOVER_NS_PER_MS,
		};
		TAILQ_INSERT_TAIL(&lane->waiting, job, link);
		lane->held++;
		lane->queued++;
	}
	kvd_mover_unlock(mover);
	if (!job)
		return -EAGAIN;
	kvd_lane_wake(lane);
	return 0;
}

static bool cancel_in(struct kvd_job_list *jobs, uint64_t token)
{
	bool found = false;
	struct kvd_job *job;

	TAILQ_FOREACH(job, jobs, link)
		if (job->spec.token == token) {
			job->cancelled = true;
			found = true;
		}
	return found;
}

int kvd_mover_cancel(kvd_mover *mover, uint64_t token)
{
	int err = -ENOENT;

	for (uint32_t kind = 0; kind < KVD_MOVE_KINDS; kind++) {
		struct kvd_lane *lane = &mover->lanes[kind];
		bool waiting, active;

		kvd_mover_lock(mover);
		waiting = cancel_in(&lane->waiting, token);
		active = cancel_in(&lane->active, token);
		kvd_mover_unlock(mover);
		if (waiting || active) {
			kvd_lane_wake(lane);
			err = 0;
		}
	}
	return err;
}

int kvd_mover_eventfd(const kvd_mover *mover)
{
	return mover->event_fd;
}

uint32_t kvd_mover_reap(kvd_mover *mover, struct kvd_mover_result *out, uint32_t max)
{
	uint32_t n = 0;

	kvd_mover_lock(mover);
	for (; n < max && mover->n_results > 0; n++) {
		struct mover_entry *entry = &mover->results[mover->first_result];

		out[n] = entry->result;
		entry->lane->held--;
		mover->first_result = (mover->first_result + 1) % mover->ring_results;
		mover->n_results--;
	}
	kvd_mover_unlock(mover);
	return n;
}

void kvd_mover_stats(const kvd_mover *mover, struct kvd_mover_stats *out)
{
	/* Only the lock changes. */
	struct kvd_mover *locked = (struct kvd_mover *)(uintptr_t)mover;

	kvd_mover_lock(locked);
	for (uint32_t kind = 0; kind < KVD_MOVE_KINDS; kind++) {
		const struct kvd_lane *lane = &mover->lanes[kind];

		out->jobs[kind] = lane->jobs;
		out->bytes[kind] = lane->bytes;
		out->failed[kind] = lane->failed;
		out->queued[kind] = lane->queued;
		out->busy_ns[kind] = lane->busy_ns;
		if (lane->busy_since_ns)
			out->busy_ns[kind] += kvd_mover_now_ns() - lane->busy_since_ns;
	}
	kvd_mover_unlock(locked);
}

int kvd_mover_punch(int fd, uint64_t offset, uint64_t bytes)
{
	if (offset > INT64_MAX || bytes > INT64_MAX)
		return -EINVAL;
	while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}
