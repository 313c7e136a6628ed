/*
 * Formats: how the bytes of an object are kept smaller, and given back.
 *
 * A *plan* says what an object is made of: regions, in order and without gaps, each of exact bytes or of arrays
 * [tokens][channels] of 16-bit floats, with the format that each is to be kept in. From the plan alone follows how the
 * object falls into *units*, which are encoded and decoded by themselves, in any order, in any thread: up to 64 KiB of
 * exact bytes, or whole blocks of 64 tokens of one array, about 64 KiB where a block is not larger. The units' bytes, with
 * a head that describes them, are the *stored file* (docs/formats.md).
 *
 *   RAW      as it is
 *   ZSTD     the bytes of each significance together (a plane each), each plane compressed: bit-exact
 *   E4M3, E5M2, INT8, INT4   codes with a scale for each channel of a block (convert/convert.h): lossy
 *   ZEROS    nothing is kept of it; chosen by the encoder alone
 *
 * A unit that its format does not suit is kept bit-exact: one with an infinity or a NaN in it, and one that would not
 * get smaller. So a lossy format never touches what is not finite, and no stored file outgrows its object by more than its
 * head. What is given back is the same bytes each time and on every CPU; its pages have checksums, as the stored bytes
 * have.
 *
 * In memory: `kvd_format_writer_put` for each unit in order, then `kvd_format_writer_head` to the begin of the file; to read,
 * the head once, then any unit by itself. The functions with descriptors do the same for files, in the caller's thread, with
 * one unit in memory: whole (`kvd_format_file_*`), or piece by piece as a mover takes and brings them
 * (`kvd_format_encoder_*`, `kvd_format_decoder_*`).
 *
 * Functions return 0 or -errno: -EINVAL what the caller asks for makes no sense, -EBADMSG stored bytes that are damaged,
 * -EPROTO stored bytes that are no stored file or can't be what a kvd wrote, -EPROTONOSUPPORT those of a newer kvd, -ENOMEM.
 */
#ifndef KVD_FORMAT_FORMAT_H
#define KVD_FORMAT_FORMAT_H

#include <stdint.h>

/* cffi: begin */
enum kvd_format_kind {
	KVD_FORMAT_RAW = 0,
	KVD_FORMAT_ZSTD = 1,
	KVD_FORMAT_E4M3 = 2,
	KVD_FORMAT_E5M2 = 3,
	KVD_FORMAT_INT8 = 4,
	KVD_FORMAT_INT4 = 5,
	KVD_FORMAT_ZEROS = 6, /* of a unit, never of a region */
};

enum kvd_format_dtype {
	KVD_FORMAT_BYTES = 0,
	KVD_FORMAT_FP16 = 1,
	KVD_FORMAT_BF16 = 2,
	KVD_FORMAT_WORDS = 3,   /* 4 bytes each, of any meaning */
	KVD_FORMAT_DOUBLES = 4, /* 8 bytes each */
};

/* Whose error a region's counts as. */
enum kvd_format_role {
	KVD_FORMAT_OTHER = 0,
	KVD_FORMAT_KEYS = 1,
	KVD_FORMAT_VALUES = 2,
};

enum {
	KVD_FORMAT_KINDS = 7,
	KVD_FORMAT_DTYPES = 5,
	KVD_FORMAT_ROLES = 3,
	KVD_FORMAT_BLOCK_TOKENS = 64,       /* share a scale for each channel */
	KVD_FORMAT_UNIT_BYTES = 65536,      /* of the object, unless a block is larger */
	KVD_FORMAT_UNIT_BYTES_MAX = 1048576,
	KVD_FORMAT_CHANNELS_MAX = 8192,     /* so that a block is no larger than that */
	KVD_FORMAT_REGIONS_MAX = 16384,
	KVD_FORMAT_UNITS_MAX = 4194304,
	KVD_FORMAT_PAGE_BYTES_MIN = 4096,
	KVD_FORMAT_PAGE_BYTES_MAX = 2097152,
	KVD_FORMAT_HEAD_FIRST_BYTES = 256,  /* that tell how long the head is */
	KVD_FORMAT_ALIGN_BYTES = 4096,      /* of the first unit in the stored file */
	KVD_FORMAT_LEVEL_DEFAULT = 1,       /* of zstd */
	KVD_FORMAT_STEP_UNITS = 4096,       /* that an encoder takes at a time, at most */
};

/* `tokens` is 0 for exact bytes, else bytes == arrays * tokens * channels * 2, and dtype is FP16 or BF16. */
struct kvd_format_region {
	uint64_t offset; /* in the object */
	uint64_t bytes;  /* not 0 */
	uint64_t tokens; /* of an array */
	uint32_t arrays; /* one after the other, each [tokens][channels] */
	uint32_t channels;
	uint32_t kind;
	uint32_t dtype;
	uint32_t role;
	uint32_t reserved; /* 0 */
};

/* What became of the values of a role, in units that a lossy format keeps: relative L2 is sqrt(square_error / square). */
struct kvd_format_error {
	uint64_t values;
	double square;       /* of the values, summed */
	double square_error; /* of the differences, summed */
	double most;         /* the largest difference's magnitude */
};

struct kvd_format_report {
	uint64_t object_bytes;
	uint64_t stored_bytes;   /* the head included */
	uint64_t kind_bytes[7];  /* of the object, by the kind that they are kept in */
	struct kvd_format_error errors[3]; /* by role */
};

/* Where a unit lies in the object. */
struct kvd_format_unit {
	uint64_t offset;
	uint64_t tokens;   /* 0: exact bytes */
	uint32_t bytes;
	uint32_t channels;
	uint32_t kind;     /* the region's */
	uint32_t dtype;
	uint32_t role;
	uint32_t reserved;
};

/* Where a unit lies in the stored file. */
struct kvd_format_stored {
	uint64_t offset;
	uint32_t bytes;
	uint32_t kind;
	uint32_t crc; /* CRC32C of these bytes */
	uint32_t reserved;
};

typedef struct kvd_format_plan kvd_format_plan;
typedef struct kvd_format_writer kvd_format_writer;
typedef struct kvd_format_reader kvd_format_reader;
typedef struct kvd_format_work kvd_format_work;
typedef struct kvd_format_encoder kvd_format_encoder;
typedef struct kvd_format_decoder kvd_format_decoder;

/* The regions are copied. -EINVAL: they are not what is said above, or come to more units than there may be. */
int kvd_format_plan_init(const struct kvd_format_region *regions, uint32_t count, uint64_t object_bytes,
			 uint32_t page_bytes, kvd_format_plan **out);
void kvd_format_plan_fini(kvd_format_plan *plan);
uint32_t kvd_format_plan_units(const kvd_format_plan *plan);
/* The most that a unit has: of buffers for units, also for stored ones. */
uint32_t kvd_format_plan_unit_bytes_max(const kvd_format_plan *plan);
/* -EINVAL: there is no such unit. */
int kvd_format_plan_unit(const kvd_format_plan *plan, uint32_t index, struct kvd_format_unit *out);
/* The unit that holds a byte of the object. -EINVAL: there is no such byte. */
int kvd_format_plan_find(const kvd_format_plan *plan, uint64_t offset, uint32_t *index);

/* What encoding and decoding need beside the bytes: a thread's own, for units of a plan. `level` is zstd's. */
int kvd_format_work_init(const kvd_format_plan *plan, int level, kvd_format_work **out);
void kvd_format_work_fini(kvd_format_work *work);
/*
 * Encode the bytes of one unit into `dst`, which has room for as many. Sets bytes, kind and crc of `out`, adds to the error
 * of the unit's role, and leaves in `back`, unless that is NULL, what decoding will give.
 */
int kvd_format_encode(kvd_format_work *work, const struct kvd_format_unit *unit, const void *src, void *dst, void *back,
		      struct kvd_format_stored *out, struct kvd_format_error *errors);
/* Decode a unit's stored bytes, which are checked first, into `dst`: unit->bytes of them. */
int kvd_format_decode(kvd_format_work *work, const struct kvd_format_unit *unit, const struct kvd_format_stored *stored,
		      const void *src, void *dst);

/* A stored file in the making. The plan must outlive it. */
int kvd_format_writer_init(const kvd_format_plan *plan, int level, kvd_format_writer **out);
void kvd_format_writer_fini(kvd_format_writer *writer);
/* How long the head is; the first unit follows it, each other one the one before. */
uint64_t kvd_format_writer_head_bytes(const kvd_format_writer *writer);
/* Encode the next unit: `out->bytes` bytes of `dst` belong at `out->offset` of the file. -EINVAL: there is none left. */
int kvd_format_writer_put(kvd_format_writer *writer, const void *src, void *dst, struct kvd_format_stored *out);
/* Write the head when all units are there (else -EINVAL); written to the file last it makes the file whole. */
int kvd_format_writer_head(const kvd_format_writer *writer, void *dst);
void kvd_format_writer_report(const kvd_format_writer *writer, struct kvd_format_report *out);
/* CRC32C of a page of what will be given back, when all units are there. */
uint32_t kvd_format_writer_page_crc(const kvd_format_writer *writer, uint64_t page);

/* How long the head is, from the first KVD_FORMAT_HEAD_FIRST_BYTES of a file. */
int kvd_format_head_bytes(const void *first, uint64_t *head_bytes);
/* Check a head, of `bytes` bytes, of a file of `file_bytes`; it is copied. */
int kvd_format_reader_init(const void *head, uint64_t bytes, uint64_t file_bytes, kvd_format_reader **out);
void kvd_format_reader_fini(kvd_format_reader *reader);
const kvd_format_plan *kvd_format_reader_plan(const kvd_format_reader *reader);
/* -EINVAL: there is no such unit. */
int kvd_format_reader_stored(const kvd_format_reader *reader, uint32_t index, struct kvd_format_stored *out);
uint32_t kvd_format_reader_page_bytes(const kvd_format_reader *reader);
/* CRC32C of a page of what is given back: of the last page up to the object's end. */
uint32_t kvd_format_reader_page_crc(const kvd_format_reader *reader, uint64_t page);
void kvd_format_reader_report(const kvd_format_reader *reader, struct kvd_format_report *out);

/* Encode a file into an empty one, and give its length to that. Neither is synced. The object must not change meanwhile. */
int kvd_format_file_encode(int object_fd, int stored_fd, const kvd_format_plan *plan, int level,
			   struct kvd_format_report *out);
/* Open a stored file. The reader does not keep the descriptor. */
int kvd_format_file_open(int stored_fd, kvd_format_reader **out);
/*
 * Read bytes of the object: every page that they touch is decoded whole and checked against its sum. *bad_page is the page
 * with -EBADMSG, unless it is NULL. -EINVAL: bytes beyond the object's end.
 */
int kvd_format_file_read(int stored_fd, const kvd_format_reader *reader, uint64_t offset, void *dst, uint64_t bytes,
			 uint64_t *bad_page);
/* Decode all of it into an empty file; zeros become holes. */
int kvd_format_file_decode(int stored_fd, const kvd_format_reader *reader, int object_fd, uint64_t *bad_page);

/* The making of a stored file in pieces. The plan must outlive it. */
int kvd_format_encoder_init(const kvd_format_plan *plan, int level, kvd_format_encoder **out);
void kvd_format_encoder_fini(kvd_format_encoder *encoder);
/* How long the head is; the first unit follows it. */
uint64_t kvd_format_encoder_head_bytes(const kvd_format_encoder *encoder);
/* How many units are not encoded yet. */
uint32_t kvd_format_encoder_left(const kvd_format_encoder *encoder);
/*
 * Encode units to their places in a file until there are `bytes` bytes more, KVD_FORMAT_STEP_UNITS are done, or none is
 * left. *end is where the next one goes.
 */
int kvd_format_encoder_step(kvd_format_encoder *encoder, int object_fd, int staged_fd, uint64_t bytes, uint64_t *end);
/* Write the head; -EINVAL: units are left. */
int kvd_format_encoder_head(const kvd_format_encoder *encoder, int staged_fd);
void kvd_format_encoder_report(const kvd_format_encoder *encoder, struct kvd_format_report *out);
/* How many pages decoding will write: those that are not all in units of zeros. */
uint64_t kvd_format_encoder_pages(const kvd_format_encoder *encoder);

/* Where in the stored file all units are that pages of the object need. -EINVAL: there are no such pages. */
int kvd_format_reader_span(const kvd_format_reader *reader, uint64_t first_page, uint64_t count, uint64_t *offset,
			   uint64_t *bytes);
/* Decoding in pieces, in any order, by one thread at a time. The reader must outlive it. */
int kvd_format_decoder_init(const kvd_format_reader *reader, kvd_format_decoder **out);
void kvd_format_decoder_fini(kvd_format_decoder *decoder);
/*
 * Write pages of the object to their places in a file, each checked before; those that are all zeros stay holes. `stream` is
 * 0 or the address of a struct kvd_stream of the object's pages: each is marked when it has landed. *bad_page is the page
 * that did not.
 */
int kvd_format_decoder_pages(kvd_format_decoder *decoder, int staged_fd, int object_fd, uint64_t first_page,
			     uint64_t count, uint64_t stream, uint64_t *bad_page);
/* cffi: end */

#endif
