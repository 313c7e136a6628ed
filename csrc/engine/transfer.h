/* GATHER and SCATTER: what transfer.c has found out, and transfer_move.c carries out. */
#ifndef KVD_ENGINE_TRANSFER_H
#define KVD_ENGINE_TRANSFER_H

#include <string.h>

#include "convert/convert.h"
#include "engine/internal.h"

/* The bytes of an array in the pages of a range, by their number from the array's begin. */
struct kvd_pages {
	const struct kvd_engine *engine;
	const uint64_t *root;
	uint64_t page_bytes;
	bool writable;
	uint64_t first_page;
	uint64_t offset;       /* byte of the range at which the array begins */
	uint64_t span_first;   /* bytes of the range that are known to lie in one piece: [span_first, span_end) */
	uint64_t span_end;
	unsigned char *span;
};

struct kvd_transfer {
	struct kvd_abi_transfer is;
	struct kvd_pages pages;
	unsigned char *host;
	unsigned char *scales;
	uint64_t host_bytes;   /* of the array on the host's side */
	uint64_t page_bytes;   /* of the array in the pages */
	uint64_t scales_bytes;
	uint32_t scale_bytes;  /* of one scale; 0: there are none */
	bool scatters;         /* from the host into the pages */
	bool converts;
	bool encodes;          /* to the narrow format */
	struct kvd_convert_blocks shape;
};

/* The address of a PTE's frame; false: its tier has no memory there. */
bool kvd_pages_address(const struct kvd_pages *pages, uint64_t pte, uint64_t *address);
/* Where it is; NULL: the tier has no memory there, or it can't be reached. */
unsigned char *kvd_pages_frame(const struct kvd_pages *pages, uint64_t pte);
/* Move the bytes. Status: OK; BAD_ARGUMENT: a scale is out of its range; BAD_TABLES: a page that was there is gone. */
uint32_t kvd_transfer_copy(struct kvd_transfer *transfer);
uint32_t kvd_transfer_convert(struct kvd_transfer *transfer);

#endif
