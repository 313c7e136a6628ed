/* Each allocation fails in turn: -ENOMEM, nothing leaks (under ASan), and the next try works. */
#include <unistd.h>

#include "test_format.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static int allocations_left = -1; /* then one fails; -1: none does */

static bool fails(void)
{
	return allocations_left >= 0 && allocations_left-- == 0;
}

void *__wrap_malloc(size_t bytes)
{
	return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	return fails() ? NULL : __real_calloc(count, bytes);
}

enum { TOKENS = 130, CHANNELS = 64, STEPS_MAX = 60 };

static uint8_t bytes[TOKENS * CHANNELS * FORMAT_WIDE_BYTES];

/* The same file again, in pieces; and back. */
static int in_pieces(const struct kvd_format_plan *plan, const struct kvd_format_reader *reader, int object_fd,
		     int stored_fd, int back_fd)
{
	kvd_format_encoder *encoder;
	kvd_format_decoder *decoder;
	uint64_t end, bad;
	int err = kvd_format_encoder_init(plan, 1, &encoder);

	if (err)
		return err;
	while (!err && kvd_format_encoder_left(encoder) > 0)
		err = kvd_format_encoder_step(encoder, object_fd, stored_fd, 1000, &end);
	if (!err)
		err = kvd_format_encoder_head(encoder, stored_fd);
	kvd_format_encoder_fini(encoder);
	if (!err)
		err = kvd_format_decoder_init(reader, &decoder);
	if (err)
		return err;
	err = kvd_format_decoder_pages(decoder, stored_fd, back_fd, 0, 1, 0, &bad);
	kvd_format_decoder_fini(decoder);
	return err;
}

/* Store, open, decode and read; the first error. */
static int whole_way(int object_fd, int stored_fd, int back_fd)
{
	struct kvd_format_region region = format_array(0, 1, TOKENS, CHANNELS, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_plan *plan;
	struct kvd_format_reader *reader;
	struct kvd_format_report report;
	uint8_t some[100];
	int err = kvd_format_plan_init(&region, 1, sizeof(bytes), FORMAT_TEST_PAGE, &plan);

	if (err)
		return err;
	err = kvd_format_file_encode(object_fd, stored_fd, plan, 1, &report);
	if (!err)
		err = kvd_format_file_open(stored_fd, &reader);
	if (err) {
		kvd_format_plan_fini(plan);
		return err;
	}
	err = kvd_format_file_decode(stored_fd, reader, back_fd, NULL);
	if (!err)
		err = in_pieces(plan, reader, object_fd, stored_fd, back_fd);
	if (!err)
		err = kvd_format_file_read(stored_fd, reader, 1000, some, sizeof(some), NULL);
	kvd_format_reader_fini(reader);
	kvd_format_plan_fini(plan);
	return err;
}

static void test_each_allocation_fails(void **state)
{
	int object_fd, stored_fd = format_file("", 0), back_fd = format_file("", 0), steps = 0, err;

	(void)state;
	format_fill(bytes, sizeof(bytes) / FORMAT_WIDE_BYTES, KVD_FORMAT_FP16);
	object_fd = format_file(bytes, sizeof(bytes));
	for (;; steps++) {
		bool failed;

		assert_in_range(steps, 0, STEPS_MAX);
		allocations_left = steps;
		err = whole_way(object_fd, stored_fd, back_fd);
		failed = allocations_left < 0;
		allocations_left = -1;
		if (!failed)
			break;
		assert_int_equal(err, -ENOMEM);
	}
	assert_int_equal(err, 0);
	assert_in_range(steps, 15, STEPS_MAX); /* they are counted */
	close(object_fd);
	close(stored_fd);
	close(back_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_allocation_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
