/* The measurement that prefix_bench.h describes. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "engine/prefix.h"
#include "engine/prefix_bench.h"

#define NS_PER_S 1e9
#define CHAINS_PER_SESSION 16u
#define LINE_BYTES 64u
#define HASH_WORDS 4u
#define ARENA_BYTES_A_BLOCK 256u
#define ARENA_BYTES_MORE (64ull << 20)
#define CHAINS_MAX (1u << 20)

struct bench {
	const struct kvd_prefix_bench_config *config;
	kvd_engine *engine;
	unsigned char *flush;
	uint64_t hashes[KVD_PREFIX_COUNT_MAX * HASH_WORDS];
	uint64_t *sessions;
	double *samples;
	uint64_t sum; /* what the flush read, so that it is not left out */
};

static double now_s(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / NS_PER_S;
}

static uint64_t mix(uint64_t at)
{
	at = (at ^ at >> 30) * 0xbf58476d1ce4e5b9ull;
	at = (at ^ at >> 27) * 0x94d049bb133111ebull;
	return at ^ at >> 31;
}

static void make_hash(struct bench *bench, uint64_t chain, uint64_t block)
{
	for (uint64_t i = block * HASH_WORDS; i < (block + 1) * HASH_WORDS; i++)
		bench->hashes[i] = mix((chain << 32 | i) + 0x9e3779b97f4a7c15ull);
}

static void make_hashes(struct bench *bench, uint64_t chain)
{
	for (uint64_t block = 0; block < bench->config->chain_blocks; block++)
		make_hash(bench, chain, block);
}

static void flush(struct bench *bench)
{
	for (uint64_t i = 0; i < bench->config->flush_bytes; i += LINE_BYTES)
		bench->sum += ((volatile unsigned char *)bench->flush)[i];
}

/* One command on blocks of the chain whose hashes were made. */
static int submit_part(struct bench *bench, uint16_t op, uint64_t session, uint32_t first, uint32_t count,
		       uint64_t expected)
{
	struct kvd_abi_cmd cmd = {
		.op = op,
		.session = session,
		.slot = HASH_WORDS * 8,
		.first_page = first,
		.count = count,
		.key = 1,
		.buffer = (uintptr_t)(bench->hashes + first * HASH_WORDS),
		.buffer_bytes = (uint64_t)count * HASH_WORDS * 8,
	};
	struct kvd_abi_cpl cpl;

	kvd_engine_submit(bench->engine, &cmd, &cpl, 1);
	return cpl.status == KVD_ABI_STATUS_OK && cpl.result0 == expected ? 0 : -EIO;
}

static int submit(struct bench *bench, uint16_t op, uint64_t session, uint64_t expected)
{
	return submit_part(bench, op, session, 0, bench->config->chain_blocks, expected);
}

static int make_sessions(struct bench *bench)
{
	for (uint32_t i = 0; i <= (bench->config->chains - 1) / CHAINS_PER_SESSION; i++) {
		struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_SESSION_CREATE, .key = i};
		struct kvd_abi_cpl cpl;

		kvd_engine_submit(bench->engine, &cmd, &cpl, 1);
		if (cpl.status != KVD_ABI_STATUS_OK)
			return -EIO;
		bench->sessions[i] = cpl.result0;
	}
	return 0;
}

/* Insert or remove all chains; millions of blocks a second. */
static int change_all(struct bench *bench, uint16_t op, double *mblocks)
{
	double spent = 0;

	for (uint32_t chain = 0; chain < bench->config->chains; chain++) {
		double began;
		int err;

		make_hashes(bench, chain);
		began = now_s();
		err = submit(bench, op, bench->sessions[chain / CHAINS_PER_SESSION], bench->config->chain_blocks);
		spent += now_s() - began;
		if (err)
			return err;
	}
	*mblocks = (double)bench->config->chains * bench->config->chain_blocks / spent / 1e6;
	return 0;
}

/* Insert block 0 of all chains, then block 1 of all: no two blocks of a chain are neighbours. */
static int insert_scattered(struct bench *bench)
{
	for (uint32_t block = 0; block < bench->config->chain_blocks; block++) {
		for (uint32_t chain = 0; chain < bench->config->chains; chain++) {
			int err;

			make_hash(bench, chain, block);
			err = submit_part(bench, KVD_ABI_OP_PREFIX_INSERT, bench->sessions[chain / CHAINS_PER_SESSION],
					  block, 1, 1);
			if (err)
				return err;
		}
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Match chains from `first` on, drawn at random, into the samples, sorted. */
static int match_some(struct bench *bench, uint64_t first, uint64_t expected, bool warm)
{
	for (uint32_t round = 0; round < bench->config->rounds; round++) {
		double began;
		int err = 0;

		make_hashes(bench, first + mix(round) % bench->config->chains);
		if (warm)
			err = submit(bench, KVD_ABI_OP_PREFIX_MATCH, 0, expected);
		else
			flush(bench);
		began = now_s();
		err = err ? err : submit(bench, KVD_ABI_OP_PREFIX_MATCH, 0, expected);
		bench->samples[round] = (now_s() - began) * 1e6;
		if (err)
			return err;
	}
	qsort(bench->samples, bench->config->rounds, sizeof(double), by_value);
	return 0;
}

static int measure(struct bench *bench, struct kvd_prefix_bench_result *out)
{
	uint32_t rounds = bench->config->rounds;
	struct kvd_engine_stats stats;
	int err;

	err = make_sessions(bench);
	if (bench->config->scattered)
		err = err ? err : insert_scattered(bench);
	else
		err = err ? err : change_all(bench, KVD_ABI_OP_PREFIX_INSERT, &out->insert_mblocks);
	if (err)
		return err;
	kvd_engine_stats(bench->engine, &stats);
	out->bytes_per_block = (double)stats.table_bytes / bench->config->chains / bench->config->chain_blocks;
	err = match_some(bench, 0, bench->config->chain_blocks, false);
	out->match_us_median = bench->samples[rounds / 2];
	out->match_us_p99 = bench->samples[rounds - 1 - rounds / 100];
	out->match_us_worst = bench->samples[rounds - 1];
	err = err ? err : match_some(bench, 0, bench->config->chain_blocks, true);
	out->warm_us_median = bench->samples[rounds / 2];
	err = err ? err : match_some(bench, bench->config->chains, 0, false);
	out->miss_us_median = bench->samples[rounds / 2];
	return err ? err : change_all(bench, KVD_ABI_OP_PREFIX_REMOVE, &out->remove_mblocks);
}

static int prepare(struct bench *bench)
{
	const struct kvd_prefix_bench_config *config = bench->config;
	uint64_t blocks = (uint64_t)config->chains * config->chain_blocks;
	uint32_t sessions = (config->chains - 1) / CHAINS_PER_SESSION + 1;
	struct kvd_engine_config engine = {
		.page_bytes = 65536,
		.sessions_max = sessions,
		.arena_bytes = ARENA_BYTES_MORE + blocks * ARENA_BYTES_A_BLOCK,
		.capacity_blocks = {0, 16, 0, 0, 0},
		.arena_fd = -1,
	};

	bench->sessions = calloc(sessions, sizeof(*bench->sessions));
	bench->samples = calloc(config->rounds, sizeof(*bench->samples));
	/* Pages of zeros that nobody wrote would all be one page, and flush nothing. */
	bench->flush = malloc(config->flush_bytes + 1);
	if (!bench->sessions || !bench->samples || !bench->flush)
		return -ENOMEM;
	for (uint64_t i = 0; i < config->flush_bytes; i += LINE_BYTES)
		bench->flush[i] = (unsigned char)mix(i);
	return kvd_engine_init(&engine, &bench->engine);
}

int kvd_prefix_bench(const struct kvd_prefix_bench_config *config, struct kvd_prefix_bench_result *out)
{
	struct bench *bench;
	int err;

	if (!config->chains || config->chains > CHAINS_MAX || !config->chain_blocks ||
	    config->chain_blocks > KVD_PREFIX_COUNT_MAX || !config->rounds || config->scattered > 1)
		return -EINVAL;
	bench = calloc(1, sizeof(*bench));
	if (!bench)
		return -ENOMEM;
	bench->config = config;
	*out = (struct kvd_prefix_bench_result){0};
	err = prepare(bench);
	err = err ? err : measure(bench, out);
	kvd_engine_fini(bench->engine);
	free(bench->flush);
	free(bench->samples);
	free(bench->sessions);
	free(bench);
	return err;
}
