/* How fast the engine is, in batches as a driver submits them: a benchmark, run by `meson test --benchmark`. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/internal.h"

#define BATCH 256u
#define OBJECTS 64u
#define OBJECT_PAGES 16384u /* 1 GiB of 64 KiB pages */
#define ROUNDS 16384u
#define GIANT_PAGES (OBJECTS * OBJECT_PAGES)
#define LIST_PAGES (16u << 20) /* mapped while lists are looked up */
#define LIST 4096u
#define LIST_ROUNDS 4096u

static const struct kvd_engine_config config = {
	.page_bytes = 65536,
	.sessions_max = 1u << 20,
	.arena_bytes = 4ull << 30,
	.capacity_blocks = {0, 64u << 20, 0, 64u << 20, 0},
	.arena_fd = -1,
};

static struct kvd_abi_cmd commands[BATCH];
static struct kvd_abi_cpl completions[BATCH];
static struct kvd_abi_run found[BATCH];
static uint64_t sessions[OBJECTS];

/* Time of this process: what else the machine does should not count. */
static double now_s(void)
{
	struct timespec at;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
	return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static uint64_t draw(void)
{
	static uint64_t at = 1;

	at ^= at << 13;
	at ^= at >> 7;
	at ^= at << 17;
	return at;
}

static void submit(kvd_engine *engine, uint32_t count)
{
	kvd_engine_submit(engine, commands, completions, count);
	for (uint32_t i = 0; i < count; i++) {
		if (completions[i].status) {
			fprintf(stderr, "status %u\n", completions[i].status);
			exit(1);
		}
	}
}

static void report(const char *what, double count, double began)
{
	printf("%-40s %8.2f M/s\n", what, count / (now_s() - began) / 1e6);
}

/* MAP whole objects, 256 pages a run, as a copied-in object has them. */
static void fill(kvd_engine *engine)
{
	static struct kvd_abi_map_run run = {.count = OBJECT_PAGES, .blocks = 16};
	struct kvd_engine_stats stats;
	double began = now_s();

	for (uint32_t i = 0; i < OBJECTS; i++) {
		commands[0] = (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = i};
		submit(engine, 1);
		sessions[i] = completions[0].result0;
		commands[0] = (struct kvd_abi_cmd){
			.op = KVD_ABI_OP_MAP,
			.session = sessions[i],
			.tier = KVD_ABI_TIER_NVME,
			.count = 1,
			.buffer = (uintptr_t)&run,
			.buffer_bytes = sizeof(run),
		};
		submit(engine, 1);
	}
	report("MAP, whole objects, pages", GIANT_PAGES, began);
	kvd_engine_stats(engine, &stats);
	printf("%-40s %8.2f\n", "bytes of table a page", (double)stats.table_bytes / (double)stats.mapped_pages);
}

static void translate_random(kvd_engine *engine)
{
	double began = now_s();

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < BATCH; i++) {
			uint64_t at = draw();

			commands[i] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_TRANSLATE,
				.session = sessions[at % OBJECTS],
				.first_page = at / OBJECTS % OBJECT_PAGES,
				.count = 1,
				.buffer = (uintptr_t)&found[i],
				.buffer_bytes = sizeof(found[i]),
			};
		}
		submit(engine, BATCH);
	}
	report("TRANSLATE, one random page a command", (double)ROUNDS * BATCH, began);
}

static void submit_list(kvd_engine *engine, uint64_t session, uint64_t *pages)
{
	commands[0] = (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_TRANSLATE,
		.flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
		.session = session,
		.count = LIST,
		.buffer = (uintptr_t)pages,
		.buffer_bytes = LIST * sizeof(*pages),
	};
	submit(engine, 1);
}

static void translate_list(kvd_engine *engine)
{
	static struct kvd_abi_map_run run = {.count = LIST_PAGES, .blocks = 1};
	static uint64_t pages[LIST];
	uint64_t session, missing = 0;
	double began = now_s();

	commands[0] = (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = OBJECTS};
	submit(engine, 1);
	session = completions[0].result0;
	commands[0] = (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_MAP,
		.session = session,
		.tier = KVD_ABI_TIER_NVME,
		.count = 1,
		.buffer = (uintptr_t)&run,
		.buffer_bytes = sizeof(run),
	};
	submit(engine, 1);
	report("MAP, 16 Mi pages", LIST_PAGES, began);
	began = now_s();
	for (uint32_t round = 0; round < LIST_ROUNDS; round++) {
		for (uint32_t i = 0; i < LIST; i++)
			pages[i] = draw() % LIST_PAGES;
		submit_list(engine, session, pages);
		missing += pages[round] == 0;
	}
	report("TRANSLATE list, random over 16 Mi pages", (double)LIST_ROUNDS * LIST, began);
	if (missing) {
		fprintf(stderr, "%llu pages are missing\n", (unsigned long long)missing);
		exit(1);
	}
	commands[0] = (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_DESTROY, .session = session};
	began = now_s();
	submit(engine, 1);
	report("SESSION_DESTROY, pages", LIST_PAGES, began);
}

static void recover_all(kvd_engine *engine)
{
	struct kvd_engine_recovery result = {0};
	double began = now_s();

	if (kvd_engine_recover(engine, &result) || result.losses_count)
		exit(1);
	report("recover, pages", GIANT_PAGES, began);
}

static void map_unmap_single(kvd_engine *engine)
{
	static struct kvd_abi_map_run runs[BATCH];
	double began = now_s();

	for (uint32_t round = 0; round < ROUNDS / 4; round++) {
		for (uint32_t i = 0; i < BATCH; i += 2) {
			runs[i] = (struct kvd_abi_map_run){.first_page = draw() % OBJECT_PAGES, .count = 1, .blocks = 16};
			commands[i] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_MAP,
				.session = sessions[i % OBJECTS],
				.slot = 1,
				.tier = KVD_ABI_TIER_DDR,
				.count = 1,
				.buffer = (uintptr_t)&runs[i],
				.buffer_bytes = sizeof(runs[i]),
			};
			commands[i + 1] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_UNMAP,
				.session = commands[i].session,
				.slot = 1,
				.first_page = runs[i].first_page,
				.count = 1,
			};
		}
		submit(engine, BATCH);
	}
	report("MAP then UNMAP, one random page a command", (double)ROUNDS / 4 * BATCH / 2, began);
}

/* A batch of small objects mapped, then unmapped: pages a second of the whole cycle. */
static void map_unmap_objects(kvd_engine *engine)
{
	static struct kvd_abi_map_run run = {.count = 256, .blocks = 16};
	uint32_t rounds = ROUNDS / 16;
	double began = now_s();

	for (uint32_t round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < OBJECTS; i++)
			commands[i] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_MAP,
				.session = sessions[i],
				.slot = 2,
				.tier = KVD_ABI_TIER_DDR,
				.count = 1,
				.buffer = (uintptr_t)&run,
				.buffer_bytes = sizeof(run),
			};
		for (uint32_t i = 0; i < OBJECTS; i++)
			commands[OBJECTS + i] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_UNMAP,
				.session = sessions[i],
				.slot = 2,
				.count = run.count,
			};
		submit(engine, 2 * OBJECTS);
	}
	report("MAP then UNMAP, 16 MiB objects, pages", (double)rounds * OBJECTS * (double)run.count, began);
}

static void remap_objects(kvd_engine *engine)
{
	double began = now_s();

	for (uint32_t i = 0; i < OBJECTS; i++)
		commands[i] = (struct kvd_abi_cmd){
			.op = KVD_ABI_OP_REMAP,
			.flags = KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK,
			.session = sessions[i],
			.other_slot = 3,
			.tier = KVD_ABI_TIER_DDR,
			.count = OBJECT_PAGES,
		};
	submit(engine, OBJECTS);
	report("REMAP with KEEP, pages", GIANT_PAGES, began);
	began = now_s();
	for (uint32_t i = 0; i < OBJECTS; i++) {
		commands[i].flags = KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK;
		commands[i].tier = KVD_ABI_TIER_NVME;
	}
	submit(engine, OBJECTS);
	report("REMAP with TAKE, pages", GIANT_PAGES, began);
}

int main(void)
{
	char text[512] = "";
	kvd_engine *engine;
	double began;
	uint64_t faults;

	if (kvd_engine_init(&config, &engine))
		return 1;
	fill(engine);
	translate_random(engine);
	translate_list(engine);
	map_unmap_single(engine);
	map_unmap_objects(engine);
	remap_objects(engine);
	began = now_s();
	faults = kvd_engine_check(engine, text, sizeof(text));
	report("check, pages", GIANT_PAGES, began);
	recover_all(engine);
	kvd_engine_fini(engine);
	fputs(text, stderr);
	return faults != 0;
}
