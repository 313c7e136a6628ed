/* What the engine's tests share: an engine of fixed shape, and one function a command. */
#ifndef KVD_TESTS_TEST_ENGINE_H
#define KVD_TESTS_TEST_ENGINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"

/* How much is done: less under ThreadSanitizer by tests with one thread, where it finds nothing and takes long. */
#ifdef __SANITIZE_THREAD__
#define TEST_AMOUNT(full, less) (less)
#else
#define TEST_AMOUNT(full, less) (full)
#endif

#define TEST_PAGE_BLOCKS 16u
#define TEST_DDR_BLOCKS 4096u
#define TEST_NVME_BLOCKS 65536u
#define TEST_RUNS_MAX 4096u
#define FAULTS_BYTES 512u

static const struct kvd_engine_config test_config = {
	.page_bytes = TEST_PAGE_BLOCKS * KVD_BLOCK_BYTES,
	.sessions_max = 8,
	.arena_bytes = 8u << 20,
	.capacity_blocks = {0, TEST_DDR_BLOCKS, 0, TEST_NVME_BLOCKS, 0},
	.arena_fd = -1,
};

struct test_reply {
	uint32_t status;
	uint64_t result0;
	uint64_t result1;
};

static inline struct test_reply submit_one(kvd_engine *engine, struct kvd_abi_cmd cmd)
{
	struct kvd_abi_cpl cpl = {.id = 1, .status = UINT16_MAX, .result0 = 2, .result1 = 3};

	cmd.id = 77;
	kvd_engine_submit(engine, &cmd, &cpl, 1);
	assert_int_equal(cpl.id, 77);
	assert_true(!cpl.result1 || cmd.op == KVD_ABI_OP_UNSHARE);
	return (struct test_reply){cpl.status, cpl.result0, cpl.result1};
}

static inline kvd_engine *engine_new(const struct kvd_engine_config *config)
{
	kvd_engine *engine = NULL;

	assert_int_equal(kvd_engine_init(config, &engine), 0);
	assert_non_null(engine);
	return engine;
}

/* The tables are right, and nothing is left of the engine. */
static inline void assert_consistent(const kvd_engine *engine)
{
	char text[FAULTS_BYTES];

	if (kvd_engine_check(engine, text, sizeof(text)))
		fail_msg("%s", text);
}

static inline void engine_end(kvd_engine *engine)
{
	assert_consistent(engine);
	kvd_engine_fini(engine);
}

static inline struct test_reply create(kvd_engine *engine, uint64_t key)
{
	return submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = key});
}

static inline uint64_t session_new(kvd_engine *engine, uint64_t key)
{
	struct test_reply reply = create(engine, key);

	assert_int_equal(reply.status, KVD_ABI_STATUS_OK);
	return reply.result0;
}

static inline struct test_reply destroy(kvd_engine *engine, uint64_t session)
{
	return submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_DESTROY, .session = session});
}

static inline struct test_reply lease(kvd_engine *engine, uint64_t session, int64_t delta)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_LEASE, .session = session, .count = (uint64_t)delta});
}

static inline struct test_reply reserve(kvd_engine *engine, uint64_t session, uint32_t tier, uint64_t blocks)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_RESERVE, .session = session, .tier = tier, .count = blocks});
}

static inline struct test_reply map_runs(kvd_engine *engine, uint64_t session, uint16_t slot, uint32_t tier,
					 const struct kvd_abi_map_run *runs, uint64_t count, uint16_t flags)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_MAP,
					  .flags = flags,
					  .session = session,
					  .slot = slot,
					  .tier = tier,
					  .count = count,
					  .buffer = (uintptr_t)runs,
					  .buffer_bytes = count * sizeof(*runs),
				  });
}

static inline struct test_reply map(kvd_engine *engine, uint64_t session, uint16_t slot, uint32_t tier, uint64_t first,
				    uint64_t count, uint32_t blocks)
{
	struct kvd_abi_map_run run = {.first_page = first, .count = count, .blocks = blocks};

	return map_runs(engine, session, slot, tier, &run, 1, 0);
}

static inline struct test_reply unmap(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t first,
				      uint64_t count)
{
	return submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_UNMAP,
							  .session = session,
							  .slot = slot,
							  .first_page = first,
							  .count = count});
}

static inline struct test_reply translate(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t first,
					  uint64_t count, struct kvd_abi_run *runs, uint64_t room)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_TRANSLATE,
					  .session = session,
					  .slot = slot,
					  .first_page = first,
					  .count = count,
					  .buffer = (uintptr_t)runs,
					  .buffer_bytes = room * sizeof(*runs),
				  });
}

static inline struct test_reply remap(kvd_engine *engine, uint64_t session, uint16_t slot, uint16_t other,
				      uint32_t tier, uint64_t first, uint64_t count, uint16_t flags)
{
	return submit_one(engine, (struct kvd_abi_cmd){
					  .op = KVD_ABI_OP_REMAP,
					  .flags = flags,
					  .session = session,
					  .slot = slot,
					  .other_slot = other,
					  .tier = tier,
					  .first_page = first,
					  .count = count,
				  });
}

static inline struct test_reply resize(kvd_engine *engine, uint32_t tier, uint64_t blocks)
{
	return submit_one(engine, (struct kvd_abi_cmd){.op = KVD_ABI_OP_RESIZE, .tier = tier, .count = blocks});
}

static inline struct kvd_abi_tier_info tier_info(kvd_engine *engine, uint32_t tier)
{
	struct kvd_abi_tier_info info;
	struct test_reply reply = submit_one(engine, (struct kvd_abi_cmd){
							     .op = KVD_ABI_OP_QUERY_TIER,
							     .tier = tier,
							     .buffer = (uintptr_t)&info,
							     .buffer_bytes = sizeof(info),
						     });

	assert_int_equal(reply.status, KVD_ABI_STATUS_OK);
	return info;
}

static inline struct kvd_abi_session_info session_info(kvd_engine *engine, uint64_t session)
{
	struct kvd_abi_session_info info;
	struct test_reply reply = submit_one(engine, (struct kvd_abi_cmd){
							     .op = KVD_ABI_OP_QUERY_SESSION,
							     .session = session,
							     .buffer = (uintptr_t)&info,
							     .buffer_bytes = sizeof(info),
						     });

	assert_int_equal(reply.status, KVD_ABI_STATUS_OK);
	return info;
}

/* The only run of a range. */
static inline struct kvd_abi_run one_run(kvd_engine *engine, uint64_t session, uint16_t slot, uint64_t first,
					    uint64_t count)
{
	struct kvd_abi_run run;
	struct test_reply reply = translate(engine, session, slot, first, count, &run, 1);

	assert_int_equal(reply.status, KVD_ABI_STATUS_OK);
	assert_int_equal(reply.result0, 1);
	return run;
}

#define assert_ok(reply) assert_int_equal((reply).status, KVD_ABI_STATUS_OK)
#define assert_status(reply, expected) assert_int_equal((reply).status, (expected))

#endif
