/*
 * Stored files in pieces, for who moves them piece by piece: only the piece in hand is in memory, or in the file that it is
 * staged in, however long the object is.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/stream.h"
#include "format/internal.h"

struct kvd_format_encoder {
	const struct kvd_format_plan *plan;
	struct kvd_format_writer *writer;
	struct format_units units;
	uint32_t next;
	uint64_t end;          /* of the stored file, as far as it is made */
	uint64_t pages;        /* of the object that are not all zeros */
	uint64_t pages_before; /* the page behind the last one that was counted */
};

struct kvd_format_decoder {
	const struct kvd_format_reader *reader;
	struct format_units units;
	uint8_t *page;
};

int kvd_format_encoder_init(const kvd_format_plan *plan, int level, kvd_format_encoder **out)
{
	struct kvd_format_encoder *encoder = calloc(1, sizeof(*encoder));
	int err;

	if (!encoder)
		return -ENOMEM;
	err = kvd_format_units_init(&encoder->units, plan);
	if (err) {
		free(encoder);
		return err;
	}
	err = kvd_format_writer_init(plan, level, &encoder->writer);
	if (err) {
		kvd_format_units_fini(&encoder->units);
		free(encoder);
		return err;
	}
	encoder->plan = plan;
	encoder->end = kvd_format_writer_head_bytes(encoder->writer);
	*out = encoder;
	return 0;
}

void kvd_format_encoder_fini(kvd_format_encoder *encoder)
{
	if (!encoder)
		return;
	kvd_format_writer_fini(encoder->writer);
	kvd_format_units_fini(&encoder->units);
	free(encoder);
}

uint64_t kvd_format_encoder_head_bytes(const kvd_format_encoder *encoder)
{
	return kvd_format_writer_head_bytes(encoder->writer);
}

uint32_t kvd_format_encoder_left(const kvd_format_encoder *encoder)
{
	return encoder->plan->n_units - encoder->next;
}

uint64_t kvd_format_encoder_pages(const kvd_format_encoder *encoder)
{
	return encoder->pages;
}

void kvd_format_encoder_report(const kvd_format_encoder *encoder, struct kvd_format_report *out)
{
	kvd_format_writer_report(encoder->writer, out);
}

/* Count the pages that a unit touches; units come in order. */
static void count_pages(struct kvd_format_encoder *encoder, const struct kvd_format_unit *unit)
{
	uint64_t first = unit->offset / encoder->plan->page_bytes;
	uint64_t beyond = (unit->offset + unit->bytes - 1) / encoder->plan->page_bytes + 1;

	if (first < encoder->pages_before)
		first = encoder->pages_before;
	if (beyond > first)
		encoder->pages += beyond - first;
	encoder->pages_before = beyond;
}

static int encode_next(struct kvd_format_encoder *encoder, int object_fd, int staged_fd)
{
	struct kvd_format_stored stored;
	struct kvd_format_unit unit;
	int err = kvd_format_plan_unit(encoder->plan, encoder->next, &unit);

	if (!err)
		err = kvd_format_read_all(object_fd, encoder->units.plain, unit.bytes, unit.offset);
	if (!err)
		err = kvd_format_writer_put(encoder->writer, encoder->units.plain, encoder->units.stored, &stored);
	if (!err)
		err = kvd_format_write_all(staged_fd, encoder->units.stored, stored.bytes, stored.offset);
	if (err)
		return err;
	encoder->next++;
	encoder->end = stored.offset + stored.bytes;
	if (stored.kind != KVD_FORMAT_ZEROS)
		count_pages(encoder, &unit);
	return 0;
}

int kvd_format_encoder_step(kvd_format_encoder *encoder, int object_fd, int staged_fd, uint64_t bytes, uint64_t *end)
{
	uint64_t begin = encoder->end;
	int err = 0;

	/* Units of zeros make no bytes: a step over a long hole still has an end. */
	for (uint64_t steps = 0; !err && kvd_format_encoder_left(encoder) > 0; steps++) {
		if (encoder->end - begin >= bytes || steps >= KVD_FORMAT_STEP_UNITS)
			break;
		err = encode_next(encoder, object_fd, staged_fd);
	}
	*end = encoder->end;
	return err;
}

int kvd_format_encoder_head(const kvd_format_encoder *encoder, int staged_fd)
{
	uint64_t bytes = kvd_format_writer_head_bytes(encoder->writer);
	void *head = malloc(bytes);
	int err;

	if (!head)
		return -ENOMEM;
	err = kvd_format_writer_head(encoder->writer, head);
	if (!err)
		err = kvd_format_write_all(staged_fd, head, bytes, 0);
	free(head);
	return err;
}

int kvd_format_decoder_init(const kvd_format_reader *reader, kvd_format_decoder **out)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(reader);
	struct kvd_format_decoder *decoder = calloc(1, sizeof(*decoder));
	int err;

	if (!decoder)
		return -ENOMEM;
	decoder->reader = reader;
	decoder->page = malloc(plan->page_bytes);
	err = decoder->page ? kvd_format_units_init(&decoder->units, plan) : -ENOMEM;
	if (err) {
		free(decoder->page);
		free(decoder);
		return err;
	}
	*out = decoder;
	return 0;
}

void kvd_format_decoder_fini(kvd_format_decoder *decoder)
{
	if (!decoder)
		return;
	kvd_format_units_fini(&decoder->units);
	free(decoder->page);
	free(decoder);
}

/* The first byte behind pages of an object. */
static uint64_t pages_end(const struct kvd_format_plan *plan, uint64_t first, uint64_t count)
{
	uint64_t end = (first + count) * plan->page_bytes;

	return end < plan->object_bytes ? end : plan->object_bytes;
}

static bool has_pages(const struct kvd_format_plan *plan, uint64_t first, uint64_t count)
{
	uint64_t pages = kvd_format_pages(plan->object_bytes, plan->page_bytes);

	return count > 0 && first < pages && count <= pages - first;
}

int kvd_format_reader_span(const kvd_format_reader *reader, uint64_t first_page, uint64_t count, uint64_t *offset,
			   uint64_t *bytes)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(reader);
	struct kvd_format_stored from, to;
	uint32_t first, last;
	int err;

	if (!has_pages(plan, first_page, count))
		return -EINVAL;
	err = kvd_format_plan_find(plan, first_page * plan->page_bytes, &first);
	if (!err)
		err = kvd_format_plan_find(plan, pages_end(plan, first_page, count) - 1, &last);
	if (!err)
		err = kvd_format_reader_stored(reader, first, &from);
	if (!err)
		err = kvd_format_reader_stored(reader, last, &to);
	if (err)
		return err;
	*offset = from.offset;
	*bytes = to.offset + to.bytes - from.offset;
	return 0;
}

int kvd_format_decoder_pages(kvd_format_decoder *decoder, int staged_fd, int object_fd, uint64_t first_page,
			     uint64_t count, uint64_t stream, uint64_t *bad_page)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(decoder->reader);

	if (!has_pages(plan, first_page, count))
		return -EINVAL;
	for (uint64_t page = first_page; page < first_page + count; page++) {
		uint64_t begin = page * plan->page_bytes;
		bool zeros;
		int err = kvd_format_load_page(&decoder->units, staged_fd, decoder->reader, page, decoder->page, &zeros);

		*bad_page = page;
		if (!err && !zeros)
			err = kvd_format_write_all(object_fd, decoder->page, pages_end(plan, page, 1) - begin, begin);
		if (err)
			return err;
		if (stream)
			kvd_stream_mark((struct kvd_stream *)(uintptr_t)stream, page, 1);
	}
	return 0;
}
