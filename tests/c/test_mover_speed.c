/*
 * How near the mover comes to the disk: promotions of 64 objects of 16 MiB against a direct read of the same files with
 * 32 requests of 1 MiB in flight, and demotions of them against direct writes of as much into one file that is allocated
 * already, with one sync at the end. Interleaved; prints the median ratios and their spread.
 *
 *     test_mover_speed [ROUNDS [QUEUE_DEPTH [IO_MIB [DIRECTORY]]]]
 *
 * Needs root, to mount the tmpfs with huge pages that the promotions go to.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "mover/mover.h"

enum {
	OBJECTS = 64,
	PAGE_BYTES = 65536,
	PAGES = 256,
	OBJECT_BYTES = PAGES * PAGE_BYTES,
	IO_BYTES = 1 << 20,
	PEER_DEPTH = 32,
	ROUNDS_MAX = 101,
	HUGE_BYTES = 2 << 20,
	DEADLINE_MS = 60000,
};

static uint32_t crc[OBJECTS][PAGES];
static const struct kvd_mover_run whole = {0, PAGES};
static char dir[256], ddr_dir[] = "/tmp/kvd-speed-XXXXXX";
static int dir_fd;

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static double clock_s(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int open_in(const char *folder, const char *kind, int i, int flags)
{
	char path[320];
	int fd;

	snprintf(path, sizeof(path), "%s/%s-%d", folder, kind, i);
	if (flags & O_CREAT)
		(void)unlink(path);
	fd = open(path, flags | O_CLOEXEC, 0600);
	check(fd >= 0, path);
	return fd;
}

static void remove_in(const char *folder, const char *kind, int i)
{
	char path[320];

	snprintf(path, sizeof(path), "%s/%s-%d", folder, kind, i);
	(void)unlink(path);
}

/* All requests of 1 MiB, PEER_DEPTH in flight; `fd_of` says where each goes. */
static double peer(const int *fds, int per_file, int writes)
{
	static uint8_t *buffers;
	const int total = OBJECTS * (OBJECT_BYTES / IO_BYTES);
	struct io_uring ring;
	double start_s;
	int sent = 0, done = 0;

	if (!buffers) {
		buffers = mmap(NULL, (PEER_DEPTH * IO_BYTES) + HUGE_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		buffers += HUGE_BYTES - (uintptr_t)buffers % HUGE_BYTES;
		madvise(buffers, PEER_DEPTH * IO_BYTES, MADV_HUGEPAGE);
		memset(buffers, 7, PEER_DEPTH * IO_BYTES);
	}
	check(io_uring_queue_init(2 * PEER_DEPTH, &ring, 0) == 0, "ring");
	start_s = clock_s(CLOCK_MONOTONIC);
	for (uint32_t slot = 0; done < total;) {
		struct io_uring_cqe *cqe;

		for (; sent < total && sent - done < PEER_DEPTH; sent++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
			uint32_t buffer = sent < PEER_DEPTH ? (uint32_t)sent : slot;
			uint64_t offset = (uint64_t)(sent % per_file) * IO_BYTES;
			uint8_t *at = buffers + (size_t)buffer * IO_BYTES;

			if (writes)
				io_uring_prep_write(sqe, fds[sent / per_file], at, IO_BYTES, offset);
			else
				io_uring_prep_read(sqe, fds[sent / per_file], at, IO_BYTES, offset);
			io_uring_sqe_set_data64(sqe, buffer);
		}
		io_uring_submit_and_wait(&ring, 1);
		check(io_uring_peek_cqe(&ring, &cqe) == 0, "cqe");
		check(cqe->res == IO_BYTES, "short");
		slot = (uint32_t)io_uring_cqe_get_data64(cqe);
		io_uring_cqe_seen(&ring, cqe);
		done++;
	}
	if (writes)
		check(fdatasync(fds[0]) == 0, "fdatasync");
	start_s = clock_s(CLOCK_MONOTONIC) - start_s;
	io_uring_queue_exit(&ring);
	return start_s;
}

/* Processor time of the last moves: what a loaded machine changes least. */
static double cpu_s;

static double move_all(kvd_mover *mover, uint32_t kind, const int *nvme, const int *ddr)
{
	struct pollfd readable = {.fd = kvd_mover_eventfd(mover), .events = POLLIN};
	double start_s = clock_s(CLOCK_MONOTONIC);

	cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);

	for (int i = 0; i < OBJECTS; i++) {
		const struct kvd_mover_part part = {
			.fd = nvme[i], .direct = 1, .dir_fd = kind == KVD_MOVE_DEMOTE ? dir_fd : -1,
		};
		const struct kvd_mover_job job = {
			.token = (uint64_t)i,
			.kind = kind,
			.page_bytes = PAGE_BYTES,
			.ddr_fd = ddr[i],
			.flags = kind == KVD_MOVE_DEMOTE ? KVD_MOVE_SYNC_METADATA : 0,
			.n_parts = 1,
			.parts = &part,
			.size_bytes = OBJECT_BYTES,
			.deadline_ms = DEADLINE_MS,
			.n_runs = 1,
			.runs = &whole,
			.crc = crc[i],
		};

		check(kvd_mover_submit(mover, &job) == 0, "submit");
	}
	for (int done = 0; done < OBJECTS;) {
		struct kvd_mover_result result;
		uint64_t count;

		while (kvd_mover_reap(mover, &result, 1)) {
			check(result.status == 0, "move");
			done++;
		}
		if (done < OBJECTS && poll(&readable, 1, DEADLINE_MS) == 1)
			(void)!read(readable.fd, &count, sizeof(count));
	}
	cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
	return clock_s(CLOCK_MONOTONIC) - start_s;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

enum { RATIO, OURS_GBS, THEIRS_GBS, OURS_CPU, VALUES };

static void report(const char *what, double values[VALUES][ROUNDS_MAX], int n)
{
	for (int i = 0; i < VALUES; i++)
		qsort(values[i], (size_t)n, sizeof(values[i][0]), by_value);
	printf("%-8s ratio %.3f (%.3f to %.3f)  mover %.2f GB/s, at least %.3f s of processor a GB  direct %.2f GB/s\n", what,
	       values[RATIO][n / 2], values[RATIO][n / 4], values[RATIO][n - 1 - n / 4], values[OURS_GBS][n / 2],
	       values[OURS_CPU][0], values[THEIRS_GBS][n / 2]);
}

static void note(double values[VALUES][ROUNDS_MAX], int round, double ours_s, double theirs_s)
{
	const double gb = (double)OBJECTS * OBJECT_BYTES / 1e9;

	if (round < 0)
		return; /* that one only warms up */
	values[RATIO][round] = theirs_s / ours_s;
	values[OURS_GBS][round] = gb / ours_s;
	values[THEIRS_GBS][round] = gb / theirs_s;
	values[OURS_CPU][round] = cpu_s / gb;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 5;
	struct kvd_mover_config config = {
		.queue_jobs = OBJECTS,
		.queue_depth = argc > 2 ? (uint32_t)atoi(argv[2]) : 16,
		.io_bytes = argc > 3 ? (uint32_t)atoi(argv[3]) << 20 : IO_BYTES,
		.n_devices = 1,
		.request_ms = DEADLINE_MS,
	};
	double up[VALUES][ROUNDS_MAX], down[VALUES][ROUNDS_MAX];
	int nvme[OBJECTS], ddr[OBJECTS], big;
	kvd_mover *mover;
	uint8_t *bytes = malloc(OBJECT_BYTES);

	rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
	snprintf(dir, sizeof(dir), "%s/kvd-speed-XXXXXX", argc > 4 ? argv[4] : "/var/tmp");
	check(mkdtemp(dir) != NULL && mkdtemp(ddr_dir) != NULL && bytes, "folders");
	dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "own mounts");
	check(mount("kvd-speed", ddr_dir, "tmpfs", 0, "huge=always,size=4g") == 0, "tmpfs");
	check(kvd_mover_init(&config, &mover) == 0, "mover");
	for (size_t i = 0; i < OBJECT_BYTES; i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 13);
	big = open_in(dir, "big", 0, O_RDWR | O_CREAT | O_DIRECT);
	check(fallocate(big, 0, 0, (off_t)OBJECTS * OBJECT_BYTES) == 0, "space");
	(void)peer(&big, OBJECTS * (OBJECT_BYTES / IO_BYTES), 1);
	for (int i = 0; i < OBJECTS; i++) {
		ddr[i] = open_in(ddr_dir, "ddr", i, O_RDWR | O_CREAT);
		bytes[0] = (uint8_t)i;
		check(write(ddr[i], bytes, OBJECT_BYTES) == OBJECT_BYTES, "object");
	}
	for (int round = -1; round < rounds; round++) {
		double ours_s;

		for (int i = 0; i < OBJECTS; i++)
			nvme[i] = open_in(dir, "nvme", i, O_RDWR | O_CREAT | O_DIRECT);
		ours_s = move_all(mover, KVD_MOVE_DEMOTE, nvme, ddr);
		note(down, round, ours_s, peer(&big, OBJECTS * (OBJECT_BYTES / IO_BYTES), 1));
		for (int i = 0; i < OBJECTS; i++) {
			close(ddr[i]);
			ddr[i] = open_in(ddr_dir, "ddr", i, O_RDWR | O_CREAT);
		}
		ours_s = move_all(mover, KVD_MOVE_PROMOTE, nvme, ddr);
		note(up, round, ours_s, peer(nvme, OBJECT_BYTES / IO_BYTES, 0));
		for (int i = 0; i < OBJECTS; i++)
			close(nvme[i]);
	}
	report("promote", up, rounds);
	report("demote", down, rounds);
	kvd_mover_fini(mover);
	for (int i = 0; i < OBJECTS; i++)
		remove_in(dir, "nvme", i);
	remove_in(dir, "big", 0);
	umount2(ddr_dir, MNT_DETACH);
	rmdir(ddr_dir);
	rmdir(dir);
	free(bytes);
	return 0;
}
