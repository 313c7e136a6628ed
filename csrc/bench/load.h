/*
 * Loads for `kvctl bench`: what clients of a file system do, in processes of their own and without an interpreter
 * between them and the kernel. The program kvd-bench runs one load and prints one JSON line.
 *
 * A load works on files whose names it gets. Workers take them from one shared counter, in order, so that the faster one
 * does more. What is written is stamped: each block begins with a word that names its file and its place, and a reader
 * that is told so checks it, so that a fast answer with other bytes is an error and no result.
 */
#ifndef KVD_BENCH_LOAD_H
#define KVD_BENCH_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum kvd_bench_limit_load {
	KVD_BENCH_WORKERS_MAX = 64,
	KVD_BENCH_DEPTH_MAX = 256,
	KVD_BENCH_BLOCK_BYTES_MAX = 64 << 20,
	KVD_BENCH_ALIGN_BYTES = 4096, /* of O_DIRECT, and a page of memory */
	KVD_BENCH_SUM_BYTES_MAX = 1 << 30,
	KVD_BENCH_OPEN_FILES_MAX = 8192, /* of a direct load: they stay open to its end */
};

enum kvd_bench_op {
	KVD_BENCH_READ,         /* read() to the end, in blocks */
	KVD_BENCH_MAP,          /* sum of all words over a fresh mapping */
	KVD_BENCH_TOUCH,        /* one byte of each page of it */
	KVD_BENCH_SUM,          /* sum of all words of memory that is there: what MAP could be at best; names are not looked at */
	KVD_BENCH_WRITE,        /* a new file, in blocks */
	KVD_BENCH_DIRECT_READ,  /* O_DIRECT, io_uring, `depth` blocks in flight, buffers of huge pages */
	KVD_BENCH_DIRECT_WRITE, /* the same; durable at the end */
	KVD_BENCH_OPEN,         /* open and close, over and over, for `duration_ns` */
	KVD_BENCH_STAT,         /* stat of names that are there, for `duration_ns` */
	KVD_BENCH_MISS,         /* stat of names that are not */
	KVD_BENCH_WATCH,        /* `rounds` changes below the folder that is named: another process must see each at once */
	KVD_BENCH_OPS,
};

/* What a worker did. */
struct kvd_bench_tally {
	uint64_t bytes;
	uint64_t ops;      /* files, or calls of the timed loads */
	uint64_t errors;   /* files, or calls */
	int32_t error;     /* errno of the first */
	uint32_t reserved;
	uint64_t sum;      /* MAP, TOUCH, SUM: of all that was looked at */
	uint64_t first_ns; /* READ with `first`: from before the open to the first byte, of the worker's last file */
	uint64_t end_ns;
};

/* Memory that the processes share. */
struct kvd_bench_shared {
	_Atomic uint32_t next_file;
	struct kvd_bench_tally tallies[KVD_BENCH_WORKERS_MAX];
};

struct kvd_bench_load {
	enum kvd_bench_op op;
	uint32_t workers;
	uint32_t depth;
	uint32_t rounds;
	uint64_t block_bytes;
	uint64_t file_bytes; /* of a file to write */
	uint64_t duration_ns;
	bool stamped;        /* check what is read */
	bool first;          /* ask for the first byte apart */
	bool allocate;       /* fallocate before a direct write */
	char **files;
	uint32_t n_files;
	struct kvd_bench_shared *shared;
};

/* load.c: the work of one process in a buffer of `depth` blocks; what fails is counted in the tally. */
void kvd_bench_work(const struct kvd_bench_load *load, uint32_t worker, void *buffer, struct kvd_bench_tally *tally);
uint64_t kvd_bench_now_ns(void);
/* Memory from a huge page's border on, touched; NULL: none. */
void *kvd_bench_buffer(uint64_t bytes);
void kvd_bench_fail(struct kvd_bench_tally *tally, int error);
/* The next file of the load; false: all are taken. */
bool kvd_bench_take(const struct kvd_bench_load *load, uint32_t *index);
uint64_t kvd_bench_stamp(uint32_t file, uint64_t block);

/* direct.c */
void kvd_bench_direct(const struct kvd_bench_load *load, void *buffer, struct kvd_bench_tally *tally);

/* watch.c */
void kvd_bench_watch(const struct kvd_bench_load *load, struct kvd_bench_tally *tally);

#endif
