/* Requests about one inode or one name that the hot table answers, or hands on. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fuse/internal.h"

enum { KVD_STAT_BLOCK_BYTES = 512, KVD_NS = 1000000000, KVD_MS_PER_S = 1000, KVD_NS_PER_MS = 1000000 };

static void time_out(int64_t ns, uint64_t *seconds, uint32_t *rest_ns)
{
	int64_t whole = ns / KVD_NS;
	int64_t rest = ns % KVD_NS;

	if (rest < 0) {
		whole--;
		rest += KVD_NS;
	}
	*seconds = (uint64_t)whole;
	*rest_ns = (uint32_t)rest;
}

static void valid_out(uint32_t ms, uint64_t *seconds, uint32_t *rest_ns)
{
	*seconds = ms / KVD_MS_PER_S;
	*rest_ns = ms % KVD_MS_PER_S * KVD_NS_PER_MS;
}

static void attr_out(const struct kvd_hot_inode *inode, struct fuse_attr *out)
{
	*out = (struct fuse_attr){
		.ino = inode->node,
		.size = inode->size,
		.blocks = inode->held_bytes / KVD_STAT_BLOCK_BYTES,
		.mode = inode->mode,
		.nlink = inode->nlink,
		.uid = inode->uid,
		.gid = inode->gid,
		.rdev = inode->rdev,
		.blksize = KVD_HOT_BLKSIZE_BYTES,
	};
	time_out(inode->atime_ns, &out->atime, &out->atimensec);
	time_out(inode->mtime_ns, &out->mtime, &out->mtimensec);
	time_out(inode->ctime_ns, &out->ctime, &out->ctimensec);
}

void kvd_hot_entry_out(const struct kvd_hot_inode *inode, struct fuse_entry_out *out)
{
	memset(out, 0, sizeof(*out));
	out->nodeid = inode->node;
	valid_out(inode->entry_timeout_ms, &out->entry_valid, &out->entry_valid_nsec);
	valid_out(inode->attr_timeout_ms, &out->attr_valid, &out->attr_valid_nsec);
	attr_out(inode, &out->attr);
}

bool kvd_hot_count_up(atomic_uint *count)
{
	uint32_t now = atomic_load_explicit(count, memory_order_relaxed);

	do {
		if (now >= KVD_HOT_COUNT_MAX)
			return false;
	} while (!atomic_compare_exchange_weak(count, &now, now + 1));
	return true;
}

uint32_t kvd_hot_count_down(atomic_uint *count, uint64_t by, bool *last)
{
	uint32_t now = atomic_load_explicit(count, memory_order_relaxed);
	uint32_t take;

	do {
		take = by < now ? (uint32_t)by : now;
		if (take == 0)
			return 0;
	} while (!atomic_compare_exchange_weak(count, &now, now - take));
	if (last)
		*last = now == take;
	return take;
}

/*
 * The peer holds one look-up or lease too many: an answer failed, and what the table had counted for it went for a FORGET or
 * RELEASE of what the peer had given.
 */
static void give_back(kvd_split *split, const struct kvd_request *request, uint64_t node, uint32_t release_opcode)
{
	struct kvd_entry entry = {
		.unique = request->header->unique,
		.node = node,
		.fh = KVD_HOT_FH | node,
		.release_opcode = release_opcode,
		.forgets = release_opcode ? 0 : 1,
	};

	kvd_forward_undo(split, &entry);
}

void kvd_hot_give_back_lookup(kvd_split *split, const struct kvd_request *request, uint64_t node)
{
	give_back(split, request, node, 0);
}

/* Whether it was answered; *owed: a node of which the peer has a look-up too many, or 0. */
static bool answer_lookup(kvd_split *split, const struct kvd_request *request, uint32_t bytes, uint64_t *owed)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder = kvd_hot_folder_find(hot, request->header->nodeid);
	uint32_t number = folder ? kvd_hot_name_find(hot, folder, request->body, bytes) : 0;
	const struct kvd_hot_name *name = number ? kvd_hot_name_at(hot, number) : NULL;
	struct kvd_hot_inode *inode;
	struct fuse_entry_out out = { 0 };

	if (!folder || (!name && folder->state != KVD_HOT_COMPLETE) || (name && name->flags & KVD_HOT_NAME_UNSURE))
		return false;
	if (!name || name->flags & KVD_HOT_NAME_ABSENT) {
		atomic_fetch_add_explicit(&folder->uses, 1, memory_order_relaxed);
		kvd_count(&split->counters.hot_negatives, 1);
		valid_out(hot->absent_ms, &out.entry_valid, &out.entry_valid_nsec);
		kvd_reply_data(split, request->header->unique, &out, sizeof(out));
		return true;
	}
	inode = kvd_hot_inode_find(hot, name->node);
	if (!inode || !inode->sure || !kvd_hot_count_up(&inode->lookups))
		return false;
	atomic_fetch_add_explicit(&folder->uses, 1, memory_order_relaxed);
	kvd_count(&split->counters.hot_lookups, 1);
	kvd_hot_entry_out(inode, &out);
	if (kvd_reply_data(split, request->header->unique, &out, sizeof(out)) &&
	    !kvd_hot_count_down(&inode->lookups, 1, NULL))
		*owed = inode->node;
	return true;
}

static bool is_dots(const char *name, size_t bytes)
{
	return name[0] == '.' && (bytes == 1 || (bytes == 2 && name[1] == '.'));
}

int kvd_hot_lookup(kvd_split *split, const struct kvd_request *request)
{
	size_t bytes = strnlen(request->body, request->body_bytes);
	bool whole = bytes > 0 && bytes < request->body_bytes && bytes <= KVD_HOT_NAME_BYTES_MAX;
	uint64_t owed = 0;
	bool answered;

	/* Those that ask for an inode by number are no names of the table. */
	if (!whole || is_dots(request->body, bytes))
		return kvd_forward(split, request);
	pthread_rwlock_rdlock(&split->hot.lock);
	answered = answer_lookup(split, request, (uint32_t)bytes, &owed);
	pthread_rwlock_unlock(&split->hot.lock);
	if (owed)
		kvd_hot_give_back_lookup(split, request, owed);
	return answered ? 0 : kvd_forward(split, request);
}

int kvd_hot_getattr(kvd_split *split, const struct kvd_request *request)
{
	struct kvd_hot *hot = &split->hot;
	struct fuse_attr_out out = { 0 };
	struct kvd_hot_inode *inode;
	bool answered;

	pthread_rwlock_rdlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, request->header->nodeid);
	answered = inode && inode->sure;
	if (answered) {
		valid_out(inode->attr_timeout_ms, &out.attr_valid, &out.attr_valid_nsec);
		attr_out(inode, &out.attr);
		kvd_count(&split->counters.hot_getattrs, 1);
		kvd_reply_data(split, request->header->unique, &out, sizeof(out));
	}
	pthread_rwlock_unlock(&hot->lock);
	return answered ? 0 : kvd_forward(split, request);
}

/* Whether it was answered; *owed: the peer has a lease too many. */
static bool answer_open(kvd_split *split, const struct kvd_request *request, bool *owed)
{
	struct kvd_hot *hot = &split->hot;
	uint64_t node = request->header->nodeid;
	struct kvd_hot_inode *inode = kvd_hot_inode_find(hot, node);
	struct kvd_wire_open_out out = { .fh = KVD_HOT_FH | node };

	if (!inode || !inode->sure || !inode->shared || !kvd_object_open_out(split, node, &out))
		return false;
	if (!kvd_hot_count_up(&inode->leases))
		return false;
	atomic_fetch_add(&hot->leases, 1);
	if (kvd_reply_data(split, request->header->unique, &out, sizeof(out))) {
		*owed = !kvd_hot_count_down(&inode->leases, 1, NULL);
		if (!*owed)
			atomic_fetch_sub(&hot->leases, 1);
		return true;
	}
	kvd_count(&split->counters.hot_opens, 1);
	/* Beyond its maximum the count says less than there was; it is for ageing only. */
	kvd_hot_count_up(&inode->opens);
	kvd_hot_inode_used(hot, inode);
	return true;
}

int kvd_hot_open(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_open_in *in = request->body;
	bool owed = false;
	bool answered;

	if (request->body_bytes < sizeof(*in) || (in->flags & O_ACCMODE) != O_RDONLY || in->flags & O_TRUNC)
		return kvd_forward(split, request);
	pthread_rwlock_rdlock(&split->hot.lock);
	answered = answer_open(split, request, &owed);
	pthread_rwlock_unlock(&split->hot.lock);
	if (owed)
		give_back(split, request, request->header->nodeid, FUSE_RELEASE);
	return answered ? 0 : kvd_forward(split, request);
}

int kvd_hot_release(kvd_split *split, const struct kvd_request *request)
{
	struct kvd_hot *hot = &split->hot;
	const struct fuse_release_in *in = request->body;
	uint64_t node = request->header->nodeid;
	struct kvd_hot_inode *inode;
	bool answered = false;
	bool last = false;

	if (request->body_bytes < sizeof(*in) || in->fh != (KVD_HOT_FH | node))
		return kvd_forward(split, request);
	pthread_rwlock_rdlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (inode && kvd_hot_count_down(&inode->leases, 1, &last)) {
		answered = true;
		atomic_fetch_sub(&hot->leases, 1);
		kvd_count(&split->counters.hot_releases, 1);
		kvd_reply_data(split, request->header->unique, NULL, 0);
	}
	pthread_rwlock_unlock(&hot->lock);
	if (last && atomic_exchange(&hot->watching, false))
		kvd_event_post(split, KVD_EVENT_FREED, 0, 0);
	return answered ? 0 : kvd_forward(split, request);
}

int kvd_hot_opendir(kvd_split *split, const struct kvd_request *request)
{
	struct kvd_wire_open_out out = { .fh = request->header->nodeid };

	if (request->body_bytes < sizeof(struct fuse_open_in))
		return -EINVAL;
	kvd_reply_data(split, request->header->unique, &out, sizeof(out));
	return 0;
}

int kvd_hot_releasedir(kvd_split *split, const struct kvd_request *request)
{
	kvd_reply_data(split, request->header->unique, NULL, 0);
	return 0;
}

/* What is left of a FORGET for the peer, once the table has taken its own. In a read section. */
static uint64_t forget(struct kvd_hot *hot, uint64_t node, uint64_t lookups)
{
	struct kvd_hot_inode *inode = kvd_hot_inode_find(hot, node);

	return inode ? lookups - kvd_hot_count_down(&inode->lookups, lookups, NULL) : lookups;
}

int kvd_hot_forget(kvd_split *split, const struct kvd_request *request)
{
	struct fuse_forget_in *in = request->body;

	if (request->body_bytes >= sizeof(*in)) {
		pthread_rwlock_rdlock(&split->hot.lock);
		in->nlookup = forget(&split->hot, request->header->nodeid, in->nlookup);
		pthread_rwlock_unlock(&split->hot.lock);
		if (in->nlookup == 0)
			return 0;
	}
	return kvd_forward_silent(split, request);
}

int kvd_hot_batch_forget(kvd_split *split, const struct kvd_request *request)
{
	struct fuse_batch_forget_in *in = request->body;
	struct fuse_forget_one *ones = (void *)(in + 1);
	uint32_t left = 0;

	if (request->body_bytes < sizeof(*in) || in->count > (request->body_bytes - sizeof(*in)) / sizeof(*ones))
		return kvd_forward_silent(split, request);
	pthread_rwlock_rdlock(&split->hot.lock);
	for (uint32_t i = 0; i < in->count; i++) {
		struct fuse_forget_one one = ones[i];

		one.nlookup = forget(&split->hot, one.nodeid, one.nlookup);
		if (one.nlookup > 0)
			ones[left++] = one;
	}
	pthread_rwlock_unlock(&split->hot.lock);
	if (left == 0)
		return 0;
	in->count = left;
	request->header->len = (uint32_t)(sizeof(*request->header) + sizeof(*in) + left * sizeof(*ones));
	return kvd_forward_silent(split, request);
}
