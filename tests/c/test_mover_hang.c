/*
 * A device that hangs for good: reads can't even be cancelled. The device is a FUSE file system that answers everything
 * except READ. A process of its own serves it, which dies with the test: were it a thread, a test that fails would
 * wait in the kernel for itself. Needs root (its own mount namespace); skipped for others.
 */
#include "test_mover_util.h"

#include <linux/fuse.h>
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
	return (struct kvd_mover_job){
		.token = token,
		.kind = KVD_MOVE_VERIFY,
		.page_bytes = PAGE_BYTES,
		.src_fd = device->file_fd,
		.dst_fd = -1,
		.size_bytes = HUNG_PAGES * PAGE_BYTES,
		.deadline_ms = 50,
		.n_runs = 1,
		.runs = &hung_run,
		.crc = crc,
	};
}

static void test_hung_device(void **state)
{
	struct rig *rig = *state;
	uint32_t crc[HUNG_PAGES] = {0};
	struct device device = hung_device(rig);
	struct kvd_mover_job job = hung_job(&device, 1, crc);
	struct kvd_mover_result result;
	struct object object;

	/* It takes all buffers, can't be stopped, and is given up after the grace time. */
	result = run_job(rig->mover, &job);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_true(result.duration_ns >= UINT64_C(1000000) * GRACE_MS);
	/* Nothing can move in this lane now; that, too, ends by the deadline. */
	job.token = 2;
	assert_int_equal(run_job(rig->mover, &job).status, -ETIMEDOUT);

	/* The kernel gives the buffers back, and they serve again. */
	unplug(rig, &device);
	object_make(rig, &object, "object", HUNG_PAGES * PAGE_BYTES, &hung_run, 1, true);
	job = job_demote(rig, &object, 3);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	job = job_verify(&object, 4);
	assert_int_equal(run_job(rig->mover, &job).status, 0);
	object_free(&object);
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
		cmocka_unit_test_setup_teardown(test_fini_with_hung_device, rig_setup, rig_teardown),
	};

	mounts_are_private = unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
