#include "test_convert.h"

#define FINITE_MAX 0x8000u

/* A floating-point format: sign, exponent, mantissa; `finite` magnitudes 0 to finite - 1 are numbers. */
struct format {
	int mantissa_bits;
	int bias;
	uint32_t finite;
	bool has_inf;
};

static const struct format wide_formats[] = {
	[KVD_CONVERT_FP16] = {.mantissa_bits = 10, .bias = 15, .finite = 0x7c00, .has_inf = true},
	[KVD_CONVERT_BF16] = {.mantissa_bits = 7, .bias = 127, .finite = 0x7f80, .has_inf = true},
};
static const struct format narrow_formats[] = {
	[KVD_CONVERT_E4M3] = {.mantissa_bits = 3, .bias = 7, .finite = 0x7f, .has_inf = false},
	[KVD_CONVERT_E5M2] = {.mantissa_bits = 2, .bias = 15, .finite = 0x7c, .has_inf = true},
};

static double magnitude_value(uint32_t magnitude, const struct format *format)
{
	int exponent = (int)(magnitude >> format->mantissa_bits);
	double mantissa = magnitude & ((1u << format->mantissa_bits) - 1);

	if (magnitude >= format->finite)
		return format->has_inf && magnitude == format->finite ? (double)INFINITY : (double)NAN;
	if (exponent == 0)
		return ldexp(mantissa, 1 - format->bias - format->mantissa_bits);
	return ldexp(1 + ldexp(mantissa, -format->mantissa_bits), exponent - format->bias);
}

double ref_wide_value(uint16_t bits, enum kvd_convert_wide wide)
{
	double value = magnitude_value(bits & 0x7fffu, &wide_formats[wide]);

	return bits >> 15 ? -value : value;
}

double ref_code_value(uint8_t code, enum kvd_convert_narrow narrow)
{
	double value;

	if (narrow == KVD_CONVERT_INT8)
		return code < 128 ? code : code - 256;
	value = magnitude_value(code & 0x7fu, &narrow_formats[narrow]);
	return code >> 7 ? -value : value;
}

/*
 * The magnitude whose value is nearest, the even one of two: bisection, for values grow with the magnitude. Infinity and
 * what lies beyond take the largest.
 */
static uint32_t nearest(double value, const struct format *format)
{
	uint32_t below = 0, above = format->finite - 1;
	double under, over;

	if (value >= magnitude_value(above, format))
		return above;
	while (above - below > 1) {
		uint32_t middle = (below + above) / 2;

		if (magnitude_value(middle, format) <= value)
			below = middle;
		else
			above = middle;
	}
	under = value - magnitude_value(below, format);
	over = magnitude_value(above, format) - value;
	if (under != over)
		return under < over ? below : above;
	return below % 2 ? above : below;
}

static int nearest_int8(double value)
{
	int best = -127;

	if (isnan(value))
		return 0;
	if (fabs(value) >= 127)
		return value < 0 ? -127 : 127;
	for (int code = -127; code <= 127; code++) {
		double off = fabs(code - value), best_off = fabs(best - value);

		if (off < best_off || (off == best_off && code % 2 == 0))
			best = code;
	}
	return best;
}

uint8_t ref_encode(uint16_t bits, float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	/* Doubles hold the product of two floats; of a quotient rounded twice, 53 bits are known to be enough. */
	double reciprocal = (float)(1.0 / (double)scale);
	double value = (float)(ref_wide_value(bits, wide) * reciprocal);
	uint8_t sign = (uint8_t)(bits >> 8 & 0x80);

	if (narrow == KVD_CONVERT_INT8)
		return (uint8_t)nearest_int8(value);
	if (isnan(value))
		return sign | 0x7f;
	return (uint8_t)(sign | nearest(fabs(value), &narrow_formats[narrow]));
}

uint16_t ref_decode(uint8_t code, float scale, enum kvd_convert_wide wide, enum kvd_convert_narrow narrow)
{
	const struct format *format = &wide_formats[wide];
	double of_code = ref_code_value(code, narrow);
	uint32_t sign = code & 0x80 ? 0x8000 : 0;

	if (isnan(of_code))
		return (uint16_t)(sign | (wide == KVD_CONVERT_FP16 ? 0x7e00 : 0x7fc0));
	if (isinf(of_code))
		return (uint16_t)(sign | format->finite);
	/* A product beyond FP32 is beyond both wide formats as well. */
	if (fabs(of_code * (double)scale) > 0x1p127)
		return (uint16_t)(sign | nearest(fabs(of_code * (double)scale), format));
	return (uint16_t)(sign | nearest(fabs((double)(float)(of_code * (double)scale)), format));
}

uint32_t ref_draw(void)
{
	static uint64_t at = 20251130;

	at ^= at << 13;
	at ^= at >> 7;
	at ^= at << 17;
	return (uint32_t)(at >> 32);
}

void ref_fill(void *at, size_t bytes)
{
	uint8_t *to = at;

	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)ref_draw();
}
