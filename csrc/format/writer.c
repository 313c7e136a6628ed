/* A stored file in the making: units in order, the sums of what will be given back, and the head. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "format/internal.h"

struct kvd_format_writer {
	const struct kvd_format_plan *plan;
	struct kvd_format_work *work;
	struct format_entry *entries;
	uint32_t next;
	uint64_t head_bytes;
	uint64_t offset; /* of the next unit in the file */
	struct format_sums sums;
	struct kvd_format_report report;
};

int kvd_format_sums_add(struct format_sums *sums, const void *data, size_t bytes, uint64_t *bad_page)
{
	const uint8_t *from = data;

	while (bytes > 0) {
		uint64_t page = sums->at / sums->page_bytes;
		size_t part = sums->page_bytes - (size_t)(sums->at % sums->page_bytes);

		if (part > bytes)
			part = bytes;
		sums->crc = kvd_crc32c(sums->crc, from, part);
		from += part;
		bytes -= part;
		sums->at += part;
		if (sums->at % sums->page_bytes != 0 && sums->at != sums->end)
			continue;
		if (sums->check && sums->crcs[page] != sums->crc) {
			if (bad_page)
				*bad_page = page;
			return -EBADMSG;
		}
		if (!sums->check)
			sums->crcs[page] = sums->crc;
		sums->crc = 0;
	}
	return 0;
}

int kvd_format_writer_init(const kvd_format_plan *plan, int level, kvd_format_writer **out)
{
	uint64_t pages = kvd_format_pages(plan->object_bytes, plan->page_bytes);
	struct kvd_format_writer *writer = calloc(1, sizeof(*writer));
	int err;

	if (!writer)
		return -ENOMEM;
	writer->plan = plan;
	writer->entries = calloc((size_t)plan->n_units + 1, sizeof(*writer->entries));
	writer->sums = (struct format_sums){
		.crcs = calloc(pages + 1, sizeof(uint32_t)), .page_bytes = plan->page_bytes, .end = plan->object_bytes};
	err = writer->entries && writer->sums.crcs ? kvd_format_work_init(plan, level, &writer->work) : -ENOMEM;
	if (err) {
		kvd_format_writer_fini(writer);
		return err;
	}
	writer->head_bytes = kvd_format_head_size(plan->n_regions, plan->n_units, pages);
	writer->offset = writer->head_bytes;
	writer->report.object_bytes = plan->object_bytes;
	writer->report.stored_bytes = writer->head_bytes;
	*out = writer;
	return 0;
}

void kvd_format_writer_fini(kvd_format_writer *writer)
{
	if (!writer)
		return;
	kvd_format_work_fini(writer->work);
	free(writer->entries);
	free(writer->sums.crcs);
	free(writer);
}

uint64_t kvd_format_writer_head_bytes(const kvd_format_writer *writer)
{
	return writer->head_bytes;
}

int kvd_format_writer_put(kvd_format_writer *writer, const void *src, void *dst, struct kvd_format_stored *out)
{
	struct kvd_format_unit unit;
	const void *back;
	int err = kvd_format_plan_unit(writer->plan, writer->next, &unit);

	if (err)
		return err;
	err = kvd_format_encode_unit(writer->work, &unit, src, dst, &back, out, writer->report.errors);
	if (err)
		return err;
	out->offset = writer->offset;
	out->reserved = 0;
	writer->entries[writer->next++] =
		(struct format_entry){.bytes = out->bytes, .crc = out->crc, .kind = out->kind};
	writer->offset += out->bytes;
	writer->report.stored_bytes += out->bytes;
	writer->report.kind_bytes[out->kind] += unit.bytes;
	return kvd_format_sums_add(&writer->sums, back, unit.bytes, NULL);
}

int kvd_format_writer_head(const kvd_format_writer *writer, void *dst)
{
	const struct kvd_format_plan *plan = writer->plan;
	struct format_head head = {
		.magic = "kvd-form",
		.version = FORMAT_VERSION,
		.page_bytes = plan->page_bytes,
		.head_bytes = writer->head_bytes,
		.stored_bytes = writer->offset,
		.object_bytes = plan->object_bytes,
		.n_regions = plan->n_regions,
		.n_units = plan->n_units,
	};
	size_t regions_bytes = plan->n_regions * sizeof(*plan->regions);
	size_t entries_bytes = plan->n_units * sizeof(*writer->entries);
	uint8_t *at = dst;

	if (writer->next != plan->n_units)
		return -EINVAL;
	memcpy(head.errors, writer->report.errors, sizeof(head.errors));
	memset(dst, 0, writer->head_bytes);
	memcpy(at, &head, sizeof(head));
	at += sizeof(head);
	memcpy(at, plan->regions, regions_bytes);
	at += regions_bytes;
	memcpy(at, writer->entries, entries_bytes);
	at += entries_bytes;
	memcpy(at, writer->sums.crcs, kvd_format_pages(plan->object_bytes, plan->page_bytes) * sizeof(uint32_t));
	head.crc = kvd_crc32c(0, dst, writer->head_bytes);
	memcpy(dst, &head, sizeof(head));
	return 0;
}

void kvd_format_writer_report(const kvd_format_writer *writer, struct kvd_format_report *out)
{
	*out = writer->report;
}

uint32_t kvd_format_writer_page_crc(const kvd_format_writer *writer, uint64_t page)
{
	assert(page < kvd_format_pages(writer->plan->object_bytes, writer->plan->page_bytes));
	return writer->sums.crcs[page];
}
