/* Reading and writing regions: registers, doorbells, the card's memory. */
#include "card_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX
#define BAR2 VFIO_PCI_BAR2_REGION_INDEX
#define BAR4 VFIO_PCI_BAR4_REGION_INDEX

static void *map_region(struct rig *rig, uint32_t region, uint64_t bytes)
{
	int fd = rig_region_fd(rig, region);
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	/* The client can't cut the file under the card. */
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(errno, EPERM);
	close(fd);
	return at;
}

static void test_identity(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_MAGIC_AT), KVD_ABI_BAR0_MAGIC_RESET);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_VERSION_AT), KVD_ABI_BAR0_VERSION_RESET);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_STATUS_AT), KVD_ABI_BAR0_STATUS_RESET);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT), 0);
}

static void test_capabilities(void **state)
{
	uint32_t seen = 0;
	struct rig *rig = *state;
	uint32_t at = rig_read32(rig, BAR0, KVD_ABI_BAR0_CAPABILITIES_AT);

	for (int i = 0; at && i < 16; i++) {
		uint32_t head = rig_read32(rig, BAR0, at);
		uint32_t bytes = rig_read32(rig, BAR0, at + 4);
		uint32_t id = head & KVD_ABI_CAPABILITY_HEAD_ID_MASK;

		assert_in_range(bytes, 16, 48);
		seen |= 1u << id;
		if (id == KVD_ABI_CAPABILITY_ID_TIERS)
			assert_int_equal(rig_read64(rig, BAR0, at + 8 + 8 * KVD_ABI_TIER_CARD), RIG_DDR_BYTES);
		if (id == KVD_ABI_CAPABILITY_ID_QUEUES) {
			assert_int_equal(rig_read32(rig, BAR0, at + 8), rig_config.queues);
			assert_int_equal(rig_read32(rig, BAR0, at + 12), rig_config.depth_max);
			assert_int_equal(rig_read32(rig, BAR0, at + 16), KVD_CARD_VECTORS);
		}
		/* What the engine knows, and nothing beyond. */
		if (id == KVD_ABI_CAPABILITY_ID_OPERATIONS)
			assert_int_equal(rig_read64(rig, BAR0, at + 8), rig->card->operations);
		if (id == KVD_ABI_CAPABILITY_ID_LIMITS)
			assert_int_equal(rig_read64(rig, BAR0, at + 24), rig->card->dma.window_bytes - 1);
		at = head >> KVD_ABI_CAPABILITY_HEAD_NEXT_SHIFT;
	}
	assert_int_equal(at, 0);
	assert_int_equal(seen, (1u << KVD_ABI_CAPABILITY_ID_COUNT) - 2);
	assert_true(rig->card->operations & 1ull << KVD_ABI_OP_MAP);
	assert_false(rig->card->operations & 1);
}

static void test_writing_registers(void **state)
{
	struct rig *rig = *state;
	const uint64_t queue = KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_STRIDE;
	const uint64_t absent = KVD_ABI_BAR0_QUEUE_AT + 2 * KVD_ABI_BAR0_QUEUE_STRIDE; /* there are two queues */

	rig_write64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT, 0x123456789abcdef0ull);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT), 0x123456789abcdef0ull);
	/* As two halves. */
	rig_write32(rig, BAR0, queue, 0x1000);
	rig_write32(rig, BAR0, queue + 4, 2);
	assert_int_equal(rig_read64(rig, BAR0, queue), 0x200001000ull);
	assert_int_equal(rig_read32(rig, BAR0, queue + 4), 2);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_TIER_BYTES_AT + 8 * 4, 99);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_TIER_BYTES_AT + 8 * 4), 99);
	/* What is not for writing. */
	rig_write64(rig, BAR0, KVD_ABI_BAR0_MAGIC_AT, 0);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_COMMANDS_AT, 5);
	rig_write64(rig, BAR0, queue + KVD_ABI_BAR0_QUEUE_EXECUTED_AT, 5);
	rig_write64(rig, BAR0, absent, 5);
	rig_write64(rig, BAR0, KVD_CARD_BAR0_BYTES - 8, 5);
	rig_write64(rig, BAR0, KVD_ABI_BAR0_MSIX_PENDING_AT, 5);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_MAGIC_AT), KVD_ABI_BAR0_MAGIC_RESET);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_COMMANDS_AT), 0);
	assert_int_equal(rig_read64(rig, BAR0, queue + KVD_ABI_BAR0_QUEUE_EXECUTED_AT), 0);
	assert_int_equal(rig_read64(rig, BAR0, absent), 0);
	assert_int_equal(rig_read64(rig, BAR0, KVD_CARD_BAR0_BYTES - 8), 0);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_MSIX_PENDING_AT), 0);
	/* The vectors' table is only kept. */
	rig_write32(rig, BAR0, KVD_ABI_BAR0_MSIX_TABLE_AT + 16, 0xfee00000);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_MSIX_TABLE_AT + 16), 0xfee00000);
	rig_write32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT), 0);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT), 0);
}

/* Other widths read as zeros and write nothing; outside of a region is an error. */
static void test_odd_accesses(void **state)
{
	static const struct {
		uint64_t at;
		uint32_t bytes;
	} odd[] = {{0, 1}, {0, 2}, {1, 4}, {2, 4}, {4, 8}, {0, 3}, {0, 16}, {0, 0}};
	static const struct {
		uint32_t region;
		uint64_t at;
		uint32_t bytes;
	} outside[] = {
		{BAR0, KVD_CARD_BAR0_BYTES, 4}, {BAR0, KVD_CARD_BAR0_BYTES - 4, 8}, {BAR0, UINT64_MAX, 8},
		{BAR2, KVD_CARD_BAR2_BYTES, 4}, {BAR4, RIG_DDR_BYTES - 4, 8}, {BAR4, UINT64_MAX - 3, 4},
		{VFIO_PCI_CONFIG_REGION_INDEX, KVD_CARD_CONFIG_BYTES - 1, 2}, {VFIO_PCI_BAR1_REGION_INDEX, 0, 4},
		{VFIO_PCI_ROM_REGION_INDEX, 0, 4}, {VFIO_PCI_NUM_REGIONS, 0, 4}, {UINT32_MAX, 0, 4}, {BAR4, 0, UINT32_MAX},
		{BAR4, 0, KVD_CARD_XFER_BYTES + 1},
	};
	struct rig *rig = *state;
	uint8_t data[16];

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		memset(data, 0xff, sizeof(data));
		assert_int_equal(rig_read(rig, BAR0, odd[i].at, data, odd[i].bytes), 0);
		for (uint32_t b = 0; b < odd[i].bytes; b++)
			assert_int_equal(data[b], 0);
		assert_int_equal(rig_write(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT + odd[i].at, "0123456789abcdef",
					   odd[i].bytes), 0);
	}
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT), 0);
	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		struct kvd_vfu_region_access access = {outside[i].at, outside[i].region, outside[i].bytes};

		assert_int_equal(rig_call(rig, KVD_VFU_REGION_READ, &access, sizeof(access)), -EINVAL);
		if (outside[i].bytes <= sizeof(data))
			assert_int_equal(rig_write(rig, outside[i].region, outside[i].at, data, outside[i].bytes), -EINVAL);
	}
}

static void test_write_lengths(void **state)
{
	struct {
		struct kvd_vfu_region_access access;
		uint8_t data[8];
	} message = {.access = {.region = BAR4, .count = 8}};
	struct rig *rig = *state;

	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE, &message, sizeof(message)), 0);
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE, &message, sizeof(message) - 1), -EINVAL);
	message.access.count = 7;
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE, &message, sizeof(message)), -EINVAL);
	message.access.count = UINT32_MAX - 7;
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE, &message, sizeof(message)), -EINVAL);
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_READ, &message, sizeof(message)), -EINVAL);
}

/* Mapped or by messages, it is the same memory; other clients have other doorbells, but the card's memory stays. */
static void test_mapped(void **state)
{
	struct rig *rig = *state;
	uint32_t *doorbells = map_region(rig, BAR2, KVD_CARD_BAR2_BYTES);
	uint32_t *ddr = map_region(rig, BAR4, RIG_DDR_BYTES);

	doorbells[16] = 7;
	assert_int_equal(rig_read32(rig, BAR2, 64), 7);
	rig_write32(rig, BAR2, 4, 9);
	assert_int_equal(doorbells[1], 9);
	ddr[RIG_DDR_BYTES / 4 - 1] = 0xabcd;
	assert_int_equal(rig_read32(rig, BAR4, RIG_DDR_BYTES - 4), 0xabcd);
	assert_int_equal(rig_write(rig, BAR4, 3, "hello", 5), 0);
	assert_memory_equal((char *)ddr + 3, "hello", 5);
	/* A reset is one of the registers, not of the memory. */
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	assert_int_equal(doorbells[16], 0);
	assert_memory_equal((char *)ddr + 3, "hello", 5);
	rig_connect(rig);
	rig_hello(rig);
	doorbells[16] = 7;
	assert_int_equal(rig_read32(rig, BAR2, 64), 0);
	assert_int_equal(rig_read32(rig, BAR4, RIG_DDR_BYTES - 4), 0xabcd);
	munmap(doorbells, KVD_CARD_BAR2_BYTES);
	munmap(ddr, RIG_DDR_BYTES);
}

static void test_write_multi(void **state)
{
	struct {
		struct kvd_vfu_write_multi multi;
		struct kvd_vfu_write_one ones[3];
	} message = {
		.multi = {.count = 3},
		.ones = {
			{.offset = 0, .region = BAR4, .count = 4, .data = "abcd"},
			{.offset = 4, .region = BAR4, .count = 8, .data = "efghijkl"},
			{.offset = KVD_ABI_BAR0_TABLES_BYTES_AT, .region = BAR0, .count = 8, .data = {5}},
		},
	};
	struct rig *rig = *state;
	char text[12];

	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), 0);
	assert_int_equal(rig->bytes, 8);
	assert_memory_equal(rig->payload, &message.multi, 8);
	assert_int_equal(rig_read(rig, BAR4, 0, text, sizeof(text)), 0);
	assert_memory_equal(text, "abcdefghijkl", 12);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_TABLES_BYTES_AT), 5);
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message) - 1), -EINVAL);
	message.multi.count = 2;
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), -EINVAL);
	message.multi.count = (UINT64_MAX - 7) / 24 + 4; /* times 24 it is what the message has */
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), -EINVAL);
	message.multi.count = 3;
	message.ones[1].count = 9;
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), -EINVAL);
	message.ones[1] = (struct kvd_vfu_write_one){.region = 77, .count = 4};
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), -EINVAL);
	/* Only who asked for it has it. */
	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, "\0\0\0", 4), 0);
	assert_int_equal(rig_call(rig, KVD_VFU_REGION_WRITE_MULTI, &message, sizeof(message)), -ENOTSUP);
}

/* A device that was not given anything can't be switched on. */
static void test_enable_without_tables(void **state)
{
	struct rig *rig = *state;

	rig_write64(rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT, 0x5000);
	rig_write32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_STATUS_AT),
			 KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_QUIET_MASK | KVD_ABI_BAR0_STATUS_FAULT_MASK);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_SYNDROME_AT), KVD_ABI_SYNDROME_NO_TABLES);
	assert_int_equal(rig_read64(rig, BAR0, KVD_ABI_BAR0_SYNDROME_INFO_AT), 0x5000);
	/* Only a reset leaves this. */
	rig_write32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT, 0);
	assert_true(rig_read32(rig, BAR0, KVD_ABI_BAR0_STATUS_AT) & KVD_ABI_BAR0_STATUS_FAULT_MASK);
	rig_write32(rig, BAR0, KVD_ABI_BAR0_CONTROL_AT, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_STATUS_AT), KVD_ABI_BAR0_STATUS_RESET);
	assert_int_equal(rig_read32(rig, BAR0, KVD_ABI_BAR0_SYNDROME_AT), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_identity), TEST(test_capabilities), TEST(test_writing_registers), TEST(test_odd_accesses),
		TEST(test_write_lengths), TEST(test_mapped), TEST(test_write_multi), TEST(test_enable_without_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
