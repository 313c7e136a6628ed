/* GATHER and SCATTER by the card: its own memory is BAR4, the host's tier is behind DMA. */
#include "card_host.h"

#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX
#define BAR4 VFIO_PCI_BAR4_REGION_INDEX
#define TIER_IOVA 0x80000000ull

enum {
	PAGES = 3,
	OFFSET = 1000,                    /* of the bytes in the range of pages */
	BYTES = 2 * HOST_PAGE_BYTES,      /* so they touch all three pages */
	TIER_BYTES = HOST_TIER_BLOCKS * 4096,
};

struct moved {
	struct kvd_abi_transfer transfer;
	uint8_t bytes[BYTES];
};

static struct kvd_abi_cpl move(struct host *host, uint64_t session, uint16_t op)
{
	struct moved *moved = host_buffer(host);

	moved->transfer = (struct kvd_abi_transfer){
		.host = host_buffer_iova() + offsetof(struct moved, bytes),
		.host_bytes = BYTES,
		.page_offset = OFFSET,
	};
	return host_call(host, (struct kvd_abi_cmd){
		.id = 8, .op = op, .session = session, .count = PAGES, .buffer = host_buffer_iova(),
		.buffer_bytes = sizeof(moved->transfer),
	});
}

static uint64_t map_tier(struct host *host, uint64_t key, uint32_t tier)
{
	const struct kvd_abi_map_run run = {.count = PAGES, .blocks = HOST_BLOCKS};
	uint64_t session = host_session(host, key);

	memcpy(host_buffer(host), &run, sizeof(run));
	assert_int_equal(host_call(host, (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_MAP, .session = session, .tier = tier, .count = 1, .buffer = host_buffer_iova(),
		.buffer_bytes = sizeof(run),
	}).status, KVD_ABI_STATUS_OK);
	return session;
}

/* There and back; between the two, `memory` (of the tier) holds the bytes at the frames that the engine says. */
static void there_and_back(struct host *host, uint64_t session, const uint8_t *memory)
{
	struct moved *moved = host_buffer(host);
	struct kvd_abi_run run;
	struct kvd_abi_cpl cpl;

	assert_int_equal(host_call(host, (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_TRANSLATE, .session = session, .count = PAGES, .buffer = host_buffer_iova(),
		.buffer_bytes = sizeof(run),
	}).status, KVD_ABI_STATUS_OK);
	memcpy(&run, moved, sizeof(run));
	for (uint32_t i = 0; i < BYTES; i++)
		moved->bytes[i] = (uint8_t)(i * 7 + i / 251);
	cpl = move(host, session, KVD_ABI_OP_SCATTER);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	assert_int_equal(cpl.result0, BYTES);
	assert_memory_equal(memory + run.first_frame * HOST_PAGE_BYTES + OFFSET, moved->bytes, BYTES);
	memset(moved->bytes, 0, BYTES);
	cpl = move(host, session, KVD_ABI_OP_GATHER);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_OK);
	assert_int_equal(cpl.result0, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(moved->bytes[i], (uint8_t)(i * 7 + i / 251));
}

static void test_card_tier(void **state)
{
	struct host *host = *state;
	int fd = rig_region_fd(&host->rig, BAR4);
	uint8_t *memory = mmap(NULL, RIG_DDR_BYTES, PROT_READ, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(memory, MAP_FAILED);
	host_enable(host);
	there_and_back(host, map_tier(host, 1, KVD_ABI_TIER_CARD), memory);
	munmap(memory, RIG_DDR_BYTES);
	close(fd);
}

static void test_host_tier(void **state)
{
	struct host *host = *state;
	int fd = rig_file(TIER_BYTES);
	uint8_t *memory = mmap(NULL, TIER_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t session;

	assert_ptr_not_equal(memory, MAP_FAILED);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8 * KVD_ABI_TIER_DDR, TIER_IOVA);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TIER_BYTES_AT + 8 * KVD_ABI_TIER_DDR, TIER_BYTES);
	host_enable(host);
	session = map_tier(host, 1, KVD_ABI_TIER_DDR);
	/* Described, but not mapped. */
	assert_int_equal(move(host, session, KVD_ABI_OP_GATHER).status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(rig_map(&host->rig, TIER_IOVA, TIER_BYTES, 3, fd, 0), 0);
	there_and_back(host, session, memory);
	/* A tier that was not described has no memory. */
	session = map_tier(host, 2, KVD_ABI_TIER_NVME);
	assert_int_equal(move(host, session, KVD_ABI_OP_GATHER).status, KVD_ABI_STATUS_NO_MEMORY);
	munmap(memory, TIER_BYTES);
	close(fd);
}

/* Memory of a tier without a descriptor: more of it than a command may fetch is out of reach, and that is all. */
static void test_tier_by_messages(void **state)
{
	struct host *host = *state;
	struct rig *rig = &host->rig;
	uint64_t session;

	rig_write64(rig, BAR0, KVD_ABI_BAR0_TIER_ADDRESS_AT + 8 * KVD_ABI_TIER_DDR, TIER_IOVA);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_TIER_BYTES_AT + 8 * KVD_ABI_TIER_DDR, TIER_BYTES);
	assert_int_equal(rig_map(rig, TIER_IOVA, TIER_BYTES, KVD_VFU_DMA_F_WRITE, -1, 0), 0);
	host_enable(host);
	session = map_tier(host, 1, KVD_ABI_TIER_DDR);
	/* For writing only, so nothing is fetched; nobody answers what is brought back. */
	(void)move(host, session, KVD_ABI_OP_SCATTER);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DMA_WRITE);
	assert_true(rig_hung_up(rig));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, host_setup, host_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_card_tier), TEST(test_host_tier), TEST(test_tier_by_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
