/* The table of objects, and the queue of events. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "fuse/internal.h"
#include "split_rig.h"

enum { PAGE = 64 << 10 };

static void test_events_are_bounded(void **state)
{
	struct kvd_split_event events[300];
	time_t deadline = time(NULL) + 10;
	struct rig rig;
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)state;
	rig_start(&rig, 1);
	for (uint64_t node = 1; node <= 300; node++) {
		struct kvd_split_object object = { .node = node, .mode = KVD_MODE_DIRECT, .fd = fd };

		assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
		kernel_expect_error(&rig, send_read(&rig, node, 0, 4096), EBADF);
	}
	/* There is room left for the end of the mount. */
	atomic_store(&fake_read_error, ENODEV);
	kernel_send(&rig, FUSE_IOCTL, 1, NULL, 0, NULL, 0);
	while (atomic_load(&fake_read_error)) {
		assert_true(time(NULL) < deadline);
		sched_yield();
	}
	kvd_split_stop(rig.split);
	assert_int_equal(kvd_split_events(rig.split, events, 300), 249);
	assert_int_equal(events[0].node, 1);
	assert_int_equal(events[248].kind, KVD_EVENT_UNMOUNTED);
	close(fd);
	rig_close(&rig);
}

static void test_object_rules(void **state)
{
	struct rig rig;
	int fd = rig_file(100);
	int other = rig_file(0);
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_DIRECT, .fd = fd };
	struct kvd_split_sums sums = { .page_bytes = PAGE };

	(void)state;
	assert_int_equal(pwrite(other, "other", 5, 0), 5);
	rig_start(&rig, 1);
	assert_int_equal(kvd_split_object_switch(rig.split, &object), -ENOENT);
	assert_int_equal(kvd_split_object_limit(rig.split, 5, 1), -ENOENT);
	assert_int_equal(kvd_split_object_remove(rig.split, 5), -ENOENT);
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EEXIST);
	object.fd = other;
	object.mode = KVD_MODE_CACHED;
	assert_int_equal(kvd_split_object_switch(rig.split, &object), -EINVAL);
	object.mode = KVD_MODE_DIRECT;
	assert_int_equal(kvd_split_object_switch(rig.split, &object), 0);
	expect_read(&rig, 5, 0, 100, "other", 5);
	assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);

	object.mode = KVD_MODE_PASSTHROUGH;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL); /* no backing id */
	object.mode = 4;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	object.mode = KVD_MODE_DIRECT;
	object.fd = -1;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	object.fd = 1 << 20;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EBADF);
	object.fd = fd;
	object.sums = &sums;
	object.writable = 1;
	assert_int_equal(kvd_split_object_add(rig.split, &object), -EINVAL);
	assert_int_equal(rig_stats(&rig).objects, 0);
	close(fd);
	close(other);
	rig_close(&rig);
}

/* Many nodes, so that the table grows; found all, removed all. */
static void test_many_objects(void **state)
{
	enum { MANY = 3000 };
	struct rlimit files;
	struct rig rig;
	int fd = rig_file(16);

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = 2 * MANY;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	rig_start(&rig, 1);
	for (uint64_t i = 1; i <= MANY; i++)
		rig_add(&rig, i << 12, fd, UINT64_MAX);
	assert_int_equal(rig_stats(&rig).objects, MANY);
	for (uint64_t i = 1; i <= MANY; i++) {
		assert_int_equal(kvd_split_object_limit(rig.split, i << 12, 5), 0);
		assert_int_equal(kvd_split_object_limit(rig.split, (i << 12) + 1, 5), -ENOENT);
	}
	/* The other half goes with the split. */
	for (uint64_t i = 1; i <= MANY; i += 2) {
		assert_int_equal(kvd_split_object_remove(rig.split, i << 12), 0);
		assert_int_equal(kvd_split_object_remove(rig.split, i << 12), -ENOENT);
	}
	assert_int_equal(rig_stats(&rig).objects, MANY / 2);
	close(fd);
	rig_close(&rig);
}

struct remover {
	kvd_split *split;
	struct kvd_split_object *other; /* to switch to, or NULL */
	atomic_bool done;
	int result;
};

static void *remove_object(void *arg)
{
	struct remover *remover = arg;

	remover->result = remover->other ? kvd_split_object_switch(remover->split, remover->other)
					 : kvd_split_object_remove(remover->split, 5);
	atomic_store(&remover->done, true);
	return NULL;
}

static bool is_current(struct rig *rig, const struct kvd_object *held)
{
	struct kvd_object *object = kvd_object_get(&rig->split->objects, 5);

	if (object)
		kvd_object_put(&rig->split->objects, object);
	return object == held;
}

/* A reference stands for a read that hangs in a slow disk. */
static void test_remove_and_switch_wait_for_io(void **state)
{
	int other = rig_file(5);
	struct kvd_split_object object = { .node = 5, .mode = KVD_MODE_DIRECT, .fd = other };
	struct remover switcher = { .other = &object };
	struct remover remover = { 0 };
	struct remover *both[] = { &switcher, &remover };
	struct rig rig;
	int fd = rig_file(100);

	(void)state;
	rig_start(&rig, 1);
	rig_add(&rig, 5, fd, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		struct kvd_object *held = kvd_object_get(&rig.split->objects, 5);
		time_t deadline = time(NULL) + 10;
		pthread_t thread;

		both[i]->split = rig.split;
		assert_int_equal(pthread_create(&thread, NULL, remove_object, both[i]), 0);
		while (is_current(&rig, held)) {
			assert_true(time(NULL) < deadline);
			sched_yield();
		}
		/* It is gone for new requests, and still whole for this one. */
		assert_false(atomic_load(&both[i]->done));
		assert_true(fcntl(held->fd, F_GETFD) >= 0);
		kvd_object_put(&rig.split->objects, held);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(both[i]->result, 0);
	}
	close(fd);
	close(other);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events_are_bounded),
		cmocka_unit_test(test_object_rules),
		cmocka_unit_test(test_many_objects),
		cmocka_unit_test(test_remove_and_switch_wait_for_io),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
