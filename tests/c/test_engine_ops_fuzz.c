/*
 * Noise in what the later operations carry: windows, cursors, transfers that are nearly good, or not at all. The device
 * reaches one buffer and the memory of one tier, no byte more; around them AddressSanitizer watches.
 */
#include <stdlib.h>

#include "test_engine_ops.h"

#define COMMANDS 60000u
#define CHECK_EVERY 2003u
#define SESSIONS 3u
#define BUFFER_BYTES 8192u
#define TIER_PAGES 24u /* that have memory */
#define PAGES 40u

static unsigned char *buffer, *memory;
static uint64_t memory_bytes;
static uint64_t sessions[SESSIONS];

static uint64_t draw(void)
{
	static uint64_t at = 99;
	uint64_t mixed = at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

/* Mostly `good` or less; else an edge, or anything. */
static uint64_t draw_near(uint64_t good)
{
	static const uint64_t edges[] = {0, 1, 63, 64, 65, 4095, 4096, 1ull << 32, 1ull << 47, 1ull << 63, UINT64_MAX};
	uint64_t choice = draw() % 16;

	if (choice == 0)
		return draw();
	if (choice < 3)
		return edges[draw() % (sizeof(edges) / sizeof(edges[0]))];
	return choice < 8 ? good : draw() % (good + 1);
}

static bool inside(const unsigned char *at, uint64_t size, uint64_t address, uint64_t bytes)
{
	uint64_t offset = address - (uintptr_t)at;

	return offset <= size && bytes <= size - offset;
}

static void *reach(void *context, uint64_t address, uint64_t bytes, int writable)
{
	(void)context;
	(void)writable;
	if (inside(buffer, BUFFER_BYTES, address, bytes) || inside(memory, memory_bytes, address, bytes))
		return (void *)(uintptr_t)address;
	return NULL;
}

static void fill_window(void)
{
	struct kvd_abi_window window = {
		.base = draw_near(3 * KVD_PAGE_BYTES_MIN),
		.plane_bytes = draw_near(8 * KVD_PAGE_BYTES_MIN),
		.planes = (uint32_t)draw_near(4),
		.token_bytes = (uint32_t)draw_near(1024),
		.tokens = draw_near(32),
		.window_tokens = draw_near(5),
		.sink_tokens = draw_near(3),
	};

	memcpy(buffer, &window, sizeof(window));
}

static void fill_cursor(void)
{
	struct kvd_abi_age_cursor cursor = {
		.session = draw_near(SESSIONS),
		.page = draw_near(PAGES),
		.slot = (uint32_t)draw_near(2),
		.done = draw() % 16 == 0,
		.generation = draw_near(255),
	};

	if (draw() % 4 == 0)
		memset(&cursor, 0, sizeof(cursor));
	memcpy(buffer, &cursor, sizeof(cursor));
}

static void fill_transfer(void)
{
	struct kvd_abi_transfer transfer = {
		.host = (uintptr_t)buffer + draw_near(512),
		.host_bytes = draw_near(6000),
		.page_offset = draw_near(2 * KVD_PAGE_BYTES_MIN),
	};

	if (draw() % 8 == 0)
		transfer.host = (uintptr_t)memory + draw_near(memory_bytes);
	if (draw() % 4) {
		bool wide = draw() % 2;

		transfer.tokens = (uint32_t)draw_near(130);
		transfer.channels = (uint32_t)draw_near(20);
		transfer.host_format = (uint16_t)(wide ? 1 + draw() % 2 : 3 + draw() % 3);
		transfer.page_format = (uint16_t)(wide ? 3 + draw() % 3 : 1 + draw() % 2);
		transfer.scaling = (uint16_t)(1 + draw() % 2);
		transfer.scales = (uintptr_t)buffer + 6800 + draw_near(100);
		transfer.scales_bytes = draw_near(240);
	}
	if (draw() % 16 == 0)
		transfer.page_format = (uint16_t)draw_near(6);
	for (uint32_t i = sizeof(transfer); i < BUFFER_BYTES; i++)
		buffer[i] = (unsigned char)(draw() % 3 ? 0x3c : draw());
	memcpy(buffer, &transfer, sizeof(transfer));
}

static struct kvd_abi_cmd draw_command(void)
{
	static const uint16_t ops[] = {
		KVD_ABI_OP_SESSION_TRANSITION, KVD_ABI_OP_WINDOW_ADVANCE, KVD_ABI_OP_TOUCH,  KVD_ABI_OP_AGE_SCAN,
		KVD_ABI_OP_AGE_SCAN,           KVD_ABI_OP_GATHER,         KVD_ABI_OP_SCATTER, KVD_ABI_OP_GATHER,
		KVD_ABI_OP_SCATTER,            KVD_ABI_OP_FLUSH,
	};
	struct kvd_abi_cmd cmd = {
		.op = ops[draw() % (sizeof(ops) / sizeof(ops[0]))],
		.flags = (uint16_t)(draw() % 4 ? 0 : 1u << draw() % 7),
		.session = draw() % 16 ? sessions[draw() % SESSIONS] : draw(),
		.slot = (uint16_t)draw_near(1),
		.tier = (uint32_t)draw_near(3),
		.first_page = draw_near(PAGES),
		.count = draw_near(PAGES),
		.key = draw_near(KVD_ABI_EVENT_COUNT),
		.buffer = (uintptr_t)buffer + (draw() % 16 ? 0 : draw_near(BUFFER_BYTES)),
		.buffer_bytes = draw_near(BUFFER_BYTES),
	};

	if (cmd.op == KVD_ABI_OP_WINDOW_ADVANCE)
		fill_window();
	else if (cmd.op == KVD_ABI_OP_AGE_SCAN)
		fill_cursor();
	else
		fill_transfer();
	return cmd;
}

/* Something to work on: pages with and without memory, near and far, and frames in no order. */
static void refill(kvd_engine *engine)
{
	for (uint32_t i = 0; i < SESSIONS; i++) {
		for (uint16_t slot = 0; slot < 2; slot++) {
			uint64_t first = draw() % PAGES;

			unmap(engine, sessions[i], slot, first, draw() % 8);
			for (uint64_t page = first; page < first + 4; page++) {
				struct kvd_abi_map_run *run = (void *)buffer;

				*run = (struct kvd_abi_map_run){.first_page = page, .count = 1, .blocks = 1};
				map_runs(engine, sessions[i], slot, draw() % 8 ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME, run, 1, 0);
			}
		}
	}
}

static void test_noise(void **state)
{
	struct kvd_engine_config config = test_config;
	uint64_t seen[KVD_ABI_OP_COUNT][KVD_ABI_STATUS_COUNT] = {{0}};
	kvd_engine *owner, *engine;

	(void)state;
	config.page_bytes = KVD_PAGE_BYTES_MIN;
	config.total_frames[KVD_ABI_TIER_DDR] = TIER_PAGES * 2;
	memory_bytes = TIER_PAGES * (uint64_t)KVD_PAGE_BYTES_MIN;
	buffer = aligned_alloc(64, BUFFER_BYTES);
	memory = malloc(memory_bytes);
	assert_non_null(buffer);
	assert_non_null(memory);
	memset(memory, 0x3c, memory_bytes);
	owner = engine_new(&config);
	kvd_engine_leave(owner);
	assert_int_equal(kvd_engine_attach(owner->base, config.arena_bytes, reach, NULL, &engine), 0);
	assert_int_equal(kvd_engine_tier_memory(engine, KVD_ABI_TIER_DDR, (uintptr_t)memory, memory_bytes), 0);
	for (uint32_t i = 0; i < SESSIONS; i++)
		sessions[i] = session_new(engine, i);
	for (uint32_t i = 0; i < COMMANDS; i++) {
		struct kvd_abi_cmd cmd;
		struct kvd_abi_cpl cpl;

		if (i % 16 == 0)
			refill(engine);
		cmd = draw_command();
		kvd_engine_submit(engine, &cmd, &cpl, 1);
		assert_true(cpl.status < KVD_ABI_STATUS_COUNT);
		seen[cmd.op][cpl.status]++;
		if (i % CHECK_EVERY == 0)
			assert_consistent(engine);
	}
	/* It was worth something: each operation was done and was refused, for each of its reasons. */
	for (uint32_t op = KVD_ABI_OP_GATHER; op <= KVD_ABI_OP_SCATTER; op++) {
		assert_true(seen[op][KVD_ABI_STATUS_OK] > COMMANDS / 1000);
		assert_true(seen[op][KVD_ABI_STATUS_BAD_ARGUMENT] > COMMANDS / 1000);
		assert_true(seen[op][KVD_ABI_STATUS_NOT_MAPPED] > COMMANDS / 1000);
		assert_true(seen[op][KVD_ABI_STATUS_BUFFER_SMALL] > COMMANDS / 1000);
		assert_true(seen[op][KVD_ABI_STATUS_BAD_ADDRESS] > COMMANDS / 1000);
		assert_true(seen[op][KVD_ABI_STATUS_NO_MEMORY] > COMMANDS / 10000);
	}
	assert_true(seen[KVD_ABI_OP_WINDOW_ADVANCE][KVD_ABI_STATUS_OK] > COMMANDS / 100);
	assert_true(seen[KVD_ABI_OP_WINDOW_ADVANCE][KVD_ABI_STATUS_BAD_ARGUMENT] > COMMANDS / 1000);
	assert_true(seen[KVD_ABI_OP_AGE_SCAN][KVD_ABI_STATUS_OK] > COMMANDS / 100);
	assert_true(seen[KVD_ABI_OP_AGE_SCAN][KVD_ABI_STATUS_BUFFER_SMALL] > COMMANDS / 1000);
	kvd_engine_fini(engine);
	engine_end(owner);
	free(memory);
	free(buffer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
