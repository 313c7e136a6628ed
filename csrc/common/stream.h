/*
 * A promotion that runs, and its readers: memory that the mover and the split both map.
 *
 * The mover marks pages as landed: verified, and readable from the DDR file. It ends the stream once, with 0 or a -errno.
 * A reader that finds a page missing says so (kvd_stream_want), looks once more, and waits for the eventfd: the order of
 * these three, with the mover's mark before its look at `waiting`, is what loses no wake-up. A page landed stays landed.
 */
#ifndef KVD_COMMON_STREAM_H
#define KVD_COMMON_STREAM_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

enum { KVD_STREAM_WORD_BITS = 64 };

struct kvd_stream {
	uint64_t n_pages;
	int32_t event_fd;       /* the maker's; readable once something landed while somebody waited */
	_Atomic int32_t status; /* 1: runs, 0: all landed, -errno: what has not landed never will */
	_Atomic uint64_t want;  /* 0, or 1 + the page that a reader waits for: go on from there */
	_Atomic uint32_t waiting; /* somebody waits: write to event_fd */
	uint32_t reserved;
	_Atomic uint64_t landed[]; /* a bit a page */
};

enum { KVD_STREAM_RUNS = 1 };

static inline size_t kvd_stream_words(uint64_t n_pages)
{
	return (size_t)((n_pages + KVD_STREAM_WORD_BITS - 1) / KVD_STREAM_WORD_BITS);
}

static inline size_t kvd_stream_bytes(uint64_t n_pages)
{
	return sizeof(struct kvd_stream) + kvd_stream_words(n_pages) * sizeof(uint64_t);
}

/* `stream` is kvd_stream_bytes(n_pages) of zeroes, aligned to 8. */
static inline void kvd_stream_init(struct kvd_stream *stream, uint64_t n_pages, int event_fd)
{
	stream->n_pages = n_pages;
	stream->event_fd = event_fd;
	atomic_init(&stream->status, KVD_STREAM_RUNS);
}

static inline void kvd_stream_wake(struct kvd_stream *stream)
{
	uint64_t one = 1;
	ssize_t put;

	if (!atomic_exchange(&stream->waiting, 0))
		return;
	do
		put = write(stream->event_fd, &one, sizeof(one));
	while (put < 0 && errno == EINTR);
}

static inline void kvd_stream_mark(struct kvd_stream *stream, uint64_t first, uint64_t count)
{
	for (uint64_t page = first; page < first + count; page++)
		atomic_fetch_or(&stream->landed[page / KVD_STREAM_WORD_BITS], UINT64_C(1) << page % KVD_STREAM_WORD_BITS);
	kvd_stream_wake(stream);
}

/* 0 or -errno; idempotent, the first end counts. */
static inline void kvd_stream_end(struct kvd_stream *stream, int status)
{
	int32_t runs = KVD_STREAM_RUNS;

	atomic_compare_exchange_strong(&stream->status, &runs, (int32_t)status);
	kvd_stream_wake(stream);
}

static inline bool kvd_stream_has(const struct kvd_stream *stream, uint64_t first, uint64_t count)
{
	for (uint64_t page = first; page < first + count; page++)
		if (!(atomic_load(&stream->landed[page / KVD_STREAM_WORD_BITS]) & UINT64_C(1) << page % KVD_STREAM_WORD_BITS))
			return false;
	return true;
}

/* 1: there, 0: will come, -errno: will not. Pages beyond the end count as there. */
static inline int kvd_stream_state(const struct kvd_stream *stream, uint64_t first, uint64_t count)
{
	int32_t status = atomic_load(&stream->status);

	if (first >= stream->n_pages || status == 0)
		return 1;
	if (count > stream->n_pages - first)
		count = stream->n_pages - first;
	if (kvd_stream_has(stream, first, count))
		return 1;
	return status == KVD_STREAM_RUNS ? 0 : status;
}

/* Before the second look: from here on an arrival is announced. */
static inline void kvd_stream_want(struct kvd_stream *stream, uint64_t page)
{
	atomic_store(&stream->want, page + 1);
	atomic_store(&stream->waiting, 1);
}

#endif
