/*
 * GATHER and SCATTER: bytes between the pages of a range and the host, through the page table, converted on the way.
 *
 * First everything is looked at: the sizes, the host's memory, each page that the array touches and where its frame
 * is. Then the bytes move. An array is converted in blocks of 64 tokens, as scales are given; where the frames of a
 * block lie one after the other it is converted in place, else a tile of it at a time over a small buffer.
 */
#include "engine/transfer.h"

/* What an element of each format takes. */
static const uint8_t format_bytes[KVD_ABI_FORMAT_COUNT] = {
	[KVD_ABI_FORMAT_RAW] = 1,  [KVD_ABI_FORMAT_FP16] = 2, [KVD_ABI_FORMAT_BF16] = 2,
	[KVD_ABI_FORMAT_E4M3] = 1, [KVD_ABI_FORMAT_E5M2] = 1, [KVD_ABI_FORMAT_INT8] = 1,
};

static const uint8_t scale_bytes[KVD_ABI_SCALING_COUNT] = {
	[KVD_ABI_SCALING_FP16_BLOCKS] = 2,
	[KVD_ABI_SCALING_FP32_BLOCKS] = 4,
};

static bool is_wide(uint16_t format)
{
	return format == KVD_ABI_FORMAT_FP16 || format == KVD_ABI_FORMAT_BF16;
}

/* The formats and what they ask of the other fields. */
static bool formats_fit(const struct kvd_abi_transfer *is)
{
	if (is->host_format >= KVD_ABI_FORMAT_COUNT || is->page_format >= KVD_ABI_FORMAT_COUNT ||
	    is->scaling >= KVD_ABI_SCALING_COUNT || is->reserved)
		return false;
	if (is->host_format == KVD_ABI_FORMAT_RAW && (is->tokens || is->channels))
		return false;
	if (is->host_format == is->page_format)
		return !is->scaling && !is->scales && !is->scales_bytes;
	return is->host_format != KVD_ABI_FORMAT_RAW && is->page_format != KVD_ABI_FORMAT_RAW &&
	       is_wide(is->host_format) != is_wide(is->page_format) && is->scaling;
}

static enum kvd_convert_narrow narrow_of(uint16_t format)
{
	static const uint8_t narrow[KVD_ABI_FORMAT_COUNT] = {
		[KVD_ABI_FORMAT_E4M3] = KVD_CONVERT_E4M3,
		[KVD_ABI_FORMAT_E5M2] = KVD_CONVERT_E5M2,
		[KVD_ABI_FORMAT_INT8] = KVD_CONVERT_INT8,
	};

	return (enum kvd_convert_narrow)narrow[format];
}

static void set_conversion(struct kvd_transfer *transfer)
{
	const struct kvd_abi_transfer *is = &transfer->is;
	bool host_wide = is_wide(is->host_format);
	uint16_t wide = host_wide ? is->host_format : is->page_format;
	uint16_t narrow = host_wide ? is->page_format : is->host_format;

	transfer->converts = true;
	transfer->encodes = host_wide == transfer->scatters;
	transfer->shape = (struct kvd_convert_blocks){
		.tokens = is->tokens,
		.channels = is->channels,
		.wide = wide == KVD_ABI_FORMAT_FP16 ? KVD_CONVERT_FP16 : KVD_CONVERT_BF16,
		.narrow = narrow_of(narrow),
		.scale_format = is->scaling == KVD_ABI_SCALING_FP16_BLOCKS ? KVD_CONVERT_SCALE_FP16 : KVD_CONVERT_SCALE_FP32,
	};
}

/* How long both sides and the scales are; false: too long for 64 bits. */
static bool set_sizes(struct kvd_transfer *transfer)
{
	const struct kvd_abi_transfer *is = &transfer->is;
	uint64_t elements = (uint64_t)is->tokens * is->channels;
	uint64_t blocks = is->tokens / KVD_CONVERT_BLOCK_TOKENS + (is->tokens % KVD_CONVERT_BLOCK_TOKENS != 0);

	transfer->scale_bytes = scale_bytes[is->scaling];
	if (is->host_format == KVD_ABI_FORMAT_RAW)
		elements = is->host_bytes;
	return !__builtin_mul_overflow(elements, (uint64_t)format_bytes[is->host_format], &transfer->host_bytes) &&
	       !__builtin_mul_overflow(elements, (uint64_t)format_bytes[is->page_format], &transfer->page_bytes) &&
	       !__builtin_mul_overflow(blocks * is->channels, (uint64_t)transfer->scale_bytes, &transfer->scales_bytes);
}

/* The array lies in the range of the command. */
static bool range_fits(struct kvd_transfer *transfer, const struct kvd_abi_cmd *cmd)
{
	uint64_t page_bytes = transfer->pages.page_bytes;
	uint64_t end, last;

	if (!kvd_range(cmd, &end) || __builtin_add_overflow(transfer->is.page_offset, transfer->page_bytes, &last))
		return false;
	transfer->pages.first_page = cmd->first_page;
	transfer->pages.offset = transfer->is.page_offset;
	return last / page_bytes + (last % page_bytes != 0) <= end - cmd->first_page;
}

/* Do two pieces of memory have a byte in common? Neither is empty. */
static bool overlap(const unsigned char *a, uint64_t a_bytes, const unsigned char *b, uint64_t b_bytes)
{
	return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Look at each page: it is mapped, its frame is in memory, and that is not the host's side. */
static uint32_t survey_pages(struct kvd_transfer *transfer, struct kvd_abi_cpl *cpl)
{
	struct kvd_pages *pages = &transfer->pages;
	uint64_t first = pages->first_page + pages->offset / pages->page_bytes;
	uint64_t last = pages->first_page + (pages->offset + transfer->page_bytes - 1) / pages->page_bytes;

	for (uint64_t page = first; page <= last; page++) {
		const union kvd_entry *entry = kvd_table_find(pages->engine, pages->root, page);
		uint64_t pte = entry ? kvd_get(&entry->pte) : 0;
		unsigned char *at;
		uint64_t address;

		if (!(pte & KVD_ABI_PTE_VALID_MASK))
			return KVD_ABI_STATUS_NOT_MAPPED;
		if (!kvd_pte_sound(pages->engine, pte))
			return KVD_ABI_STATUS_BAD_TABLES;
		if (transfer->scatters && kvd_shares_of(pages->engine, pte) > 1)
			return KVD_ABI_STATUS_SHARED;
		if (!kvd_pages_address(pages, pte, &address))
			return KVD_ABI_STATUS_NO_MEMORY;
		at = kvd_pages_frame(pages, pte);
		if (!at) {
			cpl->result0 = address;
			return KVD_ABI_STATUS_BAD_ADDRESS;
		}
		if (overlap(at, pages->page_bytes, transfer->host, transfer->host_bytes) ||
		    (transfer->scales_bytes && overlap(at, pages->page_bytes, transfer->scales, transfer->scales_bytes)))
			return KVD_ABI_STATUS_BAD_ARGUMENT;
	}
	kvd_touch(pages->engine, pages->root, first, last + 1, transfer->scatters);
	return KVD_ABI_STATUS_OK;
}

/* Refused in this order: the description, the room, the host's addresses, then the first page that is in the way. */
static uint32_t prepare(struct kvd_transfer *transfer, struct kvd_call *call)
{
	const struct kvd_abi_transfer *is = &transfer->is;
	const void *described;

	if (call->cmd.buffer_bytes < sizeof(*is)) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	described = kvd_call_buffer(call, call->cmd.buffer, sizeof(*is), false);
	if (!described)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	memcpy(&transfer->is, described, sizeof(*is));
	if (!formats_fit(is) || !set_sizes(transfer) || !range_fits(transfer, &call->cmd))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (is->host_format != is->page_format)
		set_conversion(transfer);
	if (is->host_bytes < transfer->host_bytes || is->scales_bytes < transfer->scales_bytes) {
		call->cpl->result0 = is->host_bytes < transfer->host_bytes ? transfer->host_bytes : transfer->scales_bytes;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	if (transfer->host_bytes > UINT64_MAX - is->host || transfer->scales_bytes > UINT64_MAX - is->scales)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	transfer->host = kvd_call_buffer(call, is->host, transfer->host_bytes, !transfer->scatters);
	if (!transfer->host)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	transfer->scales = kvd_call_buffer(call, is->scales, transfer->scales_bytes, transfer->encodes);
	if (!transfer->scales)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	if (transfer->scales_bytes &&
	    overlap(transfer->host, transfer->host_bytes, transfer->scales, transfer->scales_bytes))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	return transfer->page_bytes ? survey_pages(transfer, call->cpl) : KVD_ABI_STATUS_OK;
}

static uint32_t execute(struct kvd_engine *engine, struct kvd_call *call, bool scatters)
{
	struct kvd_transfer transfer = {
		.scatters = scatters,
		.pages = {
			.engine = engine,
			.root = &call->session->slots[call->cmd.slot],
			.page_bytes = engine->layout.page_bytes,
			.writable = scatters,
		},
	};
	uint32_t status = prepare(&transfer, call);

	if (status)
		return status;
	status = transfer.converts ? kvd_transfer_convert(&transfer) : kvd_transfer_copy(&transfer);
	if (status)
		return status;
	call->cpl->result0 = transfer.host_bytes;
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_gather(struct kvd_engine *engine, struct kvd_call *call)
{
	return execute(engine, call, false);
}

uint32_t kvd_op_scatter(struct kvd_engine *engine, struct kvd_call *call)
{
	return execute(engine, call, true);
}
