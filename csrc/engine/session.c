/* Session contexts: found by handle or by key; and the books that say what each holds of a tier. */
#include <string.h>

#include "engine/internal.h"

#define GENERATION_SHIFT 32u
#define HASH_MULTIPLIER 0x9e3779b97f4a7c15ull /* 2^64 over the golden ratio: spreads neighbouring inode numbers */
#define HASH_SHIFT 32u

static uint64_t index_of(const struct kvd_engine *engine, const struct kvd_session *session)
{
	return (uint64_t)(session - kvd_session_at(engine, 0));
}

uint64_t kvd_session_handle(const struct kvd_engine *engine, const struct kvd_session *session)
{
	return (uint64_t)session->generation << GENERATION_SHIFT | index_of(engine, session);
}

struct kvd_session *kvd_session_find(const struct kvd_engine *engine, uint64_t handle)
{
	uint64_t index = (uint32_t)handle;
	uint32_t generation = (uint32_t)(handle >> GENERATION_SHIFT);
	struct kvd_session *session;

	if (!generation || index >= engine->head->sessions_high)
		return NULL;
	session = kvd_session_at(engine, index);
	return session->generation == generation ? session : NULL;
}

uint32_t *kvd_session_bucket(const struct kvd_engine *engine, uint64_t key)
{
	uint64_t hash = (key * HASH_MULTIPLIER) >> HASH_SHIFT;

	return (uint32_t *)(void *)(engine->base + engine->head->hash_at) + (hash & engine->head->hash_mask);
}

static struct kvd_session *find_key(const struct kvd_engine *engine, uint64_t key)
{
	uint32_t at = *kvd_session_bucket(engine, key);

	while (at) {
		struct kvd_session *session = kvd_session_at(engine, at - 1);

		if (session->key == key)
			return session;
		at = session->next;
	}
	return NULL;
}

/* A free context, or NULL when all are taken. */
static struct kvd_session *take_context(struct kvd_engine *engine)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session;

	if (head->session_free) {
		session = kvd_session_at(engine, head->session_free - 1);
		head->session_free = session->next;
		return session;
	}
	if (head->sessions_high == head->sessions_max)
		return NULL;
	return kvd_session_at(engine, head->sessions_high++);
}

uint32_t kvd_op_session_create(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session = find_key(engine, call->cmd.key);
	uint32_t *bucket = kvd_session_bucket(engine, call->cmd.key);

	if (session) {
		call->cpl->result0 = kvd_session_handle(engine, session);
		return KVD_ABI_STATUS_EXISTS;
	}
	session = take_context(engine);
	if (!session)
		return KVD_ABI_STATUS_NO_TABLE;
	if (!++head->generation)
		head->generation = 1;
	*session = (struct kvd_session){.key = call->cmd.key, .generation = head->generation, .next = *bucket};
	*bucket = (uint32_t)index_of(engine, session) + 1;
	head->sessions_live++;
	call->cpl->result0 = kvd_session_handle(engine, session);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_session_destroy(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session = call->session;
	uint32_t number = (uint32_t)index_of(engine, session) + 1;
	uint32_t *at = kvd_session_bucket(engine, session->key);
	struct kvd_release release = {.engine = engine};

	if (session->leases)
		return KVD_ABI_STATUS_LEASED;
	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++)
		kvd_table_clear(engine, &session->slots[i], 0, KVD_PAGES_MAX, kvd_release_visit, &release);
	call->cpl->result0 = kvd_release_settle(&release, session);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++)
		head->tiers[i].reserved_blocks -= kvd_books_of(session, i)->reserved_blocks;
	while (*at != number)
		at = &kvd_session_at(engine, *at - 1)->next;
	*at = session->next;
	*session = (struct kvd_session){.next = head->session_free};
	head->session_free = number;
	head->sessions_live--;
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_lease(struct kvd_engine *engine, struct kvd_call *call)
{
	int64_t delta = (int64_t)call->cmd.count;
	int64_t leases;

	(void)engine;
	if (__builtin_add_overflow((int64_t)call->session->leases, delta, &leases) || leases < 0)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	call->session->leases = (uint64_t)leases;
	call->cpl->result0 = (uint64_t)leases;
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_reserve(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_tier *tier = &engine->head->tiers[call->tier];
	struct kvd_books *books = kvd_books_of(call->session, call->tier);
	uint64_t others = tier->reserved_blocks - books->reserved_blocks;
	uint64_t count = call->cmd.count;

	/* Giving back is always possible, also where the tier has been made smaller than its promises. */
	if (count > books->reserved_blocks &&
	    (count > KVD_BLOCKS_MAX || tier->used_blocks + others + count > tier->capacity_blocks))
		return KVD_ABI_STATUS_NO_SPACE;
	books->reserved_blocks = count;
	tier->reserved_blocks = others + count;
	return KVD_ABI_STATUS_OK;
}

static uint64_t from_reservation(struct kvd_session *session, uint32_t tier, uint64_t blocks, bool reserved)
{
	uint64_t own = reserved ? kvd_books_of(session, tier)->reserved_blocks : 0;

	return own < blocks ? own : blocks;
}

bool kvd_books_admit(const struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, uint64_t frames,
		     uint64_t blocks, bool reserved)
{
	const struct kvd_tier *of = &engine->head->tiers[tier];
	uint64_t pool;

	if (blocks > KVD_BLOCKS_MAX || frames > of->total_frames - of->used_frames)
		return false;
	/* What a reservation covers was admitted when it was made; RESIZE does not take a promise back. */
	pool = blocks - from_reservation(session, tier, blocks, reserved);
	return !pool || of->used_blocks + of->reserved_blocks + pool <= of->capacity_blocks;
}

void kvd_books_charge(struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, uint64_t pages,
		      uint64_t blocks, bool reserved)
{
	struct kvd_tier *of = &engine->head->tiers[tier];
	struct kvd_books *books = kvd_books_of(session, tier);
	uint64_t eaten = from_reservation(session, tier, blocks, reserved);

	books->pages += pages;
	books->blocks += blocks;
	books->reserved_blocks -= eaten;
	of->used_blocks += blocks;
	of->reserved_blocks -= eaten;
	engine->head->mapped_pages += pages;
}

uint32_t kvd_op_query_session(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_abi_session_info info = {
		.key = call->session->key,
		.leases = call->session->leases,
		.state = call->session->state,
	};

	(void)engine;
	if (call->cmd.buffer_bytes < sizeof(info)) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		const struct kvd_books *books = kvd_books_of(call->session, i);

		info.mapped_pages[i] = books->pages;
		info.mapped_blocks[i] = books->blocks;
		info.reserved_blocks[i] = books->reserved_blocks;
	}
	memcpy(info.window_start, call->session->window_start, sizeof(info.window_start));
	memcpy((void *)call->cmd.buffer, &info, sizeof(info));
	return KVD_ABI_STATUS_OK;
}
