/* Inside of the card model. */
#ifndef KVD_MODEL_INTERNAL_H
#define KVD_MODEL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/card.h"
#include "vfio/proto.h"

enum {
	KVD_CARD_MSG_FDS = 16,      /* that we ask for at most in one message; QEMU refuses a server that names more */
	KVD_CARD_FDS_MAX = 253,     /* that the kernel lets pass: none is ever cut off */
	KVD_CARD_XFER_BYTES = 1 << 20, /* of one REGION_READ or REGION_WRITE */
	KVD_CARD_PAYLOAD_BYTES_MAX = KVD_CARD_XFER_BYTES + 4096,
	KVD_CARD_DMA_PIECE_BYTES = 64 << 10, /* of one DMA_READ or DMA_WRITE: above 256 KiB QEMU was seen to hang */
	KVD_CARD_DMA_DEADLINE_MS = 1000,
	KVD_CARD_DEFERRED_MAX = 32, /* commands that may come in while a DMA by messages is under way */
	KVD_CARD_PAGE_BYTES = 4096, /* granule of DMA mappings */
	KVD_CARD_MAPS_MAX = 32000,  /* with its neighbours each may cost two of the kernel's 65530 mappings */
	KVD_CARD_VECTORS = 64,      /* of MSI-X */
	KVD_CARD_CONFIG_BYTES = 4096,
};

/* ------------------------------------------------------------------ conn.c: messages on a socket */

struct kvd_card_request {
	struct kvd_vfu_header header;
	const uint8_t *payload;
	uint32_t bytes; /* of the payload */
	int *fds;       /* what a handler keeps it replaces by -1; the rest is closed */
	uint32_t fd_count;
};

/* The payload of an answer, or of a command of ours, and descriptors that ride beside it (not owned). */
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

/* One direction each way of one socket; the twin socket has its own. */
struct kvd_card_conn {
	int fd;
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
	/* Commands that wait for the end of a DMA by messages. */
	struct kvd_card_deferred deferred[KVD_CARD_DEFERRED_MAX];
	uint32_t deferred_first;
	uint32_t deferred_count;
};

int kvd_card_conn_init(struct kvd_card_conn *conn, int fd);
void kvd_card_conn_fini(struct kvd_card_conn *conn);
/* 1: a whole message is there, until kvd_card_conn_next; 0: not yet; -errno: nothing good will come any more. */
int kvd_card_conn_receive(struct kvd_card_conn *conn);
void kvd_card_conn_request(struct kvd_card_conn *conn, struct kvd_card_request *out);
/* Forget the message and close what is left of its descriptors. */
void kvd_card_conn_next(struct kvd_card_conn *conn);
/* Put the message aside; -ENOBUFS: too many are. */
int kvd_card_conn_defer(struct kvd_card_conn *conn);
/* Make the oldest message that was put aside the present one. False: there is none. */
bool kvd_card_conn_resume(struct kvd_card_conn *conn);
/* The reply's payload lies in `out`; -EBUSY must not be: what came before has been sent. */
void kvd_card_conn_reply_begin(struct kvd_card_conn *conn, struct kvd_card_reply *reply);
/* Send what reply_begin began. 0: sent; 1: the rest waits for room, see conn_flush; -errno. */
int kvd_card_conn_send(struct kvd_card_conn *conn, const struct kvd_vfu_header *header,
		       const struct kvd_card_reply *reply);
int kvd_card_conn_flush(struct kvd_card_conn *conn);

/* ------------------------------------------------------------------ json.c, version.c */

struct kvd_card_caps {
	uint64_t max_msg_fds;
	uint64_t max_data_xfer_bytes;
	bool has_msg_fds;
	bool has_xfer;
	bool has_dma_maps;
	bool has_pgsizes;
	bool write_multiple;
	bool twin_socket;
};

/* The capabilities in the text of a VERSION message (`bytes` with its NUL). -EINVAL: not what the protocol allows. */
int kvd_card_caps_parse(const char *text, size_t bytes, struct kvd_card_caps *out);
int kvd_card_version(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);

/* ------------------------------------------------------------------ dma.c, dma_message.c, guard.c */

/* What the client lets the card reach. */
struct kvd_card_map {
	uint64_t iova;
	uint64_t bytes;
	uint32_t flags; /* KVD_VFU_DMA_F_READ, _WRITE */
	bool direct;    /* mapped into the window; else by messages only */
};

/*
 * IOVA i of a direct map lies at window + i, so what is contiguous for the client is contiguous here, and the engine
 * can walk tables in place. What no map covers is PROT_NONE.
 */
struct kvd_card_dma {
	uint8_t *window;
	uint64_t window_bytes; /* IOVAs from here on are refused */
	void *reserved;
	uint64_t reserved_bytes;
	struct kvd_card_map *maps; /* by IOVA */
	uint32_t count;
};

int kvd_card_dma_init(struct kvd_card_dma *dma);
void kvd_card_dma_fini(struct kvd_card_dma *dma);
/* Forget every map. */
void kvd_card_dma_clear(struct kvd_card_dma *dma);
int kvd_card_dma_map(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_dma_unmap(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
/* The memory at an IOVA, or NULL where a byte of the range is not mapped, not directly, or not for that. */
void *kvd_card_dma(struct kvd_card *card, uint64_t iova, uint64_t bytes, bool write);
/* The map that holds an IOVA, or NULL. */
const struct kvd_card_map *kvd_card_dma_find(const struct kvd_card_dma *dma, uint64_t iova);
/* May the whole range be read or written, directly or by messages? */
bool kvd_card_dma_allowed(const struct kvd_card_dma *dma, uint64_t iova, uint64_t bytes, bool write);
/*
 * Copy between memory of ours and the client's, directly or by messages, whatever its maps are. -EFAULT: not mapped,
 * or its file was cut; -ETIMEDOUT, -EIO: the client does not answer, or badly.
 */
int kvd_card_dma_copy(struct kvd_card *card, uint64_t iova, void *data, uint64_t bytes, bool write);

/* Do work that touches memory which a client can take away. -EFAULT: it did, the work was left in the middle. */
int kvd_card_guard_init(void);
int kvd_card_guard(void (*work)(void *context), void *context);
/* Faults in this range (added up to a small number of ranges) are the client's fault, all others are ours. */
int kvd_card_guard_add(const void *start, uint64_t bytes);
void kvd_card_guard_remove(const void *start);
/* memcpy under guard. */
int kvd_card_guard_copy(void *to, const void *from, size_t bytes);

/* ------------------------------------------------------------------ irq.c */

struct kvd_card_irq {
	int *eventfds; /* -1: none */
	bool *masked;
	bool *pending; /* was triggered while masked */
	uint32_t count;
	uint32_t flags; /* of struct vfio_irq_info */
};

int kvd_card_irqs_init(struct kvd_card *card);
void kvd_card_irqs_fini(struct kvd_card *card);
/* No eventfds, nothing masked or pending. */
void kvd_card_irqs_clear(struct kvd_card *card);
int kvd_card_irq_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_irq_set(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
void kvd_card_irq_trigger(struct kvd_card *card, uint32_t index, uint32_t vector);
/* The bit of a vector in the pending-bit array. */
bool kvd_card_irq_pending(const struct kvd_card *card, uint32_t vector);

/* ------------------------------------------------------------------ config.c */

struct kvd_card_space {
	uint8_t bytes[KVD_CARD_CONFIG_BYTES];
	uint8_t writable[KVD_CARD_CONFIG_BYTES]; /* the bits that a write changes */
};

void kvd_card_config_reset(struct kvd_card *card);
int kvd_card_config_read(struct kvd_card *card, uint64_t offset, void *data, uint32_t bytes);
int kvd_card_config_write(struct kvd_card *card, uint64_t offset, const void *data, uint32_t bytes);
bool kvd_card_bus_master(const struct kvd_card *card);

/* ------------------------------------------------------------------ bar.c, region.c, registers.c */

/* A region that is a file the client can map. */
struct kvd_card_bar {
	int fd;
	uint8_t *base;
	uint64_t bytes;
};

int kvd_card_bar_init(struct kvd_card_bar *bar, const char *name, uint64_t bytes, bool sealed);
void kvd_card_bar_fini(struct kvd_card_bar *bar);

uint64_t kvd_card_region_bytes(const struct kvd_card *card, uint32_t region);
int kvd_card_device_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_read(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_write(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_write_multi(struct kvd_card *card, const struct kvd_card_request *request,
				struct kvd_card_reply *reply);

/* ------------------------------------------------------------------ card.c */

struct kvd_card {
	struct kvd_card_config config;
	struct kvd_card_stats stats;
	bool attached;
	bool negotiated; /* VERSION is done */
	bool hang_up;    /* after what is being sent */
	struct kvd_card_conn conn;
	struct kvd_card_conn twin; /* fd -1: none; our commands go over `conn` */
	int twin_peer;             /* the client's end of the twin socket until it is sent */
	uint16_t dma_id;           /* of our last command */
	struct kvd_card_caps caps;
	struct kvd_card_dma dma;
	struct kvd_card_irq irqs[VFIO_PCI_NUM_IRQS];
	struct kvd_card_space space;
	struct kvd_card_bar doorbells;
	struct kvd_card_bar ddr;
};

#endif
