/* The program kvd-card and a client of it by way of kvd_vfio: what a driver does, in its shortest form. */
#ifndef KVD_TESTS_CARD_CLIENT_H
#define KVD_TESTS_CARD_CLIENT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "abi/abi.h"
#include "engine/engine.h"
#include "vfio/vfio.h"

enum {
	CLIENT_DEPTH = 1024,
	CLIENT_TABLES_BYTES = 16 << 20,
	CLIENT_RINGS_BYTES = 1 << 20,
	CLIENT_CQ_AT = 128 << 10,
	CLIENT_BUFFER_AT = 512 << 10,
	CLIENT_VECTOR = 3,
	CLIENT_DEADLINE_MS = 20000,
	CLIENT_ARGUMENTS_MAX = 12,
};
#define CLIENT_TABLES_IOVA 0x10000000ull
#define CLIENT_RINGS_IOVA 0x40000000ull

struct client {
	char folder[32];
	char socket_path[64];
	pid_t pid; /* of kvd-card */
	int out;   /* its output */
	kvd_vfio *vfio;
	int tables_fd;
	int rings_fd;
	uint8_t *rings;
	void *tables;
	struct kvd_abi_cmd *sq;
	volatile struct kvd_abi_cpl *cq;
	volatile uint32_t *doorbells;
	int eventfd;
	uint32_t tail;
	uint32_t head;
	uint16_t phase;
};

/* Start the program with options beside --socket (ends with NULL), and wait until it listens. */
void client_start(struct client *client, const char *program, const char *const *options);
/* Come to the card: open it, map everything, describe tables and ring. Not enabled yet. */
void client_open(struct client *client);
void client_close(struct client *client);
/* End the program by SIGTERM; the status it ends with. */
int client_stop(struct client *client);
/* It has died by itself: the signal. */
int client_died(struct client *client);
/* Free what client_start made. */
void client_end(struct client *client);

void client_describe(struct client *client);
uint64_t client_read64(struct client *client, uint64_t at);
uint32_t client_read32(struct client *client, uint64_t at);
void client_write64(struct client *client, uint64_t at, uint64_t value);
void client_write32(struct client *client, uint64_t at, uint32_t value);
/* Set control.enable and return status. */
uint32_t client_enable(struct client *client);

void client_put(struct client *client, const struct kvd_abi_cmd *cmd);
void client_ring(struct client *client);
/* Look at the next completion, watching without a pause up to a deadline. False: none came. */
bool client_take(struct client *client, struct kvd_abi_cpl *out, uint32_t deadline_ms);
struct kvd_abi_cpl client_call(struct client *client, const struct kvd_abi_cmd *cmd);
uint64_t client_now_ns(void);

#endif
