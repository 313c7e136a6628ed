/*
 * DMA to memory that the client gave no descriptor for: DMA_READ and DMA_WRITE messages, over the twin socket where
 * there is one. Over the one socket the client's commands may come in between; they are put aside and done after.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "model/internal.h"

static int wait_for(int fd, short events, int64_t deadline_ms)
{
	for (;;) {
		int64_t left_ms = deadline_ms - kvd_card_now_ms();
		struct pollfd poll_fd = {.fd = fd, .events = events};
		int n;

		if (left_ms <= 0)
			return -ETIMEDOUT;
		n = poll(&poll_fd, 1, (int)left_ms);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

static struct kvd_card_conn *channel(struct kvd_card *card)
{
	return card->twin.fd >= 0 ? &card->twin : &card->conn;
}

static int send_all(struct kvd_card_conn *conn, int sent, int64_t deadline_ms)
{
	while (sent == 1) {
		int err = wait_for(conn->fd, POLLOUT, deadline_ms);

		if (err)
			return err;
		sent = kvd_card_conn_flush(conn);
	}
	return sent;
}

/* Wait for the reply to our command `id`; it is then the present message of the channel. */
static int await_reply(struct kvd_card *card, struct kvd_card_conn *conn, uint16_t id, int64_t deadline_ms)
{
	for (;;) {
		int got = kvd_card_conn_receive(conn);
		int err;

		if (got < 0)
			return got;
		if (!got) {
			err = wait_for(conn->fd, POLLIN, deadline_ms);
			if (err)
				return err;
			continue;
		}
		if ((conn->header.flags & KVD_VFU_TYPE_MASK) == KVD_VFU_TYPE_REPLY) {
			if (conn->header.id == id)
				return 0;
			card->stats.dropped++;
			kvd_card_conn_next(conn); /* to a command that we gave up */
		} else if (conn == &card->conn) {
			err = kvd_card_conn_defer(conn);
			if (err)
				return err;
		} else {
			return -EPROTO;
		}
	}
}

static int check_reply(const struct kvd_card_request *reply, uint16_t command, const struct kvd_vfu_dma_access *asked,
		       uint64_t data_bytes)
{
	struct kvd_vfu_dma_access got;

	if (reply->header.command != command)
		return -EPROTO;
	if (reply->header.flags & KVD_VFU_ERROR)
		return -EIO;
	if (reply->bytes != sizeof(got) + data_bytes)
		return -EIO;
	memcpy(&got, reply->payload, sizeof(got));
	return got.iova == asked->iova && got.count == asked->count ? 0 : -EIO;
}

static int exchange(struct kvd_card *card, uint64_t iova, void *data, uint32_t bytes, bool write)
{
	int64_t deadline_ms = kvd_card_now_ms() + KVD_CARD_DMA_DEADLINE_MS;
	const struct kvd_vfu_dma_access asked = {.iova = iova, .count = bytes};
	struct kvd_card_conn *conn = channel(card);
	struct kvd_card_request answer;
	struct kvd_card_reply message;
	struct kvd_vfu_header header = {
		.id = ++card->dma_id,
		.command = write ? KVD_VFU_DMA_WRITE : KVD_VFU_DMA_READ,
	};
	int err;

	/* An answer of ours may still be on its way out. */
	err = send_all(conn, kvd_card_conn_flush(conn), deadline_ms);
	if (err)
		return err;
	kvd_card_conn_reply_begin(conn, &message);
	memcpy(message.payload, &asked, sizeof(asked));
	message.bytes = sizeof(asked);
	if (write) {
		memcpy(message.payload + sizeof(asked), data, bytes);
		message.bytes += bytes;
	}
	err = send_all(conn, kvd_card_conn_send(conn, &header, &message), deadline_ms);
	if (err)
		return err;
	err = await_reply(card, conn, header.id, deadline_ms);
	if (err)
		return err;
	kvd_card_conn_request(conn, &answer);
	err = check_reply(&answer, header.command, &asked, write ? 0 : bytes);
	if (!err && !write)
		memcpy(data, answer.payload + sizeof(asked), bytes);
	kvd_card_conn_next(conn);
	return err;
}

static int copy_messages(struct kvd_card *card, uint64_t iova, uint8_t *data, uint64_t bytes, bool write)
{
	uint64_t piece_bytes = KVD_CARD_DMA_PIECE_BYTES;

	if (piece_bytes > card->caps.max_data_xfer_bytes)
		piece_bytes = card->caps.max_data_xfer_bytes;
	while (bytes) {
		uint32_t piece = (uint32_t)(bytes < piece_bytes ? bytes : piece_bytes);
		int err = exchange(card, iova, data, piece, write);

		if (err) {
			/* An error reply is an answer; after anything else the client is out of step or gone. */
			if (err != -EIO)
				card->hang_up = true;
			return err;
		}
		iova += piece;
		data += piece;
		bytes -= piece;
	}
	return 0;
}

int kvd_card_dma_copy(struct kvd_card *card, uint64_t iova, void *data, uint64_t bytes, bool write)
{
	uint8_t *at = data;

	if (!kvd_card_dma_allowed(card, iova, bytes, write))
		return -EFAULT;
	while (bytes) {
		const struct kvd_card_map *map = kvd_card_dma_find(&card->dma, iova);
		uint64_t left = map->iova + map->bytes - iova;
		uint64_t piece = bytes < left ? bytes : left;
		uint8_t *memory = card->dma.window + iova;
		int err;

		if (!map->direct)
			err = card->hang_up ? -EIO : copy_messages(card, iova, at, piece, write);
		else
			err = kvd_card_guard_copy(write ? memory : at, write ? at : memory, piece);
		if (err)
			return err;
		iova += piece;
		at += piece;
		bytes -= piece;
	}
	return 0;
}
