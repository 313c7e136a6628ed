/* READs that wait for a stream: what the other files of the split see of stream.c and wait.c. */
#ifndef KVD_FUSE_WAIT_H
#define KVD_FUSE_WAIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fuse/split.h"

struct kvd_object;
struct kvd_reader;
struct kvd_request;

TAILQ_HEAD(kvd_wait_list, kvd_wait);

struct kvd_waits {
	pthread_mutex_t lock;
	struct kvd_wait_list all;   /* in order of their deadlines */
	struct kvd_wait_list ready; /* to be served */
	atomic_uint count;
	atomic_uint n_ready;
};

/* stream.c */
/* Give an object that is in no table yet its stream, if it shall have one. */
int kvd_wait_begin(kvd_split *split, struct kvd_object *object, const struct kvd_split_object *want);
/* An object without references, out of the table, has no stream any more: serve its READs anew, or answer EIO. */
void kvd_wait_end(kvd_split *split, struct kvd_object *object, bool switched);
/* Of an object with a stream. 1: what is read is there; 0: it waits, somebody else answers; or -errno. */
int kvd_wait_read(kvd_split *split, struct kvd_object *object, const struct kvd_request *request);
/* The stream of that node has something new. */
void kvd_wait_wake(kvd_split *split, uint64_t node);

/* wait.c */
int kvd_waits_init(struct kvd_waits *waits);
void kvd_waits_fini(struct kvd_waits *waits);
/* True if the READ waited and the caller has to answer EINTR; to be asked after kvd_pending_interrupt. */
bool kvd_wait_interrupt(kvd_split *split, uint64_t unique);
/* How long epoll_wait may wait for the next deadline; -1: for ever. */
int kvd_wait_timeout_ms(kvd_split *split);
void kvd_wait_expire(kvd_split *split);
/* Answer the READs that can be answered. */
void kvd_wait_work(struct kvd_reader *reader);
/* Answer all with ENOTCONN, once no reader is left. */
void kvd_wait_drain(kvd_split *split);

#endif
