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

/* The same from a file that is being filled, of pages that have landed. */
static ssize_t fetch_landed(struct kvd_reader *reader, const struct kvd_object *object, uint64_t offset, size_t bytes)
{
	ssize_t got;

	if (offset >= object->size_bytes)
		return 0;
	if (bytes > object->size_bytes - offset)
		bytes = (size_t)(object->size_bytes - offset);
	got = kvd_pread_full(object, reader->data, bytes, offset);
	if (got >= 0 && (size_t)got < bytes)
		got = -EIO; /* a short answer would be taken for the end of the file */
	return got < 0 ? io_error(reader->split, object, (int)got) : got;
}

/* Bring [offset, offset + bytes) of a file in DDR into the reader's buffer; *skew is where it begins. Bytes up to the end of file, or -errno. */
static ssize_t fetch(struct kvd_reader *reader, const struct kvd_object *object, uint64_t offset, size_t bytes,
		     size_t *skew)
{
	uint64_t unit = object->unbuffered ? KVD_BLOCK_BYTES : 1;
	uint64_t from = kvd_align_down(offset, unit);
	ssize_t got;

	*skew = (size_t)(offset - from);
	if (object->stream) {
		*skew = 0;
		return fetch_landed(reader, object, offset, bytes);
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
	int ready;

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
	ready = object->stream ? kvd_wait_read(split, object, request) : 1;
	if (ready == 1 && object->page_bytes && !object->stream)
		ready = kvd_cold_read(split, object, request); /* a drive may keep who reads it */
	if (ready != 1) {
		kvd_object_put(&split->objects, object);
		return ready;
	}
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

/*
 * The tmpfs was full though the file may hold more: others have outgrown what they were given. That passes, and the peer knows
 * when, so it is asked again.
 */
static bool may_wait(const struct kvd_object *object, const struct kvd_request *request, ssize_t error)
{
	return error == -ENOSPC && object->tmpfs && request->asks < KVD_ASKS_MAX;
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
	if (may_wait(object, request, put))
		return -EDQUOT;
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

static int fallocate_file(const struct kvd_object *object, const struct fuse_fallocate_in *in)
{
	while (fallocate(object->fd, (int)in->mode, (off_t)in->offset, (off_t)in->length))
		if (errno != EINTR)
			return -errno;
	return 0;
}

static int punch_file(kvd_split *split, const struct kvd_object *object, const struct fuse_fallocate_in *in)
{
	int error = object->writable ? fallocate_file(object, in) : -EBADF;

	return error && object->writable ? io_error(split, object, error) : error;
}

static int fallocate_object(kvd_split *split, struct kvd_object *object, const struct kvd_request *request,
			    struct kvd_split_ask *ask)
{
	const struct fuse_fallocate_in *in = request->body;
	uint64_t claimed;
	int error;

	if (in->mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
		return punch_file(split, object, in);
	if (in->mode != 0 && in->mode != FALLOC_FL_KEEP_SIZE)
		return -EOPNOTSUPP;
	error = check_write(object, in->offset, in->length);
	if (error)
		return error;
	error = kvd_storage_claim(object, in->offset, in->length, request->asked_bytes, &claimed, &ask->need_bytes);
	if (error)
		return error;
	error = fallocate_file(object, in);
	kvd_storage_release(object, claimed);
	if (may_wait(object, request, error))
		return -EDQUOT;
	return error ? io_error(split, object, error) : 0;
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
	if (object->page_bytes) {
		/* What has not landed yet, or is in another part, is no hole; and no drive is asked. */
		at = kvd_verify_seek(object, in->offset, in->whence);
		error = at < 0 ? (int)at : 0;
	} else {
		at = lseek(object->fd, (off_t)in->offset, (int)in->whence);
		error = at < 0 ? -errno : 0;
	}
	kvd_object_put(&split->objects, object);
	if (error)
		return error;
	out.offset = (uint64_t)at;
	kvd_reply_data(split, request->header->unique, &out, sizeof(out));
	return 0;
}

int kvd_data_gate(kvd_split *split, const struct kvd_request *request)
{
	struct kvd_split_ask ask = { .opcode = FUSE_GETXATTR };
	struct kvd_object *object;
	int error = 0;

	if (request->asks)
		return -ENODATA; /* it has waited */
	object = kvd_object_get(&split->objects, request->header->nodeid);
	if (!object)
		return -ENODATA;
	if (object->mode == KVD_MODE_PASSTHROUGH && object->writable)
		error = kvd_storage_gate(object, &ask.need_bytes);
	kvd_object_put(&split->objects, object);
	return error ? kvd_forward_ask(split, request, &ask) : -ENODATA;
}
