#include "hot_clients.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

struct clients *clients;

static struct client *client_of(uint64_t unique)
{
	return &clients->client[(unique >> 40) - 1];
}

static void give(struct client *client, const void *answer, size_t bytes)
{
	pthread_mutex_lock(&client->lock);
	assert_true(bytes <= sizeof(client->answer));
	assert_false(client->done);
	if (bytes)
		memcpy(client->answer, answer, bytes);
	client->bytes = bytes;
	for (uint32_t i = 0; i < client->n_names; i++)
		client->names_notified[i] = atomic_load(&client->names[i].notified);
	for (uint32_t i = 0; i < client->n_nodes; i++)
		client->nodes_notified[i] = atomic_load(&client->nodes[i].notified);
	client->done = true;
	pthread_cond_signal(&client->came);
	pthread_mutex_unlock(&client->lock);
}

void clients_on_lost(uint64_t unique)
{
	if (!(unique >> 40))
		return; /* a notification: what follows is checked less strictly */
	atomic_fetch_add(&clients->lost, 1);
	give(client_of(unique), NULL, 0);
}

static void notified(const struct message *message)
{
	struct world *world = &clients->world;
	struct fuse_notify_inval_inode_out note;
	struct version *version;

	assert_int_equal(message->out.header.error, FUSE_NOTIFY_INVAL_INODE);
	memcpy(&note, message->out.body, sizeof(note));
	if (note.ino & WORLD_NOTE_NAME)
		version = &world->names[0][0] + note.ino % WORLD_NOTE_NAME;
	else
		version = &world->nodes[note.ino % WORLD_NOTE_NAME];
	atomic_store(&version->notified, (uint32_t)(note.ino >> 32));
}

void *clients_read_answers(void *unused)
{
	struct message *message = malloc(sizeof(*message));

	(void)unused;
	while (!atomic_load(&clients->ending)) {
		ssize_t got = recv(clients->world.rig.kernel, message->raw, sizeof(message->raw), MSG_TRUNC);

		/* The last one is nobody's: it ends the wait. */
		assert_true(got > 0);
		if (message->out.header.unique == 0)
			notified(message);
		else if (message->out.header.unique >> 40)
			give(client_of(message->out.header.unique), message->raw, (size_t)got);
	}
	free(message);
	return NULL;
}

void client_post(struct client *client, uint32_t opcode, uint64_t node, const void *body, size_t bytes)
{
	struct fuse_in_header header = {
		.len = (uint32_t)(sizeof(header) + bytes),
		.opcode = opcode,
		.unique = ((uint64_t)client->id + 1) << 40 | ++client->number << 1,
		.nodeid = node,
	};
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)(uintptr_t)body, .iov_len = bytes },
	};

	assert_int_equal(writev(clients->world.rig.kernel, iov, 2), header.len);
}

const void *client_ask(struct client *client, uint32_t opcode, uint64_t node, const void *body, size_t bytes)
{
	const struct fuse_out_header *out = (const void *)client->answer;
	struct timespec deadline;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += DEADLINE_S;
	client->done = false;
	client_post(client, opcode, node, body, bytes);
	pthread_mutex_lock(&client->lock);
	while (!client->done)
		assert_int_equal(pthread_cond_timedwait(&client->came, &client->lock, &deadline), 0);
	pthread_mutex_unlock(&client->lock);
	if (client->bytes == 0 || out->error) {
		assert_true(client->bytes == 0 || opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS);
		return NULL;
	}
	return out + 1;
}
