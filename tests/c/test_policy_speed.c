/* What the Gittins policy costs with a million objects in DDR: a benchmark, run by `meson test --benchmark`. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "policy/policy.h"

#define CHAIN 24u
#define CHAINS 41667u /* a million objects in DDR */
#define REQUESTS 100000u
#define KNOWN_SHARE 3u /* one request in so many goes on with a chain */
#define KNOWN_AGO 1000u /* one that was new so many requests ago */
#define GAP_S 0.05
#define VICTIMS 4096u
#define OBJECTS_MAX (1u << 22)
#define STEPS 4096u /* of a slice of a tick */

static double clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void fill(uint64_t *keys, uint64_t chain)
{
	for (uint32_t i = 0; i < CHAIN; i++)
		keys[i] = chain << 8 | i;
}

static int ask(kvd_policy *policy, uint64_t chain, double now_s)
{
	uint64_t keys[CHAIN];
	struct kvd_policy_request request = {
		.now_s = now_s, .keys = keys, .count = CHAIN, .density = 1, .output_tokens = (uint32_t)(chain * 7 % 2000)
	};

	fill(keys, chain);
	return kvd_policy_access(policy, &request);
}

/* Each object that is asked for and each victim is an event. */
static void measure_events(kvd_policy *policy, double *now_s)
{
	static struct kvd_policy_victim victims[VICTIMS];
	double start_us = clock_us(), worst_us = 0;
	uint64_t events = 0;

	for (uint64_t i = 0; i < REQUESTS; i++) {
		double before_us = clock_us(), took_us;
		struct kvd_policy_statistics seen;

		*now_s += GAP_S;
		if (ask(policy, i % KNOWN_SHARE ? CHAINS + i : CHAINS + i - KNOWN_AGO, *now_s))
			exit(1);
		kvd_policy_statistics(policy, &seen);
		events += CHAIN;
		if (seen.objects[KVD_POLICY_DDR] > CHAINS * CHAIN)
			events += kvd_policy_victims(policy, KVD_POLICY_DDR, seen.objects[KVD_POLICY_DDR] - CHAINS * CHAIN, 0, 0,
						     0, victims, VICTIMS);
		took_us = clock_us() - before_us;
		worst_us = took_us > worst_us ? took_us : worst_us;
	}
	printf("  an event %.3f us of %lu, the longest request with its victims %.0f us\n",
	       (clock_us() - start_us) / (double)events, (unsigned long)events, worst_us);
}

/* A tick in which every group passes to another age. */
static void measure_tick(kvd_policy *policy, double now_s)
{
	double all_us = 0, worst_us = 0;
	int more = 1;

	while (more) {
		double before_us = clock_us(), took_us;

		more = kvd_policy_tick(policy, now_s, STEPS);
		took_us = clock_us() - before_us;
		all_us += took_us;
		worst_us = took_us > worst_us ? took_us : worst_us;
	}
	printf("  a tick of all groups %.1f ms, its longest slice %.2f ms\n", all_us / 1e3, worst_us / 1e3);
}

int main(void)
{
	struct kvd_policy_config config = { .objects_max = OBJECTS_MAX, .ghost_s = 1800, .half_life = 5000 };
	kvd_policy *policy;
	double now_s = 0;

	if (kvd_policy_init(&config, &policy))
		return 1;
	for (uint64_t chain = 0; chain < CHAINS; chain++)
		if (ask(policy, chain, now_s += GAP_S))
			return 1;
	printf("A million objects in DDR, chains of %u\n", CHAIN);
	measure_events(policy, &now_s);
	measure_tick(policy, now_s + 600);
	kvd_policy_fini(policy);
	return 0;
}
