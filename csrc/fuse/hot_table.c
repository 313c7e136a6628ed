/* The hot table's memory: slots of inodes, the pool of names, folders, and how each is found. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "fuse/internal.h"

enum {
	KVD_HOT_FOLDER_SHARE = 8, /* inodes a bucket of folders */
	KVD_HOT_BUCKETS_MIN = 64,
};

static size_t power_of_two(size_t at_least)
{
	size_t value = KVD_HOT_BUCKETS_MIN;

	while (value < at_least)
		value *= 2;
	return value;
}

static int locks_init(struct kvd_hot *hot)
{
	pthread_rwlockattr_t prefer;
	int error = pthread_rwlockattr_init(&prefer);

	if (error)
		return -error;
	/* A stream of requests must not keep the control plane out. */
	pthread_rwlockattr_setkind_np(&prefer, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	error = pthread_rwlock_init(&hot->lock, &prefer);
	pthread_rwlockattr_destroy(&prefer);
	if (error)
		return -error;
	error = pthread_mutex_init(&hot->used_lock, NULL);
	if (error)
		pthread_rwlock_destroy(&hot->lock);
	return -error;
}

int kvd_hot_init(struct kvd_hot *hot, const struct kvd_split_config *config)
{
	bool on = config->hot_inodes_max > 0 && config->hot_names_max > 0;
	int error = locks_init(hot);

	if (error || !on)
		return error;
	hot->inodes_max = config->hot_inodes_max;
	hot->names_max = config->hot_names_max;
	hot->absent_ms = config->hot_absent_ms;
	hot->absent_max = hot->names_max / KVD_HOT_ABSENT_SHARE + 1;
	hot->n_inode_buckets = power_of_two(hot->inodes_max);
	hot->n_name_buckets = power_of_two(hot->names_max);
	hot->n_folder_buckets = power_of_two(hot->inodes_max / KVD_HOT_FOLDER_SHARE);
	hot->inode_next = 1;
	hot->pool.next_unit = KVD_HOT_CHUNK_UNITS;
	/* Of the greatest possible size at once, so that nothing is ever rehashed; what is not used is not in memory. */
	hot->inodes = calloc((size_t)hot->inodes_max + 1, sizeof(*hot->inodes));
	hot->inode_buckets = calloc(hot->n_inode_buckets, sizeof(*hot->inode_buckets));
	hot->name_buckets = calloc(hot->n_name_buckets, sizeof(*hot->name_buckets));
	hot->folder_buckets = calloc(hot->n_folder_buckets, sizeof(struct kvd_hot_folder *));
	hot->absent = calloc(hot->absent_max, sizeof(*hot->absent));
	if (hot->inodes && hot->inode_buckets && hot->name_buckets && hot->folder_buckets && hot->absent &&
	    getrandom(&hot->seed, sizeof(hot->seed), 0) == sizeof(hot->seed))
		return 0;
	kvd_hot_fini(hot);
	return -ENOMEM;
}

static void folder_free(struct kvd_hot_folder *folder)
{
	for (uint32_t i = 0; i < folder->n_runs; i++)
		free(folder->runs[i]);
	free(folder->runs);
	free(folder);
}

void kvd_hot_fini(struct kvd_hot *hot)
{
	for (size_t i = 0; hot->folder_buckets && i < hot->n_folder_buckets; i++) {
		while (hot->folder_buckets[i]) {
			struct kvd_hot_folder *folder = hot->folder_buckets[i];

			hot->folder_buckets[i] = folder->next;
			folder_free(folder);
		}
	}
	for (uint32_t i = 0; i < hot->pool.n_chunks; i++)
		free(hot->pool.chunks[i]);
	free(hot->pool.chunks);
	free(hot->absent);
	free(hot->folder_buckets);
	free(hot->name_buckets);
	free(hot->inode_buckets);
	free(hot->inodes);
	pthread_mutex_destroy(&hot->used_lock);
	pthread_rwlock_destroy(&hot->lock);
}

static uint32_t *inode_bucket(const struct kvd_hot *hot, uint64_t node)
{
	return &hot->inode_buckets[kvd_hash(node, hot->n_inode_buckets)];
}

struct kvd_hot_inode *kvd_hot_inode_find(const struct kvd_hot *hot, uint64_t node)
{
	uint32_t slot;

	if (kvd_hot_is_off(hot))
		return NULL;
	slot = *inode_bucket(hot, node);
	while (slot && hot->inodes[slot].node != node)
		slot = hot->inodes[slot].next;
	return slot ? &hot->inodes[slot] : NULL;
}

struct kvd_hot_inode *kvd_hot_inode_new(struct kvd_hot *hot, uint64_t node)
{
	uint32_t slot = hot->inode_free;
	struct kvd_hot_inode *inode;
	uint32_t *bucket;

	if (kvd_hot_is_off(hot))
		return NULL;
	if (slot)
		hot->inode_free = hot->inodes[slot].next;
	else if (hot->inode_next <= hot->inodes_max)
		slot = hot->inode_next++;
	else
		return NULL;
	inode = &hot->inodes[slot];
	bucket = inode_bucket(hot, node);
	memset(inode, 0, sizeof(*inode));
	inode->node = node;
	inode->next = *bucket;
	*bucket = slot;
	hot->n_inodes++;
	return inode;
}

void kvd_hot_inode_used(struct kvd_hot *hot, struct kvd_hot_inode *inode)
{
	uint32_t slot = (uint32_t)(inode - hot->inodes);
	struct kvd_hot_inode *head = &hot->inodes[0];

	if (atomic_exchange(&inode->used, true))
		return;
	pthread_mutex_lock(&hot->used_lock);
	inode->used_next = 0;
	inode->used_prev = head->used_prev;
	hot->inodes[head->used_prev].used_next = slot;
	head->used_prev = slot;
	pthread_mutex_unlock(&hot->used_lock);
}

/* In a write section: nobody adds to the list. */
static uint32_t take_opens(struct kvd_hot *hot, struct kvd_hot_inode *inode)
{
	if (atomic_exchange(&inode->used, false)) {
		pthread_mutex_lock(&hot->used_lock);
		hot->inodes[inode->used_prev].used_next = inode->used_next;
		hot->inodes[inode->used_next].used_prev = inode->used_prev;
		pthread_mutex_unlock(&hot->used_lock);
	}
	return atomic_exchange(&inode->opens, 0);
}

uint32_t kvd_hot_used(kvd_split *split, struct kvd_hot_use *out, uint32_t max)
{
	struct kvd_hot *hot = &split->hot;
	uint32_t n = 0;

	if (kvd_hot_is_off(hot))
		return 0;
	pthread_rwlock_wrlock(&hot->lock);
	for (; n < max && hot->inodes[0].used_next; n++) {
		struct kvd_hot_inode *inode = &hot->inodes[hot->inodes[0].used_next];

		out[n].node = inode->node;
		out[n].leases = atomic_load(&inode->leases);
		out[n].opens = take_opens(hot, inode);
	}
	pthread_rwlock_unlock(&hot->lock);
	return n;
}

void kvd_hot_inode_shut(struct kvd_hot *hot, struct kvd_hot_inode *inode, struct kvd_hot_gone *gone)
{
	gone->node = inode->node;
	gone->leases = atomic_exchange(&inode->leases, 0);
	gone->opens = take_opens(hot, inode);
	atomic_fetch_sub(&hot->leases, gone->leases);
	if (inode->shared)
		hot->n_shared--;
	inode->shared = false;
}

void kvd_hot_inode_free(struct kvd_hot *hot, struct kvd_hot_inode *inode, struct kvd_hot_gone *gone)
{
	uint32_t slot = (uint32_t)(inode - hot->inodes);
	uint32_t *at = inode_bucket(hot, inode->node);

	kvd_hot_inode_shut(hot, inode, gone);
	gone->lookups = atomic_exchange(&inode->lookups, 0);
	while (*at != slot)
		at = &hot->inodes[*at].next;
	*at = inode->next;
	inode->node = 0;
	inode->next = hot->inode_free;
	hot->inode_free = slot;
	hot->n_inodes--;
}

static struct kvd_hot_folder **folder_bucket(const struct kvd_hot *hot, uint64_t node)
{
	return &hot->folder_buckets[kvd_hash(node, hot->n_folder_buckets)];
}

struct kvd_hot_folder *kvd_hot_folder_find(const struct kvd_hot *hot, uint64_t node)
{
	struct kvd_hot_folder *folder;

	if (kvd_hot_is_off(hot))
		return NULL;
	folder = *folder_bucket(hot, node);
	while (folder && folder->node != node)
		folder = folder->next;
	return folder;
}

struct kvd_hot_folder *kvd_hot_folder_need(struct kvd_hot *hot, uint64_t node)
{
	struct kvd_hot_folder *folder = kvd_hot_folder_find(hot, node);
	struct kvd_hot_folder **bucket;

	if (folder || kvd_hot_is_off(hot) || hot->n_folders >= hot->inodes_max)
		return folder;
	folder = calloc(1, sizeof(*folder));
	if (!folder)
		return NULL;
	bucket = folder_bucket(hot, node);
	folder->node = node;
	folder->next = *bucket;
	*bucket = folder;
	hot->n_folders++;
	return folder;
}

void kvd_hot_folder_tidy(struct kvd_hot *hot, struct kvd_hot_folder *folder)
{
	struct kvd_hot_folder **at = folder_bucket(hot, folder->node);

	if (folder->state != KVD_HOT_PARTIAL || folder->names > 0)
		return;
	while (*at != folder)
		at = &(*at)->next;
	*at = folder->next;
	hot->n_folders--;
	folder_free(folder);
}

struct kvd_hot_name *kvd_hot_name_at(const struct kvd_hot *hot, uint32_t number)
{
	uint8_t *chunk = hot->pool.chunks[number / KVD_HOT_CHUNK_UNITS];

	return (void *)(chunk + (size_t)(number % KVD_HOT_CHUNK_UNITS) * KVD_HOT_UNIT_BYTES);
}

static uint32_t *name_bucket(const struct kvd_hot *hot, uint64_t folder, const char *text, uint32_t bytes)
{
	const uint64_t odd = 0x9e3779b97f4a7c15ull;
	uint64_t hash = (hot->seed ^ folder) * odd;

	for (uint32_t at = 0; at < bytes; at += sizeof(uint64_t)) {
		uint64_t word = 0;

		memcpy(&word, text + at, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
		hash = (hash ^ (hash >> 29) ^ word) * odd;
	}
	return &hot->name_buckets[kvd_hash(hash ^ (hash >> 32), hot->n_name_buckets)];
}

uint32_t kvd_hot_name_find(const struct kvd_hot *hot, const struct kvd_hot_folder *folder, const char *text,
			   uint32_t bytes)
{
	uint32_t number = *name_bucket(hot, folder->node, text, bytes);

	while (number) {
		const struct kvd_hot_name *name = kvd_hot_name_at(hot, number);

		if (name->folder == folder && name->bytes == bytes && memcmp(name->text, text, bytes) == 0)
			break;
		number = name->next;
	}
	return number;
}

static uint32_t units_of(uint32_t bytes)
{
	return (uint32_t)(offsetof(struct kvd_hot_name, text) + bytes + KVD_HOT_UNIT_BYTES - 1) / KVD_HOT_UNIT_BYTES;
}

static bool pool_grow(struct kvd_hot_pool *pool)
{
	uint32_t chunks_max = pool->chunks_max ? pool->chunks_max * 2 : 1;
	uint8_t **chunks = pool->chunks;

	if (pool->n_chunks == pool->chunks_max) {
		if (chunks_max > KVD_HOT_CHUNKS_MAX)
			return false;
		chunks = realloc(pool->chunks, chunks_max * sizeof(uint8_t *));
		if (!chunks)
			return false;
		pool->chunks = chunks;
		pool->chunks_max = chunks_max;
	}
	chunks[pool->n_chunks] = malloc((size_t)KVD_HOT_CHUNK_UNITS * KVD_HOT_UNIT_BYTES);
	if (!chunks[pool->n_chunks])
		return false;
	/* Unit 0 of all is nobody. */
	pool->next_unit = pool->n_chunks == 0;
	pool->n_chunks++;
	return true;
}

/* The number of `units` units, or 0. What is left of a chunk at its end is lost. */
static uint32_t pool_take(struct kvd_hot *hot, uint32_t units)
{
	struct kvd_hot_pool *pool = &hot->pool;
	uint32_t number = pool->free[units];

	if (number) {
		pool->free[units] = kvd_hot_name_at(hot, number)->next;
		return number;
	}
	if (pool->next_unit + units > KVD_HOT_CHUNK_UNITS && !pool_grow(pool))
		return 0;
	number = (pool->n_chunks - 1) * KVD_HOT_CHUNK_UNITS + pool->next_unit;
	pool->next_unit += units;
	return number;
}

uint32_t kvd_hot_name_new(struct kvd_hot *hot, struct kvd_hot_folder *folder, const char *text, uint32_t bytes)
{
	uint32_t number = hot->n_names < hot->names_max ? pool_take(hot, units_of(bytes)) : 0;
	uint32_t *bucket = name_bucket(hot, folder->node, text, bytes);
	struct kvd_hot_name *name;

	if (!number)
		return 0;
	name = kvd_hot_name_at(hot, number);
	name->cookie = 0;
	name->node = 0;
	name->folder = folder;
	name->bytes = (uint8_t)bytes;
	name->flags = 0;
	memcpy(name->text, text, bytes);
	name->next = *bucket;
	*bucket = number;
	folder->names++;
	hot->n_names++;
	return number;
}

void kvd_hot_name_free(struct kvd_hot *hot, uint32_t number)
{
	struct kvd_hot_name *name = kvd_hot_name_at(hot, number);
	uint32_t *at = name_bucket(hot, name->folder->node, name->text, name->bytes);
	uint32_t units = units_of(name->bytes);

	while (*at != number)
		at = &kvd_hot_name_at(hot, *at)->next;
	*at = name->next;
	name->folder->names--;
	hot->n_names--;
	name->next = hot->pool.free[units];
	hot->pool.free[units] = number;
}
