/* The structures of the Gittins policy, private to csrc/policy. */
#ifndef KVD_POLICY_INTERNAL_H
#define KVD_POLICY_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "policy/policy.h"

#define POLICY_NIL 0u /* node and group 0 are never used */

#define POLICY_BINS 64u
#define POLICY_BIN_GROWTH 1.12
#define POLICY_BIN_FIRST_S 2.0 /* width of the first age bin */

/* Classes: turn x new objects x output tokens x hint, and two of their own. */
#define POLICY_TURNS 5u
#define POLICY_NEWS 8u
#define POLICY_OUTS 13u
#define POLICY_LEAVES (POLICY_TURNS * POLICY_NEWS * POLICY_OUTS)
#define POLICY_SHARED (POLICY_LEAVES * KVD_POLICY_HINTS)
#define POLICY_PARTIAL (POLICY_SHARED + 1)
#define POLICY_CLASSES (POLICY_SHARED + 2)
#define POLICY_SHARED_KIDS 6u /* continuations that make a prefix a shared one */

#define POLICY_DENSITIES 8u /* octaves */
#define POLICY_DENSITY_ONE 3
#define POLICY_LANES (POLICY_CLASSES * POLICY_DENSITIES)
#define POLICY_LEAF_COUNT 32768u /* of the tree of lanes: a power of two */
#define POLICY_HELD 2u           /* tiers that hold bytes */

static_assert(POLICY_LANES <= POLICY_LEAF_COUNT, "a leaf for each lane");

struct policy_node {
	uint64_t key;
	uint32_t chain; /* next of the hash bucket */
	uint32_t parent;
	uint32_t group; /* NIL: forgotten, kept for what hangs on it */
	uint32_t prev, next;
	uint32_t kids[KVD_POLICY_TIERS + 1]; /* by their tier; the last: in no group */
	uint32_t units;
	uint16_t holds;
	uint8_t tier;
	uint8_t reserved;
};

/* The members of a group in one tier, root first. */
struct policy_part {
	uint32_t head, tail, count;
};

struct policy_group {
	double born_s;    /* last touched */
	uint64_t touched; /* the request that did it: an order without ties */
	float weight;  /* of one member's evidence: 1 / length */
	uint16_t class;
	uint16_t turn;
	uint8_t bin;
	uint8_t density;
	uint8_t linked; /* a bit a tier: in the cell of its lane and bin */
	bool recent;    /* in the window of what the least recently used order would keep */
	uint64_t units;
	uint32_t older, newer;         /* of its bin; `newer` is the free list's, too */
	uint32_t ghost_prev, ghost_next; /* of the groups that have remembered members */
	struct policy_part parts[KVD_POLICY_TIERS];
	uint32_t cell_prev[POLICY_HELD], cell_next[POLICY_HELD];
};

struct policy_queue {
	uint32_t oldest, newest;
};

/* Evidence of a class, and what is made of it. */
struct policy_stats {
	double hits[POLICY_BINS], risk[POLICY_BINS];
	double hazard[POLICY_BINS]; /* probability of a hit within the bin, of what was not hit before */
	bool used;
};

struct policy_lanes {
	uint64_t *bins;                                    /* which bins have groups */
	struct policy_queue (*cells)[POLICY_BINS];
	double *tree;                                      /* least key of the lanes below; leaf i at LEAF_COUNT + i */
};

/* What the least recently used order would hit in DDR, and what is hit (shadow.c). */
struct policy_shadow {
	bool rules;            /* victims are the least recently used */
	uint32_t oldest;       /* group of the window */
	uint64_t units, limit; /* of the window */
	double hits, own;      /* of the shadow and of DDR, fading */
	uint64_t until;        /* request at which it stops ruling; else at which its next rule gets shorter */
	uint64_t period;       /* of its next rule, in requests */
};

struct kvd_policy {
	struct kvd_policy_config config;
	double now_s, due_s; /* due: when the next group leaves its bin */
	double edges_s[POLICY_BINS + 1];
	uint32_t ghost_bin;

	struct policy_node *nodes;
	uint32_t nodes_used, nodes_free, nodes_size;
	uint32_t *buckets;
	uint32_t buckets_mask;
	uint32_t objects[KVD_POLICY_TIERS];

	struct policy_group *groups;
	uint32_t groups_used, groups_free, groups_count;
	struct policy_queue bins[POLICY_BINS];
	struct policy_queue ghosts;

	struct policy_lanes lanes[POLICY_HELD];
	struct policy_shadow shadow;
	uint64_t units[KVD_POLICY_TIERS];
	float (*index)[POLICY_BINS];  /* of each class at each age */
	float (*reuse)[POLICY_BINS];  /* probability that it is hit at all from that age on */

	struct policy_stats *classes; /* of each class */
	struct policy_stats root, turns[POLICY_TURNS], hints[KVD_POLICY_HINTS];
	double news_odds[POLICY_NEWS], outs_odds[POLICY_OUTS]; /* what a trait changes the odds of a hit by, all else equal */
	struct policy_stats news[POLICY_TURNS * POLICY_NEWS];
	struct policy_stats leaves[POLICY_LEAVES];
	bool hints_tell; /* more than chance would */
	uint64_t requests, hits, refreshed;
};

/* nodes.c */
#define POLICY_FETCH_MAX 32u
#define POLICY_LINE_BYTES 64u /* of the processor's caches */
void kvd_policy_nodes_fetch(const kvd_policy *policy, const uint64_t *keys, uint32_t count);
uint32_t kvd_policy_node_find(const kvd_policy *policy, uint64_t key);
uint32_t kvd_policy_node_make(kvd_policy *policy, uint64_t key, uint32_t parent);
void kvd_policy_node_unref(kvd_policy *policy, uint32_t node);
void kvd_policy_node_resize(kvd_policy *policy, uint32_t node, uint32_t units);
void kvd_policy_node_retier(kvd_policy *policy, uint32_t node, uint32_t tier);

/* groups.c */
uint32_t kvd_policy_group_make(kvd_policy *policy, uint32_t class, uint32_t length);
void kvd_policy_group_backdate(kvd_policy *policy, uint32_t group, double used_s);
void kvd_policy_group_release(kvd_policy *policy, uint32_t group);
void kvd_policy_group_leave(kvd_policy *policy, uint32_t node);
void kvd_policy_group_join(kvd_policy *policy, uint32_t node, uint32_t group);
void kvd_policy_group_move(kvd_policy *policy, uint32_t node, enum kvd_policy_tier tier);
void kvd_policy_group_settle(kvd_policy *policy, uint32_t group);
void kvd_policy_group_reclass(kvd_policy *policy, uint32_t group, uint32_t class, bool anew);
bool kvd_policy_group_age(kvd_policy *policy, uint32_t steps_max);
void kvd_policy_node_settle(kvd_policy *policy, uint32_t node);
void kvd_policy_node_drop(kvd_policy *policy, uint32_t node);
bool kvd_policy_ghost_drop(kvd_policy *policy);
void kvd_policy_ghosts_forget(kvd_policy *policy, uint32_t group);
uint32_t kvd_policy_group_newer(const kvd_policy *policy, uint32_t group);

/* lanes.c */
int kvd_policy_lanes_init(struct policy_lanes *lanes);
void kvd_policy_lanes_fini(struct policy_lanes *lanes);
void kvd_policy_lane_link(kvd_policy *policy, uint32_t group, uint32_t tier);
void kvd_policy_lane_unlink(kvd_policy *policy, uint32_t group, uint32_t tier);
void kvd_policy_lanes_refresh(kvd_policy *policy);
uint32_t kvd_policy_lanes_least(const kvd_policy *policy, uint32_t tier);
double kvd_policy_lanes_floor(const kvd_policy *policy, uint32_t tier);
double kvd_policy_group_key(const kvd_policy *policy, const struct policy_group *group);
double kvd_policy_group_index(const kvd_policy *policy, const struct policy_group *group);

/* shadow.c */
void kvd_policy_shadow_init(kvd_policy *policy);
void kvd_policy_shadow_enter(kvd_policy *policy, uint32_t group);
void kvd_policy_shadow_leave(kvd_policy *policy, uint32_t group);
void kvd_policy_shadow_fit(kvd_policy *policy);
void kvd_policy_shadow_judge(kvd_policy *policy, uint32_t hits, uint32_t own);

/* learn.c */
void kvd_policy_learn_init(kvd_policy *policy);
void kvd_policy_learn_class(kvd_policy *policy, uint32_t class);
void kvd_policy_learn_hit(kvd_policy *policy, const struct policy_group *group);
void kvd_policy_learn_risk(kvd_policy *policy, const struct policy_group *group, uint32_t members);
void kvd_policy_learn_refresh(kvd_policy *policy);
uint32_t kvd_policy_class_of(uint32_t turn, uint32_t new_count, uint32_t output_tokens, uint32_t hint);

#endif
