/* The rings against a card that is stepped by hand, and lies where it is told to. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "test_ring.h"

#define SECOND_NS 1000000000ull

static void test_bad_arguments(void **state)
{
	static char memory[2 * KVD_RING_ALIGN_BYTES] __attribute__((aligned(KVD_RING_ALIGN_BYTES)));
	static const uint32_t depths[] = {0, 1, 3, 2 * KVD_RING_DEPTH_MAX};
	uint32_t doorbells[2];
	kvd_ring *ring;

	(void)state;
	for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++)
		assert_int_equal(kvd_ring_init(depths[i], memory, doorbells, &ring), -EINVAL);
	assert_int_equal(kvd_ring_init(2, memory + 64, doorbells, &ring), -EINVAL);
	assert_int_equal(kvd_ring_init(2, memory, (char *)doorbells + 1, &ring), -EINVAL);
	assert_int_equal(kvd_ring_bytes(2), 2 * KVD_RING_ALIGN_BYTES);
	assert_int_equal(kvd_ring_bytes(KVD_RING_DEPTH_MAX), KVD_RING_DEPTH_MAX * (64 + 32));
	kvd_ring_fini(NULL);
}

/* Batches of every size, through many rounds of the ring: each command is answered once, in order, with its own id. */
static void test_rounds(void **state)
{
	struct kvd_abi_cmd cmd[DEPTH];
	struct kvd_abi_cpl cpl[DEPTH];
	struct kvd_ring_stats stats;
	struct card card;
	uint32_t total = 0;

	(void)state;
	card_init(&card, DEPTH);
	for (uint32_t round = 0; round < 1000; round++) {
		uint32_t count = round % (DEPTH - 1) + 1;

		fill(cmd, count, total);
		assert_int_equal(kvd_ring_submit(card.ring, cmd, count), (int)count);
		assert_int_equal(kvd_ring_outstanding(card.ring), count);
		assert_int_equal(kvd_ring_poll(card.ring, cpl, DEPTH, 0), 0);
		card_step(&card, count);
		assert_int_equal(kvd_ring_poll(card.ring, cpl, DEPTH, 0), (int)count);
		for (uint32_t i = 0; i < count; i++) {
			assert_int_equal(cpl[i].id, total + i);
			assert_int_equal(cpl[i].result0, 2 * (1000 + total + i));
			assert_int_equal(cpl[i].result1, KVD_ABI_OP_FLUSH);
			assert_int_equal(cpl[i].flags, 0);
		}
		total += count;
		assert_int_equal(card.doorbells[1], total % DEPTH);
	}
	kvd_ring_stats(card.ring, &stats);
	assert_int_equal(stats.submitted, total);
	assert_int_equal(stats.completed, total);
	assert_true(stats.doorbells >= 2000);
	card_fini(&card);
}

/* More than the ring holds is not taken; what is taken never overruns what the device has not read. */
static void test_full_ring(void **state)
{
	struct kvd_abi_cmd cmd[2 * DEPTH];
	struct kvd_abi_cpl cpl[2 * DEPTH];
	struct card card;

	(void)state;
	card_init(&card, DEPTH);
	fill(cmd, 2 * DEPTH, 0);
	assert_int_equal(kvd_ring_room(card.ring), DEPTH - 1);
	assert_int_equal(kvd_ring_submit(card.ring, cmd, 2 * DEPTH), DEPTH - 1);
	assert_int_equal(kvd_ring_submit(card.ring, cmd + DEPTH - 1, 1), 0);
	assert_int_equal(card.doorbells[0], DEPTH - 1);
	card_step(&card, 3);
	assert_int_equal(kvd_ring_submit(card.ring, cmd + DEPTH - 1, 1), 0); /* not collected yet */
	assert_int_equal(kvd_ring_poll(card.ring, cpl, 2, 0), 2);
	assert_int_equal(kvd_ring_submit(card.ring, cmd + DEPTH - 1, DEPTH), 2);
	assert_int_equal(card.doorbells[0], 1);
	card_step(&card, DEPTH);
	assert_int_equal(kvd_ring_poll(card.ring, cpl, 2 * DEPTH, 0), DEPTH - 1);
	assert_int_equal(cpl[DEPTH - 2].id, DEPTH);
	assert_int_equal(kvd_ring_outstanding(card.ring), 0);
	card_fini(&card);
}

static void test_work_streams_a_long_batch(void **state)
{
	enum { COUNT = 100 };
	struct kvd_abi_cmd cmd[COUNT];
	struct kvd_abi_cpl cpl[COUNT] = {0};
	struct kvd_ring_batch batch = {.cmd = cmd, .cpl = cpl, .count = COUNT};
	struct card card;

	(void)state;
	card_init(&card, DEPTH);
	fill(cmd, COUNT, 0);
	for (uint32_t steps = 0; steps < 10 * COUNT; steps++) {
		int err = kvd_ring_work(card.ring, &batch, 0);

		if (!err)
			break;
		assert_int_equal(err, -EAGAIN);
		card_step(&card, steps % 3);
	}
	assert_int_equal(batch.completed, COUNT);
	assert_int_equal(batch.submitted, COUNT);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_int_equal(cpl[i].id, i);
	card_fini(&card);
}

typedef void (*lie)(struct card *card, struct kvd_abi_cpl *cpl);

static void lie_id_before(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->id--; /* that was completed */
}

static void lie_id_after(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->id++; /* outstanding, but not the next one */
}

static void lie_id_wild(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->id = UINT32_MAX;
}

static void lie_status(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->status = KVD_ABI_STATUS_COUNT;
}

static void lie_flags(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->flags |= 0x8000;
}

static void lie_reserved(struct card *card, struct kvd_abi_cpl *cpl)
{
	(void)card;
	cpl->reserved = 1;
}

static void lie_head_low(struct card *card, struct kvd_abi_cpl *cpl)
{
	cpl->sq_head = card->taken % card->depth; /* as if it had not been taken */
}

static void lie_head_high(struct card *card, struct kvd_abi_cpl *cpl)
{
	cpl->sq_head = (card->doorbells[0] + 1) % card->depth;
}

static void lie_head_wild(struct card *card, struct kvd_abi_cpl *cpl)
{
	cpl->sq_head = card->depth;
}

/* Each lie is told in every place of a round: named, and the ring takes nothing more until it is reset. */
static void test_lies(void **state)
{
	static const struct {
		lie tell;
		int named;
	} lies[] = {
		{lie_id_before, KVD_RING_UNKNOWN_ID},   {lie_id_after, KVD_RING_UNKNOWN_ID},
		{lie_id_wild, KVD_RING_UNKNOWN_ID},     {lie_status, KVD_RING_UNKNOWN_STATUS},
		{lie_flags, KVD_RING_NOT_ZERO},         {lie_reserved, KVD_RING_NOT_ZERO},
		{lie_head_low, KVD_RING_BAD_HEAD},      {lie_head_high, KVD_RING_BAD_HEAD},
		{lie_head_wild, KVD_RING_BAD_HEAD},
	};
	struct kvd_abi_cmd cmd[3];
	struct kvd_abi_cpl cpl[3];
	struct card card;

	(void)state;
	card_init(&card, DEPTH);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		for (uint32_t before = 0; before < 2 * DEPTH; before++) {
			struct kvd_abi_cpl bad;

			for (uint32_t round = 0; round < before; round++) {
				fill(cmd, 1, round);
				assert_int_equal(kvd_ring_submit(card.ring, cmd, 1), 1);
				card_step(&card, 1);
				assert_int_equal(kvd_ring_poll(card.ring, cpl, 1, 0), 1);
			}
			fill(cmd, 3, 50);
			assert_int_equal(kvd_ring_submit(card.ring, cmd, 3), 3);
			card_step(&card, 1);
			bad = card_answer(&card);
			lies[i].tell(&card, &bad);
			card_write(&card, bad);
			card_step(&card, 1);
			assert_int_equal(kvd_ring_poll(card.ring, cpl, 3, 0), 1); /* what came before the lie is good */
			assert_int_equal(cpl[0].id, 50);
			assert_int_equal(kvd_ring_poll(card.ring, cpl, 3, 0), lies[i].named);
			assert_int_equal(kvd_ring_submit(card.ring, cmd, 1), lies[i].named);
			kvd_ring_reset(card.ring);
			card.taken = card.made = 0;
			card.doorbells[0] = card.doorbells[1] = 0;
		}
	}
	card_fini(&card);
}

/* Whatever stands in the completion ring: a completion that is right, or a named error, and never more than is owed. */
static void test_random_completions(void **state)
{
	enum { LIVES = 2000, STEPS = 40 };
	struct kvd_abi_cmd cmd[DEPTH];
	struct kvd_abi_cpl cpl[DEPTH];
	struct card card;
	uint32_t good = 0, bad = 0;

	(void)state;
	srand(1);
	card_init(&card, DEPTH);
	for (uint32_t life = 0; life < LIVES; life++) {
		for (uint32_t step = 0; step < STEPS; step++) {
			uint32_t count = (uint32_t)rand() % DEPTH;
			struct kvd_abi_cpl made;
			uint32_t owed;
			int n;

			fill(cmd, count, step);
			n = kvd_ring_submit(card.ring, cmd, count);
			assert_true(n >= KVD_RING_NOT_ZERO && n <= (int)count);
			made = card_answer(&card);
			if (rand() % 8 == 0)
				((uint8_t *)&made)[(uint32_t)rand() % sizeof(made)] ^= (uint8_t)(1 << rand() % 8);
			if (card_owed(&card) || rand() % 16 == 0)
				card_write(&card, made);
			owed = kvd_ring_outstanding(card.ring);
			n = kvd_ring_poll(card.ring, cpl, DEPTH, 0);
			assert_true(n >= KVD_RING_NOT_ZERO && n <= (int)owed);
			good += n > 0;
			bad += n < 0;
			for (int i = 0; i < n; i++)
				assert_true(cpl[i].status < KVD_ABI_STATUS_COUNT && cpl[i].id < STEPS + DEPTH);
			if (n < 0)
				break;
		}
		kvd_ring_reset(card.ring);
		card.taken = card.made = 0;
		card.doorbells[0] = card.doorbells[1] = 0;
	}
	assert_true(good > LIVES && bad > LIVES / 4);
	card_fini(&card);
}

static void test_phase_lies_while_nothing_is_owed(void **state)
{
	struct kvd_abi_cpl cpl;
	struct card card;

	(void)state;
	card_init(&card, DEPTH);
	assert_int_equal(kvd_ring_poll(card.ring, &cpl, 1, 0), 0);
	card_write(&card, card_answer(&card));
	assert_int_equal(kvd_ring_poll(card.ring, &cpl, 1, 0), KVD_RING_LYING_PHASE);
	card_fini(&card);
}

/* A completion of an earlier life, written after the reset, is nobody's. */
static void test_reset_forgets(void **state)
{
	struct kvd_abi_cmd cmd[1];
	struct kvd_abi_cpl cpl, late;
	struct card card;

	(void)state;
	card_init(&card, DEPTH);
	fill(cmd, 1, 0);
	assert_int_equal(kvd_ring_submit(card.ring, cmd, 1), 1);
	late = card_answer(&card);
	kvd_ring_reset(card.ring);
	assert_int_equal(kvd_ring_outstanding(card.ring), 0);
	assert_int_equal(kvd_ring_submit(card.ring, cmd, 1), 1);
	card_write(&card, late);
	assert_int_equal(kvd_ring_poll(card.ring, &cpl, 1, 0), KVD_RING_UNKNOWN_ID);
	card_fini(&card);
}

static struct sigaction guard; /* of csrc/vfio/mmio.c; cmocka puts its own over it for each test */

static void take_guard(void)
{
	uint32_t word;

	kvd_vfio_store32(&word, 0);
	sigaction(SIGBUS, NULL, &guard);
}

/* Doorbells in a file that was cut off: the device is gone, the process is not. */
static void test_dead_doorbell(void **state)
{
	char *memory = mmap(NULL, kvd_ring_bytes(DEPTH), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = memfd_create("bar2", MFD_CLOEXEC);
	struct kvd_abi_cmd cmd[1];
	struct sigaction before;
	kvd_ring *ring;
	void *bar;

	(void)state;
	sigaction(SIGBUS, &guard, &before);
	assert_int_equal(ftruncate(fd, KVD_RING_ALIGN_BYTES), 0);
	bar = mmap(NULL, KVD_RING_ALIGN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(bar != MAP_FAILED && memory != MAP_FAILED);
	assert_int_equal(kvd_ring_init(DEPTH, memory, bar, &ring), 0);
	fill(cmd, 1, 0);
	assert_int_equal(kvd_ring_submit(ring, cmd, 1), 1);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(kvd_ring_submit(ring, cmd, 1), -ENODEV);
	assert_int_equal(kvd_ring_submit(ring, cmd, 1), -ENODEV);
	sigaction(SIGBUS, &before, NULL);
	kvd_ring_fini(ring);
	munmap(bar, KVD_RING_ALIGN_BYTES);
	munmap(memory, kvd_ring_bytes(DEPTH));
	close(fd);
}

/* A card in another process, as fast as it can: nothing is lost, and the measuring functions measure. */
static void test_other_process(void **state)
{
	enum { ROUNDS = 200, COMMANDS = 20000, BIG = 256 };
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_FLUSH};
	struct card *card = mmap(NULL, sizeof(*card), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t ns[ROUNDS], batched_ns = 0;
	pid_t pid;
	int status;

	(void)state;
	assert_true(card != MAP_FAILED);
	card_init(card, BIG);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		const uint32_t *tail = &card->doorbells[0];

		while (card->taken < ROUNDS + COMMANDS) {
			if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) != card->taken % BIG)
				card_step(card, 1);
			else
				sched_yield();
		}
		_exit(0);
	}
	assert_int_equal(kvd_ring_bench_rtt(card->ring, &cmd, ROUNDS, ns, SECOND_NS), 0);
	for (int i = 0; i < ROUNDS; i++)
		assert_true(ns[i] > 0 && ns[i] < SECOND_NS);
	assert_int_equal(kvd_ring_bench_batched(card->ring, &cmd, COMMANDS, &batched_ns, SECOND_NS), 0);
	assert_true(batched_ns > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kvd_ring_bench_rtt(card->ring, &cmd, 1, ns, 1000), -ETIMEDOUT);
	card_fini(card);
	munmap(card, sizeof(*card));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_rounds),
		cmocka_unit_test(test_full_ring),
		cmocka_unit_test(test_work_streams_a_long_batch),
		cmocka_unit_test(test_lies),
		cmocka_unit_test(test_random_completions),
		cmocka_unit_test(test_phase_lies_while_nothing_is_owed),
		cmocka_unit_test(test_reset_forgets),
		cmocka_unit_test(test_dead_doorbell),
		cmocka_unit_test(test_other_process),
	};

	take_guard();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
