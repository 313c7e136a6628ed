/* The thread that takes the peer's replies and notifications to the kernel. It never waits for the peer. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "fuse/internal.h"

static const struct fuse_entry_out *entry_out_of(const struct fuse_out_header *out)
{
	return (const void *)(out + 1);
}

/* Where a successful reply to `opcode` has its fuse_open_out, or NULL. */
static struct kvd_wire_open_out *open_out_of(struct fuse_out_header *out, uint32_t opcode)
{
	uint8_t *body = (uint8_t *)(out + 1);

	switch (opcode) {
	case FUSE_OPEN:
		return (void *)body;
	case FUSE_CREATE:
		return (void *)(body + sizeof(struct fuse_entry_out));
	default:
		return NULL;
	}
}

static bool has_entry_out(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		return true;
	default:
		return false;
	}
}

/* Whether the kernel would take this reply, as far as we read or change it. */
static bool is_sound(struct fuse_out_header *out, uint32_t opcode)
{
	size_t body = out->len - sizeof(*out);
	size_t want = has_entry_out(opcode) ? sizeof(struct fuse_entry_out) : 0;

	if (out->error)
		return out->error < 0 && out->error >= -KVD_ERRNO_MAX && body == 0;
	if (open_out_of(out, opcode))
		want += sizeof(struct kvd_wire_open_out);
	return want == 0 || body == want;
}

static void give_to_reader(kvd_split *split, struct kvd_entry *entry, enum kvd_pending_state state)
{
	entry->state = state;
	kvd_pending_post(&split->pending, entry);
	kvd_split_signal_work(split);
}

/* Nobody received what the peer gave with this reply: have it taken back. */
static void undo(kvd_split *split, struct kvd_entry *entry, struct fuse_out_header *out)
{
	const struct kvd_wire_open_out *open_out = open_out_of(out, entry->opcode);

	if (out->error == 0 && has_entry_out(entry->opcode)) {
		entry->node = entry_out_of(out)->nodeid;
		entry->forgets = entry->node != 0;
	}
	if (out->error == 0 && open_out) {
		entry->fh = open_out->fh;
		entry->release_opcode = FUSE_RELEASE;
	}
	if (entry->forgets || entry->release_opcode)
		give_to_reader(split, entry, KVD_PENDING_UNDO);
	else
		kvd_pending_free(&split->pending, entry);
}

static void relay(kvd_split *split, struct kvd_entry *entry, struct fuse_out_header *out)
{
	struct kvd_wire_open_out *open_out = open_out_of(out, entry->opcode);

	if (out->error == 0 && open_out) {
		uint64_t node = entry->opcode == FUSE_OPEN ? entry->node : entry_out_of(out)->nodeid;

		kvd_object_open_out(split, node, open_out);
	}
	if (kvd_reply_raw(split, out, out->len))
		undo(split, entry, out);
	else
		kvd_pending_free(&split->pending, entry);
}

static void answer_ask(kvd_split *split, struct kvd_entry *entry, int error)
{
	if (!error) {
		give_to_reader(split, entry, KVD_PENDING_GRANTED);
		return;
	}
	kvd_reply_error(split, entry->unique, error);
	kvd_pending_free(&split->pending, entry);
}

static void handle_reply(kvd_split *split, struct fuse_out_header *out)
{
	struct kvd_entry *entry = kvd_pending_take(&split->pending, out->unique);
	struct fuse_out_header broken = { .len = sizeof(broken), .error = -EIO, .unique = out->unique };

	if (!entry) {
		kvd_count(&split->counters.late_replies, 1);
		return;
	}
	if (!is_sound(out, entry->opcode)) {
		kvd_count(&split->counters.late_replies, 1);
		out = &broken;
	}
	if (entry->state == KVD_PENDING_ABANDONED) {
		kvd_count(&split->counters.late_replies, 1);
		undo(split, entry, out);
	} else if (entry->state == KVD_PENDING_PARKED) {
		answer_ask(split, entry, out->error);
	} else if (entry->opcode == FUSE_INIT) {
		kvd_init_reply(split, entry->unique, out->error);
		kvd_pending_free(&split->pending, entry);
	} else {
		relay(split, entry, out);
	}
}

static void handle_message(kvd_split *split, size_t bytes)
{
	struct fuse_out_header *out = (void *)split->peer_buffer;
	bool whole = bytes >= sizeof(*out) && bytes <= split->peer_buffer_bytes && out->len == bytes;

	if (whole && (out->unique & KVD_UNIQUE_OWN))
		return; /* of a RELEASE that no kernel waits for */
	if (whole && out->unique != 0) {
		handle_reply(split, out);
		return;
	}
	if (!whole || kvd_notify_post(split, out, bytes))
		kvd_count(&split->counters.late_replies, 1);
}

void kvd_peer_drain(kvd_split *split, int error)
{
	struct kvd_entry *entry;

	kvd_pending_close(&split->pending, error);
	while ((entry = kvd_pending_take_any(&split->pending)) != NULL) {
		if (entry->state != KVD_PENDING_ABANDONED)
			kvd_reply_error(split, entry->unique, error);
		kvd_pending_free(&split->pending, entry);
	}
}

/* Bytes of the next message, 0 for an empty one, -EPIPE at the end, -ECANCELED to stop. */
static ssize_t receive(kvd_split *split)
{
	struct pollfd fds[] = {
		{ .fd = split->config.peer_fd, .events = POLLIN | POLLRDHUP },
		{ .fd = split->stop_fd, .events = POLLIN },
	};

	for (;;) {
		ssize_t got;

		if (poll(fds, 2, -1) < 0)
			continue; /* EINTR: all else is a bug, and stop_fd ends it */
		if (fds[1].revents)
			return -ECANCELED;
		got = recv(split->config.peer_fd, split->peer_buffer, split->peer_buffer_bytes,
			   MSG_DONTWAIT | MSG_TRUNC);
		if (got > 0)
			return got;
		if (got == 0)
			return fds[0].revents & (POLLRDHUP | POLLHUP) ? -EPIPE : 0;
		if (errno != EAGAIN && errno != EINTR)
			return -EPIPE;
	}
}

void *kvd_peer_main(void *arg)
{
	kvd_split *split = arg;
	ssize_t got;

	while ((got = receive(split)) >= 0)
		handle_message(split, (size_t)got);
	if (got == -EPIPE) {
		kvd_peer_drain(split, -EIO);
		if (!atomic_load(&split->unmounted))
			kvd_event_post(split, KVD_EVENT_PEER_GONE, 0, 0);
	}
	return NULL;
}
