/* Units: what each format makes of values, and what becomes of those that it does not suit. */
#include "common/crc32c.h"
#include "test_format.h"

enum { TOKENS = 200, CHANNELS = 48, VALUES = TOKENS * CHANNELS };

static uint16_t src[VALUES], back[VALUES], decoded[VALUES];
static uint8_t made[sizeof(src)];

static struct kvd_format_unit unit_of(uint32_t kind, uint32_t dtype)
{
	return (struct kvd_format_unit){.tokens = TOKENS,
					.channels = CHANNELS,
					.bytes = sizeof(src),
					.kind = kind,
					.dtype = dtype,
					.role = KVD_FORMAT_VALUES};
}

static struct kvd_format_work *work_of(void)
{
	struct kvd_format_region region = format_array(0, 1, TOKENS, CHANNELS, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_plan *plan = format_plan(&region, 1, FORMAT_TEST_PAGE);
	struct kvd_format_work *work;

	assert_int_equal(kvd_format_work_init(plan, KVD_FORMAT_LEVEL_DEFAULT, &work), 0);
	kvd_format_plan_fini(plan);
	return work;
}

/* Encode `src` and decode it again: `back` is what was promised. */
static struct kvd_format_stored round_trip(const struct kvd_format_unit *unit, struct kvd_format_error *errors)
{
	struct kvd_format_work *work = work_of();
	struct kvd_format_stored stored;

	memset(errors, 0, KVD_FORMAT_ROLES * sizeof(*errors));
	assert_int_equal(kvd_format_encode(work, unit, src, made, back, &stored, errors), 0);
	assert_int_equal(kvd_format_decode(work, unit, &stored, made, decoded), 0);
	assert_memory_equal(back, decoded, sizeof(back));
	kvd_format_work_fini(work);
	return stored;
}

/* The error that is told is that of the values; it is what the format's codes allow; what is stored has its size. */
static void test_lossy_formats(void **state)
{
	/* Of a value, or of the block's largest: half a step of the codes, and the rounding of scale and result. */
	static const struct {
		uint32_t kind, code_bits;
		double relative, of_most;
	} formats[] = {
		{KVD_FORMAT_E4M3, 8, 0.0626, 0.0001},
		{KVD_FORMAT_E5M2, 8, 0.1251, 0.0001},
		{KVD_FORMAT_INT8, 8, 0.0005, 0.5 / 127 + 0.0001},
		{KVD_FORMAT_INT4, 4, 0.0005, 0.5 / 7.5 + 0.0001},
	};

	(void)state;
	for (uint32_t dtype = KVD_FORMAT_FP16; dtype <= KVD_FORMAT_BF16; dtype++)
		for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
			struct kvd_format_unit unit = unit_of(formats[f].kind, dtype);
			struct kvd_format_error errors[KVD_FORMAT_ROLES];
			struct kvd_format_stored stored;
			double square = 0, square_error = 0, most = 0, rounding = dtype == KVD_FORMAT_BF16 ? 0.004 : 0.0005;
			size_t scale = dtype == KVD_FORMAT_FP16 ? 2 : 4;
			size_t scales = (size_t)4 * CHANNELS * (scale + (formats[f].kind == KVD_FORMAT_INT4)); /* and zeros */

			format_fill(src, VALUES, dtype);
			stored = round_trip(&unit, errors);
			assert_int_equal(stored.kind, formats[f].kind);
			assert_int_equal(stored.bytes, scales + (size_t)VALUES * formats[f].code_bits / 8);
			for (size_t i = 0; i < VALUES; i++) {
				double value = format_value(src[i], dtype), off = fabs(value - format_value(decoded[i], dtype));

				assert_true(off <= fabs(value) * (formats[f].relative + rounding) + formats[f].of_most * 2);
				square += value * value;
				square_error += off * off;
				most = off > most ? off : most;
			}
			assert_int_equal(errors[KVD_FORMAT_VALUES].values, VALUES);
			assert_true(fabs(errors[KVD_FORMAT_VALUES].square - square) <= 1e-9 * square);
			assert_true(fabs(errors[KVD_FORMAT_VALUES].square_error - square_error) <= 1e-9 * square_error);
			assert_true(errors[KVD_FORMAT_VALUES].most == most && most > 0);
			assert_int_equal(errors[KVD_FORMAT_KEYS].values, 0);
		}
}

static void expect_exact(const struct kvd_format_unit *unit, uint32_t kind)
{
	struct kvd_format_error errors[KVD_FORMAT_ROLES];
	struct kvd_format_stored stored = round_trip(unit, errors);

	assert_int_equal(stored.kind, kind);
	assert_memory_equal(src, decoded, sizeof(src));
	assert_true(errors[KVD_FORMAT_VALUES].square_error == 0);
}

/* An infinity or a NaN, wherever: not a bit of the unit changes, in any lossy format. */
static void test_what_is_not_finite_stays_exact(void **state)
{
	static const uint16_t bits[] = {0x7c00, 0xfc00, 0x7e01, 0xffff};

	(void)state;
	for (uint32_t kind = KVD_FORMAT_E4M3; kind <= KVD_FORMAT_INT4; kind++)
		for (size_t i = 0; i < 4; i++) {
			struct kvd_format_unit unit = unit_of(kind, KVD_FORMAT_FP16);

			format_fill(src, VALUES, KVD_FORMAT_FP16);
			src[format_draw() % VALUES] = bits[i];
			expect_exact(&unit, KVD_FORMAT_ZSTD);
		}
}

/* -0 and subnormals are values like others: FP8 keeps the sign, and all keep them within their step. */
static void test_signed_zeros_and_subnormals(void **state)
{
	struct kvd_format_unit unit = unit_of(KVD_FORMAT_E4M3, KVD_FORMAT_FP16);
	struct kvd_format_error errors[KVD_FORMAT_ROLES];

	(void)state;
	for (size_t i = 0; i < VALUES; i++)
		src[i] = (uint16_t)(i % 2 ? 0x8000 : format_draw() & 0x83ff);
	assert_int_equal(round_trip(&unit, errors).kind, KVD_FORMAT_E4M3);
	for (size_t i = 1; i < VALUES; i += 2)
		assert_int_equal(decoded[i], 0x8000);
	assert_true(errors[KVD_FORMAT_VALUES].square_error < errors[KVD_FORMAT_VALUES].square * 0.0626 * 0.0626);
}

static void test_zeros_take_nothing(void **state)
{
	(void)state;
	memset(src, 0, sizeof(src));
	for (uint32_t kind = KVD_FORMAT_RAW; kind <= KVD_FORMAT_INT4; kind++) {
		struct kvd_format_unit unit = unit_of(kind, KVD_FORMAT_FP16);

		expect_exact(&unit, KVD_FORMAT_ZEROS);
	}
}

/* Bit-exact, and smaller only where that is worth it. */
static void test_exact_formats(void **state)
{
	struct kvd_format_error errors[KVD_FORMAT_ROLES];
	struct kvd_format_unit unit;

	(void)state;
	for (uint32_t dtype = 0; dtype < KVD_FORMAT_DTYPES; dtype++) {
		unit = unit_of(KVD_FORMAT_ZSTD, dtype);
		for (size_t i = 0; i < VALUES; i++)
			src[i] = (uint16_t)format_draw();
		expect_exact(&unit, KVD_FORMAT_RAW); /* noise */
		for (size_t i = 0; i < VALUES; i++)
			src[i] = (uint16_t)(i / 7);
		expect_exact(&unit, KVD_FORMAT_ZSTD);
		unit.kind = KVD_FORMAT_RAW;
		expect_exact(&unit, KVD_FORMAT_RAW);
	}
	/* The planes: what zstd alone makes nothing of. */
	unit = unit_of(KVD_FORMAT_ZSTD, KVD_FORMAT_BF16);
	format_fill(src, VALUES, KVD_FORMAT_BF16);
	assert_in_range(round_trip(&unit, errors).bytes, 1, sizeof(src) * 4 / 5);
	expect_exact(&unit, KVD_FORMAT_ZSTD);
}

/* Lengths that are no multiple of an element, and a single byte. */
static void test_odd_lengths(void **state)
{
	struct kvd_format_work *work = work_of();
	struct kvd_format_error errors[KVD_FORMAT_ROLES] = {0};

	(void)state;
	for (uint32_t bytes = 1; bytes < 400; bytes += 1 + bytes / 50)
		for (uint32_t dtype = 0; dtype < KVD_FORMAT_DTYPES; dtype++) {
			struct kvd_format_unit unit = {.bytes = bytes, .kind = KVD_FORMAT_ZSTD, .dtype = dtype};
			struct kvd_format_stored stored;

			for (size_t i = 0; i < VALUES; i++)
				src[i] = (uint16_t)(1 + i % 3);
			memset(decoded, 0xa5, sizeof(decoded));
			assert_int_equal(kvd_format_encode(work, &unit, src, made, NULL, &stored, errors), 0);
			assert_in_range(stored.bytes, 1, bytes);
			assert_int_equal(kvd_format_decode(work, &unit, &stored, made, decoded), 0);
			assert_memory_equal(src, decoded, bytes);
			assert_int_equal(((uint8_t *)decoded)[bytes], 0xa5);
		}
	kvd_format_work_fini(work);
}

/* One bit of what is stored, whichever: never other bytes. With a right checksum: refused, or some bytes, never a crash. */
static void test_damage(void **state)
{
	struct kvd_format_work *work = work_of();
	struct kvd_format_error errors[KVD_FORMAT_ROLES] = {0};

	(void)state;
	for (uint32_t kind = KVD_FORMAT_RAW; kind <= KVD_FORMAT_INT4; kind++) {
		struct kvd_format_unit unit = unit_of(kind, KVD_FORMAT_FP16);
		struct kvd_format_stored stored, forged;

		format_fill(src, VALUES, KVD_FORMAT_FP16);
		assert_int_equal(kvd_format_encode(work, &unit, src, made, NULL, &stored, errors), 0);
		for (int i = 0; i < 300; i++) {
			uint32_t at = i < 16 ? (uint32_t)i : format_draw() % stored.bytes;

			made[at] ^= (uint8_t)(1 << i % 8);
			assert_int_equal(kvd_format_decode(work, &unit, &stored, made, decoded), -EBADMSG);
			forged = stored;
			forged.bytes = i % 3 ? stored.bytes : format_draw() % stored.bytes;
			forged.crc = kvd_crc32c(0, made, forged.bytes);
			if (kvd_format_decode(work, &unit, &forged, made, decoded) != 0)
				assert_int_equal(kvd_format_decode(work, &unit, &forged, made, decoded), -EPROTO);
			made[at] ^= (uint8_t)(1 << i % 8);
		}
		forged = stored;
		forged.kind = KVD_FORMAT_KINDS;
		assert_int_equal(kvd_format_decode(work, &unit, &forged, made, decoded), -EPROTO);
		forged.kind = KVD_FORMAT_ZEROS;
		assert_int_equal(kvd_format_decode(work, &unit, &forged, made, decoded), -EPROTO);
	}
	kvd_format_work_fini(work);
}

static void test_refusals(void **state)
{
	struct kvd_format_region region = format_array(0, 1, TOKENS, CHANNELS, KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_plan *plan = format_plan(&region, 1, FORMAT_TEST_PAGE);
	struct kvd_format_unit unit = unit_of(KVD_FORMAT_INT8, KVD_FORMAT_FP16);
	struct kvd_format_error errors[KVD_FORMAT_ROLES] = {0};
	struct kvd_format_work *work = work_of();
	struct kvd_format_stored stored = {0};

	(void)state;
	assert_int_equal(kvd_format_work_init(plan, 13, &work), -EINVAL);
	assert_int_equal(kvd_format_work_init(plan, -8, &work), -EINVAL);
	unit.bytes = KVD_FORMAT_UNIT_BYTES_MAX; /* more than the plan has */
	assert_int_equal(kvd_format_encode(work, &unit, src, made, NULL, &stored, errors), -EINVAL);
	assert_int_equal(kvd_format_decode(work, &unit, &stored, made, decoded), -EINVAL);
	kvd_format_plan_fini(plan);
	kvd_format_work_fini(work);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lossy_formats),
		cmocka_unit_test(test_what_is_not_finite_stays_exact),
		cmocka_unit_test(test_signed_zeros_and_subnormals),
		cmocka_unit_test(test_zeros_take_nothing),
		cmocka_unit_test(test_exact_formats),
		cmocka_unit_test(test_odd_lengths),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
