/* GATHER and SCATTER against copies and conversions of flat arrays; what is refused is in test_engine_transfer_refusals.c. */
#include <stdlib.h>

#include "test_engine_transfer.h"

#define COPIES 4000u
#define ARRAYS 400u
#define TOKENS_MAX 200u
#define CHANNELS_MAX 600u
#define ELEMENTS_MAX ((size_t)TOKENS_MAX * CHANNELS_MAX)
#define SCALES_MAX (4 * CHANNELS_MAX)

static uint64_t draw(uint64_t limit)
{
	static uint64_t at = 424242;

	at ^= at << 13;
	at ^= at >> 7;
	at ^= at << 17;
	return (at >> 16) % limit;
}

static void test_copies(void **state)
{
	struct rig *rig = rig_new();
	unsigned char *model = calloc(RIG_PAGES, RIG_PAGE);
	unsigned char *host = malloc(RIG_PAGES * RIG_PAGE);

	(void)state;
	assert_non_null(model);
	assert_non_null(host);
	for (uint32_t i = 0; i < COPIES; i++) {
		uint64_t at = draw(RIG_PAGES * RIG_PAGE), bytes = 1 + draw(draw(2) ? 100 : 6 * RIG_PAGE);
		struct kvd_abi_transfer transfer = {.host = (uintptr_t)host + draw(9), .page_offset = at % RIG_PAGE};
		unsigned char *from = (unsigned char *)transfer.host;
		uint64_t first = at / RIG_PAGE;

		if (bytes > RIG_PAGES * RIG_PAGE - at)
			bytes = RIG_PAGES * RIG_PAGE - at;
		transfer.host_bytes = bytes;
		if (draw(2)) {
			for (uint64_t j = 0; j < bytes; j++)
				model[at + j] = from[j] = (unsigned char)draw(256);
			assert_int_equal(scatter(rig, first, RIG_PAGES - first, &transfer).result0, bytes);
		} else {
			memset(from, 0, bytes);
			assert_int_equal(gather(rig, first, RIG_PAGES - first, &transfer).result0, bytes);
			assert_memory_equal(from, model + at, bytes);
		}
	}
	for (uint64_t page = 0; page < RIG_PAGES; page++)
		assert_memory_equal(rig_page(rig, page), model + page * RIG_PAGE, RIG_PAGE);
	free(host);
	free(model);
	rig_end(rig);
}

/* A side of a conversion; the host's, the pages', the expected one. */
struct array {
	unsigned char wide[ELEMENTS_MAX * 2];
	unsigned char narrow[ELEMENTS_MAX];
	unsigned char scales[SCALES_MAX * 4];
};

static bool is_wide(uint16_t format)
{
	return format == KVD_ABI_FORMAT_FP16 || format == KVD_ABI_FORMAT_BF16;
}

static void draw_formats(struct kvd_abi_transfer *transfer, struct kvd_convert_blocks *shape)
{
	uint16_t wide = draw(2) ? KVD_ABI_FORMAT_FP16 : KVD_ABI_FORMAT_BF16;
	uint16_t narrow = (uint16_t)(KVD_ABI_FORMAT_E4M3 + draw(3));

	transfer->tokens = 1 + (uint32_t)draw(TOKENS_MAX);
	transfer->channels = 1 + (uint32_t)draw(draw(2) ? 20 : CHANNELS_MAX);
	transfer->scaling = draw(2) ? KVD_ABI_SCALING_FP16_BLOCKS : KVD_ABI_SCALING_FP32_BLOCKS;
	transfer->host_format = draw(2) ? wide : narrow;
	transfer->page_format = transfer->host_format == wide ? narrow : wide;
	*shape = (struct kvd_convert_blocks){
		.tokens = transfer->tokens,
		.channels = transfer->channels,
		.wide = wide == KVD_ABI_FORMAT_FP16 ? KVD_CONVERT_FP16 : KVD_CONVERT_BF16,
		.narrow = (enum kvd_convert_narrow)(narrow - KVD_ABI_FORMAT_E4M3),
		.scale_format = transfer->scaling == KVD_ABI_SCALING_FP16_BLOCKS ? KVD_CONVERT_SCALE_FP16 : KVD_CONVERT_SCALE_FP32,
	};
}

/* Finite values, of FP16 as of BF16, some of them zero. */
static void draw_wide(unsigned char *wide, size_t elements)
{
	for (size_t i = 0; i < elements; i++) {
		uint16_t value = (uint16_t)(draw(5) ? (draw(2) << 15) + 0x3000 + draw(0x1000) : 0);

		memcpy(wide + 2 * i, &value, sizeof(value));
	}
}

/* One array through the pages by SCATTER or GATHER, against the conversion of the whole array at once. */
static void convert_one(struct rig *rig, struct array *given, struct array *expected, unsigned char *host, bool scatters)
{
	struct kvd_abi_transfer transfer = {0};
	struct kvd_convert_blocks shape;
	bool host_wide, encodes;
	size_t elements, host_bytes, page_bytes, scales_bytes;
	const unsigned char *from, *to;
	struct test_reply reply;

	draw_formats(&transfer, &shape);
	elements = (size_t)transfer.tokens * transfer.channels;
	host_wide = is_wide(transfer.host_format);
	encodes = host_wide == scatters;
	draw_wide(given->wide, elements);
	assert_int_equal(kvd_convert_blocks_encode(expected->narrow, expected->scales, given->wide, &shape), 0);
	memcpy(given->narrow, expected->narrow, elements);
	assert_int_equal(kvd_convert_blocks_decode(expected->wide, expected->scales, given->narrow, &shape), 0);
	scales_bytes = kvd_convert_blocks_scales_count(&shape) * (transfer.scaling == KVD_ABI_SCALING_FP16_BLOCKS ? 2 : 4);
	memset(given->scales, 0, sizeof(given->scales));
	if (!encodes)
		memcpy(given->scales, expected->scales, scales_bytes);
	from = encodes ? given->wide : given->narrow;
	to = encodes ? expected->narrow : expected->wide;
	host_bytes = elements * (host_wide ? 2 : 1);
	page_bytes = elements * (host_wide ? 1 : 2);
	transfer.host = (uintptr_t)host;
	transfer.host_bytes = host_bytes;
	transfer.scales = (uintptr_t)given->scales;
	transfer.scales_bytes = scales_bytes;
	transfer.page_offset = draw(3 * RIG_PAGE);
	if (scatters) {
		memcpy(host, from, host_bytes);
		reply = scatter(rig, 0, RIG_PAGES, &transfer);
		assert_ok(reply);
		rig_compare(rig, transfer.page_offset, to, page_bytes);
	} else {
		memset(host, 0, host_bytes);
		rig_write(rig, transfer.page_offset, from, page_bytes);
		reply = gather(rig, 0, RIG_PAGES, &transfer);
		assert_ok(reply);
		assert_memory_equal(host, to, host_bytes);
	}
	assert_int_equal(reply.result0, host_bytes);
	assert_memory_equal(given->scales, expected->scales, scales_bytes);
}

static void test_converts(void **state)
{
	struct rig *rig = rig_new();
	struct array *given = malloc(sizeof(*given)), *expected = malloc(sizeof(*expected));
	unsigned char *host = malloc(ELEMENTS_MAX * 2);

	(void)state;
	assert_non_null(given);
	assert_non_null(expected);
	assert_non_null(host);
	for (uint32_t i = 0; i < ARRAYS; i++)
		convert_one(rig, given, expected, host, i % 2);
	free(host);
	free(expected);
	free(given);
	rig_end(rig);
}

/* Two equal formats are a copy of as many bytes as the elements take. */
static void test_equal_formats_are_copied(void **state)
{
	struct rig *rig = rig_new();
	unsigned char host[3 * 5 * 2], back[sizeof(host) + 1] = {0};
	struct kvd_abi_transfer transfer = {
		.host = (uintptr_t)host,
		.host_bytes = sizeof(host),
		.page_offset = RIG_PAGE - 7,
		.tokens = 3,
		.channels = 5,
		.host_format = KVD_ABI_FORMAT_BF16,
		.page_format = KVD_ABI_FORMAT_BF16,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(host); i++)
		host[i] = (unsigned char)(i + 1);
	assert_int_equal(scatter(rig, 0, 2, &transfer).result0, sizeof(host));
	transfer.host = (uintptr_t)back;
	transfer.host_bytes = sizeof(back);
	assert_int_equal(gather(rig, 0, 2, &transfer).result0, sizeof(host));
	assert_memory_equal(back, host, sizeof(host));
	assert_int_equal(back[sizeof(host)], 0);
	rig_end(rig);
}

static void test_sets_accessed_and_dirty(void **state)
{
	struct rig *rig = rig_new();
	unsigned char host[RIG_PAGE + 2];
	struct kvd_abi_transfer transfer = {
		.host = (uintptr_t)host, .host_bytes = sizeof(host), .page_offset = 2 * RIG_PAGE - 1};
	uint64_t both = KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_DIRTY_MASK;

	(void)state;
	memset(host, 1, sizeof(host));
	assert_ok(gather(rig, 0, 8, &transfer));
	for (uint64_t page = 0; page < 8; page++)
		assert_int_equal(pte_of(rig->engine, rig->session, RIG_SLOT, page) & both,
				 page >= 1 && page <= 3 ? KVD_ABI_PTE_ACCESSED_MASK : 0);
	transfer.page_offset = 4 * RIG_PAGE;
	assert_ok(scatter(rig, 0, 8, &transfer));
	for (uint64_t page = 4; page < 8; page++)
		assert_int_equal(pte_of(rig->engine, rig->session, RIG_SLOT, page) & both, page <= 5 ? both : 0);
	rig_end(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_converts),
		cmocka_unit_test(test_equal_formats_are_copied),
		cmocka_unit_test(test_sets_accessed_and_dirty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
