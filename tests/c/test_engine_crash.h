/* What the tests of dying processes share: small tables, random commands, and what tables say apart from what is derived. */
#ifndef KVD_TESTS_TEST_ENGINE_CRASH_H
#define KVD_TESTS_TEST_ENGINE_CRASH_H

#include "test_engine.h"

#define RIG_SESSIONS 4u
#define RIG_SLOTS 3u
#define RIG_BYTES (176u << 10)
#define RIG_BYTES_SMALL (72u << 10) /* too small for all that is asked: commands are taken back half done */
#define RIG_RUNS 200u
#define RIG_WINDOW 40u
#define RIG_PLACES (3u * RIG_WINDOW)
#define RIG_ENTRIES (RIG_SLOTS * RIG_PLACES)

struct rig {
	kvd_engine *engine;
	unsigned char *arena;
	uint64_t bytes;
	unsigned char copy[RIG_BYTES] __attribute__((aligned(4096)));
	unsigned char nested[RIG_BYTES] __attribute__((aligned(4096)));
	uint64_t random;
	uint64_t handle[RIG_SESSIONS]; /* 0: none */
	struct kvd_abi_copy_run buffer[RIG_RUNS]; /* of a command: map runs go in, copy runs come out */
};

struct dump_entry {
	uint64_t slot;
	uint64_t page;
	uint64_t pte;
};

struct dump_session {
	uint64_t handle; /* 0: none */
	uint64_t key;
	uint64_t leases;
	uint64_t state;
	uint64_t reserved[KVD_ABI_TIER_COUNT - 1];
	uint64_t pages;
	struct dump_entry entries[RIG_ENTRIES];
};

struct dump {
	struct dump_session sessions[RIG_SESSIONS];
	uint64_t capacity[KVD_ABI_TIER_COUNT];
	uint64_t used[KVD_ABI_TIER_COUNT];
	uint64_t reserved[KVD_ABI_TIER_COUNT];
};

void rig_init(struct rig *rig, uint64_t seed, uint64_t bytes);
void rig_fini(struct rig *rig);
uint32_t rig_draw(struct rig *rig, uint32_t limit);
struct kvd_abi_cmd rig_command(struct rig *rig);
/* Know the sessions that live. */
void rig_follow(struct rig *rig, const struct kvd_abi_cmd *cmd, const struct kvd_abi_cpl *cpl);
void dump_tables(const kvd_engine *engine, struct dump *dump);
/* Fail where `now` is not `wanted`; the frames of pages that are not in `before` as they are in `wanted` may be others. */
void dump_compare(const struct dump *now, const struct dump *wanted, const struct dump *before);

#endif
