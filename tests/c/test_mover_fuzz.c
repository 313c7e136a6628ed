/* Jobs drawn at random, of which most make no sense: each is refused or runs, and right ones move the right bytes. */
#include "test_mover_util.h"

enum { JOBS = 4000, RUNS_MAX = 6, PAGES_MAX = 40, FILES = 4, PARTS = DEVICES };

static uint64_t fuzz_state;

static uint64_t draw(uint64_t below)
{
	fuzz_state = fuzz_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (fuzz_state >> 33) % below;
}

/* Mostly sensible, sometimes not. */
static uint64_t odd(uint64_t sensible)
{
	static const uint64_t odds[] = {0, 1, 3, 4095, 4096, UINT32_MAX, INT64_MAX, UINT64_MAX};

	return draw(40) ? sensible : odds[draw(sizeof(odds) / sizeof(odds[0]))];
}

static uint64_t draw_runs(struct kvd_mover_run *runs)
{
	uint64_t n = draw(RUNS_MAX + 1), page = 0;

	for (uint64_t i = 0; i < n; i++) {
		page += draw(4);
		runs[i] = (struct kvd_mover_run){odd(page), odd(1 + draw(8))};
		page += runs[i].count;
	}
	return n;
}

static uint64_t pages_end(const struct kvd_mover_run *runs, uint64_t n)
{
	return n ? runs[n - 1].first_page + runs[n - 1].count : 0;
}

/* Descriptors of all kinds; the numbers of nothing, too. */
static int draw_fd(const int *fds, int sensible)
{
	return draw(30) ? sensible : draw(8) ? fds[draw(FILES)] : (int)draw(3) - 2;
}

static void test_any_job(void **state)
{
	struct rig *rig = *state;
	static uint32_t crc[RUNS_MAX * 8 + 8];
	int files[FILES], parts_fd[PARTS], ddr = memory_file(), accepted = 0, good = 0;
	bool buffered = false;
	char name[8] = "part-0";

	for (int i = 0; i < PARTS; i++) {
		name[5] = (char)('0' + i);
		parts_fd[i] = rig_open(rig, name, O_RDWR | O_CREAT, &buffered);
	}
	files[0] = rig->dir_fd;
	files[1] = memory_file();
	files[2] = rig_open(rig, "part-0", O_RDONLY, &buffered);
	files[3] = 1 << 20;
	for (uint64_t token = 0; token < JOBS; token++) {
		struct kvd_mover_run runs[RUNS_MAX];
		struct kvd_mover_part parts[PARTS];
		struct kvd_mover_result result;
		uint64_t n_runs = draw_runs(runs), end = pages_end(runs, n_runs);
		struct kvd_mover_job job = {
			.token = token,
			.kind = (uint32_t)odd(draw(KVD_MOVE_KINDS)),
			.page_bytes = (uint32_t)odd(PAGE_BYTES),
			.ddr_fd = draw_fd(files, ddr),
			.flags = (uint32_t)odd(draw(3)),
			.n_parts = (uint32_t)(draw(40) ? 1 + draw(PARTS) : odd(0) % 4),
			.reserved = (uint32_t)(draw(60) == 0),
			.stripe_bytes = odd(PAGE_BYTES * (1 + draw(4))),
			.size_bytes = end > PAGES_MAX * 2 ? odd(PAGE_BYTES) : end * PAGE_BYTES + draw(2) * draw(PAGE_BYTES),
			.deadline_ms = draw(30) ? DEADLINE_MS : 0,
			.n_runs = n_runs,
			.runs = draw(60) ? runs : NULL,
			.crc = draw(60) ? crc : NULL,
			.parts = draw(60) ? parts : NULL,
		};
		int err;

		if (job.kind == KVD_MOVE_VERIFY && draw(10))
			job.flags = 0;
		for (uint32_t i = 0; i < PARTS; i++)
			parts[i] = (struct kvd_mover_part){
				.fd = draw_fd(files, parts_fd[i]),
				.device = (uint32_t)(draw(40) ? i : odd(draw(4))),
				.dir_fd = draw(10) ? rig->dir_fd : -1,
			};
		err = kvd_mover_submit(rig->mover, &job);
		if (err) {
			assert_int_equal(err, -EINVAL);
			continue;
		}
		accepted++;
		result = next_result(rig->mover);
		assert_int_equal(result.token, token);
		assert_true(result.status <= 0);
		assert_true(result.device >= KVD_MOVE_NO_DEVICE && result.device < DEVICES);
		good += result.status == 0;
	}
	/* Not a test that refuses everything. */
	assert_true(accepted > JOBS / 20);
	assert_true(good > JOBS / 50);
	for (int i = 0; i < PARTS; i++)
		close(parts_fd[i]);
	close(files[1]);
	close(files[2]);
	close(ddr);
}

/* Objects of any shape, several at once, cancelled now and then: what says that it went well did. */
static void test_any_object(void **state)
{
	struct rig *rig = *state;

	for (int round = 0; round < 60; round++) {
		struct kvd_mover_run runs[RUNS_MAX];
		struct kvd_mover_job job;
		struct kvd_mover_result result;
		struct object object;
		uint64_t n_runs = 0, page = 0, size_bytes;
		int back = memory_file();

		for (; n_runs < draw(RUNS_MAX + 1); n_runs++) {
			page += draw(4) + (n_runs > 0);
			runs[n_runs] = (struct kvd_mover_run){page, 1 + draw(9)};
			page += runs[n_runs].count;
		}
		size_bytes = page * PAGE_BYTES - (page ? draw(PAGE_BYTES) : 0) + draw(2) * draw(3) * PAGE_BYTES;
		if (page && size_bytes <= (page - 1) * PAGE_BYTES)
			size_bytes = page * PAGE_BYTES;
		object_make_striped(rig, &object, "object", size_bytes, runs, n_runs, draw(2), (uint32_t)(1 + draw(DEVICES)),
				    PAGE_BYTES * (1 + draw(5)));
		job = job_demote(rig, &object, 1);
		assert_int_equal(run_job(rig->mover, &job).status, 0);
		job = job_promote(&object, back, 2);
		assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
		if (draw(3) == 0)
			(void)kvd_mover_cancel(rig->mover, 2);
		result = next_result(rig->mover);
		if (result.status == 0)
			assert_file_is(back, object.bytes, size_bytes);
		else
			assert_int_equal(result.status, -ECANCELED);
		close(back);
		object_free(&object);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_any_job, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_any_object, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
