/*
 * PREFIX_MATCH from several threads beside one writer: no answer that was never true.
 *
 * The writer inserts and removes whole chains and halves, so each chain has few lengths that were ever true; chains A
 * and B use the same entries in turns, so that a reader who took half a name from each would find a block that never
 * was.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "test_prefix.h"

#define READERS 3u
#define FOUND 5000u /* answers of each reader that found something */
#define FILLERS 64u
#define HALF (TEST_HASHES / 2)
#define DEADLINE_S 60
#define KEY 5u

enum subject {
	SUBJECT_A,      /* whole or not at all, one holder at a time */
	SUBJECT_B,
	SUBJECT_HALVES, /* two commands, two holders */
	SUBJECT_TORN,   /* begins as A, goes on with half of A's hash and half of B's: never there */
	SUBJECT_TORN_B,
	SUBJECT_COUNT,
};

struct stage {
	kvd_engine *engine;
	uint64_t session[2];
	uint64_t hashes[SUBJECT_COUNT][TEST_HASHES * TEST_WORDS];
	atomic_uint finished;
	atomic_bool over;
};

struct reader {
	struct stage *stage;
	uint64_t lengths[SUBJECT_COUNT][TEST_HASHES + 1];
	uint64_t strangers; /* answers with a holder that can't be */
	uint64_t found;
	uint64_t busy;
	uint64_t refused;
};

static struct blocks subject(const struct stage *stage, enum subject which, uint64_t first, uint64_t count)
{
	return (struct blocks){.key = KEY, .first = first, .count = count, .hash_bytes = TEST_WORDS * 8,
			       .hashes = stage->hashes[which] + first * TEST_WORDS};
}

static struct prefix_reply match_beside(kvd_engine *engine, const struct blocks *blocks)
{
	struct kvd_abi_cmd cmd = prefix_cmd(KVD_ABI_OP_PREFIX_MATCH, 0, blocks);
	struct kvd_abi_cpl cpl;

	kvd_engine_read(engine, &cmd, &cpl);
	return (struct prefix_reply){cpl.status, cpl.result0, cpl.result1};
}

/* Could this session be what holds the last block of `length`? */
static bool right_holder(const struct stage *stage, enum subject which, uint64_t length, uint64_t holder)
{
	if (!length)
		return !holder;
	if (which == SUBJECT_HALVES)
		return holder == stage->session[length > HALF];
	return holder == stage->session[0] || holder == stage->session[1];
}

static void *read_all(void *context)
{
	struct reader *reader = context;
	struct stage *stage = reader->stage;

	for (uint64_t i = 0; reader->found < FOUND && !atomic_load(&stage->over); i++) {
		enum subject which = (enum subject)(i % SUBJECT_COUNT);
		struct blocks blocks = subject(stage, which, 0, TEST_HASHES);
		struct prefix_reply reply = match_beside(stage->engine, &blocks);

		if (reply.status == KVD_ABI_STATUS_BUSY) {
			reader->busy++;
			continue;
		}
		reader->refused += reply.status != KVD_ABI_STATUS_OK || reply.result0 > TEST_HASHES;
		if (reply.result0 <= TEST_HASHES)
			reader->lengths[which][reply.result0]++;
		reader->strangers += !right_holder(stage, which, reply.result0, reply.result1);
		reader->found += reply.result0 > 0;
	}
	atomic_fetch_add(&stage->finished, 1);
	return NULL;
}

static void change(struct stage *stage, uint16_t op, uint32_t session, enum subject which, uint64_t first,
		   uint64_t count)
{
	struct blocks blocks = subject(stage, which, first, count);

	assert_reply(prefix_submit(stage->engine, prefix_cmd(op, session < 2 ? stage->session[session] : 0, &blocks)),
		     count, 0);
}

/* One round: A and B in each other's entries, the halves in each order, and others that make the hash grow and
 * shrink. */
static void write_round(struct stage *stage, uint64_t round)
{
	static uint64_t filler[TEST_HASHES * TEST_WORDS];
	struct blocks blocks = {.key = KEY + 1, .count = TEST_HASHES, .hash_bytes = TEST_WORDS * 8, .hashes = filler};
	uint32_t session = round % 2;
	bool head_first = round / 2 % 2;

	change(stage, KVD_ABI_OP_PREFIX_INSERT, session, SUBJECT_A, 0, TEST_HASHES);
	change(stage, KVD_ABI_OP_PREFIX_REMOVE, 2, SUBJECT_A, 0, TEST_HASHES);
	change(stage, KVD_ABI_OP_PREFIX_INSERT, !session, SUBJECT_B, 0, TEST_HASHES);
	change(stage, KVD_ABI_OP_PREFIX_REMOVE, !session, SUBJECT_B, 0, TEST_HASHES);
	change(stage, KVD_ABI_OP_PREFIX_INSERT, head_first ? 0 : 1, SUBJECT_HALVES, head_first ? 0 : HALF, HALF);
	change(stage, KVD_ABI_OP_PREFIX_INSERT, head_first ? 1 : 0, SUBJECT_HALVES, head_first ? HALF : 0, HALF);
	change(stage, KVD_ABI_OP_PREFIX_REMOVE, 2, SUBJECT_HALVES, head_first ? HALF : 0, HALF);
	change(stage, KVD_ABI_OP_PREFIX_REMOVE, 2, SUBJECT_HALVES, head_first ? 0 : HALF, HALF);
	test_hashes(100 + round % FILLERS, filler, TEST_HASHES, TEST_WORDS);
	if (round / FILLERS % 2)
		assert_reply(take_out(stage->engine, 0, &blocks), TEST_HASHES, 0);
	else
		assert_reply(insert(stage->engine, stage->session[0], &blocks), TEST_HASHES, 0);
}

static void make_hashes(struct stage *stage)
{
	test_hashes(0, stage->hashes[SUBJECT_A], TEST_HASHES, TEST_WORDS);
	test_hashes(1, stage->hashes[SUBJECT_B], TEST_HASHES, TEST_WORDS);
	test_hashes(2, stage->hashes[SUBJECT_HALVES], TEST_HASHES, TEST_WORDS);
	for (uint32_t i = 0; i < TEST_HASHES * TEST_WORDS; i++) {
		bool of_a = i < 2 * TEST_WORDS || i % TEST_WORDS == 0;
		bool of_b = i < 2 * TEST_WORDS || i % TEST_WORDS != 0;

		stage->hashes[SUBJECT_TORN][i] = stage->hashes[of_a ? SUBJECT_A : SUBJECT_B][i];
		stage->hashes[SUBJECT_TORN_B][i] = stage->hashes[of_b ? SUBJECT_B : SUBJECT_A][i];
	}
}

static uint64_t sum(const struct reader *reader, enum subject which)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i <= TEST_HASHES; i++)
		total += reader->lengths[which][i];
	return total;
}

static void judge(const struct reader *reader)
{
	const uint64_t(*lengths)[TEST_HASHES + 1] = reader->lengths;

	assert_int_equal(reader->refused, 0);
	assert_int_equal(reader->strangers, 0);
	assert_int_equal(reader->found, FOUND);
	for (uint32_t i = SUBJECT_A; i <= SUBJECT_B; i++)
		assert_int_equal(lengths[i][0] + lengths[i][TEST_HASHES], sum(reader, (enum subject)i));
	assert_int_equal(sum(reader, SUBJECT_HALVES), lengths[SUBJECT_HALVES][0] + lengths[SUBJECT_HALVES][HALF] +
							      lengths[SUBJECT_HALVES][TEST_HASHES]);
	for (uint32_t i = SUBJECT_TORN; i <= SUBJECT_TORN_B; i++)
		assert_int_equal(lengths[i][0] + lengths[i][2], sum(reader, (enum subject)i));
}

static void test_readers_beside_a_writer(void **state)
{
	static struct stage stage;
	static struct reader readers[READERS];
	pthread_t threads[READERS];
	time_t end = time(NULL) + DEADLINE_S;

	(void)state;
	make_hashes(&stage);
	stage.engine = engine_new(&test_config);
	stage.session[0] = session_new(stage.engine, 1);
	stage.session[1] = session_new(stage.engine, 2);
	for (uint32_t i = 0; i < READERS; i++) {
		readers[i].stage = &stage;
		assert_int_equal(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
	}
	for (uint64_t round = 0; atomic_load(&stage.finished) < READERS && time(NULL) < end; round++)
		write_round(&stage, round);
	atomic_store(&stage.over, true);
	for (uint32_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	for (uint32_t i = 0; i < READERS; i++) {
		judge(&readers[i]);
		print_message("reader %u: %lu busy, A whole %lu, halves %lu and %lu\n", i, readers[i].busy,
			      readers[i].lengths[SUBJECT_A][TEST_HASHES], readers[i].lengths[SUBJECT_HALVES][HALF],
			      readers[i].lengths[SUBJECT_HALVES][TEST_HASHES]);
	}
	engine_end(stage.engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_readers_beside_a_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
