/* INT4, comparing, and looking for what is not finite: each against its definition, value by value. */
#include "test_convert.h"

#include <errno.h>

enum {
	TOKENS_MAX = 150, /* two whole blocks and a short one */
	CHANNELS_MAX = 37,
	CHANNELS_LARGE = CONVERT_TILE_CHANNELS + 33, /* a tile and a part of one */
	CASES = 60,
	BLOCKS_MAX = 3,
	VALUES_MAX = KVD_CONVERT_BLOCK_TOKENS * CHANNELS_LARGE,
	GUARD = 0xa5,
};

static uint16_t src[VALUES_MAX];
static uint16_t back[VALUES_MAX];
static uint8_t codes[VALUES_MAX];
static int8_t zeros[BLOCKS_MAX * CHANNELS_LARGE];
static float scales[BLOCKS_MAX * CHANNELS_LARGE];

static float scale_at(const struct kvd_convert_blocks *b, size_t index)
{
	uint16_t half;

	if (b->scale_format == KVD_CONVERT_SCALE_FP32)
		return scales[index];
	memcpy(&half, (const uint8_t *)scales + index * sizeof(half), sizeof(half));
	return (float)ref_wide_value(half, KVD_CONVERT_FP16);
}

/* What a value's code is above the block's zero. */
static int code_at(const struct kvd_convert_blocks *b, size_t token, size_t channel)
{
	uint8_t byte = codes[token * ((b->channels + 1) / 2) + channel / 2];

	return channel % 2 ? byte >> 4 : byte & 15;
}

/* The definition's scale and zero of a channel of a block. */
static void define(const struct kvd_convert_blocks *b, size_t block, size_t channel, float *scale, int *zero)
{
	size_t first = block * KVD_CONVERT_BLOCK_TOKENS, end = first + KVD_CONVERT_BLOCK_TOKENS;
	double least = 0, most = 0, finest;
	bool any = false;

	*zero = 127;
	for (size_t t = first; t < end && t < b->tokens; t++) {
		double value = ref_wide_value(src[t * b->channels + channel], b->wide);

		if (!isfinite(value))
			continue;
		least = any && least < value ? least : value;
		most = any && most > value ? most : value;
		any = true;
	}
	*scale = scale_at(b, block * b->channels + channel);
	finest = fmax((most - least) / 15, fmax(most, -least) / 127);
	if (finest == 0)
		assert_true(*scale == 1);
	else if (b->scale_format == KVD_CONVERT_SCALE_FP32)
		assert_true(fabs((double)*scale - fmin(fmax(finest, 0x1p-122), 0x1p122)) <= finest * 0x1p-22);
	else
		assert_true(*scale >= 65504 || ((double)*scale >= finest * (1 - 0x1p-22) &&
						(double)*scale <= finest * (1 + 0x1p-10) + 0x1p-24));
	for (size_t t = first; t < end && t < b->tokens; t++) {
		uint16_t bits = src[t * b->channels + channel];
		int code = (int8_t)ref_encode(bits, *scale, b->wide, KVD_CONVERT_INT8);

		if (isfinite(ref_wide_value(bits, b->wide)) && code < *zero)
			*zero = code;
	}
	if (!any)
		*zero = 0;
}

static void check_case(const struct kvd_convert_blocks *b)
{
	size_t row = kvd_convert_int4_row_bytes(b->channels);

	assert_int_equal(row, (b->channels + 1) / 2);
	memset(codes, GUARD, sizeof(codes));
	assert_int_equal(kvd_convert_int4_encode(codes, scales, zeros, src, b), 0);
	assert_int_equal(codes[b->tokens * row], GUARD);
	assert_int_equal(kvd_convert_int4_decode(back, scales, zeros, codes, b), 0);
	for (size_t c = 0; c < b->channels; c++)
		for (size_t t = 0; t < b->tokens; t++) {
			uint16_t bits = src[t * b->channels + c];
			static float scale;
			static int zero;
			int code;

			if (t % KVD_CONVERT_BLOCK_TOKENS == 0)
				define(b, t / KVD_CONVERT_BLOCK_TOKENS, c, &scale, &zero);
			assert_int_equal(zeros[t / KVD_CONVERT_BLOCK_TOKENS * b->channels + c], zero);
			code = (int8_t)ref_encode(bits, scale, b->wide, KVD_CONVERT_INT8) - zero;
			code = code < 0 ? 0 : code > 15 ? 15 : code;
			assert_int_equal(code_at(b, t, c), code);
			assert_int_equal(back[t * b->channels + c],
					 ref_decode((uint8_t)(zero + code), scale, b->wide, KVD_CONVERT_INT8));
		}
}

/* Values as a cache has them: far from 0, but near each other. */
static void test_int4_of_what_has_a_mean(void **state)
{
	struct kvd_convert_blocks b = {
		.tokens = 64, .channels = 33, .narrow = KVD_CONVERT_INT8, .scale_format = KVD_CONVERT_SCALE_FP16};

	(void)state;
	for (size_t i = 0; i < b.tokens * b.channels; i++) /* 4 to 5, or -4 to -5 */
		src[i] = (uint16_t)((i % b.channels % 2 ? 0x4400 : 0xc400) | (ref_draw() & 0xff));
	check_case(&b);
	for (size_t i = 0; i < b.tokens * b.channels; i++)
		assert_true(fabs(ref_wide_value(src[i], KVD_CONVERT_FP16) - ref_wide_value(back[i], KVD_CONVERT_FP16)) <=
			    0.5 / 15 + 0.003);
}

/* A zero that no encoder makes: some value, and nothing beyond the array. */
static void test_int4_of_any_zero(void **state)
{
	struct kvd_convert_blocks b = {
		.tokens = 1, .channels = 2, .narrow = KVD_CONVERT_INT8, .scale_format = KVD_CONVERT_SCALE_FP32};
	uint8_t byte = 0x1f;

	(void)state;
	scales[0] = scales[1] = 1;
	zeros[0] = 127;
	zeros[1] = -128;
	assert_int_equal(kvd_convert_int4_decode(back, scales, zeros, &byte, &b), 0);
	assert_true(ref_wide_value(back[0], KVD_CONVERT_FP16) == 127 + 15 - 256);
	assert_true(ref_wide_value(back[1], KVD_CONVERT_FP16) == -127);
}

static void test_int4_is_its_definition(void **state)
{
	(void)state;
	for (size_t i = 0; i < CASES; i++) {
		struct kvd_convert_blocks b = {
			.tokens = ref_draw() % TOKENS_MAX,
			.channels = 1 + ref_draw() % CHANNELS_MAX,
			.wide = i % 2 ? KVD_CONVERT_BF16 : KVD_CONVERT_FP16,
			.narrow = KVD_CONVERT_INT8,
			.scale_format = i / 2 % 2 ? KVD_CONVERT_SCALE_FP32 : KVD_CONVERT_SCALE_FP16,
		};

		ref_fill(src, sizeof(src)); /* every kind of value, NaN too */
		check_case(&b);
	}
}

static void test_int4_of_more_than_a_tile(void **state)
{
	struct kvd_convert_blocks b = {
		.tokens = 5, .channels = CHANNELS_LARGE, .narrow = KVD_CONVERT_INT8, .scale_format = KVD_CONVERT_SCALE_FP16};

	(void)state;
	ref_fill(src, sizeof(src));
	check_case(&b);
}

static void test_int4_refuses(void **state)
{
	struct kvd_convert_blocks b = {
		.tokens = 1, .channels = 1, .narrow = KVD_CONVERT_E4M3, .scale_format = KVD_CONVERT_SCALE_FP32};

	(void)state;
	assert_int_equal(kvd_convert_int4_encode(codes, scales, zeros, src, &b), -EINVAL);
	assert_int_equal(kvd_convert_int4_decode(back, scales, zeros, codes, &b), -EINVAL);
	b.narrow = KVD_CONVERT_INT8;
	scales[0] = NAN;
	assert_int_equal(kvd_convert_int4_decode(back, scales, zeros, codes, &b), -EINVAL);
	b.wide = KVD_CONVERT_WIDE_COUNT;
	assert_int_equal(kvd_convert_int4_encode(codes, scales, zeros, src, &b), -EINVAL);
}

/* Finite draws, of the size that a cache has. */
static void draw_finite(uint16_t *at, size_t count, enum kvd_convert_wide wide)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = ref_draw();

		at[i] = (uint16_t)(wide == KVD_CONVERT_FP16 ? (bits & 0x8fff) | 0x2000 : (bits & 0x80ff) | 0x3f00);
	}
}

static void test_compare_is_its_definition(void **state)
{
	(void)state;
	for (size_t count = 0; count < 200; count++) {
		enum kvd_convert_wide wide = count % 2 ? KVD_CONVERT_BF16 : KVD_CONVERT_FP16;
		struct kvd_convert_difference sum = {0};
		double square = 0, square_difference = 0, most = 0;

		draw_finite(src, count, wide);
		draw_finite(back, count, wide);
		for (size_t i = 0; i < count; i++) {
			double value = ref_wide_value(src[i], wide), off = value - ref_wide_value(back[i], wide);

			square += value * value;
			square_difference += off * off;
			most = fabs(off) > most ? fabs(off) : most;
		}
		kvd_convert_compare(&sum, src, back, count, wide);
		assert_int_equal(sum.values, count);
		assert_true(fabs(sum.square - square) <= 1e-12 * square);
		assert_true(fabs(sum.square_difference - square_difference) <= 1e-12 * square_difference);
		assert_true(sum.most == most);
	}
}

static void test_finite(void **state)
{
	static const uint16_t not_finite[KVD_CONVERT_WIDE_COUNT][4] = {
		[KVD_CONVERT_FP16] = {0x7c00, 0xfc00, 0x7c01, 0xffff}, [KVD_CONVERT_BF16] = {0x7f80, 0xff80, 0x7f81, 0xffff}};

	(void)state;
	for (int wide = 0; wide < KVD_CONVERT_WIDE_COUNT; wide++)
		for (size_t i = 0; i < 4; i++)
			for (size_t at = 0; at < 2100; at += 300) {
				draw_finite(src, 2101, (enum kvd_convert_wide)wide);
				assert_true(kvd_convert_finite(src, 2101, (enum kvd_convert_wide)wide));
				src[at] = not_finite[wide][i];
				assert_false(kvd_convert_finite(src, 2101, (enum kvd_convert_wide)wide));
			}
	assert_true(kvd_convert_finite(src, 0, KVD_CONVERT_FP16));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_int4_is_its_definition), cmocka_unit_test(test_int4_of_more_than_a_tile),
		cmocka_unit_test(test_int4_of_what_has_a_mean), cmocka_unit_test(test_int4_of_any_zero),
		cmocka_unit_test(test_int4_refuses),           cmocka_unit_test(test_compare_is_its_definition),
		cmocka_unit_test(test_finite),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
