/* The mover when bytes, devices or callers fail. */
#include "test_mover_util.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "mover/lane.h"

static const struct kvd_mover_run sparse_runs[] = {{0, 2}, {4, 7}};
enum { SPARSE_BYTES = 10 * PAGE_BYTES + 100 };

static void make_demoted(struct rig *rig, struct object *object, bool direct)
{
	struct kvd_mover_job job;

	object_make(rig, object, "object", SPARSE_BYTES, sparse_runs, 2, direct);
	job = job_demote(rig, object, 0);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
}

/* Change one byte of the file behind the object's back. */
static void flip(const struct rig *rig, uint64_t at)
{
	bool buffered = false;
	int fd = rig_open(rig, "object", O_RDWR, &buffered);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static void assert_bad_page(struct rig *rig, struct object *object, uint64_t page)
{
	struct kvd_mover_job verify = job_verify(object, 5);
	int back = memory_file();
	struct kvd_mover_job promote = job_promote(object, back, 6);
	struct kvd_mover_result result = run_job(rig->mover, &verify);

	assert_int_equal(result.status, -EBADMSG);
	assert_int_equal(result.bad_page, page);
	result = run_job(rig->mover, &promote);
	assert_int_equal(result.status, -EBADMSG);
	assert_int_equal(result.bad_page, page);
	close(back);
}

/* First and last byte of a page, of a run, of a request and of the object. */
static void test_flipped_byte(void **state)
{
	static const uint64_t places[] = {
		0, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES - 1, 4 * PAGE_BYTES, 8 * PAGE_BYTES - 1, 8 * PAGE_BYTES,
		9 * PAGE_BYTES + 777, 10 * PAGE_BYTES, SPARSE_BYTES - 1,
	};
	struct rig *rig = *state;

	for (int direct = 0; direct < 2; direct++) {
		struct object object;
		struct kvd_mover_job verify;

		make_demoted(rig, &object, direct);
		for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			flip(rig, places[i]);
			assert_bad_page(rig, &object, places[i] / PAGE_BYTES);
			flip(rig, places[i]);
		}
		verify = job_verify(&object, 7);
		assert_int_equal(run_job(rig->mover, &verify).status, 0);
		object_free(&object);
	}
}

static void test_truncated_file(void **state)
{
	static const struct {
		uint64_t size_bytes, page;
	} cuts[] = {
		{SPARSE_BYTES - 1, 10}, {10 * PAGE_BYTES, 10}, {9 * PAGE_BYTES + 4096, 9}, {9 * PAGE_BYTES + 1, 9},
		{8 * PAGE_BYTES, 8}, {PAGE_BYTES, 1}, {PAGE_BYTES - 1, 0}, {0, 0},
	};
	struct rig *rig = *state;

	for (int direct = 0; direct < 2; direct++) {
		struct object object;

		make_demoted(rig, &object, direct);
		for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
			struct kvd_mover_job verify = job_verify(&object, 1);
			struct kvd_mover_result result;

			assert_int_equal(ftruncate(object.nvme_fd[0], (off_t)cuts[i].size_bytes), 0);
			result = run_job(rig->mover, &verify);
			assert_int_equal(result.status, -EBADMSG);
			/* Requests end in any order, so a later page may be found missing first. */
			assert_true(result.bad_page >= cuts[i].page);
			assert_true(result.bad_page <= 10);
		}
		object_free(&object);
	}
}

static bool mounts_are_private;

/* The root of a file system that goes away with the test. */
static int other_file_system(const struct rig *rig, const char *type, const char *options)
{
	int fd;

	if (!mounts_are_private)
		skip();
	assert_int_equal(mount("kvd-test", rig->dir, type, 0, options), 0);
	fd = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(umount2(rig->dir, MNT_DETACH), 0); /* it lives as long as something in it is open */
	return fd;
}

static void test_no_space(void **state)
{
	static const struct kvd_mover_run one_request = {0, 4}, many = {0, 32};
	struct rig *rig = *state;
	int dir_fd = other_file_system(rig, "tmpfs", "size=192k");

	for (int i = 0; i < 2; i++) {
		struct object object;
		struct kvd_mover_job job;
		const struct kvd_mover_run *run = i ? &many : &one_request;
		int small = openat(dir_fd, "small", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

		assert_true(small >= 0);
		object_make(rig, &object, "object", run->count * PAGE_BYTES, run, 1, true);
		job = job_demote(rig, &object, 1);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		job = job_promote(&object, small, 2);
		assert_int_equal(run_job(rig->mover, &job).status, -ENOSPC);
		job = job_demote(rig, &object, 3);
		object.parts[0] = part_of(small, false);
		assert_int_equal(run_job(rig->mover, &job).status, -ENOSPC);
		close(small);
		object_free(&object);
	}
	close(dir_fd);
}

/* ramfs can't allocate ahead; that is no reason to fail. */
static void test_no_fallocate(void **state)
{
	struct rig *rig = *state;
	int dir_fd = other_file_system(rig, "ramfs", NULL);
	int there = openat(dir_fd, "there", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct object object;
	struct kvd_mover_job job;

	assert_true(there >= 0);
	object_make(rig, &object, "object", SPARSE_BYTES, sparse_runs, 2, false);
	job = job_demote(rig, &object, 1);
	object.parts[0] = part_of(there, false);
	object.parts[0].dir_fd = dir_fd;
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_file_is(there, object.bytes, SPARSE_BYTES);
	close(there);
	close(dir_fd);
	object_free(&object);
}

static void test_short_source(void **state)
{
	static const struct kvd_mover_run run = {0, 9};
	struct rig *rig = *state;
	struct object object;
	struct kvd_mover_job job;

	object_make(rig, &object, "object", 9 * PAGE_BYTES, &run, 1, true);
	assert_int_equal(ftruncate(object.ddr_fd, 9 * PAGE_BYTES - 1), 0);
	job = job_demote(rig, &object, 1);
	assert_int_equal(run_job(rig->mover, &job).status, -EIO);
	object_free(&object);
}

/* Descriptors that don't do what the job needs: the kernel's own answer is the status. */
static void test_useless_descriptors(void **state)
{
	struct rig *rig = *state;
	struct object object;
	struct kvd_mover_job job;
	bool buffered = false;
	int read_only;

	make_demoted(rig, &object, false);
	read_only = rig_open(rig, "object", O_RDONLY, &buffered);
	job = job_demote(rig, &object, 1);
	object.parts[0].fd = read_only;
	assert_int_equal(run_job(rig->mover, &job).status, -EINVAL);
	job = job_demote(rig, &object, 2);
	object.parts[0].dir_fd = 1 << 20;
	assert_int_equal(run_job(rig->mover, &job).status, -EBADF);
	job = job_verify(&object, 3);
	object.parts[0].fd = rig->dir_fd;
	assert_int_equal(run_job(rig->mover, &job).status, -EISDIR);
	close(read_only);
	object_free(&object);
}

/* A job that reads from a pipe in which nothing is: as a disk that does not answer. */
static struct kvd_mover_job blocked_job(const int ends[2], uint64_t token, uint32_t *crc)
{
	static const struct kvd_mover_run run = {0, 16};
	static struct kvd_mover_part part;

	part = part_of(ends[0], false);

	return (struct kvd_mover_job){
		.token = token,
		.kind = KVD_MOVE_VERIFY,
		.page_bytes = PAGE_BYTES,
		.ddr_fd = -1,
		.n_parts = 1,
		.parts = &part,
		.size_bytes = 16 * PAGE_BYTES,
		.deadline_ms = DEADLINE_MS,
		.n_runs = 1,
		.runs = &run,
		.crc = crc,
	};
}

static void test_deadline(void **state)
{
	struct rig *rig = *state;
	struct object object;
	uint32_t crc[16] = {0};
	struct kvd_mover_job job;
	struct kvd_mover_result result;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	job = blocked_job(ends, 1, crc);
	job.deadline_ms = 30;
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_true(result.duration_ns < UINT64_C(1000000000) * 30);
	/* Its buffers are free again, and the lane serves others. */
	make_demoted(rig, &object, true);
	job = job_verify(&object, 2);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job.deadline_ms = 0;
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_int_equal(result.bytes, 0);
	close(ends[0]);
	close(ends[1]);
	object_free(&object);
}

static void test_cancel(void **state)
{
	struct rig *rig = *state;
	uint32_t crc[16] = {0};
	struct kvd_mover_result result;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	/* The first takes all buffers; the second waits behind it. */
	for (uint64_t token = 1; token <= 2; token++) {
		struct kvd_mover_job job = blocked_job(ends, token, crc);

		assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	}
	assert_int_equal(kvd_mover_cancel(rig->mover, 3), -ENOENT);
	assert_int_equal(kvd_mover_cancel(rig->mover, 2), 0);
	result = next_result(rig->mover);
	assert_int_equal(result.token, 2);
	assert_int_equal(result.status, -ECANCELED);
	assert_int_equal(kvd_mover_cancel(rig->mover, 1), 0);
	result = next_result(rig->mover);
	assert_int_equal(result.token, 1);
	assert_int_equal(result.status, -ECANCELED);
	assert_int_equal(kvd_mover_cancel(rig->mover, 1), -ENOENT);
	close(ends[0]);
	close(ends[1]);
}

/* A place is taken until its result is reaped. */
static void test_queue_full(void **state)
{
	struct rig *rig = *state;
	uint32_t crc[16] = {0};
	struct kvd_mover_stats stats;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	for (uint64_t token = 0; token < QUEUE_JOBS; token++) {
		struct kvd_mover_job job = blocked_job(ends, token, crc);

		assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	}
	for (uint64_t token = 0; token < QUEUE_JOBS; token++) {
		struct kvd_mover_job job = blocked_job(ends, 100, crc);

		assert_int_equal(kvd_mover_submit(rig->mover, &job), -EAGAIN);
		assert_int_equal(kvd_mover_cancel(rig->mover, token), 0);
		assert_int_equal(next_result(rig->mover).status, -ECANCELED);
		assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	}
	kvd_mover_stats(rig->mover, &stats);
	assert_int_equal(stats.queued[KVD_MOVE_VERIFY], QUEUE_JOBS);
	assert_int_equal(stats.failed[KVD_MOVE_VERIFY], QUEUE_JOBS);
	/* The teardown frees the mover with all places taken. */
	close(ends[0]);
	close(ends[1]);
}

/* Root may lock any amount of memory, unless it lacks this capability. */
static void allow_lock(bool allow)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	assert_int_equal(syscall(SYS_capget, &header, data), 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	data[0].effective |= data[0].permitted & (allow ? 1u << CAP_IPC_LOCK : 0);
	assert_int_equal(syscall(SYS_capset, &header, data), 0);
}

/* Older kernels, and processes that may not lock more memory than the rings need. */
static void test_without_features(void **state)
{
	enum { FEW_BYTES = 768 << 10 };
	const struct kvd_mover_config config = rig_config();
	struct rig *rig = *state;
	struct rlimit before, few;
	struct object object;
	struct kvd_mover_job job;

	kvd_mover_fini(rig->mover);
	rig->mover = NULL;
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
	few = (struct rlimit){.rlim_cur = FEW_BYTES, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &few), 0);
	allow_lock(false);
	assert_int_equal(kvd_mover_init(&config, &rig->mover), 0);
	allow_lock(true);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
	for (int i = 0; i < DEVICES; i++) {
		assert_false(rig->mover->lanes[i].fixed_buffers);
		rig->mover->lanes[i].async_truncate = false;
	}
	for (int direct = 0; direct < 2; direct++) {
		int back = memory_file();

		make_demoted(rig, &object, direct);
		assert_file_is(object.nvme_fd[0], object.bytes, SPARSE_BYTES);
		job = job_promote(&object, back, 2);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_file_is(back, object.bytes, SPARSE_BYTES);
		job = job_demote(rig, &object, 3);
		object.parts[0] = part_of(rig->dir_fd, false);
		assert_int_equal(run_job(rig->mover, &job).status, -EINVAL);
		close(back);
		object_free(&object);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_flipped_byte, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_truncated_file, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_no_space, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_no_fallocate, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_short_source, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_useless_descriptors, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_deadline, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_cancel, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_queue_full, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_without_features, rig_setup, rig_teardown),
	};

	/* Only for root; no other test needs it. */
	mounts_are_private = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
