/*
 * What the two transports share: a handle, its regions, its DMA mappings. The public calls (vfio.c) check what they are
 * given and keep the books; a transport only carries out. Whoever returns -ENODEV or -ETIMEDOUT from an operation has
 * lost the device: vfio.c then marks the handle as gone.
 */
#ifndef KVD_VFIO_INTERNAL_H
#define KVD_VFIO_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/vfio.h>

#include "vfio/vfio.h"

enum {
	KVD_VFIO_IRQS = 5,
	KVD_VFIO_MAPPINGS_MAX = 65535,         /* DMA mappings of a handle; also what the kernel allows by default */
	KVD_VFIO_AREAS_MAX = 2048,             /* mappable stretches of a region */
	KVD_VFIO_REGION_REPLY_MIN = 4096,      /* bytes offered for the answer about a region */
	KVD_VFIO_REGION_REPLY_MAX = 64 << 10,
	KVD_VFIO_STRETCHES_MAX = 64,           /* mappings of regions */
};
#define KVD_VFIO_NS_PER_MS 1000000u
#define KVD_VFIO_NS_PER_S 1000000000u

struct kvd_vfio_stretch {
	uint64_t offset;
	uint64_t bytes;
};

/* A region as the transport knows it. */
struct kvd_vfio_part {
	struct kvd_vfio_region_info info;
	uint64_t file_offset; /* where the region begins in its file */
	int fd;               /* the file, owned; -1: none, or the device's own */
	uint32_t n_areas;
	struct kvd_vfio_stretch *areas; /* what may be mapped; owned */
};

struct kvd_vfio_dma {
	uint64_t iova;
	uint64_t bytes;
	uint8_t *address;
	bool writable;
};

/* DMA mappings, sorted by iova, without overlap. */
struct kvd_vfio_dmas {
	struct kvd_vfio_dma *items;
	uint32_t n;
	uint32_t room;
};

struct kvd_vfio_ops {
	int (*read)(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, void *data, uint32_t bytes);
	int (*write)(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, const void *data, uint32_t bytes);
	int (*dma_map)(struct kvd_vfio *vfio, const struct kvd_vfio_dma *dma, int fd, uint64_t fd_offset);
	int (*dma_unmap)(struct kvd_vfio *vfio, uint64_t iova, uint64_t bytes);
	int (*irqs)(struct kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds);
	int (*reset)(struct kvd_vfio *vfio);
	int (*look)(struct kvd_vfio *vfio); /* -ENODEV: gone */
	int (*map)(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, uint64_t bytes, int prot, void **out);
	void (*unmap)(struct kvd_vfio *vfio, void *address, uint64_t bytes);
	void (*close)(struct kvd_vfio *vfio); /* frees the transport, and the handle with it */
};

struct kvd_vfio {
	const struct kvd_vfio_ops *ops;
	struct kvd_vfio_info info; /* its regions are in `parts` */
	struct kvd_vfio_part parts[KVD_VFIO_REGIONS_MAX];
	struct kvd_vfio_dmas dmas;
	struct {
		void *address;
		uint64_t bytes;
	} mapped[KVD_VFIO_STRETCHES_MAX];
	uint32_t n_mapped;
	uint32_t irqs_on; /* bit: enum kvd_vfio_irq */
	uint32_t deadline_ms;
	uint64_t until_ns;   /* CLOCK_MONOTONIC: when the public call under way gives up */
	uint32_t page_bytes; /* of this host */
	bool mastering;      /* the device may do DMA */
	bool gone;
	int gone_fd;
};

/* vfio.c */
void kvd_vfio_init(struct kvd_vfio *vfio, const struct kvd_vfio_ops *ops, uint32_t deadline_ms);
/* The deadline runs from now. */
void kvd_vfio_begin(struct kvd_vfio *vfio);
/* After the transport has filled in regions and interrupts: identify the device and switch it on. */
int kvd_vfio_start(struct kvd_vfio *vfio, char *why);
void kvd_vfio_fini(struct kvd_vfio *vfio);
/* Leave a sentence; returns `err`. */
__attribute__((format(printf, 3, 4))) int kvd_vfio_why(char *why, int err, const char *format, ...);

/* chan.c: CLOCK_MONOTONIC. */
uint64_t kvd_vfio_now_ns(void);

/* dma.c */
void kvd_vfio_dmas_fini(struct kvd_vfio_dmas *dmas);
/* Make sure that one more fits. */
int kvd_vfio_dmas_reserve(struct kvd_vfio_dmas *dmas);
bool kvd_vfio_dmas_overlap(const struct kvd_vfio_dmas *dmas, uint64_t iova, uint64_t bytes);
/* After kvd_vfio_dmas_reserve. */
void kvd_vfio_dmas_add(struct kvd_vfio_dmas *dmas, const struct kvd_vfio_dma *dma);
/* The mapping with exactly this begin and length, or NULL. */
const struct kvd_vfio_dma *kvd_vfio_dmas_find(const struct kvd_vfio_dmas *dmas, uint64_t iova, uint64_t bytes);
void kvd_vfio_dmas_remove(struct kvd_vfio_dmas *dmas, const struct kvd_vfio_dma *dma);
/* Copy out of, or into, mapped memory, over several mappings if need be. -EFAULT: nothing was copied. */
int kvd_vfio_dmas_read(const struct kvd_vfio_dmas *dmas, uint64_t iova, void *data, uint64_t bytes);
int kvd_vfio_dmas_write(const struct kvd_vfio_dmas *dmas, uint64_t iova, const void *data, uint64_t bytes);

/*
 * region.c: what a transport was told of region `index`, `bytes` of it; the kernel and vfio-user have the same format.
 * -EPROTO: it contradicts itself. Takes no descriptor.
 */
int kvd_vfio_part_parse(struct kvd_vfio_part *part, uint32_t index, const void *told, size_t bytes);
void kvd_vfio_part_fini(struct kvd_vfio_part *part);
/* May this stretch be mapped? */
bool kvd_vfio_part_mappable(const struct kvd_vfio_part *part, uint64_t offset, uint64_t bytes);
/*
 * Find the capability `id` in the chain that begins at `offset` of `told`; `room`: the bytes from there to the end, at
 * least `least`. -ENOENT: there is none; -EPROTO: the chain or the capability leaves what was told.
 */
int kvd_vfio_capability(const void *told, size_t bytes, uint32_t offset, uint16_t id, size_t least, const void **out,
			size_t *room);


#endif
