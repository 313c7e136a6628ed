/* Blocks of tokens with a scale for each channel: held against the functions for one scale, value by value. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "convert/convert.h"

enum {
	TOKENS_MAX = 150,   /* two whole blocks and a short one */
	CHANNELS_MAX = 37,  /* no multiple of a vector */
	CASES = 60,
	BLOCKS_MAX = (TOKENS_MAX + KVD_CONVERT_BLOCK_TOKENS - 1) / KVD_CONVERT_BLOCK_TOKENS,
};

static uint16_t src[TOKENS_MAX * CHANNELS_MAX];
static uint16_t back[TOKENS_MAX * CHANNELS_MAX];
static uint8_t codes[TOKENS_MAX * CHANNELS_MAX];
static float scales[BLOCKS_MAX * CHANNELS_MAX];

static int encode_one(uint8_t *dst, const uint16_t *value, float scale, const struct kvd_convert_blocks *b)
{
	const int bf16 = b->wide == KVD_CONVERT_BF16;

	switch (b->narrow) {
	case KVD_CONVERT_E4M3:
		return bf16 ? kvd_convert_bf16_to_e4m3(dst, value, 1, scale) : kvd_convert_fp16_to_e4m3(dst, value, 1, scale);
	case KVD_CONVERT_E5M2:
		return bf16 ? kvd_convert_bf16_to_e5m2(dst, value, 1, scale) : kvd_convert_fp16_to_e5m2(dst, value, 1, scale);
	default:
		return bf16 ? kvd_convert_bf16_to_int8((int8_t *)dst, value, 1, scale)
			    : kvd_convert_fp16_to_int8((int8_t *)dst, value, 1, scale);
	}
}

static int decode_one(uint16_t *dst, const uint8_t *code, float scale, const struct kvd_convert_blocks *b)
{
	const int bf16 = b->wide == KVD_CONVERT_BF16;

	switch (b->narrow) {
	case KVD_CONVERT_E4M3:
		return bf16 ? kvd_convert_e4m3_to_bf16(dst, code, 1, scale) : kvd_convert_e4m3_to_fp16(dst, code, 1, scale);
	case KVD_CONVERT_E5M2:
		return bf16 ? kvd_convert_e5m2_to_bf16(dst, code, 1, scale) : kvd_convert_e5m2_to_fp16(dst, code, 1, scale);
	default:
		return bf16 ? kvd_convert_int8_to_bf16(dst, (const int8_t *)code, 1, scale)
			    : kvd_convert_int8_to_fp16(dst, (const int8_t *)code, 1, scale);
	}
}

static void check_case(const struct kvd_convert_blocks *b)
{
	uint16_t column[KVD_CONVERT_BLOCK_TOKENS];

	assert_int_equal(kvd_convert_blocks_encode(codes, scales, src, b), 0);
	assert_int_equal(kvd_convert_blocks_decode(back, scales, codes, b), 0);
	for (size_t first = 0; first < b->tokens; first += KVD_CONVERT_BLOCK_TOKENS) {
		size_t n = b->tokens - first < KVD_CONVERT_BLOCK_TOKENS ? b->tokens - first : KVD_CONVERT_BLOCK_TOKENS;

		for (size_t c = 0; c < b->channels; c++) {
			float scale = scales[first / KVD_CONVERT_BLOCK_TOKENS * b->channels + c];
			float wanted;

			for (size_t t = 0; t < n; t++)
				column[t] = src[(first + t) * b->channels + c];
			assert_int_equal(kvd_convert_absmax_scale(&wanted, column, n, b->wide, b->narrow), 0);
			assert_memory_equal(&scale, &wanted, sizeof(scale));
			for (size_t t = 0; t < n; t++) {
				size_t at = (first + t) * b->channels + c;
				uint16_t value;
				uint8_t code;

				assert_int_equal(encode_one(&code, &src[at], scale, b), 0);
				assert_int_equal(code, codes[at]);
				assert_int_equal(decode_one(&value, &codes[at], scale, b), 0);
				assert_int_equal(value, back[at]);
			}
		}
	}
}

static void test_blocks_are_what_the_single_functions_make(void **state)
{
	(void)state;
	srandom(11);
	for (int i = 0; i < CASES; i++) {
		struct kvd_convert_blocks b = {
			.tokens = (size_t)(random() % (TOKENS_MAX + 1)),
			.channels = 1 + (size_t)(random() % CHANNELS_MAX),
			.wide = (enum kvd_convert_wide)(random() % KVD_CONVERT_WIDE_COUNT),
			.narrow = (enum kvd_convert_narrow)(random() % KVD_CONVERT_NARROW_COUNT),
			.scale_format = KVD_CONVERT_SCALE_FP32,
		};

		for (size_t at = 0; at < TOKENS_MAX * CHANNELS_MAX; at++)
			src[at] = (uint16_t)random(); /* every bit pattern: infinities and NaN too */
		assert_int_equal(kvd_convert_blocks_scales_count(&b),
				 (b.tokens + KVD_CONVERT_BLOCK_TOKENS - 1) / KVD_CONVERT_BLOCK_TOKENS * b.channels);
		check_case(&b);
	}
}

static void test_given_scales_make_the_same_codes(void **state)
{
	static uint8_t again[TOKENS_MAX * CHANNELS_MAX];
	struct kvd_convert_blocks b = {
		.tokens = TOKENS_MAX, .channels = CHANNELS_MAX, .wide = KVD_CONVERT_FP16, .narrow = KVD_CONVERT_E4M3,
	};

	(void)state;
	for (int format = 0; format < KVD_CONVERT_SCALE_FORMAT_COUNT; format++) {
		b.scale_format = (enum kvd_convert_scale_format)format;
		for (size_t at = 0; at < TOKENS_MAX * CHANNELS_MAX; at++)
			src[at] = (uint16_t)(random() % 0x7c00); /* finite */
		assert_int_equal(kvd_convert_blocks_encode(codes, scales, src, &b), 0);
		assert_int_equal(kvd_convert_blocks_encode_with(again, scales, src, &b), 0);
		assert_memory_equal(again, codes, sizeof(codes));
	}
}

static void test_nonsense_is_refused_and_nothing_written(void **state)
{
	struct kvd_convert_blocks b = {.tokens = 3, .channels = 2, .scale_format = KVD_CONVERT_SCALE_FP32};
	float scale = 5;

	(void)state;
	memset(codes, 0x5a, sizeof(codes));
	b.narrow = KVD_CONVERT_NARROW_COUNT;
	assert_int_equal(kvd_convert_blocks_encode(codes, scales, src, &b), -EINVAL);
	b.narrow = KVD_CONVERT_E4M3;
	scales[0] = 1;
	scales[1] = 0;
	assert_int_equal(kvd_convert_blocks_encode_with(codes, scales, src, &b), -EINVAL);
	assert_int_equal(codes[0], 0x5a);
	assert_int_equal(kvd_convert_absmax_scale(&scale, src, 1, KVD_CONVERT_WIDE_COUNT, KVD_CONVERT_E4M3), -EINVAL);
	assert_int_equal(kvd_convert_fp16_to_e4m3(codes, src, 1, 0), -EINVAL);
	assert_int_equal(codes[0], 0x5a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_are_what_the_single_functions_make),
		cmocka_unit_test(test_given_scales_make_the_same_codes),
		cmocka_unit_test(test_nonsense_is_refused_and_nothing_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
