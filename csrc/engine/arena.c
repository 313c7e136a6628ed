/* The arena: its layout, and the pool of table nodes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/internal.h"

#define CLASS_LAST (KVD_NODE_CLASSES - 1)

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* Lay a tier's bitmaps out from `at`; returns where the next table may start. */
static uint64_t layout_tier(struct kvd_tier *tier, uint64_t at)
{
	uint64_t words;

	do {
		words = kvd_frames_level_words(tier, tier->levels);
		tier->level_at[tier->levels++] = at;
		at += round_up(words * sizeof(uint64_t), KVD_UNIT_BYTES);
	} while (words > 1);
	return at;
}

/* Fill `head` from the configuration. -EINVAL: the arena is too small. */
static int layout(struct kvd_head *head, const struct kvd_engine_config *config)
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
	};
	head->sessions_at = at;
	at += config->sessions_max * sizeof(struct kvd_session);
	head->hash_at = at;
	at += round_up(buckets * sizeof(uint32_t), KVD_UNIT_BYTES);
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

/* Write the head into an arena of zeroes. */
static void format(struct kvd_engine *engine, const struct kvd_head *head)
{
	*engine->head = *head;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		if (head->tiers[i].total_frames)
			kvd_frames_init(engine, &engine->head->tiers[i]);
	}
}

/* Make a file a hole of the arena's size. */
static int wipe_file(int fd, uint64_t bytes)
{
	if (ftruncate(fd, 0) || ftruncate(fd, (off_t)bytes))
		return -errno;
	return 0;
}

int kvd_arena_init(struct kvd_engine *engine, const struct kvd_engine_config *config)
{
	struct kvd_head head;
	void *base;
	int flags = MAP_NORESERVE;
	int err;

	err = layout(&head, config);
	if (err)
		return err;
	engine->fd = -1;
	if (config->arena_fd >= 0) {
		engine->fd = fcntl(config->arena_fd, F_DUPFD_CLOEXEC, 0);
		if (engine->fd < 0)
			return -errno;
		err = wipe_file(engine->fd, config->arena_bytes);
		if (err)
			goto close_file;
		flags |= MAP_SHARED;
	} else {
		flags |= MAP_PRIVATE | MAP_ANONYMOUS;
	}
	base = mmap(NULL, config->arena_bytes, PROT_READ | PROT_WRITE, flags, engine->fd, 0);
	if (base == MAP_FAILED) {
		err = -errno;
		goto close_file;
	}
	engine->base = base;
	engine->head = base;
	format(engine, &head);
	return 0;

close_file:
	if (engine->fd >= 0)
		close(engine->fd);
	return err;
}

void kvd_arena_fini(struct kvd_engine *engine)
{
	munmap(engine->base, engine->head->arena_bytes);
	if (engine->fd >= 0)
		close(engine->fd);
}

int kvd_arena_reset(struct kvd_engine *engine)
{
	struct kvd_head head = *engine->head;
	int err = 0;

	head.sessions_high = 0;
	head.sessions_live = 0;
	head.session_free = 0;
	head.heap_next = head.heap_at;
	memset(head.free_nodes, 0, sizeof(head.free_nodes));
	head.table_bytes = 0;
	head.mapped_pages = 0;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		struct kvd_tier *tier = &head.tiers[i];

		tier->used_blocks = 0;
		tier->reserved_blocks = 0;
		tier->used_frames = 0;
		tier->next_frame = 0;
		tier->high_frame = 0;
	}
	if (engine->fd >= 0)
		err = wipe_file(engine->fd, head.arena_bytes);
	else if (madvise(engine->base, head.arena_bytes, MADV_DONTNEED))
		err = -errno;
	if (!err)
		format(engine, &head);
	return err;
}

static void node_push(struct kvd_engine *engine, uint32_t node, uint32_t node_class)
{
	kvd_entries(engine, node)->pte = engine->head->free_nodes[node_class];
	engine->head->free_nodes[node_class] = node;
}

/* A node with any content, or 0. A small one is half of one of the next class, so all are naturally aligned. */
static uint32_t node_take(struct kvd_engine *engine, uint32_t node_class)
{
	struct kvd_head *head = engine->head;
	uint32_t node = head->free_nodes[node_class];
	uint32_t units = kvd_class_bytes(node_class) / KVD_UNIT_BYTES;

	if (node) {
		head->free_nodes[node_class] = (uint32_t)kvd_entries(engine, node)->pte;
		return node;
	}
	if (node_class == CLASS_LAST) {
		if (head->heap_next == head->heap_end)
			return 0;
		node = (uint32_t)(head->heap_next / KVD_UNIT_BYTES);
		head->heap_next += KVD_NODE_BYTES_MAX;
		return node;
	}
	node = node_take(engine, node_class + 1);
	if (!node)
		return 0;
	node_push(engine, node + units, node_class);
	return node;
}

bool kvd_node_widen(struct kvd_engine *engine, struct kvd_link *link, uint32_t index)
{
	uint8_t node_class = 0;
	union kvd_entry *entries;
	uint32_t node;

	while (index >= kvd_class_entries(node_class))
		node_class++;
	assert(node_class < KVD_NODE_CLASSES);
	if (link->node && link->node_class >= node_class)
		return true;
	node = node_take(engine, node_class);
	if (!node)
		return false;
	entries = kvd_entries(engine, node);
	memset(entries, 0, kvd_class_bytes(node_class));
	engine->head->table_bytes += kvd_class_bytes(node_class);
	if (link->node) {
		memcpy(entries, kvd_entries(engine, link->node), kvd_class_bytes(link->node_class));
		engine->head->table_bytes -= kvd_class_bytes(link->node_class);
		node_push(engine, link->node, link->node_class);
	}
	link->node = node;
	link->node_class = node_class;
	return true;
}

void kvd_node_free(struct kvd_engine *engine, struct kvd_link *link)
{
	engine->head->table_bytes -= kvd_class_bytes(link->node_class);
	node_push(engine, link->node, link->node_class);
	*link = (struct kvd_link){0};
}
