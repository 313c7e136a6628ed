/* Stored files by descriptor, in the caller's thread: a unit and a page in memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/internal.h"

int kvd_format_file_encode(int object_fd, int stored_fd, const kvd_format_plan *plan, int level,
			   struct kvd_format_report *out)
{
	kvd_format_encoder *encoder;
	uint64_t end;
	int err = kvd_format_encoder_init(plan, level, &encoder);

	if (err)
		return err;
	while (!err && kvd_format_encoder_left(encoder) > 0)
		err = kvd_format_encoder_step(encoder, object_fd, stored_fd, UINT64_MAX, &end);
	if (!err)
		err = kvd_format_encoder_head(encoder, stored_fd);
	if (!err)
		kvd_format_encoder_report(encoder, out);
	kvd_format_encoder_fini(encoder);
	return err;
}

int kvd_format_file_open(int stored_fd, kvd_format_reader **out)
{
	off_t file_bytes = lseek(stored_fd, 0, SEEK_END);
	uint8_t first[KVD_FORMAT_HEAD_FIRST_BYTES];
	uint64_t head_bytes;
	void *head;
	int err;

	if (file_bytes < 0)
		return -errno;
	if ((uint64_t)file_bytes < sizeof(first))
		return -EPROTO;
	err = kvd_format_read_all(stored_fd, first, sizeof(first), 0);
	if (!err)
		err = kvd_format_head_bytes(first, &head_bytes);
	if (err)
		return err;
	if (head_bytes > (uint64_t)file_bytes)
		return -EPROTO;
	head = malloc(head_bytes);
	if (!head)
		return -ENOMEM;
	err = kvd_format_read_all(stored_fd, head, head_bytes, 0);
	if (!err)
		err = kvd_format_reader_init(head, head_bytes, (uint64_t)file_bytes, out);
	free(head);
	return err;
}

static void note_page(uint64_t *bad_page, uint64_t page)
{
	if (bad_page)
		*bad_page = page;
}

int kvd_format_file_read(int stored_fd, const kvd_format_reader *reader, uint64_t offset, void *dst, uint64_t bytes,
			 uint64_t *bad_page)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(reader);
	uint64_t at = offset, end;
	struct format_units units;
	uint8_t *page;
	int err;

	if (__builtin_add_overflow(offset, bytes, &end) || end > plan->object_bytes)
		return -EINVAL;
	err = kvd_format_units_init(&units, plan);
	if (err)
		return err;
	page = malloc(plan->page_bytes);
	if (!page)
		err = -ENOMEM;
	while (!err && at < end) {
		uint64_t number = at / plan->page_bytes, within = at % plan->page_bytes;
		uint64_t part = plan->page_bytes - within < end - at ? plan->page_bytes - within : end - at;

		err = kvd_format_load_page(&units, stored_fd, reader, number, page, NULL);
		if (err) {
			note_page(bad_page, number);
			break;
		}
		memcpy((uint8_t *)dst + (at - offset), page + within, part);
		at += part;
	}
	free(page);
	kvd_format_units_fini(&units);
	return err;
}

int kvd_format_file_decode(int stored_fd, const kvd_format_reader *reader, int object_fd, uint64_t *bad_page)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(reader);
	struct format_sums sums = {.page_bytes = plan->page_bytes, .end = plan->object_bytes, .check = true};
	struct format_units units;
	int err = kvd_format_units_init(&units, plan);

	if (err)
		return err;
	sums.crcs = kvd_format_reader_page_crcs(reader);
	for (uint32_t i = 0; i < plan->n_units && !err; i++) {
		struct kvd_format_stored stored;
		struct kvd_format_unit unit;

		err = kvd_format_units_load(&units, stored_fd, reader, i, &unit, &stored);
		if (err)
			note_page(bad_page, sums.at / plan->page_bytes);
		else
			err = kvd_format_sums_add(&sums, units.plain, unit.bytes, bad_page);
		if (!err && stored.kind != KVD_FORMAT_ZEROS)
			err = kvd_format_write_all(object_fd, units.plain, unit.bytes, unit.offset);
	}
	if (!err && ftruncate(object_fd, (off_t)plan->object_bytes))
		err = -errno;
	kvd_format_units_fini(&units);
	return err;
}
