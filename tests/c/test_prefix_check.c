/* The check finds what was broken in the prefix index on purpose, names it, and finds nothing once it is mended. */
#include <stdlib.h>

#include "test_prefix.h"

#define CHAINS 24u
#define SEED 0x5eed

struct broken {
	kvd_engine *engine;
	struct kvd_session *session;
	struct kvd_abi_prefix_head *head;
	struct kvd_abi_prefix_entry *entry; /* of block 50 of chain 0 */
	struct blocks blocks;               /* chain 0 */
};

static uint64_t hashes[TEST_HASHES * TEST_WORDS];

static struct blocks chain(uint64_t number)
{
	test_hashes(number, hashes, TEST_HASHES, TEST_WORDS);
	return (struct blocks){.key = 5, .count = TEST_HASHES, .hash_bytes = TEST_WORDS * 8, .hashes = hashes};
}

static struct broken setup(void)
{
	struct broken at = {.engine = engine_new(&test_config)};
	uint64_t first = session_new(at.engine, 1);
	uint64_t second = session_new(at.engine, 2);

	at.session = kvd_session_find(at.engine, first);
	at.head = &at.engine->head->prefix;
	/* Not drawn: the last chain of the hash is to have something. */
	at.head->seed = SEED;
	assert_ok(map(at.engine, first, 0, KVD_ABI_TIER_DDR, 0, 100, 1));
	for (uint32_t i = 0; i < CHAINS; i++) {
		at.blocks = chain(i);
		assert_reply(insert(at.engine, i % 2 ? second : first, &at.blocks), TEST_HASHES, 0);
	}
	at.blocks = chain(1);
	assert_reply(take_out(at.engine, 0, &at.blocks), TEST_HASHES, 0);
	at.blocks = chain(0);
	at.entry = entry_of(at.engine, &at.blocks, 50);
	assert_non_null(at.entry);
	return at;
}

static void assert_finds(const struct broken *at, const char *words)
{
	static char text[1u << 20];

	assert_true(kvd_engine_check(at->engine, text, sizeof(text)) > 0);
	if (!strstr(text, words))
		fail_msg("no '%s' in: %.2000s", words, text);
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

static void test_broken_entries(void **state)
{
	struct broken at = setup();
	struct kvd_abi_prefix_entry *other = entry_of(at.engine, &at.blocks, 51);
	uint64_t place = at.entry->place;

	(void)state;
	BREAK(at, at.entry->key, 6, "prefix chain");
	BREAK(at, at.entry->place, place ^ 8, "prefix chain");
	BREAK(at, at.entry->place, place & ~7ull, "is garbage");
	BREAK(at, at.entry->place, place | 7, "is garbage");
	BREAK(at, at.entry->place, place | 1ull << 60, "is garbage");
	BREAK(at, at.entry->place, (KVD_PAGES_MAX << 3) | 2, "is garbage");
	BREAK(at, at.entry->hash[0], 0, "prefix chain");
	BREAK(at, at.entry->hash[1], 0, "prefix chain");
	BREAK(at, at.entry->hash[2], 1, "is garbage");
	BREAK(at, at.entry->hash[3], 1, "is garbage");
	BREAK(at, at.entry->holder, 0, "is in its chain wrongly");
	BREAK(at, at.entry->holder, at.entry->holder + (1ull << 32), "is in its chain wrongly");
	BREAK(at, at.entry->holder, at.entry->holder + (9ull << 32), "its session");
	BREAK(at, at.entry->holder, at.entry->holder | KVD_PREFIX_INSERTING, "is garbage");
	BREAK(at, at.entry->holder, at.entry->holder | KVD_PREFIX_REMOVING, "is garbage");
	BREAK(at, at.entry->next, 0, "sessions hold");
	BREAK(at, at.entry->next, kvd_prefix_unit_of(at.engine, at.entry), "is in its chain wrongly");
	BREAK(at, at.entry->next, UINT32_MAX, "is in its chain wrongly");
	BREAK(at, at.entry->next, 1, "is in its chain wrongly");
	BREAK(at, at.entry->previous, 0, "is in its chain wrongly");
	BREAK(at, at.entry->previous, kvd_prefix_unit_of(at.engine, other) + 7, "is in its chain wrongly");
	engine_end(at.engine);
}

/* Two entries of one block: which holder were it? */
static void test_block_twice(void **state)
{
	struct broken at = setup();
	struct kvd_abi_prefix_entry *other = entry_of(at.engine, &at.blocks, 51);
	struct kvd_abi_prefix_entry was = *other;

	(void)state;
	other->place = at.entry->place;
	memcpy(other->hash, at.entry->hash, sizeof(other->hash));
	assert_finds(&at, "prefix chain");
	*other = was;
	engine_end(at.engine);
}

static void test_broken_head(void **state)
{
	struct broken at = setup();

	(void)state;
	BREAK(at, at.head->entries, 1, "the head says 1");
	BREAK(at, at.head->seed, 1, "prefix chain");
	BREAK(at, at.head->directory, 0, "is wrong");
	BREAK(at, at.head->directory, at.head->directory + 1, "is no node");
	BREAK(at, at.head->directory, UINT32_MAX, "is no node");
	BREAK(at, at.head->directory, at.head->root, "prefix");
	BREAK(at, at.head->slabs, 1, "is not counted");
	BREAK(at, at.head->entry_free, 0, "are not held");
	BREAK(at, at.head->entry_free, kvd_prefix_unit_of(at.engine, at.entry), "is free wrongly");
	BREAK(at, at.head->entry_free, kvd_link_node(at.session->slots[0]), "is free wrongly");
	BREAK(at, at.head->entry_free, UINT32_MAX, "is free wrongly");
	BREAK(at, at.head->fresh, at.head->fresh + 1, "are free");
	BREAK(at, at.head->fresh, at.head->fresh - 1, "fresh wrongly");
	BREAK(at, at.head->fresh, at.head->fresh_end + 1, "are free");
	BREAK(at, at.head->fresh_end, UINT32_MAX, "fresh wrongly");
	BREAK(at, at.head->root, 0, "lead nowhere");
	BREAK(at, at.head->root, UINT32_MAX, "lead nowhere");
	BREAK(at, at.head->root, at.head->root + 1, "lead nowhere");
	BREAK(at, at.head->buckets, at.head->buckets - 1, "prefix");
	BREAK(at, at.head->buckets, 0, "can be found");
	BREAK(at, at.head->buckets, UINT32_MAX, "lead nowhere");
	BREAK(at, at.head->bucket_free, 0, "bytes of tables");
	BREAK(at, at.head->bucket_free, UINT32_MAX, "is free wrongly");
	BREAK(at, at.head->bucket_free, at.head->root, "is free wrongly");
	BREAK(at, at.head->removals, 1, "removals");
	engine_end(at.engine);
}

static void test_broken_nodes(void **state)
{
	struct broken at = setup();
	uint32_t *directory = kvd_prefix_node(at.engine, at.head->directory);
	uint32_t *root = kvd_prefix_node(at.engine, at.head->root);
	uint32_t *node = kvd_prefix_node(at.engine, root[0]);

	(void)state;
	BREAK(at, directory[0], at.head->directory, "is no node");
	BREAK(at, directory[1], 0, "prefix");
	BREAK(at, directory[1], directory[2], "slab 2 is no node");
	BREAK(at, directory[1], UINT32_MAX, "slab 1 is no node");
	BREAK(at, directory[1], directory[1] + 1, "slab 1 is no node");
	BREAK(at, directory[1000], directory[1], "slab 1000 is not counted");
	BREAK(at, root[0], 0, "lead nowhere");
	BREAK(at, root[0], at.head->root, "lead nowhere");
	BREAK(at, root[5], root[0], "lead nowhere");
	BREAK(at, node[0], 0, "lead nowhere");
	BREAK(at, node[0], node[1], "lead nowhere");
	BREAK(at, node[1], UINT32_MAX, "lead nowhere");
	BREAK(at, at.session->prefix_head, 0, "sessions hold");
	BREAK(at, at.session->prefix_head, kvd_prefix_unit_of(at.engine, at.entry), "is in its chain wrongly");
	BREAK(at, at.session->prefix_head, UINT32_MAX, "is in its chain wrongly");
	engine_end(at.engine);
}

static void test_broken_buckets(void **state)
{
	struct broken at = setup();
	struct kvd_abi_prefix_bucket *longer = NULL;
	struct kvd_abi_prefix_bucket *more;
	struct kvd_abi_prefix_bucket *free_one = kvd_prefix_unit(at.engine, at.head->bucket_free);

	(void)state;
	for (uint32_t i = 0; i < at.head->buckets && !longer; i++) {
		if (kvd_prefix_bucket(at.engine, i)->more)
			longer = kvd_prefix_bucket(at.engine, i);
	}
	assert_non_null(longer);
	more = kvd_prefix_unit(at.engine, longer->more);
	BREAK(at, longer->version, longer->version + 1, "version is odd");
	BREAK(at, longer->more, 0, "can be found");
	BREAK(at, longer->more, UINT32_MAX, "is no bucket of it");
	BREAK(at, longer->more, at.head->root, "is no bucket of it");
	BREAK(at, longer->slots[0], 0, "is wrong");
	BREAK(at, longer->slots[0], longer->slots[1], "is wrong");
	BREAK(at, longer->slots[0], longer->slots[0] ^ 1ull << 63, "is wrong");
	BREAK(at, longer->slots[6], longer->slots[6] | UINT32_MAX, "is wrong");
	BREAK(at, more->slots[0], 0, "an empty bucket");
	BREAK(at, more->more, longer->more, "is no bucket of it");
	BREAK(at, more->slots[6], more->slots[0], "is wrong");
	BREAK(at, free_one->slots[3], 1, "is free and not empty");
	BREAK(at, free_one->more, at.head->bucket_free, "is free wrongly");
	engine_end(at.engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_broken_entries),
		cmocka_unit_test(test_block_twice),
		cmocka_unit_test(test_broken_head),
		cmocka_unit_test(test_broken_nodes),
		cmocka_unit_test(test_broken_buckets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
