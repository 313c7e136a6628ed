#include "mover/lane.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	LANE_RING_ENTRIES_PER_REQ = 4, /* in one turn: an operation, what was left of it, and their cancellations */
	LANE_HUGE_PAGE_BYTES = 2 << 20,
	LANE_CONTROLS_PER_JOB = 2,     /* a demotion syncs its file and its folder at once */
};

/*
 * Direct requests from memory in 4 KiB pages are cut at the disk's limit of segments; from huge pages they go whole. On
 * a virtio disk with 254 segments that made 1.2 GB/s into 3.3 (docs/benchmarks.md). So: aligned, and asked for.
 */
static int pool_init(struct kvd_lane *lane)
{
	size_t bytes = (size_t)lane->depth * lane->io_bytes;
	uintptr_t start;
	void *pool;

	bytes = (bytes + LANE_HUGE_PAGE_BYTES - 1) & ~((size_t)LANE_HUGE_PAGE_BYTES - 1);
	lane->map_bytes = bytes + LANE_HUGE_PAGE_BYTES;
	pool = mmap(NULL, lane->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool == MAP_FAILED)
		return -errno;
	lane->map = pool;
	start = ((uintptr_t)pool + LANE_HUGE_PAGE_BYTES - 1) & ~((uintptr_t)LANE_HUGE_PAGE_BYTES - 1);
	lane->pool = (uint8_t *)start;
	(void)madvise(lane->pool, bytes, MADV_HUGEPAGE); /* a wish */
	return 0;
}

static int tables_init(struct kvd_lane *lane, const struct kvd_mover_config *config)
{
	lane->n_reqs = lane->depth + config->queue_jobs * LANE_CONTROLS_PER_JOB;
	lane->reqs = calloc(lane->n_reqs, sizeof(*lane->reqs));
	if (!lane->reqs)
		return -ENOMEM;
	TAILQ_INIT(&lane->arrived);
	TAILQ_INIT(&lane->busy);
	for (uint32_t class = 0; class < KVD_LANE_CLASSES; class++)
		TAILQ_INIT(&lane->ready[class]);
	SLIST_INIT(&lane->free_data);
	SLIST_INIT(&lane->free_control);
	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		struct kvd_req *req = &lane->reqs[i];

		if (i < lane->depth)
			req->buffer = lane->pool + (size_t)i * lane->io_bytes;
		SLIST_INSERT_HEAD(req->buffer ? &lane->free_data : &lane->free_control, req, link);
	}
	return 0;
}

/* What the kernel can do, or allows; the lane works without it, too. */
static void ring_features(struct kvd_lane *lane)
{
	struct iovec pool = {.iov_base = lane->pool, .iov_len = (size_t)lane->depth * lane->io_bytes};
	struct io_uring_probe *probe = io_uring_get_probe_ring(&lane->ring);

	lane->async_truncate = probe && io_uring_opcode_supported(probe, KVD_LANE_OP_FTRUNCATE);
	io_uring_free_probe(probe);
	/* Pinned once instead of for each request; refused where memory must not be locked. */
	lane->fixed_buffers = io_uring_register_buffers(&lane->ring, &pool, 1) == 0;
}

int kvd_lane_init(struct kvd_lane *lane, struct kvd_mover *mover, uint32_t device,
		  const struct kvd_mover_config *config)
{
	int err;

	lane->mover = mover;
	lane->device = device;
	lane->io_bytes = config->io_bytes;
	lane->depth = config->queue_depth;
	lane->request_ns = config->request_ms * KVD_LANE_NS_PER_MS;
	lane->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (lane->wake_fd < 0)
		return -errno;
	err = pool_init(lane);
	if (err)
		goto close_wake;
	err = tables_init(lane, config);
	if (err)
		goto unmap_pool;
	err = io_uring_queue_init(lane->n_reqs * LANE_RING_ENTRIES_PER_REQ, &lane->ring, 0);
	if (err)
		goto free_tables;
	ring_features(lane);
	err = -pthread_create(&lane->thread, NULL, kvd_lane_main, lane);
	if (err)
		goto exit_ring;
	return 0;

exit_ring:
	io_uring_queue_exit(&lane->ring);
free_tables:
	free(lane->reqs);
unmap_pool:
	munmap(lane->map, lane->map_bytes);
close_wake:
	close(lane->wake_fd);
	return err;
}

/* The thread has exited and no request is left. */
void kvd_lane_fini(struct kvd_lane *lane)
{
	pthread_join(lane->thread, NULL);
	io_uring_queue_exit(&lane->ring);
	free(lane->reqs);
	munmap(lane->map, lane->map_bytes);
	close(lane->wake_fd);
}

void kvd_lane_wake(struct kvd_lane *lane)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(lane->wake_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
	assert(n == sizeof(one));
}

uint64_t kvd_lane_oldest_ns(const struct kvd_lane *lane, uint64_t now_ns)
{
	uint64_t first_ns = now_ns;

	for (uint32_t i = 0; i < lane->n_reqs; i++) {
		uint64_t start_ns = atomic_load(&lane->reqs[i].start_ns);

		if (start_ns && start_ns < first_ns)
			first_ns = start_ns;
	}
	return now_ns - first_ns;
}
