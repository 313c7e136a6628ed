/*
 * READs that wait for a stream, as stream.c and wait.c share them; cold.c keeps its READs in the same form.
 *
 * A waiting READ is in the list of its object, where whoever holds a reference may put it, or, once it can be answered, in
 * the list of those to serve; who takes it out of its list answers it, and owns it.
 */
#ifndef KVD_FUSE_WAIT_LIST_H
#define KVD_FUSE_WAIT_LIST_H

#include <time.h>

#include "fuse/internal.h"

struct kvd_wait {
	TAILQ_ENTRY(kvd_wait) all;  /* of kvd_waits.all */
	TAILQ_ENTRY(kvd_wait) link; /* of kvd_object.waits or kvd_waits.ready */
	struct kvd_object *object;  /* NULL: in `ready` */
	uint64_t deadline_ns;
	uint32_t device;            /* cold_keep.c: 1 + the one that kept it too long */
	struct {
		struct fuse_in_header header;
		struct fuse_read_in in;
	} request;
};

/* With kvd_waits.lock held. */
void kvd_wait_put(struct kvd_waits *waits, struct kvd_object *object, struct kvd_wait *wait);
void kvd_wait_take(struct kvd_waits *waits, struct kvd_wait *wait);
/* From its object's list to that of those to serve. */
void kvd_wait_ready(struct kvd_waits *waits, struct kvd_wait *wait);

/* Without. Take out a READ, if nobody else has. */
struct kvd_wait *kvd_wait_take_unique(struct kvd_waits *waits, uint64_t unique);
/* A copy of a READ, in no list; NULL without memory. */
struct kvd_wait *kvd_wait_new(const kvd_split *split, const struct kvd_request *request);
/* Answer the READs of a list that are in no other, or serve them anew. */
void kvd_wait_refuse(kvd_split *split, struct kvd_wait_list *list, int error);
void kvd_wait_again(kvd_split *split, struct kvd_wait_list *list);

/* CLOCK_MONOTONIC. */
uint64_t kvd_wait_now_ns(void);
uint64_t kvd_wait_ns(uint32_t ms);
struct timespec kvd_wait_timespec(uint64_t at_ns);

#endif
