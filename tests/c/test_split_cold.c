/* READs of cold objects whose drive hangs. */
#include <errno.h>
#include <unistd.h>

#include "split_cold.h"

static struct message message;

static void expect_blamed(struct rig *rig, uint64_t node)
{
	struct kvd_split_event event = expect_event(rig, KVD_EVENT_IO_ERROR);

	assert_int_equal(event.node, node);
	assert_int_equal(event.value, ETIMEDOUT);
	assert_int_equal(event.device, BAD + 1);
}

/* One reader alone serves everybody while a drive hangs. */
static void test_others_go_on(void **state)
{
	int bad = cold_file();
	int good = cold_file();
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	cold_add(&rig, NODE, bad, BAD);
	cold_add(&rig, OTHER, good, GOOD);
	cold_hang(bad);
	unique = send_read(&rig, NODE, 5, 100);
	cold_await_hanging(1);
	for (int i = 0; i < 2 * THREADS; i++)
		cold_expect_whole(&rig, OTHER);
	kernel_expect_silence(&rig);
	assert_int_equal(rig_stats(&rig).cold_reading, 1);
	/* A drive that answers in time has done nothing wrong. */
	atomic_store(&fake_hang_ino, 0);
	kernel_recv(&rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.bytes, sizeof(message.out.header) + 100);
	assert_memory_equal(message.out.body, cold_want + 5, 100);
	assert_false(has_event(&rig));
	close(bad);
	close(good);
	rig_close(&rig);
}

static void test_the_deadline_blames_the_device(void **state)
{
	int fd = cold_file();
	struct rig rig;

	(void)state;
	rig_device_wait_ms = 50;
	rig_start(&rig, 1);
	rig_device_wait_ms = 60000;
	cold_add(&rig, NODE, fd, BAD);
	cold_hang(fd);
	kernel_expect_error(&rig, send_read(&rig, NODE, 0, PAGE), EIO);
	expect_blamed(&rig, NODE);
	cold_await_given_up(&rig, 1);
	cold_heal(&rig);
	cold_expect_whole(&rig, NODE);
	kernel_expect_silence(&rig); /* what came late is nobody's */
	close(fd);
	rig_close(&rig);
}

/* Each thread of a device is kept: what waits for one, and what comes, is EIO; nothing more is given to the drive. */
static void test_what_is_given_up_is_bounded(void **state)
{
	int bad = cold_file();
	int good = cold_file();
	struct rig rig;
	uint64_t first;
	uint64_t seen = 0;

	(void)state;
	rig_device_wait_ms = 300;
	rig_start(&rig, 2);
	rig_device_wait_ms = 60000;
	cold_add(&rig, NODE, bad, BAD);
	cold_add(&rig, OTHER, good, GOOD);
	cold_hang(bad);
	first = rig.unique + 2;
	for (int i = 0; i < 3 * THREADS; i++)
		send_read(&rig, NODE, 0, PAGE);
	for (int i = 0; i < 3 * THREADS; i++) {
		kernel_recv(&rig, &message);
		assert_int_equal(message.out.header.error, -EIO);
		seen |= UINT64_C(1) << (message.out.header.unique - first) / 2;
	}
	assert_int_equal(seen, (UINT64_C(1) << 3 * THREADS) - 1);
	cold_await_given_up(&rig, THREADS);
	assert_int_equal(atomic_load(&fake_hanging), THREADS);
	expect_blamed(&rig, NODE);
	kernel_expect_error(&rig, send_read(&rig, NODE, 0, PAGE), EIO);
	cold_expect_whole(&rig, OTHER);
	cold_heal(&rig);
	cold_expect_whole(&rig, NODE);
	close(bad);
	close(good);
	rig_close(&rig);
}

/* Not the device's fault: a READ whose turn does not come. */
static void test_a_turn_that_does_not_come(void **state)
{
	struct kvd_split_event event;
	int fd = cold_file();
	struct rig rig;
	uint64_t last;

	(void)state;
	rig_read_wait_ms = 500; /* enough for the threads to be started on a busy machine */
	rig_start(&rig, 1);
	rig_read_wait_ms = 60000;
	cold_add(&rig, NODE, fd, BAD);
	cold_hang(fd);
	for (int i = 0; i < THREADS; i++)
		send_read(&rig, NODE, 0, 10);
	cold_await_hanging(THREADS);
	last = send_read(&rig, NODE, 0, 10);
	kernel_expect_error(&rig, last, EIO);
	event = expect_event(&rig, KVD_EVENT_IO_ERROR);
	assert_int_equal(event.value, ETIMEDOUT);
	assert_int_equal(event.device, 0);
	assert_int_equal(rig_stats(&rig).cold_given_up, 0);
	atomic_store(&fake_hang_ino, 0);
	for (int i = 0; i < THREADS; i++) {
		kernel_recv(&rig, &message);
		assert_int_equal(message.bytes, sizeof(message.out.header) + 10);
	}
	close(fd);
	rig_close(&rig);
}

static void test_interrupts(void **state)
{
	int fd = cold_file();
	struct rig rig;
	uint64_t uniques[THREADS + 2];

	(void)state;
	rig_start(&rig, 1);
	cold_add(&rig, NODE, fd, BAD);
	cold_hang(fd);
	for (int i = 0; i < THREADS + 2; i++)
		uniques[i] = send_read(&rig, NODE, (uint64_t)i, 10);
	cold_await_hanging(THREADS);
	/* One that waits for its turn, one that the drive keeps, and one that comes after its interrupt. */
	send_interrupt(&rig, uniques[THREADS + 1]);
	kernel_expect_error(&rig, uniques[THREADS + 1], EINTR);
	send_interrupt(&rig, uniques[0]);
	kernel_expect_error(&rig, uniques[0], EINTR);
	cold_await_given_up(&rig, 1);
	send_interrupt(&rig, rig.unique + 2);
	kernel_expect_error(&rig, send_read(&rig, NODE, 0, 10), EINTR);
	assert_int_equal(rig_stats(&rig).interrupted, 3);
	atomic_store(&fake_hang_ino, 0);
	for (int i = 0; i < THREADS; i++)
		kernel_recv(&rig, &message);
	cold_await_given_up(&rig, 0);
	kernel_expect_silence(&rig);
	close(fd);
	rig_close(&rig);
}

static void test_removal_does_not_wait(void **state)
{
	int fd = cold_file();
	struct rig rig;
	uint64_t running;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	cold_add(&rig, NODE, fd, BAD);
	cold_hang(fd);
	running = send_read(&rig, NODE, 0, 10);
	cold_await_hanging(1);
	assert_int_equal(kvd_split_object_remove(rig.split, NODE), 0);
	kernel_expect_error(&rig, running, EIO);
	assert_int_equal(rig_stats(&rig).objects, 0);
	/* The same node again, while the drive still has the old object's descriptors. */
	cold_add(&rig, NODE, fd, BAD);
	unique = send_read(&rig, NODE, 0, 10);
	cold_await_hanging(2);
	atomic_store(&fake_hang_ino, 0);
	kernel_recv(&rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	cold_await_given_up(&rig, 0);
	close(fd);
	rig_close(&rig);
}

/* Those that hang, and those that wait for their turn, are served from the new file. */
static void test_a_switch_serves_them_anew(void **state)
{
	int fd = cold_file();
	struct rig rig;
	uint64_t seen = 0;
	uint64_t first;
	struct kvd_split_object ddr = { .node = NODE, .mode = KVD_MODE_DIRECT };

	(void)state;
	rig_start(&rig, 2);
	cold_add(&rig, NODE, fd, BAD);
	cold_hang(fd);
	first = rig.unique + 2;
	for (int i = 0; i < THREADS + 3; i++)
		send_read(&rig, NODE, (uint64_t)i, 100);
	cold_await_hanging(THREADS);
	ddr.fd = cold_file();
	assert_int_equal(kvd_split_object_switch(rig.split, &ddr), 0);
	for (int i = 0; i < THREADS + 3; i++) {
		uint64_t index;

		kernel_recv(&rig, &message);
		index = (message.out.header.unique - first) / 2;
		assert_int_equal(message.out.header.error, 0);
		assert_memory_equal(message.out.body, cold_want + index, 100);
		seen |= UINT64_C(1) << index;
	}
	assert_int_equal(seen, (UINT64_C(1) << (THREADS + 3)) - 1);
	cold_await_given_up(&rig, THREADS);
	cold_heal(&rig);
	kernel_expect_silence(&rig);
	close(ddr.fd);
	close(fd);
	rig_close(&rig);
}

static void test_a_device_that_is_not_usable(void **state)
{
	int bad = cold_file();
	int good = cold_file();
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	cold_add(&rig, NODE, bad, BAD);
	cold_add(&rig, OTHER, good, GOOD);
	cold_hang(bad);
	unique = send_read(&rig, NODE, 0, 10);
	cold_await_hanging(1);
	assert_int_equal(kvd_split_device(rig.split, BAD, 0), 0);
	kernel_expect_error(&rig, unique, EIO);
	kernel_expect_error(&rig, send_read(&rig, NODE, 0, 10), EIO);
	assert_int_equal(atomic_load(&fake_hanging), 1);
	cold_expect_whole(&rig, OTHER);
	assert_false(has_event(&rig)); /* whoever says so knows */
	cold_heal(&rig);
	kernel_expect_error(&rig, send_read(&rig, NODE, 0, 10), EIO);
	assert_int_equal(kvd_split_device(rig.split, BAD, 1), 0);
	cold_expect_whole(&rig, NODE);
	assert_int_equal(kvd_split_device(rig.split, KVD_SPLIT_DEVICES_MAX, 1), -EINVAL);
	close(bad);
	close(good);
	rig_close(&rig);
}

/* A striped object: each part takes only the threads of its own device. */
static void test_stripes(void **state)
{
	int fds[] = { cold_file(), cold_file() };
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	cold_add_striped(&rig, fds);
	cold_expect_whole(&rig, NODE);
	expect_read(&rig, NODE, STRIPE - 10, 20, cold_want + STRIPE - 10, 20);
	cold_hang(fds[0]);
	expect_read(&rig, NODE, STRIPE + 5, STRIPE - 5, cold_want + STRIPE + 5, STRIPE - 5);
	unique = send_read(&rig, NODE, STRIPE, STRIPE + 1); /* begins on the good one */
	cold_await_hanging(1);
	for (int i = 0; i < 2 * THREADS; i++)
		expect_read(&rig, NODE, STRIPE, 10, cold_want + STRIPE, 10);
	assert_int_equal(kvd_split_device(rig.split, BAD, 0), 0);
	kernel_expect_error(&rig, unique, EIO);
	kernel_expect_error(&rig, send_read(&rig, NODE, STRIPE, STRIPE + 1), EIO);
	expect_read(&rig, NODE, STRIPE, STRIPE, cold_want + STRIPE, STRIPE);
	cold_heal(&rig);
	assert_int_equal(kvd_split_device(rig.split, BAD, 1), 0);
	cold_expect_whole(&rig, NODE);
	close(fds[0]);
	close(fds[1]);
	rig_close(&rig);
}

/* The drive lets go when split and objects are long gone. */
static void test_a_stop_does_not_wait(void **state)
{
	int fd = cold_file();
	struct rig rig;
	uint64_t unique;
	uint64_t removed;

	(void)state;
	rig_start(&rig, 1);
	cold_add(&rig, NODE, fd, BAD);
	cold_add(&rig, OTHER, fd, BAD);
	cold_hang(fd);
	removed = send_read(&rig, OTHER, 0, 10);
	cold_await_hanging(1);
	assert_int_equal(kvd_split_object_remove(rig.split, OTHER), 0);
	kernel_expect_error(&rig, removed, EIO);
	unique = send_read(&rig, NODE, 0, 10);
	cold_await_hanging(2);
	kvd_split_stop(rig.split);
	kernel_expect_error(&rig, unique, ENOTCONN);
	rig_close(&rig);
	assert_int_equal(atomic_load(&fake_hanging), 2);
	atomic_store(&fake_hang_ino, 0);
	cold_await_hanging(0);
	close(fd);
}

static void test_holes_are_told_without_the_drive(void **state)
{
	static const uint64_t some[] = { 1, 2, 5, 1 };
	struct kvd_split_sums sums = { .page_bytes = PAGE, .n_runs = 2, .runs = some, .crc = cold_crc };
	struct fuse_lseek_in in = { .offset = 0, .whence = SEEK_DATA };
	int fd = cold_file();
	struct kvd_split_object object = { .node = NODE, .mode = KVD_MODE_DIRECT, .fd = fd, .sums = &sums };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_split_object_add(rig.split, &object), 0);
	kernel_send(&rig, FUSE_LSEEK, NODE, &in, sizeof(in), NULL, 0);
	kernel_recv(&rig, &message);
	assert_int_equal(((struct fuse_lseek_out *)message.out.body)->offset, PAGE);
	close(fd);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_others_go_on),
		cmocka_unit_test(test_the_deadline_blames_the_device),
		cmocka_unit_test(test_what_is_given_up_is_bounded),
		cmocka_unit_test(test_a_turn_that_does_not_come),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_removal_does_not_wait),
		cmocka_unit_test(test_a_switch_serves_them_anew),
		cmocka_unit_test(test_a_device_that_is_not_usable),
		cmocka_unit_test(test_stripes),
		cmocka_unit_test(test_a_stop_does_not_wait),
		cmocka_unit_test(test_holes_are_told_without_the_drive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
