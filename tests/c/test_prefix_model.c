/*
 * Random prefix commands on the engine and on a model: a plain array of the blocks that exist, with their holder. The
 * model hashes nothing: a block is (namespace, chain, position, length of the hash), and the engine's hashes are made
 * from that.
 */
#include <stdlib.h>

#include "test_prefix.h"

#define SESSIONS 6u
#define NAMESPACES 2u
#define CHAINS 24u
#define POSITIONS 96u
#define SIZES 2u
#define COMMANDS 30000u
#define CHECK_EVERY 499u
#define ARENA_BYTES (1u << 20)
#define CRAMPED_BYTES (144u << 10)

static const uint16_t hash_bytes[SIZES] = {8, 32};

struct model {
	kvd_engine *engine;
	uint64_t random;
	uint64_t handle[SESSIONS];
	uint32_t keys;
	uint8_t holder[NAMESPACES][CHAINS][SIZES][POSITIONS]; /* session + 1, 0: absent */
	uint64_t seen[KVD_ABI_STATUS_COUNT];
	uint64_t hashes[POSITIONS * KVD_PREFIX_WORDS_MAX];
};

/* Some blocks of one chain, as the model and as the engine name them. */
struct pick {
	uint8_t *holder;
	struct blocks blocks;
};

static uint32_t draw(struct model *model, uint32_t limit)
{
	model->random += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(test_mix(model->random) >> 32) % limit;
}

static struct pick pick(struct model *model)
{
	uint32_t namespace = draw(model, NAMESPACES);
	uint32_t chain = draw(model, CHAINS);
	uint32_t size = draw(model, SIZES);
	uint32_t first = draw(model, 3) ? 0 : draw(model, POSITIONS);
	uint32_t count = draw(model, POSITIONS - first + 1);
	uint32_t words = hash_bytes[size] / 8u;

	/* The same hashes in both namespaces, and, in their first word, for both lengths: only the whole name tells. */
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t word = 0; word < words; word++)
			model->hashes[i * words + word] = test_mix(word ? word : chain * 1000u + (first + i) / 2);
	}
	return (struct pick){
		.holder = &model->holder[namespace][chain][size][first],
		.blocks = {.key = namespace, .first = first, .count = count, .hash_bytes = hash_bytes[size],
			   .hashes = model->hashes},
	};
}

static void expect(struct model *model, struct prefix_reply reply, uint64_t result0, uint64_t result1)
{
	model->seen[reply.status]++;
	assert_reply(reply, result0, result1);
}

static void step_insert(struct model *model)
{
	struct pick at = pick(model);
	uint32_t session = draw(model, SESSIONS);
	struct prefix_reply reply = insert(model->engine, model->handle[session], &at.blocks);
	uint64_t absent = 0;

	if (reply.status == KVD_ABI_STATUS_NO_TABLE) {
		model->seen[reply.status]++;
		return;
	}
	for (uint64_t i = 0; i < at.blocks.count; i++) {
		absent += !at.holder[i];
		at.holder[i] = at.holder[i] ? at.holder[i] : (uint8_t)(session + 1);
	}
	expect(model, reply, absent, 0);
}

static void step_match(struct model *model)
{
	struct pick at = pick(model);
	uint64_t length = 0;

	while (length < at.blocks.count && at.holder[length])
		length++;
	expect(model, match(model->engine, &at.blocks), length, length ? model->handle[at.holder[length - 1] - 1] : 0);
}

static void step_remove(struct model *model)
{
	struct pick at = pick(model);
	uint32_t only = draw(model, SESSIONS + 1);
	uint64_t removed = 0;

	for (uint64_t i = 0; i < at.blocks.count; i++) {
		if (!at.holder[i] || (only && at.holder[i] != only))
			continue;
		at.holder[i] = 0;
		removed++;
	}
	expect(model, take_out(model->engine, only ? model->handle[only - 1] : 0, &at.blocks), removed, 0);
}

/* A session goes with all it holds, and another one comes in its place. */
static void step_destroy(struct model *model)
{
	uint32_t session = draw(model, SESSIONS);
	uint8_t *holder = &model->holder[0][0][0][0];

	assert_ok(destroy(model->engine, model->handle[session]));
	model->handle[session] = session_new(model->engine, model->keys++);
	for (size_t i = 0; i < sizeof(model->holder); i++)
		holder[i] = holder[i] == session + 1 ? 0 : holder[i];
}

static void run(uint64_t seed, uint64_t arena_bytes, bool full)
{
	struct kvd_engine_config config = test_config;
	struct model *model = calloc(1, sizeof(*model));

	assert_non_null(model);
	config.arena_bytes = arena_bytes;
	model->random = seed;
	model->engine = engine_new(&config);
	for (uint32_t i = 0; i < SESSIONS; i++)
		model->handle[i] = session_new(model->engine, model->keys++);
	for (uint32_t i = 0; i < COMMANDS; i++) {
		uint32_t kind = draw(model, 1000);

		if (kind < 3)
			step_destroy(model);
		else if (kind < 300)
			step_insert(model);
		else if (kind < 450)
			step_remove(model);
		else
			step_match(model);
		if (i % CHECK_EVERY == 0)
			assert_consistent(model->engine);
	}
	assert_true(model->seen[KVD_ABI_STATUS_OK] > COMMANDS / 2);
	assert_int_equal(model->seen[KVD_ABI_STATUS_NO_TABLE] > 0, full);
	engine_end(model->engine);
	free(model);
}

static void test_random(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++)
		run(seed, ARENA_BYTES, false);
}

static void test_random_without_room(void **state)
{
	(void)state;
	for (uint64_t seed = 11; seed <= 12; seed++)
		run(seed, CRAMPED_BYTES, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_random_without_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
