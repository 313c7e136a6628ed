/*
 * Reading beside the one who changes: a command that changes nothing is executed on tables that may change under it, and
 * what it found counts only if the version that guards it was even, and the same, before and after.
 *
 * Nothing that is met on the way can harm: nodes are looked for in the heap only and heights go down, so a walk through tables
 * that are being rebuilt ends. The command's buffer may be written in a try that does not count.
 */
#include "engine/internal.h"

#define TRIES 64u
#define PAUSES_MAX 1024u /* between two tries, at most: a command takes microseconds */

static void pause_for(uint32_t try)
{
	uint32_t count = 1u << (try < 10 ? try : 10);

	for (uint32_t i = 0; i < count && i < PAUSES_MAX; i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#else
		__asm__ volatile("" ::: "memory");
#endif
	}
}

bool kvd_read_try(const struct kvd_call *call, struct kvd_try *try)
{
	while (try->number++ < TRIES) {
		try->version = call->reading ? kvd_get(&call->session->version) : 0;
		if (!(try->version & 1))
			return true;
		pause_for(try->number);
	}
	return false;
}

bool kvd_read_good(const struct kvd_call *call, const struct kvd_try *try)
{
	return !call->reading || kvd_get(&call->session->version) == try->version;
}

/* The version that guards what the command reads; NULL: it needs none. */
static const uint64_t *guard_of(const struct kvd_engine *engine, const struct kvd_abi_cmd *cmd, uint32_t needs)
{
	uint64_t index = (uint32_t)cmd->session;

	/* A list is replaced part by part, and looks at the version itself. */
	if (cmd->op == KVD_ABI_OP_TRANSLATE && cmd->flags & KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK)
		return NULL;
	if (needs & KVD_READS_HEAD)
		return &engine->head->change;
	if (needs & KVD_READS_SESSION && index < engine->layout.sessions_max)
		return &kvd_session_at(engine, index)->version;
	return NULL;
}

/* One try; false: something changed meanwhile. */
static bool try_read(struct kvd_call *call, const struct kvd_op *op)
{
	const uint64_t *guard = guard_of(call->engine, &call->cmd, op->needs);
	uint64_t before = guard ? kvd_get(guard) : 0;
	uint32_t status;

	if (before & 1)
		return false;
	*call->cpl = (struct kvd_abi_cpl){.id = call->cmd.id};
	status = kvd_call_prepare(call->engine, call);
	if (!status)
		status = op->execute(call->engine, call);
	call->cpl->status = (uint16_t)status;
	return !guard || kvd_get(guard) == before;
}

void kvd_engine_read(const kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl)
{
	struct kvd_abi_cpl own;
	/* What changes nothing needs no constant engine: the cast takes nothing away. */
	struct kvd_call call = {.engine = (struct kvd_engine *)(uintptr_t)engine, .cmd = *cmd, .cpl = &own, .reading = true};
	const struct kvd_op *op = call.cmd.op < KVD_ABI_OP_COUNT ? &kvd_engine_ops[call.cmd.op] : NULL;

	own = (struct kvd_abi_cpl){.id = call.cmd.id, .status = KVD_ABI_STATUS_BAD_COMMAND};
	if (op && op->execute && op->needs & KVD_READS) {
		uint32_t i = 0;

		while (!try_read(&call, op)) {
			if (++i == TRIES) {
				own = (struct kvd_abi_cpl){.id = call.cmd.id, .status = KVD_ABI_STATUS_BUSY};
				break;
			}
			pause_for(i);
		}
	}
	*cpl = own;
}
