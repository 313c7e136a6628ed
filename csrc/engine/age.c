/*
 * AGE_SCAN: one pass over the entries of all sessions, in parts.
 *
 * A table-wide generation goes on when a scan asks for it. An entry that was used since it was last looked at gets the
 * present generation; the others keep theirs, and the distance is their age. The pass stops only at entries that it
 * must change or report, and changes each with one compare-exchange: hardware may set bits at the same time.
 *
 * The distance is counted modulo 256. Each pass holds at 127 who is older, and no more than 127 generations begin
 * between two passes that came to their end, so it is never more than 254. 255 is an entry that a scan had given the
 * next generation when it died: the head's generation is stored last.
 */
#include <string.h>

#include "engine/age.h"

/* Others only set bits, accessed and dirty: two changes under our feet. An entry that is lost keeps accessed. */
#define EXCHANGE_TRIES_MAX 4u

struct scan {
	struct kvd_engine *engine;
	const struct kvd_age_kernels *kernels;
	struct kvd_age_look look;
	struct kvd_abi_age_cursor at;
	uint64_t budget;               /* entries that may still be looked at */
	struct kvd_abi_cold_run run;   /* the one that grows; count 0: none */
	struct kvd_abi_cold_run *out;
	uint64_t room;
	uint64_t found;                /* with the one that grows */
	bool full;
};

static const struct kvd_age_kernels *chosen;

size_t kvd_age_usable(const struct kvd_age_kernels *out[KVD_AGE_KERNELS_MAX])
{
	size_t count = 0;

#if defined(__x86_64__)
	if (kvd_age_has_avx512())
		out[count++] = &kvd_age_avx512;
	if (kvd_age_has_avx2())
		out[count++] = &kvd_age_avx2;
#endif
	out[count++] = &kvd_age_scalar;
	return count;
}

/* Before main, and so before any thread could ask. */
__attribute__((constructor)) static void choose(void)
{
	const struct kvd_age_kernels *usable[KVD_AGE_KERNELS_MAX];

	kvd_age_usable(usable);
	chosen = usable[0];
}

static void put_run(struct scan *scan)
{
	if (scan->run.count)
		memcpy(&scan->out[scan->found - 1], &scan->run, sizeof(scan->run));
	scan->run.count = 0;
}

/* Report an entry; false: there is no room for another run. */
static bool add(struct scan *scan, uint64_t handle, uint64_t page, uint64_t pte, uint32_t age)
{
	struct kvd_abi_cold_run *run = &scan->run;

	if (run->count && run->session == handle && run->slot == scan->at.slot && run->age == age &&
	    run->tier == kvd_pte_tier(pte) && page == run->first_page + run->count &&
	    kvd_pte_frame(pte) == run->first_frame + run->count) {
		run->count++;
		return true;
	}
	if (scan->found == scan->room)
		return false;
	put_run(scan);
	scan->found++;
	*run = (struct kvd_abi_cold_run){
		.session = handle,
		.first_page = page,
		.count = 1,
		.first_frame = kvd_pte_frame(pte),
		.tier = kvd_pte_tier(pte),
		.slot = (uint16_t)scan->at.slot,
		.age = (uint16_t)age,
	};
	return true;
}

static uint64_t with_generation(uint64_t pte, uint32_t generation)
{
	return (pte & ~(uint64_t)(KVD_ABI_PTE_ACCESSED_MASK | KVD_ABI_PTE_GENERATION_MASK)) |
	       (uint64_t)(generation % KVD_AGE_GENERATIONS) << KVD_ABI_PTE_GENERATION_SHIFT;
}

/* Age one entry; its age. */
static uint32_t age_entry(const struct scan *scan, union kvd_entry *entry, uint64_t *pte)
{
	uint32_t present = scan->look.present;

	*pte = __atomic_load_n(&entry->pte, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < EXCHANGE_TRIES_MAX; i++) {
		uint32_t distance = kvd_age_distance(*pte, present);
		bool used = *pte & KVD_ABI_PTE_ACCESSED_MASK;
		bool ahead = distance == KVD_AGE_AHEAD;
		uint64_t now;

		if (!used && (ahead || distance <= KVD_AGE_MAX))
			return ahead ? 0 : distance;
		now = with_generation(*pte, used ? present : present - KVD_AGE_MAX);
		if (__atomic_compare_exchange_n(&entry->pte, pte, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			kvd_engine_stored();
			*pte = now;
			return used ? 0 : KVD_AGE_MAX;
		}
	}
	return 0;
}

/* Look at entries of a leaf from scan->at.page on; how many were looked at. */
static uint32_t scan_leaf(struct scan *scan, uint64_t handle, union kvd_entry *entries, uint32_t count)
{
	const struct kvd_age_look *look = &scan->look;
	uint64_t page = scan->at.page;
	uint32_t i = 0;

	for (;;) {
		uint64_t pte, before;
		uint32_t age, more;

		i += scan->kernels->quiet(entries + i, count - i, look);
		if (i == count)
			return i;
		before = __atomic_load_n(&entries[i].pte, __ATOMIC_RELAXED);
		age = age_entry(scan, &entries[i], &pte);
		i++;
		if (age < look->least || (pte & look->tier_mask) != look->tier_bits)
			continue;
		if (!add(scan, handle, page + i - 1, pte, age)) {
			scan->full = true;
			return i - 1;
		}
		if (pte != before || pte & KVD_ABI_PTE_ACCESSED_MASK)
			continue;
		/* What is alike is of the same age, and its run goes on. */
		more = scan->kernels->alike(entries + i, count - i, pte + KVD_AGE_FRAME_STEP);
		scan->run.count += more;
		i += more;
	}
}

static uint64_t round_down(uint64_t page, uint32_t bits)
{
	return page >> bits << bits;
}

/* The leaf of `page`; NULL: there is none, and none before page `*gap_end`. */
static union kvd_entry *find_leaf(const struct kvd_engine *engine, uint64_t link, uint64_t page, uint32_t *count,
				  uint64_t *gap_end)
{
	uint32_t height = kvd_link_height(link);

	for (;; height--) {
		uint32_t shift = KVD_FANOUT_BITS * height;
		uint32_t index = (uint32_t)(page >> shift) & (KVD_FANOUT - 1);
		union kvd_entry *entries = kvd_node(engine, link);

		*gap_end = round_down(page, shift + KVD_FANOUT_BITS) + (1ull << (shift + KVD_FANOUT_BITS));
		if (!entries || kvd_link_height(link) != height || index >= kvd_class_entries(kvd_link_class(link)))
			return NULL;
		if (!height) {
			*count = kvd_class_entries(kvd_link_class(link)) - index;
			return entries + index;
		}
		*gap_end = round_down(page, shift) + (1ull << shift);
		link = kvd_get(&entries[index].link);
		if (!link)
			return NULL;
	}
}

/* Go on in the slot of the cursor until it ends or the scan must stop. True: the slot is done. */
static bool scan_slot(struct scan *scan, const struct kvd_session *session, uint64_t handle)
{
	uint64_t root = kvd_get(&session->slots[scan->at.slot]);
	uint32_t height = kvd_link_height(root);

	if (!root || height > KVD_HEIGHT_MAX)
		return true;
	while (scan->at.page < KVD_PAGES_MAX && !(scan->at.page >> (KVD_FANOUT_BITS * (height + 1)))) {
		union kvd_entry *entries;
		uint32_t count, done;
		uint64_t gap_end;

		if (!scan->budget || scan->full)
			return false;
		entries = find_leaf(scan->engine, root, scan->at.page, &count, &gap_end);
		if (!entries) {
			scan->at.page = gap_end;
			scan->budget--;
			continue;
		}
		if (count > scan->budget)
			count = (uint32_t)scan->budget;
		done = scan_leaf(scan, handle, entries, count);
		scan->at.page += done;
		scan->budget -= done;
	}
	return true;
}

static void scan_sessions(struct scan *scan)
{
	struct kvd_abi_age_cursor *at = &scan->at;
	uint64_t high = scan->engine->head->sessions_high;
	uint64_t most = scan->engine->layout.sessions_max;

	for (; at->session < high && at->session < most; at->session++) {
		const struct kvd_session *session = kvd_session_at(scan->engine, at->session);

		for (; session->generation && at->slot < KVD_ENGINE_SLOTS_MAX; at->slot++) {
			if (!scan_slot(scan, session, kvd_session_handle(scan->engine, session)))
				return;
			at->page = 0;
		}
		if (!scan->budget)
			return;
		scan->budget--;
		at->slot = 0;
		at->page = 0;
	}
	at->done = 1;
}

/* The floor after this scan: where it has come to its end, the generation that it began in, if that is a later one. */
static uint32_t floor_after(const struct scan *scan, uint32_t floor)
{
	uint32_t present = scan->look.present;
	uint32_t began = (uint32_t)scan->at.generation % KVD_AGE_GENERATIONS;
	bool later = (present - began) % KVD_AGE_GENERATIONS < (present - floor) % KVD_AGE_GENERATIONS;

	return scan->at.done && later ? began : floor;
}

#define UPPER_SHIFT 32u
static_assert(offsetof(struct kvd_head, age) == offsetof(struct kvd_head, generation) + 4, "one word has both");
static_assert(offsetof(struct kvd_head, age_floor) == offsetof(struct kvd_head, session_free) + 4, "one word has both");

/* What was aged may be aged again, so the generation and the floor are all that an intent must have. */
static void commit(struct kvd_call *call, uint32_t present, uint32_t floor)
{
	struct kvd_head *head = call->engine->head;

	if (present == head->age && floor == head->age_floor)
		return;
	kvd_intent_open(call);
	kvd_intent_word(call, (uint64_t *)(void *)&head->generation, (uint64_t)present << UPPER_SHIFT | head->generation);
	kvd_intent_word(call, (uint64_t *)(void *)&head->session_free, (uint64_t)floor << UPPER_SHIFT | head->session_free);
	kvd_intent_stage(call, KVD_ABI_STAGE_COMMIT);
	kvd_intent_apply(call->engine);
}

/* The generation that this scan works with. */
static uint32_t begin_generation(const struct kvd_head *head, bool advance)
{
	uint32_t present = head->age % KVD_AGE_GENERATIONS;

	if (advance && (present - head->age_floor) % KVD_AGE_GENERATIONS < KVD_AGE_MAX)
		present = (present + 1) % KVD_AGE_GENERATIONS;
	return present;
}

uint32_t kvd_op_age_scan(struct kvd_engine *engine, struct kvd_call *call)
{
	const struct kvd_abi_cmd *cmd = &call->cmd;
	struct scan scan = {.engine = engine, .kernels = chosen, .budget = cmd->count};
	bool advance = cmd->flags & KVD_ABI_CMD_FLAGS_AGE_ADVANCE_MASK;
	unsigned char *buffer;
	bool first;

	if (cmd->slot > KVD_AGE_MAX || cmd->tier >= KVD_ABI_TIER_COUNT ||
	    (cmd->tier && !engine->layout.tiers[cmd->tier].total_frames))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	if (cmd->buffer_bytes < sizeof(scan.at) + sizeof(scan.run)) {
		call->cpl->result0 = 1;
		return KVD_ABI_STATUS_BUFFER_SMALL;
	}
	buffer = kvd_call_buffer(call, cmd->buffer, cmd->buffer_bytes, true);
	if (!buffer)
		return KVD_ABI_STATUS_BAD_ADDRESS;
	memcpy(&scan.at, buffer, sizeof(scan.at));
	first = !scan.at.session && !scan.at.slot && !scan.at.page;
	if (scan.at.done || (advance && !first))
		return KVD_ABI_STATUS_BAD_ARGUMENT;
	scan.out = (void *)(buffer + sizeof(scan.at));
	scan.room = (cmd->buffer_bytes - sizeof(scan.at)) / sizeof(scan.run);
	scan.look.present = begin_generation(engine->head, advance);
	scan.look.least = cmd->slot;
	scan.look.tier_mask = cmd->tier ? KVD_ABI_PTE_TIER_MASK : 0;
	scan.look.tier_bits = (uint64_t)cmd->tier << KVD_ABI_PTE_TIER_SHIFT;
	if (first)
		scan.at.generation = scan.look.present;
	scan_sessions(&scan);
	put_run(&scan);
	memcpy(buffer, &scan.at, sizeof(scan.at));
	call->cpl->result0 = scan.found;
	call->cpl->result1 = cmd->count - scan.budget;
	commit(call, scan.look.present, floor_after(&scan, engine->head->age_floor));
	return KVD_ABI_STATUS_OK;
}
