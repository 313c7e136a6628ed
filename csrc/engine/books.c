/*
 * The books: what is charged to whom.
 *
 * A tier's capacity is charged once a frame. A session's books count its pages, so what a session shares is in the books of
 * every one that has it, and the sum over the sessions may be more than the tier holds.
 */
#include <string.h>

#include "engine/internal.h"

static uint64_t from_reservation(const struct kvd_session *session, uint32_t tier, uint64_t blocks, bool reserved)
{
	uint64_t own = reserved ? session->reserved_blocks[tier - 1] : 0;

	return own < blocks ? own : blocks;
}

bool kvd_books_admit(const struct kvd_engine *engine, const struct kvd_session *session, uint32_t tier, uint64_t frames,
		     uint64_t blocks, bool reserved)
{
	const struct kvd_tier *of = &engine->head->tiers[tier];
	uint64_t total = engine->layout.tiers[tier].total_frames;
	uint64_t pool;

	if (blocks > KVD_BLOCKS_MAX || of->used_frames > total || frames > total - of->used_frames)
		return false;
	/* What a reservation covers was admitted when it was made; RESIZE does not take a promise back. */
	pool = blocks - from_reservation(session, tier, blocks, reserved);
	return !pool || of->used_blocks + of->reserved_blocks + pool <= of->capacity_blocks;
}

void kvd_books_intend(struct kvd_call *call, uint32_t tier, uint64_t blocks, bool reserved)
{
	uint64_t *own = &call->session->reserved_blocks[tier - 1];
	uint64_t eaten = from_reservation(call->session, tier, blocks, reserved);

	if (eaten)
		kvd_intent_word(call, own, *own - eaten);
}

void kvd_books_apply(struct kvd_call *call)
{
	struct kvd_head *head = call->engine->head;
	uint64_t before[KVD_ABI_TIER_COUNT - 1];

	if (!head->intent.words)
		return;
	memcpy(before, call->session->reserved_blocks, sizeof(before));
	kvd_intent_apply(call->engine);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t own = call->session->reserved_blocks[i - 1];

		if (own != before[i - 1])
			kvd_add(&head->tiers[i].reserved_blocks, own - before[i - 1]);
	}
}

void kvd_books_charge(struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, const struct kvd_books *more,
		      bool frames)
{
	if (!more->pages)
		return;
	kvd_add(&session->pages[tier - 1], more->pages);
	kvd_add(&session->blocks[tier - 1], more->blocks);
	kvd_add(&engine->head->mapped_pages, more->pages);
	if (frames)
		kvd_add(&engine->head->tiers[tier].used_blocks, more->blocks);
}

uint32_t kvd_op_reserve(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_tier *tier = &engine->head->tiers[call->tier];
	uint64_t *own = &call->session->reserved_blocks[call->tier - 1];
	uint64_t others = tier->reserved_blocks - *own;
	uint64_t count = call->cmd.count;

	/* Giving back is always possible, also where the tier has been made smaller than its promises. */
	if (count > *own && (count > KVD_BLOCKS_MAX || tier->used_blocks + others + count > tier->capacity_blocks))
		return KVD_ABI_STATUS_NO_SPACE;
	kvd_intent_open(call);
	kvd_intent_word(call, own, count);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_books_apply(call);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_resize(struct kvd_engine *engine, struct kvd_call *call)
{
	if (call->cmd.count > KVD_BLOCKS_MAX)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	kvd_intent_open(call);
	kvd_intent_word(call, &engine->head->tiers[call->tier].capacity_blocks, call->cmd.count);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_intent_apply(engine);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_query_tier(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_tier *tier = &engine->head->tiers[call->tier];
	struct kvd_abi_tier_info info = {
		.capacity_blocks = kvd_get(&tier->capacity_blocks),
		.used_blocks = kvd_get(&tier->used_blocks),
		.reserved_blocks = kvd_get(&tier->reserved_blocks),
		.used_frames = kvd_get(&tier->used_frames),
		.total_frames = engine->layout.tiers[call->tier].total_frames,
	};

	return kvd_call_answer(call, &info, sizeof(info));
}
