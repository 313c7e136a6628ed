/* READ and LSEEK of a file that is being filled: what has landed is served, the rest waits. */
#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "split_streamed.h"

enum { WAITS_MAX = 16384 };

static struct message message;

static void expect_content(struct streamed *s, uint64_t unique, uint64_t offset, size_t bytes)
{
	kernel_recv(&s->rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.out.header.error, 0);
	assert_int_equal(message.bytes, sizeof(message.out.header) + bytes);
	assert_memory_equal(message.out.body, streamed_content + offset, bytes);
}

static void test_what_has_landed_is_served(void **state)
{
	struct streamed s;

	(void)state;
	streamed_open(&s, 1);
	expect_read(&s.rig, NODE, 4 * PAGE + 5, PAGE, streamed_content + 4 * PAGE + 5, PAGE); /* in no run */
	streamed_land(&s, 0, 3);
	expect_read(&s.rig, NODE, 0, 3 * PAGE, streamed_content, 3 * PAGE);
	expect_read(&s.rig, NODE, PAGE - 1, 2, streamed_content + PAGE - 1, 2);
	streamed_land(&s, PAGES - 1, 1);
	expect_read(&s.rig, NODE, FILE_BYTES - 7, PAGE, streamed_content + FILE_BYTES - 7, 7);
	expect_read(&s.rig, NODE, FILE_BYTES, PAGE, streamed_content, 0);
	expect_read(&s.rig, NODE, FILE_BYTES + 9 * PAGE, PAGE, streamed_content, 0);
	expect_read(&s.rig, NODE, 9 * PAGE, 0, streamed_content, 0);
	assert_int_equal(rig_stats(&s.rig).waited, 0);
	assert_int_equal(s.stream->want, 0);
	streamed_close(&s);
}

static void test_a_read_waits_for_its_own_pages(void **state)
{
	struct streamed s;
	uint64_t first;
	uint64_t second;

	(void)state;
	streamed_open(&s, 1);
	streamed_land(&s, 0, 1);
	first = send_read(&s.rig, NODE, 0, 4 * PAGE);
	streamed_await(&s, 1);
	streamed_await_want(&s, 1);
	second = send_read(&s.rig, NODE, 10 * PAGE, 5);
	streamed_await(&s, 2);
	assert_int_equal(s.stream->want, 1 + 1); /* the oldest comes first */
	kernel_expect_silence(&s.rig);
	streamed_land(&s, 10, 1);
	expect_content(&s, second, 10 * PAGE, 5);
	streamed_await(&s, 1);
	streamed_land(&s, 1, 1);
	kernel_expect_silence(&s.rig);
	streamed_land(&s, 2, 2);
	expect_content(&s, first, 0, 4 * PAGE);
	assert_int_equal(rig_stats(&s.rig).waited, 2);
	assert_int_equal(rig_stats(&s.rig).reads, 2);
	kvd_stream_end(s.stream, 0);
	assert_int_equal(ftruncate(s.fd, 20 * PAGE), 0); /* the end of the file is known before it is reached */
	kernel_expect_error(&s.rig, send_read(&s.rig, NODE, 20 * PAGE, 5), EIO);
	assert_int_equal(expect_event(&s.rig, KVD_EVENT_IO_ERROR).value, EIO);
	streamed_close(&s);
}

static void test_the_first_wanted_page_moves_on(void **state)
{
	struct streamed s;
	uint64_t unique;

	(void)state;
	streamed_open(&s, 2);
	unique = send_read(&s.rig, NODE, 8 * PAGE, 8 * PAGE);
	streamed_await(&s, 1);
	streamed_await_want(&s, 8);
	streamed_land(&s, 8, 7);
	streamed_await_want(&s, 15);
	streamed_land(&s, 15, 1);
	expect_content(&s, unique, 8 * PAGE, 8 * PAGE);
	streamed_close(&s);
}

static void test_a_stream_that_fails(void **state)
{
	struct streamed s;
	uint64_t unique;

	(void)state;
	streamed_open(&s, 2);
	streamed_land(&s, 0, 2);
	unique = send_read(&s.rig, NODE, PAGE, 2 * PAGE);
	streamed_await(&s, 1);
	kvd_stream_end(s.stream, -EBADMSG);
	kernel_expect_error(&s.rig, unique, EIO);
	kernel_expect_error(&s.rig, send_read(&s.rig, NODE, 3 * PAGE, 1), EIO);
	expect_read(&s.rig, NODE, 0, 2 * PAGE, streamed_content, 2 * PAGE);
	streamed_close(&s);
}

static void test_the_deadline(void **state)
{
	struct kvd_split_event event;
	struct streamed s;
	uint64_t unique[2];

	(void)state;
	rig_read_wait_ms = 50;
	streamed_open(&s, 2);
	rig_read_wait_ms = 60000;
	unique[0] = send_read(&s.rig, NODE, 0, 1);
	kernel_expect_error(&s.rig, unique[0], EIO);
	event = expect_event(&s.rig, KVD_EVENT_IO_ERROR);
	assert_int_equal(event.node, NODE);
	assert_int_equal(event.value, ETIMEDOUT);
	unique[1] = send_read(&s.rig, NODE, 0, 1);
	kernel_expect_error(&s.rig, unique[1], EIO);
	streamed_land(&s, 0, 1);
	expect_read(&s.rig, NODE, 0, 1, streamed_content, 1);
	assert_int_equal(rig_stats(&s.rig).waiting, 0);
	streamed_close(&s);
}

static void test_interrupts(void **state)
{
	struct streamed s;
	uint64_t other;
	uint64_t unique;

	(void)state;
	streamed_open(&s, 1);
	other = send_read(&s.rig, NODE, 0, 1);
	unique = send_read(&s.rig, NODE, 0, 1);
	streamed_await(&s, 2);
	send_interrupt(&s.rig, unique);
	kernel_expect_error(&s.rig, unique, EINTR);
	/* One that comes before its READ. */
	send_interrupt(&s.rig, s.rig.unique + 2);
	unique = send_read(&s.rig, NODE, 0, 1);
	kernel_expect_error(&s.rig, unique, EINTR);
	send_interrupt(&s.rig, unique); /* and one too many */
	streamed_land(&s, 0, 1);
	expect_content(&s, other, 0, 1);
	assert_int_equal(rig_stats(&s.rig).interrupted, 2);
	streamed_close(&s);
}

static void test_removal_and_stop(void **state)
{
	struct streamed s;
	uint64_t unique[2];

	(void)state;
	streamed_open(&s, 2);
	unique[0] = send_read(&s.rig, NODE, 0, 1);
	streamed_await(&s, 1);
	assert_int_equal(kvd_split_object_remove(s.rig.split, NODE), 0);
	kernel_expect_error(&s.rig, unique[0], EIO);
	/* Nothing of it is left: the same stream serves the next object. */
	assert_int_equal(streamed_add(&s), 0);
	unique[1] = send_read(&s.rig, NODE, 0, 1);
	streamed_await(&s, 1);
	kvd_split_stop(s.rig.split);
	kernel_expect_error(&s.rig, unique[1], ENOTCONN);
	streamed_close(&s);
}

static void test_a_switch_serves_those_who_wait(void **state)
{
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 3, .runs = streamed_runs };
	struct kvd_split_object object;
	struct kvd_stream *old;
	struct streamed s;
	uint64_t unique;

	(void)state;
	streamed_open(&s, 2);
	old = s.stream;
	unique = send_read(&s.rig, NODE, 8 * PAGE, PAGE);
	streamed_await(&s, 1);
	/* To another stream: it waits on, for that. */
	s.stream = streamed_new(s.event_fd);
	object = streamed_spec(&s, &sums);
	assert_int_equal(kvd_split_object_switch(s.rig.split, &object), -EEXIST); /* one eventfd each */
	s.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	s.stream->event_fd = s.event_fd;
	assert_int_equal(kvd_split_object_switch(s.rig.split, &object), 0);
	close(old->event_fd);
	free(old);
	streamed_await(&s, 1);
	streamed_land(&s, 8, 1);
	expect_content(&s, unique, 8 * PAGE, PAGE);
	/* To the whole file. */
	unique = send_read(&s.rig, NODE, 0, 4 * PAGE);
	streamed_await(&s, 1);
	assert_int_equal(pwrite(s.fd, streamed_content, sizeof(streamed_content), 0), sizeof(streamed_content));
	object = (struct kvd_split_object){ .node = NODE, .mode = KVD_MODE_DIRECT, .fd = s.fd, .writable = 1 };
	assert_int_equal(kvd_split_object_switch(s.rig.split, &object), 0);
	expect_content(&s, unique, 0, 4 * PAGE);
	streamed_close(&s);
}

static void test_waits_are_bounded(void **state)
{
	struct streamed s;

	(void)state;
	streamed_open(&s, 2);
	for (int i = 0; i < WAITS_MAX; i++)
		send_read(&s.rig, NODE, 0, 1);
	streamed_await(&s, WAITS_MAX);
	kernel_expect_error(&s.rig, send_read(&s.rig, NODE, 0, 1), ENOMEM);
	streamed_land(&s, 0, 1);
	for (int i = 0; i < WAITS_MAX; i++) {
		kernel_recv(&s.rig, &message);
		assert_int_equal(message.out.header.error, 0);
		assert_int_equal(message.out.body[0], streamed_content[0]);
	}
	streamed_await(&s, 0);
	streamed_close(&s);
}

static uint64_t seek(struct streamed *s, uint64_t offset, uint32_t whence)
{
	struct fuse_lseek_in in = { .offset = offset, .whence = whence };
	struct fuse_lseek_out out;
	uint64_t unique = kernel_send(&s->rig, FUSE_LSEEK, NODE, &in, sizeof(in), NULL, 0);

	kernel_recv(&s->rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	if (message.out.header.error)
		return (uint64_t)(int64_t)message.out.header.error;
	memcpy(&out, message.out.body, sizeof(out));
	return out.offset;
}

static void test_seek_knows_what_will_land(void **state)
{
	struct streamed s;

	(void)state;
	streamed_open(&s, 1);
	assert_int_equal(seek(&s, 0, SEEK_DATA), 0);
	assert_int_equal(seek(&s, 5, SEEK_DATA), 5);
	assert_int_equal(seek(&s, 0, SEEK_HOLE), 4 * PAGE);
	assert_int_equal(seek(&s, 5 * PAGE + 1, SEEK_HOLE), 5 * PAGE + 1);
	assert_int_equal(seek(&s, 5 * PAGE + 1, SEEK_DATA), 8 * PAGE);
	assert_int_equal(seek(&s, 9 * PAGE + 1, SEEK_HOLE), FILE_BYTES); /* over the border of two streamed_runs */
	assert_int_equal(seek(&s, FILE_BYTES - 1, SEEK_DATA), FILE_BYTES - 1);
	assert_int_equal(seek(&s, FILE_BYTES, SEEK_DATA), (uint64_t)-ENXIO);
	assert_int_equal(seek(&s, FILE_BYTES, SEEK_HOLE), (uint64_t)-ENXIO);
	streamed_close(&s);
}

static void test_refusals(void **state)
{
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 3, .runs = streamed_runs };
	struct kvd_split_object good;
	struct kvd_split_object object;
	struct streamed s;
	int blocking = eventfd(0, EFD_CLOEXEC);

	(void)state;
	streamed_open(&s, 1);
	assert_int_equal(kvd_split_object_remove(s.rig.split, NODE), 0);
	good = streamed_spec(&s, &sums);
	object = good;
	object.writable = 1;
	assert_int_equal(kvd_split_object_add(s.rig.split, &object), -EINVAL);
	object = good;
	object.mode = KVD_MODE_PASSTHROUGH;
	object.backing_id = 1;
	assert_int_equal(kvd_split_object_add(s.rig.split, &object), -EINVAL);
	object = good;
	object.sums = NULL;
	assert_int_equal(kvd_split_object_add(s.rig.split, &object), -EINVAL);
	object = good;
	object.stream_address = 0; /* then the sums have to be there */
	assert_int_equal(kvd_split_object_add(s.rig.split, &object), -EINVAL);
	s.stream->event_fd = blocking;
	assert_int_equal(kvd_split_object_add(s.rig.split, &good), -EINVAL);
	s.stream->event_fd = s.event_fd;
	s.stream->n_pages--;
	assert_int_equal(kvd_split_object_add(s.rig.split, &good), -EINVAL);
	s.stream->n_pages++;
	assert_int_equal(kvd_split_object_add(s.rig.split, &good), 0);
	assert_int_equal(kvd_split_object_add(s.rig.split, &good), -EEXIST);
	kernel_expect_error(&s.rig, send_write(&s.rig, NODE, 0, streamed_content, 10), EBADF);
	close(blocking);
	streamed_close(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_has_landed_is_served),
		cmocka_unit_test(test_a_read_waits_for_its_own_pages),
		cmocka_unit_test(test_the_first_wanted_page_moves_on),
		cmocka_unit_test(test_a_stream_that_fails),
		cmocka_unit_test(test_the_deadline),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_removal_and_stop),
		cmocka_unit_test(test_a_switch_serves_those_who_wait),
		cmocka_unit_test(test_waits_are_bounded),
		cmocka_unit_test(test_seek_knows_what_will_land),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
