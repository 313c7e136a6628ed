/*
 * A submission ring and a completion ring in host memory, with their doorbells in BAR2 (docs/device.md).
 *
 * Entries are copied in and out here, so that Python hands over a whole batch by one call and gets its completions by
 * another. Whatever the device writes is checked before anybody acts on it. A ring that has met nonsense is broken: every
 * call returns the same error until kvd_ring_reset.
 *
 * One thread at a time.
 */
#ifndef KVD_VFIO_RING_H
#define KVD_VFIO_RING_H

#include <stdint.h>

#include "abi/abi.h"
#include "vfio/vfio.h" /* what the doorbells are a mapping of */

/* cffi: begin */
typedef struct kvd_ring kvd_ring;

enum kvd_ring_limit {
	KVD_RING_DEPTH_MIN = 2,
	KVD_RING_DEPTH_MAX = 1024, /* the journal of the tables reaches back as far */
	KVD_RING_ALIGN_BYTES = 4096,
};

/* What a device can say that makes no sense; below every errno. */
enum kvd_ring_error {
	KVD_RING_UNKNOWN_ID = -2001,     /* a completion of a command that is not the next one to be completed */
	KVD_RING_UNKNOWN_STATUS = -2002, /* a status that this driver does not know */
	KVD_RING_LYING_PHASE = -2003,    /* a completion though nothing is owed */
	KVD_RING_BAD_HEAD = -2004,       /* sq_head says that less was taken than completed, or more than submitted */
	KVD_RING_NOT_ZERO = -2005,       /* a reserved bit or word is not zero */
};

struct kvd_ring_stats {
	uint64_t submitted;
	uint64_t completed;
	uint64_t doorbells; /* written */
};

/* A batch on its way through the ring. The caller fills in the first three and zeroes the rest. */
struct kvd_ring_batch {
	const struct kvd_abi_cmd *cmd;
	struct kvd_abi_cpl *cpl;
	uint32_t count;
	uint32_t submitted; /* of them, given to the device */
	uint32_t completed; /* of them, with their completions in `cpl` */
	uint32_t reserved;
};

/* Bytes of memory that both rings take: the submission ring first, the completion ring at kvd_ring_cq_offset. */
uint64_t kvd_ring_bytes(uint32_t depth);
uint64_t kvd_ring_cq_offset(uint32_t depth);
/*
 * Rings of `depth` entries (a power of two) in `memory`, kvd_ring_bytes long and KVD_RING_ALIGN_BYTES aligned, that the
 * device can reach. `doorbells`: the queue's in a mapping of BAR2. 0 or -errno.
 */
int kvd_ring_init(uint32_t depth, void *memory, void *doorbells, kvd_ring **out);
void kvd_ring_fini(kvd_ring *ring);
/* Begin anew after a reset of the device, when it can no longer write to the rings. What was outstanding is forgotten. */
void kvd_ring_reset(kvd_ring *ring);

/* Commands that may be submitted now; one place always stays free, as a full ring would look like an empty one. */
uint32_t kvd_ring_room(const kvd_ring *ring);
uint32_t kvd_ring_outstanding(const kvd_ring *ring);
/* Submit `count` commands, or as many of the first ones as there is room for, by one doorbell: their number or an error. */
int kvd_ring_submit(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint32_t count);
/*
 * Collect up to `max` completions, at most as many as are outstanding, in the order of the commands and with the ids
 * that their caller gave: their number, or the error that was met before the
 * first. Looks until it has them all or none came for `spin_ns`.
 */
int kvd_ring_poll(kvd_ring *ring, struct kvd_abi_cpl *cpl, uint32_t max, uint64_t spin_ns);
/*
 * Submit and collect until the batch is completed (0), or no completion came for `spin_ns` (-EAGAIN: call again). The
 * ring must hold nothing that is not of this batch. On an error the batch says how far it came.
 */
int kvd_ring_work(kvd_ring *ring, struct kvd_ring_batch *batch, uint64_t spin_ns);
/* Is there a completion that was not collected? One look. */
int kvd_ring_arrived(const kvd_ring *ring);
void kvd_ring_stats(const kvd_ring *ring, struct kvd_ring_stats *out);

/* ring_bench.c: nanoseconds that each of `rounds` round trips of one command takes; 0 or an error. */
int kvd_ring_bench_rtt(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint32_t rounds, uint64_t *ns, uint64_t timeout_ns);
/* Nanoseconds for `commands` copies of a command with the ring kept full. */
int kvd_ring_bench_batched(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint64_t commands, uint64_t *ns,
			   uint64_t timeout_ns);
/* cffi: end */

#endif
