/*
 * Recovery: tables that a process or card left at any instruction become tables on which its last command was executed
 * wholly, or not at all.
 *
 * First the words and the step that a committed intent names are set, then everything derived is made anew, and on tables
 * that are consistent again the command is brought to its end by the code that would have done it. The intent stays until
 * then, so whoever dies here can come again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/recover.h"

#define INTENT_WORDS (sizeof(((struct kvd_intent *)0)->word_at) / sizeof(uint64_t))
#define STEP_WORDS 2u

static bool entry_allowed(const struct kvd_engine *engine, uint64_t at)
{
	return !(at % sizeof(uint64_t)) && at >= engine->layout.heap_at && at < engine->layout.heap_end;
}

/* Can the intent be what this engine wrote? */
static bool intent_sound(const struct kvd_engine *engine, const struct kvd_intent *intent)
{
	const struct kvd_abi_cmd *cmd = &intent->cmd;
	const struct kvd_op *op = cmd->op < KVD_ABI_OP_COUNT ? &kvd_engine_ops[cmd->op] : NULL;

	if (!op || !op->execute || op->needs & KVD_READS || cmd->flags & ~op->flags || intent->stage > KVD_ABI_STAGE_COMMIT)
		return false;
	if (op->needs & KVD_NEED_SLOT && cmd->slot >= KVD_ENGINE_SLOTS_MAX)
		return false;
	if (op->needs & KVD_NEED_TIER &&
	    (cmd->tier >= KVD_ABI_TIER_COUNT || !engine->layout.tiers[cmd->tier].total_frames))
		return false;
	if (intent->words > INTENT_WORDS || (intent->steps && intent->steps != STEP_WORDS))
		return false;
	for (uint32_t i = 0; i < intent->words; i++) {
		if (!kvd_intent_allowed(engine, intent->word_at[i]))
			return false;
	}
	for (uint64_t i = 0; i < intent->steps; i++) {
		if (!entry_allowed(engine, intent->step_at[i]))
			return false;
	}
	return true;
}

static void apply(struct kvd_engine *engine, const struct kvd_intent *intent)
{
	kvd_intent_apply(engine);
	for (uint64_t i = 0; i < intent->steps; i++)
		kvd_put((uint64_t *)(void *)(engine->base + intent->step_at[i]), intent->step[i]);
}

/* What the rebuild is to do with what the command left half done. */
static void set_policy(struct kvd_rebuild *rebuild, const struct kvd_intent *intent)
{
	const struct kvd_abi_cmd *cmd = &intent->cmd;
	bool commit = intent->stage == KVD_ABI_STAGE_COMMIT;
	bool keep = cmd->flags & KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK;

	rebuild->changed = kvd_session_find(rebuild->engine, intent->session);
	rebuild->happened = commit;
	rebuild->scratch = commit && cmd->op == KVD_ABI_OP_UNSHARE;
	if (cmd->op == KVD_ABI_OP_MAP || cmd->op == KVD_ABI_OP_SHARE)
		rebuild->provisional[cmd->slot] = commit ? KVD_PROVISIONAL_VALIDATE : KVD_PROVISIONAL_DROP;
	if (cmd->op == KVD_ABI_OP_REMAP && keep && cmd->other_slot < KVD_ENGINE_SLOTS_MAX)
		rebuild->provisional[cmd->other_slot] = commit ? KVD_PROVISIONAL_KEEP : KVD_PROVISIONAL_DROP;
}

/* Bring a committed command to its end, on tables that are consistent. */
static void finish(struct kvd_engine *engine, const struct kvd_intent *intent)
{
	struct kvd_abi_cpl cpl = intent->cpl;
	struct kvd_call call = {.engine = engine, .cmd = intent->cmd, .cpl = &cpl};
	const struct kvd_op *op = &kvd_engine_ops[call.cmd.op];

	if (op->needs & KVD_NEED_TIER)
		call.tier = call.cmd.tier;
	call.session = kvd_session_find(engine, intent->session);
	if (op->redo)
		op->redo(engine, &call);
	kvd_intent_close(&call);
}

/* Is the head still the one that was found sound? */
static bool head_sound(const struct kvd_engine *engine)
{
	struct kvd_head head = *engine->head;

	return !kvd_arena_validate(&head, engine->layout.arena_bytes) && head.sessions_at == engine->layout.sessions_at &&
	       head.heap_at == engine->layout.heap_at && head.page_bytes == engine->layout.page_bytes;
}

int kvd_engine_recover(kvd_engine *engine, struct kvd_engine_recovery *result)
{
	struct kvd_rebuild rebuild = {.engine = engine, .result = result};
	struct kvd_head *head = engine->head;
	struct kvd_intent *intent;
	bool commit = false;
	int err;

	if (engine->read_only)
		return -EROFS;
	if (!head_sound(engine))
		return -EIO;
	result->losses_count = 0;
	result->finished = 0;
	result->undone = 0;
	if (result->text && result->text_bytes)
		result->text[0] = '\0';
	engine->dirty = true;
	kvd_put(&head->in_use, 1);
	kvd_change_begin(&head->change);
	intent = kvd_intent_live(engine);
	if (intent && !intent_sound(engine, intent)) {
		kvd_rebuild_lost(&rebuild, intent->session, KVD_ENGINE_SLOTS_MAX, 0, 0, "what was being done makes no sense");
		intent = NULL;
	}
	if (intent) {
		commit = intent->stage == KVD_ABI_STAGE_COMMIT;
		if (commit)
			apply(engine, intent);
		set_policy(&rebuild, intent);
	}
	err = kvd_rebuild_run(&rebuild);
	if (err)
		return err;
	if (commit)
		finish(engine, intent);
	else if (intent)
		result->undone = 1;
	result->finished = commit;
	kvd_put32(&head->intent.stage, KVD_ABI_STAGE_NONE);
	kvd_put(&head->intent.scratch, 0);
	kvd_change_end(&head->change);
	engine->dirty = false;
	return 0;
}
