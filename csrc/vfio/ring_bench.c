/* How fast a device answers, measured where Python has no part in it. */
#include <errno.h>
#include <time.h>

#include "vfio/ring.h"

#define NS_PER_S 1000000000ull

enum { BENCH_COMPLETIONS = 256 };

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

int kvd_ring_bench_rtt(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint32_t rounds, uint64_t *ns, uint64_t timeout_ns)
{
	struct kvd_abi_cpl cpl;
	uint64_t begin_ns;
	int n;

	for (uint32_t i = 0; i < rounds; i++) {
		begin_ns = now_ns();
		n = kvd_ring_submit(ring, cmd, 1);
		if (n == 1)
			n = kvd_ring_poll(ring, &cpl, 1, timeout_ns);
		if (n != 1)
			return n ? n : -ETIMEDOUT;
		if (cpl.status != KVD_ABI_STATUS_OK)
			return -EIO;
		ns[i] = now_ns() - begin_ns;
	}
	return 0;
}

int kvd_ring_bench_batched(kvd_ring *ring, const struct kvd_abi_cmd *cmd, uint64_t commands, uint64_t *ns,
			   uint64_t timeout_ns)
{
	static const uint32_t batch = BENCH_COMPLETIONS;
	struct kvd_abi_cmd copies[BENCH_COMPLETIONS];
	struct kvd_abi_cpl cpl[BENCH_COMPLETIONS];
	uint64_t begin_ns, submitted = 0, completed = 0;
	int n;

	for (uint32_t i = 0; i < batch; i++)
		copies[i] = *cmd;
	begin_ns = now_ns();
	while (completed < commands) {
		uint64_t left = commands - submitted;

		n = kvd_ring_submit(ring, copies, left < batch ? (uint32_t)left : batch);
		if (n < 0)
			return n;
		submitted += (uint64_t)n;
		/* What is there is taken; nothing there: wait for one. */
		n = kvd_ring_poll(ring, cpl, batch, 0);
		if (!n)
			n = kvd_ring_poll(ring, cpl, 1, timeout_ns);
		if (n <= 0)
			return n ? n : -ETIMEDOUT;
		for (int i = 0; i < n; i++) {
			if (cpl[i].status != KVD_ABI_STATUS_OK)
				return -EIO;
		}
		completed += (uint64_t)n;
	}
	*ns = now_ns() - begin_ns;
	return 0;
}
