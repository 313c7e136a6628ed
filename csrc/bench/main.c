/*
 * kvd-bench: one load, in so many processes that begin together; one line of JSON. `kvctl bench` runs it.
 *
 *   kvd-bench LOAD [--workers N] [--block BYTES] [--bytes BYTES] [--depth N] [--ms N] [--rounds N]
 *             [--stamped] [--first] [--allocate]
 *
 * The names of the files come on standard input, each with a zero byte behind it. Exit status: 0 also where the file
 * system had errors (they are counted), 1: the load could not be run, 2: usage.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/load.h"

enum {
	EXIT_USAGE = 2,
	NAMES_BYTES_MAX = 256 << 20,
	NAMES_BYTES_STEP = 1 << 16,
};
#define NS_PER_MS 1000000u
#define NS_PER_S 1e9
#define NUMBER_MAX (UINT64_C(1) << 50)
#define DEFAULT_BLOCK_BYTES (1u << 20)

static const char *const op_names[KVD_BENCH_OPS] = {
	[KVD_BENCH_READ] = "read",
	[KVD_BENCH_MAP] = "map",
	[KVD_BENCH_TOUCH] = "touch",
	[KVD_BENCH_SUM] = "sum",
	[KVD_BENCH_WRITE] = "write",
	[KVD_BENCH_DIRECT_READ] = "direct-read",
	[KVD_BENCH_DIRECT_WRITE] = "direct-write",
	[KVD_BENCH_OPEN] = "open",
	[KVD_BENCH_STAT] = "stat",
	[KVD_BENCH_MISS] = "miss",
	[KVD_BENCH_WATCH] = "watch",
};

static const struct option options[] = {
	{"workers", required_argument, NULL, 'w'}, {"block", required_argument, NULL, 'b'},
	{"bytes", required_argument, NULL, 'n'},   {"depth", required_argument, NULL, 'd'},
	{"ms", required_argument, NULL, 'm'},      {"rounds", required_argument, NULL, 'r'},
	{"stamped", no_argument, NULL, 's'},       {"first", no_argument, NULL, 'f'},
	{"allocate", no_argument, NULL, 'a'},      {0},
};

static int usage(const char *why)
{
	fprintf(stderr, "kvd-bench: %s\nusage: kvd-bench LOAD [OPTIONS] <NAMES; kvctl bench runs it\n", why);
	return EXIT_USAGE;
}

static bool number(const char *text, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && end != text && !*end && *out <= NUMBER_MAX;
}

/* NULL, or what is wrong. */
static const char *parse(int argc, char **argv, struct kvd_bench_load *load)
{
	uint64_t value = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == '?' || (optarg && !number(optarg, &value)))
			return "an option is wrong";
		switch (option) {
		case 'w':
			load->workers = value <= KVD_BENCH_WORKERS_MAX ? (uint32_t)value : 0;
			break;
		case 'b':
			load->block_bytes = value;
			break;
		case 'n':
			load->file_bytes = value;
			break;
		case 'd':
			load->depth = value <= KVD_BENCH_DEPTH_MAX ? (uint32_t)value : 0;
			break;
		case 'm':
			load->duration_ns = value * NS_PER_MS;
			break;
		case 'r':
			load->rounds = value <= UINT32_MAX ? (uint32_t)value : 0;
			break;
		case 's':
			load->stamped = true;
			break;
		case 'f':
			load->first = true;
			break;
		default:
			load->allocate = true;
			break;
		}
	}
	if (optind + 1 != argc)
		return "one load is needed";
	load->op = KVD_BENCH_READ;
	while (load->op < KVD_BENCH_OPS && strcmp(op_names[load->op], argv[optind]) != 0)
		load->op++;
	return load->op < KVD_BENCH_OPS ? NULL : "there is no such load";
}

static bool is_direct(const struct kvd_bench_load *load)
{
	return load->op == KVD_BENCH_DIRECT_READ || load->op == KVD_BENCH_DIRECT_WRITE;
}

static const char *check(const struct kvd_bench_load *load)
{
	if (load->workers == 0 || load->depth == 0 || load->rounds == 0)
		return "a number is out of its limits";
	if (load->block_bytes == 0 || load->block_bytes > KVD_BENCH_BLOCK_BYTES_MAX ||
	    load->block_bytes % KVD_BENCH_ALIGN_BYTES || load->file_bytes % sizeof(uint64_t))
		return "blocks are a multiple of 4096 bytes, files of 8";
	if (load->op == KVD_BENCH_DIRECT_WRITE && load->file_bytes % KVD_BENCH_ALIGN_BYTES)
		return "a direct write takes a multiple of 4096 bytes";
	if (load->n_files == 0)
		return "files are needed";
	if (load->op == KVD_BENCH_SUM && (load->file_bytes == 0 || load->file_bytes > KVD_BENCH_SUM_BYTES_MAX))
		return "there is too much or nothing to sum";
	if (is_direct(load) && load->n_files > KVD_BENCH_OPEN_FILES_MAX)
		return "too many files for a direct load";
	return NULL;
}

/* Read names from standard input, which stay until the process ends. NULL, or what is wrong. */
static const char *read_names(struct kvd_bench_load *load)
{
	size_t size = 0, room = 0;
	char *names = NULL;
	ssize_t got;

	do {
		if (size == room) {
			room += room ? room : NAMES_BYTES_STEP;
			names = room <= NAMES_BYTES_MAX ? realloc(names, room) : NULL;
			if (!names)
				return "too many names";
		}
		got = read(STDIN_FILENO, names + size, room - size);
		if (got > 0)
			size += (size_t)got;
	} while (got > 0 || (got < 0 && errno == EINTR));
	if (got < 0 || (size && names[size - 1]))
		return "the names can't be read";
	load->files = calloc(size + 1, sizeof(*load->files)); /* a name has a byte at least */
	if (!load->files)
		return "too many names";
	for (size_t at = 0; at < size; at += strlen(names + at) + 1)
		load->files[load->n_files++] = names + at;
	return NULL;
}

static uint64_t buffer_bytes(const struct kvd_bench_load *load)
{
	if (load->op == KVD_BENCH_SUM)
		return load->file_bytes;
	return load->block_bytes * (is_direct(load) ? load->depth : 1);
}

/* A worker: tells that it is ready, and begins when `go_fd` ends. */
static int be_worker(const struct kvd_bench_load *load, uint32_t worker, int ready_fd, int go_fd)
{
	struct kvd_bench_tally *tally = &load->shared->tallies[worker];
	void *buffer = kvd_bench_buffer(buffer_bytes(load));
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!buffer || write(ready_fd, &byte, 1) != 1 || read(go_fd, &byte, 1) != 0)
		return EXIT_FAILURE;
	kvd_bench_work(load, worker, buffer, tally);
	tally->end_ns = kvd_bench_now_ns();
	return EXIT_SUCCESS;
}

/* Start the workers, let them go together, wait for all. The time of the start, or 0: one of them could not do it. */
static uint64_t run(const struct kvd_bench_load *load)
{
	uint32_t started = 0, ready = 0;
	uint64_t began_ns = 0;
	int ready_fds[2], go_fds[2], status;
	bool failed = false;
	char byte;

	if (pipe(ready_fds) < 0 || pipe(go_fds) < 0)
		return 0;
	for (; started < load->workers; started++) {
		pid_t pid = fork();

		if (pid < 0)
			break;
		if (pid == 0) {
			(void)close(ready_fds[0]);
			(void)close(go_fds[1]);
			_exit(be_worker(load, started, ready_fds[1], go_fds[0]));
		}
	}
	(void)close(ready_fds[1]);
	(void)close(go_fds[0]);
	while (ready < started && read(ready_fds[0], &byte, 1) == 1)
		ready++;
	began_ns = kvd_bench_now_ns();
	(void)close(go_fds[1]);
	while (wait(&status) > 0)
		failed |= !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS;
	(void)close(ready_fds[0]);
	return failed || ready < load->workers ? 0 : began_ns;
}

static void print(const struct kvd_bench_load *load, uint64_t began_ns)
{
	struct kvd_bench_tally all = {0};

	for (uint32_t i = 0; i < load->workers; i++) {
		const struct kvd_bench_tally *one = &load->shared->tallies[i];

		all.bytes += one->bytes;
		all.ops += one->ops;
		all.errors += one->errors;
		all.sum += one->sum;
		if (!all.error)
			all.error = one->error;
		if (one->first_ns > all.first_ns)
			all.first_ns = one->first_ns;
		if (one->end_ns > all.end_ns)
			all.end_ns = one->end_ns;
	}
	printf("{\"bytes\": %" PRIu64 ", \"ops\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"error\": \"%s\", "
	       "\"sum\": %" PRIu64 ", \"first_s\": %.9f, \"seconds\": %.9f}\n",
	       all.bytes, all.ops, all.errors, all.error ? strerrorname_np(all.error) : "", all.sum,
	       (double)all.first_ns / NS_PER_S, (double)(all.end_ns - began_ns) / NS_PER_S);
}

int main(int argc, char **argv)
{
	struct kvd_bench_load load = {.workers = 1, .depth = 1, .rounds = 1, .block_bytes = DEFAULT_BLOCK_BYTES};
	const char *wrong = parse(argc, argv, &load);
	uint64_t began_ns;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody wants to know any more */
	if (!wrong)
		wrong = read_names(&load);
	if (!wrong)
		wrong = check(&load);
	if (wrong)
		return usage(wrong);
	load.shared = mmap(NULL, sizeof(*load.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (load.shared == MAP_FAILED) {
		perror("kvd-bench");
		return EXIT_FAILURE;
	}
	began_ns = run(&load);
	if (!began_ns) {
		fprintf(stderr, "kvd-bench: a worker could not begin or was killed\n");
		return EXIT_FAILURE;
	}
	print(&load, began_ns);
	return EXIT_SUCCESS;
}
