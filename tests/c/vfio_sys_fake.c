#include "vfio_sys_fake.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "vfio/sys.h"
#include "vfio/uapi.h"

#define REGION_SHIFT 40u

struct fake_kernel fake;

void fake_reset(void)
{
	fake = (struct fake_kernel){
		.device = "0000:00:04.0",
		.group = "12",
		.driver = "vfio-pci",
		.pages = 0x40201000,
		.n_ranges = 3,
		.ranges = {{0, 0xfedfffff}, {0xfef00000, 0x7fffffffff}, {0x9000000000, 0x9000000fff}},
		.available = FAKE_MAPPINGS,
		.locked_bytes_max = UINT64_MAX,
	};
	memcpy(fake.config, "\x36\x12\xe8\x11\x00\x00\x10\x00\x10\x00\xff\x00", 12);
}

uint32_t fake_open(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < FAKE_FD_END - FAKE_GROUP; i++)
		n += fake.is_open[i];
	return n;
}

static int open_one(enum fake_fd fd)
{
	int err = fake.open_error[fd - FAKE_GROUP];

	if (err)
		return err;
	assert(!fake.is_open[fd - FAKE_GROUP]);
	fake.is_open[fd - FAKE_GROUP] = true;
	return (int)fd;
}

int kvd_vfio_sys_open(const char *path)
{
	char group[64], node[64];

	snprintf(group, sizeof(group), "/dev/vfio/%s", fake.group);
	snprintf(node, sizeof(node), "/dev/vfio/devices/%s", fake.node ? fake.node : "-");
	if (!strcmp(path, group))
		return open_one(FAKE_GROUP);
	if (!strcmp(path, node))
		return open_one(FAKE_NODE);
	if (!strcmp(path, "/dev/vfio/vfio"))
		return open_one(FAKE_CONTAINER);
	if (!strcmp(path, "/dev/vfio/noiommu-12"))
		return fake.without_iommu ? open_one(FAKE_NO_IOMMU) : -ENOENT;
	if (!strcmp(path, "/dev/iommu"))
		return fake.node ? open_one(FAKE_IOMMU) : -ENOENT;
	return -ENOENT;
}

void kvd_vfio_sys_close(int fd)
{
	assert(fd >= FAKE_GROUP && fd < FAKE_FD_END && fake.is_open[fd - FAKE_GROUP]);
	fake.is_open[fd - FAKE_GROUP] = false;
	/* The device is closed before what it belongs to. */
	assert(fd == FAKE_DEVICE || !fake.is_open[FAKE_DEVICE - FAKE_GROUP]);
	if (fd == FAKE_GROUP)
		fake.contained = false;
	if (fd == FAKE_CONTAINER || fd == FAKE_IOMMU)
		fake.translated = fake.bound = fake.attached = false;
}

static int map(uint64_t iova, uint64_t bytes, bool writable)
{
	if (fake.n_mappings == FAKE_MAPPINGS)
		return -ENOSPC;
	if (fake.locked_bytes + bytes > fake.locked_bytes_max)
		return -ENOMEM;
	fake.mappings[fake.n_mappings].iova = iova;
	fake.mappings[fake.n_mappings].bytes = bytes;
	fake.mappings[fake.n_mappings++].writable = writable;
	fake.locked_bytes += bytes;
	return 0;
}

static int unmap(uint64_t iova, uint64_t *bytes)
{
	for (uint32_t i = 0; i < fake.n_mappings; i++) {
		if (fake.mappings[i].iova != iova || fake.mappings[i].bytes != *bytes)
			continue;
		fake.locked_bytes -= *bytes;
		fake.mappings[i] = fake.mappings[--fake.n_mappings];
		*bytes -= fake.unmap_less ? 1 : 0;
		return 0;
	}
	*bytes = 0;
	return -ENOENT;
}

struct fake_info {
	struct vfio_iommu_type1_info info;
	uint32_t pad;
	struct vfio_iommu_type1_info_dma_avail available;
	uint32_t pad2;
	struct vfio_iommu_type1_info_cap_iova_range ranges;
	struct vfio_iova_range range[4];
};

static int iommu_info(struct vfio_iommu_type1_info *out)
{
	struct fake_info info = {.info = {.flags = VFIO_IOMMU_INFO_PGSIZES, .iova_pgsizes = fake.pages}};
	uint32_t room = out->argsz;

	info.info.argsz = fake.info_needs ? fake.info_needs : (uint32_t)sizeof(info);
	if (fake.available || fake.n_ranges) {
		info.info.flags |= VFIO_IOMMU_INFO_CAPS;
		info.info.cap_offset = fake.available ? offsetof(struct fake_info,
								 available) : offsetof(struct fake_info, ranges);
	}
	info.available.header = (struct vfio_info_cap_header){
		VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, 1, fake.n_ranges ? offsetof(struct fake_info, ranges) : 0,
	};
	info.available.avail = fake.available;
	info.ranges.header = (struct vfio_info_cap_header){VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, 1, 0};
	info.ranges.nr_iovas = fake.info_lies ? 1 << 20 : fake.n_ranges;
	memcpy(info.range, fake.ranges, sizeof(info.range));
	memcpy(out, &info, info.info.argsz > room ? sizeof(info.info) : sizeof(info));
	return 0;
}

static int ranges(struct kvd_uapi_ioas_ranges *ask)
{
	assert(fake.attached && ask->size == sizeof(*ask));
	if (ask->count < fake.n_ranges)
		return -EMSGSIZE;
	ask->count = fake.n_ranges;
	ask->alignment = fake.pages & -fake.pages;
	memcpy((void *)(uintptr_t)ask->ranges, fake.ranges, fake.n_ranges * sizeof(struct kvd_uapi_range));
	return 0;
}

static int region_info(struct vfio_region_info *info)
{
	info->argsz = sizeof(*info);
	info->flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	info->offset = (uint64_t)info->index << REGION_SHIFT;
	info->size = 0;
	switch (info->index) {
	case VFIO_PCI_BAR0_REGION_INDEX:
		info->size = FAKE_BAR0_BYTES;
		info->flags |= VFIO_REGION_INFO_FLAG_MMAP;
		return 0;
	case VFIO_PCI_CONFIG_REGION_INDEX:
		info->size = fake.config_tiny ? 4 : FAKE_CONFIG_BYTES;
		return 0;
	case VFIO_PCI_VGA_REGION_INDEX:
		return -EINVAL;
	default:
		info->flags = 0;
		return 0;
	}
}

static int irq_info(struct vfio_irq_info *info)
{
	static const uint32_t counts[] = {1, 1, FAKE_VECTORS, 0, 1};

	if (info->index == VFIO_PCI_ERR_IRQ_INDEX)
		return -EINVAL;
	info->flags = VFIO_IRQ_INFO_EVENTFD;
	info->count = counts[info->index];
	return 0;
}

static int set_irqs(const struct vfio_irq_set *set)
{
	fake.irq_calls++;
	fake.irq_flags = set->flags;
	fake.irq_first = set->start;
	fake.irq_count = set->count;
	memcpy(fake.irq_fds, set->data, set->argsz - sizeof(*set));
	return 0;
}

static int device_ioctl(unsigned long request, void *argument)
{
	struct vfio_device_info *info = argument;

	switch (request) {
	case VFIO_DEVICE_GET_INFO:
		info->flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
		info->num_regions = VFIO_PCI_NUM_REGIONS;
		info->num_irqs = VFIO_PCI_NUM_IRQS;
		return 0;
	case VFIO_DEVICE_GET_REGION_INFO:
		return region_info(argument);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return irq_info(argument);
	case VFIO_DEVICE_SET_IRQS:
		return set_irqs(argument);
	case VFIO_DEVICE_RESET:
		fake.resets++;
		return 0;
	case KVD_UAPI_BIND_IOMMUFD:
		fake.bound = ((struct kvd_uapi_bind *)argument)->iommufd == FAKE_IOMMU;
		return fake.bound ? 0 : -EBADF;
	case KVD_UAPI_ATTACH_IOMMUFD:
		fake.attached = fake.bound && ((struct kvd_uapi_attach *)argument)->table_id == 5;
		return fake.attached ? 0 : -EINVAL;
	default:
		return -ENOTTY;
	}
}

static int group_ioctl(unsigned long request, void *argument)
{
	switch (request) {
	case VFIO_GROUP_GET_STATUS:
		((struct vfio_group_status *)argument)->flags = fake.not_viable ? 0 : VFIO_GROUP_FLAGS_VIABLE;
		return 0;
	case VFIO_GROUP_SET_CONTAINER:
		fake.contained = *(int *)argument == FAKE_CONTAINER;
		return fake.contained ? 0 : -EBADF;
	case VFIO_GROUP_GET_DEVICE_FD:
		return fake.translated && !strcmp(argument, FAKE_SLOT) ? open_one(FAKE_DEVICE) : -EINVAL;
	default:
		return -ENOTTY;
	}
}

static int iommu_ioctl(unsigned long request, void *argument)
{
	struct vfio_iommu_type1_dma_map *dma = argument;
	struct vfio_iommu_type1_dma_unmap *undma = argument;
	struct kvd_uapi_ioas_map *ioas = argument;
	uint64_t size;
	int err;

	switch (request) {
	case VFIO_GET_API_VERSION:
		return VFIO_API_VERSION;
	case VFIO_CHECK_EXTENSION:
		return (uintptr_t)argument == VFIO_TYPE1v2_IOMMU && !fake.no_type1;
	case VFIO_SET_IOMMU:
		fake.translated = fake.contained && (uintptr_t)argument == VFIO_TYPE1v2_IOMMU;
		return fake.translated ? 0 : -EINVAL;
	case VFIO_IOMMU_GET_INFO:
		return iommu_info(argument);
	case VFIO_IOMMU_MAP_DMA:
		return map(dma->iova, dma->size, dma->flags & VFIO_DMA_MAP_FLAG_WRITE);
	case VFIO_IOMMU_UNMAP_DMA:
		size = undma->size;
		err = unmap(undma->iova, &size);
		undma->size = size;
		return err;
	case KVD_UAPI_IOAS_ALLOC:
		((struct kvd_uapi_ioas_alloc *)argument)->ioas = 5;
		return 0;
	case KVD_UAPI_IOAS_RANGES:
		return ranges(argument);
	case KVD_UAPI_IOAS_MAP:
		assert(ioas->ioas == 5 && ioas->flags & KVD_UAPI_MAP_FIXED && ioas->flags & KVD_UAPI_MAP_READABLE);
		return map(ioas->iova, ioas->bytes, ioas->flags & KVD_UAPI_MAP_WRITEABLE);
	case KVD_UAPI_IOAS_UNMAP:
		return unmap(((struct kvd_uapi_ioas_unmap *)argument)->iova,
			     &((struct kvd_uapi_ioas_unmap *)argument)->bytes);
	default:
		return -ENOTTY;
	}
}

int kvd_vfio_sys_ioctl(int fd, unsigned long request, void *argument)
{
	assert(fd >= FAKE_GROUP && fd < FAKE_FD_END && fake.is_open[fd - FAKE_GROUP]);
	if (request == fake.refused)
		return fake.refused_error;
	if (fd == FAKE_GROUP)
		return group_ioctl(request, argument);
	return fd == FAKE_DEVICE || fd == FAKE_NODE ? device_ioctl(request, argument) : iommu_ioctl(request, argument);
}

static uint8_t *bytes_of(uint64_t offset)
{
	uint64_t at = offset & ((UINT64_C(1) << REGION_SHIFT) - 1);

	return (offset >> REGION_SHIFT == VFIO_PCI_CONFIG_REGION_INDEX ? fake.config : fake.bar0) + at;
}

static size_t part_of(size_t bytes)
{
	return fake.bytes_at_once && fake.bytes_at_once < bytes ? fake.bytes_at_once : bytes;
}

ssize_t kvd_vfio_sys_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
	assert(fd == FAKE_DEVICE || fd == FAKE_NODE);
	if (fake.removed)
		memset(data, 0xff, part_of(bytes));
	else
		memcpy(data, bytes_of(offset), part_of(bytes));
	return (ssize_t)part_of(bytes);
}

ssize_t kvd_vfio_sys_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
	assert(fd == FAKE_DEVICE || fd == FAKE_NODE);
	if (fake.removed)
		return -ENODEV;
	memcpy(bytes_of(offset), data, part_of(bytes));
	return (ssize_t)part_of(bytes);
}

int kvd_vfio_sys_mmap(int fd, uint64_t offset, size_t bytes, int prot, void **out)
{
	(void)prot;
	assert(fd == FAKE_DEVICE || fd == FAKE_NODE);
	assert(bytes <= FAKE_BAR0_BYTES);
	*out = bytes_of(offset);
	return 0;
}

void kvd_vfio_sys_munmap(void *address, size_t bytes)
{
	assert(address == (void *)fake.bar0 && bytes == FAKE_BAR0_BYTES);
	fake.unmapped_stretches++;
}

int kvd_vfio_sys_link_name(const char *path, char *out, size_t room)
{
	const char *name = NULL;

	if (!strcmp(path, "/sys/bus/pci/devices/" FAKE_SLOT))
		name = fake.device;
	else if (!strcmp(path, "/sys/bus/pci/devices/" FAKE_SLOT "/iommu_group"))
		name = fake.group;
	else if (!strcmp(path, "/sys/bus/pci/devices/" FAKE_SLOT "/driver"))
		name = fake.driver;
	if (!name)
		return -ENOENT;
	snprintf(out, room, "%s", name);
	return 0;
}

int kvd_vfio_sys_entry(const char *folder, const char *prefix, char *out, size_t room)
{
	assert(!strcmp(folder, "/sys/bus/pci/devices/" FAKE_SLOT "/vfio-dev") && !strcmp(prefix, "vfio"));
	if (!fake.node)
		return -ENOENT;
	snprintf(out, room, "%s", fake.node);
	return 0;
}
