#include <errno.h>

#include "mover/lane.h"

struct kvd_req *kvd_req_take(struct kvd_req_list *list, struct kvd_job *job)
{
	struct kvd_req *req = SLIST_FIRST(list);

	if (!req)
		return NULL;
	SLIST_REMOVE_HEAD(list, link);
	req->busy = true;
	req->job = job;
	req->done = 0;
	job->in_flight++;
	return req;
}

/* The job, if it is still there, has one less in flight. */
void kvd_req_put(struct kvd_lane *lane, struct kvd_req *req)
{
	if (req->job)
		req->job->in_flight--;
	else
		lane->orphans--;
	req->busy = false;
	req->job = NULL;
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

/* A cancellation that can't be sent, or comes too late, leaves the request to the grace time. */
void kvd_req_cancel_all(struct kvd_lane *lane, const struct kvd_job *job)
{
	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		struct io_uring_sqe *sqe;

		if (!lane->reqs[i].busy || lane->reqs[i].job != job)
			continue;
		sqe = kvd_req_sqe(lane);
		if (!sqe)
			return;
		io_uring_prep_cancel(sqe, &lane->reqs[i], 0);
		io_uring_sqe_set_data(sqe, NULL);
	}
}

void kvd_req_orphan_all(struct kvd_lane *lane, struct kvd_job *job)
{
	for (uint32_t i = 0; i < lane->n_reqs; i++)
		if (lane->reqs[i].busy && lane->reqs[i].job == job) {
			lane->reqs[i].job = NULL;
			lane->orphans++;
		}
	job->in_flight = 0;
}
