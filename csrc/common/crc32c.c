#include "common/crc32c.h"

/* CRC32C polynomial, bit-reflected (RFC 3720, 12.1). */
#define KVD_CRC32C_POLYNOMIAL 0x82f63b78u

uint32_t kvd_crc32c(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	crc = ~crc;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= at[i];
		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (KVD_CRC32C_POLYNOMIAL & (0u - (crc & 1u)));
	}
	return ~crc;
}
