/* A device that vfio-pci holds. Its calls are the kernel's: none of them can be given a deadline. */
#include "vfio/kernel.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include <linux/pci_regs.h>

#include "vfio/sys.h"

#define VENDOR_NONE 0xffffu

static struct vfio_kernel *kernel_of(struct kvd_vfio *vfio)
{
	return (struct vfio_kernel *)vfio;
}

static void shut(int *fd)
{
	if (*fd >= 0)
		kvd_vfio_sys_close(*fd);
	*fd = -1;
}

void kvd_vfio_kernel_shut(struct vfio_kernel *kernel)
{
	/* The device first: what it belongs to must outlive it. */
	shut(&kernel->device);
	shut(&kernel->group);
	shut(&kernel->container);
	/* Another way in has other limits. */
	kernel->vfio.info.iova_first = 0;
	kernel->vfio.info.iova_last = 0;
	kernel->vfio.info.iova_page_bytes = kernel->vfio.page_bytes;
	kernel->vfio.info.mappings_max = KVD_VFIO_MAPPINGS_MAX;
}

void kvd_vfio_kernel_range(struct vfio_kernel *kernel, uint64_t first, uint64_t last)
{
	struct kvd_vfio_info *info = &kernel->vfio.info;

	if (last >= first && last - first > info->iova_last - info->iova_first) {
		info->iova_first = first;
		info->iova_last = last;
	}
}

static int kernel_read(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, void *data, uint32_t bytes)
{
	uint64_t at = vfio->parts[region].file_offset + offset;
	uint32_t done = 0;

	while (done < bytes) {
		ssize_t n = kvd_vfio_sys_pread(kernel_of(vfio)->device, (uint8_t *)data + done, bytes - done,
					       at + done);

		if (n <= 0 && n != -EINTR)
			return n ? (int)n : -EIO;
		done += n > 0 ? (uint32_t)n : 0;
	}
	return 0;
}

static int kernel_write(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, const void *data, uint32_t bytes)
{
	uint64_t at = vfio->parts[region].file_offset + offset;
	uint32_t done = 0;

	while (done < bytes) {
		ssize_t n = kvd_vfio_sys_pwrite(kernel_of(vfio)->device, (const uint8_t *)data + done, bytes - done,
						at + done);

		if (n <= 0 && n != -EINTR)
			return n ? (int)n : -EIO;
		done += n > 0 ? (uint32_t)n : 0;
	}
	return 0;
}

static int kernel_dma_map(struct kvd_vfio *vfio, const struct kvd_vfio_dma *dma, int fd, uint64_t fd_offset)
{
	(void)fd;
	(void)fd_offset;
	return kernel_of(vfio)->iommu->map(kernel_of(vfio), dma);
}

static int kernel_dma_unmap(struct kvd_vfio *vfio, uint64_t iova, uint64_t bytes)
{
	uint64_t done = bytes;
	int err = kernel_of(vfio)->iommu->unmap(kernel_of(vfio), iova, &done);

	if (err)
		return err;
	/* Something of it may still be reached, and nobody knows what. */
	return done == bytes ? 0 : -EIO;
}

static int kernel_irqs(struct kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds)
{
	struct {
		struct vfio_irq_set set;
		int fds[KVD_VFIO_VECTORS_MAX];
	} ask = {
		.set = {
			.argsz = (uint32_t)(sizeof(ask.set) + count * sizeof(int)),
			.flags = VFIO_IRQ_SET_ACTION_TRIGGER |
				 (count ? VFIO_IRQ_SET_DATA_EVENTFD : VFIO_IRQ_SET_DATA_NONE),
			.index = irq,
			.start = first,
			.count = count,
		},
	};

	if (count)
		memcpy(ask.set.data, eventfds, count * sizeof(int));
	return kvd_vfio_sys_ioctl(kernel_of(vfio)->device, VFIO_DEVICE_SET_IRQS, &ask);
}

static int kernel_reset(struct kvd_vfio *vfio)
{
	return kvd_vfio_sys_ioctl(kernel_of(vfio)->device, VFIO_DEVICE_RESET, NULL);
}

static int kernel_look(struct kvd_vfio *vfio)
{
	uint16_t vendor;
	int err = kernel_read(vfio, KVD_VFIO_CONFIG, PCI_VENDOR_ID, &vendor, sizeof(vendor));

	return err || vendor == VENDOR_NONE ? -ENODEV : 0;
}

static int kernel_map(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, uint64_t bytes, int prot, void **out)
{
	(void)region;
	return kvd_vfio_sys_mmap(kernel_of(vfio)->device, offset, bytes, prot, out);
}

static void kernel_unmap(struct kvd_vfio *vfio, void *address, uint64_t bytes)
{
	(void)vfio;
	kvd_vfio_sys_munmap(address, bytes);
}

static void kernel_close(struct kvd_vfio *vfio)
{
	kvd_vfio_kernel_shut(kernel_of(vfio));
	kvd_vfio_fini(vfio);
	free(vfio);
}

static const struct kvd_vfio_ops kernel_ops = {
	.read = kernel_read,
	.write = kernel_write,
	.dma_map = kernel_dma_map,
	.dma_unmap = kernel_dma_unmap,
	.irqs = kernel_irqs,
	.reset = kernel_reset,
	.look = kernel_look,
	.map = kernel_map,
	.unmap = kernel_unmap,
	.close = kernel_close,
};

static int region_info(struct vfio_kernel *kernel, uint32_t region)
{
	uint32_t bytes = KVD_VFIO_REGION_REPLY_MIN;

	for (;;) {
		struct vfio_region_info *info = calloc(1, bytes);
		int err;

		if (!info)
			return -ENOMEM;
		*info = (struct vfio_region_info){.argsz = bytes, .index = region};
		err = kvd_vfio_sys_ioctl(kernel->device, VFIO_DEVICE_GET_REGION_INFO, info);
		if (!err && info->argsz > bytes && info->argsz <= KVD_VFIO_REGION_REPLY_MAX) {
			bytes = info->argsz;
			free(info);
			continue;
		}
		if (!err)
			err = info->argsz > bytes ? -EPROTO :
			      kvd_vfio_part_parse(&kernel->vfio.parts[region], region, info, bytes);
		free(info);
		return err == -EINVAL ? 0 : err; /* the device has none such */
	}
}

static int irq_info(struct vfio_kernel *kernel, uint32_t irq)
{
	struct vfio_irq_info info = {.argsz = sizeof(info), .index = irq};
	int err = kvd_vfio_sys_ioctl(kernel->device, VFIO_DEVICE_GET_IRQ_INFO, &info);

	if (err)
		return err == -EINVAL ? 0 : err;
	kernel->vfio.info.irqs[irq] = info.flags & VFIO_IRQ_INFO_EVENTFD ? info.count : 0;
	return 0;
}

static int discover(struct vfio_kernel *kernel, const char *slot, char *why)
{
	struct vfio_device_info info = {.argsz = sizeof(info)};
	int err = kvd_vfio_sys_ioctl(kernel->device, VFIO_DEVICE_GET_INFO, &info);

	kernel->vfio.info.can_reset = (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0;
	for (uint32_t i = 0; i < KVD_VFIO_REGIONS_MAX && i < info.num_regions && !err; i++)
		err = region_info(kernel, i);
	for (uint32_t i = 0; i < KVD_VFIO_IRQS && i < info.num_irqs && !err; i++)
		err = irq_info(kernel, i);
	if (err)
		return kvd_vfio_why(why, err,
				    "The kernel does not describe the device at %s (%s); its log says why (dmesg).",
				    slot, strerror(-err));
	snprintf(kernel->vfio.info.transport, sizeof(kernel->vfio.info.transport), "%s", kernel->iommu->name);
	return kvd_vfio_start(&kernel->vfio, why);
}

/* dddd:bb:dd.f: it becomes a part of paths. */
static bool is_slot(const char *slot)
{
	static const char form[] = "xxxx:xx:xx.x";

	if (strlen(slot) != sizeof(form) - 1)
		return false;
	for (uint32_t i = 0; i < sizeof(form) - 1; i++) {
		if (form[i] == 'x' ? !isxdigit((unsigned char)slot[i]) : slot[i] != form[i])
			return false;
	}
	return true;
}

/* Is the device there, behind an IOMMU, and in the hands of vfio-pci? `group`: KVD_VFIO_NAME_BYTES. */
static int examine(const char *slot, char *group, char *why)
{
	char path[KVD_VFIO_NAME_BYTES * 2], name[KVD_VFIO_NAME_BYTES];
	int err;

	if (!is_slot(slot))
		return kvd_vfio_why(why, -EINVAL, "\"%.40s\" is no PCI slot; write it as lspci -D does: 0000:00:04.0.",
				    slot);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", slot);
	err = kvd_vfio_sys_link_name(path, name, sizeof(name));
	if (err)
		return kvd_vfio_why(why, -ENXIO, "There is no PCI device at %s; lspci -D lists those that there are.",
				    slot);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", slot);
	err = kvd_vfio_sys_link_name(path, group, KVD_VFIO_NAME_BYTES);
	if (err)
		return kvd_vfio_why(why, -EOPNOTSUPP,
				    "The device at %s is behind no IOMMU; switch it on in the firmware (VT-d, AMD-Vi), "
				    "and boot with intel_iommu=on or amd_iommu=on.", slot);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/driver", slot);
	err = kvd_vfio_sys_link_name(path, name, sizeof(name));
	if (err)
		return kvd_vfio_why(why, -ENXIO,
				    "No driver has the device at %s; bind it: driverctl set-override %s vfio-pci.",
				    slot, slot);
	/* The variants of it for single vendors are named after it. */
	if (!strstr(name, "vfio"))
		return kvd_vfio_why(why, -EBUSY,
				    "The device at %s belongs to the driver %s; bind it: driverctl set-override %s "
				    "vfio-pci.", slot, name, slot);
	return 0;
}

/* By iommufd where kernel and device have it, else by the group. */
static int open_device(struct vfio_kernel *kernel, const char *slot, char *why)
{
	char group[KVD_VFIO_NAME_BYTES], node[KVD_VFIO_NAME_BYTES], path[KVD_VFIO_NAME_BYTES * 2];
	char why_group[KVD_VFIO_TEXT_BYTES];
	int err = examine(slot, group, why);
	int err_group;

	if (err)
		return err;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/vfio-dev", slot);
	if (kvd_vfio_sys_entry(path, "vfio", node, sizeof(node)))
		return kvd_vfio_group_open(kernel, slot, group, why);
	err = kvd_vfio_iommufd_open(kernel, slot, node, why);
	if (!err)
		return 0;
	err_group = kvd_vfio_group_open(kernel, slot, group, why_group);
	/* A kernel that was built without groups: what iommufd said counts, unless that is missing as well. */
	if (err_group == -ENOENT && err != -ENOENT)
		return err;
	memcpy(why, why_group, sizeof(why_group));
	return err_group;
}

int kvd_vfio_open_kernel(const char *slot, uint32_t deadline_ms, char *why, kvd_vfio **out)
{
	struct vfio_kernel *kernel = calloc(1, sizeof(*kernel));
	int err;

	if (!kernel)
		return kvd_vfio_why(why, -ENOMEM, "There is no memory.");
	kvd_vfio_init(&kernel->vfio, &kernel_ops, deadline_ms);
	kernel->device = kernel->group = kernel->container = -1;
	kvd_vfio_kernel_shut(kernel);
	err = open_device(kernel, slot, why);
	if (!err)
		err = discover(kernel, slot, why);
	if (err) {
		kernel->vfio.gone = true; /* nothing more is sent */
		kvd_vfio_close(&kernel->vfio);
		return err;
	}
	*out = &kernel->vfio;
	return 0;
}
