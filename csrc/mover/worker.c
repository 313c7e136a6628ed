/* The thread of a device. */
#include "mover/lane.h"

#include <errno.h>
#include <poll.h>

enum { WORKER_REFUSED_WAIT_MS = 1 }; /* before the kernel is asked again */
#define WORKER_NS_PER_S 1000000000u

static void arm_wake(struct kvd_lane *lane)
{
	struct io_uring_sqe *sqe;

	if (lane->wake.busy)
		return;
	sqe = kvd_req_sqe(lane);
	if (!sqe)
		return;
	io_uring_prep_read(sqe, lane->wake_fd, &lane->wake_count, sizeof(lane->wake_count), 0);
	io_uring_sqe_set_data(sqe, &lane->wake);
	lane->wake.busy = true;
}

/* Take over what was submitted. */
static void receive(struct kvd_lane *lane)
{
	struct kvd_leg *leg;

	kvd_mover_lock(lane->mover);
	while ((leg = TAILQ_FIRST(&lane->arrived))) {
		TAILQ_REMOVE(&lane->arrived, leg, link);
		TAILQ_INSERT_TAIL(&lane->ready[leg->job->class], leg, link);
	}
	kvd_mover_unlock(lane->mover);
}

/* Stop what is cancelled or late, abandon what can't be stopped. When to look again. */
static uint64_t look_at_leg(struct kvd_lane *lane, struct kvd_leg *leg, bool stop, uint64_t now_ns)
{
	struct kvd_job *job = leg->job;

	if (stop || atomic_load(&job->cancelled) || atomic_load(&job->failed))
		kvd_leg_stop(lane, leg, -ECANCELED, false);
	else if (now_ns >= job->deadline_ns)
		kvd_leg_stop(lane, leg, -ETIMEDOUT, true);
	if (leg->phase == KVD_LEG_STOPPING && now_ns >= leg->abandon_ns) {
		kvd_req_orphan_all(lane, leg);
		leg->phase = KVD_LEG_DONE;
	}
	if (leg->phase == KVD_LEG_DONE)
		return KVD_LANE_NEVER_NS;
	return leg->phase == KVD_LEG_STOPPING ? leg->abandon_ns : job->deadline_ns;
}

static uint64_t look_at_list(struct kvd_lane *lane, const struct kvd_leg_list *legs, bool stop, uint64_t now_ns)
{
	uint64_t next_ns = KVD_LANE_NEVER_NS;
	struct kvd_leg *leg, *following;

	for (leg = TAILQ_FIRST(legs); leg; leg = following) {
		uint64_t at_ns = look_at_leg(lane, leg, stop, now_ns);

		following = TAILQ_NEXT(leg, link);
		next_ns = at_ns < next_ns ? at_ns : next_ns;
		kvd_leg_place(lane, leg);
	}
	return next_ns;
}

/* Stop the legs for which the device takes too long. When the next one will have. */
static uint64_t look_at_requests(struct kvd_lane *lane, uint64_t now_ns)
{
	uint64_t next_ns = KVD_LANE_NEVER_NS;

	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		struct kvd_req *req = &lane->reqs[i];
		uint64_t start_ns = atomic_load(&req->start_ns), late_ns = start_ns + lane->request_ns;

		if (!start_ns || !req->leg || req->leg->phase == KVD_LEG_STOPPING)
			continue;
		if (now_ns >= late_ns)
			kvd_leg_stop(lane, req->leg, -ETIMEDOUT, true);
		else if (late_ns < next_ns)
			next_ns = late_ns;
	}
	return next_ns;
}

/* When to look again, or KVD_LANE_NEVER_NS. */
static uint64_t look(struct kvd_lane *lane)
{
	uint64_t now_ns = kvd_mover_now_ns(), next_ns = look_at_requests(lane, now_ns);
	bool stop;

	kvd_mover_lock(lane->mover);
	stop = lane->stop;
	kvd_mover_unlock(lane->mover);
	for (uint32_t class = 0; class <= KVD_LANE_CLASSES; class++) {
		const struct kvd_leg_list *legs = class < KVD_LANE_CLASSES ? &lane->ready[class] : &lane->busy;
		uint64_t at_ns = look_at_list(lane, legs, stop, now_ns);

		next_ns = at_ns < next_ns ? at_ns : next_ns;
	}
	return next_ns;
}

/* Its next request, or its beginning. After some requests it is the turn of the others of its class. */
static void serve(struct kvd_lane *lane, struct kvd_leg *leg)
{
	struct kvd_leg_list *list = &lane->ready[leg->job->class];

	if (leg->phase == KVD_LEG_WAITING) {
		kvd_leg_start(lane, leg);
	} else {
		kvd_copy_next(lane, leg);
		leg->turn++;
	}
	kvd_leg_place(lane, leg);
	if (leg->ready && leg->turn >= KVD_LANE_TURN_REQUESTS) {
		leg->turn = 0;
		TAILQ_REMOVE(list, leg, link);
		TAILQ_INSERT_TAIL(list, leg, link);
	}
}

/* Give away the free buffers. */
static void pump(struct kvd_lane *lane)
{
	while (!SLIST_EMPTY(&lane->free_data)) {
		bool ready[KVD_LANE_CLASSES];
		uint32_t class;

		for (class = 0; class < KVD_LANE_CLASSES; class++)
			ready[class] = !TAILQ_EMPTY(&lane->ready[class]);
		class = kvd_lane_next_class(lane->in_flight, ready, lane->depth);
		if (class == KVD_LANE_CLASSES)
			return;
		serve(lane, TAILQ_FIRST(&lane->ready[class]));
	}
}

/* Hand over the legs that are done. */
static void retire(struct kvd_lane *lane)
{
	struct kvd_leg *leg, *following;

	for (leg = TAILQ_FIRST(&lane->busy); leg; leg = following) {
		following = TAILQ_NEXT(leg, link);
		if (leg->phase != KVD_LEG_DONE)
			continue;
		TAILQ_REMOVE(&lane->busy, leg, link);
		kvd_job_leg_ended(lane->mover, leg);
	}
}

static void complete(struct kvd_lane *lane, struct kvd_req *req, int res)
{
	struct kvd_leg *leg = req->leg;

	if (req == &lane->wake) {
		req->busy = false;
		return;
	}
	if (!leg) {
		kvd_req_put(lane, req);
		return;
	}
	if (leg->phase == KVD_LEG_STOPPING) {
		kvd_req_put(lane, req);
		if (leg->in_flight == 0)
			leg->phase = KVD_LEG_DONE;
	} else if (req->buffer) {
		kvd_copy_done(lane, req, res);
	} else {
		kvd_leg_control_done(lane, req, res);
	}
	kvd_leg_place(lane, leg);
}

/*
 * After each completion the disk gets its next request: it must not idle while the rest of a batch is checked. A batch
 * is bounded, so that deadlines are looked at under load too.
 */
static void complete_batch(struct kvd_lane *lane)
{
	struct io_uring_cqe *cqe;

	for (uint32_t n = 0; n < lane->n_reqs && io_uring_peek_cqe(&lane->ring, &cqe) == 0; n++) {
		struct kvd_req *req = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&lane->ring, cqe);
		if (!req)
			continue; /* of a cancellation; what it was for comes by itself */
		complete(lane, req, res);
		pump(lane);
		retire(lane);
		if (io_uring_sq_ready(&lane->ring) > 0)
			io_uring_submit(&lane->ring);
	}
}

static void wait_until(struct kvd_lane *lane, uint64_t until_ns)
{
	uint64_t now_ns = kvd_mover_now_ns();
	uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct __kernel_timespec timeout = {
		.tv_sec = (long long)(wait_ns / WORKER_NS_PER_S),
		.tv_nsec = (long long)(wait_ns % WORKER_NS_PER_S),
	};
	struct io_uring_cqe *cqe;
	int n = io_uring_submit_and_wait_timeout(&lane->ring, &cqe, 1, until_ns == KVD_LANE_NEVER_NS ? NULL : &timeout,
						 NULL);

	/* The kernel is out of memory or the like: let it breathe. */
	if (n < 0 && n != -ETIME && n != -EINTR)
		(void)poll(NULL, 0, WORKER_REFUSED_WAIT_MS);
}

/* Looked at before, so that a late job does not begin; and after, because beginning may have stopped some. */
static uint64_t turn(struct kvd_lane *lane)
{
	uint64_t next_ns;

	receive(lane);
	(void)look(lane);
	retire(lane);
	pump(lane);
	next_ns = look(lane);
	retire(lane);
	return next_ns;
}

/* Nothing left to do, for ever; then the thread ends. */
static bool exits(struct kvd_lane *lane)
{
	bool over;

	kvd_mover_lock(lane->mover);
	over = lane->stop && TAILQ_EMPTY(&lane->arrived) && TAILQ_EMPTY(&lane->busy);
	for (uint32_t class = 0; class < KVD_LANE_CLASSES; class++)
		over = over && TAILQ_EMPTY(&lane->ready[class]);
	if (over)
		kvd_mover_lane_exited(lane);
	kvd_mover_unlock(lane->mover);
	return over;
}

void *kvd_lane_main(void *arg)
{
	struct kvd_lane *lane = arg;

	for (;;) {
		uint64_t next_ns;

		arm_wake(lane);
		next_ns = turn(lane);
		if (exits(lane))
			return NULL;
		wait_until(lane, next_ns);
		complete_batch(lane);
	}
}
