/* Objects by key, and the tree of chains that they make. */
#include "policy/internal.h"

static uint32_t bucket_of(const kvd_policy *policy, uint64_t key)
{
	key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9ull;
	key = (key ^ key >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)(key ^ key >> 31) & policy->buckets_mask;
}

uint32_t kvd_policy_node_find(const kvd_policy *policy, uint64_t key)
{
	uint32_t at = policy->buckets[bucket_of(policy, key)];

	while (at != POLICY_NIL && policy->nodes[at].key != key)
		at = policy->nodes[at].chain;
	return at;
}

/*
 * Have the processor fetch what the use of some keys touches, while it has nothing else to do: with a million objects each of it is
 * a miss of its caches. Nothing is decided by it, so that a key behind another one of its bucket is not looked for.
 */
void kvd_policy_nodes_fetch(const kvd_policy *policy, const uint64_t *keys, uint32_t count)
{
	uint32_t at[POLICY_FETCH_MAX];

	assert(count <= POLICY_FETCH_MAX);
	for (uint32_t i = 0; i < count; i++)
		__builtin_prefetch(&policy->buckets[bucket_of(policy, keys[i])]);
	for (uint32_t i = 0; i < count; i++) {
		at[i] = policy->buckets[bucket_of(policy, keys[i])];
		__builtin_prefetch(&policy->nodes[at[i]], 1);
	}
	for (uint32_t i = 0; i < count; i++) {
		at[i] = policy->nodes[at[i]].group;
		__builtin_prefetch(&policy->groups[at[i]], 1);
		__builtin_prefetch((const char *)&policy->groups[at[i]] + POLICY_LINE_BYTES, 1);
	}
	for (uint32_t i = 0; i < count; i++) {
		const struct policy_group *it = &policy->groups[at[i]];

		__builtin_prefetch(&policy->groups[it->older].newer, 1);
		__builtin_prefetch(&policy->groups[it->newer].older, 1);
		for (uint32_t tier = 0; tier < POLICY_HELD; tier++) {
			__builtin_prefetch(&policy->groups[it->cell_prev[tier]].cell_next, 1);
			__builtin_prefetch(&policy->groups[it->cell_next[tier]].cell_prev, 1);
		}
	}
}

/*
 * A node below a parent (NIL: a root), in no group and no tier. A node keeps its parent for life, so that a chain has no ring
 * whatever keys come. NIL if all nodes are in tiers: what was remembered longest makes room.
 */
uint32_t kvd_policy_node_make(kvd_policy *policy, uint64_t key, uint32_t parent)
{
	uint32_t bucket = bucket_of(policy, key);
	uint32_t at;

	policy->nodes[parent].kids[KVD_POLICY_UNKNOWN]++; /* before anything is forgotten: it must not be the parent */
	while (policy->nodes_free == POLICY_NIL && policy->nodes_used == policy->nodes_size)
		if (!kvd_policy_ghost_drop(policy)) {
			policy->nodes[parent].kids[KVD_POLICY_UNKNOWN]--;
			return POLICY_NIL;
		}
	at = policy->nodes_free;
	if (at != POLICY_NIL)
		policy->nodes_free = policy->nodes[at].chain;
	else
		at = policy->nodes_used++;
	policy->nodes[at] = (struct policy_node){
		.key = key, .chain = policy->buckets[bucket], .parent = parent, .tier = KVD_POLICY_UNKNOWN
	};
	policy->buckets[bucket] = at;
	return at;
}

static void unhash(kvd_policy *policy, uint32_t node)
{
	uint32_t *link = &policy->buckets[bucket_of(policy, policy->nodes[node].key)];

	while (*link != node)
		link = &policy->nodes[*link].chain;
	*link = policy->nodes[node].chain;
}

static bool wanted(const struct policy_node *node)
{
	return node->group != POLICY_NIL || node->kids[0] + node->kids[1] + node->kids[2] + node->kids[KVD_POLICY_UNKNOWN] > 0;
}

/* Free a node that is in no group and on which nothing hangs, and then its parent if that waited for it. */
void kvd_policy_node_unref(kvd_policy *policy, uint32_t node)
{
	while (node != POLICY_NIL && !wanted(&policy->nodes[node])) {
		uint32_t parent = policy->nodes[node].parent;

		unhash(policy, node);
		policy->nodes[node].chain = policy->nodes_free;
		policy->nodes_free = node;
		if (parent != POLICY_NIL)
			policy->nodes[parent].kids[KVD_POLICY_UNKNOWN]--;
		node = parent;
	}
}

/* A node in no group has other units than before. */
void kvd_policy_node_resize(kvd_policy *policy, uint32_t node, uint32_t units)
{
	struct policy_node *it = &policy->nodes[node];

	if (it->tier < KVD_POLICY_TIERS)
		policy->units[it->tier] += (uint64_t)units - it->units;
	it->units = units;
}

/* Count a node with its parent under the tier that it has now; UNKNOWN: it is in no group. */
void kvd_policy_node_retier(kvd_policy *policy, uint32_t node, uint32_t tier)
{
	struct policy_node *it = &policy->nodes[node];
	uint32_t before = it->tier;

	if (before == tier)
		return;
	if (before < KVD_POLICY_TIERS) {
		policy->objects[before]--;
		policy->units[before] -= it->units;
	}
	if (tier < KVD_POLICY_TIERS) {
		policy->objects[tier]++;
		policy->units[tier] += it->units;
	}
	it->tier = (uint8_t)tier;
	if (it->parent == POLICY_NIL)
		return; /* the counts of node 0 mean nothing */
	policy->nodes[it->parent].kids[before]--;
	policy->nodes[it->parent].kids[tier]++;
	kvd_policy_node_settle(policy, it->parent);
}
