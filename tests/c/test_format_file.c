/* Stored files: what goes in comes out, whole or a page of it; whatever else is in the file is refused by name. */
#include <unistd.h>

#include "common/crc32c.h"
#include "test_format.h"

enum { PAGE = 4096, HEADER = 1000, ARRAYS = 2, TOKENS = 300, CHANNELS = 96, TAIL = 70001 };

static const uint64_t array_bytes = (uint64_t)ARRAYS * TOKENS * CHANNELS * FORMAT_WIDE_BYTES;

struct object {
	struct kvd_format_plan *plan;
	uint8_t *bytes;
	uint64_t count;
	int fd;
	int stored_fd;
	struct kvd_format_report report;
};

/* A header, arrays, zeros, a tail. */
static void object_init(struct object *object, uint32_t kind)
{
	struct kvd_format_region regions[3] = {
		format_exact(0, HEADER, KVD_FORMAT_ZSTD, KVD_FORMAT_BYTES),
		format_array(HEADER, ARRAYS, TOKENS, CHANNELS, kind, KVD_FORMAT_FP16),
		format_exact(HEADER + array_bytes, TAIL, KVD_FORMAT_ZSTD, KVD_FORMAT_BYTES),
	};

	object->count = HEADER + array_bytes + TAIL;
	object->plan = format_plan(regions, 3, PAGE);
	object->bytes = calloc(1, object->count);
	assert_non_null(object->bytes);
	memset(object->bytes, 'h', HEADER);
	format_fill(object->bytes + HEADER, array_bytes / FORMAT_WIDE_BYTES, KVD_FORMAT_FP16);
	object->bytes[object->count - 1] = 1;
	object->fd = format_file(object->bytes, object->count);
	object->stored_fd = format_file("", 0);
	assert_int_equal(kvd_format_file_encode(object->fd, object->stored_fd, object->plan, 1, &object->report), 0);
}

static void object_fini(struct object *object)
{
	kvd_format_plan_fini(object->plan);
	free(object->bytes);
	close(object->fd);
	close(object->stored_fd);
}

static uint8_t *whole_file(int fd, size_t *bytes)
{
	off_t end = lseek(fd, 0, SEEK_END);
	uint8_t *all = malloc((size_t)end + 1);

	assert_non_null(all);
	assert_int_equal(pread(fd, all, (size_t)end, 0), end);
	*bytes = (size_t)end;
	return all;
}

static void check_decoded(const struct object *object, const struct kvd_format_reader *reader, bool exact)
{
	int fd = format_file("", 0);
	size_t bytes;
	uint8_t *out, *part = malloc(object->count);

	assert_non_null(part);
	assert_int_equal(kvd_format_file_decode(object->stored_fd, reader, fd, NULL), 0);
	out = whole_file(fd, &bytes);
	assert_int_equal(bytes, object->count);
	assert_memory_equal(out, object->bytes, HEADER);
	assert_memory_equal(out + HEADER + array_bytes, object->bytes + HEADER + array_bytes, TAIL);
	assert_int_equal(memcmp(out, object->bytes, bytes) == 0, exact);
	for (uint64_t page = 0; page * PAGE < bytes; page++)
		assert_int_equal(kvd_format_reader_page_crc(reader, page),
				 kvd_crc32c(0, out + page * PAGE, bytes - page * PAGE < PAGE ? bytes - page * PAGE : PAGE));
	for (int i = 0; i < 100; i++) { /* any part of it is what the whole is */
		uint64_t at = format_draw() % (bytes + 1), n = format_draw() % (bytes - at + 1);

		n = i % 2 && n > 100 ? 100 : n;
		assert_int_equal(kvd_format_file_read(object->stored_fd, reader, at, part, n, NULL), 0);
		assert_memory_equal(part, out + at, n);
	}
	assert_int_equal(kvd_format_file_read(object->stored_fd, reader, bytes, part, 1, NULL), -EINVAL);
	assert_int_equal(kvd_format_file_read(object->stored_fd, reader, 1, part, UINT64_MAX, NULL), -EINVAL);
	free(part);
	free(out);
	close(fd);
}

static void test_round_trip(void **state)
{
	(void)state;
	for (uint32_t kind = KVD_FORMAT_RAW; kind <= KVD_FORMAT_INT4; kind++) {
		struct kvd_format_reader *reader;
		struct kvd_format_report report;
		struct object object;
		uint64_t kept = 0;

		object_init(&object, kind);
		assert_int_equal(kvd_format_file_open(object.stored_fd, &reader), 0);
		kvd_format_reader_report(reader, &report);
		assert_memory_equal(&report, &object.report, sizeof(report));
		assert_int_equal(report.stored_bytes, lseek(object.stored_fd, 0, SEEK_END));
		assert_int_equal(report.object_bytes, object.count);
		assert_int_equal(kvd_format_reader_page_bytes(reader), PAGE);
		for (int k = 0; k < KVD_FORMAT_KINDS; k++)
			kept += report.kind_bytes[k];
		assert_int_equal(kept, object.count);
		assert_true(report.kind_bytes[kind] >= array_bytes || kind == KVD_FORMAT_RAW);
		assert_true(report.kind_bytes[KVD_FORMAT_ZEROS] == 65536); /* of the tail */
		assert_int_equal(report.errors[KVD_FORMAT_KEYS].values, kvd_format_narrows(kind) ? array_bytes / 2 : 0);
		check_decoded(&object, reader, !kvd_format_narrows(kind));
		kvd_format_reader_fini(reader);
		object_fini(&object);
	}
}

/* A lossy object that comes back and goes again: each unit's codes stay what they were, so errors do not add up. */
static void test_a_second_time_changes_little(void **state)
{
	struct kvd_format_report second;
	struct kvd_format_reader *reader;
	struct object object;
	int fd = format_file("", 0), again = format_file("", 0);

	(void)state;
	object_init(&object, KVD_FORMAT_INT8);
	assert_int_equal(kvd_format_file_open(object.stored_fd, &reader), 0);
	assert_int_equal(kvd_format_file_decode(object.stored_fd, reader, fd, NULL), 0);
	assert_int_equal(kvd_format_file_encode(fd, again, object.plan, 1, &second), 0);
	assert_true(second.errors[KVD_FORMAT_KEYS].square_error < object.report.errors[KVD_FORMAT_KEYS].square_error / 10);
	kvd_format_reader_fini(reader);
	object_fini(&object);
	close(fd);
	close(again);
}

static void test_an_empty_object(void **state)
{
	struct kvd_format_reader *reader;
	struct kvd_format_report report;
	struct kvd_format_plan *plan;
	int in = format_file("", 0), stored = format_file("", 0), out = format_file("", 0);

	(void)state;
	assert_int_equal(kvd_format_plan_init(NULL, 0, 0, PAGE, &plan), 0);
	assert_int_equal(kvd_format_file_encode(in, stored, plan, 1, &report), 0);
	assert_int_equal(kvd_format_file_open(stored, &reader), 0);
	assert_int_equal(kvd_format_file_decode(stored, reader, out, NULL), 0);
	assert_int_equal(lseek(out, 0, SEEK_END), 0);
	kvd_format_reader_fini(reader);
	kvd_format_plan_fini(plan);
	close(in);
	close(stored);
	close(out);
}

/* One bit of the payload: the page is named, others are still served. */
static void test_a_damaged_page(void **state)
{
	struct kvd_format_stored stored;
	struct kvd_format_reader *reader;
	struct kvd_format_unit unit;
	struct object object;
	uint64_t bad = UINT64_MAX;
	uint8_t byte;
	uint32_t index;
	int out = format_file("", 0);

	(void)state;
	object_init(&object, KVD_FORMAT_E4M3);
	assert_int_equal(kvd_format_file_open(object.stored_fd, &reader), 0);
	assert_int_equal(kvd_format_plan_find(kvd_format_reader_plan(reader), HEADER + array_bytes / 2, &index), 0);
	assert_int_equal(kvd_format_plan_unit(kvd_format_reader_plan(reader), index, &unit), 0);
	assert_int_equal(kvd_format_reader_stored(reader, index, &stored), 0);
	assert_int_equal(pread(object.stored_fd, &byte, 1, (off_t)stored.offset + 5), 1);
	byte ^= 4;
	assert_int_equal(pwrite(object.stored_fd, &byte, 1, (off_t)stored.offset + 5), 1);
	assert_int_equal(kvd_format_file_read(object.stored_fd, reader, unit.offset, &byte, 1, &bad), -EBADMSG);
	assert_int_equal(bad, unit.offset / PAGE);
	bad = UINT64_MAX;
	assert_int_equal(kvd_format_file_decode(object.stored_fd, reader, out, &bad), -EBADMSG);
	assert_int_equal(bad, unit.offset / PAGE);
	assert_int_equal(kvd_format_file_read(object.stored_fd, reader, 0, &byte, 1, NULL), 0);
	assert_int_equal(byte, 'h');
	kvd_format_reader_fini(reader);
	object_fini(&object);
	close(out);
}

static int open_bytes(const uint8_t *bytes, size_t count)
{
	struct kvd_format_reader *reader = NULL;
	int fd = format_file(bytes, count), err = kvd_format_file_open(fd, &reader);

	if (!err)
		kvd_format_reader_fini(reader);
	close(fd);
	return err;
}

/* Give a head that was changed its checksum. */
static void seal(uint8_t *file)
{
	struct format_head head;

	memcpy(&head, file, sizeof(head));
	head.crc = 0;
	memcpy(file, &head, sizeof(head));
	head.crc = kvd_crc32c(0, file, head.head_bytes);
	memcpy(file, &head, sizeof(head));
}

/* Each bit of the head, without and with a checksum that fits; each length. Nothing crashes, nothing is believed. */
static void test_damaged_heads(void **state)
{
	struct object object;
	struct format_head head;
	size_t bytes;
	uint8_t *file;

	(void)state;
	object_init(&object, KVD_FORMAT_INT8);
	file = whole_file(object.stored_fd, &bytes);
	memcpy(&head, file, sizeof(head));
	assert_int_equal(open_bytes(file, bytes), 0);
	for (size_t bit = 0; bit < head.head_bytes * 8; bit += bit < 2048 ? 1 : 7) {
		file[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_not_equal(open_bytes(file, bytes), 0);
		file[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < bytes; cut += 1 + cut / 5)
		assert_int_equal(open_bytes(file, cut), -EPROTO);
	assert_int_equal(open_bytes(file, bytes), 0);
	for (int i = 0; i < 2000; i++) {
		size_t at = format_draw() % (i % 2 ? sizeof(head) + 200 : (size_t)head.head_bytes);
		uint8_t before = file[at];
		uint64_t head_bytes;

		file[at] = (uint8_t)format_draw();
		if (kvd_format_head_bytes(file, &head_bytes) == 0 && head_bytes == head.head_bytes) {
			seal(file);
			open_bytes(file, bytes); /* under the sanitizers */
		} else {
			assert_int_not_equal(open_bytes(file, bytes), 0);
		}
		file[at] = before;
		seal(file);
	}
	free(file);
	object_fini(&object);
}

static void forge(const struct object *object, size_t at, uint32_t value, int expected)
{
	size_t bytes;
	uint8_t *file = whole_file(object->stored_fd, &bytes);

	memcpy(file + at, &value, sizeof(value));
	seal(file);
	assert_int_equal(open_bytes(file, bytes), expected);
	free(file);
}

/* Heads with a right checksum that a kvd never wrote. */
static void test_forged_heads(void **state)
{
	size_t first_region = sizeof(struct format_head);
	size_t first_entry = first_region + 3 * sizeof(struct kvd_format_region);
	struct object object;

	(void)state;
	object_init(&object, KVD_FORMAT_INT8);
	forge(&object, offsetof(struct format_head, version), 2, -EPROTONOSUPPORT);
	forge(&object, offsetof(struct format_head, stored_bytes), 8192, -EPROTO);
	forge(&object, first_region + offsetof(struct kvd_format_region, offset), 1, -EPROTO);
	forge(&object, first_region + offsetof(struct kvd_format_region, bytes), 999, -EPROTO);
	forge(&object, first_region + 48 + offsetof(struct kvd_format_region, channels), 48, -EPROTO);
	forge(&object, first_region + 48 + offsetof(struct kvd_format_region, kind), KVD_FORMAT_ZSTD, -EPROTO);
	forge(&object, first_entry + offsetof(struct format_entry, bytes), 1 << 30, -EPROTO);
	forge(&object, first_entry + offsetof(struct format_entry, kind), KVD_FORMAT_INT8, -EPROTO);
	forge(&object, first_entry + offsetof(struct format_entry, kind), 77, -EPROTO);
	object_fini(&object);
}

/* An object that gets shorter meanwhile, and a file that can't be written, are errors. */
static void test_input_and_output_fail(void **state)
{
	struct kvd_format_report report;
	struct object object;
	int closed = format_file("", 0);

	(void)state;
	object_init(&object, KVD_FORMAT_INT8);
	close(closed);
	assert_int_equal(kvd_format_file_encode(object.fd, closed, object.plan, 1, &report), -EBADF);
	assert_int_equal(ftruncate(object.fd, 100), 0);
	assert_int_equal(kvd_format_file_encode(object.fd, object.stored_fd, object.plan, 1, &report), -EIO);
	object_fini(&object);
}

/* The writer by itself: a head only when all units are there, and no unit more. */
static void test_the_writers_order(void **state)
{
	struct kvd_format_region region = format_exact(0, 70000, KVD_FORMAT_RAW, KVD_FORMAT_BYTES);
	struct kvd_format_plan *plan = format_plan(&region, 1, PAGE);
	struct kvd_format_stored stored;
	struct kvd_format_writer *writer;
	uint8_t *bytes = calloc(1, 70000), *made = calloc(1, 70000), *head;

	(void)state;
	assert_true(bytes && made);
	memset(bytes, 7, 70000);
	assert_int_equal(kvd_format_writer_init(plan, 1, &writer), 0);
	head = malloc(kvd_format_writer_head_bytes(writer));
	assert_non_null(head);
	assert_int_equal(kvd_format_writer_head(writer, head), -EINVAL);
	assert_int_equal(kvd_format_writer_put(writer, bytes, made, &stored), 0);
	assert_int_equal(stored.offset, kvd_format_writer_head_bytes(writer));
	assert_int_equal(kvd_format_writer_put(writer, bytes + 65536, made, &stored), 0);
	assert_int_equal(stored.offset, kvd_format_writer_head_bytes(writer) + 65536);
	assert_int_equal(kvd_format_writer_put(writer, bytes, made, &stored), -EINVAL);
	assert_int_equal(kvd_format_writer_head(writer, head), 0);
	assert_int_equal(kvd_format_writer_page_crc(writer, 17), kvd_crc32c(0, bytes, 70000 - 17 * PAGE));
	kvd_format_writer_fini(writer);
	kvd_format_plan_fini(plan);
	free(bytes);
	free(made);
	free(head);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_a_second_time_changes_little),
		cmocka_unit_test(test_an_empty_object), cmocka_unit_test(test_a_damaged_page),
		cmocka_unit_test(test_damaged_heads),  cmocka_unit_test(test_forged_heads),
		cmocka_unit_test(test_input_and_output_fail), cmocka_unit_test(test_the_writers_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
