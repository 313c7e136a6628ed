/* A host with tables and rings for the tests of the card model: the driver's side, in its shortest form. */
#ifndef KVD_TESTS_CARD_HOST_H
#define KVD_TESTS_CARD_HOST_H

#include "card_rig.h"

enum {
	HOST_DEPTH = 8,
	HOST_TABLES_BYTES = 16 << 20,
	HOST_RINGS_BYTES = 1 << 20, /* rings of both queues, then buffers */
	HOST_BUFFER_AT = 1 << 19,
	HOST_VECTOR = 5, /* of queue 0; of queue 1 the next one */
	HOST_PAGE_BYTES = 64 << 10,
	HOST_BLOCKS = 16, /* of a page */
	HOST_TIER_BLOCKS = 4096,
};
#define HOST_TABLES_IOVA 0x10000000ull
#define HOST_RINGS_IOVA 0x40000000ull

struct host_queue {
	struct kvd_abi_cmd *sq;
	struct kvd_abi_cpl *cq;
	uint32_t tail;
	uint32_t head; /* of completions */
	uint16_t phase;
};

struct host {
	struct rig rig;
	int tables_fd;
	int rings_fd;
	uint8_t *rings;
	uint32_t *doorbells;
	int eventfds[2];
	struct host_queue queues[2];
};

/* A card of that configuration with a client, whose tables and rings are mapped and described; not enabled yet. */
void host_open(struct host *host, const struct kvd_card_config *config);
void host_close(struct host *host);
/* The same with rig_config, as cmocka wants it. */
int host_setup(void **state);
int host_teardown(void **state);
/* Describe what host_open described, again, after a reset or for a new client (then `attach`). */
void host_describe(struct host *host, bool attach);
/* Set control; returns status. */
uint32_t host_control(struct host *host, uint32_t value);
void host_enable(struct host *host);
/* Assert that the card is stopped by that. */
void host_stopped(struct host *host, enum kvd_abi_syndrome syndrome, uint64_t info);

/* Put a command into the ring; `host_ring` tells the card of all that were put. */
void host_put(struct host *host, uint32_t queue, struct kvd_abi_cmd cmd);
void host_ring(struct host *host, uint32_t queue);
/* Let the card work until it has nothing to do. */
void host_work(struct host *host);
/* Take the next completion. False: there is none. */
bool host_take(struct host *host, uint32_t queue, struct kvd_abi_cpl *out);
/* All of it for one command on queue 0. */
struct kvd_abi_cpl host_call(struct host *host, struct kvd_abi_cmd cmd);
/* A session, and the mapping of pages in it, by way of the rings. */
uint64_t host_session(struct host *host, uint64_t key);
struct kvd_abi_cpl host_map(struct host *host, uint64_t session, uint64_t first_page, uint64_t count);
/* IOVA of the buffer that commands may use, and the memory there. */
uint64_t host_buffer_iova(void);
void *host_buffer(struct host *host);
/* The tables are consistent, seen by an engine of the host's own; the card has none of them any more. */
void host_check(struct host *host, bool clean);
uint32_t host_syndrome(struct host *host);

#endif
