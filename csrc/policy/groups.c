/* Groups: what one request touched last. Their members by tier, their age, and whether their last member may go. */
#include "policy/internal.h"

#define BACKDATE_STEPS 64u

/* Put a group into a bin behind another one; NIL: as its oldest. */
static void bin_insert(kvd_policy *policy, uint32_t group, uint32_t bin, uint32_t before)
{
	struct policy_queue *queue = &policy->bins[bin];
	struct policy_group *it = &policy->groups[group];

	it->bin = (uint8_t)bin;
	it->older = before;
	it->newer = before == POLICY_NIL ? queue->oldest : policy->groups[before].newer;
	if (before != POLICY_NIL)
		policy->groups[before].newer = group;
	else
		queue->oldest = group;
	if (it->newer != POLICY_NIL)
		policy->groups[it->newer].older = group;
	else
		queue->newest = group;
}

static void bin_append(kvd_policy *policy, uint32_t group, uint32_t bin)
{
	bin_insert(policy, group, bin, policy->bins[bin].newest);
}

static void bin_remove(kvd_policy *policy, uint32_t group)
{
	const struct policy_group *it = &policy->groups[group];
	struct policy_queue *queue = &policy->bins[it->bin];

	if (it->older != POLICY_NIL)
		policy->groups[it->older].newer = it->newer;
	else
		queue->oldest = it->newer;
	if (it->newer != POLICY_NIL)
		policy->groups[it->newer].older = it->older;
	else
		queue->newest = it->older;
}

static void ghost_append(kvd_policy *policy, uint32_t group)
{
	struct policy_group *it = &policy->groups[group];

	it->ghost_prev = policy->ghosts.newest;
	it->ghost_next = POLICY_NIL;
	if (policy->ghosts.newest != POLICY_NIL)
		policy->groups[policy->ghosts.newest].ghost_next = group;
	else
		policy->ghosts.oldest = group;
	policy->ghosts.newest = group;
}

static void ghost_remove(kvd_policy *policy, uint32_t group)
{
	const struct policy_group *it = &policy->groups[group];

	if (it->ghost_prev != POLICY_NIL)
		policy->groups[it->ghost_prev].ghost_next = it->ghost_next;
	else
		policy->ghosts.oldest = it->ghost_next;
	if (it->ghost_next != POLICY_NIL)
		policy->groups[it->ghost_next].ghost_prev = it->ghost_prev;
	else
		policy->ghosts.newest = it->ghost_prev;
}

/* A group without members, touched now. There is always one: each group but the newest has members. */
uint32_t kvd_policy_group_make(kvd_policy *policy, uint32_t class, uint32_t length)
{
	uint32_t group = policy->groups_free;

	if (group != POLICY_NIL)
		policy->groups_free = policy->groups[group].newer;
	else
		group = policy->groups_used++;
	policy->groups[group] = (struct policy_group){
		.born_s = policy->now_s,
		.touched = policy->requests,
		.weight = 1.0f / (float)length,
		.class = (uint16_t)class,
		.density = POLICY_DENSITY_ONE,
	};
	policy->groups_count++;
	kvd_policy_learn_class(policy, class);
	bin_append(policy, group, 0);
	kvd_policy_shadow_enter(policy, group);
	if (policy->due_s > policy->now_s + policy->edges_s[1])
		policy->due_s = policy->now_s + policy->edges_s[1];
	return group;
}

/* Have a group that was just made be one that was last touched long ago: older than all that has been since the start. */
void kvd_policy_group_backdate(kvd_policy *policy, uint32_t group, double used_s)
{
	struct policy_group *it = &policy->groups[group];
	uint32_t bin = 0, before;

	if (used_s >= policy->now_s)
		return;
	kvd_policy_shadow_leave(policy, group);
	bin_remove(policy, group);
	it->born_s = used_s;
	it->touched = 0;
	while (bin + 1 < POLICY_BINS && used_s + policy->edges_s[bin + 1] <= policy->now_s)
		bin++;
	/* Those that have grown into this bin since the start are younger, and few. */
	before = policy->bins[bin].newest;
	for (uint32_t steps = 0; steps < BACKDATE_STEPS && before != POLICY_NIL; steps++) {
		if (policy->groups[before].born_s <= used_s)
			break;
		before = policy->groups[before].older;
	}
	bin_insert(policy, group, bin, before);
	if (bin + 1 < POLICY_BINS && used_s + policy->edges_s[bin + 1] < policy->due_s)
		policy->due_s = used_s + policy->edges_s[bin + 1];
}

static uint32_t members(const struct policy_group *group)
{
	return group->parts[0].count + group->parts[1].count + group->parts[2].count;
}

/* Free a group if it has no members. */
void kvd_policy_group_release(kvd_policy *policy, uint32_t group)
{
	if (members(&policy->groups[group]) > 0)
		return;
	kvd_policy_shadow_leave(policy, group);
	bin_remove(policy, group);
	policy->groups[group].newer = policy->groups_free;
	policy->groups_free = group;
	policy->groups_count--;
}

/* The group that was touched next: NIL for the newest. */
uint32_t kvd_policy_group_newer(const kvd_policy *policy, uint32_t group)
{
	const struct policy_group *it = &policy->groups[group];
	uint32_t bin = it->bin;

	if (it->newer != POLICY_NIL)
		return it->newer;
	while (bin-- > 0)
		if (policy->bins[bin].oldest != POLICY_NIL)
			return policy->bins[bin].oldest;
	return POLICY_NIL;
}

/* Whether the last member that a tier has of a group may leave it: nothing that is as near hangs on it, nobody holds it. */
static bool may_go(const kvd_policy *policy, const struct policy_group *group, uint32_t tier)
{
	const struct policy_node *last = &policy->nodes[group->parts[tier].tail];
	uint32_t kids = last->kids[0] + (tier == KVD_POLICY_NVME ? last->kids[1] : 0);

	return group->parts[tier].count > 0 && last->holds == 0 && kids == 0;
}

/* After a change of a group's last members: it is a candidate exactly where one may go. */
void kvd_policy_group_settle(kvd_policy *policy, uint32_t group)
{
	const struct policy_group *it = &policy->groups[group];

	for (uint32_t tier = 0; tier < POLICY_HELD; tier++) {
		bool may = may_go(policy, it, tier);

		if (may == ((it->linked & 1u << tier) != 0))
			continue;
		if (may)
			kvd_policy_lane_link(policy, group, tier);
		else
			kvd_policy_lane_unlink(policy, group, tier);
	}
}

/* After a change of what hangs on a node, or of who holds it. */
void kvd_policy_node_settle(kvd_policy *policy, uint32_t node)
{
	const struct policy_node *it = &policy->nodes[node];

	if (it->group != POLICY_NIL && it->tier < POLICY_HELD && policy->groups[it->group].parts[it->tier].tail == node)
		kvd_policy_group_settle(policy, it->group);
}

/* A group has more or fewer units. */
static void weigh(kvd_policy *policy, struct policy_group *group, uint32_t before, uint32_t after)
{
	group->units += (uint64_t)after - before;
	if (group->recent)
		policy->shadow.units += (uint64_t)after - before;
}

static void part_remove(kvd_policy *policy, uint32_t node)
{
	const struct policy_node *it = &policy->nodes[node];
	struct policy_part *part = &policy->groups[it->group].parts[it->tier];

	if (it->prev != POLICY_NIL)
		policy->nodes[it->prev].next = it->next;
	else
		part->head = it->next;
	if (it->next != POLICY_NIL)
		policy->nodes[it->next].prev = it->prev;
	else
		part->tail = it->prev;
	part->count--;
	if (part->count == 0 && it->tier == KVD_POLICY_GONE)
		ghost_remove(policy, it->group);
}

static void part_add(kvd_policy *policy, uint32_t node, uint32_t tier, bool at_head)
{
	struct policy_node *it = &policy->nodes[node];
	struct policy_part *part = &policy->groups[it->group].parts[tier];

	it->prev = at_head ? POLICY_NIL : part->tail;
	it->next = at_head ? part->head : POLICY_NIL;
	if (it->prev != POLICY_NIL)
		policy->nodes[it->prev].next = node;
	else
		part->head = node;
	if (it->next != POLICY_NIL)
		policy->nodes[it->next].prev = node;
	else
		part->tail = node;
	part->count++;
	if (part->count == 1 && tier == KVD_POLICY_GONE)
		ghost_append(policy, it->group);
}

/* Take a node out of its group; `kvd_policy_group_join` or `kvd_policy_node_unref` must follow. */
void kvd_policy_group_leave(kvd_policy *policy, uint32_t node)
{
	uint32_t group = policy->nodes[node].group;

	if (group == POLICY_NIL)
		return;
	part_remove(policy, node);
	weigh(policy, &policy->groups[group], policy->nodes[node].units, 0);
	policy->nodes[node].group = POLICY_NIL;
	kvd_policy_group_settle(policy, group);
	kvd_policy_group_release(policy, group);
}

/* Give a node without group to one, as its last member in DDR. */
void kvd_policy_group_join(kvd_policy *policy, uint32_t node, uint32_t group)
{
	policy->nodes[node].group = group;
	weigh(policy, &policy->groups[group], 0, policy->nodes[node].units);
	part_add(policy, node, KVD_POLICY_DDR, false);
	kvd_policy_node_retier(policy, node, KVD_POLICY_DDR);
}

/* Move a member to another tier. What goes down comes before those that went before it; what is too old to be remembered goes. */
void kvd_policy_group_move(kvd_policy *policy, uint32_t node, enum kvd_policy_tier tier)
{
	uint32_t group = policy->nodes[node].group;
	uint32_t before = policy->nodes[node].tier;

	if (tier == KVD_POLICY_GONE && policy->groups[group].bin >= policy->ghost_bin && !policy->groups[group].recent) {
		kvd_policy_node_drop(policy, node);
		return;
	}
	part_remove(policy, node);
	part_add(policy, node, tier, before < (uint32_t)tier);
	kvd_policy_node_retier(policy, node, tier);
	kvd_policy_group_settle(policy, group);
}

/* Forget a node. */
void kvd_policy_node_drop(kvd_policy *policy, uint32_t node)
{
	kvd_policy_group_leave(policy, node);
	kvd_policy_node_retier(policy, node, KVD_POLICY_UNKNOWN);
	kvd_policy_node_unref(policy, node);
}

/* Forget what is remembered of a group. */
void kvd_policy_ghosts_forget(kvd_policy *policy, uint32_t group)
{
	uint32_t count = policy->groups[group].parts[KVD_POLICY_GONE].count;

	/* The last drop frees the group. */
	for (; count > 0; count--)
		kvd_policy_node_drop(policy, policy->groups[group].parts[KVD_POLICY_GONE].tail);
}

/* Forget the members of the group that has been remembered longest: false if nothing is remembered. */
bool kvd_policy_ghost_drop(kvd_policy *policy)
{
	if (policy->ghosts.oldest == POLICY_NIL)
		return false;
	kvd_policy_ghosts_forget(policy, policy->ghosts.oldest);
	return true;
}

/* Give a group another class; `anew`: as if it were touched now. */
void kvd_policy_group_reclass(kvd_policy *policy, uint32_t group, uint32_t class, bool anew)
{
	struct policy_group *it = &policy->groups[group];

	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		if (it->linked & 1u << tier)
			kvd_policy_lane_unlink(policy, group, tier);
	kvd_policy_learn_class(policy, class);
	it->class = (uint16_t)class;
	if (anew) {
		kvd_policy_shadow_leave(policy, group);
		bin_remove(policy, group);
		it->born_s = policy->now_s;
		it->touched = policy->requests;
		bin_append(policy, group, 0);
		kvd_policy_shadow_enter(policy, group);
		if (policy->due_s > policy->now_s + policy->edges_s[1])
			policy->due_s = policy->now_s + policy->edges_s[1];
	}
	kvd_policy_group_settle(policy, group);
}

static void cross(kvd_policy *policy, uint32_t group)
{
	struct policy_group *it = &policy->groups[group];
	uint8_t linked = it->linked;

	kvd_policy_learn_risk(policy, it, members(it));
	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		if (linked & 1u << tier)
			kvd_policy_lane_unlink(policy, group, tier);
	bin_remove(policy, group);
	bin_append(policy, group, it->bin + 1u);
	for (uint32_t tier = 0; tier < POLICY_HELD; tier++)
		if (linked & 1u << tier)
			kvd_policy_lane_link(policy, group, tier);
	if (it->bin == policy->ghost_bin && !it->recent && it->parts[KVD_POLICY_GONE].count > 0)
		kvd_policy_ghosts_forget(policy, group);
}

/* Let groups pass from bin to bin, at most so many steps: true if more are due. */
bool kvd_policy_group_age(kvd_policy *policy, uint32_t steps_max)
{
	double due_s = policy->now_s + policy->edges_s[POLICY_BINS];

	if (policy->now_s < policy->due_s)
		return false;
	for (uint32_t bin = 0; bin + 1 < POLICY_BINS; bin++) {
		double width_s = policy->edges_s[bin + 1];
		uint32_t group;

		while ((group = policy->bins[bin].oldest) != POLICY_NIL &&
		       policy->groups[group].born_s + width_s <= policy->now_s) {
			if (steps_max-- == 0)
				return true;
			cross(policy, group);
		}
		if (group != POLICY_NIL && policy->groups[group].born_s + width_s < due_s)
			due_s = policy->groups[group].born_s + width_s;
	}
	policy->due_s = due_s;
	return false;
}
