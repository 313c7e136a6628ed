#include "common/crc32c_impl.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define SSE42 __attribute__((target("sse4.2,pclmul")))

/*
 * The instruction takes 8 bytes a cycle but answers after three, so three streams of `bytes` each run side by side and
 * are joined: the sum of A followed by n bytes B is sum(A) * x^(8n) + sum(B) modulo the polynomial. With reflected
 * operands the carry-less product of a sum and x^(8n - 33), fed through the instruction (which multiplies by x^32),
 * gives exactly that product; the missing x comes from the reflection.
 */
struct crc_stride {
	size_t bytes;       /* of one stream; a multiple of 8 */
	uint64_t shift_one; /* x^(8 * bytes - 33) mod P, reflected */
	uint64_t shift_two; /* x^(16 * bytes - 33) mod P, reflected */
};

/* Long: eight of them and 64 bytes are a page of 64 KiB. Short: for what is left of odd sizes. */
static const struct crc_stride crc_stride_long = {2728, 0x7b454cb3, 0x5d4c91fc};
static const struct crc_stride crc_stride_short = {248, 0xffd852c6, 0x064f7f26};

bool kvd_crc32c_has_sse42(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static uint64_t load64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

SSE42 static uint64_t crc_shift(uint64_t crc, uint64_t by)
{
	__m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)by), 0);

	return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

SSE42 static uint64_t crc_three_streams(uint64_t crc, const uint8_t *at, const struct crc_stride *stride)
{
	uint64_t second = 0, third = 0;

	for (size_t i = 0; i < stride->bytes; i += 8) {
		crc = _mm_crc32_u64(crc, load64(at + i));
		second = _mm_crc32_u64(second, load64(at + stride->bytes + i));
		third = _mm_crc32_u64(third, load64(at + 2 * stride->bytes + i));
	}
	return crc_shift(crc, stride->shift_two) ^ crc_shift(second, stride->shift_one) ^ third;
}

SSE42 uint32_t kvd_crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
	const struct crc_stride *strides[] = {&crc_stride_long, &crc_stride_short};
	const uint8_t *at = data;
	uint64_t sum = ~crc;

	for (size_t s = 0; s < sizeof(strides) / sizeof(strides[0]); s++)
		for (size_t block = 3 * strides[s]->bytes; bytes >= block; bytes -= block, at += block)
			sum = crc_three_streams(sum, at, strides[s]);
	for (; bytes >= 8; bytes -= 8, at += 8)
		sum = _mm_crc32_u64(sum, load64(at));
	for (; bytes > 0; bytes--, at++)
		sum = _mm_crc32_u8((uint32_t)sum, *at);
	return ~(uint32_t)sum;
}

#else

/* Nothing here on other CPUs; ISO C wants a declaration in each source. */
typedef int kvd_crc32c_sse42_absent;

#endif
