#include <errno.h>

#include "mover/lane.h"

struct kvd_req *kvd_req_take(struct kvd_req_list *list, struct kvd_leg *leg)
{
	struct kvd_req *req = SLIST_FIRST(list);

	if (!req)
		return NULL;
	SLIST_REMOVE_HEAD(list, link);
	req->busy = true;
	req->leg = leg;
	req->class = leg->job->class;
	req->done = 0;
	leg->in_flight++;
	if (req->buffer)
		leg->lane->in_flight[req->class]++;
	return req;
}

/* The leg, if it is still there, has one less in flight. */
void kvd_req_put(struct kvd_lane *lane, struct kvd_req *req)
{
	if (req->leg)
		req->leg->in_flight--;
	else
		atomic_fetch_sub(&lane->orphans, 1);
	if (!req->leg && req->buffer)
		atomic_fetch_sub(&lane->orphaned_buffers, 1);
	if (req->buffer)
		lane->in_flight[req->class]--;
	req->busy = false;
	req->leg = NULL;
	atomic_store(&req->start_ns, 0);
	if (req->buffer)
		SLIST_INSERT_HEAD(&lane->free_data, req, link);
	else
		SLIST_INSERT_HEAD(&lane->free_control, req, link);
}

/* NULL only when the kernel takes no submissions at all: the ring holds more entries than one turn can make. */
struct io_uring_sqe *kvd_req_sqe(struct kvd_lane *lane)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&lane->ring);

	if (!sqe && io_uring_submit(&lane->ring) > 0)
		sqe = io_uring_get_sqe(&lane->ring);
	return sqe;
}

void kvd_req_begin(struct kvd_req *req, struct io_uring_sqe *sqe)
{
	io_uring_sqe_set_data(sqe, req);
	atomic_store(&req->start_ns, kvd_mover_now_ns());
}

/* A cancellation that can't be sent, or comes too late, leaves the request to the grace time. */
void kvd_req_cancel_all(struct kvd_lane *lane, const struct kvd_leg *leg)
{
	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		struct io_uring_sqe *sqe;

		if (!lane->reqs[i].busy || lane->reqs[i].leg != leg)
			continue;
		sqe = kvd_req_sqe(lane);
		if (!sqe)
			return;
		io_uring_prep_cancel(sqe, &lane->reqs[i], 0);
		io_uring_sqe_set_data(sqe, NULL);
	}
}

void kvd_req_orphan_all(struct kvd_lane *lane, struct kvd_leg *leg)
{
	for (uint32_t i = 0; i < lane->n_reqs; i++)
		if (lane->reqs[i].busy && lane->reqs[i].leg == leg) {
			lane->reqs[i].leg = NULL;
			atomic_fetch_add(&lane->orphans, 1);
			if (lane->reqs[i].buffer)
				atomic_fetch_add(&lane->orphaned_buffers, 1);
		}
	leg->in_flight = 0;
}
