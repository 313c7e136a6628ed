/* How many entries a second AGE_SCAN looks at, over 16 M mapped pages: a benchmark, run by `meson test --benchmark`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/age.h"

#define OBJECTS 64u
#define OBJECT_PAGES (256u << 10) /* 16 GiB of 64 KiB pages */
#define PAGES ((uint64_t)OBJECTS * OBJECT_PAGES)
#define ROUNDS 5u
#define RUNS 4096u
#define COUNT_A_CALL (1u << 20) /* entries: some milliseconds */
#define MEGA 1e6

static const struct kvd_engine_config config = {
	.page_bytes = 65536,
	.sessions_max = OBJECTS,
	.arena_bytes = 1ull << 30,
	.capacity_blocks = {0, 16ull * PAGES, 0, 0, 0},
	.total_frames = {0, PAGES, 0, 0, 0},
	.arena_fd = -1,
};

static struct {
	struct kvd_abi_age_cursor cursor;
	struct kvd_abi_cold_run runs[RUNS];
} buffer;
static uint64_t sessions[OBJECTS];

/* Of this thread on its core: what others do meanwhile is not counted. */
static double now_s(void)
{
	struct timespec at;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
	return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static struct kvd_abi_cpl submit(kvd_engine *engine, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_cpl cpl;

	kvd_engine_submit(engine, &cmd, &cpl, 1);
	if (cpl.status) {
		fprintf(stderr, "op %u: status %u\n", cmd.op, cpl.status);
		exit(1);
	}
	return cpl;
}

static void fill(kvd_engine *engine)
{
	static struct kvd_abi_map_run run = {.count = OBJECT_PAGES, .blocks = 16};

	for (uint32_t i = 0; i < OBJECTS; i++) {
		sessions[i] = submit(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = i}).result0;
		submit(engine, (struct kvd_abi_cmd){
				       .op = KVD_ABI_OP_MAP,
				       .session = sessions[i],
				       .tier = KVD_ABI_TIER_DDR,
				       .count = 1,
				       .buffer = (uintptr_t)&run,
				       .buffer_bytes = sizeof(run),
			       });
	}
}

/* Touch one page of `every`. */
static void touch(kvd_engine *engine, uint32_t every)
{
	for (uint64_t at = 0; every && at < PAGES; at += every)
		submit(engine, (struct kvd_abi_cmd){
				       .op = KVD_ABI_OP_TOUCH,
				       .session = sessions[at / OBJECT_PAGES],
				       .first_page = at % OBJECT_PAGES,
				       .count = 1,
			       });
}

/* A whole scan in bounded calls; seconds. */
static double scan(kvd_engine *engine, uint16_t least, uint64_t *looked, uint64_t *runs)
{
	uint16_t flags = KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK;
	double began = now_s();

	memset(&buffer.cursor, 0, sizeof(buffer.cursor));
	*looked = 0;
	*runs = 0;
	while (!buffer.cursor.done) {
		struct kvd_abi_cpl cpl = submit(engine, (struct kvd_abi_cmd){
								.op = KVD_ABI_OP_AGE_SCAN,
								.flags = flags,
								.slot = least,
								.count = COUNT_A_CALL,
								.buffer = (uintptr_t)&buffer,
								.buffer_bytes = sizeof(buffer),
							});

		*runs += cpl.result0;
		*looked += cpl.result1;
		flags = 0;
	}
	return now_s() - began;
}

static void measure(kvd_engine *engine, const char *what, uint16_t least, uint32_t touch_every)
{
	uint64_t looked, runs;
	double best = 0;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		double rate;

		touch(engine, touch_every);
		rate = 1 / scan(engine, least, &looked, &runs);
		rate *= (double)looked / MEGA;
		best = rate > best ? rate : best;
	}
	printf("AGE_SCAN, %-44s %8.0f M entries/s, %lu runs\n", what, best, (unsigned long)runs);
}

/* The inner loops by themselves, over memory as large as the tables. */
static void measure_kernels(void)
{
	const struct kvd_age_kernels *usable[KVD_AGE_KERNELS_MAX];
	size_t count = kvd_age_usable(usable);
	struct kvd_age_look look = {.least = 1};
	union kvd_entry *entries = malloc(PAGES * sizeof(*entries));

	if (!entries)
		exit(1);
	for (uint64_t i = 0; i < PAGES; i++)
		entries[i].pte = kvd_pte_make(KVD_ABI_TIER_DDR, 16, i);
	for (size_t k = 0; k < count; k++) {
		double began = now_s();
		uint32_t passed = usable[k]->quiet(entries, (uint32_t)PAGES, &look);

		printf("inner loop, %-42s %8.0f M entries/s\n", usable[k]->name, passed / (now_s() - began) / MEGA);
	}
	free(entries);
}

int main(void)
{
	kvd_engine *engine;

	measure_kernels();
	if (kvd_engine_init(&config, &engine))
		return 1;
	fill(engine);
	measure(engine, "nothing used, nothing old enough", KVD_AGE_MAX, 0);
	measure(engine, "one page of 1,000 used, nothing old enough", KVD_AGE_MAX, 1000);
	measure(engine, "one page of 100 used, nothing old enough", KVD_AGE_MAX, 100);
	measure(engine, "nothing used, everything reported", 0, 0);
	measure(engine, "one page of 1,000 used, everything reported", 0, 1000);
	kvd_engine_fini(engine);
	return 0;
}
