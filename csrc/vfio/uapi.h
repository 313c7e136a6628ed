/*
 * The kernel's interface to iommufd and to the device nodes of VFIO (Linux 6.6), under names of our own: the headers of
 * Debian 12 are older. The rest is linux/vfio.h's.
 */
#ifndef KVD_VFIO_UAPI_H
#define KVD_VFIO_UAPI_H

#include <assert.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include <linux/vfio.h>

#define KVD_UAPI_BIND_IOMMUFD _IO(VFIO_TYPE, VFIO_BASE + 18)
#define KVD_UAPI_ATTACH_IOMMUFD _IO(VFIO_TYPE, VFIO_BASE + 19)

struct kvd_uapi_bind {
	uint32_t argsz;
	uint32_t flags;
	int32_t iommufd;
	uint32_t device_id; /* out */
};
static_assert(sizeof(struct kvd_uapi_bind) == 16, "vfio_device_bind_iommufd");

struct kvd_uapi_attach {
	uint32_t argsz;
	uint32_t flags;
	uint32_t table_id; /* in: the address space; out: its page table */
};
static_assert(sizeof(struct kvd_uapi_attach) == 12, "vfio_device_attach_iommufd_pt");

/* Of iommufd; each structure begins with its size. */
#define KVD_UAPI_IOMMU_TYPE ';'
#define KVD_UAPI_IOAS_ALLOC _IO(KVD_UAPI_IOMMU_TYPE, 0x81)
#define KVD_UAPI_IOAS_RANGES _IO(KVD_UAPI_IOMMU_TYPE, 0x84)
#define KVD_UAPI_IOAS_MAP _IO(KVD_UAPI_IOMMU_TYPE, 0x85)
#define KVD_UAPI_IOAS_UNMAP _IO(KVD_UAPI_IOMMU_TYPE, 0x86)

struct kvd_uapi_ioas_alloc {
	uint32_t size;
	uint32_t flags;
	uint32_t ioas; /* out */
};
static_assert(sizeof(struct kvd_uapi_ioas_alloc) == 12, "iommu_ioas_alloc");

struct kvd_uapi_range {
	uint64_t first;
	uint64_t last;
};
static_assert(sizeof(struct kvd_uapi_range) == 16, "iommu_iova_range");

struct kvd_uapi_ioas_ranges {
	uint32_t size;
	uint32_t ioas;
	uint32_t count; /* in: room; out: ranges there are */
	uint32_t reserved;
	uint64_t ranges; /* address of the array */
	uint64_t alignment; /* out, bytes */
};
static_assert(sizeof(struct kvd_uapi_ioas_ranges) == 32, "iommu_ioas_iova_ranges");

#define KVD_UAPI_MAP_FIXED (1u << 0)
#define KVD_UAPI_MAP_WRITEABLE (1u << 1)
#define KVD_UAPI_MAP_READABLE (1u << 2)

struct kvd_uapi_ioas_map {
	uint32_t size;
	uint32_t flags;
	uint32_t ioas;
	uint32_t reserved;
	uint64_t address;
	uint64_t bytes;
	uint64_t iova;
};
static_assert(sizeof(struct kvd_uapi_ioas_map) == 40, "iommu_ioas_map");

struct kvd_uapi_ioas_unmap {
	uint32_t size;
	uint32_t ioas;
	uint64_t iova;
	uint64_t bytes; /* out: unmapped */
};
static_assert(sizeof(struct kvd_uapi_ioas_unmap) == 24, "iommu_ioas_unmap");

#endif
