/*
 * What the prefix index costs, for `kvctl bench engine` and tests/c/test_prefix_speed.c.
 *
 * An engine of its own is filled with chains of random hashes, a session for every 16 of them; then random chains are
 * matched, each after the caches were flushed by reading `flush_bytes` of other memory.
 */
#ifndef KVD_ENGINE_PREFIX_BENCH_H
#define KVD_ENGINE_PREFIX_BENCH_H

#include <stdint.h>

/* cffi: begin */
struct kvd_prefix_bench_config {
	uint32_t chains;
	uint32_t chain_blocks; /* 1 to 1024 */
	uint32_t rounds;       /* chains that are matched */
	uint32_t scattered;    /* 1: chains grew block by block in turns, so that no entries are neighbours */
	uint64_t flush_bytes;  /* more than the last cache has; 0: caches stay as they are */
};

struct kvd_prefix_bench_result {
	double match_us_median; /* of a whole chain, cold */
	double match_us_p99;
	double match_us_worst;
	double warm_us_median;  /* the same chain again at once */
	double miss_us_median;  /* of a chain whose first block is absent, cold */
	double insert_mblocks;  /* millions a second; 0 where scattered */
	double remove_mblocks;
	double bytes_per_block; /* of tables */
};

/* 0, or -errno: -EINVAL, -ENOMEM, -EIO for an answer that is wrong. */
int kvd_prefix_bench(const struct kvd_prefix_bench_config *config, struct kvd_prefix_bench_result *out);
/* cffi: end */

#endif
