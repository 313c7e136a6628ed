/* The loads that ask the kernel one thing at a time. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/load.h"

#define NS_PER_S 1000000000u
#define HUGE_BYTES ((uintptr_t)2 << 20)
#define FILE_MODE 0644
#define CALLS_A_LOOK 32u /* at the clock */
#define VECTOR_BYTES 64u

typedef uint64_t vector __attribute__((vector_size(VECTOR_BYTES), aligned(VECTOR_BYTES)));

uint64_t kvd_bench_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

void *kvd_bench_buffer(uint64_t bytes)
{
	uintptr_t start;
	void *map = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	start = ((uintptr_t)map + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
	(void)madvise((void *)start, bytes, MADV_HUGEPAGE); /* without them it is slower, and as right */
	memset((void *)start, 1, bytes);
	return (void *)start;
}

void kvd_bench_fail(struct kvd_bench_tally *tally, int error)
{
	tally->errors++;
	if (!tally->error)
		tally->error = error;
}

bool kvd_bench_take(const struct kvd_bench_load *load, uint32_t *index)
{
	*index = atomic_fetch_add_explicit(&load->shared->next_file, 1, memory_order_relaxed);
	return *index < load->n_files;
}

/* Never 0, which is what a hole reads as. */
uint64_t kvd_bench_stamp(uint32_t file, uint64_t block)
{
	return ((uint64_t)file + 1) << 32 | (block & UINT32_MAX);
}

static bool has_stamp(const void *buffer, uint32_t file, uint64_t block)
{
	uint64_t found;

	memcpy(&found, buffer, sizeof(found));
	return found == kvd_bench_stamp(file, block);
}

/* 0 or -errno; -EBADMSG: other bytes than were written. */
static int read_blocks(const struct kvd_bench_load *load, uint32_t file, int fd, void *buffer, uint64_t *bytes)
{
	for (uint64_t block = 0;; block++) {
		ssize_t got = read(fd, buffer, load->block_bytes);

		if (got < 0)
			return -errno;
		if (got == 0)
			return 0;
		if (load->stamped && !has_stamp(buffer, file, block))
			return -EBADMSG;
		*bytes += (uint64_t)got;
	}
}

static void read_files(const struct kvd_bench_load *load, struct kvd_bench_tally *tally, void *buffer)
{
	uint32_t file;

	while (kvd_bench_take(load, &file)) {
		uint64_t before_ns = kvd_bench_now_ns();
		int fd = open(load->files[file], O_RDONLY | O_CLOEXEC);
		int err = fd < 0 ? -errno : 0;

		if (!err && load->first) {
			if (pread(fd, buffer, 1, 0) != 1)
				err = errno ? -errno : -ENODATA;
			tally->first_ns = kvd_bench_now_ns() - before_ns;
		}
		if (!err)
			err = read_blocks(load, file, fd, buffer, &tally->bytes);
		if (fd >= 0)
			(void)close(fd);
		tally->ops++;
		if (err)
			kvd_bench_fail(tally, -err);
	}
}

static uint64_t sum_words(const void *start, uint64_t bytes)
{
	const vector *words = start;
	vector sums = {0};
	uint64_t sum = 0;

	for (uint64_t i = 0; i < bytes / VECTOR_BYTES; i++)
		sums += words[i];
	for (uint32_t i = 0; i < VECTOR_BYTES / sizeof(uint64_t); i++)
		sum += sums[i];
	return sum;
}

static uint64_t touch_pages(const void *start, uint64_t bytes)
{
	const volatile uint8_t *pages = start;
	uint64_t sum = 0;

	for (uint64_t at = 0; at < bytes; at += KVD_BENCH_ALIGN_BYTES)
		sum += pages[at];
	return sum;
}

static int map_file(const char *name, uint64_t (*look)(const void *start, uint64_t bytes), struct kvd_bench_tally *tally)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	struct stat found;
	void *start = MAP_FAILED;
	int err = 0;

	if (fd < 0 || fstat(fd, &found) < 0)
		err = -errno;
	if (!err) {
		start = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (start == MAP_FAILED)
			err = -errno;
	}
	if (!err) {
		tally->sum += look(start, (uint64_t)found.st_size);
		tally->bytes += (uint64_t)found.st_size;
		(void)munmap(start, (size_t)found.st_size);
	}
	if (fd >= 0)
		(void)close(fd);
	return err;
}

static void map_files(const struct kvd_bench_load *load, struct kvd_bench_tally *tally)
{
	uint64_t (*look)(const void *, uint64_t) = load->op == KVD_BENCH_TOUCH ? touch_pages : sum_words;
	uint32_t file;

	while (kvd_bench_take(load, &file)) {
		int err = map_file(load->files[file], look, tally);

		tally->ops++;
		if (err)
			kvd_bench_fail(tally, -err);
	}
}

static int write_blocks(const struct kvd_bench_load *load, uint32_t file, int fd, void *buffer, uint64_t *bytes)
{
	for (uint64_t at = 0, block = 0; at < load->file_bytes; block++) {
		uint64_t left = load->file_bytes - at;
		uint64_t stamp = kvd_bench_stamp(file, block);
		ssize_t put;

		memcpy(buffer, &stamp, sizeof(stamp));
		put = write(fd, buffer, left < load->block_bytes ? left : load->block_bytes);
		if (put < 0)
			return -errno;
		if ((uint64_t)put < load->block_bytes && (uint64_t)put < left)
			return -ENOSPC; /* a short write is how a full file system says it first */
		at += (uint64_t)put;
		*bytes += (uint64_t)put;
	}
	return 0;
}

static void write_files(const struct kvd_bench_load *load, struct kvd_bench_tally *tally, void *buffer)
{
	uint32_t file;

	while (kvd_bench_take(load, &file)) {
		int fd = open(load->files[file], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, FILE_MODE);
		int err = fd < 0 ? -errno : write_blocks(load, file, fd, buffer, &tally->bytes);

		if (fd >= 0 && close(fd) < 0 && !err)
			err = -errno;
		tally->ops++;
		if (err)
			kvd_bench_fail(tally, -err);
	}
}

static int open_and_close(const char *name)
{
	int fd = open(name, O_RDONLY | O_CLOEXEC);

	return fd < 0 || close(fd) < 0 ? errno : 0;
}

static int stat_found(const char *name)
{
	struct stat found;

	return stat(name, &found) < 0 ? errno : 0;
}

static int stat_missing(const char *name)
{
	struct stat found;

	if (stat(name, &found) == 0)
		return EEXIST;
	return errno == ENOENT ? 0 : errno;
}

/* The same call over all files in turn, until the time is up. */
static void repeat(const struct kvd_bench_load *load, uint32_t worker, struct kvd_bench_tally *tally,
		   int (*call)(const char *name))
{
	uint64_t until_ns = kvd_bench_now_ns() + load->duration_ns;
	uint32_t file = (uint32_t)((uint64_t)worker * load->n_files / load->workers);

	while (kvd_bench_now_ns() < until_ns) {
		for (uint32_t i = 0; i < CALLS_A_LOOK; i++) {
			int error = call(load->files[file]);

			if (error)
				kvd_bench_fail(tally, error);
			file = file + 1 < load->n_files ? file + 1 : 0;
		}
		tally->ops += CALLS_A_LOOK;
	}
}

void kvd_bench_work(const struct kvd_bench_load *load, uint32_t worker, void *buffer, struct kvd_bench_tally *tally)
{
	switch (load->op) {
	case KVD_BENCH_READ:
		read_files(load, tally, buffer);
		break;
	case KVD_BENCH_MAP:
	case KVD_BENCH_TOUCH:
		map_files(load, tally);
		break;
	case KVD_BENCH_SUM:
		tally->sum += sum_words(buffer, load->file_bytes);
		tally->bytes += load->file_bytes;
		tally->ops++;
		break;
	case KVD_BENCH_WRITE:
		write_files(load, tally, buffer);
		break;
	case KVD_BENCH_DIRECT_READ:
	case KVD_BENCH_DIRECT_WRITE:
		kvd_bench_direct(load, buffer, tally);
		break;
	case KVD_BENCH_OPEN:
		repeat(load, worker, tally, open_and_close);
		break;
	case KVD_BENCH_STAT:
		repeat(load, worker, tally, stat_found);
		break;
	case KVD_BENCH_MISS:
		repeat(load, worker, tally, stat_missing);
		break;
	case KVD_BENCH_WATCH:
		kvd_bench_watch(load, tally);
		break;
	case KVD_BENCH_OPS:
		break;
	}
}
