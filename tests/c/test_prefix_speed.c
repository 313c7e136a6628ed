/* How fast the prefix index is with a million blocks present and cold caches: a benchmark, run by `meson test
 * --benchmark`. */
#include <stdio.h>

#include "engine/prefix_bench.h"

#define CHAINS 8192u
#define CHAIN_BLOCKS 128u
#define ROUNDS 500u
#define FLUSH_BYTES (64u << 20) /* twice the last cache of what this runs on */

static int measure(const char *title, uint32_t scattered, uint64_t flush_bytes)
{
	struct kvd_prefix_bench_config config = {
		.chains = CHAINS,
		.chain_blocks = CHAIN_BLOCKS,
		.rounds = ROUNDS,
		.scattered = scattered,
		.flush_bytes = flush_bytes,
	};
	struct kvd_prefix_bench_result result;
	int err = kvd_prefix_bench(&config, &result);

	if (err) {
		fprintf(stderr, "error %d\n", -err);
		return 1;
	}
	printf("%s\n", title);
	printf("  PREFIX_MATCH of 128 blocks: median %.2f us, 99th of 100 %.2f us, worst %.2f us\n",
	       result.match_us_median, result.match_us_p99, result.match_us_worst);
	printf("  the same chain at once again: median %.2f us; first block absent: median %.2f us\n",
	       result.warm_us_median, result.miss_us_median);
	printf("  PREFIX_INSERT %.2f M blocks/s, PREFIX_REMOVE %.2f M blocks/s, %.1f bytes of table a block\n",
	       result.insert_mblocks, result.remove_mblocks, result.bytes_per_block);
	return 0;
}

int main(void)
{
	return measure("Random chains of a million blocks", 0, 0) ||
	       measure("The same, caches flushed before each", 0, FLUSH_BYTES) ||
	       measure("No two blocks neighbours", 1, 0) ||
	       measure("The same, caches flushed before each", 1, FLUSH_BYTES);
}
