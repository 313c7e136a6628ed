/*
 * Death after every store: random commands, and after each store that one makes to the tables, these are copied as a dead
 * process would have left them, recovered, checked, and compared with what they were before the command or are after it.
 * The journal says which. Recovery itself dies in the same way, after some of its stores.
 */
#include <errno.h>
#include <stdlib.h>

#include "test_engine_crash.h"

#ifdef __SANITIZE_THREAD__
#define SEEDS 1u /* there is one thread: nothing to find, and all that copying takes minutes */
#define COMMANDS 50u
#else
#define SEEDS 8u
#define COMMANDS 150u
#endif
#define NESTED_EVERY 97u /* stores between those after which a recovery dies too */
#define NESTED_STEP 13u  /* stores of a recovery between two deaths */

struct crash {
	struct rig rig;
	struct dump before;
	struct dump after;
	struct kvd_abi_cmd cmd;
	struct kvd_abi_cpl cpl;     /* of the command, when nobody dies */
	uint64_t sequence;          /* before the command */
	uint64_t stores;
	uint64_t recovery_stores;
	uint64_t executed, undone;  /* ends met */
	bool watching;
	bool nested;
};

static struct crash *watched;

/* The runs that UNSHARE told are where the pages are now. */
static void check_runs(kvd_engine *engine, const struct kvd_abi_cmd *cmd, const struct kvd_abi_copy_run *runs,
		       uint64_t count, uint64_t pages)
{
	const uint64_t *root = &kvd_session_find(engine, cmd->session)->slots[cmd->slot];

	assert_true(count <= RIG_RUNS);
	for (uint64_t i = 0; i < count; i++) {
		for (uint64_t j = 0; j < runs[i].count; j++, pages--) {
			const union kvd_entry *entry = kvd_table_find(engine, root, runs[i].first_page + j);

			assert_non_null(entry);
			assert_int_equal(kvd_pte_frame(entry->pte), runs[i].new_frame + j);
			assert_int_equal(kvd_pte_tier(entry->pte), runs[i].tier);
			assert_true(runs[i].old_frame != runs[i].new_frame);
		}
	}
	assert_int_equal(pages, 0);
}

/* Compare tables that were recovered with what the command may have left; then execute what was not executed. */
static void judge(struct crash *crash, kvd_engine *engine, struct dump *now)
{
	bool executed = kvd_engine_sequence(engine) == crash->sequence + 1;
	struct kvd_abi_copy_run runs[RIG_RUNS];
	struct kvd_abi_cmd cmd = crash->cmd;
	struct kvd_abi_cpl cpl;

	/* What the dead process wrote for its caller is still there; what is executed now writes elsewhere. */
	memcpy(runs, crash->rig.buffer, sizeof(runs));
	if (cmd.buffer)
		cmd.buffer = (uintptr_t)runs;

	assert_consistent(engine);
	dump_tables(engine, now);
	if (!executed) {
		assert_int_equal(kvd_engine_sequence(engine), crash->sequence);
		assert_int_equal(kvd_engine_completion(engine, crash->sequence + 1, &cpl), -ENOENT);
		dump_compare(now, &crash->before, NULL);
		kvd_engine_submit(engine, &cmd, &cpl, 1);
		dump_tables(engine, now);
		crash->undone++;
	} else {
		assert_int_equal(kvd_engine_completion(engine, crash->sequence + 1, &cpl), 0);
		crash->executed++;
	}
	/* How much a full heap has room for depends on how it is cut up, which is derived. */
	if (!executed && cpl.status != crash->cpl.status &&
	    (cpl.status == KVD_ABI_STATUS_NO_TABLE || crash->cpl.status == KVD_ABI_STATUS_NO_TABLE)) {
		assert_consistent(engine);
		return;
	}
	if (cmd.op == KVD_ABI_OP_UNSHARE && cpl.status == KVD_ABI_STATUS_OK) {
		check_runs(engine, &cmd, runs, cpl.result0, cpl.result1);
		/* Other frames make other runs. */
		cpl.result0 = crash->cpl.result0;
	}
	/* Which of the free contexts a session gets is derived. */
	if (cmd.op == KVD_ABI_OP_SESSION_CREATE && !executed && cpl.result0 != crash->cpl.result0) {
		assert_int_equal(cpl.result0 >> 32, crash->cpl.result0 >> 32);
		assert_int_equal(kvd_session_find(engine, cpl.result0)->key, cmd.key);
		assert_consistent(engine);
		return;
	}
	assert_memory_equal(&cpl, &crash->cpl, sizeof(cpl));
	/* Which new frames a page gets may differ, all else may not. */
	dump_compare(now, &crash->after, &crash->before);
	assert_consistent(engine);
}

static kvd_engine *attach(const struct rig *rig, unsigned char *arena)
{
	kvd_engine *engine;

	assert_int_equal(kvd_engine_attach(arena, rig->bytes, NULL, NULL, &engine), 0);
	assert_int_equal(kvd_engine_dirty(engine), 1);
	return engine;
}

static void recover(kvd_engine *engine)
{
	struct kvd_engine_recovery result = {0};

	assert_int_equal(kvd_engine_recover(engine, &result), 0);
	assert_int_equal(result.losses_count, 0);
	assert_int_equal(kvd_engine_dirty(engine), 0);
}

/* The process died just now: recover a copy of what it left. */
static void die(struct crash *crash)
{
	static struct dump now;
	kvd_engine *engine;

	memcpy(crash->rig.copy, crash->rig.arena, crash->rig.bytes);
	engine = attach(&crash->rig, crash->rig.copy);
	/* The hook below copies the copy while it is being recovered. */
	crash->nested = crash->stores % NESTED_EVERY == 0;
	crash->watching = crash->nested;
	recover(engine);
	crash->watching = false;
	crash->nested = false;
	judge(crash, engine, &now);
	kvd_engine_fini(engine);
}

static void die_nested(struct crash *crash)
{
	static struct dump now;
	kvd_engine *engine;

	memcpy(crash->rig.nested, crash->rig.copy, crash->rig.bytes);
	engine = attach(&crash->rig, crash->rig.nested);
	recover(engine);
	judge(crash, engine, &now);
	kvd_engine_fini(engine);
}

void kvd_engine_stored(void)
{
	struct crash *crash = watched;

	if (!crash || !crash->watching)
		return;
	crash->watching = false;
	if (crash->nested) {
		crash->recovery_stores++;
		if (crash->recovery_stores % NESTED_STEP == 0)
			die_nested(crash);
		crash->watching = true;
		return;
	}
	crash->stores++;
	die(crash);
	crash->watching = true;
}

/* Execute the command on a copy first, for what it leaves when nobody dies. */
static void rehearse(struct crash *crash)
{
	kvd_engine *engine;

	dump_tables(crash->rig.engine, &crash->before);
	crash->sequence = kvd_engine_sequence(crash->rig.engine);
	memcpy(crash->rig.copy, crash->rig.arena, crash->rig.bytes);
	((struct kvd_head *)(void *)crash->rig.copy)->in_use = 0;
	assert_int_equal(kvd_engine_attach(crash->rig.copy, crash->rig.bytes, NULL, NULL, &engine), 0);
	assert_int_equal(kvd_engine_dirty(engine), 0);
	kvd_engine_submit(engine, &crash->cmd, &crash->cpl, 1);
	dump_tables(engine, &crash->after);
	kvd_engine_fini(engine);
}

static void run_seed(uint64_t seed, uint64_t *seen, uint64_t *full)
{
	struct crash *crash = aligned_alloc(_Alignof(struct crash), sizeof(*crash));
	struct kvd_abi_cpl cpl;

	assert_non_null(crash);
	memset(crash, 0, sizeof(*crash));
	rig_init(&crash->rig, seed, seed % 2 ? RIG_BYTES : RIG_BYTES_SMALL);
	watched = crash;
	for (uint32_t i = 0; i < COMMANDS; i++) {
		uint64_t stores = crash->stores;

		crash->cmd = rig_command(&crash->rig);
		rehearse(crash);
		crash->watching = true;
		kvd_engine_submit(crash->rig.engine, &crash->cmd, &cpl, 1);
		crash->watching = false;
		assert_memory_equal(&cpl, &crash->cpl, sizeof(cpl));
		if (cpl.status == KVD_ABI_STATUS_OK && crash->stores > stores)
			seen[crash->cmd.op]++;
		if (cpl.status == KVD_ABI_STATUS_NO_TABLE)
			full[crash->cmd.op]++;
		rig_follow(&crash->rig, &crash->cmd, &cpl);
	}
	watched = NULL;
	assert_true(crash->executed > 0 && crash->undone > 0);
	print_message("seed %u: %u stores, %u executed, %u not\n", (unsigned int)seed, (unsigned int)crash->stores,
		      (unsigned int)crash->executed, (unsigned int)crash->undone);
	rig_fini(&crash->rig);
	free(crash);
}

static void test_death_after_every_store(void **state)
{
	uint64_t seen[KVD_ABI_OP_COUNT] = {0}, full[KVD_ABI_OP_COUNT] = {0};

	(void)state;
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		run_seed(seed, seen, full);
	print_message("no table: %u MAP, %u REMAP, %u SHARE, %u UNSHARE\n", (unsigned int)full[KVD_ABI_OP_MAP],
		      (unsigned int)full[KVD_ABI_OP_REMAP], (unsigned int)full[KVD_ABI_OP_SHARE],
		      (unsigned int)full[KVD_ABI_OP_UNSHARE]);
	if (SEEDS == 1)
		return;
	/* The run was worth something: each of these changed something. */
	assert_true(full[KVD_ABI_OP_MAP] && full[KVD_ABI_OP_SHARE]);
	assert_true(seen[KVD_ABI_OP_MAP] && seen[KVD_ABI_OP_UNMAP] && seen[KVD_ABI_OP_REMAP]);
	assert_true(seen[KVD_ABI_OP_SHARE] && seen[KVD_ABI_OP_UNSHARE]);
	assert_true(seen[KVD_ABI_OP_SESSION_CREATE] && seen[KVD_ABI_OP_SESSION_DESTROY]);
	assert_true(seen[KVD_ABI_OP_LEASE] && seen[KVD_ABI_OP_RESERVE] && seen[KVD_ABI_OP_RESIZE]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_death_after_every_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
