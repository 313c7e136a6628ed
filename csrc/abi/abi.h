/* From driver/spec/kvd.rdl by `make abi`: generated, do not edit. */
#ifndef KVD_ABI_ABI_H
#define KVD_ABI_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum kvd_abi_op {
	KVD_ABI_OP_SESSION_CREATE = 1, /* `key`; result0 = session. */
	KVD_ABI_OP_SESSION_DESTROY = 2, /* `session`: frees its pages and reservations; refused while leased. */
	KVD_ABI_OP_LEASE = 3, /* `session`, `count` (int64): added to its leases. */
	KVD_ABI_OP_RESERVE = 4, /* `session`, `tier`, `count` blocks: the reservation becomes exactly that. */
	KVD_ABI_OP_MAP = 5, /* `session`, `slot`, `tier`, `count` map runs in the buffer (at most 1048576): allocates; all or nothing. */
	KVD_ABI_OP_UNMAP = 6, /* `session`, `slot`, `first_page`, `count`; result0 = pages freed. */
	KVD_ABI_OP_TRANSLATE = 7, /* `session`, `slot`, `first_page`, `count`; runs in the buffer, result0 = their number. */
	KVD_ABI_OP_REMAP = 8, /* `session`, `slot`, `first_page`, `count`, `tier`, `other_slot`, `flags`; result0 = pages moved; all or nothing. */
	KVD_ABI_OP_QUERY_TIER = 9, /* `tier`; tier info in the buffer. */
	KVD_ABI_OP_QUERY_SESSION = 10, /* `session`; session info in the buffer. */
	KVD_ABI_OP_RESIZE = 11, /* `tier`, `count` blocks: the new capacity; may be below what is used. */
	KVD_ABI_OP_SESSION_TRANSITION = 12, /* `session`, transition key in `key`; result0 = the state now. */
	KVD_ABI_OP_SHARE = 13, /* `session`, `slot`, `first_page`, `count`; source session in `key`, its slot in `other_slot`: the empty range gets the source's frames, counted; result0 = pages shared; all or nothing. */
	KVD_ABI_OP_UNSHARE = 14, /* `session`, `slot`, `first_page`, `count`: pages with a shared frame get one of their own; copy runs in the buffer, result0 = their number, result1 = pages; all or nothing. */
	KVD_ABI_OP_WINDOW_ADVANCE = 15, /* `session`, `slot`; window in the buffer, after it room for runs: frees the pages that slid out; result0 = runs, result1 = pages freed. */
	KVD_ABI_OP_TOUCH = 16, /* `session`, `slot`, `first_page`, `count`: sets accessed, with touch_dirty dirty too; result0 = pages touched. */
	KVD_ABI_OP_AGE_SCAN = 17, /* `tier` (none: any), `count` = entries to look at, at most (PTEs, and one for each empty link and each context that it passes), `slot` = least age reported, in generations, to 127; age cursor in the buffer, after it room for cold runs; result0 = cold runs, result1 = entries looked at. */
	KVD_ABI_OP_GATHER = 18, /* `session`, `slot`, `first_page`, `count`; transfer in the buffer: pages to host; result0 = bytes written to the host. */
	KVD_ABI_OP_SCATTER = 19, /* `session`, `slot`, `first_page`, `count`; transfer in the buffer: host to pages; result0 = bytes read from the host. */
	KVD_ABI_OP_PREFIX_INSERT = 20, /* `session` that holds the blocks, namespace in `key`, bytes of a hash in `slot`, position of the first block in `first_page`, `count` hashes (at most 1024) in the buffer: blocks that are present keep their holder; result0 = blocks that were absent; all or nothing. */
	KVD_ABI_OP_PREFIX_MATCH = 21, /* Namespace in `key`, bytes of a hash in `slot`, position of the first block in `first_page`, `count` hashes (at most 1024) in the buffer; result0 = blocks present before the first absent one, result1 = session that holds the last of them, 0 where there is none. */
	KVD_ABI_OP_PREFIX_REMOVE = 22, /* Namespace in `key`, bytes of a hash in `slot`, position of the first block in `first_page`, `count` hashes (at most 1024) in the buffer, `session` (0: any) whose blocks alone are removed; result0 = blocks removed. */
	KVD_ABI_OP_FLUSH = 23, /* Every change before it is visible to all who walk the tables; result0 = commands executed since the tables were made. */
	KVD_ABI_OP_COUNT = 24,
};

enum kvd_abi_tier {
	KVD_ABI_TIER_NONE = 0, /* No tier. */
	KVD_ABI_TIER_DDR = 1, /* Host memory. */
	KVD_ABI_TIER_CARD = 2, /* Memory of the card. */
	KVD_ABI_TIER_NVME = 3, /* NVMe. */
	KVD_ABI_TIER_POOL = 4, /* Shared pool. */
	KVD_ABI_TIER_COUNT = 5,
};

enum kvd_abi_status {
	KVD_ABI_STATUS_OK = 0, /* Done. */
	KVD_ABI_STATUS_BAD_COMMAND = 1, /* The operation is not known. */
	KVD_ABI_STATUS_BAD_ARGUMENT = 2, /* An argument is out of its range. */
	KVD_ABI_STATUS_NO_SESSION = 3, /* The handle names no living session. */
	KVD_ABI_STATUS_NO_SPACE = 4, /* The tier's capacity is used or reserved. */
	KVD_ABI_STATUS_NO_TABLE = 5, /* The memory of the tables is full. */
	KVD_ABI_STATUS_ALREADY_MAPPED = 6, /* A page of the range is mapped. */
	KVD_ABI_STATUS_NOT_MAPPED = 7, /* A page that the command needs is not mapped. */
	KVD_ABI_STATUS_LEASED = 8, /* The session has leases. */
	KVD_ABI_STATUS_BUFFER_SMALL = 9, /* result0 = entries needed. */
	KVD_ABI_STATUS_EXISTS = 10, /* The key has a session; result0 = that session. */
	KVD_ABI_STATUS_BAD_TRANSITION = 11, /* The event can't happen in the session's state; result0 = that state. */
	KVD_ABI_STATUS_BAD_ADDRESS = 12, /* The device can't reach the memory; result0 = the address. */
	KVD_ABI_STATUS_SHARED = 13, /* A page of the range has a frame that others have too. */
	KVD_ABI_STATUS_NO_MEMORY = 14, /* The tier has no memory that GATHER and SCATTER could reach. */
	KVD_ABI_STATUS_BUSY = 15, /* A lock-free reader met changes at each of its tries; try again. */
	KVD_ABI_STATUS_BAD_TABLES = 16, /* The tables contradict themselves. */
	KVD_ABI_STATUS_CANCELLED = 17, /* Given up before it was executed. */
	KVD_ABI_STATUS_COUNT = 18,
};

enum kvd_abi_state {
	KVD_ABI_STATE_NEW = 0, /* Made, nothing written. */
	KVD_ABI_STATE_FILLING = 1, /* A writer has it. */
	KVD_ABI_STATE_ACTIVE = 2, /* Sealed and in use. */
	KVD_ABI_STATE_IDLE = 3, /* Sealed, in the fast tier, not in use. */
	KVD_ABI_STATE_COOLING = 4, /* On its way to a slower tier. */
	KVD_ABI_STATE_COLD = 5, /* In a slower tier only. */
	KVD_ABI_STATE_WARMING = 6, /* On its way to the fast tier. */
	KVD_ABI_STATE_RELEASED = 7, /* Its client said: not soon. */
	KVD_ABI_STATE_EXPIRED = 8, /* Its time is over; still held. */
	KVD_ABI_STATE_CLOSED = 9, /* Nothing is left but the context. */
	KVD_ABI_STATE_FAULTED = 10, /* Its bytes can't be trusted. */
	KVD_ABI_STATE_COUNT = 11,
};

enum kvd_abi_format {
	KVD_ABI_FORMAT_RAW = 0, /* Bytes as they are. */
	KVD_ABI_FORMAT_FP16 = 1, /* IEEE binary16. */
	KVD_ABI_FORMAT_BF16 = 2, /* bfloat16. */
	KVD_ABI_FORMAT_E4M3 = 3, /* OFP8 E4M3, with a scale. */
	KVD_ABI_FORMAT_E5M2 = 4, /* OFP8 E5M2, with a scale. */
	KVD_ABI_FORMAT_INT8 = 5, /* Signed, -127 to 127, with a scale. */
	KVD_ABI_FORMAT_COUNT = 6,
};

enum kvd_abi_scaling {
	KVD_ABI_SCALING_NONE = 0, /* No scales: formats that need none. */
	KVD_ABI_SCALING_FP16_BLOCKS = 1, /* An FP16 scale a channel and block of 64 tokens, [blocks][channels]. */
	KVD_ABI_SCALING_FP32_BLOCKS = 2, /* The same in FP32. */
	KVD_ABI_SCALING_COUNT = 3,
};

enum kvd_abi_event {
	KVD_ABI_EVENT_OPEN = 0, /* A reader has come. */
	KVD_ABI_EVENT_WRITE = 1, /* A writer has come. */
	KVD_ABI_EVENT_SEAL = 2, /* The last writer closed. */
	KVD_ABI_EVENT_CLOSE = 3, /* The last reader has gone; of what nobody holds: give it up. */
	KVD_ABI_EVENT_TICK = 4, /* It was not used for a while. */
	KVD_ABI_EVENT_DEMOTED = 5, /* Its bytes are in the slower tier. */
	KVD_ABI_EVENT_WARM = 6, /* It will be needed soon. */
	KVD_ABI_EVENT_PROMOTED = 7, /* Its bytes are in the fast tier. */
	KVD_ABI_EVENT_RELEASE = 8, /* Its client says: not soon. */
	KVD_ABI_EVENT_RESUME = 9, /* Its client says: soon. */
	KVD_ABI_EVENT_EXPIRE = 10, /* Its time is over. */
	KVD_ABI_EVENT_EVICT = 11, /* Its room is wanted. */
	KVD_ABI_EVENT_FAULT = 12, /* A page of it is wrong or can't be had. */
	KVD_ABI_EVENT_REPAIR = 13, /* Its bytes are right again. */
	KVD_ABI_EVENT_COUNT = 14,
};

enum kvd_abi_syndrome {
	KVD_ABI_SYNDROME_NONE = 0, /* No fault. */
	KVD_ABI_SYNDROME_BAD_DOORBELL = 1, /* A tail or head that is not below the depth, or passes the other; info = the value. */
	KVD_ABI_SYNDROME_BAD_QUEUE = 2, /* An address, depth or vector that can't be; info = the queue. */
	KVD_ABI_SYNDROME_NO_TABLES = 3, /* Tables that can't be reached or are no tables; info = their address. */
	KVD_ABI_SYNDROME_BAD_VERSION = 4, /* Tables of another version; info = their version. */
	KVD_ABI_SYNDROME_DMA_FAULT = 5, /* A ring that can't be reached; info = the address. */
	KVD_ABI_SYNDROME_BAD_TABLES = 6, /* The tables contradict themselves; info = the sequence of the command that found it. */
	KVD_ABI_SYNDROME_OWN_FAULT = 7, /* The device's own fault. */
	KVD_ABI_SYNDROME_COUNT = 8,
};

enum kvd_abi_capability_id {
	KVD_ABI_CAPABILITY_ID_PAGE_SIZES = 1, /* Page sizes. */
	KVD_ABI_CAPABILITY_ID_TIERS = 2, /* Tiers of the device itself. */
	KVD_ABI_CAPABILITY_ID_QUEUES = 3, /* Queues and vectors. */
	KVD_ABI_CAPABILITY_ID_FORMATS = 4, /* Formats of GATHER and SCATTER. */
	KVD_ABI_CAPABILITY_ID_OPERATIONS = 5, /* Operations. */
	KVD_ABI_CAPABILITY_ID_LIMITS = 6, /* Limits. */
	KVD_ABI_CAPABILITY_ID_COUNT = 7,
};

enum kvd_abi_stage {
	KVD_ABI_STAGE_NONE = 0, /* No command has changed anything. */
	KVD_ABI_STAGE_PREPARE = 1, /* Pages are being written without their valid bit; to be undone. */
	KVD_ABI_STAGE_COMMIT = 2, /* To be done to the end. */
	KVD_ABI_STAGE_COUNT = 3,
};

/* A command. */
struct kvd_abi_cmd {
	uint32_t id; /* Comes back in the completion. */
	uint16_t op; /* What to do. */
	uint16_t flags; /* How to do it. */
	uint64_t session; /* Handle. */
	uint16_t slot; /* Page table of the session. */
	uint16_t other_slot; /* The second page table of REMAP. */
	uint32_t tier; /* Where the frames are. */
	uint64_t first_page; /* Begin of the range. */
	uint64_t count; /* Pages, runs, blocks or leases. */
	uint64_t key; /* Caller's name of a session, or what the operation says. */
	uint64_t buffer; /* Address, 8-byte aligned. */
	uint64_t buffer_bytes; /* Its length. */
};

/* A completion. */
struct kvd_abi_cpl {
	uint32_t id; /* Of the command. */
	uint16_t status; /* How it went. */
	uint16_t flags; /* Written last. */
	uint64_t result0; /* As the command says. */
	uint64_t result1; /* As the command says. */
	uint32_t sq_head; /* Place in the submission ring up to which entries were taken. */
	uint32_t reserved; /* Zero. */
};

/* Input of MAP. */
struct kvd_abi_map_run {
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint32_t blocks; /* 4 KiB blocks that each page is charged, from 1. */
	uint32_t reserved; /* Zero. */
};

/* Output of TRANSLATE: one tier, one charge, contiguous frames. */
struct kvd_abi_run {
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint64_t first_frame; /* Frame of the first page. */
	uint32_t tier; /* Where the frames are. */
	uint32_t blocks; /* 4 KiB blocks that each page is charged. */
};

/* Output of QUERY_TIER. */
struct kvd_abi_tier_info {
	uint64_t capacity_blocks; /* Budget. */
	uint64_t used_blocks; /* Charged to pages. */
	uint64_t reserved_blocks; /* Promised to sessions. */
	uint64_t used_frames; /* Frames in use. */
	uint64_t total_frames; /* Frames; 0: no such tier. */
};

/* Output of QUERY_SESSION; arrays by tier. */
struct kvd_abi_session_info {
	uint64_t key; /* Caller's name. */
	uint64_t leases; /* Leases held. */
	uint64_t mapped_pages[5]; /* Pages over all slots. */
	uint64_t mapped_blocks[5]; /* Their charge. */
	uint64_t reserved_blocks[5]; /* Promised to it. */
	uint32_t state; /* Where it is in its life. */
	uint32_t reserved; /* Zero. */
	uint64_t window_start[8]; /* By slot: tokens that the window has left behind. */
};

/* Output of UNSHARE: the bytes of the old frames belong into the new ones. */
struct kvd_abi_copy_run {
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint64_t old_frame; /* Frame of the first page before. */
	uint64_t new_frame; /* Frame of the first page now. */
	uint32_t tier; /* Of both. */
	uint32_t blocks; /* 4 KiB blocks that each page is charged. */
};

/* Input of WINDOW_ADVANCE: an array of `planes` planes that do not overlap, each of tokens in order; runs follow. */
struct kvd_abi_window {
	uint64_t base; /* Byte of the slot at which the first plane begins. */
	uint64_t plane_bytes; /* From one plane to the next. */
	uint32_t planes; /* Layers, heads, K and V: whatever repeats; 1 to 65536. */
	uint32_t token_bytes; /* Of one token in one plane. */
	uint64_t tokens; /* Written so far. */
	uint64_t window_tokens; /* Kept at the end. */
	uint64_t sink_tokens; /* Kept at the beginning. */
};

/* Input and output of AGE_SCAN: where to go on; all zero: the beginning. Cold runs follow. */
struct kvd_abi_age_cursor {
	uint64_t session; /* Number of the session context. */
	uint64_t page; /* Next page. */
	uint32_t slot; /* Next slot. */
	uint32_t done; /* 1: the scan has come to the end. */
	uint64_t generation; /* In which the scan began: written at the beginning of it. */
};

/* Output of AGE_SCAN: one tier, one age, contiguous frames. */
struct kvd_abi_cold_run {
	uint64_t session; /* Handle. */
	uint64_t first_page; /* Begin of the run. */
	uint64_t count; /* Pages. */
	uint64_t first_frame; /* Frame of the first page. */
	uint32_t tier; /* Where the frames are. */
	uint16_t slot; /* Page table of the session. */
	uint16_t age; /* Generations since it was used; 127: that or more. */
};

/* Input of GATHER and SCATTER: an array [tokens][channels] that begins at a byte of the range's pages. Raw: `host_bytes` bytes, tokens and channels zero. */
struct kvd_abi_transfer {
	uint64_t host; /* Address of the host's side. */
	uint64_t host_bytes; /* Its length. */
	uint64_t scales; /* Address of the scales: read where they are given, written where the narrow side is made. */
	uint64_t scales_bytes; /* Their length. */
	uint64_t page_offset; /* Byte of the range at which the array begins. */
	uint32_t tokens; /* Of the array. */
	uint32_t channels; /* Of a token. */
	uint16_t host_format; /* Of the host's side. */
	uint16_t page_format; /* Of the pages; other than the host's: one is FP16 or BF16, the other is not. */
	uint16_t scaling; /* Of the scales. */
	uint16_t reserved; /* Zero. */
};

/* Entry of the prefix index, one unit of the tables' memory: a block of a chain and who holds it. Entries stand in slabs of 64. */
struct kvd_abi_prefix_entry {
	uint64_t key; /* Namespace. */
	uint64_t place; /* Where in its chain, and how long the hash is. */
	uint64_t hash[4]; /* Hash of the chain up to this block; what it does not fill is zero. */
	uint64_t holder; /* Written last, by one store; 0: the entry is free. */
	uint32_t next; /* Unit of the holder's next entry, or of the next free one; derived. */
	uint32_t previous; /* Unit of the holder's entry before; derived. */
};

/* Bucket of the prefix index, one unit of the tables' memory; derived. */
struct kvd_abi_prefix_bucket {
	uint32_t version; /* Odd while the bucket or one that follows is changed; of the first of a chain. */
	uint32_t more; /* Unit of the bucket that follows, 0: none. */
	uint64_t slots[7]; /* Unit of an entry, above it the lower half of its mixed hash; 0: empty, as all that follow. */
};

/* Head of the prefix index. */
struct kvd_abi_prefix_head {
	uint64_t stage; /* Of the last command that changed the index, for readers: one store makes it happen; derived. */
	uint64_t seed; /* Of the mixed hash, chosen once. */
	uint64_t entries; /* Entries held; derived. */
	uint64_t removals; /* Odd while entries are freed; derived. */
	uint32_t directory; /* Unit of the newest node of the slab directory: word 0 = the one before, each other word the unit of a slab. */
	uint32_t slabs; /* Slabs of that node; derived. */
	uint32_t entry_free; /* Unit of the first free entry; derived. */
	uint32_t fresh; /* Unit of the first entry of the last slab that was never used; derived. */
	uint32_t fresh_end; /* Where that slab ends; derived. */
	uint32_t bucket_free; /* Unit of the first bucket that stands in no chain; derived. */
	uint32_t root; /* Unit of a node of 1024 units of nodes of 1024 units of segments of 64 buckets; derived. */
	uint32_t buckets; /* Chains of the linear hash; derived. */
};

/* Begin of each capability. */
struct kvd_abi_capability {
	uint32_t head; /* What it is and where the next one is. */
	uint32_t bytes; /* Length, with this. */
};

/* Capability `page_sizes`. */
struct kvd_abi_capability_page_sizes {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint64_t mask; /* Bit n: pages of 2^n bytes. */
};

/* Capability `tiers`. */
struct kvd_abi_capability_tiers {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint64_t capacity_bytes[5]; /* Memory on the device itself, by tier; the card's is BAR4. */
};

/* Capability `queues`. */
struct kvd_abi_capability_queues {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint32_t count; /* Queues. */
	uint32_t depth_max; /* Entries of a ring, at most. */
	uint32_t vectors; /* MSI-X vectors. */
	uint32_t reserved; /* Zero. */
};

/* Capability `formats`. */
struct kvd_abi_capability_formats {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint64_t mask; /* Bit n: format n. */
};

/* Capability `operations`. */
struct kvd_abi_capability_operations {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint64_t mask; /* Bit n: operation n. */
};

/* Capability `limits`. */
struct kvd_abi_capability_limits {
	uint32_t head; /* As `capability`. */
	uint32_t bytes; /* As `capability`. */
	uint64_t sessions_max; /* Session contexts of the tables, at most. */
	uint64_t tables_bytes_max; /* Tables, at most. */
	uint64_t address_last; /* Last address that DMA reaches. */
	uint32_t slots_max; /* Page tables of a session. */
	uint32_t page_bits; /* Bits of a page number. */
};

/* Of one tier, in the head. Derived: all that the PTEs and reservations say. */
struct kvd_abi_tier_head {
	uint64_t capacity_blocks; /* Budget. */
	uint64_t total_frames; /* Frames; 0: no such tier. */
	uint64_t levels; /* Levels of its bitmap. */
	uint64_t level_at[7]; /* Offset of each level. A set bit: the frame is used (level 0), or the word of the level below is full. */
	uint64_t used_blocks; /* Derived: charged, once a frame. */
	uint64_t reserved_blocks; /* Derived: promised to sessions. */
	uint64_t used_frames; /* Derived: frames in use. */
	uint64_t next_frame; /* Derived: where the search for a free one goes on. */
	uint64_t high_frame; /* Derived: no frame from here on is used. */
	uint64_t shares; /* Derived: link to a table that has, at the number of each frame that several pages have, how many they are. */
};

/* The command that is being executed, in the head. It counts while `stage` is not none and `sequence` is the head's and one. */
struct kvd_abi_intent {
	uint64_t sequence; /* Of the command. */
	uint32_t stage; /* How far it is. */
	uint32_t words; /* Entries of `word_at` and `word` that count, when the stage is commit. */
	uint64_t session; /* Handle of the session that is changed, of a new one too. */
	uint64_t word_at[8]; /* Offsets of words that get a new value. */
	uint64_t word[8]; /* That value. */
	uint64_t steps; /* Entries of `step_at` and `step` that count. */
	uint64_t step_at[2]; /* Offsets of table entries that change together. */
	uint64_t step[2]; /* What they get. */
	uint64_t scratch; /* Link to a table of PTEs that are on their way into the slot. */
	uint64_t payload[7]; /* What the operation needs to be done to the end. */
	struct kvd_abi_cmd cmd; /* A command. */
	struct kvd_abi_cpl cpl; /* A completion. */
};

/* Begin of the tables. What is not marked as derived is the truth, and enough to make the rest again. */
struct kvd_abi_table_head {
	uint64_t magic; /* "kv-arena". */
	uint32_t version; /* Of this layout. */
	uint32_t page_bytes; /* Bytes of a page. */
	uint64_t arena_bytes; /* Length of the tables. */
	uint64_t sessions_at; /* Offset of the session contexts. */
	uint64_t sessions_max; /* Their number. */
	uint64_t hash_at; /* Offset of the hash: a u32 a bucket, number of a context and one, 0: empty. */
	uint64_t hash_mask; /* Buckets, minus one. The bucket of a key: bits 32 and up of key * 0x9e3779b97f4a7c15, masked. */
	uint64_t journal_at; /* Offset of the journal. */
	uint64_t journal_entries; /* Its entries, a power of two. That of a sequence: the sequence modulo this. */
	uint64_t heap_at; /* Offset of the heap of table nodes. */
	uint64_t heap_end; /* Where it ends. */
	uint64_t in_use; /* 1: somebody executes commands, or died doing so. */
	uint64_t sequence; /* Commands executed since the tables were made. */
	uint64_t change; /* Odd while counters of the head change. */
	uint32_t generation; /* Of sessions: the last one given out. */
	uint32_t age; /* Of the ageing scan: the present generation. */
	uint64_t sessions_high; /* No context from here on was ever used. */
	uint64_t sessions_live; /* Derived. */
	uint32_t session_free; /* Derived: number of the first free context and one. */
	uint32_t age_floor; /* Of the ageing scan: the generation in which the last one began that came to its end. */
	uint64_t heap_next; /* Derived: no node from here on is used. */
	uint32_t free_nodes[8]; /* Derived: by class, unit of the first free node; the next one is in its entry 0. */
	uint64_t table_bytes; /* Derived: of nodes that hold something. */
	uint64_t mapped_pages; /* Derived. */
	uint64_t refused; /* Commands that ended with a status other than OK. */
	uint64_t refused_transitions; /* Of them, with BAD_TRANSITION. */
	struct kvd_abi_prefix_head prefix; /* Head of the prefix index. */
	uint64_t reserved2[13]; /* Zero. */
	struct kvd_abi_intent intent; /* The command that is being executed, in the head. It counts while `stage` is not none and `sequence` is the head's and one. */
	struct kvd_abi_tier_head tiers[5]; /* Of one tier, in the head. Derived: all that the PTEs and reservations say. */
};

/* A session. It lives while `generation` is not 0. */
struct kvd_abi_session_context {
	uint64_t key; /* Caller's name. */
	uint64_t leases; /* Leases held. */
	uint32_t generation; /* Upper half of the handle, never used twice; the lower half is the number of the context. */
	uint32_t state; /* Where it is in its life. */
	uint64_t version; /* Odd while a command changes the session: what was read meanwhile may not fit together. */
	uint32_t next; /* Derived: the next in the hash chain or free list: number and one, 0 ends. */
	uint32_t prefix_head; /* Derived: the first entry of the prefix index that it holds, 0: none. */
	uint64_t slots[8]; /* Links to its page tables. */
	uint64_t window_start[8]; /* By slot: tokens that the window has left behind. */
	uint64_t reserved_blocks[4]; /* Promised to it, tier 1 first. */
	uint64_t pages[4]; /* Derived: pages over all slots. */
	uint64_t blocks[4]; /* Derived: their charge, shared pages too. */
	uint64_t reserved[7]; /* Zero. */
};

/* How a command ended, in the journal. */
struct kvd_abi_journal_entry {
	uint64_t sequence; /* Of the command. */
	struct kvd_abi_cpl cpl; /* A completion. */
};

/* cffi: end */

static_assert(sizeof(struct kvd_abi_cmd) == 64, "the size that is described");
static_assert(sizeof(struct kvd_abi_cpl) == 32, "the size that is described");
static_assert(sizeof(struct kvd_abi_map_run) == 24, "the size that is described");
static_assert(sizeof(struct kvd_abi_run) == 32, "the size that is described");
static_assert(sizeof(struct kvd_abi_tier_info) == 40, "the size that is described");
static_assert(sizeof(struct kvd_abi_session_info) == 208, "the size that is described");
static_assert(sizeof(struct kvd_abi_copy_run) == 40, "the size that is described");
static_assert(sizeof(struct kvd_abi_window) == 48, "the size that is described");
static_assert(sizeof(struct kvd_abi_age_cursor) == 32, "the size that is described");
static_assert(sizeof(struct kvd_abi_cold_run) == 40, "the size that is described");
static_assert(sizeof(struct kvd_abi_transfer) == 56, "the size that is described");
static_assert(sizeof(struct kvd_abi_prefix_entry) == 64, "the size that is described");
static_assert(sizeof(struct kvd_abi_prefix_bucket) == 64, "the size that is described");
static_assert(sizeof(struct kvd_abi_prefix_head) == 64, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability) == 8, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_page_sizes) == 16, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_tiers) == 48, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_queues) == 24, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_formats) == 16, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_operations) == 16, "the size that is described");
static_assert(sizeof(struct kvd_abi_capability_limits) == 40, "the size that is described");
static_assert(sizeof(struct kvd_abi_tier_head) == 128, "the size that is described");
static_assert(sizeof(struct kvd_abi_intent) == 352, "the size that is described");
static_assert(sizeof(struct kvd_abi_table_head) == 1376, "the size that is described");
static_assert(sizeof(struct kvd_abi_session_context) == 320, "the size that is described");
static_assert(sizeof(struct kvd_abi_journal_entry) == 40, "the size that is described");

#define KVD_ABI_PTE_VALID_SHIFT 0x0u
#define KVD_ABI_PTE_VALID_MASK 0x1u
#define KVD_ABI_PTE_ACCESSED_SHIFT 0x1u
#define KVD_ABI_PTE_ACCESSED_MASK 0x2u
#define KVD_ABI_PTE_DIRTY_SHIFT 0x2u
#define KVD_ABI_PTE_DIRTY_MASK 0x4u
#define KVD_ABI_PTE_ZERO_SHIFT 0x3u
#define KVD_ABI_PTE_ZERO_MASK 0x8u
#define KVD_ABI_PTE_TIER_SHIFT 0x4u
#define KVD_ABI_PTE_TIER_MASK 0x70u
#define KVD_ABI_PTE_BLOCKS_SHIFT 0x7u
#define KVD_ABI_PTE_BLOCKS_MASK 0xff80u
#define KVD_ABI_PTE_GENERATION_SHIFT 0x10u
#define KVD_ABI_PTE_GENERATION_MASK 0xff0000u
#define KVD_ABI_PTE_FRAME_SHIFT 0x18u
#define KVD_ABI_PTE_FRAME_MASK 0x7fffffffff000000ull
#define KVD_ABI_PTE_SHARED_SHIFT 0x3fu
#define KVD_ABI_PTE_SHARED_MASK 0x8000000000000000ull
#define KVD_ABI_LINK_NODE_SHIFT 0x0u
#define KVD_ABI_LINK_NODE_MASK 0xffffffffu
#define KVD_ABI_LINK_USED_SHIFT 0x20u
#define KVD_ABI_LINK_USED_MASK 0xffff00000000ull
#define KVD_ABI_LINK_NODE_CLASS_SHIFT 0x30u
#define KVD_ABI_LINK_NODE_CLASS_MASK 0xff000000000000ull
#define KVD_ABI_LINK_HEIGHT_SHIFT 0x38u
#define KVD_ABI_LINK_HEIGHT_MASK 0xff00000000000000ull
#define KVD_ABI_TRANSITION_KEY_EVENT_SHIFT 0x0u
#define KVD_ABI_TRANSITION_KEY_EVENT_MASK 0xffu
#define KVD_ABI_CMD_FLAGS_MAP_RESERVED_SHIFT 0x0u
#define KVD_ABI_CMD_FLAGS_MAP_RESERVED_MASK 0x1u
#define KVD_ABI_CMD_FLAGS_REMAP_KEEP_SHIFT 0x1u
#define KVD_ABI_CMD_FLAGS_REMAP_KEEP_MASK 0x2u
#define KVD_ABI_CMD_FLAGS_REMAP_TAKE_SHIFT 0x2u
#define KVD_ABI_CMD_FLAGS_REMAP_TAKE_MASK 0x4u
#define KVD_ABI_CMD_FLAGS_AGE_ADVANCE_SHIFT 0x3u
#define KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK 0x8u
#define KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_SHIFT 0x4u
#define KVD_ABI_CMD_FLAGS_TOUCH_DIRTY_MASK 0x10u
#define KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_SHIFT 0x5u
#define KVD_ABI_CMD_FLAGS_TRANSLATE_LIST_MASK 0x20u
#define KVD_ABI_CPL_FLAGS_PHASE_SHIFT 0x0u
#define KVD_ABI_CPL_FLAGS_PHASE_MASK 0x1u
#define KVD_ABI_SESSION_INFO_STATE_STATE_SHIFT 0x0u
#define KVD_ABI_SESSION_INFO_STATE_STATE_MASK 0xffu
#define KVD_ABI_PREFIX_ENTRY_PLACE_WORDS_SHIFT 0x0u
#define KVD_ABI_PREFIX_ENTRY_PLACE_WORDS_MASK 0x7u
#define KVD_ABI_PREFIX_ENTRY_PLACE_POSITION_SHIFT 0x3u
#define KVD_ABI_PREFIX_ENTRY_PLACE_POSITION_MASK 0x3fffffffffff8ull
#define KVD_ABI_PREFIX_ENTRY_HOLDER_CONTEXT_SHIFT 0x0u
#define KVD_ABI_PREFIX_ENTRY_HOLDER_CONTEXT_MASK 0xfffffffu
#define KVD_ABI_PREFIX_ENTRY_HOLDER_INSERTING_SHIFT 0x1cu
#define KVD_ABI_PREFIX_ENTRY_HOLDER_INSERTING_MASK 0x10000000u
#define KVD_ABI_PREFIX_ENTRY_HOLDER_REMOVING_SHIFT 0x1du
#define KVD_ABI_PREFIX_ENTRY_HOLDER_REMOVING_MASK 0x20000000u
#define KVD_ABI_PREFIX_ENTRY_HOLDER_GENERATION_SHIFT 0x20u
#define KVD_ABI_PREFIX_ENTRY_HOLDER_GENERATION_MASK 0xffffffff00000000ull
#define KVD_ABI_PREFIX_HEAD_STAGE_DONE_SHIFT 0x0u
#define KVD_ABI_PREFIX_HEAD_STAGE_DONE_MASK 0x1u
#define KVD_ABI_PREFIX_HEAD_STAGE_COMMAND_SHIFT 0x1u
#define KVD_ABI_PREFIX_HEAD_STAGE_COMMAND_MASK 0xfffffffffffffffeull
#define KVD_ABI_CAPABILITY_HEAD_ID_SHIFT 0x0u
#define KVD_ABI_CAPABILITY_HEAD_ID_MASK 0xffffu
#define KVD_ABI_CAPABILITY_HEAD_NEXT_SHIFT 0x10u
#define KVD_ABI_CAPABILITY_HEAD_NEXT_MASK 0xffff0000u
#define KVD_ABI_SESSION_CONTEXT_STATE_STATE_SHIFT 0x0u
#define KVD_ABI_SESSION_CONTEXT_STATE_STATE_MASK 0xffu
#define KVD_ABI_PCI_CLASS_REVISION_REVISION_SHIFT 0x0u
#define KVD_ABI_PCI_CLASS_REVISION_REVISION_MASK 0xffu
#define KVD_ABI_PCI_CLASS_REVISION_CLASS_CODE_SHIFT 0x8u
#define KVD_ABI_PCI_CLASS_REVISION_CLASS_CODE_MASK 0xffffff00u
#define KVD_ABI_BAR0_VERSION_MINOR_SHIFT 0x0u
#define KVD_ABI_BAR0_VERSION_MINOR_MASK 0xffffu
#define KVD_ABI_BAR0_VERSION_MAJOR_SHIFT 0x10u
#define KVD_ABI_BAR0_VERSION_MAJOR_MASK 0xffff0000u
#define KVD_ABI_BAR0_CONTROL_ENABLE_SHIFT 0x0u
#define KVD_ABI_BAR0_CONTROL_ENABLE_MASK 0x1u
#define KVD_ABI_BAR0_CONTROL_RESET_SHIFT 0x1u
#define KVD_ABI_BAR0_CONTROL_RESET_MASK 0x2u
#define KVD_ABI_BAR0_CONTROL_QUIESCE_SHIFT 0x2u
#define KVD_ABI_BAR0_CONTROL_QUIESCE_MASK 0x4u
#define KVD_ABI_BAR0_STATUS_READY_SHIFT 0x0u
#define KVD_ABI_BAR0_STATUS_READY_MASK 0x1u
#define KVD_ABI_BAR0_STATUS_ENABLED_SHIFT 0x1u
#define KVD_ABI_BAR0_STATUS_ENABLED_MASK 0x2u
#define KVD_ABI_BAR0_STATUS_QUIET_SHIFT 0x2u
#define KVD_ABI_BAR0_STATUS_QUIET_MASK 0x4u
#define KVD_ABI_BAR0_STATUS_FAULT_SHIFT 0x3u
#define KVD_ABI_BAR0_STATUS_FAULT_MASK 0x8u
#define KVD_ABI_PCI_VENDOR_ID_AT 0x0u
#define KVD_ABI_PCI_VENDOR_ID_RESET 0x1234u
#define KVD_ABI_PCI_DEVICE_ID_AT 0x2u
#define KVD_ABI_PCI_DEVICE_ID_RESET 0x6b76u
#define KVD_ABI_PCI_CLASS_REVISION_AT 0x8u
#define KVD_ABI_PCI_CLASS_REVISION_RESET 0x12000001u
#define KVD_ABI_BAR0_MAGIC_AT 0x0u
#define KVD_ABI_BAR0_MAGIC_RESET 0x647261632d64766bull
#define KVD_ABI_BAR0_VERSION_AT 0x8u
#define KVD_ABI_BAR0_VERSION_RESET 0x10000u
#define KVD_ABI_BAR0_CAPABILITIES_AT 0xcu
#define KVD_ABI_BAR0_CAPABILITIES_RESET 0x400u
#define KVD_ABI_BAR0_CONTROL_AT 0x10u
#define KVD_ABI_BAR0_CONTROL_RESET 0x0u
#define KVD_ABI_BAR0_STATUS_AT 0x14u
#define KVD_ABI_BAR0_STATUS_RESET 0x5u
#define KVD_ABI_BAR0_SYNDROME_AT 0x18u
#define KVD_ABI_BAR0_SYNDROME_QUEUE_AT 0x1cu
#define KVD_ABI_BAR0_SYNDROME_INFO_AT 0x20u
#define KVD_ABI_BAR0_TABLES_ADDRESS_AT 0x28u
#define KVD_ABI_BAR0_TABLES_BYTES_AT 0x30u
#define KVD_ABI_BAR0_IRQ_MASK_AT 0x38u
#define KVD_ABI_BAR0_IRQ_PENDING_AT 0x40u
#define KVD_ABI_BAR0_COMMANDS_AT 0x48u
#define KVD_ABI_BAR0_REFUSED_AT 0x50u
#define KVD_ABI_BAR0_DOORBELLS_AT 0x58u
#define KVD_ABI_BAR0_INTERRUPTS_AT 0x60u
#define KVD_ABI_BAR0_READ_BYTES_AT 0x68u
#define KVD_ABI_BAR0_WRITTEN_BYTES_AT 0x70u
#define KVD_ABI_BAR0_FAULTS_AT 0x78u
#define KVD_ABI_BAR0_TIER_ADDRESS_AT 0x80u
#define KVD_ABI_BAR0_TIER_ADDRESS_COUNT 0x5u
#define KVD_ABI_BAR0_TIER_BYTES_AT 0xa8u
#define KVD_ABI_BAR0_TIER_BYTES_COUNT 0x5u
#define KVD_ABI_BAR0_MSIX_TABLE_AT 0x2000u
#define KVD_ABI_BAR0_MSIX_TABLE_COUNT 0x100u
#define KVD_ABI_BAR0_MSIX_PENDING_AT 0x3000u
#define KVD_ABI_BAR0_MSIX_PENDING_COUNT 0x2u
#define KVD_ABI_BAR0_QUEUE_AT 0x100u
#define KVD_ABI_BAR0_QUEUE_STRIDE 0x20u
#define KVD_ABI_BAR0_QUEUE_COUNT 0x10u
#define KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT 0x0u
#define KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT 0x8u
#define KVD_ABI_BAR0_QUEUE_DEPTH_AT 0x10u
#define KVD_ABI_BAR0_QUEUE_VECTOR_AT 0x14u
#define KVD_ABI_BAR0_QUEUE_EXECUTED_AT 0x18u
#define KVD_ABI_BAR2_QUEUE_AT 0x0u
#define KVD_ABI_BAR2_QUEUE_STRIDE 0x40u
#define KVD_ABI_BAR2_QUEUE_COUNT 0x10u
#define KVD_ABI_BAR2_QUEUE_SQ_TAIL_AT 0x0u
#define KVD_ABI_BAR2_QUEUE_CQ_HEAD_AT 0x4u

/* The next state by state and event; KVD_ABI_STATE_COUNT: the event can't happen there. */
static const uint8_t kvd_abi_next_state[11][14] = {
	{0, 1, 3, 9, 11, 11, 11, 11, 11, 11, 8, 11, 10, 11},
	{1, 1, 2, 3, 11, 11, 11, 11, 11, 11, 8, 11, 10, 11},
	{2, 1, 11, 3, 2, 11, 2, 11, 7, 2, 8, 11, 10, 11},
	{2, 1, 11, 9, 4, 11, 3, 11, 7, 3, 8, 9, 10, 11},
	{2, 1, 11, 9, 4, 5, 3, 11, 4, 3, 8, 9, 10, 11},
	{6, 6, 11, 9, 5, 11, 6, 11, 5, 6, 8, 9, 10, 11},
	{6, 6, 11, 11, 11, 5, 6, 3, 5, 6, 8, 11, 10, 11},
	{2, 1, 11, 9, 4, 5, 3, 11, 7, 3, 8, 9, 10, 11},
	{11, 11, 11, 9, 8, 11, 11, 11, 11, 11, 11, 9, 10, 11},
	{11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11},
	{11, 11, 11, 9, 10, 11, 11, 11, 11, 11, 8, 9, 10, 3},
};

#endif
