#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/crc32c_impl.h"

typedef uint32_t crc_function(uint32_t crc, const void *data, size_t bytes);

/* RFC 3720, B.4: the sums of 32 bytes of zeroes, of ones, ascending, descending, and of a SCSI read command. */
static void check_vectors(crc_function *crc)
{
	static const uint8_t scsi_read[48] = {
		[0] = 0x01, [1] = 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02,
	};
	uint8_t data[32];

	memset(data, 0, sizeof(data));
	assert_int_equal(crc(0, data, sizeof(data)), 0x8a9136aa);
	memset(data, 0xff, sizeof(data));
	assert_int_equal(crc(0, data, sizeof(data)), 0x62a8ab43);
	for (unsigned int i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)i;
	assert_int_equal(crc(0, data, sizeof(data)), 0x46dd794e);
	for (unsigned int i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(31 - i);
	assert_int_equal(crc(0, data, sizeof(data)), 0x113fdb5c);
	assert_int_equal(crc(0, scsi_read, sizeof(scsi_read)), 0xd9963a56);
	assert_int_equal(crc(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc(0x1234, NULL, 0), 0x1234);
}

static void test_rfc3720_vectors(void **state)
{
	(void)state;
	check_vectors(kvd_crc32c);
	check_vectors(kvd_crc32c_scalar);
}

/* The chosen implementation against the scalar one: each length around each stride, random ones, all alignments. */
static void test_agrees_with_scalar(void **state)
{
	enum { BUFFER_BYTES = 70000, RANDOM_ROUNDS = 400, NEAR_BYTES = 9 };
	static const size_t around[] = {8, 248, 744, 2728, 8184, 16368, 65536};
	uint8_t *data = malloc(BUFFER_BYTES);
	unsigned int seed = 20251130;

	(void)state;
	assert_non_null(data);
	for (size_t i = 0; i < BUFFER_BYTES; i++)
		data[i] = (uint8_t)rand_r(&seed);
	for (size_t a = 0; a < sizeof(around) / sizeof(around[0]); a++)
		for (size_t off = 0; off < 2 * NEAR_BYTES && around[a] + off >= NEAR_BYTES; off++) {
			size_t bytes = around[a] + off - NEAR_BYTES;

			assert_int_equal(kvd_crc32c(7, data + off, bytes), kvd_crc32c_scalar(7, data + off, bytes));
		}
	for (int round = 0; round < RANDOM_ROUNDS; round++) {
		uint32_t start = (uint32_t)rand_r(&seed);
		size_t at = (size_t)rand_r(&seed) % 64;
		size_t bytes = (size_t)rand_r(&seed) % (BUFFER_BYTES - 64);

		assert_int_equal(kvd_crc32c(start, data + at, bytes), kvd_crc32c_scalar(start, data + at, bytes));
	}
	free(data);
}

/* A sum may be continued over any split. */
static void test_continues(void **state)
{
	uint8_t data[9000];
	unsigned int seed = 3;
	uint32_t whole;

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)rand_r(&seed);
	whole = kvd_crc32c(0, data, sizeof(data));
	for (size_t cut = 0; cut <= sizeof(data); cut += 37)
		assert_int_equal(kvd_crc32c(kvd_crc32c(0, data, cut), data + cut, sizeof(data) - cut), whole);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rfc3720_vectors),
		cmocka_unit_test(test_agrees_with_scalar),
		cmocka_unit_test(test_continues),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
