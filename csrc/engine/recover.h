/* Private to recovery: recover.c, rebuild.c, rebuild_pool.c. */
#ifndef KVD_ENGINE_RECOVER_H
#define KVD_ENGINE_RECOVER_H

#include "engine/prefix.h"

/* What to do with entries that have no valid bit. */
enum kvd_provisional {
	KVD_PROVISIONAL_DAMAGE, /* there should be none */
	KVD_PROVISIONAL_DROP,
	KVD_PROVISIONAL_VALIDATE,
	KVD_PROVISIONAL_KEEP,   /* the command that made them will come back to them */
};

/* A frame of a tier. */
struct kvd_place {
	uint32_t tier;
	uint64_t number;
};

/* A list that grows. */
struct kvd_places {
	struct kvd_place *at;
	uint64_t count;
	uint64_t room;
	bool failed; /* no memory: what could not be added is missing */
};

struct kvd_rebuild {
	struct kvd_engine *engine;
	struct kvd_engine_recovery *result;
	size_t text_used;
	struct kvd_engine_loss loss;      /* that grows */
	const char *reason;               /* of that loss */
	const struct kvd_session *changed; /* the session of the intent */
	enum kvd_provisional provisional[KVD_ENGINE_SLOTS_MAX]; /* its slots */
	bool happened;                    /* the command of the intent */
	struct kvd_prefix_recovery prefix;
	bool scratch;                     /* the intent's table is to be kept */
	uint64_t *units;                  /* a bit for each unit of the heap that a table has */
	uint64_t *contested;              /* the same for what two tables claimed, in this pass or before */
	bool again;                       /* something became contested in this pass */
	struct kvd_places shared;         /* each meeting of a frame after the first */
	struct kvd_places conflicts;      /* frames that two have and only one may; none of them keeps it */
	uint64_t sessions;                /* contexts to look at */
	uint64_t nodes_left;              /* that verifying may still meet: in mended tables no node is met twice */
	uint64_t sorted;                  /* conflicts that were known when this pass began, in order */
};

/* Make all that is derived from the truth, and cut out what contradicts itself. 0, -ENOMEM or -EIO. */
int kvd_rebuild_run(struct kvd_rebuild *rebuild);
/* Remember pages that are gone; neighbours make one loss. */
void kvd_rebuild_lost(struct kvd_rebuild *rebuild, uint64_t session, uint32_t slot, uint64_t first, uint64_t count,
		      const char *reason);
void kvd_rebuild_lost_end(struct kvd_rebuild *rebuild);

/* rebuild_pool.c */
void kvd_places_add(struct kvd_places *places, uint32_t tier, uint64_t number);
void kvd_places_sort(struct kvd_places *places);
/* Is it among the first `count`, which are sorted? */
bool kvd_places_have(const struct kvd_places *places, uint64_t count, uint32_t tier, uint64_t number);
/* Claim a node; false: somebody else claims it too, or part of it. */
bool kvd_rebuild_claim(struct kvd_rebuild *rebuild, uint64_t link);
void kvd_rebuild_unclaim(struct kvd_rebuild *rebuild, uint64_t link);
/* The nodes of the prefix index; and, when all else is settled, the index itself. */
void kvd_rebuild_prefix_claim(struct kvd_rebuild *rebuild);
void kvd_rebuild_prefix(struct kvd_rebuild *rebuild);
/* No frame is used. */
void kvd_rebuild_reset_frames(struct kvd_engine *engine, uint32_t tier);
/* The free lists of nodes: what no table has. */
void kvd_rebuild_pool(struct kvd_rebuild *rebuild);

#endif
