/* READs of cold objects, in threads of their own: what the other files of the split see of cold.c and cold_keep.c. */
#ifndef KVD_FUSE_COLD_H
#define KVD_FUSE_COLD_H

#include <stdbool.h>
#include <stdint.h>

#include "fuse/split.h"

struct kvd_cold;
struct kvd_object;
struct kvd_request;

int kvd_cold_init(kvd_split *split, struct kvd_cold **out);
/* After kvd_cold_stop. What a drive keeps is freed by the thread that gets it back. */
void kvd_cold_fini(struct kvd_cold *cold);
/* Answer all with ENOTCONN; wait for the threads, but not long for those that a drive keeps. Once no reader is left. */
void kvd_cold_stop(struct kvd_cold *cold);
/* Of a verified object without a stream. 0: somebody answers; or the -errno that the caller answers. */
int kvd_cold_read(kvd_split *split, struct kvd_object *object, const struct kvd_request *request);
/* True if the READ was here and the caller has to answer EINTR; to be asked after kvd_pending_interrupt. */
bool kvd_cold_interrupt(kvd_split *split, uint64_t unique);
/*
 * An object without references, out of the table, is about to be freed: its READs are served anew, or answered EIO. True: a
 * drive keeps one, and who gets it back frees the object.
 */
bool kvd_cold_end(struct kvd_cold *cold, struct kvd_object *object, bool switched);
void kvd_cold_sizes(kvd_split *split, struct kvd_split_stats *out);

#endif
