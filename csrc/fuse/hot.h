/*
 * The hot table: inodes, names and folders that the split answers from. The protocol is in docs/concurrency.md.
 *
 * `lock` is a rwlock that prefers writers. Requests are answered in its read section, which ends only after the answer was
 * written; the calls of the control plane change the table in its write section. Within a read section only atomics change,
 * and the list of used inodes, which has a lock of its own. Nothing is sent to the peer in a read section: the peer may wait
 * for the write section while its socket is full. After `lock` come used_lock and kvd_objects.lock, both leaves.
 *
 * Inodes are slots of one array, made at the start; slot 0 is nobody, and the head of the list of used ones. Names are in a
 * pool of 16-byte units and are told apart by number; 0 is none. A folder keeps its names in order of (cookie, number), in
 * runs of at most KVD_HOT_RUN_NAMES; so a listing goes on at any cookie, and no step is proportional to the folder.
 * Counts of look-ups, leases and opens are conserved: what is taken out of here is the caller's, to the last one.
 */
#ifndef KVD_FUSE_HOT_H
#define KVD_FUSE_HOT_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fuse/split.h"

enum {
	KVD_HOT_MAX = 1 << 26,                /* inodes, or names */
	KVD_HOT_RUN_NAMES = 256,
	KVD_HOT_FORGET_STEP = 256,            /* names that go in one write section */
	KVD_HOT_ABSENT_SHARE = 8,             /* one of so many names may be one that is not there */
	KVD_HOT_COUNT_MAX = 1 << 30,          /* of look-ups, leases or opens of one inode; more is forwarded */
	KVD_HOT_UNIT_BYTES = 16,
	KVD_HOT_CHUNK_UNITS = 1 << 16,
	KVD_HOT_CHUNKS_MAX = 1 << 16,
	KVD_HOT_NAME_UNITS_MAX = 18,
	KVD_HOT_LIST_BYTES_MAX = 64 << 10,    /* of the answer to one READDIR: it is made in one read section */
};

struct kvd_hot_inode {
	uint64_t node;
	uint64_t size;
	uint64_t held_bytes;
	int64_t atime_ns;
	int64_t mtime_ns;
	int64_t ctime_ns;
	uint32_t mode;
	uint32_t nlink;
	uint32_t uid;
	uint32_t gid;
	uint32_t rdev;
	uint32_t entry_timeout_ms;
	uint32_t attr_timeout_ms;
	atomic_uint lookups;
	atomic_uint leases;
	atomic_uint opens;  /* since they were last told */
	uint32_t next;      /* in a bucket or the free list */
	uint32_t used_next; /* these two under used_lock */
	uint32_t used_prev;
	bool sure;
	bool shared;
	atomic_bool used;   /* in the list */
};
static_assert(sizeof(struct kvd_hot_inode) == 104, "memory of an inode");

enum kvd_hot_name_flag {
	KVD_HOT_NAME_UNSURE = 1,
	KVD_HOT_NAME_ABSENT = 2, /* sure, and not there */
};

struct kvd_hot_folder;

struct kvd_hot_name {
	uint64_t cookie; /* 0: not listed */
	uint64_t node;   /* of one that is not there: its place in the ring of those */
	struct kvd_hot_folder *folder;
	uint32_t next;   /* in a bucket or a free list */
	uint8_t bytes;
	uint8_t flags;
	char text[];
};

struct kvd_hot_run {
	uint32_t count;
	uint32_t capacity;
	uint32_t names[];
};

struct kvd_hot_folder {
	uint64_t node;
	uint64_t parent; /* 0: not known */
	struct kvd_hot_folder *next;
	struct kvd_hot_run **runs;
	uint32_t n_runs;
	uint32_t runs_max;
	uint32_t names;
	uint32_t unsure;
	enum kvd_hot_folder_state state;
	atomic_ullong uses;
};

/* Where in a folder's order a name stands. */
struct kvd_hot_place {
	uint32_t run;
	uint32_t at;
};

struct kvd_hot_pool {
	uint8_t **chunks;
	uint32_t n_chunks;
	uint32_t chunks_max;
	uint32_t next_unit;                        /* not given yet, of the last chunk */
	uint32_t free[KVD_HOT_NAME_UNITS_MAX + 1]; /* by units */
};

struct kvd_hot {
	pthread_rwlock_t lock;
	pthread_mutex_t used_lock;
	uint64_t seed; /* of the hash: clients choose the names */
	uint32_t inodes_max;
	uint32_t names_max;
	uint32_t absent_ms;
	struct kvd_hot_inode *inodes;
	uint32_t *inode_buckets;
	size_t n_inode_buckets;
	uint32_t inode_free;
	uint32_t inode_next; /* slots from here on were never used */
	uint32_t n_inodes;
	uint32_t n_shared;
	struct kvd_hot_pool pool;
	uint32_t *name_buckets;
	size_t n_name_buckets;
	uint32_t n_names;
	struct kvd_hot_folder **folder_buckets;
	size_t n_folder_buckets;
	uint32_t n_folders;
	uint32_t *absent; /* the ring of names that are not there; 0 where there is none */
	uint32_t absent_max;
	uint32_t absent_next;
	atomic_ullong leases;
	atomic_bool watching;
};

/* hot_table.c: memory, and finding. All but init and fini under `lock`, for writing where something changes. */
int kvd_hot_init(struct kvd_hot *hot, const struct kvd_split_config *config);
void kvd_hot_fini(struct kvd_hot *hot);
static inline bool kvd_hot_is_off(const struct kvd_hot *hot)
{
	return hot->inodes_max == 0;
}
/* NULL if there is none. */
struct kvd_hot_inode *kvd_hot_inode_find(const struct kvd_hot *hot, uint64_t node);
/* A new one with all counts 0; NULL: no room. */
struct kvd_hot_inode *kvd_hot_inode_new(struct kvd_hot *hot, uint64_t node);
/* Hand over its counts, and free it. */
void kvd_hot_inode_free(struct kvd_hot *hot, struct kvd_hot_inode *inode, struct kvd_hot_gone *gone);
/* Hand over leases and opens; no OPEN is answered any more. */
void kvd_hot_inode_shut(struct kvd_hot *hot, struct kvd_hot_inode *inode, struct kvd_hot_gone *gone);
/* In a read section as well. */
void kvd_hot_inode_used(struct kvd_hot *hot, struct kvd_hot_inode *inode);
struct kvd_hot_folder *kvd_hot_folder_find(const struct kvd_hot *hot, uint64_t node);
/* Find or make; NULL: no room. */
struct kvd_hot_folder *kvd_hot_folder_need(struct kvd_hot *hot, uint64_t node);
/* Free a folder that tells nothing: PARTIAL, and without names. */
void kvd_hot_folder_tidy(struct kvd_hot *hot, struct kvd_hot_folder *folder);
struct kvd_hot_name *kvd_hot_name_at(const struct kvd_hot *hot, uint32_t number);
/* 0 if there is none. */
uint32_t kvd_hot_name_find(const struct kvd_hot *hot, const struct kvd_hot_folder *folder, const char *text,
			   uint32_t bytes);

/* hot_names.c: names and their order. */
/* Make or change a name; 0 or -ENOSPC, which takes the name out and makes the folder PARTIAL. */
int kvd_hot_name_set(struct kvd_hot *hot, struct kvd_hot_folder *folder, const char *text, uint32_t bytes,
		     uint64_t cookie, uint64_t node, uint32_t flags);
void kvd_hot_name_remove(struct kvd_hot *hot, uint32_t number);
/* The first name with a greater cookie. */
struct kvd_hot_place kvd_hot_seek(const struct kvd_hot *hot, const struct kvd_hot_folder *folder, uint64_t cookie);
/* hot_table.c for hot_names.c: a name in its bucket, with its text; 0: no room. */
uint32_t kvd_hot_name_new(struct kvd_hot *hot, struct kvd_hot_folder *folder, const char *text, uint32_t bytes);
void kvd_hot_name_free(struct kvd_hot *hot, uint32_t number);

#endif
