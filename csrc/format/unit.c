/* Encoding and decoding of one unit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "common/crc32c.h"
#include "format/internal.h"

enum {
	LEVEL_MIN = -7,
	LEVEL_MAX = 12, /* beyond it a context takes tens of megabytes, for nothing: a unit is small */
	GAIN_SHIFT = 5, /* less than 1/32 is not worth decompressing for */
};

struct kvd_format_work {
	uint32_t unit_bytes_max;
	int level;
	ZSTD_CCtx *compressor;
	ZSTD_DCtx *decompressor;
	uint8_t *planes;
	uint8_t *back;
};

int kvd_format_work_init(const kvd_format_plan *plan, int level, kvd_format_work **out)
{
	struct kvd_format_work *work;

	if (level < LEVEL_MIN || level > LEVEL_MAX)
		return -EINVAL;
	work = calloc(1, sizeof(*work));
	if (!work)
		return -ENOMEM;
	work->unit_bytes_max = plan->unit_bytes_max;
	work->level = level;
	work->compressor = ZSTD_createCCtx();
	work->decompressor = ZSTD_createDCtx();
	work->planes = malloc(plan->unit_bytes_max ? plan->unit_bytes_max : 1);
	work->back = malloc(plan->unit_bytes_max ? plan->unit_bytes_max : 1);
	if (!work->compressor || !work->decompressor || !work->planes || !work->back) {
		kvd_format_work_fini(work);
		return -ENOMEM;
	}
	*out = work;
	return 0;
}

void kvd_format_work_fini(kvd_format_work *work)
{
	if (!work)
		return;
	ZSTD_freeCCtx(work->compressor);
	ZSTD_freeDCtx(work->decompressor);
	free(work->planes);
	free(work->back);
	free(work);
}

static bool all_zero(const uint8_t *src, size_t bytes)
{
	/* Each byte is like the one before it, and the first is 0. */
	return src[0] == 0 && memcmp(src, src + 1, bytes - 1) == 0;
}

static size_t plane_bytes(size_t bytes, uint32_t width, uint32_t plane)
{
	return bytes / width + (plane == width - 1 ? bytes % width : 0);
}

/*
 * The sizes of the planes as they are stored (u32 each), then the planes; one that is stored with its own size is as it is.
 * The bytes that were made, or 0 if that is not worth it.
 */
static size_t planes_encode(struct kvd_format_work *work, const uint8_t *src, size_t bytes, uint32_t width, uint8_t *dst)
{
	size_t room = bytes - (bytes >> GAIN_SHIFT), at = width * sizeof(uint32_t);
	const uint8_t *plane = work->planes;

	kvd_format_planes_split(work->planes, src, bytes, width);
	for (uint32_t i = 0; i < width; i++) {
		size_t own = plane_bytes(bytes, width, i), made;
		uint32_t size;

		if (at >= room)
			return 0;
		assert(own > 0); /* the planes' lengths alone are more than a unit without an element a plane */
		/* Where the plane as it is would fit, compressed it has to be smaller than that. */
		made = ZSTD_compressCCtx(work->compressor, dst + at, own <= room - at ? own - 1 : room - at, plane, own,
					 work->level);
		if (ZSTD_isError(made)) {
			if (own > room - at)
				return 0;
			memcpy(dst + at, plane, own);
			made = own;
		}
		size = (uint32_t)made;
		memcpy(dst + i * sizeof(size), &size, sizeof(size));
		at += made;
		plane += own;
	}
	return at;
}

static int planes_decode(struct kvd_format_work *work, const uint8_t *src, size_t stored, uint8_t *dst, size_t bytes,
			 uint32_t width)
{
	size_t at = width * sizeof(uint32_t);
	uint8_t *plane = work->planes;

	if (stored < at)
		return -EPROTO;
	for (uint32_t i = 0; i < width; i++) {
		size_t own = plane_bytes(bytes, width, i);
		uint32_t size;

		memcpy(&size, src + i * sizeof(size), sizeof(size));
		if (size > stored - at || size > own)
			return -EPROTO;
		if (size == own)
			memcpy(plane, src + at, own);
		else if (ZSTD_decompressDCtx(work->decompressor, plane, own, src + at, size) != own)
			return -EPROTO;
		at += size;
		plane += own;
	}
	if (at != stored)
		return -EPROTO;
	kvd_format_planes_join(dst, work->planes, bytes, width);
	return 0;
}

static enum kvd_convert_wide wide_of(uint32_t dtype)
{
	return dtype == KVD_FORMAT_FP16 ? KVD_CONVERT_FP16 : KVD_CONVERT_BF16;
}

/* BF16 has values for which FP16 has no scale. */
static struct kvd_convert_blocks blocks_of(const struct kvd_format_unit *unit, uint32_t kind)
{
	static const uint8_t narrow[KVD_FORMAT_KINDS] = {
		[KVD_FORMAT_E4M3] = KVD_CONVERT_E4M3,
		[KVD_FORMAT_E5M2] = KVD_CONVERT_E5M2,
		[KVD_FORMAT_INT8] = KVD_CONVERT_INT8,
		[KVD_FORMAT_INT4] = KVD_CONVERT_INT8,
	};

	return (struct kvd_convert_blocks){
		.tokens = unit->tokens,
		.channels = unit->channels,
		.wide = wide_of(unit->dtype),
		.narrow = (enum kvd_convert_narrow)narrow[kind],
		.scale_format = unit->dtype == KVD_FORMAT_FP16 ? KVD_CONVERT_SCALE_FP16 : KVD_CONVERT_SCALE_FP32,
	};
}

static size_t scales_bytes(const struct kvd_convert_blocks *blocks)
{
	size_t each = blocks->scale_format == KVD_CONVERT_SCALE_FP16 ? sizeof(uint16_t) : sizeof(float);

	return kvd_convert_blocks_scales_count(blocks) * each;
}

/* INT4 has zeros between the scales and the codes. */
static int narrow_encode(uint8_t *dst, const void *src, const struct kvd_format_unit *unit)
{
	struct kvd_convert_blocks blocks = blocks_of(unit, unit->kind);
	uint8_t *codes = dst + scales_bytes(&blocks);

	if (unit->kind != KVD_FORMAT_INT4)
		return kvd_convert_blocks_encode(codes, dst, src, &blocks);
	return kvd_convert_int4_encode(codes + kvd_convert_blocks_scales_count(&blocks), dst, (int8_t *)codes, src, &blocks);
}

static int narrow_decode(void *dst, const uint8_t *src, const struct kvd_format_unit *unit)
{
	struct kvd_convert_blocks blocks = blocks_of(unit, unit->kind);
	const uint8_t *codes = src + scales_bytes(&blocks);

	if (unit->kind != KVD_FORMAT_INT4)
		return kvd_convert_blocks_decode(dst, src, codes, &blocks);
	return kvd_convert_int4_decode(dst, src, (const int8_t *)codes, codes + kvd_convert_blocks_scales_count(&blocks),
				       &blocks);
}

static void note_error(const struct kvd_format_unit *unit, const void *src, const void *back,
		       struct kvd_format_error *errors)
{
	struct kvd_format_error *error = &errors[unit->role];
	struct kvd_convert_difference sum = {.most = error->most};

	kvd_convert_compare(&sum, src, back, unit->bytes / FORMAT_WIDE_BYTES, wide_of(unit->dtype));
	error->values += sum.values;
	error->square += sum.square;
	error->square_error += sum.square_difference;
	error->most = sum.most;
}

static int encode_exact(struct kvd_format_work *work, const struct kvd_format_unit *unit, const void *src, void *dst,
			struct kvd_format_stored *out)
{
	size_t made = 0;

	if (all_zero(src, unit->bytes)) {
		out->kind = KVD_FORMAT_ZEROS;
		out->bytes = 0;
		return 0;
	}
	if (unit->kind != KVD_FORMAT_RAW)
		made = planes_encode(work, src, unit->bytes, kvd_format_width(unit->dtype), dst);
	out->kind = made ? KVD_FORMAT_ZSTD : KVD_FORMAT_RAW;
	out->bytes = made ? (uint32_t)made : unit->bytes;
	if (!made)
		memcpy(dst, src, unit->bytes);
	return 0;
}

int kvd_format_encode_unit(struct kvd_format_work *work, const struct kvd_format_unit *unit, const void *src, void *dst,
			   const void **back, struct kvd_format_stored *out, struct kvd_format_error *errors)
{
	bool narrows = kvd_format_narrows(unit->kind);
	bool finite = narrows && kvd_convert_finite(src, unit->bytes / FORMAT_WIDE_BYTES, wide_of(unit->dtype));
	int err;

	*back = src;
	if (finite && kvd_format_narrow_bytes(unit, unit->kind) < unit->bytes && !all_zero(src, unit->bytes)) {
		out->kind = unit->kind;
		out->bytes = (uint32_t)kvd_format_narrow_bytes(unit, unit->kind);
		err = narrow_encode(dst, src, unit);
		if (!err)
			err = narrow_decode(work->back, dst, unit);
		*back = work->back;
	} else {
		err = encode_exact(work, unit, src, dst, out);
	}
	if (err)
		return err;
	if (finite)
		note_error(unit, src, *back, errors);
	out->crc = kvd_crc32c(0, dst, out->bytes);
	return 0;
}

int kvd_format_encode(kvd_format_work *work, const struct kvd_format_unit *unit, const void *src, void *dst, void *back,
		      struct kvd_format_stored *out, struct kvd_format_error *errors)
{
	const void *made;
	int err;

	if (unit->bytes == 0 || unit->bytes > work->unit_bytes_max)
		return -EINVAL;
	err = kvd_format_encode_unit(work, unit, src, dst, &made, out, errors);
	if (!err && back)
		memcpy(back, made, unit->bytes);
	return err;
}

int kvd_format_decode(kvd_format_work *work, const struct kvd_format_unit *unit, const struct kvd_format_stored *stored,
		      const void *src, void *dst)
{
	int err;

	if (unit->bytes == 0 || unit->bytes > work->unit_bytes_max)
		return -EINVAL;
	if (kvd_crc32c(0, src, stored->bytes) != stored->crc)
		return -EBADMSG;
	switch (stored->kind) {
	case KVD_FORMAT_ZEROS:
		if (stored->bytes)
			return -EPROTO;
		memset(dst, 0, unit->bytes);
		return 0;
	case KVD_FORMAT_RAW:
		if (stored->bytes != unit->bytes)
			return -EPROTO;
		memcpy(dst, src, unit->bytes);
		return 0;
	case KVD_FORMAT_ZSTD:
		return planes_decode(work, src, stored->bytes, dst, unit->bytes, kvd_format_width(unit->dtype));
	default:
		break;
	}
	if (stored->kind != unit->kind || !kvd_format_narrows(unit->kind) ||
	    stored->bytes != kvd_format_narrow_bytes(unit, unit->kind))
		return -EPROTO;
	err = narrow_decode(dst, src, unit);
	return err ? -EPROTO : 0;
}
