/* CRC32C (Castagnoli, RFC 3720 B.4) of a buffer; with the CPU's instruction where it has one. */
#ifndef KVD_COMMON_CRC32C_H
#define KVD_COMMON_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue `crc` (0 for a new sum) over `bytes` bytes at `data`. */
uint32_t kvd_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
