/* Who leaves a tier, and who comes back to one. */
#include "policy/internal.h"

/* Where a victim of DDR goes. */
static enum kvd_policy_tier below(const kvd_policy *policy, const struct policy_node *node, int nvme, uint64_t room,
				  double reuse_min)
{
	const struct policy_group *group = &policy->groups[node->group];

	if (!nvme || (double)policy->reuse[group->class][group->bin] < reuse_min)
		return KVD_POLICY_GONE;
	if (node->units <= room)
		return KVD_POLICY_NVME;
	/* Of what is worth the same the older one goes: what was just written is not lost for what nobody has read either. */
	return kvd_policy_group_key(policy, group) >= kvd_policy_lanes_floor(policy, KVD_POLICY_NVME) ? KVD_POLICY_NVME :
												      KVD_POLICY_GONE;
}

uint32_t kvd_policy_victims(kvd_policy *policy, enum kvd_policy_tier tier, uint64_t need, int nvme, uint64_t below_room,
			    double reuse_min, struct kvd_policy_victim *out, uint32_t max)
{
	uint32_t count = 0;
	uint64_t freed = 0;

	if ((unsigned int)tier >= POLICY_HELD)
		return 0;
	if (tier == KVD_POLICY_DDR)
		policy->shadow.limit = policy->units[tier] - (need < policy->units[tier] ? need : policy->units[tier]);
	while (freed < need && count < max) {
		uint32_t group = kvd_policy_lanes_least(policy, tier);
		enum kvd_policy_tier to = KVD_POLICY_GONE;
		struct policy_node *node;

		if (group == POLICY_NIL)
			break;
		node = &policy->nodes[policy->groups[group].parts[tier].tail];
		if (tier == KVD_POLICY_DDR)
			to = below(policy, node, nvme, below_room, reuse_min);
		if (to == KVD_POLICY_NVME && below_room != UINT64_MAX)
			below_room -= node->units < below_room ? node->units : below_room;
		out[count++] = (struct kvd_policy_victim){ .key = node->key, .units = node->units, .to = to };
		freed += node->units;
		kvd_policy_group_move(policy, (uint32_t)(node - policy->nodes), to);
	}
	return count;
}

uint32_t kvd_policy_prefetch(kvd_policy *policy, uint64_t key, uint64_t *out, uint32_t max)
{
	uint32_t count = 0;

	if (max == 0)
		return 0;
	for (uint32_t node = kvd_policy_node_find(policy, key); node != POLICY_NIL; node = policy->nodes[node].parent) {
		const struct policy_node *it = &policy->nodes[node];

		if (it->group == POLICY_NIL || it->tier != KVD_POLICY_NVME)
			continue;
		if (kvd_policy_group_key(policy, &policy->groups[it->group]) <=
		    kvd_policy_lanes_floor(policy, KVD_POLICY_DDR) && policy->objects[KVD_POLICY_DDR] > 0)
			continue;
		/* The root counts: where not all can be told, the deepest are left out. */
		out[count++ % max] = it->key;
	}
	for (uint32_t i = 0; i < (count < max ? count : max) / 2; i++) {
		uint32_t other = (count < max ? count : max) - 1 - i;
		uint64_t swapped = out[i];

		out[i] = out[other];
		out[other] = swapped;
	}
	return count < max ? count : max;
}

double kvd_policy_index(const kvd_policy *policy, uint64_t key)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	if (node == POLICY_NIL || policy->nodes[node].group == POLICY_NIL)
		return -1;
	return kvd_policy_group_index(policy, &policy->groups[policy->nodes[node].group]);
}

void kvd_policy_statistics(const kvd_policy *policy, struct kvd_policy_statistics *out)
{
	*out = (struct kvd_policy_statistics){ .requests = policy->requests,
					       .hits = policy->hits,
					       .objects = { policy->objects[0], policy->objects[1], policy->objects[2] },
					       .groups = policy->groups_count };
}
