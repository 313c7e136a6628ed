/* The Gittins policy: what it refuses, what it never evicts, and that its lists agree after any order of calls. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "policy/policy.h"

#define OBJECTS 512u
#define CAPACITY 100u
#define NVME_CAPACITY 60u
#define VICTIMS 64u
#define CHAIN 24u
#define ROUNDS 20000u
#define CHECK_EVERY 100u
#define TREES 12u

static kvd_policy *make(uint32_t objects_max)
{
	struct kvd_policy_config config = { .objects_max = objects_max, .ghost_s = 1800, .half_life = 5000 };
	kvd_policy *policy;

	assert_int_equal(kvd_policy_init(&config, &policy), 0);
	return policy;
}

static int ask(kvd_policy *policy, const uint64_t *keys, uint32_t count, double now_s)
{
	struct kvd_policy_request request = { .now_s = now_s, .keys = keys, .count = count, .density = 1 };

	return kvd_policy_access(policy, &request);
}

static uint32_t objects(const kvd_policy *policy, enum kvd_policy_tier tier)
{
	struct kvd_policy_statistics seen;

	kvd_policy_statistics(policy, &seen);
	return seen.objects[tier];
}

static void test_what_makes_no_sense_is_refused(void **state)
{
	struct kvd_policy_config config = { .objects_max = OBJECTS, .ghost_s = NAN, .half_life = 5000 };
	static const uint64_t keys[] = { 1, 2 };
	struct kvd_policy_request request = { .keys = keys, .count = 2, .density = 1 };
	kvd_policy *policy;

	(void)state;
	assert_int_equal(kvd_policy_init(&config, &policy), -EINVAL);
	config = (struct kvd_policy_config){ .objects_max = 1, .ghost_s = 1, .half_life = 1 };
	assert_int_equal(kvd_policy_init(&config, &policy), -EINVAL);
	policy = make(OBJECTS);
	request.count = 0;
	assert_int_equal(kvd_policy_access(policy, &request), -EINVAL);
	request.count = KVD_POLICY_CHAIN_MAX + 1;
	assert_int_equal(kvd_policy_access(policy, &request), -EINVAL);
	request.count = 2;
	request.now_s = INFINITY;
	assert_int_equal(kvd_policy_access(policy, &request), -EINVAL);
	request.now_s = 0;
	request.hint = KVD_POLICY_HINTS;
	assert_int_equal(kvd_policy_access(policy, &request), -EINVAL);
	assert_int_equal(kvd_policy_hold(policy, 1), -ENOENT);
	assert_int_equal(kvd_policy_place(policy, 1, KVD_POLICY_NVME), -ENOENT);
	assert_int_equal(ask(policy, keys, 2, 0), 0);
	assert_int_equal(kvd_policy_unhold(policy, 1), -EINVAL);
	assert_int_equal(kvd_policy_place(policy, 1, KVD_POLICY_UNKNOWN), -EINVAL);
	assert_int_equal(kvd_policy_hint(policy, 1, KVD_POLICY_HINTS, 0), -EINVAL);
	kvd_policy_fini(policy);
}

static void test_tails_go_before_heads_and_held_chains_stay(void **state)
{
	static const uint64_t chain[] = { 1, 2, 3, 4 };
	static const uint64_t other[] = { 11, 12 };
	struct kvd_policy_victim victims[VICTIMS];
	kvd_policy *policy = make(OBJECTS);

	(void)state;
	assert_int_equal(ask(policy, chain, 4, 0), 0);
	assert_int_equal(ask(policy, other, 2, 1), 0);
	assert_int_equal(kvd_policy_hold(policy, 2), 0);
	/* 4 and 3 may go, in this order; 2 is held, and 1 is below it. */
	assert_int_equal(kvd_policy_victims(policy, KVD_POLICY_DDR, 100, 0, 0, 0, victims, VICTIMS), 4);
	for (uint32_t i = 0, before = 5; i < 4; i++)
		if (victims[i].key < 10) {
			assert_int_equal(victims[i].key, before - 1);
			before = (uint32_t)victims[i].key;
		}
	assert_int_equal(kvd_policy_tier_of(policy, 2), KVD_POLICY_DDR);
	assert_int_equal(kvd_policy_tier_of(policy, 1), KVD_POLICY_DDR);
	assert_int_equal(kvd_policy_tier_of(policy, 3), KVD_POLICY_GONE);
	assert_int_equal(kvd_policy_unhold(policy, 2), 0);
	assert_int_equal(kvd_policy_victims(policy, KVD_POLICY_DDR, 100, 0, 0, 0, victims, VICTIMS), 2);
	assert_int_equal(victims[0].key, 2);
	assert_int_equal(victims[1].key, 1);
	assert_int_equal(kvd_policy_check(policy), 0);
	kvd_policy_fini(policy);
}

static void test_what_is_remembered_makes_room_and_what_is_held_in_tiers_does_not(void **state)
{
	struct kvd_policy_victim victims[VICTIMS];
	kvd_policy *policy = make(32);

	(void)state;
	for (uint64_t key = 1; key <= 1000; key++) {
		assert_int_equal(ask(policy, &key, 1, (double)key), 0);
		if (key > 16)
			assert_int_equal(kvd_policy_victims(policy, KVD_POLICY_DDR, 1, 0, 0, 0, victims, VICTIMS), 1);
	}
	assert_int_equal(objects(policy, KVD_POLICY_DDR), 16);
	assert_in_range(objects(policy, KVD_POLICY_GONE), 1, 16);
	for (uint64_t key = 2001; key <= 2016; key++)
		assert_int_equal(ask(policy, &key, 1, 2000), 0);
	assert_int_equal(ask(policy, (const uint64_t[]){ 3000 }, 1, 2000), -ENOSPC);
	assert_int_equal(kvd_policy_check(policy), 0);
	kvd_policy_fini(policy);
}

/* A generator of one's own: the same runs everywhere. */
static uint64_t random_below(uint64_t *seed, uint64_t below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed % below;
}

static uint64_t some_key(uint64_t *seed)
{
	return (random_below(seed, TREES) << 8) + random_below(seed, CHAIN);
}

static void act(kvd_policy *policy, uint64_t *seed, double now_s, uint32_t *held)
{
	uint64_t keys[CHAIN], tree = random_below(seed, TREES) << 8;
	uint32_t units[CHAIN], count = 1 + (uint32_t)random_below(seed, CHAIN);
	struct kvd_policy_request request = { .now_s = now_s, .keys = keys, .count = count, .density = 1 };

	switch (random_below(seed, 10)) {
	case 0:
		*held += !kvd_policy_hold(policy, some_key(seed));
		return;
	case 1:
		*held -= !kvd_policy_unhold(policy, some_key(seed));
		return;
	case 2:
		kvd_policy_hint(policy, some_key(seed), (enum kvd_policy_hint)random_below(seed, KVD_POLICY_HINTS), now_s);
		return;
	case 3:
		kvd_policy_forget(policy, some_key(seed) | (*held ? 1ull << 40 : 0)); /* never what is held */
		return;
	case 4:
		for (uint32_t i = 0; i < count; i++) {
			keys[i] = some_key(seed);
			units[i] = 1 + (uint32_t)random_below(seed, 3);
		}
		assert_int_equal(kvd_policy_use(policy, now_s, keys, units, count), 0);
		return;
	case 5: {
		struct kvd_policy_seed found = { .key = some_key(seed), .units = 1, .below = 1, .parent = some_key(seed) };

		found.used_s = now_s - (double)random_below(seed, 10000);
		found.tier = (uint8_t)random_below(seed, 2);
		assert_int_equal(kvd_policy_seed(policy, now_s, &found, 1), 0);
		return;
	}
	default:
		for (uint32_t i = 0; i < count; i++) {
			/* From the fork on another tree's blocks. */
			keys[i] = tree + i + (i > CHAIN / 2 ? random_below(seed, 2) << 16 : 0);
			units[i] = 1 + (uint32_t)random_below(seed, 3);
		}
		request.units = units;
		request.output_tokens = (uint32_t)random_below(seed, 2000);
		request.partial = (uint8_t)random_below(seed, 2);
		request.hint = (uint8_t)random_below(seed, KVD_POLICY_HINTS);
		assert_int_equal(kvd_policy_access(policy, &request), 0);
	}
}

static void fit(kvd_policy *policy, uint64_t *hash)
{
	struct kvd_policy_victim victims[VICTIMS];
	uint32_t tiers[] = { KVD_POLICY_DDR, KVD_POLICY_NVME }, capacities[] = { CAPACITY, NVME_CAPACITY };

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t over = objects(policy, tiers[i]), count;

		over = over > capacities[i] ? over - capacities[i] : 0;
		count = kvd_policy_victims(policy, tiers[i], over, 1, NVME_CAPACITY - objects(policy, KVD_POLICY_NVME) / 2, 0.01,
					   victims, VICTIMS);
		for (uint32_t at = 0; at < count; at++) {
			uint32_t tier = (uint32_t)kvd_policy_tier_of(policy, victims[at].key);

			/* What is too old to be remembered is not. */
			assert_true(tier == victims[at].to || (victims[at].to == KVD_POLICY_GONE && tier == KVD_POLICY_UNKNOWN));
			*hash = (*hash ^ victims[at].key) * 0x100000001b3ull;
		}
	}
}

static uint64_t run(uint64_t seed)
{
	kvd_policy *policy = make(OBJECTS);
	uint64_t hash = 0;
	uint32_t held = 0;
	double now_s = 0;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		now_s += (double)random_below(&seed, 100) / 10;
		kvd_policy_tick(policy, now_s, 10);
		act(policy, &seed, now_s, &held);
		fit(policy, &hash);
		if (round % CHECK_EVERY == 0)
			assert_int_equal(kvd_policy_check(policy), 0);
	}
	kvd_policy_fini(policy);
	return hash;
}

static void test_any_order_of_calls_leaves_lists_that_agree(void **state)
{
	(void)state;
	assert_int_equal(run(88172645463325252ull), run(88172645463325252ull)); /* the same calls, the same victims */
	assert_int_not_equal(run(88172645463325252ull), run(362436069ull));
}

static uint64_t leaves_first(kvd_policy *policy, enum kvd_policy_tier tier)
{
	struct kvd_policy_victim victim;

	assert_int_equal(kvd_policy_victims(policy, tier, 1, 1, UINT64_MAX, 0, &victim, 1), 1);
	return victim.key;
}

static void test_uses_told_at_once_are_chains_where_they_go_on_from_one_another(void **state)
{
	static const uint64_t chain[] = { 1, 2, 3 }, used[] = { 1, 2, 3, 9, 8 };
	static const uint32_t units[] = { 4, 4, 4, 2, 2 };
	kvd_policy *policy = make(OBJECTS);
	struct kvd_policy_statistics seen;

	(void)state;
	assert_int_equal(ask(policy, chain, 3, 1), 0);
	assert_int_equal(kvd_policy_use(policy, 2, used, units, 5), 0);
	kvd_policy_statistics(policy, &seen);
	assert_int_equal(seen.requests, 4); /* the chain, again the chain, and two alone */
	assert_int_equal(seen.hits, 3);
	assert_int_equal(seen.groups, 3);
	assert_int_equal(leaves_first(policy, KVD_POLICY_DDR), 3); /* the tail of what was used first */
	assert_int_equal(kvd_policy_use(policy, NAN, used, units, 5), -EINVAL);
	assert_int_equal(kvd_policy_use(policy, 3, used, units, 0), 0);
	assert_int_equal(kvd_policy_check(policy), 0);
	kvd_policy_fini(policy);
}

static void test_what_a_start_finds_is_older_than_what_comes_and_leaves_in_its_order(void **state)
{
	static const uint64_t fresh = 50;
	struct kvd_policy_seed seeds[] = {
		{ .key = 11, .used_s = 100, .units = 1, .tier = KVD_POLICY_NVME },
		{ .key = 12, .used_s = 5000, .units = 1, .tier = KVD_POLICY_NVME },
		{ .key = 13, .parent = 12, .below = 1, .used_s = 9000, .units = 1, .tier = KVD_POLICY_NVME },
		{ .key = 14, .used_s = 9999, .units = 1, .tier = KVD_POLICY_DDR },
		{ .key = fresh, .used_s = 1, .units = 1, .tier = KVD_POLICY_NVME }, /* used since: stays as it is */
	};
	struct kvd_policy_least least;
	kvd_policy *policy = make(OBJECTS);

	(void)state;
	assert_int_equal(ask(policy, &fresh, 1, 10000), 0);
	assert_int_equal(kvd_policy_seed(policy, 10000, seeds, 5), 0);
	assert_int_equal(kvd_policy_check(policy), 0);
	assert_int_equal(kvd_policy_tier_of(policy, fresh), KVD_POLICY_DDR);
	assert_int_equal(kvd_policy_least(policy, KVD_POLICY_NVME, &least), 0);
	assert_float_equal(least.used_s, 100, 0);
	assert_true(least.index < 0); /* while the plain order rules */
	assert_int_equal(leaves_first(policy, KVD_POLICY_NVME), 11);
	assert_int_equal(leaves_first(policy, KVD_POLICY_NVME), 13); /* before what it hangs on */
	assert_int_equal(leaves_first(policy, KVD_POLICY_NVME), 12);
	assert_int_equal(kvd_policy_least(policy, KVD_POLICY_NVME, &least), -ENOENT);
	assert_int_equal(leaves_first(policy, KVD_POLICY_DDR), 14);
	assert_int_equal(leaves_first(policy, KVD_POLICY_DDR), fresh);
	seeds[0].tier = KVD_POLICY_GONE;
	assert_int_equal(kvd_policy_seed(policy, 10000, seeds, 1), -EINVAL);
	assert_int_equal(kvd_policy_least(policy, KVD_POLICY_GONE, &least), -EINVAL);
	assert_int_equal(kvd_policy_check(policy), 0);
	kvd_policy_fini(policy);
}

static void test_what_was_just_written_is_not_lost_for_what_nobody_has_read_either(void **state)
{
	kvd_policy *policy = make(OBJECTS);
	struct kvd_policy_victim victims[2];

	(void)state;
	for (uint64_t key = 1; key <= 400; key++) { /* also when the plain order rules no longer */
		assert_int_equal(ask(policy, &key, 1, (double)key), 0);
		assert_int_equal(kvd_policy_victims(policy, KVD_POLICY_DDR, 1, 1, 0, 0, victims, 2), 1);
		if (key > 1)
			assert_int_equal(victims[0].to, KVD_POLICY_NVME);
		else
			kvd_policy_place(policy, key, KVD_POLICY_NVME); /* nothing is there to go for it */
		while (objects(policy, KVD_POLICY_NVME) > NVME_CAPACITY)
			assert_true(leaves_first(policy, KVD_POLICY_NVME) < key);
	}
	assert_int_equal(kvd_policy_check(policy), 0);
	kvd_policy_fini(policy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_makes_no_sense_is_refused),
		cmocka_unit_test(test_tails_go_before_heads_and_held_chains_stay),
		cmocka_unit_test(test_what_is_remembered_makes_room_and_what_is_held_in_tiers_does_not),
		cmocka_unit_test(test_any_order_of_calls_leaves_lists_that_agree),
		cmocka_unit_test(test_uses_told_at_once_are_chains_where_they_go_on_from_one_another),
		cmocka_unit_test(test_what_a_start_finds_is_older_than_what_comes_and_leaves_in_its_order),
		cmocka_unit_test(test_what_was_just_written_is_not_lost_for_what_nobody_has_read_either),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
