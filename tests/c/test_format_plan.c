/* Plans: which there can be, and that units cover an object once, in order, and are found by their bytes. */
#include "test_format.h"

enum { CASES = 300, REGIONS = 6 };

static uint64_t draw_region(struct kvd_format_region *region, uint64_t offset)
{
	static const uint32_t channels[] = {1, 3, 64, 192, 512, 1024, 8192};
	uint32_t dtype = format_draw() % 2 ? KVD_FORMAT_FP16 : KVD_FORMAT_BF16;

	if (format_draw() % 3 == 0)
		*region = format_exact(offset, 1 + format_draw() % 200000, format_draw() % 2, format_draw() % KVD_FORMAT_DTYPES);
	else
		*region = format_array(offset, 1 + format_draw() % 4, 1 + format_draw() % 300, channels[format_draw() % 7],
				       format_draw() % (KVD_FORMAT_INT4 + 1), dtype);
	return region->bytes;
}

/* Every unit begins where the one before ended, is within its bounds, and is found by its first and its last byte. */
static void check_plan(const struct kvd_format_plan *plan, uint64_t object_bytes)
{
	uint32_t units = kvd_format_plan_units(plan), index;
	struct kvd_format_unit unit;
	uint64_t at = 0;

	for (uint32_t i = 0; i < units; i++) {
		assert_int_equal(kvd_format_plan_unit(plan, i, &unit), 0);
		assert_int_equal(unit.offset, at);
		assert_in_range(unit.bytes, 1, kvd_format_plan_unit_bytes_max(plan));
		if (unit.tokens) {
			assert_int_equal(unit.bytes, unit.tokens * unit.channels * FORMAT_WIDE_BYTES);
			if (unit.bytes > KVD_FORMAT_UNIT_BYTES)
				assert_in_range(unit.tokens, 1, KVD_FORMAT_BLOCK_TOKENS);
		}
		at += unit.bytes;
		assert_int_equal(kvd_format_plan_find(plan, unit.offset, &index), 0);
		assert_int_equal(index, i);
		assert_int_equal(kvd_format_plan_find(plan, at - 1, &index), 0);
		assert_int_equal(index, i);
	}
	assert_int_equal(at, object_bytes);
	assert_int_equal(kvd_format_plan_unit(plan, units, &unit), -EINVAL);
	assert_int_equal(kvd_format_plan_find(plan, object_bytes, &index), -EINVAL);
}

static void test_units_cover_the_object(void **state)
{
	struct kvd_format_region regions[REGIONS];

	(void)state;
	for (int i = 0; i < CASES; i++) {
		uint32_t count = 1 + format_draw() % REGIONS;
		struct kvd_format_plan *plan;
		uint64_t bytes = 0;

		for (uint32_t r = 0; r < count; r++)
			bytes += draw_region(&regions[r], bytes);
		plan = format_plan(regions, count, FORMAT_TEST_PAGE);
		check_plan(plan, bytes);
		kvd_format_plan_fini(plan);
	}
}

/* A unit's tokens begin with a block, and never belong to two arrays. */
static void test_units_are_whole_blocks(void **state)
{
	struct kvd_format_region region = format_array(0, 3, 1000, 64, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_plan *plan = format_plan(&region, 1, FORMAT_TEST_PAGE);
	struct kvd_format_unit unit;

	(void)state;
	assert_int_equal(kvd_format_plan_units(plan), 6); /* 512 and 488 tokens of each */
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(kvd_format_plan_unit(plan, i, &unit), 0);
		assert_int_equal(unit.tokens, i % 2 ? 488 : 512);
		assert_int_equal(unit.offset, i / 2 * 128000 + i % 2 * 65536);
	}
	kvd_format_plan_fini(plan);
}

static void test_an_empty_object(void **state)
{
	struct kvd_format_plan *plan;

	(void)state;
	assert_int_equal(kvd_format_plan_init(NULL, 0, 0, FORMAT_TEST_PAGE, &plan), 0);
	check_plan(plan, 0);
	kvd_format_plan_fini(plan);
}

static void refuse(struct kvd_format_region region, uint64_t object_bytes, uint32_t page_bytes)
{
	struct kvd_format_plan *plan;

	assert_int_equal(kvd_format_plan_init(&region, 1, object_bytes, page_bytes, &plan), -EINVAL);
}

static void test_what_is_refused(void **state)
{
	const struct kvd_format_region good = format_array(0, 2, 64, 64, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_region bad;

	(void)state;
	refuse(good, good.bytes + 1, FORMAT_TEST_PAGE); /* a gap at the end */
	refuse(good, good.bytes - 1, FORMAT_TEST_PAGE);
	refuse(good, good.bytes, FORMAT_TEST_PAGE + 4096);
	refuse(good, good.bytes, 2048);
	refuse(good, good.bytes, 4194304);
	refuse(format_exact(1, 10, KVD_FORMAT_RAW, KVD_FORMAT_BYTES), 11, FORMAT_TEST_PAGE); /* a gap at the begin */
	refuse(format_exact(0, 0, KVD_FORMAT_RAW, KVD_FORMAT_BYTES), 0, FORMAT_TEST_PAGE);
	refuse(format_exact(0, 10, KVD_FORMAT_INT8, KVD_FORMAT_FP16), 10, FORMAT_TEST_PAGE); /* lossy without a shape */
	refuse(format_exact(0, 10, KVD_FORMAT_ZEROS, KVD_FORMAT_BYTES), 10, FORMAT_TEST_PAGE);
	refuse(format_exact(0, 10, KVD_FORMAT_RAW, KVD_FORMAT_DTYPES), 10, FORMAT_TEST_PAGE);
	refuse(format_array(0, 1, 1, KVD_FORMAT_CHANNELS_MAX + 1, KVD_FORMAT_INT8, KVD_FORMAT_FP16), 16386, FORMAT_TEST_PAGE);
	refuse(format_array(0, 1, 4, 4, KVD_FORMAT_INT8, KVD_FORMAT_WORDS), 32, FORMAT_TEST_PAGE);
	bad = good;
	bad.channels = 63;
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
	bad = good;
	bad.role = KVD_FORMAT_ROLES;
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
	bad = good;
	bad.reserved = 1;
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
}

/* Sums and products that would not fit 64 bits, and more units than there may be. */
static void test_what_overflows_is_refused(void **state)
{
	struct kvd_format_region bad = format_array(0, 2, 64, 64, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_region two[2] = {format_exact(0, 65536, KVD_FORMAT_RAW, KVD_FORMAT_BYTES),
					   format_exact(65536, UINT64_MAX - 65535, KVD_FORMAT_RAW, KVD_FORMAT_BYTES)};
	struct kvd_format_plan *plan;

	(void)state;
	bad.tokens = UINT64_C(1) << 57; /* times 128 bytes is 0 */
	bad.arrays = 2;
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
	bad.tokens = UINT64_MAX;
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
	assert_int_equal(kvd_format_plan_init(two, 2, 131072, FORMAT_TEST_PAGE, &plan), -EINVAL);
	assert_int_equal(kvd_format_plan_init(two, 2, UINT64_MAX, FORMAT_TEST_PAGE, &plan), -EINVAL);
	bad = format_array(0, KVD_FORMAT_UNITS_MAX + 1, 1, 1, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	refuse(bad, bad.bytes, FORMAT_TEST_PAGE);
	assert_int_equal(kvd_format_plan_init(&bad, KVD_FORMAT_REGIONS_MAX + 1, 4, FORMAT_TEST_PAGE, &plan), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_units_cover_the_object), cmocka_unit_test(test_units_are_whole_blocks),
		cmocka_unit_test(test_an_empty_object),        cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_what_overflows_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
