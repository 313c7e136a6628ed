/* The dispatch of commands: what is common to their arguments is checked here. */
#include <errno.h>
#include <string.h>

#include "engine/prefix.h"

#define BUFFER_ALIGN 8u
#define AHEAD 6u /* commands of a batch */

#define FLAGS_REMAP                                                                                                    \
	(KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK | KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK | KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK)

void *kvd_call_buffer(struct kvd_call *call, uint64_t address, uint64_t bytes, bool writable)
{
	static uint64_t nothing;
	const struct kvd_engine *engine = call->engine;
	void *at;

	if (!bytes)
		return &nothing;
	at = engine->reach ? engine->reach(engine->reach_context, address, bytes, writable) : (void *)(uintptr_t)address;
	if (!at)
		call->cpl->result0 = address;
	return at;
}

uint32_t kvd_call_answer(struct kvd_call *call, const void *info, uint64_t bytes)
{
	void *out;

	if (call->cmd.buffer_bytes < bytes) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	out = kvd_call_buffer(call, call->cmd.buffer, bytes, true);
	if (!out)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	memcpy(out, info, bytes);
	return KVD_ABI_STATUS_OK;
}

int kvd_engine_tier_memory(kvd_engine *engine, uint32_t tier, uint64_t address, uint64_t bytes)
{
	if (tier == KVD_ABI_TIER_NONE || tier >= KVD_ABI_TIER_COUNT || bytes > UINT64_MAX - address)
		return -EINVAL;
	engine->tier_memory[tier] = (struct kvd_tier_memory){address, bytes};
	return 0;
}

static uint32_t op_flush(struct kvd_engine *engine, struct kvd_call *call)
{
	/* Nothing is held back. The sequence is that of this command. */
	call->cpl->result0 = engine->head->sequence + 1;
	return KVD_ABI_STATUS_OK;
}

#define SESSION KVD_NEED_SESSION
#define SLOT (KVD_NEED_SESSION | KVD_NEED_SLOT)
#define TIER KVD_NEED_TIER
#define BUFFER KVD_NEED_BUFFER

const struct kvd_op kvd_engine_ops[KVD_ABI_OP_COUNT] = {
	[KVD_ABI_OP_SESSION_CREATE] = {kvd_op_session_create, NULL, 0, 0},
	[KVD_ABI_OP_SESSION_DESTROY] = {kvd_op_session_destroy, kvd_redo_session_destroy, 0, SESSION},
	[KVD_ABI_OP_LEASE] = {kvd_op_lease, NULL, 0, SESSION},
	[KVD_ABI_OP_RESERVE] = {kvd_op_reserve, NULL, 0, SESSION | TIER},
	[KVD_ABI_OP_MAP] = {kvd_op_map, NULL, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK, SLOT | TIER | BUFFER},
	[KVD_ABI_OP_UNMAP] = {kvd_op_unmap, kvd_redo_unmap, 0, SLOT},
	[KVD_ABI_OP_TRANSLATE] = {kvd_op_translate, NULL, KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK,
				  SLOT | BUFFER | KVD_READS_SESSION},
	[KVD_ABI_OP_REMAP] = {kvd_op_remap, kvd_redo_remap, FLAGS_REMAP, SLOT | TIER},
	[KVD_ABI_OP_QUERY_TIER] = {kvd_op_query_tier, NULL, 0, TIER | BUFFER | KVD_READS_HEAD},
	[KVD_ABI_OP_QUERY_SESSION] = {kvd_op_query_session, NULL, 0, SESSION | BUFFER | KVD_READS_SESSION},
	[KVD_ABI_OP_RESIZE] = {kvd_op_resize, NULL, 0, TIER},
	[KVD_ABI_OP_SESSION_TRANSITION] = {kvd_op_session_transition, NULL, 0, SESSION},
	[KVD_ABI_OP_SHARE] = {kvd_op_share, NULL, 0, SLOT},
	[KVD_ABI_OP_UNSHARE] = {kvd_op_unshare, kvd_redo_unshare, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK, SLOT | BUFFER},
	[KVD_ABI_OP_WINDOW_ADVANCE] = {kvd_op_window_advance, kvd_redo_window_advance, 0, SLOT | BUFFER},
	[KVD_ABI_OP_TOUCH] = {kvd_op_touch, kvd_redo_touch, KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK, SLOT},
	[KVD_ABI_OP_AGE_SCAN] = {kvd_op_age_scan, NULL, KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK, BUFFER},
	[KVD_ABI_OP_GATHER] = {kvd_op_gather, NULL, 0, SLOT | BUFFER},
	[KVD_ABI_OP_SCATTER] = {kvd_op_scatter, NULL, 0, SLOT | BUFFER},
	[KVD_ABI_OP_PREFIX_INSERT] = {kvd_op_prefix_insert, NULL, 0, SESSION | BUFFER},
	[KVD_ABI_OP_PREFIX_MATCH] = {kvd_op_prefix_match, NULL, 0, BUFFER | KVD_READS_ALONE},
	[KVD_ABI_OP_PREFIX_REMOVE] = {kvd_op_prefix_remove, NULL, 0, BUFFER},
	[KVD_ABI_OP_FLUSH] = {op_flush, NULL, 0, 0},
};

static bool bad_buffer(const struct kvd_abi_cmd *cmd)
{
	return cmd->buffer % BUFFER_ALIGN || (!cmd->buffer && cmd->buffer_bytes) ||
	       cmd->buffer_bytes > UINTPTR_MAX - cmd->buffer;
}

/* Refused in this order: the command, its arguments, its session, then what the command itself finds. */
uint32_t kvd_call_prepare(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_abi_cmd *cmd = &call->cmd;
	const struct kvd_op *op;

	if (cmd->op >= KVD_ABI_OP_COUNT || !kvd_engine_ops[cmd->op].execute)
		return KVD_ABI_STATUS_BAD_COMMAND;
	op = &kvd_engine_ops[cmd->op];
	if (cmd->flags & ~op->flags)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & KVD_NEED_SLOT && cmd->slot >= KVD_ENGINE_SLOTS_MAX)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & KVD_NEED_BUFFER && bad_buffer(cmd))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & KVD_NEED_TIER) {
		if (cmd->tier >= KVD_ABI_TIER_COUNT || !engine->layout.tiers[cmd->tier].total_frames)
			return KVD_ABI_STATUS_BAD_ARGUMENT;
		call->tier = cmd->tier;
	}
	if (op->needs & KVD_NEED_SESSION) {
		call->session = kvd_session_find(engine, cmd->session);
		if (!call->session)
			return KVD_ABI_STATUS_NO_SESSION;
	}
	return KVD_ABI_STATUS_OK;
}

/* A page that a command further on in the batch will ask for: its miss and those of its neighbours are waited for together.
 * The command may still change, so nothing is kept of it. */
static void look_ahead(const struct kvd_engine *engine, const struct kvd_abi_cmd *cmd)
{
	const struct kvd_session *session;
	uint16_t slot = cmd->slot;

	if (cmd->op != KVD_ABI_OP_TRANSLATE || cmd->count != 1 || slot >= KVD_ENGINE_SLOTS_MAX)
		return;
	session = kvd_session_find(engine, cmd->session);
	if (session)
		kvd_table_prefetch(engine, &session->slots[slot], cmd->first_page);
}

void kvd_engine_submit(kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct kvd_abi_cpl own = {0};
		struct kvd_call call = {.engine = engine, .cmd = cmd[i], .cpl = &own};
		uint32_t status = KVD_ABI_STATUS_BAD_TABLES;

		if (count - i > AHEAD)
			look_ahead(engine, &cmd[i + AHEAD]);
		/* `own` is not the caller's memory, so what the journal gets is what was decided. */
		own.id = call.cmd.id;
		if (!engine->dirty) {
			status = kvd_call_prepare(engine, &call);
			if (!status)
				status = kvd_engine_ops[call.cmd.op].execute(engine, &call);
			own.status = (uint16_t)status;
			kvd_intent_close(&call);
		}
		own.status = (uint16_t)status;
		kvd_cpl_copy(&cpl[i], &own);
	}
}

void kvd_engine_stats(const kvd_engine *engine, struct kvd_engine_stats *out)
{
	const struct kvd_head *head = engine->head;

	*out = (struct kvd_engine_stats){
		.commands = kvd_get(&head->sequence),
		.refused = head->refused,
		.sessions = head->sessions_live,
		.table_bytes = head->table_bytes,
		.mapped_pages = head->mapped_pages,
		.refused_transitions = head->refused_transitions,
	};
}
