/*
 * A PCI device through VFIO: the kernel's (container and group, or the iommufd device node), or a device in another
 * process through vfio-user, the public protocol of QEMU and libvfio-user. The rest of kvd sees one interface.
 *
 * A handle is used by one thread at a time. Calls return 0 or -errno; -ENODEV means that the device is gone (it was
 * removed, or the other process has died or answers what can't be), and from then on every call but kvd_vfio_close
 * returns it. No call waits longer for another process than the deadline that was given at open: after that it returns
 * -ETIMEDOUT and the handle is gone too, as what the device still does is unknown. The kernel's own calls can't be
 * given a deadline; the one that takes long is a DMA mapping, by its size.
 */
#ifndef KVD_VFIO_VFIO_H
#define KVD_VFIO_VFIO_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
typedef struct kvd_vfio kvd_vfio;

enum kvd_vfio_limit {
	KVD_VFIO_REGIONS_MAX = 9,   /* BAR0 to BAR5, ROM, configuration space, VGA: the numbers of linux/vfio.h */
	KVD_VFIO_VECTORS_MAX = 64,
	KVD_VFIO_TEXT_BYTES = 256,
};

enum kvd_vfio_region {
	KVD_VFIO_BAR0 = 0,
	KVD_VFIO_BAR2 = 2,
	KVD_VFIO_BAR4 = 4,
	KVD_VFIO_CONFIG = 7,
};

enum kvd_vfio_irq {
	KVD_VFIO_IRQ_INTX = 0,
	KVD_VFIO_IRQ_MSI = 1,
	KVD_VFIO_IRQ_MSIX = 2,
	KVD_VFIO_IRQ_ERROR = 3,
	KVD_VFIO_IRQ_REQUEST = 4, /* somebody wants the device back: hot removal */
};

struct kvd_vfio_region_info {
	uint64_t bytes;     /* 0: the device has no such region */
	uint8_t readable;
	uint8_t writable;
	uint8_t mappable;   /* some of it, see kvd_vfio_region_map */
	uint8_t reserved[5];
};

struct kvd_vfio_info {
	uint16_t vendor;
	uint16_t device;
	uint32_t class_code;        /* 24 bits, as in configuration space */
	uint32_t irqs[5];           /* vectors by enum kvd_vfio_irq; 0: none */
	uint32_t can_reset;
	uint32_t iova_page_bytes;   /* smallest unit of a DMA mapping */
	uint64_t mappings_max;      /* DMA mappings that may exist at once */
	uint64_t iova_first;        /* usable IOVA; where there are several stretches, the largest */
	uint64_t iova_last;
	struct kvd_vfio_region_info regions[9];
	char transport[16];         /* "vfio", "iommufd" or "vfio-user" */
};

/*
 * Open a device of the kernel: `slot` as in "0000:00:04.0". On failure one sentence that says what is wrong and what
 * mends it is left in `why` (KVD_VFIO_TEXT_BYTES).
 */
int kvd_vfio_open_kernel(const char *slot, uint32_t deadline_ms, char *why, kvd_vfio **out);
/* Open the device behind a UNIX socket; `why` as above. */
int kvd_vfio_open_user(const char *socket_path, uint32_t deadline_ms, char *why, kvd_vfio **out);
/* Both switch memory space and bus mastering on. Closing switches the latter off and takes every DMA mapping back. */
void kvd_vfio_close(kvd_vfio *vfio);
/* What each call from now on may wait for another process, instead of what was given at open. */
void kvd_vfio_deadline(kvd_vfio *vfio, uint32_t deadline_ms);

void kvd_vfio_info(const kvd_vfio *vfio, struct kvd_vfio_info *out);
/* A descriptor that gets readable when the device goes (vfio-user: the socket), or -1. Owned by the handle. */
int kvd_vfio_gone_fd(const kvd_vfio *vfio);
/*
 * Is the device gone? One look, no wait. Of vfio-user's server it also answers what that has asked meanwhile; so this
 * is to be called when the descriptor above is readable. The kernel's device is gone when it reads as all ones.
 */
int kvd_vfio_is_gone(kvd_vfio *vfio);

/* Read or write `bytes` (1, 2, 4 or 8 at a multiple of it, else any stretch) of a region; never through a mapping. */
int kvd_vfio_read(kvd_vfio *vfio, uint32_t region, uint64_t offset, void *data, uint32_t bytes);
int kvd_vfio_write(kvd_vfio *vfio, uint32_t region, uint64_t offset, const void *data, uint32_t bytes);

/*
 * Map a stretch of a region, from a page of the host on; -EINVAL where the device does not let it be mapped; -ENOSPC:
 * 64 are mapped. Unmapped at close.
 */
int kvd_vfio_region_map(kvd_vfio *vfio, uint32_t region, uint64_t offset, uint64_t bytes, void **out);
/*
 * Read or write 32 or 64 bits of a mapping of a region. A mapping of a device that is gone reads as all ones or raises
 * SIGBUS: the latter is caught and returned as -ENODEV. All ones are a value here: who knows that a register never has
 * it takes it for a device that is gone. The handler is installed at the first of these calls, and whatever was there
 * gets the faults of others; who installs one later has to hand on as well. -EINVAL: not aligned.
 */
int kvd_vfio_load32(const void *address, uint32_t *value);
int kvd_vfio_load64(const void *address, uint64_t *value);
int kvd_vfio_store32(void *address, uint32_t value);
int kvd_vfio_store64(void *address, uint64_t value);

/*
 * Let the device reach `bytes` of memory at `iova`. `fd` and `fd_offset` say which file the memory at `address` is a
 * shared mapping of (vfio-user passes the descriptor); -1: memory without a file, for which a server has to ask piece
 * by piece (kvd_vfio_is_gone). All are multiples of iova_page_bytes. -ENOSPC: more mappings than the kernel or the
 * device allows; -ENOMEM: RLIMIT_MEMLOCK; -EEXIST: overlaps a mapping; -EINVAL: beyond iova_first to iova_last.
 */
int kvd_vfio_dma_map(kvd_vfio *vfio, void *address, uint64_t bytes, uint64_t iova, int fd, uint64_t fd_offset,
		     int writable);
/* Exactly what was mapped by one call, else -ENOENT. When it returns 0 the device no longer reaches the memory. */
int kvd_vfio_dma_unmap(kvd_vfio *vfio, uint64_t iova, uint64_t bytes);

/*
 * Signal eventfds for the vectors of an interrupt from `first` (-1: none for this vector), KVD_VFIO_VECTORS_MAX at
 * most; count 0 switches all off. Some kernels take no vector beyond those of the first call until all are off.
 */
int kvd_vfio_irqs(kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds);
/* Function-level reset. DMA mappings stay, interrupts are off, also ERROR and REQUEST. -EOPNOTSUPP: can_reset is 0. */
int kvd_vfio_reset(kvd_vfio *vfio);
/* cffi: end */

#endif
