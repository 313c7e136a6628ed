/* The engine on the client's tables. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "model/internal.h"

enum {
	PROBE_PAGE_BYTES = 4096,
	PROBE_ARENA_BYTES = 4 << 20,
	PROBE_BLOCKS = 16,
	NO_SUCH_FLAGS = 0xffff,
};

/*
 * Which operations the engine knows: it refuses what it doesn't know by another status than what it knows, when asked
 * with flags that no operation has.
 */
int kvd_card_operations_probe(uint64_t *out)
{
	const struct kvd_engine_config config = {
		.page_bytes = PROBE_PAGE_BYTES,
		.sessions_max = 1,
		.arena_bytes = PROBE_ARENA_BYTES,
		.capacity_blocks[KVD_ABI_TIER_DDR] = PROBE_BLOCKS,
		.arena_fd = -1,
	};
	kvd_engine *engine;
	int err = kvd_engine_init(&config, &engine);

	if (err)
		return err;
	*out = 0;
	for (uint16_t op = 1; op < KVD_ABI_OP_COUNT; op++) {
		struct kvd_abi_cmd cmd = {.op = op, .flags = NO_SUCH_FLAGS};
		struct kvd_abi_cpl cpl;

		kvd_engine_submit(engine, &cmd, &cpl, 1);
		*out |= (uint64_t)(cpl.status == KVD_ABI_STATUS_BAD_ARGUMENT) << op;
	}
	kvd_engine_fini(engine);
	return 0;
}

static uint64_t tables_address(const struct kvd_card *card)
{
	return kvd_card_register(card, KVD_ABI_BAR0_TABLES_ADDRESS_AT);
}

static uint64_t tables_bytes(const struct kvd_card *card)
{
	return kvd_card_register(card, KVD_ABI_BAR0_TABLES_BYTES_AT);
}

bool kvd_card_tables_reached(struct kvd_card *card)
{
	return kvd_card_dma(card, tables_address(card), tables_bytes(card), true);
}

/* The engine's calls touch the client's memory, so they run under guard. */
struct call {
	struct kvd_card *card;
	int err;
	uint64_t info;
};

static void open_work(void *context)
{
	struct call *call = context;
	struct kvd_card *card = call->card;
	struct kvd_abi_table_head *head = kvd_card_dma(card, tables_address(card), tables_bytes(card), true);

	call->err = kvd_engine_attach(head, tables_bytes(card), kvd_card_reach, card, &card->engine);
	if (call->err == -EPROTO)
		call->info = head->version;
	else if (!call->err && kvd_engine_dirty(card->engine))
		call->err = -EBUSY;
	if (call->err == -EBUSY)
		call->info = kvd_engine_sequence(card->engine);
}

/* Where the driver says that the tiers' frames are; those of the card's own tier are in the card, no DMA. */
static void set_tiers(struct kvd_card *card)
{
	const uint32_t each = sizeof(uint64_t);

	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++) {
		uint64_t address = kvd_card_register(card, KVD_ABI_BAR0_TIER_ADDRESS_AT + tier * each);
		uint64_t bytes = kvd_card_register(card, KVD_ABI_BAR0_TIER_BYTES_AT + tier * each);

		if (tier == KVD_ABI_TIER_CARD) {
			address = (uintptr_t)card->ddr.base;
			bytes = card->ddr.bytes;
		}
		/* What overflows is memory that the tier does not have. */
		(void)kvd_engine_tier_memory(card->engine, tier, address, bytes);
	}
}

bool kvd_card_tables_open(struct kvd_card *card)
{
	struct call call = {.card = card, .info = tables_address(card)};
	int err = -EFAULT;

	if (kvd_card_tables_reached(card))
		err = kvd_card_guard(open_work, &call, NULL);
	switch (err ? err : call.err) {
	case 0:
		set_tiers(card);
		return true;
	case -EPROTO:
		kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_VERSION, 0, call.info);
		return false;
	case -EBUSY: /* whoever had them did not leave them in order: software recovers them first */
		kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_TABLES, 0, call.info);
		return false;
	case -EFAULT:
		card->counters.faults++;
		kvd_card_stop(card, KVD_ABI_SYNDROME_NO_TABLES, 0, call.info);
		return false;
	case -EINVAL:
		kvd_card_stop(card, KVD_ABI_SYNDROME_NO_TABLES, 0, call.info);
		return false;
	default:
		kvd_card_stop(card, KVD_ABI_SYNDROME_OWN_FAULT, 0, call.info);
		return false;
	}
}

static void close_work(void *context)
{
	struct kvd_card *card = context;

	kvd_engine_fini(card->engine);
	card->engine = NULL;
}

static void claim_work(void *context)
{
	struct kvd_abi_table_head *head = context;

	__atomic_store_n(&head->in_use, 1, __ATOMIC_RELEASE);
}

void kvd_card_tables_close(struct kvd_card *card)
{
	uint8_t *head = card->dma.window + tables_address(card);

	if (!card->engine)
		return;
	if (kvd_card_guard(close_work, card, NULL)) {
		/* The client has cut their file: let the engine say good-bye to zeros instead. */
		uint8_t *page = head - (uintptr_t)head % KVD_CARD_PAGE_BYTES;
		size_t bytes = (size_t)(head - page) + sizeof(struct kvd_abi_table_head);

		if (mmap(page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
			close_work(card);
		card->engine = NULL;
	} else if (card->torn) {
		/* A command was left in the middle: the tables are not in order, whatever the engine wrote at its end. */
		(void)kvd_card_guard(claim_work, head, NULL);
	}
	card->torn = false;
}

static void quiesce_work(void *context)
{
	struct call *call = context;

	if (call->card->quiet)
		kvd_engine_leave(call->card->engine);
	else
		call->err = kvd_engine_return(call->card->engine);
	call->info = kvd_engine_sequence(call->card->engine);
}

bool kvd_card_tables_quiesce(struct kvd_card *card, bool quiet)
{
	struct call call = {.card = card};

	if (card->quiet == quiet)
		return true;
	card->quiet = quiet;
	if (kvd_card_guard(quiesce_work, &call, NULL)) {
		card->counters.faults++;
		kvd_card_stop(card, KVD_ABI_SYNDROME_NO_TABLES, 0, tables_address(card));
		return false;
	}
	if (call.err)
		kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_TABLES, 0, call.info);
	return !call.err;
}

uint64_t kvd_card_tables_sequence(const struct kvd_card *card)
{
	return kvd_engine_sequence(card->engine);
}
