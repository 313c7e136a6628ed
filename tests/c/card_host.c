#include "card_host.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX
#define BAR2 VFIO_PCI_BAR2_REGION_INDEX
#define RW (KVD_VFU_DMA_F_READ | KVD_VFU_DMA_F_WRITE)
#define RING_BYTES (64ull << 10)

static void make_tables(struct host *host)
{
	const struct kvd_engine_config config = {
		.page_bytes = HOST_PAGE_BYTES,
		.sessions_max = 64,
		.arena_bytes = HOST_TABLES_BYTES,
		.capacity_blocks = {0, HOST_TIER_BLOCKS, HOST_TIER_BLOCKS, HOST_TIER_BLOCKS, 0},
		.arena_fd = host->tables_fd,
	};
	kvd_engine *engine;

	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	kvd_engine_fini(engine); /* left in good order */
}

static uint64_t ring_at(uint32_t queue, bool completions)
{
	return (queue * 2 + completions) * RING_BYTES;
}

static void connect_host(struct host *host)
{
	struct rig *rig = &host->rig;
	int fd;

	rig_connect(rig);
	rig_hello(rig);
	rig_bus_master(rig, true);
	assert_int_equal(rig_map(rig, HOST_TABLES_IOVA, HOST_TABLES_BYTES, RW, host->tables_fd, 0), 0);
	assert_int_equal(rig_map(rig, HOST_RINGS_IOVA, HOST_RINGS_BYTES, RW, host->rings_fd, 0), 0);
	assert_int_equal(rig_irqs(rig, VFIO_PCI_MSIX_IRQ_INDEX,
				  VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, HOST_VECTOR, 2, NULL, 0,
				  host->eventfds, 2), 0);
	if (host->doorbells)
		munmap(host->doorbells, KVD_CARD_BAR2_BYTES);
	fd = rig_region_fd(rig, BAR2);
	host->doorbells = mmap(NULL, KVD_CARD_BAR2_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(host->doorbells, MAP_FAILED);
	close(fd);
}

void host_describe(struct host *host, bool attach)
{
	struct rig *rig = &host->rig;

	if (attach)
		connect_host(host);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT, HOST_TABLES_IOVA);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_TABLES_BYTES_AT, HOST_TABLES_BYTES);
	memset(host->rings, 0, HOST_RINGS_BYTES);
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t at = KVD_ABI_BAR0_QUEUE_AT + i * KVD_ABI_BAR0_QUEUE_STRIDE;

		rig_write64(rig, BAR0, at + KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT, HOST_RINGS_IOVA + ring_at(i, false));
		rig_write64(rig, BAR0, at + KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT, HOST_RINGS_IOVA + ring_at(i, true));
		rig_write32(rig, BAR0, at + KVD_ABI_BAR0_QUEUE_DEPTH_AT, HOST_DEPTH);
		rig_write32(rig, BAR0, at + KVD_ABI_BAR0_QUEUE_VECTOR_AT, HOST_VECTOR + i);
		host->queues[i] = (struct host_queue){
			.sq = (void *)(host->rings + ring_at(i, false)),
			.cq = (void *)(host->rings + ring_at(i, true)),
			.phase = 1,
		};
	}
}

void host_open(struct host *host, const struct kvd_card_config *config)
{
	*host = (struct host){.tables_fd = rig_file(0), .rings_fd = rig_file(HOST_RINGS_BYTES)};
	assert_int_equal(kvd_card_guard_init(), 0);
	make_tables(host);
	host->rings = mmap(NULL, HOST_RINGS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, host->rings_fd, 0);
	assert_ptr_not_equal(host->rings, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		host->eventfds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		assert_true(host->eventfds[i] >= 0);
	}
	rig_open(&host->rig, config);
	host_describe(host, true);
}

void host_close(struct host *host)
{
	rig_close(&host->rig);
	munmap(host->rings, HOST_RINGS_BYTES);
	munmap(host->doorbells, KVD_CARD_BAR2_BYTES);
	close(host->tables_fd);
	close(host->rings_fd);
	close(host->eventfds[0]);
	close(host->eventfds[1]);
}

int host_setup(void **state)
{
	struct host *host = malloc(sizeof(*host));

	assert_non_null(host);
	host_open(host, &rig_config);
	*state = host;
	return 0;
}

int host_teardown(void **state)
{
	host_close(*state);
	free(*state);
	return 0;
}

uint32_t host_control(struct host *host, uint32_t value)
{
	rig_write32(&host->rig, BAR0, KVD_ABI_BAR0_CONTROL_AT, value);
	return rig_read32(&host->rig, BAR0, KVD_ABI_BAR0_STATUS_AT);
}

void host_enable(struct host *host)
{
	assert_int_equal(host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK),
			 KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK);
	/* Between two tests, and between setup and test, cmocka takes the signals. */
	assert_int_equal(kvd_card_guard_init(), 0);
}

uint32_t host_syndrome(struct host *host)
{
	return rig_read32(&host->rig, BAR0, KVD_ABI_BAR0_SYNDROME_AT);
}

void host_stopped(struct host *host, enum kvd_abi_syndrome syndrome, uint64_t info)
{
	const uint32_t status = KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_FAULT_MASK | KVD_ABI_BAR0_STATUS_QUIET_MASK;

	assert_int_equal(rig_read32(&host->rig, BAR0, KVD_ABI_BAR0_STATUS_AT), status);
	assert_int_equal(host_syndrome(host), syndrome);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_SYNDROME_INFO_AT), info);
	assert_false(kvd_card_work(host->rig.card));
}

void host_put(struct host *host, uint32_t queue, struct kvd_abi_cmd cmd)
{
	struct host_queue *at = &host->queues[queue];

	at->sq[at->tail] = cmd;
	at->tail = (at->tail + 1) % HOST_DEPTH;
}

void host_ring(struct host *host, uint32_t queue)
{
	__atomic_store_n(&host->doorbells[queue * KVD_ABI_BAR2_QUEUE_STRIDE / sizeof(uint32_t)], host->queues[queue].tail,
			 __ATOMIC_RELEASE);
}

void host_work(struct host *host)
{
	while (kvd_card_work(host->rig.card))
		;
}

bool host_take(struct host *host, uint32_t queue, struct kvd_abi_cpl *out)
{
	struct host_queue *at = &host->queues[queue];
	uint32_t *doorbell = &host->doorbells[queue * KVD_ABI_BAR2_QUEUE_STRIDE / sizeof(uint32_t)];

	if ((at->cq[at->head].flags & KVD_ABI_CPL_FLAGS_PHASE_MASK) != at->phase)
		return false;
	*out = at->cq[at->head];
	at->head = (at->head + 1) % HOST_DEPTH;
	at->phase ^= !at->head;
	__atomic_store_n(doorbell + KVD_ABI_BAR2_QUEUE_CQ_HEAD_AT / sizeof(uint32_t), at->head, __ATOMIC_RELEASE);
	return true;
}

struct kvd_abi_cpl host_call(struct host *host, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_cpl cpl;

	host_put(host, 0, cmd);
	host_ring(host, 0);
	host_work(host);
	assert_true(host_take(host, 0, &cpl));
	assert_int_equal(cpl.id, cmd.id);
	assert_int_equal(cpl.sq_head, host->queues[0].tail);
	return cpl;
}

uint64_t host_session(struct host *host, uint64_t key)
{
	struct kvd_abi_cpl cpl = host_call(host, (struct kvd_abi_cmd){.id = 71, .op = KVD_ABI_OP_SESSION_CREATE, .key = key});

	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	return cpl.result0;
}

struct kvd_abi_cpl host_map(struct host *host, uint64_t session, uint64_t first_page, uint64_t count)
{
	const struct kvd_abi_map_run run = {.first_page = first_page, .count = count, .blocks = HOST_BLOCKS};

	memcpy(host_buffer(host), &run, sizeof(run));
	return host_call(host, (struct kvd_abi_cmd){
		.id = 72, .op = KVD_ABI_OP_MAP, .session = session, .tier = KVD_ABI_TIER_DDR, .count = 1,
		.buffer = host_buffer_iova(), .buffer_bytes = sizeof(run),
	});
}

uint64_t host_buffer_iova(void)
{
	return HOST_RINGS_IOVA + HOST_BUFFER_AT;
}

void *host_buffer(struct host *host)
{
	return host->rings + HOST_BUFFER_AT;
}

void host_check(struct host *host, bool clean)
{
	const struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH, .arena_fd = host->tables_fd};
	char text[1024];
	kvd_engine *engine;

	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	assert_int_equal(kvd_engine_dirty(engine), !clean);
	if (!clean)
		assert_int_equal(kvd_engine_recover(engine, &(struct kvd_engine_recovery){0}), 0);
	if (kvd_engine_check(engine, text, sizeof(text)))
		fail_msg("%s", text);
	kvd_engine_fini(engine);
}
