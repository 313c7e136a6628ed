/* Speeds of encoding and decoding, beside memcpy, in one run: a thread, units of 64 KiB, values like those of a cache. */
#include <stdio.h>
#include <time.h>

#include "test_format.h"

enum { TOKENS = 8192, CHANNELS = 1024, ROUNDS = 5 };

static const char *const names[] = {"raw", "zstd", "fp8-e4m3", "fp8-e5m2", "int8", "int4"};

static double now_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Sums of draws: near enough to a normal distribution for what zstd makes of exponents. */
static void fill_normal(uint16_t *at, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		double sum = -6;
		uint16_t best = 0;

		for (int draws = 0; draws < 12; draws++)
			sum += (double)format_draw() * 0x1p-32;
		if (fabs(sum) >= 0x1p-14) {
			int exponent;
			double mantissa = frexp(fabs(sum), &exponent);

			best = (uint16_t)((exponent + 14) << 10 | ((int)ldexp(mantissa, 11) & 0x3ff));
		}
		at[i] = (uint16_t)(best | (sum < 0 ? 0x8000 : 0));
	}
}

struct run {
	struct kvd_format_plan *plan;
	struct kvd_format_work *work;
	struct kvd_format_stored *stored;
	uint8_t *plain, *made, *back;
	uint64_t bytes;
};

static double encode_s(struct run *run)
{
	struct kvd_format_error errors[KVD_FORMAT_ROLES] = {0};
	double begin = now_s();

	for (uint32_t i = 0; i < kvd_format_plan_units(run->plan); i++) {
		struct kvd_format_unit unit;

		assert_int_equal(kvd_format_plan_unit(run->plan, i, &unit), 0);
		assert_int_equal(kvd_format_encode(run->work, &unit, run->plain + unit.offset, run->made + unit.offset, NULL,
						   &run->stored[i], errors),
				 0);
	}
	return now_s() - begin;
}

static double decode_s(struct run *run)
{
	double begin = now_s();

	for (uint32_t i = 0; i < kvd_format_plan_units(run->plan); i++) {
		struct kvd_format_unit unit;

		assert_int_equal(kvd_format_plan_unit(run->plan, i, &unit), 0);
		assert_int_equal(kvd_format_decode(run->work, &unit, &run->stored[i], run->made + unit.offset,
						   run->back + unit.offset),
				 0);
	}
	return now_s() - begin;
}

static double copy_s(struct run *run)
{
	double begin = now_s();

	memcpy(run->back, run->plain, run->bytes);
	return now_s() - begin;
}

static double fastest(double (*what)(struct run *), struct run *run)
{
	double best = INFINITY;

	for (int i = 0; i < ROUNDS; i++) {
		double took = what(run);

		best = took < best ? took : best;
	}
	return best;
}

static void show(struct run *run, uint32_t kind, double copied_s)
{
	struct kvd_format_region region = format_array(0, 1, TOKENS, CHANNELS, kind, KVD_FORMAT_FP16);
	uint64_t stored = 0;
	double encoded_s, decoded_s;

	run->plan = format_plan(&region, 1, FORMAT_TEST_PAGE);
	assert_int_equal(kvd_format_work_init(run->plan, KVD_FORMAT_LEVEL_DEFAULT, &run->work), 0);
	encoded_s = fastest(encode_s, run);
	decoded_s = fastest(decode_s, run);
	for (uint32_t i = 0; i < kvd_format_plan_units(run->plan); i++)
		stored += run->stored[i].bytes;
	printf("%-9s %5.2f %7.2f %7.2f %9.2f %9.2f\n", names[kind], (double)run->bytes / (double)stored,
	       (double)run->bytes / encoded_s / 1e9, (double)run->bytes / decoded_s / 1e9, copied_s / encoded_s,
	       copied_s / decoded_s);
	kvd_format_work_fini(run->work);
	kvd_format_plan_fini(run->plan);
}

int main(void)
{
	struct run run = {.bytes = (uint64_t)TOKENS * CHANNELS * FORMAT_WIDE_BYTES};
	double copied_s;

	run.plain = malloc(run.bytes);
	run.made = calloc(1, run.bytes);
	run.back = calloc(1, run.bytes);
	run.stored = calloc(run.bytes / KVD_FORMAT_UNIT_BYTES + 1, sizeof(*run.stored));
	assert_true(run.plain && run.made && run.back && run.stored);
	fill_normal((uint16_t *)(void *)run.plain, run.bytes / FORMAT_WIDE_BYTES);
	copied_s = fastest(copy_s, &run);
	printf("memcpy %.2f GB/s of %u MiB\n", (double)run.bytes / copied_s / 1e9, (unsigned int)(run.bytes >> 20));
	printf("format    ratio  encode  decode, GB/s; of memcpy: encode, decode\n");
	for (uint32_t kind = KVD_FORMAT_RAW; kind <= KVD_FORMAT_INT4; kind++)
		show(&run, kind, copied_s);
	free(run.plain);
	free(run.made);
	free(run.back);
	free(run.stored);
	return 0;
}
