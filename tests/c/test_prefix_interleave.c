/*
 * A reader and the writer in every order, and no two at once: the writer's commands are executed at each place where
 * the reader is about to look (kvd_prefix_looks), a reader runs after each store of a command (kvd_engine_stored), and
 * a command stops after some of its stores until a reader that began before it has ended. What a reader says must have
 * been true at some moment while it read, or be BUSY.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "test_prefix.h"

#define BLOCKS 14u /* more than the first two batches of a reader */
#define SCRIPT_MAX 4u
#define LOOKS_MAX 4000u
#define NOBODY 2u /* for a removal: whoever holds it */
#define FILLERS 400u
#ifdef __SANITIZE_THREAD__
#define COARSER 4u /* threads are slow to make there */
#else
#define COARSER 1u
#endif
#define LOOK_STEP (3u * COARSER) /* of the places that are tried */
#define STORE_STEP (7u * COARSER)
#define COARSE_LOOK_STEP (9u * COARSER) /* where a third number is tried too */
#define COARSE_STORE_STEP (17u * COARSER)
#define BEGIN_STORES 12u /* of a command, where what it announces is each of importance */

enum chain { CHAIN_A, CHAIN_B, CHAIN_TORN, CHAIN_COUNT };

/* A command of the writer; `op` 0: grow the hash by many other entries. */
struct act {
	uint16_t op;
	uint32_t session;
	enum chain chain;
	uint32_t first;
	uint32_t count;
};

/* What is there at first, what the writer does meanwhile, and what is asked for. */
struct scene {
	struct act before[2];
	struct act script[SCRIPT_MAX];
	enum chain asked;
};

static const struct scene scenes[] = {
	/* Whole, and gone. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}},
	 {{KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 0, BLOCKS}},
	 CHAIN_A},
	/* The second half goes, and comes with another holder. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}},
	 {{KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 5, 9}, {KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_A, 5, 9}},
	 CHAIN_A},
	/* The entries of A become those of B: half a name of each is nothing. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}},
	 {{KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 2, 12}, {KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_B, 2, 12}},
	 CHAIN_TORN},
	/* The same, after the reader saw them free. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}, {KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 2, 12}},
	 {{KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_B, 2, 12}},
	 CHAIN_TORN},
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}, {KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 2, 12}},
	 {{KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_A, 2, 12}},
	 CHAIN_A},
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}, {KVD_ABI_OP_PREFIX_REMOVE, NOBODY, CHAIN_A, 2, 12}},
	 {{KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_B, 2, 12}},
	 CHAIN_A},
	/* Nothing, and whole. */
	{{{0}}, {{KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_A, 0, BLOCKS}}, CHAIN_A},
	/* The end is there, the beginning comes and goes. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 3, 11}},
	 {{KVD_ABI_OP_PREFIX_INSERT, 1, CHAIN_A, 0, 3}, {KVD_ABI_OP_PREFIX_REMOVE, 1, CHAIN_A, 0, 3}},
	 CHAIN_A},
	/* The holder goes. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}}, {{KVD_ABI_OP_SESSION_DESTROY, 0, 0, 0, 0}}, CHAIN_A},
	/* Every chain of the hash is split, some of them more than once. */
	{{{KVD_ABI_OP_PREFIX_INSERT, 0, CHAIN_A, 0, BLOCKS}}, {{KVD_ABI_OP_COUNT, 1, 0, 0, 0}}, CHAIN_A},
};

static struct {
	kvd_engine *engine;
	const struct scene *scene;
	uint64_t session[2];
	uint64_t hashes[CHAIN_COUNT][BLOCKS * TEST_WORDS];
	uint32_t acts_left[2];   /* looks before each half of the script; 0: it is done */
	uint32_t done;           /* acts of the script */
	struct prefix_reply true_answers[SCRIPT_MAX * BLOCKS + 2];
	uint32_t true_count;
	uint32_t looks;
	bool armed;
	bool storing;
	sem_t writer_turn;
	sem_t reader_turn;
	uint32_t hand_over_look;  /* looks until the writer begins; 0: it does not */
	uint32_t hand_over_store; /* stores until it stops; 0: it does not */
	uint32_t stores;
	bool writing;             /* it is the writer's turn */
	bool writer_done;
	uint64_t inner_reads, inner_busy;
} test;

static struct prefix_reply ask(enum chain chain)
{
	struct blocks blocks = {.key = 3, .count = BLOCKS, .hash_bytes = TEST_WORDS * 8, .hashes = test.hashes[chain]};
	struct kvd_abi_cmd cmd = prefix_cmd(KVD_ABI_OP_PREFIX_MATCH, 0, &blocks);
	struct kvd_abi_cpl cpl;

	kvd_engine_read(test.engine, &cmd, &cpl);
	return (struct prefix_reply){cpl.status, cpl.result0, cpl.result1};
}

static void note_truth(void)
{
	test.true_answers[test.true_count++] = ask(test.scene->asked);
}

static bool is_true(struct prefix_reply reply)
{
	for (uint32_t i = 0; i < test.true_count; i++) {
		if (reply.result0 == test.true_answers[i].result0 && reply.result1 == test.true_answers[i].result1)
			return true;
	}
	return false;
}

/* Other entries, in a namespace of their own, so many that the hash is split all over. */
static void grow(void)
{
	static uint64_t hashes[TEST_WORDS * 4];
	struct blocks blocks = {.key = 9, .count = 4, .hash_bytes = TEST_WORDS * 8, .hashes = hashes};

	for (uint32_t i = 0; i < FILLERS; i++) {
		test_hashes(1000 + i, hashes, 4, TEST_WORDS);
		assert_reply(insert(test.engine, test.session[1], &blocks), 4, 0);
	}
}

static void act(const struct act *what)
{
	struct blocks blocks = {.key = 3, .first = what->first, .count = what->count, .hash_bytes = TEST_WORDS * 8,
				.hashes = test.hashes[what->chain] + what->first * TEST_WORDS};
	struct kvd_abi_cmd cmd;

	if (what->op == KVD_ABI_OP_COUNT) {
		grow();
		return;
	}
	cmd = prefix_cmd(what->op, what->session == NOBODY ? 0 : test.session[what->session], &blocks);
	assert_int_equal(prefix_submit(test.engine, cmd).status, KVD_ABI_STATUS_OK);
}

/* The next act of the script; what is true afterwards may be answered. */
static void next_act(void)
{
	const struct act *what = &test.scene->script[test.done];

	if (test.done == SCRIPT_MAX || !what->op)
		return;
	test.done++;
	act(what);
	note_truth();
}

/* The writer's turn, until it stops or is done. */
static void hand_over(void)
{
	test.writing = true;
	sem_post(&test.writer_turn);
	sem_wait(&test.reader_turn);
	test.writing = false;
}

void kvd_prefix_looks(void);
void kvd_prefix_looks(void)
{
	if (test.hand_over_look && !test.writing && !--test.hand_over_look)
		hand_over();
	if (!test.armed)
		return;
	test.looks++;
	test.armed = false;
	for (uint32_t i = 0; i < 2; i++) {
		if (test.acts_left[i] && !--test.acts_left[i])
			next_act();
	}
	test.armed = true;
}

/* A session that goes shortens its chains from their ends; all other commands happen at once. */
static bool is_shorter(struct prefix_reply reply)
{
	return test.scene->script[0].op == KVD_ABI_OP_SESSION_DESTROY && reply.result0 <= BLOCKS &&
	       reply.result1 == (reply.result0 ? test.session[0] : 0);
}

void kvd_engine_stored(void);
void kvd_engine_stored(void)
{
	struct prefix_reply reply;

	test.stores += test.writing;
	if (test.writing && test.stores == test.hand_over_store) {
		sem_post(&test.reader_turn);
		sem_wait(&test.writer_turn);
	}
	if (!test.storing)
		return;
	test.storing = false;
	reply = ask(test.scene->asked);
	test.inner_reads++;
	if (reply.status == KVD_ABI_STATUS_BUSY)
		test.inner_busy++;
	else
		assert_true(is_true(reply) || is_shorter(reply));
	test.storing = true;
}

/* The torn chain begins as A; then the first words are A's, the second B's, as half a reused entry would have them. */
static void make_hashes(void)
{
	test_hashes(0, test.hashes[CHAIN_A], BLOCKS, TEST_WORDS);
	test_hashes(1, test.hashes[CHAIN_B], BLOCKS, TEST_WORDS);
	for (uint32_t i = 0; i < BLOCKS * TEST_WORDS; i++) {
		bool of_b = i >= 2 * TEST_WORDS && i % TEST_WORDS;

		test.hashes[CHAIN_TORN][i] = test.hashes[of_b ? CHAIN_B : CHAIN_A][i];
	}
}

static void begin(const struct scene *scene)
{
	test.scene = scene;
	test.engine = engine_new(&test_config);
	test.session[0] = session_new(test.engine, 1);
	test.session[1] = session_new(test.engine, 2);
	test.done = 0;
	test.true_count = 0;
	test.looks = 0;
	for (uint32_t i = 0; i < 2 && scene->before[i].op; i++)
		act(&scene->before[i]);
	note_truth();
}

/* One reading, with the script's first act after `first` looks and its second after `second`; returns the looks. */
static uint32_t read_with(const struct scene *scene, uint32_t first, uint32_t second)
{
	struct prefix_reply reply;

	begin(scene);
	test.acts_left[0] = first;
	test.acts_left[1] = second;
	test.armed = true;
	reply = ask(scene->asked);
	test.armed = false;
	if (reply.status != KVD_ABI_STATUS_BUSY && (reply.status || !is_true(reply)))
		fail_msg("scene %td, acts at %u and %u: %lu blocks of %lx were never true", scene - scenes, first,
			 second, reply.result0, reply.result1);
	engine_end(test.engine);
	return test.looks;
}

static void test_writer_within_a_reader(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		uint32_t looks = read_with(&scenes[i], 0, 0);
		uint32_t later = scenes[i].script[1].op ? looks : 0;

		assert_true(looks > 0 && looks < LOOKS_MAX);
		for (uint32_t first = 1; first <= looks; first++) {
			read_with(&scenes[i], first, 0);
			for (uint32_t second = first; second <= later; second++)
				read_with(&scenes[i], first, second);
		}
	}
}

static void test_reader_within_the_writer(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		begin(&scenes[i]);
		for (uint32_t step = 0; step < SCRIPT_MAX && scenes[i].script[step].op; step++) {
			struct prefix_reply before = ask(scenes[i].asked);
			struct prefix_reply after;

			/* What is true after it is known by doing it on tables that are thrown away. */
			for (uint32_t rehearsal = 0; rehearsal < 2; rehearsal++) {
				if (rehearsal) {
					engine_end(test.engine);
					begin(&scenes[i]);
					for (uint32_t done = 0; done < step; done++)
						act(&scenes[i].script[done]);
					test.true_answers[0] = before;
					test.true_answers[1] = after;
					test.true_count = 2;
				}
				test.storing = rehearsal;
				act(&scenes[i].script[step]);
				test.storing = false;
				after = ask(scenes[i].asked);
			}
		}
		engine_end(test.engine);
	}
	assert_true(test.inner_reads > 1000 && test.inner_busy < test.inner_reads);
	print_message("%lu readings within commands, %lu of them busy\n", test.inner_reads, test.inner_busy);
}

static void *write_in_turn(void *context)
{
	(void)context;
	sem_wait(&test.writer_turn);
	act(&test.scene->script[0]);
	test.writer_done = true;
	sem_post(&test.reader_turn);
	return NULL;
}

/*
 * A reader that begins after `early` stores of the writer's, and gives way at `look` until it has made `store` of them; returns
 * all its stores.
 */
static uint32_t read_across(const struct scene *scene, struct prefix_reply after, uint32_t early, uint32_t look,
			    uint32_t store)
{
	struct prefix_reply reply;
	pthread_t writer;

	begin(scene);
	test.true_answers[test.true_count++] = after;
	test.writer_done = false;
	test.stores = 0;
	test.hand_over_store = early;
	assert_int_equal(pthread_create(&writer, NULL, write_in_turn, NULL), 0);
	if (early)
		hand_over();
	test.hand_over_store = store;
	test.hand_over_look = test.writer_done ? 0 : look;
	reply = ask(scene->asked);
	test.hand_over_look = 0;
	while (!test.writer_done)
		hand_over();
	assert_int_equal(pthread_join(writer, NULL), 0);
	if (reply.status != KVD_ABI_STATUS_BUSY && (reply.status || (!is_true(reply) && !is_shorter(reply))))
		fail_msg("scene %td, from store %u, at look %u to store %u: %lu blocks of %lx were never true",
			 scene - scenes, early, look, store, reply.result0, reply.result1);
	engine_end(test.engine);
	return test.stores;
}

static void test_reader_across_a_part_of_a_command(void **state)
{
	(void)state;
	assert_int_equal(sem_init(&test.writer_turn, 0, 0), 0);
	assert_int_equal(sem_init(&test.reader_turn, 0, 0), 0);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		struct prefix_reply after;
		uint32_t looks, stores;

		/* A grown hash takes too many stores to stop at each. */
		if (scenes[i].script[0].op == KVD_ABI_OP_COUNT)
			continue;
		begin(&scenes[i]);
		act(&scenes[i].script[0]);
		after = ask(scenes[i].asked);
		engine_end(test.engine);
		looks = read_with(&scenes[i], 0, 0);
		stores = read_across(&scenes[i], after, 0, 1, 0);
		assert_true(stores > 0);
		for (uint32_t look = 1; look <= looks; look += LOOK_STEP) {
			for (uint32_t store = 1 + look % STORE_STEP; store < stores; store += STORE_STEP)
				read_across(&scenes[i], after, 0, look, store);
		}
		for (uint32_t look = 1; look <= looks; look += COARSE_LOOK_STEP) {
			for (uint32_t early = 1; early < stores;
			     early += early < BEGIN_STORES ? 1 : COARSE_STORE_STEP) {
				for (uint32_t store = early + 1; store < stores; store += COARSE_STORE_STEP)
					read_across(&scenes[i], after, early, look, store);
			}
		}
	}
	sem_destroy(&test.writer_turn);
	sem_destroy(&test.reader_turn);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_writer_within_a_reader),
		cmocka_unit_test(test_reader_within_the_writer),
		cmocka_unit_test(test_reader_across_a_part_of_a_command),
	};

	make_hashes();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
