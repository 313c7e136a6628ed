/*
 * The learnt Gittins index: which objects of a tier go first, and which are not worth writing to the next one.
 *
 * It keeps what has the most expected hits for each byte-second that it is held. What one request touched last is a *group*,
 * a suffix of the request's chain; groups of one class (turn, new objects, length of the answer, hint) are taken to be
 * alike, and how often and how soon groups of a class are hit again is learnt from what happens (docs/policy.md).
 *
 * A key names an object by its content (a block's hash) or its inode. *Units* are what an object takes of a tier, in whatever unit the
 * caller counts. What was evicted is remembered for a while without its bytes (tier GONE), so that it is learnt from.
 *
 * One thread at a time. Nothing here waits or asks the clock.
 */
#ifndef KVD_POLICY_POLICY_H
#define KVD_POLICY_POLICY_H

#include <stdint.h>

/* cffi: begin */
typedef struct kvd_policy kvd_policy;

enum kvd_policy_limit {
	KVD_POLICY_OBJECTS_MIN = 16,
	KVD_POLICY_OBJECTS_MAX = 1 << 28,
	KVD_POLICY_CHAIN_MAX = 1 << 20, /* keys of a request */
};

enum kvd_policy_tier {
	KVD_POLICY_DDR = 0,
	KVD_POLICY_NVME = 1,
	KVD_POLICY_GONE = 2, /* remembered, in no tier */
	KVD_POLICY_TIERS = 3,
	KVD_POLICY_UNKNOWN = 3,
};

/* What a client said of a chain: evidence, whose worth is learnt. */
enum kvd_policy_hint {
	KVD_POLICY_HINT_NONE = 0,
	KVD_POLICY_HINT_RELEASE = 1, /* not needed soon */
	KVD_POLICY_HINT_KEEP = 2,    /* will be needed */
	KVD_POLICY_HINT_RESUME = 3,  /* needed now */
	KVD_POLICY_HINTS = 4,
};

struct kvd_policy_config {
	uint32_t objects_max; /* in tiers and remembered; memory is touched as it is used, 150 bytes each at most */
	double ghost_s;       /* how long what is gone is remembered */
	double half_life;     /* requests after which evidence counts half */
};

struct kvd_policy_request {
	double now_s;
	const uint64_t *keys;  /* a chain, from its root, or from `parent` on */
	const uint32_t *units; /* of each, or NULL: 1 */
	uint32_t count;
	uint32_t output_tokens; /* of the answer; 0: not known */
	uint64_t parent;        /* the key before the first, if `below` */
	double density;         /* cost of making it anew for each unit, relative to others: 1 where nothing is known */
	uint8_t below;
	uint8_t partial;        /* the last one is not full: a continuation will have another in its place */
	uint8_t hint;
};

struct kvd_policy_victim {
	uint64_t key;
	uint32_t units;
	uint32_t to; /* enum kvd_policy_tier */
};

/* An object that is there already, as a start finds it. */
struct kvd_policy_seed {
	uint64_t key;
	uint64_t parent; /* what it hangs on, if `below` and that is known */
	double used_s;   /* when it was last used; what comes first was used before what follows */
	uint32_t units;
	uint8_t tier;
	uint8_t below;
};

/* Of the candidate that a tier has of the least worth. */
struct kvd_policy_least {
	double index;  /* expected hits for each unit and second; negative: the plain order rules, and nothing is known of it */
	double used_s; /* when it was last used */
};

struct kvd_policy_statistics {
	uint64_t requests, hits;
	uint32_t objects[3]; /* by tier */
	uint32_t groups;
};

/* 0 or -errno: -EINVAL, -ENOMEM. */
int kvd_policy_init(const struct kvd_policy_config *config, kvd_policy **out);
void kvd_policy_fini(kvd_policy *policy);
/* A request read or made these objects; all of them are in DDR now. 0, -EINVAL, or -ENOSPC: objects_max are in tiers. */
int kvd_policy_access(kvd_policy *policy, const struct kvd_policy_request *request);
/* Objects were used, each alone or, where one goes on from the one before it, as a chain; what is not known is new, and all
 * are in DDR now. 0, -EINVAL, or -ENOSPC: those from there on are not taken note of. */
int kvd_policy_use(kvd_policy *policy, double now_s, const uint64_t *keys, const uint32_t *units, uint32_t count);
/* Objects that are there since before the start; one that is known already stays as it is. As `kvd_policy_use`. */
int kvd_policy_seed(kvd_policy *policy, double now_s, const struct kvd_policy_seed *seeds, uint32_t count);
/* What is said later of the chain that ends at a key. 0, -ENOENT, -EINVAL. */
int kvd_policy_hint(kvd_policy *policy, uint64_t key, enum kvd_policy_hint hint, double now_s);
/* Leases: while there are any, neither the object nor what it hangs on is a victim. 0, -ENOENT, -EOVERFLOW, -EINVAL: none to give back. */
int kvd_policy_hold(kvd_policy *policy, uint64_t key);
int kvd_policy_unhold(kvd_policy *policy, uint64_t key);
/* An object is in another tier now, or in none. 0, -ENOENT, -EINVAL. */
int kvd_policy_place(kvd_policy *policy, uint64_t key, enum kvd_policy_tier tier);
/* An object was deleted: it is not to be remembered. 0 or -ENOENT. */
int kvd_policy_forget(kvd_policy *policy, uint64_t key);
/* The tier of a key, or KVD_POLICY_UNKNOWN. */
int kvd_policy_tier_of(const kvd_policy *policy, uint64_t key);
/* Let groups age, at most so many steps: 1 if there is more to do, else 0. */
int kvd_policy_tick(kvd_policy *policy, double now_s, uint32_t steps_max);
/*
 * Choose what leaves a tier until `need` units are freed, and where it goes: what leaves DDR goes to NVMe if `below_room` units
 * (UINT64_MAX: it has no bound; 0: see next) hold it, or if it is worth more than what would have to go there, and is
 * likely enough to be used again (`reuse_min`, a probability). `nvme` 0: there is none. The victims have left when this returns; `place`
 * brings back what could not go. Returns how many.
 */
uint32_t kvd_policy_victims(kvd_policy *policy, enum kvd_policy_tier tier, uint64_t need, int nvme, uint64_t below_room,
			    double reuse_min, struct kvd_policy_victim *out, uint32_t max);
/* Who would leave a tier first: to compare policies that share it. 0, -ENOENT: nobody, -EINVAL. */
int kvd_policy_least(const kvd_policy *policy, enum kvd_policy_tier tier, struct kvd_policy_least *out);
/* Those of the chain that ends at a key which are in NVMe, root first, if they are worth more than what DDR holds of the least
 * worth. Returns how many; nothing is moved. */
uint32_t kvd_policy_prefetch(kvd_policy *policy, uint64_t key, uint64_t *out, uint32_t max);
/* Expected hits of an object for each unit and second that it is held from now on; negative: not known. */
double kvd_policy_index(const kvd_policy *policy, uint64_t key);
void kvd_policy_statistics(const kvd_policy *policy, struct kvd_policy_statistics *out);
/* Tell whether all lists and counts agree: 0, or the number of the first check that fails. For tests: it looks at everything. */
int kvd_policy_check(const kvd_policy *policy);
/* cffi: end */

#endif
