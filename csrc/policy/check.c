/* Whether all lists and counts agree; for tests. */
#include "policy/internal.h"

/* In the order in which they are looked at; 0 is that all hold. */
enum check {
	CHECK_NODE_HASH = 1,
	CHECK_NODE_GROUP,
	CHECK_NODE_KIDS,
	CHECK_OBJECTS,
	CHECK_GROUP_PARTS,
	CHECK_GROUP_LINKED,
	CHECK_GROUP_BIN,
	CHECK_GROUPS,
};

struct seen {
	uint32_t objects[KVD_POLICY_TIERS];
	uint64_t members;
	uint32_t groups;
};

static int check_node(const kvd_policy *policy, uint32_t node, struct seen *seen)
{
	const struct policy_node *it = &policy->nodes[node];

	if (kvd_policy_node_find(policy, it->key) != node)
		return CHECK_NODE_HASH;
	if ((it->group == POLICY_NIL) != (it->tier == KVD_POLICY_UNKNOWN))
		return CHECK_NODE_GROUP;
	if (it->parent != POLICY_NIL && policy->nodes[it->parent].kids[it->tier] == 0)
		return CHECK_NODE_KIDS;
	if (it->tier < KVD_POLICY_TIERS)
		seen->objects[it->tier]++;
	return 0;
}

static int check_nodes(const kvd_policy *policy, struct seen *seen)
{
	for (uint32_t bucket = 0; bucket <= policy->buckets_mask; bucket++)
		for (uint32_t node = policy->buckets[bucket]; node != POLICY_NIL; node = policy->nodes[node].chain) {
			int failed = check_node(policy, node, seen);

			if (failed)
				return failed;
		}
	for (uint32_t tier = 0; tier < KVD_POLICY_TIERS; tier++)
		if (seen->objects[tier] != policy->objects[tier])
			return CHECK_OBJECTS;
	return 0;
}

static int check_part(const kvd_policy *policy, uint32_t group, uint32_t tier)
{
	const struct policy_part *part = &policy->groups[group].parts[tier];
	uint32_t count = 0, last = POLICY_NIL;

	for (uint32_t node = part->head; node != POLICY_NIL; node = policy->nodes[node].next) {
		const struct policy_node *it = &policy->nodes[node];

		if (it->group != group || it->tier != tier || it->prev != last)
			return CHECK_GROUP_PARTS;
		last = node;
		count++;
	}
	return part->tail == last && part->count == count ? 0 : CHECK_GROUP_PARTS;
}

/* Looked at anew, with no use of what the lists say. */
static bool candidate(const kvd_policy *policy, const struct policy_group *group, uint32_t tier)
{
	const struct policy_node *last = &policy->nodes[group->parts[tier].tail];
	uint32_t kids = 0;

	if (group->parts[tier].count == 0 || last->holds > 0)
		return false;
	for (uint32_t near = 0; near <= tier; near++)
		kids += last->kids[near];
	return kids == 0;
}

static int check_group(const kvd_policy *policy, uint32_t group, uint32_t bin, struct seen *seen)
{
	const struct policy_group *it = &policy->groups[group];

	for (uint32_t tier = 0; tier < KVD_POLICY_TIERS; tier++) {
		if (check_part(policy, group, tier))
			return CHECK_GROUP_PARTS;
		seen->members += it->parts[tier].count;
		if (tier < POLICY_HELD && candidate(policy, it, tier) != ((it->linked & 1u << tier) != 0))
			return CHECK_GROUP_LINKED;
	}
	seen->groups++;
	return it->bin == bin ? 0 : CHECK_GROUP_BIN;
}

int kvd_policy_check(const kvd_policy *policy)
{
	struct seen seen = { 0 };
	int failed = check_nodes(policy, &seen);

	for (uint32_t bin = 0; !failed && bin < POLICY_BINS; bin++)
		for (uint32_t group = policy->bins[bin].oldest; !failed && group != POLICY_NIL;
		     group = policy->groups[group].newer)
			failed = check_group(policy, group, bin, &seen);
	if (failed)
		return failed;
	if (seen.groups != policy->groups_count ||
	    seen.members != (uint64_t)seen.objects[0] + seen.objects[1] + seen.objects[2])
		return CHECK_GROUPS;
	return 0;
}
