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
#define FRAME_NONE (~0ull)

static uint64_t *level_words(const struct kvd_engine *engine, const struct kvd_tier *tier, uint64_t level)
{
	return (uint64_t *)(void *)(engine->base + tier->level_at[level]);
}

uint64_t kvd_frames_level_words(const struct kvd_tier *tier, uint64_t level)
{
	return ((tier->total_frames - 1) >> (WORD_SHIFT * (level + 1))) + 1;
}

/* `count` bits from `bit` of a word. */
static uint64_t mask_of(uint64_t bit, uint64_t count)
{
	return (WORD_FULL >> (WORD_BITS - count)) << bit;
}

/* The places past the last frame count as full on every level. */
void kvd_frames_init(struct kvd_engine *engine, struct kvd_tier *tier)
{
	uint64_t bits = tier->total_frames;

	for (uint64_t level = 0; level < tier->levels; level++) {
		uint64_t tail = bits % WORD_BITS;

		if (tail)
			level_words(engine, tier, level)[bits / WORD_BITS] = WORD_FULL << tail;
		bits = kvd_frames_level_words(tier, level);
	}
}

static void mark(struct kvd_engine *engine, const struct kvd_tier *tier, uint64_t word, uint64_t mask)
{
	for (uint64_t level = 0; level < tier->levels; level++) {
		uint64_t *at = level_words(engine, tier, level) + word;

		assert(!(*at & mask));
		*at |= mask;
		if (*at != WORD_FULL)
			return;
		mask = 1ull << (word % WORD_BITS);
		word /= WORD_BITS;
	}
}

static void unmark(struct kvd_engine *engine, const struct kvd_tier *tier, uint64_t word, uint64_t mask)
{
	for (uint64_t level = 0; level < tier->levels; level++) {
		uint64_t *at = level_words(engine, tier, level) + word;
		uint64_t was = *at;

		assert((was & mask) == mask);
		*at = was & ~mask;
		if (was != WORD_FULL)
			return;
		mask = 1ull << (word % WORD_BITS);
		word /= WORD_BITS;
	}
}

/* The first free frame at or after `at`, or FRAME_NONE: up to the level that knows of one, down again to it. */
static uint64_t find_free(const struct kvd_engine *engine, const struct kvd_tier *tier, uint64_t at)
{
	for (uint64_t level = 0; level < tier->levels; level++) {
		uint64_t word = at / WORD_BITS;
		uint64_t open;

		if (word >= kvd_frames_level_words(tier, level))
			return FRAME_NONE;
		open = ~level_words(engine, tier, level)[word] & (WORD_FULL << (at % WORD_BITS));
		if (open) {
			at = word * WORD_BITS + (uint64_t)__builtin_ctzll(open);
			while (level-- > 0)
				at = at * WORD_BITS + (uint64_t)__builtin_ctzll(~level_words(engine, tier, level)[at]);
			return at;
		}
		at = word + 1;
	}
	return FRAME_NONE;
}

uint64_t kvd_frames_take(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t want, uint64_t *first)
{
	uint64_t at = find_free(engine, tier, tier->next_frame);
	uint64_t taken = 0;

	assert(want > 0 && tier->used_frames < tier->total_frames);
	if (at == FRAME_NONE)
		at = find_free(engine, tier, 0);
	assert(at != FRAME_NONE);
	*first = at;
	while (taken < want && at < tier->total_frames) {
		uint64_t bit = at % WORD_BITS;
		uint64_t busy = level_words(engine, tier, 0)[at / WORD_BITS] >> bit;
		uint64_t span = busy ? (uint64_t)__builtin_ctzll(busy) : WORD_BITS - bit;

		if (!span)
			break;
		if (span > want - taken)
			span = want - taken;
		mark(engine, tier, at / WORD_BITS, mask_of(bit, span));
		taken += span;
		at += span;
	}
	tier->used_frames += taken;
	tier->next_frame = at < tier->total_frames ? at : 0;
	if (at > tier->high_frame)
		tier->high_frame = at;
	return taken;
}

void kvd_frames_give(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t first, uint64_t count)
{
	tier->used_frames -= count;
	while (count > 0) {
		uint64_t bit = first % WORD_BITS;
		uint64_t span = WORD_BITS - bit < count ? WORD_BITS - bit : count;

		unmark(engine, tier, first / WORD_BITS, mask_of(bit, span));
		first += span;
		count -= span;
	}
}

uint64_t kvd_grant_next(struct kvd_engine *engine, struct kvd_grant *grant)
{
	if (!grant->left) {
		grant->left = kvd_frames_take(engine, grant->tier, grant->wanted, &grant->first);
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
