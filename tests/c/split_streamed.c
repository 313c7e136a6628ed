#include "split_streamed.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

uint8_t streamed_content[FILE_BYTES];
const uint64_t streamed_runs[6] = { 0, 4, 8, 8, 16, PAGES - 16 };

struct kvd_stream *streamed_new(int event_fd)
{
	struct kvd_stream *stream = calloc(1, kvd_stream_bytes(PAGES));

	assert_non_null(stream);
	kvd_stream_init(stream, PAGES, event_fd);
	kvd_stream_mark(stream, 4, 4);
	return stream;
}

struct kvd_split_object streamed_spec(const struct streamed *s, const struct kvd_split_sums *sums)
{
	return (struct kvd_split_object){
		.node = NODE,
		.mode = KVD_MODE_DIRECT,
		.fd = s->fd,
		.sums = sums,
		.stream_address = (uint64_t)(uintptr_t)s->stream,
	};
}

int streamed_add(struct streamed *s)
{
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 3, .runs = streamed_runs };
	struct kvd_split_object object = streamed_spec(s, &sums);

	return kvd_split_object_add(s->rig.split, &object);
}

void streamed_open(struct streamed *s, uint32_t readers)
{
	rig_pattern(streamed_content, sizeof(streamed_content));
	memset(streamed_content + 4 * PAGE, 0, 4 * PAGE);
	s->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	s->stream = streamed_new(s->event_fd);
	s->fd = memfd_create("kvd-test", MFD_CLOEXEC);
	assert_int_equal(ftruncate(s->fd, FILE_BYTES), 0);
	rig_start(&s->rig, readers);
	assert_int_equal(streamed_add(s), 0);
}

void streamed_close(struct streamed *s)
{
	rig_close(&s->rig);
	close(s->fd);
	close(s->event_fd);
	free(s->stream);
}

void streamed_land(struct streamed *s, uint64_t first, uint64_t count)
{
	size_t at = first * PAGE;
	size_t end = (first + count) * PAGE < FILE_BYTES ? (first + count) * PAGE : FILE_BYTES;

	assert_int_equal(pwrite(s->fd, streamed_content + at, end - at, (off_t)at), end - at);
	kvd_stream_mark(s->stream, first, count);
}

void streamed_await(struct streamed *s, uint64_t count)
{
	time_t deadline = time(NULL) + 10;

	while (rig_stats(&s->rig).waiting != count) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
}

void streamed_await_want(struct streamed *s, uint64_t page)
{
	time_t deadline = time(NULL) + 10;

	while (s->stream->want != 1 + page) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
}
