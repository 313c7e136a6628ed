#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fuse/internal.h"

enum {
	/* Kept free for what happens once in a mount's life, when a failing disk floods the queue. */
	KVD_EVENTS_RESERVE = 8,
};

int kvd_events_init(struct kvd_events *events)
{
	int error = pthread_mutex_init(&events->lock, NULL);

	if (error)
		return -error;
	events->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (events->fd < 0) {
		error = errno;
		pthread_mutex_destroy(&events->lock);
		return -error;
	}
	return 0;
}

void kvd_events_fini(struct kvd_events *events)
{
	close(events->fd);
	pthread_mutex_destroy(&events->lock);
}

static bool is_queued(const struct kvd_events *events, const struct kvd_split_event *event)
{
	for (uint32_t i = 0; i < events->count; i++) {
		const struct kvd_split_event *at = &events->ring[(events->first + i) % KVD_EVENTS_MAX];

		if (at->kind == event->kind && at->node == event->node && at->value == event->value &&
		    at->device == event->device)
			return true;
	}
	return false;
}

static void post(kvd_split *split, struct kvd_split_event event)
{
	struct kvd_events *events = &split->events;
	bool repeats = event.kind == KVD_EVENT_BAD_PAGE || event.kind == KVD_EVENT_IO_ERROR;
	uint32_t room = repeats ? KVD_EVENTS_MAX - KVD_EVENTS_RESERVE : KVD_EVENTS_MAX;
	uint64_t one = 1;
	bool posted = false;

	pthread_mutex_lock(&events->lock);
	if (events->count < room && !is_queued(events, &event)) {
		events->ring[(events->first + events->count++) % KVD_EVENTS_MAX] = event;
		posted = true;
	}
	pthread_mutex_unlock(&events->lock);
	/* The counter can't be full: a reader resets it, and EAGAIN would mean that it is readable anyway. */
	if (posted && write(events->fd, &one, sizeof(one)) < 0)
		kvd_count(&split->counters.errors, 1);
}

void kvd_event_post(kvd_split *split, enum kvd_split_event_kind kind, uint64_t node, uint64_t value)
{
	post(split, (struct kvd_split_event){ .node = node, .value = value, .kind = kind });
}

void kvd_event_post_device(kvd_split *split, enum kvd_split_event_kind kind, uint64_t node, uint64_t value, uint32_t device)
{
	post(split, (struct kvd_split_event){ .node = node, .value = value, .kind = kind, .device = device + 1 });
}

uint32_t kvd_split_events(kvd_split *split, struct kvd_split_event *out, uint32_t max)
{
	struct kvd_events *events = &split->events;
	uint32_t n = 0;

	pthread_mutex_lock(&events->lock);
	for (; n < max && events->count > 0; n++) {
		out[n] = events->ring[events->first];
		events->first = (events->first + 1) % KVD_EVENTS_MAX;
		events->count--;
	}
	pthread_mutex_unlock(&events->lock);
	return n;
}

int kvd_split_eventfd(const kvd_split *split)
{
	return split->events.fd;
}
