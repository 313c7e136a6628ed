/* A host that takes memory away, gives wrong addresses or wrong tables while the card works on them. */
#include "card_host.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAR0 VFIO_PCI_BAR0_REGION_INDEX

enum {
	NOISE_ROUNDS = 2000,
	NOISE_COMMANDS = 40, /* of a round, at most */
	NOISE_WORDS = 12, /* that are changed in a round */
};

static struct kvd_abi_cpl translate(struct host *host, uint64_t session, uint64_t buffer, uint64_t bytes)
{
	return host_call(host, (struct kvd_abi_cmd){
		.id = 5, .op = KVD_ABI_OP_TRANSLATE, .session = session, .count = 100, .buffer = buffer, .buffer_bytes = bytes,
	});
}

static void test_bad_addresses(void **state)
{
	static const uint64_t wrong[] = {
		8, HOST_RINGS_IOVA + HOST_RINGS_BYTES - 8, HOST_RINGS_IOVA - 8, UINT64_MAX - 63, 1ull << 40, (1ull << 62) - 32,
	};
	struct host *host = *state;
	uint64_t session;
	int fd = rig_file(4096);

	host_enable(host);
	session = host_session(host, 1);
	assert_int_equal(host_map(host, session, 0, 4).status, KVD_ABI_STATUS_OK);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct kvd_abi_cpl cpl = translate(host, session, wrong[i], 32);

		assert_int_equal(cpl.status, KVD_ABI_STATUS_BAD_ADDRESS);
		assert_int_equal(cpl.result0, wrong[i]);
	}
	/* Readable is not writable. */
	assert_int_equal(rig_map(&host->rig, 0, 4096, KVD_VFU_DMA_F_READ, fd, 0), 0);
	assert_int_equal(translate(host, session, 0x100, 32).status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_FAULTS_AT), sizeof(wrong) / sizeof(wrong[0]) + 1);
	/* And it goes on. */
	assert_int_equal(translate(host, session, host_buffer_iova(), 32).status, KVD_ABI_STATUS_OK);
	close(fd);
}

/* A buffer without a descriptor is fetched before the command and brought back after it. */
static void test_buffer_by_messages(void **state)
{
	struct host *host = *state;
	struct rig *rig = &host->rig;
	const uint64_t iova = 0x5000;
	struct {
		struct kvd_vfu_header header;
		struct kvd_vfu_dma_access access;
		uint8_t data[32];
	} answer = {.access = {iova, 32}};
	struct kvd_abi_cpl cpl;
	const uint64_t far = rig->card->dma.window_bytes - (4 << 20);
	uint64_t session;

	host_enable(host);
	session = host_session(host, 1);
	assert_int_equal(host_map(host, session, 3, 4).status, KVD_ABI_STATUS_OK);
	assert_int_equal(rig_map(rig, iova, 4096, KVD_VFU_DMA_F_READ | KVD_VFU_DMA_F_WRITE, -1, 0), 0);
	/* The answers are there before they are asked for. */
	answer.header = (struct kvd_vfu_header){1, KVD_VFU_DMA_READ, sizeof(answer), KVD_VFU_TYPE_REPLY, 0};
	rig_send(rig, &answer, sizeof(answer), NULL, 0);
	answer.header = (struct kvd_vfu_header){2, KVD_VFU_DMA_WRITE, sizeof(answer) - 32, KVD_VFU_TYPE_REPLY, 0};
	rig_send(rig, &answer, sizeof(answer) - 32, NULL, 0);
	assert_int_equal(translate(host, session, iova, 32).status, KVD_ABI_STATUS_OK);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DMA_READ);
	assert_true(rig_receive(rig));
	assert_int_equal(rig->header.command, KVD_VFU_DMA_WRITE);
	assert_int_equal(((struct kvd_abi_run *)(void *)(rig->payload + 16))->first_page, 3);
	assert_int_equal(((struct kvd_abi_run *)(void *)(rig->payload + 16))->count, 4);
	/* What can't be brought back is no success. */
	answer.header = (struct kvd_vfu_header){3, KVD_VFU_DMA_READ, sizeof(answer), KVD_VFU_TYPE_REPLY, 0};
	rig_send(rig, &answer, sizeof(answer), NULL, 0);
	answer.header = (struct kvd_vfu_header){4, KVD_VFU_DMA_WRITE, 16, KVD_VFU_TYPE_REPLY | KVD_VFU_ERROR, EIO};
	rig_send(rig, &answer.header, 16, NULL, 0);
	cpl = translate(host, session, iova, 32);
	assert_int_equal(cpl.status, KVD_ABI_STATUS_BAD_ADDRESS);
	assert_int_equal(cpl.result0, iova);
	assert_true(rig_receive(rig) && rig_receive(rig));
	/* More than the card keeps is out of reach. */
	assert_int_equal(rig_map(rig, far, 4 << 20, 3, -1, 0), 0);
	assert_int_equal(translate(host, session, far, 4 << 20).status, KVD_ABI_STATUS_BAD_ADDRESS);
}

/* The client takes a mapping away in good order: the engine has left the tables before it is gone. */
static void test_unmap_tables(void **state)
{
	struct host *host = *state;

	host_enable(host);
	(void)host_session(host, 1);
	assert_int_equal(rig_unmap(&host->rig, HOST_TABLES_IOVA, HOST_TABLES_BYTES, 0), 0);
	host_stopped(host, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
	host_check(host, true);
}

static void test_unmap_rings(void **state)
{
	struct host *host = *state;

	host_enable(host);
	(void)host_session(host, 1);
	assert_int_equal(rig_unmap(&host->rig, HOST_RINGS_IOVA, HOST_RINGS_BYTES, 0), 0);
	host_stopped(host, KVD_ABI_SYNDROME_DMA_FAULT, HOST_RINGS_IOVA);
	host_check(host, true);
}

static void test_unmap_all(void **state)
{
	struct host *host = *state;

	host_enable(host);
	assert_int_equal(rig_unmap(&host->rig, 0, 0, VFIO_DMA_UNMAP_FLAG_ALL), 0);
	host_stopped(host, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
	host_check(host, true);
}

static void test_bus_master_off(void **state)
{
	struct host *host = *state;

	host_enable(host);
	rig_bus_master(&host->rig, false);
	host_stopped(host, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
	host_check(host, true);
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	assert_int_equal(host_syndrome(host), KVD_ABI_SYNDROME_DMA_FAULT);
}

/* The client leaves in the middle of everything. */
static void test_leaving(void **state)
{
	struct host *host = *state;

	host_enable(host);
	(void)host_session(host, 1);
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 2});
	host_ring(host, 0);
	rig_connect(&host->rig);
	assert_false(kvd_card_work(host->rig.card));
	host_check(host, true);
}

/* Files that are cut under the card. */
static void test_cut_tables(void **state)
{
	struct host *host = *state;
	struct kvd_abi_cpl cpl;

	RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT();
	host_enable(host);
	(void)host_session(host, 1);
	assert_int_equal(ftruncate(host->tables_fd, 0), 0);
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 2});
	host_ring(host, 0);
	host_work(host);
	assert_false(host_take(host, 0, &cpl));
	assert_int_equal(host_syndrome(host), KVD_ABI_SYNDROME_DMA_FAULT);
	assert_in_range(rig_read64(&host->rig, BAR0, KVD_ABI_BAR0_SYNDROME_INFO_AT), HOST_TABLES_IOVA,
			HOST_TABLES_IOVA + HOST_TABLES_BYTES - 1);
	/* And again at the beginning. */
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
}

static void test_cut_rings(void **state)
{
	struct host *host = *state;

	RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT();
	host_enable(host);
	(void)host_session(host, 1);
	host_put(host, 0, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 2});
	host_ring(host, 0);
	assert_int_equal(ftruncate(host->rings_fd, 0), 0);
	host_work(host);
	host_stopped(host, KVD_ABI_SYNDROME_DMA_FAULT, HOST_RINGS_IOVA + sizeof(struct kvd_abi_cmd));
	host_check(host, true); /* no command was underway */
}

static void test_cut_buffer(void **state)
{
	struct host *host = *state;
	int fd = rig_file(4096);
	uint64_t session;

	RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT();
	host_enable(host);
	session = host_session(host, 1);
	assert_int_equal(host_map(host, session, 0, 4).status, KVD_ABI_STATUS_OK);
	assert_int_equal(rig_map(&host->rig, 0x7000, 4096, 3, fd, 0), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	host_put(host, 0, (struct kvd_abi_cmd){
		.op = KVD_ABI_OP_TRANSLATE, .session = session, .count = 9, .buffer = 0x7000, .buffer_bytes = 64,
	});
	host_ring(host, 0);
	host_work(host);
	host_stopped(host, KVD_ABI_SYNDROME_DMA_FAULT, 0x7000);
	/* A command was left in the middle, so whoever comes next must recover. */
	host_check(host, false);
	close(fd);
}

static void put_head(struct host *host, size_t offset, const void *data, size_t bytes, enum kvd_abi_syndrome syndrome,
		     uint64_t info)
{
	struct kvd_abi_table_head head;

	assert_int_equal(pread(host->tables_fd, &head, sizeof(head), 0), sizeof(head));
	assert_int_equal(pwrite(host->tables_fd, data, bytes, (off_t)offset), bytes);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, syndrome, info);
	assert_int_equal(pwrite(host->tables_fd, &head, sizeof(head), 0), sizeof(head));
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
}

static void test_wrong_heads(void **state)
{
	const uint64_t zero = 0, big = HOST_TABLES_BYTES + 4096;
	const uint32_t version = 77;
	struct host *host = *state;

	put_head(host, offsetof(struct kvd_abi_table_head, magic), &zero, 8, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
	put_head(host, offsetof(struct kvd_abi_table_head, version), &version, 4, KVD_ABI_SYNDROME_BAD_VERSION, version);
	put_head(host, offsetof(struct kvd_abi_table_head, arena_bytes), &big, 8, KVD_ABI_SYNDROME_NO_TABLES,
		 HOST_TABLES_IOVA);
	put_head(host, offsetof(struct kvd_abi_table_head, heap_at), &zero, 8, KVD_ABI_SYNDROME_NO_TABLES,
		 HOST_TABLES_IOVA);
	put_head(host, offsetof(struct kvd_abi_table_head, in_use), &(uint64_t){1}, 8, KVD_ABI_SYNDROME_BAD_TABLES, 0);
	/* Less than the tables are. */
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TABLES_BYTES_AT, HOST_TABLES_BYTES / 2);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	host_stopped(host, KVD_ABI_SYNDROME_NO_TABLES, HOST_TABLES_IOVA);
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	host_describe(host, false);
	rig_write64(&host->rig, BAR0, KVD_ABI_BAR0_TABLES_ADDRESS_AT, HOST_TABLES_IOVA + 8);
	host_control(host, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	assert_int_equal(host_syndrome(host), KVD_ABI_SYNDROME_NO_TABLES);
}

/* splitmix64 */
static uint64_t draw(void)
{
	static uint64_t at = 1;
	uint64_t mixed = at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

static struct kvd_abi_cmd noise_command(const struct host *host, uint64_t session)
{
	const uint64_t places[] = {host_buffer_iova(), host_buffer_iova() + 8 * (draw() % 512), draw(), HOST_TABLES_IOVA};

	(void)host;
	return (struct kvd_abi_cmd){
		.id = (uint32_t)draw(),
		.op = (uint16_t)(draw() % (KVD_ABI_OP_COUNT + 1)),
		.flags = (uint16_t)(draw() % 2 ? 0 : draw() % 64),
		.session = draw() % 4 ? session : draw(),
		.slot = (uint16_t)(draw() % 9),
		.other_slot = (uint16_t)(draw() % 9),
		.tier = (uint32_t)(draw() % 6),
		.first_page = draw() % 64,
		.count = draw() % 8 ? draw() % 64 : draw(),
		.key = draw() % 4 ? session : draw() % 16,
		.buffer = places[draw() % 4],
		.buffer_bytes = draw() % 4096,
	};
}

/* Buffers of commands: transfers that could be, or anything. */
static void fill_buffer(struct host *host)
{
	uint64_t *words = host_buffer(host);
	struct kvd_abi_transfer transfer = {
		.host = host_buffer_iova() + 8 * (draw() % 64), .host_bytes = draw() % 300000,
		.scales = host_buffer_iova() + 0x10000, .scales_bytes = draw() % 4096, .page_offset = draw() % 4096,
		.tokens = (uint32_t)(draw() % 100), .channels = (uint32_t)(draw() % 100),
		.host_format = (uint16_t)(draw() % 7), .page_format = (uint16_t)(draw() % 7), .scaling = (uint16_t)(draw() % 4),
	};

	for (uint32_t i = 0; i < 64; i++)
		words[i] = draw() % 4 ? draw() % 64 : draw();
	if (draw() % 2)
		memcpy(words, &transfer, sizeof(transfer));
}

/* A word of what is used of the tables: of the head, of the sessions and the hash, of the heap. */
static uint64_t draw_place(const struct kvd_abi_table_head *good)
{
	const uint64_t starts[] = {0, good->sessions_at, good->heap_at};
	const uint64_t bytes[] = {sizeof(*good), 4096, good->heap_next - good->heap_at};
	uint64_t part = draw() % 3;

	return (starts[part] + draw() % bytes[part]) / sizeof(uint64_t);
}

/* Change words of tables that are in use, mostly to what others of them hold. */
static void spoil(uint64_t *tables, const struct kvd_abi_table_head *good)
{
	for (uint32_t i = 0; i < NOISE_WORDS; i++) {
		uint64_t at = draw_place(good);

		switch (draw() % 4) {
		case 0:
			tables[at] = draw();
			break;
		case 1:
			tables[at] = tables[draw_place(good)];
			break;
		case 2:
			tables[at] ^= 1ull << draw() % 64;
			break;
		default:
			tables[at] = draw() % 64;
		}
	}
}

/* Tables of noise under a working engine: whatever it answers, the card lives, and takes good tables again. */
static void test_noise_in_tables(void **state)
{
	struct host *host = *state;
	uint64_t *tables = mmap(NULL, HOST_TABLES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, host->tables_fd, 0);
	uint8_t *good = malloc(HOST_TABLES_BYTES);
	uint32_t seen[KVD_ABI_STATUS_COUNT] = {0};
	struct kvd_abi_cpl cpl;
	uint64_t session, used;

	assert_ptr_not_equal(tables, MAP_FAILED);
	assert_non_null(good);
	host_enable(host);
	session = host_session(host, 1);
	for (uint64_t i = 0; i < 8; i++)
		assert_int_equal(host_map(host, session, 64 * i, 30).status, KVD_ABI_STATUS_OK);
	host_control(host, 0);
	memcpy(good, tables, HOST_TABLES_BYTES);
	used = ((const struct kvd_abi_table_head *)(const void *)good)->heap_next;
	for (uint32_t round = 0; round < NOISE_ROUNDS; round++) {
		host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
		memcpy(tables, good, used);
		host_describe(host, false);
		host_enable(host);
		for (uint32_t i = 0; i < NOISE_COMMANDS && kvd_card_enabled(host->rig.card); i++) {
			if (i % 8 == 0)
				spoil(tables, (const void *)good);
			fill_buffer(host);
			host_put(host, 0, noise_command(host, session));
			host_ring(host, 0);
			host_work(host);
			while (host_take(host, 0, &cpl)) {
				assert_true(cpl.status < KVD_ABI_STATUS_COUNT);
				seen[cpl.status]++;
			}
		}
	}
	/* It was not all refused. */
	assert_true(seen[KVD_ABI_STATUS_OK] > NOISE_ROUNDS);
	host_control(host, KVD_ABI_BAR0_CONTROL_RESET_MASK);
	memcpy(tables, good, HOST_TABLES_BYTES);
	host_describe(host, false);
	host_enable(host);
	assert_int_equal(translate(host, session, host_buffer_iova(), 4096).status, KVD_ABI_STATUS_OK);
	host_control(host, 0);
	host_check(host, true);
	munmap(tables, HOST_TABLES_BYTES);
	free(good);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, host_setup, host_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_bad_addresses), TEST(test_buffer_by_messages), TEST(test_unmap_tables), TEST(test_unmap_rings),
		TEST(test_unmap_all), TEST(test_bus_master_off), TEST(test_leaving), TEST(test_cut_tables), TEST(test_cut_rings),
		TEST(test_cut_buffer), TEST(test_wrong_heads), TEST(test_noise_in_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
