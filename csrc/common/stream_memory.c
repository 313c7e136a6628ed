#include "common/stream_memory.h"

#include <stdlib.h>

struct kvd_stream *kvd_stream_make(uint64_t n_pages, int event_fd)
{
	struct kvd_stream *stream;

	if (n_pages > UINT64_MAX - KVD_STREAM_WORD_BITS)
		return NULL;
	stream = calloc(1, kvd_stream_bytes(n_pages));
	if (stream)
		kvd_stream_init(stream, n_pages, event_fd);
	return stream;
}

void kvd_stream_free(struct kvd_stream *stream)
{
	free(stream);
}

int kvd_stream_status(const struct kvd_stream *stream)
{
	return atomic_load(&stream->status);
}

uint64_t kvd_stream_landed(const struct kvd_stream *stream)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < kvd_stream_words(stream->n_pages); i++)
		pages += (uint64_t)__builtin_popcountll(atomic_load(&stream->landed[i]));
	return pages;
}

uint64_t kvd_stream_wanted(const struct kvd_stream *stream)
{
	return atomic_load(&stream->want);
}
