/*
 * The derived state from the truth.
 *
 * One pass follows every table, sets each link's count, cuts off what is empty, and claims nodes and frames. What is met twice
 * and may not be is a conflict: nobody knows who is right, so nobody keeps it, and the pass is repeated. Nothing is followed
 * that was not looked at; depth is bounded by the height of a table, work by the number of entries.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/recover.h"

#define PASSES_MAX 4u /* one finds the conflicts, one cuts them; a third shows that none is left */
#define SENTENCE_BYTES_MAX 200u

/* Where the pass is. */
struct at {
	struct kvd_rebuild *rebuild;
	struct kvd_session *session; /* NULL: the scratch table */
	uint64_t handle;
	uint32_t slot;
	bool verify; /* only look for frames that are shared by one that does not say so */
};

void kvd_rebuild_lost_end(struct kvd_rebuild *rebuild)
{
	struct kvd_engine_recovery *result = rebuild->result;
	const struct kvd_engine_loss *loss = &rebuild->loss;
	char line[SENTENCE_BYTES_MAX];
	int length;

	if (!rebuild->reason)
		return;
	if (loss->slot < KVD_ENGINE_SLOTS_MAX)
		length = snprintf(line, sizeof(line), "session %" PRIx64 ", slot %u: pages %" PRIu64 " to %" PRIu64 " are lost: %s",
				  loss->session, loss->slot, loss->first_page, loss->first_page + loss->count - 1,
				  rebuild->reason);
	else
		length = snprintf(line, sizeof(line), "session %" PRIx64 ": %s", loss->session, rebuild->reason);
	if (result->losses_count < result->losses_max && result->losses)
		result->losses[result->losses_count] = *loss;
	result->losses_count++;
	rebuild->reason = NULL;
	/* A line, the newline before it, the zero after it. */
	if (length < 0 || (size_t)length >= sizeof(line) || !result->text ||
	    rebuild->text_used + (size_t)length + 2 > result->text_bytes)
		return;
	rebuild->text_used += (size_t)snprintf(result->text + rebuild->text_used, result->text_bytes - rebuild->text_used,
					       "%s%s", rebuild->text_used ? "\n" : "", line);
}

void kvd_rebuild_lost(struct kvd_rebuild *rebuild, uint64_t session, uint32_t slot, uint64_t first, uint64_t count,
		      const char *reason)
{
	struct kvd_engine_loss *loss = &rebuild->loss;

	if (rebuild->reason == reason && loss->session == session && loss->slot == slot &&
	    first == loss->first_page + loss->count) {
		loss->count += count;
		return;
	}
	kvd_rebuild_lost_end(rebuild);
	*loss = (struct kvd_engine_loss){.session = session, .first_page = first, .count = count, .slot = slot};
	rebuild->reason = reason;
}

static void lost(const struct at *at, uint64_t first, uint64_t count, const char *reason)
{
	kvd_rebuild_lost(at->rebuild, at->handle, at->slot, first, count, reason);
}

static enum kvd_provisional provisional_of(const struct at *at)
{
	const struct kvd_rebuild *rebuild = at->rebuild;

	return at->session && at->session == rebuild->changed ? rebuild->provisional[at->slot] : KVD_PROVISIONAL_DAMAGE;
}

/* The frame of a sound entry is met; false: it may not be where it is. */
static bool meet(const struct at *at, uint64_t pte)
{
	struct kvd_rebuild *rebuild = at->rebuild;
	struct kvd_engine *engine = rebuild->engine;
	uint32_t number = kvd_pte_tier(pte);
	struct kvd_tier *tier = &engine->head->tiers[number];
	uint64_t frame = kvd_pte_frame(pte);
	bool fresh;

	if (kvd_places_have(&rebuild->conflicts, rebuild->sorted, number, frame))
		return false;
	fresh = kvd_frames_claim(engine, tier, frame);
	if (!at->session)
		return true;
	if (fresh)
		kvd_add(&tier->used_blocks, kvd_pte_blocks(pte));
	else if (pte & KVD_ABI_PTE_SHARED_MASK)
		kvd_places_add(&rebuild->shared, number, frame);
	else
		kvd_places_add(&rebuild->conflicts, number, frame);
	kvd_add(&at->session->pages[number - 1], 1);
	kvd_add(&at->session->blocks[number - 1], kvd_pte_blocks(pte));
	kvd_add(&engine->head->mapped_pages, 1);
	return true;
}

/* Mend an entry of a leaf; true: it stays. */
static bool mend_entry(const struct at *at, union kvd_entry *entry, uint64_t page)
{
	uint64_t pte = kvd_get(&entry->pte);

	if (!(pte & KVD_ABI_PTE_VALID_MASK)) {
		switch (provisional_of(at)) {
		case KVD_PROVISIONAL_KEEP:
			return true;
		case KVD_PROVISIONAL_VALIDATE:
			pte |= KVD_ABI_PTE_VALID_MASK;
			break;
		case KVD_PROVISIONAL_DROP:
			kvd_put(&entry->pte, 0);
			return false;
		case KVD_PROVISIONAL_DAMAGE:
		default:
			kvd_put(&entry->pte, 0);
			lost(at, page, 1, "an entry that is not valid");
			return false;
		}
	}
	if (pte & KVD_PTE_UNUSED_MASK || page >= KVD_PAGES_MAX || !kvd_pte_sound(at->rebuild->engine, pte)) {
		kvd_put(&entry->pte, 0);
		lost(at, page, 1, "an entry that makes no sense");
		return false;
	}
	if (!meet(at, pte)) {
		kvd_put(&entry->pte, 0);
		lost(at, page, 1, "another page has the same frame");
		return false;
	}
	if (pte != entry->pte)
		kvd_put(&entry->pte, pte);
	return true;
}

/* A frame that several have must be said to be shared by each of them. */
static void verify_entry(const struct at *at, uint64_t pte)
{
	struct kvd_rebuild *rebuild = at->rebuild;
	uint32_t tier = kvd_pte_tier(pte);

	if (pte & KVD_ABI_PTE_VALID_MASK && !(pte & KVD_ABI_PTE_SHARED_MASK) &&
	    kvd_places_have(&rebuild->shared, rebuild->shared.count, tier, kvd_pte_frame(pte)))
		kvd_places_add(&rebuild->conflicts, tier, kvd_pte_frame(pte));
}

/* May a link be followed? It is cut off where it may not. */
static bool take_node(const struct at *at, uint64_t *link, uint64_t was, uint64_t base, uint32_t height)
{
	struct kvd_rebuild *rebuild = at->rebuild;
	const char *reason = "its table leads nowhere";

	if (kvd_node(rebuild->engine, was) && kvd_link_height(was) == height && height <= KVD_HEIGHT_MAX) {
		reason = "another page has the same table";
		if (kvd_rebuild_claim(rebuild, was))
			return true;
	}
	lost(at, base, 1ull << (KVD_FANOUT_BITS * (height <= KVD_HEIGHT_MAX ? height + 1 : 1)), reason);
	kvd_put(link, 0);
	return false;
}

/* Mend a table, or verify it. */
static void mend(const struct at *at, uint64_t *link, uint64_t base, uint32_t height)
{
	struct kvd_rebuild *rebuild = at->rebuild;
	uint64_t was = kvd_get(link);
	union kvd_entry *entries = kvd_node(rebuild->engine, was);
	uint32_t used = 0;

	if (!at->verify && !take_node(at, link, was, base, height))
		return;
	/* Always true where nobody else writes: what is verified was mended before. */
	if (!entries || kvd_link_height(was) != height || (at->verify && !rebuild->nodes_left))
		return;
	rebuild->nodes_left -= at->verify;
	for (uint32_t i = 0; i < kvd_class_entries(kvd_link_class(was)); i++) {
		uint64_t page = base + ((uint64_t)i << (KVD_FANOUT_BITS * height));

		if (!entries[i].pte)
			continue;
		if (height)
			mend(at, &entries[i].link, page, height - 1);
		else if (at->verify)
			verify_entry(at, kvd_get(&entries[i].pte));
		else
			mend_entry(at, &entries[i], page);
		used += entries[i].pte != 0;
	}
	if (at->verify)
		return;
	if (!used) {
		kvd_put(link, 0);
		kvd_rebuild_unclaim(rebuild, was);
		return;
	}
	if (used != kvd_link_used(was))
		kvd_put(link, kvd_link_more(was, (int32_t)(used - kvd_link_used(was))));
	kvd_add(&rebuild->engine->head->table_bytes, kvd_class_bytes(kvd_link_class(was)));
}

static void mend_root(const struct at *at, uint64_t *root)
{
	uint64_t was = kvd_get(root);

	uint32_t height = kvd_link_height(was);

	if (was)
		mend(at, root, 0, height < KVD_HEIGHT_MAX ? height : KVD_HEIGHT_MAX);
}

/* A context that nobody has: nothing in it may be taken for something. */
static void free_context(struct kvd_engine *engine, struct kvd_session *session, uint64_t index)
{
	struct kvd_head *head = engine->head;

	for (uint32_t i = 0; i < KVD_ENGINE_SLOTS_MAX; i++) {
		kvd_put(&session->slots[i], 0);
		kvd_put(&session->window_start[i], 0);
	}
	for (uint32_t i = 0; i + 1 < KVD_ABI_TIER_COUNT; i++)
		kvd_put(&session->reserved_blocks[i], 0);
	kvd_put(&session->leases, 0);
	kvd_put32(&session->state, 0);
	kvd_put32(&session->next, head->session_free);
	kvd_put32(&head->session_free, (uint32_t)index + 1);
}

/* Mend what a living context says of itself; false: it goes. */
static bool mend_context(struct kvd_rebuild *rebuild, struct kvd_session *session, uint64_t handle)
{
	struct kvd_engine *engine = rebuild->engine;
	struct kvd_head *head = engine->head;

	if (kvd_session_of_key(engine, session->key)) {
		kvd_rebuild_lost(rebuild, handle, KVD_ENGINE_SLOTS_MAX, 0, 0, "another session has the same key");
		return false;
	}
	if ((int32_t)(session->generation - head->generation) > 0)
		kvd_put32(&head->generation, session->generation);
	if (session->state >= KVD_ABI_STATE_COUNT) {
		kvd_rebuild_lost(rebuild, handle, KVD_ENGINE_SLOTS_MAX, 0, 0, "its state was unknown, it is faulted now");
		kvd_put32(&session->state, KVD_ABI_STATE_FAULTED);
	}
	if (session->leases > INT64_MAX) {
		kvd_rebuild_lost(rebuild, handle, KVD_ENGINE_SLOTS_MAX, 0, 0, "its leases made no sense");
		kvd_put(&session->leases, 0);
	}
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t *reserved = &session->reserved_blocks[i - 1];

		if (*reserved > KVD_BLOCKS_MAX || (*reserved && !engine->layout.tiers[i].total_frames)) {
			kvd_rebuild_lost(rebuild, handle, KVD_ENGINE_SLOTS_MAX, 0, 0, "its reservation made no sense");
			kvd_put(reserved, 0);
		}
		if (*reserved)
			kvd_add(&head->tiers[i].reserved_blocks, *reserved);
		kvd_put(&session->pages[i - 1], 0);
		kvd_put(&session->blocks[i - 1], 0);
	}
	kvd_session_link(engine, session);
	kvd_add(&head->sessions_live, 1);
	return true;
}

/* Every context, the highest first, so that low ones are given out first; a reader sees an odd version meanwhile. */
static void mend_sessions(struct kvd_rebuild *rebuild, bool verify)
{
	struct kvd_engine *engine = rebuild->engine;

	for (uint64_t i = rebuild->sessions; i-- > 0;) {
		struct kvd_session *session = kvd_session_at(engine, i);
		struct at at = {.rebuild = rebuild, .session = session, .verify = verify};

		at.handle = kvd_session_handle(engine, session);
		if (!verify)
			kvd_change_begin(&session->version);
		if (!verify && session->generation && !mend_context(rebuild, session, at.handle))
			kvd_put32(&session->generation, 0);
		for (at.slot = 0; session->generation && at.slot < KVD_ENGINE_SLOTS_MAX; at.slot++)
			mend_root(&at, &session->slots[at.slot]);
		if (!verify && !session->generation)
			free_context(engine, session, i);
	}
}

static void reset(struct kvd_rebuild *rebuild)
{
	struct kvd_engine *engine = rebuild->engine;
	struct kvd_head *head = engine->head;
	uint32_t *buckets = (uint32_t *)(void *)(engine->base + engine->layout.hash_at);

	memset(rebuild->units, 0, engine->units / 8);
	rebuild->again = false;
	rebuild->nodes_left = engine->units;
	rebuild->shared.count = 0;
	kvd_places_sort(&rebuild->conflicts);
	rebuild->sorted = rebuild->conflicts.count;
	rebuild->sessions = kvd_get(&head->sessions_high);
	if (rebuild->sessions > engine->layout.sessions_max) {
		rebuild->sessions = engine->layout.sessions_max;
		kvd_put(&head->sessions_high, rebuild->sessions);
	}
	for (uint64_t i = 0; i <= engine->layout.hash_mask; i++) {
		if (buckets[i])
			kvd_put32(&buckets[i], 0);
	}
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++)
		kvd_rebuild_reset_frames(engine, i);
	kvd_put32(&head->session_free, 0);
	kvd_put(&head->sessions_live, 0);
	kvd_put(&head->table_bytes, 0);
	kvd_put(&head->mapped_pages, 0);
}

/*
 * The numbers of shared frames: one for the first meeting, and one for each of the rest. From the last frame down: a node
 * of the tables then has its final size from the start. Upwards it would be widened, the old node and the new one there at
 * once, and a pool that held these tables before might not have room for that.
 */
static int count_shared(struct kvd_rebuild *rebuild)
{
	const struct kvd_place *at = rebuild->shared.at;
	uint64_t same;

	for (uint64_t end = rebuild->shared.count; end > 0; end -= same) {
		const struct kvd_place *last = &at[end - 1];

		same = 1;
		while (same < end && at[end - 1 - same].tier == last->tier && at[end - 1 - same].number == last->number)
			same++;
		if (!kvd_shares_set(rebuild->engine, last->tier, last->number, same + 1))
			return -ENOMEM;
	}
	return 0;
}

int kvd_rebuild_run(struct kvd_rebuild *rebuild)
{
	struct kvd_engine *engine = rebuild->engine;
	struct at scratch = {.rebuild = rebuild, .handle = engine->head->intent.session, .slot = engine->head->intent.cmd.slot};
	uint32_t pass;
	int err;

	rebuild->units = calloc(engine->units / 64 + 1, sizeof(uint64_t));
	rebuild->contested = calloc(engine->units / 64 + 1, sizeof(uint64_t));
	err = rebuild->units && rebuild->contested ? 0 : -ENOMEM;
	if (err)
		goto free_bits;
	for (pass = 0; pass < PASSES_MAX; pass++) {
		reset(rebuild);
		mend_sessions(rebuild, false);
		if (rebuild->scratch)
			mend_root(&scratch, &engine->head->intent.scratch);
		kvd_rebuild_prefix_claim(rebuild);
		kvd_places_sort(&rebuild->shared);
		if (rebuild->shared.count)
			mend_sessions(rebuild, true);
		kvd_rebuild_lost_end(rebuild);
		if (rebuild->conflicts.count == rebuild->sorted && !rebuild->again)
			break;
	}
	kvd_rebuild_pool(rebuild);
	err = rebuild->shared.failed || rebuild->conflicts.failed ? -ENOMEM : pass == PASSES_MAX ? -EIO : count_shared(rebuild);
	if (!err)
		kvd_rebuild_prefix(rebuild);
	for (uint64_t i = 0; !err && i < rebuild->sessions; i++)
		kvd_change_end(&kvd_session_at(engine, i)->version);
free_bits:
	free(rebuild->units);
	free(rebuild->contested);
	free(rebuild->shared.at);
	free(rebuild->conflicts.at);
	return err;
}
