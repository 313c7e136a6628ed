/* Random commands on small tables, and what tables say. */
#include "test_engine_crash.h"

#define DDR_FRAMES 260u
#define NVME_FRAMES 400u
#define RUN_PAGES_MAX 9u

static const uint64_t windows[] = {0, 500, (1ull << 18) - 20};

static uint64_t page_of(uint32_t place)
{
	return windows[place / RIG_WINDOW] + place % RIG_WINDOW;
}

/* A number below `limit` (splitmix64). */
uint32_t rig_draw(struct rig *rig, uint32_t limit)
{
	uint64_t mixed = rig->random += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((mixed ^ mixed >> 31) >> 32) % limit;
}

void rig_init(struct rig *rig, uint64_t seed, uint64_t bytes)
{
	struct kvd_engine_config config = test_config;

	config.sessions_max = RIG_SESSIONS;
	config.arena_bytes = bytes;
	config.capacity_blocks[KVD_ABI_TIER_DDR] = 2000;
	config.total_frames[KVD_ABI_TIER_DDR] = DDR_FRAMES;
	config.total_frames[KVD_ABI_TIER_NVME] = NVME_FRAMES;
	rig->engine = engine_new(&config);
	rig->arena = rig->engine->base;
	rig->bytes = bytes;
	rig->random = seed;
}

void rig_fini(struct rig *rig)
{
	engine_end(rig->engine);
}

static void draw_runs(struct rig *rig, struct kvd_abi_cmd *cmd)
{
	struct kvd_abi_map_run *runs = (void *)rig->buffer;

	cmd->count = 1 + rig_draw(rig, 3);
	for (uint64_t i = 0; i < cmd->count; i++) {
		uint32_t offset = rig_draw(rig, RIG_WINDOW - RUN_PAGES_MAX);
		uint32_t first = rig_draw(rig, 3) * RIG_WINDOW + offset;

		runs[i] = (struct kvd_abi_map_run){page_of(first), 1 + rig_draw(rig, RUN_PAGES_MAX),
						   1 + rig_draw(rig, TEST_PAGE_BLOCKS), 0};
	}
}

static void draw_range(struct rig *rig, struct kvd_abi_cmd *cmd)
{
	cmd->first_page = rig_draw(rig, 3) ? page_of(rig_draw(rig, RIG_PLACES)) : 0;
	cmd->count = rig_draw(rig, 3) ? 1 + rig_draw(rig, 30) : KVD_PAGES_MAX;
}

static uint16_t draw_op(struct rig *rig)
{
	static const uint16_t ops[] = {
		KVD_ABI_OP_MAP,    KVD_ABI_OP_MAP,     KVD_ABI_OP_MAP,     KVD_ABI_OP_MAP,     KVD_ABI_OP_MAP,
		KVD_ABI_OP_UNMAP,  KVD_ABI_OP_UNMAP,   KVD_ABI_OP_REMAP,   KVD_ABI_OP_REMAP,   KVD_ABI_OP_REMAP,
		KVD_ABI_OP_REMAP,  KVD_ABI_OP_SHARE,   KVD_ABI_OP_SHARE,   KVD_ABI_OP_SHARE,   KVD_ABI_OP_UNSHARE,
		KVD_ABI_OP_UNSHARE, KVD_ABI_OP_RESERVE, KVD_ABI_OP_RESERVE, KVD_ABI_OP_LEASE,   KVD_ABI_OP_RESIZE,
		KVD_ABI_OP_SESSION_DESTROY,
	};

	return ops[rig_draw(rig, sizeof(ops) / sizeof(ops[0]))];
}

struct kvd_abi_cmd rig_command(struct rig *rig)
{
	uint32_t number = rig_draw(rig, RIG_SESSIONS);
	struct kvd_abi_cmd cmd = {.op = draw_op(rig), .id = rig_draw(rig, 1000), .session = rig->handle[number]};

	cmd.slot = (uint16_t)rig_draw(rig, RIG_SLOTS);
	cmd.other_slot = (uint16_t)((cmd.slot + 1 + rig_draw(rig, RIG_SLOTS - 1)) % RIG_SLOTS);
	cmd.tier = rig_draw(rig, 2) ? KVD_ABI_TIER_DDR : KVD_ABI_TIER_NVME;
	draw_range(rig, &cmd);
	if (!rig->handle[number]) {
		cmd.op = KVD_ABI_OP_SESSION_CREATE;
		cmd.key = number * 16 + 5;
	}
	switch (cmd.op) {
	case KVD_ABI_OP_MAP:
		draw_runs(rig, &cmd);
		cmd.flags = rig_draw(rig, 2) ? KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK : 0;
		break;
	case KVD_ABI_OP_REMAP:
		cmd.flags = (uint16_t)rig_draw(rig, 8);
		break;
	case KVD_ABI_OP_UNSHARE:
		cmd.flags = rig_draw(rig, 2) ? KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK : 0;
		break;
	case KVD_ABI_OP_SHARE:
		cmd.key = rig->handle[rig_draw(rig, RIG_SESSIONS)];
		break;
	case KVD_ABI_OP_RESERVE:
		cmd.count = rig_draw(rig, 400);
		break;
	case KVD_ABI_OP_RESIZE:
		cmd.count = 1500 + rig_draw(rig, 2500);
		break;
	case KVD_ABI_OP_LEASE:
		cmd.count = rig_draw(rig, 4) ? UINT64_MAX : 1;
		break;
	default:
		break;
	}
	if (kvd_engine_ops[cmd.op].needs & KVD_NEED_BUFFER) {
		cmd.buffer = (uintptr_t)rig->buffer;
		cmd.buffer_bytes = sizeof(rig->buffer);
	}
	return cmd;
}

void rig_follow(struct rig *rig, const struct kvd_abi_cmd *cmd, const struct kvd_abi_cpl *cpl)
{
	if (cpl->status)
		return;
	for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
		if (cmd->op == KVD_ABI_OP_SESSION_CREATE && i == cmd->key / 16)
			rig->handle[i] = cpl->result0;
		if (cmd->op == KVD_ABI_OP_SESSION_DESTROY && rig->handle[i] == cmd->session)
			rig->handle[i] = 0;
	}
}

struct walk {
	struct dump_session *to;
	uint64_t slot;
};

static void visit(void *context, uint64_t page, union kvd_entry *entries, uint32_t count)
{
	struct walk *walk = context;

	for (uint32_t i = 0; i < count; i++) {
		if (!entries[i].pte)
			continue;
		assert_true(entries[i].pte & KVD_ABI_PTE_VALID_MASK);
		assert_true(walk->to->pages < RIG_ENTRIES);
		walk->to->entries[walk->to->pages++] = (struct dump_entry){walk->slot, page + i, entries[i].pte};
	}
}

void dump_tables(const kvd_engine *engine, struct dump *dump)
{
	for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
		const struct kvd_session *session = kvd_session_at(engine, i);
		struct walk walk = {.to = &dump->sessions[i]};

		walk.to->handle = session->generation ? kvd_session_handle(engine, session) : 0;
		walk.to->pages = 0;
		if (!session->generation)
			continue;
		walk.to->key = session->key;
		walk.to->leases = session->leases;
		walk.to->state = session->state;
		memcpy(walk.to->reserved, session->reserved_blocks, sizeof(walk.to->reserved));
		for (walk.slot = 0; walk.slot < KVD_ENGINE_SLOTS_MAX; walk.slot++)
			kvd_table_walk(engine, &session->slots[walk.slot], 0, KVD_PAGES_MAX, visit, &walk);
	}
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		dump->capacity[i] = engine->head->tiers[i].capacity_blocks;
		dump->used[i] = engine->head->tiers[i].used_blocks;
		dump->reserved[i] = engine->head->tiers[i].reserved_blocks;
	}
}

/* Has the page the same entry there? */
static bool has(const struct dump_session *session, uint64_t handle, const struct dump_entry *wanted)
{
	for (uint64_t i = 0; session->handle == handle && i < session->pages; i++) {
		const struct dump_entry *entry = &session->entries[i];

		if (entry->slot == wanted->slot && entry->page == wanted->page)
			return !((entry->pte ^ wanted->pte) & ~KVD_ABI_PTE_SHARED_MASK);
	}
	return false;
}

static void compare_session(const struct dump_session *now, const struct dump_session *wanted,
			    const struct dump_session *before)
{
	assert_int_equal(now->handle, wanted->handle);
	if (!now->handle)
		return;
	assert_int_equal(now->key, wanted->key);
	assert_int_equal(now->leases, wanted->leases);
	assert_int_equal(now->state, wanted->state);
	assert_memory_equal(now->reserved, wanted->reserved, sizeof(now->reserved));
	assert_int_equal(now->pages, wanted->pages);
	for (uint64_t i = 0; i < now->pages; i++) {
		uint64_t mask = ~KVD_ABI_PTE_SHARED_MASK;

		if (before && !has(before, now->handle, &wanted->entries[i]))
			mask &= ~KVD_ABI_PTE_FRAME_MASK;
		assert_int_equal(now->entries[i].slot, wanted->entries[i].slot);
		assert_int_equal(now->entries[i].page, wanted->entries[i].page);
		assert_int_equal(now->entries[i].pte & mask, wanted->entries[i].pte & mask);
	}
}

void dump_compare(const struct dump *now, const struct dump *wanted, const struct dump *before)
{
	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		compare_session(&now->sessions[i], &wanted->sessions[i], before ? &before->sessions[i] : NULL);
	assert_memory_equal(now->capacity, wanted->capacity, sizeof(now->capacity));
	assert_memory_equal(now->used, wanted->used, sizeof(now->used));
	assert_memory_equal(now->reserved, wanted->reserved, sizeof(now->reserved));
}
