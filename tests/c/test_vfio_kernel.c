/* The kernel's VFIO, with a kernel that is a fake: every way in, and what a handle then does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vfio/uapi.h"
#include "vfio/vfio.h"
#include "vfio_sys_fake.h"

enum {
	DEADLINE_MS = 1000,
	COMMAND_AT = 4, /* of configuration space: PCI_COMMAND */
	PAGE_BYTES = 4096,
};
#define IOVA 0x100000000ull /* in the largest range of the fake */

static char why[KVD_VFIO_TEXT_BYTES];
static _Alignas(PAGE_BYTES) uint8_t memory[4 * PAGE_BYTES];

static kvd_vfio *open_it(void)
{
	kvd_vfio *vfio = NULL;
	int err = kvd_vfio_open_kernel(FAKE_SLOT, DEADLINE_MS, why, &vfio);

	if (err)
		print_message("%s\n", why);
	assert_int_equal(err, 0);
	return vfio;
}

/* With iommufd as well. */
static void with_node(void)
{
	fake_reset();
	fake.node = "vfio7";
}

static void test_info(void **state)
{
	struct kvd_vfio_info info;
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	fake.info_needs = 8192; /* asked twice */
	vfio = open_it();
	kvd_vfio_info(vfio, &info);
	assert_string_equal(info.transport, "vfio");
	assert_int_equal(info.vendor, 0x1236);
	assert_int_equal(info.device, 0x11e8);
	assert_int_equal(info.class_code, 0x00ff00);
	assert_true(info.iova_first == 0xfef00000 && info.iova_last == 0x7fffffffff);
	assert_int_equal(info.mappings_max, FAKE_MAPPINGS);
	assert_int_equal(info.iova_page_bytes, PAGE_BYTES);
	assert_int_equal(info.irqs[KVD_VFIO_IRQ_MSIX], FAKE_VECTORS);
	assert_int_equal(info.irqs[KVD_VFIO_IRQ_ERROR], 0);
	assert_int_equal(info.regions[KVD_VFIO_BAR0].mappable, 1);
	assert_int_equal(info.regions[8].bytes, 0);
	/* Memory space and bus mastering. */
	assert_int_equal(fake.config[COMMAND_AT], 0x06);
	kvd_vfio_close(vfio);
	assert_int_equal(fake.config[COMMAND_AT], 0x02);
	assert_int_equal(fake_open(), 0);
}

/* A kernel that says less, and one with larger pages. */
static void test_info_old(void **state)
{
	struct kvd_vfio_info info;
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	fake.available = 0;
	fake.n_ranges = 0;
	fake.pages = 0x10000;
	vfio = open_it();
	kvd_vfio_info(vfio, &info);
	assert_true(info.iova_first == 0 && info.iova_last == UINT64_MAX);
	assert_int_equal(info.mappings_max, 65535);
	assert_int_equal(info.iova_page_bytes, 0x10000);
	kvd_vfio_close(vfio);
}

static void use_dma(kvd_vfio *vfio)
{
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, 0x1000, -1, 0, 1), -EINVAL); /* not in the range */
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA, -1, 0, 1), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA, -1, 0, 1), -EEXIST);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, 2 * PAGE_BYTES, IOVA + PAGE_BYTES, -1, 0, 0), 0);
	assert_int_equal(fake.n_mappings, 2);
	assert_true(fake.mappings[0].writable && !fake.mappings[1].writable);
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA, PAGE_BYTES), 0);
	assert_int_equal(fake.n_mappings, 1);
	/* RLIMIT_MEMLOCK. */
	fake.locked_bytes_max = 4 * PAGE_BYTES;
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, 3 * PAGE_BYTES, IOVA + 0x10000, -1, 0, 1), -ENOMEM);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, 2 * PAGE_BYTES, IOVA + 0x10000, -1, 0, 1), 0);
	fake.locked_bytes_max = UINT64_MAX;
	for (uint64_t i = 2; i < FAKE_MAPPINGS; i++)
		assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA + (i << 20), -1, 0, 1), 0);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA + (100 << 20), -1, 0, 1), -ENOSPC);
	fake.unmap_less = true;
	assert_int_equal(kvd_vfio_dma_unmap(vfio, IOVA + 0x10000, 2 * PAGE_BYTES), -EIO);
	fake.unmap_less = false;
	assert_false(kvd_vfio_is_gone(vfio));
}

static void test_dma(void **state)
{
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	vfio = open_it();
	use_dma(vfio);
	kvd_vfio_close(vfio);
}

static void test_access(void **state)
{
	uint8_t in[16];
	kvd_vfio *vfio;
	void *bar;

	(void)state;
	fake_reset();
	vfio = open_it();
	fake.bytes_at_once = 4;
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR0, 16, "0123456789abcdef", 16), 0);
	assert_memory_equal(fake.bar0 + 16, "0123456789abcdef", 16);
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_BAR0, 18, in, 7), 0);
	assert_memory_equal(in, "2345678", 7);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 0, FAKE_BAR0_BYTES, &bar), 0);
	assert_ptr_equal(bar, fake.bar0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_CONFIG, 0, FAKE_CONFIG_BYTES, &bar), -EINVAL);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA, -1, 0, 1), 0);
	kvd_vfio_close(vfio);
	assert_int_equal(fake.unmapped_stretches, 1);
	assert_int_equal(fake.n_mappings, 0);
}

static void test_irqs_and_reset(void **state)
{
	const int fds[3] = {5, -1, 7};
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	vfio = open_it();
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 2, 3, fds), 0);
	assert_int_equal(fake.irq_calls, 1);
	assert_int_equal(fake.irq_first, 2);
	assert_int_equal(fake.irq_flags, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER);
	assert_memory_equal(fake.irq_fds, fds, sizeof(fds));
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_MSIX, 6, 3, fds), -EINVAL);
	assert_int_equal(kvd_vfio_irqs(vfio, KVD_VFIO_IRQ_ERROR, 0, 1, fds), -EINVAL);
	fake.config[COMMAND_AT] = 0;
	assert_int_equal(kvd_vfio_reset(vfio), 0);
	assert_int_equal(fake.resets, 1);
	assert_int_equal(fake.irq_flags, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER);
	assert_int_equal(fake.irq_count, 0);
	assert_int_equal(fake.config[COMMAND_AT], 0x06);
	fake.refused = VFIO_DEVICE_RESET;
	fake.refused_error = -EIO;
	assert_int_equal(kvd_vfio_reset(vfio), -EIO);
	assert_int_equal(kvd_vfio_gone_fd(vfio), -1);
	kvd_vfio_close(vfio);
}

static void test_removed(void **state)
{
	uint32_t value;
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	vfio = open_it();
	assert_false(kvd_vfio_is_gone(vfio));
	fake.removed = true;
	assert_true(kvd_vfio_is_gone(vfio));
	fake.removed = false;
	assert_int_equal(kvd_vfio_read(vfio, KVD_VFIO_CONFIG, 0, &value, 4), -ENODEV);
	kvd_vfio_close(vfio);
	vfio = open_it();
	fake.removed = true;
	assert_int_equal(kvd_vfio_write(vfio, KVD_VFIO_BAR0, 0, &value, 4), -ENODEV);
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA, -1, 0, 1), -ENODEV);
	kvd_vfio_close(vfio);
	assert_int_equal(fake_open(), 0);
}

static void test_iommufd(void **state)
{
	struct kvd_vfio_info info;
	kvd_vfio *vfio;

	(void)state;
	with_node();
	vfio = open_it();
	kvd_vfio_info(vfio, &info);
	assert_string_equal(info.transport, "iommufd");
	assert_true(info.iova_first == 0xfef00000 && info.iova_last == 0x7fffffffff);
	assert_int_equal(info.mappings_max, 65535);
	assert_false(fake.is_open[FAKE_GROUP - FAKE_GROUP]);
	use_dma(vfio);
	fake.refused = KVD_UAPI_IOAS_MAP;
	fake.refused_error = -EADDRINUSE;
	assert_int_equal(kvd_vfio_dma_map(vfio, memory, PAGE_BYTES, IOVA + (200 << 20), -1, 0, 1), -EEXIST);
	kvd_vfio_close(vfio);
	assert_int_equal(fake.config[COMMAND_AT], 0x02);
	assert_int_equal(fake_open(), 0);
}

/* Whatever fails with iommufd, the group is tried; nothing of the first way is left. */
static void test_iommufd_falls_back(void **state)
{
	static const unsigned long requests[] = {
		KVD_UAPI_BIND_IOMMUFD, KVD_UAPI_IOAS_ALLOC, KVD_UAPI_ATTACH_IOMMUFD, KVD_UAPI_IOAS_RANGES,
	};
	struct kvd_vfio_info info;

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		kvd_vfio *vfio;

		with_node();
		if (i < 4) {
			fake.refused = requests[i];
			fake.refused_error = -ENOTTY;
		} else {
			fake.open_error[(i == 4 ? FAKE_IOMMU : FAKE_NODE) - FAKE_GROUP] = -EACCES;
		}
		vfio = open_it();
		kvd_vfio_info(vfio, &info);
		assert_string_equal(info.transport, "vfio");
		assert_int_equal(info.mappings_max, FAKE_MAPPINGS);
		kvd_vfio_close(vfio);
		assert_int_equal(fake_open(), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_info),    cmocka_unit_test(test_info_old),        cmocka_unit_test(test_dma),
		cmocka_unit_test(test_access),  cmocka_unit_test(test_irqs_and_reset),  cmocka_unit_test(test_removed),
		cmocka_unit_test(test_iommufd), cmocka_unit_test(test_iommufd_falls_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
