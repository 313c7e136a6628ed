/* What the control plane does to the hot table. Each call is one write section, or some short ones. */
#include "fuse/hot.h"

#include <errno.h>
#include <string.h>

#include "fuse/internal.h"

static bool is_name(const char *name, uint32_t bytes)
{
	return bytes > 0 && bytes <= KVD_HOT_NAME_BYTES_MAX && !memchr(name, 0, bytes);
}

static void settle(struct kvd_hot_inode *inode, const struct kvd_hot_attr *attr)
{
	inode->size = attr->size;
	inode->held_bytes = attr->held_bytes;
	inode->atime_ns = attr->atime_ns;
	inode->mtime_ns = attr->mtime_ns;
	inode->ctime_ns = attr->ctime_ns;
	inode->mode = attr->mode;
	inode->nlink = attr->nlink;
	inode->uid = attr->uid;
	inode->gid = attr->gid;
	inode->rdev = attr->rdev;
	inode->entry_timeout_ms = attr->entry_timeout_ms;
	inode->attr_timeout_ms = attr->attr_timeout_ms;
	inode->sure = true;
}

int kvd_hot_put(kvd_split *split, const struct kvd_hot_attr *attr)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_inode *inode;

	if (attr->node == 0)
		return -EINVAL;
	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, attr->node);
	if (!inode)
		inode = kvd_hot_inode_new(hot, attr->node);
	if (inode)
		settle(inode, attr);
	pthread_rwlock_unlock(&hot->lock);
	return inode ? 0 : -ENOSPC;
}

int kvd_hot_unsure(kvd_split *split, uint64_t node)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_inode *inode;

	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (inode)
		inode->sure = false;
	pthread_rwlock_unlock(&hot->lock);
	return inode ? 0 : -ENOENT;
}

int kvd_hot_drop(kvd_split *split, uint64_t node, struct kvd_hot_gone *gone)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_inode *inode;

	*gone = (struct kvd_hot_gone){ .node = node };
	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (inode)
		kvd_hot_inode_free(hot, inode, gone);
	pthread_rwlock_unlock(&hot->lock);
	return inode ? 0 : -ENOENT;
}

int kvd_hot_share(kvd_split *split, uint64_t node)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_object *object = kvd_object_get(&split->objects, node);
	struct kvd_hot_inode *inode;

	if (!object)
		return -ENOENT;
	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (inode && !inode->shared) {
		inode->shared = true;
		hot->n_shared++;
	}
	pthread_rwlock_unlock(&hot->lock);
	kvd_object_put(&split->objects, object);
	return inode ? 0 : -ENOENT;
}

int kvd_hot_shut(kvd_split *split, uint64_t node, uint32_t only_idle, struct kvd_hot_gone *gone)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_inode *inode;
	int error = 0;

	*gone = (struct kvd_hot_gone){ .node = node };
	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (!inode)
		error = -ENOENT;
	else if (only_idle && atomic_load(&inode->leases) > 0)
		error = -EBUSY;
	else
		kvd_hot_inode_shut(hot, inode, gone);
	pthread_rwlock_unlock(&hot->lock);
	return error;
}

int kvd_hot_unshare(kvd_split *split, uint64_t node)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_inode *inode;
	int error = 0;

	pthread_rwlock_wrlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	if (inode && atomic_load(&inode->leases) > 0) {
		error = -EBUSY;
	} else if (inode && inode->shared) {
		/* Opens stay: they are told of as ever. */
		inode->shared = false;
		hot->n_shared--;
	}
	pthread_rwlock_unlock(&hot->lock);
	return error;
}

int kvd_hot_name(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes, uint64_t cookie, uint64_t node)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;
	int error = -ENOSPC;

	if (node == 0)
		cookie = 0;
	if (parent == 0 || !is_name(name, bytes))
		return -EINVAL;
	pthread_rwlock_wrlock(&hot->lock);
	folder = kvd_hot_folder_need(hot, parent);
	if (folder && node == 0 && folder->state == KVD_HOT_COMPLETE) {
		uint32_t number = kvd_hot_name_find(hot, folder, name, bytes);

		if (number)
			kvd_hot_name_remove(hot, number);
		error = 0;
	} else if (folder) {
		error = kvd_hot_name_set(hot, folder, name, bytes, cookie, node, node ? 0 : KVD_HOT_NAME_ABSENT);
	}
	pthread_rwlock_unlock(&hot->lock);
	return error;
}

int kvd_hot_name_unsure(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;
	uint64_t cookie = 0;
	uint64_t node = 0;
	int error = -ENOSPC;

	if (parent == 0 || !is_name(name, bytes))
		return -EINVAL;
	pthread_rwlock_wrlock(&hot->lock);
	folder = kvd_hot_folder_need(hot, parent);
	if (folder) {
		uint32_t number = kvd_hot_name_find(hot, folder, name, bytes);

		if (number && !(kvd_hot_name_at(hot, number)->flags & KVD_HOT_NAME_ABSENT)) {
			cookie = kvd_hot_name_at(hot, number)->cookie;
			node = kvd_hot_name_at(hot, number)->node;
		}
		error = kvd_hot_name_set(hot, folder, name, bytes, cookie, node, KVD_HOT_NAME_UNSURE);
	}
	pthread_rwlock_unlock(&hot->lock);
	return error;
}

int kvd_hot_name_gone(kvd_split *split, uint64_t parent, const char *name, uint32_t bytes)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;

	if (parent == 0 || !is_name(name, bytes))
		return -EINVAL;
	pthread_rwlock_wrlock(&hot->lock);
	folder = kvd_hot_folder_find(hot, parent);
	if (folder) {
		uint32_t number = kvd_hot_name_find(hot, folder, name, bytes);

		if (number)
			kvd_hot_name_remove(hot, number);
		kvd_hot_folder_tidy(hot, folder);
	}
	pthread_rwlock_unlock(&hot->lock);
	return 0;
}

int kvd_hot_folder(kvd_split *split, uint64_t parent, uint32_t state)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;

	if (parent == 0 || (state != KVD_HOT_PARTIAL && state != KVD_HOT_COMPLETE))
		return -EINVAL;
	pthread_rwlock_wrlock(&hot->lock);
	folder = kvd_hot_folder_need(hot, parent);
	if (folder) {
		folder->state = state;
		kvd_hot_folder_tidy(hot, folder);
	}
	pthread_rwlock_unlock(&hot->lock);
	return folder || state == KVD_HOT_PARTIAL ? 0 : -ENOSPC;
}

int kvd_hot_folder_parent(kvd_split *split, uint64_t node, uint64_t parent)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;

	pthread_rwlock_wrlock(&hot->lock);
	folder = kvd_hot_folder_find(hot, node);
	if (folder)
		folder->parent = parent;
	pthread_rwlock_unlock(&hot->lock);
	return folder ? 0 : -ENOENT;
}

/*
 * Take out up to a step's names, from the last in the order on but for the `*kept` that are unsure; whether there may be more.
 * Unsure names stay: whoever changes them is about to settle them.
 */
static bool forget_step(struct kvd_hot *hot, struct kvd_hot_folder *folder, uint32_t *kept)
{
	uint32_t step = KVD_HOT_FORGET_STEP;

	folder->state = KVD_HOT_PARTIAL;
	folder->parent = 0;
	for (; step > 0 && folder->names > *kept; step--) {
		struct kvd_hot_run *run = folder->runs[folder->n_runs - 1];
		uint32_t back = *kept;
		uint32_t at = folder->n_runs - 1;

		while (back >= run->count) {
			back -= run->count;
			if (at == 0)
				return false;
			run = folder->runs[--at];
		}
		uint32_t number = run->names[run->count - 1 - back];

		if (kvd_hot_name_at(hot, number)->flags & KVD_HOT_NAME_UNSURE)
			(*kept)++;
		else
			kvd_hot_name_remove(hot, number);
	}
	return folder->names > *kept;
}

int kvd_hot_forget_folder(kvd_split *split, uint64_t parent)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;
	uint32_t kept = 0;
	bool found = false;
	bool more = true;

	while (more) {
		pthread_rwlock_wrlock(&hot->lock);
		folder = kvd_hot_folder_find(hot, parent);
		more = folder && forget_step(hot, folder, &kept);
		found = found || folder;
		if (folder && !more)
			kvd_hot_folder_tidy(hot, folder);
		pthread_rwlock_unlock(&hot->lock);
	}
	return found ? 0 : -ENOENT;
}

uint64_t kvd_hot_folder_uses(kvd_split *split, uint64_t parent)
{
	struct kvd_hot *hot = &split->hot;
	struct kvd_hot_folder *folder;
	uint64_t uses = 0;

	pthread_rwlock_rdlock(&hot->lock);
	folder = kvd_hot_folder_find(hot, parent);
	if (folder)
		uses = atomic_exchange(&folder->uses, 0);
	pthread_rwlock_unlock(&hot->lock);
	return uses;
}

/* One line of a listing; what is unsure stays so. */
static int fill_one(struct kvd_hot *hot, uint64_t parent, const struct kvd_hot_attr *attr, uint64_t cookie,
		    const char *text, uint32_t bytes)
{
	struct kvd_hot_folder *folder = kvd_hot_folder_need(hot, parent);
	struct kvd_hot_inode *inode = kvd_hot_inode_find(hot, attr->node);
	uint32_t number;

	if (!folder)
		return -ENOSPC;
	if (inode ? inode->sure : (inode = kvd_hot_inode_new(hot, attr->node)) != NULL)
		settle(inode, attr);
	/* Without an inode the name is forwarded: better than a listing that lacks it. */
	number = kvd_hot_name_find(hot, folder, text, bytes);
	if (number && kvd_hot_name_at(hot, number)->flags & KVD_HOT_NAME_UNSURE)
		return 0;
	if (kvd_hot_name_set(hot, folder, text, bytes, cookie, attr->node, 0))
		return -ENOSPC;
	return inode ? 0 : -ENOSPC;
}

int kvd_hot_fill(kvd_split *split, uint64_t parent, const struct kvd_hot_attr *attrs, const uint64_t *cookies,
		 const uint32_t *name_bytes, const char *names, uint32_t count)
{
	struct kvd_hot *hot = &split->hot;
	const char *name = names;
	int error = 0;

	if (parent == 0)
		return -EINVAL;
	for (uint32_t i = 0; i < count; name += name_bytes[i++])
		if (!is_name(name, name_bytes[i]) || attrs[i].node == 0)
			return -EINVAL;
	name = names;
	pthread_rwlock_wrlock(&hot->lock);
	for (uint32_t i = 0; i < count && !error; name += name_bytes[i++])
		error = fill_one(hot, parent, &attrs[i], cookies[i], name, name_bytes[i]);
	pthread_rwlock_unlock(&hot->lock);
	return error;
}

void kvd_hot_sizes(const kvd_split *split, struct kvd_split_stats *out)
{
	struct kvd_hot *hot = (struct kvd_hot *)(uintptr_t)&split->hot;

	pthread_rwlock_rdlock(&hot->lock);
	out->hot_inodes = hot->n_inodes;
	out->hot_names = hot->n_names;
	out->hot_folders = hot->n_folders;
	out->hot_shared = hot->n_shared;
	pthread_rwlock_unlock(&hot->lock);
	out->hot_leases = atomic_load(&hot->leases);
}

uint32_t kvd_hot_leases(kvd_split *split, uint64_t node)
{
	struct kvd_hot *hot = &split->hot;
	const struct kvd_hot_inode *inode;
	uint32_t leases;

	pthread_rwlock_rdlock(&hot->lock);
	inode = kvd_hot_inode_find(hot, node);
	leases = inode ? atomic_load(&inode->leases) : 0;
	pthread_rwlock_unlock(&hot->lock);
	return leases;
}

int kvd_hot_watch(kvd_split *split)
{
	atomic_store(&split->hot.watching, true);
	return 0;
}
