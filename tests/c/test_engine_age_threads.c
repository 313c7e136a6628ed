/* AGE_SCAN beside hardware that sets accessed and dirty, and beside readers: nothing that was set is lost. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "engine/age.h"
#include "test_engine_ops.h"

#define PAGES 1500u /* three leaves */
#define SCANS 100u  /* fewer than 127, so that a distance is the age */
#define SETTERS 2u
#define HOT 8u        /* pages of a setter that it sets most of the time */
#define SETS_A_SCAN 150000u /* at least, by all setters */
#define PARTS 100u         /* scans of the hot pages before anybody else gets a turn */

static kvd_engine *engine;
static union kvd_entry *leaf_of[PAGES];
static uint64_t made[PAGES];             /* the PTEs as they were mapped */
static atomic_uint generation;           /* published before the scan that begins it */
static atomic_uint set_in[PAGES];        /* the generation before the last setting of accessed, + 1 */
static atomic_uint sets;
static atomic_bool stop;

static uint64_t next(uint64_t *at)
{
	*at ^= *at << 13;
	*at ^= *at >> 7;
	*at ^= *at << 17;
	return *at;
}

/*
 * Each setter has pages of its own. It takes dirty off again, as REMAP does, so that a scan that writes back what it read
 * before loses dirty or brings it back: the number of times that happened.
 */
static void *set_bits(void *argument)
{
	uint32_t who = (uint32_t)(uintptr_t)argument;
	uint64_t random = 77 + who, wrong = 0;

	while (!atomic_load(&stop)) {
		uint32_t page = (uint32_t)(next(&random) % (next(&random) % 8 ? HOT : PAGES / SETTERS)) * SETTERS + who;
		unsigned int now = atomic_load(&generation);
		uint64_t *pte = &leaf_of[page]->pte;
		uint64_t before;

		before = __atomic_fetch_or(pte, KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK, __ATOMIC_RELAXED);
		wrong += (before & KVD_ABI_PTE_DIRTY_MASK) != 0;
		before = __atomic_fetch_and(pte, ~(uint64_t)KVD_ABI_PTE_DIRTY_MASK, __ATOMIC_RELAXED);
		wrong += !(before & KVD_ABI_PTE_DIRTY_MASK);
		atomic_store(&set_in[page], now + 1);
		atomic_fetch_add(&sets, 1);
	}
	return (void *)(uintptr_t)wrong;
}

/* A reader finds each page at its frame, whatever else changes; the number of those that were elsewhere. */
static void *read_ptes(void *argument)
{
	uint64_t random = 99, wrong = 0;

	(void)argument;
	while (!atomic_load(&stop)) {
		uint32_t page = (uint32_t)(next(&random) % PAGES);
		uint64_t pte = __atomic_load_n(&leaf_of[page]->pte, __ATOMIC_RELAXED);
		uint64_t use = KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK | KVD_ABI_PTE_GENERATION_MASK;

		wrong += (pte & ~use) != made[page];
	}
	return (void *)(uintptr_t)wrong;
}

/* The whole table, or its first entries. */
static void scan_once(uint16_t flags, uint64_t count)
{
	static struct {
		struct kvd_abi_age_cursor cursor;
		struct kvd_abi_cold_run runs[PAGES];
	} buffer;
	struct kvd_abi_cmd cmd = {
		.op = KVD_ABI_OP_AGE_SCAN,
		.flags = flags,
		.count = count,
		.buffer = (uintptr_t)&buffer,
		.buffer_bytes = sizeof(buffer),
	};

	memset(&buffer.cursor, 0, sizeof(buffer.cursor));
	assert_ok(submit_two(engine, cmd));
	assert_int_equal(buffer.cursor.done, count == UINT64_MAX);
}

static void prepare(void)
{
	uint64_t session;

	engine = engine_new(&test_config);
	session = session_new(engine, 1);
	assert_ok(map(engine, session, 0, KVD_ABI_TIER_DDR, 0, PAGES, 1));
	for (uint32_t page = 0; page < PAGES; page++) {
		leaf_of[page] = kvd_table_find(engine, &kvd_session_find(engine, session)->slots[0], page);
		made[page] = leaf_of[page]->pte;
	}
}

static void test_nothing_that_was_set_is_lost(void **state)
{
	pthread_t setter[SETTERS], reader;
	void *wrong;
	uint32_t seen = 0;

	(void)state;
	prepare();
	for (uint32_t i = 0; i < SETTERS; i++)
		assert_int_equal(pthread_create(&setter[i], NULL, set_bits, (void *)(uintptr_t)i), 0);
	assert_int_equal(pthread_create(&reader, NULL, read_ptes, NULL), 0);
	for (unsigned int i = 1; i <= SCANS; i++) {
		atomic_store(&generation, i);
		scan_once(KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK, UINT64_MAX);
		while (atomic_load(&sets) < i * SETS_A_SCAN) {
			sched_yield();
			for (uint32_t part = 0; part < PARTS; part++)
				scan_once(0, HOT * SETTERS);
		}
	}
	atomic_store(&stop, true);
	for (uint32_t i = 0; i < SETTERS; i++) {
		assert_int_equal(pthread_join(setter[i], &wrong), 0);
		assert_null(wrong);
	}
	assert_int_equal(pthread_join(reader, &wrong), 0);
	assert_null(wrong);
	for (uint32_t page = 0; page < PAGES; page++) {
		uint64_t pte = leaf_of[page]->pte;
		unsigned int set = atomic_load(&set_in[page]);

		if (!set)
			continue;
		seen++;
		/* The scan that was underway, or the next one, has seen it; or it is still there to be seen. */
		assert_true(pte & KVD_ABI_PTE_ACCESSED_MASK || kvd_age_distance(pte, SCANS) <= SCANS - (set - 1));
	}
	assert_true(seen > 0);
	engine_end(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_that_was_set_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
