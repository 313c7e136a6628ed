/* BAR0, as docs/device.md describes it. */
#include <string.h>

#include "model/internal.h"

#define WORD_BYTES 4u
#define DESCRIBED(at, name) ((at) >= KVD_ABI_BAR0_##name##_AT && (at) < KVD_ABI_BAR0_##name##_AT + 8u)

static void put32(struct kvd_card *card, uint32_t at, uint32_t value)
{
	memcpy(&card->registers[at], &value, sizeof(value));
}

static void put64(struct kvd_card *card, uint32_t at, uint64_t value)
{
	memcpy(&card->registers[at], &value, sizeof(value));
}

static uint32_t get32(const struct kvd_card *card, uint32_t at)
{
	uint32_t value;

	memcpy(&value, &card->registers[at], sizeof(value));
	return value;
}

uint64_t kvd_card_register(const struct kvd_card *card, uint32_t at)
{
	uint64_t value;

	memcpy(&value, &card->registers[at], sizeof(value));
	return value;
}

bool kvd_card_enabled(const struct kvd_card *card)
{
	return get32(card, KVD_ABI_BAR0_STATUS_AT) & KVD_ABI_BAR0_STATUS_ENABLED_MASK;
}

/* ------------------------------------------------------------------ capabilities */

struct writer {
	struct kvd_card *card;
	uint32_t at;
	uint32_t last; /* where the capability before begins, 0: nowhere */
};

/* Append a capability; its head and length are written here. */
static void add(struct writer *writer, enum kvd_abi_capability_id id, void *capability, uint32_t bytes)
{
	struct kvd_abi_capability head = {.head = id, .bytes = bytes};

	memcpy(capability, &head, sizeof(head));
	memcpy(&writer->card->registers[writer->at], capability, bytes);
	if (writer->last)
		put32(writer->card, writer->last,
		      get32(writer->card, writer->last) | writer->at << KVD_ABI_CAPABILITY_HEAD_NEXT_SHIFT);
	writer->last = writer->at;
	writer->at += (bytes + 7) & ~7u;
}

static void put_capabilities(struct kvd_card *card)
{
	struct writer writer = {card, KVD_ABI_BAR0_CAPABILITIES_RESET, 0};
	struct kvd_abi_capability_page_sizes sizes = {.mask = KVD_CARD_PAGE_SIZES};
	struct kvd_abi_capability_tiers tiers = {.capacity_bytes[KVD_ABI_TIER_CARD] = card->config.ddr_bytes};
	struct kvd_abi_capability_queues queues = {
		.count = card->config.queues,
		.depth_max = card->config.depth_max,
		.vectors = KVD_CARD_VECTORS,
	};
	struct kvd_abi_capability_formats formats = {.mask = (1ull << KVD_ABI_FORMAT_COUNT) - 1};
	struct kvd_abi_capability_operations operations = {.mask = card->operations};
	struct kvd_abi_capability_limits limits = {
		.sessions_max = KVD_CARD_SESSIONS_MAX,
		.tables_bytes_max = KVD_CARD_TABLES_BYTES_MAX,
		.address_last = card->dma.window_bytes - 1,
		.slots_max = KVD_ENGINE_SLOTS_MAX,
		.page_bits = KVD_ENGINE_PAGE_BITS,
	};

	add(&writer, KVD_ABI_CAPABILITY_ID_PAGE_SIZES, &sizes, sizeof(sizes));
	add(&writer, KVD_ABI_CAPABILITY_ID_TIERS, &tiers, sizeof(tiers));
	add(&writer, KVD_ABI_CAPABILITY_ID_QUEUES, &queues, sizeof(queues));
	add(&writer, KVD_ABI_CAPABILITY_ID_FORMATS, &formats, sizeof(formats));
	add(&writer, KVD_ABI_CAPABILITY_ID_OPERATIONS, &operations, sizeof(operations));
	add(&writer, KVD_ABI_CAPABILITY_ID_LIMITS, &limits, sizeof(limits));
}

/* ------------------------------------------------------------------ states */

void kvd_card_reset(struct kvd_card *card)
{
	kvd_card_tables_close(card);
	memset(card->registers, 0, sizeof(card->registers));
	memset(card->queues, 0, sizeof(card->queues));
	card->counters = (struct kvd_card_counters){0};
	card->completed = 0;
	card->hung = false;
	card->lies = false;
	put64(card, KVD_ABI_BAR0_MAGIC_AT, KVD_ABI_BAR0_MAGIC_RESET);
	put32(card, KVD_ABI_BAR0_VERSION_AT, KVD_ABI_BAR0_VERSION_RESET);
	put32(card, KVD_ABI_BAR0_CAPABILITIES_AT, KVD_ABI_BAR0_CAPABILITIES_RESET);
	put32(card, KVD_ABI_BAR0_CONTROL_AT, KVD_ABI_BAR0_CONTROL_RESET);
	put32(card, KVD_ABI_BAR0_STATUS_AT, KVD_ABI_BAR0_STATUS_RESET);
	put_capabilities(card);
	/* Each vector of PCI's own table begins masked. */
	for (uint32_t i = 3; i < KVD_ABI_BAR0_MSIX_TABLE_COUNT; i += 4)
		put32(card, KVD_ABI_BAR0_MSIX_TABLE_AT + i * WORD_BYTES, 1);
	if (card->doorbells.base && !card->bars_dead)
		memset(card->doorbells.base, 0, card->doorbells.bytes);
}

static void set_status(struct kvd_card *card, uint32_t set, uint32_t clear)
{
	put32(card, KVD_ABI_BAR0_STATUS_AT, (get32(card, KVD_ABI_BAR0_STATUS_AT) & ~clear) | set);
}

void kvd_card_stop(struct kvd_card *card, enum kvd_abi_syndrome syndrome, uint32_t queue, uint64_t info)
{
	if (get32(card, KVD_ABI_BAR0_STATUS_AT) & KVD_ABI_BAR0_STATUS_FAULT_MASK)
		return;
	kvd_card_tables_close(card);
	put32(card, KVD_ABI_BAR0_SYNDROME_AT, syndrome);
	put32(card, KVD_ABI_BAR0_SYNDROME_QUEUE_AT, queue);
	put64(card, KVD_ABI_BAR0_SYNDROME_INFO_AT, info);
	put32(card, KVD_ABI_BAR0_CONTROL_AT, 0);
	set_status(card, KVD_ABI_BAR0_STATUS_FAULT_MASK | KVD_ABI_BAR0_STATUS_QUIET_MASK, KVD_ABI_BAR0_STATUS_ENABLED_MASK);
}

static void set_control(struct kvd_card *card, uint32_t value)
{
	const uint32_t status = get32(card, KVD_ABI_BAR0_STATUS_AT);

	if (value & KVD_ABI_BAR0_CONTROL_RESET_MASK) {
		kvd_card_reset(card);
		return;
	}
	if (status & KVD_ABI_BAR0_STATUS_FAULT_MASK)
		return;
	value &= KVD_ABI_BAR0_CONTROL_ENABLE_MASK | KVD_ABI_BAR0_CONTROL_QUIESCE_MASK;
	put32(card, KVD_ABI_BAR0_CONTROL_AT, value);
	if (!(value & KVD_ABI_BAR0_CONTROL_ENABLE_MASK)) {
		kvd_card_tables_close(card);
		set_status(card, KVD_ABI_BAR0_STATUS_QUIET_MASK, KVD_ABI_BAR0_STATUS_ENABLED_MASK);
		return;
	}
	if (!(status & KVD_ABI_BAR0_STATUS_ENABLED_MASK)) {
		if (!kvd_card_queues_open(card) || !kvd_card_tables_open(card))
			return;
		card->quiet = false;
		set_status(card, KVD_ABI_BAR0_STATUS_ENABLED_MASK, 0);
	}
	/* A command is never left half done between two accesses, so quiet is at once. */
	if (!kvd_card_tables_quiesce(card, value & KVD_ABI_BAR0_CONTROL_QUIESCE_MASK))
		return;
	if (value & KVD_ABI_BAR0_CONTROL_QUIESCE_MASK)
		set_status(card, KVD_ABI_BAR0_STATUS_QUIET_MASK, 0);
	else
		set_status(card, 0, KVD_ABI_BAR0_STATUS_QUIET_MASK);
}

static void deliver(struct kvd_card *card, uint32_t vector)
{
	card->counters.interrupts++;
	if (!card->silent)
		kvd_card_irq_trigger(card, VFIO_PCI_MSIX_IRQ_INDEX, vector);
}

void kvd_card_signal(struct kvd_card *card, uint32_t vector)
{
	uint64_t bit = 1ull << vector;

	if (kvd_card_register(card, KVD_ABI_BAR0_IRQ_MASK_AT) & bit)
		put64(card, KVD_ABI_BAR0_IRQ_PENDING_AT, kvd_card_register(card, KVD_ABI_BAR0_IRQ_PENDING_AT) | bit);
	else
		deliver(card, vector);
}

/* What waited and is not masked any more. */
static void unmask(struct kvd_card *card)
{
	uint64_t pending = kvd_card_register(card, KVD_ABI_BAR0_IRQ_PENDING_AT);
	uint64_t mask = kvd_card_register(card, KVD_ABI_BAR0_IRQ_MASK_AT);

	put64(card, KVD_ABI_BAR0_IRQ_PENDING_AT, pending & mask);
	for (uint32_t vector = 0; vector < KVD_CARD_VECTORS; vector++) {
		if (pending & ~mask & 1ull << vector)
			deliver(card, vector);
	}
}

/* ------------------------------------------------------------------ accesses */

/* May the word be written as it is? */
static bool is_plain(const struct kvd_card *card, uint32_t at)
{
	const uint32_t queues_at = KVD_ABI_BAR0_QUEUE_AT;
	const uint32_t queues_bytes = card->config.queues * KVD_ABI_BAR0_QUEUE_STRIDE;

	if (at - KVD_ABI_BAR0_MSIX_TABLE_AT < KVD_ABI_BAR0_MSIX_TABLE_COUNT * WORD_BYTES || DESCRIBED(at, IRQ_MASK))
		return true;
	if (kvd_card_enabled(card))
		return false;
	if (DESCRIBED(at, TABLES_ADDRESS) || DESCRIBED(at, TABLES_BYTES))
		return true;
	if (at - KVD_ABI_BAR0_TIER_ADDRESS_AT < 2 * KVD_ABI_BAR0_TIER_ADDRESS_COUNT * sizeof(uint64_t))
		return true;
	return at - queues_at < queues_bytes &&
	       (at - queues_at) % KVD_ABI_BAR0_QUEUE_STRIDE < KVD_ABI_BAR0_QUEUE_EXECUTED_AT;
}

static void write_word(struct kvd_card *card, uint32_t at, uint32_t value)
{
	if (at == KVD_ABI_BAR0_CONTROL_AT)
		set_control(card, value);
	else if (is_plain(card, at))
		put32(card, at, value);
}

static bool is_access(uint64_t offset, uint32_t bytes)
{
	return (bytes == 4 || bytes == 8) && offset % bytes == 0;
}

/* What changes by itself. */
static void refresh(struct kvd_card *card)
{
	uint64_t pending = 0;

	memcpy(&card->registers[KVD_ABI_BAR0_COMMANDS_AT], &card->counters, sizeof(card->counters));
	for (uint32_t i = 0; i < card->config.queues; i++)
		put64(card, KVD_ABI_BAR0_QUEUE_AT + i * KVD_ABI_BAR0_QUEUE_STRIDE + KVD_ABI_BAR0_QUEUE_EXECUTED_AT,
		      card->queues[i].executed);
	for (uint32_t vector = 0; vector < KVD_CARD_VECTORS; vector++)
		pending |= (uint64_t)kvd_card_irq_pending(card, vector) << vector;
	put64(card, KVD_ABI_BAR0_MSIX_PENDING_AT, pending);
}

void kvd_card_registers_read(struct kvd_card *card, uint64_t offset, void *data, uint32_t bytes)
{
	memset(data, card->all_ones ? 0xff : 0, bytes);
	if (card->all_ones || !is_access(offset, bytes))
		return;
	refresh(card);
	memcpy(data, &card->registers[offset], bytes);
}

void kvd_card_registers_write(struct kvd_card *card, uint64_t offset, const void *data, uint32_t bytes)
{
	uint32_t words[2];

	if (!is_access(offset, bytes))
		return;
	memcpy(words, data, bytes);
	for (uint32_t i = 0; i < bytes / WORD_BYTES; i++)
		write_word(card, (uint32_t)offset + i * WORD_BYTES, words[i]);
	if (DESCRIBED(offset, IRQ_MASK))
		unmask(card);
}
