/*
 * Intent and journal: a command happens wholly or not at all, and the tables say which.
 *
 * One store ends a command: that of the head's sequence. Before it the journal has the completion; with it the intent,
 * which carries the sequence that the command will have, is dead. See internal.h for the order of the rest.
 */
#include <errno.h>

#include "engine/internal.h"

#define INTENT_WORDS (sizeof(((struct kvd_intent *)0)->word_at) / sizeof(uint64_t))
#define STEP_WORDS 2u

static uint64_t offset_of(const struct kvd_engine *engine, const uint64_t *at)
{
	return (uint64_t)((const unsigned char *)at - engine->base);
}

struct kvd_intent *kvd_intent_live(const struct kvd_engine *engine)
{
	struct kvd_intent *intent = &engine->head->intent;

	return intent->stage != KVD_ABI_STAGE_NONE && intent->sequence == engine->head->sequence + 1 ? intent : NULL;
}

bool kvd_intent_allowed(const struct kvd_engine *engine, uint64_t at)
{
	uint64_t sessions = engine->layout.sessions_at;

	if (at % sizeof(uint64_t))
		return false;
	if (at >= sessions && at < sessions + engine->layout.sessions_max * sizeof(struct kvd_session))
		return true;
	if (at >= offsetof(struct kvd_head, generation) && at < offsetof(struct kvd_head, intent))
		return true;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		if (at == offsetof(struct kvd_head, tiers[i].capacity_blocks))
			return true;
	}
	return false;
}

void kvd_intent_open(struct kvd_call *call)
{
	struct kvd_intent *intent = &call->engine->head->intent;

	/* The old intent is dead: its sequence is not above the head's. This one lives from its first stage on. */
	intent->stage = KVD_ABI_STAGE_NONE;
	kvd_order();
	intent->words = 0;
	call->words = 0;
	intent->steps = 0;
	intent->scratch = 0;
	intent->session = call->session ? kvd_session_handle(call->engine, call->session) : 0;
	intent->cmd = call->cmd;
	kvd_order();
	kvd_put(&intent->sequence, call->engine->head->sequence + 1);
	kvd_change_begin(&call->engine->head->change);
	if (call->session)
		kvd_change_begin(&call->session->version);
	call->changing = true;
}

void kvd_intent_word(struct kvd_call *call, uint64_t *at, uint64_t value)
{
	struct kvd_intent *intent = &call->engine->head->intent;

	assert(call->words < INTENT_WORDS);
	kvd_put(&intent->word_at[call->words], offset_of(call->engine, at));
	kvd_put(&intent->word[call->words], value);
	kvd_put32(&intent->words, ++call->words);
}

void kvd_intent_stage(struct kvd_call *call, uint32_t stage)
{
	struct kvd_intent *intent = &call->engine->head->intent;

	kvd_cpl_copy(&intent->cpl, call->cpl);
	kvd_order();
	kvd_put32(&intent->stage, stage);
	kvd_order();
}

void kvd_intent_apply(struct kvd_engine *engine)
{
	const struct kvd_intent *intent = &engine->head->intent;
	uint32_t words = kvd_get32(&intent->words);

	/* Whoever else can write to the tables may have changed the offsets. */
	for (uint32_t i = 0; i < words && i < INTENT_WORDS; i++) {
		uint64_t at = kvd_get(&intent->word_at[i]);

		if (kvd_intent_allowed(engine, at))
			kvd_put((uint64_t *)(void *)(engine->base + at), kvd_get(&intent->word[i]));
	}
}

void kvd_intent_step(struct kvd_engine *engine, uint64_t *at0, uint64_t value0, uint64_t *at1, uint64_t value1)
{
	struct kvd_intent *intent = &engine->head->intent;

	kvd_put(&intent->steps, 0);
	kvd_order();
	kvd_put(&intent->step_at[0], offset_of(engine, at0));
	kvd_put(&intent->step[0], value0);
	kvd_put(&intent->step_at[1], offset_of(engine, at1));
	kvd_put(&intent->step[1], value1);
	kvd_order();
	kvd_put(&intent->steps, STEP_WORDS);
	kvd_order();
}

static struct kvd_abi_journal_entry *journal_entry(const struct kvd_engine *engine, uint64_t sequence)
{
	struct kvd_abi_journal_entry *journal = (void *)(engine->base + engine->layout.journal_at);

	return &journal[sequence & (engine->layout.journal_entries - 1)];
}

void kvd_intent_close(struct kvd_call *call)
{
	struct kvd_engine *engine = call->engine;
	struct kvd_head *head = engine->head;
	uint64_t sequence = head->sequence + 1;
	struct kvd_abi_journal_entry *entry = journal_entry(engine, sequence);

	head->refused += call->cpl->status != KVD_ABI_STATUS_OK;
	head->refused_transitions += call->cpl->status == KVD_ABI_STATUS_BAD_TRANSITION;
	entry->sequence = 0;
	kvd_order();
	kvd_cpl_copy(&entry->cpl, call->cpl);
	kvd_order();
	kvd_put(&entry->sequence, sequence);
	kvd_order();
	kvd_put(&head->sequence, sequence);
	kvd_order();
	if (!call->changing)
		return;
	if (call->session)
		kvd_change_end(&call->session->version);
	kvd_change_end(&head->change);
	call->changing = false;
}

uint64_t kvd_engine_sequence(const kvd_engine *engine)
{
	return kvd_get(&engine->head->sequence);
}

int kvd_engine_completion(const kvd_engine *engine, uint64_t sequence, struct kvd_abi_cpl *out)
{
	const struct kvd_abi_journal_entry *entry = journal_entry(engine, sequence);

	if (!sequence || sequence > kvd_engine_sequence(engine) || kvd_get(&entry->sequence) != sequence)
		return -ENOENT;
	*out = entry->cpl;
	return 0;
}
