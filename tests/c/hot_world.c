#include "hot_world.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORLD_STEP_MESSAGES = 3, WORLD_FOLDER_BYTES = WORLD_NAMES * WORLD_NAME_BYTES };

static uint64_t node_of(uint32_t index)
{
	return WORLD_FIRST_NODE + index;
}

static struct kvd_hot_attr attr_of(struct world *world, uint32_t index)
{
	return (struct kvd_hot_attr){
		.node = node_of(index),
		.size = atomic_load(&world->nodes[index].ceil),
		.mode = 0100644,
		.nlink = 1,
		.entry_timeout_ms = 60000,
		.attr_timeout_ms = 60000,
	};
}

static void take_over(struct world *world, uint32_t index, const struct kvd_hot_gone *gone)
{
	struct owned *owned = &world->owned[index];

	owned->lookups += gone->lookups;
	owned->leases += gone->leases;
	world->opens += gone->opens;
}

/* The object goes with the last who has it open. */
static void close_if_idle(struct world *world, uint32_t index)
{
	struct owned *owned = &world->owned[index];

	if (owned->backing_id && !owned->shared && owned->opens + owned->leases == 0) {
		assert_int_equal(kvd_split_object_remove(world->rig.split, node_of(index)), 0);
		owned->backing_id = 0;
	}
}

static void drop(struct world *world, uint32_t index)
{
	struct kvd_hot_gone gone;

	if (kvd_hot_drop(world->rig.split, node_of(index), &gone) == 0)
		take_over(world, index, &gone);
	world->owned[index].in_table = false;
	world->owned[index].shared = false;
	close_if_idle(world, index);
}

static void put(struct world *world, uint32_t index)
{
	struct kvd_hot_attr attr = attr_of(world, index);

	world->owned[index].in_table = kvd_hot_put(world->rig.split, &attr) == 0;
}

static void shut(struct world *world, uint32_t index, bool only_idle)
{
	struct kvd_hot_gone gone;
	int error = kvd_hot_shut(world->rig.split, node_of(index), only_idle, &gone);

	if (error == -EBUSY) {
		assert_true(only_idle);
		return;
	}
	take_over(world, index, &gone);
	world->owned[index].shared = false;
	close_if_idle(world, index);
}

static void share(struct world *world, uint32_t index)
{
	struct owned *owned = &world->owned[index];

	if (owned->in_table && owned->backing_id) {
		assert_int_equal(kvd_hot_share(world->rig.split, node_of(index)), 0);
		owned->shared = true;
	}
}

static void answer_lookup(struct world *world, const struct fuse_in_header *in, const char *text)
{
	uint32_t folder = (uint32_t)in->nodeid - WORLD_FOLDER_NODE;
	uint32_t name = (uint32_t)(text[5] - '0') * 10 + (uint32_t)(text[6] - '0');
	uint32_t version = atomic_load(&world->names[folder][name].ceil);
	struct fuse_entry_out out = { .attr.blksize = WORLD_PEER_BLKSIZE };

	if (version % 2 == 0) {
		uint32_t index = world_index(folder, name, version);

		world->owned[index].lookups++;
		out.nodeid = node_of(index);
		out.attr.size = atomic_load(&world->nodes[index].ceil);
	}
	peer_send(&world->rig, in->unique, 0, &out, sizeof(out));
}

static void answer_open(struct world *world, const struct fuse_in_header *in, uint32_t index)
{
	struct owned *owned = &world->owned[index];
	struct kvd_wire_open_out out = { .fh = in->unique };

	if (!owned->backing_id) {
		struct kvd_split_object object = {
			.node = in->nodeid,
			.mode = KVD_MODE_PASSTHROUGH,
			.fd = world->rig.peer,
			.backing_id = ++world->backing_last,
		};

		assert_int_equal(kvd_split_object_add(world->rig.split, &object), 0);
		owned->backing_id = object.backing_id;
	}
	owned->opens++;
	share(world, index);
	peer_send(&world->rig, in->unique, 0, &out, sizeof(out));
}

static void answer_release(struct world *world, const struct fuse_in_header *in, uint32_t index, uint64_t fh)
{
	struct owned *owned = &world->owned[index];
	uint64_t *count = fh & KVD_HOT_FH ? &owned->leases : &owned->opens;

	assert_true(*count > 0);
	(*count)--;
	close_if_idle(world, index);
	peer_send(&world->rig, in->unique, 0, NULL, 0);
}

static void forget(struct world *world, uint64_t node, uint64_t lookups)
{
	struct owned *owned = &world->owned[node - WORLD_FIRST_NODE];

	assert_true(owned->lookups >= lookups);
	owned->lookups -= lookups;
}

static void answer(struct world *world, const struct message *message)
{
	const struct fuse_in_header *in = &message->in.header;
	uint32_t index = (uint32_t)in->nodeid - WORLD_FIRST_NODE;
	const struct fuse_batch_forget_in *batch = (const void *)message->in.body;
	struct fuse_attr_out attr = { .attr.blksize = WORLD_PEER_BLKSIZE };

	switch (in->opcode) {
	case FUSE_LOOKUP:
		answer_lookup(world, in, (const char *)message->in.body);
		break;
	case FUSE_GETATTR:
		attr.attr.size = atomic_load(&world->nodes[index].ceil);
		peer_send(&world->rig, in->unique, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer_open(world, in, index);
		break;
	case FUSE_RELEASE:
		answer_release(world, in, index, ((const struct fuse_release_in *)(const void *)message->in.body)->fh);
		break;
	case FUSE_FORGET:
		forget(world, in->nodeid, ((const struct fuse_forget_in *)(const void *)message->in.body)->nlookup);
		break;
	case FUSE_BATCH_FORGET:
		for (uint32_t i = 0; i < batch->count; i++) {
			const struct fuse_forget_one *one = (const struct fuse_forget_one *)(const void *)(batch + 1) + i;

			forget(world, one->nodeid, one->nlookup);
		}
		break;
	default: /* listings: the test is of those that C makes */
		peer_send(&world->rig, in->unique, -EAGAIN, NULL, 0);
		break;
	}
}

/* As between two awaits: answer some of what waits. Whether there was any. */
static bool serve(struct world *world, struct message *message, uint32_t max)
{
	bool any = false;

	for (; max > 0; max--, any = true) {
		ssize_t got = recv(world->rig.peer, message->raw, sizeof(message->raw), MSG_DONTWAIT);

		if (got <= 0)
			break;
		message->bytes = (size_t)got;
		answer(world, message);
	}
	return any;
}

static void change_node(struct world *world, struct message *message, uint32_t index)
{
	struct version *version = &world->nodes[index];

	kvd_hot_unsure(world->rig.split, node_of(index));
	serve(world, message, world_random(&world->seed) % WORLD_STEP_MESSAGES);
	atomic_fetch_add(&version->ceil, 1);
	serve(world, message, world_random(&world->seed) % WORLD_STEP_MESSAGES);
	if (world->owned[index].in_table)
		put(world, index);
	version_seen(version, atomic_load(&version->ceil));
	kvd_split_invalidate(world->rig.split, (uint64_t)atomic_load(&version->ceil) << 32 | index);
}

static void change_name(struct world *world, struct message *message, uint32_t folder, uint32_t name)
{
	struct version *version = &world->names[folder][name];
	uint32_t before = atomic_load(&version->ceil);
	uint32_t index = world_index(folder, name, before + before % 2); /* the inode that comes, or goes */
	uint64_t parent = WORLD_FOLDER_NODE + folder;
	char text[WORLD_NAME_BYTES];

	world_name(text, name);
	kvd_hot_name_unsure(world->rig.split, parent, text, 7);
	serve(world, message, world_random(&world->seed) % WORLD_STEP_MESSAGES);
	atomic_fetch_add(&version->ceil, 1);
	serve(world, message, world_random(&world->seed) % WORLD_STEP_MESSAGES);
	if (before % 2 == 0) {
		drop(world, index); /* it has no name */
		kvd_hot_name_gone(world->rig.split, parent, text, 7);
	} else {
		if (world_random(&world->seed) % 4)
			put(world, index);
		kvd_hot_name(world->rig.split, parent, text, 7, ++world->cookie, node_of(index));
	}
	version_seen(version, before + 1);
	kvd_split_invalidate(world->rig.split,
			     (uint64_t)(before + 1) << 32 | WORLD_NOTE_NAME | (folder * WORLD_NAMES + name));
}

/* What is known to be there, and which of it is not. */
static void publish(struct world *world, uint32_t folder, bool complete)
{
	struct kvd_hot_attr attrs[WORLD_NAMES];
	uint64_t cookies[WORLD_NAMES];
	uint32_t bytes[WORLD_NAMES];
	char names[WORLD_FOLDER_BYTES];
	uint64_t parent = WORLD_FOLDER_NODE + folder;
	uint32_t count = 0;

	for (uint32_t i = 0; i < WORLD_NAMES; i++) {
		uint32_t version = atomic_load(&world->names[folder][i].ceil);

		world_name(names + count * 7, i);
		if (version % 2) {
			if (!complete)
				kvd_hot_name(world->rig.split, parent, names + count * 7, 7, 0, 0);
			continue;
		}
		attrs[count] = attr_of(world, world_index(folder, i, version));
		cookies[count] = ++world->cookie;
		bytes[count++] = 7;
	}
	if (kvd_hot_fill(world->rig.split, parent, attrs, cookies, bytes, names, count) == 0) {
		for (uint32_t i = 0; i < count; i++)
			world->owned[attrs[i].node - WORLD_FIRST_NODE].in_table = true;
		if (complete && kvd_hot_folder(world->rig.split, parent, KVD_HOT_COMPLETE) == 0)
			kvd_hot_folder_parent(world->rig.split, parent, 1);
	}
}

static void forget_folder(struct world *world, uint32_t folder)
{
	kvd_hot_forget_folder(world->rig.split, WORLD_FOLDER_NODE + folder);
	for (uint32_t i = 0; i < WORLD_NAMES * WORLD_LIVES; i++)
		if (world_random(&world->seed) % 2)
			drop(world, folder * WORLD_NAMES * WORLD_LIVES + i);
}

static void account(struct world *world)
{
	struct kvd_hot_use uses[8];
	uint32_t count = kvd_hot_used(world->rig.split, uses, 8);

	for (uint32_t i = 0; i < count; i++)
		world->opens += uses[i].opens;
}

static void act(struct world *world, struct message *message)
{
	uint32_t folder = world_random(&world->seed) % WORLD_FOLDERS;
	uint32_t name = world_random(&world->seed) % WORLD_NAMES;
	uint32_t version = atomic_load(&world->names[folder][name].ceil);
	uint32_t index = world_index(folder, name, version);

	switch (world_random(&world->seed) % 64) {
	case 0 ... 19:
		change_node(world, message, index);
		break;
	case 20 ... 39:
		change_name(world, message, folder, name);
		break;
	case 40 ... 43:
		publish(world, folder, true);
		break;
	case 44 ... 46:
		publish(world, folder, false);
		break;
	case 47:
		forget_folder(world, folder);
		break;
	case 48 ... 50:
		kvd_hot_folder(world->rig.split, WORLD_FOLDER_NODE + folder, KVD_HOT_PARTIAL);
		break;
	case 51:
		atomic_store(&fake_write_error, ENOENT);
		break;
	case 52 ... 54:
		shut(world, index, world_random(&world->seed) % 2);
		break;
	case 55 ... 60:
		share(world, index);
		break;
	default:
		account(world);
		break;
	}
}

void *world_control(void *arg)
{
	struct world *world = arg;
	struct message *message = malloc(sizeof(*message));
	uint64_t acts = 0;

	while (!atomic_load(&world->ending)) {
		bool served = serve(world, message, 8);

		/* As much happens as is asked, whichever thread the machine favours. */
		if (acts < rig_stats(&world->rig).requests) {
			act(world, message);
			acts++;
		} else if (!served) {
			sched_yield();
		}
	}
	free(message);
	return NULL;
}

void world_empty(struct world *world)
{
	struct message *message = malloc(sizeof(*message));

	while (serve(world, message, 1) || rig_stats(&world->rig).pending > 0)
		continue;
	for (uint32_t i = 0; i < WORLD_NODES; i++)
		drop(world, i);
	free(message);
}
