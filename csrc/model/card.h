/*
 * The card model: a vfio-user server (the public protocol, as QEMU and libvfio-user speak it) around the page-table
 * engine. One client at a time; what a client did to the card is gone when it leaves.
 *
 * Single thread. Nothing here waits, except a DMA by messages: that has a deadline.
 */
#ifndef KVD_MODEL_CARD_H
#define KVD_MODEL_CARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kvd_card kvd_card;

struct kvd_card_config {
	uint64_t ddr_bytes; /* memory of the card, BAR4: a power of two, 1 MiB to 64 GiB */
};

struct kvd_card_stats {
	uint64_t clients;  /* that were served, the present one included */
	uint64_t messages; /* commands of the protocol */
	uint64_t refused;  /* of them, answered by an error */
	uint64_t dropped;  /* replies that nobody waited for */
};

/* 0 or -errno (-EINVAL: bad configuration). */
int kvd_card_init(const struct kvd_card_config *config, kvd_card **out);
void kvd_card_fini(kvd_card *card);

/* Serve the client at the other end of a connected socket, which is owned by the card from now on, also on failure. */
int kvd_card_attach(kvd_card *card, int fd);
/* Is there a client? */
bool kvd_card_attached(const kvd_card *card);
/* What to wait for: the client's socket and the events that matter now, or -1. */
int kvd_card_poll_fd(const kvd_card *card, short *events);
/* Take what the client has sent and answer it; hangs up if it talks nonsense. True: there was something. */
bool kvd_card_serve(kvd_card *card);
/* Hang up, as for a client that leaves. */
void kvd_card_detach(kvd_card *card);

void kvd_card_stats(const kvd_card *card, struct kvd_card_stats *out);

#endif
