/* A device behind vfio-user for tests: a thread that answers as the protocol says, but for one command, if asked to. */
#ifndef KVD_TEST_VFIO_SERVER_H
#define KVD_TEST_VFIO_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vfio/proto.h"
#include "vfio/vfio.h"

enum {
	SERVER_CONFIG_BYTES = 256,
	SERVER_BAR0_BYTES = 8192, /* the second half can be mapped */
	SERVER_BAR2_BYTES = 4096, /* all of it can be mapped */
	SERVER_BAR4_BYTES = 4 << 20, /* none of it can be mapped */
	SERVER_PAGE_BYTES = 4096,
	SERVER_VECTORS = 12,
	SERVER_IRQS = 5,
	SERVER_CALLS_MAX = 64,
	SERVER_DEADLINE_MS = 20000, /* of a client that expects an answer */
	SERVER_IMPATIENT_MS = 60,   /* of one that expects none */
	/* Writes to these places of BAR0 make the server ask the client for something. */
	SERVER_ASK_READ = 0x10,
	SERVER_ASK_WRITE = 0x18,
	SERVER_ASK_NONSENSE = 0x20,
	SERVER_ASK_SILENT = 0x28, /* a DMA_WRITE that wants no answer */
	SERVER_ASK_SHORT = 0x30,  /* a DMA_WRITE without all of its data */
};

enum server_fault {
	FAULT_NONE,
	/* The answer is wrong, and the device gone. */
	FAULT_ID,
	FAULT_COMMAND,
	FAULT_TYPE,
	FAULT_SHORT, /* one byte less than the payload */
	FAULT_LONG,
	FAULT_EMPTY, /* no payload */
	FAULT_CUT,   /* a part of the header, then nobody */
	FAULT_CUT_LATE, /* all but the last byte */
	FAULT_TINY,  /* a header that says less than a header */
	FAULT_HUGE,
	FAULT_UNASKED, /* an answer to nothing before the right one */
	FAULT_FLOOD_FDS, /* more descriptors than a message may have */
	FAULT_HANG_UP,
	FAULT_HANG_UP_EARLY, /* before the request is read whole */
	/* There is no answer in time. */
	FAULT_SILENCE,
	FAULT_TRICKLE, /* a byte now and then */
	FAULT_FLOOD,   /* requests for ever */
	/* These are legal. */
	FAULT_ERROR, /* an error reply with EEXIST */
	FAULT_ERROR_ZERO, /* an error reply that does not say which */
	FAULT_ERROR_WILD, /* one with a number that is no errno */
	FAULT_STRAY_FDS, /* descriptors that nobody expects */
	FAULT_PIECES, /* the right answer in many small pieces */
	FAULT_COUNT,
};

/* One thing that the client asked for. */
struct server_call {
	uint16_t command;
	uint32_t n_fds;
	struct vfio_irq_set irqs; /* of DEVICE_SET_IRQS */
	uint32_t count;           /* bytes of REGION_READ and REGION_WRITE */
};

struct server {
	/* Set before server_start; zero: the usual. */
	const char *json; /* of the answer to VERSION; NULL: all capabilities */
	bool no_json;
	uint16_t major, minor;
	uint32_t regions;
	uint32_t flags_off; /* of the device */
	const void *region0; /* the answer about BAR0 */
	size_t region0_bytes;
	size_t region0_full_bytes; /* what it is said to need */
	uint16_t fault_command;
	enum server_fault fault;
	uint32_t fault_after; /* so many commands of this kind are answered right */
	atomic_bool cross; /* a DMA_WRITE crosses each REGION_WRITE */
	uint64_t ask_iova;
	uint64_t ask_bytes;
	/* To be looked at after server_stop. */
	struct server_call calls[SERVER_CALLS_MAX];
	uint32_t n_calls;
	uint8_t config[SERVER_CONFIG_BYTES];
	uint8_t *bar4;
	uint32_t asked_flags; /* of the client's answer */
	uint32_t asked_error;
	size_t asked_bytes;
	uint8_t *asked; /* its payload */
	/* Own. */
	char path[64];
	int listen_fd, fd;
	int bar0_fd, bar2_fd, dma_fd;
	pthread_t thread;
	uint8_t *in, *out;
	size_t in_bytes;
	int in_fds[KVD_VFU_MSG_FDS_MAX];
	uint32_t n_in_fds;
	int irq_fds[SERVER_VECTORS];
	struct kvd_vfu_header header; /* of the request */
};

void server_start(struct server *server);
/* After the client is closed; frees all but the buffers that tests look at, which server_free does. */
void server_stop(struct server *server);
void server_free(struct server *server);
uint32_t server_open_fds(void);

/* vfio_server_fault.c: send the answer, or what the fault makes of it. false: hang up. */
bool server_answer(struct server *server, const void *payload, size_t bytes, int error, const int *fds, uint32_t n_fds);
bool server_is_due(struct server *server);
bool server_send(struct server *server, const struct kvd_vfu_header *header, const void *payload, size_t bytes,
		 const int *fds, uint32_t n_fds);

#endif
