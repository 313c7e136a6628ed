/* The two negotiations, and the life of the threads. */
#include <dirent.h>
#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "split_rig.h"

static struct message message;

/* What a Linux 6.18 offers (recorded): all of 0..31 but the reserved bit, and more above. */
static const struct kvd_wire_init_in new_kernel = {
	.major = 7,
	.minor = 45,
	.max_readahead = 128 << 10,
	.flags = 0x73fffffb,
	.flags2 = 0x3fd,
};

static const uint32_t peer_flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_PARALLEL_DIROPS |
				   FUSE_DO_READDIRPLUS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS;

/* Negotiate with an offer; what the kernel got is in *out. */
static void negotiate(struct rig *rig, const struct kvd_wire_init_in *offer, size_t bytes, struct kvd_wire_init_out *out)
{
	struct kvd_wire_init_in shown;
	uint64_t unique = kernel_send(rig, FUSE_INIT, 0, offer, bytes, NULL, 0);

	peer_expect(rig, &message, FUSE_INIT, unique);
	assert_int_equal(message.bytes, sizeof(message.in.header) + KVD_WIRE_INIT_IN_SHORT);
	memcpy(&shown, message.in.body, KVD_WIRE_INIT_IN_SHORT);
	assert_int_equal(shown.major, 7);
	assert_int_equal(shown.minor, 31);
	assert_int_equal(shown.max_readahead, offer->max_readahead);
	assert_int_equal(shown.flags, peer_flags);
	/* libfuse's answer does not matter, but for its error. */
	memset(&message, 0xee, sizeof(message.raw));
	peer_send(rig, unique, 0, message.raw, 64);
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.out.header.error, 0);
	assert_int_equal(message.bytes, sizeof(message.out.header) + sizeof(*out));
	memcpy(out, message.out.body, sizeof(*out));
}

static void test_new_kernel(void **state)
{
	struct kvd_wire_init_out out;
	struct rig rig;

	(void)state;
	rig_open(&rig, 1);
	assert_int_equal(kvd_split_features(rig.split), 0);
	negotiate(&rig, &new_kernel, sizeof(new_kernel), &out);
	assert_int_equal(out.major, 7);
	assert_int_equal(out.minor, 41);
	assert_int_equal(out.flags, peer_flags | KVD_WIRE_INIT_EXT);
	assert_int_equal(out.flags2, KVD_WIRE_PASSTHROUGH2 | KVD_WIRE_DIRECT_IO_ALLOW_MMAP2);
	assert_int_equal(out.max_stack_depth, 1);
	assert_int_equal(out.max_readahead, 128 << 10);
	assert_int_equal(out.max_write, RIG_IO_BYTES);
	assert_int_equal(out.max_pages, RIG_IO_BYTES / 4096);
	assert_int_equal(out.max_background, 64);
	assert_int_equal(out.congestion_threshold, 48);
	assert_int_equal(out.time_gran, 1);
	assert_int_equal(expect_event(&rig, KVD_EVENT_INIT).value, RIG_FEATURES);
	assert_int_equal(kvd_split_features(rig.split), RIG_FEATURES);
	/* A second INIT is nobody's. */
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_INIT, 0, &new_kernel, sizeof(new_kernel), NULL, 0), EIO);
	rig_close(&rig);
}

static void test_kernel_without_passthrough(void **state)
{
	/* Linux 6.6: DIRECT_IO_ALLOW_MMAP, but no PASSTHROUGH. */
	struct kvd_wire_init_in offer = new_kernel;
	struct kvd_wire_init_out out;
	struct rig rig;

	(void)state;
	offer.minor = 39;
	offer.flags2 = KVD_WIRE_DIRECT_IO_ALLOW_MMAP2 | 1;
	rig_open(&rig, 1);
	negotiate(&rig, &offer, sizeof(offer), &out);
	assert_int_equal(out.minor, 39);
	assert_int_equal(out.flags2, KVD_WIRE_DIRECT_IO_ALLOW_MMAP2);
	assert_int_equal(out.max_stack_depth, 0);
	assert_int_equal(expect_event(&rig, KVD_EVENT_INIT).value, RIG_FEATURES & ~KVD_FEATURE_PASSTHROUGH);
	rig_close(&rig);
}

static void test_kernel_of_the_least_minor(void **state)
{
	struct kvd_wire_init_in offer = new_kernel;
	struct kvd_wire_init_out out;
	struct rig rig;

	(void)state;
	offer.minor = 31;
	offer.flags &= ~KVD_WIRE_INIT_EXT;
	rig_open(&rig, 1);
	negotiate(&rig, &offer, KVD_WIRE_INIT_IN_SHORT, &out);
	assert_int_equal(out.minor, 31);
	assert_int_equal(out.flags, peer_flags);
	assert_int_equal(out.flags2, 0);
	assert_int_equal(kvd_split_features(rig.split), KVD_FEATURE_READDIRPLUS | KVD_FEATURE_ATOMIC_TRUNC);
	rig_close(&rig);
}

static void test_without_rights_no_passthrough(void **state)
{
	struct kvd_wire_init_out out;
	struct rig rig;

	(void)state;
	atomic_store(&fake_may_back, false);
	rig_open(&rig, 1);
	negotiate(&rig, &new_kernel, sizeof(new_kernel), &out);
	atomic_store(&fake_may_back, true);
	assert_int_equal(out.flags2, KVD_WIRE_DIRECT_IO_ALLOW_MMAP2);
	assert_int_equal(out.max_stack_depth, 0);
	rig_close(&rig);
}

static void test_old_kernel_is_refused(void **state)
{
	struct kvd_wire_init_in offer = new_kernel;
	struct rig rig;

	(void)state;
	offer.minor = 30;
	rig_open(&rig, 1);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_INIT, 0, &offer, sizeof(offer), NULL, 0), EPROTO);
	assert_int_equal(expect_event(&rig, KVD_EVENT_REFUSED).value, 30);
	offer.major = 6;
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_INIT, 0, &offer, sizeof(offer), NULL, 0), EPROTO);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_INIT, 0, &offer, 8, NULL, 0), EINVAL);
	rig_close(&rig);
}

static void test_newer_major_is_offered_ours(void **state)
{
	struct kvd_wire_init_in offer = new_kernel;
	struct kvd_wire_init_out out;
	struct rig rig;

	(void)state;
	offer.major = 8;
	rig_open(&rig, 1);
	kernel_send(&rig, FUSE_INIT, 0, &offer, sizeof(offer), NULL, 0);
	kernel_recv(&rig, &message);
	assert_int_equal(message.out.header.error, 0);
	memcpy(&out, message.out.body, sizeof(out));
	assert_int_equal(out.major, 7);
	negotiate(&rig, &new_kernel, sizeof(new_kernel), &out);
	rig_close(&rig);
}

static void test_peer_refuses(void **state)
{
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_open(&rig, 1);
	unique = kernel_send(&rig, FUSE_INIT, 0, &new_kernel, sizeof(new_kernel), NULL, 0);
	peer_expect(&rig, &message, FUSE_INIT, unique);
	peer_send(&rig, unique, -EPROTO, NULL, 0);
	kernel_expect_error(&rig, unique, EPROTO);
	assert_int_equal(kvd_split_features(rig.split), 0);
	assert_false(has_event(&rig));
	rig_close(&rig);
}

static void test_bad_config(void **state)
{
	const struct kvd_split_config good = { .fuse_fd = 0, .peer_fd = 0, .readers = 1, .io_bytes_max = 1 << 20,
					       .background = 16, .pending_max = 1, .read_wait_ms = 1, .device_wait_ms = 1 };
	struct kvd_split_config config;
	kvd_split *split = NULL;

	(void)state;
	for (int i = 0; i < 9; i++) {
		config = good;
		if (i == 0)
			config.fuse_fd = -1;
		else if (i == 1)
			config.peer_fd = -1;
		else if (i == 2)
			config.readers = 0;
		else if (i == 3)
			config.io_bytes_max = 4095;
		else if (i == 4)
			config.io_bytes_max = 1 << 30;
		else if (i == 5)
			config.background = 1 << 16;
		else if (i == 6)
			config.pending_max = 0;
		else if (i == 7)
			config.read_wait_ms = 0;
		else
			config.device_wait_ms = 0;
		assert_int_equal(kvd_split_init(&config, &split), -EINVAL);
	}
	assert_null(split);
	kvd_split_fini(NULL);
}

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Each descriptor in turn can't be had: nothing leaks (the sanitizer looks after memory). */
static void test_out_of_descriptors(void **state)
{
	struct kvd_split_config config = { .readers = 3, .io_bytes_max = 1 << 20, .background = 16, .pending_max = 8,
					   .read_wait_ms = 1000, .device_wait_ms = 1000 };
	kvd_split *split = NULL;
	struct rlimit before;
	int pair[2];
	int failures = 0;
	int files;
	int error;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	config.fuse_fd = pair[0];
	config.peer_fd = pair[1];
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	files = open_files();
	do {
		struct rlimit tight = { .rlim_cur = (rlim_t)(pair[1] + 1 + failures), .rlim_max = before.rlim_max };

		assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
		error = kvd_split_init(&config, &split);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		assert_true(error == 0 || error == -EMFILE);
		failures += error != 0;
		assert_true(error == 0 || open_files() == files);
	} while (error);
	/* stop, work, events, and one epoll a reader. */
	assert_int_equal(failures, 6);
	kvd_split_fini(split);
	assert_int_equal(open_files(), files);
	close(pair[0]);
	close(pair[1]);
}

static void test_start_of_what_is_no_socket(void **state)
{
	struct kvd_split_config config = { .readers = 1, .io_bytes_max = 1 << 20, .background = 16, .pending_max = 8,
					   .read_wait_ms = 1000, .device_wait_ms = 1000 };
	kvd_split *split;
	int pair[2];

	(void)state;
	assert_int_equal(pipe(pair), 0);
	config.fuse_fd = pair[0];
	config.peer_fd = pair[1];
	assert_int_equal(kvd_split_init(&config, &split), 0);
	assert_int_equal(kvd_split_start(split), -ENOTSOCK);
	kvd_split_fini(split);
	close(pair[0]);
	close(pair[1]);
}

static void test_unmount_ends_the_threads(void **state)
{
	static const int errors[] = { ENODEV, ECONNABORTED };
	struct rig rig;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		rig_start(&rig, 3);
		/* Retried, and so the request that wakes the reader is answered. */
		atomic_store(&fake_read_error, i ? EINTR : ENOENT);
		kernel_expect_error(&rig, kernel_send(&rig, FUSE_IOCTL, 1, NULL, 0, NULL, 0), ENOTTY);
		atomic_store(&fake_read_error, errors[i]);
		kernel_send(&rig, FUSE_IOCTL, 1, NULL, 0, NULL, 0);
		assert_int_equal(expect_event(&rig, KVD_EVENT_UNMOUNTED).value, errors[i]);
		rig_close(&rig);
		atomic_store(&fake_read_error, 0);
	}
	rig_start(&rig, 2);
	assert_int_equal(shutdown(rig.kernel, SHUT_RDWR), 0);
	assert_int_equal(expect_event(&rig, KVD_EVENT_UNMOUNTED).value, ENODEV);
	rig_close(&rig);
}

static void *stop(void *split)
{
	kvd_split_stop(split);
	return NULL;
}

static void test_stop_answers_what_is_pending(void **state)
{
	uint64_t unique[3];
	pthread_t threads[3];
	struct rig rig;

	(void)state;
	rig_start(&rig, 2);
	for (int i = 0; i < 3; i++) {
		unique[i] = kernel_send(&rig, FUSE_GETATTR, 5, NULL, 0, NULL, 0);
		peer_expect(&rig, &message, FUSE_GETATTR, unique[i]);
	}
	assert_int_equal(rig_stats(&rig).pending, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, stop, rig.split), 0);
	for (int i = 0; i < 3; i++) {
		kernel_recv(&rig, &message);
		assert_int_equal(message.out.header.error, -ENOTCONN);
		for (int j = 0; j < 3; j++)
			if (unique[j] == message.out.header.unique)
				unique[j] = 0;
	}
	for (int i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(unique[i], 0);
	}
	assert_int_equal(rig_stats(&rig).pending, 0);
	kvd_split_stop(rig.split);
	assert_int_equal(kvd_split_start(rig.split), -EALREADY);
	rig_close(&rig);
}

/* Until no further message fits into what waits to be received. */
static void await_full(int fd)
{
	time_t deadline = time(NULL) + 10;
	socklen_t bytes = sizeof(int);
	int room;
	int waiting;

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &bytes), 0);
	do {
		assert_true(time(NULL) < deadline);
		sched_yield();
		assert_int_equal(ioctl(fd, SIOCOUTQ, &waiting), 0);
	} while (waiting < room);
}

/* The peer reads nothing until its socket is full: the reader that waits for room still ends. */
static void test_stop_with_a_full_peer(void **state)
{
	uint8_t value[60 << 10] = { 'n', 0 };
	struct kvd_wire_setxattr_in in = { .size = sizeof(value) - 2 };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	/* In the kernel's socket more wait than the peer's can hold. */
	for (int i = 0; i < 3 * RIG_PENDING_MAX; i++)
		kernel_send(&rig, i % 4 ? FUSE_BATCH_FORGET : FUSE_SETXATTR, 1, &in, sizeof(in), value, sizeof(value));
	await_full(rig.split_peer);
	kvd_split_stop(rig.split);
	assert_int_equal(rig_stats(&rig).pending, 0);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new_kernel),
		cmocka_unit_test(test_kernel_without_passthrough),
		cmocka_unit_test(test_kernel_of_the_least_minor),
		cmocka_unit_test(test_without_rights_no_passthrough),
		cmocka_unit_test(test_old_kernel_is_refused),
		cmocka_unit_test(test_newer_major_is_offered_ours),
		cmocka_unit_test(test_peer_refuses),
		cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_out_of_descriptors),
		cmocka_unit_test(test_start_of_what_is_no_socket),
		cmocka_unit_test(test_unmount_ends_the_threads),
		cmocka_unit_test(test_stop_answers_what_is_pending),
		cmocka_unit_test(test_stop_with_a_full_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
