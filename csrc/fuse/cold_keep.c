/* READs of cold objects that end otherwise than by their thread: deadlines, interrupts, removals, drives that are offline. */
#include <errno.h>
#include <stdlib.h>

#include "fuse/cold_pool.h"

struct kvd_wait *kvd_cold_take(struct kvd_cold_lane *lane, struct kvd_cold_job *job, bool running)
{
	struct kvd_wait *wait = job->wait;

	job->wait = NULL;
	if (running) {
		lane->strays++;
	} else {
		TAILQ_REMOVE(&lane->queued, job, link);
		lane->n_queued--;
		lane->carried -= job->buffer != NULL;
		(void)kvd_cold_job_free(lane->cold, job); /* an object that was ended has none in a queue */
	}
	return wait;
}

static void take_some(struct kvd_cold_lane *lane, const struct kvd_object *object, bool running,
		      struct kvd_wait_list *taken)
{
	struct kvd_cold_job *job = TAILQ_FIRST(running ? &lane->running : &lane->queued);

	while (job) {
		struct kvd_cold_job *next = TAILQ_NEXT(job, link);

		if (job->wait && (!object || job->object == object)) {
			struct kvd_wait *wait = kvd_cold_take(lane, job, running);

			TAILQ_INSERT_TAIL(taken, wait, link);
		}
		job = next;
	}
}

void kvd_cold_take_all(struct kvd_cold_lane *lane, const struct kvd_object *object, struct kvd_wait_list *taken)
{
	take_some(lane, object, true, taken);
	take_some(lane, object, false, taken);
}

void kvd_cold_keep_until(struct kvd_cold *cold, uint64_t deadline_ns)
{
	if (deadline_ns >= cold->keep_ns)
		return;
	cold->keep_ns = deadline_ns;
	pthread_cond_signal(&cold->keep);
}

/* -- deadlines -- */

/* Those of one list that are late, and when the next of it will be. */
static void take_late(struct kvd_cold_lane *lane, bool running, uint64_t now_ns, uint64_t *next_ns,
		      struct kvd_wait_list *late)
{
	struct kvd_cold_job *job = TAILQ_FIRST(running ? &lane->running : &lane->queued);

	while (job) {
		struct kvd_cold_job *next = TAILQ_NEXT(job, link);

		if (job->wait && job->deadline_ns <= now_ns) {
			uint32_t device = job->device;
			struct kvd_wait *wait = kvd_cold_take(lane, job, running);

			/* To wait for a thread long is no fault of the drive. */
			wait->device = running ? device + 1 : 0;
			TAILQ_INSERT_TAIL(late, wait, link);
		} else if (job->wait && job->deadline_ns < *next_ns) {
			*next_ns = job->deadline_ns;
		}
		job = next;
	}
}

static void tell_late(kvd_split *split, struct kvd_wait_list *late)
{
	const struct kvd_wait *wait;

	TAILQ_FOREACH(wait, late, link) {
		uint64_t node = wait->request.header.nodeid;

		if (wait->device > 0)
			kvd_event_post_device(split, KVD_EVENT_IO_ERROR, node, ETIMEDOUT, wait->device - 1);
		else
			kvd_event_post(split, KVD_EVENT_IO_ERROR, node, ETIMEDOUT);
	}
	kvd_wait_refuse(split, late, -EIO);
}

/* What is late now; keep_ns is when to look again. */
static void look(struct kvd_cold *cold, struct kvd_wait_list *late, struct kvd_wait_list *lost)
{
	uint64_t now_ns = kvd_wait_now_ns();

	cold->keep_ns = KVD_COLD_NEVER_NS;
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX; i++) {
		struct kvd_cold_lane *lane = &cold->lanes[i];

		take_late(lane, true, now_ns, &cold->keep_ns, late);
		take_late(lane, false, now_ns, &cold->keep_ns, late);
		if (lane->strays == KVD_COLD_THREADS) /* nobody is left to serve these */
			kvd_cold_take_all(lane, NULL, lost);
	}
}

void *kvd_cold_keeper_main(void *arg)
{
	struct kvd_cold *cold = arg;

	pthread_mutex_lock(&cold->lock);
	while (!cold->stopping) {
		struct kvd_wait_list late = TAILQ_HEAD_INITIALIZER(late);
		struct kvd_wait_list lost = TAILQ_HEAD_INITIALIZER(lost);
		struct timespec until;

		look(cold, &late, &lost);
		if (!TAILQ_EMPTY(&late) || !TAILQ_EMPTY(&lost)) {
			pthread_mutex_unlock(&cold->lock);
			tell_late(cold->split, &late);
			kvd_wait_refuse(cold->split, &lost, -EIO);
			pthread_mutex_lock(&cold->lock);
			continue;
		}
		until = kvd_wait_timespec(cold->keep_ns);
		if (cold->keep_ns == KVD_COLD_NEVER_NS)
			pthread_cond_wait(&cold->keep, &cold->lock);
		else
			(void)pthread_cond_timedwait(&cold->keep, &cold->lock, &until);
	}
	pthread_mutex_unlock(&cold->lock);
	return NULL;
}

/* -- others -- */

static struct kvd_wait *take_unique(struct kvd_cold_lane *lane, uint64_t unique, bool running)
{
	struct kvd_cold_job *job;

	TAILQ_FOREACH(job, running ? &lane->running : &lane->queued, link)
		if (job->wait && job->wait->request.header.unique == unique)
			return kvd_cold_take(lane, job, running);
	return NULL;
}

bool kvd_cold_interrupt(kvd_split *split, uint64_t unique)
{
	struct kvd_cold *cold = split->cold;
	struct kvd_wait *wait = NULL;

	if (atomic_load(&cold->jobs) == 0)
		return false;
	pthread_mutex_lock(&cold->lock);
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX && !wait; i++) {
		struct kvd_cold_lane *lane = &cold->lanes[i];

		wait = take_unique(lane, unique, true);
		if (!wait)
			wait = take_unique(lane, unique, false);
		if (wait && lane->strays == KVD_COLD_THREADS)
			kvd_cold_keep_until(cold, 0);
	}
	pthread_mutex_unlock(&cold->lock);
	free(wait);
	return wait != NULL;
}

bool kvd_cold_end(struct kvd_cold *cold, struct kvd_object *object, bool switched)
{
	struct kvd_wait_list taken = TAILQ_HEAD_INITIALIZER(taken);
	bool left;

	pthread_mutex_lock(&cold->lock);
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX && object->cold_jobs > 0; i++)
		kvd_cold_take_all(&cold->lanes[i], object, &taken);
	while (object->cold_busy > 0)
		pthread_cond_wait(&cold->quiet, &cold->lock);
	left = object->cold_jobs > 0;
	object->cold_orphan = left;
	pthread_mutex_unlock(&cold->lock);
	if (switched)
		kvd_wait_again(cold->split, &taken);
	else
		kvd_wait_refuse(cold->split, &taken, -EIO);
	return left;
}

int kvd_split_device(kvd_split *split, uint32_t device, uint32_t usable)
{
	struct kvd_wait_list taken = TAILQ_HEAD_INITIALIZER(taken);
	struct kvd_cold *cold = split->cold;
	struct kvd_cold_lane *lane;

	if (device >= KVD_SPLIT_DEVICES_MAX)
		return -EINVAL;
	lane = &cold->lanes[device];
	pthread_mutex_lock(&cold->lock);
	lane->down = !usable;
	if (lane->down)
		kvd_cold_take_all(lane, NULL, &taken);
	pthread_mutex_unlock(&cold->lock);
	kvd_wait_refuse(split, &taken, -EIO);
	return 0;
}

void kvd_cold_sizes(kvd_split *split, struct kvd_split_stats *out)
{
	struct kvd_cold *cold = split->cold;

	pthread_mutex_lock(&cold->lock);
	out->cold_reading = atomic_load(&cold->jobs);
	for (uint32_t i = 0; i < KVD_SPLIT_DEVICES_MAX; i++)
		out->cold_given_up += cold->lanes[i].strays;
	pthread_mutex_unlock(&cold->lock);
	out->cold_reading -= out->cold_given_up;
}
