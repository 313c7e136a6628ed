#include "mover/mover.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "mover/lane.h"

enum {
	MOVER_QUEUE_MAX = 4096,
	MOVER_IO_BYTES_MAX = 64 << 20,
	MOVER_EXIT_MS = 2 * KVD_LANE_GRACE_MS, /* for a thread to end after it was told to */
	MOVER_THREAD_NAME_BYTES = 16,
};
#define MOVER_NS_PER_S 1000000000u

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

void kvd_mover_lane_exited(struct kvd_lane *lane)
{
	lane->exited = true;
	pthread_cond_broadcast(&lane->mover->exited);
}

/* Wait until the lane's thread is about to end. false: it hangs, or the kernel still holds requests of it. */
static bool lane_came_to_rest(struct kvd_mover *mover, struct kvd_lane *lane, const struct timespec *until)
{
	bool rests;
	int err = 0;

	kvd_mover_lock(mover);
	while (!lane->exited && err != ETIMEDOUT)
		err = pthread_cond_timedwait(&mover->exited, &mover->lock, until);
	rests = lane->exited && atomic_load(&lane->orphans) == 0;
	kvd_mover_unlock(mover);
	return rests;
}

/*
 * Stop the first `n` lanes and free them. A thread that hangs in the kernel with its requests (a dead disk) is let go,
 * with its buffers: they are never freed under the kernel, and nobody waits for ever. true: nothing was left behind.
 */
static bool lanes_fini(struct kvd_mover *mover, uint32_t n)
{
	uint64_t until_ns = kvd_mover_now_ns() + MOVER_EXIT_MS * KVD_LANE_NS_PER_MS;
	const struct timespec until = {
		.tv_sec = (time_t)(until_ns / MOVER_NS_PER_S),
		.tv_nsec = (long)(until_ns % MOVER_NS_PER_S),
	};
	bool clean = true;

	kvd_mover_lock(mover);
	for (uint32_t i = 0; i < n; i++) {
		mover->lanes[i].stop = true;
		kvd_lane_wake(&mover->lanes[i]);
	}
	kvd_mover_unlock(mover);
	for (uint32_t i = 0; i < n; i++) {
		if (lane_came_to_rest(mover, &mover->lanes[i], &until)) {
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
	if (mover->event_fd >= 0)
		close(mover->event_fd);
	pthread_cond_destroy(&mover->exited);
	pthread_mutex_destroy(&mover->lock);
	free(mover->results);
	free(mover->job_table);
	free(mover->lanes);
	free(mover);
}

/* Signals are the callers' business: the threads take none. */
static int lanes_init(struct kvd_mover *mover, const struct kvd_mover_config *config)
{
	sigset_t all, before;
	int err = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t device = 0; device < config->n_devices && !err; device++) {
		char name[MOVER_THREAD_NAME_BYTES];

		err = kvd_lane_init(&mover->lanes[device], mover, device, config);
		if (err) {
			(void)lanes_fini(mover, device); /* idle threads: they end */
		} else {
			snprintf(name, sizeof(name), "kvd-mover-%u", device % KVD_MOVE_DEVICES_MAX);
			pthread_setname_np(mover->lanes[device].thread, name);
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

static int tables_init(struct kvd_mover *mover, const struct kvd_mover_config *config)
{
	mover->ring_results = config->queue_jobs * KVD_LANE_CLASSES;
	mover->results = calloc(mover->ring_results, sizeof(*mover->results));
	mover->job_table = calloc(mover->ring_results, sizeof(*mover->job_table));
	mover->lanes = calloc(config->n_devices, sizeof(*mover->lanes));
	if (!mover->results || !mover->job_table || !mover->lanes)
		return -ENOMEM;
	TAILQ_INIT(&mover->free_jobs);
	TAILQ_INIT(&mover->live_jobs);
	for (uint32_t i = 0; i < mover->ring_results; i++)
		TAILQ_INSERT_TAIL(&mover->free_jobs, &mover->job_table[i], link);
	mover->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return mover->event_fd < 0 ? -errno : 0;
}

static int config_check(const struct kvd_mover_config *config)
{
	if (config->queue_jobs == 0 || config->queue_jobs > MOVER_QUEUE_MAX ||
	    config->queue_depth < KVD_MOVE_DEPTH_MIN || config->queue_depth > MOVER_QUEUE_MAX ||
	    config->io_bytes == 0 || config->io_bytes > MOVER_IO_BYTES_MAX || config->io_bytes % KVD_LANE_BLOCK_BYTES ||
	    config->n_devices == 0 || config->n_devices > KVD_MOVE_DEVICES_MAX || config->request_ms == 0 ||
	    config->reserved)
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
	mover->n_lanes = config->n_devices;
	mover->event_fd = -1;
	pthread_mutex_init(&mover->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&mover->exited, &monotonic);
	pthread_condattr_destroy(&monotonic);
	err = tables_init(mover, config);
	if (!err)
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
	if (mover && lanes_fini(mover, mover->n_lanes))
		mover_free(mover);
}

int kvd_mover_eventfd(const kvd_mover *mover)
{
	return mover->event_fd;
}

void kvd_mover_stats(const kvd_mover *mover, struct kvd_mover_stats *out)
{
	/* Only the lock changes. */
	struct kvd_mover *locked = (struct kvd_mover *)(uintptr_t)mover;

	kvd_mover_lock(locked);
	*out = mover->stats;
	for (uint32_t kind = 0; kind < KVD_MOVE_KINDS; kind++)
		if (mover->running[kind] > 0)
			out->busy_ns[kind] += kvd_mover_now_ns() - mover->busy_since_ns[kind];
	kvd_mover_unlock(locked);
}

int kvd_mover_device_stats(const kvd_mover *mover, uint32_t device, struct kvd_mover_device *out)
{
	const struct kvd_lane *lane;

	if (device >= mover->n_lanes)
		return -EINVAL;
	lane = &mover->lanes[device];
	*out = (struct kvd_mover_device){
		.queue_depth = lane->depth,
		.given_up = atomic_load(&lane->orphans),
		.queued = atomic_load(&lane->queued),
		.oldest_ns = kvd_lane_oldest_ns(lane, kvd_mover_now_ns()),
		.read_bytes = atomic_load(&lane->read_bytes),
		.written_bytes = atomic_load(&lane->written_bytes),
	};
	for (uint32_t i = 0; i < lane->n_reqs; i++)
		out->in_flight += atomic_load(&lane->reqs[i].start_ns) != 0;
	return 0;
}

static int change_storage(int fd, int mode, uint64_t offset, uint64_t bytes)
{
	if (offset > INT64_MAX || bytes > INT64_MAX)
		return -EINVAL;
	while (fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int kvd_mover_punch(int fd, uint64_t offset, uint64_t bytes)
{
	return change_storage(fd, FALLOC_FL_PUNCH_HOLE, offset, bytes);
}

int kvd_mover_allocate(int fd, uint64_t offset, uint64_t bytes)
{
	return change_storage(fd, 0, offset, bytes);
}

uint32_t kvd_mover_crc32c(uint32_t crc, const void *data, uint64_t bytes)
{
	return kvd_crc32c(crc, data, bytes);
}
