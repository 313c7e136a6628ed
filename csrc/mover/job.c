#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "mover/lane.h"

static uint64_t pages_of(const struct kvd_mover_job *spec)
{
	return spec->size_bytes / spec->page_bytes + (spec->size_bytes % spec->page_bytes != 0);
}

static int check_runs(const struct kvd_mover_job *spec)
{
	uint64_t pages = pages_of(spec), end = 0;

	if (spec->n_runs > 0 && (!spec->runs || !spec->crc))
		return -EINVAL;
	for (uint64_t i = 0; i < spec->n_runs; i++) {
		const struct kvd_mover_run *run = &spec->runs[i];

		if (run->count == 0 || run->first_page < end || run->first_page >= pages ||
		    run->count > pages - run->first_page)
			return -EINVAL;
		end = run->first_page + run->count;
	}
	return 0;
}

int kvd_job_check(const struct kvd_mover_job *spec, uint32_t io_bytes)
{
	if (spec->kind >= KVD_MOVE_KINDS || spec->src_fd < 0)
		return -EINVAL;
	if (spec->kind != KVD_MOVE_VERIFY && spec->dst_fd < 0)
		return -EINVAL;
	if (spec->page_bytes < KVD_LANE_BLOCK_BYTES || (spec->page_bytes & (spec->page_bytes - 1)) ||
	    io_bytes % spec->page_bytes)
		return -EINVAL;
	/* So that an offset rounded up to the end of its request is still one that the kernel takes. */
	if (spec->size_bytes > (uint64_t)INT64_MAX - io_bytes)
		return -EINVAL;
	return check_runs(spec);
}

bool kvd_job_direct(const struct kvd_job *job)
{
	return job->spec.nvme_direct != 0;
}

static uint64_t round_up_block(uint64_t bytes)
{
	return (bytes + KVD_LANE_BLOCK_BYTES - 1) & ~(uint64_t)(KVD_LANE_BLOCK_BYTES - 1);
}

/*
 * The size of dst while it is written. A direct demotion writes whole blocks: with the file that long from the start
 * no write extends it (ext4 would serialise them); its exact size comes last.
 */
static uint64_t working_size(const struct kvd_job *job)
{
	uint64_t size = job->spec.size_bytes;

	if (job->spec.kind == KVD_MOVE_DEMOTE && kvd_job_direct(job))
		size = round_up_block(size);
	return size;
}

/*
 * A demotion allocates its runs before it copies, so that ENOSPC comes early and writes meet allocated blocks; holes are
 * not allocated. A promotion does not: on tmpfs its writes allocate as fast, and the disk need not wait for that.
 */
static bool wants_prealloc(const struct kvd_job *job)
{
	return job->spec.kind == KVD_MOVE_DEMOTE && job->next_prealloc < job->spec.n_runs;
}

/* Up to the block that holds the object's last byte, not to the end of its page: blocks are what a tier is charged. */
static void prep_prealloc(struct io_uring_sqe *sqe, const struct kvd_job *job)
{
	const struct kvd_mover_job *spec = &job->spec;
	const struct kvd_mover_run *run = &spec->runs[job->next_prealloc];
	uint64_t at = run->first_page * spec->page_bytes, bytes = run->count * spec->page_bytes;
	uint64_t left = round_up_block(spec->size_bytes) - at;

	io_uring_prep_fallocate(sqe, spec->dst_fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)(bytes < left ? bytes : left));
}

/* The kernel's part of the job's present phase that carries no data. */
static void submit_control(struct kvd_lane *lane, struct kvd_job *job)
{
	const struct kvd_mover_job *spec = &job->spec;
	struct kvd_req *req = kvd_req_take(&lane->free_control, job);
	struct io_uring_sqe *sqe = req ? kvd_req_sqe(lane) : NULL;

	if (!sqe) {
		if (req)
			kvd_req_put(lane, req);
		kvd_job_stop(lane, job, -EAGAIN);
		return;
	}
	if (job->phase == KVD_JOB_PREPARING)
		prep_prealloc(sqe, job);
	else if (job->phase == KVD_JOB_SYNC_DATA)
		io_uring_prep_fsync(sqe, spec->dst_fd, IORING_FSYNC_DATASYNC);
	else
		io_uring_prep_fsync(sqe, spec->dir_fd, 0);
	io_uring_sqe_set_data(sqe, req);
}

void kvd_job_start(struct kvd_lane *lane, struct kvd_job *job)
{
	job->start_ns = kvd_mover_now_ns();
	job->phase = KVD_JOB_PREPARING;
	if (job->spec.kind != KVD_MOVE_VERIFY && ftruncate(job->spec.dst_fd, (off_t)working_size(job)))
		kvd_job_stop(lane, job, -errno);
	else
		kvd_job_advance(lane, job);
}

/* All requests of the copy are back. */
static void end_copy(struct kvd_lane *lane, struct kvd_job *job)
{
	const struct kvd_mover_job *spec = &job->spec;

	if (spec->kind != KVD_MOVE_DEMOTE) {
		job->phase = KVD_JOB_DONE;
	} else if (working_size(job) != spec->size_bytes && ftruncate(spec->dst_fd, (off_t)spec->size_bytes)) {
		kvd_job_stop(lane, job, -errno);
	} else {
		job->phase = KVD_JOB_SYNC_DATA;
		submit_control(lane, job);
	}
}

/* Go on after something of the job ended well. */
void kvd_job_advance(struct kvd_lane *lane, struct kvd_job *job)
{
	if (job->phase == KVD_JOB_PREPARING) {
		if (wants_prealloc(job)) {
			submit_control(lane, job);
			return;
		}
		job->phase = KVD_JOB_COPYING;
	}
	if (job->phase == KVD_JOB_COPYING && !kvd_copy_has_next(job) && job->in_flight == 0)
		end_copy(lane, job);
}

/* A request of a job that isn't stopping, and that carried no data, came back. */
void kvd_job_control_done(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_job *job = req->job;

	kvd_req_put(lane, req);
	if (job->phase == KVD_JOB_PREPARING && res == -EOPNOTSUPP) {
		job->next_prealloc = job->spec.n_runs; /* a file system that can't: the writes will find out */
		res = 0;
	}
	if (res < 0) {
		kvd_job_stop(lane, job, res);
	} else if (job->phase == KVD_JOB_PREPARING) {
		job->next_prealloc++;
		kvd_job_advance(lane, job);
	} else if (job->phase == KVD_JOB_SYNC_DATA && job->spec.dir_fd >= 0) {
		job->phase = KVD_JOB_SYNC_DIR;
		submit_control(lane, job);
	} else {
		job->phase = KVD_JOB_DONE;
	}
}

/* End the job with `status`, unless it is ending already: the first reason stays. */
void kvd_job_stop(struct kvd_lane *lane, struct kvd_job *job, int status)
{
	if (job->phase == KVD_JOB_STOPPING || job->phase == KVD_JOB_DONE)
		return;
	job->status = status;
	if (job->in_flight == 0) {
		job->phase = KVD_JOB_DONE;
		return;
	}
	job->phase = KVD_JOB_STOPPING;
	job->abandon_ns = kvd_mover_now_ns() + (uint64_t)KVD_LANE_GRACE_MS * 1000000u;
	kvd_req_cancel_all(lane, job);
}
