/*
 * Data requests. All bytes pass through a bounce buffer, also those of a promotion, although the kernel could read
 * straight into the mapped ddr file: measured, that is slower on 4 KiB pages (each is zeroed and faulted in first) and
 * no faster on huge ones. And so unchecked bytes never reach an object, and a late read of a device that hung never
 * lands in a file that has moved on.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "mover/lane.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int read_all(int fd, uint8_t *buffer, size_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		ssize_t n = pread(fd, buffer, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO; /* the object is shorter than it is said to be */
		buffer += n;
		bytes -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

static int write_all(int fd, const uint8_t *buffer, size_t bytes, uint64_t offset)
{
	while (bytes > 0) {
		ssize_t n = pwrite(fd, buffer, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		buffer += n;
		bytes -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* Sum each page of the request into the job's table. */
static void make_sums(const struct kvd_req *req)
{
	const struct kvd_mover_job *spec = &req->job->spec;

	for (uint32_t at = 0, i = 0; at < req->bytes; at += spec->page_bytes, i++)
		spec->crc[req->first_crc + i] =
			kvd_crc32c(0, req->buffer + at, min_u64(spec->page_bytes, req->bytes - at));
}

static int check_sums(const struct kvd_req *req)
{
	const struct kvd_mover_job *spec = &req->job->spec;

	for (uint32_t at = 0, i = 0; at < req->bytes; at += spec->page_bytes, i++) {
		uint32_t crc = kvd_crc32c(0, req->buffer + at, min_u64(spec->page_bytes, req->bytes - at));

		if (crc != spec->crc[req->first_crc + i]) {
			req->job->bad_page = req->first_page + i;
			return -EBADMSG;
		}
	}
	return 0;
}

bool kvd_copy_has_next(const struct kvd_job *job)
{
	return job->phase == KVD_JOB_COPYING && job->next_run < job->spec.n_runs;
}

/* Cut the next request off the runs. */
static void cut(const struct kvd_lane *lane, struct kvd_job *job, struct kvd_req *req)
{
	const struct kvd_mover_job *spec = &job->spec;
	const struct kvd_mover_run *run = &spec->runs[job->next_run];
	uint64_t pages = min_u64(run->count - job->next_page, lane->io_bytes / spec->page_bytes);

	req->first_page = run->first_page + job->next_page;
	req->first_crc = job->next_crc;
	req->offset = req->first_page * spec->page_bytes;
	req->bytes = (uint32_t)min_u64(pages * spec->page_bytes, spec->size_bytes - req->offset);
	req->io_bytes = req->bytes;
	if (kvd_job_direct(job))
		req->io_bytes = (req->bytes + KVD_LANE_BLOCK_BYTES - 1) & ~(uint32_t)(KVD_LANE_BLOCK_BYTES - 1);
	job->next_crc += pages;
	job->next_page += pages;
	if (job->next_page == run->count) {
		job->next_page = 0;
		job->next_run++;
	}
}

/* Hand what is left of the request to the kernel. */
static void submit(struct kvd_lane *lane, struct kvd_req *req)
{
	struct kvd_job *job = req->job;
	struct io_uring_sqe *sqe = kvd_req_sqe(lane);
	uint8_t *buffer = req->buffer + req->done;
	uint32_t bytes = req->io_bytes - req->done;
	uint64_t offset = req->offset + req->done;

	if (!sqe) {
		kvd_req_put(lane, req);
		kvd_job_stop(lane, job, -EAGAIN);
		return;
	}
	if (lane->kind == KVD_MOVE_DEMOTE)
		io_uring_prep_write(sqe, job->spec.dst_fd, buffer, bytes, offset);
	else
		io_uring_prep_read(sqe, job->spec.src_fd, buffer, bytes, offset);
	io_uring_sqe_set_data(sqe, req);
}

/* The job has a next request and the lane a free one. */
void kvd_copy_next(struct kvd_lane *lane, struct kvd_job *job)
{
	struct kvd_req *req = kvd_req_take(&lane->free_data, job);
	int err;

	cut(lane, job, req);
	if (lane->kind == KVD_MOVE_DEMOTE) {
		err = read_all(job->spec.src_fd, req->buffer, req->bytes, req->offset);
		if (err) {
			kvd_req_put(lane, req);
			kvd_job_stop(lane, job, err);
			return;
		}
		make_sums(req);
		memset(req->buffer + req->bytes, 0, req->io_bytes - req->bytes);
	}
	submit(lane, req);
	/* The disk works on this one while the next is copied. */
	if (lane->kind == KVD_MOVE_DEMOTE)
		io_uring_submit(&lane->ring);
}

/* What the kernel did of the request, so that the rest can be asked for at an allowed offset. 1: all there. */
static int account(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	bool reads = lane->kind != KVD_MOVE_DEMOTE;
	uint32_t wanted = reads ? req->bytes : req->io_bytes;

	if (res < 0)
		return res;
	req->done += (uint32_t)res;
	if (req->done >= wanted)
		return 1;
	/* A direct read ends between blocks, and any read with nothing, only where the file ends. */
	if (res == 0 || (reads && kvd_job_direct(req->job) && req->done % KVD_LANE_BLOCK_BYTES)) {
		if (!reads)
			return -EIO;
		req->job->bad_page = req->first_page + req->done / req->job->spec.page_bytes;
		return -EBADMSG;
	}
	if (kvd_job_direct(req->job))
		req->done &= ~(uint32_t)(KVD_LANE_BLOCK_BYTES - 1);
	return 0;
}

/* A request of a job that isn't stopping came back. */
void kvd_copy_done(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_job *job = req->job;
	int err = account(lane, req, res);

	if (err == 0) {
		submit(lane, req);
		return;
	}
	err = err == 1 ? 0 : err;
	if (!err && lane->kind != KVD_MOVE_DEMOTE)
		err = check_sums(req);
	if (!err && lane->kind == KVD_MOVE_PROMOTE)
		err = write_all(job->spec.dst_fd, req->buffer, req->bytes, req->offset);
	if (!err)
		job->bytes += req->bytes;
	kvd_req_put(lane, req);
	if (err)
		kvd_job_stop(lane, job, err);
	else
		kvd_job_advance(lane, job);
}
