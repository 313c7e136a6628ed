/* READs of cold objects: the lanes, and what is queued there. The rules are in cold_pool.h. */
#include "fuse/cold_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* -- life -- */

static int cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	int error = pthread_condattr_init(&attr);

	if (error)
		return -error;
	error = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!error)
		error = pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
	return -error;
}

static void lanes_fini(struct kvd_cold *cold, uint32_t count)
{
	while (count > 0)
		pthread_cond_destroy(&cold->lanes[--count].more);
}

static int lanes_init(struct kvd_cold *cold)
{
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX; i++) {
		struct kvd_cold_lane *lane = &cold->lanes[i];
		int error = cond_init(&lane->more);

		if (error) {
			lanes_fini(cold, i);
			return error;
		}
		lane->cold = cold;
		TAILQ_INIT(&lane->queued);
		TAILQ_INIT(&lane->running);
	}
	return 0;
}

int kvd_cold_init(kvd_split *split, struct kvd_cold **out)
{
	struct kvd_cold *cold = calloc(1, sizeof(*cold));
	int error;

	if (!cold)
		return -ENOMEM;
	cold->split = split;
	cold->device_ns = kvd_wait_ns(split->config.device_wait_ms);
	cold->keep_ns = KVD_COLD_NEVER_NS;
	/* Whole pages around any range. */
	cold->buffer_bytes = kvd_align_up(split->config.io_bytes_max, KVD_BLOCK_BYTES) + 2 * KVD_PAGE_BYTES_MAX;
	error = -pthread_mutex_init(&cold->lock, NULL);
	if (error)
		goto out_cold;
	error = cond_init(&cold->keep);
	if (error)
		goto out_lock;
	error = cond_init(&cold->quiet);
	if (error)
		goto out_keep;
	error = lanes_init(cold);
	if (error)
		goto out_quiet;
	*out = cold;
	return 0;

out_quiet:
	pthread_cond_destroy(&cold->quiet);
out_keep:
	pthread_cond_destroy(&cold->keep);
out_lock:
	pthread_mutex_destroy(&cold->lock);
out_cold:
	free(cold);
	return error;
}

void kvd_cold_free(struct kvd_cold *cold)
{
	while (cold->n_spares > 0)
		free(cold->spares[--cold->n_spares]);
	lanes_fini(cold, KVD_SPLIT_DEVICES_MAX);
	pthread_cond_destroy(&cold->quiet);
	pthread_cond_destroy(&cold->keep);
	pthread_mutex_destroy(&cold->lock);
	free(cold);
}

void kvd_cold_fini(struct kvd_cold *cold)
{
	bool left;

	pthread_mutex_lock(&cold->lock);
	left = cold->threads > 0;
	cold->abandoned = left;
	pthread_mutex_unlock(&cold->lock);
	if (!left)
		kvd_cold_free(cold);
}

/* Those that have ended are joined; those that a drive keeps are left alone. Called with the lock, of ended READs only. */
static void leave_workers(struct kvd_cold_lane *lane)
{
	for (; lane->n_workers > 0; lane->n_workers--) {
		const struct kvd_cold_worker *worker = &lane->workers[lane->n_workers - 1];

		if (worker->exited)
			pthread_join(worker->thread, NULL);
		else
			pthread_detach(worker->thread);
	}
}

static void wait_for_threads(struct kvd_cold *cold)
{
	uint64_t until_ns = kvd_wait_now_ns() + kvd_wait_ns(KVD_COLD_GRACE_MS);
	struct timespec until = kvd_wait_timespec(until_ns);
	int error = 0;

	while (cold->busy > 0)
		pthread_cond_wait(&cold->quiet, &cold->lock);
	while (cold->threads > 0 && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&cold->quiet, &cold->lock, &until);
}

void kvd_cold_stop(struct kvd_cold *cold)
{
	struct kvd_wait_list taken = TAILQ_HEAD_INITIALIZER(taken);
	bool keeps;

	pthread_mutex_lock(&cold->lock);
	if (cold->stopping) {
		pthread_mutex_unlock(&cold->lock);
		return;
	}
	cold->stopping = true;
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX; i++) {
		kvd_cold_take_all(&cold->lanes[i], NULL, &taken);
		pthread_cond_broadcast(&cold->lanes[i].more);
	}
	pthread_cond_signal(&cold->keep);
	keeps = cold->keeps;
	cold->keeps = false;
	pthread_mutex_unlock(&cold->lock);
	kvd_wait_refuse(cold->split, &taken, -ENOTCONN);
	if (keeps)
		pthread_join(cold->keeper, NULL);
	pthread_mutex_lock(&cold->lock);
	wait_for_threads(cold);
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX; i++)
		leave_workers(&cold->lanes[i]);
	pthread_mutex_unlock(&cold->lock);
}

/* -- jobs -- */

bool kvd_cold_job_free(struct kvd_cold *cold, struct kvd_cold_job *job)
{
	struct kvd_object *object = job->object;

	if (job->buffer && cold->n_spares < KVD_COLD_SPARES_MAX)
		cold->spares[cold->n_spares++] = job->buffer;
	else
		free(job->buffer);
	free(job);
	atomic_fetch_sub(&cold->jobs, 1);
	return --object->cold_jobs == 0 && object->cold_orphan;
}

/* One more thread, if those that are free are too few for what is queued and one more. */
static int more_threads(struct kvd_cold_lane *lane)
{
	struct kvd_cold *cold = lane->cold;
	struct kvd_cold_worker *worker = &lane->workers[lane->n_workers];
	int error = 0;

	if (!cold->keeps) {
		error = -pthread_create(&cold->keeper, NULL, kvd_cold_keeper_main, cold);
		if (error)
			return error;
		cold->keeps = true;
	}
	if (lane->n_queued < lane->idle || lane->n_workers == KVD_COLD_THREADS)
		return 0;
	*worker = (struct kvd_cold_worker){ .lane = lane };
	error = -pthread_create(&worker->thread, NULL, kvd_cold_worker_main, worker);
	if (error)
		return lane->n_workers > 0 ? 0 : error; /* with fewer it only takes longer */
	lane->n_workers++;
	cold->threads++;
	return 0;
}

/* With a buffer it goes first, so that those do not pile up. */
int kvd_cold_queue(struct kvd_cold *cold, struct kvd_cold_job *job)
{
	struct kvd_cold_lane *lane = &cold->lanes[job->device];
	int error;

	if (cold->stopping)
		return -ENOTCONN;
	if (lane->down || lane->strays == KVD_COLD_THREADS)
		return -EIO;
	if (lane->n_queued == KVD_COLD_QUEUE_MAX || (job->buffer && lane->carried == KVD_COLD_CARRIED_MAX))
		return -ENOMEM;
	error = more_threads(lane);
	if (error)
		return error;
	job->deadline_ns = job->wait->deadline_ns;
	if (job->buffer)
		TAILQ_INSERT_HEAD(&lane->queued, job, link);
	else
		TAILQ_INSERT_TAIL(&lane->queued, job, link);
	lane->carried += job->buffer != NULL;
	lane->n_queued++;
	kvd_cold_keep_until(cold, job->deadline_ns);
	pthread_cond_signal(&lane->more);
	return 0;
}

static struct kvd_cold_job *job_new(kvd_split *split, struct kvd_object *object, const struct kvd_request *request,
				    uint64_t to)
{
	const struct fuse_read_in *in = request->body;
	struct kvd_cold_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->wait = kvd_wait_new(split, request);
	if (!job->wait) {
		free(job);
		return NULL;
	}
	job->object = object;
	job->from = job->at = kvd_align_down(in->offset, object->page_bytes);
	job->to = to;
	job->device = kvd_parts_device(object, job->at);
	return job;
}

int kvd_cold_read(kvd_split *split, struct kvd_object *object, const struct kvd_request *request)
{
	const struct fuse_read_in *in = request->body;
	uint64_t to = in->offset + in->size < object->size_bytes ? in->offset + in->size : object->size_bytes;
	struct kvd_cold *cold = split->cold;
	struct kvd_cold_job *job;
	int error;

	if (to <= in->offset) {
		kvd_count(&split->counters.reads, 1);
		kvd_reply_data(split, request->header->unique, NULL, 0);
		return 0;
	}
	job = job_new(split, object, request, to);
	if (!job)
		return -ENOMEM;
	pthread_mutex_lock(&cold->lock);
	error = kvd_cold_queue(cold, job);
	if (!error) {
		atomic_fetch_add(&cold->jobs, 1);
		object->cold_jobs++;
	}
	pthread_mutex_unlock(&cold->lock);
	if (error) {
		free(job->wait);
		free(job);
		return error;
	}
	/* From here on somebody else may have answered. */
	if (kvd_pending_came_early(&split->pending, request->header->unique) &&
	    kvd_cold_interrupt(split, request->header->unique)) {
		kvd_count(&split->counters.interrupted, 1);
		return -EINTR;
	}
	return 0;
}
