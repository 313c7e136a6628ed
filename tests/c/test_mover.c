/* The mover when all goes well, and what it refuses to begin. */
#include "test_mover_util.h"

#include "common/crc32c.h"
#include "common/stream.h"

/* Demote, check the sums and the file, verify, promote elsewhere, compare. */
static void round_trip(struct rig *rig, uint64_t size_bytes, const struct kvd_mover_run *runs, uint64_t n_runs,
		       bool direct)
{
	struct object object;
	struct kvd_mover_job job;
	struct kvd_mover_result result;
	uint64_t sum = 0;
	int back = memory_file();

	object_make(rig, &object, "object", size_bytes, runs, n_runs, direct);
	job = job_demote(rig, &object, 1);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.bytes, object_run_bytes(&object));
	assert_true(result.duration_ns > 0);
	assert_file_is(object.nvme_fd[0], object.bytes, size_bytes);
	for (uint64_t r = 0; r < n_runs; r++)
		for (uint64_t p = runs[r].first_page; p < runs[r].first_page + runs[r].count; p++, sum++) {
			uint64_t left = size_bytes - p * PAGE_BYTES;

			assert_int_equal(object.crc[sum], kvd_crc32c(0, object.bytes + p * PAGE_BYTES,
								     left < PAGE_BYTES ? left : PAGE_BYTES));
		}
	job = job_verify(&object, 2);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job = job_promote(&object, back, 3);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.bytes, object_run_bytes(&object));
	assert_file_is(back, object.bytes, size_bytes);
	close(back);
	object_free(&object);
}

static void test_sizes(void **state)
{
	static const uint64_t sizes[] = {1, 4095, 4096, 65535, 65536, 65537, IO_BYTES, (10 << 20) + 123};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct kvd_mover_run whole = {0, (sizes[i] + PAGE_BYTES - 1) / PAGE_BYTES};

		round_trip(*state, sizes[i], &whole, 1, true);
		round_trip(*state, sizes[i], &whole, 1, false);
	}
}

/* A file that comes in several moves is whole after the last one; nothing is durable, and none is cut, before. */
static void test_more_of_the_same_file(void **state)
{
	static const struct kvd_mover_run head = {0, 2}, middle = {2, 9}, tail = {11, 3}, whole = {0, 14};
	static const uint64_t size_bytes = 13 * PAGE_BYTES + 777;
	const struct kvd_mover_run ends[] = {head, tail};
	struct rig *rig = *state;

	for (int direct = 0; direct < 2; direct++) {
		struct kvd_mover_job job;
		struct object object;
		uint32_t crc[14];

		object_make(rig, &object, "object", size_bytes, &whole, 1, direct);
		job = job_demote(rig, &object, 1);
		job.flags |= KVD_MOVE_MORE;
		job.runs = &middle;
		job.crc = crc + 2;
		assert_int_equal(kvd_mover_submit(rig->mover, &job), -EINVAL); /* it does not end at a page */
		job.size_bytes = 11 * PAGE_BYTES;
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_int_equal(lseek(object.nvme_fd[0], 0, SEEK_END), job.size_bytes);
		job = job_demote(rig, &object, 2);
		job.runs = ends;
		job.n_runs = 2;
		job.crc = object.crc;
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_file_is(object.nvme_fd[0], object.bytes, size_bytes);
		memcpy(crc, object.crc, 2 * sizeof(*crc));
		memcpy(crc + 11, object.crc + 2, 3 * sizeof(*crc));
		memcpy(object.crc, crc, sizeof(crc));
		job = job_verify(&object, 3);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		object_free(&object);
	}
}

static void test_empty(void **state)
{
	round_trip(*state, 0, NULL, 0, true);
	round_trip(*state, 5 * PAGE_BYTES + 7, NULL, 0, true);
	round_trip(*state, 5 * PAGE_BYTES + 7, NULL, 0, false);
}

/* Holes before, between and behind; a run longer than a request; a short last page. */
static void test_sparse(void **state)
{
	static const struct kvd_mover_run runs[] = {{1, 1}, {3, 9}, {20, 2}, {23, 1}};

	round_trip(*state, 23 * PAGE_BYTES + 5, runs, 4, true);
	round_trip(*state, 24 * PAGE_BYTES, runs, 4, false);
	round_trip(*state, 40 * PAGE_BYTES + 1, runs, 4, true);
	round_trip(*state, 40 * PAGE_BYTES + 1, runs, 4, false);
}

static void test_holes_stay_holes(void **state)
{
	static const struct kvd_mover_run runs[] = {{0, 1}, {100, 1}};
	struct rig *rig = *state;
	struct object object;
	struct kvd_mover_job job;
	struct stat st;
	int back = memory_file();

	object_make(rig, &object, "object", 200 * PAGE_BYTES, runs, 2, true);
	job = job_demote(rig, &object, 1);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_int_equal(fstat(object.nvme_fd[0], &st), 0);
	assert_true(st.st_blocks * 512 < 4 * PAGE_BYTES);
	job = job_promote(&object, back, 2);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_int_equal(fstat(back, &st), 0);
	assert_int_equal(st.st_blocks * 512, 2 * PAGE_BYTES);
	close(back);
	object_free(&object);
}

/* Tiers are charged in blocks: a short last page must not hold a whole one, although space is allocated ahead. */
static void test_no_blocks_past_the_end(void **state)
{
	static const struct kvd_mover_run run = {0, 6};
	struct rig *rig = *state;

	for (int direct = 0; direct < 2; direct++) {
		struct object object;
		struct kvd_mover_job job;
		struct stat st;
		int back = memory_file();

		object_make(rig, &object, "object", 5 * PAGE_BYTES + 1, &run, 1, direct);
		job = job_demote(rig, &object, 1);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_int_equal(fstat(object.nvme_fd[0], &st), 0);
		assert_int_equal(st.st_blocks * 512, 5 * PAGE_BYTES + 4096);
		job = job_promote(&object, back, 2);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		assert_int_equal(fstat(back, &st), 0);
		assert_int_equal(st.st_blocks * 512, 5 * PAGE_BYTES + 4096);
		close(back);
		object_free(&object);
	}
}

/* Every place of every lane taken at once, more requests than buffers; each token answers once and rightly. */
static void test_many_at_once(void **state)
{
	static const struct kvd_mover_run runs[] = {{0, 7}, {9, 3}};
	struct rig *rig = *state;
	struct object objects[QUEUE_JOBS];
	int back[QUEUE_JOBS];
	bool seen[3 * QUEUE_JOBS] = {false};
	struct kvd_mover_stats stats;

	for (uint64_t i = 0; i < QUEUE_JOBS; i++) {
		char name[2] = {(char)('a' + i), 0};
		struct kvd_mover_job job;

		object_make(rig, &objects[i], name, 12 * PAGE_BYTES - i, runs, 2, i % 2);
		back[i] = memory_file();
		job = job_demote(rig, &objects[i], i);
		assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	}
	for (uint64_t i = 0; i < QUEUE_JOBS; i++) {
		struct kvd_mover_result result = next_result(rig->mover);

		assert_int_equal(result.status, 0);
		assert_false(seen[result.token]);
		seen[result.token] = true;
	}
	for (uint64_t i = 0; i < QUEUE_JOBS; i++) {
		struct kvd_mover_job promote = job_promote(&objects[i], back[i], QUEUE_JOBS + i);
		struct kvd_mover_job verify = job_verify(&objects[i], 2 * QUEUE_JOBS + i);

		assert_int_equal(kvd_mover_submit(rig->mover, &promote), 0);
		assert_int_equal(kvd_mover_submit(rig->mover, &verify), 0);
	}
	for (uint64_t i = 0; i < 2 * QUEUE_JOBS; i++) {
		struct kvd_mover_result result = next_result(rig->mover);

		assert_int_equal(result.status, 0);
		assert_false(seen[result.token]);
		seen[result.token] = true;
	}
	kvd_mover_stats(rig->mover, &stats);
	for (int kind = 0; kind < KVD_MOVE_KINDS; kind++) {
		assert_int_equal(stats.jobs[kind], QUEUE_JOBS);
		assert_int_equal(stats.bytes[kind], 10 * QUEUE_JOBS * PAGE_BYTES - QUEUE_JOBS * (QUEUE_JOBS - 1) / 2);
		assert_int_equal(stats.failed[kind], 0);
		assert_int_equal(stats.queued[kind], 0);
		assert_true(stats.busy_ns[kind] > 0);
	}
	for (uint64_t i = 0; i < QUEUE_JOBS; i++) {
		assert_file_is(back[i], objects[i].bytes, objects[i].size_bytes);
		close(back[i]);
		object_free(&objects[i]);
	}
}

/* Each way in which a job can make no sense, one at a time. */
static void test_refuses_invalid(void **state)
{
	static const struct kvd_mover_run good = {0, 2}, none = {0, 0}, outside = {2, 1}, over = {1, 2},
					  wraps = {1, UINT64_MAX}, overlap[] = {{0, 1}, {0, 1}};
	struct rig *rig = *state;
	static const struct kvd_mover_part part, no_file = {.fd = -1}, no_device = {.device = DEVICES},
					   twice[] = {{.fd = 0}, {.fd = 1}},
					   apart[] = {{.fd = 0}, {.fd = 1, .device = 1}};
	static _Alignas(struct kvd_stream) uint8_t memory[sizeof(struct kvd_stream)];
	struct kvd_stream *stream = (struct kvd_stream *)(void *)memory; /* of no page */
	uint32_t crc[4];
	const struct kvd_mover_job fine = {
		.kind = KVD_MOVE_VERIFY,
		.page_bytes = PAGE_BYTES,
		.n_parts = 1,
		.parts = &part,
		.size_bytes = 2 * PAGE_BYTES,
		.n_runs = 1,
		.runs = &good,
		.crc = crc,
	};
	struct kvd_mover_job bad[22];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		bad[i] = fine;
	bad[n++].kind = KVD_MOVE_KINDS;
	bad[n++].page_bytes = 0;
	bad[n++].page_bytes = 3 * 4096;
	bad[n++].page_bytes = 2 * IO_BYTES;
	bad[n++].parts = &no_file;
	bad[n++].parts = &no_device;
	bad[n++].parts = NULL;
	bad[n++].n_parts = 0;
	bad[n++].n_parts = KVD_MOVE_PARTS_MAX + 1;
	bad[n].n_parts = 2;
	bad[n].stripe_bytes = PAGE_BYTES;
	bad[n++].parts = twice;
	bad[n].n_parts = 2;
	bad[n++].parts = apart;
	bad[n].n_parts = 2;
	bad[n].stripe_bytes = PAGE_BYTES + 4096;
	bad[n++].parts = apart;
	bad[n++].flags = KVD_MOVE_AHEAD;
	bad[n++].reserved = 1;
	bad[n].kind = KVD_MOVE_PROMOTE;
	bad[n++].ddr_fd = -1;
	bad[n].kind = KVD_MOVE_PROMOTE;
	bad[n++].stream = (uintptr_t)stream;
	bad[n++].crc = NULL;
	bad[n++].runs = &none;
	bad[n++].runs = &outside;
	bad[n++].runs = &over;
	bad[n++].runs = &wraps;
	bad[n].n_runs = 2;
	bad[n++].runs = overlap;
	assert_int_equal(n, sizeof(bad) / sizeof(bad[0]));
	for (size_t i = 0; i < n; i++)
		assert_int_equal(kvd_mover_submit(rig->mover, &bad[i]), -EINVAL);
}

static void test_refuses_bad_config(void **state)
{
	struct kvd_mover_config bad[10];
	size_t n = 0;
	kvd_mover *mover = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		bad[i] = rig_config();
	bad[n++].queue_jobs = 0;
	bad[n++].queue_jobs = 1 << 20;
	bad[n++].queue_depth = KVD_MOVE_DEPTH_MIN - 1;
	bad[n++].queue_depth = 1 << 20;
	bad[n++].io_bytes = 4095;
	bad[n++].io_bytes = 0;
	bad[n++].n_devices = 0;
	bad[n++].n_devices = KVD_MOVE_DEVICES_MAX + 1;
	bad[n++].request_ms = 0;
	bad[n++].reserved = 1;
	assert_int_equal(n, sizeof(bad) / sizeof(bad[0]));
	for (size_t i = 0; i < n; i++)
		assert_int_equal(kvd_mover_init(&bad[i], &mover), -EINVAL);
	assert_null(mover);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sizes, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_more_of_the_same_file, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_empty, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_sparse, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_holes_stay_holes, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_no_blocks_past_the_end, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_many_at_once, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_refuses_invalid, rig_setup, rig_teardown),
		cmocka_unit_test(test_refuses_bad_config),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
