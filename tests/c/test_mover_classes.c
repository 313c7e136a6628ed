/* Whose turn it is: the rule alone, and what comes of it on a device that does not answer the others. */
#include "test_mover_util.h"

#include <poll.h>

#include "mover/lane.h"

enum { DEPTH_MAX = 64, DRAWS = 200000, PATIENCE_MS = 60000 };

static uint32_t total(const uint32_t in_flight[KVD_LANE_CLASSES])
{
	uint32_t sum = 0;

	for (uint32_t class = 0; class < KVD_LANE_CLASSES; class++)
		sum += in_flight[class];
	return sum;
}

/* Buffers that come free one by one, until nobody may have the next. */
static void fill(uint32_t in_flight[KVD_LANE_CLASSES], const bool ready[KVD_LANE_CLASSES], uint32_t depth)
{
	while (total(in_flight) < depth) {
		uint32_t class = kvd_lane_next_class(in_flight, ready, depth);

		if (class == KVD_LANE_CLASSES)
			return;
		assert_true(ready[class]);
		in_flight[class]++;
	}
}

static void test_all_at_once(void **state)
{
	static const bool all[KVD_LANE_CLASSES] = {true, true, true, true};

	(void)state;
	for (uint32_t depth = KVD_MOVE_DEPTH_MIN; depth <= DEPTH_MAX; depth++) {
		uint32_t in_flight[KVD_LANE_CLASSES] = {0};

		fill(in_flight, all, depth);
		assert_int_equal(total(in_flight), depth);
		assert_int_equal(in_flight[KVD_LANE_DEMOTE], depth / 4);
		assert_int_equal(in_flight[KVD_LANE_AHEAD], 1);
		assert_int_equal(in_flight[KVD_LANE_VERIFY], 1);
	}
}

static void test_one_alone(void **state)
{
	(void)state;
	for (uint32_t depth = KVD_MOVE_DEPTH_MIN; depth <= DEPTH_MAX; depth++) {
		const uint32_t expected[KVD_LANE_CLASSES] = {depth, depth - depth / 4, depth / 2, 2};

		for (uint32_t class = 0; class < KVD_LANE_CLASSES; class++) {
			uint32_t in_flight[KVD_LANE_CLASSES] = {0};
			bool ready[KVD_LANE_CLASSES] = {false};

			ready[class] = true;
			fill(in_flight, ready, depth);
			assert_int_equal(in_flight[class], expected[class]);
			/* What is left is there for a promotion that comes now. */
			if (class != KVD_LANE_PROMOTE)
				assert_true(total(in_flight) < depth);
		}
	}
}

/* A long life with everybody always ready: nobody starves, and the order shows in the shares. */
static void test_nobody_starves(void **state)
{
	static const bool all[KVD_LANE_CLASSES] = {true, true, true, true};
	uint32_t in_flight[KVD_LANE_CLASSES] = {0}, served[KVD_LANE_CLASSES] = {0};
	unsigned int seed = 7;
	const uint32_t depth = 16;

	(void)state;
	for (uint32_t i = 0; i < DRAWS; i++) {
		uint32_t class = 0, which;

		fill(in_flight, all, depth);
		seed = seed * 1664525u + 1013904223u;
		for (which = (seed >> 8) % depth; which >= in_flight[class]; class++)
			which -= in_flight[class];
		in_flight[class]--;
		served[class]++;
	}
	/* By their shares: 10, 1, 4 and 1 of 16. */
	for (uint32_t class = 0; class < KVD_LANE_CLASSES; class++)
		assert_true(served[class] > DRAWS / 20);
	assert_true(served[KVD_LANE_DEMOTE] > 3 * served[KVD_LANE_VERIFY]);
	assert_true(served[KVD_LANE_PROMOTE] > 2 * served[KVD_LANE_DEMOTE]);
}

/* A job that reads from a pipe in which nothing is. */
static struct kvd_mover_job blocked_job(struct kvd_mover_part *part, int fd, uint64_t token, uint32_t *crc)
{
	static const struct kvd_mover_run run = {0, 64};

	*part = part_of(fd, false);
	return (struct kvd_mover_job){
		.token = token,
		.kind = KVD_MOVE_VERIFY,
		.page_bytes = PAGE_BYTES,
		.ddr_fd = -1,
		.n_parts = 1,
		.parts = part,
		.size_bytes = 64 * PAGE_BYTES,
		.deadline_ms = DEADLINE_MS,
		.n_runs = 1,
		.runs = &run,
		.crc = crc,
	};
}

static void await_in_flight(struct rig *rig, uint32_t count)
{
	struct kvd_mover_device stats = {.in_flight = UINT32_MAX};

	for (uint32_t waited_ms = 0; stats.in_flight != count; waited_ms++) {
		assert_true(waited_ms < PATIENCE_MS);
		assert_int_equal(kvd_mover_device_stats(rig->mover, 0, &stats), 0);
		(void)poll(NULL, 0, 1);
	}
	assert_int_equal(stats.queue_depth, QUEUE_DEPTH);
	assert_int_equal(stats.given_up, 0);
	assert_true(count == 0 || stats.oldest_ns > 0);
	assert_int_equal(kvd_mover_device_stats(rig->mover, DEVICES, &stats), -EINVAL);
}

/* What is low in the order, and does not come back, leaves room for what is higher. */
static void test_low_classes_leave_room(void **state)
{
	static const struct kvd_mover_run whole = {0, 40};
	struct rig *rig = *state;
	struct kvd_mover_part part;
	struct kvd_mover_job job;
	struct kvd_mover_result result;
	struct object object;
	uint32_t crc[64] = {0};
	int ends[2], ddr = memory_file(), back = memory_file();

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	/* Two verifications at most, although it has 16 requests and nobody else wants any. */
	job = blocked_job(&part, ends[0], 1, crc);
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	await_in_flight(rig, 2);
	/* What is read ahead leaves one. */
	job = blocked_job(&part, ends[0], 2, crc);
	job.kind = KVD_MOVE_PROMOTE;
	job.flags = KVD_MOVE_AHEAD;
	job.ddr_fd = ddr;
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	await_in_flight(rig, 3);
	/* And through that one go a demotion and a promotion. */
	object_make(rig, &object, "object", 40 * PAGE_BYTES, &whole, 1, true);
	job = job_demote(rig, &object, 3);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job = job_promote(&object, back, 4);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_file_is(back, object.bytes, object.size_bytes);
	for (uint64_t token = 1; token <= 2; token++) {
		assert_int_equal(kvd_mover_cancel(rig->mover, token), 0);
		result = next_result(rig->mover);
		assert_int_equal(result.token, token);
		assert_int_equal(result.status, -ECANCELED);
	}
	await_in_flight(rig, 0);
	object_free(&object);
	close(ends[0]);
	close(ends[1]);
	close(ddr);
	close(back);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_once),
		cmocka_unit_test(test_one_alone),
		cmocka_unit_test(test_nobody_starves),
		cmocka_unit_test_setup_teardown(test_low_classes_leave_room, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
