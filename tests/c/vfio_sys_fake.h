/* The fake twin of csrc/vfio/sys.c: a kernel with one PCI device, that refuses whatever a test wants. */
#ifndef KVD_TEST_VFIO_SYS_FAKE_H
#define KVD_TEST_VFIO_SYS_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_SLOT "0000:00:04.0"

enum {
	FAKE_CONFIG_BYTES = 256,
	FAKE_BAR0_BYTES = 4096,
	FAKE_VECTORS = 8,
	FAKE_MAPPINGS = 16,
};

/* Descriptors. */
enum fake_fd { FAKE_GROUP = 1000, FAKE_CONTAINER, FAKE_IOMMU, FAKE_NODE, FAKE_DEVICE, FAKE_NO_IOMMU, FAKE_FD_END };

struct fake_kernel {
	/* sysfs; NULL: no such link */
	const char *device;
	const char *group;
	const char *driver;
	const char *node; /* the device's own; with iommufd */
	/* Of open(2), by descriptor, negative. */
	int open_error[FAKE_FD_END - FAKE_GROUP];
	/* One ioctl is refused. */
	unsigned long refused;
	int refused_error;
	bool not_viable;
	bool without_iommu; /* with no group of the usual name */
	bool no_type1;
	/* What the IOMMU says. */
	uint64_t pages;
	uint32_t n_ranges;
	struct {
		uint64_t first, last;
	} ranges[4];
	uint32_t available; /* mappings; 0: it does not say */
	uint32_t info_needs; /* bytes, where the answer is to be too long at first */
	bool info_lies;
	bool config_tiny;
	bool unmap_less; /* than asked for */
	uint64_t locked_bytes_max;
	/* What happened. */
	bool is_open[FAKE_FD_END - FAKE_GROUP];
	bool contained, translated, bound, attached;
	uint32_t n_mappings;
	struct {
		uint64_t iova, bytes;
		bool writable;
	} mappings[FAKE_MAPPINGS];
	uint64_t locked_bytes;
	uint8_t config[FAKE_CONFIG_BYTES];
	uint8_t bar0[FAKE_BAR0_BYTES];
	bool removed; /* the device answers nothing any more */
	uint32_t bytes_at_once; /* of pread and pwrite; 0: all */
	uint32_t resets;
	uint32_t irq_calls;
	uint32_t irq_flags;
	uint32_t irq_first, irq_count;
	int irq_fds[FAKE_VECTORS];
	uint32_t unmapped_stretches;
};

extern struct fake_kernel fake;

/* A kernel with container and group, and a device that vfio-pci has. */
void fake_reset(void);
/* Descriptors that were not closed. */
uint32_t fake_open(void);

#endif
