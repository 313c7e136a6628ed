/* READ, WRITE, FALLOCATE and LSEEK of nodes that have an object. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fuse/internal.h"

enum { KVD_ROUND_BYTES_MAX = 4 << 20 };

static int io_error(kvd_split *split, const struct kvd_object *object, int error)
{
	kvd_event_post(split, KVD_EVENT_IO_ERROR, object->node, (uint64_t)-error);
	return error;
}

/* A range whose end, rounded up to a page or huge page, off_t can't hold never comes from a kernel. */
static bool is_range(uint64_t offset, uint64_t length)
{
	const uint64_t end_max = (uint64_t)INT64_MAX - KVD_ROUND_BYTES_MAX;

	return offset <= end_max && length <= end_max - offset;
}

/* Bring [offset, offset + bytes) into the reader's buffer; *skew is where it begins. Bytes up to the end of file, or -errno. */
static ssize_t fetch(struct kvd_reader *reader, const struct kvd_object *object, uint64_t offset, size_t bytes,
		     size_t *skew)
{
	uint64_t unit = object->page_bytes ? object->page_bytes : object->unbuffered ? KVD_BLOCK_BYTES : 1;
	uint64_t from = kvd_align_down(offset, unit);
	ssize_t got;

	*skew = (size_t)(offset - from);
	if (object->page_bytes) {
		int error;

		if (offset >= object->size_bytes)
			return 0;
		if (bytes > object->size_bytes - offset)
			bytes = (size_t)(object->size_bytes - offset);
		error = kvd_verify_read(reader->split, object, reader->data, from, offset + bytes);
		return error ? error : (ssize_t)bytes;
	}
	got = kvd_pread_full(object, reader->data, kvd_align_up(*skew + bytes, unit), from);
	if (got < 0)
		return io_error(reader->split, object, (int)got);
	if ((size_t)got <= *skew)
		return 0;
	got -= (ssize_t)*skew;
	return (size_t)got < bytes ? got : (ssize_t)bytes;
}

int kvd_data_read(struct kvd_reader *reader, const struct kvd_request *request)
{
	kvd_split *split = reader->split;
	const struct fuse_read_in *in = request->body;
	struct kvd_object *object;
	ssize_t got;
	size_t skew;

	if (request->body_bytes < sizeof(*in) || in->size > split->config.io_bytes_max || in->offset > INT64_MAX)
		return -EINVAL;
	if (!is_range(in->offset, in->size)) {
		/* Behind the end of any file. */
		kvd_reply_data(split, request->header->unique, NULL, 0);
		return 0;
	}
	object = kvd_object_get(&split->objects, request->header->nodeid);
	if (!object)
		return kvd_forward_io(split, request);
	got = fetch(reader, object, in->offset, in->size, &skew);
	kvd_object_put(&split->objects, object);
	if (got < 0)
		return (int)got;
	kvd_count(&split->counters.reads, 1);
	kvd_count(&split->counters.read_bytes, (uint64_t)got);
	kvd_reply_data(split, request->header->unique, reader->data + skew, (size_t)got);
	return 0;
}

/* Bytes written, or -errno if none was. */
static ssize_t write_full(const struct kvd_object *object, const uint8_t *data, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t put = pwrite(object->fd, data + done, bytes - done, (off_t)(offset + done));

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return done ? (ssize_t)done : -errno;
		done += (size_t)put;
	}
	return (ssize_t)done;
}

static int check_write(const struct kvd_object *object, uint64_t offset, uint64_t length)
{
	if (!object->writable)
		return -EBADF;
	return offset + length > object->size_max_bytes ? -EFBIG : 0;
}

/* Bytes written; -EDQUOT: the peer has to be asked for ask->need_bytes; or another -errno. */
static ssize_t write_object(kvd_split *split, struct kvd_object *object, const struct kvd_request *request,
			    struct kvd_split_ask *ask)
{
	const struct fuse_write_in *in = request->body;
	uint64_t claimed;
	ssize_t put = check_write(object, in->offset, in->size);

	if (put || in->size == 0)
		return put;
	put = kvd_storage_claim(object, in->offset, in->size, request->asked_bytes, &claimed, &ask->need_bytes);
	if (put)
		return put;
	put = write_full(object, (const uint8_t *)(in + 1), in->size, in->offset);
	kvd_storage_release(object, claimed);
	return put < 0 ? io_error(split, object, (int)put) : put;
}

int kvd_data_write(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_write_in *in = request->body;
	struct fuse_write_out out = { 0 };
	struct kvd_split_ask ask = { .opcode = FUSE_WRITE };
	struct kvd_object *object;
	ssize_t put;

	if (request->body_bytes < sizeof(*in) || in->size > split->config.io_bytes_max ||
	    request->body_bytes != sizeof(*in) + in->size || !is_range(in->offset, in->size))
		return -EINVAL;
	object = kvd_object_get(&split->objects, request->header->nodeid);
	if (!object)
		return kvd_forward_io(split, request);
	put = write_object(split, object, request, &ask);
	kvd_object_put(&split->objects, object);
	if (put == -EDQUOT) {
		/* Without the object: the peer may be waiting to remove it while its socket is full. */
		ask.offset = in->offset;
		ask.length = in->size;
		return kvd_forward_ask(split, request, &ask);
	}
	if (put < 0)
		return (int)put;
	out.size = (uint32_t)put;
	kvd_count(&split->counters.writes, 1);
	kvd_count(&split->counters.write_bytes, (uint64_t)put);
	kvd_reply_data(split, request->header->unique, &out, sizeof(out));
	return 0;
}

static int fallocate_file(kvd_split *split, const struct kvd_object *object, const struct fuse_fallocate_in *in)
{
	while (fallocate(object->fd, (int)in->mode, (off_t)in->offset, (off_t)in->length))
		if (errno != EINTR)
			return io_error(split, object, -errno);
	return 0;
}

static int fallocate_object(kvd_split *split, struct kvd_object *object, const struct kvd_request *request,
			    struct kvd_split_ask *ask)
{
	const struct fuse_fallocate_in *in = request->body;
	uint64_t claimed;
	int error;

	if (in->mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
		return object->writable ? fallocate_file(split, object, in) : -EBADF;
	if (in->mode != 0 && in->mode != FALLOC_FL_KEEP_SIZE)
		return -EOPNOTSUPP;
	error = check_write(object, in->offset, in->length);
	if (error)
		return error;
	error = kvd_storage_claim(object, in->offset, in->length, request->asked_bytes, &claimed, &ask->need_bytes);
	if (error)
		return error;
	error = fallocate_file(split, object, in);
	kvd_storage_release(object, claimed);
	return error;
}

int kvd_data_fallocate(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_fallocate_in *in = request->body;
	struct kvd_split_ask ask = { .opcode = FUSE_FALLOCATE };
	struct kvd_object *object;
	int error;

	if (request->body_bytes < sizeof(*in) || in->length == 0 || !is_range(in->offset, in->length))
		return -EINVAL;
	object = kvd_object_get(&split->objects, request->header->nodeid);
	if (!object)
		return -EOPNOTSUPP; /* ENOSYS would switch it off for the whole mount */
	error = fallocate_object(split, object, request, &ask);
	kvd_object_put(&split->objects, object);
	if (error == -EDQUOT) {
		ask.offset = in->offset;
		ask.length = in->length;
		ask.mode = in->mode;
		return kvd_forward_ask(split, request, &ask);
	}
	if (!error)
		kvd_reply_data(split, request->header->unique, NULL, 0);
	return error;
}

int kvd_data_lseek(kvd_split *split, const struct kvd_request *request)
{
	const struct fuse_lseek_in *in = request->body;
	struct fuse_lseek_out out;
	struct kvd_object *object;
	off_t at;
	int error;

	if (request->body_bytes < sizeof(*in) || (in->whence != SEEK_DATA && in->whence != SEEK_HOLE))
		return -EINVAL;
	if (in->offset > INT64_MAX)
		return -ENXIO; /* a negative one */
	object = kvd_object_get(&split->objects, request->header->nodeid);
	if (!object)
		return -EINVAL; /* as for FALLOCATE */
	at = lseek(object->fd, (off_t)in->offset, (int)in->whence);
	error = at < 0 ? -errno : 0;
	kvd_object_put(&split->objects, object);
	if (error)
		return error;
	out.offset = (uint64_t)at;
	kvd_reply_data(split, request->header->unique, &out, sizeof(out));
	return 0;
}
