/*
 * Who gets the next free buffer of a device. Each class has a share of the depth that is always its own: a quarter is the
 * demotions', one buffer that of what is read ahead and one that of verifications, and the rest that of promotions that
 * somebody waits for. So writers under pressure are not starved by readers, and a move that is low in the order ends
 * before its deadline. What a class leaves of its share goes to the others in order, up to their maxima; but a quarter of
 * the depth only promotions that somebody waits for may borrow, so that one that comes now finds buffers.
 */
#include "mover/lane.h"

enum {
	CLASS_DEMOTE_SHARE = 4, /* the depth by this */
	CLASS_DEMOTE_MAX = 2,   /* the same */
	CLASS_KEPT = 4,         /* the same: what only promotions may borrow */
	CLASS_LOW_SHARE = 1,
	CLASS_VERIFY_MAX = 2,
};

static uint32_t share_of(uint32_t class, uint32_t depth)
{
	uint32_t demote = depth / CLASS_DEMOTE_SHARE;

	switch (class) {
	case KVD_LANE_PROMOTE:
		return depth - demote - 2 * CLASS_LOW_SHARE;
	case KVD_LANE_DEMOTE:
		return demote;
	default:
		return CLASS_LOW_SHARE;
	}
}

static uint32_t max_of(uint32_t class, uint32_t depth)
{
	switch (class) {
	case KVD_LANE_DEMOTE:
		return depth / CLASS_DEMOTE_MAX;
	case KVD_LANE_VERIFY:
		return CLASS_VERIFY_MAX;
	default:
		return depth;
	}
}

uint32_t kvd_lane_next_class(const uint32_t in_flight[KVD_LANE_CLASSES], const bool ready[KVD_LANE_CLASSES],
			     uint32_t depth)
{
	uint32_t class, free = depth;

	for (class = 0; class < KVD_LANE_CLASSES; class++)
		free -= in_flight[class];
	for (class = 0; class < KVD_LANE_CLASSES; class++)
		if (ready[class] && in_flight[class] < share_of(class, depth))
			return class;
	for (class = 0; class < KVD_LANE_CLASSES; class++)
		if (ready[class] && in_flight[class] < max_of(class, depth) &&
		    (class == KVD_LANE_PROMOTE || free > depth / CLASS_KEPT))
			return class;
	return KVD_LANE_CLASSES;
}
