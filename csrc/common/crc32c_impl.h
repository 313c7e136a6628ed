/* The implementations behind kvd_crc32c, for its own sources and the test that holds them against each other. */
#ifndef KVD_COMMON_CRC32C_IMPL_H
#define KVD_COMMON_CRC32C_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Slicing by eight, on any CPU. */
uint32_t kvd_crc32c_scalar(uint32_t crc, const void *data, size_t bytes);

/* Three interleaved streams of the CPU's instruction; call only where kvd_crc32c_has_sse42 says so. */
bool kvd_crc32c_has_sse42(void);
uint32_t kvd_crc32c_sse42(uint32_t crc, const void *data, size_t bytes);

#endif
