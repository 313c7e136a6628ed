#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"

/* RFC 3720, B.4: the sums of 32 bytes of zeroes, of ones, ascending and descending. */
static void test_rfc3720_vectors(void **state)
{
	uint8_t data[32];

	(void)state;
	memset(data, 0, sizeof(data));
	assert_int_equal(kvd_crc32c(0, data, sizeof(data)), 0x8a9136aa);
	memset(data, 0xff, sizeof(data));
	assert_int_equal(kvd_crc32c(0, data, sizeof(data)), 0x62a8ab43);
	for (unsigned int i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)i;
	assert_int_equal(kvd_crc32c(0, data, sizeof(data)), 0x46dd794e);
	for (unsigned int i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(31 - i);
	assert_int_equal(kvd_crc32c(0, data, sizeof(data)), 0x113fdb5c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rfc3720_vectors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
