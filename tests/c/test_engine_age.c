/* AGE_SCAN: ages, runs, cursors, and the inner loops of each CPU against the plain ones. */
#include <stdlib.h>

#include "engine/age.h"
#include "test_engine_ops.h"

#define RUNS 64u
#define ALL UINT64_MAX

struct scan_buffer {
	struct kvd_abi_age_cursor cursor;
	struct kvd_abi_cold_run runs[RUNS];
};

static struct kvd_abi_cmd scan_cmd(struct scan_buffer *buffer, uint32_t tier, uint16_t least, uint64_t count,
				   uint64_t room, uint16_t flags)
{
	return (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_AGE_SCAN,
		.flags = flags,
		.slot = least,
		.tier = tier,
		.count = count,
		.buffer = (uintptr_t)buffer,
		.buffer_bytes = sizeof(buffer->cursor) + room * sizeof(buffer->runs[0]),
	};
}

static struct ops_reply scan(kvd_engine *engine, struct scan_buffer *buffer, uint32_t tier, uint16_t least,
			     uint64_t count, uint64_t room, uint16_t flags)
{
	return submit_two(engine, scan_cmd(buffer, tier, least, count, room, flags));
}

/* A whole scan at once that begins a new generation; the number of runs. */
static uint64_t tick(kvd_engine *engine, struct scan_buffer *buffer, uint16_t least)
{
	struct ops_reply reply;

	memset(buffer, 0, sizeof(*buffer));
	reply = scan(engine, buffer, KVD_ABI_TIER_NONE, least, ALL, RUNS, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK);
	assert_ok(reply);
	assert_int_equal(buffer->cursor.done, 1);
	return reply.result0;
}

static uint64_t draw(void)
{
	static uint64_t at = 88172645463325252ull;

	at ^= at << 13;
	at ^= at >> 7;
	at ^= at << 17;
	return at;
}

/* An entry of the kinds that a leaf holds, mostly like the one before. */
static uint64_t some_entry(uint64_t before)
{
	switch (draw() % 12) {
	case 0:
		return 0;
	case 1:
		return draw();
	case 2:
		return before ^ 1ull << draw() % 24;
	default:
		return before + KVD_AGE_FRAME_STEP;
	}
}

static void test_kernels_agree(void **state)
{
	const struct kvd_age_kernels *usable[KVD_AGE_KERNELS_MAX];
	size_t kernels = kvd_age_usable(usable);
	union kvd_entry entries[64];

	(void)state;
	print_message("%zu implementations, the fastest: %s\n", kernels, usable[0]->name);
	for (uint32_t round = 0; round < 20000; round++) {
		uint32_t from = (uint32_t)draw() % 8, count = (uint32_t)draw() % (64 - from + 1);
		struct kvd_age_look look = {.present = draw() % KVD_AGE_GENERATIONS, .least = draw() % (KVD_AGE_MAX + 1)};
		uint64_t pte = kvd_pte_make(1 + draw() % 4, 1, draw() % (1u << 20)) |
			       (look.present - draw() % 3) % KVD_AGE_GENERATIONS << KVD_ABI_PTE_GENERATION_SHIFT;
		union kvd_entry *at = entries + from;

		if (draw() % 2) {
			look.tier_mask = KVD_ABI_PTE_TIER_MASK;
			look.tier_bits = draw() % KVD_ABI_TIER_COUNT << KVD_ABI_PTE_TIER_SHIFT;
		}
		if (draw() % 2)
			look.least = KVD_AGE_MAX;
		entries[0].pte = pte;
		for (uint32_t i = 1; i < 64; i++)
			entries[i].pte = draw() % 4 ? entries[i - 1].pte + KVD_AGE_FRAME_STEP : some_entry(entries[i - 1].pte);
		for (size_t i = 0; i < kernels; i++) {
			assert_int_equal(usable[i]->quiet(at, count, &look), kvd_age_scalar.quiet(at, count, &look));
			assert_int_equal(usable[i]->alike(at, count, at->pte), kvd_age_scalar.alike(at, count, at->pte));
		}
	}
}

static void test_ages_grow(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer;
	struct kvd_abi_run run;

	(void)state;
	assert_ok(map(engine, session, 3, KVD_ABI_TIER_DDR, 500, 40, 1));
	run = one_run(engine, session, 3, 0, KVD_PAGES_MAX);
	for (uint32_t age = 1; age <= 5; age++) {
		assert_int_equal(tick(engine, &buffer, 1), 1);
		assert_int_equal(buffer.runs[0].session, session);
		assert_int_equal(buffer.runs[0].slot, 3);
		assert_int_equal(buffer.runs[0].first_page, 500);
		assert_int_equal(buffer.runs[0].count, 40);
		assert_int_equal(buffer.runs[0].first_frame, run.first_frame);
		assert_int_equal(buffer.runs[0].tier, KVD_ABI_TIER_DDR);
		assert_int_equal(buffer.runs[0].age, age);
		assert_int_equal(buffer.cursor.generation, age);
	}
	/* What is used is young again, and parts the run. */
	assert_ok(touch(engine, session, 3, 510, 2, 0));
	assert_int_equal(tick(engine, &buffer, 0), 3);
	assert_int_equal(buffer.runs[0].count, 10);
	assert_int_equal(buffer.runs[0].age, 6);
	assert_int_equal(buffer.runs[1].first_page, 510);
	assert_int_equal(buffer.runs[1].count, 2);
	assert_int_equal(buffer.runs[1].age, 0);
	assert_int_equal(buffer.runs[2].first_page, 512);
	assert_int_equal(buffer.runs[2].count, 28);
	assert_int_equal(pte_of(engine, session, 3, 510) & KVD_ABI_PTE_ACCESSED_MASK, 0);
	assert_int_equal(tick(engine, &buffer, 2), 2);
	/* Pages that are mapped now are of this generation. */
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 0, 3, 1));
	assert_int_equal(tick(engine, &buffer, 8), 2);
	assert_int_equal(tick(engine, &buffer, 2), 4);
	assert_int_equal(buffer.runs[0].tier, KVD_ABI_TIER_NVME);
	assert_int_equal(buffer.runs[0].age, 2);
	engine_end(engine);
}

static void test_tier_filter_ages_all(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer = {0};

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 5, 1));
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_NVME, 5, 5, 1));
	tick(engine, &buffer, 1);
	assert_ok(touch(engine, session, 0, 0, 10, 0));
	memset(&buffer, 0, sizeof(buffer));
	assert_int_equal(scan(engine, &buffer, KVD_ABI_TIER_NVME, 0, ALL, RUNS, 0).result0, 1);
	assert_int_equal(buffer.runs[0].first_page, 5);
	assert_int_equal(buffer.runs[0].age, 0);
	assert_int_equal(pte_of(engine, session, 0, 0) & KVD_ABI_PTE_ACCESSED_MASK, 0);
	engine_end(engine);
}

/* However long nobody uses a page, its age does not begin anew. */
static void test_held_at_the_most(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer;

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 100, 1));
	for (uint32_t i = 1; i < 700; i++) {
		assert_int_equal(tick(engine, &buffer, 0), 1);
		assert_int_equal(buffer.runs[0].age, i < KVD_AGE_MAX ? i : KVD_AGE_MAX);
		assert_int_equal(buffer.runs[0].count, 100);
	}
	engine_end(engine);
}

/* Scans that never come to their end hold the generations back, so that no distance wraps. */
static void test_generations_wait_for_a_whole_scan(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer = {0};

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 10, 1));
	for (uint32_t i = 0; i < 127; i++)
		tick(engine, &buffer, 127);
	for (uint32_t i = 1; i < 1000; i++) {
		memset(&buffer, 0, sizeof(buffer));
		assert_ok(scan(engine, &buffer, 0, 0, 1, 1, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK));
		assert_int_equal(buffer.cursor.done, 0);
		assert_int_equal(buffer.cursor.generation, i < 127 ? 127 + i : 254);
	}
	/* Nine pages were not looked at for 127 generations, and were as old before. */
	memset(&buffer, 0, sizeof(buffer));
	assert_int_equal(scan(engine, &buffer, 0, 0, ALL, RUNS, 0).result0, 1);
	assert_int_equal(buffer.runs[0].count, 10);
	assert_int_equal(buffer.runs[0].age, KVD_AGE_MAX);
	assert_int_equal(buffer.cursor.done, 1);
	assert_int_equal(tick(engine, &buffer, 0), 1);
	assert_int_equal(buffer.cursor.generation, 255);
	engine_end(engine);
}

/* Who died in a scan had begun a generation that the head does not know of. */
static void test_entry_of_a_scan_that_died(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer = {0};

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 1, 1));
	pte_set(engine, session, 0, 0, 1ull << KVD_ABI_PTE_GENERATION_SHIFT);
	assert_int_equal(scan(engine, &buffer, 0, 0, ALL, RUNS, 0).result0, 1);
	assert_int_equal(buffer.runs[0].age, 0);
	assert_int_equal(tick(engine, &buffer, 0), 1);
	assert_int_equal(buffer.runs[0].age, 0);
	assert_int_equal(tick(engine, &buffer, 0), 1);
	assert_int_equal(buffer.runs[0].age, 1);
	engine_end(engine);
}

/* One entry and one run at a time come to the same as all at once, and each call gets on. */
static void test_in_the_smallest_steps(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t first = session_new(engine, 1), second;
	struct scan_buffer buffer = {0};
	uint64_t pages = 0, calls = 0;

	(void)state;
	second = session_new(engine, 2);
	assert_ok(map(engine, first, 1, KVD_ABI_TIER_DDR, 60, 3, 1));
	assert_ok(map(engine, first, 7, KVD_ABI_TIER_DDR, 1ull << 46, 2, 1));
	assert_ok(map(engine, second, 0, KVD_ABI_TIER_NVME, KVD_PAGES_MAX - 2, 2, 1));
	assert_ok(scan(engine, &buffer, 0, 127, 0, 1, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK));
	while (!buffer.cursor.done) {
		struct ops_reply reply = scan(engine, &buffer, 0, 1, 1, 1, 0);

		assert_ok(reply);
		assert_true(reply.result1 <= 1);
		assert_true(reply.result1 == 1 || buffer.cursor.done);
		for (uint64_t i = 0; i < reply.result0; i++)
			pages += buffer.runs[i].count;
		assert_true(++calls < 20000);
	}
	assert_int_equal(pages, 7);
	assert_status(scan(engine, &buffer, 0, 1, 1, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	engine_end(engine);
}

/* Without room for a further run the scan stops before it, however much it may look at. */
static void test_stops_when_the_room_is_used(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer;

	(void)state;
	for (uint64_t i = 0; i < 5; i++)
		assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, i * 1000, 10, 1));
	memset(&buffer, 0, sizeof(buffer));
	for (uint64_t i = 0; i < 5; i++) {
		assert_int_equal(scan(engine, &buffer, 0, 0, ALL, 1, 0).result0, 1);
		assert_int_equal(buffer.runs[0].first_page, i * 1000);
		assert_int_equal(buffer.runs[0].count, 10);
		assert_int_equal(buffer.cursor.done, i == 4);
	}
	engine_end(engine);
}

static void test_sessions_come_and_go_between(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session[4];
	struct scan_buffer buffer = {0};

	(void)state;
	for (uint64_t i = 0; i < 4; i++) {
		session[i] = session_new(engine, i);
		assert_ok(map(engine, session[i], 0, KVD_ABI_TIER_DDR, 0, 10, 1));
	}
	/* Stops in the second session, which goes; the fourth goes too, and somebody else gets its context. */
	assert_int_equal(scan(engine, &buffer, 0, 0, 20, RUNS, 0).result0, 2);
	assert_int_equal(buffer.cursor.session, 1);
	assert_ok(destroy(engine, session[1]));
	assert_ok(destroy(engine, session[3]));
	session[3] = session_new(engine, 9);
	assert_ok(map(engine, session[3], 2, KVD_ABI_TIER_NVME, 7, 1, 1));
	assert_ok(unmap(engine, session[2], 0, 0, 9));
	assert_int_equal(scan(engine, &buffer, 0, 0, ALL, RUNS, 0).result0, 2);
	assert_int_equal(buffer.runs[0].session, session[2]);
	assert_int_equal(buffer.runs[0].first_page, 9);
	assert_int_equal(buffer.runs[0].count, 1);
	assert_int_equal(buffer.runs[1].session, session[3]);
	assert_int_equal(buffer.runs[1].first_page, 7);
	assert_int_equal(buffer.cursor.done, 1);
	engine_end(engine);
}

static void test_refusals_and_hostile_cursors(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct scan_buffer buffer = {0};
	struct kvd_abi_cmd cmd = scan_cmd(&buffer, 0, 0, ALL, RUNS, 0);
	const uint64_t numbers[] = {1, 7, 8, 511, 512, 1ull << 31, KVD_PAGES_MAX - 1, KVD_PAGES_MAX, 1ull << 63, ALL};
	const size_t many = sizeof(numbers) / sizeof(numbers[0]);

	(void)state;
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, 10, 1));
	assert_status(scan(engine, &buffer, 0, 128, 1, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(scan(engine, &buffer, KVD_ABI_TIER_CARD, 0, 1, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(scan(engine, &buffer, KVD_ABI_TIER_COUNT, 0, 1, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(scan(engine, &buffer, 0, 0, 1, 1, KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(scan(engine, &buffer, 0, 0, 1, 0, 0), KVD_ABI_STATUS_BUFFER_SMALL);
	assert_int_equal(scan(engine, &buffer, 0, 0, 1, 0, 0).result0, 1);
	cmd.buffer_bytes = 8;
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BUFFER_SMALL);
	cmd.buffer = 0;
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	buffer.cursor.page = 1;
	assert_status(scan(engine, &buffer, 0, 0, 1, 1, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK), KVD_ABI_STATUS_BAD_ARGUMENT);
	buffer.cursor = (struct kvd_abi_age_cursor){.done = 2};
	assert_status(scan(engine, &buffer, 0, 0, 1, 1, 0), KVD_ABI_STATUS_BAD_ARGUMENT);
	for (size_t i = 0; i < many * many * many; i++) {
		buffer.cursor = (struct kvd_abi_age_cursor){
			.session = numbers[i % many] - 1,
			.page = numbers[i / many % many],
			.slot = (uint32_t)numbers[i / many / many],
			.generation = numbers[(i * 7) % many],
		};
		assert_ok(scan(engine, &buffer, 0, 0, ALL, RUNS, 0));
		assert_int_equal(buffer.cursor.done, 1);
	}
	assert_int_equal(engine->head->age, 0);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kernels_agree),
		cmocka_unit_test(test_ages_grow),
		cmocka_unit_test(test_tier_filter_ages_all),
		cmocka_unit_test(test_held_at_the_most),
		cmocka_unit_test(test_generations_wait_for_a_whole_scan),
		cmocka_unit_test(test_entry_of_a_scan_that_died),
		cmocka_unit_test(test_in_the_smallest_steps),
		cmocka_unit_test(test_stops_when_the_room_is_used),
		cmocka_unit_test(test_sessions_come_and_go_between),
		cmocka_unit_test(test_refusals_and_hostile_cursors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
