/* The arena: its layout, and how it is made and wiped. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/internal.h"

#define HUGE_BYTES (2ull << 20)

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* Lay a tier's bitmaps out from `at`; returns where the next table may start. */
static uint64_t layout_tier(struct kvd_tier *tier, uint64_t at)
{
	uint64_t words;

	do {
		words = kvd_frames_level_words(tier->total_frames, tier->levels);
		tier->level_at[tier->levels++] = at;
		at += round_up(words * sizeof(uint64_t), KVD_UNIT_BYTES);
	} while (words > 1);
	return at;
}

int kvd_arena_layout(struct kvd_head *head, const struct kvd_engine_config *config)
{
	uint64_t buckets = 1;
	uint64_t at = round_up(sizeof(*head), KVD_UNIT_BYTES);

	while (buckets < config->sessions_max)
		buckets *= 2;
	*head = (struct kvd_head){
		.magic = KVD_ARENA_MAGIC,
		.version = KVD_ARENA_VERSION,
		.page_bytes = config->page_bytes,
		.arena_bytes = config->arena_bytes,
		.sessions_max = config->sessions_max,
		.hash_mask = buckets - 1,
		.journal_entries = KVD_ENGINE_JOURNAL_ENTRIES,
	};
	head->sessions_at = at;
	at += config->sessions_max * sizeof(struct kvd_session);
	head->hash_at = at;
	at += round_up(buckets * sizeof(uint32_t), KVD_UNIT_BYTES);
	head->journal_at = at;
	at += round_up(head->journal_entries * sizeof(struct kvd_abi_journal_entry), KVD_UNIT_BYTES);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		struct kvd_tier *tier = &head->tiers[i];

		tier->capacity_blocks = config->capacity_blocks[i];
		tier->total_frames = config->total_frames[i] ? config->total_frames[i] : config->capacity_blocks[i];
		if (tier->total_frames)
			at = layout_tier(tier, at);
	}
	head->heap_at = round_up(at, KVD_NODE_BYTES_MAX);
	head->heap_next = head->heap_at;
	head->heap_end = config->arena_bytes / KVD_NODE_BYTES_MAX * KVD_NODE_BYTES_MAX;
	return head->heap_end > head->heap_at ? 0 : -EINVAL;
}

void kvd_arena_adopt(struct kvd_engine *engine, const struct kvd_head *layout)
{
	engine->layout = *layout;
	engine->unit_first = layout->heap_at / KVD_UNIT_BYTES;
	engine->units = (layout->heap_end - layout->heap_at) / KVD_UNIT_BYTES;
	engine->page_blocks = layout->page_bytes / KVD_BLOCK_BYTES;
}

/* Write the head into an arena of zeroes; the magic last, so that half a head is no tables. */
static void format(struct kvd_engine *engine, const struct kvd_head *layout)
{
	struct kvd_head head = *layout;

	kvd_arena_adopt(engine, layout);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++)
		kvd_frames_init(engine, i);
	head.magic = 0;
	head.in_use = 1;
	*engine->head = head;
	kvd_put(&engine->head->magic, layout->magic);
}

/* Make a file a hole of the arena's size. */
static int wipe_file(int fd, uint64_t bytes)
{
	if (ftruncate(fd, 0) || ftruncate(fd, (off_t)bytes))
		return -errno;
	return 0;
}

/* Map the arena's file, or memory without one, of the layout's size. */
static int map_arena(struct kvd_engine *engine, uint64_t bytes)
{
	int protection = engine->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	int flags = MAP_NORESERVE | (engine->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
	void *base = mmap(NULL, bytes, protection, flags, engine->fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	engine->base = base;
	engine->head = base;
	engine->mapped = true;
	return 0;
}

/* Random look-ups in small pages cost a miss of the TLB each; a system without huge pages is only slower. */
static void advise_heap(const struct kvd_engine *engine)
{
	uint64_t from = round_up(engine->layout.heap_at, HUGE_BYTES);

	if (from < engine->layout.heap_end)
		madvise(engine->base + from, engine->layout.heap_end - from, MADV_HUGEPAGE);
}

static int map_new(struct kvd_engine *engine, const struct kvd_engine_config *config)
{
	struct kvd_head layout;
	int err;

	err = kvd_arena_layout(&layout, config);
	if (!err && engine->fd >= 0)
		err = wipe_file(engine->fd, layout.arena_bytes);
	if (!err)
		err = map_arena(engine, layout.arena_bytes);
	if (!err)
		format(engine, &layout);
	return err;
}

static int map_old(struct kvd_engine *engine)
{
	struct kvd_head head;
	struct stat stat;
	int err;

	if (fstat(engine->fd, &stat))
		return -errno;
	if (pread(engine->fd, &head, sizeof(head), 0) != sizeof(head))
		return -EINVAL;
	err = kvd_arena_validate(&head, (uint64_t)stat.st_size);
	if (!err)
		err = map_arena(engine, head.arena_bytes);
	if (!err)
		kvd_arena_adopt(engine, &head);
	return err;
}

int kvd_arena_init(struct kvd_engine *engine, const struct kvd_engine_config *config)
{
	int err;

	engine->fd = -1;
	engine->read_only = config->flags & KVD_ENGINE_READ_ONLY;
	if (config->arena_fd >= 0) {
		engine->fd = fcntl(config->arena_fd, F_DUPFD_CLOEXEC, 0);
		if (engine->fd < 0)
			return -errno;
	}
	err = config->flags & KVD_ENGINE_ATTACH ? map_old(engine) : map_new(engine, config);
	if (!err)
		advise_heap(engine);
	else if (engine->fd >= 0)
		close(engine->fd);
	return err;
}

void kvd_arena_fini(struct kvd_engine *engine)
{
	if (engine->mapped)
		munmap(engine->base, engine->layout.arena_bytes);
	if (engine->fd >= 0)
		close(engine->fd);
}

/* Zero a piece of the caller's memory without touching what is zero already. */
static void zero_memory(unsigned char *base, uint64_t bytes)
{
	uint64_t *words = (uint64_t *)(void *)base;

	for (uint64_t i = 0; i < bytes / sizeof(*words); i++) {
		if (words[i])
			words[i] = 0;
	}
}

int kvd_arena_reset(struct kvd_engine *engine)
{
	struct kvd_head layout = engine->layout;
	const struct kvd_head *head = engine->head;
	int err = 0;

	layout.sequence = head->sequence;
	layout.generation = head->generation;
	layout.refused = head->refused;
	layout.refused_transitions = head->refused_transitions;
	layout.age = head->age;
	layout.age_floor = head->age; /* no page is left that could be older */
	layout.sessions_high = 0;
	layout.sessions_live = 0;
	layout.session_free = 0;
	layout.table_bytes = 0;
	layout.mapped_pages = 0;
	layout.heap_next = layout.heap_at;
	memset(layout.free_nodes, 0, sizeof(layout.free_nodes));
	memset(&layout.prefix, 0, sizeof(layout.prefix));
	memset(&layout.intent, 0, sizeof(layout.intent));
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		struct kvd_tier *tier = &layout.tiers[i];

		tier->capacity_blocks = head->tiers[i].capacity_blocks;
		tier->used_blocks = 0;
		tier->reserved_blocks = 0;
		tier->used_frames = 0;
		tier->next_frame = 0;
		tier->high_frame = 0;
		tier->shares = 0;
	}
	if (!engine->mapped)
		zero_memory(engine->base, layout.arena_bytes);
	else if (engine->fd >= 0)
		err = wipe_file(engine->fd, layout.arena_bytes);
	else if (madvise(engine->base, layout.arena_bytes, MADV_DONTNEED))
		err = -errno;
	if (!err)
		format(engine, &layout);
	return err;
}
