/*
 * The peer's notifications on their way to the kernel. NOTIFY_INVAL_ENTRY waits for the directory's lock, which a CREATE
 * holds until the peer's reply to it is relayed: so they have a thread of their own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/internal.h"

struct kvd_notice {
	struct kvd_notice *next;
	size_t bytes;
	_Alignas(8) uint8_t message[];
};

int kvd_notices_init(struct kvd_notices *notices)
{
	int error = pthread_mutex_init(&notices->lock, NULL);

	if (error)
		return -error;
	error = pthread_cond_init(&notices->more, NULL);
	if (error) {
		pthread_mutex_destroy(&notices->lock);
		return -error;
	}
	notices->last = &notices->first;
	return 0;
}

void kvd_notices_fini(struct kvd_notices *notices)
{
	while (notices->first) {
		struct kvd_notice *notice = notices->first;

		notices->first = notice->next;
		free(notice);
	}
	pthread_cond_destroy(&notices->more);
	pthread_mutex_destroy(&notices->lock);
}

void kvd_notices_stop(struct kvd_notices *notices)
{
	pthread_mutex_lock(&notices->lock);
	notices->stopping = true;
	pthread_cond_signal(&notices->more);
	pthread_mutex_unlock(&notices->lock);
}

int kvd_notify_post(kvd_split *split, const void *message, size_t bytes)
{
	struct kvd_notices *notices = &split->notices;
	struct kvd_notice *notice;
	bool full;

	if (bytes > KVD_NOTICE_BYTES_MAX)
		return -EMSGSIZE;
	notice = malloc(sizeof(*notice) + bytes);
	if (!notice)
		return -ENOMEM;
	notice->next = NULL;
	notice->bytes = bytes;
	memcpy(notice->message, message, bytes);
	pthread_mutex_lock(&notices->lock);
	full = notices->count >= KVD_NOTICES_MAX;
	if (!full) {
		*notices->last = notice;
		notices->last = &notice->next;
		notices->count++;
		pthread_cond_signal(&notices->more);
	}
	pthread_mutex_unlock(&notices->lock);
	if (full)
		free(notice);
	return full ? -ENOBUFS : 0;
}

static struct kvd_notice *next_notice(struct kvd_notices *notices)
{
	struct kvd_notice *notice = NULL;

	pthread_mutex_lock(&notices->lock);
	while (!notices->first && !notices->stopping)
		pthread_cond_wait(&notices->more, &notices->lock);
	if (!notices->stopping) {
		notice = notices->first;
		notices->first = notice->next;
		if (!notices->first)
			notices->last = &notices->first;
		notices->count--;
	}
	pthread_mutex_unlock(&notices->lock);
	return notice;
}

void *kvd_notify_main(void *arg)
{
	kvd_split *split = arg;

	for (;;) {
		struct kvd_notice *notice = next_notice(&split->notices);

		if (!notice)
			return NULL;
		/* ENOENT is the usual answer for what the kernel does not hold; nobody waits for the others either. */
		kvd_reply_raw(split, notice->message, notice->bytes);
		free(notice);
	}
}

int kvd_split_invalidate(kvd_split *split, uint64_t node)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} message = {
		.header = { .len = sizeof(message), .error = FUSE_NOTIFY_INVAL_INODE },
		.body = { .ino = node }, /* off 0, len 0: all data, and the attributes */
	};
	int error = kvd_reply_raw(split, &message, sizeof(message));

	return error == -ENOENT ? 0 : error;
}

int kvd_split_forget(kvd_split *split, uint64_t parent, const char *name, uint32_t name_bytes, uint32_t wait)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_entry_out body;
		char name[KVD_WIRE_NAME_BYTES_MAX + 1];
	} message = {
		.header = { .error = FUSE_NOTIFY_INVAL_ENTRY },
		.body = { .parent = parent, .namelen = name_bytes },
	};
	const size_t bytes = offsetof(__typeof__(message), name) + name_bytes + 1;
	int error;

	if (name_bytes > KVD_WIRE_NAME_BYTES_MAX)
		return -ENAMETOOLONG;
	memcpy(message.name, name, name_bytes);
	message.header.len = (uint32_t)bytes;
	if (!wait)
		return kvd_notify_post(split, &message, bytes);
	error = kvd_reply_raw(split, &message, bytes);
	return error == -ENOENT || error == -ENOTDIR ? 0 : error;
}

int kvd_split_forget_all(kvd_split *split)
{
	const struct fuse_out_header message = { .len = sizeof(message), .error = KVD_WIRE_NOTIFY_INC_EPOCH };

	return kvd_reply_raw(split, &message, sizeof(message));
}
