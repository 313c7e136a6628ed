/* WINDOW_ADVANCE: which pages go, that nothing else does, hostile numbers; and random windows against plain counting. */
#include <stdlib.h>

#include "test_engine_ops.h"

#define PAGE (TEST_PAGE_BLOCKS * KVD_BLOCK_BYTES)
#define RUNS 64u
#define MODEL_PAGES 96u
#define MODEL_ROUNDS 3000u

struct window_buffer {
	struct kvd_abi_window window;
	struct kvd_abi_run runs[RUNS];
};

static struct ops_reply advance(kvd_engine *engine, uint64_t session, struct window_buffer *buffer, uint64_t room)
{
	return submit_two(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_WINDOW_ADVANCE,
					  .session = session,
					  .slot = 1,
					  .buffer = (uintptr_t)buffer,
					  .buffer_bytes = sizeof(buffer->window) + room * sizeof(buffer->runs[0]),
				  });
}

static uint64_t mapped(kvd_engine *engine, uint64_t session)
{
	return session_info(engine, session).mapped_pages[KVD_ABI_TIER_DDR];
}

/* Two planes of 8 pages, 16 tokens a page. */
static struct kvd_abi_window two_planes(uint64_t tokens, uint64_t window, uint64_t sink)
{
	return (struct kvd_abi_window){
		.plane_bytes = 8 * PAGE,
		.planes = 2,
		.token_bytes = PAGE / 16,
		.tokens = tokens,
		.window_tokens = window,
		.sink_tokens = sink,
	};
}

static void test_what_slid_out_goes(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct window_buffer buffer = {.window = two_planes(100, 40, 4)};
	struct ops_reply reply;
	struct kvd_abi_run run;

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 16, 3));
	run = one_run(engine, session, 1, 0, 16);
	/* Tokens 4 to 59 slid out: whole pages 1 and 2 of each plane, tokens 16 to 47. */
	reply = advance(engine, session, &buffer, RUNS);
	assert_ok(reply);
	assert_int_equal(reply.result0, 2);
	assert_int_equal(reply.result1, 4);
	assert_int_equal(buffer.runs[0].first_page, 1);
	assert_int_equal(buffer.runs[0].count, 2);
	assert_int_equal(buffer.runs[0].first_frame, run.first_frame + 1);
	assert_int_equal(buffer.runs[0].tier, KVD_ABI_TIER_DDR);
	assert_int_equal(buffer.runs[0].blocks, 3);
	assert_int_equal(buffer.runs[1].first_page, 9);
	assert_int_equal(buffer.runs[1].count, 2);
	assert_int_equal(mapped(engine, session), 12);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_blocks, 36);
	assert_int_equal(tier_info(engine, KVD_ABI_TIER_DDR).used_frames, 12);
	assert_int_equal(session_info(engine, session).window_start[1], 60);
	assert_int_equal(session_info(engine, session).window_start[0], 0);
	/* Once more: nothing is left to go. */
	reply = advance(engine, session, &buffer, 0);
	assert_ok(reply);
	assert_int_equal(reply.result0, 0);
	assert_int_equal(reply.result1, 0);
	engine_end(engine);
}

static void test_never_goes_back(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct window_buffer buffer = {.window = two_planes(100, 10, 0)};

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 16, 1));
	assert_int_equal(advance(engine, session, &buffer, RUNS).result1, 10);
	assert_int_equal(session_info(engine, session).window_start[1], 90);
	/* A window that ends earlier takes nothing that it keeps itself, and the position stays. */
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 5, 1));
	buffer.window = two_planes(50, 10, 0);
	assert_int_equal(advance(engine, session, &buffer, RUNS).result1, 2);
	assert_int_equal(session_info(engine, session).window_start[1], 90);
	assert_int_not_equal(pte_of(engine, session, 1, 2), 0);
	/* A wider window, a longer sink: nothing comes back, nothing else goes. */
	buffer.window = two_planes(100, 100, 50);
	assert_int_equal(advance(engine, session, &buffer, RUNS).result1, 0);
	assert_int_equal(session_info(engine, session).window_start[1], 90);
	assert_ok(destroy(engine, session));
	assert_int_equal(session_info(engine, session_new(engine, 1)).window_start[1], 0);
	engine_end(engine);
}

static void test_pages_that_planes_share(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct window_buffer buffer = {.window = {
					       .base = PAGE / 2,
					       .plane_bytes = 2 * PAGE + PAGE / 2,
					       .planes = 3,
					       .token_bytes = PAGE / 2,
					       .tokens = 5,
				       }};

	(void)state;
	/* Whole planes slid out, and they touch: only the page that the first one shares with a head before it stays. */
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 9, 1));
	assert_int_equal(advance(engine, session, &buffer, RUNS).result1, 7);
	assert_int_equal(buffer.runs[0].first_page, 1);
	assert_int_equal(buffer.runs[0].count, 7);
	assert_int_equal(one_run(engine, session, 1, 0, 1).count, 1);
	assert_int_equal(one_run(engine, session, 1, 8, 1).count, 1);
	/* The last token stays: a page that it shares with the next plane stays with it. */
	assert_ok(unmap(engine, session, 1, 0, 9));
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 9, 1));
	buffer.window.window_tokens = 1;
	/* Slid out: bytes [.5, 2.5), [3, 5), [5.5, 7.5) in pages: pages 1; 3 and 4; 6. */
	assert_int_equal(advance(engine, session, &buffer, RUNS).result1, 4);
	assert_int_equal(pte_of(engine, session, 1, 1), 0);
	assert_int_not_equal(pte_of(engine, session, 1, 2), 0);
	assert_int_equal(pte_of(engine, session, 1, 3), 0);
	assert_int_equal(pte_of(engine, session, 1, 4), 0);
	assert_int_not_equal(pte_of(engine, session, 1, 5), 0);
	assert_int_equal(pte_of(engine, session, 1, 6), 0);
	assert_int_not_equal(pte_of(engine, session, 1, 7), 0);
	engine_end(engine);
}

static void test_room_before_anything_changes(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct window_buffer buffer = {.window = two_planes(128, 16, 0)};
	struct ops_reply reply;

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 16, 1));
	assert_ok(unmap(engine, session, 1, 3, 1));
	for (uint64_t room = 0; room < 3; room++) {
		reply = advance(engine, session, &buffer, room);
		assert_status(reply, KVD_ABI_STATUS_BUFFER_SMALL);
		assert_int_equal(reply.result0, 3);
		assert_int_equal(mapped(engine, session), 15);
		assert_int_equal(session_info(engine, session).window_start[1], 0);
	}
	reply = advance(engine, session, &buffer, 3);
	assert_int_equal(reply.result0, 3);
	assert_int_equal(reply.result1, 13);
	engine_end(engine);
}

static void test_refuses_nonsense(void **state)
{
	kvd_engine *engine = engine_new(&test_config);
	uint64_t session = session_new(engine, 1);
	struct window_buffer buffer;
	struct kvd_abi_cmd cmd = {.op = KVD_ABI_OP_WINDOW_ADVANCE,
				  .session = session,
				  .slot = 1,
				  .buffer = (uintptr_t)&buffer,
				  .buffer_bytes = sizeof(buffer.window) - 1};
	const struct kvd_abi_window bad[] = {
		{.planes = 0, .token_bytes = 1, .tokens = 1},
		{.planes = 65537, .token_bytes = 1, .plane_bytes = 1, .tokens = 1},
		{.planes = UINT32_MAX, .token_bytes = 1, .plane_bytes = 1, .tokens = 1},
		{.planes = 1, .token_bytes = 0, .tokens = 1},
		{.planes = 1, .token_bytes = 2, .tokens = 1ull << 63},
		{.planes = 1, .token_bytes = UINT32_MAX, .tokens = UINT64_MAX},
		{.planes = 2, .token_bytes = 2, .plane_bytes = 7, .tokens = 4},
		{.planes = 3, .token_bytes = 1, .plane_bytes = 1ull << 63, .tokens = 1},
		{.planes = 2, .token_bytes = 1, .plane_bytes = UINT64_MAX, .tokens = 1},
		{.planes = 1, .token_bytes = 1, .base = UINT64_MAX, .tokens = 1},
		{.planes = 1, .token_bytes = 1, .base = KVD_PAGES_MAX * PAGE - 1, .tokens = 1},
	};

	(void)state;
	assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, 16, 1));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		buffer.window = bad[i];
		assert_status(advance(engine, session, &buffer, RUNS), KVD_ABI_STATUS_BAD_ARGUMENT);
	}
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BUFFER_SMALL);
	cmd.buffer_bytes = sizeof(buffer);
	cmd.slot = KVD_ENGINE_SLOTS_MAX;
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.slot = 1;
	cmd.buffer = 0;
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	cmd.flags = 1;
	assert_status(submit_two(engine, cmd), KVD_ABI_STATUS_BAD_ARGUMENT);
	assert_status(advance(engine, 4711, &buffer, RUNS), KVD_ABI_STATUS_NO_SESSION);
	/* What needs no page is no error: no tokens, a window or a sink larger than all, the end of the slot. */
	buffer.window = (struct kvd_abi_window){.planes = 65536, .token_bytes = 1};
	assert_ok(advance(engine, session, &buffer, RUNS));
	buffer.window = two_planes(100, UINT64_MAX, 0);
	assert_ok(advance(engine, session, &buffer, RUNS));
	buffer.window = two_planes(100, 0, UINT64_MAX);
	assert_ok(advance(engine, session, &buffer, RUNS));
	buffer.window = (struct kvd_abi_window){.planes = 1, .token_bytes = 1, .base = KVD_PAGES_MAX * PAGE - 2, .tokens = 1};
	assert_ok(advance(engine, session, &buffer, RUNS));
	assert_int_equal(mapped(engine, session), 16);
	engine_end(engine);
}

static uint64_t draw(uint64_t limit)
{
	static uint64_t at = 1234567;

	at ^= at << 13;
	at ^= at >> 7;
	at ^= at << 17;
	return at % limit;
}

/* Does a byte hold a token that slid out? Said byte by byte, from the words of the interface. */
static bool slid(const struct kvd_abi_window *window, uint64_t byte)
{
	for (uint32_t plane = 0; plane < window->planes; plane++) {
		uint64_t first = window->base + plane * window->plane_bytes;
		uint64_t token = byte >= first ? (byte - first) / window->token_bytes : UINT64_MAX;

		if (token < window->tokens && token >= window->sink_tokens &&
		    token + window->window_tokens < window->tokens)
			return true;
	}
	return false;
}

/* Small pages, and windows of odd sizes at odd places: exactly the pages whose every byte slid out go. */
static void test_against_counting_bytes(void **state)
{
	struct kvd_engine_config config = test_config;
	struct window_buffer buffer;
	uint64_t gone = 0;

	(void)state;
	config.page_bytes = KVD_PAGE_BYTES_MIN;
	for (uint32_t round = 0; round < MODEL_ROUNDS; round++) {
		kvd_engine *engine = engine_new(&config);
		uint64_t session = session_new(engine, 1);
		struct kvd_abi_window *window = &buffer.window;

		*window = (struct kvd_abi_window){
			.base = draw(3) * (KVD_PAGE_BYTES_MIN / 2),
			.planes = 1 + (uint32_t)draw(8),
			.token_bytes = (KVD_PAGE_BYTES_MIN / 8) << draw(5),
			.tokens = draw(40),
			.window_tokens = draw(4) ? draw(20) : 0,
			.sink_tokens = draw(2) ? draw(6) : 0,
		};
		window->plane_bytes = window->tokens * window->token_bytes + draw(3) * (KVD_PAGE_BYTES_MIN / 4);
		assert_ok(map(engine, session, 1, KVD_ABI_TIER_DDR, 0, MODEL_PAGES, 1));
		assert_ok(advance(engine, session, &buffer, RUNS));
		for (uint64_t page = 0; page < MODEL_PAGES; page++) {
			bool goes = true;

			for (uint64_t at = 0; at < KVD_PAGE_BYTES_MIN && goes; at += KVD_PAGE_BYTES_MIN / 8)
				goes = slid(window, page * KVD_PAGE_BYTES_MIN + at);
			assert_int_equal(!pte_of(engine, session, 1, page), goes);
			gone += goes;
		}
		engine_end(engine);
	}
	assert_true(gone > MODEL_ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_slid_out_goes),
		cmocka_unit_test(test_never_goes_back),
		cmocka_unit_test(test_pages_that_planes_share),
		cmocka_unit_test(test_room_before_anything_changes),
		cmocka_unit_test(test_refuses_nonsense),
		cmocka_unit_test(test_against_counting_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
