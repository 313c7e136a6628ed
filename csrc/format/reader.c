/* A stored file's head, which may be anything: all of it is checked before any of it is used. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "format/internal.h"

struct kvd_format_reader {
	struct kvd_format_plan *plan;
	struct kvd_format_stored *units;
	uint32_t *page_crcs;
	struct kvd_format_report report;
};

int kvd_format_head_bytes(const void *first, uint64_t *head_bytes)
{
	struct format_head head;

	memcpy(&head, first, sizeof(head));
	if (memcmp(head.magic, "kvd-form", sizeof(head.magic)) != 0)
		return -EPROTO;
	if (head.version > FORMAT_VERSION)
		return -EPROTONOSUPPORT;
	if (head.version == 0 || head.n_regions > KVD_FORMAT_REGIONS_MAX || head.n_units > KVD_FORMAT_UNITS_MAX ||
	    head.page_bytes < KVD_FORMAT_PAGE_BYTES_MIN || head.page_bytes > KVD_FORMAT_PAGE_BYTES_MAX ||
	    head.object_bytes > (uint64_t)KVD_FORMAT_UNITS_MAX * KVD_FORMAT_UNIT_BYTES)
		return -EPROTO;
	if (head.head_bytes != kvd_format_head_size(head.n_regions, head.n_units,
						    kvd_format_pages(head.object_bytes, head.page_bytes)))
		return -EPROTO;
	*head_bytes = head.head_bytes;
	return 0;
}

/* May a unit be stored like this? */
static bool entry_fits(const struct kvd_format_unit *unit, const struct format_entry *entry)
{
	switch (entry->kind) {
	case KVD_FORMAT_RAW:
		return entry->bytes == unit->bytes;
	case KVD_FORMAT_ZEROS:
		return entry->bytes == 0 && entry->crc == 0;
	case KVD_FORMAT_ZSTD:
		return entry->bytes < unit->bytes;
	default:
		return kvd_format_narrows(unit->kind) && entry->kind == unit->kind &&
		       entry->bytes == kvd_format_narrow_bytes(unit, unit->kind);
	}
}

static int read_entries(struct kvd_format_reader *reader, const uint8_t *entries, const struct format_head *head)
{
	uint64_t offset = head->head_bytes;

	for (uint32_t i = 0; i < head->n_units; i++) {
		struct kvd_format_unit unit;
		struct format_entry entry;

		memcpy(&entry, entries + i * sizeof(entry), sizeof(entry));
		if (kvd_format_plan_unit(reader->plan, i, &unit) || !entry_fits(&unit, &entry) ||
		    entry.bytes > head->stored_bytes - offset)
			return -EPROTO;
		reader->units[i] = (struct kvd_format_stored){
			.offset = offset, .bytes = entry.bytes, .kind = entry.kind, .crc = entry.crc};
		reader->report.kind_bytes[entry.kind] += unit.bytes;
		offset += entry.bytes;
	}
	return offset == head->stored_bytes ? 0 : -EPROTO;
}

static int read_head(struct kvd_format_reader *reader, const uint8_t *from, const struct format_head *head)
{
	size_t regions_bytes = head->n_regions * sizeof(struct kvd_format_region);
	size_t pages = kvd_format_pages(head->object_bytes, head->page_bytes);
	const uint8_t *entries = from + sizeof(*head) + regions_bytes;
	struct kvd_format_region *regions = malloc(regions_bytes + 1);
	int err;

	if (!regions)
		return -ENOMEM;
	memcpy(regions, from + sizeof(*head), regions_bytes);
	err = kvd_format_plan_init(regions, head->n_regions, head->object_bytes, head->page_bytes, &reader->plan);
	free(regions);
	if (err)
		return err == -EINVAL ? -EPROTO : err;
	if (reader->plan->n_units != head->n_units)
		return -EPROTO;
	reader->units = calloc((size_t)head->n_units + 1, sizeof(*reader->units));
	reader->page_crcs = calloc(pages + 1, sizeof(*reader->page_crcs));
	if (!reader->units || !reader->page_crcs)
		return -ENOMEM;
	memcpy(reader->page_crcs, entries + head->n_units * sizeof(struct format_entry), pages * sizeof(uint32_t));
	reader->report.object_bytes = head->object_bytes;
	reader->report.stored_bytes = head->stored_bytes;
	memcpy(reader->report.errors, head->errors, sizeof(reader->report.errors));
	return read_entries(reader, entries, head);
}

int kvd_format_reader_init(const void *head, uint64_t bytes, uint64_t file_bytes, kvd_format_reader **out)
{
	struct kvd_format_reader *reader;
	struct format_head first;
	uint64_t head_bytes;
	uint32_t crc;
	int err;

	if (bytes < sizeof(first))
		return -EPROTO;
	err = kvd_format_head_bytes(head, &head_bytes);
	if (err)
		return err;
	if (head_bytes > bytes)
		return -EPROTO;
	memcpy(&first, head, sizeof(first));
	crc = first.crc;
	first.crc = 0;
	if (kvd_crc32c(kvd_crc32c(0, &first, sizeof(first)), (const uint8_t *)head + sizeof(first),
		       head_bytes - sizeof(first)) != crc)
		return -EBADMSG;
	if (first.stored_bytes != file_bytes || first.stored_bytes < head_bytes)
		return -EPROTO;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return -ENOMEM;
	err = read_head(reader, head, &first);
	if (err) {
		kvd_format_reader_fini(reader);
		return err;
	}
	*out = reader;
	return 0;
}

void kvd_format_reader_fini(kvd_format_reader *reader)
{
	if (!reader)
		return;
	kvd_format_plan_fini(reader->plan);
	free(reader->units);
	free(reader->page_crcs);
	free(reader);
}

const kvd_format_plan *kvd_format_reader_plan(const kvd_format_reader *reader)
{
	return reader->plan;
}

int kvd_format_reader_stored(const kvd_format_reader *reader, uint32_t index, struct kvd_format_stored *out)
{
	if (index >= reader->plan->n_units)
		return -EINVAL;
	*out = reader->units[index];
	return 0;
}

uint32_t kvd_format_reader_page_bytes(const kvd_format_reader *reader)
{
	return reader->plan->page_bytes;
}

uint32_t kvd_format_reader_page_crc(const kvd_format_reader *reader, uint64_t page)
{
	assert(page < kvd_format_pages(reader->plan->object_bytes, reader->plan->page_bytes));
	return reader->page_crcs[page];
}

uint32_t *kvd_format_reader_page_crcs(const struct kvd_format_reader *reader)
{
	return reader->page_crcs;
}

void kvd_format_reader_report(const kvd_format_reader *reader, struct kvd_format_report *out)
{
	*out = reader->report;
}
