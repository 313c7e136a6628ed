/* The protocol of vfio-user as a client sees it: what is said to good and to bad messages. */
#include "card_rig.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static int version(struct rig *rig, uint16_t major, uint16_t minor, const char *text)
{
	uint8_t payload[8192] = {0};
	const struct kvd_vfu_version words = {major, minor};
	size_t bytes = text ? strlen(text) + 1 : 0;

	assert_true(bytes <= sizeof(payload) - sizeof(words));
	memcpy(payload, &words, sizeof(words));
	if (text)
		memcpy(payload + sizeof(words), text, bytes);
	return rig_call(rig, KVD_VFU_VERSION, payload, (uint32_t)(sizeof(words) + bytes));
}

static struct kvd_vfu_version answered(const struct rig *rig)
{
	struct kvd_vfu_version words;

	memcpy(&words, rig->payload, sizeof(words));
	return words;
}

static void test_version(void **state)
{
	struct rig *rig = *state;

	/* The lesser minor; only what was proposed. */
	rig_connect(rig);
	assert_int_equal(version(rig, 0, 0, NULL), 0);
	assert_int_equal(answered(rig).major, 0);
	assert_int_equal(answered(rig).minor, 0);
	assert_string_equal((char *)rig->payload + 4, "{\"capabilities\":{}}");
	assert_int_equal(version(rig, 0, 0, NULL), -EINVAL); /* a second time */
	assert_false(rig_hung_up(rig));

	rig_connect(rig);
	assert_int_equal(version(rig, 0, 7,
				 " { \"capabilities\" : {\"max_msg_fds\":16, \"max_data_xfer_size\":1048576,\"pgsizes\":4096,"
				 "\"max_dma_maps\":65535,\"write_multiple\":true,\"migration\":{\"pgsize\":[4096,-1.5e3]}},"
				 "\"other\":[true,false,null,\"a\\\"b\"]}\n"), 0);
	assert_int_equal(answered(rig).minor, KVD_VFU_MINOR);
	assert_string_equal((char *)rig->payload + 4,
			    "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\"max_dma_maps\":32000,"
			    "\"pgsizes\":4096,\"write_multiple\":true}}");
	assert_int_equal(rig->fd_count, 0);
}

static void test_version_refused(void **state)
{
	static const char *const texts[] = {
		"", "{", "{}x", "[]", "{\"capabilities\":3}", "{\"capabilities\":{\"max_msg_fds\":-1}}",
		"{\"capabilities\":{\"max_msg_fds\":1.5}}", "{\"capabilities\":{\"max_msg_fds\":18446744073709551616}}",
		"{\"capabilities\":{\"max_data_xfer_size\":0}}", "{\"capabilities\":{\"write_multiple\":1}}",
		"{\"capabilities\":{\"twin_socket\":true}}", "{\"a\":\"\\", "{\"a\":\"\n\"}", "{\"a\":tru}", "{\"a\":1e}",
		"{\"a\":[[[[[[[[[[1]]]]]]]]]]}", "{\"a\":1,}", "{\"a\" 1}", "{a:1}",
	};
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		rig_connect(rig);
		assert_int_equal(version(rig, 0, 0, texts[i]), -EINVAL);
		assert_true(rig_hung_up(rig));
	}
	rig_connect(rig);
	assert_int_equal(version(rig, 1, 0, NULL), -EPROTONOSUPPORT);
	assert_true(rig_hung_up(rig));
	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, "\0", 1), -EINVAL);
}

static void test_version_not_terminated(void **state)
{
	static const uint8_t open[] = {0, 0, 0, 0, '{', '}'};
	static const uint8_t inner[] = {0, 0, 0, 0, '{', 0, '}', 0};
	struct rig *rig = *state;

	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, open, sizeof(open)), -EINVAL);
	assert_true(rig_hung_up(rig));
	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, inner, sizeof(inner)), -EINVAL);
	assert_true(rig_hung_up(rig));
}

static void test_version_first(void **state)
{
	struct kvd_vfu_device_info info = {.argsz = sizeof(info)};
	struct rig *rig = *state;

	rig_connect(rig);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_INFO, &info, sizeof(info)), -EINVAL);
	assert_true(rig_hung_up(rig));
}

static void test_twin_socket(void **state)
{
	struct rig *rig = *state;
	int type = 0;
	socklen_t bytes = sizeof(type);

	rig_connect(rig);
	assert_int_equal(version(rig, 0, 1, "{\"capabilities\":{\"twin_socket\":{\"supported\":true}}}"), 0);
	assert_string_equal((char *)rig->payload + 4,
			    "{\"capabilities\":{\"twin_socket\":{\"supported\":true,\"fd_index\":0}}}");
	assert_int_equal(rig->fd_count, 1);
	assert_int_equal(getsockopt(rig->fds[0], SOL_SOCKET, SO_TYPE, &type, &bytes), 0);
	assert_int_equal(type, SOCK_STREAM);
	rig_connect(rig);
	assert_int_equal(version(rig, 0, 1, "{\"capabilities\":{\"twin_socket\":{\"supported\":false}}}"), 0);
	assert_int_equal(rig->fd_count, 0);
}

static void test_device_info(void **state)
{
	struct kvd_vfu_device_info info = {.argsz = sizeof(info)};
	struct rig *rig = *state;

	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_INFO, &info, sizeof(info)), 0);
	assert_int_equal(rig->bytes, sizeof(info));
	memcpy(&info, rig->payload, sizeof(info));
	assert_int_equal(info.flags, VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI);
	assert_int_equal(info.regions, VFIO_PCI_NUM_REGIONS);
	assert_int_equal(info.irqs, VFIO_PCI_NUM_IRQS);
	info.argsz = sizeof(info) - 1;
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_INFO, &info, sizeof(info)), -EINVAL);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_INFO, &info, sizeof(info) - 1), -EINVAL);
}

static void test_region_info(void **state)
{
	static const uint64_t bytes[VFIO_PCI_NUM_REGIONS] = {
		[VFIO_PCI_BAR0_REGION_INDEX] = KVD_CARD_BAR0_BYTES,
		[VFIO_PCI_BAR2_REGION_INDEX] = KVD_CARD_BAR2_BYTES,
		[VFIO_PCI_BAR4_REGION_INDEX] = RIG_DDR_BYTES,
		[VFIO_PCI_CONFIG_REGION_INDEX] = KVD_CARD_CONFIG_BYTES,
	};
	struct rig *rig = *state;

	for (uint32_t i = 0; i < VFIO_PCI_NUM_REGIONS; i++) {
		bool mapped = i == VFIO_PCI_BAR2_REGION_INDEX || i == VFIO_PCI_BAR4_REGION_INDEX;
		struct vfio_region_info info = {.argsz = sizeof(info), .index = i};

		/* First with room for the fixed part, as QEMU does. */
		assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), 0);
		assert_int_equal(rig->bytes, sizeof(info));
		assert_int_equal(rig->fd_count, 0);
		memcpy(&info, rig->payload, sizeof(info));
		assert_int_equal(info.index, i);
		assert_int_equal(info.size, bytes[i]);
		assert_int_equal(info.cap_offset, 0);
		assert_int_equal(info.argsz, mapped ? 64 : 32);
		assert_int_equal(info.flags, (bytes[i] ? 3 : 0) | (mapped ? 4 : 0));
		if (!mapped)
			continue;
		info = (struct vfio_region_info){.argsz = info.argsz, .index = i};
		assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), 0);
		assert_int_equal(rig->bytes, 64);
		assert_int_equal(rig->fd_count, 1);
		memcpy(&info, rig->payload, sizeof(info));
		assert_int_equal(info.flags, 15);
		assert_int_equal(info.cap_offset, 32);
		assert_int_equal(*(uint16_t *)(void *)(rig->payload + 32), VFIO_REGION_INFO_CAP_SPARSE_MMAP);
		assert_int_equal(*(uint32_t *)(void *)(rig->payload + 40), 1);
		assert_int_equal(*(uint64_t *)(void *)(rig->payload + 56), bytes[i]);
	}
}

static void test_region_info_refused(void **state)
{
	struct vfio_region_info info = {.argsz = sizeof(info), .index = VFIO_PCI_NUM_REGIONS};
	struct rig *rig = *state;

	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), -EINVAL);
	info.index = UINT32_MAX;
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), -EINVAL);
	info = (struct vfio_region_info){.argsz = sizeof(info) - 1};
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), -EINVAL);
}

static void test_unknown_commands(void **state)
{
	static const uint16_t numbers[] = {
		0, KVD_VFU_DEVICE_GET_REGION_IO_FDS, KVD_VFU_DMA_READ, KVD_VFU_DMA_WRITE, 14, KVD_VFU_DEVICE_FEATURE,
		KVD_VFU_MIG_DATA_READ, KVD_VFU_MIG_DATA_WRITE, 19, UINT16_MAX,
	};
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		assert_int_equal(rig_call(rig, numbers[i], NULL, 0), -ENOTSUP);
}

static void test_headers(void **state)
{
	struct kvd_vfu_header header = {.id = 1, .command = KVD_VFU_DEVICE_RESET, .bytes = sizeof(header)};
	struct kvd_card_stats stats;
	struct rig *rig = *state;
	const uint32_t bad_bytes[] = {0, 15, sizeof(header) + KVD_CARD_PAYLOAD_BYTES_MAX + 1, UINT32_MAX};

	/* A reply that nobody waits for is dropped. */
	header.flags = KVD_VFU_TYPE_REPLY;
	rig_send(rig, &header, sizeof(header), NULL, 0);
	assert_false(rig_hung_up(rig));
	kvd_card_stats(rig->card, &stats);
	assert_int_equal(stats.dropped, 1);
	header.flags = 2;
	rig_send(rig, &header, sizeof(header), NULL, 0);
	assert_true(rig_hung_up(rig));
	header.flags = 0;
	for (size_t i = 0; i < sizeof(bad_bytes) / sizeof(bad_bytes[0]); i++) {
		rig_connect(rig);
		rig_hello(rig);
		header.bytes = bad_bytes[i];
		rig_send(rig, &header, sizeof(header), NULL, 0);
		assert_true(rig_hung_up(rig));
	}
}

static void test_no_reply(void **state)
{
	struct rig *rig = *state;

	rig_command(rig, KVD_VFU_DEVICE_RESET, KVD_VFU_NO_REPLY, NULL, 0, NULL, 0);
	rig_command(rig, KVD_VFU_DEVICE_RESET, KVD_VFU_NO_REPLY, "x", 1, NULL, 0); /* an error is not answered either */
	rig_step(rig);
	assert_false(rig_receive(rig));
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, "x", 1), -EINVAL);
}

/* Messages come in any pieces, and several at once. */
static void test_pieces(void **state)
{
	struct kvd_vfu_header headers[3];
	struct rig *rig = *state;

	for (uint16_t i = 0; i < 3; i++)
		headers[i] = (struct kvd_vfu_header){.id = i, .command = KVD_VFU_DEVICE_RESET, .bytes = 16};
	for (size_t i = 0; i < sizeof(headers); i++) {
		rig_send(rig, (uint8_t *)headers + i, 1, NULL, 0);
		rig_step(rig);
		assert_int_equal(rig_receive(rig), i % 16 == 15);
	}
	rig_send(rig, headers, sizeof(headers), NULL, 0);
	rig_step(rig);
	for (uint16_t i = 0; i < 3; i++) {
		assert_true(rig_receive(rig));
		assert_int_equal(rig->header.id, i);
	}
	assert_false(rig_receive(rig));
}

/* A client that asks and does not read gets no more room than one answer. */
static void test_deaf_client(void **state)
{
	struct kvd_vfu_region_access access = {.region = VFIO_PCI_BAR4_REGION_INDEX, .count = RIG_DDR_BYTES};
	struct rig *rig = *state;
	short events;

	for (int i = 0; i < 4; i++)
		rig_command(rig, KVD_VFU_REGION_READ, 0, &access, sizeof(access), NULL, 0);
	rig_step(rig);
	kvd_card_poll_fd(rig->card, &events);
	assert_true(rig->card->conn.out_sent < rig->card->conn.out_bytes);
	for (int i = 0; i < 4; i++) {
		assert_true(rig_receive(rig));
		assert_int_equal(rig->bytes, sizeof(access) + RIG_DDR_BYTES);
		rig_step(rig);
	}
	assert_false(rig_receive(rig));
}

/* Descriptors that do not belong to a message are closed, whatever is answered. */
static void test_descriptors(void **state)
{
	struct rig *rig = *state;
	int fds[KVD_CARD_FDS_MAX];
	uint32_t before;
	int fd = rig_file(4096);

	for (uint32_t i = 0; i < KVD_CARD_FDS_MAX; i++)
		fds[i] = fd;
	before = rig_open_fds();
	assert_int_equal(rig_call_fds(rig, KVD_VFU_DEVICE_RESET, NULL, 0, fds, 1), -EINVAL);
	assert_int_equal(rig_call_fds(rig, KVD_VFU_DEVICE_RESET, NULL, 0, fds, KVD_CARD_FDS_MAX), -EINVAL);
	assert_int_equal(rig_call_fds(rig, 99, NULL, 0, fds, KVD_CARD_FDS_MAX), -ENOTSUP);
	assert_int_equal(rig_call_fds(rig, KVD_VFU_DEVICE_SET_IRQS, "abc", 3, fds, 2), -EINVAL);
	assert_int_equal(rig_open_fds(), before);
	/* In the middle of a message that never ends. */
	rig_send(rig, "\0\0", 2, fds, 3);
	rig_step(rig);
	assert_int_equal(rig_open_fds(), before + 3);
	rig_connect(rig);
	assert_int_equal(rig_open_fds(), before);
	close(fd);
}

static void test_one_client(void **state)
{
	struct rig *rig = *state;
	int ends[2];
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	assert_int_equal(kvd_card_attach(rig->card, ends[1]), -EBUSY);
	assert_int_equal(recv(ends[0], &byte, 1, 0), 0);
	close(ends[0]);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
}

static void test_bad_configurations(void **state)
{
	struct kvd_card_config config;
	kvd_card *card;

	(void)state;
#define REFUSED(change) \
	do { \
		config = rig_config; \
		change; \
		assert_int_equal(kvd_card_init(&config, &card), -EINVAL); \
	} while (0)
	REFUSED(config.ddr_bytes = RIG_DDR_BYTES / 2);
	REFUSED(config.ddr_bytes = RIG_DDR_BYTES + 4096);
	REFUSED(config.ddr_bytes = KVD_CARD_DDR_BYTES_MAX * 2);
	REFUSED(config.queues = 0);
	REFUSED(config.queues = KVD_CARD_QUEUES_MAX + 1);
	REFUSED(config.depth_max = 1);
	REFUSED(config.depth_max = 48);
	REFUSED(config.depth_max = KVD_CARD_DEPTH_MAX * 2);
	REFUSED(config.fault_count = KVD_CARD_FAULTS_MAX + 1);
	REFUSED(config.fault_count = 1);
#undef REFUSED
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_version), TEST(test_version_refused), TEST(test_version_not_terminated), TEST(test_version_first),
		TEST(test_twin_socket), TEST(test_device_info), TEST(test_region_info), TEST(test_region_info_refused),
		TEST(test_unknown_commands), TEST(test_headers), TEST(test_no_reply), TEST(test_pieces),
		TEST(test_deaf_client), TEST(test_descriptors), TEST(test_one_client),
		cmocka_unit_test(test_bad_configurations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
