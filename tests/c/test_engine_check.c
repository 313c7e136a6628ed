/* The check finds what was broken on purpose, names it, and finds nothing once it is mended. */
#include "test_engine.h"

struct broken {
	kvd_engine *engine;
	struct kvd_session *session;
	uint64_t handle;
};

static struct broken setup(void)
{
	struct broken at = {.engine = engine_new(&test_config)};

	session_new(at.engine, 7);
	at.handle = session_new(at.engine, 8);
	at.session = kvd_session_find(at.engine, at.handle);
	assert_ok(destroy(at.engine, session_new(at.engine, 9)));
	assert_ok(map(at.engine, at.handle, 0, KVD_ABI_TIER_DDR, 0, 600, 2));
	assert_ok(map(at.engine, at.handle, 1, KVD_ABI_TIER_NVME, 1ull << 46, 3, 1));
	assert_ok(reserve(at.engine, at.handle, KVD_ABI_TIER_NVME, 5));
	return at;
}

static void assert_finds(const struct broken *at, const char *words)
{
	char text[4096];

	assert_true(kvd_engine_check(at->engine, text, sizeof(text)) > 0);
	if (!strstr(text, words))
		fail_msg("no '%s' in: %s", words, text);
	assert_true(kvd_engine_check(at->engine, NULL, 0) > 0);
}

/* Break a value, see the fault, mend it, see none. */
#define BREAK(at, lvalue, value, words)                                                                                \
	do {                                                                                                           \
		__typeof__(lvalue) was_ = (lvalue);                                                                    \
		(lvalue) = (__typeof__(lvalue))(value);                                                                \
		assert_true((lvalue) != was_);                                                                         \
		assert_finds(&(at), words);                                                                            \
		(lvalue) = was_;                                                                                       \
		assert_consistent((at).engine);                                                                        \
	} while (0)

static void test_broken_books(void **state)
{
	struct broken at = setup();
	struct kvd_head *head = at.engine->head;

	(void)state;
	BREAK(at, head->tiers[KVD_ABI_TIER_DDR].used_blocks, 1, "used blocks: the books say 1, the tables 1200");
	BREAK(at, head->tiers[KVD_ABI_TIER_NVME].reserved_blocks, 0, "reserved blocks");
	BREAK(at, head->tiers[KVD_ABI_TIER_DDR].used_frames, 601, "used frames");
	BREAK(at, head->mapped_pages, 0, "mapped pages");
	BREAK(at, head->table_bytes, 64, "bytes of tables");
	BREAK(at, at.session->pages[0], 599, "tier 1: the books say 599 pages");
	BREAK(at, at.session->blocks[2], 4, "tier 3: the books say");
	BREAK(at, at.session->reserved_blocks[2], 4, "reserved blocks");
	engine_end(at.engine);
}

static void test_broken_entries(void **state)
{
	struct broken at = setup();
	union kvd_entry *entry = kvd_table_find(at.engine, &at.session->slots[0], 300);
	uint64_t pte = entry->pte;

	(void)state;
	BREAK(at, entry->pte, kvd_table_find(at.engine, &at.session->slots[0], 301)->pte, "the entry of page 301 is bad");
	BREAK(at, entry->pte, pte & ~KVD_ABI_PTE_VALID_MASK, "the entry of page 300 is bad");
	BREAK(at, entry->pte, pte | KVD_ABI_PTE_ZERO_MASK, "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(KVD_ABI_TIER_CARD, 2, 0), "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(7, 2, 0), "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(0, 2, 0), "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(KVD_ABI_TIER_DDR, TEST_PAGE_BLOCKS + 1, 300), "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(KVD_ABI_TIER_DDR, 2, KVD_FRAMES_MAX - 1), "the entry of page 300 is bad");
	BREAK(at, entry->pte, kvd_pte_make(KVD_ABI_TIER_DDR, 3, kvd_pte_frame(pte)), "of 1201");
	BREAK(at, entry->pte, 0, "holds 511, its link says 512");
	engine_end(at.engine);
}

static void test_broken_links(void **state)
{
	struct broken at = setup();
	uint64_t *root = &at.session->slots[0];
	uint64_t *child = &kvd_node(at.engine, *root)[1].link;
	uint32_t node = kvd_link_node(*root), used = kvd_link_used(*root), class = kvd_link_class(*root);
	uint32_t below = kvd_link_node(*child), below_used = kvd_link_used(*child), below_class = kvd_link_class(*child);

	(void)state;
	BREAK(at, *root, kvd_link_make(0, used, class, 1), "is no node");
	BREAK(at, *root, kvd_link_make(UINT32_MAX, used, class, 1), "is no node");
	BREAK(at, *root, kvd_link_make(1, used, class, 1), "is no node");
	BREAK(at, *root, kvd_link_make(node, used, class, 0), "the entry of page 0 is bad");
	BREAK(at, *root, kvd_link_make(node, used, class, 9), "is no node");
	BREAK(at, *root, kvd_link_make(node, used, KVD_NODE_CLASSES, 1), "is no node");
	BREAK(at, *child, kvd_link_make(node, below_used, below_class, 0), "the node of page 512 is no node");
	BREAK(at, *child, kvd_link_make(below, below_used, below_class, 1), "the node of page 512 is no node");
	BREAK(at, *child, kvd_link_make(below, 0, below_class, 0), "its link says 0");
	BREAK(at, at.session->slots[4], kvd_link_make(0, 1, 0, 0), "slot 4");
	BREAK(at, at.session->slots[1], *root, "slot 1");
	engine_end(at.engine);
}

static void test_broken_pool(void **state)
{
	struct broken at = setup();
	struct kvd_head *head = at.engine->head;
	uint32_t node = head->free_nodes[0];

	(void)state;
	assert_true(node != 0);
	BREAK(at, head->free_nodes[0], 0, "bytes of tables are lost");
	BREAK(at, head->free_nodes[0], kvd_link_node(at.session->slots[0]), "is no free node");
	BREAK(at, kvd_node(at.engine, node)->pte, node, "is no free node");
	BREAK(at, kvd_node(at.engine, node)->pte, UINT64_MAX, "is no free node");
	engine_end(at.engine);
}

static void test_broken_frames(void **state)
{
	struct broken at = setup();
	const struct kvd_tier *tier = &at.engine->head->tiers[KVD_ABI_TIER_DDR];
	uint64_t *words = (uint64_t *)(void *)(at.engine->base + tier->level_at[0]);
	uint64_t *above = (uint64_t *)(void *)(at.engine->base + tier->level_at[1]);

	(void)state;
	assert_ok(unmap(at.engine, at.handle, 0, 130, 1));
	BREAK(at, words[0], words[0] & ~4ull, "frame 2 is in a table and free");
	BREAK(at, words[2], ~0ull, "frame 130 is used by nobody");
	BREAK(at, above[0], above[0] | 4, "summary of frame word 2");
	BREAK(at, above[0], above[0] & ~1ull, "summary of frame word 0");
	engine_end(at.engine);
}

static void test_broken_sessions(void **state)
{
	struct broken at = setup();
	struct kvd_head *head = at.engine->head;
	uint32_t *bucket = kvd_session_bucket(at.engine, 8);
	uint32_t number = *bucket;

	(void)state;
	BREAK(at, head->sessions_live, 3, "sessions: the books say 3, the tables 2");
	BREAK(at, head->session_free, 0, "free session contexts");
	BREAK(at, head->session_free, number, "is free and in use");
	BREAK(at, *bucket, 0, "sessions in the hash");
	BREAK(at, *bucket, 1000, "leads nowhere");
	BREAK(at, at.session->next, number, "hash chain");
	BREAK(at, at.session->key, 7, "wrongly");
	BREAK(at, *kvd_session_bucket(at.engine, 7), number, "hash");
	engine_end(at.engine);
}

/* The text holds whole lines only, as many as there is room for. */
static void test_text_is_cut_between_lines(void **state)
{
	struct broken at = setup();
	char text[100];
	char whole[4096];

	(void)state;
	at.engine->head->mapped_pages++;
	at.engine->head->table_bytes++;
	assert_int_equal(kvd_engine_check(at.engine, whole, sizeof(whole)), 2);
	assert_non_null(strchr(whole, '\n'));
	assert_true(strlen(whole) + 1 > sizeof(text));
	assert_int_equal(kvd_engine_check(at.engine, text, sizeof(text)), 2);
	assert_null(strchr(text, '\n'));
	assert_memory_equal(text, whole, strlen(text));
	assert_int_equal(whole[strlen(text)], '\n');
	assert_int_equal(kvd_engine_check(at.engine, text, 1), 2);
	assert_int_equal(text[0], '\0');
	at.engine->head->mapped_pages--;
	at.engine->head->table_bytes--;
	engine_end(at.engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_broken_books),
		cmocka_unit_test(test_broken_entries),
		cmocka_unit_test(test_broken_links),
		cmocka_unit_test(test_broken_pool),
		cmocka_unit_test(test_broken_frames),
		cmocka_unit_test(test_broken_sessions),
		cmocka_unit_test(test_text_is_cut_between_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
