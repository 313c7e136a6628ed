/*
 * A device that hangs for good: reads can't even be cancelled. The device is a FUSE file system that answers everything
 * except READ. A process of its own serves it, which dies with the test: were it a thread, a test that fails would
 * wait in the kernel for itself. Needs root (its own mount namespace); skipped for others.
 */
#include "test_mover_util.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum {
	ROOT_INO = 1,
	FILE_INO = 2,
	REQUEST_BYTES = 1 << 17,
	GRACE_MS = 2000, /* KVD_LANE_GRACE_MS */
	HUNG_PAGES = 4 * QUEUE_DEPTH,
	HUNG_DEVICE = 1,
};

static struct fuse_attr attr_of(uint64_t ino)
{
	return (struct fuse_attr){
		.ino = ino,
		.size = HUNG_PAGES * PAGE_BYTES,
		.mode = ino == ROOT_INO ? S_IFDIR | 0700 : S_IFREG | 0600,
		.nlink = 1,
	};
}

static void answer(int fuse_fd, const struct fuse_in_header *in, int32_t error, const void *body, uint32_t body_bytes)
{
	struct {
		struct fuse_out_header header;
		uint8_t body[256];
	} out = {.header = {.len = (uint32_t)sizeof(out.header) + body_bytes, .error = error, .unique = in->unique}};

	if (body_bytes > 0)
		memcpy(out.body, body, body_bytes);
	if (write(fuse_fd, &out, out.header.len) != (ssize_t)out.header.len)
		_exit(1);
}

static void serve_one(int fuse_fd, const struct fuse_in_header *in)
{
	const struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096, .max_background = 64,
		.flags = FUSE_ASYNC_DIO | FUSE_ASYNC_READ,
	};
	const struct fuse_entry_out entry = {.nodeid = FILE_INO, .attr = attr_of(FILE_INO)};
	const struct fuse_attr_out attr = {.attr = attr_of(in->nodeid)};
	const struct fuse_open_out open_out = {.open_flags = FOPEN_DIRECT_IO};

	switch (in->opcode) {
	case FUSE_INIT:
		answer(fuse_fd, in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		answer(fuse_fd, in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(fuse_fd, in, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(fuse_fd, in, 0, &open_out, sizeof(open_out));
		break;
	case FUSE_READ:
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
		break; /* the first two hang; the third wants no answer */
	default:
		answer(fuse_fd, in, -ENOSYS, NULL, 0);
	}
}

static pid_t fork_server(int fuse_fd)
{
	static _Alignas(struct fuse_in_header) uint8_t request[REQUEST_BYTES];
	pid_t server = fork();
	ssize_t n;

	if (server != 0)
		return server;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while ((n = read(fuse_fd, request, sizeof(request))) > 0 || (n < 0 && (errno == EINTR || errno == ENOENT)))
		if (n > 0)
			serve_one(fuse_fd, (const struct fuse_in_header *)(const void *)request);
	_exit(0);
}

static bool mounts_are_private;
static const struct kvd_mover_run hung_run = {0, HUNG_PAGES};

struct device {
	pid_t server;
	int file_fd;
};

static struct device hung_device(const struct rig *rig)
{
	struct device device;
	char options[96], file[96];
	int fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fuse_fd < 0 || !mounts_are_private)
		skip();
	snprintf(options, sizeof(options), "fd=%d,rootmode=40700,user_id=0,group_id=0", fuse_fd);
	assert_int_equal(mount("kvd-test", rig->dir, "fuse", MS_NODEV | MS_NOSUID, options), 0);
	device.server = fork_server(fuse_fd);
	assert_true(device.server > 0);
	close(fuse_fd);
	snprintf(file, sizeof(file), "%s/hung", rig->dir);
	device.file_fd = open(file, O_RDONLY | O_CLOEXEC);
	assert_true(device.file_fd >= 0);
	return device;
}

/* Every pending request gets an error, as when a dead device is unplugged. */
static void unplug(const struct rig *rig, const struct device *device)
{
	assert_int_equal(kill(device->server, SIGKILL), 0);
	assert_int_equal(waitpid(device->server, NULL, 0), device->server);
	close(device->file_fd);
	assert_int_equal(umount2(rig->dir, MNT_DETACH), 0);
}

static struct kvd_mover_job hung_job(const struct device *device, uint64_t token, uint32_t *crc)
{
	static struct kvd_mover_part part;

	part = part_of(device->file_fd, false);
	part.device = HUNG_DEVICE;
	return (struct kvd_mover_job){
		.token = token,
		.kind = KVD_MOVE_VERIFY,
		.page_bytes = PAGE_BYTES,
		.ddr_fd = -1,
		.n_parts = 1,
		.parts = &part,
		.size_bytes = HUNG_PAGES * PAGE_BYTES,
		.deadline_ms = 50,
		.n_runs = 1,
		.runs = &hung_run,
		.crc = crc,
	};
}

/* A promotion, which may take all buffers of the device. */
static struct kvd_mover_job hung_promotion(const struct device *device, uint64_t token, uint32_t *crc, int ddr_fd)
{
	struct kvd_mover_job job = hung_job(device, token, crc);

	job.kind = KVD_MOVE_PROMOTE;
	job.ddr_fd = ddr_fd;
	return job;
}

static struct kvd_mover_device stats_of(const struct rig *rig, uint32_t device)
{
	struct kvd_mover_device stats;

	assert_int_equal(kvd_mover_device_stats(rig->mover, device, &stats), 0);
	return stats;
}

/* An object goes to `device` and back. */
static void assert_serves(struct rig *rig, struct object *object, uint32_t device)
{
	int back = memory_file();
	struct kvd_mover_job job = job_demote(rig, object, 100);

	object->parts[0].device = device;
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job = job_promote(object, back, 101);
	object->parts[0].device = device;
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	assert_file_is(back, object->bytes, object->size_bytes);
	job = job_verify(object, 102);
	object->parts[0].device = device;
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	close(back);
}

static void test_hung_device(void **state)
{
	struct rig *rig = *state;
	uint32_t crc[HUNG_PAGES] = {0};
	struct device device = hung_device(rig);
	int ddr = memory_file();
	struct kvd_mover_job job = hung_promotion(&device, 1, crc, ddr);
	struct kvd_mover_result result;
	struct kvd_mover_device stats;
	struct object object;

	/* It takes all buffers, can't be stopped, and is given up after the grace time. */
	object_make(rig, &object, "object", HUNG_PAGES * PAGE_BYTES, &hung_run, 1, true);
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_int_equal(result.device, HUNG_DEVICE);
	assert_true(result.duration_ns >= UINT64_C(1000000) * GRACE_MS);
	stats = stats_of(rig, HUNG_DEVICE);
	assert_int_equal(stats.in_flight, QUEUE_DEPTH);
	assert_int_equal(stats.given_up, QUEUE_DEPTH);
	assert_int_equal(stats.queued, 0);
	assert_true(stats.oldest_ns >= UINT64_C(1000000) * GRACE_MS);
	/* Nothing can move there now, and that is said at once; the others serve. */
	for (uint64_t token = 2; token < 4 * QUEUE_JOBS; token++) {
		job.token = token;
		assert_int_equal(kvd_mover_submit(rig->mover, &job), -EBUSY);
	}
	assert_serves(rig, &object, 0);
	assert_serves(rig, &object, DEVICES - 1);

	/* The kernel gives the buffers back, and they serve again. */
	unplug(rig, &device);
	for (int waited_ms = 0; stats_of(rig, HUNG_DEVICE).given_up > 0; waited_ms++) {
		assert_true(waited_ms < DEADLINE_MS);
		(void)poll(NULL, 0, 1);
	}
	assert_int_equal(stats_of(rig, HUNG_DEVICE).oldest_ns, 0);
	assert_serves(rig, &object, HUNG_DEVICE);
	close(ddr);
	object_free(&object);
}

/* The hung one is named, whatever the others of the job do. */
static void test_striped_over_a_hung_device(void **state)
{
	struct rig *rig = *state;
	uint32_t crc[HUNG_PAGES] = {0};
	struct device device = hung_device(rig);
	struct kvd_mover_job job;
	struct kvd_mover_result result;
	struct object object;
	int back = memory_file();

	object_make_striped(rig, &object, "object", HUNG_PAGES * PAGE_BYTES, &hung_run, 1, true, DEVICES, PAGE_BYTES);
	job = job_demote(rig, &object, 1);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job = job_promote(&object, back, 2);
	object.parts[HUNG_DEVICE].fd = device.file_fd;
	object.parts[HUNG_DEVICE].direct = false;
	job.deadline_ms = 50;
	/* A verification of its own is on its way there, and ends as it would alone. */
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	job = hung_job(&device, 3, crc);
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	for (int i = 0; i < 2; i++) {
		result = next_result(rig->mover);
		assert_int_equal(result.status, -ETIMEDOUT);
		assert_int_equal(result.device, HUNG_DEVICE);
	}
	assert_int_equal(stats_of(rig, 0).in_flight, 0);
	assert_int_equal(stats_of(rig, HUNG_DEVICE).given_up, QUEUE_DEPTH);
	unplug(rig, &device);
	close(back);
	object_free(&object);
}

/* A request that takes too long ends its job long before the job's own deadline; one that waits only is not late. */
static void test_request_deadline(void **state)
{
	const uint32_t request_ms = 100;
	struct kvd_mover_config config = rig_config();
	struct rig *rig = *state;
	uint32_t crc[HUNG_PAGES] = {0};
	struct device device = hung_device(rig);
	struct kvd_mover_job job = hung_job(&device, 1, crc);
	struct kvd_mover_result result;

	kvd_mover_fini(rig->mover);
	rig->mover = NULL;
	config.request_ms = request_ms;
	assert_int_equal(kvd_mover_init(&config, &rig->mover), 0);
	job.deadline_ms = DEADLINE_MS;
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_int_equal(result.device, HUNG_DEVICE);
	assert_true(result.duration_ns >= UINT64_C(1000000) * request_ms);
	assert_true(result.duration_ns < UINT64_C(1000000) * DEADLINE_MS);
	unplug(rig, &device);
}

/* What fini left to the kernel; the leak checker finds it here. */
static kvd_mover *left_behind;

/* Ending the mover does not wait for the device for ever. */
static void test_fini_with_hung_device(void **state)
{
	static uint32_t crc[HUNG_PAGES];
	struct rig *rig = *state;
	struct device device = hung_device(rig);
	struct kvd_mover_job job = hung_job(&device, 1, crc);
	struct timespec before, after;

	job.deadline_ms = DEADLINE_MS;
	assert_int_equal(kvd_mover_submit(rig->mover, &job), 0);
	left_behind = rig->mover;
	rig->mover = NULL;
	clock_gettime(CLOCK_MONOTONIC, &before);
	kvd_mover_fini(left_behind);
	clock_gettime(CLOCK_MONOTONIC, &after);
	assert_true(after.tv_sec - before.tv_sec < DEADLINE_MS / 1000);
	unplug(rig, &device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_hung_device, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_striped_over_a_hung_device, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_request_deadline, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(test_fini_with_hung_device, rig_setup, rig_teardown),
	};

	mounts_are_private = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
