/*
 * Random maps, unmaps, uses and whole scans in random steps, on the engine and on plain arrays: each page is reported once,
 * with the age that the arrays say, or not at all where they say so.
 */
#include <stdlib.h>

#include "engine/age.h"
#include "test_engine_ops.h"

#define SESSIONS 3u
#define SLOTS 2u
#define PAGES 700u
#define STEPS 6000u
#define RUNS_MAX 64u
#define BASE (1ull << 30) /* of every other slot: tables of two heights */

struct page {
	uint32_t tier; /* 0: not mapped */
	uint64_t generation;
	bool used;
	uint32_t reported; /* age and one, in this scan */
};

struct model {
	kvd_engine *engine;
	uint64_t random;
	uint64_t generation;
	uint64_t handle[SESSIONS];
	struct page at[SESSIONS][SLOTS][PAGES];
	uint64_t reports, held;
};

struct scan_buffer {
	struct kvd_abi_age_cursor cursor;
	struct kvd_abi_cold_run runs[RUNS_MAX];
};

static uint32_t draw(struct model *model, uint32_t limit)
{
	uint64_t mixed = model->random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((mixed ^ mixed >> 31) >> 32) % limit;
}

static uint64_t base_of(uint32_t slot)
{
	return slot ? BASE : 0;
}

static void do_map(struct model *model, uint32_t session, uint32_t slot)
{
	uint32_t first = draw(model, PAGES), count = 1 + draw(model, PAGES - first);
	uint32_t tier = draw(model, 2) ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME;
	struct page *pages = model->at[session][slot];

	for (uint32_t i = first; i < first + count; i++) {
		if (pages[i].tier)
			return;
	}
	assert_ok(map(model->engine, model->handle[session], (uint16_t)slot, tier, base_of(slot) + first, count, 1));
	for (uint32_t i = first; i < first + count; i++)
		pages[i] = (struct page){.tier = tier, .generation = model->generation};
}

static void do_unmap(struct model *model, uint32_t session, uint32_t slot)
{
	uint32_t first = draw(model, PAGES), count = 1 + draw(model, PAGES - first);

	assert_ok(unmap(model->engine, model->handle[session], (uint16_t)slot, base_of(slot) + first, count));
	memset(&model->at[session][slot][first], 0, count * sizeof(struct page));
}

static void do_use(struct model *model, uint32_t session, uint32_t slot)
{
	uint32_t first = draw(model, PAGES), count = 1 + draw(model, draw(model, 2) ? 5 : PAGES) % (PAGES - first);
	uint64_t pages = 0;

	for (uint32_t i = first; i < first + count; i++) {
		struct page *page = &model->at[session][slot][i];

		page->used = page->tier != 0;
		pages += page->used;
	}
	assert_int_equal(
		touch(model->engine, model->handle[session], (uint16_t)slot, base_of(slot) + first, count, 0).result0,
		pages);
}

static void do_renew(struct model *model, uint32_t session)
{
	assert_ok(destroy(model->engine, model->handle[session]));
	memset(model->at[session], 0, sizeof(model->at[session]));
	model->handle[session] = session_new(model->engine, session);
}

static void take_run(struct model *model, const struct kvd_abi_cold_run *run)
{
	uint32_t session = 0;

	while (session < SESSIONS && model->handle[session] != run->session)
		session++;
	assert_true(session < SESSIONS);
	assert_true(run->slot < SLOTS);
	for (uint64_t i = 0; i < run->count; i++) {
		uint64_t number = run->first_page + i - base_of(run->slot);
		struct page *page = &model->at[session][run->slot][number];
		uint64_t pte = pte_of(model->engine, run->session, run->slot, run->first_page + i);

		assert_true(number < PAGES);
		assert_int_equal(page->reported, 0);
		assert_int_equal(page->tier, run->tier);
		assert_int_equal(kvd_pte_frame(pte), run->first_frame + i);
		assert_int_equal(pte & KVD_ABI_PTE_ACCESSED_MASK, 0);
		page->reported = run->age + 1u;
		model->reports++;
		model->held += run->age == KVD_AGE_MAX;
	}
}

static void scan_whole(struct model *model, uint32_t tier, uint32_t least, bool advance)
{
	static struct scan_buffer buffer;
	struct kvd_abi_cmd cmd = {
		.op = KVD_ABI_OP_AGE_SCAN,
		.flags = advance ? KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK : 0,
		.slot = (uint16_t)least,
		.tier = tier,
		.buffer = (uintptr_t)&buffer,
	};

	memset(&buffer.cursor, 0, sizeof(buffer.cursor));
	while (!buffer.cursor.done) {
		struct ops_reply reply;

		cmd.count = draw(model, 2) ? 1 + draw(model, 900) : UINT64_MAX;
		cmd.buffer_bytes = sizeof(buffer.cursor) + (1 + draw(model, RUNS_MAX)) * sizeof(buffer.runs[0]);
		reply = submit_two(model->engine, cmd);
		assert_ok(reply);
		assert_true(reply.result1 <= cmd.count);
		for (uint64_t i = 0; i < reply.result0; i++)
			take_run(model, &buffer.runs[i]);
		cmd.flags = 0;
	}
	model->generation += advance;
}

static void do_scan(struct model *model)
{
	static const uint32_t tiers[] = {KVD_ABI_TIER_NONE, KVD_ABI_TIER_DDR, KVD_ABI_TIER_NVME};
	uint32_t tier = tiers[draw(model, 3)];
	uint32_t least = draw(model, 3) ? draw(model, 6) : draw(model, KVD_AGE_MAX + 1);

	scan_whole(model, tier, least, draw(model, 4));
	for (uint32_t i = 0; i < SESSIONS * SLOTS * PAGES; i++) {
		struct page *page = &model->at[i / SLOTS / PAGES][i / PAGES % SLOTS][i % PAGES];
		uint64_t age;

		if (page->used)
			page->generation = model->generation;
		page->used = false;
		age = model->generation - page->generation < KVD_AGE_MAX ? model->generation - page->generation : KVD_AGE_MAX;
		if (page->tier && age >= least && (!tier || tier == page->tier))
			assert_int_equal(page->reported, age + 1);
		else
			assert_int_equal(page->reported, 0);
		page->reported = 0;
	}
}

static void test_random_ages(void **state)
{
	struct model *model = calloc(1, sizeof(*model));

	(void)state;
	assert_non_null(model);
	model->engine = engine_new(&test_config);
	for (uint32_t i = 0; i < SESSIONS; i++)
		model->handle[i] = session_new(model->engine, i);
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t session = draw(model, SESSIONS), slot = draw(model, SLOTS), choice = draw(model, 1000);

		if (choice < 200)
			do_map(model, session, slot);
		else if (choice < 250)
			do_unmap(model, session, slot);
		else if (choice < 500)
			do_use(model, session, slot);
		else if (choice < 502)
			do_renew(model, session);
		else
			do_scan(model);
	}
	assert_true(model->reports > STEPS);
	/* Generations went round several times, and some pages were held at the most. */
	assert_true(model->generation > 4 * KVD_AGE_GENERATIONS);
	assert_true(model->held > 0);
	engine_end(model->engine);
	free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_ages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
