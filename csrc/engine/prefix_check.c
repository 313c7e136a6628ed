/* The check of the prefix index: slabs, entries, the chains of sessions, free lists; the hash is in
 * prefix_check_hash.c. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine/prefix.h"

#define WORD_BITS 64u

bool kvd_prefix_check_bit(const struct kvd_prefix_check *at, uint64_t *bits, uint32_t unit, bool set)
{
	uint64_t bit = unit - at->engine->unit_first;
	bool was;

	if (bit >= at->units)
		return false;
	was = bits[bit / WORD_BITS] >> (bit % WORD_BITS) & 1;
	if (set)
		kvd_check_mark(bits, bit);
	return was;
}

bool kvd_prefix_check_node(struct kvd_prefix_check *at, uint32_t unit, uint32_t node_class)
{
	if (!kvd_check_node(at->check, unit, node_class))
		return false;
	at->check->table_bytes += kvd_class_bytes(node_class);
	return true;
}

static void check_entry(struct kvd_prefix_check *at, uint32_t unit)
{
	const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(at->engine, unit);

	kvd_prefix_check_bit(at, at->is_entry, unit, true);
	at->total++;
	if (!entry->holder)
		return;
	at->held++;
	if (!kvd_prefix_well_formed(entry) || !kvd_session_find(at->engine, entry->holder))
		kvd_check_fault(at->check, "prefix entry %u is garbage, or its session %" PRIx64 " is gone", unit,
				entry->holder);
}

/* Every slab of the directory is a node of the heap, and every entry in it is free or in order. */
static void check_slabs(struct kvd_prefix_check *at)
{
	const struct kvd_abi_prefix_head *head = &at->engine->head->prefix;
	uint32_t unit = head->directory;

	while (unit) {
		const uint32_t *node = kvd_prefix_node(at->engine, unit);

		if (!node || !kvd_prefix_check_node(at, unit, KVD_NODE_CLASSES - 1)) {
			kvd_check_fault(at->check, "prefix directory: node %u is no node", unit);
			return;
		}
		for (uint32_t i = 1; i < KVD_PREFIX_NODE_WORDS; i++) {
			if (unit == head->directory && i > head->slabs && node[i])
				kvd_check_fault(at->check, "prefix directory: slab %u is not counted", i);
			if (!node[i])
				continue;
			if (!kvd_prefix_node(at->engine, node[i]) ||
			    !kvd_prefix_check_node(at, node[i], KVD_NODE_CLASSES - 1)) {
				kvd_check_fault(at->check, "prefix directory: slab %u is no node", i);
				continue;
			}
			for (uint32_t entry = 0; entry < KVD_PREFIX_NODE_UNITS; entry++)
				check_entry(at, node[i] + entry);
		}
		unit = node[0];
	}
}

/* Follow the entries of a session; returns how many there are. */
static uint64_t check_chain(struct kvd_prefix_check *at, const struct kvd_session *session, uint64_t handle)
{
	uint32_t unit = session->prefix_head;
	uint32_t previous = 0;
	uint64_t count = 0;

	while (unit) {
		const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(at->engine, unit);

		if (!entry || !kvd_prefix_check_bit(at, at->is_entry, unit, false) ||
		    kvd_prefix_check_bit(at, at->listed, unit, true) || entry->holder != handle ||
		    entry->previous != previous) {
			kvd_check_fault(at->check, "session %" PRIx64 ": prefix entry %u is in its chain wrongly",
					handle, unit);
			return count;
		}
		count++;
		previous = unit;
		unit = entry->next;
	}
	return count;
}

static void check_sessions(struct kvd_prefix_check *at)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < at->engine->head->sessions_high && i < at->engine->layout.sessions_max; i++) {
		const struct kvd_session *session = kvd_session_at(at->engine, i);

		if (session->generation)
			count += check_chain(at, session, kvd_session_handle(at->engine, session));
		else if (session->prefix_head)
			kvd_check_fault(at->check, "session context %" PRIu64 " is free and holds prefix entries", i);
	}
	if (count != at->held)
		kvd_check_fault(at->check, "prefix entries: %" PRIu64 " have a holder, sessions hold %" PRIu64,
				at->held, count);
}

/* Each free entry is in the list of them or was never used, once. */
static void check_free(struct kvd_prefix_check *at)
{
	const struct kvd_abi_prefix_head *head = &at->engine->head->prefix;
	uint32_t unit = head->entry_free;
	uint64_t count = 0;

	while (unit) {
		const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(at->engine, unit);

		if (!entry || !kvd_prefix_check_bit(at, at->is_entry, unit, false) || entry->holder ||
		    kvd_prefix_check_bit(at, at->listed, unit, true)) {
			kvd_check_fault(at->check, "prefix entry %u is free wrongly", unit);
			return;
		}
		count++;
		unit = entry->next;
	}
	for (unit = head->fresh; unit < head->fresh_end; unit++) {
		const struct kvd_abi_prefix_entry *entry = kvd_prefix_unit(at->engine, unit);

		if (!entry || !kvd_prefix_check_bit(at, at->is_entry, unit, false) || entry->holder ||
		    kvd_prefix_check_bit(at, at->listed, unit, true)) {
			kvd_check_fault(at->check, "prefix entry %u is fresh wrongly", unit);
			return;
		}
		count++;
	}
	if (count != at->total - at->held || head->fresh > head->fresh_end)
		kvd_check_fault(at->check, "prefix entries: %" PRIu64 " are not held, %" PRIu64 " are free",
				at->total - at->held, count);
}

void kvd_prefix_check(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	struct kvd_prefix_check at = {
		.check = check,
		.engine = check->engine,
		.units = kvd_check_units(check->engine),
	};
	uint64_t words = at.units / WORD_BITS + 1;

	if (!head->prefix.directory && !head->prefix.root && !head->prefix.entries)
		words = 1;
	at.is_entry = calloc(3 * words, sizeof(uint64_t));
	if (!at.is_entry) {
		kvd_check_fault(check, "no memory to check the prefix index with");
		return;
	}
	at.hashed = at.is_entry + words;
	at.listed = at.hashed + words;
	check_slabs(&at);
	kvd_prefix_check_hash(&at);
	check_sessions(&at);
	check_free(&at);
	if (head->prefix.removals % 2)
		kvd_check_fault(check, "prefix index: removals are under way");
	if (head->prefix.entries != at.held)
		kvd_check_fault(check, "prefix entries: the head says %" PRIu64 ", the slabs %" PRIu64,
				head->prefix.entries, at.held);
	free(at.is_entry);
}
