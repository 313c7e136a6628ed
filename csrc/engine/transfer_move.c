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
	return kvd_pte_sound(pages->engine, pte) && frame < memory->bytes / pages->page_bytes;
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

/* Where a page is; NULL: it is gone. Pages were looked at before, but tables may lie where others write. */
static unsigned char *pages_find(const struct kvd_pages *pages, uint64_t page)
{
	const union kvd_entry *entry = kvd_table_find(pages->engine, pages->root, page);

	return entry ? kvd_pages_frame(pages, kvd_get(&entry->pte)) : NULL;
}

/* Find the piece that byte `at` of the range lies in, as far as `want` bytes on; false: the page is gone. */
static bool find_span(struct kvd_pages *pages, uint64_t at, uint64_t want)
{
	uint64_t page = pages->first_page + at / pages->page_bytes;
	unsigned char *frame = pages_find(pages, page);

	pages->span = frame;
	pages->span_first = at - at % pages->page_bytes;
	pages->span_end = pages->span_first + pages->page_bytes;
	if (!frame)
		return false;
	while (pages->span_end - at < want) {
		frame = pages_find(pages, ++page);
		if (!frame || frame != pages->span + (pages->span_end - pages->span_first))
			return true;
		pages->span_end += pages->page_bytes;
	}
	return true;
}

/* Byte `at` of the array, and how many of `want` bytes from there on lie in one piece; NULL: the page is gone. */
static unsigned char *pages_at(struct kvd_pages *pages, uint64_t at, uint64_t want, uint64_t *bytes)
{
	at += pages->offset;
	if (!pages->span || at < pages->span_first || at >= pages->span_end || pages->span_end - at < want) {
		if (!find_span(pages, at, want))
			return NULL;
	}
	*bytes = least(want, pages->span_end - at);
	return pages->span + (at - pages->span_first);
}

/* Copy `bytes` between the array at `at` and memory; false: a page is gone. */
static bool pages_copy(struct kvd_pages *pages, uint64_t at, unsigned char *memory, uint64_t bytes, bool into_pages)
{
	while (bytes) {
		uint64_t part;
		unsigned char *piece = pages_at(pages, at, bytes, &part);

		if (!piece)
			return false;
		/* They do not overlap, unless the page was given another frame meanwhile. */
		memmove(into_pages ? piece : memory, into_pages ? memory : piece, part);
		at += part;
		memory += part;
		bytes -= part;
	}
	return true;
}

uint32_t kvd_transfer_copy(struct kvd_transfer *transfer)
{
	bool whole = pages_copy(&transfer->pages, 0, transfer->host, transfer->page_bytes, transfer->scatters);

	return whole ? KVD_ABI_STATUS_OK : KVD_ABI_STATUS_BAD_TABLES;
}

/* Convert between wide and narrow memory. */
static uint32_t convert(const struct kvd_transfer *transfer, unsigned char *to, void *scales, const unsigned char *from,
		    uint64_t tokens, uint64_t channels)
{
	struct kvd_convert_blocks shape = transfer->shape;

	shape.tokens = tokens;
	shape.channels = channels;
	/* Only a scale can be wrong. */
	if (transfer->encodes ? kvd_convert_blocks_encode(to, scales, from, &shape) :
				kvd_convert_blocks_decode(to, scales, from, &shape))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	return KVD_ABI_STATUS_OK;
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
static uint32_t convert_piece(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens, unsigned char *piece)
{
	uint64_t channels = transfer->shape.channels;
	unsigned char *host = transfer->host + token * channels * host_element(transfer);
	unsigned char *scales =
		transfer->scales + token / KVD_CONVERT_BLOCK_TOKENS * channels * transfer->scale_bytes;

	if (transfer->scatters)
		return convert(transfer, piece, scales, host, tokens, channels);
	return convert(transfer, host, scales, piece, tokens, channels);
}

/* Copy a tile, from its first element on, between the pages and a buffer; false: a page is gone. */
static bool tile_copy(struct kvd_transfer *transfer, uint64_t first, uint64_t tokens, uint64_t channels,
		      unsigned char *tile)
{
	uint64_t row = channels * page_element(transfer);

	for (uint64_t i = 0; i < tokens; i++) {
		uint64_t at = (first + i * transfer->shape.channels) * page_element(transfer);

		if (!pages_copy(&transfer->pages, at, tile + i * row, row, transfer->scatters))
			return false;
	}
	return true;
}

/* Convert a tile of a block whose pages do not lie in one piece. */
static uint32_t convert_tile(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens, uint64_t channel,
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
	uint32_t status;

	if (!transfer->encodes)
		memcpy(scales, scale, channels * transfer->scale_bytes);
	if (!transfer->scatters && !tile_copy(transfer, first, tokens, channels, page_side))
		return KVD_ABI_STATUS_BAD_TABLES;
	for (uint64_t i = 0; transfer->scatters && i < tokens; i++)
		memcpy(host_side + i * channels * on_host,
		       transfer->host + (first + i * transfer->shape.channels) * on_host, channels * on_host);
	status = convert(transfer, transfer->scatters ? page_side : host_side, scales,
			 transfer->scatters ? host_side : page_side, tokens, channels);
	if (status)
		return status;
	if (transfer->scatters && !tile_copy(transfer, first, tokens, channels, page_side))
		return KVD_ABI_STATUS_BAD_TABLES;
	for (uint64_t i = 0; !transfer->scatters && i < tokens; i++)
		memcpy(transfer->host + (first + i * transfer->shape.channels) * on_host,
		       host_side + i * channels * on_host, channels * on_host);
	if (transfer->encodes)
		memcpy(scale, scales, channels * transfer->scale_bytes);
	return KVD_ABI_STATUS_OK;
}

static uint32_t convert_block(struct kvd_transfer *transfer, uint64_t token, uint64_t tokens)
{
	for (uint64_t channel = 0; channel < transfer->shape.channels; channel += TILE_CHANNELS) {
		uint64_t channels = least(TILE_CHANNELS, transfer->shape.channels - channel);
		uint32_t status = convert_tile(transfer, token, tokens, channel, channels);

		if (status)
			return status;
	}
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_transfer_convert(struct kvd_transfer *transfer)
{
	uint64_t row = transfer->shape.channels * page_element(transfer);
	uint64_t token = 0;

	if (!transfer->page_bytes)
		return KVD_ABI_STATUS_OK;
	if (!transfer->encodes && !kvd_convert_blocks_scales_valid(transfer->scales, &transfer->shape))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	while (token < transfer->shape.tokens) {
		uint64_t left = transfer->shape.tokens - token;
		uint64_t bytes, tokens;
		unsigned char *piece = pages_at(&transfer->pages, token * row, left * row, &bytes);
		uint32_t status;

		if (!piece)
			return KVD_ABI_STATUS_BAD_TABLES;
		tokens = bytes / row;
		if (tokens < left)
			tokens -= tokens % KVD_CONVERT_BLOCK_TOKENS;
		if (tokens) {
			status = convert_piece(transfer, token, tokens, piece);
		} else {
			tokens = least(KVD_CONVERT_BLOCK_TOKENS, left);
			status = convert_block(transfer, token, tokens);
		}
		if (status)
			return status;
		token += tokens;
	}
	return KVD_ABI_STATUS_OK;
}
