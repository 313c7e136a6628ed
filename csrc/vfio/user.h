/* The client of vfio-user: one request at a time, while what the server asks is answered. */
#ifndef KVD_VFIO_USER_H
#define KVD_VFIO_USER_H

#include "vfio/chan.h"
#include "vfio/internal.h"

struct vfio_user {
	struct kvd_vfio vfio; /* first: a handle is one of these */
	struct kvd_vfio_chan chan;
	uint32_t xfer_bytes;  /* what the server takes in one REGION_READ or REGION_WRITE */
	uint32_t msg_fds;     /* descriptors that it takes in one message */
	uint16_t next_id;
	bool answered;        /* the channel holds the answer to the last call */
	uint8_t *out;         /* the answer to a DMA_READ */
};

struct vfio_user_call {
	uint16_t command;
	struct iovec payload[2];
	uint32_t n_payload;
	const int *fds;
	uint32_t n_fds;
	/* The payload of the answer must have from `reply_min` to `reply_max` bytes. */
	size_t reply_min;
	size_t reply_max;
};

/* user_call.c */
/*
 * Send a request and wait for its answer, whose payload is at *reply until the next call. Returns 0, or what an error
 * reply says, or -ENODEV, or -ETIMEDOUT. The first descriptor of the answer is to be had from the channel.
 */
int kvd_vfio_user_call(struct vfio_user *user, const struct vfio_user_call *call, const void **reply, size_t *bytes);
/* Answer what the server has asked meanwhile, without waiting for more. */
int kvd_vfio_user_look(struct kvd_vfio *vfio);

/* user_ops.c */
extern const struct kvd_vfio_ops kvd_vfio_user_ops;
int kvd_vfio_user_region_info(struct vfio_user *user, uint32_t region);
int kvd_vfio_user_irq_info(struct vfio_user *user, uint32_t irq);

#endif
