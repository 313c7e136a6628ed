/* What GATHER and SCATTER refuse, with nothing written: descriptions, sizes, addresses, pages. */
#include "test_engine_transfer.h"

#define HOST_BYTES 4096u
#define UNTOUCHED 0x5a

static unsigned char host[HOST_BYTES];
static unsigned char scales[HOST_BYTES];

static struct kvd_abi_transfer raw(uint64_t bytes)
{
	return (struct kvd_abi_transfer){.host = (uintptr_t)host, .host_bytes = bytes};
}

/* 70 tokens of 3 channels, FP16 at the host, E4M3 in the pages: two blocks. */
static struct kvd_abi_transfer narrowing(void)
{
	return (struct kvd_abi_transfer){
		.host = (uintptr_t)host,
		.host_bytes = 70 * 3 * 2,
		.scales = (uintptr_t)scales,
		.scales_bytes = 2 * 3 * 4,
		.tokens = 70,
		.channels = 3,
		.host_format = KVD_ABI_FORMAT_FP16,
		.page_format = KVD_ABI_FORMAT_E4M3,
		.scaling = KVD_ABI_SCALING_FP32_BLOCKS,
	};
}

/* Each byte has this value: the first one has, and each other one is like the one before it. */
static void assert_all(const unsigned char *bytes, size_t count, unsigned char value)
{
	assert_int_equal(bytes[0], value);
	assert_memory_equal(bytes, bytes + 1, count - 1);
}

/* Both directions refuse it, and write nothing. */
static void assert_refused(const struct rig *rig, uint64_t first, uint64_t count, const struct kvd_abi_transfer *transfer,
			   uint32_t status, uint64_t result0)
{
	for (uint16_t op = KVD_ABI_OP_GATHER; op <= KVD_ABI_OP_SCATTER; op++) {
		struct test_reply reply;

		memset(host, UNTOUCHED, sizeof(host));
		memset(scales, UNTOUCHED, sizeof(scales));
		reply = rig_submit(rig, op, first, count, transfer);
		assert_int_equal(reply.status, status);
		assert_int_equal(reply.result0, result0);
		assert_all(host, sizeof(host), UNTOUCHED);
		assert_all(scales, sizeof(scales), UNTOUCHED);
		assert_all(rig->memory, RIG_FRAMES * RIG_PAGE, 0);
	}
}

static void assert_bad(const struct rig *rig, struct kvd_abi_transfer transfer)
{
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_BAD_ARGUMENT, 0);
}

#define BAD(base, ...)                                                                                                 \
	do {                                                                                                           \
		struct kvd_abi_transfer it = base;                                                                     \
		__VA_ARGS__;                                                                                           \
		assert_bad(rig, it);                                                                                   \
	} while (0)

static void test_descriptions(void **state)
{
	struct rig *rig = rig_new();

	(void)state;
	BAD(raw(8), it.reserved = 1);
	BAD(raw(8), it.host_format = KVD_ABI_FORMAT_COUNT);
	BAD(raw(8), it.page_format = KVD_ABI_FORMAT_COUNT);
	BAD(raw(8), it.page_format = UINT16_MAX);
	BAD(raw(8), it.scaling = KVD_ABI_SCALING_COUNT);
	BAD(raw(8), it.scaling = KVD_ABI_SCALING_FP16_BLOCKS);
	BAD(raw(8), it.scales = 8);
	BAD(raw(8), it.scales_bytes = 8);
	BAD(raw(8), it.tokens = 1);
	BAD(raw(8), it.channels = 1);
	BAD(raw(8), it.page_format = KVD_ABI_FORMAT_INT8);
	BAD(narrowing(), it.host_format = KVD_ABI_FORMAT_RAW);
	BAD(narrowing(), it.page_format = KVD_ABI_FORMAT_RAW);
	BAD(narrowing(), it.page_format = KVD_ABI_FORMAT_BF16);
	BAD(narrowing(), it.host_format = KVD_ABI_FORMAT_INT8);
	BAD(narrowing(), it.scaling = KVD_ABI_SCALING_NONE);
	rig_end(rig);
}

static void test_sizes(void **state)
{
	struct rig *rig = rig_new();
	struct kvd_abi_transfer transfer;

	(void)state;
	BAD(raw(2 * RIG_PAGE + 1), (void)0);
	BAD(raw(UINT64_MAX), (void)0);
	BAD(raw(1), it.page_offset = UINT64_MAX);
	BAD(raw(1), it.page_offset = 2 * RIG_PAGE);
	BAD(raw(2), it.page_offset = 2 * RIG_PAGE - 1);
	BAD(raw(2), it.host = UINT64_MAX - 1);
	BAD(narrowing(), it.tokens = UINT32_MAX; it.channels = UINT32_MAX; it.host_bytes = UINT64_MAX);
	BAD(narrowing(), it.tokens = 1u << 31; it.channels = 1u << 31; it.page_offset = 1ull << 63);
	BAD(narrowing(), it.tokens = 2 * RIG_PAGE / 3 + 1);
	BAD(narrowing(), it.host = UINT64_MAX - 1);
	BAD(narrowing(), it.scales = UINT64_MAX - 1);
	/* The scales lie in the array. */
	BAD(narrowing(), it.scales = it.host + 400);
	transfer = raw(1);
	assert_refused(rig, KVD_PAGES_MAX, 1, &transfer, KVD_ABI_STATUS_BAD_ARGUMENT, 0);
	assert_refused(rig, 0, 0, &transfer, KVD_ABI_STATUS_BAD_ARGUMENT, 0);
	/* The range is cut at the last page, which is not mapped. */
	assert_refused(rig, KVD_PAGES_MAX - 1, UINT64_MAX, &transfer, KVD_ABI_STATUS_NOT_MAPPED, 0);
	transfer = narrowing();
	transfer.host_bytes--;
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_BUFFER_SMALL, 420);
	transfer = narrowing();
	transfer.scales_bytes--;
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_BUFFER_SMALL, 24);
	/* Nothing is nothing. */
	transfer = raw(0);
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_OK, 0);
	transfer = narrowing();
	transfer.channels = 0;
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_OK, 0);
	transfer = narrowing();
	transfer.tokens = 0;
	assert_refused(rig, 0, 2, &transfer, KVD_ABI_STATUS_OK, 0);
	rig_end(rig);
}

static void test_commands(void **state)
{
	struct rig *rig = rig_new();
	struct kvd_abi_transfer transfer = raw(8);
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_GATHER,
				  .session = rig->session,
				  .slot = RIG_SLOT,
				  .count = 2,
				  .buffer = (uintptr_t)&transfer,
				  .buffer_bytes = sizeof(transfer) - 1};

	(void)state;
	assert_status(submit_one(rig->engine, cmd), KVD_ABI_STATUS_BUFFER_SMALL);
	cmd.buffer_bytes = sizeof(transfer);
	cmd.flags = 1;
	assert_status(submit_one(rig->engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.flags = 0;
	cmd.slot = KVD_ENGINE_SLOTS_MAX;
	assert_status(submit_one(rig->engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.slot = RIG_SLOT;
	cmd.session++;
	assert_status(submit_one(rig->engine, cmd), KVD_ABI_STATUS_NO_SESSION);
	cmd.session--;
	cmd.buffer += 4;
	assert_status(submit_one(rig->engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	rig_end(rig);
}

/* One hole, one page elsewhere, at the end of the array: nothing of what comes before is moved. */
static void test_pages(void **state)
{
	struct rig *rig = rig_new();
	struct kvd_abi_transfer transfer = raw(3 * RIG_PAGE);
	unsigned char *large = malloc(3 * RIG_PAGE);

	(void)state;
	assert_non_null(large);
	transfer.host = (uintptr_t)large;
	assert_ok(unmap(rig->engine, rig->session, RIG_SLOT, 2, 1));
	assert_refused(rig, 0, 3, &transfer, KVD_ABI_STATUS_NOT_MAPPED, 0);
	assert_ok(map(rig->engine, rig->session, RIG_SLOT, KVD_ABI_TIER_NVME, 2, 1, 1));
	assert_refused(rig, 0, 3, &transfer, KVD_ABI_STATUS_NO_MEMORY, 0);
	assert_ok(remap(rig->engine, rig->session, RIG_SLOT, 0, KVD_ABI_TIER_DDR, 2, 1, 0));
	/* Memory that ends before the frame of the page, or in it. */
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_DDR, (uintptr_t)rig->memory,
						kvd_pte_frame(pte_of(rig->engine, rig->session, RIG_SLOT, 2)) * RIG_PAGE +
							RIG_PAGE - 1), 0);
	assert_refused(rig, 0, 3, &transfer, KVD_ABI_STATUS_NO_MEMORY, 0);
	/* The host's side is in the pages themselves. */
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_DDR, (uintptr_t)rig->memory, RIG_FRAMES * RIG_PAGE), 0);
	transfer.host = (uintptr_t)rig_page(rig, 1) - 1;
	transfer.host_bytes = 2;
	assert_refused(rig, 0, 3, &transfer, KVD_ABI_STATUS_OK, 2);
	transfer.page_offset = RIG_PAGE;
	assert_refused(rig, 0, 3, &transfer, KVD_ABI_STATUS_BAD_ARGUMENT, 0);
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_NONE, 0, 1), -EINVAL);
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_COUNT, 0, 1), -EINVAL);
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_DDR, UINT64_MAX, 1), -EINVAL);
	free(large);
	rig_end(rig);
}

/* Scales that are given are looked at before a value is decoded: the bad one is the last of all, in another frame. */
static void test_scales_that_are_given(void **state)
{
	struct rig *rig = rig_new();
	struct kvd_abi_transfer transfer = narrowing();
	float bad[] = {0.0f, -1.0f, __builtin_nanf(""), __builtin_inff(), 0x1p-123f};

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(bad) / sizeof(bad[0]); i++) {
		float six[] = {1, 1, 1, 1, 1, bad[i / 2]};

		transfer.page_offset = i % 2 ? RIG_PAGE - 64 * 3 : 0;
		memset(host, UNTOUCHED, sizeof(host));
		memcpy(scales, six, sizeof(six));
		assert_status(gather(rig, 0, 2, &transfer), KVD_ABI_STATUS_BAD_ARGUMENT);
		assert_int_equal(host[0], UNTOUCHED);
	}
	rig_end(rig);
}

/* Who shares a frame may read it, and not write. */
static void test_shared_frames(void **state)
{
	struct rig *rig = rig_new();
	uint64_t fork = session_new(rig->engine, 2);
	struct kvd_abi_transfer transfer = raw(2);
	struct kvd_abi_cmd share = {
		.op = KVD_ABI_OP_SHARE,
		.session = fork,
		.slot = RIG_SLOT,
		.first_page = 1,
		.count = 1,
		.key = rig->session,
		.other_slot = RIG_SLOT,
	};

	(void)state;
	transfer.page_offset = RIG_PAGE - 1;
	assert_int_equal(submit_one(rig->engine, share).result0, 1);
	assert_status(scatter(rig, 0, 2, &transfer), KVD_ABI_STATUS_SHARED);
	assert_int_equal(rig_page(rig, 0)[RIG_PAGE - 1], 0);
	assert_ok(gather(rig, 0, 2, &transfer));
	assert_ok(destroy(rig->engine, fork));
	assert_ok(scatter(rig, 0, 2, &transfer));
	rig_end(rig);
}

/* A device that reaches only some memory: who is asked for what, and what comes of a no. */
struct reach {
	uint64_t refuse;
	uint64_t asked;
	bool any_write;
};

static void *reach(void *context, uint64_t address, uint64_t bytes, int writable)
{
	struct reach *is = context;

	is->asked++;
	is->any_write = is->any_write || writable;
	if (is->refuse >= address && is->refuse - address < bytes)
		return NULL;
	return (void *)(uintptr_t)address;
}

static void test_addresses(void **state)
{
	struct rig *rig = rig_new();
	struct kvd_abi_transfer transfer = narrowing();
	struct reach is = {0};

	(void)state;
	rig->engine->reach = reach;
	rig->engine->reach_context = &is;
	is.refuse = (uintptr_t)&transfer + 9;
	assert_refused(rig, 0, 1, &transfer, KVD_ABI_STATUS_BAD_ADDRESS, (uintptr_t)&transfer);
	is.refuse = transfer.host + transfer.host_bytes - 1;
	assert_refused(rig, 0, 1, &transfer, KVD_ABI_STATUS_BAD_ADDRESS, transfer.host);
	is.refuse = transfer.scales;
	assert_refused(rig, 0, 1, &transfer, KVD_ABI_STATUS_BAD_ADDRESS, transfer.scales);
	is.refuse = (uintptr_t)rig_page(rig, 0);
	assert_refused(rig, 0, 1, &transfer, KVD_ABI_STATUS_BAD_ADDRESS, is.refuse);
	/* What is only read is not asked for to be written. */
	is = (struct reach){0};
	transfer = raw(RIG_PAGE - 1);
	assert_ok(scatter(rig, 0, 1, &transfer));
	assert_true(is.any_write);
	assert_int_equal(is.asked, 4);
	rig->engine->reach = NULL;
	rig_end(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_descriptions),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_scales_that_are_given),
		cmocka_unit_test(test_shared_frames),
		cmocka_unit_test(test_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
