/* The device's side of a queue, stepped by hand. */
#ifndef KVD_TEST_RING_H
#define KVD_TEST_RING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "vfio/ring.h"

enum { DEPTH = 8 };

struct card {
	uint32_t doorbells[2];
	struct kvd_abi_cmd *sq;
	struct kvd_abi_cpl *cq;
	uint32_t depth;
	uint32_t taken;
	uint32_t made; /* completions */
	kvd_ring *ring;
	void *memory;
};

static inline void card_init(struct card *card, uint32_t depth)
{
	memset(card, 0, sizeof(*card));
	card->memory = mmap(NULL, kvd_ring_bytes(depth), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(card->memory != MAP_FAILED);
	card->sq = card->memory;
	card->cq = (void *)((char *)card->memory + kvd_ring_cq_offset(depth));
	card->depth = depth;
	assert_int_equal(kvd_ring_init(depth, card->memory, card->doorbells, &card->ring), 0);
}

static inline void card_fini(struct card *card)
{
	kvd_ring_fini(card->ring);
	munmap(card->memory, kvd_ring_bytes(card->depth));
}

/* What an honest card writes for the command it would take next. */
static inline struct kvd_abi_cpl card_answer(const struct card *card)
{
	const struct kvd_abi_cmd *cmd = &card->sq[card->taken % card->depth];

	return (struct kvd_abi_cpl){
		.id = cmd->id,
		.flags = (uint16_t)(card->made / card->depth % 2 ? 0 : KVD_ABI_CPL_FLAGS_PHASE_MASK),
		.result0 = cmd->key * 2,
		.result1 = cmd->op,
		.sq_head = (card->taken + 1) % card->depth,
	};
}

static inline void card_write(struct card *card, struct kvd_abi_cpl cpl)
{
	struct kvd_abi_cpl *entry = &card->cq[card->made++ % card->depth];
	uint16_t flags = cpl.flags;

	cpl.flags = entry->flags; /* written last */
	*entry = cpl;
	__atomic_store_n(&entry->flags, flags, __ATOMIC_RELEASE);
	card->taken++;
}

static inline uint32_t card_owed(const struct card *card)
{
	return (__atomic_load_n(&card->doorbells[0], __ATOMIC_ACQUIRE) - card->taken) % card->depth;
}

static inline void card_step(struct card *card, uint32_t count)
{
	for (uint32_t i = 0; i < count && card_owed(card); i++)
		card_write(card, card_answer(card));
}

static inline void fill(struct kvd_abi_cmd *cmd, uint32_t count, uint32_t first_id)
{
	for (uint32_t i = 0; i < count; i++)
		cmd[i] = (struct kvd_abi_cmd){.id = first_id + i, .op = KVD_ABI_OP_FLUSH, .key = 1000 + first_id + i};
}

#endif
