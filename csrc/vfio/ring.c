/* Rings with a phase bit: what is written to the device, and what is believed of what it writes. */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vfio/ring.h"

#define NS_PER_S 1000000000ull

enum {
	LOOKS_PER_CLOCK = 64, /* looks at the ring between two at the clock */
	HEAD_PERIOD_PARTS = 4, /* the device is told of free completion entries at least this often in a round */
};

struct kvd_ring {
	struct kvd_abi_cmd *sq;
	struct kvd_abi_cpl *cq;
	uint32_t *sq_tail; /* doorbells */
	uint32_t *cq_head;
	uint32_t *caller_ids; /* by place in the submission ring */
	uint32_t depth;
	int broken; /* 0, or what every call returns */
	uint64_t submitted; /* since reset, as all the following */
	uint64_t taken;     /* by the device, as its last completion says */
	uint64_t completed;
	uint64_t told; /* completions that the device knows of to be collected */
	uint32_t first_id; /* of this life: a completion of an earlier one does not fit */
	struct kvd_ring_stats stats;
};

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + KVD_RING_ALIGN_BYTES - 1) / KVD_RING_ALIGN_BYTES * KVD_RING_ALIGN_BYTES;
}

uint64_t kvd_ring_cq_offset(uint32_t depth)
{
	return round_up((uint64_t)depth * sizeof(struct kvd_abi_cmd));
}

uint64_t kvd_ring_bytes(uint32_t depth)
{
	return kvd_ring_cq_offset(depth) + round_up((uint64_t)depth * sizeof(struct kvd_abi_cpl));
}

int kvd_ring_init(uint32_t depth, void *memory, void *doorbells, kvd_ring **out)
{
	struct kvd_ring *ring;

	if (depth < KVD_RING_DEPTH_MIN || depth > KVD_RING_DEPTH_MAX || depth & (depth - 1) ||
	    (uintptr_t)memory % KVD_RING_ALIGN_BYTES || (uintptr_t)doorbells % sizeof(uint32_t))
		return -EINVAL;
	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	ring->caller_ids = calloc(depth, sizeof(*ring->caller_ids));
	if (!ring->caller_ids) {
		free(ring);
		return -ENOMEM;
	}
	ring->sq = memory;
	ring->cq = (void *)((uint8_t *)memory + kvd_ring_cq_offset(depth));
	ring->sq_tail = (uint32_t *)doorbells + KVD_ABI_BAR2_QUEUE_SQ_TAIL_AT / sizeof(uint32_t);
	ring->cq_head = (uint32_t *)doorbells + KVD_ABI_BAR2_QUEUE_CQ_HEAD_AT / sizeof(uint32_t);
	ring->depth = depth;
	ring->first_id = 1;
	kvd_ring_reset(ring);
	*out = ring;
	return 0;
}

void kvd_ring_fini(kvd_ring *ring)
{
	if (!ring)
		return;
	free(ring->caller_ids);
	free(ring);
}

void kvd_ring_reset(kvd_ring *ring)
{
	memset(ring->sq, 0, ring->depth * sizeof(*ring->sq));
	memset(ring->cq, 0, ring->depth * sizeof(*ring->cq));
	ring->first_id += (uint32_t)ring->submitted;
	ring->submitted = 0;
	ring->taken = 0;
	ring->completed = 0;
	ring->told = 0;
	ring->broken = 0;
}

uint32_t kvd_ring_outstanding(const kvd_ring *ring)
{
	return (uint32_t)(ring->submitted - ring->completed);
}

uint32_t kvd_ring_room(const kvd_ring *ring)
{
	return ring->depth - 1 - kvd_ring_outstanding(ring);
}

static int broken(struct kvd_ring *ring, int err)
{
	ring->broken = err;
	return err;
}

static uint32_t place(const struct kvd_ring *ring, uint64_t number)
{
	return (uint32_t)number & (ring->depth - 1);
}

/* What the device is told of is there before it is told. */
static void publish(void)
{
#if defined(__SANITIZE_THREAD__)
	atomic_signal_fence(memory_order_release); /* it knows no other fence, and the device is no thread that it sees */
#else
	atomic_thread_fence(memory_order_release);
#endif
}

static int ring_doorbell(struct kvd_ring *ring, uint32_t *doorbell, uint64_t number)
{
	int err;

	publish();
	err = kvd_vfio_store32(doorbell, place(ring, number));
	ring->stats.doorbells++;
	return err ? broken(ring, err) : 0;
}

int kvd_ring_submit(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint32_t count)
{
	uint32_t room = kvd_ring_room(ring);
	int err;

	if (ring->broken)
		return ring->broken;
	if (count > room)
		count = room;
	if (!count)
		return 0;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = place(ring, ring->submitted + i);

		ring->caller_ids[at] = cmd[i].id;
		ring->sq[at] = cmd[i];
		ring->sq[at].id = ring->first_id + (uint32_t)(ring->submitted + i);
	}
	ring->submitted += count;
	ring->stats.submitted += count;
	err = ring_doorbell(ring, ring->sq_tail, ring->submitted);
	return err ? err : (int)count;
}

/* The phase bit of an entry of the completion ring that is new. */
static uint16_t phase_of(const struct kvd_ring *ring, uint64_t number)
{
	return (uint16_t)(number / ring->depth % 2 ? 0 : KVD_ABI_CPL_FLAGS_PHASE_MASK);
}

/* Is the next completion there? If so the rest of its entry may be read after this. */
static bool arrived(const struct kvd_ring *ring)
{
	uint16_t flags = __atomic_load_n(&ring->cq[place(ring, ring->completed)].flags, __ATOMIC_ACQUIRE);

	return (flags & KVD_ABI_CPL_FLAGS_PHASE_MASK) == phase_of(ring, ring->completed);
}

/* Believe a completion, which is a copy: the device can't change it any more. */
static int check(struct kvd_ring *ring, const struct kvd_abi_cpl *cpl)
{
	uint32_t mask = ring->depth - 1;
	uint64_t taken;

	if (ring->completed == ring->submitted)
		return KVD_RING_LYING_PHASE;
	if (cpl->id != ring->first_id + (uint32_t)ring->completed)
		return KVD_RING_UNKNOWN_ID;
	if (cpl->status >= KVD_ABI_STATUS_COUNT)
		return KVD_RING_UNKNOWN_STATUS;
	if (cpl->reserved || cpl->flags & ~KVD_ABI_CPL_FLAGS_PHASE_MASK)
		return KVD_RING_NOT_ZERO;
	if (cpl->sq_head > mask)
		return KVD_RING_BAD_HEAD;
	taken = ring->taken + ((cpl->sq_head - (uint32_t)ring->taken) & mask);
	if (taken <= ring->completed || taken > ring->submitted)
		return KVD_RING_BAD_HEAD;
	ring->taken = taken;
	return 0;
}

/* Tell the device which entries of the completion ring it may use again. */
static void tell_head(struct kvd_ring *ring)
{
	if (ring->broken || ring->told == ring->completed)
		return;
	ring->told = ring->completed;
	ring_doorbell(ring, ring->cq_head, ring->completed);
}

/* Take what is there, at most `max`: the number, or the error that was met before the first. */
static int collect(struct kvd_ring *ring, struct kvd_abi_cpl *cpl, uint32_t max)
{
	uint32_t got = 0;
	int err;

	while (!ring->broken && got < max && arrived(ring)) {
		cpl[got] = ring->cq[place(ring, ring->completed)];
		err = check(ring, &cpl[got]);
		if (err) {
			broken(ring, err);
			break;
		}
		cpl[got].id = ring->caller_ids[place(ring, ring->completed)];
		cpl[got].flags = 0;
		cpl[got].sq_head = 0;
		got++;
		ring->completed++;
		ring->stats.completed++;
		if (ring->completed - ring->told >= ring->depth / HEAD_PERIOD_PARTS)
			tell_head(ring);
	}
	return got ? (int)got : ring->broken;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* Look until the next completion is there or `spin_ns` are over. */
static bool spin(const struct kvd_ring *ring, uint64_t spin_ns)
{
	uint64_t end_ns;

	if (arrived(ring))
		return true;
	if (!spin_ns)
		return false;
	end_ns = now_ns() + spin_ns;
	do {
		for (uint32_t i = 0; i < LOOKS_PER_CLOCK; i++) {
			relax();
			if (arrived(ring))
				return true;
		}
	} while (now_ns() < end_ns);
	return false;
}

int kvd_ring_poll(kvd_ring *ring, struct kvd_abi_cpl *cpl, uint32_t max, uint64_t spin_ns)
{
	uint32_t got = 0;
	int n;

	if (ring->broken)
		return ring->broken;
	if (!kvd_ring_outstanding(ring))
		return arrived(ring) ? broken(ring, KVD_RING_LYING_PHASE) : 0;
	if (max > kvd_ring_outstanding(ring))
		max = kvd_ring_outstanding(ring);
	while (!ring->broken && got < max && spin(ring, spin_ns)) {
		n = collect(ring, cpl + got, max - got);
		got += n > 0 ? (uint32_t)n : 0;
	}
	tell_head(ring);
	return got ? (int)got : ring->broken;
}

int kvd_ring_work(kvd_ring *ring, struct kvd_ring_batch *batch, uint64_t spin_ns)
{
	int n;

	if (!ring->broken && !kvd_ring_outstanding(ring) && arrived(ring))
		return broken(ring, KVD_RING_LYING_PHASE);
	while (batch->completed < batch->count) {
		n = kvd_ring_submit(ring, batch->cmd + batch->submitted, batch->count - batch->submitted);
		if (n < 0)
			return n;
		batch->submitted += (uint32_t)n;
		if (!spin(ring, spin_ns))
			return -EAGAIN;
		n = collect(ring, batch->cpl + batch->completed, batch->submitted - batch->completed);
		if (n < 0)
			return n;
		batch->completed += (uint32_t)n;
		tell_head(ring);
	}
	return 0;
}

int kvd_ring_arrived(const kvd_ring *ring)
{
	return arrived(ring);
}

void kvd_ring_stats(const kvd_ring *ring, struct kvd_ring_stats *out)
{
	*out = ring->stats;
}
