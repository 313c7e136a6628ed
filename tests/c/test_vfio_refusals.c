/* Every refusal of the kernel's VFIO, from a fake kernel: an error, and a sentence that says what mends it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vfio/uapi.h"
#include "vfio/vfio.h"
#include "vfio_sys_fake.h"

enum { DEADLINE_MS = 1000 };

static char why[KVD_VFIO_TEXT_BYTES];

/* With iommufd as well. */
static void with_node(void)
{
	fake_reset();
	fake.node = "vfio7";
}

static void expect_refusal(int err, const char *part)
{
	kvd_vfio *vfio = NULL;

	memset(why, 0, sizeof(why));
	assert_int_equal(kvd_vfio_open_kernel(FAKE_SLOT, DEADLINE_MS, why, &vfio), err);
	if (!strstr(why, part))
		print_message("%s\n", why);
	assert_non_null(strstr(why, part));
	/* A sentence. */
	assert_int_equal(why[strlen(why) - 1], '.');
	assert_null(vfio);
	assert_int_equal(fake_open(), 0);
}

static void refuse(unsigned long request, int err)
{
	fake_reset();
	fake.refused = request;
	fake.refused_error = err;
}

static void refuse_open(enum fake_fd fd, int err)
{
	fake_reset();
	fake.open_error[fd - FAKE_GROUP] = err;
}

static void test_refusals_before(void **state)
{
	kvd_vfio *vfio;

	(void)state;
	fake_reset();
	assert_int_equal(kvd_vfio_open_kernel("4", DEADLINE_MS, why, &vfio), -EINVAL);
	assert_int_equal(kvd_vfio_open_kernel("0000:00:04,0", DEADLINE_MS, why, &vfio), -EINVAL);
	assert_int_equal(kvd_vfio_open_kernel("0000:00:../0", DEADLINE_MS, why, &vfio), -EINVAL);
	assert_non_null(strstr(why, "no PCI slot"));
	fake.device = NULL;
	expect_refusal(-ENXIO, "no PCI device at " FAKE_SLOT);
	fake_reset();
	fake.group = NULL;
	expect_refusal(-EOPNOTSUPP, "behind no IOMMU");
	fake_reset();
	fake.driver = NULL;
	expect_refusal(-ENXIO, "driverctl set-override " FAKE_SLOT " vfio-pci");
	fake.driver = "nvme";
	expect_refusal(-EBUSY, "the driver nvme");
}

static void test_refusals_of_group(void **state)
{
	(void)state;
	refuse_open(FAKE_GROUP, -ENOENT);
	expect_refusal(-ENOENT, "/dev/vfio/12, the group of " FAKE_SLOT ", is missing");
	fake.without_iommu = true;
	expect_refusal(-EOPNOTSUPP, "mode without one");
	fake.open_error[FAKE_NO_IOMMU - FAKE_GROUP] = -EPERM;
	expect_refusal(-EOPNOTSUPP, "mode without one");
	refuse_open(FAKE_GROUP, -EACCES);
	expect_refusal(-EACCES, "may not open /dev/vfio/12");
	refuse_open(FAKE_GROUP, -EBUSY);
	expect_refusal(-EBUSY, "Another process uses the group");
	refuse_open(FAKE_GROUP, -EIO);
	expect_refusal(-EIO, "/dev/vfio/12 can't be opened");
	refuse_open(FAKE_CONTAINER, -EACCES);
	expect_refusal(-EACCES, "/dev/vfio/vfio; its mode");
	refuse_open(FAKE_CONTAINER, -ENOENT);
	expect_refusal(-ENOENT, "modprobe vfio-pci");
	refuse(VFIO_GROUP_GET_STATUS, -EIO);
	expect_refusal(-EIO, "The state of group 12");
	fake_reset();
	fake.not_viable = true;
	expect_refusal(-EPERM, "/sys/kernel/iommu_groups/12/devices");
	fake_reset();
	fake.no_type1 = true;
	expect_refusal(-EOPNOTSUPP, "modprobe vfio_iommu_type1");
	refuse(VFIO_GET_API_VERSION, 99);
	expect_refusal(-EOPNOTSUPP, "modprobe vfio_iommu_type1");
	refuse(VFIO_GROUP_SET_CONTAINER, -EBUSY);
	expect_refusal(-EBUSY, "Another process uses the group");
	refuse(VFIO_GROUP_SET_CONTAINER, -EINVAL);
	expect_refusal(-EINVAL, "container");
	refuse(VFIO_SET_IOMMU, -EPERM);
	expect_refusal(-EPERM, "allow_unsafe_interrupts=1");
	refuse(VFIO_SET_IOMMU, -ENODEV);
	expect_refusal(-ENODEV, "refuses the IOMMU");
	refuse(VFIO_GROUP_GET_DEVICE_FD, -EINVAL);
	expect_refusal(-EINVAL, "can't be had from group 12");
	refuse(VFIO_IOMMU_GET_INFO, -EIO);
	expect_refusal(-EIO, "what the IOMMU");
	fake_reset();
	fake.info_lies = true;
	expect_refusal(-EPROTO, "what the IOMMU");
	fake_reset();
	fake.info_needs = 1 << 20;
	expect_refusal(-EPROTO, "what the IOMMU");
}

static void test_refusals_of_device(void **state)
{
	(void)state;
	refuse(VFIO_DEVICE_GET_INFO, -EIO);
	expect_refusal(-EIO, "does not describe the device");
	refuse(VFIO_DEVICE_GET_REGION_INFO, -EIO);
	expect_refusal(-EIO, "does not describe the device");
	refuse(VFIO_DEVICE_GET_IRQ_INFO, -EIO);
	expect_refusal(-EIO, "does not describe the device");
	fake_reset();
	fake.config_tiny = true;
	expect_refusal(-EPROTO, "configuration space");
	fake_reset();
	fake.removed = true;
	expect_refusal(-ENODEV, "still there");
}

/* Without groups it is iommufd's sentence that helps. */
static void test_iommufd_only(void **state)
{
	(void)state;
	with_node();
	fake.open_error[0] = -ENOENT;
	fake.open_error[FAKE_NODE - FAKE_GROUP] = -EACCES;
	expect_refusal(-EACCES, "/dev/vfio/devices/vfio7; give it");
	with_node();
	fake.open_error[0] = -ENOENT;
	fake.open_error[FAKE_NODE - FAKE_GROUP] = -EIO;
	expect_refusal(-EIO, "/dev/vfio/devices/vfio7 can't be opened");
	with_node();
	fake.open_error[0] = -ENOENT;
	fake.refused = KVD_UAPI_BIND_IOMMUFD;
	fake.refused_error = -EBUSY;
	expect_refusal(-EBUSY, "Another process uses the device");
	fake.refused_error = -EPERM;
	expect_refusal(-EPERM, "remap interrupts");
	fake.refused = KVD_UAPI_ATTACH_IOMMUFD;
	fake.refused_error = -EINVAL;
	expect_refusal(-EINVAL, "refuses the IOMMU");
	with_node();
	fake.open_error[0] = -ENOENT;
	fake.open_error[FAKE_IOMMU - FAKE_GROUP] = -ENOENT;
	expect_refusal(-ENOENT, "/dev/vfio/12, the group");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusals_before),
		cmocka_unit_test(test_refusals_of_group),
		cmocka_unit_test(test_refusals_of_device),
		cmocka_unit_test(test_iommufd_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
