/*
 * Data requests. All bytes pass through a bounce buffer, also those of a promotion, although the kernel could read
 * straight into the mapped ddr file: docs/decisions/013 has the measurements. And so unchecked bytes never reach an
 * object, a late read of a device that hung never lands in a file that has moved on, and no shrinking file is a SIGBUS.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "mover/lane.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
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
	const struct kvd_mover_job *spec = &req->leg->job->spec;

	for (uint32_t at = 0, i = 0; at < req->bytes; at += spec->page_bytes, i++)
		spec->crc[req->piece.first_crc + i] =
			kvd_crc32c(0, req->buffer + at, min_u32(spec->page_bytes, req->bytes - at));
}

static int check_sums(const struct kvd_req *req)
{
	const struct kvd_mover_job *spec = &req->leg->job->spec;

	for (uint32_t at = 0, i = 0; at < req->bytes; at += spec->page_bytes, i++) {
		uint32_t crc = kvd_crc32c(0, req->buffer + at, min_u32(spec->page_bytes, req->bytes - at));

		if (crc != spec->crc[req->piece.first_crc + i]) {
			req->leg->bad_page = req->piece.first_page + i;
			return -EBADMSG;
		}
	}
	return 0;
}

/* Fill the buffer of a demotion, with its sums. */
static int fill(const struct kvd_req *req)
{
	int err = read_all(req->leg->job->spec.ddr_fd, req->buffer, req->bytes, req->offset);

	if (err)
		return err;
	make_sums(req);
	memset(req->buffer + req->bytes, 0, req->io_bytes - req->bytes);
	return 0;
}

/* Check what was read and, in a promotion, put it where it belongs; a bad page is the device's fault. */
static int land(const struct kvd_req *req, bool *blames_device)
{
	const struct kvd_mover_job *spec = &req->leg->job->spec;
	struct kvd_stream *stream = (struct kvd_stream *)(uintptr_t)spec->stream;
	int err = check_sums(req);

	*blames_device = err != 0;
	if (!err && spec->kind == KVD_MOVE_PROMOTE)
		err = write_all(spec->ddr_fd, req->buffer, req->bytes, req->offset);
	if (!err && stream)
		kvd_stream_mark(stream, req->piece.first_page, req->piece.count);
	return err;
}

/* Hand what is left of the request to the kernel. */
static void submit(struct kvd_lane *lane, struct kvd_req *req)
{
	struct kvd_leg *leg = req->leg;
	struct io_uring_sqe *sqe = kvd_req_sqe(lane);
	uint8_t *buffer = req->buffer + req->done;
	uint32_t bytes = req->io_bytes - req->done;
	uint64_t offset = req->offset + req->done;
	bool writes = leg->job->spec.kind == KVD_MOVE_DEMOTE;

	if (!sqe) {
		kvd_req_put(lane, req);
		kvd_leg_stop(lane, leg, -EAGAIN, false);
		return;
	}
	if (writes && lane->fixed_buffers)
		io_uring_prep_write_fixed(sqe, leg->part.fd, buffer, bytes, offset, 0);
	else if (writes)
		io_uring_prep_write(sqe, leg->part.fd, buffer, bytes, offset);
	else if (lane->fixed_buffers)
		io_uring_prep_read_fixed(sqe, leg->part.fd, buffer, bytes, offset, 0);
	else
		io_uring_prep_read(sqe, leg->part.fd, buffer, bytes, offset);
	kvd_req_begin(req, sqe);
}

/* The leg has a next request and the lane a free one. */
void kvd_copy_next(struct kvd_lane *lane, struct kvd_leg *leg)
{
	const struct kvd_mover_job *spec = &leg->job->spec;
	struct kvd_req *req = kvd_req_take(&lane->free_data, leg);
	uint64_t left;
	int err;

	kvd_cursor_take(leg, lane->io_bytes / spec->page_bytes, &req->piece);
	req->offset = req->piece.first_page * spec->page_bytes;
	left = spec->size_bytes - req->offset;
	req->bytes = (uint32_t)(req->piece.count * spec->page_bytes);
	if (left < req->bytes)
		req->bytes = (uint32_t)left;
	req->io_bytes = req->bytes;
	if (leg->part.direct)
		req->io_bytes = (req->bytes + KVD_LANE_BLOCK_BYTES - 1) & ~(uint32_t)(KVD_LANE_BLOCK_BYTES - 1);
	if (spec->kind == KVD_MOVE_DEMOTE) {
		err = fill(req);
		if (err) {
			kvd_req_put(lane, req);
			kvd_leg_stop(lane, leg, err, false);
			return;
		}
	}
	submit(lane, req);
	/* The disk works on this one while the next is copied. */
	if (spec->kind == KVD_MOVE_DEMOTE)
		io_uring_submit(&lane->ring);
}

/* What the kernel did of the request, so that the rest can be asked for at an allowed offset. 1: all there. */
static int account(struct kvd_req *req, int res)
{
	struct kvd_leg *leg = req->leg;
	bool reads = leg->job->spec.kind != KVD_MOVE_DEMOTE;
	uint32_t wanted = reads ? req->bytes : req->io_bytes;

	if (res < 0)
		return res;
	req->done += (uint32_t)res;
	if (req->done >= wanted)
		return 1;
	/* A direct read ends between blocks, and any read with nothing, only where the file ends. */
	if (res == 0 || (reads && leg->part.direct && req->done % KVD_LANE_BLOCK_BYTES)) {
		if (!reads)
			return -EIO;
		leg->bad_page = req->piece.first_page + req->done / leg->job->spec.page_bytes;
		return -EBADMSG;
	}
	if (leg->part.direct)
		req->done &= ~(uint32_t)(KVD_LANE_BLOCK_BYTES - 1);
	return 0;
}

/* A request of a leg that isn't stopping came back. */
void kvd_copy_done(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_leg *leg = req->leg;
	bool reads = leg->job->spec.kind != KVD_MOVE_DEMOTE, blames_device = true;
	int err = account(req, res);

	if (err == 0) {
		submit(lane, req);
		return;
	}
	err = err == 1 ? 0 : err;
	atomic_store(&req->start_ns, 0); /* the device has answered */
	if (!err && reads)
		err = land(req, &blames_device);
	if (!err) {
		leg->bytes += req->bytes;
		atomic_fetch_add(reads ? &lane->read_bytes : &lane->written_bytes, req->bytes);
	}
	kvd_req_put(lane, req);
	if (err)
		kvd_leg_stop(lane, leg, err, blames_device);
	else
		kvd_leg_advance(lane, leg);
}
