#include "hot_rig.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

struct kvd_hot_attr hot_attr(uint64_t node, uint32_t mode)
{
	return (struct kvd_hot_attr){
		.node = node,
		.size = node * 1000 + 1,
		.held_bytes = node * 4096,
		.atime_ns = (int64_t)node * HOT_NS + 1,
		.mtime_ns = -(int64_t)node * HOT_NS - 2, /* before 1970 */
		.ctime_ns = (int64_t)node * HOT_NS + 3,
		.mode = mode,
		.nlink = (uint32_t)node + 4,
		.uid = (uint32_t)node + 5,
		.gid = (uint32_t)node + 6,
		.rdev = (uint32_t)node + 7,
		.entry_timeout_ms = 60001,
		.attr_timeout_ms = 2,
	};
}

void assert_attr(const struct fuse_attr *attr, uint64_t node, uint32_t mode)
{
	struct fuse_attr want = {
		.ino = node,
		.size = node * 1000 + 1,
		.blocks = node * 8,
		.atime = node,
		.mtime = (uint64_t)(-(int64_t)node - 1),
		.ctime = node,
		.atimensec = 1,
		.mtimensec = HOT_NS - 2,
		.ctimensec = 3,
		.mode = mode,
		.nlink = (uint32_t)node + 4,
		.uid = (uint32_t)node + 5,
		.gid = (uint32_t)node + 6,
		.rdev = (uint32_t)node + 7,
		.blksize = 65536,
	};

	assert_memory_equal(attr, &want, sizeof(want));
}

void hot_put(struct rig *rig, uint64_t node, uint32_t mode)
{
	struct kvd_hot_attr attr = hot_attr(node, mode);

	assert_int_equal(kvd_hot_put(rig->split, &attr), 0);
}

void hot_name(struct rig *rig, uint64_t parent, const char *name, uint64_t cookie, uint64_t node)
{
	assert_int_equal(kvd_hot_name(rig->split, parent, name, (uint32_t)strlen(name), cookie, node), 0);
}

void hot_complete(struct rig *rig, uint64_t node)
{
	assert_int_equal(kvd_hot_folder(rig->split, node, KVD_HOT_COMPLETE), 0);
	assert_int_equal(kvd_hot_folder_parent(rig->split, node, HOT_FOLDER_PARENT), 0);
}

void hot_share(struct rig *rig, uint64_t node, int32_t backing_id)
{
	int fd = rig_file(0);
	struct kvd_split_object object = {
		.node = node,
		.mode = backing_id ? KVD_MODE_PASSTHROUGH : KVD_MODE_DIRECT,
		.fd = fd,
		.backing_id = backing_id,
	};

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
	assert_int_equal(kvd_hot_share(rig->split, node), 0);
	close(fd);
}

uint64_t send_lookup(struct rig *rig, uint64_t parent, const char *name)
{
	return kernel_send(rig, FUSE_LOOKUP, parent, name, strlen(name) + 1, NULL, 0);
}

uint64_t send_getattr(struct rig *rig, uint64_t node)
{
	struct fuse_getattr_in in = { 0 };

	return kernel_send(rig, FUSE_GETATTR, node, &in, sizeof(in), NULL, 0);
}

uint64_t send_open(struct rig *rig, uint64_t node, uint32_t flags)
{
	struct fuse_open_in in = { .flags = flags };

	return kernel_send(rig, FUSE_OPEN, node, &in, sizeof(in), NULL, 0);
}

uint64_t send_release(struct rig *rig, uint64_t node, uint64_t fh)
{
	struct fuse_release_in in = { .fh = fh };

	return kernel_send(rig, FUSE_RELEASE, node, &in, sizeof(in), NULL, 0);
}

uint64_t send_readdir(struct rig *rig, uint32_t opcode, uint64_t node, uint64_t offset, uint32_t size)
{
	struct fuse_read_in in = { .fh = node, .offset = offset, .size = size };

	return kernel_send(rig, opcode, node, &in, sizeof(in), NULL, 0);
}

void send_forget(struct rig *rig, uint64_t node, uint64_t lookups)
{
	struct fuse_forget_in in = { .nlookup = lookups };

	kernel_send(rig, FUSE_FORGET, node, &in, sizeof(in), NULL, 0);
}

void expect_forwarded(struct rig *rig, uint32_t opcode, uint64_t unique)
{
	struct message *message = malloc(sizeof(*message));

	peer_expect(rig, message, opcode, unique);
	free(message);
	peer_send(rig, unique, -EAGAIN, NULL, 0);
	kernel_expect_error(rig, unique, EAGAIN);
}

void expect_found(struct rig *rig, uint64_t unique, uint64_t node, uint32_t mode)
{
	struct answer_entry got;

	assert_int_equal(recv(rig->kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.header.len, sizeof(got));
	assert_int_equal(got.header.error, 0);
	assert_int_equal(got.header.unique, unique);
	assert_int_equal(got.entry.nodeid, node);
	assert_int_equal(got.entry.generation, 0);
	assert_int_equal(got.entry.entry_valid, 60);
	assert_int_equal(got.entry.entry_valid_nsec, 1000000);
	assert_int_equal(got.entry.attr_valid, 0);
	assert_int_equal(got.entry.attr_valid_nsec, 2000000);
	assert_attr(&got.entry.attr, node, mode);
}

void expect_not_there(struct rig *rig, uint64_t unique)
{
	struct answer_entry got;
	struct fuse_entry_out want = { .entry_valid = 61, .entry_valid_nsec = 500000000 };

	assert_int_equal(recv(rig->kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.header.error, 0);
	assert_int_equal(got.header.unique, unique);
	assert_memory_equal(&got.entry, &want, sizeof(want));
}

struct kvd_wire_open_out expect_opened(struct rig *rig, uint64_t unique, uint64_t node)
{
	struct answer_open got;

	assert_int_equal(recv(rig->kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.header.error, 0);
	assert_int_equal(got.header.unique, unique);
	assert_true(got.body.fh == (KVD_HOT_FH | node));
	return got.body;
}

void expect_done(struct rig *rig, uint64_t unique)
{
	kernel_expect_error(rig, unique, 0);
}
