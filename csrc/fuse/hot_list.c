/* READDIR and READDIRPLUS of complete folders. */
#include <string.h>
#include <sys/stat.h>

#include "fuse/internal.h"

enum {
	KVD_FIRST_COOKIES = 2, /* 1 is ".", 2 is "..", then the catalogue's plus this */
	KVD_DT_SHIFT = 12,     /* from a mode's format to a directory entry's type */
};

struct listing {
	kvd_split *split;
	const struct kvd_hot_folder *folder;
	uint8_t *out;
	size_t bytes_max;
	size_t bytes;
	bool plus;
};

static size_t line_bytes(const struct listing *listing, uint32_t name_bytes)
{
	size_t head = listing->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;

	return kvd_align_up(head + name_bytes, sizeof(uint64_t));
}

/* False if there is no room. `entry` of zeroes: the kernel is told the name alone, and is given no look-up. */
static bool put_line(struct listing *listing, const struct fuse_entry_out *entry, const struct fuse_dirent *dirent,
		     const char *name)
{
	size_t bytes = line_bytes(listing, dirent->namelen);
	uint8_t *at = listing->out + listing->bytes;

	if (bytes > listing->bytes_max - listing->bytes)
		return false;
	memset(at, 0, bytes);
	if (listing->plus) {
		memcpy(at, entry, sizeof(*entry));
		at += sizeof(*entry);
	}
	memcpy(at, dirent, FUSE_NAME_OFFSET);
	memcpy(at + FUSE_NAME_OFFSET, name, dirent->namelen);
	listing->bytes += bytes;
	return true;
}

/* "." and "..", whose look-ups the kernel does not count. */
static bool put_dots(struct listing *listing, uint64_t offset)
{
	static const char dots[] = "..";
	const struct fuse_entry_out none = { 0 };

	for (uint32_t i = 1; i <= KVD_FIRST_COOKIES; i++) {
		struct fuse_dirent dirent = {
			.ino = i == 1 ? listing->folder->node : listing->folder->parent,
			.off = i,
			.namelen = i,
			.type = S_IFDIR >> KVD_DT_SHIFT,
		};

		if (offset < i && !put_line(listing, &none, &dirent, dots))
			return false;
	}
	return true;
}

enum put { PUT_DONE, PUT_FULL, PUT_UNKNOWN };

static enum put put_name(struct listing *listing, const struct kvd_hot_name *name)
{
	struct kvd_hot *hot = &listing->split->hot;
	struct kvd_hot_inode *inode = kvd_hot_inode_find(hot, name->node);
	struct fuse_entry_out entry = { 0 };
	struct fuse_dirent dirent = {
		.ino = name->node,
		.off = name->cookie + KVD_FIRST_COOKIES,
		.namelen = name->bytes,
	};
	bool counted = false;

	if (!inode)
		return PUT_UNKNOWN;
	dirent.type = (inode->mode & S_IFMT) >> KVD_DT_SHIFT;
	/* Of what is unsure number and type are sure; for the rest the kernel will ask, if it wants to know. */
	if (listing->plus && inode->sure) {
		if (line_bytes(listing, name->bytes) > listing->bytes_max - listing->bytes)
			return PUT_FULL;
		counted = kvd_hot_count_up(&inode->lookups);
		if (counted)
			kvd_hot_entry_out(inode, &entry);
	}
	return put_line(listing, &entry, &dirent, name->text) ? PUT_DONE : PUT_FULL;
}

static enum put put_names(struct listing *listing, uint64_t offset)
{
	const struct kvd_hot *hot = &listing->split->hot;
	const struct kvd_hot_folder *folder = listing->folder;
	uint64_t after = offset > KVD_FIRST_COOKIES ? offset - KVD_FIRST_COOKIES : 0;
	struct kvd_hot_place place = kvd_hot_seek(hot, folder, after);
	enum put put = PUT_DONE;

	for (; place.run < folder->n_runs && put == PUT_DONE; place.run++, place.at = 0)
		for (; place.at < folder->runs[place.run]->count && put == PUT_DONE; place.at++)
			put = put_name(listing, kvd_hot_name_at(hot, folder->runs[place.run]->names[place.at]));
	return put;
}

/* The kernel will not have these lines: take back their look-ups; what stays in the lines is owed by the peer. */
static void take_back(struct listing *listing)
{
	for (size_t at = 0; listing->plus && at < listing->bytes;) {
		struct fuse_entry_out *entry = (void *)(listing->out + at);
		const struct fuse_dirent *dirent = (const void *)(entry + 1);
		struct kvd_hot_inode *inode = NULL;

		if (entry->nodeid)
			inode = kvd_hot_inode_find(&listing->split->hot, entry->nodeid);
		if (inode && kvd_hot_count_down(&inode->lookups, 1, NULL))
			entry->nodeid = 0;
		at += line_bytes(listing, dirent->namelen);
	}
}

static void give_back(struct listing *listing, const struct kvd_request *request)
{
	for (size_t at = 0; listing->plus && at < listing->bytes;) {
		const struct fuse_entry_out *entry = (const void *)(listing->out + at);
		const struct fuse_dirent *dirent = (const void *)(entry + 1);

		if (entry->nodeid)
			kvd_hot_give_back_lookup(listing->split, request, entry->nodeid);
		at += line_bytes(listing, dirent->namelen);
	}
}

/* Whether it was answered; *owed: lines are left whose look-ups the peer has too many. */
static bool answer(struct listing *listing, const struct kvd_request *request, bool *owed)
{
	kvd_split *split = listing->split;
	const struct fuse_read_in *in = request->body;
	struct kvd_hot_folder *folder = kvd_hot_folder_find(&split->hot, request->header->nodeid);
	enum put put = PUT_FULL;

	if (!folder || folder->state != KVD_HOT_COMPLETE || folder->unsure > 0)
		return false;
	if (in->offset < KVD_FIRST_COOKIES && !folder->parent)
		return false;
	listing->folder = folder;
	if (put_dots(listing, in->offset))
		put = put_names(listing, in->offset);
	/* Nothing would mean that the listing is at its end. */
	if (put == PUT_UNKNOWN || (put == PUT_FULL && listing->bytes == 0)) {
		take_back(listing);
		*owed = true;
		return false;
	}
	atomic_fetch_add_explicit(&folder->uses, 1, memory_order_relaxed);
	kvd_count(&split->counters.hot_readdirs, 1);
	if (kvd_reply_data(split, request->header->unique, listing->out, listing->bytes)) {
		take_back(listing);
		*owed = true;
	}
	return true;
}

int kvd_hot_readdir(struct kvd_reader *reader, const struct kvd_request *request)
{
	kvd_split *split = reader->split;
	const struct fuse_read_in *in = request->body;
	struct listing listing = {
		.split = split,
		.out = reader->data,
		.plus = request->header->opcode == FUSE_READDIRPLUS,
	};
	bool owed = false;
	bool answered;

	if (request->body_bytes < sizeof(*in))
		return kvd_forward(split, request);
	listing.bytes_max = in->size < KVD_HOT_LIST_BYTES_MAX ? in->size : KVD_HOT_LIST_BYTES_MAX;
	pthread_rwlock_rdlock(&split->hot.lock);
	answered = answer(&listing, request, &owed);
	pthread_rwlock_unlock(&split->hot.lock);
	if (owed)
		give_back(&listing, request);
	return answered ? 0 : kvd_forward(split, request);
}
