/* Interrupts and configuration space. */
#include "card_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <linux/pci_regs.h>

#define NONE VFIO_IRQ_SET_DATA_NONE
#define BOOL VFIO_IRQ_SET_DATA_BOOL
#define EVENT VFIO_IRQ_SET_DATA_EVENTFD
#define MASK VFIO_IRQ_SET_ACTION_MASK
#define UNMASK VFIO_IRQ_SET_ACTION_UNMASK
#define TRIGGER VFIO_IRQ_SET_ACTION_TRIGGER
#define MSIX VFIO_PCI_MSIX_IRQ_INDEX
#define CONFIG VFIO_PCI_CONFIG_REGION_INDEX
#define EXPRESS_AT 0x40u

static int event(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	assert_true(fd >= 0);
	return fd;
}

static void test_info(void **state)
{
	static const uint32_t counts[VFIO_PCI_NUM_IRQS] = {[MSIX] = KVD_CARD_VECTORS, [VFIO_PCI_ERR_IRQ_INDEX] = 1,
							   [VFIO_PCI_REQ_IRQ_INDEX] = 1};
	struct rig *rig = *state;

	for (uint32_t i = 0; i < VFIO_PCI_NUM_IRQS; i++) {
		struct vfio_irq_info info = {.argsz = sizeof(info), .index = i};

		assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_IRQ_INFO, &info, sizeof(info)), 0);
		assert_int_equal(rig->bytes, sizeof(info));
		memcpy(&info, rig->payload, sizeof(info));
		assert_int_equal(info.count, counts[i]);
		assert_int_equal(!!(info.flags & VFIO_IRQ_INFO_EVENTFD), counts[i] != 0);
		assert_int_equal(!!(info.flags & VFIO_IRQ_INFO_MASKABLE), i == MSIX);
	}
	struct vfio_irq_info bad = {.argsz = sizeof(bad), .index = VFIO_PCI_NUM_IRQS};
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_IRQ_INFO, &bad, sizeof(bad)), -EINVAL);
}

static void test_eventfds(void **state)
{
	struct rig *rig = *state;
	uint32_t before = rig_open_fds();
	int fds[4];

	for (int i = 0; i < 4; i++)
		fds[i] = event();
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 2, 4, NULL, 0, fds, 4), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 3);
	kvd_card_irq_trigger(rig->card, MSIX, 3);
	kvd_card_irq_trigger(rig->card, MSIX, 6);     /* has none */
	kvd_card_irq_trigger(rig->card, MSIX, 1000);  /* is none */
	assert_int_equal(rig_signals(fds[0]), 0);
	assert_int_equal(rig_signals(fds[1]), 2);
	/* Loops back what the client triggers itself. */
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 2, 4, NULL, 0, NULL, 0), 0);
	assert_int_equal(rig_irqs(rig, MSIX, BOOL | TRIGGER, 2, 4, "\0\1\0\1", 4, NULL, 0), 0);
	assert_int_equal(rig_signals(fds[0]), 1);
	assert_int_equal(rig_signals(fds[1]), 2);
	assert_int_equal(rig_signals(fds[2]), 1);
	assert_int_equal(rig_signals(fds[3]), 2);
	/* One is taken away, then the rest. */
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 3, 1, NULL, 0, NULL, 0), 0);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 0, 64, NULL, 0, NULL, 0), 0);
	assert_int_equal(rig_signals(fds[1]), 0);
	assert_int_equal(rig_signals(fds[2]), 1);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 0, 0, NULL, 0, NULL, 0), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 2);
	assert_int_equal(rig_signals(fds[0]), 1); /* of the loop before */
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	assert_int_equal(rig_open_fds(), before);
}

static void test_masks(void **state)
{
	struct rig *rig = *state;
	int fd = event();

	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 1, NULL, 0, &fd, 1), 0);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | MASK, 0, 1, NULL, 0, NULL, 0), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 0);
	assert_int_equal(rig_signals(fd), 0);
	assert_int_equal(rig_read64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_MSIX_PENDING_AT), 1);
	assert_int_equal(rig_irqs(rig, MSIX, BOOL | UNMASK, 0, 2, "\0\1", 2, NULL, 0), 0);
	assert_int_equal(rig_signals(fd), 0);
	assert_int_equal(rig_irqs(rig, MSIX, BOOL | UNMASK, 0, 2, "\1\0", 2, NULL, 0), 0);
	assert_int_equal(rig_signals(fd), 1);
	assert_int_equal(rig_read64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_MSIX_PENDING_AT), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 0);
	assert_int_equal(rig_signals(fd), 1);
	close(fd);
}

static void test_request(void **state)
{
	struct rig *rig = *state;
	int fd = event();

	assert_int_equal(rig_irqs(rig, VFIO_PCI_REQ_IRQ_INDEX, EVENT | TRIGGER, 0, 1, NULL, 0, &fd, 1), 0);
	kvd_card_irq_trigger(rig->card, VFIO_PCI_REQ_IRQ_INDEX, 0);
	assert_int_equal(rig_signals(fd), 1);
	assert_int_equal(rig_irqs(rig, VFIO_PCI_REQ_IRQ_INDEX, NONE | MASK, 0, 1, NULL, 0, NULL, 0), -ENOTSUP);
	close(fd);
}

static void test_set_refused(void **state)
{
	struct rig *rig = *state;
	int fds[2] = {event(), event()};
	int pipes[2];

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(rig_irqs(rig, VFIO_PCI_NUM_IRQS, NONE | TRIGGER, 0, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, VFIO_PCI_INTX_IRQ_INDEX, NONE | TRIGGER, 0, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, 0, 0, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE, 0, 1, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | BOOL | TRIGGER, 0, 1, "\1", 1, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER | MASK, 0, 1, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER | 64, 0, 1, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 0, 65, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 65, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 1, UINT32_MAX, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 1, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | MASK, 0, 0, NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | MASK, 0, 1, NULL, 0, fds, 1), -ENOTSUP);
	assert_int_equal(rig_irqs(rig, MSIX, BOOL | TRIGGER, 0, 2, "\1", 1, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, BOOL | TRIGGER, 0, 2, "\1\1\1", 3, NULL, 0), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, NONE | TRIGGER, 0, 1, NULL, 0, fds, 1), -EINVAL);
	/* As many descriptors as vectors, and eventfds only. */
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 3, NULL, 0, fds, 2), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 1, NULL, 0, fds, 2), -EINVAL);
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 2, NULL, 0, pipes, 2), -EINVAL);
	for (int i = 0; i < 2; i++) {
		close(fds[i]);
		close(pipes[i]);
	}
}

/* An eventfd that its owner let run full does not block the card. */
static void test_full_eventfd(void **state)
{
	struct rig *rig = *state;
	uint64_t most = UINT64_MAX - 1;
	int fd = eventfd(0, EFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, &most, sizeof(most)), sizeof(most));
	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 1, NULL, 0, &fd, 1), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 0);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	close(fd);
}

/* The eventfds are the client's wiring: a reset of the device leaves them, the end of the client does not. */
static void test_reset_keeps_eventfds(void **state)
{
	struct rig *rig = *state;
	int fd = event();

	assert_int_equal(rig_irqs(rig, MSIX, EVENT | TRIGGER, 0, 1, NULL, 0, &fd, 1), 0);
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	kvd_card_irq_trigger(rig->card, MSIX, 0);
	assert_int_equal(rig_signals(fd), 1);
	rig_connect(rig);
	kvd_card_irq_trigger(rig->card, MSIX, 0);
	assert_int_equal(rig_signals(fd), 0);
	close(fd);
}

static void test_identity(void **state)
{
	struct rig *rig = *state;
	uint32_t at = rig_read32(rig, CONFIG, PCI_CAPABILITY_LIST) & 0xff;
	bool express = false, msix = false;

	assert_int_equal(rig_read32(rig, CONFIG, 0), KVD_ABI_PCI_DEVICE_ID_RESET << 16 | KVD_ABI_PCI_VENDOR_ID_RESET);
	assert_int_equal(rig_read32(rig, CONFIG, PCI_CLASS_REVISION), KVD_ABI_PCI_CLASS_REVISION_RESET);
	assert_int_equal(rig_read32(rig, CONFIG, PCI_COMMAND) & 0xffff, 0);
	for (int i = 0; at && i < 8; i++) {
		uint32_t head = rig_read32(rig, CONFIG, at);

		if ((head & 0xff) == PCI_CAP_ID_EXP) {
			express = true;
			assert_true(rig_read32(rig, CONFIG, at + PCI_EXP_DEVCAP) & PCI_EXP_DEVCAP_FLR);
		} else if ((head & 0xff) == PCI_CAP_ID_MSIX) {
			msix = true;
			assert_int_equal((head >> 16 & PCI_MSIX_FLAGS_QSIZE) + 1, KVD_CARD_VECTORS);
			assert_int_equal(rig_read32(rig, CONFIG, at + PCI_MSIX_TABLE), KVD_ABI_BAR0_MSIX_TABLE_AT);
			assert_int_equal(rig_read32(rig, CONFIG, at + PCI_MSIX_PBA), KVD_ABI_BAR0_MSIX_PENDING_AT);
		}
		at = head >> 8 & 0xff;
	}
	assert_true(express && msix);
}

static void test_bar_sizes(void **state)
{
	static const uint64_t bytes[] = {KVD_CARD_BAR0_BYTES, KVD_CARD_BAR2_BYTES, RIG_DDR_BYTES};
	static const uint64_t flags[] = {4, 4, 12};
	struct rig *rig = *state;

	for (uint32_t i = 0; i < 3; i++) {
		uint64_t at = PCI_BASE_ADDRESS_0 + 8 * i;

		assert_int_equal(rig_read64(rig, CONFIG, at), flags[i]);
		rig_write32(rig, CONFIG, at, UINT32_MAX);
		rig_write32(rig, CONFIG, at + 4, UINT32_MAX);
		assert_int_equal(rig_read64(rig, CONFIG, at), ~(bytes[i] - 1) | flags[i]);
		rig_write64(rig, CONFIG, at, 0x123456789abcdefull);
		assert_int_equal(rig_read64(rig, CONFIG, at), (0x123456789abcdefull & ~(bytes[i] - 1)) | flags[i]);
	}
	/* What is not writable stays. */
	rig_write32(rig, CONFIG, 0, 0);
	assert_int_equal(rig_read32(rig, CONFIG, 0) & 0xffff, KVD_ABI_PCI_VENDOR_ID_RESET);
}

static void test_function_level_reset(void **state)
{
	const uint8_t reset = PCI_EXP_DEVCTL_BCR_FLR >> 8;
	const uint64_t msix_at = 0x80 + PCI_MSIX_FLAGS;
	const uint16_t enable = PCI_MSIX_FLAGS_ENABLE;
	struct rig *rig = *state;

	rig_bus_master(rig, true);
	rig_write64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_TABLES_BYTES_AT, 77);
	/* A reset by VFIO keeps configuration space, as the kernel does. */
	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_RESET, NULL, 0), 0);
	assert_int_equal(rig_read64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_TABLES_BYTES_AT), 0);
	assert_true(rig_read32(rig, CONFIG, PCI_COMMAND) & PCI_COMMAND_MASTER);
	rig_write64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_TABLES_BYTES_AT, 77);
	assert_int_equal(rig_write(rig, CONFIG, msix_at, &enable, sizeof(enable)), 0);
	assert_int_equal(rig_write(rig, CONFIG, EXPRESS_AT + PCI_EXP_DEVCTL + 1, &reset, 1), 0);
	assert_int_equal(rig_read64(rig, VFIO_PCI_BAR0_REGION_INDEX, KVD_ABI_BAR0_TABLES_BYTES_AT), 0);
	assert_int_equal(rig_read32(rig, CONFIG, PCI_COMMAND) & 0xffff, 0);
	assert_int_equal(rig_read32(rig, CONFIG, EXPRESS_AT + PCI_EXP_DEVCTL) & 0xffff, 0);
	assert_int_equal(rig_read32(rig, CONFIG, 0x80) >> 16 & PCI_MSIX_FLAGS_ENABLE, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_info), TEST(test_eventfds), TEST(test_masks), TEST(test_request), TEST(test_set_refused),
		TEST(test_full_eventfd), TEST(test_reset_keeps_eventfds), TEST(test_identity), TEST(test_bar_sizes),
		TEST(test_function_level_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
