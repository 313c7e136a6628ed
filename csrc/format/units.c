/* What those share that work with files: reading and writing all that was asked for, and the unit and page in hand. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "format/internal.h"

#define NO_UNIT UINT32_MAX

int kvd_format_read_all(int fd, void *buffer, size_t bytes, uint64_t offset)
{
	uint8_t *to = buffer;

	while (bytes > 0) {
		ssize_t n = pread(fd, to, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO; /* shorter than it was */
		to += n;
		bytes -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int kvd_format_write_all(int fd, const void *buffer, size_t bytes, uint64_t offset)
{
	const uint8_t *from = buffer;

	while (bytes > 0) {
		ssize_t n = pwrite(fd, from, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		from += n;
		bytes -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int kvd_format_units_init(struct format_units *units, const struct kvd_format_plan *plan)
{
	int err = kvd_format_work_init(plan, KVD_FORMAT_LEVEL_DEFAULT, &units->work);

	if (err)
		return err;
	units->plain = malloc(plan->unit_bytes_max ? plan->unit_bytes_max : 1);
	units->stored = malloc(plan->unit_bytes_max ? plan->unit_bytes_max : 1);
	units->held = NO_UNIT;
	if (!units->plain || !units->stored) {
		kvd_format_units_fini(units);
		return -ENOMEM;
	}
	return 0;
}

void kvd_format_units_fini(struct format_units *units)
{
	kvd_format_work_fini(units->work);
	free(units->plain);
	free(units->stored);
}

int kvd_format_units_load(struct format_units *units, int stored_fd, const kvd_format_reader *reader, uint32_t index,
			  struct kvd_format_unit *unit, struct kvd_format_stored *stored)
{
	int err = kvd_format_plan_unit(kvd_format_reader_plan(reader), index, unit);

	if (!err)
		err = kvd_format_reader_stored(reader, index, stored);
	if (err || units->held == index)
		return err;
	units->held = NO_UNIT;
	err = kvd_format_read_all(stored_fd, units->stored, stored->bytes, stored->offset);
	if (!err)
		err = kvd_format_decode(units->work, unit, stored, units->stored, units->plain);
	if (!err)
		units->held = index;
	return err;
}

int kvd_format_load_page(struct format_units *units, int stored_fd, const kvd_format_reader *reader, uint64_t number,
			 uint8_t *page, bool *zeros)
{
	const struct kvd_format_plan *plan = kvd_format_reader_plan(reader);
	uint64_t begin = number * plan->page_bytes, end = begin + plan->page_bytes, at = begin;
	bool nothing = true;

	if (end > plan->object_bytes)
		end = plan->object_bytes;
	while (at < end) {
		struct kvd_format_stored stored;
		struct kvd_format_unit unit;
		uint64_t until;
		uint32_t index;
		int err = kvd_format_plan_find(plan, at, &index);

		if (!err)
			err = kvd_format_units_load(units, stored_fd, reader, index, &unit, &stored);
		if (err)
			return err;
		nothing = nothing && stored.kind == KVD_FORMAT_ZEROS;
		until = unit.offset + unit.bytes < end ? unit.offset + unit.bytes : end;
		memcpy(page + (at - begin), units->plain + (at - unit.offset), until - at);
		at = until;
	}
	if (zeros)
		*zeros = nothing;
	return kvd_crc32c(0, page, end - begin) == kvd_format_reader_page_crc(reader, number) ? 0 : -EBADMSG;
}
