/* What the conversions mean, said once more and slowly: in double precision, by a search for the nearest value. */
#ifndef KVD_TEST_CONVERT_H
#define KVD_TEST_CONVERT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "convert/convert.h"
#include "convert/internal.h"

/* The value of a 16-bit float; NaN and infinities as such. */
double ref_wide_value(uint16_t bits, enum kvd_convert_wide wide);
double ref_code_value(uint8_t code, enum kvd_convert_narrow narrow);
/* The code for a wide value at a scale, and the wide value for a code. */
uint8_t ref_encode(uint16_t bits, float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow);
uint16_t ref_decode(uint8_t code, float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow);

/* Deterministic draws. */
uint32_t ref_draw(void);
void ref_fill(void *at, size_t bytes);

#endif
