/* PCI configuration space. */
#include <errno.h>
#include <string.h>

#include <linux/pci_regs.h>

#include "abi/abi.h"
#include "model/internal.h"

enum {
	EXPRESS_AT = 0x40,
	EXPRESS_BYTES = 0x3c, /* of version 2 */
	MSIX_AT = 0x80,
	LINK_SPEED = 3,       /* 8 GT/s */
	LINK_LANES = 8,
	BARS = 6,
};

static void put(struct kvd_card_space *space, uint32_t at, uint64_t value, uint32_t bytes)
{
	memcpy(&space->bytes[at], &value, bytes);
}

static void let_write(struct kvd_card_space *space, uint32_t at, uint64_t bits, uint32_t bytes)
{
	memcpy(&space->writable[at], &bits, bytes);
}

/* A BAR keeps what is written above its size: writing ones and reading back tells the size. */
static void put_bar(struct kvd_card_space *space, uint32_t number, uint64_t bytes, uint64_t flags)
{
	uint32_t at = (uint32_t)PCI_BASE_ADDRESS_0 + 4 * number;

	put(space, at, flags, 8);
	let_write(space, at, ~(bytes - 1), 8);
}

static void put_express(struct kvd_card_space *space)
{
	put(space, EXPRESS_AT + PCI_CAP_LIST_ID, PCI_CAP_ID_EXP, 1);
	put(space, EXPRESS_AT + PCI_CAP_LIST_NEXT, MSIX_AT, 1);
	put(space, EXPRESS_AT + PCI_EXP_FLAGS, 2 | PCI_EXP_TYPE_ENDPOINT << 4, 2);
	put(space, EXPRESS_AT + PCI_EXP_DEVCAP, PCI_EXP_DEVCAP_FLR | PCI_EXP_DEVCAP_RBER, 4);
	/* The bit that starts a reset is always read as 0; config_write looks for it. */
	let_write(space, EXPRESS_AT + PCI_EXP_DEVCTL, 0xffff & ~(uint32_t)PCI_EXP_DEVCTL_BCR_FLR, 2);
	put(space, EXPRESS_AT + PCI_EXP_LNKCAP, LINK_SPEED | LINK_LANES << 4, 4);
	put(space, EXPRESS_AT + PCI_EXP_LNKSTA, LINK_SPEED | LINK_LANES << 4, 2);
	put(space, EXPRESS_AT + PCI_EXP_LNKCTL2, LINK_SPEED, 2);
	put(space, EXPRESS_AT + PCI_EXP_LNKCAP2, 0xe, 4); /* 2.5, 5 and 8 GT/s */
	static_assert(EXPRESS_AT + EXPRESS_BYTES <= MSIX_AT, "capabilities don't overlap");
}

static void put_msix(struct kvd_card_space *space)
{
	put(space, MSIX_AT + PCI_CAP_LIST_ID, PCI_CAP_ID_MSIX, 1);
	put(space, MSIX_AT + PCI_MSIX_FLAGS, KVD_CARD_VECTORS - 1, 2);
	let_write(space, MSIX_AT + PCI_MSIX_FLAGS, PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL, 2);
	put(space, MSIX_AT + PCI_MSIX_TABLE, KVD_ABI_BAR0_MSIX_TABLE_AT | VFIO_PCI_BAR0_REGION_INDEX, 4);
	put(space, MSIX_AT + PCI_MSIX_PBA, KVD_ABI_BAR0_MSIX_PENDING_AT | VFIO_PCI_BAR0_REGION_INDEX, 4);
	static_assert(KVD_ABI_BAR0_MSIX_TABLE_COUNT == KVD_CARD_VECTORS * PCI_MSIX_ENTRY_SIZE / 4, "words of the table");
}

void kvd_card_config_reset(struct kvd_card *card)
{
	const uint64_t memory = PCI_BASE_ADDRESS_SPACE_MEMORY | PCI_BASE_ADDRESS_MEM_TYPE_64;
	struct kvd_card_space *space = &card->space;

	memset(space, 0, sizeof(*space));
	put(space, PCI_VENDOR_ID, KVD_ABI_PCI_VENDOR_ID_RESET, 2);
	put(space, PCI_DEVICE_ID, KVD_ABI_PCI_DEVICE_ID_RESET, 2);
	put(space, PCI_CLASS_REVISION, KVD_ABI_PCI_CLASS_REVISION_RESET, 4);
	put(space, PCI_SUBSYSTEM_VENDOR_ID, KVD_ABI_PCI_VENDOR_ID_RESET, 2);
	put(space, PCI_SUBSYSTEM_ID, KVD_ABI_PCI_DEVICE_ID_RESET, 2);
	put(space, PCI_STATUS, PCI_STATUS_CAP_LIST, 2);
	put(space, PCI_CAPABILITY_LIST, EXPRESS_AT, 1);
	let_write(space, PCI_COMMAND, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_SERR | PCI_COMMAND_INTX_DISABLE, 2);
	let_write(space, PCI_CACHE_LINE_SIZE, 0xff, 1);
	let_write(space, PCI_INTERRUPT_LINE, 0xff, 1);
	put_bar(space, VFIO_PCI_BAR0_REGION_INDEX, kvd_card_region_bytes(card, VFIO_PCI_BAR0_REGION_INDEX), memory);
	put_bar(space, VFIO_PCI_BAR2_REGION_INDEX, kvd_card_region_bytes(card, VFIO_PCI_BAR2_REGION_INDEX), memory);
	put_bar(space, VFIO_PCI_BAR4_REGION_INDEX, kvd_card_region_bytes(card, VFIO_PCI_BAR4_REGION_INDEX),
		memory | PCI_BASE_ADDRESS_MEM_PREFETCH);
	static_assert(PCI_BASE_ADDRESS_0 + 4 * BARS <= PCI_CARDBUS_CIS, "BARs come in pairs");
	put_express(space);
	put_msix(space);
}

bool kvd_card_bus_master(const struct kvd_card *card)
{
	return card->space.bytes[PCI_COMMAND] & PCI_COMMAND_MASTER;
}

void kvd_card_config_read(const struct kvd_card *card, uint64_t offset, void *data, uint32_t bytes)
{
	if (card->all_ones)
		memset(data, 0xff, bytes);
	else
		memcpy(data, &card->space.bytes[offset], bytes);
}

void kvd_card_config_write(struct kvd_card *card, uint64_t offset, const void *data, uint32_t bytes)
{
	/* Byte of the device control register that holds the bit. */
	const uint64_t reset_at = EXPRESS_AT + PCI_EXP_DEVCTL + 1;
	const uint8_t reset_bit = PCI_EXP_DEVCTL_BCR_FLR >> 8;
	const uint8_t *in = data;

	for (uint32_t i = 0; i < bytes; i++) {
		uint8_t writable = card->space.writable[offset + i];
		uint8_t *byte = &card->space.bytes[offset + i];

		*byte = (uint8_t)((*byte & ~writable) | (in[i] & writable));
	}
	if (offset <= reset_at && reset_at - offset < bytes && in[reset_at - offset] & reset_bit) {
		kvd_card_reset(card);
		kvd_card_config_reset(card);
	}
	if (!kvd_card_bus_master(card))
		kvd_card_queues_recheck(card);
}
