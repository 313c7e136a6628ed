/* READ and LSEEK of a verified object that is striped over several files. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "split_rig.h"

enum { PAGE = 64 << 10, TAIL = 1234, PAGES = 12, PARTS_MAX = 4, FILE_BYTES = (PAGES - 1) * PAGE + TAIL };

static uint8_t want[FILE_BYTES];
static uint32_t crc[PAGES];
static const uint64_t runs[] = { 0, PAGES };

/* Parts with the object's length, each with its stripes and wrong bytes nowhere: elsewhere are holes. */
static void make_parts(int *fds, uint32_t n_parts, size_t stripe_bytes)
{
	rig_pattern(want, sizeof(want));
	for (uint32_t i = 0; i < n_parts; i++) {
		fds[i] = memfd_create("kvd-test", MFD_CLOEXEC);
		assert_int_equal(ftruncate(fds[i], FILE_BYTES), 0);
	}
	for (size_t page = 0; page < PAGES; page++) {
		size_t bytes = page == PAGES - 1 ? TAIL : PAGE;
		int fd = fds[page * PAGE / stripe_bytes % n_parts];

		crc[page] = kvd_crc32c(0, want + page * PAGE, bytes);
		assert_int_equal(pwrite(fd, want + page * PAGE, bytes, (off_t)(page * PAGE)), (ssize_t)bytes);
	}
}

static int add(struct rig *rig, const int *fds, uint32_t n_parts, uint64_t stripe_bytes)
{
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 1, .runs = runs, .crc = crc };
	struct kvd_split_object object = {
		.node = 5, .mode = KVD_MODE_DIRECT, .fd = fds[0], .sums = &sums,
		.part_fds = fds, .n_parts = n_parts, .stripe_bytes = stripe_bytes,
	};

	return kvd_split_object_add(rig->split, &object);
}

static void close_parts(const int *fds, uint32_t n_parts)
{
	for (uint32_t i = 0; i < n_parts; i++)
		close(fds[i]);
}

static void read_all(struct rig *rig)
{
	static const uint32_t sizes[] = { 1, 4096, PAGE, 3 * PAGE + 7, RIG_IO_BYTES };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (uint64_t offset = 0; offset < FILE_BYTES; offset += PAGE - 100) {
			uint64_t left = FILE_BYTES - offset;

			expect_read(rig, 5, offset, sizes[i], want + offset, left < sizes[i] ? left : sizes[i]);
		}
	}
}

static void test_reads_of_any_range(void **state)
{
	static const struct {
		uint32_t n_parts;
		uint64_t stripe_bytes;
	} shapes[] = { { 2, PAGE }, { 3, 2 * PAGE }, { 4, 4 * PAGE }, { 2, 16 * PAGE } };

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		int fds[PARTS_MAX];
		struct rig rig;

		rig_start(&rig, 1);
		make_parts(fds, shapes[i].n_parts, shapes[i].stripe_bytes);
		assert_int_equal(add(&rig, fds, shapes[i].n_parts, shapes[i].stripe_bytes), 0);
		close_parts(fds, shapes[i].n_parts); /* they were duplicated */
		read_all(&rig);
		assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);
		rig_close(&rig);
	}
}

static void test_a_wrong_bit_in_one_part(void **state)
{
	int fds[2];
	struct rig rig;
	uint8_t wrong;

	(void)state;
	rig_start(&rig, 1);
	make_parts(fds, 2, PAGE);
	assert_int_equal(add(&rig, fds, 2, PAGE), 0);
	wrong = want[3 * PAGE + 9] ^ 1;
	assert_int_equal(pwrite(fds[0], &wrong, 1, 3 * PAGE + 9), 1); /* a hole of part 0: nobody reads it */
	expect_read(&rig, 5, 3 * PAGE, PAGE, want + 3 * PAGE, PAGE);
	assert_int_equal(pwrite(fds[1], &wrong, 1, 3 * PAGE + 9), 1);
	kernel_expect_error(&rig, send_read(&rig, 5, 2 * PAGE, 2 * PAGE), EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).value, 3);
	expect_read(&rig, 5, 2 * PAGE, PAGE, want + 2 * PAGE, PAGE);
	/* A part that has become short. */
	assert_int_equal(ftruncate(fds[0], 2 * PAGE), 0);
	kernel_expect_error(&rig, send_read(&rig, 5, 2 * PAGE, 1), EIO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_BAD_PAGE).value, 2);
	close_parts(fds, 2);
	rig_close(&rig);
}

static void expect_lseek(struct rig *rig, uint64_t offset, uint32_t whence, int64_t at)
{
	struct fuse_lseek_in in = { .offset = offset, .whence = whence };
	static struct message message;
	uint64_t unique = kernel_send(rig, FUSE_LSEEK, 5, &in, sizeof(in), NULL, 0);

	if (at < 0) {
		kernel_expect_error(rig, unique, (int)-at);
		return;
	}
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.out.header.error, 0);
	assert_int_equal(((struct fuse_lseek_out *)message.out.body)->offset, at);
}

static void test_no_holes_are_told(void **state)
{
	int fds[2];
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	make_parts(fds, 2, PAGE);
	assert_int_equal(add(&rig, fds, 2, PAGE), 0);
	expect_lseek(&rig, 0, SEEK_HOLE, FILE_BYTES);
	expect_lseek(&rig, PAGE + 1, SEEK_DATA, PAGE + 1);
	expect_lseek(&rig, FILE_BYTES, SEEK_DATA, -ENXIO);
	close_parts(fds, 2);
	rig_close(&rig);
}

static void test_what_makes_no_sense_is_refused(void **state)
{
	int fds[2];
	struct rig rig;
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_DIRECT, .n_parts = 2, .stripe_bytes = PAGE };

	(void)state;
	rig_start(&rig, 1);
	make_parts(fds, 2, PAGE);
	object.fd = fds[0];
	object.part_fds = fds;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL); /* without sums */
	assert_int_equal(add(&rig, fds, 2, 0), -EINVAL);
	assert_int_equal(add(&rig, fds, 2, PAGE + 4096), -EINVAL);
	assert_int_equal(add(&rig, fds, KVD_SPLIT_PARTS_MAX + 1, PAGE), -EINVAL);
	assert_int_equal(ftruncate(fds[1], FILE_BYTES - 1), 0);
	assert_int_equal(add(&rig, fds, 2, PAGE), -EBADMSG);
	close(fds[1]);
	fds[1] = -1;
	assert_int_equal(add(&rig, fds, 2, PAGE), -EBADF);
	assert_int_equal(rig_stats(&rig).objects, 0);
	close(fds[0]);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads_of_any_range),
		cmocka_unit_test(test_a_wrong_bit_in_one_part),
		cmocka_unit_test(test_no_holes_are_told),
		cmocka_unit_test(test_what_makes_no_sense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
