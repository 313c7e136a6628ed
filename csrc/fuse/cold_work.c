/* READs of cold objects: the threads that ask the drives. The rules are in cold_pool.h. */
#include <errno.h>
#include <stdlib.h>

#include "fuse/cold_pool.h"

static uint8_t *buffer_take(struct kvd_cold *cold)
{
	if (cold->n_spares > 0)
		return cold->spares[--cold->n_spares];
	return aligned_alloc(KVD_BLOCK_BYTES, cold->buffer_bytes);
}

/* What of a job is on its device, up to the end of the stripe. A drive may keep this for ever. */
static int read_stripe(struct kvd_cold_job *job, uint64_t *bad_page)
{
	size_t bytes = (size_t)(job->to - job->at);
	int error;

	if (!job->buffer)
		return -ENOMEM;
	(void)kvd_parts_at(job->object, job->at, &bytes);
	error = kvd_verify_read(job->object, job->buffer + (job->at - job->from), job->at, job->at + bytes, bad_page);
	job->at += bytes;
	return error;
}

static void answer(kvd_split *split, const struct kvd_cold_job *job, const struct kvd_wait *wait, int error,
		   uint64_t bad_page)
{
	const struct fuse_read_in *in = &wait->request.in;
	uint64_t unique = wait->request.header.unique;
	size_t bytes = (size_t)(job->to - in->offset);

	if (error == -EBADMSG && bad_page != KVD_PAGE_NONE) {
		kvd_event_post(split, KVD_EVENT_BAD_PAGE, job->object->node, bad_page);
		error = -EIO;
	} else if (error && error != -ENOTCONN && error != -ENOMEM) {
		kvd_event_post_device(split, KVD_EVENT_IO_ERROR, job->object->node, (uint64_t)-error, job->device);
	}
	if (error) {
		kvd_reply_error(split, unique, error);
		return;
	}
	kvd_count(&split->counters.reads, 1);
	kvd_count(&split->counters.read_bytes, bytes);
	kvd_reply_data(split, unique, job->buffer + (in->offset - job->from), bytes);
}

/* The answer is written without the lock; whoever ends the object, or the split, waits for that. */
static void finish(struct kvd_cold *cold, struct kvd_cold_job *job, int error, uint64_t bad_page)
{
	struct kvd_object *object = job->object;
	struct kvd_wait *wait = job->wait;

	cold->busy++;
	object->cold_busy++;
	pthread_mutex_unlock(&cold->lock);
	answer(cold->split, job, wait, error, bad_page);
	free(wait);
	pthread_mutex_lock(&cold->lock);
	object->cold_busy--;
	cold->busy--;
	(void)kvd_cold_job_free(cold, job); /* who ends the object waits for the busy ones first */
	pthread_cond_broadcast(&cold->quiet);
}

/* Serve one job of the lane; called and returns with the lock. */
static void serve(struct kvd_cold_lane *lane)
{
	struct kvd_cold *cold = lane->cold;
	struct kvd_cold_job *job = TAILQ_FIRST(&lane->queued);
	uint64_t bad_page = KVD_PAGE_NONE;
	int error;

	TAILQ_REMOVE(&lane->queued, job, link);
	TAILQ_INSERT_TAIL(&lane->running, job, link);
	lane->n_queued--;
	lane->carried -= job->buffer != NULL;
	if (!job->buffer)
		job->buffer = buffer_take(cold);
	job->deadline_ns = kvd_wait_now_ns() + cold->device_ns;
	kvd_cold_keep_until(cold, job->deadline_ns);
	pthread_mutex_unlock(&cold->lock);
	error = read_stripe(job, &bad_page);
	pthread_mutex_lock(&cold->lock);
	TAILQ_REMOVE(&lane->running, job, link);
	if (!job->wait) {
		struct kvd_object *object = job->object;
		bool last;

		lane->strays--;
		last = kvd_cold_job_free(cold, job);
		if (last) {
			pthread_mutex_unlock(&cold->lock);
			kvd_object_free(object);
			pthread_mutex_lock(&cold->lock);
		}
		return;
	}
	if (!error && job->at < job->to) {
		job->device = kvd_parts_device(job->object, job->at);
		error = kvd_cold_queue(cold, job);
		if (!error)
			return;
	}
	finish(cold, job, error, bad_page);
}

void *kvd_cold_worker_main(void *arg)
{
	struct kvd_cold_worker *worker = arg;
	struct kvd_cold_lane *lane = worker->lane;
	struct kvd_cold *cold = lane->cold;
	bool last;

	pthread_mutex_lock(&cold->lock);
	while (!cold->stopping) {
		if (!TAILQ_EMPTY(&lane->queued)) {
			serve(lane);
			continue;
		}
		lane->idle++;
		pthread_cond_wait(&lane->more, &cold->lock);
		lane->idle--;
	}
	worker->exited = true;
	cold->threads--;
	pthread_cond_broadcast(&cold->quiet);
	last = cold->abandoned && cold->threads == 0;
	pthread_mutex_unlock(&cold->lock);
	if (last)
		kvd_cold_free(cold);
	return NULL;
}
