/*
 * INT4 in blocks: INT8's kernels at a coarser scale, and what their codes are above the least of them packed into half a byte.
 *
 * Channels of K have a mean that is large against how far they scatter; a symmetric code would spend its few steps on that.
 */
#include <errno.h>

#include "convert/internal.h"

enum {
	CODE_BITS = 4,
	MAGNITUDE = 0x7fff,
};

/* A block's channels that are worked on together. */
struct tile {
	size_t first;    /* element of the array */
	size_t packed;   /* byte of its first token's codes */
	size_t scale;    /* index of its first scale */
	size_t tokens;   /* at most KVD_CONVERT_BLOCK_TOKENS */
	size_t channels; /* at most CONVERT_TILE_CHANNELS */
};

size_t kvd_convert_int4_row_bytes(size_t channels)
{
	return channels / 2 + channels % 2;
}

/* Bits of a float as a number that sorts as the float does, and the other way round. */
static int16_t sortable(uint16_t bits)
{
	return (int16_t)(bits ^ (MAGNITUDE & (uint16_t)((int16_t)bits >> 15)));
}

/* Note the smallest and the largest finite value of each channel, sortable. */
static void spread(int16_t *restrict least, int16_t *restrict most, const uint8_t *restrict src, size_t count,
		   uint16_t inf_bits)
{
	for (size_t i = 0; i < count; i++) {
		uint16_t bits;
		int16_t key, low, high;

		memcpy(&bits, src + i * CONVERT_WIDE_BYTES, sizeof(bits));
		key = sortable(bits);
		low = (bits & MAGNITUDE) < inf_bits ? key : INT16_MAX;
		high = (bits & MAGNITUDE) < inf_bits ? key : INT16_MIN;
		least[i] = low < least[i] ? low : least[i];
		most[i] = high > most[i] ? high : most[i];
	}
}

/* The difference is taken of the 15ths: that of BF16's extremes is infinite. */
static float scale_of(float least, float most)
{
	float magnitude = most > -least ? most : -least;
	float scale = most / CONVERT_INT4_MAX - least / CONVERT_INT4_MAX;

	if (scale < magnitude / CONVERT_INT8_MAX)
		scale = magnitude / CONVERT_INT8_MAX;
	if (magnitude == 0)
		return 1.0f;
	if (scale > KVD_CONVERT_SCALE_MAX)
		return KVD_CONVERT_SCALE_MAX;
	return scale > KVD_CONVERT_SCALE_MIN ? scale : KVD_CONVERT_SCALE_MIN;
}

static void pack(uint8_t *restrict dst, const int8_t *restrict codes, const int8_t *restrict zeros, size_t count)
{
	uint8_t above[CONVERT_TILE_CHANNELS + 1];

	for (size_t i = 0; i < count; i++) {
		int code = codes[i] - zeros[i];

		code = code > 0 ? code : 0;
		above[i] = (uint8_t)(code < CONVERT_INT4_MAX ? code : CONVERT_INT4_MAX);
	}
	above[count] = 0;
	for (size_t i = 0; i < kvd_convert_int4_row_bytes(count); i++)
		dst[i] = (uint8_t)(above[2 * i] | above[2 * i + 1] << CODE_BITS);
}

static void unpack(int8_t *restrict codes, const uint8_t *restrict src, const int8_t *restrict zeros, size_t count)
{
	for (size_t i = 0; i < count / 2; i++) {
		codes[2 * i] = (int8_t)(src[i] & CONVERT_INT4_MAX);
		codes[2 * i + 1] = (int8_t)(src[i] >> CODE_BITS);
	}
	if (count % 2)
		codes[count - 1] = (int8_t)(src[count / 2] & CONVERT_INT4_MAX);
	for (size_t i = 0; i < count; i++)
		codes[i] = (int8_t)(uint8_t)((unsigned int)codes[i] + (unsigned int)zeros[i]);
}

/* Choose the scales and the zeros of a tile: INT8's code of the smallest value is the smallest code. */
static void choose(void *scales, int8_t *zeros, float *factor, const uint8_t *src, const struct kvd_convert_blocks *blocks,
		   const struct tile *tile)
{
	uint16_t inf_bits = blocks->wide == KVD_CONVERT_FP16 ? CONVERT_FP16_INF : CONVERT_BF16_INF;
	int16_t least[CONVERT_TILE_CHANNELS], most[CONVERT_TILE_CHANNELS];
	uint16_t smallest[CONVERT_TILE_CHANNELS];

	for (size_t i = 0; i < tile->channels; i++) {
		least[i] = INT16_MAX;
		most[i] = INT16_MIN;
	}
	for (size_t token = 0; token < tile->tokens; token++)
		spread(least, most, src + (tile->first + token * blocks->channels) * CONVERT_WIDE_BYTES, tile->channels,
		       inf_bits);
	for (size_t i = 0; i < tile->channels; i++) {
		bool none = least[i] > most[i];
		uint16_t largest = none ? 0 : (uint16_t)sortable((uint16_t)most[i]);

		smallest[i] = none ? 0 : (uint16_t)sortable((uint16_t)least[i]);
		kvd_convert_scale_store(scales, tile->scale + i, blocks->scale_format,
					scale_of(kvd_convert_widen(smallest[i], blocks->wide),
						 kvd_convert_widen(largest, blocks->wide)));
		factor[i] = 1.0f / kvd_convert_scale_load(scales, tile->scale + i, blocks->scale_format);
	}
	kvd_convert_chosen()->encode[blocks->wide][KVD_CONVERT_INT8](zeros + tile->scale, smallest, tile->channels, factor,
								    SIZE_MAX);
}

static void tile_encode(uint8_t *dst, void *scales, int8_t *zeros, const uint8_t *src,
			const struct kvd_convert_blocks *blocks, const struct tile *tile)
{
	convert_kernel *kernel = kvd_convert_chosen()->encode[blocks->wide][KVD_CONVERT_INT8];
	float factor[CONVERT_TILE_CHANNELS];
	int8_t codes[CONVERT_TILE_CHANNELS];

	choose(scales, zeros, factor, src, blocks, tile);
	for (size_t token = 0; token < tile->tokens; token++) {
		size_t at = tile->first + token * blocks->channels;

		kernel(codes, src + at * CONVERT_WIDE_BYTES, tile->channels, factor, SIZE_MAX);
		pack(dst + tile->packed + token * kvd_convert_int4_row_bytes(blocks->channels), codes, zeros + tile->scale,
		     tile->channels);
	}
}

static void tile_decode(uint8_t *dst, const void *scales, const int8_t *zeros, const uint8_t *src,
			const struct kvd_convert_blocks *blocks, const struct tile *tile)
{
	convert_kernel *kernel = kvd_convert_chosen()->decode[blocks->wide][KVD_CONVERT_INT8];
	float factor[CONVERT_TILE_CHANNELS];
	int8_t codes[CONVERT_TILE_CHANNELS];

	for (size_t i = 0; i < tile->channels; i++)
		factor[i] = kvd_convert_scale_load(scales, tile->scale + i, blocks->scale_format);
	for (size_t token = 0; token < tile->tokens; token++) {
		size_t at = tile->first + token * blocks->channels;

		unpack(codes, src + tile->packed + token * kvd_convert_int4_row_bytes(blocks->channels),
		       zeros + tile->scale, tile->channels);
		kernel(dst + at * CONVERT_WIDE_BYTES, codes, tile->channels, factor, SIZE_MAX);
	}
}

/* Go on to the next tile, from one that is zeroed to the first. */
static bool next(struct tile *tile, const struct kvd_convert_blocks *blocks)
{
	size_t token, channel;

	static_assert(CONVERT_TILE_CHANNELS % 2 == 0, "no byte belongs to two tiles");
	if (blocks->channels == 0 || blocks->tokens == 0)
		return false;
	token = tile->first / blocks->channels;
	channel = tile->first % blocks->channels + tile->channels;
	if (channel == blocks->channels) {
		token += tile->tokens;
		channel = 0;
	}
	if (token == blocks->tokens)
		return false;
	tile->first = token * blocks->channels + channel;
	tile->packed = token * kvd_convert_int4_row_bytes(blocks->channels) + channel / 2;
	tile->scale = token / KVD_CONVERT_BLOCK_TOKENS * blocks->channels + channel;
	tile->tokens = blocks->tokens - token;
	if (tile->tokens > KVD_CONVERT_BLOCK_TOKENS)
		tile->tokens = KVD_CONVERT_BLOCK_TOKENS;
	tile->channels = blocks->channels - channel;
	if (tile->channels > CONVERT_TILE_CHANNELS)
		tile->channels = CONVERT_TILE_CHANNELS;
	return true;
}

int kvd_convert_int4_encode(void *dst, void *scales, int8_t *zeros, const void *src,
			    const struct kvd_convert_blocks *blocks)
{
	struct tile tile = {0};

	if (!kvd_convert_blocks_valid(blocks) || blocks->narrow != KVD_CONVERT_INT8)
		return -EINVAL;
	while (next(&tile, blocks))
		tile_encode(dst, scales, zeros, src, blocks, &tile);
	return 0;
}

int kvd_convert_int4_decode(void *dst, const void *scales, const int8_t *zeros, const void *src,
			    const struct kvd_convert_blocks *blocks)
{
	struct tile tile = {0};

	if (!kvd_convert_blocks_valid(blocks) || blocks->narrow != KVD_CONVERT_INT8 ||
	    !kvd_convert_blocks_scales_valid(scales, blocks))
		return -EINVAL;
	while (next(&tile, blocks))
		tile_decode(dst, scales, zeros, src, blocks, &tile);
	return 0;
}
