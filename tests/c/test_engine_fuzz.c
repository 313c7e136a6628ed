/* Commands of noise: no field is trusted, whatever the others say; only the buffer is really there. */
#include "test_engine.h"

#define COMMANDS 200000u
#define CHECK_EVERY 10007u
#define SESSIONS 8u /* as many as the engine has contexts */
#define BUFFER_WORDS 512u

/* splitmix64 */
static uint64_t draw(void)
{
	static uint64_t at = 1;
	uint64_t mixed = at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

/* A number as an attacker or a bug would send it: small, at an edge, or anything. */
static uint64_t draw_number(void)
{
	static const uint64_t edges[] = {
		0, 1, 8, 511, 512, 1ull << 18, KVD_PAGES_MAX - 1, KVD_PAGES_MAX, KVD_BLOCKS_MAX, INT64_MAX, UINT64_MAX,
	};

	switch (draw() % 4) {
	case 0:
		return edges[draw() % (sizeof(edges) / sizeof(edges[0]))];
	case 1:
		return draw();
	default:
		return draw() % 40;
	}
}

static void fill_buffer(uint64_t *buffer)
{
	struct kvd_abi_map_run *runs = (void *)buffer;

	for (uint32_t i = 0; i < BUFFER_WORDS; i++)
		buffer[i] = draw_number();
	/* Mostly runs that are nearly good. */
	for (uint32_t i = 0; draw() % 8 && i < 4; i++)
		runs[i] = (struct kvd_abi_map_run){draw_number(), 1 + draw() % 9, (uint32_t)draw() % 18, draw() % 30 == 0};
}

/* Half of the commands MAP; a session is destroyed seldom enough to hold something. */
static uint16_t draw_op(void)
{
	uint16_t op = (uint16_t)(draw() % (KVD_ABI_OP_COUNT + 1));

	return draw() % 2 || (op == KVD_ABI_OP_SESSION_DESTROY && draw() % 8) ? KVD_ABI_OP_MAP : op;
}

static struct kvd_abi_cmd draw_command(const uint64_t *sessions, uint64_t *buffer)
{
	return (struct kvd_abi_cmd){
		.id = (uint32_t)draw(),
		.op = draw_op(),
		.flags = (uint16_t)(draw() % 2 ? 0 : draw() % 65),
		.session = draw() % 8 ? sessions[draw() % SESSIONS] : draw_number(),
		.slot = (uint16_t)(draw() % 8 ? draw() % 3 : draw()),
		.other_slot = (uint16_t)(draw() % 8 ? draw() % 3 : draw()),
		.tier = (uint32_t)(draw() % 8 ? 1 + draw() % 3 : draw()),
		.first_page = draw_number(),
		.count = draw_number(),
		.key = draw() % 4 ? draw_number() : sessions[draw() % SESSIONS],
		.buffer = (uintptr_t)buffer,
		.buffer_bytes = draw() % (BUFFER_WORDS * sizeof(*buffer) + 1),
	};
}

/* Make a command one that can succeed: pure noise would hardly map a page and shrink the tiers to nothing. */
static void mend(struct kvd_abi_cmd *cmd)
{
	switch (cmd->op) {
	case KVD_ABI_OP_MAP:
		cmd->count = draw() % 3;
		cmd->flags &= KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK;
		break;
	case KVD_ABI_OP_REMAP:
		cmd->flags = (uint16_t)(draw() % 8);
		cmd->first_page = 0;
		cmd->other_slot = (uint16_t)(cmd->slot ^ 1);
		break;
	case KVD_ABI_OP_SHARE:
	case KVD_ABI_OP_UNSHARE:
		cmd->flags = 0;
		cmd->first_page = 0;
		cmd->other_slot = (uint16_t)(cmd->slot ^ 1);
		break;
	case KVD_ABI_OP_RESIZE:
		cmd->count = draw() % TEST_NVME_BLOCKS;
		break;
	default:
		break;
	}
}

/* Know the sessions that live; 0: none. */
static void follow(uint64_t *sessions, const struct kvd_abi_cmd *cmd, const struct kvd_abi_cpl *cpl)
{
	bool created = cmd->op == KVD_ABI_OP_SESSION_CREATE;

	if (!created && cmd->op != KVD_ABI_OP_SESSION_DESTROY)
		return;
	for (uint32_t i = 0; i < SESSIONS; i++) {
		if (sessions[i] == (created ? 0 : cmd->session)) {
			sessions[i] = created ? cpl->result0 : 0;
			return;
		}
	}
}

static uint64_t buffer[BUFFER_WORDS];

/* Only the buffer is there, wherever a command or what it points to leads. */
static void *reach(void *context, uint64_t address, uint64_t bytes, int writable)
{
	uint64_t offset = address - (uintptr_t)buffer;

	(void)context;
	(void)writable;
	return offset <= sizeof(buffer) && bytes <= sizeof(buffer) - offset ? (void *)(uintptr_t)address : NULL;
}

static void test_noise(void **state)
{
	uint64_t sessions[SESSIONS] = {0};
	uint64_t seen[KVD_ABI_STATUS_COUNT] = {0};
	kvd_engine *owner = engine_new(&test_config), *engine;

	(void)state;
	kvd_engine_leave(owner);
	assert_int_equal(kvd_engine_attach(owner->base, test_config.arena_bytes, reach, NULL, &engine), 0);
	for (uint32_t i = 0; i < COMMANDS; i++) {
		struct kvd_abi_cmd cmd;
		struct kvd_abi_cpl cpl;

		fill_buffer(buffer);
		cmd = draw_command(sessions, buffer);
		if (draw() % 4)
			mend(&cmd);
		kvd_engine_submit(engine, &cmd, &cpl, 1);
		assert_int_equal(cpl.id, cmd.id);
		assert_true(cpl.status < KVD_ABI_STATUS_COUNT);
		seen[cpl.status]++;
		if (cpl.status == KVD_ABI_STATUS_OK)
			follow(sessions, &cmd, &cpl);
		/* Give big leases back, or nothing could move any more. */
		if (cmd.op == KVD_ABI_OP_LEASE && cpl.result0 > 1)
			assert_ok(lease(engine, cmd.session, 0 - (int64_t)cpl.result0));
		if (i % CHECK_EVERY == 0)
			assert_consistent(engine);
	}
	for (uint32_t status = 0; status <= KVD_ABI_STATUS_EXISTS; status++)
		assert_true(seen[status] > COMMANDS / 10000);
	assert_true(seen[KVD_ABI_STATUS_SHARED] > 0);
	kvd_engine_fini(engine);
	engine_end(owner);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
