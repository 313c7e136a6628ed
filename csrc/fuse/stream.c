/*
 * READs of a file that a promotion is still filling (common/stream.h): what has landed is served from it, the rest waits
 * here, which costs some bytes and no thread.
 *
 * The eventfd of each stream is in the epoll of every reader, which serves what is there as it serves requests: in turn, with
 * what others can do left to them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/stream.h"
#include "fuse/wait_list.h"

enum { KVD_WAITS_MAX = 16384 }; /* some 3 MB; the kernel holds far more for each */

/* -- the stream of an object -- */

static int unwatch(kvd_split *split, const struct kvd_object *object, uint32_t readers, int error)
{
	while (readers > 0)
		(void)epoll_ctl(split->readers[--readers].epoll_fd, EPOLL_CTL_DEL, object->stream->event_fd, NULL);
	return error;
}

static int watch(kvd_split *split, const struct kvd_object *object)
{
	/* One arrival wakes one reader. */
	struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = KVD_SOURCE_STREAM | object->node };

	for (uint32_t i = 0; i < split->config.readers; i++)
		if (epoll_ctl(split->readers[i].epoll_fd, EPOLL_CTL_ADD, object->stream->event_fd, &event))
			return unwatch(split, object, i, -errno);
	return 0;
}

int kvd_wait_begin(kvd_split *split, struct kvd_object *object, const struct kvd_split_object *want)
{
	struct kvd_stream *stream = (struct kvd_stream *)(uintptr_t)want->stream_address;
	int flags;

	if (!stream)
		return 0;
	/* The sums' runs tell where data is and will be; what they do not tell of is there from the beginning. */
	if (want->writable || want->mode == KVD_MODE_PASSTHROUGH || object->page_bytes == 0 || object->unbuffered ||
	    (want->node & KVD_SOURCE_STREAM))
		return -EINVAL;
	if (stream->n_pages != kvd_align_up(object->size_bytes, object->page_bytes) / object->page_bytes)
		return -EINVAL;
	/* Of two readers that see an arrival one must not wait for the next. */
	flags = fcntl(stream->event_fd, F_GETFL);
	if (flags < 0 || !(flags & O_NONBLOCK))
		return -EINVAL;
	object->stream = stream;
	flags = watch(split, object);
	if (flags)
		object->stream = NULL;
	return flags;
}

/* Where a READ begins and ends in pages: [*first, *first + *count). */
static void range_of(const struct kvd_object *object, const struct fuse_read_in *in, uint64_t *first, uint64_t *count)
{
	uint64_t end = in->offset + in->size;

	if (end > object->size_bytes)
		end = object->size_bytes;
	*first = in->offset / object->page_bytes;
	*count = end > in->offset ? kvd_align_up(end, object->page_bytes) / object->page_bytes - *first : 0;
}

/* As kvd_stream_state. */
static int state_of(const struct kvd_object *object, const struct fuse_read_in *in)
{
	uint64_t first;
	uint64_t count;

	range_of(object, in, &first, &count);
	return kvd_stream_state(object->stream, first, count);
}

/*
 * Ask for the first page that the oldest READ lacks, and to be told of arrivals. Not the newest: readers ahead of a mapping
 * come in order, and the promotion must not leave out what the first of them is for. Called with the lock.
 */
static void want_oldest(const struct kvd_object *object)
{
	const struct kvd_wait *oldest = TAILQ_FIRST(&object->waits);
	uint64_t first;
	uint64_t count;

	if (!oldest)
		return;
	range_of(object, &oldest->request.in, &first, &count);
	while (count > 1 && kvd_stream_has(object->stream, first, 1)) {
		first++;
		count--;
	}
	kvd_stream_want(object->stream, first);
}

/* -- waiting -- */

/* Whether the READ went to the list. */
static bool park(kvd_split *split, struct kvd_object *object, struct kvd_wait *wait)
{
	struct kvd_waits *waits = &split->waits;
	bool first;
	bool fits;

	pthread_mutex_lock(&waits->lock);
	first = atomic_load(&waits->count) == 0;
	fits = atomic_load(&waits->count) < KVD_WAITS_MAX;
	if (fits) {
		kvd_wait_put(waits, object, wait);
		want_oldest(object);
	}
	pthread_mutex_unlock(&waits->lock);
	/* Another reader may sleep without a deadline while this one goes on to something that takes its time. */
	if (fits && first)
		kvd_split_signal_work(split);
	return fits;
}

int kvd_wait_read(kvd_split *split, struct kvd_object *object, const struct kvd_request *request)
{
	const struct fuse_read_in *in = request->body;
	uint64_t unique = request->header->unique;
	struct kvd_wait *wait;
	int state = state_of(object, in);

	if (state)
		return state < 0 ? -EIO : 1;
	wait = kvd_wait_new(split, request);
	if (!wait)
		return -ENOMEM;
	if (!park(split, object, wait)) {
		/* To wait here would take this reader from the requests that somebody waits for. */
		free(wait);
		return -ENOMEM;
	}
	kvd_count(&split->counters.waited, 1);
	/* From here on somebody else may have answered; the second look finds what came before the stream knew of us. */
	state = kvd_pending_came_early(&split->pending, unique) ? -EINTR : state_of(object, in);
	if (!state)
		return 0;
	wait = kvd_wait_take_unique(&split->waits, unique);
	if (!wait)
		return 0;
	free(wait);
	if (state == -EINTR)
		kvd_count(&split->counters.interrupted, 1);
	return state == 1 || state == -EINTR ? state : -EIO;
}

/* Those whose pages have landed, or never will, are to be served. Called with the lock. */
static void sort_out(struct kvd_waits *waits, struct kvd_object *object)
{
	struct kvd_wait *wait;
	struct kvd_wait *next;

	for (wait = TAILQ_FIRST(&object->waits); wait; wait = next) {
		next = TAILQ_NEXT(wait, link);
		if (state_of(object, &wait->request.in) != 0)
			kvd_wait_ready(waits, wait);
	}
}

void kvd_wait_wake(kvd_split *split, uint64_t node)
{
	struct kvd_object *object = kvd_object_get(&split->objects, node);
	struct kvd_waits *waits = &split->waits;
	uint64_t count;

	if (!object)
		return;
	/* EAGAIN: another reader has it. */
	if (object->stream && read(object->stream->event_fd, &count, sizeof(count)) > 0) {
		pthread_mutex_lock(&waits->lock);
		sort_out(waits, object);
		want_oldest(object);
		sort_out(waits, object);
		pthread_mutex_unlock(&waits->lock);
	}
	kvd_object_put(&split->objects, object);
}

void kvd_wait_end(kvd_split *split, struct kvd_object *object, bool switched)
{
	struct kvd_wait_list lost = TAILQ_HEAD_INITIALIZER(lost);
	struct kvd_waits *waits = &split->waits;
	struct kvd_wait *wait;

	if (!object->stream)
		return;
	(void)unwatch(split, object, split->config.readers, 0);
	pthread_mutex_lock(&waits->lock);
	while ((wait = TAILQ_FIRST(&object->waits)) != NULL) {
		if (switched) {
			kvd_wait_ready(waits, wait);
		} else {
			kvd_wait_take(waits, wait);
			TAILQ_INSERT_TAIL(&lost, wait, link);
		}
	}
	pthread_mutex_unlock(&waits->lock);
	kvd_wait_refuse(split, &lost, -EIO);
	if (switched)
		kvd_split_signal_work(split);
}
