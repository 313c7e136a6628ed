/* What policy.h offers: requests, hints, leases, places. */
#include "policy/policy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "policy/internal.h"

#define AGE_STEPS 64u   /* of ageing that a request does on its own account, and one more for each of its keys */
#define BUCKETS_MIN 64u

static bool config_valid(const struct kvd_policy_config *config)
{
	return config->objects_max >= KVD_POLICY_OBJECTS_MIN && config->objects_max <= KVD_POLICY_OBJECTS_MAX &&
	       config->ghost_s > 0 && isfinite(config->ghost_s) && config->half_life >= 1;
}

static int make_tables(kvd_policy *policy)
{
	uint32_t buckets = BUCKETS_MIN;

	while (buckets < policy->config.objects_max)
		buckets *= 2;
	policy->buckets_mask = buckets - 1;
	policy->nodes_size = policy->config.objects_max + 1;
	policy->nodes_used = policy->groups_used = 1;
	/* Untouched memory costs nothing, so that tables never move. A group more than objects: the one being made. */
	policy->nodes = calloc(policy->nodes_size, sizeof(*policy->nodes));
	policy->groups = calloc((size_t)policy->nodes_size + 4, sizeof(*policy->groups));
	policy->buckets = calloc(buckets, sizeof(*policy->buckets));
	policy->index = calloc(POLICY_CLASSES, sizeof(*policy->index));
	policy->reuse = calloc(POLICY_CLASSES, sizeof(*policy->reuse));
	policy->classes = calloc(POLICY_CLASSES, sizeof(*policy->classes));
	if (!policy->nodes || !policy->groups || !policy->buckets || !policy->index || !policy->reuse || !policy->classes)
		return -ENOMEM;
	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		if (kvd_policy_lanes_init(&policy->lanes[tier]))
			return -ENOMEM;
	return 0;
}

int kvd_policy_init(const struct kvd_policy_config *config, kvd_policy **out)
{
	kvd_policy *policy;
	double width_s = POLICY_BIN_FIRST_S;

	if (!config_valid(config))
		return -EINVAL;
	policy = calloc(1, sizeof(*policy));
	if (!policy)
		return -ENOMEM;
	policy->config = *config;
	policy->due_s = INFINITY;
	policy->ghost_bin = POLICY_BINS - 1;
	for (uint32_t bin = 0; bin < POLICY_BINS; bin++, width_s *= POLICY_BIN_GROWTH) {
		policy->edges_s[bin + 1] = policy->edges_s[bin] + width_s;
		if (policy->edges_s[bin] >= config->ghost_s && policy->ghost_bin == POLICY_BINS - 1)
			policy->ghost_bin = bin;
	}
	if (make_tables(policy)) {
		kvd_policy_fini(policy);
		return -ENOMEM;
	}
	kvd_policy_learn_init(policy);
	kvd_policy_shadow_init(policy);
	*out = policy;
	return 0;
}

void kvd_policy_fini(kvd_policy *policy)
{
	if (!policy)
		return;
	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		kvd_policy_lanes_fini(&policy->lanes[tier]);
	free(policy->nodes);
	free(policy->groups);
	free(policy->buckets);
	free(policy->index);
	free(policy->reuse);
	free(policy->classes);
	free(policy);
}

/* Time does not go back, whatever the caller's clock does. */
static void advance(kvd_policy *policy, double now_s)
{
	if (now_s > policy->now_s)
		policy->now_s = now_s;
}

int kvd_policy_tick(kvd_policy *policy, double now_s, uint32_t steps_max)
{
	if (isfinite(now_s))
		advance(policy, now_s);
	return kvd_policy_group_age(policy, steps_max);
}

/* What a request is made of. */
struct reading {
	uint32_t known;  /* keys at its beginning that are remembered */
	uint32_t shared; /* of them: up to the last that many go on from */
	uint32_t turn;
};

static bool remembered(const kvd_policy *policy, uint32_t node)
{
	return node != POLICY_NIL && policy->nodes[node].group != POLICY_NIL;
}

static uint32_t turn_after(const kvd_policy *policy, uint32_t node)
{
	const struct policy_group *group = &policy->groups[policy->nodes[node].group];

	if (group->class == POLICY_SHARED)
		return 0;
	return group->turn < UINT16_MAX ? group->turn + 1u : UINT16_MAX;
}

/* Learn from what the request found, and see what kind of request it is. */
static struct reading read_chain(kvd_policy *policy, const struct kvd_policy_request *request, uint32_t parent)
{
	struct reading seen = { 0 };
	uint32_t last = parent, shadow = 0, own = 0;

	while (seen.known < request->count) {
		uint32_t node = kvd_policy_node_find(policy, request->keys[seen.known]);
		const struct policy_node *it = &policy->nodes[node];

		if (!remembered(policy, node))
			break;
		kvd_policy_learn_hit(policy, &policy->groups[it->group]);
		shadow += shadow == seen.known && policy->groups[it->group].recent;
		own += own == seen.known && it->tier == KVD_POLICY_DDR;
		seen.known++;
		last = node;
		if (it->kids[0] + it->kids[1] + it->kids[2] >= POLICY_SHARED_KIDS)
			seen.shared = seen.known;
	}
	if (remembered(policy, last))
		seen.turn = turn_after(policy, last);
	policy->hits += seen.known;
	kvd_policy_shadow_judge(policy, shadow, own);
	return seen;
}

static uint8_t density_of(double density)
{
	int octave = POLICY_DENSITY_ONE + (int)lrint(log2(fmin(fmax(density, 1e-6), 1e6)));

	return (uint8_t)(octave < 0 ? 0 : octave >= (int)POLICY_DENSITIES ? (int)POLICY_DENSITIES - 1 : octave);
}

/* Make a group of keys [first, end) of a request, below a node: the last of them, or NIL if there is no room. */
static uint32_t gather(kvd_policy *policy, const struct kvd_policy_request *request, const struct policy_group *kind,
		       uint32_t first, uint32_t end, uint32_t parent)
{
	uint32_t group;

	if (first == end)
		return parent;
	group = kvd_policy_group_make(policy, kind->class, end - first);
	policy->groups[group].turn = kind->turn;
	policy->groups[group].density = kind->density;
	for (uint32_t i = first; i < end; i++) {
		uint32_t node = kvd_policy_node_find(policy, request->keys[i]);

		if (node == POLICY_NIL) {
			node = kvd_policy_node_make(policy, request->keys[i], parent);
			if (node == POLICY_NIL)
				break;
		}
		if (policy->nodes[node].group != group) { /* else the key was there twice */
			kvd_policy_group_leave(policy, node);
			kvd_policy_node_resize(policy, node, request->units ? request->units[i] : 1);
			kvd_policy_group_join(policy, node, group);
		}
		parent = node;
		if (i + 1 == end) {
			kvd_policy_group_settle(policy, group);
			return node;
		}
	}
	kvd_policy_group_settle(policy, group);
	kvd_policy_group_release(policy, group);
	return POLICY_NIL;
}

static bool request_valid(const struct kvd_policy_request *request)
{
	return request->count > 0 && request->count <= KVD_POLICY_CHAIN_MAX && request->hint < KVD_POLICY_HINTS &&
	       isfinite(request->now_s) && request->density >= 0;
}

int kvd_policy_access(kvd_policy *policy, const struct kvd_policy_request *request)
{
	struct policy_group kind = { 0 };
	uint32_t parent = POLICY_NIL, whole;
	struct reading seen;

	if (!request_valid(request))
		return -EINVAL;
	advance(policy, request->now_s);
	kvd_policy_group_age(policy, AGE_STEPS + request->count);
	policy->requests++;
	kvd_policy_learn_refresh(policy);
	if (request->below)
		parent = kvd_policy_node_find(policy, request->parent);
	seen = read_chain(policy, request, parent);
	whole = request->count - (request->partial && request->count > seen.shared);
	kind.turn = (uint16_t)seen.turn;
	kind.density = density_of(request->density);
	kind.class = POLICY_SHARED;
	parent = gather(policy, request, &kind, 0, seen.shared, parent);
	kind.class = (uint16_t)kvd_policy_class_of(seen.turn, request->count - seen.known, request->output_tokens,
						   request->hint);
	parent = gather(policy, request, &kind, seen.shared, whole, parent);
	if (whole > seen.shared && parent == POLICY_NIL)
		return -ENOSPC;
	kind.class = POLICY_PARTIAL;
	if (gather(policy, request, &kind, whole, request->count, parent) == POLICY_NIL)
		return -ENOSPC;
	kvd_policy_shadow_fit(policy);
	return 0;
}

int kvd_policy_hint(kvd_policy *policy, uint64_t key, enum kvd_policy_hint hint, double now_s)
{
	uint32_t node = kvd_policy_node_find(policy, key);
	struct policy_group *group;

	if ((unsigned int)hint >= KVD_POLICY_HINTS || !isfinite(now_s))
		return -EINVAL;
	if (!remembered(policy, node))
		return -ENOENT;
	advance(policy, now_s);
	/* The partial last object says little of its chain: the hint is about what it hangs on. */
	group = &policy->groups[policy->nodes[node].group];
	if (group->class == POLICY_PARTIAL && remembered(policy, policy->nodes[node].parent))
		group = &policy->groups[policy->nodes[policy->nodes[node].parent].group];
	if (group->class >= POLICY_SHARED)
		return 0;
	kvd_policy_group_reclass(policy, (uint32_t)(group - policy->groups),
				 group->class / KVD_POLICY_HINTS * KVD_POLICY_HINTS + (uint32_t)hint,
				 hint == KVD_POLICY_HINT_RESUME);
	return 0;
}

int kvd_policy_hold(kvd_policy *policy, uint64_t key)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	if (!remembered(policy, node))
		return -ENOENT;
	if (policy->nodes[node].holds == UINT16_MAX)
		return -EOVERFLOW;
	policy->nodes[node].holds++;
	kvd_policy_node_settle(policy, node);
	return 0;
}

int kvd_policy_unhold(kvd_policy *policy, uint64_t key)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	if (!remembered(policy, node))
		return -ENOENT;
	if (policy->nodes[node].holds == 0)
		return -EINVAL;
	policy->nodes[node].holds--;
	kvd_policy_node_settle(policy, node);
	return 0;
}

int kvd_policy_place(kvd_policy *policy, uint64_t key, enum kvd_policy_tier tier)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	if ((unsigned int)tier >= KVD_POLICY_TIERS)
		return -EINVAL;
	if (!remembered(policy, node))
		return -ENOENT;
	if (policy->nodes[node].tier != tier)
		kvd_policy_group_move(policy, node, tier);
	return 0;
}

int kvd_policy_forget(kvd_policy *policy, uint64_t key)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	if (!remembered(policy, node))
		return -ENOENT;
	kvd_policy_node_drop(policy, node);
	return 0;
}

int kvd_policy_tier_of(const kvd_policy *policy, uint64_t key)
{
	uint32_t node = kvd_policy_node_find(policy, key);

	return remembered(policy, node) ? policy->nodes[node].tier : KVD_POLICY_UNKNOWN;
}
