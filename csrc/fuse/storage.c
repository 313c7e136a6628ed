/*
 * How much a write would add to what its file holds (st_blocks), against what the file may hold.
 *
 * A claim stands from the check to the end of the write, so that two writes can't both use the same room. While a write is in
 * flight some of its blocks are counted twice, as claimed and as held: that errs towards asking.
 */
#include <errno.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuse/internal.h"

enum {
	KVD_STAT_BLOCK_BYTES = 512,
	KVD_UNIT_BYTES_MAX = 2 << 20, /* a huge page of x86-64, and of arm64 with 4 KiB pages */
};

/* cachestat(2), Linux 6.5, younger than the C libraries kvd builds with. */
enum { KVD_SYS_CACHESTAT = 451 };

struct kvd_cachestat_range {
	uint64_t offset;
	uint64_t length;
};

struct kvd_cachestat {
	uint64_t cached;
	uint64_t dirty;
	uint64_t writeback;
	uint64_t evicted;
	uint64_t recently_evicted;
};

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/*
 * A tmpfs page that was allocated by fallocate and not written yet counts as a hole for SEEK_HOLE. On tmpfs the page
 * cache *is* the storage, so ask what is in it: cached, or evicted to swap.
 */
static int tmpfs_holes(int fd, uint64_t from, uint64_t to, uint64_t *holes)
{
	struct kvd_cachestat_range range = { .offset = from, .length = to - from };
	struct kvd_cachestat stat;
	uint64_t held;

	if (syscall(KVD_SYS_CACHESTAT, fd, &range, &stat, 0))
		return -errno;
	held = (stat.cached + stat.evicted) * KVD_BLOCK_BYTES;
	*holes = held < to - from ? to - from - held : 0;
	return 0;
}

/* Bytes of [from, to) in no block of the file, as far as SEEK_HOLE knows. */
static uint64_t seek_holes(int fd, uint64_t from, uint64_t to)
{
	uint64_t holes = 0;

	while (from < to) {
		off_t data = lseek(fd, (off_t)from, SEEK_DATA);
		off_t end;

		/* ENXIO: no data after `from`; with any other error count all of it too. */
		if (data < 0 || (uint64_t)data >= to)
			return holes + to - from;
		if ((uint64_t)data > from)
			holes += kvd_align_down((uint64_t)data, KVD_BLOCK_BYTES) - from;
		end = lseek(fd, data, SEEK_HOLE);
		if (end < 0)
			return holes + to - kvd_align_down((uint64_t)data, KVD_BLOCK_BYTES);
		from = kvd_align_up((uint64_t)end, KVD_BLOCK_BYTES);
	}
	return holes;
}

static uint64_t count_holes(const struct kvd_object *object, uint64_t from, uint64_t to)
{
	uint64_t holes = 0;

	if (object->tmpfs && !tmpfs_holes(object->fd, from, to, &holes))
		return holes;
	return seek_holes(object->fd, from, to);
}

/*
 * What a write of one byte may allocate. A tmpfs mounted huge=always takes whole huge pages, and tells of it here; the block
 * size of a disk is a hint for speed only.
 */
static uint64_t unit_bytes(const struct kvd_object *object, const struct stat *st)
{
	uint64_t unit = (uint64_t)st->st_blksize;
	bool usable = unit > KVD_BLOCK_BYTES && unit <= KVD_UNIT_BYTES_MAX && !(unit & (unit - 1));

	return object->tmpfs && usable ? unit : KVD_BLOCK_BYTES;
}

int kvd_storage_claim(struct kvd_object *object, uint64_t offset, uint64_t length, uint64_t asked_bytes,
		      uint64_t *claimed, uint64_t *need)
{
	uint64_t from;
	uint64_t to;
	uint64_t growth;
	uint64_t limit = atomic_load(&object->limit_bytes);
	uint64_t used;
	struct stat st;
	int error = 0;

	*claimed = 0;
	pthread_mutex_lock(&object->grow_lock);
	if (fstat(object->fd, &st)) {
		error = -errno;
		goto out;
	}
	from = kvd_align_down(offset, unit_bytes(object, &st));
	to = kvd_align_up(offset + length, unit_bytes(object, &st));
	growth = to - from;
	used = (uint64_t)st.st_blocks * KVD_STAT_BLOCK_BYTES + object->claimed_bytes;
	*need = add_saturating(used, growth);
	if (*need > limit) {
		growth = count_holes(object, from, to);
		*need = add_saturating(used, growth);
	}
	if (growth > 0 && *need > limit) {
		error = asked_bytes > limit ? -ENOSPC : -EDQUOT;
		goto out;
	}
	object->claimed_bytes += growth;
	*claimed = growth;
out:
	pthread_mutex_unlock(&object->grow_lock);
	return error;
}

void kvd_storage_release(struct kvd_object *object, uint64_t claimed)
{
	pthread_mutex_lock(&object->grow_lock);
	object->claimed_bytes -= claimed;
	pthread_mutex_unlock(&object->grow_lock);
}

int kvd_storage_gate_init(struct kvd_object *object, uint64_t free_bytes)
{
	struct stat st;

	if (fstat(object->fd, &st))
		return -errno;
	object->gate_held_bytes = (uint64_t)st.st_blocks * KVD_STAT_BLOCK_BYTES;
	object->gate_free_bytes = free_bytes;
	return 0;
}

static bool is_short(const struct kvd_object *object)
{
	struct statfs fs;

	return object->gate_free_bytes && !fstatfs(object->fd, &fs) &&
	       (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < object->gate_free_bytes;
}

/*
 * How much will be written nobody tells; it is taken to make the file grow by as much as the one before. So a file can outgrow
 * what it may hold by one write(2), and the next one waits. The kernel has the inode locked: there is one at a time.
 */
int kvd_storage_gate(struct kvd_object *object, uint64_t *need)
{
	uint64_t limit = atomic_load(&object->limit_bytes);
	uint64_t growth;
	uint64_t held;
	struct stat st;
	int error = 0;

	if (fstat(object->fd, &st))
		return 0;
	held = (uint64_t)st.st_blocks * KVD_STAT_BLOCK_BYTES;
	pthread_mutex_lock(&object->grow_lock);
	growth = held > object->gate_held_bytes ? held - object->gate_held_bytes : 0;
	object->gate_held_bytes = held;
	pthread_mutex_unlock(&object->grow_lock);
	if (growth == 0 && held == 0)
		growth = KVD_BLOCK_BYTES;
	*need = add_saturating(held, growth);
	if (*need > limit || (growth && is_short(object)))
		error = -EDQUOT;
	return error;
}
