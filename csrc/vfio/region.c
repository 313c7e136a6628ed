/* What a kernel or a server tells of a region, believed only where it can be true. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vfio/internal.h"

int kvd_vfio_capability(const void *told, size_t bytes, uint32_t offset, uint16_t id, size_t least, const void **out,
			size_t *room)
{
	struct vfio_info_cap_header header;

	while (offset) {
		if (offset > bytes || bytes - offset < sizeof(header))
			return -EPROTO;
		memcpy(&header, (const uint8_t *)told + offset, sizeof(header));
		if (header.id == id) {
			*out = (const uint8_t *)told + offset;
			*room = bytes - offset;
			return *room >= least ? 0 : -EPROTO;
		}
		/* A chain only goes forward here, so that it ends; everybody writes it so. */
		if (header.next && header.next <= offset)
			return -EPROTO;
		offset = header.next;
	}
	return -ENOENT;
}

/* The stretches of a sparse capability; each must be inside the region. */
static int parse_areas(struct kvd_vfio_part *part, const void *capability, size_t room)
{
	struct vfio_region_info_cap_sparse_mmap sparse;
	const uint8_t *at = (const uint8_t *)capability + sizeof(sparse);

	memcpy(&sparse, capability, sizeof(sparse));
	if (sparse.nr_areas > KVD_VFIO_AREAS_MAX ||
	    (room - sizeof(sparse)) / sizeof(struct vfio_region_sparse_mmap_area) < sparse.nr_areas)
		return -EPROTO;
	if (!sparse.nr_areas)
		return 0;
	part->areas = calloc(sparse.nr_areas, sizeof(*part->areas));
	if (!part->areas)
		return -ENOMEM;
	part->n_areas = sparse.nr_areas;
	for (uint32_t i = 0; i < sparse.nr_areas; i++, at += sizeof(struct vfio_region_sparse_mmap_area)) {
		struct vfio_region_sparse_mmap_area area;

		memcpy(&area, at, sizeof(area));
		if (area.offset > part->info.bytes || area.size > part->info.bytes - area.offset)
			return -EPROTO;
		part->areas[i] = (struct kvd_vfio_stretch){area.offset, area.size};
	}
	return 0;
}

/* All of it may be mapped. */
static int one_area(struct kvd_vfio_part *part)
{
	part->areas = calloc(1, sizeof(*part->areas));
	if (!part->areas)
		return -ENOMEM;
	part->n_areas = 1;
	part->areas[0] = (struct kvd_vfio_stretch){0, part->info.bytes};
	return 0;
}

int kvd_vfio_part_parse(struct kvd_vfio_part *part, uint32_t index, const void *told, size_t bytes)
{
	struct vfio_region_info region;
	const void *sparse;
	uint64_t end;
	size_t room;
	int err = -ENOENT;

	if (bytes < sizeof(region))
		return -EPROTO;
	memcpy(&region, told, sizeof(region));
	if (region.index != index || __builtin_add_overflow(region.offset, region.size, &end) || end > INT64_MAX)
		return -EPROTO;
	*part = (struct kvd_vfio_part){
		.info = {
			.bytes = region.size,
			.readable = (region.flags & VFIO_REGION_INFO_FLAG_READ) != 0,
			.writable = (region.flags & VFIO_REGION_INFO_FLAG_WRITE) != 0,
		},
		.file_offset = region.offset,
		.fd = -1,
	};
	if (!region.size || !(region.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return 0;
	if (region.flags & VFIO_REGION_INFO_FLAG_CAPS)
		err = kvd_vfio_capability(told, bytes, region.cap_offset, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
					  sizeof(struct vfio_region_info_cap_sparse_mmap), &sparse, &room);
	if (err == -ENOENT)
		err = one_area(part);
	else if (!err)
		err = parse_areas(part, sparse, room);
	if (err)
		kvd_vfio_part_fini(part);
	else
		part->info.mappable = part->n_areas > 0;
	return err;
}

void kvd_vfio_part_fini(struct kvd_vfio_part *part)
{
	free(part->areas);
	if (part->fd >= 0)
		close(part->fd);
	*part = (struct kvd_vfio_part){.fd = -1};
}

bool kvd_vfio_part_mappable(const struct kvd_vfio_part *part, uint64_t offset, uint64_t bytes)
{
	for (uint32_t i = 0; i < part->n_areas; i++) {
		const struct kvd_vfio_stretch *area = &part->areas[i];

		if (offset >= area->offset && offset - area->offset <= area->bytes &&
		    bytes <= area->bytes - (offset - area->offset))
			return true;
	}
	return false;
}
