/* Clients of a split that ask at once, each one request at a time; their answers may be lost. */
#ifndef KVD_TESTS_HOT_CLIENTS_H
#define KVD_TESTS_HOT_CLIENTS_H

#include "hot_world.h"

enum {
	CLIENTS = 6,
	REQUESTS = 6000, /* of each */
	HELD_MAX = 24,   /* inodes that a client holds on to */
	OPEN_MAX = 8,
	ANSWER_BYTES_MAX = 32 << 10,
	DEADLINE_S = 20,
};

struct handle {
	uint32_t index;
	uint64_t fh;
};

struct client {
	struct clients *all;
	uint64_t seed;
	uint64_t number; /* of the last request */
	uint32_t id;
	uint32_t n_held;
	uint32_t n_open;
	uint32_t held[HELD_MAX];
	struct handle open[OPEN_MAX];
	/* What the request under way asks about, and what the kernel had been notified of when its answer came. */
	const struct version *names;
	const struct version *nodes;
	uint32_t n_names;
	uint32_t n_nodes;
	uint32_t names_notified[WORLD_NAMES];
	uint32_t nodes_notified[WORLD_LIVES];
	/* The answer to it. */
	pthread_mutex_t lock;
	pthread_cond_t came;
	bool done; /* came, or was lost */
	size_t bytes;
	_Alignas(8) uint8_t answer[ANSWER_BYTES_MAX];
};

/* The kernel's view of one inode. */
struct kernel_node {
	int64_t lookups;
	int64_t opens;
	int32_t backing_id; /* while there are opens */
};

struct clients {
	struct world world;
	struct client client[CLIENTS];
	pthread_mutex_t lock; /* of `nodes` */
	struct kernel_node nodes[WORLD_NODES];
	atomic_bool ending;
	atomic_uint found;
	atomic_uint missed;
	atomic_uint listed;
	atomic_uint lost;
};

extern struct clients *clients;

/* Hands each answer to who asked, until `ending` and one more answer. */
void *clients_read_answers(void *unused);
/* For fake_on_lost. */
void clients_on_lost(uint64_t unique);
void client_post(struct client *client, uint32_t opcode, uint64_t node, const void *body, size_t bytes);
/* The answer's body; NULL if it is an error, or was lost. */
const void *client_ask(struct client *client, uint32_t opcode, uint64_t node, const void *body, size_t bytes);
static inline uint32_t client_roll(struct client *client, uint32_t sides)
{
	return world_random(&client->seed) % sides;
}

#endif
