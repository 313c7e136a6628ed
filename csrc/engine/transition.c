/* SESSION_TRANSITION: a session's life, by the table that driver/spec/session.toml describes. */
#include "engine/internal.h"

#define STATE_SHIFT 32u /* it is the upper half of the word that begins with the generation */
static_assert(offsetof(struct kvd_session, state) == offsetof(struct kvd_session, generation) + 4, "one word has both");

uint32_t kvd_op_session_transition(struct kvd_engine *engine, struct kvd_call *call)
{
	uint64_t event = call->cmd.key & KVD_ABI_TRANSITION_KEY_EVENT_MASK;
	uint32_t state = kvd_get32(&call->session->state);
	uint8_t next;

	if (call->cmd.key & ~(uint64_t)KVD_ABI_TRANSITION_KEY_EVENT_MASK || event >= KVD_ABI_EVENT_COUNT)
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (state >= KVD_ABI_STATE_COUNT)
		return KVD_ABI_STATUS_BAD_TABLES;
	next = kvd_abi_next_state[state][event];
	call->cpl->result0 = state;
	if (next == KVD_ABI_STATE_COUNT)
		return KVD_ABI_STATUS_BAD_TRANSITION;
	call->cpl->result0 = next;
	if (next == state)
		return KVD_ABI_STATUS_OK;
	kvd_intent_open(call);
	kvd_intent_word(call, (uint64_t *)(void *)&call->session->generation,
			(uint64_t)next << STATE_SHIFT | call->session->generation);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_intent_apply(engine);
	return KVD_ABI_STATUS_OK;
}
