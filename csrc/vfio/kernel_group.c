/* The device's group in a container of its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vfio/kernel.h"
#include "vfio/sys.h"

enum {
	GROUP_INFO_BYTES = 4096,
	GROUP_INFO_BYTES_MAX = 64 << 10,
};

static int group_map(struct vfio_kernel *kernel, const struct kvd_vfio_dma *dma)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | (dma->writable ? VFIO_DMA_MAP_FLAG_WRITE : 0),
		.vaddr = (uintptr_t)dma->address,
		.iova = dma->iova,
		.size = dma->bytes,
	};

	return kvd_vfio_sys_ioctl(kernel->container, VFIO_IOMMU_MAP_DMA, &map);
}

static int group_unmap(struct vfio_kernel *kernel, uint64_t iova, uint64_t *bytes)
{
	struct vfio_iommu_type1_dma_unmap unmap = {.argsz = sizeof(unmap), .iova = iova, .size = *bytes};
	int err = kvd_vfio_sys_ioctl(kernel->container, VFIO_IOMMU_UNMAP_DMA, &unmap);

	*bytes = unmap.size;
	return err;
}

static const struct kvd_vfio_iommu group_iommu = {.name = "vfio", .map = group_map, .unmap = group_unmap};

/* The ranges that the IOMMU can translate, and how many mappings it takes; old kernels say neither. */
static int parse_info(struct vfio_kernel *kernel, const struct vfio_iommu_type1_info *info, size_t bytes)
{
	uint32_t chain = info->flags & VFIO_IOMMU_INFO_CAPS ? info->cap_offset : 0;
	struct vfio_iommu_type1_info_cap_iova_range ranges;
	struct vfio_iommu_type1_info_dma_avail available;
	const void *capability;
	size_t room;
	int err = kvd_vfio_capability(info, bytes, chain, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, sizeof(available),
				      &capability, &room);

	if (!err) {
		memcpy(&available, capability, sizeof(available));
		if (available.avail < kernel->vfio.info.mappings_max)
			kernel->vfio.info.mappings_max = available.avail;
	} else if (err != -ENOENT) {
		return err;
	}
	err = kvd_vfio_capability(info, bytes, chain, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, sizeof(ranges),
				  &capability, &room);
	if (err == -ENOENT) {
		kvd_vfio_kernel_range(kernel, 0, UINT64_MAX);
		return 0;
	}
	if (err)
		return err;
	memcpy(&ranges, capability, sizeof(ranges));
	if ((room - sizeof(ranges)) / sizeof(struct vfio_iova_range) < ranges.nr_iovas)
		return -EPROTO;
	for (uint32_t i = 0; i < ranges.nr_iovas; i++) {
		struct vfio_iova_range range;

		memcpy(&range, (const uint8_t *)capability + sizeof(ranges) + i * sizeof(range), sizeof(range));
		kvd_vfio_kernel_range(kernel, range.start, range.end);
	}
	return 0;
}

static int read_info(struct vfio_kernel *kernel)
{
	uint32_t bytes = GROUP_INFO_BYTES;
	uint64_t pages;

	for (;;) {
		struct vfio_iommu_type1_info *info = calloc(1, bytes);
		int err;

		if (!info)
			return -ENOMEM;
		info->argsz = bytes;
		err = kvd_vfio_sys_ioctl(kernel->container, VFIO_IOMMU_GET_INFO, info);
		if (!err && info->argsz > bytes && info->argsz <= GROUP_INFO_BYTES_MAX) {
			bytes = info->argsz;
			free(info);
			continue;
		}
		if (!err && info->argsz > bytes)
			err = -EPROTO;
		if (!err) {
			pages = info->flags & VFIO_IOMMU_INFO_PGSIZES ? info->iova_pgsizes : 0;
			pages &= -pages; /* the smallest */
			if (pages > kernel->vfio.info.iova_page_bytes && pages <= UINT32_MAX)
				kernel->vfio.info.iova_page_bytes = (uint32_t)pages;
			err = parse_info(kernel, info, bytes);
		}
		free(info);
		return err;
	}
}

/* The kernel's mode without an IOMMU, in which the group has another name. */
static bool is_without_iommu(const char *group)
{
	char path[KVD_VFIO_NAME_BYTES * 2];
	int fd;

	snprintf(path, sizeof(path), "/dev/vfio/noiommu-%s", group);
	fd = kvd_vfio_sys_open(path);
	if (fd >= 0)
		kvd_vfio_sys_close(fd);
	return fd != -ENOENT;
}

static int open_group(struct vfio_kernel *kernel, const char *slot, const char *group, char *why)
{
	struct vfio_group_status status = {.argsz = sizeof(status)};
	char path[KVD_VFIO_NAME_BYTES * 2];
	int err;

	snprintf(path, sizeof(path), "/dev/vfio/%s", group);
	err = kvd_vfio_sys_open(path);
	if (err == -ENOENT && is_without_iommu(group))
		return kvd_vfio_why(why, -EOPNOTSUPP,
				    "The device at %s is behind no IOMMU, and kvd does not use VFIO's mode without "
				    "one; switch the IOMMU on in the firmware.", slot);
	if (err == -ENOENT)
		return kvd_vfio_why(why, err, "%s, the group of %s, is missing; load the driver: modprobe vfio-pci.",
				    path, slot);
	if (err == -EACCES || err == -EPERM)
		return kvd_vfio_why(why, err, "kvd may not open %s; give it to kvd's user, best by a udev rule.", path);
	if (err == -EBUSY)
		return kvd_vfio_why(why, err, "Another process uses the group of %s (%s); end it (fuser -v %s).", slot,
				    path, path);
	if (err < 0)
		return kvd_vfio_why(why, err, "%s can't be opened (%s).", path, strerror(-err));
	kernel->group = err;
	err = kvd_vfio_sys_ioctl(kernel->group, VFIO_GROUP_GET_STATUS, &status);
	if (err)
		return kvd_vfio_why(why, err, "The state of group %s can't be read (%s).", group, strerror(-err));
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return kvd_vfio_why(why, -EPERM,
				    "Group %s of %s is not viable: bind each device in "
				    "/sys/kernel/iommu_groups/%s/devices to vfio-pci, or to no driver.", group, slot,
				    group);
	return 0;
}

static int open_container(struct vfio_kernel *kernel, char *why)
{
	int err = kvd_vfio_sys_open("/dev/vfio/vfio");

	if (err == -EACCES || err == -EPERM)
		return kvd_vfio_why(why, err, "kvd may not open /dev/vfio/vfio; its mode should be 0666.");
	if (err < 0)
		return kvd_vfio_why(why, err,
				    "/dev/vfio/vfio can't be opened (%s); load the driver: modprobe vfio-pci.",
				    strerror(-err));
	kernel->container = err;
	if (kvd_vfio_sys_ioctl(kernel->container, VFIO_GET_API_VERSION, NULL) != VFIO_API_VERSION ||
	    kvd_vfio_sys_ioctl(kernel->container, VFIO_CHECK_EXTENSION, (void *)(uintptr_t)VFIO_TYPE1v2_IOMMU) <= 0)
		return kvd_vfio_why(why, -EOPNOTSUPP,
				    "This kernel's VFIO has no type 1 IOMMU; load it: modprobe vfio_iommu_type1.");
	return 0;
}

/* Group into container, IOMMU on, device out of the group. */
static int join(struct vfio_kernel *kernel, const char *slot, const char *group, char *why)
{
	char name[KVD_VFIO_NAME_BYTES];
	int err = kvd_vfio_sys_ioctl(kernel->group, VFIO_GROUP_SET_CONTAINER, &kernel->container);

	if (err == -EBUSY)
		return kvd_vfio_why(why, err, "Another process uses the group of %s; end it (fuser -v /dev/vfio/%s).",
				    slot, group);
	if (err)
		return kvd_vfio_why(why, err, "Group %s can't be put into a container (%s).", group, strerror(-err));
	err = kvd_vfio_sys_ioctl(kernel->container, VFIO_SET_IOMMU, (void *)(uintptr_t)VFIO_TYPE1v2_IOMMU);
	if (err == -EPERM)
		return kvd_vfio_why(why, err,
				    "The kernel refuses the IOMMU of %s: it does not remap interrupts. Switch that on "
				    "in the firmware, or load vfio_iommu_type1 with allow_unsafe_interrupts=1.", slot);
	if (err)
		return kvd_vfio_why(why, err, "The kernel refuses the IOMMU of %s (%s); its log says why (dmesg).",
				    slot, strerror(-err));
	snprintf(name, sizeof(name), "%s", slot);
	err = kvd_vfio_sys_ioctl(kernel->group, VFIO_GROUP_GET_DEVICE_FD, name);
	if (err < 0)
		return kvd_vfio_why(why, err,
				    "The device at %s can't be had from group %s (%s); the kernel's log "
				    "says why (dmesg).", slot, group, strerror(-err));
	kernel->device = err;
	return 0;
}

int kvd_vfio_group_open(struct vfio_kernel *kernel, const char *slot, const char *group, char *why)
{
	int err = open_group(kernel, slot, group, why);

	if (!err)
		err = open_container(kernel, why);
	if (!err)
		err = join(kernel, slot, group, why);
	if (err)
		goto out_shut;
	kernel->iommu = &group_iommu;
	err = read_info(kernel);
	if (!err)
		return 0;
	kvd_vfio_why(why, err, "The kernel does not say what the IOMMU of %s can do (%s).", slot, strerror(-err));

out_shut:
	kvd_vfio_kernel_shut(kernel);
	return err;
}
