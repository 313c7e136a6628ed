/* The lists of READs that wait for a stream: their deadlines, interrupts and answers. */
#include "fuse/wait_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KVD_WAIT_TIMEOUT_MS_MAX = INT32_MAX };
#define KVD_WAIT_NS_PER_MS UINT64_C(1000000)
#define KVD_WAIT_NS_PER_S UINT64_C(1000000000)

uint64_t kvd_wait_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * KVD_WAIT_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t kvd_wait_ns(uint32_t ms)
{
	return ms * KVD_WAIT_NS_PER_MS;
}

struct timespec kvd_wait_timespec(uint64_t at_ns)
{
	return (struct timespec){ (time_t)(at_ns / KVD_WAIT_NS_PER_S), (long)(at_ns % KVD_WAIT_NS_PER_S) };
}

int kvd_waits_init(struct kvd_waits *waits)
{
	TAILQ_INIT(&waits->all);
	TAILQ_INIT(&waits->ready);
	return -pthread_mutex_init(&waits->lock, NULL);
}

void kvd_waits_fini(struct kvd_waits *waits)
{
	pthread_mutex_destroy(&waits->lock);
}

/* Deadlines come in order, but for a READ that waits a second time. */
static void put_in_order(struct kvd_waits *waits, struct kvd_wait *wait)
{
	struct kvd_wait *before = TAILQ_LAST(&waits->all, kvd_wait_list);

	while (before && before->deadline_ns > wait->deadline_ns)
		before = TAILQ_PREV(before, kvd_wait_list, all);
	if (before)
		TAILQ_INSERT_AFTER(&waits->all, before, wait, all);
	else
		TAILQ_INSERT_HEAD(&waits->all, wait, all);
	atomic_fetch_add(&waits->count, 1);
}

void kvd_wait_put(struct kvd_waits *waits, struct kvd_object *object, struct kvd_wait *wait)
{
	put_in_order(waits, wait);
	wait->object = object;
	TAILQ_INSERT_TAIL(&object->waits, wait, link);
}

void kvd_wait_again(kvd_split *split, struct kvd_wait_list *list)
{
	struct kvd_waits *waits = &split->waits;
	struct kvd_wait *wait;

	if (TAILQ_EMPTY(list))
		return;
	pthread_mutex_lock(&waits->lock);
	while ((wait = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, wait, link);
		put_in_order(waits, wait);
		wait->object = NULL;
		TAILQ_INSERT_TAIL(&waits->ready, wait, link);
		atomic_fetch_add(&waits->n_ready, 1);
	}
	pthread_mutex_unlock(&waits->lock);
	kvd_split_signal_work(split);
}

void kvd_wait_take(struct kvd_waits *waits, struct kvd_wait *wait)
{
	TAILQ_REMOVE(&waits->all, wait, all);
	if (wait->object) {
		TAILQ_REMOVE(&wait->object->waits, wait, link);
	} else {
		TAILQ_REMOVE(&waits->ready, wait, link);
		atomic_fetch_sub(&waits->n_ready, 1);
	}
	atomic_fetch_sub(&waits->count, 1);
}

void kvd_wait_ready(struct kvd_waits *waits, struct kvd_wait *wait)
{
	TAILQ_REMOVE(&wait->object->waits, wait, link);
	wait->object = NULL;
	TAILQ_INSERT_TAIL(&waits->ready, wait, link);
	atomic_fetch_add(&waits->n_ready, 1);
}

static struct kvd_wait *find(struct kvd_waits *waits, uint64_t unique)
{
	struct kvd_wait *wait;

	/* Who looks most often looks for what it has just put. */
	TAILQ_FOREACH_REVERSE(wait, &waits->all, kvd_wait_list, all)
		if (wait->request.header.unique == unique)
			return wait;
	return NULL;
}

struct kvd_wait *kvd_wait_take_unique(struct kvd_waits *waits, uint64_t unique)
{
	struct kvd_wait *wait;

	pthread_mutex_lock(&waits->lock);
	wait = find(waits, unique);
	if (wait)
		kvd_wait_take(waits, wait);
	pthread_mutex_unlock(&waits->lock);
	return wait;
}

struct kvd_wait *kvd_wait_new(const kvd_split *split, const struct kvd_request *request)
{
	struct kvd_wait *wait = calloc(1, sizeof(*wait));

	if (!wait)
		return NULL;
	wait->request.header = *request->header;
	memcpy(&wait->request.in, request->body, sizeof(wait->request.in));
	wait->deadline_ns = request->deadline_ns;
	if (!wait->deadline_ns)
		wait->deadline_ns = kvd_wait_now_ns() + kvd_wait_ns(split->config.read_wait_ms);
	return wait;
}

bool kvd_wait_interrupt(kvd_split *split, uint64_t unique)
{
	struct kvd_wait *wait = kvd_wait_take_unique(&split->waits, unique);

	free(wait);
	return wait != NULL;
}

int kvd_wait_timeout_ms(kvd_split *split)
{
	struct kvd_waits *waits = &split->waits;
	const struct kvd_wait *next;
	uint64_t left_ms = UINT64_MAX;
	uint64_t now;

	if (atomic_load(&waits->count) == 0)
		return -1;
	now = kvd_wait_now_ns();
	pthread_mutex_lock(&waits->lock);
	next = TAILQ_FIRST(&waits->all);
	if (next)
		left_ms = next->deadline_ns > now ? (next->deadline_ns - now) / KVD_WAIT_NS_PER_MS + 1 : 0;
	pthread_mutex_unlock(&waits->lock);
	if (left_ms == UINT64_MAX)
		return -1;
	return left_ms < KVD_WAIT_TIMEOUT_MS_MAX ? (int)left_ms : KVD_WAIT_TIMEOUT_MS_MAX;
}

void kvd_wait_refuse(kvd_split *split, struct kvd_wait_list *list, int error)
{
	struct kvd_wait *wait;

	while ((wait = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, wait, link);
		kvd_reply_error(split, wait->request.header.unique, error);
		free(wait);
	}
}

void kvd_wait_expire(kvd_split *split)
{
	struct kvd_wait_list late = TAILQ_HEAD_INITIALIZER(late);
	struct kvd_waits *waits = &split->waits;
	struct kvd_wait *wait;
	uint64_t now = kvd_wait_now_ns();

	pthread_mutex_lock(&waits->lock);
	while ((wait = TAILQ_FIRST(&waits->all)) != NULL && wait->deadline_ns <= now) {
		kvd_wait_take(waits, wait);
		TAILQ_INSERT_TAIL(&late, wait, link);
	}
	pthread_mutex_unlock(&waits->lock);
	TAILQ_FOREACH(wait, &late, link)
		kvd_event_post(split, KVD_EVENT_IO_ERROR, wait->request.header.nodeid, ETIMEDOUT);
	kvd_wait_refuse(split, &late, -EIO);
}

void kvd_wait_work(struct kvd_reader *reader)
{
	kvd_split *split = reader->split;
	struct kvd_waits *waits = &split->waits;

	while (!atomic_load(&split->stopping) && atomic_load(&waits->n_ready) > 0) {
		struct kvd_request request = { .body_bytes = sizeof(struct fuse_read_in) };
		struct kvd_wait *wait;
		int error;

		pthread_mutex_lock(&waits->lock);
		wait = TAILQ_FIRST(&waits->ready);
		if (wait)
			kvd_wait_take(waits, wait);
		pthread_mutex_unlock(&waits->lock);
		if (!wait)
			return;
		/* What is left must not wait for this one's copy. */
		if (atomic_load(&waits->n_ready) > 0)
			kvd_split_signal_work(split);
		request.header = &wait->request.header;
		request.body = &wait->request.in;
		request.deadline_ns = wait->deadline_ns;
		error = kvd_data_read(reader, &request);
		if (error)
			kvd_reply_error(split, wait->request.header.unique, error);
		free(wait);
	}
}

void kvd_wait_drain(kvd_split *split)
{
	struct kvd_wait_list left = TAILQ_HEAD_INITIALIZER(left);
	struct kvd_waits *waits = &split->waits;
	struct kvd_wait *wait;

	pthread_mutex_lock(&waits->lock);
	while ((wait = TAILQ_FIRST(&waits->all)) != NULL) {
		kvd_wait_take(waits, wait);
		TAILQ_INSERT_TAIL(&left, wait, link);
	}
	pthread_mutex_unlock(&waits->lock);
	kvd_wait_refuse(split, &left, -ENOTCONN);
}
