/* A device of the kernel's VFIO: the part that the container with its group and iommufd have in common. */
#ifndef KVD_VFIO_KERNEL_H
#define KVD_VFIO_KERNEL_H

#include "vfio/internal.h"

enum { KVD_VFIO_NAME_BYTES = 64 }; /* of a slot, a driver, a group */

struct vfio_kernel;

/* How the device's addresses are translated. */
struct kvd_vfio_iommu {
	const char *name;
	int (*map)(struct vfio_kernel *kernel, const struct kvd_vfio_dma *dma);
	int (*unmap)(struct vfio_kernel *kernel, uint64_t iova, uint64_t *bytes); /* in: asked for; out: done */
};

struct vfio_kernel {
	struct kvd_vfio vfio; /* first: a handle is one of these */
	const struct kvd_vfio_iommu *iommu;
	int device;    /* -1: not open, as below */
	int group;
	int container; /* or iommufd's descriptor */
	uint32_t ioas; /* iommufd's address space */
};

/*
 * Both open the device and say what its IOMMU can do, or leave nothing open and a sentence. `group`: its number;
 * `node`: "vfio7", the device's name under /dev/vfio/devices.
 */
int kvd_vfio_group_open(struct vfio_kernel *kernel, const char *slot, const char *group, char *why);
int kvd_vfio_iommufd_open(struct vfio_kernel *kernel, const char *slot, const char *node, char *why);
/* Close what is open, and forget what was said of it. */
void kvd_vfio_kernel_shut(struct vfio_kernel *kernel);
/* Of the ranges that can be used the largest is ours; others are left alone. */
void kvd_vfio_kernel_range(struct vfio_kernel *kernel, uint64_t first, uint64_t last);

#endif
