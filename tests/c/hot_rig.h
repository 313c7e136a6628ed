/* What the tests of the hot table share: attributes, and requests that are answered by C or by the peer. */
#ifndef KVD_TESTS_HOT_RIG_H
#define KVD_TESTS_HOT_RIG_H

#include "split_rig.h"

enum {
	HOT_FOLDER = 1,
	HOT_FOLDER_PARENT = 90,
	HOT_FILE = 0100644,
	HOT_NS = 1000000000,
};

struct answer_entry {
	struct fuse_out_header header;
	struct fuse_entry_out entry;
};

struct answer_attr {
	struct fuse_out_header header;
	struct fuse_attr_out body;
};

struct answer_open {
	struct fuse_out_header header;
	struct kvd_wire_open_out body;
};

/* Attributes that differ in every field, made of the node. */
struct kvd_hot_attr hot_attr(uint64_t node, uint32_t mode);
void hot_put(struct rig *rig, uint64_t node, uint32_t mode);
void hot_name(struct rig *rig, uint64_t parent, const char *name, uint64_t cookie, uint64_t node);
/* A folder that is complete, with its parent. */
void hot_complete(struct rig *rig, uint64_t node);
/* An object of a node with that backing id, shared; the inode must be there. */
void hot_share(struct rig *rig, uint64_t node, int32_t backing_id);

uint64_t send_lookup(struct rig *rig, uint64_t parent, const char *name);
uint64_t send_getattr(struct rig *rig, uint64_t node);
uint64_t send_open(struct rig *rig, uint64_t node, uint32_t flags);
uint64_t send_release(struct rig *rig, uint64_t node, uint64_t fh);
uint64_t send_readdir(struct rig *rig, uint32_t opcode, uint64_t node, uint64_t offset, uint32_t size);
void send_forget(struct rig *rig, uint64_t node, uint64_t lookups);

/* The peer gets the request as it was sent; it is answered EAGAIN. */
void expect_forwarded(struct rig *rig, uint32_t opcode, uint64_t unique);
/* C answers with the attributes of hot_attr(node), from the entry on. */
void expect_found(struct rig *rig, uint64_t unique, uint64_t node, uint32_t mode);
void expect_not_there(struct rig *rig, uint64_t unique);
/* C answers an OPEN with its own handle. */
struct kvd_wire_open_out expect_opened(struct rig *rig, uint64_t unique, uint64_t node);
void expect_done(struct rig *rig, uint64_t unique);
void assert_attr(const struct fuse_attr *attr, uint64_t node, uint32_t mode);

#endif
