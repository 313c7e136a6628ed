/* Inside of csrc/format: the plan, the planes of bytes, the head of a stored file. */
#ifndef KVD_FORMAT_INTERNAL_H
#define KVD_FORMAT_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "convert/convert.h"
#include "format/format.h"

#define FORMAT_INLINE static inline

enum {
	FORMAT_WIDE_BYTES = 2,
	FORMAT_PLANES_MAX = 8,
	FORMAT_VERSION = 1,
};

static_assert((int)KVD_FORMAT_BLOCK_TOKENS == (int)KVD_CONVERT_BLOCK_TOKENS, "a block here is a block there");
static_assert(KVD_FORMAT_CHANNELS_MAX * KVD_FORMAT_BLOCK_TOKENS * FORMAT_WIDE_BYTES == KVD_FORMAT_UNIT_BYTES_MAX,
	      "the largest block is the largest unit");

struct kvd_format_plan {
	uint64_t object_bytes;
	uint32_t page_bytes;
	uint32_t n_regions;
	uint32_t n_units;
	uint32_t unit_bytes_max;
	struct kvd_format_region *regions;
	uint32_t *first_unit; /* of each region, and at the end n_units */
};

/* A head begins with this; then the regions, the units, the sums of the pages, zeros up to KVD_FORMAT_ALIGN_BYTES. */
struct format_head {
	uint8_t magic[8];
	uint16_t version;
	uint16_t reserved0;
	uint32_t page_bytes;
	uint64_t head_bytes;   /* padded */
	uint64_t stored_bytes; /* of the whole file */
	uint64_t object_bytes;
	uint32_t n_regions;
	uint32_t n_units;
	struct kvd_format_error errors[KVD_FORMAT_ROLES];
	uint8_t reserved1[108];
	uint32_t crc;          /* CRC32C of the head's bytes, this being 0 */
};
static_assert(sizeof(struct format_head) == KVD_FORMAT_HEAD_FIRST_BYTES, "the head's first part");
static_assert(offsetof(struct format_head, errors) == 48, "the errors have a place of their own");
static_assert(offsetof(struct format_head, crc) == KVD_FORMAT_HEAD_FIRST_BYTES - 4, "the sum is last");
static_assert(sizeof(struct kvd_format_region) == 48, "a region as it is stored");

/* A unit as it is stored; where it lies follows from those before it. */
struct format_entry {
	uint32_t bytes;
	uint32_t crc;
	uint32_t kind;
};
static_assert(sizeof(struct format_entry) == 12, "a unit as it is stored");

/* Is it a lossy format, of codes with scales? */
FORMAT_INLINE bool kvd_format_narrows(uint32_t kind)
{
	return kind >= KVD_FORMAT_E4M3 && kind <= KVD_FORMAT_INT4;
}

FORMAT_INLINE uint64_t kvd_format_pages(uint64_t object_bytes, uint32_t page_bytes)
{
	return object_bytes / page_bytes + (object_bytes % page_bytes != 0);
}

/* Sums of pages whose bytes come in pieces, in order; `check` compares instead of noting. */
struct format_sums {
	uint32_t *crcs;
	uint32_t page_bytes;
	uint32_t crc;   /* of the page that has begun */
	uint64_t at;    /* of the object */
	uint64_t end;
	bool check;
};

/* 0, or -EBADMSG with the page in *bad_page. */
int kvd_format_sums_add(struct format_sums *sums, const void *data, size_t bytes, uint64_t *bad_page);

/*
 * As kvd_format_encode; *back points at what decoding will give: at `src` where the unit is kept exact, else at memory of
 * `work` that its next use overwrites.
 */
int kvd_format_encode_unit(struct kvd_format_work *work, const struct kvd_format_unit *unit, const void *src, void *dst,
			   const void **back, struct kvd_format_stored *out, struct kvd_format_error *errors);

/* How long a head is, padded; it fits 64 bits by the plan's bounds. */
uint64_t kvd_format_head_size(uint32_t n_regions, uint32_t n_units, uint64_t pages);
/* The bytes that a narrowing format makes of a unit. */
uint64_t kvd_format_narrow_bytes(const struct kvd_format_unit *unit, uint32_t kind);
/* How many bytes an element of a dtype has. */
uint32_t kvd_format_width(uint32_t dtype);

/* Put byte i of each of the elements of `width` bytes into plane i; what is left over follows the last plane. */
void kvd_format_planes_split(uint8_t *dst, const uint8_t *src, size_t bytes, uint32_t width);
void kvd_format_planes_join(uint8_t *dst, const uint8_t *src, size_t bytes, uint32_t width);

/* The sums of a reader's pages; they are not written to. */
uint32_t *kvd_format_reader_page_crcs(const struct kvd_format_reader *reader);

/* units.c: all that was asked for, or -errno; -EIO: the file is shorter than it was. */
int kvd_format_read_all(int fd, void *buffer, size_t bytes, uint64_t offset);
int kvd_format_write_all(int fd, const void *buffer, size_t bytes, uint64_t offset);

/* What reading and writing need: buffers of the largest unit, as it is and as it is stored. */
struct format_units {
	struct kvd_format_work *work;
	uint8_t *plain;
	uint8_t *stored;
	uint32_t held; /* the unit in `plain` */
};

int kvd_format_units_init(struct format_units *units, const struct kvd_format_plan *plan);
void kvd_format_units_fini(struct format_units *units);
/* Have a unit's bytes in `units->plain`. */
int kvd_format_units_load(struct format_units *units, int stored_fd, const struct kvd_format_reader *reader,
			  uint32_t index, struct kvd_format_unit *unit, struct kvd_format_stored *stored);
/* Have a page's bytes in `page`, checked; *zeros, unless it is NULL: nothing is stored of it, it is a hole. */
int kvd_format_load_page(struct format_units *units, int stored_fd, const struct kvd_format_reader *reader,
			 uint64_t number, uint8_t *page, bool *zeros);

#endif
