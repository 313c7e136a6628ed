/*
 * A device walks tables in somebody else's memory: whatever is written there meanwhile, it neither crashes nor hangs, and what
 * it is given back in the end can be recovered.
 */
#include <pthread.h>
#include <stdlib.h>

#include "test_engine.h"

#define COMMANDS 60000u
#define SCRIBBLES 1000000u
#define RECOVER_EVERY 64u

struct scribbler {
	kvd_engine *engine;
	uint64_t random;
	uint64_t scribbled;
	uint32_t stop;
};

static uint64_t draw(uint64_t *random)
{
	uint64_t mixed = *random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

/* A word of the heap, of a context, or of the head but for the places and sizes, without which nothing can be done. */
static uint64_t draw_place(struct scribbler *scribbler)
{
	const struct kvd_head *layout = &scribbler->engine->layout;
	uint64_t at = draw(&scribbler->random);
	uint64_t tier = 1 + at / 64 % (KVD_ABI_TIER_COUNT - 1);

	switch (at % 8) {
	case 0:
		at = offsetof(struct kvd_head, generation) +
		     at / 8 % (offsetof(struct kvd_head, tiers) - offsetof(struct kvd_head, generation));
		break;
	case 1:
		at = offsetof(struct kvd_head, tiers) + tier * sizeof(struct kvd_tier) +
		     offsetof(struct kvd_tier, used_blocks) +
		     at / 8 % (sizeof(struct kvd_tier) - offsetof(struct kvd_tier, used_blocks));
		break;
	case 2:
	case 3:
		at = layout->sessions_at + at / 8 % (8 * sizeof(struct kvd_session));
		break;
	default:
		at = layout->heap_at + at / 8 % (64u * KVD_NODE_BYTES_MAX);
		break;
	}
	return at / 8;
}

/* Change a word, sometimes to another one that is there. */
static void scribble(struct scribbler *scribbler)
{
	const struct kvd_head *layout = &scribbler->engine->layout;
	uint64_t *words = (uint64_t *)(void *)scribbler->engine->base;
	uint64_t *word = &words[draw_place(scribbler)];
	uint64_t value = draw(&scribbler->random);

	switch (value % 3) {
	case 0:
		value = kvd_get(&words[(layout->heap_at + value % (64u * KVD_NODE_BYTES_MAX)) / 8]);
		break;
	case 1:
		value = kvd_get(word) ^ 1ull << value % 64;
		break;
	default:
		break;
	}
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void *scribbler_main(void *context)
{
	struct scribbler *scribbler = context;

	while (!__atomic_load_n(&scribbler->stop, __ATOMIC_ACQUIRE)) {
		scribble(scribbler);
		__atomic_store_n(&scribbler->scribbled, scribbler->scribbled + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

#define PAGE ((size_t)TEST_PAGE_BLOCKS * KVD_BLOCK_BYTES)
static uint64_t buffer[512];
static unsigned char memory[16 * PAGE], host[3 * PAGE]; /* of the first frames; of who moves bytes */

/* What the later operations carry: good, so that they get as far as the tables let them. */
static void fill_buffer(struct kvd_abi_cmd *cmd, uint64_t *random)
{
	const struct kvd_abi_window window = {
		.planes = 3, .plane_bytes = 300 * PAGE, .token_bytes = PAGE, .tokens = 200, .window_tokens = draw(random) % 200};
	const struct kvd_abi_transfer transfer = {.host = (uintptr_t)host, .host_bytes = draw(random) % sizeof(host)};

	memset(buffer, 0, sizeof(buffer));
	if (cmd->op == KVD_ABI_OP_WINDOW_ADVANCE)
		memcpy(buffer, &window, sizeof(window));
	if (cmd->op == KVD_ABI_OP_GATHER || cmd->op == KVD_ABI_OP_SCATTER) {
		memcpy(buffer, &transfer, sizeof(transfer));
		cmd->count = 3;
	}
	if (cmd->op == KVD_ABI_OP_AGE_SCAN)
		cmd->count = 1 + draw(random) % 100000;
	if (cmd->op == KVD_ABI_OP_SESSION_TRANSITION)
		cmd->key = draw(random) % KVD_ABI_EVENT_COUNT;
}

static bool one_command(kvd_engine *engine, const uint64_t *sessions, uint64_t *random)
{
	struct kvd_abi_map_run *runs = (void *)buffer;
	struct kvd_abi_cpl cpl;
	struct kvd_abi_cmd cmd = {
		.op = (uint16_t)(1 + draw(random) % KVD_ABI_OP_SCATTER),
		.session = sessions[draw(random) % 3],
		.slot = (uint16_t)(draw(random) % 3),
		.other_slot = (uint16_t)(draw(random) % 3),
		.tier = draw(random) % 2 ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME,
		.first_page = draw(random) % 700,
		.count = draw(random) % 3 ? 1 + draw(random) % 3 : KVD_PAGES_MAX,
		.key = sessions[draw(random) % 3],
		.buffer = (uintptr_t)buffer,
		.buffer_bytes = sizeof(buffer),
	};

	if (cmd.op == KVD_ABI_OP_SESSION_CREATE)
		cmd.key = draw(random) % 3;
	if (cmd.op == KVD_ABI_OP_REMAP)
		cmd.flags = (uint16_t)(draw(random) % 8);
	for (uint32_t i = 0; cmd.op == KVD_ABI_OP_MAP && i < 3; i++)
		runs[i] = (struct kvd_abi_map_run){draw(random) % 3000, 1 + draw(random) % 99, 1, 0};
	if (cmd.op > KVD_ABI_OP_UNSHARE)
		fill_buffer(&cmd, random);
	kvd_engine_submit(engine, &cmd, &cpl, 1);
	assert_true(cpl.status < KVD_ABI_STATUS_COUNT);
	return !cpl.status;
}

static void test_scribbled_tables(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	struct scribbler scribbler = {.engine = engine, .random = 1};
	struct kvd_engine_recovery result = {0};
	uint64_t random = 2, recovered = 0, done = 0, sessions[3];
	pthread_t thread;

	(void)state;
#ifdef __SANITIZE_THREAD__
	/* Racing is what this test is about. */
	kvd_engine_fini(engine);
	skip();
#endif
	assert_int_equal(kvd_engine_tier_memory(engine, KVD_ABI_TIER_DDR, (uintptr_t)memory, sizeof(memory)), 0);
	for (uint64_t i = 0; i < 3; i++)
		sessions[i] = session_new(engine, i);
	assert_int_equal(pthread_create(&thread, NULL, scribbler_main, &scribbler), 0);
	for (uint32_t i = 0; i < COMMANDS || __atomic_load_n(&scribbler.scribbled, __ATOMIC_ACQUIRE) < SCRIBBLES; i++) {
		done += one_command(engine, sessions, &random);
		if (i % RECOVER_EVERY)
			continue;
		/* While somebody scribbles, recovery may give up, and may be made to see nonsense, but not crash. */
		recovered += !kvd_engine_recover(engine, &result);
		for (uint64_t j = 0; j < 3; j++) {
			const struct kvd_session *session = kvd_session_of_key(engine, j);

			sessions[j] = session ? kvd_session_handle(engine, session) : create(engine, j).result0;
		}
	}
	__atomic_store_n(&scribbler.stop, 1, __ATOMIC_RELEASE);
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* A capacity is what its owner says; nobody else could tell what it was. */
	for (uint32_t i = 0; i < KVD_ABI_TIER_COUNT; i++)
		engine->head->tiers[i].capacity_blocks = engine->layout.tiers[i].capacity_blocks;
	assert_int_equal(kvd_engine_recover(engine, &result), 0);
	print_message("%u words scribbled, %u commands done, %u recoveries\n", (unsigned int)scribbler.scribbled,
		      (unsigned int)done, (unsigned int)recovered);
	assert_true(done > COMMANDS / 10);
	assert_true(recovered > COMMANDS / RECOVER_EVERY / 4);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scribbled_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
