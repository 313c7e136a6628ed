/* READs of a file that is being filled, against pages that land, interrupts and exchanges of the file. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "split_streamed.h"

static struct message message;

struct lander {
	struct streamed *s;
	unsigned seed;
};

/* Pages land in any order while they are read. */
static void *land_all(void *arg)
{
	struct lander *lander = arg;
	uint64_t order[PAGES];

	for (uint64_t i = 0; i < PAGES; i++)
		order[i] = i;
	for (uint64_t i = PAGES - 1; i > 0; i--) {
		uint64_t j = (uint64_t)rand_r(&lander->seed) % (i + 1);
		uint64_t kept = order[i];

		order[i] = order[j];
		order[j] = kept;
	}
	for (uint64_t i = 0; i < PAGES; i++) {
		if (rand_r(&lander->seed) % 2)
			sched_yield();
		if (order[i] < 4 || order[i] > 7)
			streamed_land(lander->s, order[i], 1);
	}
	kvd_stream_end(lander->s->stream, 0);
	return NULL;
}

enum { RACE_READS = 24, RACE_ROUNDS = 25 };

/* Each READ is answered once: with its bytes, or, interrupted, with EINTR. */
static void collect(struct streamed *s, const uint64_t *offsets, const uint32_t *sizes, uint64_t base)
{
	bool seen[RACE_READS] = { false };

	for (int i = 0; i < RACE_READS; i++) {
		uint64_t index;

		kernel_recv(&s->rig, &message);
		index = (message.out.header.unique - base) / 2 - 1;
		assert_true(index < RACE_READS && !seen[index]);
		seen[index] = true;
		if (message.out.header.error) {
			assert_int_equal(message.out.header.error, -EINTR);
			continue;
		}
		assert_int_equal(message.bytes, sizeof(message.out.header) + sizes[index]);
		assert_memory_equal(message.out.body, streamed_content + offsets[index], sizes[index]);
	}
}

static void race(unsigned seed, bool switches)
{
	uint64_t offsets[RACE_READS];
	uint32_t sizes[RACE_READS];
	struct kvd_split_object whole;
	struct streamed s;
	struct lander lander = { .s = &s, .seed = seed };
	pthread_t thread;
	uint64_t base;
	int full = rig_file(0);

	streamed_open(&s, 4);
	assert_int_equal(pwrite(full, streamed_content, sizeof(streamed_content), 0), sizeof(streamed_content));
	base = s.rig.unique;
	assert_int_equal(pthread_create(&thread, NULL, land_all, &lander), 0);
	for (int i = 0; i < RACE_READS; i++) {
		offsets[i] = (uint64_t)rand_r(&seed) % FILE_BYTES;
		sizes[i] = (uint32_t)rand_r(&seed) % RIG_IO_BYTES + 1;
		if (sizes[i] > FILE_BYTES - offsets[i])
			sizes[i] = (uint32_t)(FILE_BYTES - offsets[i]);
		assert_int_equal(send_read(&s.rig, NODE, offsets[i], sizes[i]), base + 2 * (uint64_t)i + 2);
		if (rand_r(&seed) % 8 == 0)
			send_interrupt(&s.rig, s.rig.unique);
	}
	if (switches) {
		whole = (struct kvd_split_object){ .node = NODE, .mode = KVD_MODE_DIRECT, .fd = full };
		assert_int_equal(kvd_split_object_switch(s.rig.split, &whole), 0);
	}
	collect(&s, offsets, sizes, base);
	pthread_join(thread, NULL);
	streamed_await(&s, 0);
	streamed_close(&s);
	close(full);
}

static void test_landing_races_with_parking(void **state)
{
	(void)state;
	for (unsigned round = 0; round < RACE_ROUNDS; round++)
		race(round, false);
}

static void test_switching_races_with_landing(void **state)
{
	(void)state;
	for (unsigned round = 0; round < RACE_ROUNDS; round++)
		race(round + 1000, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_landing_races_with_parking),
		cmocka_unit_test(test_switching_races_with_landing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
