/*
 * The frames of a tier: a bitmap whose words are summed up by one bit each in the level above, up to one word.
 *
 * A set bit means used or full, so memory that was never touched reads as free. Frames are given out next-fit: what is
 * mapped together gets neighbouring frames.
 */
#include "engine/internal.h"

#define WORD_BITS 64u
#define WORD_SHIFT 6u
#define WORD_FULL (~0ull)

static uint32_t tier_of(const struct kvd_engine *engine, const struct kvd_tier *tier)
{
	return (uint32_t)(tier - engine->head->tiers);
}

/* The words of a level, by the layout that was found sound. */
static uint64_t *level_words(const struct kvd_engine *engine, uint32_t tier, uint64_t level)
{
	return (uint64_t *)(void *)(engine->base + engine->layout.tiers[tier].level_at[level]);
}

uint64_t kvd_frames_level_words(uint64_t total_frames, uint64_t level)
{
	return ((total_frames - 1) >> (WORD_SHIFT * (level + 1))) + 1;
}

/* `count` bits from `bit` of a word. */
static uint64_t mask_of(uint64_t bit, uint64_t count)
{
	return (WORD_FULL >> (WORD_BITS - count)) << bit;
}

/* The places past the last frame count as full on every level. */
void kvd_frames_init(struct kvd_engine *engine, uint32_t tier)
{
	const struct kvd_tier *layout = &engine->layout.tiers[tier];
	uint64_t bits = layout->total_frames;

	for (uint64_t level = 0; level < layout->levels; level++) {
		uint64_t tail = bits % WORD_BITS;

		if (tail)
			kvd_put(&level_words(engine, tier, level)[bits / WORD_BITS], WORD_FULL << tail);
		bits = kvd_frames_level_words(layout->total_frames, level);
	}
}

static void mark(struct kvd_engine *engine, uint32_t tier, uint64_t word, uint64_t mask)
{
	for (uint64_t level = 0; level < engine->layout.tiers[tier].levels; level++) {
		uint64_t *at = level_words(engine, tier, level) + word;

		kvd_put(at, *at | mask);
		if (*at != WORD_FULL)
			return;
		mask = 1ull << (word % WORD_BITS);
		word /= WORD_BITS;
	}
}

static void unmark(struct kvd_engine *engine, uint32_t tier, uint64_t word, uint64_t mask)
{
	for (uint64_t level = 0; level < engine->layout.tiers[tier].levels; level++) {
		uint64_t *at = level_words(engine, tier, level) + word;
		uint64_t was = *at;

		kvd_put(at, was & ~mask);
		if (was != WORD_FULL)
			return;
		mask = 1ull << (word % WORD_BITS);
		word /= WORD_BITS;
	}
}

/* Down from bit `at` of the level above `level` to a free frame, or KVD_FRAME_NONE where a summary is wrong. */
static uint64_t descend(const struct kvd_engine *engine, uint32_t tier, uint64_t level, uint64_t at)
{
	while (level-- > 0) {
		uint64_t open;

		if (at >= kvd_frames_level_words(engine->layout.tiers[tier].total_frames, level))
			return KVD_FRAME_NONE;
		open = ~level_words(engine, tier, level)[at];
		if (!open)
			return KVD_FRAME_NONE;
		at = at * WORD_BITS + (uint64_t)__builtin_ctzll(open);
	}
	return at < engine->layout.tiers[tier].total_frames ? at : KVD_FRAME_NONE;
}

/* The first free frame at or after `at`, or KVD_FRAME_NONE: up to the level that knows of one, down again to it. */
static uint64_t find_free(const struct kvd_engine *engine, uint32_t tier, uint64_t at)
{
	const struct kvd_tier *layout = &engine->layout.tiers[tier];

	for (uint64_t level = 0; level < layout->levels; level++) {
		uint64_t word = at / WORD_BITS;
		uint64_t open;

		if (word >= kvd_frames_level_words(layout->total_frames, level))
			return KVD_FRAME_NONE;
		open = ~level_words(engine, tier, level)[word] & (WORD_FULL << (at % WORD_BITS));
		if (open)
			return descend(engine, tier, level, word * WORD_BITS + (uint64_t)__builtin_ctzll(open));
		at = word + 1;
	}
	return KVD_FRAME_NONE;
}

uint64_t kvd_frames_take(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t want, uint64_t *first)
{
	uint32_t number = tier_of(engine, tier);
	uint64_t total = engine->layout.tiers[number].total_frames;
	uint64_t at = find_free(engine, number, tier->next_frame);
	uint64_t taken = 0;

	if (at == KVD_FRAME_NONE)
		at = find_free(engine, number, 0);
	if (at == KVD_FRAME_NONE)
		return 0;
	*first = at;
	while (taken < want && at < total) {
		uint64_t bit = at % WORD_BITS;
		uint64_t busy = level_words(engine, number, 0)[at / WORD_BITS] >> bit;
		uint64_t span = busy ? (uint64_t)__builtin_ctzll(busy) : WORD_BITS - bit;

		if (!span)
			break;
		if (span > want - taken)
			span = want - taken;
		mark(engine, number, at / WORD_BITS, mask_of(bit, span));
		taken += span;
		at += span;
	}
	kvd_add(&tier->used_frames, taken);
	kvd_put(&tier->next_frame, at < total ? at : 0);
	if (at > tier->high_frame)
		kvd_put(&tier->high_frame, at);
	return taken;
}

void kvd_frames_give(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t first, uint64_t count)
{
	uint32_t number = tier_of(engine, tier);

	kvd_add(&tier->used_frames, 0 - count);
	while (count > 0) {
		uint64_t bit = first % WORD_BITS;
		uint64_t span = WORD_BITS - bit < count ? WORD_BITS - bit : count;

		unmark(engine, number, first / WORD_BITS, mask_of(bit, span));
		first += span;
		count -= span;
	}
}

bool kvd_frames_claim(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t frame)
{
	uint32_t number = tier_of(engine, tier);
	uint64_t mask = 1ull << (frame % WORD_BITS);

	if (level_words(engine, number, 0)[frame / WORD_BITS] & mask)
		return false;
	mark(engine, number, frame / WORD_BITS, mask);
	kvd_add(&tier->used_frames, 1);
	if (frame >= tier->high_frame)
		kvd_put(&tier->high_frame, frame + 1);
	return true;
}

uint64_t kvd_grant_next(struct kvd_engine *engine, struct kvd_grant *grant)
{
	if (!grant->left) {
		if (!grant->wanted)
			return KVD_FRAME_NONE;
		grant->left = kvd_frames_take(engine, grant->tier, grant->wanted, &grant->first);
		if (!grant->left)
			return KVD_FRAME_NONE;
		grant->wanted -= grant->left;
	}
	grant->left--;
	return grant->first++;
}

void kvd_grant_end(struct kvd_engine *engine, struct kvd_grant *grant)
{
	kvd_frames_give(engine, grant->tier, grant->first, grant->left);
	grant->left = 0;
}
