/* Bring-up, and the dispatch of commands: what is common to their arguments is checked here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define OP_COUNT (KVD_ABI_OP_RESIZE + 1)
#define BUFFER_ALIGN 8u

/* What a command refers to. */
enum needs {
	NEED_SESSION = 1,
	NEED_SLOT = 2,
	NEED_TIER = 4,
	NEED_BUFFER = 8,
};

struct op {
	uint32_t (*execute)(struct kvd_engine *engine, struct kvd_call *call);
	uint32_t flags; /* that it knows */
	uint32_t needs;
};

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

int kvd_engine_tier_memory(kvd_engine *engine, uint32_t tier, uint64_t address, uint64_t bytes)
{
	if (tier == KVD_ABI_TIER_NONE || tier >= KVD_ABI_TIER_COUNT || bytes > UINT64_MAX - address)
		return -EINVAL;
	engine->tier_memory[tier] = (struct kvd_tier_memory){address, bytes};
	return 0;
}

static uint32_t op_query_tier(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_tier *tier = &engine->head->tiers[call->tier];
	struct kvd_abi_tier_info info = {
		.capacity_blocks = tier->capacity_blocks,
		.used_blocks = tier->used_blocks,
		.reserved_blocks = tier->reserved_blocks,
		.used_frames = tier->used_frames,
		.total_frames = tier->total_frames,
	};

	if (call->cmd.buffer_bytes < sizeof(info)) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	memcpy((void *)call->cmd.buffer, &info, sizeof(info));
	return KVD_ABI_STATUS_OK;
}

static uint32_t op_resize(struct kvd_engine *engine, struct kvd_call *call)
{
	if (call->cmd.count > KVD_BLOCKS_MAX)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	engine->head->tiers[call->tier].capacity_blocks = call->cmd.count;
	return KVD_ABI_STATUS_OK;
}

static const struct op ops[OP_COUNT] = {
	[KVD_ABI_OP_SESSION_CREATE] = {kvd_op_session_create, 0, 0},
	[KVD_ABI_OP_SESSION_DESTROY] = {kvd_op_session_destroy, 0, NEED_SESSION},
	[KVD_ABI_OP_LEASE] = {kvd_op_lease, 0, NEED_SESSION},
	[KVD_ABI_OP_RESERVE] = {kvd_op_reserve, 0, NEED_SESSION | NEED_TIER},
	[KVD_ABI_OP_MAP] = {kvd_op_map, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK, NEED_SESSION | NEED_SLOT | NEED_TIER | NEED_BUFFER},
	[KVD_ABI_OP_UNMAP] = {kvd_op_unmap, 0, NEED_SESSION | NEED_SLOT},
	[KVD_ABI_OP_TRANSLATE] = {kvd_op_translate, 0, NEED_SESSION | NEED_SLOT | NEED_BUFFER},
	[KVD_ABI_OP_REMAP] = {kvd_op_remap, KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK | KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK | KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK,
			  NEED_SESSION | NEED_SLOT | NEED_TIER},
	[KVD_ABI_OP_QUERY_TIER] = {op_query_tier, 0, NEED_TIER | NEED_BUFFER},
	[KVD_ABI_OP_QUERY_SESSION] = {kvd_op_query_session, 0, NEED_SESSION | NEED_BUFFER},
	[KVD_ABI_OP_RESIZE] = {op_resize, 0, NEED_TIER},
};

static bool bad_buffer(const struct kvd_abi_cmd *cmd)
{
	return cmd->buffer % BUFFER_ALIGN || (!cmd->buffer && cmd->buffer_bytes) ||
	       cmd->buffer_bytes > UINTPTR_MAX - cmd->buffer;
}

/* Refused in this order: the command, its arguments, its session, then what the command itself finds. */
static uint32_t execute(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_abi_cmd *cmd = &call->cmd;
	const struct op *op;

	if (cmd->op >= OP_COUNT || !ops[cmd->op].execute)
		return KVD_ABI_STATUS_BAD_COMMAND;
	op = &ops[cmd->op];
	if (cmd->flags & ~op->flags)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & NEED_SLOT && cmd->slot >= KVD_ENGINE_SLOTS_MAX)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & NEED_BUFFER && bad_buffer(cmd))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (op->needs & NEED_TIER) {
		if (cmd->tier >= KVD_ABI_TIER_COUNT || !engine->head->tiers[cmd->tier].total_frames)
			return KVD_ABI_STATUS_BAD_ARGUMENT;
		call->tier = cmd->tier;
	}
	if (op->needs & NEED_SESSION) {
		call->session = kvd_session_find(engine, cmd->session);
		if (!call->session)
			return KVD_ABI_STATUS_NO_SESSION;
	}
	return op->execute(engine, call);
}

void kvd_engine_submit(kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct kvd_call call = {.engine = engine, .cmd = cmd[i], .cpl = &cpl[i]};

		cpl[i] = (struct kvd_abi_cpl){.id = call.cmd.id};
		cpl[i].status = (uint16_t)execute(engine, &call);
		engine->head->refused += cpl[i].status != KVD_ABI_STATUS_OK;
	}
	engine->head->commands += count;
}

static bool bad_config(const struct kvd_engine_config *config)
{
	uint32_t page_bytes = config->page_bytes;
	uint64_t tiers = 0;

	if (page_bytes < KVD_PAGE_BYTES_MIN || page_bytes > KVD_PAGE_BYTES_MAX || page_bytes & (page_bytes - 1))
		return true;
	if (config->reserved || config->reserved2 || !config->sessions_max || config->sessions_max > KVD_SESSIONS_MAX ||
	    config->arena_bytes > KVD_ARENA_BYTES_MAX)
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

int kvd_engine_init(const struct kvd_engine_config *config, kvd_engine **out)
{
	struct kvd_engine *engine;
	int err;

	if (bad_config(config))
		return -EINVAL;
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return -ENOMEM;
	err = kvd_arena_init(engine, config);
	if (err) {
		free(engine);
		return err;
	}
	engine->page_blocks = config->page_bytes / KVD_BLOCK_BYTES;
	*out = engine;
	return 0;
}

void kvd_engine_fini(kvd_engine *engine)
{
	if (!engine)
		return;
	kvd_arena_fini(engine);
	free(engine);
}

int kvd_engine_reset(kvd_engine *engine)
{
	return kvd_arena_reset(engine);
}

void kvd_engine_stats(const kvd_engine *engine, struct kvd_engine_stats *out)
{
	*out = (struct kvd_engine_stats){
		.commands = engine->head->commands,
		.refused = engine->head->refused,
		.sessions = engine->head->sessions_live,
		.table_bytes = engine->head->table_bytes,
		.mapped_pages = engine->head->mapped_pages,
	};
}
