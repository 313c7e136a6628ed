#include <assert.h>
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <unistd.h>

#include "mover/lane.h"

#define JOB_DEADLINE_MS_MAX (UINT64_C(365) * 24 * 3600 * 1000)

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

static int check_parts(const struct kvd_mover *mover, const struct kvd_mover_job *spec)
{
	uint64_t devices = 0;

	static_assert(KVD_MOVE_DEVICES_MAX <= 64, "a bit a device");
	if (spec->n_parts == 0 || spec->n_parts > KVD_MOVE_PARTS_MAX || !spec->parts)
		return -EINVAL;
	if (spec->n_parts > 1 && (spec->stripe_bytes == 0 || spec->stripe_bytes % spec->page_bytes))
		return -EINVAL;
	for (uint32_t i = 0; i < spec->n_parts; i++) {
		const struct kvd_mover_part *part = &spec->parts[i];

		if (part->fd < 0 || part->device >= mover->n_lanes || devices & UINT64_C(1) << part->device)
			return -EINVAL;
		devices |= UINT64_C(1) << part->device;
	}
	return 0;
}

static int check_stream(const struct kvd_mover_job *spec)
{
	const struct kvd_stream *stream = (const struct kvd_stream *)(uintptr_t)spec->stream;

	if (!stream)
		return 0;
	if (spec->kind != KVD_MOVE_PROMOTE || spec->stream % alignof(struct kvd_stream))
		return -EINVAL;
	return stream->n_pages == pages_of(spec) ? 0 : -EINVAL;
}

static uint32_t flags_of(uint32_t kind)
{
	switch (kind) {
	case KVD_MOVE_PROMOTE:
		return KVD_MOVE_AHEAD;
	case KVD_MOVE_DEMOTE:
		return KVD_MOVE_SYNC_METADATA | KVD_MOVE_MORE;
	default:
		return 0;
	}
}

int kvd_job_check(const struct kvd_mover *mover, const struct kvd_mover_job *spec)
{
	int err;

	if (spec->kind >= KVD_MOVE_KINDS || spec->reserved || spec->flags & ~flags_of(spec->kind))
		return -EINVAL;
	if (spec->kind != KVD_MOVE_VERIFY && spec->ddr_fd < 0)
		return -EINVAL;
	if (spec->page_bytes < KVD_LANE_BLOCK_BYTES || (spec->page_bytes & (spec->page_bytes - 1)) ||
	    mover->io_bytes % spec->page_bytes)
		return -EINVAL;
	if (spec->flags & KVD_MOVE_MORE && spec->size_bytes % spec->page_bytes)
		return -EINVAL;
	/* So that an offset rounded up to the end of its request is still one that the kernel takes. */
	if (spec->size_bytes > (uint64_t)INT64_MAX - mover->io_bytes)
		return -EINVAL;
	err = check_parts(mover, spec);
	if (!err)
		err = check_runs(spec);
	return err ? err : check_stream(spec);
}

static enum kvd_lane_class class_of(const struct kvd_mover_job *spec)
{
	switch (spec->kind) {
	case KVD_MOVE_PROMOTE:
		return spec->flags & KVD_MOVE_AHEAD ? KVD_LANE_AHEAD : KVD_LANE_PROMOTE;
	case KVD_MOVE_DEMOTE:
		return KVD_LANE_DEMOTE;
	default:
		return KVD_LANE_VERIFY;
	}
}

static uint64_t deadline_of(const struct kvd_mover_job *spec)
{
	uint64_t ms = spec->deadline_ms < JOB_DEADLINE_MS_MAX ? spec->deadline_ms : JOB_DEADLINE_MS_MAX;

	return kvd_mover_now_ns() + ms * KVD_LANE_NS_PER_MS;
}

/* Devices on which nothing of the object is are not asked, except to make a demotion's file; one always is. */
static bool needs(const struct kvd_job *job, uint64_t pages, bool last)
{
	return pages > 0 || job->spec.kind == KVD_MOVE_DEMOTE || (last && job->legs_left == 0);
}

/* The job's legs get into the lanes' queues; the lock is held. -EBUSY: nothing was done. */
static int enqueue(struct kvd_mover *mover, struct kvd_job *job, const struct kvd_mover_part *parts)
{
	uint32_t n = job->spec.n_parts;

	for (uint32_t i = 0; i < n; i++) {
		struct kvd_leg *leg = &job->legs[i];

		leg->job = job;
		leg->index = i;
		leg->part = parts[i];
		leg->lane = &mover->lanes[parts[i].device];
		kvd_cursor_init(leg);
		leg->ended = !needs(job, leg->pages_left, i == n - 1);
		if (leg->ended)
			continue;
		if (atomic_load(&leg->lane->orphaned_buffers) == leg->lane->depth)
			return -EBUSY;
		job->legs_left++;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct kvd_leg *leg = &job->legs[i];

		if (leg->ended)
			continue;
		leg->ready = true;
		leg->phase = KVD_LEG_WAITING;
		TAILQ_INSERT_TAIL(&leg->lane->arrived, leg, link);
		atomic_fetch_add(&leg->lane->queued, 1);
		kvd_lane_wake(leg->lane);
	}
	return 0;
}

int kvd_mover_submit(kvd_mover *mover, const struct kvd_mover_job *spec)
{
	int err = kvd_job_check(mover, spec);
	_Atomic uint64_t *asked = NULL;
	enum kvd_lane_class class;
	struct kvd_job *job;

	if (err)
		return err;
	if (spec->stream) {
		asked = calloc(kvd_stream_words(pages_of(spec)) + 1, sizeof(*asked));
		if (!asked)
			return -ENOMEM;
	}
	class = class_of(spec);
	kvd_mover_lock(mover);
	job = TAILQ_FIRST(&mover->free_jobs);
	if (mover->held[class] == mover->queue_jobs) {
		err = -EAGAIN;
	} else {
		assert(job);
		TAILQ_REMOVE(&mover->free_jobs, job, link);
		*job = (struct kvd_job){
			.spec = *spec,
			.class = class,
			.deadline_ns = deadline_of(spec),
			.asked = asked,
			.device = KVD_MOVE_NO_DEVICE,
		};
		job->spec.parts = NULL;
		err = enqueue(mover, job, spec->parts);
		if (err)
			TAILQ_INSERT_HEAD(&mover->free_jobs, job, link);
		else
			TAILQ_INSERT_TAIL(&mover->live_jobs, job, link);
	}
	if (!err) {
		mover->held[class]++;
		mover->stats.queued[spec->kind]++;
	}
	kvd_mover_unlock(mover);
	if (err)
		free(asked);
	return err;
}

/* Lanes that still have a leg of the job look at it; the lock is held. */
static void wake_lanes(struct kvd_job *job)
{
	for (uint32_t i = 0; i < job->spec.n_parts; i++)
		if (!job->legs[i].ended)
			kvd_lane_wake(job->legs[i].lane);
}

int kvd_mover_cancel(kvd_mover *mover, uint64_t token)
{
	int err = -ENOENT;
	struct kvd_job *job;

	kvd_mover_lock(mover);
	TAILQ_FOREACH(job, &mover->live_jobs, link) {
		if (job->spec.token != token)
			continue;
		atomic_store(&job->cancelled, true);
		wake_lanes(job);
		err = 0;
	}
	kvd_mover_unlock(mover);
	return err;
}

void kvd_job_started(struct kvd_mover *mover, struct kvd_job *job)
{
	uint32_t kind = job->spec.kind;

	kvd_mover_lock(mover);
	if (!job->start_ns) {
		job->start_ns = kvd_mover_now_ns();
		if (mover->running[kind]++ == 0)
			mover->busy_since_ns[kind] = job->start_ns;
	}
	kvd_mover_unlock(mover);
}

static void announce(const struct kvd_mover *mover)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(mover->event_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	assert(n == sizeof(one) || errno == EAGAIN);
}

static void count(struct kvd_mover *mover, const struct kvd_job *job)
{
	uint32_t kind = job->spec.kind;

	mover->stats.queued[kind]--;
	mover->stats.jobs[kind]++;
	mover->stats.failed[kind] += job->status != 0;
	mover->stats.bytes[kind] += job->bytes;
	if (job->start_ns && --mover->running[kind] == 0)
		mover->stats.busy_ns[kind] += kvd_mover_now_ns() - mover->busy_since_ns[kind];
}

/* The result moves to the caller's side; the lock is held. */
static void publish(struct kvd_mover *mover, struct kvd_job *job)
{
	uint32_t at = (mover->first_result + mover->n_results) % mover->ring_results;

	assert(mover->n_results < mover->ring_results);
	mover->results[at] = (struct kvd_mover_entry){
		.class = job->class,
		.result = {
			.token = job->spec.token,
			.status = job->status,
			.device = job->device,
			.bad_page = job->status == -EBADMSG ? job->bad_page : 0,
			.bytes = job->bytes,
			.duration_ns = job->start_ns ? kvd_mover_now_ns() - job->start_ns : 0,
		},
	};
	mover->n_results++;
	count(mover, job);
	/* The caller frees the stream once it has the result. */
	if (job->spec.stream)
		kvd_stream_end((struct kvd_stream *)(uintptr_t)job->spec.stream, job->status);
	free(job->asked);
	job->asked = NULL;
	TAILQ_REMOVE(&mover->live_jobs, job, link);
	TAILQ_INSERT_HEAD(&mover->free_jobs, job, link);
	announce(mover);
}

/* The first failure is the job's; of several devices that were waited for, the one that was so for longest. */
static void note_failure(struct kvd_job *job, const struct kvd_leg *leg)
{
	bool first = !atomic_exchange(&job->failed, true);

	if (first) {
		job->status = leg->status;
		job->bad_page = leg->bad_page;
		job->device = leg->blames_device ? (int)leg->lane->device : KVD_MOVE_NO_DEVICE;
		job->stuck_ns = leg->stuck_ns;
	} else if (job->status == -ETIMEDOUT && leg->stuck_ns > job->stuck_ns) {
		job->device = (int)leg->lane->device;
		job->stuck_ns = leg->stuck_ns;
	}
}

void kvd_job_leg_ended(struct kvd_mover *mover, struct kvd_leg *leg)
{
	struct kvd_job *job = leg->job;

	kvd_mover_lock(mover);
	leg->ended = true;
	atomic_fetch_sub(&leg->lane->queued, 1);
	job->bytes += leg->bytes;
	job->legs_left--;
	if (leg->status)
		note_failure(job, leg);
	if (job->legs_left == 0)
		publish(mover, job);
	else if (leg->status)
		wake_lanes(job);
	kvd_mover_unlock(mover);
}

uint32_t kvd_mover_reap(kvd_mover *mover, struct kvd_mover_result *out, uint32_t max)
{
	uint32_t n = 0;

	kvd_mover_lock(mover);
	for (; n < max && mover->n_results > 0; n++) {
		const struct kvd_mover_entry *entry = &mover->results[mover->first_result];

		out[n] = entry->result;
		mover->held[entry->class]--;
		mover->first_result = (mover->first_result + 1) % mover->ring_results;
		mover->n_results--;
	}
	kvd_mover_unlock(mover);
	return n;
}
