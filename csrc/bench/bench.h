/*
 * How fast the engine is: one round of one measurement a call, so that the caller can interleave what it compares.
 *
 * The shape is that of the promises: pages of 64 KiB, mapped in 64 objects of one slot each. Everything runs in the
 * calling thread, and it is that thread's processor time that counts. Memory: 8 bytes a page for the tables, and 160 MiB for the conversions.
 */
#ifndef KVD_BENCH_BENCH_H
#define KVD_BENCH_BENCH_H

#include <stdint.h>

#include "engine/prefix_bench.h"

/* cffi: begin */
typedef struct kvd_bench kvd_bench;

enum kvd_bench_limit {
	KVD_BENCH_PAGES_MIN = 4096,
	KVD_BENCH_PAGES_MAX = 1 << 28, /* 2 GiB of tables */
};

enum kvd_bench_move {
	KVD_BENCH_MEMCPY = 0,
	KVD_BENCH_TO_E4M3 = 1, /* FP16 with a scale for each channel of 64 tokens, which is given */
	KVD_BENCH_TO_INT8 = 2,
	KVD_BENCH_TO_E4M3_SCALED = 3, /* the same, the scales chosen from the values first */
	KVD_BENCH_TO_INT8_SCALED = 4,
	KVD_BENCH_MOVE_COUNT = 5,
};

/* Map `pages` pages: 0 or -errno (-EINVAL: out of the limits, -ENOMEM, -EIO: the engine refused a command). */
int kvd_bench_init(uint64_t pages, kvd_bench **out);
void kvd_bench_fini(kvd_bench *bench);
/* Random pages looked up in batches: lookups a second. 0 or -EIO. */
int kvd_bench_translate(kvd_bench *bench, double *per_s);
/* Objects of 256 pages mapped and unmapped: pages a second that went through both. 0 or -EIO. */
int kvd_bench_map(kvd_bench *bench, double *per_s);
/* A whole AGE_SCAN in bounded calls, one page of 1,024 used since the last: entries a second. 0 or -EIO. */
int kvd_bench_age_scan(kvd_bench *bench, double *per_s);
/* Bytes of tables for each mapped page. */
double kvd_bench_bytes_per_page(const kvd_bench *bench);
/* The same source bytes copied or converted: bytes of it a second. 0 or -EINVAL. */
int kvd_bench_convert(kvd_bench *bench, enum kvd_bench_move move, double *per_s);
/* cffi: end */

#endif
