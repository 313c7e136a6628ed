/*
 * What is learnt: for each class of groups the probability of a hit in each age bin, and the Gittins index that follows.
 *
 * A class with little evidence leans on its parent: hint -> output -> new objects -> turn -> root. The parent gives when a hit comes if
 * it does; how likely it is at all follows the trait that the class has besides (what all groups with that trait showed),
 * then the class's own hits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/internal.h"

/* In groups of evidence: twice and half of each is within .002 of hits on the public traces (docs/policy.md). */
#define PRIOR_WEIGHT 35.0 /* what outweighs the parent at one age */
#define RATIO_WEIGHT 40.0 /* what outweighs the parent in all */
#define HAZARD_FIRST 0.02 /* of the root, before anything was seen */
#define TAIL_FALL 0.9     /* of the root where nothing was seen, from bin to bin */
#define HAZARD_MIN 1e-7
#define HAZARD_MAX 0.95
#define REACH_ROOT 1      /* bins to each side that evidence of an age counts for */
#define REACH_CLASS 3
#define TELLING_SQUARES 12.0 /* sum of squares, in standard deviations, from which hints tell more than chance */
#define REFRESH_REQUESTS 50u
#define REFRESH_SHARE 64u /* later: after so many parts more requests */
#define REFRESH_REQUESTS_MAX 2000u
#define LINE_MAX 6u

static uint32_t log2_of(uint32_t count)
{
	return 31u - (uint32_t)__builtin_clz(count | 1u);
}

static uint32_t at_most(uint32_t step, uint32_t last)
{
	return step < last ? step : last;
}

/* Turns 0, 1, 2, 3 to 4, 5 and more. */
static uint32_t turn_step(uint32_t turn)
{
	return turn < 3 ? turn : turn < 5 ? 3u : 4u;
}

/* New objects by powers of four, tokens by powers of two. */
uint32_t kvd_policy_class_of(uint32_t turn, uint32_t new_count, uint32_t output_tokens, uint32_t hint)
{
	uint32_t new_step = at_most(log2_of(new_count) / 2, POLICY_NEWS - 1);
	uint32_t out_step = output_tokens ? at_most(1 + log2_of(output_tokens), POLICY_OUTS - 1) : 0;

	return ((turn_step(turn) * POLICY_NEWS + new_step) * POLICY_OUTS + out_step) * KVD_POLICY_HINTS + hint;
}

/* All that a class's evidence counts for: itself first. Classes of their own are no evidence for others. */
static uint32_t line_of(kvd_policy *policy, uint32_t class, struct policy_stats *line[LINE_MAX])
{
	uint32_t leaf = class / KVD_POLICY_HINTS;

	line[0] = &policy->classes[class];
	if (class >= POLICY_SHARED)
		return 1;
	line[1] = &policy->root;
	line[2] = &policy->turns[leaf / POLICY_OUTS / POLICY_NEWS];
	line[3] = &policy->news[leaf / POLICY_OUTS];
	line[4] = &policy->leaves[leaf];
	line[5] = &policy->hints[class % KVD_POLICY_HINTS];
	return LINE_MAX;
}

/* The probability that what has these hazards is hit within the time that is remembered. */
static double reached(const kvd_policy *policy, const double *hazard)
{
	double alive = 1;

	for (uint32_t bin = 0; bin < policy->ghost_bin; bin++)
		alive *= 1 - hazard[bin];
	return fmin(fmax(1 - alive, HAZARD_MIN), 1 - HAZARD_MIN);
}

/*
 * Change the odds of a hit at all, from `own`, by a factor; when it comes if it does is left alone. So what was not hit for long
 * is of the kind that is never hit, however good its class.
 */
static void shift_odds(const double *hazard, double own, double by, double *out)
{
	double odds = own / (1 - own) * by;
	double scale = odds / (1 + odds) / own;
	double alive = 1, left = 1;

	for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
		double hit = alive * hazard[bin] * scale;

		alive *= 1 - hazard[bin];
		out[bin] = fmin(fmax(hit / left, HAZARD_MIN), HAZARD_MAX);
		left *= 1 - out[bin];
	}
}

/*
 * By what a number of hits for each that was to be expected changes the odds of a hit at all, whose probability is `own`. What is
 * hit is at risk no more, so the numbers are as the hazards are, not as the probabilities.
 */
static double odds_of(double own, double hits, double usual)
{
	double ratio = (hits + RATIO_WEIGHT) / (usual + RATIO_WEIGHT);
	double target = fmin(fmax(1 - pow(1 - own, ratio), HAZARD_MIN), 1 - HAZARD_MIN);

	return target / (1 - target) / (own / (1 - own));
}

/* Evidence of an age and of those near it: a mean with weights that fall by distance. */
static double smooth(const double *evidence, uint32_t bin, int reach)
{
	double sum = 0, weights = 0;

	for (int at = (int)bin - reach; at <= (int)bin + reach; at++)
		if (at >= 0 && at < (int)POLICY_BINS) {
			double weight = reach + 1 - abs(at - (int)bin);

			sum += weight * evidence[at];
			weights += weight;
		}
	return sum / weights;
}

/*
 * The hazards of a class from its evidence and from what its parent, changed by a trait, leads to expect. What is smoothed is the
 * ratio to what was expected, so that where all classes rise or fall at one age, this one does, too.
 */
static void settle(const kvd_policy *policy, struct policy_stats *it, const double *parent, double odds)
{
	double hits = 0, usual = 0;
	double expected[POLICY_BINS], shifted[POLICY_BINS], at_risk[POLICY_BINS];

	shift_odds(parent, reached(policy, parent), odds, expected);
	for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
		hits += it->hits[bin];
		usual += it->risk[bin] * expected[bin];
	}
	shift_odds(expected, reached(policy, expected), odds_of(reached(policy, expected), hits, usual), shifted);
	for (uint32_t bin = 0; bin < POLICY_BINS; bin++)
		at_risk[bin] = it->risk[bin] * shifted[bin];
	for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
		double prior = PRIOR_WEIGHT * smooth(shifted, bin, REACH_CLASS);
		double ratio = (smooth(it->hits, bin, REACH_CLASS) + prior) / (smooth(at_risk, bin, REACH_CLASS) + prior);

		it->hazard[bin] = fmin(fmax(shifted[bin] * ratio, HAZARD_MIN), HAZARD_MAX);
	}
}

/* What a trait changes, of all classes that have it: `stats` from `first` on, every `step`, against their parents. */
static double trait_odds(const kvd_policy *policy, const struct policy_stats *stats, uint32_t first, uint32_t count, uint32_t step,
			 const struct policy_stats *parents)
{
	double hits = 0, usual = 0;

	for (uint32_t i = first; i < count; i += step)
		for (uint32_t bin = 0; stats[i].used && bin < POLICY_BINS; bin++) {
			hits += stats[i].hits[bin];
			usual += stats[i].risk[bin] * parents[i / step].hazard[bin];
		}
	return odds_of(reached(policy, policy->root.hazard), hits, usual);
}

/* The root leans on the bin before. As bins grow with age, a hit gets less likely as 1 / age or a little faster where nothing is known. */
static void settle_root(struct policy_stats *root)
{
	double before = HAZARD_FIRST;

	for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
		before = (smooth(root->hits, bin, REACH_ROOT) + PRIOR_WEIGHT * before * TAIL_FALL) /
			 (smooth(root->risk, bin, REACH_ROOT) + PRIOR_WEIGHT);
		root->hazard[bin] = fmin(fmax(before, HAZARD_MIN), HAZARD_MAX);
	}
}

/*
 * The index at each age: the most hits for each second of holding that any later age of giving up leads to. With all hits and
 * all seconds summed from birth on it is the steepest line from that age's point to a later one: the upper hull, built from the end.
 */
static void index_of(kvd_policy *policy, uint32_t class, const double *hazard)
{
	double hits[POLICY_BINS + 1], held_s[POLICY_BINS + 1], alive = 1;
	uint32_t hull[POLICY_BINS + 1], size = 0;

	hits[0] = held_s[0] = 0;
	for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
		hits[bin + 1] = hits[bin] + alive * hazard[bin];
		held_s[bin + 1] = held_s[bin] + alive * (policy->edges_s[bin + 1] - policy->edges_s[bin]);
		alive *= 1 - hazard[bin];
		policy->reuse[class][bin] = (float)alive;
	}
	for (uint32_t bin = POLICY_BINS; bin-- > 0;)
		policy->reuse[class][bin] = 1.0f - (float)alive / (bin ? policy->reuse[class][bin - 1] : 1.0f);
	hull[size++] = POLICY_BINS;
	for (uint32_t bin = POLICY_BINS; bin-- > 0;) {
		double best;

		while (size >= 2) {
			uint32_t near = hull[size - 1], far = hull[size - 2];

			if ((hits[near] - hits[bin]) * (held_s[far] - held_s[bin]) >
			    (hits[far] - hits[bin]) * (held_s[near] - held_s[bin]))
				break;
			size--;
		}
		best = (hits[hull[size - 1]] - hits[bin]) / fmax(held_s[hull[size - 1]] - held_s[bin], 1e-30);
		policy->index[class][bin] = (float)best;
		hull[size++] = bin;
	}
}

static void learn_news(kvd_policy *policy, uint32_t news)
{
	settle(policy, &policy->news[news], policy->turns[news / POLICY_NEWS].hazard, policy->news_odds[news % POLICY_NEWS]);
}

static void learn_leaf(kvd_policy *policy, uint32_t leaf)
{
	settle(policy, &policy->leaves[leaf], policy->news[leaf / POLICY_OUTS].hazard, policy->outs_odds[leaf % POLICY_OUTS]);
}

/*
 * Whether hints tell anything: by how many standard deviations the hits of each differ from what is to be expected without. Hints
 * at random are not followed, so that they change no decision.
 */
static bool hints_tell(const kvd_policy *policy)
{
	double squares = 0;

	for (uint32_t hint = 0; hint < KVD_POLICY_HINTS; hint++) {
		double hits = 0, usual = 0;

		for (uint32_t bin = 0; bin < POLICY_BINS; bin++) {
			hits += policy->hints[hint].hits[bin];
			usual += policy->hints[hint].risk[bin] * policy->root.hazard[bin];
		}
		squares += (hits - usual) * (hits - usual) / (usual + 1);
	}
	return squares > TELLING_SQUARES;
}

/* What a hint is worth does not depend on the class it is given for, so its own evidence is all that is needed. */
static void learn(kvd_policy *policy, uint32_t class)
{
	struct policy_stats *it = &policy->classes[class];
	const double *hint = policy->hints[class % KVD_POLICY_HINTS].hazard;

	if (class >= POLICY_SHARED) {
		settle(policy, it, policy->root.hazard, 1);
	} else {
		const double *leaf = policy->leaves[class / KVD_POLICY_HINTS].hazard;
		double all = reached(policy, policy->root.hazard), some = reached(policy, hint);

		if (policy->hints_tell)
			shift_odds(leaf, reached(policy, leaf), some / (1 - some) / (all / (1 - all)), it->hazard);
		else
			memcpy(it->hazard, leaf, sizeof(it->hazard));
	}
	index_of(policy, class, it->hazard);
}

/* A class is about to be used: it has an index from now on. */
void kvd_policy_learn_class(kvd_policy *policy, uint32_t class)
{
	uint32_t leaf = class / KVD_POLICY_HINTS;

	if (policy->classes[class].used)
		return;
	if (class < POLICY_SHARED && !policy->leaves[leaf].used) {
		if (!policy->news[leaf / POLICY_OUTS].used)
			learn_news(policy, leaf / POLICY_OUTS);
		policy->news[leaf / POLICY_OUTS].used = true;
		learn_leaf(policy, leaf);
		policy->leaves[leaf].used = true;
	}
	policy->classes[class].used = true;
	learn(policy, class);
}

static void settle_root_and_turns(kvd_policy *policy)
{
	settle_root(&policy->root);
	for (uint32_t turn = 0; turn < POLICY_TURNS; turn++)
		settle(policy, &policy->turns[turn], policy->root.hazard, 1);
	for (uint32_t hint = 0; hint < KVD_POLICY_HINTS; hint++)
		settle(policy, &policy->hints[hint], policy->root.hazard, 1);
}

void kvd_policy_learn_init(kvd_policy *policy)
{
	settle_root_and_turns(policy);
	for (uint32_t news = 0; news < POLICY_NEWS; news++)
		policy->news_odds[news] = 1;
	for (uint32_t outs = 0; outs < POLICY_OUTS; outs++)
		policy->outs_odds[outs] = 1;
}

void kvd_policy_learn_risk(kvd_policy *policy, const struct policy_group *group, uint32_t members)
{
	struct policy_stats *line[LINE_MAX];
	uint32_t count = line_of(policy, group->class, line);

	for (uint32_t i = 0; i < count; i++)
		line[i]->risk[group->bin] += (double)group->weight * members;
}

/* A member of a group was hit. */
void kvd_policy_learn_hit(kvd_policy *policy, const struct policy_group *group)
{
	struct policy_stats *line[LINE_MAX];
	uint32_t count = line_of(policy, group->class, line);

	for (uint32_t i = 0; i < count; i++) {
		line[i]->hits[group->bin] += (double)group->weight;
		line[i]->risk[group->bin] += (double)group->weight;
	}
}

static void fade(struct policy_stats *stats, uint32_t count, double by)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t bin = 0; stats[i].risk[0] > 0 && bin < POLICY_BINS; bin++) {
			stats[i].hits[bin] *= by;
			stats[i].risk[bin] *= by;
		}
}

static void fade_all(kvd_policy *policy, double by)
{
	fade(&policy->root, 1, by);
	fade(policy->turns, POLICY_TURNS, by);
	fade(policy->hints, KVD_POLICY_HINTS, by);
	fade(policy->news, POLICY_TURNS * POLICY_NEWS, by);
	fade(policy->leaves, POLICY_LEAVES, by);
	fade(policy->classes, POLICY_CLASSES, by);
}

static void settle_all(kvd_policy *policy)
{
	settle_root_and_turns(policy);
	policy->hints_tell = hints_tell(policy);
	for (uint32_t news = 0; news < POLICY_NEWS; news++)
		policy->news_odds[news] = trait_odds(policy, policy->news, news, POLICY_TURNS * POLICY_NEWS, POLICY_NEWS,
						     policy->turns);
	for (uint32_t news = 0; news < POLICY_TURNS * POLICY_NEWS; news++)
		if (policy->news[news].used)
			learn_news(policy, news);
	for (uint32_t outs = 0; outs < POLICY_OUTS; outs++)
		policy->outs_odds[outs] = trait_odds(policy, policy->leaves, outs, POLICY_LEAVES, POLICY_OUTS, policy->news);
	for (uint32_t leaf = 0; leaf < POLICY_LEAVES; leaf++)
		if (policy->leaves[leaf].used)
			learn_leaf(policy, leaf);
	for (uint32_t class = 0; class < POLICY_CLASSES; class++)
		if (policy->classes[class].used)
			learn(policy, class);
}

/* Draw the conclusions, if enough was seen since the last time. */
void kvd_policy_learn_refresh(kvd_policy *policy)
{
	uint64_t since = policy->requests - policy->refreshed;
	uint64_t wanted = policy->requests / REFRESH_SHARE;

	wanted = wanted > REFRESH_REQUESTS_MAX ? REFRESH_REQUESTS_MAX : wanted;
	if (since < REFRESH_REQUESTS || since < wanted)
		return;
	policy->refreshed = policy->requests;
	fade_all(policy, exp2(-(double)since / policy->config.half_life));
	settle_all(policy);
	kvd_policy_lanes_refresh(policy);
}
