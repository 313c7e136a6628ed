/* SESSION_TRANSITION: a session's life, by the table that driver/spec/session.toml describes. */
#include "engine/internal.h"

uint32_t kvd_op_session_transition(struct kvd_engine *engine, struct kvd_call *call)
{
	uint64_t event = call->cmd.key & KVD_ABI_TRANSITION_KEY_EVENT_MASK;
	uint32_t state = call->session->state;
	uint8_t next;

	if (call->cmd.key & ~(uint64_t)KVD_ABI_TRANSITION_KEY_EVENT_MASK || event >= KVD_ABI_EVENT_COUNT)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (state >= KVD_ABI_STATE_COUNT)
		return KVD_ABI_STATUS_BAD_TABLES;
	next = kvd_abi_next_state[state][event];
	if (next == KVD_ABI_STATE_COUNT) {
		engine->head->refused_transitions++;
		call->cpl->result0 = state;
		return KVD_ABI_STATUS_BAD_TRANSITION;
	}
	call->session->state = next;
	call->cpl->result0 = next;
	return KVD_ABI_STATUS_OK;
}
