/*
 * Many clients at once, four readers, answers that are lost, and a control thread that changes names, attributes and objects
 * all the while (hot_world.h): no answer is older than what had ended before its request was sent, opens that overlap have
 * one backing file, and at the end the look-ups and leases of all sides add up.
 */
#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include "hot_clients.h"

static void count_lookups(uint32_t index, int64_t more)
{
	pthread_mutex_lock(&clients->lock);
	clients->nodes[index].lookups += more;
	assert_true(clients->nodes[index].lookups >= 0);
	pthread_mutex_unlock(&clients->lock);
}

/* Forget the k-th inode that is held. */
static void forget(struct client *client, uint32_t k)
{
	struct fuse_forget_in in = { .nlookup = 1 };
	uint32_t index = client->held[k];

	client->held[k] = client->held[--client->n_held];
	count_lookups(index, -1);
	client_post(client, FUSE_FORGET, WORLD_FIRST_NODE + index, &in, sizeof(in));
}

static void forget_many(struct client *client)
{
	struct {
		struct fuse_batch_forget_in in;
		struct fuse_forget_one ones[HELD_MAX];
	} batch = { .in = { .count = 0 } };

	while (client->n_held > 0) {
		uint32_t index = client->held[--client->n_held];

		count_lookups(index, -1);
		batch.ones[batch.in.count++] = (struct fuse_forget_one){ WORLD_FIRST_NODE + index, 1 };
	}
	if (batch.in.count)
		client_post(client, FUSE_BATCH_FORGET, 0, &batch, sizeof(batch.in) + batch.in.count * sizeof(batch.ones[0]));
}

static void hold(struct client *client, uint32_t index)
{
	count_lookups(index, 1);
	if (client->n_held == HELD_MAX)
		forget(client, client_roll(client, HELD_MAX));
	client->held[client->n_held++] = index;
}

/* What an answer of the table may tell at least: also no less than the kernel knew when it came. */
static uint32_t at_least(uint32_t floor, uint32_t notified, bool by_peer)
{
	return by_peer || floor > notified ? floor : notified;
}

static void aim(struct client *client, const struct version *names, uint32_t n_names, const struct version *nodes,
		uint32_t n_nodes)
{
	client->names = names;
	client->n_names = n_names;
	client->nodes = nodes;
	client->n_nodes = n_nodes;
}

static void check_version(struct version *version, uint32_t floor, uint64_t told)
{
	assert_true(told >= floor);
	assert_true(told <= atomic_load(&version->ceil));
	version_seen(version, (uint32_t)told);
}

/* The name was so in some version since `floor`; nobody may be told of an earlier one any more. */
static void check_name(uint32_t folder, uint32_t name, uint32_t floor, uint64_t node)
{
	struct version *version = &clients->world.names[folder][name];
	uint32_t told = floor;

	while (told % 2 ? node != 0 : node != WORLD_FIRST_NODE + world_index(folder, name, told)) {
		told++;
		assert_true(told <= atomic_load(&version->ceil));
	}
	version_seen(version, told);
}

static void look_up(struct client *client)
{
	uint32_t folder = client_roll(client, WORLD_FOLDERS);
	uint32_t name = client_roll(client, WORLD_NAMES);
	uint32_t floor = atomic_load(&clients->world.names[folder][name].floor);
	uint32_t floors[WORLD_LIVES];
	const struct fuse_entry_out *out;
	char text[WORLD_NAME_BYTES];
	bool by_peer;

	for (uint32_t life = 0; life < WORLD_LIVES; life++)
		floors[life] = atomic_load(&clients->world.nodes[world_index(folder, name, 2 * life)].floor);
	world_name(text, name);
	aim(client, &clients->world.names[folder][name], 1, &clients->world.nodes[world_index(folder, name, 0)],
	    WORLD_LIVES);
	out = client_ask(client, FUSE_LOOKUP, WORLD_FOLDER_NODE + folder, text, 8);
	if (!out)
		return;
	by_peer = out->attr.blksize == WORLD_PEER_BLKSIZE;
	check_name(folder, name, at_least(floor, client->names_notified[0], by_peer), out->nodeid);
	if (out->nodeid) {
		uint32_t index = (uint32_t)out->nodeid - WORLD_FIRST_NODE;
		uint32_t life = index % WORLD_LIVES;

		check_version(&clients->world.nodes[index],
			      at_least(floors[life], client->nodes_notified[life], by_peer), out->attr.size);
		atomic_fetch_add(&clients->found, 1);
		hold(client, index);
	} else {
		atomic_fetch_add(&clients->missed, 1);
	}
}

static void get_attributes(struct client *client)
{
	struct fuse_getattr_in in = { 0 };
	const struct fuse_attr_out *out;
	uint32_t index;
	uint32_t floor;

	if (client->n_held == 0)
		return;
	index = client->held[client_roll(client, client->n_held)];
	floor = atomic_load(&clients->world.nodes[index].floor);
	aim(client, NULL, 0, &clients->world.nodes[index], 1);
	out = client_ask(client, FUSE_GETATTR, WORLD_FIRST_NODE + index, &in, sizeof(in));
	if (!out)
		return;
	floor = at_least(floor, client->nodes_notified[0], out->attr.blksize == WORLD_PEER_BLKSIZE);
	check_version(&clients->world.nodes[index], floor, out->attr.size);
}

static void open_file(struct client *client)
{
	struct fuse_open_in in = { .flags = O_RDONLY };
	const struct kvd_wire_open_out *out;
	struct kernel_node *node;
	uint32_t index;

	if (client->n_held == 0 || client->n_open == OPEN_MAX)
		return;
	index = client->held[client_roll(client, client->n_held)];
	aim(client, NULL, 0, NULL, 0);
	out = client_ask(client, FUSE_OPEN, WORLD_FIRST_NODE + index, &in, sizeof(in));
	if (!out)
		return;
	assert_int_equal(out->open_flags, 1u << 7);
	client->open[client->n_open++] = (struct handle){ index, out->fh };
	node = &clients->nodes[index];
	pthread_mutex_lock(&clients->lock);
	assert_true(node->opens == 0 || node->backing_id == out->backing_id);
	node->opens++;
	node->backing_id = out->backing_id;
	pthread_mutex_unlock(&clients->lock);
}

static void close_file(struct client *client)
{
	struct handle handle;
	struct fuse_release_in in = { 0 };

	if (client->n_open == 0)
		return;
	handle = client->open[--client->n_open];
	in.fh = handle.fh;
	aim(client, NULL, 0, NULL, 0);
	pthread_mutex_lock(&clients->lock);
	clients->nodes[handle.index].opens--;
	pthread_mutex_unlock(&clients->lock);
	client_ask(client, FUSE_RELEASE, WORLD_FIRST_NODE + handle.index, &in, sizeof(in));
}

/* A listing that C made tells of all names as they were at one time since it was asked for. */
static void list(struct client *client)
{
	struct fuse_read_in in = { .size = ANSWER_BYTES_MAX - 64 };
	uint32_t opcode = client_roll(client, 2) ? FUSE_READDIR : FUSE_READDIRPLUS;
	uint32_t folder = client_roll(client, WORLD_FOLDERS);
	size_t head = opcode == FUSE_READDIR ? 0 : sizeof(struct fuse_entry_out);
	uint32_t floors[WORLD_NAMES];
	uint64_t nodes[WORLD_NAMES] = { 0 };
	uint32_t lookups[WORLD_NAMES];
	uint32_t n_lookups = 0;
	const uint8_t *out;

	for (uint32_t i = 0; i < WORLD_NAMES; i++)
		floors[i] = atomic_load(&clients->world.names[folder][i].floor);
	aim(client, clients->world.names[folder], WORLD_NAMES, NULL, 0);
	out = client_ask(client, opcode, WORLD_FOLDER_NODE + folder, &in, sizeof(in));
	if (!out)
		return;
	for (size_t at = 0; at < client->bytes - sizeof(struct fuse_out_header);) {
		const struct fuse_entry_out *entry = (const void *)(out + at);
		const struct fuse_dirent *dirent = (const void *)(out + at + head);

		if (dirent->name[0] != '.') {
			uint32_t name = (uint32_t)(dirent->name[5] - '0') * 10 + (uint32_t)(dirent->name[6] - '0');

			assert_int_equal(nodes[name], 0);
			nodes[name] = dirent->ino;
			if (head && entry->nodeid)
				lookups[n_lookups++] = (uint32_t)entry->nodeid - WORLD_FIRST_NODE;
		}
		at += FUSE_DIRENT_ALIGN(head + FUSE_NAME_OFFSET + dirent->namelen);
	}
	for (uint32_t i = 0; i < WORLD_NAMES; i++)
		check_name(folder, i, at_least(floors[i], client->names_notified[i], false), nodes[i]);
	atomic_fetch_add(&clients->listed, 1);
	while (n_lookups > 0)
		hold(client, lookups[--n_lookups]);
}

static void *be_client(void *arg)
{
	struct client *client = arg;

	for (uint32_t i = 0; i < REQUESTS; i++) {
		switch (client_roll(client, 16)) {
		case 0 ... 5:
			look_up(client);
			break;
		case 6 ... 8:
			get_attributes(client);
			break;
		case 9 ... 10:
			open_file(client);
			break;
		case 11 ... 12:
			close_file(client);
			break;
		case 13:
			list(client);
			break;
		case 14:
			if (client->n_held > 0)
				forget(client, client_roll(client, client->n_held));
			break;
		default:
			if (client_roll(client, 8) == 0)
				forget_many(client);
			break;
		}
	}
	return NULL;
}

static bool do_add_up(void)
{
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		const struct owned *owned = &clients->world.owned[i];

		if (owned->lookups != (uint64_t)clients->nodes[i].lookups ||
		    owned->opens + owned->leases != (uint64_t)clients->nodes[i].opens)
			return false;
	}
	return true;
}

static void check_sums(void)
{
	struct world *world = &clients->world;
	time_t deadline = time(NULL) + DEADLINE_S;

	/* What nobody waits for, as FORGET, may still be on its way. */
	do
		world_empty(world);
	while (!do_add_up() && time(NULL) < deadline);
	for (uint32_t i = 0; i < WORLD_NODES; i++) {
		assert_int_equal(world->owned[i].lookups, clients->nodes[i].lookups);
		assert_int_equal(world->owned[i].opens + world->owned[i].leases, clients->nodes[i].opens);
	}
	assert_int_equal(world->opens, rig_stats(&world->rig).hot_opens);
	assert_int_equal(rig_stats(&world->rig).hot_leases, 0);
	assert_int_equal(rig_stats(&world->rig).hot_shared, 0);
	assert_int_equal(rig_stats(&world->rig).hot_inodes, 0);
}

static void run(uint32_t hot_inodes_max, uint32_t hot_names_max)
{
	pthread_t threads[CLIENTS];
	pthread_t receiver;
	pthread_t control;
	struct kvd_split_stats stats;

	clients = calloc(1, sizeof(*clients));
	clients->world.seed = 4711;
	pthread_mutex_init(&clients->lock, NULL);
	rig_open_hot(&clients->world.rig, 4, hot_inodes_max, hot_names_max);
	atomic_store(&fake_on_lost, clients_on_lost);
	atomic_store(&fake_dawdles, true);
	assert_int_equal(pthread_create(&receiver, NULL, clients_read_answers, NULL), 0);
	assert_int_equal(pthread_create(&control, NULL, world_control, &clients->world), 0);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		clients->client[i].id = i;
		clients->client[i].seed = 100 + i;
		pthread_mutex_init(&clients->client[i].lock, NULL);
		pthread_cond_init(&clients->client[i].came, NULL);
		assert_int_equal(pthread_create(&threads[i], NULL, be_client, &clients->client[i]), 0);
	}
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	atomic_store(&clients->world.ending, true);
	assert_int_equal(pthread_join(control, NULL), 0);
	atomic_store(&fake_write_error, 0);
	atomic_store(&fake_on_lost, NULL);
	atomic_store(&fake_dawdles, false);
	atomic_store(&clients->ending, true);
	clients->world.rig.unique = 2;
	kernel_send(&clients->world.rig, FUSE_IOCTL, 1, NULL, 0, NULL, 0);
	assert_int_equal(pthread_join(receiver, NULL), 0);
	check_sums();
	stats = rig_stats(&clients->world.rig);
	assert_true(stats.hot_lookups > 0 && stats.hot_negatives > 0 && stats.hot_getattrs > 0);
	assert_true(stats.hot_opens > 0 && stats.hot_releases > 0 && stats.hot_readdirs > 0);
	assert_true(stats.forwarded > 0 && atomic_load(&clients->lost) > 0);
	print_message("found %u missed %u listed %u lost %u; C: %lu of %lu\n", clients->found, clients->missed,
		      clients->listed, clients->lost, (unsigned long)(stats.requests - stats.forwarded),
		      (unsigned long)stats.requests);
	rig_close(&clients->world.rig);
	free(clients);
}

static void test_many_clients(void **state)
{
	(void)state;
	run(RIG_HOT_MAX, RIG_HOT_MAX);
}

static void test_many_clients_of_a_small_table(void **state)
{
	(void)state;
	run(WORLD_NAMES * 2, WORLD_NAMES * 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_clients),
		cmocka_unit_test(test_many_clients_of_a_small_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
