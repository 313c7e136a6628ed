/* The rounds of bench.h, by the commands that a driver would send. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench.h"
#include "convert/convert.h"
#include "engine/engine.h"

#define BATCH 256u
#define LISTS 16u /* a submit */
#define OBJECTS 64u
#define PAGE_BYTES 65536u
#define PAGE_BLOCKS 16u
#define TABLE_BYTES_A_PAGE 16ull /* address space, twice what is expected */
#define ARENA_BYTES_MORE (256ull << 20)
#define LOOKUPS (4u << 20)
#define SMALL_PAGES 256u /* of an object that is mapped and unmapped: 16 MiB */
#define SMALL_ROUNDS 64u
#define USED_EVERY 1024u
#define SCAN_COUNT (1u << 20) /* entries a call */
#define SCAN_RUNS 1024u
#define CHANNELS 1024u
#define TOKENS (32u << 10)
#define WIDE_BYTES 2u
#define SOURCE_BYTES ((size_t)TOKENS * CHANNELS * WIDE_BYTES) /* 64 MiB: more than a cache */
#define SCALES_BYTES ((size_t)TOKENS / KVD_CONVERT_BLOCK_TOKENS * CHANNELS * sizeof(float))

struct kvd_bench {
	kvd_engine *engine;
	uint64_t object_pages;
	uint64_t random;
	uint64_t sessions[OBJECTS];
	struct kvd_abi_cmd commands[BATCH];
	struct kvd_abi_cpl completions[BATCH];
	uint64_t lists[LISTS][BATCH];
	struct {
		struct kvd_abi_age_cursor cursor;
		struct kvd_abi_cold_run runs[SCAN_RUNS];
	} scan;
	unsigned char *source;
	unsigned char *target;
	unsigned char *scales;
	unsigned char *given; /* scales that fit the source */
};

static const struct kvd_convert_blocks shape = {
	.tokens = TOKENS,
	.channels = CHANNELS,
	.wide = KVD_CONVERT_FP16,
	.narrow = KVD_CONVERT_E4M3,
	.scale_format = KVD_CONVERT_SCALE_FP32,
};

/* Of this thread on its core: what others do meanwhile is not counted. */
static double now_s(void)
{
	struct timespec at;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
	return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

/* xorshift64: as fast as what is measured is not slowed by. */
static uint64_t draw(struct kvd_bench *bench)
{
	bench->random ^= bench->random << 13;
	bench->random ^= bench->random >> 7;
	bench->random ^= bench->random << 17;
	return bench->random;
}

static int submit(struct kvd_bench *bench, uint32_t count)
{
	kvd_engine_submit(bench->engine, bench->commands, bench->completions, count);
	for (uint32_t i = 0; i < count; i++) {
		if (bench->completions[i].status != KVD_ABI_STATUS_OK)
			return -EIO;
	}
	return 0;
}

static struct kvd_abi_cmd map_cmd(uint64_t session, uint16_t slot, const struct kvd_abi_map_run *run)
{
	return (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_MAP,
		.session = session,
		.slot = slot,
		.tier = KVD_ABI_TIER_DDR,
		.count = 1,
		.buffer = (uintptr_t)run,
		.buffer_bytes = sizeof(*run),
	};
}

static int fill(struct kvd_bench *bench)
{
	const struct kvd_abi_map_run run = {.count = bench->object_pages, .blocks = PAGE_BLOCKS};
	int err;

	for (uint32_t i = 0; i < OBJECTS; i++) {
		bench->commands[0] = (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = i};
		err = submit(bench, 1);
		if (err)
			return err;
		bench->sessions[i] = bench->completions[0].result0;
		bench->commands[0] = map_cmd(bench->sessions[i], 0, &run);
		err = submit(bench, 1);
		if (err)
			return err;
	}
	return 0;
}

/* Values of a model's keys: finite, of many magnitudes. */
static int make_buffers(struct kvd_bench *bench)
{
	bench->source = malloc(SOURCE_BYTES);
	bench->target = malloc(SOURCE_BYTES);
	bench->scales = malloc(SCALES_BYTES);
	bench->given = malloc(SCALES_BYTES);
	if (!bench->source || !bench->target || !bench->scales || !bench->given)
		return -ENOMEM;
	for (size_t i = 0; i < SOURCE_BYTES; i += WIDE_BYTES) {
		uint64_t random = draw(bench);
		uint16_t value = (uint16_t)((random & 0x8000) | (0x2000 + random % 0x2000));

		memcpy(bench->source + i, &value, sizeof(value));
	}
	/* The first write of memory is slow, whoever does it. */
	memset(bench->target, 0, SOURCE_BYTES);
	memset(bench->scales, 0, SCALES_BYTES);
	return kvd_convert_blocks_encode(bench->target, bench->given, bench->source, &shape);
}

int kvd_bench_init(uint64_t pages, kvd_bench **out)
{
	uint64_t frames = pages + OBJECTS + (uint64_t)OBJECTS * SMALL_PAGES;
	struct kvd_engine_config config = {
		.page_bytes = PAGE_BYTES,
		.sessions_max = OBJECTS,
		.arena_bytes = ARENA_BYTES_MORE + pages * TABLE_BYTES_A_PAGE,
		.arena_fd = -1,
	};
	struct kvd_bench *bench;
	int err;

	if (pages < KVD_BENCH_PAGES_MIN || pages > KVD_BENCH_PAGES_MAX)
		return -EINVAL;
	bench = calloc(1, sizeof(*bench));
	if (!bench)
		return -ENOMEM;
	config.capacity_blocks[KVD_ABI_TIER_DDR] = frames * PAGE_BLOCKS;
	config.total_frames[KVD_ABI_TIER_DDR] = frames;
	bench->random = 1;
	bench->object_pages = (pages + OBJECTS - 1) / OBJECTS;
	err = kvd_engine_init(&config, &bench->engine);
	if (!err)
		err = fill(bench);
	if (!err)
		err = make_buffers(bench);
	if (err) {
		kvd_bench_fini(bench);
		return err;
	}
	*out = bench;
	return 0;
}

void kvd_bench_fini(kvd_bench *bench)
{
	if (!bench)
		return;
	free(bench->given);
	free(bench->scales);
	free(bench->target);
	free(bench->source);
	kvd_engine_fini(bench->engine);
	free(bench);
}

/* Lists of random pages of random objects; the PTEs are looked at, as somebody would who asked for them. */
static int translate_lists(struct kvd_bench *bench)
{
	uint64_t all = KVD_ABI_PTE_VALID_MASK;
	int err;

	for (uint32_t i = 0; i < LISTS; i++) {
		for (uint32_t j = 0; j < BATCH; j++)
			bench->lists[i][j] = draw(bench) % bench->object_pages;
		bench->commands[i] = (struct kvd_abi_cmd){
			.op = KVD_ABI_OP_TRANSLATE,
			.flags = KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
			.session = bench->sessions[draw(bench) % OBJECTS],
			.count = BATCH,
			.buffer = (uintptr_t)bench->lists[i],
			.buffer_bytes = sizeof(bench->lists[i]),
		};
	}
	err = submit(bench, LISTS);
	if (err)
		return err;
	for (uint32_t i = 0; i < LISTS; i++)
		for (uint32_t j = 0; j < BATCH; j++)
			all &= bench->lists[i][j];
	return all ? 0 : -EIO;
}

int kvd_bench_translate(kvd_bench *bench, double *per_s)
{
	double began = now_s();

	for (uint32_t done = 0; done < LOOKUPS; done += LISTS * BATCH) {
		int err = translate_lists(bench);

		if (err)
			return err;
	}
	*per_s = LOOKUPS / (now_s() - began);
	return 0;
}

int kvd_bench_map(kvd_bench *bench, double *per_s)
{
	const struct kvd_abi_map_run run = {.count = SMALL_PAGES, .blocks = PAGE_BLOCKS};
	double began = now_s();

	for (uint32_t round = 0; round < SMALL_ROUNDS; round++) {
		int err;

		for (uint32_t i = 0; i < OBJECTS; i++) {
			bench->commands[i] = map_cmd(bench->sessions[i], 1, &run);
			bench->commands[OBJECTS + i] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_UNMAP,
				.session = bench->sessions[i],
				.slot = 1,
				.count = run.count,
			};
		}
		err = submit(bench, 2 * OBJECTS);
		if (err)
			return err;
	}
	*per_s = (double)SMALL_ROUNDS * OBJECTS * SMALL_PAGES / (now_s() - began);
	return 0;
}

/* Use a page of `USED_EVERY` of each object. */
static int use_some(struct kvd_bench *bench)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		for (uint64_t page = draw(bench) % USED_EVERY; page < bench->object_pages; page += USED_EVERY) {
			int err;

			bench->commands[0] = (struct kvd_abi_cmd){
				.op = KVD_ABI_OP_TOUCH,
				.session = bench->sessions[i],
				.first_page = page,
				.count = 1,
			};
			err = submit(bench, 1);
			if (err)
				return err;
		}
	}
	return 0;
}

int kvd_bench_age_scan(kvd_bench *bench, double *per_s)
{
	uint16_t flags = KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK;
	uint64_t looked = 0;
	double began;
	int err = use_some(bench);

	if (err)
		return err;
	memset(&bench->scan.cursor, 0, sizeof(bench->scan.cursor));
	began = now_s();
	while (!bench->scan.cursor.done) {
		bench->commands[0] = (struct kvd_abi_cmd){
			.op = KVD_ABI_OP_AGE_SCAN,
			.flags = flags,
			.slot = INT8_MAX, /* who is as old as can be is reported: nobody yet */
			.count = SCAN_COUNT,
			.buffer = (uintptr_t)&bench->scan,
			.buffer_bytes = sizeof(bench->scan),
		};
		err = submit(bench, 1);
		if (err)
			return err;
		looked += bench->completions[0].result1;
		flags = 0;
	}
	*per_s = (double)looked / (now_s() - began);
	return 0;
}

double kvd_bench_bytes_per_page(const kvd_bench *bench)
{
	struct kvd_engine_stats stats;

	kvd_engine_stats(bench->engine, &stats);
	return (double)stats.table_bytes / (double)stats.mapped_pages;
}

int kvd_bench_convert(kvd_bench *bench, enum kvd_bench_move move, double *per_s)
{
	bool int8 = move == KVD_BENCH_TO_INT8 || move == KVD_BENCH_TO_INT8_SCALED;
	struct kvd_convert_blocks blocks = shape;
	double began;
	int err = 0;

	if ((unsigned int)move >= KVD_BENCH_MOVE_COUNT)
		return -EINVAL;
	blocks.narrow = int8 ? KVD_CONVERT_INT8 : KVD_CONVERT_E4M3;
	began = now_s();
	if (move == KVD_BENCH_MEMCPY)
		memcpy(bench->target, bench->source, SOURCE_BYTES);
	else if (move == KVD_BENCH_TO_E4M3 || move == KVD_BENCH_TO_INT8)
		err = kvd_convert_blocks_encode_with(bench->target, bench->given, bench->source, &blocks);
	else
		err = kvd_convert_blocks_encode(bench->target, bench->scales, bench->source, &blocks);
	*per_s = (double)SOURCE_BYTES / (now_s() - began);
	return err;
}
