/* Tables that somebody else has made: nothing in them is followed before it is known to lead into them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

/* Is [at, at + count * each) behind the head and in `end` bytes, word-aligned? */
static bool inside(uint64_t at, uint64_t count, uint64_t each, uint64_t end)
{
	return at >= sizeof(struct kvd_head) && !(at % sizeof(uint64_t)) && at <= end && count <= (end - at) / each;
}

/*
 * The places follow from the sizes, so the layout that the sizes ask for is made anew and compared; a head whose sizes
 * are sound and whose places are others is damaged.
 */
static bool same_places(const struct kvd_head *head)
{
	struct kvd_engine_config config = {
		.page_bytes = head->page_bytes,
		.sessions_max = head->sessions_max,
		.arena_bytes = head->arena_bytes,
	};
	struct kvd_head made;

	for (uint32_t i = KVD_ABI_TIER_NONE; i < KVD_ABI_TIER_COUNT; i++)
		config.total_frames[i] = head->tiers[i].total_frames;
	if (kvd_arena_layout(&made, &config))
		return false;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		const struct kvd_tier *tier = &head->tiers[i];

		if (tier->levels != made.tiers[i].levels ||
		    memcmp(tier->level_at, made.tiers[i].level_at, sizeof(tier->level_at)))
			return false;
	}
	return head->sessions_at == made.sessions_at && head->hash_at == made.hash_at &&
	       head->hash_mask == made.hash_mask && head->journal_at == made.journal_at &&
	       head->journal_entries == made.journal_entries && head->heap_at == made.heap_at &&
	       head->heap_end == made.heap_end &&
	       inside(made.journal_at, made.journal_entries, sizeof(struct kvd_abi_journal_entry), made.heap_at);
}

int kvd_arena_validate(const struct kvd_head *head, uint64_t bytes)
{
	uint32_t page_bytes = head->page_bytes;

	if (head->magic != KVD_ARENA_MAGIC)
		return -EINVAL;
	if (head->version != KVD_ARENA_VERSION)
		return -EPROTO;
	if (page_bytes < KVD_PAGE_BYTES_MIN || page_bytes > KVD_PAGE_BYTES_MAX || page_bytes & (page_bytes - 1) ||
	    !head->sessions_max || head->sessions_max > KVD_SESSIONS_MAX || head->arena_bytes > bytes ||
	    head->arena_bytes > KVD_ARENA_BYTES_MAX || head->tiers[KVD_ABI_TIER_NONE].total_frames)
		return -EINVAL;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		const struct kvd_tier *tier = &head->tiers[i];

		if (tier->total_frames > KVD_FRAMES_MAX || tier->capacity_blocks > KVD_BLOCKS_MAX)
			return -EINVAL;
	}
	return same_places(head) ? 0 : -EINVAL;
}

/* Is something to be repaired before commands can be executed? */
static bool left_in_disorder(const struct kvd_engine *engine)
{
	return kvd_get(&engine->head->in_use) || kvd_intent_live(engine);
}

static void take(struct kvd_engine *engine)
{
	engine->dirty = left_in_disorder(engine);
	if (!engine->read_only && !engine->dirty)
		kvd_put(&engine->head->in_use, 1);
}

int kvd_engine_dirty(const kvd_engine *engine)
{
	return engine->dirty;
}

void kvd_engine_leave(kvd_engine *engine)
{
	if (!engine->read_only && !engine->dirty)
		kvd_put(&engine->head->in_use, 0);
	engine->dirty = true;
}

int kvd_engine_return(kvd_engine *engine)
{
	take(engine);
	return engine->dirty ? -EBUSY : 0;
}

static bool bad_config(const struct kvd_engine_config *config)
{
	uint32_t page_bytes = config->page_bytes;
	uint64_t tiers = 0;

	if (page_bytes < KVD_PAGE_BYTES_MIN || page_bytes > KVD_PAGE_BYTES_MAX || page_bytes & (page_bytes - 1))
		return true;
	if (!config->sessions_max || config->sessions_max > KVD_SESSIONS_MAX || config->arena_bytes > KVD_ARENA_BYTES_MAX)
		return true;
	for (uint32_t i = KVD_ABI_TIER_NONE; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t blocks = config->capacity_blocks[i];
		uint64_t frames = config->total_frames[i] ? config->total_frames[i] : blocks;

		if (blocks > KVD_BLOCKS_MAX || frames > KVD_FRAMES_MAX || (!blocks && frames))
			return true;
		tiers += blocks != 0;
	}
	return config->capacity_blocks[KVD_ABI_TIER_NONE] || !tiers;
}

static bool bad_flags(const struct kvd_engine_config *config)
{
	uint32_t flags = config->flags;

	if (flags & ~(uint32_t)(KVD_ENGINE_ATTACH | KVD_ENGINE_READ_ONLY) || config->reserved2)
		return true;
	return flags & KVD_ENGINE_ATTACH ? config->arena_fd < 0 : (flags & KVD_ENGINE_READ_ONLY) != 0;
}

int kvd_engine_init(const struct kvd_engine_config *config, kvd_engine **out)
{
	struct kvd_engine *engine;
	int err;

	if (bad_flags(config) || (!(config->flags & KVD_ENGINE_ATTACH) && bad_config(config)))
		return -EINVAL;
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return -ENOMEM;
	err = kvd_arena_init(engine, config);
	if (err) {
		free(engine);
		return err;
	}
	if (config->flags & KVD_ENGINE_ATTACH)
		take(engine);
	*out = engine;
	return 0;
}

int kvd_engine_attach(void *base, uint64_t bytes, kvd_engine_reach reach, void *context, kvd_engine **out)
{
	struct kvd_engine *engine;
	struct kvd_head head;
	int err;

	if (!base || (uintptr_t)base % KVD_UNIT_BYTES || bytes < sizeof(head))
		return -EINVAL;
	/* A copy: what was checked cannot change. */
	memcpy(&head, base, sizeof(head));
	err = kvd_arena_validate(&head, bytes);
	if (err)
		return err;
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return -ENOMEM;
	engine->base = base;
	engine->head = base;
	engine->fd = -1;
	engine->reach = reach;
	engine->reach_context = context;
	kvd_arena_adopt(engine, &head);
	take(engine);
	*out = engine;
	return 0;
}

void kvd_engine_fini(kvd_engine *engine)
{
	if (!engine)
		return;
	kvd_engine_leave(engine);
	kvd_arena_fini(engine);
	free(engine->runs);
	free(engine);
}

int kvd_engine_reset(kvd_engine *engine)
{
	int err;

	if (engine->read_only)
		return -EROFS;
	err = kvd_arena_reset(engine);
	if (!err)
		engine->dirty = false;
	return err;
}
