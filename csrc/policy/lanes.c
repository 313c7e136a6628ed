/*
 * Candidates in the order of their index: a lane for each class and density, in it a cell for each age. All groups of a cell have
 * the same index. A tree over the lanes knows the least.
 */
#include <math.h>
#include <stdlib.h>

#include "policy/internal.h"

#define SEARCH_STEPS 32u
/* An index is a float, so that the rest of a double's bits can order what is worth the same by its age. */
#define TIE_REQUESTS (1u << 28)
#define TIE_UNIT 0x1p-52

int kvd_policy_lanes_init(struct policy_lanes *lanes)
{
	lanes->bins = calloc(POLICY_LANES, sizeof(*lanes->bins));
	lanes->cells = calloc(POLICY_LANES, sizeof(*lanes->cells));
	lanes->tree = malloc(sizeof(*lanes->tree) * 2 * POLICY_LEAF_COUNT);
	if (!lanes->bins || !lanes->cells || !lanes->tree)
		return -1;
	for (uint32_t i = 0; i < 2 * POLICY_LEAF_COUNT; i++)
		lanes->tree[i] = (double)INFINITY;
	return 0;
}

void kvd_policy_lanes_fini(struct policy_lanes *lanes)
{
	free(lanes->bins);
	free(lanes->cells);
	free(lanes->tree);
}

static double scale_of(uint32_t density)
{
	return (double)(1u << density) / (1u << POLICY_DENSITY_ONE);
}

static uint32_t lane_of(const struct policy_group *group)
{
	return group->class * POLICY_DENSITIES + group->density;
}

/* The bin of a lane whose groups are worth least. */
static uint32_t least_bin(const kvd_policy *policy, const struct policy_lanes *lanes, uint32_t lane)
{
	const float *index = policy->index[lane / POLICY_DENSITIES];
	uint32_t least = POLICY_BINS;

	if (policy->shadow.rules)
		return lanes->bins[lane] ? 63u - (uint32_t)__builtin_clzll(lanes->bins[lane]) : POLICY_BINS;
	for (uint64_t bins = lanes->bins[lane]; bins; bins &= bins - 1) {
		uint32_t bin = (uint32_t)__builtin_ctzll(bins);

		if (least == POLICY_BINS || index[bin] < index[least])
			least = bin;
	}
	return least;
}

/* What orders groups: the index, or, while the plain order rules, when each was touched. */
double kvd_policy_group_key(const kvd_policy *policy, const struct policy_group *group)
{
	if (policy->shadow.rules)
		return (double)group->touched;
	return kvd_policy_group_index(policy, group) * (1 + (double)(group->touched % TIE_REQUESTS) * TIE_UNIT);
}

static double key_of(const kvd_policy *policy, const struct policy_lanes *lanes, uint32_t lane)
{
	uint32_t bin = least_bin(policy, lanes, lane);

	if (bin == POLICY_BINS)
		return (double)INFINITY;
	return kvd_policy_group_key(policy, &policy->groups[lanes->cells[lane][bin].oldest]);
}

static void lane_update(kvd_policy *policy, struct policy_lanes *lanes, uint32_t lane)
{
	uint32_t at = POLICY_LEAF_COUNT + lane;
	double least = key_of(policy, lanes, lane);

	while (lanes->tree[at] != least) {
		double other;

		lanes->tree[at] = least;
		if (at == 1)
			break;
		other = lanes->tree[at ^ 1];
		if (other < least)
			least = other;
		at /= 2;
	}
}

/* The group of a cell behind which one belongs by its age; who comes back late is put near it, not searched for. */
static uint32_t place_of(const kvd_policy *policy, const struct policy_queue *cell, const struct policy_group *group, uint32_t tier)
{
	uint32_t at = cell->newest;

	for (uint32_t steps = 0; steps < SEARCH_STEPS && at != POLICY_NIL; steps++) {
		if (policy->groups[at].touched <= group->touched)
			break;
		at = policy->groups[at].cell_prev[tier];
	}
	return at;
}

void kvd_policy_lane_link(kvd_policy *policy, uint32_t group, uint32_t tier)
{
	struct policy_group *it = &policy->groups[group];
	struct policy_lanes *lanes = &policy->lanes[tier];
	uint32_t lane = lane_of(it);
	struct policy_queue *cell = &lanes->cells[lane][it->bin];
	uint32_t before = place_of(policy, cell, it, tier);
	uint32_t after = before == POLICY_NIL ? cell->oldest : policy->groups[before].cell_next[tier];

	it->linked |= (uint8_t)(1u << tier);
	it->cell_prev[tier] = before;
	it->cell_next[tier] = after;
	if (before != POLICY_NIL)
		policy->groups[before].cell_next[tier] = group;
	else
		cell->oldest = group;
	if (after != POLICY_NIL)
		policy->groups[after].cell_prev[tier] = group;
	else
		cell->newest = group;
	if (before != POLICY_NIL)
		return; /* the lane's least is among the oldest of its cells, and they are the same */
	lanes->bins[lane] |= 1ull << it->bin;
	lane_update(policy, lanes, lane);
}

void kvd_policy_lane_unlink(kvd_policy *policy, uint32_t group, uint32_t tier)
{
	struct policy_group *it = &policy->groups[group];
	struct policy_lanes *lanes = &policy->lanes[tier];
	uint32_t lane = lane_of(it);
	struct policy_queue *cell = &lanes->cells[lane][it->bin];

	it->linked &= (uint8_t)~(1u << tier);
	if (it->cell_prev[tier] != POLICY_NIL)
		policy->groups[it->cell_prev[tier]].cell_next[tier] = it->cell_next[tier];
	else
		cell->oldest = it->cell_next[tier];
	if (it->cell_next[tier] != POLICY_NIL)
		policy->groups[it->cell_next[tier]].cell_prev[tier] = it->cell_prev[tier];
	else
		cell->newest = it->cell_prev[tier];
	if (it->cell_prev[tier] != POLICY_NIL)
		return; /* as above */
	if (cell->oldest == POLICY_NIL)
		lanes->bins[lane] &= ~(1ull << it->bin);
	lane_update(policy, lanes, lane);
}

/* After the indices have changed. */
void kvd_policy_lanes_refresh(kvd_policy *policy)
{
	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		for (uint32_t lane = 0; lane < POLICY_LANES; lane++)
			if (policy->lanes[tier].bins[lane])
				lane_update(policy, &policy->lanes[tier], lane);
}

double kvd_policy_lanes_floor(const kvd_policy *policy, uint32_t tier)
{
	return policy->lanes[tier].tree[1];
}

/* The candidate that is worth least, the oldest of several: NIL if there is none. */
uint32_t kvd_policy_lanes_least(const kvd_policy *policy, uint32_t tier)
{
	const struct policy_lanes *lanes = &policy->lanes[tier];
	uint32_t at = 1;

	if (isinf(lanes->tree[1]))
		return POLICY_NIL;
	while (at < POLICY_LEAF_COUNT)
		at = 2 * at + (lanes->tree[2 * at] > lanes->tree[2 * at + 1]);
	at -= POLICY_LEAF_COUNT;
	return lanes->cells[at][least_bin(policy, lanes, at)].oldest;
}

double kvd_policy_group_index(const kvd_policy *policy, const struct policy_group *group)
{
	return (double)policy->index[group->class][group->bin] * scale_of(group->density);
}
