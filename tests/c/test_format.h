/* Objects and plans for the tests of csrc/format. */
#ifndef KVD_TEST_FORMAT_H
#define KVD_TEST_FORMAT_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "format/format.h"
#include "format/internal.h"

enum { FORMAT_TEST_PAGE = 65536 };

uint32_t format_draw(void);
/* Values as a cache has them: around 1, in FP16 or BF16. */
void format_fill(void *at, size_t values, uint32_t dtype);
double format_value(uint16_t bits, uint32_t dtype);

struct kvd_format_region format_exact(uint64_t offset, uint64_t bytes, uint32_t kind, uint32_t dtype);
struct kvd_format_region format_array(uint64_t offset, uint32_t arrays, uint64_t tokens, uint32_t channels, uint32_t kind,
				      uint32_t dtype);
struct kvd_format_plan *format_plan(const struct kvd_format_region *regions, uint32_t count, uint32_t page_bytes);
/* A file without a name, of these bytes. */
int format_file(const void *bytes, size_t count);

#endif
