/*
 * The messages of vfio-user, as the public specification has them (QEMU's documentation, "vfio-user Protocol
 * Specification"). Where it says that a payload is a structure of the kernel's VFIO, that one is taken from
 * linux/vfio.h: struct vfio_region_info with its capabilities, struct vfio_irq_info, struct vfio_irq_set, and the flags
 * of all.
 *
 * All words are in the byte order of the host. Message = header + payload; `bytes` of the header counts both.
 * A command is answered by a reply with the same id and command, unless it carries NO_REPLY. An error reply is a
 * header alone. Both sides may have commands under way on the one socket at once.
 */
#ifndef KVD_VFIO_PROTO_H
#define KVD_VFIO_PROTO_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/vfio.h>

enum kvd_vfu_limits {
	KVD_VFU_MAJOR = 0,
	KVD_VFU_MINOR = 1, /* the answer to VERSION is the lesser of this and what was asked */
	/* What holds where the VERSION message does not say. */
	KVD_VFU_DEFAULT_MSG_FDS = 1,
	KVD_VFU_DEFAULT_XFER_BYTES = 1 << 20,
	KVD_VFU_DEFAULT_PGSIZES = 4096,
	KVD_VFU_DEFAULT_DMA_MAPS = 65535,
	/* What we take: more is a malformed message. */
	KVD_VFU_VERSION_BYTES_MAX = 4096, /* of its JSON text, terminating NUL included */
	KVD_VFU_MSG_FDS_MAX = 64,         /* descriptors in one message */
};

enum kvd_vfu_command {
	KVD_VFU_VERSION = 1,
	KVD_VFU_DMA_MAP = 2,
	KVD_VFU_DMA_UNMAP = 3,
	KVD_VFU_DEVICE_GET_INFO = 4,
	KVD_VFU_DEVICE_GET_REGION_INFO = 5, /* payload of both: struct vfio_region_info, capabilities in the reply */
	KVD_VFU_DEVICE_GET_REGION_IO_FDS = 6,
	KVD_VFU_DEVICE_GET_IRQ_INFO = 7, /* payload of both: struct vfio_irq_info */
	KVD_VFU_DEVICE_SET_IRQS = 8,     /* payload: struct vfio_irq_set; eventfds ride beside it; empty reply */
	KVD_VFU_REGION_READ = 9,
	KVD_VFU_REGION_WRITE = 10,
	KVD_VFU_DMA_READ = 11,  /* server to client */
	KVD_VFU_DMA_WRITE = 12, /* server to client */
	KVD_VFU_DEVICE_RESET = 13, /* no payload either way */
	KVD_VFU_REGION_WRITE_MULTI = 15,
	KVD_VFU_DEVICE_FEATURE = 16,
	KVD_VFU_MIG_DATA_READ = 17,
	KVD_VFU_MIG_DATA_WRITE = 18,
};

#define KVD_VFU_TYPE_MASK 0xfu
#define KVD_VFU_TYPE_COMMAND 0u
#define KVD_VFU_TYPE_REPLY 1u
#define KVD_VFU_NO_REPLY (1u << 4)
#define KVD_VFU_ERROR (1u << 5)

struct kvd_vfu_header {
	uint16_t id; /* the sender's own; echoed in the reply */
	uint16_t command;
	uint32_t bytes; /* of the message, this header included */
	uint32_t flags;
	uint32_t error; /* errno of a reply with KVD_VFU_ERROR; may be 0 even then */
};
static_assert(sizeof(struct kvd_vfu_header) == 16, "header");

/* VERSION, both ways; JSON text with a terminating NUL may follow. */
struct kvd_vfu_version {
	uint16_t major;
	uint16_t minor;
};
static_assert(sizeof(struct kvd_vfu_version) == 4, "VERSION");

#define KVD_VFU_DMA_F_READ (1u << 0)  /* the device may read the memory */
#define KVD_VFU_DMA_F_WRITE (1u << 1) /* the device may write it */

/* DMA_MAP; one descriptor rides beside it where the server may map the memory; empty reply. */
struct kvd_vfu_dma_map {
	uint32_t argsz;
	uint32_t flags;
	uint64_t offset; /* in the descriptor's file */
	uint64_t iova;
	uint64_t bytes;
};
static_assert(sizeof(struct kvd_vfu_dma_map) == 32, "DMA_MAP");

/* DMA_UNMAP; the reply repeats it. */
struct kvd_vfu_dma_unmap {
	uint32_t argsz;
	uint32_t flags;
	uint64_t iova;
	uint64_t bytes;
};
static_assert(sizeof(struct kvd_vfu_dma_unmap) == 24, "DMA_UNMAP");

/* DEVICE_GET_INFO, both ways: the start of struct vfio_device_info, without what later kernels added to it. */
struct kvd_vfu_device_info {
	uint32_t argsz;
	uint32_t flags; /* VFIO_DEVICE_FLAGS_RESET, VFIO_DEVICE_FLAGS_PCI */
	uint32_t regions;
	uint32_t irqs;
};
static_assert(sizeof(struct kvd_vfu_device_info) == 16, "DEVICE_GET_INFO");

/* REGION_READ and REGION_WRITE, both ways; data follows in the reply to a read and in the request to write. */
struct kvd_vfu_region_access {
	uint64_t offset;
	uint32_t region;
	uint32_t count; /* bytes; never more than the receiver's max_data_xfer_size */
};
static_assert(sizeof(struct kvd_vfu_region_access) == 16, "REGION_READ, REGION_WRITE");

/*
 * DMA_READ and DMA_WRITE, both ways; data follows in the reply to a read and in the request to write. The
 * specification's table gives `count` of the reply to DMA_WRITE 4 bytes; QEMU and libvfio-user both have 8, as here.
 */
struct kvd_vfu_dma_access {
	uint64_t iova;
	uint64_t count; /* bytes; never more than the receiver's max_data_xfer_size */
};
static_assert(sizeof(struct kvd_vfu_dma_access) == 16, "DMA_READ, DMA_WRITE");

/* REGION_WRITE_MULTI: only with the capability write_multiple. The reply is the count alone. */
struct kvd_vfu_write_multi {
	uint64_t count;
};
static_assert(sizeof(struct kvd_vfu_write_multi) == 8, "REGION_WRITE_MULTI");

struct kvd_vfu_write_one {
	uint64_t offset;
	uint32_t region;
	uint32_t count; /* bytes, at most 8 */
	uint8_t data[8];
};
static_assert(sizeof(struct kvd_vfu_write_one) == 24, "a write of REGION_WRITE_MULTI");

static_assert(sizeof(struct vfio_region_info) == 32, "DEVICE_GET_REGION_INFO");
static_assert(sizeof(struct vfio_info_cap_header) == 8, "capability of a region");
static_assert(sizeof(struct vfio_region_info_cap_sparse_mmap) == 16, "sparse mmap capability, areas follow");
static_assert(sizeof(struct vfio_region_sparse_mmap_area) == 16, "area of the sparse mmap capability");
static_assert(sizeof(struct vfio_irq_info) == 16, "DEVICE_GET_IRQ_INFO");
static_assert(sizeof(struct vfio_irq_set) == 20, "DEVICE_SET_IRQS");

#endif
