/* Objects whose pages are spread over several devices. */
#include "test_mover_util.h"

#include <stdio.h>

static const struct kvd_mover_run sparse_runs[] = {{0, 3}, {4, 1}, {6, 11}, {20, 9}, {31, 2}};
enum { SPARSE_RUNS = 5, SPARSE_BYTES = 32 * PAGE_BYTES + 1234 };

/* Each part has the object's length, its own stripes, and zeroes elsewhere. */
static void assert_parts(const struct object *object)
{
	uint8_t *expected = malloc(object->size_bytes + 1);

	assert_non_null(expected);
	for (uint32_t part = 0; part < object->n_parts; part++) {
		memset(expected, 0, object->size_bytes);
		for (uint64_t at = 0; at < object->size_bytes; at++)
			if (object->n_parts == 1 || at / object->stripe_bytes % object->n_parts == part)
				expected[at] = object->bytes[at];
		assert_file_is(object->nvme_fd[part], expected, object->size_bytes);
	}
	free(expected);
}

static void round_trip(struct rig *rig, struct object *object)
{
	int back = memory_file();
	struct kvd_mover_job job = job_demote(rig, object, 1);
	struct kvd_mover_result result = run_job(rig->mover, &job);

	assert_int_equal(result.status, 0);
	assert_int_equal(result.device, KVD_MOVE_NO_DEVICE);
	assert_int_equal(result.bytes, object_run_bytes(object));
	assert_parts(object);
	job = job_verify(object, 2);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.bytes, object_run_bytes(object));
	job = job_promote(object, back, 3);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.bytes, object_run_bytes(object));
	assert_file_is(back, object->bytes, object->size_bytes);
	close(back);
}

static void test_stripes(void **state)
{
	static const uint64_t stripe_pages[] = {1, 3, 4, 5, 64};
	static const uint64_t sizes[] = {1, PAGE_BYTES, 9 * PAGE_BYTES - 1, 24 * PAGE_BYTES + 4096};
	struct rig *rig = *state;
	struct object object;

	for (uint32_t n_parts = 1; n_parts <= DEVICES; n_parts++)
		for (size_t s = 0; s < sizeof(stripe_pages) / sizeof(stripe_pages[0]); s++) {
			uint64_t stripe_bytes = stripe_pages[s] * PAGE_BYTES;
			bool direct = s % 2 == 0;

			for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
				struct kvd_mover_run whole = {0, (sizes[i] + PAGE_BYTES - 1) / PAGE_BYTES};

				object_make_striped(rig, &object, "object", sizes[i], &whole, 1, direct, n_parts,
						    stripe_bytes);
				round_trip(rig, &object);
				object_free(&object);
			}
			object_make_striped(rig, &object, "object", SPARSE_BYTES, sparse_runs, SPARSE_RUNS, direct,
					    n_parts, stripe_bytes);
			round_trip(rig, &object);
			object_free(&object);
		}
}

static void test_stripes_without_pages(void **state)
{
	struct rig *rig = *state;
	struct object object;

	for (uint64_t size_bytes = 0; size_bytes < 9 * PAGE_BYTES; size_bytes += 4 * PAGE_BYTES + 17) {
		object_make_striped(rig, &object, "object", size_bytes, NULL, 0, true, DEVICES, PAGE_BYTES);
		round_trip(rig, &object);
		object_free(&object);
	}
}

/* A device on which none of the pages is is not asked: a pipe in which nothing is would never answer. */
static void test_devices_without_pages_are_not_asked(void **state)
{
	static const struct kvd_mover_run runs[] = {{1, 1}, {4, 1}};
	struct rig *rig = *state;
	struct object object;
	struct kvd_mover_job job;
	int ends[2], back = memory_file();

	object_make_striped(rig, &object, "object", 6 * PAGE_BYTES, runs, 2, true, DEVICES, PAGE_BYTES);
	round_trip(rig, &object);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	job = job_promote(&object, back, 1);
	object.parts[0].fd = object.parts[2].fd = ends[0];
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_file_is(back, object.bytes, object.size_bytes);
	close(back);
	close(ends[0]);
	close(ends[1]);
	object_free(&object);
}

static void flip(int fd, uint64_t at)
{
	char path[32];
	uint8_t byte;
	int buffered;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	buffered = open(path, O_RDWR | O_CLOEXEC);
	assert_true(buffered >= 0);
	assert_int_equal(pread(buffered, &byte, 1, (off_t)at), 1);
	byte ^= 0x40;
	assert_int_equal(pwrite(buffered, &byte, 1, (off_t)at), 1);
	assert_int_equal(fsync(buffered), 0);
	close(buffered);
}

/* The first failure ends the move on all devices, and names its own. */
static void test_each_device_fails(void **state)
{
	static const struct kvd_mover_run whole = {0, 12};
	struct rig *rig = *state;

	for (uint32_t device = 0; device < DEVICES; device++) {
		uint64_t page = 3 + device;
		struct object object;
		struct kvd_mover_job job;
		struct kvd_mover_result result;
		int back = memory_file(), read_only;
		bool buffered = false;
		char name[32];

		object_make_striped(rig, &object, "object", 12 * PAGE_BYTES, &whole, 1, true, DEVICES, PAGE_BYTES);
		round_trip(rig, &object);

		flip(object.nvme_fd[device], page * PAGE_BYTES + 5);
		job = job_promote(&object, back, 1);
		result = run_job(rig->mover, &job);
		assert_int_equal(result.status, -EBADMSG);
		assert_int_equal(result.device, device);
		assert_int_equal(result.bad_page, page);
		flip(object.nvme_fd[device], page * PAGE_BYTES + 5);

		job = job_verify(&object, 2);
		object.parts[device].fd = rig->dir_fd;
		result = run_job(rig->mover, &job);
		assert_int_equal(result.status, -EISDIR);
		assert_int_equal(result.device, device);

		snprintf(name, sizeof(name), device ? "object.%u" : "object", device);
		read_only = rig_open(rig, name, O_RDONLY, &buffered);
		job = job_demote(rig, &object, 3);
		object.parts[device].fd = read_only;
		result = run_job(rig->mover, &job);
		assert_int_equal(result.status, -EINVAL);
		assert_int_equal(result.device, device);

		job = job_demote(rig, &object, 4);
		object.parts[device].dir_fd = 1 << 20;
		result = run_job(rig->mover, &job);
		assert_int_equal(result.status, -EBADF);
		assert_int_equal(result.device, device);

		job = job_demote(rig, &object, 5);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_parts(&object);
		close(read_only);
		close(back);
		object_free(&object);
	}
}

/* What the ddr file does is no device's fault. */
static void test_the_ddr_file_fails(void **state)
{
	static const struct kvd_mover_run whole = {0, 12};
	struct rig *rig = *state;
	struct object object;
	struct kvd_mover_job job;
	struct kvd_mover_result result;

	object_make_striped(rig, &object, "object", 12 * PAGE_BYTES, &whole, 1, true, DEVICES, PAGE_BYTES);
	round_trip(rig, &object);
	job = job_promote(&object, rig->dir_fd, 1);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -EINVAL);
	assert_int_equal(result.device, KVD_MOVE_NO_DEVICE);
	assert_int_equal(ftruncate(object.ddr_fd, 7 * PAGE_BYTES), 0);
	job = job_demote(rig, &object, 2);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -EIO);
	assert_int_equal(result.device, KVD_MOVE_NO_DEVICE);
	object_free(&object);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stripes, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_stripes_without_pages, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_devices_without_pages_are_not_asked, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_each_device_fails, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_the_ddr_file_fails, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
