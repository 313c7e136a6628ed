#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fuse/internal.h"
#include "fuse/sys.h"

enum { KVD_OBJECT_BUCKETS_MIN = 1024 };

int kvd_objects_init(struct kvd_objects *objects)
{
	int error = pthread_mutex_init(&objects->lock, NULL);

	if (error)
		return -error;
	error = pthread_cond_init(&objects->idle, NULL);
	if (error)
		goto out_lock;
	objects->n_buckets = KVD_OBJECT_BUCKETS_MIN;
	objects->buckets = calloc(objects->n_buckets, sizeof(struct kvd_object *));
	if (!objects->buckets) {
		error = ENOMEM;
		goto out_idle;
	}
	return 0;

out_idle:
	pthread_cond_destroy(&objects->idle);
out_lock:
	pthread_mutex_destroy(&objects->lock);
	return -error;
}

void kvd_object_free(struct kvd_object *object)
{
	close(object->fd);
	kvd_parts_fini(object);
	kvd_verify_fini(object);
	pthread_mutex_destroy(&object->grow_lock);
	free(object);
}

void kvd_objects_fini(struct kvd_objects *objects, struct kvd_cold *cold)
{
	for (size_t i = 0; i < objects->n_buckets; i++) {
		while (objects->buckets[i]) {
			struct kvd_object *object = objects->buckets[i];

			objects->buckets[i] = object->next;
			if (!kvd_cold_end(cold, object, false))
				kvd_object_free(object);
		}
	}
	free(objects->buckets);
	pthread_cond_destroy(&objects->idle);
	pthread_mutex_destroy(&objects->lock);
}

static struct kvd_object **find(struct kvd_objects *objects, uint64_t node)
{
	struct kvd_object **at = &objects->buckets[kvd_hash(node, objects->n_buckets)];

	while (*at && (*at)->node != node)
		at = &(*at)->next;
	return at;
}

/* Double the buckets when there are as many objects; without memory for it the chains just grow. */
static void rehash(struct kvd_objects *objects)
{
	size_t n_buckets = objects->n_buckets * 2;
	struct kvd_object **buckets;

	if (objects->count < objects->n_buckets)
		return;
	buckets = calloc(n_buckets, sizeof(struct kvd_object *));
	if (!buckets)
		return;
	for (size_t i = 0; i < objects->n_buckets; i++) {
		while (objects->buckets[i]) {
			struct kvd_object *object = objects->buckets[i];
			struct kvd_object **to = &buckets[kvd_hash(object->node, n_buckets)];

			objects->buckets[i] = object->next;
			object->next = *to;
			*to = object;
		}
	}
	free(objects->buckets);
	objects->buckets = buckets;
	objects->n_buckets = n_buckets;
}

struct kvd_object *kvd_object_get(struct kvd_objects *objects, uint64_t node)
{
	struct kvd_object *object;

	pthread_mutex_lock(&objects->lock);
	object = *find(objects, node);
	if (object)
		object->refs++;
	pthread_mutex_unlock(&objects->lock);
	return object;
}

void kvd_object_put(struct kvd_objects *objects, struct kvd_object *object)
{
	pthread_mutex_lock(&objects->lock);
	if (--object->refs == 0 && object->dead)
		pthread_cond_broadcast(&objects->idle);
	pthread_mutex_unlock(&objects->lock);
}

bool kvd_object_open_out(kvd_split *split, uint64_t node, struct kvd_wire_open_out *out)
{
	struct kvd_object *object = kvd_object_get(&split->objects, node);

	out->backing_id = 0;
	if (!object) {
		/* A virtual file: its size is not known before it is read. */
		out->open_flags = (out->open_flags & ~KVD_WIRE_FOPEN_PASSTHROUGH) | FOPEN_DIRECT_IO;
		return false;
	}
	switch (object->mode) {
	case KVD_MODE_PASSTHROUGH:
		/* The kernel refuses KEEP_CACHE and others beside it. */
		out->open_flags = KVD_WIRE_FOPEN_PASSTHROUGH;
		out->backing_id = object->backing_id;
		break;
	case KVD_MODE_DIRECT:
		out->open_flags = FOPEN_DIRECT_IO;
		break;
	default:
		out->open_flags &= FOPEN_KEEP_CACHE;
		break;
	}
	kvd_object_put(&split->objects, object);
	return true;
}

static int check(const struct kvd_split_object *want)
{
	if (want->node == 0 || want->fd < 0)
		return -EINVAL;
	if (want->mode < KVD_MODE_PASSTHROUGH || want->mode > KVD_MODE_CACHED)
		return -EINVAL;
	if (want->mode == KVD_MODE_PASSTHROUGH && want->backing_id <= 0)
		return -EINVAL;
	if (want->sums && want->sums->n_runs && !want->sums->crc && !want->stream_address)
		return -EINVAL;
	return want->sums && want->writable ? -EINVAL : 0;
}

static int probe_file(struct kvd_object *object, const struct kvd_split_sums *sums)
{
	int flags = fcntl(object->fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	/* Of what is only read, the drive is not asked for more than it has just told. */
	if (flags < 0 || (object->writable && fstatfs(object->fd, &fs)) || fstat(object->fd, &st))
		return -errno;
	object->unbuffered = (flags & O_DIRECT) != 0;
	object->tmpfs = object->writable && fs.f_type == TMPFS_MAGIC;
	/* Writes come at any offset and length. */
	if (object->unbuffered && object->writable)
		return -EINVAL;
	return sums ? kvd_verify_init(object, sums, (uint64_t)st.st_size) : 0;
}

static int object_new(kvd_split *split, const struct kvd_split_object *want, struct kvd_object **out)
{
	struct kvd_object *object;
	int error = check(want);

	if (error)
		return error;
	object = calloc(1, sizeof(*object));
	if (!object)
		return -ENOMEM;
	object->node = want->node;
	object->mode = want->mode;
	object->backing_id = want->backing_id;
	object->writable = want->writable != 0;
	atomic_init(&object->limit_bytes, want->limit_bytes);
	object->size_max_bytes = want->size_max_bytes;
	TAILQ_INIT(&object->waits);
	error = -pthread_mutex_init(&object->grow_lock, NULL);
	if (error) {
		free(object);
		return error;
	}
	object->fd = fcntl(want->fd, F_DUPFD_CLOEXEC, 0);
	if (object->fd < 0) {
		error = -errno;
		pthread_mutex_destroy(&object->grow_lock);
		free(object);
		return error;
	}
	error = probe_file(object, want->sums);
	if (!error)
		error = kvd_storage_gate_init(object, want->gate_free_bytes);
	if (!error)
		error = kvd_parts_init(object, want);
	if (!error)
		error = kvd_wait_begin(split, object, want);
	if (error) {
		kvd_object_free(object);
		return error;
	}
	*out = object;
	return 0;
}

/* `object` is in no table, and has no references. */
static void object_end(kvd_split *split, struct kvd_object *object, bool switched)
{
	kvd_wait_end(split, object, switched);
	if (!kvd_cold_end(split->cold, object, switched))
		kvd_object_free(object);
}

int kvd_split_object_add(kvd_split *split, const struct kvd_split_object *want)
{
	struct kvd_objects *objects = &split->objects;
	struct kvd_object *object;
	int error = object_new(split, want, &object);

	if (error)
		return error;
	pthread_mutex_lock(&objects->lock);
	if (*find(objects, want->node)) {
		error = -EEXIST;
	} else {
		struct kvd_object **at;

		rehash(objects);
		at = find(objects, want->node);
		*at = object;
		objects->count++;
	}
	pthread_mutex_unlock(&objects->lock);
	if (error)
		object_end(split, object, false);
	return error;
}

/* `object` is out of the table; called and returns with the table locked. */
static void bury(struct kvd_objects *objects, struct kvd_object *object)
{
	object->dead = true;
	while (object->refs > 0)
		pthread_cond_wait(&objects->idle, &objects->lock);
}

int kvd_split_object_switch(kvd_split *split, const struct kvd_split_object *want)
{
	struct kvd_objects *objects = &split->objects;
	struct kvd_object *object;
	struct kvd_object *old;
	struct kvd_object **at;
	int error = object_new(split, want, &object);

	if (error)
		return error;
	pthread_mutex_lock(&objects->lock);
	at = find(objects, want->node);
	old = *at;
	if (!old)
		error = -ENOENT;
	else if (old->mode != object->mode || old->mode == KVD_MODE_PASSTHROUGH)
		error = -EINVAL; /* the kernel was promised another way of I/O */
	if (!error) {
		object->next = old->next;
		*at = object;
		bury(objects, old);
	}
	pthread_mutex_unlock(&objects->lock);
	object_end(split, error ? object : old, !error);
	return error;
}

int kvd_split_object_limit(kvd_split *split, uint64_t node, uint64_t limit_bytes)
{
	struct kvd_object *object = kvd_object_get(&split->objects, node);

	if (!object)
		return -ENOENT;
	atomic_store(&object->limit_bytes, limit_bytes);
	kvd_object_put(&split->objects, object);
	return 0;
}

int kvd_split_object_remove(kvd_split *split, uint64_t node)
{
	struct kvd_objects *objects = &split->objects;
	struct kvd_object **at;
	struct kvd_object *object;
	int error = kvd_hot_unshare(split, node);

	if (error)
		return error;
	pthread_mutex_lock(&objects->lock);
	at = find(objects, node);
	object = *at;
	if (object) {
		*at = object->next;
		objects->count--;
		bury(objects, object);
	}
	pthread_mutex_unlock(&objects->lock);
	if (!object)
		return -ENOENT;
	object_end(split, object, false);
	return 0;
}

int kvd_split_backing_open(kvd_split *split, int fd)
{
	return kvd_sys_backing_open(split->config.fuse_fd, fd);
}

int kvd_split_backing_close(kvd_split *split, int backing_id)
{
	return kvd_sys_backing_close(split->config.fuse_fd, backing_id);
}
