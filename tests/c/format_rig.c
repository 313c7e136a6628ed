#include <sys/mman.h>
#include <unistd.h>

#include "test_format.h"

uint32_t format_draw(void)
{
	static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 32);
}

void format_fill(void *at, size_t values, uint32_t dtype)
{
	for (size_t i = 0; i < values; i++) {
		uint32_t bits = format_draw();
		/* Exponents of 2^-7 to 1, any sign and mantissa. */
		uint16_t value = (uint16_t)(dtype == KVD_FORMAT_FP16 ? (bits & 0x83ff) | (0x2000 + (bits >> 16 & 7) * 0x400)
							: (bits & 0x807f) | (0x3c00 + (bits >> 16 & 7) * 0x80));

		memcpy((uint8_t *)at + i * sizeof(value), &value, sizeof(value));
	}
}

double format_value(uint16_t bits, uint32_t dtype)
{
	int exponent = dtype == KVD_FORMAT_FP16 ? bits >> 10 & 31 : bits >> 7 & 255;
	int mantissa_bits = dtype == KVD_FORMAT_FP16 ? 10 : 7, bias = dtype == KVD_FORMAT_FP16 ? 15 : 127;
	int mantissa = bits & ((1 << mantissa_bits) - 1);
	double magnitude = exponent ? ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias)
				    : ldexp(mantissa, 1 - bias - mantissa_bits);

	return bits & 0x8000 ? -magnitude : magnitude;
}

struct kvd_format_region format_exact(uint64_t offset, uint64_t bytes, uint32_t kind, uint32_t dtype)
{
	return (struct kvd_format_region){.offset = offset, .bytes = bytes, .kind = kind, .dtype = dtype};
}

struct kvd_format_region format_array(uint64_t offset, uint32_t arrays, uint64_t tokens, uint32_t channels, uint32_t kind,
				      uint32_t dtype)
{
	return (struct kvd_format_region){
		.offset = offset,
		.bytes = arrays * tokens * channels * FORMAT_WIDE_BYTES,
		.tokens = tokens,
		.arrays = arrays,
		.channels = channels,
		.kind = kind,
		.dtype = dtype,
		.role = KVD_FORMAT_KEYS,
	};
}

struct kvd_format_plan *format_plan(const struct kvd_format_region *regions, uint32_t count, uint32_t page_bytes)
{
	const struct kvd_format_region *last = &regions[count - 1];
	struct kvd_format_plan *plan;

	assert_int_equal(kvd_format_plan_init(regions, count, last->offset + last->bytes, page_bytes, &plan), 0);
	return plan;
}

int format_file(const void *bytes, size_t count)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, count), count);
	return fd;
}
