/* What the engine's files offer each other; the words they work on are in tables.h. */
#ifndef KVD_ENGINE_INTERNAL_H
#define KVD_ENGINE_INTERNAL_H

#include "engine/tables.h"

/* A command being executed: its session and tier are found and its slot is in range, where the command has them. */
struct kvd_call {
	struct kvd_engine *engine;
	struct kvd_abi_cmd cmd; /* a copy: what was checked cannot change */
	struct kvd_abi_cpl *cpl;
	struct kvd_session *session;
	uint32_t tier;
	uint32_t words; /* of the intent */
	bool changing;  /* the session's version is odd */
	bool reading;   /* beside one who changes */
};

/* What a command refers to. */
enum kvd_needs {
	KVD_NEED_SESSION = 1,
	KVD_NEED_SLOT = 2,
	KVD_NEED_TIER = 4,
	KVD_NEED_BUFFER = 8,
	KVD_READS_SESSION = 16, /* changes nothing, and reads what the session's version guards */
	KVD_READS_HEAD = 32,    /* changes nothing, and reads counters of the head */
	KVD_READS_ALONE = 64,   /* changes nothing, and sees by itself whether what it reads fits together */
};
#define KVD_READS (KVD_READS_SESSION | KVD_READS_HEAD | KVD_READS_ALONE)

/*
 * An operation. `redo` brings a command whose intent is in the stage commit to its end, also when parts of it are done:
 * the command itself calls it, and so does recovery after the process died. NULL: setting the intent's words, and the valid
 * bits of the pages that are on their way into `slot`, is all.
 */
struct kvd_op {
	uint32_t (*execute)(struct kvd_engine *engine, struct kvd_call *call);
	void (*redo)(struct kvd_engine *engine, struct kvd_call *call);
	uint32_t flags; /* that it knows */
	uint32_t needs; /* enum kvd_needs */
};

/* engine.c */
extern const struct kvd_op kvd_engine_ops[KVD_ABI_OP_COUNT];
/* Check what is common to the arguments of all commands, and find session and tier. */
uint32_t kvd_call_prepare(struct kvd_engine *engine, struct kvd_call *call);
/*
 * The memory of `bytes` at an address that a command named, or NULL: then result0 says the address, and the command ends
 * with BAD_ADDRESS. Never NULL for no bytes. Others may write there at any time: read each thing once.
 */
void *kvd_call_buffer(struct kvd_call *call, uint64_t address, uint64_t bytes, bool writable);
/* Put one structure into the buffer that a command named; return the command's status. */
uint32_t kvd_call_answer(struct kvd_call *call, const void *info, uint64_t bytes);

/*
 * intent.c: what makes a command happen wholly or not at all, whatever instruction the process dies at.
 *
 *   kvd_intent_open, kvd_intent_word ... | kvd_intent_stage(PREPARE) | entries without valid bit |
 *   kvd_intent_word ... | kvd_intent_stage(COMMIT) | kvd_intent_apply and the rest of the command
 *
 * PREPARE is left out where nothing is prepared. Completion and words count from COMMIT on. A command that has changed
 * no truth needs no intent; derived state (csrc/abi: table_head and its kin say what is) may change at any time.
 */
void kvd_intent_open(struct kvd_call *call);
/* A word of the tables, in the head, a tier or a session context, that gets a new value. */
void kvd_intent_word(struct kvd_call *call, uint64_t *at, uint64_t value);
void kvd_intent_stage(struct kvd_call *call, uint32_t stage);
void kvd_intent_apply(struct kvd_engine *engine);
/* May an intent set the word at that offset? Those of session contexts, and those of the head that commands change. */
bool kvd_intent_allowed(const struct kvd_engine *engine, uint64_t at);
/* Two entries of tables that change together: after this, store them in any order. */
void kvd_intent_step(struct kvd_engine *engine, uint64_t *at0, uint64_t value0, uint64_t *at1, uint64_t value1);
/* The intent of a command that was not finished; NULL: there is none. */
struct kvd_intent *kvd_intent_live(const struct kvd_engine *engine);
/* The command is executed: journal, sequence, end of the intent. */
void kvd_intent_close(struct kvd_call *call);
/* For a version that readers look at: odd, then even again. */
static inline void kvd_change_begin(uint64_t *version)
{
	kvd_put(version, *version | 1);
}
static inline void kvd_change_end(uint64_t *version)
{
	kvd_put(version, (*version | 1) + 1);
}

/* read.c: for an operation that reads in parts; each part is tried until nothing changed meanwhile. Where nobody can change
 * anything the first try is good. */
struct kvd_try {
	uint64_t version;
	uint32_t number;
};
/* Begin a try; false: there were enough, the command ends with BUSY. */
bool kvd_read_try(const struct kvd_call *call, struct kvd_try *try);
/* What was read since then fits together. */
bool kvd_read_good(const struct kvd_call *call, const struct kvd_try *try);

/* arena.c, attach.c: the arena. */
int kvd_arena_init(struct kvd_engine *engine, const struct kvd_engine_config *config);
void kvd_arena_fini(struct kvd_engine *engine);
int kvd_arena_reset(struct kvd_engine *engine);
/* Take a layout as the engine's own. */
void kvd_arena_adopt(struct kvd_engine *engine, const struct kvd_head *layout);
/* Is the head one that this engine made, in `bytes`? -EINVAL: these are no tables, -EPROTO: of another version. */
int kvd_arena_validate(const struct kvd_head *head, uint64_t bytes);
/* Fill `head` from a configuration. -EINVAL: the arena is too small. */
int kvd_arena_layout(struct kvd_head *head, const struct kvd_engine_config *config);

/* node.c: the nodes of tables. */
/* Give `link`, if it is nothing as one of `height`, a node whose entries reach `index`, keeping what it holds; returns the
 * entries. NULL: the arena is full or the link is damaged; nothing changed. */
union kvd_entry *kvd_node_widen(struct kvd_engine *engine, uint64_t *link, uint32_t height, uint32_t index);
/* Free the node of `link` and make the link nothing. */
void kvd_node_free(struct kvd_engine *engine, uint64_t *link);
/* Put a node on its free list. */
void kvd_node_push(struct kvd_engine *engine, uint32_t node, uint32_t node_class);

/* frames.c: the frames of a tier. */
struct kvd_grant {
	struct kvd_tier *tier;
	uint64_t wanted; /* frames still to be taken; the tier must have them */
	uint64_t first;
	uint64_t left;
};
#define KVD_FRAME_NONE UINT64_MAX
uint64_t kvd_frames_level_words(uint64_t total_frames, uint64_t level);
void kvd_frames_init(struct kvd_engine *engine, uint32_t tier);
/* Take up to `want` contiguous frames and return how many; 0: none is free, whatever the books say. */
uint64_t kvd_frames_take(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t want, uint64_t *first);
void kvd_frames_give(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t first, uint64_t count);
/* Mark one frame as used, for recovery; false: it was already. */
bool kvd_frames_claim(struct kvd_engine *engine, struct kvd_tier *tier, uint64_t frame);
/* The next frame of a grant, KVD_FRAME_NONE where more than `wanted` were asked; the end of one that was not used up. */
uint64_t kvd_grant_next(struct kvd_engine *engine, struct kvd_grant *grant);
void kvd_grant_end(struct kvd_engine *engine, struct kvd_grant *grant);

/* table.c: the radix table of a slot. Pages are below KVD_PAGES_MAX, ranges are [first, end). A link that leads out of the
 * heap or to a node of the wrong height is as if it were nothing. */
typedef void (*kvd_table_visit)(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count);
struct kvd_leaf {
	uint64_t *link;
	union kvd_entry *entries;
};
/* Make the leaf of `page`, reaching to `last` if that is in it. False: the arena is full, no page is changed. */
bool kvd_table_reach(struct kvd_engine *engine, uint64_t *root, uint64_t page, uint64_t last, struct kvd_leaf *leaf);
/* Store an entry that was 0; the leaf's count is kept by kvd_leaf_more, once for many. */
static inline void kvd_leaf_more(const struct kvd_leaf *leaf, uint32_t count)
{
	kvd_put(leaf->link, kvd_link_more(*leaf->link, (int32_t)count));
}
/* The entry of a mapped page, or NULL. */
union kvd_entry *kvd_table_find(const struct kvd_engine *engine, const uint64_t *root, uint64_t page);
/* The same for an entry that is not 0, valid or not. */
union kvd_entry *kvd_table_entry(const struct kvd_engine *engine, const uint64_t *root, uint64_t page);
/* Ask for the cache line of a page's entry; nothing else happens. */
void kvd_table_prefetch(const struct kvd_engine *engine, const uint64_t *root, uint64_t page);
/* The PTEs of many pages, 0 where there is none: `pages` are replaced. */
void kvd_table_lookup(const struct kvd_engine *engine, const uint64_t *root, uint64_t *pages, uint64_t count);
/* Visit the parts of leaves that are in a range, in order; entries may be 0 or not valid. */
void kvd_table_walk(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end,
		    kvd_table_visit visit, void *context);
/* The same, zeroing each part after its visit (`visit` may be NULL) and freeing the nodes that get empty. */
void kvd_table_clear(struct kvd_engine *engine, uint64_t *root, uint64_t first, uint64_t end, kvd_table_visit visit,
		     void *context);
/* Pages mapped in a range. */
uint64_t kvd_table_count(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end);
/* Set the valid bit of each entry in a range. */
void kvd_table_validate(struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end);

/* session.c: session contexts, their hash and the books. */
uint64_t kvd_session_handle(const struct kvd_engine *engine, const struct kvd_session *session);
struct kvd_session *kvd_session_find(const struct kvd_engine *engine, uint64_t handle);
uint32_t *kvd_session_bucket(const struct kvd_engine *engine, uint64_t key);
struct kvd_session *kvd_session_of_key(const struct kvd_engine *engine, uint64_t key);
/* Put a context into the chain of its key. */
void kvd_session_link(struct kvd_engine *engine, struct kvd_session *session);
uint32_t kvd_op_session_create(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_session_destroy(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_session_destroy(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_lease(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_query_session(struct kvd_engine *engine, struct kvd_call *call);

/* books.c: what is charged to whom. */
/* A number of pages and their charge. */
struct kvd_books {
	uint64_t pages;
	uint64_t blocks;
};
/* May `blocks` and `frames` more be taken? `reserved`: the session's reservation counts first. */
bool kvd_books_admit(const struct kvd_engine *engine, const struct kvd_session *session, uint32_t tier, uint64_t frames,
		     uint64_t blocks, bool reserved);
/* Let the intent say what `blocks` leave of the reservation. */
void kvd_books_intend(struct kvd_call *call, uint32_t tier, uint64_t blocks, bool reserved);
/* Set the intent's words; the session's reservations may be among them. To be called after the stage commit. */
void kvd_books_apply(struct kvd_call *call);
/* Pages that have come into a session's slot; `frames`: they have frames that nobody had, which are charged. */
void kvd_books_charge(struct kvd_engine *engine, struct kvd_session *session, uint32_t tier, const struct kvd_books *more,
		      bool frames);
uint32_t kvd_op_reserve(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_resize(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_query_tier(struct kvd_engine *engine, struct kvd_call *call);

/* release.c: pages that leave; neighbouring frames are freed together. */
struct kvd_release {
	struct kvd_engine *engine;
	uint32_t tier;
	uint64_t first;
	uint64_t count;
	struct kvd_books pages[KVD_ABI_TIER_COUNT];  /* that left the session */
	struct kvd_books frames[KVD_ABI_TIER_COUNT]; /* that nobody has any more */
};
/* Take a page's entry, valid or not, off: its frame is given back when nobody else has it. */
void kvd_release_add(struct kvd_release *release, uint64_t pte);
void kvd_release_visit(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count);
/* Free the frames that are still held back. */
void kvd_release_flush(struct kvd_release *release);
/* The same, and take all that was released off the books; returns the pages. */
uint64_t kvd_release_settle(struct kvd_release *release, struct kvd_session *session);

/* shares.c: how many pages have a frame, where more than one has it. */
/* Pages that have the frame of an entry. */
uint64_t kvd_shares_of(const struct kvd_engine *engine, uint64_t pte);
/* Set that number, at least 1. False: no table for it. */
bool kvd_shares_set(struct kvd_engine *engine, uint32_t tier, uint64_t frame, uint64_t count);
/* Add to the number of one that has a number, which may become 1 for a while. */
void kvd_shares_shift(struct kvd_engine *engine, uint64_t pte, int64_t delta);
/* One page less has it; false: it was the last. */
bool kvd_shares_drop(struct kvd_engine *engine, uint64_t pte);

/* map.c, remap.c, share.c, unshare.c, translate.c */
/* The range of a command, cut at KVD_PAGES_MAX; false: it starts beyond. */
bool kvd_range(const struct kvd_abi_cmd *cmd, uint64_t *end);
uint32_t kvd_op_map(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_unmap(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_unmap(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_remap(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_remap(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_share(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_unshare(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_unshare(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_translate(struct kvd_engine *engine, struct kvd_call *call);

/* transition.c, touch.c, window.c, age.c, transfer.c */
/* Set accessed, and perhaps dirty, of the mapped pages in a range. */
void kvd_touch(const struct kvd_engine *engine, const uint64_t *root, uint64_t first, uint64_t end, bool dirty);
uint32_t kvd_op_session_transition(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_touch(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_touch(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_window_advance(struct kvd_engine *engine, struct kvd_call *call);
void kvd_redo_window_advance(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_age_scan(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_gather(struct kvd_engine *engine, struct kvd_call *call);
uint32_t kvd_op_scatter(struct kvd_engine *engine, struct kvd_call *call);

/* check.c, check_table.c, check_shares.c */
struct kvd_check_share {
	uint32_t tier;
	uint64_t frame;
	uint64_t told;
	uint64_t met;
};
struct kvd_check {
	const struct kvd_engine *engine;
	char *text;
	size_t text_bytes;
	size_t text_used;
	uint64_t faults;
	uint64_t *units;                               /* a bit for each unit of the heap that was met */
	uint64_t *frames[KVD_ABI_TIER_COUNT];          /* a bit for each frame that was met */
	struct kvd_check_share *shares;                /* by tier and frame */
	uint64_t shares_count;
	struct kvd_books tiers[KVD_ABI_TIER_COUNT];    /* sums over all sessions, a frame once */
	struct kvd_books session[KVD_ABI_TIER_COUNT];  /* sums over the tables of one, page by page */
	uint64_t reserved[KVD_ABI_TIER_COUNT];
	uint64_t pages;
	uint64_t table_bytes;
};
void kvd_check_fault(struct kvd_check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Units of the heap, and frames of a tier, that were ever used; never more than there are. */
uint64_t kvd_check_units(const struct kvd_engine *engine);
uint64_t kvd_check_frames_high(const struct kvd_engine *engine, uint32_t tier);
/* Set a bit; false: it was set already. */
static inline bool kvd_check_mark(uint64_t *bits, uint64_t at)
{
	uint64_t mask = 1ull << (at % 64);
	bool fresh = !(bits[at / 64] & mask);

	bits[at / 64] |= mask;
	return fresh;
}
/* Follow the tables of one session into `check->session`; true: they could be followed. */
bool kvd_check_slots(struct kvd_check *check, const struct kvd_session *session, uint64_t handle);
/* Follow the tables of shared frames. */
void kvd_check_shares_tables(struct kvd_check *check);
/* Is this a node's place in the heap, met for the first time? Then it counts as met. */
bool kvd_check_node(struct kvd_check *check, uint64_t node, uint32_t node_class);
/* Every unit of the heap is in one table or in one free list. */
void kvd_check_heap(struct kvd_check *check);
/* The bitmap of a tier holds the frames that were met, and its summaries are right. */
void kvd_check_frames(struct kvd_check *check, uint32_t tier);
/* Read what the tables say of shared frames; false: no memory. */
bool kvd_check_shares_begin(struct kvd_check *check);
/* Meet a page's frame; false: it was met before and is not shared. */
bool kvd_check_shares_met(struct kvd_check *check, uint64_t pte);
/* Each shared frame was met as often as is said. */
void kvd_check_shares_end(struct kvd_check *check);

#endif
