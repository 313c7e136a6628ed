#include "common/crc32c.h"

#include "common/crc32c_impl.h"

/* CRC32C polynomial, bit-reflected (RFC 3720, 12.1). */
#define CRC_POLYNOMIAL 0x82f63b78u

enum { CRC_SLICES = 8, CRC_BYTE_VALUES = 256 };

/* crc_table[k][b]: what byte `b` followed by k zero bytes adds to the sum. */
static uint32_t crc_table[CRC_SLICES][CRC_BYTE_VALUES];

/* Before main, and so before any thread could read the table half made. */
__attribute__((constructor)) static void crc_table_make(void)
{
	for (uint32_t byte = 0; byte < CRC_BYTE_VALUES; byte++) {
		uint32_t crc = byte;

		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (CRC_POLYNOMIAL & (0u - (crc & 1u)));
		crc_table[0][byte] = crc;
	}
	for (int slice = 1; slice < CRC_SLICES; slice++)
		for (uint32_t byte = 0; byte < CRC_BYTE_VALUES; byte++) {
			uint32_t crc = crc_table[slice - 1][byte];

			crc_table[slice][byte] = (crc >> 8) ^ crc_table[0][crc & 0xff];
		}
}

static uint32_t load_le32(const uint8_t *at)
{
	return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t kvd_crc32c_scalar(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	crc = ~crc;
	for (; bytes >= CRC_SLICES; bytes -= CRC_SLICES, at += CRC_SLICES) {
		uint32_t low = crc ^ load_le32(at);
		uint32_t high = load_le32(at + 4);

		crc = crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^
		      crc_table[5][low >> 16 & 0xff] ^ crc_table[4][low >> 24] ^
		      crc_table[3][high & 0xff] ^ crc_table[2][high >> 8 & 0xff] ^
		      crc_table[1][high >> 16 & 0xff] ^ crc_table[0][high >> 24];
	}
	for (; bytes > 0; bytes--, at++)
		crc = (crc >> 8) ^ crc_table[0][(crc ^ *at) & 0xff];
	return ~crc;
}

uint32_t kvd_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
	if (kvd_crc32c_has_sse42())
		return kvd_crc32c_sse42(crc, data, bytes);
#endif
	return kvd_crc32c_scalar(crc, data, bytes);
}
