/*
 * A world of names and inodes that many clients see through a split, and that one control thread changes, as kvd does.
 *
 * Everything that is told has a version that only grows. `ceil` is raised before the truth changes, `floor` once the change
 * has ended, or once a client was told of the version. An answer may tell no version below the floor that stood before its
 * request was sent, and none above the ceil. After each change a notification is sent to the kernel: an answer of the table
 * that comes behind it may tell of nothing older (what the peer answers goes another way, and the kernel knows how to order it).
 * A name is there in its even versions, each with another inode; the size of an inode is its version.
 */
#ifndef KVD_TESTS_HOT_WORLD_H
#define KVD_TESTS_HOT_WORLD_H

#include <pthread.h>

#include "split_rig.h"

enum {
	WORLD_FOLDERS = 3,
	WORLD_NAMES = 24, /* of a folder */
	WORLD_LIVES = 16, /* inodes that one name has in turn */
	WORLD_NODES = WORLD_FOLDERS * WORLD_NAMES * WORLD_LIVES,
	WORLD_FOLDER_NODE = 2,
	WORLD_FIRST_NODE = 1000,
	WORLD_NAME_BYTES = 16,
	WORLD_NOTE_NAME = 1 << 20, /* in a notification: of a name, not of an inode; the version is in its upper half */
	WORLD_PEER_BLKSIZE = 1,    /* by which the peer's attributes are known */
};

struct version {
	atomic_uint floor;
	atomic_uint ceil;
	atomic_uint notified; /* of the last notification that the kernel has read */
};

/* What the control thread knows of an inode. */
struct owned {
	uint64_t lookups; /* that it gave, or that the table handed over */
	uint64_t opens;
	uint64_t leases;
	int32_t backing_id; /* 0: it has no object */
	bool in_table;
	bool shared;
};

struct world {
	struct rig rig;
	struct version names[WORLD_FOLDERS][WORLD_NAMES];
	struct version nodes[WORLD_NODES];
	struct owned owned[WORLD_NODES];
	uint64_t cookie;      /* the last one given */
	uint64_t opens;       /* of the table, as it told of them */
	int32_t backing_last;
	uint64_t seed;
	atomic_bool ending;   /* the clients have done */
};

static inline void version_seen(struct version *version, uint32_t told)
{
	uint32_t floor = atomic_load(&version->floor);

	while (floor < told && !atomic_compare_exchange_weak(&version->floor, &floor, told))
		continue;
}

static inline uint32_t world_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*seed >> 33);
}

static inline void world_name(char *out, uint32_t name)
{
	memcpy(out, "name-00", 8);
	out[5] = (char)('0' + name / 10);
	out[6] = (char)('0' + name % 10);
}

/* Which inode a name has in an even version. */
static inline uint32_t world_index(uint32_t folder, uint32_t name, uint32_t version)
{
	return (folder * WORLD_NAMES + name) * WORLD_LIVES + version / 2 % WORLD_LIVES;
}

/* Answers the peer's requests and changes things, until `ending` and nothing is left to answer. */
void *world_control(void *world);
/* Take everything out of the table: what it had counted is in `owned` afterwards. */
void world_empty(struct world *world);

#endif
