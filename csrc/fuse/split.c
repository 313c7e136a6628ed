/* Life cycle of the split. */
#include "fuse/split.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuse/internal.h"

enum { KVD_PEER_SNDBUF_BYTES = 4 << 20 }; /* some thousands of requests: readers seldom wait for the peer */

static int check_config(const struct kvd_split_config *config)
{
	bool ok = config->fuse_fd >= 0 && config->peer_fd >= 0 && config->readers > 0 &&
		  config->readers <= KVD_READERS_MAX && config->io_bytes_max >= KVD_BLOCK_BYTES &&
		  config->io_bytes_max <= KVD_IO_BYTES_MAX && config->io_bytes_max % KVD_BLOCK_BYTES == 0 &&
		  config->background > 0 && config->background <= UINT16_MAX && config->pending_max > 0 &&
		  config->pending_max <= KVD_PENDING_MAX && config->hot_inodes_max <= KVD_HOT_MAX &&
		  config->hot_names_max <= KVD_HOT_MAX && config->read_wait_ms > 0 && config->device_wait_ms > 0;

	return ok ? 0 : -EINVAL;
}

static void readers_fini(kvd_split *split, uint32_t count)
{
	while (count > 0)
		kvd_reader_fini(&split->readers[--count]);
	free(split->readers);
}

static int readers_init(kvd_split *split)
{
	split->readers = calloc(split->config.readers, sizeof(*split->readers));
	if (!split->readers)
		return -ENOMEM;
	for (uint32_t i = 0; i < split->config.readers; i++) {
		int error = kvd_reader_init(&split->readers[i], split);

		if (error) {
			readers_fini(split, i);
			return error;
		}
	}
	return 0;
}

static int wakers_init(kvd_split *split)
{
	split->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (split->stop_fd < 0)
		return -errno;
	split->work_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (split->work_fd < 0) {
		int error = -errno;

		close(split->stop_fd);
		return error;
	}
	return 0;
}

static void wakers_fini(kvd_split *split)
{
	close(split->work_fd);
	close(split->stop_fd);
}

static int config_init(kvd_split *split, const struct kvd_split_config *config)
{
	split->config = *config;
	split->peer_buffer_bytes = config->io_bytes_max + KVD_REQUEST_ROOM_BYTES;
	split->peer_buffer = malloc(split->peer_buffer_bytes);
	return split->peer_buffer ? 0 : -ENOMEM;
}

int kvd_split_init(const struct kvd_split_config *config, kvd_split **out)
{
	kvd_split *split;
	int error = check_config(config);

	if (error)
		return error;
	split = calloc(1, sizeof(*split));
	if (!split)
		return -ENOMEM;
	error = config_init(split, config);
	if (error)
		goto out_split;
	error = -pthread_mutex_init(&split->life, NULL);
	if (error)
		goto out_buffer;
	error = wakers_init(split);
	if (error)
		goto out_life;
	error = kvd_pending_init(&split->pending, config->pending_max);
	if (error)
		goto out_wakers;
	error = kvd_cold_init(split, &split->cold);
	if (error)
		goto out_pending;
	error = kvd_objects_init(&split->objects);
	if (error)
		goto out_cold;
	error = kvd_waits_init(&split->waits);
	if (error)
		goto out_objects;
	error = kvd_hot_init(&split->hot, config);
	if (error)
		goto out_waits;
	error = kvd_events_init(&split->events);
	if (error)
		goto out_hot;
	error = kvd_notices_init(&split->notices);
	if (error)
		goto out_events;
	error = readers_init(split);
	if (error)
		goto out_notices;
	*out = split;
	return 0;

out_notices:
	kvd_notices_fini(&split->notices);
out_events:
	kvd_events_fini(&split->events);
out_hot:
	kvd_hot_fini(&split->hot);
out_waits:
	kvd_waits_fini(&split->waits);
out_objects:
	kvd_objects_fini(&split->objects, split->cold);
out_cold:
	kvd_cold_fini(split->cold);
out_pending:
	kvd_pending_fini(&split->pending);
out_wakers:
	wakers_fini(split);
out_life:
	pthread_mutex_destroy(&split->life);
out_buffer:
	free(split->peer_buffer);
out_split:
	free(split);
	return error;
}

void kvd_split_fini(kvd_split *split)
{
	if (!split)
		return;
	kvd_split_stop(split);
	kvd_cold_stop(split->cold); /* of a start that failed */
	readers_fini(split, split->config.readers);
	kvd_notices_fini(&split->notices);
	kvd_events_fini(&split->events);
	kvd_hot_fini(&split->hot);
	kvd_waits_fini(&split->waits);
	kvd_objects_fini(&split->objects, split->cold);
	kvd_cold_fini(split->cold);
	kvd_pending_fini(&split->pending);
	wakers_fini(split);
	pthread_mutex_destroy(&split->life);
	free(split->peer_buffer);
	free(split);
}

void kvd_split_signal_stop(kvd_split *split)
{
	uint64_t one = 1;

	/* A write can't fail before the counter is full, and it is never read. */
	if (!atomic_exchange(&split->stopping, true) && write(split->stop_fd, &one, sizeof(one)) < 0)
		abort();
}

void kvd_split_signal_work(kvd_split *split)
{
	uint64_t one = 1;

	if (write(split->work_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		kvd_count(&split->counters.errors, 1);
}

/* Several readers poll and then read: the loser must not hang in read. */
static int prepare_descriptors(kvd_split *split)
{
	int flags = fcntl(split->config.fuse_fd, F_GETFL);
	int bytes = KVD_PEER_SNDBUF_BYTES;

	if (flags < 0 || fcntl(split->config.fuse_fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	/* FORCE needs CAP_NET_ADMIN; without it the limit of the host holds, which only makes readers wait sooner. */
	if (setsockopt(split->config.peer_fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) &&
	    setsockopt(split->config.peer_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)))
		return -errno;
	return 0;
}

static void join_readers(kvd_split *split, uint32_t count)
{
	while (count > 0)
		pthread_join(split->readers[--count].thread, NULL);
}

static int start_threads(kvd_split *split)
{
	uint32_t started = 0;
	int error = pthread_create(&split->notify_thread, NULL, kvd_notify_main, split);

	if (error)
		return -error;
	error = pthread_create(&split->peer_thread, NULL, kvd_peer_main, split);
	if (error)
		goto out_notify;
	for (; started < split->config.readers; started++) {
		struct kvd_reader *reader = &split->readers[started];

		error = pthread_create(&reader->thread, NULL, kvd_reader_main, reader);
		if (error)
			goto out_peer;
	}
	return 0;

out_peer:
	kvd_split_signal_stop(split);
	join_readers(split, started);
	pthread_join(split->peer_thread, NULL);
out_notify:
	kvd_notices_stop(&split->notices);
	pthread_join(split->notify_thread, NULL);
	return -error;
}

int kvd_split_start(kvd_split *split)
{
	sigset_t all;
	sigset_t before;
	int error = -EALREADY;

	pthread_mutex_lock(&split->life);
	if (split->state == KVD_LIFE_NEW)
		error = prepare_descriptors(split);
	if (!error) {
		/* Signals are for the threads of the caller. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = start_threads(split);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		split->state = error ? KVD_LIFE_STOPPED : KVD_LIFE_RUNNING;
	}
	pthread_mutex_unlock(&split->life);
	return error;
}

/* What waits in the work queue, once no reader is left to do it. */
static void drain_work(kvd_split *split)
{
	struct kvd_entry *entry;

	while ((entry = kvd_pending_work(&split->pending)) != NULL) {
		if (entry->state == KVD_PENDING_GRANTED)
			kvd_reply_error(split, entry->unique, -ENOTCONN);
		kvd_pending_free(&split->pending, entry);
	}
}

void kvd_split_stop(kvd_split *split)
{
	pthread_mutex_lock(&split->life);
	if (split->state == KVD_LIFE_RUNNING) {
		kvd_split_signal_stop(split);
		join_readers(split, split->config.readers);
		pthread_join(split->peer_thread, NULL);
		kvd_peer_drain(split, -ENOTCONN);
		drain_work(split);
		kvd_cold_stop(split->cold);
		kvd_wait_drain(split);
		/* Last: its write may have waited for a lock that an answer above released. */
		kvd_notices_stop(&split->notices);
		pthread_join(split->notify_thread, NULL);
	}
	split->state = KVD_LIFE_STOPPED;
	pthread_mutex_unlock(&split->life);
}

uint32_t kvd_split_features(const kvd_split *split)
{
	return atomic_load(&split->features);
}

void kvd_split_stats(const kvd_split *split, struct kvd_split_stats *out)
{
	const struct kvd_counters *counters = &split->counters;
	struct kvd_objects *objects = (struct kvd_objects *)(uintptr_t)&split->objects;

	*out = (struct kvd_split_stats){
		.requests = counters->requests,
		.forwarded = counters->forwarded,
		.reads = counters->reads,
		.read_bytes = counters->read_bytes,
		.writes = counters->writes,
		.write_bytes = counters->write_bytes,
		.asks = counters->asks,
		.interrupted = counters->interrupted,
		.late_replies = counters->late_replies,
		.errors = counters->errors,
		.pending = split->pending.used,
		.waiting = split->waits.count,
		.waited = counters->waited,
		.hot_lookups = counters->hot_lookups,
		.hot_negatives = counters->hot_negatives,
		.hot_getattrs = counters->hot_getattrs,
		.hot_opens = counters->hot_opens,
		.hot_releases = counters->hot_releases,
		.hot_readdirs = counters->hot_readdirs,
	};
	kvd_hot_sizes(split, out);
	kvd_cold_sizes((kvd_split *)(uintptr_t)split, out); /* only its lock changes */
	pthread_mutex_lock(&objects->lock);
	out->objects = objects->count;
	pthread_mutex_unlock(&objects->lock);
}
