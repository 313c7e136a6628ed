/*
 * WINDOW_ADVANCE: free what slid out of a session's window.
 *
 * The slot holds `planes` planes, each with its tokens in order. Of each plane the first `sink_tokens` stay, and the
 * last `window_tokens` of those written; what is between them has slid out. A page goes when it holds nothing but
 * bytes that slid out, of one plane or of planes that touch. Bytes that no token covers yet, or never will, stay.
 */
#include <string.h>

#include "engine/internal.h"

/* Layers times heads times two; keeps a command short that a hostile driver made. */
#define PLANES_MAX (1u << 16)

struct window {
	struct kvd_abi_window is;
	uint64_t slid_tokens;  /* tokens before the window */
	uint64_t first_byte;   /* of the first plane that slid out */
	uint64_t bytes;        /* that slid out of each plane */
	uint32_t planes;       /* 1 where they touch */
	uint32_t page_bytes;
};

/* The runs that will be freed: those past `room` are only counted. */
struct freed {
	struct kvd_abi_run run;
	struct kvd_abi_run *out;
	uint64_t room;
	uint64_t found;
	uint64_t pages;
};

static void put_run(struct freed *freed)
{
	if (!freed->run.count)
		return;
	if (freed->found < freed->room)
		memcpy(&freed->out[freed->found], &freed->run, sizeof(freed->run));
	freed->found++;
}

static void collect(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct freed *freed = context;
	struct kvd_abi_run *run = &freed->run;

	for (uint32_t i = 0; i < count; i++, page++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (!(pte & KVD_ABI_PTE_VALID_MASK))
			continue;
		freed->pages++;
		if (run->count && page == run->first_page + run->count && kvd_pte_tier(pte) == run->tier &&
		    kvd_pte_blocks(pte) == run->blocks && kvd_pte_frame(pte) == run->first_frame + run->count) {
			run->count++;
			continue;
		}
		put_run(freed);
		*run = (struct kvd_abi_run){
			.first_page = page,
			.count = 1,
			.first_frame = kvd_pte_frame(pte),
			.tier = kvd_pte_tier(pte),
			.blocks = kvd_pte_blocks(pte),
		};
	}
}

/* Do the planes lie in the slot, one after the other? */
static bool planes_fit(const struct window *window)
{
	const struct kvd_abi_window *is = &window->is;
	uint64_t written, end;

	if (!is->planes || is->planes > PLANES_MAX || !is->token_bytes)
		return false;
	if (__builtin_mul_overflow(is->tokens, (uint64_t)is->token_bytes, &written))
		return false;
	if (is->planes > 1 && written > is->plane_bytes)
		return false;
	if (__builtin_mul_overflow(is->plane_bytes, (uint64_t)(is->planes - 1), &end) ||
	    __builtin_add_overflow(end, written, &end) || __builtin_add_overflow(end, is->base, &end))
		return false;
	return end / window->page_bytes < KVD_PAGES_MAX;
}

/* What slid out of each plane; false: the description makes no sense. */
static bool window_init(struct window *window, const struct kvd_abi_window *is, uint32_t page_bytes)
{
	*window = (struct window){.is = *is, .planes = is->planes, .page_bytes = page_bytes};
	if (!planes_fit(window))
		return false;
	if (is->tokens > is->window_tokens)
		window->slid_tokens = is->tokens - is->window_tokens;
	if (window->slid_tokens <= is->sink_tokens)
		return true;
	/* No product here is larger than the ones that were looked at. */
	window->first_byte = is->base + is->sink_tokens * is->token_bytes;
	window->bytes = (window->slid_tokens - is->sink_tokens) * is->token_bytes;
	if (window->planes > 1 && window->bytes == is->plane_bytes) {
		window->bytes *= window->planes;
		window->planes = 1;
	}
	return true;
}

/* The pages that go because of one plane. */
static void plane_pages(const struct window *window, uint32_t plane, uint64_t *first, uint64_t *end)
{
	uint64_t at = window->first_byte + plane * window->is.plane_bytes;

	*first = at / window->page_bytes + (at % window->page_bytes != 0);
	*end = (at + window->bytes) / window->page_bytes;
}

/* What the intent has of a window: all of it. */
static_assert(sizeof(struct kvd_abi_window) <= sizeof(((struct kvd_intent *)0)->payload), "a window fits");

static void intend(struct kvd_call *call, const struct kvd_abi_window *is, uint64_t slid_tokens)
{
	struct kvd_intent *intent = &call->engine->head->intent;
	uint64_t *start = &call->session->window_start[call->cmd.slot];
	uint64_t words[sizeof(*is) / sizeof(uint64_t)];

	memcpy(words, is, sizeof(words));
	kvd_intent_open(call);
	for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		kvd_put(&intent->payload[i], words[i]);
	if (slid_tokens > *start)
		kvd_intent_word(call, start, slid_tokens);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
}

uint32_t kvd_op_window_advance(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_abi_cmd *cmd = &call->cmd;
	const uint64_t *root = &call->session->slots[cmd->slot];
	struct freed freed = {0};
	struct kvd_abi_window is;
	struct window window;
	unsigned char *buffer;
	uint64_t first, end;

	if (cmd->buffer_bytes < sizeof(is)) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	buffer = kvd_call_buffer(call, cmd->buffer, cmd->buffer_bytes, true);
	if (!buffer)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	memcpy(&is, buffer, sizeof(is));
	if (!window_init(&window, &is, engine->layout.page_bytes))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	freed.out = (void *)(buffer + sizeof(is));
	freed.room = (cmd->buffer_bytes - sizeof(is)) / sizeof(freed.run);
	for (uint32_t plane = 0; plane < window.planes; plane++) {
		plane_pages(&window, plane, &first, &end);
		kvd_table_walk(engine, root, first, end, collect, &freed);
	}
	put_run(&freed);
	call->cpl->result0 = freed.found;
	if (freed.found > freed.room)
		return KVD_ABI_STATUS_BUFFER_SMALL;
	call->cpl->result1 = freed.pages;
	if (!freed.pages && window.slid_tokens <= call->session->window_start[cmd->slot])
		return KVD_ABI_STATUS_OK;
	intend(call, &is, window.slid_tokens);
	kvd_intent_apply(engine);
	kvd_redo_window_advance(engine, call);
	return KVD_ABI_STATUS_OK;
}

/* What is freed already is not found again. */
void kvd_redo_window_advance(struct kvd_engine *engine, struct kvd_call *call)
{
	struct kvd_release release = {.engine = engine};
	struct kvd_abi_window is;
	struct window window;
	uint64_t first, end;

	memcpy(&is, engine->head->intent.payload, sizeof(is));
	if (!call->session || !window_init(&window, &is, engine->layout.page_bytes))
		return;
	for (uint32_t plane = 0; plane < window.planes; plane++) {
		plane_pages(&window, plane, &first, &end);
		kvd_table_clear(engine, &call->session->slots[call->cmd.slot], first, end, kvd_release_visit, &release);
	}
	kvd_release_settle(&release, call->session);
}
