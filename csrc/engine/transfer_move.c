/* The bytes of GATHER and SCATTER. */
#include "engine/transfer.h"

#define TILE_CHANNELS 256u /* a tile's two sides, 48 KiB, stay in the L2 cache and are no burden to a stack */
#define WIDE_BYTES 2u
#define SCALE_BYTES_MAX 4u

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool kvd_pages_address(const struct kvd_pages *pages, uint64_t pte, uint64_t *address)
{
	const struct kvd_tier_memory *memory = &pages->engine->tier_memory[kvd_pte_tier(pte)];
	uint64_t frame = kvd_pte_frame(pte);

	*address = memory->address + frame * pages->page_bytes;
	return frame < memory->bytes / pages->page_bytes;
}

unsigned char *kvd_pages_frame(const struct kvd_pages *pages, uint64_t pte)
{
	const struct kvd_engine *engine = pages->engine;
	uint64_t address;

	if (!kvd_pages_address(pages, pte, &address))
		return NULL;
	/* A device's own memory is not behind its DMA. */
	if (engine->reach && kvd_pte_tier(pte) != KVD_ABI_TIER_CARD)
		return engine->reach(engine->reach_context, address, pages->page_bytes, pages->writable);
	return (unsigned char *)(uintptr_t)address;
}

/* Find the piece that byte `at` of the range lies in, as far as `want` bytes on. */
static void find_span(struct kvd_pages *pages, uint64_t at, uint64_t want)
{
	uint64_t page = pages->first_page + at / pages->page_bytes;

	pages->span = kvd_pages_frame(pages, kvd_table_find(pages->engine, pages->root, page)->pte);
	pages->span_first = at - at % pages->page_bytes;
	pages->span_end = pages->span_first + pages->page_bytes;
	while (pages->span_end - at < want) {
		const union kvd_entry *entry = kvd_table_find(pages->engine, pages->root, ++page);

		if (!entry || !kvd_pte_sound(pages->engine, entry->pte) ||
		    kvd_pages_frame(pages, entry->pte) != pages->span + (pages->span_end - pages->span_first))
			return;
		pages->span_end += pages->page_bytes;
	}
}

/* Byte `at` of the array, and how many of `want` bytes from there on lie in one piece. */
static unsigned char *pages_at(struct kvd_pages *pages, uint64_t at, uint64_t want, uint64_t *bytes)
{
	at += pages->offset;
	if (at < pages->span_first || at >= pages->span_end || pages->span_end - at < want)
		find_span(pages, at, want);
	*bytes = least(want, pages->span_end - at);
	return pages->span + (at - pages->span_first);
}

/* Copy `bytes` between the array at `at` and memory. */
static void pages_copy(struct kvd_pages *pages, uint64_t at, unsigned char *memory, uint64_t bytes, bool into_pages)
{
	while (bytes) {
		uint64_t part;
		unsigned char *piece = pages_at(pages, at, bytes, &part);

		memcpy(into_pages ? piece : memory, into_pages ? memory : piece, part);
		at += part;
		memory += part;
		bytes -= part;
	}
}

void kvd_transfer_copy(struct kvd_transfer *transfer)
{
	pages_copy(&transfer->pages, 0, transfer->host, transfer->page_bytes, transfer->scatters);
}

/* Convert between wide and narrow memory; false: a scale is out of its range. */
static bool convert(const struct kvd_transfer *transfer, unsigned char *to, void *scales, const unsigned char *from,
		    uint64_t tokens, uint64_t channels)
{
	struct kvd_convert_blocks shape = transfer->shape;

	shape.tokens = tokens;
	shape.channels = channels;
	if (transfer->encodes)
		return !kvd_convert_blocks_encode(to, scales, from, &shape);
	return !kvd_convert_blocks_decode(to, scales, from, &shape);
}

/* Bytes of an element in the pages and on the host's side. */
static uint64_t page_element(const struct kvd_transfer *transfer)
{
	return transfer->encodes == transfer->scatters ? 1 : WIDE_BYTES;
}

static uint64_t host_element(const struct kvd_transfer *transfer)
{
	return WIDE_BYTES + 1 - page_element(transfer);
}

/* Convert `tokens` tokens whose pages lie in one piece, from a block's begin. */
static bool convert_piece(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens, unsigned char *piece)
{
	uint64_t channels = transfer->shape.channels;
	unsigned char *host = transfer->host + token * channels * host_element(transfer);
	unsigned char *scales =
		transfer->scales + token / KVD_CONVERT_BLOCK_TOKENS * channels * transfer->scale_bytes;

	if (transfer->scatters)
		return convert(transfer, piece, scales, host, tokens, channels);
	return convert(transfer, host, scales, piece, tokens, channels);
}

/* Convert a tile of a block whose pages do not lie in one piece. */
static bool convert_tile(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens, uint64_t channel,
			 uint64_t channels)
{
	unsigned char wide[KVD_CONVERT_BLOCK_TOKENS * TILE_CHANNELS * WIDE_BYTES];
	unsigned char narrow[KVD_CONVERT_BLOCK_TOKENS * TILE_CHANNELS];
	unsigned char scales[TILE_CHANNELS * SCALE_BYTES_MAX];
	uint64_t in_pages = page_element(transfer), on_host = host_element(transfer);
	unsigned char *page_side = in_pages == WIDE_BYTES ? wide : narrow;
	unsigned char *host_side = in_pages == WIDE_BYTES ? narrow : wide;
	unsigned char *scale = transfer->scales + (token / KVD_CONVERT_BLOCK_TOKENS * transfer->shape.channels + channel) *
							  transfer->scale_bytes;
	uint64_t first = token * transfer->shape.channels + channel;

	if (!transfer->encodes)
		memcpy(scales, scale, channels * transfer->scale_bytes);
	for (uint64_t i = 0; i < tokens; i++) {
		uint64_t at = first + i * transfer->shape.channels;

		if (transfer->scatters)
			memcpy(host_side + i * channels * on_host, transfer->host + at * on_host, channels * on_host);
		else
			pages_copy(&transfer->pages, at * in_pages, page_side + i * channels * in_pages,
				   channels * in_pages, false);
	}
	if (!convert(transfer, transfer->scatters ? page_side : host_side, scales,
		     transfer->scatters ? host_side : page_side, tokens, channels))
		return false;
	for (uint64_t i = 0; i < tokens; i++) {
		uint64_t at = first + i * transfer->shape.channels;

		if (transfer->scatters)
			pages_copy(&transfer->pages, at * in_pages, page_side + i * channels * in_pages,
				   channels * in_pages, true);
		else
			memcpy(transfer->host + at * on_host, host_side + i * channels * on_host, channels * on_host);
	}
	if (transfer->encodes)
		memcpy(scale, scales, channels * transfer->scale_bytes);
	return true;
}

static bool convert_block(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens)
{
	for (uint64_t channel = 0; channel < transfer->shape.channels; channel += TILE_CHANNELS) {
		uint64_t channels = least(TILE_CHANNELS, transfer->shape.channels - channel);

		if (!convert_tile(transfer, token, tokens, channel, channels))
			return false;
	}
	return true;
}

bool kvd_transfer_convert(struct kvd_transfer *transfer)
{
	uint64_t row = transfer->shape.channels * page_element(transfer);
	uint64_t token = 0;

	if (!transfer->page_bytes)
		return true;
	if (!transfer->encodes && !kvd_convert_blocks_scales_valid(transfer->scales, &transfer->shape))
		return false;
	while (token < transfer->shape.tokens) {
		uint64_t left = transfer->shape.tokens - token;
		uint64_t bytes, tokens;
		unsigned char *piece = pages_at(&transfer->pages, token * row, left * row, &bytes);
		bool good;

		tokens = bytes / row;
		if (tokens < left)
			tokens -= tokens % KVD_CONVERT_BLOCK_TOKENS;
		if (tokens) {
			good = convert_piece(transfer, token, tokens, piece);
		} else {
			tokens = least(KVD_CONVERT_BLOCK_TOKENS, left);
			good = convert_block(transfer, token, tokens);
		}
		if (!good)
			return false;
		token += tokens;
	}
	return true;
}
