/*
 * What the plain order, least recently used and tail first, would keep of what is known: a window over the groups in the order of
 * their age, as large as DDR. A hit in it is a hit that the plain order would have had, so both are compared on the same
 * requests, exactly but for the group at the window's end.
 *
 * While little is known, and for a time after the index was worse, the plain order rules. Each time that happens again the rule
 * is longer, and shorter after the index has done well.
 */
#include "policy/internal.h"

#define WARM_REQUESTS 256u
#define RULE_REQUESTS 256u
#define RULE_REQUESTS_MAX 65536u
#define TRUST_PERIODS 4u  /* of doing well, after which the next rule is half as long */
#define MEMORY_REQUESTS 512.0
#define LEAD_SHARE 0.001 /* by which, and by so many hits, the plain order must lead: less is noise */
#define LEAD_HITS 256.0

void kvd_policy_shadow_init(kvd_policy *policy)
{
	policy->shadow = (struct policy_shadow){
		.rules = true, .limit = UINT64_MAX, .until = WARM_REQUESTS, .period = RULE_REQUESTS
	};
}

/* A group is the newest now. */
void kvd_policy_shadow_enter(kvd_policy *policy, uint32_t group)
{
	struct policy_group *it = &policy->groups[group];

	it->recent = true;
	policy->shadow.units += it->units;
	if (policy->shadow.oldest == POLICY_NIL)
		policy->shadow.oldest = group;
}

/* A group leaves its place in the order; it is still in its bin. */
void kvd_policy_shadow_leave(kvd_policy *policy, uint32_t group)
{
	struct policy_group *it = &policy->groups[group];

	if (!it->recent)
		return;
	/* What a start has found is in the order, but not in the window. */
	for (uint32_t at = group; policy->shadow.oldest == at && at != POLICY_NIL;) {
		uint32_t newer = kvd_policy_group_newer(policy, at);

		policy->shadow.oldest = newer;
		if (newer == POLICY_NIL || policy->groups[newer].recent)
			break;
		at = newer;
	}
	policy->shadow.units -= it->units;
	it->recent = false;
}

/* What the plain order would not keep leaves the window. */
void kvd_policy_shadow_fit(kvd_policy *policy)
{
	struct policy_shadow *shadow = &policy->shadow;

	while (shadow->units > shadow->limit && shadow->oldest != POLICY_NIL) {
		uint32_t group = shadow->oldest;

		kvd_policy_shadow_leave(policy, group);
		if (policy->groups[group].bin >= policy->ghost_bin)
			kvd_policy_ghosts_forget(policy, group);
	}
}

static void change(kvd_policy *policy, bool rules)
{
	struct policy_shadow *shadow = &policy->shadow;

	shadow->rules = rules;
	shadow->hits = shadow->own = 0;
	shadow->until = policy->requests + (rules ? 1 : TRUST_PERIODS) * shadow->period;
	if (rules && shadow->period < RULE_REQUESTS_MAX)
		shadow->period *= 2;
	kvd_policy_lanes_refresh(policy);
}

/* A request would have had so many hits, and had its own. */
void kvd_policy_shadow_judge(kvd_policy *policy, uint32_t hits, uint32_t own)
{
	struct policy_shadow *shadow = &policy->shadow;

	if (shadow->rules) {
		if (policy->requests >= shadow->until)
			change(policy, false);
		return;
	}
	shadow->hits += hits - shadow->hits / MEMORY_REQUESTS;
	shadow->own += own - shadow->own / MEMORY_REQUESTS;
	if (shadow->hits > shadow->own * (1 + LEAD_SHARE) + LEAD_HITS) {
		change(policy, true);
	} else if (policy->requests >= shadow->until) {
		if (shadow->period > RULE_REQUESTS)
			shadow->period /= 2;
		shadow->until = policy->requests + TRUST_PERIODS * shadow->period;
	}
}
