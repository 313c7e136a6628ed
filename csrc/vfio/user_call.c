/* Requests and their answers, and the requests of the server in between. */
#include <errno.h>
#include <string.h>

#include "vfio/user.h"

enum {
	USER_SERVED_MAX = 64, /* requests of the server that one look answers */
	USER_ERRNO_MAX = 4095,
};

static int send_reply(struct vfio_user *user, const struct kvd_vfu_header *request, int err, const void *payload,
		      size_t bytes)
{
	struct kvd_vfu_header header = {
		.id = request->id,
		.command = request->command,
		.bytes = (uint32_t)(sizeof(header) + (err ? 0 : bytes)),
		.flags = KVD_VFU_TYPE_REPLY | (err ? KVD_VFU_ERROR : 0),
		.error = (uint32_t)-err,
	};
	struct iovec pieces[2] = {
		{.iov_base = &header, .iov_len = sizeof(header)},
		{.iov_base = (void *)(uintptr_t)payload, .iov_len = err ? 0 : bytes},
	};

	if (request->flags & KVD_VFU_NO_REPLY)
		return 0;
	return kvd_vfio_chan_send(&user->chan, pieces, 2, NULL, 0, user->vfio.until_ns);
}

/* DMA of a server that has not mapped the memory. `bytes`: of the payload, the access included. */
static int dma_access(struct vfio_user *user, uint16_t command, const uint8_t *payload, size_t bytes, size_t *out_bytes)
{
	struct kvd_vfu_dma_access access;
	bool reads = command == KVD_VFU_DMA_READ;

	if (bytes < sizeof(access))
		return -EINVAL;
	memcpy(&access, payload, sizeof(access));
	memcpy(user->out, &access, sizeof(access));
	*out_bytes = sizeof(access);
	if (access.count > KVD_VFU_DEFAULT_XFER_BYTES || bytes - sizeof(access) != (reads ? 0 : access.count))
		return -EINVAL;
	if (!reads)
		return kvd_vfio_dmas_write(&user->vfio.dmas, access.iova, payload + sizeof(access), access.count);
	*out_bytes += access.count;
	return kvd_vfio_dmas_read(&user->vfio.dmas, access.iova, user->out + sizeof(access), access.count);
}

/* Answer the request that the channel holds. */
static int serve(struct vfio_user *user)
{
	struct kvd_vfu_header header;
	size_t bytes = 0;
	int err = -ENOTSUP;

	memcpy(&header, user->chan.in, sizeof(header));
	if (header.command == KVD_VFU_DMA_READ || header.command == KVD_VFU_DMA_WRITE)
		err = dma_access(user, header.command, user->chan.in + sizeof(header), header.bytes - sizeof(header),
				 &bytes);
	kvd_vfio_chan_drop(&user->chan);
	return send_reply(user, &header, err, user->out, bytes);
}

static bool is_reply(const struct kvd_vfio_chan *chan, struct kvd_vfu_header *header)
{
	memcpy(header, chan->in, sizeof(*header));
	return (header->flags & KVD_VFU_TYPE_MASK) == KVD_VFU_TYPE_REPLY;
}

/* Is the server's command one, as far as its header goes? */
static bool is_command(const struct kvd_vfu_header *header)
{
	return (header->flags & KVD_VFU_TYPE_MASK) == KVD_VFU_TYPE_COMMAND;
}

/* The answer to the last call has been read. A request of the server that has come, or is coming, stays. */
static void forget_answer(struct vfio_user *user)
{
	if (user->answered)
		kvd_vfio_chan_drop(&user->chan);
	user->answered = false;
}

int kvd_vfio_user_look(struct kvd_vfio *vfio)
{
	struct vfio_user *user = (struct vfio_user *)vfio;
	struct kvd_vfu_header header;

	forget_answer(user);
	for (uint32_t i = 0; i < USER_SERVED_MAX; i++) {
		int err = kvd_vfio_chan_look(&user->chan);

		if (err)
			return err == -EAGAIN ? 0 : err;
		/* Nothing was asked, so nothing can be answered. */
		if (is_reply(&user->chan, &header) || !is_command(&header))
			return -ENODEV;
		err = serve(user);
		if (err)
			return err;
	}
	return 0;
}

static int send_request(struct vfio_user *user, const struct vfio_user_call *call, uint16_t id)
{
	struct kvd_vfu_header header = {.id = id, .command = call->command, .bytes = sizeof(header)};
	struct iovec pieces[1 + 2] = {{.iov_base = &header, .iov_len = sizeof(header)}};

	for (uint32_t i = 0; i < call->n_payload; i++) {
		pieces[1 + i] = call->payload[i];
		header.bytes += (uint32_t)call->payload[i].iov_len;
	}
	return kvd_vfio_chan_send(&user->chan, pieces, 1 + call->n_payload, call->fds, call->n_fds,
				  user->vfio.until_ns);
}

/* What an answer says. The server is not trusted: a wrong one ends the connection. */
static int judge(const struct vfio_user_call *call, const struct kvd_vfu_header *header, uint16_t id)
{
	size_t bytes = header->bytes - sizeof(*header);

	if (header->id != id || header->command != call->command)
		return -ENODEV;
	if (header->flags & KVD_VFU_ERROR)
		return header->error && header->error <= USER_ERRNO_MAX ? -(int)header->error : -EIO;
	return bytes < call->reply_min || bytes > call->reply_max ? -ENODEV : 0;
}

int kvd_vfio_user_call(struct vfio_user *user, const struct vfio_user_call *call, const void **reply, size_t *bytes)
{
	uint16_t id = user->next_id++;
	struct kvd_vfu_header header;
	int err;

	forget_answer(user);
	err = send_request(user, call, id);
	while (!err) {
		err = kvd_vfio_chan_receive(&user->chan, user->vfio.until_ns);
		if (err)
			break;
		if (is_reply(&user->chan, &header)) {
			user->answered = true;
			*reply = user->chan.in + sizeof(header);
			*bytes = header.bytes - sizeof(header);
			return judge(call, &header, id);
		}
		if (!is_command(&header))
			return -ENODEV;
		/* A server that asks on and on does not make the call last for ever: to receive ends in time. */
		err = serve(user);
	}
	return err;
}
