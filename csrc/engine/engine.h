/*
 * The page-table engine: session contexts, page tables, frame allocators.
 *
 * The engine is driven by commands and answers with completions (csrc/abi/abi.h, docs/device.md), in memory as over rings, so that the
 * in-process engine, the device model and the card are driven by the same words. All tables live in one arena and
 * refer to each other by offset, never by pointer; they outlive the process, whatever instruction it dies at.
 *
 * One caller at a time submits; any thread, and any process that has the arena, may read beside it.
 */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "abi/abi.h"

/* cffi: begin */
typedef struct kvd_engine kvd_engine;

enum kvd_engine_limit {
	KVD_ENGINE_SLOTS_MAX = 8,  /* page tables of a session */
	KVD_ENGINE_PAGE_BITS = 47, /* pages are numbered from 0 to 2^47 - 1; ranges are cut there */
	KVD_ENGINE_JOURNAL_ENTRIES = 1024, /* completions that the tables keep; the last 1023 are always there */
};

enum kvd_engine_flag {
	KVD_ENGINE_ATTACH = 1,    /* take the tables that are in `arena_fd`; the other fields are not looked at */
	KVD_ENGINE_READ_ONLY = 2, /* with ATTACH: for kvd_engine_read, check and statistics only */
};

struct kvd_engine_config {
	uint32_t page_bytes;          /* a power of two, 4 KiB to 2 MiB */
	uint32_t flags;               /* enum kvd_engine_flag */
	uint64_t sessions_max;
	uint64_t arena_bytes;         /* reserved address space; memory is touched as tables grow */
	uint64_t capacity_blocks[5];  /* by tier; 0: the tier is absent */
	uint64_t total_frames[5];     /* frames of the tier; 0: one a block */
	int32_t arena_fd;             /* a file to hold the arena, or -1 for anonymous memory */
	int32_t reserved2;
};

struct kvd_engine_stats {
	uint64_t commands; /* executed since the tables were made, also by others */
	uint64_t refused;
	uint64_t sessions;
	uint64_t table_bytes;
	uint64_t mapped_pages;
	uint64_t refused_transitions;
};

/* Pages that could not be repaired: what they held is gone. */
struct kvd_engine_loss {
	uint64_t session; /* handle */
	uint64_t first_page;
	uint64_t count;
	uint32_t slot;    /* KVD_ENGINE_SLOTS_MAX: the whole session */
	uint32_t reserved;
};

struct kvd_engine_recovery {
	struct kvd_engine_loss *losses; /* the caller's, of `losses_max`; may be NULL */
	uint64_t losses_max;
	char *text;                     /* the caller's: a sentence a line for each loss, as many as fit whole */
	uint64_t text_bytes;
	uint64_t losses_count;          /* found, also those that did not fit */
	uint64_t finished;              /* 1: the command that was being executed was done to the end */
	uint64_t undone;                /* 1: it was taken back and counts as not executed */
};

/* The memory of `bytes` at an address, for a device whose addresses are not its own; NULL: it can't be reached. */
typedef void *(*kvd_engine_reach)(void *context, uint64_t address, uint64_t bytes, int writable);

/*
 * 0 or -errno. To make tables: -EINVAL (bad configuration), -ENOMEM. To attach: -EINVAL (there are no sound tables),
 * -EPROTO (tables of another version), -ENOMEM.
 */
int kvd_engine_init(const struct kvd_engine_config *config, kvd_engine **out);
/* Take tables that lie in the caller's memory; buffers of commands are reached by `reach` (NULL: they are pointers). */
int kvd_engine_attach(void *base, uint64_t bytes, kvd_engine_reach reach, void *context, kvd_engine **out);
/* The tables stay; unless recovery is due they count as left in good order. */
void kvd_engine_fini(kvd_engine *engine);
/*
 * 1: whoever executed commands on these tables did not leave them in order. Until kvd_engine_recover every command ends
 * with BAD_TABLES and is not counted.
 */
int kvd_engine_dirty(const kvd_engine *engine);
/*
 * Leave the tables to another engine (a card), and take them back; an engine that has left them is dirty. -EBUSY: the
 * other one did not leave them, or died: make sure that it is stopped, then kvd_engine_recover.
 */
void kvd_engine_leave(kvd_engine *engine);
int kvd_engine_return(kvd_engine *engine);
/*
 * Finish or take back the command at which the last one died, cut out what is damaged, make all that is derived anew.
 * 0 or -ENOMEM, -EIO (the head itself is damaged); to be called again then. Safe to be killed in.
 */
int kvd_engine_recover(kvd_engine *engine, struct kvd_engine_recovery *result);
/* Commands executed since the tables were made. A command is executed exactly when its sequence is not above this. */
uint64_t kvd_engine_sequence(const kvd_engine *engine);
/* How the command with that sequence ended. -ENOENT: it is not executed, or too long ago. */
int kvd_engine_completion(const kvd_engine *engine, uint64_t sequence, struct kvd_abi_cpl *out);
/* Drop every session and page; capacities and counters stay, and no old session handle becomes valid again. */
int kvd_engine_reset(kvd_engine *engine);
/* Execute `count` commands in order; each gets its completion. */
void kvd_engine_submit(kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl, uint32_t count);
/*
 * Execute a command that changes nothing, from any thread, beside one that submits. BUSY: each try met a change;
 * BAD_COMMAND: the command changes something. Not counted.
 */
void kvd_engine_read(const kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl);
/* Where GATHER and SCATTER find the tier's frames: frame n at address + n pages. The address is one as commands have
 * them; of the tier `card`, which is the device's own, it is a pointer. -EINVAL: no such tier. */
int kvd_engine_tier_memory(kvd_engine *engine, uint32_t tier, uint64_t address, uint64_t bytes);
void kvd_engine_stats(const kvd_engine *engine, struct kvd_engine_stats *out);
/* Check every table against every other; 0 when consistent, else the number of faults, the first ones in
 * `text`, one a line, as many as fit whole. */
uint64_t kvd_engine_check(const kvd_engine *engine, char *text, size_t text_bytes);
/* cffi: end */

#endif
