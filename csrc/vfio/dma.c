/* The DMA mappings of a handle: a sorted array. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vfio/internal.h"

enum { DMAS_ROOM_FIRST = 16 };

void kvd_vfio_dmas_fini(struct kvd_vfio_dmas *dmas)
{
	free(dmas->items);
	*dmas = (struct kvd_vfio_dmas){0};
}

int kvd_vfio_dmas_reserve(struct kvd_vfio_dmas *dmas)
{
	uint32_t room = dmas->room ? dmas->room * 2 : DMAS_ROOM_FIRST;
	struct kvd_vfio_dma *items;

	if (dmas->n < dmas->room)
		return 0;
	if (dmas->n >= KVD_VFIO_MAPPINGS_MAX)
		return -ENOSPC;
	items = realloc(dmas->items, room * sizeof(*items));
	if (!items)
		return -ENOMEM;
	dmas->items = items;
	dmas->room = room;
	return 0;
}

/* The first mapping that ends beyond `iova`. */
static uint32_t first_beyond(const struct kvd_vfio_dmas *dmas, uint64_t iova)
{
	uint32_t low = 0, high = dmas->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct kvd_vfio_dma *dma = &dmas->items[middle];

		if (dma->iova + (dma->bytes - 1) < iova)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool kvd_vfio_dmas_overlap(const struct kvd_vfio_dmas *dmas, uint64_t iova, uint64_t bytes)
{
	uint32_t at = first_beyond(dmas, iova);

	return at < dmas->n && dmas->items[at].iova <= iova + (bytes - 1);
}

void kvd_vfio_dmas_add(struct kvd_vfio_dmas *dmas, const struct kvd_vfio_dma *dma)
{
	uint32_t at = first_beyond(dmas, dma->iova);

	memmove(dmas->items + at + 1, dmas->items + at, (dmas->n - at) * sizeof(*dmas->items));
	dmas->items[at] = *dma;
	dmas->n++;
}

const struct kvd_vfio_dma *kvd_vfio_dmas_find(const struct kvd_vfio_dmas *dmas, uint64_t iova, uint64_t bytes)
{
	uint32_t at = first_beyond(dmas, iova);

	if (at == dmas->n || dmas->items[at].iova != iova || dmas->items[at].bytes != bytes)
		return NULL;
	return &dmas->items[at];
}

void kvd_vfio_dmas_remove(struct kvd_vfio_dmas *dmas, const struct kvd_vfio_dma *dma)
{
	uint32_t at = (uint32_t)(dma - dmas->items);

	dmas->n--;
	memmove(dmas->items + at, dmas->items + at + 1, (dmas->n - at) * sizeof(*dmas->items));
}

/* Is all of it mapped, and writable where that is asked for? */
static bool covered(const struct kvd_vfio_dmas *dmas, uint64_t iova, uint64_t bytes, bool writable)
{
	uint32_t at = first_beyond(dmas, iova);
	uint64_t last;

	if (!bytes)
		return true;
	if (__builtin_add_overflow(iova, bytes - 1, &last))
		return false;
	for (; at < dmas->n; at++) {
		const struct kvd_vfio_dma *dma = &dmas->items[at];
		uint64_t dma_last = dma->iova + (dma->bytes - 1);

		if (dma->iova > iova || (writable && !dma->writable))
			return false;
		if (dma_last >= last)
			return true;
		iova = dma_last + 1;
	}
	return false;
}

int kvd_vfio_dmas_read(const struct kvd_vfio_dmas *dmas, uint64_t iova, void *data, uint64_t bytes)
{
	uint8_t *to = data;

	if (!covered(dmas, iova, bytes, false))
		return -EFAULT;
	for (uint32_t at = first_beyond(dmas, iova); bytes; at++) {
		const struct kvd_vfio_dma *dma = &dmas->items[at];
		uint64_t skip = iova - dma->iova;
		uint64_t piece = dma->bytes - skip < bytes ? dma->bytes - skip : bytes;

		memcpy(to, dma->address + skip, piece);
		to += piece;
		iova += piece;
		bytes -= piece;
	}
	return 0;
}

int kvd_vfio_dmas_write(const struct kvd_vfio_dmas *dmas, uint64_t iova, const void *data, uint64_t bytes)
{
	const uint8_t *from = data;

	if (!covered(dmas, iova, bytes, true))
		return -EFAULT;
	for (uint32_t at = first_beyond(dmas, iova); bytes; at++) {
		const struct kvd_vfio_dma *dma = &dmas->items[at];
		uint64_t skip = iova - dma->iova;
		uint64_t piece = dma->bytes - skip < bytes ? dma->bytes - skip : bytes;

		memcpy(dma->address + skip, from, piece);
		from += piece;
		iova += piece;
		bytes -= piece;
	}
	return 0;
}
