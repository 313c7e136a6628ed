/* Promotions that readers follow while they run. */
#include "test_mover_util.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "mover/lane.h"

enum { PAGES = 160, SIZE_BYTES = PAGES * PAGE_BYTES - 333, READERS = 2 };
static const struct kvd_mover_run stream_runs[] = {{1, 40}, {44, 1}, {50, 100}, {155, 5}};
enum { STREAM_RUNS = 4 };

static struct kvd_stream *stream_make(uint64_t n_pages)
{
	struct kvd_stream *stream = calloc(1, kvd_stream_bytes(n_pages));

	assert_non_null(stream);
	kvd_stream_init(stream, n_pages, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	assert_true(stream->event_fd >= 0);
	return stream;
}

static void stream_free(struct kvd_stream *stream)
{
	close(stream->event_fd);
	free(stream);
}

static bool in_runs(uint64_t page)
{
	for (int i = 0; i < STREAM_RUNS; i++)
		if (page >= stream_runs[i].first_page && page < stream_runs[i].first_page + stream_runs[i].count)
			return true;
	return false;
}

static void make_demoted(struct rig *rig, struct object *object, uint32_t n_parts)
{
	struct kvd_mover_job job;

	object_make_striped(rig, object, "object", SIZE_BYTES, stream_runs, STREAM_RUNS, true, n_parts, 2 * PAGE_BYTES);
	job = job_demote(rig, object, 0);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
}

/* A page that has landed holds the object's bytes. */
static bool page_is(const struct object *object, int fd, uint64_t page)
{
	uint8_t got[PAGE_BYTES];
	uint64_t at = page * PAGE_BYTES, left = object->size_bytes - at;
	size_t bytes = left < PAGE_BYTES ? left : PAGE_BYTES;

	return pread(fd, got, bytes, (off_t)at) == (ssize_t)bytes && memcmp(got, object->bytes + at, bytes) == 0;
}

struct reader {
	pthread_t thread;
	struct kvd_stream *stream;
	const struct object *object;
	int fd;
	unsigned int seed;
	uint64_t wrong, missing;
};

/* 1 or -errno; as the split waits, in one thread. */
static int await_page(struct kvd_stream *stream, uint64_t page)
{
	struct pollfd readable = {.fd = stream->event_fd, .events = POLLIN};

	for (;;) {
		int there = kvd_stream_state(stream, page, 1);
		uint64_t count;

		if (there)
			return there;
		kvd_stream_want(stream, page);
		there = kvd_stream_state(stream, page, 1);
		if (there)
			return there;
		/* Two readers share the descriptor, so one may take the other's news: look again soon. */
		if (poll(&readable, 1, 1) == 1)
			(void)!read(stream->event_fd, &count, sizeof(count));
	}
}

static void *read_at_random(void *arg)
{
	struct reader *reader = arg;

	for (int i = 0; i < 4 * PAGES; i++) {
		uint64_t page;

		reader->seed = reader->seed * 1664525u + 1013904223u;
		page = (reader->seed >> 8) % PAGES;
		if (await_page(reader->stream, page) != 1)
			reader->missing++;
		else if (!page_is(reader->object, reader->fd, page))
			reader->wrong++;
	}
	return NULL;
}

static void test_racing_readers(void **state)
{
	struct rig *rig = *state;

	for (uint32_t n_parts = 1; n_parts <= DEVICES; n_parts++) {
		struct kvd_stream *stream = stream_make(PAGES);
		struct reader readers[READERS];
		struct object object;
		struct kvd_mover_job job;
		int back = memory_file();

		make_demoted(rig, &object, n_parts);
		for (unsigned int i = 0; i < READERS; i++) {
			readers[i] = (struct reader){.stream = stream, .object = &object, .fd = back, .seed = i + n_parts};
			assert_int_equal(pthread_create(&readers[i].thread, NULL, read_at_random, &readers[i]), 0);
		}
		job = job_promote(&object, back, 1);
		job.stream = (uintptr_t)stream;
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_int_equal(atomic_load(&stream->status), 0);
		for (int i = 0; i < READERS; i++) {
			pthread_join(readers[i].thread, NULL);
			assert_int_equal(readers[i].wrong, 0);
			assert_int_equal(readers[i].missing, 0);
		}
		assert_true(kvd_stream_has(stream, 0, PAGES));
		assert_file_is(back, object.bytes, object.size_bytes);
		close(back);
		object_free(&object);
		stream_free(stream);
	}
}

/* Holes are readable before the device has answered anything; a cancellation ends the stream for the rest. */
static void test_holes_land_at_once(void **state)
{
	struct rig *rig = *state;
	struct kvd_stream *stream = stream_make(PAGES);
	struct object object;
	struct kvd_mover_job job;
	struct stat st;
	int ends[2], back = memory_file();

	make_demoted(rig, &object, 1);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	job = job_promote(&object, back, 1);
	object.parts[0] = part_of(ends[0], false);
	job.stream = (uintptr_t)stream;
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	for (uint64_t page = 0; page < PAGES; page++)
		if (!in_runs(page))
			assert_int_equal(await_page(stream, page), 1);
	assert_int_equal(fstat(back, &st), 0);
	assert_int_equal(st.st_size, SIZE_BYTES);
	for (uint64_t page = 0; page < PAGES; page++)
		assert_int_equal(kvd_stream_state(stream, page, 1), !in_runs(page));
	assert_int_equal(kvd_mover_cancel(rig->mover, 1), 0);
	assert_int_equal(await_page(stream, 1), -ECANCELED);
	assert_int_equal(next_result(rig->mover).status, -ECANCELED);
	assert_int_equal(kvd_stream_state(stream, 0, 1), 1);
	close(ends[0]);
	close(ends[1]);
	close(back);
	object_free(&object);
	stream_free(stream);
}

/* The bad page and what did not land are errors, what did land is right; no wrong byte is ever marked. */
static void test_bad_page(void **state)
{
	struct rig *rig = *state;
	const uint64_t bad = 90;

	for (uint32_t n_parts = 1; n_parts <= DEVICES; n_parts++) {
		struct kvd_stream *stream = stream_make(PAGES);
		struct object object;
		struct kvd_mover_job job;
		struct kvd_mover_result result;
		bool buffered = false;
		int back = memory_file(), fd;
		char name[32];
		uint32_t part = n_parts == 1 ? 0 : (uint32_t)(bad / 2 % n_parts);

		make_demoted(rig, &object, n_parts);
		snprintf(name, sizeof(name), part ? "object.%u" : "object", part);
		fd = rig_open(rig, name, O_RDWR, &buffered);
		assert_int_equal(pwrite(fd, "\1\2\3\4", 4, bad * PAGE_BYTES + 9), 4);
		assert_int_equal(fsync(fd), 0);
		job = job_promote(&object, back, 1);
		job.stream = (uintptr_t)stream;
		result = run_job(rig->mover, &job);
		assert_int_equal(result.status, -EBADMSG);
		assert_int_equal(result.bad_page, bad);
		assert_int_equal(kvd_stream_state(stream, bad, 1), -EBADMSG);
		for (uint64_t page = 0; page < PAGES; page++)
			if (kvd_stream_state(stream, page, 1) == 1)
				assert_true(page_is(&object, back, page));
		close(fd);
		close(back);
		object_free(&object);
		stream_free(stream);
	}
}

/* The order in which pages are asked for: each once, whatever is wanted when. */
static void order(uint32_t n_parts, uint64_t stripe_pages, bool follows, unsigned int seed)
{
	static struct kvd_job job;
	struct kvd_stream *stream = stream_make(PAGES);
	uint32_t sums[PAGES] = {0}, asked[PAGES] = {0};
	uint64_t sum = 0;

	for (int r = 0; r < STREAM_RUNS; r++)
		for (uint64_t i = 0; i < stream_runs[r].count; i++)
			sums[stream_runs[r].first_page + i] = (uint32_t)sum++;
	job = (struct kvd_job){
		.spec = {
			.page_bytes = PAGE_BYTES,
			.size_bytes = SIZE_BYTES,
			.n_parts = n_parts,
			.stripe_bytes = stripe_pages * PAGE_BYTES,
			.n_runs = STREAM_RUNS,
			.runs = stream_runs,
			.stream = (uintptr_t)stream,
		},
		.asked = calloc(kvd_stream_words(PAGES), sizeof(uint64_t)),
	};
	assert_non_null(job.asked);
	for (uint32_t i = 0; i < n_parts; i++) {
		struct kvd_leg *leg = &job.legs[i];
		uint64_t before = 0;

		leg->job = &job;
		leg->index = i;
		kvd_cursor_init(leg);
		while (leg->pages_left > 0) {
			struct kvd_piece piece;
			uint64_t want;

			seed = seed * 1664525u + 1013904223u;
			want = (seed >> 8) % PAGES;
			if (follows && seed >> 29 == 0)
				kvd_stream_want(stream, want);
			else
				want = PAGES;
			kvd_cursor_take(leg, IO_BYTES / PAGE_BYTES, &piece);
			assert_in_range(piece.count, 1, IO_BYTES / PAGE_BYTES);
			for (uint64_t p = 0; p < piece.count; p++) {
				uint64_t page = piece.first_page + p;

				assert_true(n_parts == 1 || page / stripe_pages % n_parts == i);
				assert_true(in_runs(page));
				assert_int_equal(sums[page], piece.first_crc + p);
				assert_int_equal(asked[page]++, 0);
			}
			/* In order without a wish; with one, from the first page on that is there and was not asked for. */
			assert_true(follows || piece.first_page >= before);
			before = piece.first_page + piece.count;
			for (uint64_t page = want; page < piece.first_page && page < PAGES; page++)
				if (in_runs(page) && (n_parts == 1 || page / stripe_pages % n_parts == i))
					assert_int_equal(asked[page], 1);
		}
	}
	for (uint64_t page = 0; page < PAGES; page++)
		assert_int_equal(asked[page], in_runs(page));
	free(job.asked);
	stream_free(stream);
}

static void test_order(void **state)
{
	(void)state;
	for (uint32_t n_parts = 1; n_parts <= 4; n_parts++)
		for (uint64_t stripe_pages = 1; stripe_pages < 9; stripe_pages++) {
			order(n_parts, stripe_pages, false, 1);
			for (unsigned int seed = 0; seed < 50; seed++)
				order(n_parts, stripe_pages, true, seed);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test_setup_teardown(test_racing_readers, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_holes_land_at_once, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_bad_page, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
