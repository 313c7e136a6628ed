/* READ (plain, verified, O_DIRECT) and LSEEK. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "split_rig.h"

enum { PAGE = 64 << 10, TAIL = 1234, PAGES = 20 };

static struct message message;
static uint8_t pattern[PAGES * PAGE];

/* Pages 0, 1, 2 and 5, 6 of data, holes between, and the short page 7. */
static const uint64_t runs[] = { 0, 3, 5, 2, 7, 1 };
enum { FILE_BYTES = 7 * PAGE + TAIL, SUMS = 6 };
static const uint32_t data_pages[SUMS] = { 0, 1, 2, 5, 6, 7 };

static bool in_run(size_t page)
{
	return page <= 2 || (page >= 5 && page <= 7);
}

/* A file in `dir` (a memfd if NULL) with those runs; its bytes in *want. */
static int verified_file(const char *dir, int flags, uint8_t *want, uint32_t *crc)
{
	char path[200];
	int fd;

	rig_pattern(pattern, sizeof(pattern));
	memset(want, 0, FILE_BYTES);
	for (size_t page = 0; page < 8; page++)
		if (in_run(page))
			memcpy(want + page * PAGE, pattern + page * PAGE, page == 7 ? TAIL : PAGE);
	for (size_t i = 0; i < SUMS; i++)
		crc[i] = kvd_crc32c(0, want + (size_t)data_pages[i] * PAGE, data_pages[i] == 7 ? TAIL : PAGE);
	if (!dir) {
		fd = memfd_create("kvd-test", MFD_CLOEXEC);
		assert_int_equal(pwrite(fd, want, FILE_BYTES, 0), FILE_BYTES);
		return fd;
	}
	assert_true(snprintf(path, sizeof(path), "%s/kvd-split-%d", dir, (int)getpid()) > 0);
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, want, FILE_BYTES, 0), FILE_BYTES);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC | flags);
	unlink(path);
	return fd;
}

static int add_verified(struct rig *rig, int fd, const uint32_t *crc)
{
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 3, .runs = runs, .crc = crc };
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_CACHED, .fd = fd, .sums = &sums };

	return kvd_split_object_add(rig->split, &object);
}

/* Ranges that begin and end in each kind of page, and beyond the end. */
static void read_ranges(struct rig *rig, const uint8_t *want)
{
	static const struct {
		uint64_t offset;
		uint32_t size;
	} ranges[] = {
		{ 0, 1 }, { 0, 4096 }, { 1, PAGE }, { PAGE - 1, 2 }, { 0, RIG_IO_BYTES }, { 3 * PAGE, 2 * PAGE },
		{ 2 * PAGE + 5, 3 * PAGE }, { 4 * PAGE + 9, PAGE }, { 7 * PAGE, PAGE }, { 7 * PAGE + TAIL - 1, 100 },
		{ FILE_BYTES, 100 }, { FILE_BYTES + 9 * PAGE, PAGE }, { 5 * PAGE + 4097, 3 * PAGE },
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
		uint64_t offset = ranges[i].offset;
		uint64_t left = offset < FILE_BYTES ? FILE_BYTES - offset : 0;

		expect_read(rig, 5, offset, ranges[i].size, want + (left ? offset : 0),
			    left < ranges[i].size ? left : ranges[i].size);
	}
}

static void test_read_plain(void **state)
{
	uint8_t *want = malloc(FILE_BYTES);
	uint32_t crc[SUMS];
	struct rig rig;
	int fd = verified_file(NULL, 0, want, crc);

	(void)state;
	rig_start(&rig, 1);
	rig_add(&rig, 5, fd, UINT64_MAX);
	close(fd); /* the split has its own */
	read_ranges(&rig, want);
	assert_int_equal(rig_stats(&rig).reads, 13);
	assert_int_equal(rig_stats(&rig).objects, 1);
	free(want);
	rig_close(&rig);
}

static void test_read_verified(void **state)
{
	uint8_t *want = malloc(FILE_BYTES);
	uint32_t crc[SUMS];
	struct rig rig;
	int fd = verified_file(NULL, 0, want, crc);
	uint64_t unique;
	uint8_t wrong = 0x55;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(add_verified(&rig, fd, crc), 0);
	memset(crc, 0, sizeof(crc)); /* they were copied */
	read_ranges(&rig, want);
	/* Bytes where the sums tell of a hole are not data. */
	assert_int_equal(pwrite(fd, &wrong, 1, 3 * PAGE + 9), 1);
	expect_read(&rig, 5, 3 * PAGE, PAGE, want + 3 * PAGE, PAGE);
	/* One wrong bit is EIO for each range that needs its page, and for no other. */
	wrong = want[6 * PAGE + 100] ^ 1;
	assert_int_equal(pwrite(fd, &wrong, 1, 6 * PAGE + 100), 1);
	unique = send_read(&rig, 5, 5 * PAGE, 2 * PAGE);
	kernel_expect_error(&rig, unique, EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).value, 6);
	unique = send_read(&rig, 5, 6 * PAGE, 1);
	kernel_expect_error(&rig, unique, EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).node, 5);
	expect_read(&rig, 5, 5 * PAGE, PAGE, want + 5 * PAGE, PAGE);
	/* So is a file that lost its tail. */
	assert_int_equal(ftruncate(fd, 7 * PAGE + TAIL - 1), 0);
	kernel_expect_error(&rig, send_read(&rig, 5, 7 * PAGE, 10), EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).value, 7);
	assert_int_equal(ftruncate(fd, PAGE), 0);
	kernel_expect_error(&rig, send_read(&rig, 5, PAGE, 10), EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).value, 1);
	free(want);
	close(fd);
	rig_close(&rig);
}

static void test_read_direct_file(void **state)
{
	uint8_t *want = malloc(FILE_BYTES);
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_CACHED };
	uint32_t crc[SUMS];
	struct rig rig;
	int fd = verified_file("/var/tmp", O_DIRECT, want, crc);

	(void)state;
	assert_true(fd >= 0);
	rig_start(&rig, 1);
	assert_int_equal(add_verified(&rig, fd, crc), 0);
	read_ranges(&rig, want);
	assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);
	/* Without sums, aligned for the client. */
	object.fd = fd;
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	read_ranges(&rig, want);
	/* It can't be written through. */
	object.node = 6;
	object.writable = 1;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	free(want);
	close(fd);
	rig_close(&rig);
}

static void test_bad_sums(void **state)
{
	uint8_t *want = malloc(FILE_BYTES);
	uint32_t crc[SUMS];
	static const uint64_t bad[][2] = { { 0, 0 }, { UINT64_MAX, 1 }, { UINT64_MAX - 1, 2 } };
	static const uint64_t overlap[] = { 0, 3, 2, 1 };
	static const uint64_t beyond[] = { 7, 2 };
	static const uint32_t sizes[] = { 0, 2048, 3 << 15, 2 << 20 };
	struct rig rig;
	int fd = verified_file(NULL, 0, want, crc);
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 1, .crc = crc };
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_CACHED, .fd = fd, .sums = &sums };

	(void)state;
	rig_start(&rig, 1);
	for (size_t i = 0; i < 3; i++) {
		sums.runs = bad[i];
		assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	}
	sums.runs = overlap;
	sums.n_runs = 2;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	sums.runs = beyond;
	sums.n_runs = 1;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EBADMSG);
	sums.runs = runs;
	for (size_t i = 0; i < 4; i++) {
		sums.page_bytes = sizes[i];
		assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	}
	/* All hole. */
	sums.page_bytes = PAGE;
	sums.n_runs = 0;
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	memset(want, 0, FILE_BYTES);
	read_ranges(&rig, want);
	assert_int_equal(rig_stats(&rig).objects, 1);
	free(want);
	close(fd);
	rig_close(&rig);
}

static void test_io_error_is_told(void **state)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_DIRECT, .fd = fd };
	struct kvd_split_event event;
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	kernel_expect_error(&rig, send_read(&rig, 5, 0, 4096), EBADF);
	event = expect_event(&rig, KVD_EVENT_IO_ERROR);
	assert_int_equal(event.node, 5);
	assert_int_equal(event.value, EBADF);
	/* The same again, unread, is one event. */
	kernel_expect_error(&rig, send_read(&rig, 5, 0, 4096), EBADF);
	kernel_expect_error(&rig, send_read(&rig, 5, 0, 4096), EBADF);
	expect_event(&rig, KVD_EVENT_IO_ERROR);
	assert_int_equal(kvd_split_events(rig.split, &event, 1), 0);
	close(fd);
	rig_close(&rig);
}

static void expect_lseek(struct rig *rig, uint64_t node, uint64_t offset, uint32_t whence, int64_t want)
{
	struct fuse_lseek_in in = { .fh = 9, .offset = offset, .whence = whence };
	uint64_t unique = kernel_send(rig, FUSE_LSEEK, node, &in, sizeof(in), NULL, 0);
	struct fuse_lseek_out out;

	if (want < 0) {
		kernel_expect_error(rig, unique, (int)-want);
		return;
	}
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.bytes, sizeof(struct fuse_out_header) + sizeof(out));
	memcpy(&out, message.out.body, sizeof(out));
	assert_int_equal(out.offset, want);
}

static void test_lseek(void **state)
{
	struct rig rig;
	int fd = rig_file(8192);

	(void)state;
	assert_int_equal(pwrite(fd, "x", 1, 1 << 20), 1);
	rig_start(&rig, 1);
	rig_add(&rig, 5, fd, UINT64_MAX);
	expect_lseek(&rig, 5, 0, SEEK_DATA, 0);
	expect_lseek(&rig, 5, 0, SEEK_HOLE, 8192);
	expect_lseek(&rig, 5, 8192, SEEK_DATA, 1 << 20);
	expect_lseek(&rig, 5, 1 << 20, SEEK_HOLE, (1 << 20) + 1);
	expect_lseek(&rig, 5, 2 << 20, SEEK_DATA, -ENXIO);
	expect_lseek(&rig, 5, 0, SEEK_SET, -EINVAL);
	expect_lseek(&rig, 5, UINT64_MAX, SEEK_DATA, -ENXIO);
	expect_lseek(&rig, 6, 0, SEEK_DATA, -EINVAL);
	close(fd);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read_plain),
		cmocka_unit_test(test_read_verified),
		cmocka_unit_test(test_read_direct_file),
		cmocka_unit_test(test_bad_sums),
		cmocka_unit_test(test_io_error_is_told),
		cmocka_unit_test(test_lseek),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
