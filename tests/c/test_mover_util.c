#include "test_mover_util.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>

enum { RESULT_WAIT_MS = 90000 };

struct kvd_mover_config rig_config(void)
{
	return (struct kvd_mover_config){
		.queue_jobs = QUEUE_JOBS,
		.queue_depth = QUEUE_DEPTH,
		.io_bytes = IO_BYTES,
		.n_devices = DEVICES,
		.request_ms = REQUEST_MS,
	};
}

int rig_setup(void **state)
{
	const struct kvd_mover_config config = rig_config();
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	strcpy(rig->dir, "/var/tmp/kvd-mover-XXXXXX");
	assert_non_null(mkdtemp(rig->dir));
	rig->dir_fd = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(rig->dir_fd >= 0);
	assert_int_equal(kvd_mover_init(&config, &rig->mover), 0);
	*state = rig;
	return 0;
}

int rig_teardown(void **state)
{
	struct rig *rig = *state;
	DIR *dir = fdopendir(rig->dir_fd);
	struct dirent *entry;

	kvd_mover_fini(rig->mover);
	assert_non_null(dir);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	assert_int_equal(rmdir(rig->dir), 0);
	free(rig);
	return 0;
}

int rig_open(const struct rig *rig, const char *name, int flags, bool *direct)
{
	int fd = openat(rig->dir_fd, name, flags | O_CLOEXEC | (*direct ? O_DIRECT : 0), 0600);

	if (fd < 0 && errno == EINVAL && *direct) {
		*direct = false;
		fd = openat(rig->dir_fd, name, flags | O_CLOEXEC, 0600);
	}
	assert_true(fd >= 0);
	return fd;
}

int memory_file(void)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static void fill(struct object *object)
{
	unsigned int seed = (unsigned int)object->size_bytes;
	uint64_t sums = 0;

	for (uint64_t r = 0; r < object->n_runs; r++) {
		uint64_t at = object->runs[r].first_page * PAGE_BYTES;
		uint64_t end = at + object->runs[r].count * PAGE_BYTES;

		end = end < object->size_bytes ? end : object->size_bytes;
		sums += object->runs[r].count;
		for (uint64_t i = at; i < end; i++) {
			seed = seed * 1664525u + 1013904223u;
			object->bytes[i] = (uint8_t)(seed >> 24);
		}
		assert_int_equal(pwrite(object->ddr_fd, object->bytes + at, end - at, (off_t)at), end - at);
	}
	object->crc = calloc(sums + 1, sizeof(*object->crc));
	assert_non_null(object->crc);
}

void object_make(const struct rig *rig, struct object *object, const char *name, uint64_t size_bytes,
		 const struct kvd_mover_run *runs, uint64_t n_runs, bool direct)
{
	object_make_striped(rig, object, name, size_bytes, runs, n_runs, direct, 1, 0);
}

void object_make_striped(const struct rig *rig, struct object *object, const char *name, uint64_t size_bytes,
			 const struct kvd_mover_run *runs, uint64_t n_runs, bool direct, uint32_t n_parts,
			 uint64_t stripe_bytes)
{
	char part[32];

	*object = (struct object){
		.size_bytes = size_bytes,
		.runs = runs,
		.n_runs = n_runs,
		.direct = direct,
		.n_parts = n_parts,
		.stripe_bytes = stripe_bytes,
	};
	object->bytes = calloc(1, size_bytes + 1);
	assert_non_null(object->bytes);
	object->ddr_fd = memory_file();
	assert_int_equal(ftruncate(object->ddr_fd, (off_t)size_bytes), 0);
	fill(object);
	for (uint32_t i = 0; i < n_parts; i++) {
		snprintf(part, sizeof(part), i ? "%s.%u" : "%s", name, i);
		object->nvme_fd[i] = rig_open(rig, part, O_RDWR | O_CREAT | O_TRUNC, &object->direct);
	}
}

void object_free(struct object *object)
{
	close(object->ddr_fd);
	for (uint32_t i = 0; i < object->n_parts; i++)
		close(object->nvme_fd[i]);
	free(object->bytes);
	free(object->crc);
}

uint64_t object_run_bytes(const struct object *object)
{
	uint64_t bytes = 0;

	for (uint64_t r = 0; r < object->n_runs; r++) {
		uint64_t at = object->runs[r].first_page * PAGE_BYTES;
		uint64_t end = at + object->runs[r].count * PAGE_BYTES;

		bytes += (end < object->size_bytes ? end : object->size_bytes) - at;
	}
	return bytes;
}

struct kvd_mover_part part_of(int fd, bool direct)
{
	return (struct kvd_mover_part){.fd = fd, .direct = direct, .dir_fd = -1};
}

/* Each job has the parts as they are now; the object holds them. */
static struct kvd_mover_job job_of(struct object *object, uint64_t token, uint32_t kind)
{
	for (uint32_t i = 0; i < object->n_parts; i++) {
		object->parts[i] = part_of(object->nvme_fd[i], object->direct);
		object->parts[i].device = i;
	}
	return (struct kvd_mover_job){
		.token = token,
		.kind = kind,
		.page_bytes = PAGE_BYTES,
		.ddr_fd = -1,
		.n_parts = object->n_parts,
		.stripe_bytes = object->stripe_bytes,
		.size_bytes = object->size_bytes,
		.deadline_ms = DEADLINE_MS,
		.n_runs = object->n_runs,
		.runs = object->runs,
		.crc = object->crc,
		.parts = object->parts,
	};
}

struct kvd_mover_job job_demote(const struct rig *rig, struct object *object, uint64_t token)
{
	struct kvd_mover_job job = job_of(object, token, KVD_MOVE_DEMOTE);

	job.ddr_fd = object->ddr_fd;
	job.flags = KVD_MOVE_SYNC_METADATA;
	for (uint32_t i = 0; i < object->n_parts; i++)
		object->parts[i].dir_fd = rig->dir_fd;
	return job;
}

struct kvd_mover_job job_promote(struct object *object, int ddr_fd, uint64_t token)
{
	struct kvd_mover_job job = job_of(object, token, KVD_MOVE_PROMOTE);

	job.ddr_fd = ddr_fd;
	return job;
}

struct kvd_mover_job job_verify(struct object *object, uint64_t token)
{
	return job_of(object, token, KVD_MOVE_VERIFY);
}

struct kvd_mover_result next_result(kvd_mover *mover)
{
	struct pollfd readable = {.fd = kvd_mover_eventfd(mover), .events = POLLIN};
	struct kvd_mover_result result;
	uint64_t count;

	while (kvd_mover_reap(mover, &result, 1) == 0) {
		assert_int_equal(poll(&readable, 1, RESULT_WAIT_MS), 1);
		assert_int_equal(read(readable.fd, &count, sizeof(count)), sizeof(count));
	}
	return result;
}

struct kvd_mover_result run_job(kvd_mover *mover, const struct kvd_mover_job *job)
{
	struct kvd_mover_result result;

	assert_int_equal(kvd_mover_submit(mover, job), 0);
	result = next_result(mover);
	assert_int_equal(result.token, job->token);
	return result;
}

void assert_file_is(int fd, const uint8_t *bytes, uint64_t size_bytes)
{
	char path[32];
	struct stat st;
	uint8_t *got = malloc(size_bytes + 1);
	int buffered;

	assert_non_null(got);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	buffered = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(buffered >= 0);
	assert_int_equal(fstat(buffered, &st), 0);
	assert_int_equal(st.st_size, size_bytes);
	assert_int_equal(pread(buffered, got, size_bytes, 0), size_bytes);
	assert_memory_equal(got, bytes, size_bytes);
	close(buffered);
	free(got);
}
