#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/internal.h"

int kvd_pending_init(struct kvd_pending *pending, uint32_t max)
{
	int error = pthread_mutex_init(&pending->lock, NULL);

	if (error)
		return -error;
	pending->n_buckets = 1;
	while (pending->n_buckets < max)
		pending->n_buckets *= 2;
	pending->work_last = &pending->work_first;
	pending->entries = calloc(max, sizeof(*pending->entries));
	pending->buckets = calloc(pending->n_buckets, sizeof(struct kvd_entry *));
	if (!pending->entries || !pending->buckets) {
		kvd_pending_fini(pending);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < max; i++) {
		pending->entries[i].next = pending->free;
		pending->free = &pending->entries[i];
	}
	return 0;
}

void kvd_pending_fini(struct kvd_pending *pending)
{
	free(pending->buckets);
	free(pending->entries);
	pthread_mutex_destroy(&pending->lock);
}

static struct kvd_entry **find(struct kvd_pending *pending, uint64_t unique)
{
	struct kvd_entry **at = &pending->buckets[kvd_hash(unique, pending->n_buckets)];

	while (*at && (*at)->unique != unique)
		at = &(*at)->next;
	return at;
}

/* The interrupt of a request that one reader holds may be read by another before the first has entered it. */
static bool came_early(const struct kvd_pending *pending, uint64_t unique)
{
	for (uint32_t i = 0; i < KVD_EARLY_INTERRUPTS; i++)
		if (pending->early[i] == unique)
			return true;
	return false;
}

bool kvd_pending_came_early(struct kvd_pending *pending, uint64_t unique)
{
	bool early;

	pthread_mutex_lock(&pending->lock);
	early = came_early(pending, unique);
	pthread_mutex_unlock(&pending->lock);
	return early;
}

static bool may_give_up(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_OPEN:
	case FUSE_FSYNC:
	case FUSE_READ:
	case FUSE_WRITE:
		return true;
	default:
		return false;
	}
}

static int check_add(struct kvd_pending *pending, const struct fuse_in_header *header, bool parked)
{
	if (pending->refusal)
		return pending->refusal;
	if (!pending->free)
		return -ENOMEM;
	if (*find(pending, header->unique))
		return -EEXIST;
	if ((parked || may_give_up(header->opcode)) && came_early(pending, header->unique))
		return -EINTR;
	return 0;
}

int kvd_pending_add(struct kvd_pending *pending, const struct fuse_in_header *header, uint32_t open_flags,
		    struct kvd_parked *parked)
{
	struct kvd_entry *entry;
	int error;

	pthread_mutex_lock(&pending->lock);
	error = check_add(pending, header, parked != NULL);
	if (!error) {
		struct kvd_entry **at = find(pending, header->unique);

		entry = pending->free;
		pending->free = entry->next;
		*entry = (struct kvd_entry){
			.unique = header->unique,
			.node = header->nodeid,
			.opcode = header->opcode,
			.open_flags = open_flags,
			.parked = parked,
			.state = parked ? KVD_PENDING_PARKED : KVD_PENDING_FORWARDED,
		};
		*at = entry;
		atomic_fetch_add_explicit(&pending->used, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&pending->lock);
	return error;
}

struct kvd_entry *kvd_pending_take(struct kvd_pending *pending, uint64_t unique)
{
	struct kvd_entry **at;
	struct kvd_entry *entry;

	pthread_mutex_lock(&pending->lock);
	at = find(pending, unique);
	entry = *at;
	if (entry)
		*at = entry->next;
	pthread_mutex_unlock(&pending->lock);
	return entry;
}

struct kvd_entry *kvd_pending_take_any(struct kvd_pending *pending)
{
	struct kvd_entry *entry = NULL;

	pthread_mutex_lock(&pending->lock);
	for (size_t i = 0; i < pending->n_buckets && !entry; i++) {
		entry = pending->buckets[i];
		if (entry)
			pending->buckets[i] = entry->next;
	}
	pthread_mutex_unlock(&pending->lock);
	return entry;
}

static void parked_free_locked(struct kvd_pending *pending, struct kvd_parked *parked)
{
	if (!parked)
		return;
	pending->parked_bytes -= parked->bytes;
	free(parked);
}

void kvd_pending_free(struct kvd_pending *pending, struct kvd_entry *entry)
{
	pthread_mutex_lock(&pending->lock);
	parked_free_locked(pending, entry->parked);
	entry->parked = NULL;
	entry->next = pending->free;
	pending->free = entry;
	pthread_mutex_unlock(&pending->lock);
	atomic_fetch_sub_explicit(&pending->used, 1, memory_order_relaxed);
}

void kvd_pending_close(struct kvd_pending *pending, int refusal)
{
	pthread_mutex_lock(&pending->lock);
	pending->refusal = refusal;
	pthread_mutex_unlock(&pending->lock);
}

bool kvd_pending_interrupt(struct kvd_pending *pending, uint64_t unique)
{
	struct kvd_entry *entry;
	bool given_up = false;

	pthread_mutex_lock(&pending->lock);
	entry = *find(pending, unique);
	if (!entry) {
		pending->early[pending->early_next++ % KVD_EARLY_INTERRUPTS] = unique;
	} else if (entry->state == KVD_PENDING_PARKED ||
		   (entry->state == KVD_PENDING_FORWARDED && may_give_up(entry->opcode))) {
		parked_free_locked(pending, entry->parked);
		entry->parked = NULL;
		entry->state = KVD_PENDING_ABANDONED;
		given_up = true;
	}
	pthread_mutex_unlock(&pending->lock);
	return given_up;
}

void kvd_pending_post(struct kvd_pending *pending, struct kvd_entry *entry)
{
	pthread_mutex_lock(&pending->lock);
	entry->next = NULL;
	*pending->work_last = entry;
	pending->work_last = &entry->next;
	atomic_fetch_add(&pending->in_work, 1);
	pthread_mutex_unlock(&pending->lock);
}

struct kvd_entry *kvd_pending_work(struct kvd_pending *pending)
{
	struct kvd_entry *entry;

	if (!atomic_load(&pending->in_work))
		return NULL;
	pthread_mutex_lock(&pending->lock);
	entry = pending->work_first;
	if (entry) {
		pending->work_first = entry->next;
		if (!pending->work_first)
			pending->work_last = &pending->work_first;
		atomic_fetch_sub(&pending->in_work, 1);
	}
	pthread_mutex_unlock(&pending->lock);
	return entry;
}

struct kvd_parked *kvd_parked_new(struct kvd_pending *pending, const struct kvd_request *request)
{
	size_t bytes = sizeof(*request->header) + request->body_bytes;
	struct kvd_parked *parked = NULL;

	pthread_mutex_lock(&pending->lock);
	if (pending->parked_bytes + bytes <= KVD_PARKED_BYTES_MAX)
		parked = malloc(sizeof(*parked) + bytes);
	if (parked) {
		parked->bytes = bytes;
		pending->parked_bytes += bytes;
	}
	pthread_mutex_unlock(&pending->lock);
	if (parked)
		memcpy(parked->message, request->header, bytes);
	return parked;
}

void kvd_parked_free(struct kvd_pending *pending, struct kvd_parked *parked)
{
	pthread_mutex_lock(&pending->lock);
	parked_free_locked(pending, parked);
	pthread_mutex_unlock(&pending->lock);
}
