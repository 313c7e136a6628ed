/* Messages on a socket: each way at most one under way, none of them waited for. */
#ifndef KVD_MODEL_CONN_H
#define KVD_MODEL_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "vfio/proto.h"

enum {
	KVD_CARD_FDS_MAX = 253, /* that the kernel lets pass beside a message: none is ever cut off */
	KVD_CARD_PAYLOAD_BYTES_MAX = (1 << 20) + 4096,
	KVD_CARD_DEFERRED_MAX = 32, /* commands that may come in while a DMA by messages is under way */
};

struct kvd_card_request {
	struct kvd_vfu_header header;
	const uint8_t *payload;
	uint32_t bytes; /* of the payload */
	int *fds;       /* what a handler keeps it replaces by -1; the rest is closed */
	uint32_t fd_count;
};

/* The payload of an answer, or of a command of ours, and a descriptor that rides beside it (not owned). */
struct kvd_card_reply {
	uint8_t *payload; /* KVD_CARD_PAYLOAD_BYTES_MAX */
	uint32_t bytes;
	int fds[1];
	uint32_t fd_count;
};

/* A command that came while a DMA by messages was under way. */
struct kvd_card_deferred {
	struct kvd_vfu_header header;
	uint8_t *payload;
	int *fds;
	uint32_t fd_count;
};

struct kvd_card_conn {
	int fd; /* owned; -1: not open */
	/* What is being received: a header, then its payload. */
	struct kvd_vfu_header header;
	uint8_t *in;
	uint32_t have; /* bytes of header and payload */
	int fds[KVD_CARD_FDS_MAX];
	uint32_t fd_count;
	/* What is being sent: `out` begins with the header. */
	uint8_t *out;
	uint32_t out_bytes;
	uint32_t out_sent;
	int out_fds[1];
	uint32_t out_fd_count;
	struct kvd_card_deferred deferred[KVD_CARD_DEFERRED_MAX];
	uint32_t deferred_first;
	uint32_t deferred_count;
};

/* The socket stays the caller's on failure. */
int kvd_card_conn_init(struct kvd_card_conn *conn, int fd);
void kvd_card_conn_fini(struct kvd_card_conn *conn);
/* 1: a whole message is there, until kvd_card_conn_next; 0: not yet; -errno: nothing good will come any more. */
int kvd_card_conn_receive(struct kvd_card_conn *conn);
void kvd_card_conn_request(struct kvd_card_conn *conn, struct kvd_card_request *out);
/* Forget the message and close what is left of its descriptors. */
void kvd_card_conn_next(struct kvd_card_conn *conn);
/* Put the message aside; -ENOBUFS: too many are. */
int kvd_card_conn_defer(struct kvd_card_conn *conn);
/* The oldest message that was put aside, until kvd_card_conn_deferred_next. False: there is none. */
bool kvd_card_conn_deferred(struct kvd_card_conn *conn, struct kvd_card_request *out);
void kvd_card_conn_deferred_next(struct kvd_card_conn *conn);
/* Where to put a payload, only once what came before is sent. */
void kvd_card_conn_reply_begin(struct kvd_card_conn *conn, struct kvd_card_reply *reply);
/* Send what reply_begin began. 0: sent; 1: the rest waits for room, see conn_flush; -errno. */
int kvd_card_conn_send(struct kvd_card_conn *conn, const struct kvd_vfu_header *header,
		       const struct kvd_card_reply *reply);
int kvd_card_conn_flush(struct kvd_card_conn *conn);

#endif
