/* DMA to memory without a descriptor: by messages. The client's answers are sent before they are asked for. */
#include "card_rig.h"

#include <errno.h>
#include <unistd.h>

#define PAGE 4096ull
#define R KVD_VFU_DMA_F_READ
#define W KVD_VFU_DMA_F_WRITE
#define IOVA 0x100000ull

enum {
	PIECE = KVD_CARD_DMA_PIECE_BYTES,
	TAIL = 100, /* bytes of a last, short piece */
};

static uint8_t expected(uint64_t iova)
{
	return (uint8_t)(iova * 7 + (iova >> 12));
}

/* Say what DMA_READ or DMA_WRITE number `id` of the card will be answered. */
static void answer(struct rig *rig, uint16_t id, uint16_t command, uint64_t iova, uint32_t count, uint32_t flags,
		   uint32_t data_bytes)
{
	struct kvd_vfu_dma_access access = {.iova = iova, .count = count};
	uint32_t bytes = flags & KVD_VFU_ERROR ? 0 : (uint32_t)sizeof(access) + data_bytes;
	struct kvd_vfu_header header = {
		.id = id,
		.command = command,
		.bytes = (uint32_t)sizeof(header) + bytes,
		.flags = KVD_VFU_TYPE_REPLY | flags,
	};
	uint8_t *message = malloc(sizeof(header) + sizeof(access) + data_bytes);

	assert_non_null(message);
	memcpy(message, &header, sizeof(header));
	memcpy(message + sizeof(header), &access, sizeof(access));
	for (uint32_t i = 0; i < data_bytes; i++)
		message[sizeof(header) + sizeof(access) + i] = expected(iova + i);
	rig_send(rig, message, header.bytes, NULL, 0);
	free(message);
}

/* Take what the card asked. */
static struct kvd_vfu_dma_access asked(struct rig *rig, uint16_t command)
{
	struct kvd_vfu_dma_access access;

	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, command);
	assert_int_equal(rig->header.flags, KVD_VFU_TYPE_COMMAND);
	assert_true(rig->bytes >= sizeof(access));
	memcpy(&access, rig->payload, sizeof(access));
	return access;
}

static int setup(void **state)
{
	struct rig *rig;

	rig_setup(state);
	rig = *state;
	rig_bus_master(rig, true);
	assert_int_equal(rig_map(rig, IOVA, 64 * PAGE, R | W, -1, 0), 0);
	return 0;
}

static void test_read(void **state)
{
	static uint8_t data[PIECE + TAIL];
	struct rig *rig = *state;
	struct kvd_vfu_dma_access access;

	answer(rig, 1, KVD_VFU_DMA_READ, IOVA + 8, PIECE, 0, PIECE);
	answer(rig, 2, KVD_VFU_DMA_READ, IOVA + 8 + PIECE, TAIL, 0, TAIL);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA + 8, data, sizeof(data), false), 0);
	for (size_t i = 0; i < sizeof(data); i++)
		assert_int_equal(data[i], expected(IOVA + 8 + i));
	access = asked(rig, KVD_VFU_DMA_READ);
	assert_int_equal(access.iova, IOVA + 8);
	assert_int_equal(access.count, PIECE);
	access = asked(rig, KVD_VFU_DMA_READ);
	assert_int_equal(access.iova, IOVA + 8 + PIECE);
	assert_int_equal(access.count, TAIL);
	/* Never for tables: they are walked where they are. */
	assert_null(kvd_card_dma(rig->card, IOVA, 8, false));
}

static void test_write(void **state)
{
	struct rig *rig = *state;
	uint8_t data[TAIL];
	struct kvd_vfu_dma_access access;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = expected(i);
	answer(rig, 1, KVD_VFU_DMA_WRITE, IOVA, TAIL, 0, 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), true), 0);
	access = asked(rig, KVD_VFU_DMA_WRITE);
	assert_int_equal(access.iova, IOVA);
	assert_int_equal(access.count, TAIL);
	assert_int_equal(rig->bytes, sizeof(access) + TAIL);
	assert_memory_equal(rig->payload + sizeof(access), data, TAIL);
}

/* A range over both kinds of memory. */
static void test_mixed(void **state)
{
	struct rig *rig = *state;
	uint8_t data[16];
	int fd = rig_file(PAGE);
	uint8_t byte = 0x77;

	assert_int_equal(pwrite(fd, &byte, 1, PAGE - 1), 1);
	assert_int_equal(rig_map(rig, IOVA - PAGE, PAGE, R | W, fd, 0), 0);
	answer(rig, 1, KVD_VFU_DMA_READ, IOVA, 8, 0, 8);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA - 8, data, sizeof(data), false), 0);
	assert_int_equal(data[7], 0x77);
	assert_int_equal(data[8], expected(IOVA));
	close(fd);
}

static void test_not_allowed(void **state)
{
	struct rig *rig = *state;
	uint8_t data[8];

	assert_int_equal(rig_map(rig, 0, PAGE, R, -1, 0), 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, 0, data, sizeof(data), true), -EFAULT);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA + 64 * PAGE - 4, data, sizeof(data), false), -EFAULT);
	rig_bus_master(rig, false);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EFAULT);
	assert_false(rig_receive(rig)); /* nothing was asked */
}

/* An error is an answer, and so is a count that is not what was asked for: this transfer fails, the client stays. */
static void test_error_answers(void **state)
{
	struct rig *rig = *state;
	uint8_t data[64];

	answer(rig, 1, KVD_VFU_DMA_READ, IOVA, 64, KVD_VFU_ERROR, 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EIO);
	answer(rig, 2, KVD_VFU_DMA_READ, IOVA, 32, 0, 32);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EIO);
	answer(rig, 3, KVD_VFU_DMA_READ, IOVA, 64, 0, 32);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EIO);
	answer(rig, 4, KVD_VFU_DMA_READ, IOVA + 8, 64, 0, 64);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EIO);
	/* Of an earlier command, late: passed over. */
	answer(rig, 1, KVD_VFU_DMA_READ, IOVA, 64, 0, 64);
	answer(rig, 5, KVD_VFU_DMA_READ, IOVA, 64, 0, 64);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), 0);
	assert_false(rig_hung_up(rig));
}

static void test_wrong_answer(void **state)
{
	struct rig *rig = *state;
	uint8_t data[8];

	answer(rig, 1, KVD_VFU_DMA_WRITE, IOVA, 8, 0, 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EPROTO);
	assert_true(rig_hung_up(rig));
}

static void test_no_answer(void **state)
{
	struct rig *rig = *state;
	uint8_t data[8];
	int64_t before_ms = kvd_card_now_ms();

	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -ETIMEDOUT);
	assert_true(kvd_card_now_ms() - before_ms >= KVD_CARD_DMA_DEADLINE_MS);
	assert_true(kvd_card_now_ms() - before_ms < 10 * KVD_CARD_DMA_DEADLINE_MS);
	assert_true(rig_hung_up(rig));
}

static void test_client_leaves(void **state)
{
	struct rig *rig = *state;
	uint8_t data[8];

	close(rig->fd);
	rig->fd = -1;
	assert_true(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false) < 0);
	rig_step(rig);
	assert_false(kvd_card_attached(rig->card));
}

/* Commands that come while the card waits are executed after it, in their order. */
static void test_commands_between(void **state)
{
	struct rig *rig = *state;
	uint8_t data[8];
	int fd = rig_file(PAGE);
	struct kvd_vfu_dma_map map = {sizeof(map), R, 0, 0, PAGE};
	struct kvd_vfu_dma_unmap unmap = {sizeof(unmap), 0, 0, PAGE};

	rig_command(rig, KVD_VFU_DMA_MAP, 0, &map, sizeof(map), &fd, 1);
	rig_command(rig, KVD_VFU_DMA_UNMAP, 0, &unmap, sizeof(unmap), NULL, 0);
	answer(rig, 1, KVD_VFU_DMA_READ, IOVA, 8, 0, 8);
	rig_command(rig, KVD_VFU_DEVICE_RESET, 0, NULL, 0, NULL, 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), 0);
	assert_int_equal(rig->card->dma.count, 1);
	(void)asked(rig, KVD_VFU_DMA_READ);
	assert_false(rig_receive(rig));
	rig_step(rig);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DMA_MAP);
	assert_int_equal(rig->header.flags, KVD_VFU_TYPE_REPLY);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DMA_UNMAP);
	assert_int_equal(rig->header.flags, KVD_VFU_TYPE_REPLY);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DEVICE_RESET);
	close(fd);
}

/* They are bounded. */
static void test_too_many_between(void **state)
{
	struct rig *rig = *state;
	uint32_t before = rig_open_fds();
	uint8_t data[8];
	int fd = rig_file(PAGE);

	for (int i = 0; i <= KVD_CARD_DEFERRED_MAX; i++)
		rig_command(rig, KVD_VFU_DEVICE_RESET, 0, NULL, 0, &fd, 1);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -ENOBUFS);
	assert_true(rig_hung_up(rig));
	close(fd);
	assert_int_equal(rig_open_fds(), before - 2); /* the card's socket and doorbells are gone as well */
}

static void test_twin_socket(void **state)
{
	static const uint8_t hello[] = "\0\0\1\0{\"capabilities\":{\"twin_socket\":{\"supported\":true}}}";
	struct rig *rig = *state;
	uint8_t data[8];
	int main_fd;

	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, hello, sizeof(hello)), 0);
	assert_int_equal(rig->fd_count, 1);
	main_fd = rig->fd;
	rig->fd = rig->fds[0];
	rig->fd_count = 0;
	{
		int twin_fd = rig->fd;

		rig->fd = main_fd;
		rig_bus_master(rig, true);
		assert_int_equal(rig_map(rig, IOVA, PAGE, R | W, -1, 0), 0);
		rig->fd = twin_fd;
	}
	answer(rig, 1, KVD_VFU_DMA_READ, IOVA, 8, 0, 8);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), 0);
	assert_int_equal(data[0], expected(IOVA));
	(void)asked(rig, KVD_VFU_DMA_READ);
	/* A command has no business there. */
	rig_command(rig, KVD_VFU_DEVICE_RESET, 0, NULL, 0, NULL, 0);
	assert_int_equal(kvd_card_dma_copy(rig->card, IOVA, data, sizeof(data), false), -EPROTO);
	close(rig->fd);
	rig->fd = main_fd;
	assert_true(rig_hung_up(rig));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_read), TEST(test_write), TEST(test_mixed), TEST(test_not_allowed), TEST(test_error_answers),
		TEST(test_wrong_answer), TEST(test_no_answer), TEST(test_client_leaves), TEST(test_commands_between),
		TEST(test_too_many_between), TEST(test_twin_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
