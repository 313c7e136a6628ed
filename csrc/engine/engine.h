/*
 * The page-table engine: session contexts, page tables, frame allocators.
 *
 * The engine is driven by commands and answers with completions (csrc/abi/abi.h, docs/device.md), in memory as over rings, so that the
 * in-process engine, the device model and the card are driven by the same words. All tables live in one arena and
 * refer to each other by offset, never by pointer.
 *
 * Not thread-safe: one caller at a time submits.
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
};

struct kvd_engine_config {
	uint32_t page_bytes;          /* a power of two, 4 KiB to 2 MiB */
	uint32_t reserved;
	uint64_t sessions_max;
	uint64_t arena_bytes;         /* reserved address space; memory is touched as tables grow */
	uint64_t capacity_blocks[5];  /* by tier; 0: the tier is absent */
	uint64_t total_frames[5];     /* frames of the tier; 0: one a block */
	int32_t arena_fd;             /* a file to hold the arena, or -1 for anonymous memory */
	int32_t reserved2;
};

struct kvd_engine_stats {
	uint64_t commands;
	uint64_t refused;
	uint64_t sessions;
	uint64_t table_bytes;
	uint64_t mapped_pages;
};

/* The memory of `bytes` at an address, for a device whose addresses are not its own; NULL: it can't be reached. */
typedef void *(*kvd_engine_reach)(void *context, uint64_t address, uint64_t bytes, int writable);

/* 0 or -errno (-EINVAL: bad configuration, -ENOMEM). */
int kvd_engine_init(const struct kvd_engine_config *config, kvd_engine **out);
void kvd_engine_fini(kvd_engine *engine);
/* Drop every session and page; capacities and counters stay, and no old session handle becomes valid again. */
int kvd_engine_reset(kvd_engine *engine);
/* Execute `count` commands in order; each gets its completion. */
void kvd_engine_submit(kvd_engine *engine, const struct kvd_abi_cmd *cmd, struct kvd_abi_cpl *cpl, uint32_t count);
/* Where GATHER and SCATTER find the tier's frames: frame n at address + n pages. -EINVAL: no such tier. */
int kvd_engine_tier_memory(kvd_engine *engine, uint32_t tier, uint64_t address, uint64_t bytes);
void kvd_engine_stats(const kvd_engine *engine, struct kvd_engine_stats *out);
/* Check every table against every other; 0 when consistent, else the number of faults, the first ones in
 * `text`, one a line, as many as fit whole. */
uint64_t kvd_engine_check(const kvd_engine *engine, char *text, size_t text_bytes);
/* cffi: end */

#endif
