/*
 * Random SHARE, UNSHARE, MAP, UNMAP, REMAP and sessions that go, on the engine and on a model of plain arrays.
 *
 * In the model a page has a token that stands for its frame; pages with one token share. What frame a token is, is learnt
 * from the engine and must stay so, and no two tokens may be one frame.
 */
#include <stdlib.h>

#include "test_engine.h"

#define SESSIONS 4u
#define SLOTS 2u
#define PAGES 60u
#define FIRST 490u /* the range lies over the edge of a leaf */
#ifdef __SANITIZE_THREAD__
#define COMMANDS 6000u /* there is one thread: nothing to find */
#else
#define COMMANDS 20000u
#endif
#define CHECK_EVERY 97u
#define TOKENS (SESSIONS * SLOTS * PAGES)
#define DDR_FRAMES 150u

struct page {
	uint32_t token; /* 0: not mapped */
};

struct token {
	uint32_t tier; /* 0: not in use */
	uint32_t blocks;
	uint64_t frame;
	bool known;
};

struct model {
	kvd_engine *engine;
	uint64_t random;
	uint64_t handle[SESSIONS];
	struct page at[SESSIONS][SLOTS][PAGES];
	struct token tokens[TOKENS + 1];
	uint64_t seen[KVD_ABI_STATUS_COUNT];
	uint64_t shared, unshared;
};

static uint32_t draw(struct model *model, uint32_t limit)
{
	uint64_t mixed = model->random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((mixed ^ mixed >> 31) >> 32) % limit;
}

/* Pages that have a token. */
static uint32_t holders(const struct model *model, uint32_t token)
{
	const struct page *all = &model->at[0][0][0];
	uint32_t count = 0;

	for (uint32_t i = 0; i < TOKENS; i++)
		count += all[i].token == token;
	return count;
}

static uint32_t new_token(struct model *model, uint32_t tier, uint32_t blocks)
{
	for (uint32_t i = 1; i <= TOKENS; i++) {
		if (model->tokens[i].tier && holders(model, i))
			continue;
		model->tokens[i] = (struct token){.tier = tier, .blocks = blocks};
		return i;
	}
	fail();
	return 0;
}

/* Frames and blocks of a tier. */
static struct kvd_abi_tier_info counted(const struct model *model, uint32_t tier)
{
	struct kvd_abi_tier_info info = {.capacity_blocks = TEST_NVME_BLOCKS, .total_frames = TEST_NVME_BLOCKS};

	if (tier == KVD_ABI_TIER_DDR) {
		info.capacity_blocks = TEST_DDR_BLOCKS;
		info.total_frames = DDR_FRAMES;
	}
	for (uint32_t i = 1; i <= TOKENS; i++) {
		if (model->tokens[i].tier != tier || !holders(model, i))
			continue;
		info.used_frames++;
		info.used_blocks += model->tokens[i].blocks;
	}
	return info;
}

static void compare(struct model *model)
{
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier <= KVD_ABI_TIER_NVME; tier += KVD_ABI_TIER_NVME - KVD_ABI_TIER_DDR) {
		struct kvd_abi_tier_info told = tier_info(model->engine, tier), wanted = counted(model, tier);

		assert_memory_equal(&told, &wanted, sizeof(told));
	}
	for (uint32_t i = 0; i < SESSIONS * SLOTS * PAGES; i++) {
		uint32_t session = i / (SLOTS * PAGES), slot = i / PAGES % SLOTS;
		uint32_t number = model->at[session][slot][i % PAGES].token;
		struct token *token = &model->tokens[number];
		const union kvd_entry *entry;

		if (!model->handle[session])
			continue;
		entry = kvd_table_find(model->engine, &kvd_session_find(model->engine, model->handle[session])->slots[slot],
				       FIRST + i % PAGES);
		assert_int_equal(entry != NULL, number != 0);
		if (!entry)
			continue;
		assert_int_equal(kvd_pte_tier(entry->pte), token->tier);
		assert_int_equal(kvd_pte_blocks(entry->pte), token->blocks);
		if (!token->known)
			*token = (struct token){token->tier, token->blocks, kvd_pte_frame(entry->pte), true};
		assert_int_equal(kvd_pte_frame(entry->pte), token->frame);
		assert_int_equal(kvd_shares_of(model->engine, entry->pte), holders(model, number));
	}
	/* The check finds two tokens that are one frame: they would have a page too few or too many. */
	assert_consistent(model->engine);
}

static void do_map(struct model *model, uint32_t session, uint32_t slot, uint32_t first, uint32_t count)
{
	struct page *page = model->at[session][slot];
	uint32_t tier = draw(model, 2) ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME;
	uint32_t blocks = 1 + draw(model, TEST_PAGE_BLOCKS);
	struct kvd_abi_tier_info info = counted(model, tier);
	uint32_t wanted = KVD_ABI_STATUS_OK;
	struct test_reply reply = map(model->engine, model->handle[session], (uint16_t)slot, tier, FIRST + first, count, blocks);

	if (info.used_frames + count > info.total_frames || info.used_blocks + count * blocks > info.capacity_blocks)
		wanted = KVD_ABI_STATUS_NO_SPACE;
	for (uint32_t i = first; i < first + count && !wanted; i++)
		wanted = page[i].token ? KVD_ABI_STATUS_ALREADY_MAPPED : KVD_ABI_STATUS_OK;
	assert_int_equal(reply.status, wanted);
	for (uint32_t i = first; i < first + count && !wanted; i++)
		page[i].token = new_token(model, tier, blocks);
	model->seen[wanted]++;
}

static void do_share(struct model *model, uint32_t session, uint32_t slot, uint32_t first, uint32_t count)
{
	uint32_t source = draw(model, SESSIONS), other = draw(model, SLOTS);
	struct page *to = model->at[session][slot], *from = model->at[source][other];
	uint32_t wanted = KVD_ABI_STATUS_OK, pages = 0;
	struct test_reply reply;

	if (!model->handle[source])
		wanted = KVD_ABI_STATUS_NO_SESSION;
	else if (source == session && other == slot)
		wanted = KVD_ABI_STATUS_BAD_ARGUMENT;
	for (uint32_t i = first; i < first + count && !wanted; i++) {
		wanted = to[i].token ? KVD_ABI_STATUS_ALREADY_MAPPED : KVD_ABI_STATUS_OK;
		pages += from[i].token != 0;
	}
	reply = submit_one(model->engine, (struct kvd_abi_cmd){
						  .op = KVD_ABI_OP_SHARE,
						  .session = model->handle[session],
						  .slot = (uint16_t)slot,
						  .other_slot = (uint16_t)other,
						  .key = model->handle[source],
						  .first_page = FIRST + first,
						  .count = count,
					  });
	assert_int_equal(reply.status, wanted);
	assert_int_equal(reply.result0, wanted ? 0 : pages);
	for (uint32_t i = first; i < first + count && !wanted; i++)
		to[i] = from[i];
	model->seen[wanted]++;
	model->shared += wanted ? 0 : pages;
}

static void do_unshare(struct model *model, uint32_t session, uint32_t slot, uint32_t first, uint32_t count)
{
	struct page *page = model->at[session][slot], now[PAGES];
	struct kvd_abi_tier_info info[KVD_ABI_TIER_COUNT];
	struct kvd_abi_copy_run runs[PAGES];
	uint32_t wanted = KVD_ABI_STATUS_OK, pages = 0;
	struct test_reply reply;

	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++)
		info[tier] = counted(model, tier);
	memcpy(now, page, sizeof(now));
	for (uint32_t i = first; i < first + count && !wanted; i++) {
		struct token old = model->tokens[page[i].token];

		/* The tokens that are made here are new to the model, which looks at pages, so they are put there at once. */
		if (!page[i].token || holders(model, page[i].token) == 1)
			continue;
		info[old.tier].used_blocks += old.blocks;
		info[old.tier].used_frames++;
		if (info[old.tier].used_frames > info[old.tier].total_frames ||
		    info[old.tier].used_blocks > info[old.tier].capacity_blocks)
			wanted = KVD_ABI_STATUS_NO_SPACE;
		else
			page[i].token = new_token(model, old.tier, old.blocks);
		pages++;
	}
	reply = submit_one(model->engine, (struct kvd_abi_cmd){
						  .op = KVD_ABI_OP_UNSHARE,
						  .session = model->handle[session],
						  .slot = (uint16_t)slot,
						  .first_page = FIRST + first,
						  .count = count,
						  .buffer = (uintptr_t)runs,
						  .buffer_bytes = sizeof(runs),
					  });
	assert_int_equal(reply.status, wanted);
	if (wanted)
		memcpy(page, now, sizeof(now));
	assert_int_equal(reply.result1, wanted ? 0 : pages);
	model->seen[wanted]++;
	model->unshared += wanted ? 0 : pages;
}

static void do_remap(struct model *model, uint32_t session, uint32_t slot, uint32_t first, uint32_t count)
{
	struct page *page = model->at[session][slot];
	struct kvd_abi_tier_info info = counted(model, KVD_ABI_TIER_DDR);
	uint32_t wanted = KVD_ABI_STATUS_OK;
	struct test_reply reply = remap(model->engine, model->handle[session], (uint16_t)slot, 0, KVD_ABI_TIER_DDR, FIRST + first,
					count, 0);

	for (uint32_t i = first; i < first + count && !wanted; i++) {
		const struct token *token = &model->tokens[page[i].token];

		if (!page[i].token || token->tier == KVD_ABI_TIER_DDR)
			continue;
		wanted = holders(model, page[i].token) > 1 ? KVD_ABI_STATUS_SHARED : KVD_ABI_STATUS_OK;
		info.used_frames++;
		info.used_blocks += token->blocks;
	}
	if (!wanted && (info.used_frames > info.total_frames || info.used_blocks > info.capacity_blocks) &&
	    info.used_frames > counted(model, KVD_ABI_TIER_DDR).used_frames)
		wanted = KVD_ABI_STATUS_NO_SPACE;
	assert_int_equal(reply.status, wanted);
	for (uint32_t i = first; i < first + count && !wanted; i++) {
		uint32_t token = page[i].token;

		if (token && model->tokens[token].tier != KVD_ABI_TIER_DDR)
			page[i].token = new_token(model, KVD_ABI_TIER_DDR, model->tokens[token].blocks);
	}
	model->seen[wanted]++;
}

static void step(struct model *model)
{
	uint32_t session = draw(model, SESSIONS), slot = draw(model, SLOTS);
	uint32_t first = draw(model, PAGES), count = 1 + draw(model, draw(model, 3) ? 8 : PAGES) % (PAGES - first);
	uint32_t choice = draw(model, 100);

	if (!model->handle[session]) {
		model->handle[session] = session_new(model->engine, session);
	} else if (choice < 30) {
		do_map(model, session, slot, first, count);
	} else if (choice < 60) {
		do_share(model, session, slot, first, count);
	} else if (choice < 75) {
		do_unshare(model, session, slot, first, count);
	} else if (choice < 83) {
		do_remap(model, session, slot, first, count);
	} else if (choice < 98) {
		assert_ok(unmap(model->engine, model->handle[session], (uint16_t)slot, FIRST + first, count));
		memset(&model->at[session][slot][first], 0, count * sizeof(struct page));
	} else {
		assert_ok(destroy(model->engine, model->handle[session]));
		memset(model->at[session], 0, sizeof(model->at[session]));
		model->handle[session] = 0;
	}
}

static void test_random_sharing(void **state)
{
	struct kvd_engine_config config = test_config;
	struct model *model = calloc(1, sizeof(*model));

	(void)state;
	assert_non_null(model);
	config.total_frames[KVD_ABI_TIER_DDR] = DDR_FRAMES;
	model->engine = engine_new(&config);
	model->random = 3;
	for (uint32_t i = 0; i < COMMANDS; i++) {
		step(model);
		if (i % CHECK_EVERY == 0)
			compare(model);
	}
	compare(model);
	assert_true(model->shared > COMMANDS / 10 && model->unshared > COMMANDS / 50);
	assert_true(model->seen[KVD_ABI_STATUS_SHARED] && model->seen[KVD_ABI_STATUS_NO_SPACE]);
	assert_true(model->seen[KVD_ABI_STATUS_ALREADY_MAPPED] && model->seen[KVD_ABI_STATUS_NO_SESSION]);
	engine_end(model->engine);
	free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_sharing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
