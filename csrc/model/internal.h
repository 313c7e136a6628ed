/* Inside of the card model: what its parts are to each other. */
#ifndef KVD_MODEL_INTERNAL_H
#define KVD_MODEL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/abi.h"
#include "engine/engine.h"
#include "model/card.h"
#include "model/conn.h"
#include "vfio/proto.h"

enum {
	KVD_CARD_MSG_FDS = 16,         /* that we ask for at most in one message: QEMU refuses a server that names more */
	KVD_CARD_XFER_BYTES = 1 << 20, /* of one REGION_READ or REGION_WRITE */
	KVD_CARD_DMA_PIECE_BYTES = 64 << 10, /* of one DMA_READ or DMA_WRITE: above 256 KiB QEMU was seen to hang */
	KVD_CARD_DMA_DEADLINE_MS = 1000,
	KVD_CARD_PAGE_BYTES = 4096,    /* granule of DMA mappings */
	KVD_CARD_MAPS_MAX = 32000,     /* with its neighbours each may cost two of the kernel's 65530 mappings */
	KVD_CARD_VECTORS = 64,         /* of MSI-X */
	KVD_CARD_CONFIG_BYTES = 4096,
	KVD_CARD_BAR0_BYTES = 0x4000,
	KVD_CARD_BAR2_BYTES = 4096,
	KVD_CARD_BOUNCES = 4,          /* buffers of one command that are reached by messages */
	KVD_CARD_BOUNCE_BYTES_MAX = 1 << 20, /* of each */
	KVD_CARD_PAGE_SIZES = 0x3ff000, /* of tables: powers of two from 4 KiB to 2 MiB */
};
#define KVD_CARD_SESSIONS_MAX (1ull << 28)
#define KVD_CARD_TABLES_BYTES_MAX (1ull << 38) /* what 32-bit numbers of 64-byte units reach */

/* ------------------------------------------------------------------ caps.c, version.c */

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

/* ------------------------------------------------------------------ dma.c, dma_message.c, bounce.c, guard.c */

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
	uint32_t indirect; /* of them, by messages only */
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
bool kvd_card_dma_allowed(const struct kvd_card *card, uint64_t iova, uint64_t bytes, bool write);
/*
 * Copy between memory of ours and the client's, directly or by messages, whatever its maps are. -EFAULT: not mapped,
 * or its file was cut; -ETIMEDOUT, -EIO: the client does not answer, or badly.
 */
int kvd_card_dma_copy(struct kvd_card *card, uint64_t iova, void *data, uint64_t bytes, bool write);

/* A buffer of a command in memory that is reached by messages: fetched before the command, brought back after it. */
struct kvd_card_bounce {
	uint64_t iova;
	uint64_t bytes;
	void *data;
	bool written;
};

/* The engine's way to a command's buffer (context: the card). NULL: it can't be reached. */
void *kvd_card_reach(void *context, uint64_t address, uint64_t bytes, int writable);
/* Bring back what the command wrote. False: what is at `address` could not be. */
bool kvd_card_bounce_end(struct kvd_card *card, uint64_t *address);
void kvd_card_bounce_drop(struct kvd_card *card);

/*
 * Do work that touches memory which the client can take away. -EFAULT: it did, and the work was left in the middle.
 * `address` (may be NULL) is then where.
 */
int kvd_card_guard(void (*work)(void *context), void *context, uint64_t *address);
/* Receive the faults; again, where somebody else has taken the signals since. */
int kvd_card_guard_init(void);
/* Faults in this range are the client's fault, all others are ours. */
int kvd_card_guard_add(const void *start, uint64_t bytes);
void kvd_card_guard_remove(const void *start);
/* memcpy under guard. */
int kvd_card_guard_copy(void *to, const void *from, size_t bytes);
/* Die by SIGKILL right after the first store between `start` and `bytes` behind it. */
int kvd_card_guard_die_at(void *start, uint64_t bytes);

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
/* The bit of a vector in MSI-X' pending bits. */
bool kvd_card_irq_pending(const struct kvd_card *card, uint32_t vector);

/* ------------------------------------------------------------------ config.c, bar.c, region.c */

struct kvd_card_space {
	uint8_t bytes[KVD_CARD_CONFIG_BYTES];
	uint8_t writable[KVD_CARD_CONFIG_BYTES]; /* the bits that a write changes */
};

void kvd_card_config_reset(struct kvd_card *card);
void kvd_card_config_read(const struct kvd_card *card, uint64_t offset, void *data, uint32_t bytes);
void kvd_card_config_write(struct kvd_card *card, uint64_t offset, const void *data, uint32_t bytes);
bool kvd_card_bus_master(const struct kvd_card *card);

/* A region that is a file the client can map. */
struct kvd_card_bar {
	int fd;
	uint8_t *base; /* NULL: there is none */
	uint64_t bytes;
};

int kvd_card_bar_init(struct kvd_card_bar *bar, const char *name, uint64_t bytes, bool sealed);
void kvd_card_bar_fini(struct kvd_card_bar *bar);
/* Cut the file: whoever touches a mapping of it gets SIGBUS. */
int kvd_card_bar_cut(struct kvd_card_bar *bar);

uint64_t kvd_card_region_bytes(const struct kvd_card *card, uint32_t region);
int kvd_card_device_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_read(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_write(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
int kvd_card_region_write_multi(struct kvd_card *card, const struct kvd_card_request *request,
				struct kvd_card_reply *reply);

/* ------------------------------------------------------------------ registers.c, queue.c, tables.c */

struct kvd_card_queue {
	/* Of the registers, as they were at enable. */
	uint64_t sq_address;
	uint64_t cq_address;
	uint32_t depth; /* 0: not used */
	uint32_t vector;
	const struct kvd_abi_cmd *sq;
	struct kvd_abi_cpl *cq;
	/* Places. */
	uint32_t sq_head;
	uint32_t sq_tail; /* as last seen in the doorbell, like cq_head */
	uint32_t cq_tail;
	uint32_t cq_head;
	uint16_t phase;
	uint64_t executed;
};

struct kvd_card_counters {
	uint64_t commands;
	uint64_t refused;
	uint64_t doorbells;
	uint64_t interrupts;
	uint64_t read_bytes;
	uint64_t written_bytes;
	uint64_t faults;
};
static_assert(KVD_ABI_BAR0_COMMANDS_AT + sizeof(struct kvd_card_counters) ==
		      KVD_ABI_BAR0_FAULTS_AT + sizeof(uint64_t), "counters in the registers' order");

/* The registers' values after reset; the engine is let go of. What the client mapped and its eventfds stay. */
void kvd_card_reset(struct kvd_card *card);
/* Aligned words only; the rest reads as zero and is ignored. */
void kvd_card_registers_read(struct kvd_card *card, uint64_t offset, void *data, uint32_t bytes);
void kvd_card_registers_write(struct kvd_card *card, uint64_t offset, const void *data, uint32_t bytes);
uint64_t kvd_card_register(const struct kvd_card *card, uint32_t at);
bool kvd_card_enabled(const struct kvd_card *card);
/* Stop: nothing is executed until a reset. */
void kvd_card_stop(struct kvd_card *card, enum kvd_abi_syndrome syndrome, uint32_t queue, uint64_t info);
/* Signal a vector, or let it wait where the driver masks it. */
void kvd_card_signal(struct kvd_card *card, uint32_t vector);

/* Take the queues' registers and look at them. False: the card is stopped. */
bool kvd_card_queues_open(struct kvd_card *card);
/* After an unmap: are rings and tables still where they were? Else the card stops. */
void kvd_card_queues_recheck(struct kvd_card *card);

/* Begin to work on the client's tables. False: the card is stopped. */
bool kvd_card_tables_open(struct kvd_card *card);
void kvd_card_tables_close(struct kvd_card *card);
/* Hand the tables over to software, or take them back. False: the card is stopped. */
bool kvd_card_tables_quiesce(struct kvd_card *card, bool quiet);
/* Are the tables still mapped? */
bool kvd_card_tables_reached(struct kvd_card *card);
/* Commands executed since the tables were made. */
uint64_t kvd_card_tables_sequence(const struct kvd_card *card);
/* Bit n: the engine knows operation n. */
int kvd_card_operations_probe(uint64_t *out);

/* ------------------------------------------------------------------ fault.c */

/* Note when the next fault is due. */
void kvd_card_faults_arm(struct kvd_card *card);
int64_t kvd_card_now_ms(void);
/* Before a command is executed. False: it must not be. */
bool kvd_card_fault_before(struct kvd_card *card);
/* After it was, on its completion. */
void kvd_card_fault_after(struct kvd_card *card, struct kvd_abi_cpl *cpl);
/* As time goes by. True: it hung up. */
bool kvd_card_fault_tick(struct kvd_card *card);

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
	struct kvd_card_bounce bounces[KVD_CARD_BOUNCES];
	uint32_t bounce_count;
	struct kvd_card_irq irqs[VFIO_PCI_NUM_IRQS];
	struct kvd_card_space space;
	struct kvd_card_bar doorbells;
	struct kvd_card_bar ddr;
	_Alignas(uint64_t) uint8_t registers[KVD_CARD_BAR0_BYTES];
	struct kvd_card_counters counters;
	struct kvd_card_queue queues[KVD_ABI_BAR0_QUEUE_COUNT];
	uint32_t queue_now; /* that is being looked at */
	uint32_t completed; /* completions of this turn and queue */
	kvd_engine *engine; /* NULL: no tables */
	bool quiet;         /* the tables are handed over */
	bool torn;          /* the engine executes a command, or was left in the middle of one */
	uint64_t operations; /* bit n: the engine knows operation n */
	/* Faults. */
	uint64_t taken;        /* commands, of all clients */
	uint64_t fault_at;     /* the least number of commands after which a fault comes */
	uint32_t faults_fired; /* bit i: fault i of the configuration */
	bool all_ones;
	bool hung;
	bool silent;           /* no interrupts */
	bool bars_dead;
	bool lies;             /* the next phase bit */
	int64_t remove_at_ms;  /* 0: not asked for */
};

#endif
