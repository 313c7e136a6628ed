/* What the daemon tells by many at once: uses that somebody else has counted, and what a start finds. */
#include <errno.h>
#include <math.h>

#include "policy/internal.h"

/* The keys from `first` on that go on from one another: one request, as a client makes that reads a chain. */
static uint32_t run_of(const kvd_policy *policy, const uint64_t *keys, uint32_t first, uint32_t count)
{
	uint32_t last = kvd_policy_node_find(policy, keys[first]);
	uint32_t end = first + 1;

	while (last != POLICY_NIL && end < count && end - first < KVD_POLICY_CHAIN_MAX) {
		uint32_t next = kvd_policy_node_find(policy, keys[end]);

		if (next == POLICY_NIL || policy->nodes[next].parent != last)
			break;
		last = next;
		end++;
	}
	return end - first;
}

/* Take note of the keys from `at` on that are one request; how many, or -errno. */
static int64_t use_run(kvd_policy *policy, double now_s, const uint64_t *keys, const uint32_t *units, uint32_t at, uint32_t count)
{
	uint32_t node = kvd_policy_node_find(policy, keys[at]);
	uint32_t parent = node == POLICY_NIL ? POLICY_NIL : policy->nodes[node].parent;
	struct kvd_policy_request request = {
		.now_s = now_s,
		.keys = keys + at,
		.units = units + at,
		.count = run_of(policy, keys, at, count),
		.parent = policy->nodes[parent].key,
		.below = parent != POLICY_NIL,
		.density = 1,
	};
	int failed = kvd_policy_access(policy, &request);

	return failed ? failed : (int64_t)request.count;
}

int kvd_policy_use(kvd_policy *policy, double now_s, const uint64_t *keys, const uint32_t *units, uint32_t count)
{
	uint32_t fetched = 0;

	if (!isfinite(now_s))
		return -EINVAL;
	for (uint32_t at = 0; at < count;) {
		int64_t done;

		if (at >= fetched) {
			fetched = count - at < POLICY_FETCH_MAX ? count : at + POLICY_FETCH_MAX;
			kvd_policy_nodes_fetch(policy, keys + at, fetched - at);
		}
		done = use_run(policy, now_s, keys, units, at, count);
		if (done < 0)
			return (int)done;
		at += (uint32_t)done;
	}
	return 0;
}

static int seed_one(kvd_policy *policy, const struct kvd_policy_seed *seed)
{
	uint32_t node = kvd_policy_node_find(policy, seed->key);
	uint32_t parent = POLICY_NIL, group;

	if (node != POLICY_NIL && policy->nodes[node].group != POLICY_NIL)
		return 0; /* used since */
	if (node == POLICY_NIL) {
		if (seed->below)
			parent = kvd_policy_node_find(policy, seed->parent);
		node = kvd_policy_node_make(policy, seed->key, parent);
		if (node == POLICY_NIL)
			return -ENOSPC;
	}
	group = kvd_policy_group_make(policy, kvd_policy_class_of(0, 1, 0, KVD_POLICY_HINT_NONE), 1);
	kvd_policy_group_backdate(policy, group, seed->used_s);
	kvd_policy_node_resize(policy, node, seed->units);
	kvd_policy_group_join(policy, node, group);
	kvd_policy_group_settle(policy, group);
	if (seed->tier != KVD_POLICY_DDR)
		kvd_policy_group_move(policy, node, (enum kvd_policy_tier)seed->tier);
	return 0;
}

int kvd_policy_seed(kvd_policy *policy, double now_s, const struct kvd_policy_seed *seeds, uint32_t count)
{
	if (!isfinite(now_s))
		return -EINVAL;
	kvd_policy_tick(policy, now_s, 0);
	for (uint32_t i = 0; i < count; i++) {
		int failed;

		if (seeds[i].tier >= POLICY_HELD || !isfinite(seeds[i].used_s))
			return -EINVAL;
		failed = seed_one(policy, &seeds[i]);
		if (failed)
			return failed;
	}
	return 0;
}

int kvd_policy_least(const kvd_policy *policy, enum kvd_policy_tier tier, struct kvd_policy_least *out)
{
	uint32_t group;

	if ((unsigned int)tier >= POLICY_HELD)
		return -EINVAL;
	group = kvd_policy_lanes_least(policy, tier);
	if (group == POLICY_NIL)
		return -ENOENT;
	*out = (struct kvd_policy_least){
		.index = policy->shadow.rules ? -1 : kvd_policy_group_index(policy, &policy->groups[group]),
		.used_s = policy->groups[group].born_s,
	};
	return 0;
}
