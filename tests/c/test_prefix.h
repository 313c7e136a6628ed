/* What the tests of the prefix index share: chains of hashes, and one function a command. */
#ifndef KVD_TESTS_TEST_PREFIX_H
#define KVD_TESTS_TEST_PREFIX_H

#include "engine/prefix.h"
#include "test_engine.h"

#define TEST_WORDS 2u /* of a hash, where a test does not care */
#define TEST_HASHES 128u

/* A run of blocks of one chain. */
struct blocks {
	uint64_t key;
	uint64_t first;
	uint64_t count;
	uint16_t hash_bytes;
	const uint64_t *hashes;
};

struct prefix_reply {
	uint32_t status;
	uint64_t result0;
	uint64_t result1;
};

static inline uint64_t test_mix(uint64_t at)
{
	at = (at ^ at >> 30) * 0xbf58476d1ce4e5b9ull;
	at = (at ^ at >> 27) * 0x94d049bb133111ebull;
	return at ^ at >> 31;
}

/* The hashes of chain `number`: different in each word, and between chains. */
static inline void test_hashes(uint64_t number, uint64_t *hashes, uint64_t count, uint32_t words)
{
	for (uint64_t i = 0; i < count * words; i++)
		hashes[i] = test_mix((number + 1) * 0x9e3779b97f4a7c15ull + i);
}

static inline struct kvd_abi_cmd prefix_cmd(uint16_t op, uint64_t session, const struct blocks *blocks)
{
	return (struct kvd_abi_cmd){
		.op = op,
		.session = session,
		.slot = blocks->hash_bytes,
		.first_page = blocks->first,
		.count = blocks->count,
		.key = blocks->key,
		.buffer = (uintptr_t)blocks->hashes,
		.buffer_bytes = blocks->count * blocks->hash_bytes,
	};
}

static inline struct prefix_reply prefix_submit(kvd_engine *engine, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_cpl cpl = {.status = UINT16_MAX, .result0 = 2, .result1 = 3};

	kvd_engine_submit(engine, &cmd, &cpl, 1);
	return (struct prefix_reply){cpl.status, cpl.result0, cpl.result1};
}

static inline struct prefix_reply insert(kvd_engine *engine, uint64_t session, const struct blocks *blocks)
{
	return prefix_submit(engine, prefix_cmd(KVD_ABI_OP_PREFIX_INSERT, session, blocks));
}

static inline struct prefix_reply match(kvd_engine *engine, const struct blocks *blocks)
{
	return prefix_submit(engine, prefix_cmd(KVD_ABI_OP_PREFIX_MATCH, 0, blocks));
}

static inline struct prefix_reply take_out(kvd_engine *engine, uint64_t session, const struct blocks *blocks)
{
	return prefix_submit(engine, prefix_cmd(KVD_ABI_OP_PREFIX_REMOVE, session, blocks));
}

static inline void assert_reply(struct prefix_reply reply, uint64_t result0, uint64_t result1)
{
	assert_int_equal(reply.status, KVD_ABI_STATUS_OK);
	assert_int_equal(reply.result0, result0);
	assert_int_equal(reply.result1, result1);
}

/* The entry of block `i`, whoever holds it, or NULL. */
static inline struct kvd_abi_prefix_entry *entry_of(kvd_engine *engine, const struct blocks *blocks, uint32_t i)
{
	struct kvd_prefix_chain chain = {blocks->hashes, blocks->key, blocks->first, (uint32_t)blocks->count,
					 blocks->hash_bytes / 8u};
	struct kvd_prefix_name name;
	struct kvd_prefix_spot spot;

	kvd_prefix_name_of(&chain, i, &name);
	return kvd_prefix_find(engine, &name, &spot) ? spot.entry : NULL;
}

#endif
