/* The device's own node, with an address space of iommufd. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vfio/kernel.h"
#include "vfio/sys.h"
#include "vfio/uapi.h"

enum { IOMMUFD_RANGES_MAX = 256 };

static int iommufd_map(struct vfio_kernel *kernel, const struct kvd_vfio_dma *dma)
{
	struct kvd_uapi_ioas_map map = {
		.size = sizeof(map),
		.flags = KVD_UAPI_MAP_FIXED | KVD_UAPI_MAP_READABLE | (dma->writable ? KVD_UAPI_MAP_WRITEABLE : 0),
		.ioas = kernel->ioas,
		.address = (uintptr_t)dma->address,
		.bytes = dma->bytes,
		.iova = dma->iova,
	};
	int err = kvd_vfio_sys_ioctl(kernel->container, KVD_UAPI_IOAS_MAP, &map);

	return err == -EADDRINUSE ? -EEXIST : err;
}

static int iommufd_unmap(struct vfio_kernel *kernel, uint64_t iova, uint64_t *bytes)
{
	struct kvd_uapi_ioas_unmap unmap = {.size = sizeof(unmap), .ioas = kernel->ioas, .iova = iova, .bytes = *bytes};
	int err = kvd_vfio_sys_ioctl(kernel->container, KVD_UAPI_IOAS_UNMAP, &unmap);

	*bytes = unmap.bytes;
	return err;
}

static const struct kvd_vfio_iommu iommufd_iommu = {.name = "iommufd", .map = iommufd_map, .unmap = iommufd_unmap};

static int read_ranges(struct vfio_kernel *kernel)
{
	struct kvd_uapi_range ranges[IOMMUFD_RANGES_MAX];
	struct kvd_uapi_ioas_ranges ask = {
		.size = sizeof(ask),
		.ioas = kernel->ioas,
		.count = IOMMUFD_RANGES_MAX,
		.ranges = (uintptr_t)ranges,
	};
	int err = kvd_vfio_sys_ioctl(kernel->container, KVD_UAPI_IOAS_RANGES, &ask);

	if (err)
		return err;
	if (ask.count > IOMMUFD_RANGES_MAX)
		return -EPROTO;
	for (uint32_t i = 0; i < ask.count; i++)
		kvd_vfio_kernel_range(kernel, ranges[i].first, ranges[i].last);
	if (ask.alignment > kernel->vfio.info.iova_page_bytes && ask.alignment <= UINT32_MAX)
		kernel->vfio.info.iova_page_bytes = (uint32_t)ask.alignment;
	return 0;
}

static int open_nodes(struct vfio_kernel *kernel, const char *node, char *why)
{
	char path[KVD_VFIO_NAME_BYTES * 2] = "/dev/iommu";
	int *const into[] = {&kernel->container, &kernel->device};

	for (uint32_t i = 0; i < 2; i++) {
		int fd = kvd_vfio_sys_open(path);

		if (fd == -EACCES || fd == -EPERM)
			return kvd_vfio_why(why, fd, "kvd may not open %s; give it to kvd's user, best by a udev rule.",
					    path);
		if (fd < 0)
			return kvd_vfio_why(why, fd, "%s can't be opened (%s).", path, strerror(-fd));
		*into[i] = fd;
		snprintf(path, sizeof(path), "/dev/vfio/devices/%s", node);
	}
	return 0;
}

static int bind_device(struct vfio_kernel *kernel, const char *slot, const char *node, char *why)
{
	struct kvd_uapi_bind bind = {.argsz = sizeof(bind), .iommufd = kernel->container};
	struct kvd_uapi_ioas_alloc alloc = {.size = sizeof(alloc)};
	struct kvd_uapi_attach attach = {.argsz = sizeof(attach)};
	int err = kvd_vfio_sys_ioctl(kernel->device, KVD_UAPI_BIND_IOMMUFD, &bind);

	if (err == -EBUSY)
		return kvd_vfio_why(why, err,
				    "Another process uses the device at %s; end it (fuser -v /dev/vfio/devices/%s).",
				    slot, node);
	if (err == -EPERM)
		return kvd_vfio_why(why, err,
				    "The kernel refuses the IOMMU of %s: it does not remap interrupts, or another "
				    "driver has a device of its group. Bind these to vfio-pci.", slot);
	if (!err)
		err = kvd_vfio_sys_ioctl(kernel->container, KVD_UAPI_IOAS_ALLOC, &alloc);
	kernel->ioas = alloc.ioas;
	attach.table_id = alloc.ioas;
	if (!err)
		err = kvd_vfio_sys_ioctl(kernel->device, KVD_UAPI_ATTACH_IOMMUFD, &attach);
	if (!err)
		err = read_ranges(kernel);
	if (err)
		return kvd_vfio_why(why, err, "The kernel refuses the IOMMU of %s (%s); its log says why (dmesg).",
				    slot, strerror(-err));
	return 0;
}

int kvd_vfio_iommufd_open(struct vfio_kernel *kernel, const char *slot, const char *node, char *why)
{
	int err = open_nodes(kernel, node, why);

	if (!err)
		err = bind_device(kernel, slot, node, why);
	if (err)
		kvd_vfio_kernel_shut(kernel);
	else
		kernel->iommu = &iommufd_iommu;
	return err;
}
