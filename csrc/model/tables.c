/* The engine on the client's tables. */
#include <errno.h>
#include <string.h>

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

bool kvd_card_tables_open(struct kvd_card *card)
{
	kvd_card_stop(card, KVD_ABI_SYNDROME_NO_TABLES, 0, tables_address(card));
	return false;
}

void kvd_card_tables_close(struct kvd_card *card)
{
	kvd_engine_fini(card->engine);
	card->engine = NULL;
}

uint64_t kvd_card_tables_sequence(const struct kvd_card *card)
{
	(void)card;
	return 0;
}
