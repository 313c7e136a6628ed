/* Recovery from damage: what derived words say does not matter, what contradicts itself is cut out and named. */
#include <errno.h>
#include <stdlib.h>

#include "test_engine.h"

#define DDR KVD_ABI_TIER_DDR
#define NVME KVD_ABI_TIER_NVME
#define LOSSES_MAX 16u
#define TEXT_BYTES 4096u
#define FUZZ_ROUNDS 400u
#define FUZZ_WORDS 12u

struct damaged {
	kvd_engine *engine;
	uint64_t a, b;
	struct kvd_session *session; /* of a */
	struct kvd_engine_loss losses[LOSSES_MAX];
	char text[TEXT_BYTES];
	struct kvd_engine_recovery result;
};

static void setup(struct damaged *at)
{
	*at = (struct damaged){.engine = engine_new(&test_config)};
	at->a = session_new(at->engine, 7);
	at->b = session_new(at->engine, 8);
	at->session = kvd_session_find(at->engine, at->a);
	assert_ok(map(at->engine, at->a, 0, DDR, 0, 600, 2));
	assert_ok(map(at->engine, at->a, 1, NVME, 1ull << 46, 3, 1));
	assert_ok(map(at->engine, at->b, 0, DDR, 0, 100, 2));
	assert_ok(submit_one(at->engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SHARE,
							      .session = at->b,
							      .slot = 3,
							      .other_slot = 1,
							      .key = at->a,
							      .count = KVD_PAGES_MAX}));
	assert_ok(reserve(at->engine, at->a, NVME, 5));
}

static void recover(struct damaged *at)
{
	at->result = (struct kvd_engine_recovery){
		.losses = at->losses, .losses_max = LOSSES_MAX, .text = at->text, .text_bytes = TEXT_BYTES};
	assert_int_equal(kvd_engine_recover(at->engine, &at->result), 0);
	assert_consistent(at->engine);
}

/* Exactly one loss. */
static void assert_lost(struct damaged *at, uint64_t session, uint32_t slot, uint64_t first, uint64_t count,
			const char *words)
{
	recover(at);
	if (at->result.losses_count != 1 || !strstr(at->text, words))
		fail_msg("%u losses: %s", (unsigned int)at->result.losses_count, at->text);
	assert_int_equal(at->losses[0].session, session);
	assert_int_equal(at->losses[0].slot, slot);
	assert_int_equal(at->losses[0].first_page, first);
	assert_int_equal(at->losses[0].count, count);
	/* What was cut out stays cut out. */
	recover(at);
	assert_int_equal(at->result.losses_count, 0);
	engine_end(at->engine);
}

static void test_derived_is_made_anew(void **state)
{
	struct damaged at;
	struct kvd_head *head;
	uint32_t *bucket;
	uint64_t stats_pages;

	(void)state;
	setup(&at);
	head = at.engine->head;
	stats_pages = head->mapped_pages;
	head->mapped_pages = 1;
	head->table_bytes = UINT64_MAX;
	head->sessions_live = 77;
	head->session_free = 3;
	head->heap_next = 0;
	memset(head->free_nodes, 0xa5, sizeof(head->free_nodes));
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		const struct kvd_tier *layout = &at.engine->layout.tiers[i];

		head->tiers[i].used_blocks = head->tiers[i].used_frames = head->tiers[i].high_frame = 123456789;
		head->tiers[i].reserved_blocks = head->tiers[i].next_frame = UINT64_MAX;
		head->tiers[i].shares = kvd_link_make(12345, 6, 2, 1);
		for (uint64_t level = 0; level < layout->levels; level++)
			memset(at.engine->base + layout->level_at[level], 0x5a,
			       kvd_frames_level_words(layout->total_frames, level) * 8);
	}
	bucket = kvd_session_bucket(at.engine, 7);
	*bucket = UINT32_MAX;
	at.session->next = 1;
	at.session->version++;
	memset(at.session->pages, 0xff, sizeof(at.session->pages));
	memset(at.session->blocks, 0xff, sizeof(at.session->blocks));
	at.session->slots[0] = kvd_link_more(at.session->slots[0], 3);
	recover(&at);
	assert_int_equal(at.result.losses_count, 0);
	assert_int_equal(head->mapped_pages, stats_pages);
	assert_int_equal(one_run(at.engine, at.a, 0, 0, KVD_PAGES_MAX).count, 600);
	assert_ok(destroy(at.engine, at.a));
	assert_int_equal(tier_info(at.engine, NVME).used_frames, 3);
	engine_end(at.engine);
}

static void test_bad_entries_are_lost(void **state)
{
	const uint64_t bad[] = {
		kvd_pte_make(DDR, 2, 300) & ~(uint64_t)KVD_ABI_PTE_VALID_MASK, /* not valid, and no command made it */
		kvd_pte_make(KVD_ABI_TIER_CARD, 2, 0),
		kvd_pte_make(0, 2, 0),
		kvd_pte_make(7, 2, 0),
		kvd_pte_make(DDR, TEST_PAGE_BLOCKS + 1, 300),
		kvd_pte_make(DDR, 2, TEST_DDR_BLOCKS),
		UINT64_MAX,
	};
	struct damaged at;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setup(&at);
		kvd_table_find(at.engine, &at.session->slots[0], 300)->pte = bad[i];
		assert_lost(&at, at.a, 0, 300, 1, "slot 0: pages 300 to 300 are lost");
	}
}

static void test_one_frame_twice_is_nobodys(void **state)
{
	struct damaged at;
	union kvd_entry *first;

	(void)state;
	setup(&at);
	first = kvd_table_find(at.engine, &at.session->slots[0], 300);
	first[1].pte = first->pte;
	assert_lost(&at, at.a, 0, 300, 2, "another page has the same frame");
	/* Shared, but one of them does not say so. */
	setup(&at);
	first = kvd_table_find(at.engine, &at.session->slots[1], (1ull << 46) + 1);
	first->pte &= ~KVD_ABI_PTE_SHARED_MASK;
	recover(&at);
	assert_int_equal(at.result.losses_count, 2);
	assert_int_equal(at.losses[0].count + at.losses[1].count, 2);
	assert_int_equal(at.losses[0].first_page, (1ull << 46) + 1);
	assert_int_equal(tier_info(at.engine, NVME).used_frames, 2);
	engine_end(at.engine);
}

static void test_bad_links_are_lost(void **state)
{
	struct damaged at;
	uint64_t *child;

	(void)state;
	for (uint32_t i = 0; i < 5; i++) {
		setup(&at);
		child = &kvd_node(at.engine, at.session->slots[0])[1].link;
		*child = (uint64_t[]){
			kvd_link_make(UINT32_MAX, 88, 4, 0),
			kvd_link_make(1, 88, 4, 0),
			kvd_link_make(kvd_link_node(*child), 88, 9, 0),
			kvd_link_make(kvd_link_node(*child), 88, 4, 1),
			kvd_link_make(kvd_link_node(*child) + 1, 88, 4, 0),
		}[i];
		assert_lost(&at, at.a, 0, 512, 512, "its table leads nowhere");
	}
	setup(&at);
	at.session->slots[0] = kvd_link_make(5, 5, 5, 77);
	recover(&at);
	assert_int_equal(at.result.losses_count, 1);
	engine_end(at.engine);
}

/* A node in two tables belongs to neither: nobody knows whose pages they are. */
static void test_one_table_twice_is_nobodys(void **state)
{
	struct damaged at;

	(void)state;
	setup(&at);
	kvd_session_find(at.engine, at.b)->slots[0] = kvd_node(at.engine, at.session->slots[0])[1].link;
	recover(&at);
	assert_int_equal(at.result.losses_count, 2);
	assert_non_null(strstr(at.text, "another page has the same table"));
	assert_int_equal(at.losses[0].session, at.a);
	assert_int_equal(at.losses[0].first_page, 512);
	assert_int_equal(at.losses[1].session, at.b);
	assert_int_equal(session_info(at.engine, at.b).mapped_pages[DDR], 0);
	assert_int_equal(session_info(at.engine, at.a).mapped_pages[DDR], 512);
	engine_end(at.engine);
}

static void test_bad_contexts(void **state)
{
	struct damaged at;

	(void)state;
	setup(&at);
	at.session->state = 99;
	assert_lost(&at, at.a, KVD_ENGINE_SLOTS_MAX, 0, 0, "faulted");
	setup(&at);
	at.session->leases = UINT64_MAX;
	assert_lost(&at, at.a, KVD_ENGINE_SLOTS_MAX, 0, 0, "leases");
	setup(&at);
	at.session->reserved_blocks[NVME - 1] = UINT64_MAX;
	assert_lost(&at, at.a, KVD_ENGINE_SLOTS_MAX, 0, 0, "reservation");
	setup(&at);
	at.session->key = 8;
	assert_lost(&at, at.a, KVD_ENGINE_SLOTS_MAX, 0, 0, "the same key");
	setup(&at);
	at.engine->head->sessions_high = UINT64_MAX;
	recover(&at);
	assert_int_equal(at.result.losses_count, 0);
	at.engine->head->magic++;
	assert_int_equal(kvd_engine_recover(at.engine, &at.result), -EIO);
	at.engine->head->magic--;
	engine_end(at.engine);
}

/* An intent that this engine can't have written is not followed. */
static void test_bad_intents(void **state)
{
	struct damaged at;

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		struct kvd_intent *intent;

		setup(&at);
		intent = &at.engine->head->intent;
		*intent = (struct kvd_intent){.sequence = kvd_engine_sequence(at.engine) + 1, .stage = KVD_ABI_STAGE_COMMIT};
		intent->cmd = (struct kvd_abi_cmd){.op = KVD_ABI_OP_UNMAP, .session = at.a, .count = 10};
		intent->session = at.a;
		intent->stage = i == 0 ? 7 : KVD_ABI_STAGE_COMMIT;
		intent->cmd.op = i == 1 ? 999 : i == 2 ? KVD_ABI_OP_TRANSLATE : i == 3 ? KVD_ABI_OP_RESIZE : KVD_ABI_OP_UNMAP;
		intent->cmd.tier = 77;
		intent->cmd.slot = i == 4 ? 99 : 0;
		intent->words = i == 5 ? 1 : i == 6 ? 9999 : 0;
		intent->word_at[0] = offsetof(struct kvd_head, heap_at);
		intent->steps = i == 7 ? 2 : 0;
		intent->step_at[0] = UINT64_MAX;
		recover(&at);
		assert_int_equal(at.result.losses_count, 1);
		assert_non_null(strstr(at.text, "makes no sense"));
		assert_int_equal(at.result.finished + at.result.undone, 0);
		assert_int_equal(session_info(at.engine, at.a).mapped_pages[DDR], 600);
		engine_end(at.engine);
	}
}

static uint64_t draw(uint64_t *random)
{
	uint64_t mixed = *random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

/* Noise in contexts, nodes and counters: commands on it do not crash, and recovery makes sound tables of it. */
static void test_noise(void **state)
{
	struct damaged at;
	uint64_t random = 5, lost = 0;

	(void)state;
	for (uint32_t round = 0; round < FUZZ_ROUNDS; round++) {
		struct kvd_abi_run runs[8];
		uint64_t used, *words;

		setup(&at);
		words = (uint64_t *)(void *)at.engine->base;
		used = at.engine->head->heap_next / 8;
		for (uint32_t i = 0; i < FUZZ_WORDS; i++) {
			uint64_t first = (round % 2 ? at.engine->layout.heap_at : at.engine->layout.sessions_at) / 8;
			uint64_t *word = &words[first + draw(&random) % (used - first)];

			/* Of the head, what changes: that its places are sound is known before anything else is done. */
			if (round % 8 == 0)
				word = &words[(offsetof(struct kvd_head, generation) + draw(&random) % 600) / 8];

			*word = draw(&random) % 2 ? draw(&random) : *word ^ 1ull << draw(&random) % 64;
		}
		if (round % 4 < 2) {
			translate(at.engine, at.a, 0, 0, KVD_PAGES_MAX, runs, 8);
			map(at.engine, at.b, 1, DDR, draw(&random) % 2000, 30, 1);
			remap(at.engine, at.a, 0, 1, NVME, 0, 700, KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK);
			unmap(at.engine, at.a, 1, 0, KVD_PAGES_MAX);
			create(at.engine, 9);
			destroy(at.engine, at.b);
		}
		recover(&at);
		lost += at.result.losses_count;
		engine_end(at.engine);
	}
	assert_true(lost > FUZZ_ROUNDS / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_derived_is_made_anew), cmocka_unit_test(test_bad_entries_are_lost),
		cmocka_unit_test(test_one_frame_twice_is_nobodys), cmocka_unit_test(test_bad_links_are_lost),
		cmocka_unit_test(test_one_table_twice_is_nobodys), cmocka_unit_test(test_bad_contexts),
		cmocka_unit_test(test_bad_intents), cmocka_unit_test(test_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
