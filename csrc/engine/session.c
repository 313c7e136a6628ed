/* Session contexts: found by handle or by key. */

#include "engine/prefix.h"

#define GENERATION_SHIFT 32u
#define STATE_SHIFT 32u
#define HASH_MULTIPLIER 0x9e3779b97f4a7c15ull /* 2^64 over the golden ratio: spreads neighbouring inode numbers */
#define HASH_SHIFT 32u

static_assert(offsetof(struct kvd_session, state) == offsetof(struct kvd_session, generation) + 4 &&
		      offsetof(struct kvd_session, generation) % 8 == 0,
	      "generation and state are one word");
static_assert(offsetof(struct kvd_head, age) == offsetof(struct kvd_head, generation) + 4 &&
		      offsetof(struct kvd_head, generation) % 8 == 0,
	      "generation and age are one word");

static uint64_t index_of(const struct kvd_engine *engine, const struct kvd_session *session)
{
	return (uint64_t)(session - kvd_session_at(engine, 0));
}

uint64_t kvd_session_handle(const struct kvd_engine *engine, const struct kvd_session *session)
{
	return (uint64_t)kvd_get32(&session->generation) << GENERATION_SHIFT | index_of(engine, session);
}

struct kvd_session *kvd_session_find(const struct kvd_engine *engine, uint64_t handle)
{
	uint64_t index = (uint32_t)handle;
	uint32_t generation = (uint32_t)(handle >> GENERATION_SHIFT);
	struct kvd_session *session;

	if (!generation || index >= engine->layout.sessions_max || index >= kvd_get(&engine->head->sessions_high))
		return NULL;
	session = kvd_session_at(engine, index);
	return kvd_get32(&session->generation) == generation ? session : NULL;
}

uint32_t *kvd_session_bucket(const struct kvd_engine *engine, uint64_t key)
{
	uint64_t hash = (key * HASH_MULTIPLIER) >> HASH_SHIFT;

	return (uint32_t *)(void *)(engine->base + engine->layout.hash_at) + (hash & engine->layout.hash_mask);
}

/* The context with that number (index + 1), or NULL: there is none. */
static struct kvd_session *numbered(const struct kvd_engine *engine, uint32_t number)
{
	return number && number <= engine->layout.sessions_max ? kvd_session_at(engine, number - 1) : NULL;
}

/* At most as many steps as there are contexts: a damaged chain may be a circle. */
struct kvd_session *kvd_session_of_key(const struct kvd_engine *engine, uint64_t key)
{
	struct kvd_session *session = numbered(engine, kvd_get32(kvd_session_bucket(engine, key)));

	for (uint64_t i = 0; session && i < engine->layout.sessions_max; i++) {
		if (session->generation && session->key == key)
			return session;
		session = numbered(engine, kvd_get32(&session->next));
	}
	return NULL;
}

void kvd_session_link(struct kvd_engine *engine, struct kvd_session *session)
{
	uint32_t *bucket = kvd_session_bucket(engine, session->key);

	kvd_put32(&session->next, *bucket);
	kvd_put32(bucket, (uint32_t)index_of(engine, session) + 1);
}

static void unlink_session(struct kvd_engine *engine, const struct kvd_session *session)
{
	uint32_t *at = kvd_session_bucket(engine, session->key);

	for (uint64_t i = 0; i < engine->layout.sessions_max; i++) {
		struct kvd_session *here = numbered(engine, kvd_get32(at));

		if (!here)
			return;
		if (here == session) {
			kvd_put32(at, session->next);
			return;
		}
		at = &here->next;
	}
}

/* A free context, or NULL when all are taken. It stays where it is until it is used. */
static struct kvd_session *free_context(struct kvd_engine *engine)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session = numbered(engine, kvd_get32(&head->session_free));
	uint64_t high = kvd_get(&head->sessions_high);

	if (session)
		return session->generation ? NULL : session;
	return high < engine->layout.sessions_max ? kvd_session_at(engine, high) : NULL;
}

uint32_t kvd_op_session_create(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session = kvd_session_of_key(engine, call->cmd.key);
	uint32_t generation = head->generation + 1 ? head->generation + 1 : 1;
	uint64_t word = (uint64_t)KVD_ABI_STATE_NEW << STATE_SHIFT | generation;

	if (session) {
		call->cpl->result0 = kvd_session_handle(engine, session);
		return KVD_ABI_STATUS_EXISTS;
	}
	session = free_context(engine);
	if (!session)
		return KVD_ABI_STATUS_NO_TABLE;
	call->session = session;
	call->cpl->result0 = (uint64_t)generation << GENERATION_SHIFT | index_of(engine, session);
	kvd_intent_open(call);
	head->intent.session = call->cpl->result0;
	kvd_intent_word(call, (uint64_t *)(void *)&head->generation, (uint64_t)head->age << STATE_SHIFT | generation);
	if (index_of(engine, session) >= head->sessions_high)
		kvd_intent_word(call, &head->sessions_high, index_of(engine, session) + 1);
	kvd_intent_word(call, &session->key, call->cmd.key);
	kvd_intent_word(call, (uint64_t *)(void *)&session->generation, word);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	if (head->session_free)
		kvd_put32(&head->session_free, session->next);
	kvd_intent_apply(engine);
	kvd_session_link(engine, session);
	kvd_add(&head->sessions_live, 1);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_session_destroy(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_session *session = call->session;
	uint64_t pages = 0;

	if (session->leases)
		return KVD_ABI_STATUS_LEASED;
	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++)
		pages += kvd_table_count(engine, &session->slots[i], 0, KVD_PAGES_MAX);
	call->cpl->result0 = pages;
	kvd_intent_open(call);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_redo_session_destroy(engine, call);
	return KVD_ABI_STATUS_OK;
}

/* The generation goes last: until then the session lives, and recovery comes here again. */
void kvd_redo_session_destroy(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_head *head = engine->head;
	struct kvd_session *session = call->session;
	struct kvd_release release = {.engine = engine};

	if (!session)
		return;
	kvd_prefix_drop(engine, session);
	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++) {
		kvd_table_clear(engine, &session->slots[i], 0, KVD_PAGES_MAX, kvd_release_visit, &release);
		if (session->slots[i])
			kvd_put(&session->slots[i], 0);
		if (session->window_start[i])
			kvd_put(&session->window_start[i], 0);
	}
	kvd_release_settle(&release, session);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t reserved = session->reserved_blocks[i - 1];

		if (!reserved)
			continue;
		kvd_put(&session->reserved_blocks[i - 1], 0);
		kvd_add(&head->tiers[i].reserved_blocks, 0 - reserved);
	}
	unlink_session(engine, session);
	kvd_order();
	kvd_put((uint64_t *)(void *)&session->generation, 0);
	kvd_put(&session->key, 0);
	kvd_put32(&session->next, head->session_free);
	kvd_put32(&head->session_free, (uint32_t)index_of(engine, session) + 1);
	kvd_add(&head->sessions_live, 0 - 1ull);
}

uint32_t kvd_op_lease(struct kvd_engine *engine, struct kvd_call *call)
{
	int64_t delta = (int64_t)call->cmd.count;
	int64_t leases;

	if (__builtin_add_overflow((int64_t)call->session->leases, delta, &leases) || leases < 0)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	call->cpl->result0 = (uint64_t)leases;
	kvd_intent_open(call);
	kvd_intent_word(call, &call->session->leases, (uint64_t)leases);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_intent_apply(engine);
	return KVD_ABI_STATUS_OK;
}

uint32_t kvd_op_query_session(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_session *session = call->session;
	struct kvd_abi_session_info info = {
		.key = kvd_get(&session->key),
		.leases = kvd_get(&session->leases),
		.state = kvd_get32(&session->state),
	};

	(void)engine;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		info.mapped_pages[i] = kvd_get(&session->pages[i - 1]);
		info.mapped_blocks[i] = kvd_get(&session->blocks[i - 1]);
		info.reserved_blocks[i] = kvd_get(&session->reserved_blocks[i - 1]);
	}
	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++)
		info.window_start[i] = kvd_get(&session->window_start[i]);
	return kvd_call_answer(call, &info, sizeof(info));
}
