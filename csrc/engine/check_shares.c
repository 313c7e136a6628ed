/* The check of what the tables say of frames that several pages have. */
#include <inttypes.h>
#include <stdlib.h>

#include "engine/internal.h"

/* Count the entries, then copy them: a walk of the numbers' own table, which is checked like any other afterwards. */
static void count_visit(void *context, uint64_t frame, union kvd_entry *entries, uint32_t count)
{
	uint64_t *total = context;

	(void)frame;
	for (uint32_t i = 0; i < count; i++)
		*total += entries[i].pte != 0;
}

struct copy {
	struct kvd_check *check;
	uint32_t tier;
	uint64_t room;
};

static void copy_visit(void *context, uint64_t frame, union kvd_entry *entries, uint32_t count)
{
	struct copy *copy = context;
	struct kvd_check *check = copy->check;

	for (uint32_t i = 0; i < count; i++) {
		if (!entries[i].pte || check->shares_count == copy->room)
			continue;
		check->shares[check->shares_count++] = (struct kvd_check_share){copy->tier, frame + i, entries[i].pte, 0};
	}
}

bool kvd_check_shares_begin(struct kvd_check *check)
{
	const struct kvd_engine *engine = check->engine;
	struct copy copy = {.check = check};

	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++)
		kvd_table_walk(engine, &engine->head->tiers[i].shares, 0, KVD_PAGES_MAX, count_visit, &copy.room);
	check->shares = calloc(copy.room + 1, sizeof(*check->shares));
	if (!check->shares)
		return false;
	for (copy.tier = KVD_ABI_TIER_DDR; copy.tier < KVD_ABI_TIER_COUNT; copy.tier++)
		kvd_table_walk(engine, &engine->head->tiers[copy.tier].shares, 0, KVD_PAGES_MAX, copy_visit, &copy);
	return true;
}

static int compare(const void *left, const void *right)
{
	const struct kvd_check_share *a = left;
	const struct kvd_check_share *b = right;

	if (a->tier != b->tier)
		return a->tier < b->tier ? -1 : 1;
	return a->frame < b->frame ? -1 : a->frame > b->frame;
}

bool kvd_check_shares_met(struct kvd_check *check, uint64_t pte)
{
	struct kvd_check_share key = {.tier = kvd_pte_tier(pte), .frame = kvd_pte_frame(pte)};
	bool fresh = kvd_check_mark(check->frames[key.tier], key.frame);
	struct kvd_check_share *share;

	if (fresh) {
		check->tiers[key.tier].pages++;
		check->tiers[key.tier].blocks += kvd_pte_blocks(pte);
	}
	if (!check->shares_count)
		return fresh;
	/* Walks are in order of tier and frame, so the copy is sorted. */
	share = bsearch(&key, check->shares, check->shares_count, sizeof(key), compare);
	if (share)
		share->met++;
	return share ? (pte & KVD_ABI_PTE_SHARED_MASK) != 0 : fresh;
}

void kvd_check_shares_end(struct kvd_check *check)
{
	for (uint64_t i = 0; i < check->shares_count; i++) {
		const struct kvd_check_share *share = &check->shares[i];

		if (share->told != share->met || share->told < 2)
			kvd_check_fault(check,
					"tier %u: frame %" PRIu64 " is said to be shared by %" PRIu64 " pages, %" PRIu64
					" have it",
					share->tier, share->frame, share->told, share->met);
	}
	free(check->shares);
}
