/*
 * The card model: a vfio-user server (the public protocol, as QEMU and libvfio-user speak it) around the page-table
 * engine, as docs/device.md describes the card. One client at a time. When it leaves, its mappings, its interrupts and
 * the registers are gone; the memory of the card keeps its content, as that of a card does.
 *
 * Single thread. Nothing here waits, except a DMA by messages: that has a deadline.
 */
#ifndef KVD_MODEL_CARD_H
#define KVD_MODEL_CARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kvd_card kvd_card;

enum kvd_card_limit {
	KVD_CARD_FAULTS_MAX = 8,
	KVD_CARD_QUEUES_MAX = 16,
	KVD_CARD_DEPTH_MAX = 1024, /* as many completions as the tables' journal keeps */
};
#define KVD_CARD_DDR_BYTES_MIN (1ull << 20)
#define KVD_CARD_DDR_BYTES_MAX (1ull << 36)

enum kvd_card_fault_kind {
	KVD_CARD_FAULT_NONE,
	KVD_CARD_FAULT_ALL_ONES,        /* registers and configuration space read as ones until the client leaves */
	KVD_CARD_FAULT_UNKNOWN_ID,      /* a completion has an id that was not given out */
	KVD_CARD_FAULT_LYING_PHASE,     /* the place behind a completion says that it is new */
	KVD_CARD_FAULT_UNKNOWN_STATUS,
	KVD_CARD_FAULT_NEVER_COMPLETES, /* the command is taken, and the card hangs until it is reset */
	KVD_CARD_FAULT_NO_INTERRUPT,    /* none is signalled until the client leaves */
	KVD_CARD_FAULT_DEAD_BAR,        /* BAR2 and BAR4 raise SIGBUS until the client leaves */
	KVD_CARD_FAULT_REMOVE,          /* the request interrupt, and hanging up after a grace time */
	KVD_CARD_FAULT_DIE,             /* SIGKILL before the command is executed */
	KVD_CARD_FAULT_DIE_WITHIN,      /* SIGKILL after its first store to the tables behind their first page */
	KVD_CARD_FAULT_DIE_AFTER,       /* SIGKILL after it was executed, before its completion is written */
	KVD_CARD_FAULT_RESET,           /* the card resets itself, the rest of the batch is lost */
	KVD_CARD_FAULT_COUNT,
};

struct kvd_card_fault {
	enum kvd_card_fault_kind kind;
	uint64_t after; /* commands that are executed before, of all clients; then the fault comes, once */
};

struct kvd_card_config {
	uint64_t ddr_bytes; /* memory of the card, BAR4: a power of two */
	uint32_t queues;    /* 1 to KVD_CARD_QUEUES_MAX */
	uint32_t depth_max; /* a power of two, 2 to KVD_CARD_DEPTH_MAX */
	uint32_t grace_ms;  /* of KVD_CARD_FAULT_REMOVE */
	uint32_t fault_count;
	struct kvd_card_fault faults[KVD_CARD_FAULTS_MAX];
};

struct kvd_card_stats {
	uint64_t clients;  /* that were served, the present one included */
	uint64_t messages; /* commands of the protocol */
	uint64_t refused;  /* of them, answered by an error */
	uint64_t dropped;  /* replies that nobody waited for */
	uint64_t commands; /* commands of the rings that were executed */
};

/* 0 or -errno (-EINVAL: bad configuration). */
int kvd_card_init(const struct kvd_card_config *config, kvd_card **out);
void kvd_card_fini(kvd_card *card);

/* Serve the client at the other end of a connected socket, which is the card's from now on, also on failure. */
int kvd_card_attach(kvd_card *card, int fd);
/* Is there a client? */
bool kvd_card_attached(const kvd_card *card);
/* The client's socket and what to wait for there, or -1. */
int kvd_card_poll_fd(const kvd_card *card, short *events);
/* When to call kvd_card_serve although nothing came: in so many ms, -1: never. */
int kvd_card_wait_ms(const kvd_card *card);
/* Take what the client has sent and answer it; hangs up if it talks nonsense. True: there was something. */
bool kvd_card_serve(kvd_card *card);
/* Look at the doorbells and execute a bounded number of commands. True: there was something. No system calls if not. */
bool kvd_card_work(kvd_card *card);
/* May doorbells ring? */
bool kvd_card_enabled(const kvd_card *card);
/* Hang up. */
void kvd_card_detach(kvd_card *card);

void kvd_card_stats(const kvd_card *card, struct kvd_card_stats *out);

#endif
