#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "mover/lane.h"

static uint64_t round_up_block(uint64_t bytes)
{
	return (bytes + KVD_LANE_BLOCK_BYTES - 1) & ~(uint64_t)(KVD_LANE_BLOCK_BYTES - 1);
}

/*
 * The size of a demotion's file while it is written. Direct writes are whole blocks: with the file that long from the
 * start none extends it (ext4 would serialise them); its exact size comes last.
 */
static uint64_t working_size(const struct kvd_leg *leg)
{
	uint64_t size = leg->job->spec.size_bytes;

	return leg->part.direct ? round_up_block(size) : size;
}

bool kvd_leg_has_next(const struct kvd_leg *leg)
{
	return leg->phase == KVD_LEG_COPYING && leg->pages_left > 0;
}

void kvd_leg_place(struct kvd_lane *lane, struct kvd_leg *leg)
{
	bool ready = leg->phase == KVD_LEG_WAITING || kvd_leg_has_next(leg);
	struct kvd_leg_list *list = &lane->ready[leg->job->class];

	if (ready == leg->ready)
		return;
	leg->ready = ready;
	if (ready) {
		TAILQ_REMOVE(&lane->busy, leg, link);
		TAILQ_INSERT_HEAD(list, leg, link); /* it began before those that wait */
	} else {
		TAILQ_REMOVE(list, leg, link);
		TAILQ_INSERT_TAIL(&lane->busy, leg, link);
	}
}

/* Take a request without data; NULL: the leg was stopped. */
static struct kvd_req *control(struct kvd_lane *lane, struct kvd_leg *leg, struct io_uring_sqe **sqe)
{
	struct kvd_req *req = kvd_req_take(&lane->free_control, leg);

	/* There is one for each that a job can need, so the device keeps those of jobs that have ended. */
	if (!req) {
		kvd_leg_stop(lane, leg, -ETIMEDOUT, true);
		return NULL;
	}
	*sqe = kvd_req_sqe(lane);
	if (*sqe)
		return req;
	kvd_req_put(lane, req);
	kvd_leg_stop(lane, leg, -EAGAIN, false);
	return NULL;
}

/* Not by a call where the kernel can do otherwise: on a device that hangs it would not return. */
static void truncate_to(struct kvd_lane *lane, struct kvd_leg *leg, uint64_t size_bytes)
{
	struct io_uring_sqe *sqe;
	struct kvd_req *req;

	if (!lane->async_truncate) {
		if (ftruncate(leg->part.fd, (off_t)size_bytes))
			kvd_leg_stop(lane, leg, -errno, true);
		else
			kvd_leg_advance(lane, leg);
		return;
	}
	req = control(lane, leg, &sqe);
	if (!req)
		return;
	io_uring_prep_nop(sqe);
	sqe->opcode = KVD_LANE_OP_FTRUNCATE;
	sqe->fd = leg->part.fd;
	sqe->off = size_bytes;
	kvd_req_begin(req, sqe);
}

/*
 * A demotion allocates its space before it copies, so that ENOSPC comes early and writes meet allocated blocks; holes are
 * not allocated. Up to the block that holds the object's last byte, not to the end of its page: blocks are what a tier
 * is charged. false: all is allocated, or none can be.
 */
static bool reserve_next(struct kvd_lane *lane, struct kvd_leg *leg)
{
	const struct kvd_mover_job *spec = &leg->job->spec;
	struct io_uring_sqe *sqe;
	struct kvd_piece piece;
	struct kvd_req *req;
	uint64_t at, bytes, left;

	if (!kvd_cursor_next(leg, &leg->reserved_to, UINT64_MAX, &piece))
		return false;
	at = piece.first_page * spec->page_bytes;
	bytes = piece.count * spec->page_bytes;
	left = round_up_block(spec->size_bytes) - at;
	req = control(lane, leg, &sqe);
	if (!req)
		return true;
	io_uring_prep_fallocate(sqe, leg->part.fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)(bytes < left ? bytes : left));
	kvd_req_begin(req, sqe);
	return true;
}

static void sync_one(struct kvd_lane *lane, struct kvd_leg *leg, int fd, unsigned int flags)
{
	struct io_uring_sqe *sqe;
	struct kvd_req *req = control(lane, leg, &sqe);

	if (!req)
		return;
	io_uring_prep_fsync(sqe, fd, flags);
	kvd_req_begin(req, sqe);
}

/* File and folder at once: the journal takes both in one commit. */
static void sync_all(struct kvd_lane *lane, struct kvd_leg *leg)
{
	bool metadata = leg->job->spec.flags & KVD_MOVE_SYNC_METADATA;

	leg->phase = KVD_LEG_SYNCING;
	sync_one(lane, leg, leg->part.fd, metadata ? 0 : IORING_FSYNC_DATASYNC);
	if (leg->phase == KVD_LEG_SYNCING && leg->part.dir_fd >= 0)
		sync_one(lane, leg, leg->part.dir_fd, 0);
}

/* Holes are readable as soon as the file has its length. */
static void mark_holes(struct kvd_job *job)
{
	const struct kvd_mover_job *spec = &job->spec;
	struct kvd_stream *stream = (struct kvd_stream *)(uintptr_t)spec->stream;
	uint64_t at = 0;

	if (!stream || atomic_exchange(&job->holes_marked, true))
		return;
	for (uint64_t i = 0; i < spec->n_runs; i++) {
		if (spec->runs[i].first_page > at)
			kvd_stream_mark(stream, at, spec->runs[i].first_page - at);
		at = spec->runs[i].first_page + spec->runs[i].count;
	}
	if (stream->n_pages > at)
		kvd_stream_mark(stream, at, stream->n_pages - at);
}

void kvd_leg_start(struct kvd_lane *lane, struct kvd_leg *leg)
{
	struct kvd_job *job = leg->job;

	kvd_job_started(lane->mover, job);
	if (job->spec.kind == KVD_MOVE_DEMOTE) {
		leg->phase = KVD_LEG_SIZING;
		truncate_to(lane, leg, working_size(leg));
		return;
	}
	leg->phase = KVD_LEG_COPYING;
	/* Each part does so; all but the first change nothing. */
	if (job->spec.kind == KVD_MOVE_PROMOTE && ftruncate(job->spec.ddr_fd, (off_t)job->spec.size_bytes)) {
		kvd_leg_stop(lane, leg, -errno, false);
		return;
	}
	mark_holes(job);
	kvd_leg_advance(lane, leg);
}

/* All requests of the copy are back. */
static void end_copy(struct kvd_lane *lane, struct kvd_leg *leg)
{
	const struct kvd_mover_job *spec = &leg->job->spec;

	if (spec->kind != KVD_MOVE_DEMOTE || spec->flags & KVD_MOVE_MORE) {
		leg->phase = KVD_LEG_DONE;
	} else if (working_size(leg) != spec->size_bytes) {
		leg->phase = KVD_LEG_CUTTING;
		truncate_to(lane, leg, spec->size_bytes);
	} else {
		sync_all(lane, leg);
	}
}

/* Go on after something of the leg ended well. */
void kvd_leg_advance(struct kvd_lane *lane, struct kvd_leg *leg)
{
	if (leg->phase == KVD_LEG_SIZING)
		leg->phase = KVD_LEG_RESERVING;
	if (leg->phase == KVD_LEG_RESERVING) {
		if (reserve_next(lane, leg))
			return;
		leg->phase = KVD_LEG_COPYING;
	}
	if (leg->in_flight > 0 || leg->pages_left > 0)
		return;
	if (leg->phase == KVD_LEG_COPYING)
		end_copy(lane, leg);
	else if (leg->phase == KVD_LEG_CUTTING)
		sync_all(lane, leg);
	else if (leg->phase == KVD_LEG_SYNCING)
		leg->phase = KVD_LEG_DONE;
}

/* A request of a leg that isn't stopping, and that carried no data, came back. */
void kvd_leg_control_done(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_leg *leg = req->leg;

	kvd_req_put(lane, req);
	if (leg->phase == KVD_LEG_RESERVING && res == -EOPNOTSUPP) {
		leg->reserved_to.run = leg->job->spec.n_runs; /* a file system that can't: the writes will find out */
		res = 0;
	}
	if (res < 0)
		kvd_leg_stop(lane, leg, res, true);
	else
		kvd_leg_advance(lane, leg);
}

void kvd_leg_stop(struct kvd_lane *lane, struct kvd_leg *leg, int status, bool blames_device)
{
	uint64_t now_ns = kvd_mover_now_ns();

	if (leg->phase == KVD_LEG_STOPPING || leg->phase == KVD_LEG_DONE)
		return;
	leg->status = status;
	leg->blames_device = blames_device;
	leg->stuck_ns = kvd_lane_oldest_ns(lane, now_ns);
	if (leg->in_flight == 0) {
		leg->phase = KVD_LEG_DONE;
		return;
	}
	leg->phase = KVD_LEG_STOPPING;
	leg->abandon_ns = now_ns + KVD_LANE_GRACE_MS * KVD_LANE_NS_PER_MS;
	kvd_req_cancel_all(lane, leg);
}
