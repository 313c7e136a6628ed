/* The memory of a stream for a control plane that can't lay out a struct with atomics: made, looked at and freed here. */
#ifndef KVD_COMMON_STREAM_MEMORY_H
#define KVD_COMMON_STREAM_MEMORY_H

#include "common/stream.h"

/* cffi: begin */
struct kvd_stream;

/* NULL without memory. event_fd: not owned, non-blocking. */
struct kvd_stream *kvd_stream_make(uint64_t n_pages, int event_fd);
/* Once neither the mover nor the split knows of it any more. */
void kvd_stream_free(struct kvd_stream *stream);
/* 1: runs, 0: all landed, or -errno. */
int kvd_stream_status(const struct kvd_stream *stream);
uint64_t kvd_stream_landed(const struct kvd_stream *stream);
/* 0, or 1 + the page that a reader waits for. */
uint64_t kvd_stream_wanted(const struct kvd_stream *stream);
/* As in stream.h, which says what they mean. */
void kvd_stream_want(struct kvd_stream *stream, uint64_t page);
void kvd_stream_mark(struct kvd_stream *stream, uint64_t first, uint64_t count);
void kvd_stream_end(struct kvd_stream *stream, int status);
/* cffi: end */

#endif
