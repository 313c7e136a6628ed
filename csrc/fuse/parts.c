/* The files of a striped object: part k of n has the stripes k, k + n, ... at their own offsets. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuse/internal.h"

static int check_parts(const struct kvd_split_object *want)
{
	if (want->n_parts > KVD_SPLIT_PARTS_MAX || !want->part_fds)
		return -EINVAL;
	/* A page is in one part; what is written has one file. */
	if (!want->sums || want->stripe_bytes == 0 || want->sums->page_bytes == 0 ||
	    want->stripe_bytes % want->sums->page_bytes)
		return -EINVAL;
	return 0;
}

static int add_part(struct kvd_object *object, int fd)
{
	struct stat st;
	int flags = fcntl(fd, F_GETFL);
	int copy;

	if (flags < 0 || fstat(fd, &st))
		return -errno;
	if ((uint64_t)st.st_size < object->size_bytes)
		return -EBADMSG;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return -errno;
	object->unbuffered |= (flags & O_DIRECT) != 0;
	object->part_fds[object->n_parts++] = copy;
	return 0;
}

static int copy_devices(struct kvd_object *object, const struct kvd_split_object *want)
{
	uint32_t count = want->n_parts > 1 ? want->n_parts : 1;

	if (!want->devices)
		return 0;
	object->devices = calloc(count, sizeof(*object->devices));
	if (!object->devices)
		return -ENOMEM;
	for (uint32_t i = 0; i < count; i++) {
		if (want->devices[i] >= KVD_SPLIT_DEVICES_MAX)
			return -EINVAL;
		object->devices[i] = want->devices[i];
	}
	return 0;
}

int kvd_parts_init(struct kvd_object *object, const struct kvd_split_object *want)
{
	int error;

	if (want->n_parts <= 1)
		return copy_devices(object, want);
	error = check_parts(want);
	if (!error)
		error = copy_devices(object, want);
	if (error)
		return error;
	object->part_fds = calloc(want->n_parts, sizeof(*object->part_fds));
	if (!object->part_fds)
		return -ENOMEM;
	object->stripe_bytes = want->stripe_bytes;
	for (uint32_t i = 0; i < want->n_parts && !error; i++)
		error = add_part(object, want->part_fds[i]);
	return error; /* the caller frees the object */
}

void kvd_parts_fini(struct kvd_object *object)
{
	for (uint32_t i = 0; i < object->n_parts; i++)
		close(object->part_fds[i]);
	free(object->part_fds);
	free(object->devices);
}

int kvd_parts_at(const struct kvd_object *object, uint64_t offset, size_t *bytes)
{
	uint64_t stripe;
	uint64_t left;

	if (object->n_parts <= 1)
		return object->fd;
	stripe = offset / object->stripe_bytes;
	left = (stripe + 1) * object->stripe_bytes - offset;
	if (*bytes > left)
		*bytes = (size_t)left;
	return object->part_fds[stripe % object->n_parts];
}

uint32_t kvd_parts_device(const struct kvd_object *object, uint64_t offset)
{
	if (!object->devices)
		return 0;
	return object->devices[object->n_parts > 1 ? offset / object->stripe_bytes % object->n_parts : 0];
}
