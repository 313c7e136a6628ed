/* Arrays [tokens][channels] with a scale for each channel of a block of tokens, a tile of channels at a time. */
#include <errno.h>

#include "convert/internal.h"

/* Where a tile is, and how large. */
struct tile {
	size_t first;    /* element of the array */
	size_t scale;    /* index of its first scale */
	size_t tokens;   /* at most KVD_CONVERT_BLOCK_TOKENS */
	size_t channels; /* at most CONVERT_TILE_CHANNELS */
};

typedef void tile_function(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			   const struct tile *tile);

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t kvd_convert_blocks_scales_count(const struct kvd_convert_blocks *blocks)
{
	size_t whole = blocks->tokens / KVD_CONVERT_BLOCK_TOKENS;

	return (whole + (blocks->tokens % KVD_CONVERT_BLOCK_TOKENS != 0)) * blocks->channels;
}

bool kvd_convert_blocks_valid(const struct kvd_convert_blocks *blocks)
{
	return kvd_convert_formats_valid(blocks->wide, blocks->narrow) &&
	       (unsigned int)blocks->scale_format < KVD_CONVERT_SCALE_FORMAT_COUNT;
}

float kvd_convert_scale_load(const void *scales, size_t index, enum kvd_convert_scale_format format)
{
	uint16_t half;
	float scale;

	if (format == KVD_CONVERT_SCALE_FP32) {
		memcpy(&scale, (const uint8_t *)scales + index * sizeof(scale), sizeof(scale));
		return scale;
	}
	memcpy(&half, (const uint8_t *)scales + index * sizeof(half), sizeof(half));
	return kvd_convert_widen(half, KVD_CONVERT_FP16);
}

void kvd_convert_scale_store(void *scales, size_t index, enum kvd_convert_scale_format format, float scale)
{
	uint16_t half;

	if (format == KVD_CONVERT_SCALE_FP32) {
		memcpy((uint8_t *)scales + index * sizeof(scale), &scale, sizeof(scale));
		return;
	}
	half = kvd_convert_fp16_up(scale);
	memcpy((uint8_t *)scales + index * sizeof(half), &half, sizeof(half));
}

bool kvd_convert_blocks_scales_valid(const void *scales, const struct kvd_convert_blocks *blocks)
{
	size_t count = kvd_convert_blocks_scales_count(blocks);
	bool valid = true;

	for (size_t i = 0; i < count; i++)
		valid &= kvd_convert_scale_valid(kvd_convert_scale_load(scales, i, blocks->scale_format));
	return valid;
}

static void tiles_do(tile_function *what, void *dst, void *scales, const void *src,
		     const struct kvd_convert_blocks *blocks)
{
	struct tile tile = {0};

	for (size_t token = 0; token < blocks->tokens; token += tile.tokens) {
		tile.tokens = least(blocks->tokens - token, KVD_CONVERT_BLOCK_TOKENS);
		for (size_t channel = 0; channel < blocks->channels; channel += tile.channels) {
			tile.channels = least(blocks->channels - channel, CONVERT_TILE_CHANNELS);
			tile.first = token * blocks->channels + channel;
			tile.scale = token / KVD_CONVERT_BLOCK_TOKENS * blocks->channels + channel;
			what(dst, scales, src, blocks, &tile);
		}
	}
}

static void tile_scales(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			const struct tile *tile)
{
	uint16_t inf_bits = blocks->wide == KVD_CONVERT_FP16 ? CONVERT_FP16_INF : CONVERT_BF16_INF;
	uint16_t most[CONVERT_TILE_CHANNELS] = {0};

	(void)dst;
	for (size_t token = 0; token < tile->tokens; token++) {
		size_t at = tile->first + token * blocks->channels;

		kvd_convert_chosen()->absmax(most, (const uint8_t *)src + at * CONVERT_WIDE_BYTES, tile->channels, inf_bits);
	}
	for (size_t i = 0; i < tile->channels; i++)
		kvd_convert_scale_store(scales, tile->scale + i, blocks->scale_format,
					kvd_convert_scale_for(most[i], blocks->wide, blocks->narrow));
}

/*
 * Ask for the values one block further on: they come from memory while this block, which is in the cache, is computed.
 * Past the array's end that is no access, so nobody has to look where it ends.
 */
static void prefetch_next(const void *src, size_t at, const struct kvd_convert_blocks *blocks, size_t channels)
{
	uintptr_t next = (uintptr_t)src + (at + KVD_CONVERT_BLOCK_TOKENS * blocks->channels) * CONVERT_WIDE_BYTES;

	for (size_t i = 0; i < channels * CONVERT_WIDE_BYTES; i += CONVERT_LINE_BYTES)
		__builtin_prefetch((const void *)(next + i), 0, 2);
}

/* `ahead`: the values of the next block will be read first for their scales. */
static void encode_tile(void *dst, const void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			const struct tile *tile, bool ahead)
{
	convert_kernel *kernel = kvd_convert_chosen()->encode[blocks->wide][blocks->narrow];
	float factor[CONVERT_TILE_CHANNELS];

	for (size_t i = 0; i < tile->channels; i++)
		factor[i] = 1.0f / kvd_convert_scale_load(scales, tile->scale + i, blocks->scale_format);
	for (size_t token = 0; token < tile->tokens; token++) {
		size_t at = tile->first + token * blocks->channels;

		if (ahead)
			prefetch_next(src, at, blocks, tile->channels);
		kernel((uint8_t *)dst + at, (const uint8_t *)src + at * CONVERT_WIDE_BYTES, tile->channels, factor,
		       SIZE_MAX);
	}
}

static void tile_encode_with(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			     const struct tile *tile)
{
	encode_tile(dst, scales, src, blocks, tile, false);
}

static void tile_encode(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			const struct tile *tile)
{
	tile_scales(dst, scales, src, blocks, tile);
	encode_tile(dst, scales, src, blocks, tile, true);
}

static void tile_decode(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks,
			const struct tile *tile)
{
	convert_kernel *kernel = kvd_convert_chosen()->decode[blocks->wide][blocks->narrow];
	float factor[CONVERT_TILE_CHANNELS];

	for (size_t i = 0; i < tile->channels; i++)
		factor[i] = kvd_convert_scale_load(scales, tile->scale + i, blocks->scale_format);
	for (size_t token = 0; token < tile->tokens; token++) {
		size_t at = tile->first + token * blocks->channels;

		kernel((uint8_t *)dst + at * CONVERT_WIDE_BYTES, (const uint8_t *)src + at, tile->channels, factor,
		       SIZE_MAX);
	}
}

int kvd_convert_blocks_encode(void *dst, void *scales, const void *src, const struct kvd_convert_blocks *blocks)
{
	if (!kvd_convert_blocks_valid(blocks))
		return -EINVAL;
	tiles_do(tile_encode, dst, scales, src, blocks);
	return 0;
}

int kvd_convert_blocks_encode_with(void *dst, const void *scales, const void *src,
				   const struct kvd_convert_blocks *blocks)
{
	if (!kvd_convert_blocks_valid(blocks) || !kvd_convert_blocks_scales_valid(scales, blocks))
		return -EINVAL;
	/* Only tile_encode writes scales. */
	tiles_do(tile_encode_with, dst, (void *)(uintptr_t)scales, src, blocks);
	return 0;
}

int kvd_convert_blocks_decode(void *dst, const void *scales, const void *src, const struct kvd_convert_blocks *blocks)
{
	if (!kvd_convert_blocks_valid(blocks) || !kvd_convert_blocks_scales_valid(scales, blocks))
		return -EINVAL;
	tiles_do(tile_decode, dst, (void *)(uintptr_t)scales, src, blocks);
	return 0;
}
