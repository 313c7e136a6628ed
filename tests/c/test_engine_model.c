/*
 * Random commands on the engine and on a model of plain arrays: the same statuses, pages and books. The model numbers the
 * pages it knows 0 to PLACES - 1; they lie in windows over the edges where leaves and levels of the engine's tables meet.
 */
#include <stdlib.h>

#include "test_engine.h"

#define SESSIONS 5u
#define SLOTS 3u
#define WINDOW 150u
#define PLACES (4u * WINDOW)
#define RUNS 4u
#ifdef __SANITIZE_THREAD__
#define COMMANDS 6000u /* there is one thread: nothing to find */
#else
#define COMMANDS 25000u
#endif
#define CHECK_EVERY 997u
#define DDR_FRAMES 700u

static const uint64_t windows[] = {0, 440, (1ull << 18) - 70, (1ull << 46) - 70};

struct place {
	uint32_t tier; /* 0: not mapped */
	uint32_t blocks;
	uint64_t frame;
};

struct model {
	kvd_engine *engine;
	uint64_t random;
	uint64_t handle[SESSIONS]; /* 0: none */
	uint64_t stale;
	int64_t leases[SESSIONS];
	struct place at[SESSIONS][SLOTS][PLACES];
	uint64_t reserved[SESSIONS][KVD_ABI_TIER_COUNT];
	uint64_t capacity[KVD_ABI_TIER_COUNT];
	uint64_t frames[KVD_ABI_TIER_COUNT];
	uint64_t seen[KVD_ABI_STATUS_EXISTS + 1];
};

static uint64_t page_of(uint32_t place)
{
	return windows[place / WINDOW] + place % WINDOW;
}

/* A number below `limit` (splitmix64). */
static uint32_t draw(struct model *model, uint32_t limit)
{
	uint64_t mixed = model->random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((mixed ^ mixed >> 31) >> 32) % limit;
}

static uint32_t draw_tier(struct model *model)
{
	return draw(model, 2) ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME;
}

/* What a tier holds: used blocks, used frames and reserved blocks, counted anew. */
static void count(const struct model *model, uint32_t tier, struct kvd_abi_tier_info *info)
{
	*info = (struct kvd_abi_tier_info){
		.capacity_blocks = model->capacity[tier],
		.total_frames = model->frames[tier],
	};
	for (uint32_t session = 0; session < SESSIONS; session++) {
		info->reserved_blocks += model->reserved[session][tier];
		for (uint32_t i = 0; i < SLOTS * PLACES; i++) {
			const struct place *place = &model->at[session][i / PLACES][i % PLACES];

			info->used_frames += place->tier == tier;
			info->used_blocks += place->tier == tier ? place->blocks : 0;
		}
	}
}

static bool admit(const struct model *model, uint32_t session, uint32_t tier, uint64_t frames, uint64_t blocks,
		  uint16_t flags)
{
	struct kvd_abi_tier_info info;
	uint64_t own = flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK ? model->reserved[session][tier] : 0;
	uint64_t pool = blocks > own ? blocks - own : 0;

	count(model, tier, &info);
	return info.used_frames + frames <= info.total_frames &&
	       (!pool || info.used_blocks + info.reserved_blocks + pool <= info.capacity_blocks);
}

static void charge(struct model *model, uint32_t session, uint32_t tier, uint64_t blocks, uint16_t flags)
{
	uint64_t *own = &model->reserved[session][tier];

	if (flags & KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK)
		*own -= blocks < *own ? blocks : *own;
}

static void expect(struct model *model, struct test_reply reply, uint32_t status, uint64_t result0)
{
	assert_int_equal(reply.status, status);
	assert_int_equal(reply.result0, result0);
	model->seen[status]++;
}

/* Compare a slot, page by page; a frame that the model does not know yet (mapped just now) is learnt. */
static void compare_slot(struct model *model, uint32_t session, uint32_t slot)
{
	static struct kvd_abi_run runs[PLACES];
	struct test_reply reply =
		translate(model->engine, model->handle[session], (uint16_t)slot, 0, KVD_PAGES_MAX, runs, PLACES);
	uint64_t run = 0, into = 0;

	assert_ok(reply);
	for (uint32_t i = 0; i < PLACES; i++) {
		struct place *place = &model->at[session][slot][i];

		if (!place->tier)
			continue;
		assert_true(run < reply.result0);
		assert_int_equal(runs[run].first_page + into, page_of(i));
		assert_int_equal(runs[run].tier, place->tier);
		assert_int_equal(runs[run].blocks, place->blocks);
		if (place->frame == UINT64_MAX)
			place->frame = runs[run].first_frame + into;
		assert_int_equal(runs[run].first_frame + into, place->frame);
		if (++into == runs[run].count) {
			into = 0;
			run++;
		}
	}
	assert_int_equal(run, reply.result0);
}

static void do_create(struct model *model, uint32_t session)
{
	struct test_reply reply = create(model->engine, session * 17);

	if (model->handle[session]) {
		expect(model, reply, KVD_ABI_STATUS_EXISTS, model->handle[session]);
		return;
	}
	expect(model, reply, KVD_ABI_STATUS_OK, reply.result0);
	model->handle[session] = reply.result0;
}

static void do_destroy(struct model *model, uint32_t session)
{
	struct test_reply reply = destroy(model->engine, model->handle[session]);
	uint64_t pages = 0;

	if (model->leases[session]) {
		expect(model, reply, KVD_ABI_STATUS_LEASED, 0);
		return;
	}
	for (uint32_t i = 0; i < SLOTS * PLACES; i++)
		pages += model->at[session][i / PLACES][i % PLACES].tier != 0;
	memset(model->at[session], 0, sizeof(model->at[session]));
	memset(model->reserved[session], 0, sizeof(model->reserved[session]));
	expect(model, reply, KVD_ABI_STATUS_OK, pages);
	model->stale = model->handle[session];
	model->handle[session] = 0;
}

static void do_lease(struct model *model, uint32_t session)
{
	int64_t delta = (int64_t)draw(model, 4) - 2;
	struct test_reply reply = lease(model->engine, model->handle[session], delta);

	if (model->leases[session] + delta < 0) {
		expect(model, reply, KVD_ABI_STATUS_BAD_ARGUMENT, 0);
		return;
	}
	model->leases[session] += delta;
	expect(model, reply, KVD_ABI_STATUS_OK, (uint64_t)model->leases[session]);
}

static void do_reserve(struct model *model, uint32_t session)
{
	uint32_t tier = draw_tier(model);
	uint64_t blocks = draw(model, 3) ? draw(model, 1500) : 0;
	uint64_t own = model->reserved[session][tier];
	struct test_reply reply = reserve(model->engine, model->handle[session], tier, blocks);

	if (blocks > own && !admit(model, session, tier, 0, blocks - own, 0)) {
		expect(model, reply, KVD_ABI_STATUS_NO_SPACE, 0);
		return;
	}
	model->reserved[session][tier] = blocks;
	expect(model, reply, KVD_ABI_STATUS_OK, 0);
}

static void do_map(struct model *model, uint32_t session, uint32_t slot)
{
	static struct place copy[PLACES];
	struct kvd_abi_map_run runs[RUNS];
	struct place *place = model->at[session][slot];
	uint32_t tier = draw_tier(model);
	uint32_t many = 1 + draw(model, RUNS);
	uint16_t flags = draw(model, 2) ? KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK : 0;
	uint64_t pages = 0, blocks = 0;
	bool twice = false;
	struct test_reply reply;

	memcpy(copy, place, sizeof(copy));
	for (uint32_t i = 0; i < many; i++) {
		uint32_t offset = draw(model, WINDOW);
		uint32_t first = draw(model, 4) * WINDOW + offset;
		uint32_t length = 1 + draw(model, draw(model, 4) ? 12 : WINDOW) % (WINDOW - offset);

		runs[i] = (struct kvd_abi_map_run){page_of(first), length, 1 + draw(model, TEST_PAGE_BLOCKS), 0};
		for (uint32_t j = first; j < first + length; j++) {
			twice = twice || copy[j].tier;
			copy[j] = (struct place){tier, runs[i].blocks, UINT64_MAX};
		}
		pages += length;
		blocks += (uint64_t)length * runs[i].blocks;
	}
	reply = map_runs(model->engine, model->handle[session], (uint16_t)slot, tier, runs, many, flags);
	if (!admit(model, session, tier, pages, blocks, flags)) {
		expect(model, reply, KVD_ABI_STATUS_NO_SPACE, 0);
	} else if (twice) {
		expect(model, reply, KVD_ABI_STATUS_ALREADY_MAPPED, 0);
	} else {
		expect(model, reply, KVD_ABI_STATUS_OK, pages);
		charge(model, session, tier, blocks, flags);
		memcpy(place, copy, sizeof(copy));
	}
	compare_slot(model, session, slot);
}

/* Some range of pages, often of one window. */
static void draw_range(struct model *model, uint64_t *first, uint64_t *pages)
{
	*first = draw(model, 8) ? page_of(draw(model, PLACES)) : 0;
	*pages = draw(model, 8) ? 1 + draw(model, 40) : KVD_PAGES_MAX;
}

static bool in_range(uint32_t place, uint64_t first, uint64_t pages)
{
	return page_of(place) >= first && page_of(place) - first < pages;
}

static void do_unmap(struct model *model, uint32_t session, uint32_t slot)
{
	uint64_t first, pages, gone = 0;
	struct test_reply reply;

	draw_range(model, &first, &pages);
	for (uint32_t i = 0; i < PLACES; i++) {
		struct place *place = &model->at[session][slot][i];

		if (!place->tier || !in_range(i, first, pages))
			continue;
		gone++;
		*place = (struct place){0};
	}
	reply = unmap(model->engine, model->handle[session], (uint16_t)slot, first, pages);
	expect(model, reply, KVD_ABI_STATUS_OK, gone);
}

static void do_remap(struct model *model, uint32_t session, uint32_t slot)
{
	static struct place now[2][PLACES];
	struct place *place = model->at[session][slot];
	uint32_t other = (slot + 1 + draw(model, SLOTS - 1)) % SLOTS;
	uint32_t tier = draw_tier(model);
	uint16_t flags = (uint16_t)draw(model, 8);
	bool keep = flags & KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK, take = flags & KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK;
	uint32_t status = model->leases[session] ? KVD_ABI_STATUS_LEASED : KVD_ABI_STATUS_OK;
	uint64_t first, pages, moved = 0, blocks = 0;
	struct test_reply reply;

	memcpy(now[0], place, sizeof(now[0]));
	memcpy(now[1], model->at[session][other], sizeof(now[1]));
	draw_range(model, &first, &pages);
	for (uint32_t i = 0; i < PLACES && !status; i++) {
		struct place old = place[i], side = now[1][i];

		if (!old.tier || old.tier == tier || !in_range(i, first, pages))
			continue;
		if (take && side.tier != tier)
			status = KVD_ABI_STATUS_NOT_MAPPED;
		else if (!take && keep && side.tier)
			status = KVD_ABI_STATUS_ALREADY_MAPPED;
		now[0][i] = take ? side : (struct place){tier, old.blocks, UINT64_MAX};
		if (keep || take)
			now[1][i] = keep ? old : (struct place){0};
		moved++;
		blocks += old.blocks;
	}
	if (!status && !take && !admit(model, session, tier, moved, blocks, flags))
		status = KVD_ABI_STATUS_NO_SPACE;
	reply = remap(model->engine, model->handle[session], (uint16_t)slot, (uint16_t)other, tier, first, pages, flags);
	expect(model, reply, status, status ? 0 : moved);
	if (!status) {
		memcpy(place, now[0], sizeof(now[0]));
		memcpy(model->at[session][other], now[1], sizeof(now[1]));
		if (!take)
			charge(model, session, tier, blocks, flags);
	}
	compare_slot(model, session, slot);
	compare_slot(model, session, other);
}

static void do_resize(struct model *model)
{
	uint32_t tier = draw_tier(model);

	model->capacity[tier] = draw(model, 20000);
	expect(model, resize(model->engine, tier, model->capacity[tier]), KVD_ABI_STATUS_OK, 0);
}

static void compare_books(struct model *model)
{
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier <= KVD_ABI_TIER_NVME; tier += KVD_ABI_TIER_NVME - KVD_ABI_TIER_DDR) {
		struct kvd_abi_tier_info told = tier_info(model->engine, tier);
		struct kvd_abi_tier_info counted;

		count(model, tier, &counted);
		assert_memory_equal(&told, &counted, sizeof(told));
	}
	assert_consistent(model->engine);
}

static void step(struct model *model)
{
	uint32_t session = draw(model, SESSIONS);
	uint32_t slot = draw(model, SLOTS);
	uint32_t choice = draw(model, 100);

	if (!model->handle[session]) {
		expect(model, unmap(model->engine, model->stale, 0, 0, 1), KVD_ABI_STATUS_NO_SESSION, 0);
		do_create(model, session);
	} else if (choice < 40) {
		do_map(model, session, slot);
	} else if (choice < 60) {
		do_unmap(model, session, slot);
	} else if (choice < 80) {
		do_remap(model, session, slot);
	} else if (choice < 88) {
		do_reserve(model, session);
	} else if (choice < 95) {
		do_lease(model, session);
	} else if (choice < 97) {
		do_create(model, session);
	} else if (choice < 98) {
		do_destroy(model, session);
	} else {
		do_resize(model);
	}
}

static void run_seed(uint64_t seed)
{
	struct kvd_engine_config config = test_config;
	struct model *model = calloc(1, sizeof(*model));

	assert_non_null(model);
	config.total_frames[KVD_ABI_TIER_DDR] = DDR_FRAMES;
	model->engine = engine_new(&config);
	model->random = seed;
	for (uint32_t tier = 0; tier < KVD_ABI_TIER_COUNT; tier++)
		model->capacity[tier] = config.capacity_blocks[tier];
	model->frames[KVD_ABI_TIER_DDR] = DDR_FRAMES;
	model->frames[KVD_ABI_TIER_NVME] = TEST_NVME_BLOCKS;
	for (uint32_t i = 0; i < COMMANDS; i++) {
		step(model);
		if (i % CHECK_EVERY == 0)
			compare_books(model);
	}
	compare_books(model);
	/* The run was worth something: each of these ends was met often. */
	assert_true(model->seen[KVD_ABI_STATUS_OK] > COMMANDS / 4);
	assert_true(model->seen[KVD_ABI_STATUS_NO_SESSION] > COMMANDS / 1000);
	assert_true(model->seen[KVD_ABI_STATUS_NO_SPACE] > COMMANDS / 100);
	assert_true(model->seen[KVD_ABI_STATUS_ALREADY_MAPPED] > COMMANDS / 100);
	assert_true(model->seen[KVD_ABI_STATUS_NOT_MAPPED] > COMMANDS / 200);
	assert_true(model->seen[KVD_ABI_STATUS_LEASED] > COMMANDS / 100);
	engine_end(model->engine);
	free(model);
}

static void test_random_commands(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++)
		run_seed(seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_commands),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
