/* The public calls: what is given is checked here, once for both transports, and the books are kept here. */
#include "vfio/vfio.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/pci_regs.h>

#include "vfio/internal.h"

#define VENDOR_NONE 0xffffu /* what a configuration space without a device reads as */
#define CLASS_SHIFT 8u      /* above the revision */

int kvd_vfio_why(char *why, int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, KVD_VFIO_TEXT_BYTES, format, args);
	va_end(args);
	return err;
}

void kvd_vfio_init(struct kvd_vfio *vfio, const struct kvd_vfio_ops *ops, uint32_t deadline_ms)
{
	*vfio = (struct kvd_vfio){
		.ops = ops,
		.deadline_ms = deadline_ms,
		.page_bytes = (uint32_t)sysconf(_SC_PAGESIZE),
		.gone_fd = -1,
	};
	for (uint32_t i = 0; i < KVD_VFIO_REGIONS_MAX; i++)
		vfio->parts[i].fd = -1;
}

void kvd_vfio_fini(struct kvd_vfio *vfio)
{
	for (uint32_t i = 0; i < KVD_VFIO_REGIONS_MAX; i++)
		kvd_vfio_part_fini(&vfio->parts[i]);
	kvd_vfio_dmas_fini(&vfio->dmas);
}

void kvd_vfio_begin(struct kvd_vfio *vfio)
{
	vfio->until_ns = kvd_vfio_now_ns() + (uint64_t)vfio->deadline_ms * KVD_VFIO_NS_PER_MS;
}

void kvd_vfio_deadline(kvd_vfio *vfio, uint32_t deadline_ms)
{
	vfio->deadline_ms = deadline_ms;
}

/* Take note when an operation has lost the device. */
static int settle(struct kvd_vfio *vfio, int err)
{
	if (err == -ENODEV || err == -ETIMEDOUT)
		vfio->gone = true;
	return err;
}

/* The start of a public call; its deadline runs from here. */
static int enter(struct kvd_vfio *vfio)
{
	kvd_vfio_begin(vfio);
	return vfio->gone ? -ENODEV : 0;
}

/* The device may, or may no longer, read and write memory. */
static int set_mastering(struct kvd_vfio *vfio, bool on)
{
	uint16_t command;
	int err = vfio->ops->read(vfio, KVD_VFIO_CONFIG, PCI_COMMAND, &command, sizeof(command));

	if (err)
		return settle(vfio, err);
	command = (uint16_t)(command & ~PCI_COMMAND_MASTER);
	if (on)
		command |= PCI_COMMAND_MASTER | PCI_COMMAND_MEMORY;
	err = vfio->ops->write(vfio, KVD_VFIO_CONFIG, PCI_COMMAND, &command, sizeof(command));
	if (!err)
		vfio->mastering = on;
	return settle(vfio, err);
}

static int read_identity(struct kvd_vfio *vfio)
{
	uint32_t class_revision;
	uint16_t vendor, device;
	int err = vfio->ops->read(vfio, KVD_VFIO_CONFIG, PCI_VENDOR_ID, &vendor, sizeof(vendor));

	if (!err)
		err = vfio->ops->read(vfio, KVD_VFIO_CONFIG, PCI_DEVICE_ID, &device, sizeof(device));
	if (!err)
		err = vfio->ops->read(vfio, KVD_VFIO_CONFIG, PCI_CLASS_REVISION, &class_revision,
				      sizeof(class_revision));
	if (err)
		return err;
	if (vendor == VENDOR_NONE)
		return -ENODEV;
	vfio->info.vendor = vendor;
	vfio->info.device = device;
	vfio->info.class_code = class_revision >> CLASS_SHIFT;
	return 0;
}

int kvd_vfio_start(struct kvd_vfio *vfio, char *why)
{
	const struct kvd_vfio_region_info *config = &vfio->parts[KVD_VFIO_CONFIG].info;
	int err;

	if (config->bytes < PCI_STD_HEADER_SIZEOF || !config->readable || !config->writable)
		return kvd_vfio_why(why, -EPROTO, "The device has no usable configuration space; it is no PCI device.");
	err = read_identity(vfio);
	if (err)
		return kvd_vfio_why(why, err,
				    "Configuration space can't be read (%s); see whether the device is still there.",
				    strerror(-err));
	err = set_mastering(vfio, true);
	if (err)
		return kvd_vfio_why(why, err, "The device's command register can't be written (%s).", strerror(-err));
	for (uint32_t i = 0; i < KVD_VFIO_REGIONS_MAX; i++)
		vfio->info.regions[i] = vfio->parts[i].info;
	return 0;
}

void kvd_vfio_close(kvd_vfio *vfio)
{
	if (!vfio)
		return;
	/*
	 * First of all the device stops reaching memory. A server may notice later than the caller that nobody is there
	 * any more: what it could reach is taken back, before the caller gives that memory to somebody else.
	 */
	if (!enter(vfio) && vfio->mastering)
		(void)set_mastering(vfio, false);
	while (!vfio->gone && vfio->dmas.n) {
		const struct kvd_vfio_dma *last = &vfio->dmas.items[vfio->dmas.n - 1];

		(void)settle(vfio, vfio->ops->dma_unmap(vfio, last->iova, last->bytes));
		vfio->dmas.n--;
	}
	for (uint32_t i = 0; i < vfio->n_mapped; i++)
		vfio->ops->unmap(vfio, vfio->mapped[i].address, vfio->mapped[i].bytes);
	vfio->ops->close(vfio);
}

void kvd_vfio_info(const kvd_vfio *vfio, struct kvd_vfio_info *out)
{
	*out = vfio->info;
}

int kvd_vfio_gone_fd(const kvd_vfio *vfio)
{
	return vfio->gone_fd;
}

int kvd_vfio_is_gone(kvd_vfio *vfio)
{
	if (!enter(vfio))
		settle(vfio, vfio->ops->look(vfio));
	return vfio->gone;
}

/* The region if the stretch is inside of it, or NULL. */
static const struct kvd_vfio_part *part_with(const struct kvd_vfio *vfio, uint32_t region, uint64_t offset,
					     uint64_t bytes)
{
	const struct kvd_vfio_part *part;

	if (region >= KVD_VFIO_REGIONS_MAX)
		return NULL;
	part = &vfio->parts[region];
	return offset <= part->info.bytes && bytes <= part->info.bytes - offset ? part : NULL;
}

int kvd_vfio_read(kvd_vfio *vfio, uint32_t region, uint64_t offset, void *data, uint32_t bytes)
{
	const struct kvd_vfio_part *part = part_with(vfio, region, offset, bytes);

	if (enter(vfio))
		return -ENODEV;
	if (!part || !part->info.readable)
		return -EINVAL;
	return bytes ? settle(vfio, vfio->ops->read(vfio, region, offset, data, bytes)) : 0;
}

int kvd_vfio_write(kvd_vfio *vfio, uint32_t region, uint64_t offset, const void *data, uint32_t bytes)
{
	const struct kvd_vfio_part *part = part_with(vfio, region, offset, bytes);

	if (enter(vfio))
		return -ENODEV;
	if (!part || !part->info.writable)
		return -EINVAL;
	return bytes ? settle(vfio, vfio->ops->write(vfio, region, offset, data, bytes)) : 0;
}

int kvd_vfio_region_map(kvd_vfio *vfio, uint32_t region, uint64_t offset, uint64_t bytes, void **out)
{
	const struct kvd_vfio_part *part = part_with(vfio, region, offset, bytes);
	int prot = 0;
	int err;

	if (enter(vfio))
		return -ENODEV;
	if (!part || !bytes || (part->file_offset + offset) % vfio->page_bytes ||
	    !kvd_vfio_part_mappable(part, offset, bytes))
		return -EINVAL;
	if (vfio->n_mapped == KVD_VFIO_STRETCHES_MAX)
		return -ENOSPC;
	prot |= part->info.readable ? PROT_READ : 0;
	prot |= part->info.writable ? PROT_WRITE : 0;
	err = vfio->ops->map(vfio, region, part->file_offset + offset, bytes, prot, out);
	if (err)
		return settle(vfio, err);
	vfio->mapped[vfio->n_mapped].address = *out;
	vfio->mapped[vfio->n_mapped++].bytes = bytes;
	return 0;
}

int kvd_vfio_dma_map(kvd_vfio *vfio, void *address, uint64_t bytes, uint64_t iova, int fd, uint64_t fd_offset,
		     int writable)
{
	struct kvd_vfio_dma dma = {.iova = iova, .bytes = bytes, .address = address, .writable = writable != 0};
	uint64_t all = (uintptr_t)address | bytes | iova | (fd >= 0 ? fd_offset : 0);
	uint64_t last, file_end;
	int err;

	if (enter(vfio))
		return -ENODEV;
	if (!bytes || all % vfio->info.iova_page_bytes || __builtin_add_overflow(iova, bytes - 1, &last) ||
	    iova < vfio->info.iova_first || last > vfio->info.iova_last)
		return -EINVAL;
	if (fd >= 0 && (__builtin_add_overflow(fd_offset, bytes, &file_end) || file_end > INT64_MAX))
		return -EINVAL;
	if (kvd_vfio_dmas_overlap(&vfio->dmas, iova, bytes))
		return -EEXIST;
	if (vfio->dmas.n >= vfio->info.mappings_max)
		return -ENOSPC;
	err = kvd_vfio_dmas_reserve(&vfio->dmas);
	if (err)
		return err;
	err = vfio->ops->dma_map(vfio, &dma, fd, fd_offset);
	if (!err)
		kvd_vfio_dmas_add(&vfio->dmas, &dma);
	return settle(vfio, err);
}

int kvd_vfio_dma_unmap(kvd_vfio *vfio, uint64_t iova, uint64_t bytes)
{
	const struct kvd_vfio_dma *dma;
	int err;

	if (enter(vfio))
		return -ENODEV;
	dma = bytes ? kvd_vfio_dmas_find(&vfio->dmas, iova, bytes) : NULL;
	if (!dma)
		return -ENOENT;
	/* Until the answer has come the device may still ask for this memory; nobody changes the table meanwhile. */
	err = vfio->ops->dma_unmap(vfio, iova, bytes);
	if (!err)
		kvd_vfio_dmas_remove(&vfio->dmas, dma);
	return settle(vfio, err);
}

static int set_irqs(struct kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds)
{
	int err = vfio->ops->irqs(vfio, irq, first, count, eventfds);

	if (!err && count)
		vfio->irqs_on |= 1u << irq;
	else if (!err)
		vfio->irqs_on &= ~(1u << irq);
	return settle(vfio, err);
}

int kvd_vfio_irqs(kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds)
{
	if (enter(vfio))
		return -ENODEV;
	if (irq >= KVD_VFIO_IRQS || !vfio->info.irqs[irq] || count > KVD_VFIO_VECTORS_MAX ||
	    first > vfio->info.irqs[irq] || count > vfio->info.irqs[irq] - first || (!count && first))
		return -EINVAL;
	return set_irqs(vfio, irq, first, count, eventfds);
}

int kvd_vfio_reset(kvd_vfio *vfio)
{
	int err = 0;

	if (enter(vfio))
		return -ENODEV;
	if (!vfio->info.can_reset)
		return -EOPNOTSUPP;
	for (uint32_t irq = 0; irq < KVD_VFIO_IRQS && !err; irq++) {
		if (vfio->irqs_on & 1u << irq)
			err = set_irqs(vfio, irq, 0, 0, NULL);
	}
	if (!err)
		err = settle(vfio, vfio->ops->reset(vfio));
	/* A reset clears the command register; where the kernel restores it this changes nothing. */
	return err ? err : set_mastering(vfio, true);
}
