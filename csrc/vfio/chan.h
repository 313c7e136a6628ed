/* Whole messages over the socket of vfio-user, each wait bounded, with the descriptors that ride beside them. */
#ifndef KVD_VFIO_CHAN_H
#define KVD_VFIO_CHAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "vfio/proto.h"

enum { KVD_VFIO_CHAN_PIECES_MAX = 4 }; /* of a message that is sent, the header being one */

struct kvd_vfio_chan {
	int fd;
	uint8_t *in; /* the message that is being received, or was last */
	size_t in_room;
	size_t in_have;
	int fds[KVD_VFU_MSG_FDS_MAX]; /* that came with it; owned; -1: taken */
	uint32_t n_fds;
};

/* `in_room`: the longest message that is taken, header included. The descriptor is owned from then on. */
int kvd_vfio_chan_init(struct kvd_vfio_chan *chan, int fd, size_t in_room);
void kvd_vfio_chan_fini(struct kvd_vfio_chan *chan);
/*
 * Send a message. Meanwhile the next incoming one is read, so that two who send at once don't wait for each other.
 * -ETIMEDOUT, -ENODEV: a part of it may be sent, the channel is of no more use.
 */
int kvd_vfio_chan_send(struct kvd_vfio_chan *chan, const struct iovec *pieces, uint32_t n_pieces, const int *fds,
		       uint32_t n_fds, uint64_t until_ns);
/* Wait until a message is whole. -ENODEV: the peer hung up, or sends what can't be a message. */
int kvd_vfio_chan_receive(struct kvd_vfio_chan *chan, uint64_t until_ns);
/* The same without waiting: -EAGAIN. */
int kvd_vfio_chan_look(struct kvd_vfio_chan *chan);
/* Done with the message: its descriptors are closed. */
void kvd_vfio_chan_drop(struct kvd_vfio_chan *chan);
/* Take over the first descriptor of the message; -1: none. */
int kvd_vfio_chan_take_fd(struct kvd_vfio_chan *chan);

#endif
