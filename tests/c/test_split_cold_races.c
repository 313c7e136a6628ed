/* READs of cold objects against a drive that hangs and lets go, interrupts, removals and exchanges of the file. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "split_cold.h"

static struct message message;

enum { RACE_ROUNDS = 15, RACE_READS = 48 };

struct trouble {
	struct rig *rig;
	int fd;
	unsigned seed;
	atomic_bool stop;
};

/* The drive hangs and lets go, and its directory comes and goes. */
static void *make_trouble(void *arg)
{
	struct trouble *trouble = arg;

	while (!atomic_load(&trouble->stop)) {
		int what = rand_r(&trouble->seed) % 4;

		if (what == 0)
			cold_hang(trouble->fd);
		else if (what == 1)
			atomic_store(&fake_hang_ino, 0);
		else
			kvd_split_device(trouble->rig->split, BAD, what == 2);
		sched_yield();
	}
	atomic_store(&fake_hang_ino, 0);
	kvd_split_device(trouble->rig->split, BAD, 1);
	return NULL;
}

static void collect(struct rig *rig, const uint64_t *offsets, uint64_t base)
{
	bool seen[RACE_READS] = { false };

	for (int i = 0; i < RACE_READS; i++) {
		uint64_t index;

		kernel_recv(rig, &message);
		index = (message.out.header.unique - base) / 2 - 1;
		assert_true(index < RACE_READS && !seen[index]);
		seen[index] = true;
		if (message.out.header.error == 0)
			assert_memory_equal(message.out.body, cold_want + offsets[index], message.bytes - sizeof(message.out.header));
		else
			assert_true(message.out.header.error == -EIO || message.out.header.error == -EINTR);
	}
}

static void race(unsigned seed, bool removes)
{
	int fds[] = { cold_file(), cold_file() };
	int old = cold_file();
	struct rig rig;
	struct trouble trouble = { .rig = &rig, .fd = old, .seed = seed };
	struct kvd_split_object ddr = { .node = OTHER, .mode = KVD_MODE_DIRECT, .fd = fds[1] };
	uint64_t offsets[RACE_READS];
	pthread_t thread;
	uint64_t base;

	rig_device_wait_ms = 20;
	rig_start(&rig, 3);
	rig_device_wait_ms = 60000;
	base = rig.unique;
	cold_add_striped(&rig, fds);
	cold_add(&rig, OTHER, old, BAD);
	assert_int_equal(pthread_create(&thread, NULL, make_trouble, &trouble), 0);
	for (int i = 0; i < RACE_READS; i++) {
		offsets[i] = (uint64_t)rand_r(&seed) % (FILE_BYTES / 2);
		send_read(&rig, rand_r(&seed) % 2 ? NODE : OTHER, offsets[i], (uint32_t)rand_r(&seed) % (FILE_BYTES / 2) + 1);
		if (rand_r(&seed) % 4 == 0)
			send_interrupt(&rig, rig.unique);
		if (i == RACE_READS / 2)
			assert_int_equal(kvd_split_object_switch(rig.split, &ddr), 0);
	}
	if (removes) /* what had not been read by then goes to the peer */
		assert_int_equal(kvd_split_object_remove(rig.split, OTHER), 0);
	else
		collect(&rig, offsets, base);
	atomic_store(&trouble.stop, true);
	pthread_join(thread, NULL);
	rig_close(&rig);
	close(old);
	close(fds[0]);
	close(fds[1]);
}

static void test_races(void **state)
{
	(void)state;
	for (unsigned round = 0; round < RACE_ROUNDS; round++)
		race(round, round % 3 == 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_races),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
