/* What the client lets the card reach. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/internal.h"

#define WINDOW_BYTES_MAX (1ull << 40)
#define WINDOW_BYTES_MIN (1ull << 30)
#define WINDOW_ALIGN (1ull << 30) /* so that files of huge pages can be mapped wherever their IOVA allows it */
/* Tables reach 256 GiB from their begin. Wrong ones at the window's end lead into this, not into memory of ours. */
#define WINDOW_TAIL (256ull << 30)

/* The access modes of a DMA_MAP beside readable and writable. */
#define MODE_MMAP (1u << 2)
#define MODE_FILE (1u << 3)
#define FLAGS_KNOWN (KVD_VFU_DMA_F_READ | KVD_VFU_DMA_F_WRITE | MODE_MMAP | MODE_FILE)

int kvd_card_dma_init(struct kvd_card_dma *dma)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *reserved = MAP_FAILED;
	uint64_t bytes = WINDOW_BYTES_MAX;
	int err;

	*dma = (struct kvd_card_dma){0};
	for (; reserved == MAP_FAILED && bytes >= WINDOW_BYTES_MIN; bytes /= 2) {
		dma->window_bytes = bytes;
		dma->reserved_bytes = bytes + WINDOW_TAIL + WINDOW_ALIGN;
		reserved = mmap(NULL, dma->reserved_bytes, PROT_NONE, flags, -1, 0);
	}
	if (reserved == MAP_FAILED)
		return -errno;
	dma->reserved = reserved;
	dma->window = (uint8_t *)(((uintptr_t)reserved + WINDOW_ALIGN - 1) & ~(uintptr_t)(WINDOW_ALIGN - 1));
	dma->maps = calloc(KVD_CARD_MAPS_MAX, sizeof(*dma->maps));
	err = dma->maps ? kvd_card_guard_add(dma->window, dma->window_bytes + WINDOW_TAIL) : -ENOMEM;
	if (err)
		kvd_card_dma_fini(dma);
	return err;
}

void kvd_card_dma_fini(struct kvd_card_dma *dma)
{
	if (!dma->reserved)
		return;
	kvd_card_guard_remove(dma->window);
	munmap(dma->reserved, dma->reserved_bytes);
	free(dma->maps);
	*dma = (struct kvd_card_dma){0};
}

/* Put the reservation back over what was mapped. */
static int cover(struct kvd_card_dma *dma, uint64_t iova, uint64_t bytes)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

	return mmap(dma->window + iova, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? -errno : 0;
}

void kvd_card_dma_clear(struct kvd_card_dma *dma)
{
	/* All at once: that needs no mapping of the kernel more than there are. */
	if (dma->count)
		(void)cover(dma, 0, dma->window_bytes);
	dma->count = 0;
	dma->indirect = 0;
}

/* The first map that ends after `iova`. */
static uint32_t lower_bound(const struct kvd_card_dma *dma, uint64_t iova)
{
	uint32_t low = 0, high = dma->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (dma->maps[middle].iova + dma->maps[middle].bytes > iova)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

const struct kvd_card_map *kvd_card_dma_find(const struct kvd_card_dma *dma, uint64_t iova)
{
	uint32_t at = lower_bound(dma, iova);

	return at < dma->count && dma->maps[at].iova <= iova ? &dma->maps[at] : NULL;
}

/* Map `fd` at its place. */
static int map_file(struct kvd_card_dma *dma, const struct kvd_vfu_dma_map *in, int fd)
{
	int prot = (in->flags & KVD_VFU_DMA_F_READ ? PROT_READ : 0) | (in->flags & KVD_VFU_DMA_F_WRITE ? PROT_WRITE : 0);
	struct stat stat;

	if (fstat(fd, &stat))
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return -EINVAL;
	if (in->offset > (uint64_t)stat.st_size || in->bytes > (uint64_t)stat.st_size - in->offset)
		return -EINVAL;
	if (mmap(dma->window + in->iova, in->bytes, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)in->offset) == MAP_FAILED)
		return -errno;
	return 0;
}

static int check_map(const struct kvd_card_dma *dma, const struct kvd_vfu_dma_map *in, uint32_t fd_count)
{
	if (in->argsz < sizeof(*in) || in->flags & ~FLAGS_KNOWN || !(in->flags & (KVD_VFU_DMA_F_READ | KVD_VFU_DMA_F_WRITE)))
		return -EINVAL;
	if (in->flags & (MODE_MMAP | MODE_FILE) && !fd_count)
		return -EINVAL;
	if (in->flags & MODE_FILE)
		return -ENOTSUP;
	if (!in->bytes || (in->iova | in->bytes) % KVD_CARD_PAGE_BYTES || (fd_count && in->offset % KVD_CARD_PAGE_BYTES))
		return -EINVAL;
	if (in->iova >= dma->window_bytes || in->bytes > dma->window_bytes - in->iova)
		return -ERANGE;
	return 0;
}

int kvd_card_dma_map(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_card_dma *dma = &card->dma;
	struct kvd_vfu_dma_map in;
	uint32_t at;
	int err;

	(void)reply;
	memcpy(&in, request->payload, sizeof(in));
	err = check_map(dma, &in, request->fd_count);
	if (err)
		return err;
	at = lower_bound(dma, in.iova);
	if (at < dma->count && dma->maps[at].iova < in.iova + in.bytes)
		return -EEXIST;
	if (dma->count == KVD_CARD_MAPS_MAX)
		return -ENOSPC;
	if (request->fd_count) {
		err = map_file(dma, &in, request->fds[0]);
		if (err) {
			/* MAP_FIXED may have taken the reservation away before it failed. */
			(void)cover(dma, in.iova, in.bytes);
			return err;
		}
	}
	memmove(&dma->maps[at + 1], &dma->maps[at], (dma->count - at) * sizeof(*dma->maps));
	dma->maps[at] = (struct kvd_card_map){in.iova, in.bytes, in.flags, request->fd_count != 0};
	dma->count++;
	dma->indirect += !request->fd_count;
	return 0;
}

/* The maps that lie in a range, as [first, end) of the list. A range may end with the last address there is. */
static int find_range(const struct kvd_card_dma *dma, uint64_t iova, uint64_t bytes, uint32_t *first, uint32_t *end)
{
	uint64_t last = iova + (bytes - 1);

	if (!bytes || last < iova)
		return -EINVAL;
	*first = lower_bound(dma, iova);
	for (*end = *first; *end < dma->count && dma->maps[*end].iova <= last; (*end)++) {
		const struct kvd_card_map *map = &dma->maps[*end];

		if (map->iova < iova || map->iova + (map->bytes - 1) > last)
			return -EINVAL;
	}
	return 0;
}

/*
 * The specification wants exactly what one DMA_MAP mapped. QEMU's virtual IOMMU invalidates larger ranges, and such
 * where nothing is mapped, as the kernel's VFIO allows it: so a range may hold any number of maps, but cuts none.
 */
static int unmap_range(struct kvd_card *card, uint64_t iova, uint64_t bytes)
{
	struct kvd_card_dma *dma = &card->dma;
	uint32_t first, end;
	int err = find_range(dma, iova, bytes, &first, &end);

	if (err || first == end)
		return err;
	/* All that is within the range, and only that, goes; what lies between its maps is covered already. */
	iova = dma->maps[first].iova;
	bytes = dma->maps[end - 1].iova + dma->maps[end - 1].bytes - iova;
	for (uint32_t i = first; i < end; i++)
		dma->indirect -= !dma->maps[i].direct;
	memmove(&dma->maps[first], &dma->maps[end], (dma->count - end) * sizeof(*dma->maps));
	dma->count -= end - first;
	/* While the memory is still there: if it is the tables', the engine takes its leave of them. */
	kvd_card_queues_recheck(card);
	return cover(dma, iova, bytes);
}

int kvd_card_dma_unmap(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_vfu_dma_unmap in;
	int err = 0;

	memcpy(&in, request->payload, sizeof(in));
	if (in.argsz < sizeof(in) || in.flags & ~(uint32_t)VFIO_DMA_UNMAP_FLAG_ALL)
		return -EINVAL;
	if (!(in.flags & VFIO_DMA_UNMAP_FLAG_ALL))
		err = unmap_range(card, in.iova, in.bytes);
	else if (in.iova || in.bytes)
		err = -EINVAL;
	else
		err = unmap_range(card, 0, card->dma.window_bytes);
	if (err)
		return err;
	in.argsz = sizeof(in);
	memcpy(reply->payload, &in, sizeof(in));
	reply->bytes = sizeof(in);
	return 0;
}

/* Is all of a range mapped, for that, and directly if so asked? */
static bool covered(const struct kvd_card_dma *dma, uint64_t iova, uint64_t bytes, uint32_t flag, bool direct)
{
	uint32_t at = lower_bound(dma, iova);

	if (bytes > UINT64_MAX - iova)
		return false;
	for (uint64_t end = iova + bytes; iova < end; at++) {
		const struct kvd_card_map *map = &dma->maps[at];

		if (at == dma->count || map->iova > iova || !(map->flags & flag) || (direct && !map->direct))
			return false;
		iova = map->iova + map->bytes;
	}
	return true;
}

bool kvd_card_dma_allowed(const struct kvd_card *card, uint64_t iova, uint64_t bytes, bool write)
{
	return kvd_card_bus_master(card) &&
	       covered(&card->dma, iova, bytes, write ? KVD_VFU_DMA_F_WRITE : KVD_VFU_DMA_F_READ, false);
}

void *kvd_card_dma(struct kvd_card *card, uint64_t iova, uint64_t bytes, bool write)
{
	struct kvd_card_dma *dma = &card->dma;

	if (!bytes || !kvd_card_bus_master(card) ||
	    !covered(dma, iova, bytes, write ? KVD_VFU_DMA_F_WRITE : KVD_VFU_DMA_F_READ, true))
		return NULL;
	return dma->window + iova;
}
