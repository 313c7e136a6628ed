/* Reading a tier file whose pages have checksums: whole pages are read and checked, holes are zeroes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "fuse/internal.h"
#include "fuse/sys.h"

static bool is_power_of_two(uint64_t value)
{
	return value && !(value & (value - 1));
}

/* Runs ascend, do not overlap and end within the file: one that is too short is damaged before it is read. */
static int check_runs(const struct kvd_split_sums *sums, uint64_t size_bytes, uint64_t *pages)
{
	uint64_t in_file = size_bytes / sums->page_bytes + (size_bytes % sums->page_bytes != 0);
	uint64_t end = 0;

	*pages = 0;
	for (uint32_t i = 0; i < sums->n_runs; i++) {
		uint64_t first = sums->runs[2 * i];
		uint64_t count = sums->runs[2 * i + 1];

		if (count == 0 || first < end || first > UINT64_MAX - count)
			return -EINVAL;
		end = first + count;
		*pages += count;
	}
	return end > in_file ? -EBADMSG : 0;
}

int kvd_verify_init(struct kvd_object *object, const struct kvd_split_sums *sums, uint64_t size_bytes)
{
	uint64_t pages;
	int error;

	if (!is_power_of_two(sums->page_bytes) || sums->page_bytes < KVD_BLOCK_BYTES ||
	    sums->page_bytes > KVD_PAGE_BYTES_MAX)
		return -EINVAL;
	error = check_runs(sums, size_bytes, &pages);
	if (error)
		return error;
	object->page_bytes = sums->page_bytes;
	object->size_bytes = size_bytes;
	object->n_runs = sums->n_runs;
	if (pages == 0)
		return 0;
	object->runs = calloc(sums->n_runs, sizeof(*object->runs));
	object->crc = calloc(pages, sizeof(*object->crc));
	if (!object->runs || !object->crc)
		return -ENOMEM; /* the caller frees the object */
	if (sums->crc)
		memcpy(object->crc, sums->crc, pages * sizeof(*object->crc));
	pages = 0;
	for (uint32_t i = 0; i < sums->n_runs; i++) {
		object->runs[i] = (struct kvd_run){ sums->runs[2 * i], sums->runs[2 * i + 1], pages };
		pages += sums->runs[2 * i + 1];
	}
	return 0;
}

void kvd_verify_fini(struct kvd_object *object)
{
	free(object->runs);
	free(object->crc);
}

ssize_t kvd_pread_full(const struct kvd_object *object, uint8_t *buffer, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		size_t part_bytes = bytes - done;
		int fd = kvd_parts_at(object, offset + done, &part_bytes);
		ssize_t got = kvd_sys_pread(fd, buffer + done, part_bytes, offset + done);

		if (got == -EINTR)
			continue;
		if (got < 0)
			return got;
		done += (size_t)got;
		/* O_DIRECT ends off a block only at the end of the file, and could not go on from there. */
		if (got == 0 || (object->unbuffered && done % KVD_BLOCK_BYTES))
			break;
	}
	return (ssize_t)done;
}

/* The first run that ends after `page`, or NULL. */
static const struct kvd_run *run_at(const struct kvd_object *object, uint64_t page)
{
	uint32_t low = 0;
	uint32_t high = object->n_runs;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct kvd_run *run = &object->runs[middle];

		if (run->first_page + run->count <= page)
			low = middle + 1;
		else
			high = middle;
	}
	return low < object->n_runs ? &object->runs[low] : NULL;
}

int64_t kvd_verify_seek(const struct kvd_object *object, uint64_t offset, uint32_t whence)
{
	const struct kvd_run *run;
	uint64_t page;

	if (offset >= object->size_bytes)
		return -ENXIO;
	for (;;) {
		page = offset / object->page_bytes;
		run = run_at(object, page);
		if (whence == SEEK_HOLE && run && run->first_page <= page)
			offset = (run->first_page + run->count) * object->page_bytes; /* the next run may touch it */
		else
			break;
	}
	if (whence == SEEK_HOLE)
		return (int64_t)(offset < object->size_bytes ? offset : object->size_bytes);
	if (!run)
		return -ENXIO;
	return (int64_t)(run->first_page > page ? run->first_page * object->page_bytes : offset);
}

/* Read and check the pages [page, end_page) of one run. */
static int read_run(const struct kvd_object *object, const struct kvd_run *run, uint8_t *buffer, uint64_t page,
		    uint64_t end_page, uint64_t *bad_page)
{
	uint64_t offset = page * object->page_bytes;
	uint64_t bytes = (end_page - page) * object->page_bytes;
	ssize_t got = kvd_pread_full(object, buffer, bytes, offset);

	if (got < 0)
		return (int)got;
	for (uint64_t at = 0; at < bytes; at += object->page_bytes, page++) {
		uint64_t left = (uint64_t)got > at ? (uint64_t)got - at : 0;
		size_t whole = left < object->page_bytes ? (size_t)left : object->page_bytes;
		uint32_t want = object->crc[run->crc_index + page - run->first_page];

		if (whole == 0 || kvd_crc32c(0, buffer + at, whole) != want) {
			*bad_page = page;
			return -EBADMSG;
		}
	}
	return 0;
}

int kvd_verify_read(const struct kvd_object *object, uint8_t *buffer, uint64_t from, uint64_t to, uint64_t *bad_page)
{
	uint64_t page = from / object->page_bytes;
	uint64_t end_page = kvd_align_up(to, object->page_bytes) / object->page_bytes;

	while (page < end_page) {
		const struct kvd_run *run = run_at(object, page);
		uint64_t stop = end_page;

		if (run && run->first_page <= page) {
			int error;

			if (run->first_page + run->count < stop)
				stop = run->first_page + run->count;
			error = read_run(object, run, buffer, page, stop, bad_page);
			if (error)
				return error;
		} else {
			if (run && run->first_page < stop)
				stop = run->first_page;
			memset(buffer, 0, (stop - page) * object->page_bytes);
		}
		buffer += (stop - page) * object->page_bytes;
		page = stop;
	}
	return 0;
}
