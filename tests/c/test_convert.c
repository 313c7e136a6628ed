/* The kernels: each that this CPU can run against the definition in test_convert_ref.c, and against each other. */
#include "test_convert.h"

#include <errno.h>

enum { WIDE_VALUES = 65536, CODES = 256, GUARD = 0xa5 };

/* One; powers of two; odd ones; what brings each format's values to either end of the codes; the limits. */
static const float scales[] = {
	1.0f,      0.5f,       0.0117f,    3.14159274f, 0x1.fffffep-3f,        0x1p-20f,
	0x1p-100f, 5.1e-5f,    146.214f,   0x1p119f,    0x1.306p119f,          515.8f,
	0x1p16f,   0x1p-16f,   0x1p-110f,  0x1p112f,    KVD_CONVERT_SCALE_MIN, KVD_CONVERT_SCALE_MAX,
};
#define SCALES (sizeof(scales) / sizeof(scales[0]))

static uint8_t raw_wide[WIDE_VALUES * CONVERT_WIDE_BYTES + 16];
static uint8_t raw_narrow[WIDE_VALUES + 16];
static uint8_t raw_out[WIDE_VALUES * CONVERT_WIDE_BYTES + 16];
static uint8_t raw_expected[WIDE_VALUES * CONVERT_WIDE_BYTES + 16];
static float factors[WIDE_VALUES];

static void fill_factors(float factor)
{
	for (size_t i = 0; i < CONVERT_FACTORS; i++)
		factors[i] = factor;
}

/* Every 16-bit value at a scale, through each implementation. */
static void check_encode(float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	const struct convert_kernels *usable[CONVERT_KERNELS_MAX];
	size_t count = kvd_convert_usable(usable);

	fill_factors(1.0f / scale);
	for (uint32_t i = 0; i < WIDE_VALUES; i++) {
		uint16_t bits = (uint16_t)i;

		memcpy(raw_wide + i * CONVERT_WIDE_BYTES, &bits, sizeof(bits));
		raw_expected[i] = ref_encode(bits, scale, wide, narrow);
	}
	for (size_t k = 0; k < count; k++) {
		memset(raw_out, GUARD, sizeof(raw_out));
		usable[k]->encode[wide][narrow](raw_out, raw_wide, WIDE_VALUES, factors, 0);
		for (uint32_t i = 0; i < WIDE_VALUES; i++)
			if (raw_out[i] != raw_expected[i])
				fail_msg("%s: wide %d, narrow %d, scale %a: %04x gives %02x, not %02x", usable[k]->name, wide,
					 narrow, (double)scale, i, raw_out[i], raw_expected[i]);
		assert_int_equal(raw_out[WIDE_VALUES], GUARD);
	}
}

static void check_decode(float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	const struct convert_kernels *usable[CONVERT_KERNELS_MAX];
	size_t count = kvd_convert_usable(usable);

	fill_factors(scale);
	for (uint32_t i = 0; i < CODES; i++)
		raw_narrow[i] = (uint8_t)i;
	for (size_t k = 0; k < count; k++) {
		memset(raw_out, GUARD, sizeof(raw_out));
		usable[k]->decode[wide][narrow](raw_out, raw_narrow, CODES, factors, 0);
		for (uint32_t i = 0; i < CODES; i++) {
			uint16_t expected = ref_decode((uint8_t)i, scale, wide, narrow), found;

			memcpy(&found, raw_out + i * CONVERT_WIDE_BYTES, sizeof(found));
			if (found != expected)
				fail_msg("%s: wide %d, narrow %d, scale %a: %02x gives %04x, not %04x", usable[k]->name, wide,
					 narrow, (double)scale, i, found, expected);
		}
		assert_int_equal(raw_out[CODES * CONVERT_WIDE_BYTES], GUARD);
	}
}

typedef void check_function(float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow);

static void check_all(check_function *check)
{
	for (int wide = 0; wide < KVD_CONVERT_WIDE_COUNT; wide++)
		for (int narrow = 0; narrow < KVD_CONVERT_NARROW_COUNT; narrow++)
			for (size_t s = 0; s < SCALES; s++)
					check(scales[s], (enum kvd_convert_wide)wide, (enum kvd_convert_narrow)narrow);
}

static void test_encode_all_values(void **state)
{
	(void)state;
	check_all(check_encode);
}

static void test_decode_all_codes(void **state)
{
	(void)state;
	check_all(check_decode);
}

/* Every code that encoding makes comes back from either wide format at scale 1, where that has the value. */
static void test_round_trip(void **state)
{
	uint8_t codes[CODES], back[CODES];
	uint16_t wide[CODES];

	(void)state;
	for (uint32_t i = 0; i < CODES; i++)
		codes[i] = (uint8_t)i;
	assert_int_equal(kvd_convert_e4m3_to_fp16(wide, codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_fp16_to_e4m3(back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
	assert_int_equal(kvd_convert_e4m3_to_bf16(wide, codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_bf16_to_e4m3(back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
	for (uint32_t i = 0; i < CODES; i++) /* without infinities, and with one of the NaNs */
		if ((i & 0x7f) >= 0x7c)
			codes[i] = (uint8_t)(i | 0x7f);
	assert_int_equal(kvd_convert_e5m2_to_fp16(wide, codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_fp16_to_e5m2(back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
	assert_int_equal(kvd_convert_e5m2_to_bf16(wide, codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_bf16_to_e5m2(back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
	for (uint32_t i = 0; i < CODES; i++)
		codes[i] = (uint8_t)(i == 0x80 ? 0x81 : i); /* -128 saturates to -127 */
	assert_int_equal(kvd_convert_int8_to_fp16(wide, (int8_t *)codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_fp16_to_int8((int8_t *)back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
	assert_int_equal(kvd_convert_int8_to_bf16(wide, (int8_t *)codes, CODES, 1), 0);
	assert_int_equal(kvd_convert_bf16_to_int8((int8_t *)back, wide, CODES, 1), 0);
	assert_memory_equal(codes, back, CODES);
}

/* Random values, a factor a channel, each count up to a few registers and some large, each misalignment. */
static void agree(convert_kernel *kernel, convert_kernel *scalar, size_t in_bytes, size_t out_bytes, size_t count)
{
	size_t in_off = ref_draw() % 16, out_off = ref_draw() % 15;
	size_t mask = ref_draw() % 2 ? SIZE_MAX : 0;
	const uint8_t *in = raw_wide + in_off;

	for (size_t i = 0; i < (count > CONVERT_FACTORS ? count : CONVERT_FACTORS); i++)
		factors[i] = mask || i == 0 ? ldexpf(1 + (float)ref_draw() * 0x1p-32f, (int)(ref_draw() % 24) - 12) : factors[0];
	ref_fill(raw_wide + in_off, count * in_bytes);
	memset(raw_out, GUARD, sizeof(raw_out));
	memset(raw_expected, GUARD, sizeof(raw_expected));
	kernel(raw_out + out_off, in, count, factors, mask);
	scalar(raw_expected + out_off, in, count, factors, mask);
	assert_memory_equal(raw_out, raw_expected, out_off + count * out_bytes + 1);
}

static void test_kernels_agree(void **state)
{
	enum { COUNT_SMALL = 100, COUNT_LARGE = 3000, ROUNDS = 150 };
	const struct convert_kernels *usable[CONVERT_KERNELS_MAX];
	size_t kernels = kvd_convert_usable(usable);

	(void)state;
	for (size_t k = 0; k < kernels; k++)
		for (int wide = 0; wide < KVD_CONVERT_WIDE_COUNT; wide++)
			for (int narrow = 0; narrow < KVD_CONVERT_NARROW_COUNT; narrow++)
				for (size_t round = 0; round < ROUNDS; round++) {
					size_t count = round < COUNT_SMALL ? round : ref_draw() % COUNT_LARGE;

					agree(usable[k]->encode[wide][narrow], kvd_convert_scalar.encode[wide][narrow],
					      CONVERT_WIDE_BYTES, 1, count);
					agree(usable[k]->decode[wide][narrow], kvd_convert_scalar.decode[wide][narrow], 1,
					      CONVERT_WIDE_BYTES, count);
				}
}

/* Without this a machine's speed could come from the wrong kernels, and nobody would see it. */
static void test_fastest_is_chosen(void **state)
{
	const struct convert_kernels *usable[CONVERT_KERNELS_MAX];
	size_t count = kvd_convert_usable(usable);

	(void)state;
	assert_ptr_equal(kvd_convert_chosen(), usable[0]);
	assert_ptr_equal(usable[count - 1], &kvd_convert_scalar);
}

static void test_bad_scales(void **state)
{
	static const float bad[] = {0, -1, INFINITY, -INFINITY, NAN, 0x1p-123f, 0x1.000002p122f};
	uint16_t wide[2] = {0x3c00, 0x3c00};
	uint8_t codes[2] = {GUARD, GUARD};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(kvd_convert_fp16_to_e4m3(codes, wide, 2, bad[i]), -EINVAL);
		assert_int_equal(codes[0], GUARD);
		assert_int_equal(kvd_convert_e5m2_to_bf16(wide, codes, 2, bad[i]), -EINVAL);
		assert_int_equal(wide[1], 0x3c00);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encode_all_values),
		cmocka_unit_test(test_decode_all_codes),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_kernels_agree),
		cmocka_unit_test(test_fastest_is_chosen),
		cmocka_unit_test(test_bad_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
