/* A stored file made in pieces is the one that is made at once, and pages come back in any order, each checked. */
#include <unistd.h>

#include "common/stream.h"
#include "common/stream_memory.h"
#include "test_format.h"

enum { PAGE = 4096, HEADER = 1000, ARRAYS = 2, TOKENS = 1300, CHANNELS = 96, TAIL = 200001, PIECES_MAX = 4096 };

static const uint64_t array_bytes = (uint64_t)ARRAYS * TOKENS * CHANNELS * FORMAT_WIDE_BYTES;

struct object {
	struct kvd_format_plan *plan;
	uint64_t count, pages;
	int fd, whole_fd, pieces_fd;
	uint64_t object_pages;
};

/* A header, arrays, and a tail that is zeros but for its end. */
static void object_init(struct object *object, uint32_t kind)
{
	struct kvd_format_region regions[3] = {
		format_exact(0, HEADER, KVD_FORMAT_ZSTD, KVD_FORMAT_BYTES),
		format_array(HEADER, ARRAYS, TOKENS, CHANNELS, kind, KVD_FORMAT_FP16),
		format_exact(HEADER + array_bytes, TAIL, KVD_FORMAT_ZSTD, KVD_FORMAT_BYTES),
	};
	uint8_t *bytes;

	object->count = HEADER + array_bytes + TAIL;
	object->pages = kvd_format_pages(object->count, PAGE);
	object->plan = format_plan(regions, 3, PAGE);
	bytes = calloc(1, object->count);
	assert_non_null(bytes);
	memset(bytes, 'h', HEADER);
	format_fill(bytes + HEADER, array_bytes / FORMAT_WIDE_BYTES, KVD_FORMAT_FP16);
	bytes[object->count - 1] = 1;
	object->fd = format_file(bytes, object->count);
	free(bytes);
	object->whole_fd = format_file("", 0);
	object->pieces_fd = format_file("", 0);
}

static void object_fini(struct object *object)
{
	kvd_format_plan_fini(object->plan);
	close(object->fd);
	close(object->whole_fd);
	close(object->pieces_fd);
}

static void assert_same(int one, int other)
{
	off_t end = lseek(one, 0, SEEK_END);
	uint8_t *a = malloc((size_t)end + 1), *b = malloc((size_t)end + 1);

	assert_int_equal(lseek(other, 0, SEEK_END), end);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_equal(pread(one, a, (size_t)end, 0), end);
	assert_int_equal(pread(other, b, (size_t)end, 0), end);
	assert_memory_equal(a, b, (size_t)end);
	free(a);
	free(b);
}

static void encode(struct object *object, uint64_t step_bytes)
{
	struct kvd_format_report whole, pieces;
	kvd_format_encoder *encoder;
	uint64_t end = 0, before;
	int steps = 0;

	assert_int_equal(kvd_format_file_encode(object->fd, object->whole_fd, object->plan, 1, &whole), 0);
	assert_int_equal(kvd_format_encoder_init(object->plan, 1, &encoder), 0);
	before = kvd_format_encoder_head_bytes(encoder);
	while (kvd_format_encoder_left(encoder) > 0) {
		assert_int_equal(kvd_format_encoder_head(encoder, object->pieces_fd), -EINVAL);
		assert_int_equal(kvd_format_encoder_step(encoder, object->fd, object->pieces_fd, step_bytes, &end), 0);
		assert_true(end >= before);
		assert_true(end - before < step_bytes + KVD_FORMAT_UNIT_BYTES_MAX);
		before = end;
		assert_true(++steps < PIECES_MAX);
	}
	assert_int_equal(kvd_format_encoder_head(encoder, object->pieces_fd), 0);
	kvd_format_encoder_report(encoder, &pieces);
	assert_memory_equal(&whole, &pieces, sizeof(whole));
	assert_int_equal(whole.stored_bytes, end);
	object->object_pages = kvd_format_encoder_pages(encoder);
	kvd_format_encoder_fini(encoder);
	assert_true(step_bytes > 10000 || steps > 3);
}

static void test_pieces_make_the_same_file(void **state)
{
	static const uint64_t steps[] = {1, 10000, 300000, UINT64_MAX / 2};

	(void)state;
	for (uint32_t kind = KVD_FORMAT_RAW; kind <= KVD_FORMAT_INT4; kind++)
		for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
			struct object object;

			object_init(&object, kind);
			encode(&object, steps[i]);
			assert_same(object.whole_fd, object.pieces_fd);
			object_fini(&object);
		}
}

/* What a mover would have brought of the file: its head, and what some pages need. */
static int staged(const struct object *object, const kvd_format_reader *reader, uint64_t first, uint64_t count)
{
	uint64_t offset, bytes;
	int fd = format_file("", 0);
	uint8_t *part;

	assert_int_equal(kvd_format_reader_span(reader, first, count, &offset, &bytes), 0);
	part = malloc(bytes + 1);
	assert_non_null(part);
	assert_int_equal(pread(object->whole_fd, part, bytes, (off_t)offset), bytes);
	assert_int_equal(pwrite(fd, part, bytes, (off_t)offset), bytes);
	free(part);
	return fd;
}

static void test_pages_come_back_in_any_order(void **state)
{
	enum { COUNT = 7 };
	kvd_format_decoder *decoder;
	kvd_format_reader *reader;
	struct kvd_stream *stream;
	uint64_t bad, groups, written = 0;
	struct object object;
	int all, back = format_file("", 0), whole = format_file("", 0);

	(void)state;
	object_init(&object, KVD_FORMAT_INT8);
	encode(&object, 100000);
	assert_int_equal(kvd_format_file_open(object.whole_fd, &reader), 0);
	assert_int_equal(kvd_format_file_decode(object.whole_fd, reader, whole, &bad), 0);
	assert_int_equal(kvd_format_decoder_init(reader, &decoder), 0);
	assert_int_equal(ftruncate(back, (off_t)object.count), 0);
	stream = kvd_stream_make(object.pages, -1);
	assert_non_null(stream);
	groups = (object.pages + COUNT - 1) / COUNT;
	for (uint64_t i = 0; i < groups; i++) {
		uint64_t first = (i * 7 % groups) * COUNT; /* each once, since 7 does not divide them */
		uint64_t count = object.pages - first < COUNT ? object.pages - first : COUNT;
		int fd = staged(&object, reader, first, count);

		assert_int_equal(kvd_format_decoder_pages(decoder, fd, back, first, count, (uintptr_t)stream, &bad), 0);
		assert_int_equal(kvd_stream_state(stream, first, count), 1);
		close(fd);
	}
	assert_true(groups % 7 != 0);
	assert_int_equal(kvd_stream_landed(stream), object.pages);
	assert_same(whole, back);
	for (off_t at = 0; (at = lseek(back, at, SEEK_DATA)) >= 0;) {
		off_t hole = lseek(back, at, SEEK_HOLE);

		written += (uint64_t)(hole - at);
		at = hole;
	}
	assert_int_equal((written + PAGE - 1) / PAGE, object.object_pages); /* zeros stay holes, as the encoder has counted */
	assert_true(object.object_pages < object.pages);
	all = staged(&object, reader, 0, object.pages);
	assert_int_equal(kvd_format_decoder_pages(decoder, all, back, object.pages, 1, 0, &bad), -EINVAL);
	assert_int_equal(kvd_format_decoder_pages(decoder, all, back, 1, UINT64_MAX, 0, &bad), -EINVAL);
	assert_int_equal(kvd_format_decoder_pages(decoder, all, back, 1, 0, 0, &bad), -EINVAL);
	assert_int_equal(kvd_format_reader_span(reader, object.pages, 1, &bad, &bad), -EINVAL);
	close(all);
	kvd_stream_free(stream);
	kvd_format_decoder_fini(decoder);
	kvd_format_reader_fini(reader);
	object_fini(&object);
	close(back);
	close(whole);
}

/* A bit that differs is told with its page, and nothing of it or behind it lands. */
static void test_a_bit_that_differs(void **state)
{
	kvd_format_decoder *decoder;
	kvd_format_reader *reader;
	struct object object;

	(void)state;
	object_init(&object, KVD_FORMAT_E4M3);
	encode(&object, 100000);
	assert_int_equal(kvd_format_file_open(object.whole_fd, &reader), 0);
	assert_int_equal(kvd_format_decoder_init(reader, &decoder), 0);
	for (int i = 0; i < 50; i++) {
		uint64_t offset, bytes, page = format_draw() % (array_bytes / PAGE), bad = UINT64_MAX;
		int back = format_file("", 0), fd = staged(&object, reader, page, 1);
		uint8_t byte;

		assert_int_equal(kvd_format_reader_span(reader, page, 1, &offset, &bytes), 0);
		offset += format_draw() % bytes;
		assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
		byte ^= (uint8_t)(1u << format_draw() % 8);
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
		assert_int_equal(kvd_format_decoder_pages(decoder, fd, back, page, 1, 0, &bad), -EBADMSG);
		assert_int_equal(bad, page);
		assert_int_equal(lseek(back, 0, SEEK_END), 0);
		assert_int_equal(ftruncate(fd, (off_t)offset), 0);
		assert_int_equal(kvd_format_decoder_pages(decoder, fd, back, page, 1, 0, &bad), -EIO);
		close(back);
		close(fd);
	}
	kvd_format_decoder_fini(decoder);
	kvd_format_reader_fini(reader);
	object_fini(&object);
}

static void test_an_object_that_shrinks_is_an_error(void **state)
{
	kvd_format_encoder *encoder;
	struct object object;
	uint64_t end;

	(void)state;
	object_init(&object, KVD_FORMAT_INT4);
	assert_int_equal(kvd_format_encoder_init(object.plan, 1, &encoder), 0);
	assert_int_equal(kvd_format_encoder_step(encoder, object.fd, object.pieces_fd, 1, &end), 0);
	assert_int_equal(ftruncate(object.fd, HEADER), 0);
	assert_int_equal(kvd_format_encoder_step(encoder, object.fd, object.pieces_fd, 1, &end), -EIO);
	assert_true(kvd_format_encoder_left(encoder) > 0);
	kvd_format_encoder_fini(encoder);
	object_fini(&object);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces_make_the_same_file),
		cmocka_unit_test(test_pages_come_back_in_any_order),
		cmocka_unit_test(test_a_bit_that_differs),
		cmocka_unit_test(test_an_object_that_shrinks_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
