/* How the test server answers wrong. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vfio_server.h"

enum {
	FAULT_TRICKLE_MS = 10,
	FAULT_FDS = 80, /* more than a message may have */
	FAULT_PIECE_BYTES = 3,
};

bool server_send(struct server *server, const struct kvd_vfu_header *header, const void *payload, size_t bytes,
		 const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(FAULT_FDS * sizeof(int))];
	} control = {0};
	struct iovec iov[2] = {
		{.iov_base = (void *)(uintptr_t)header, .iov_len = sizeof(*header)},
		{.iov_base = (void *)(uintptr_t)payload, .iov_len = bytes},
	};
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

	if (n_fds) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, n_fds * sizeof(int));
	}
	for (size_t left = sizeof(*header) + bytes; left;) {
		ssize_t n = sendmsg(server->fd, &message, MSG_NOSIGNAL);

		if (n < 0)
			return false;
		left -= (size_t)n;
		for (size_t step = (size_t)n, i = 0; i < 2; i++) {
			size_t part = step < iov[i].iov_len ? step : iov[i].iov_len;

			iov[i].iov_base = (uint8_t *)iov[i].iov_base + part;
			iov[i].iov_len -= part;
			step -= part;
		}
		message.msg_control = NULL;
		message.msg_controllen = 0;
	}
	return true;
}

bool server_is_due(struct server *server)
{
	return server->fault && server->header.command == server->fault_command && !server->fault_after--;
}

/* Until the client has had enough. */
static bool wait_for_end(struct server *server)
{
	struct pollfd poll_fd = {.fd = server->fd, .events = POLLRDHUP};

	poll(&poll_fd, 1, SERVER_DEADLINE_MS);
	return false;
}

/* `bytes` of a message in pieces; a `pause` between them. */
static bool in_pieces(struct server *server, const void *message, size_t bytes, size_t piece, int pause_ms)
{
	for (size_t at = 0; at < bytes; at += piece) {
		size_t part = bytes - at < piece ? bytes - at : piece;
		struct pollfd poll_fd = {.fd = server->fd, .events = POLLRDHUP};

		if (send(server->fd, (const uint8_t *)message + at, part, MSG_NOSIGNAL) < 0 ||
		    (pause_ms && poll(&poll_fd, 1, pause_ms)))
			return false;
	}
	return true;
}

static bool flood(struct server *server)
{
	struct kvd_vfu_header header = {
		.command = KVD_VFU_DMA_READ, .bytes = sizeof(header) + 16, .flags = KVD_VFU_NO_REPLY,
	};
	struct kvd_vfu_dma_access access = {.count = 8};

	while (server_send(server, &header, &access, sizeof(access), NULL, 0))
		;
	return false;
}

static bool with_fds(struct server *server, struct kvd_vfu_header *header, const void *payload, size_t bytes,
		     uint32_t n)
{
	int fds[FAULT_FDS];

	for (uint32_t i = 0; i < n; i++)
		fds[i] = server->bar0_fd;
	return server_send(server, header, payload, bytes, fds, n);
}

/* Faults that break off or never come to an end. */
static bool answer_cut(struct server *server, struct kvd_vfu_header *header, const void *payload, size_t bytes)
{
	uint8_t *whole = malloc(header->bytes);
	bool on = false;

	memcpy(whole, header, sizeof(*header));
	if (bytes)
		memcpy(whole + sizeof(*header), payload, bytes);
	switch (server->fault) {
	case FAULT_CUT:
		send(server->fd, whole, sizeof(*header) / 2, MSG_NOSIGNAL);
		break;
	case FAULT_CUT_LATE:
		send(server->fd, whole, header->bytes - 1, MSG_NOSIGNAL);
		break;
	case FAULT_TRICKLE:
		in_pieces(server, whole, header->bytes - 1, 1, FAULT_TRICKLE_MS);
		wait_for_end(server);
		break;
	case FAULT_PIECES:
		on = in_pieces(server, whole, header->bytes, FAULT_PIECE_BYTES, 0);
		break;
	case FAULT_SILENCE:
		wait_for_end(server);
		break;
	case FAULT_FLOOD:
		flood(server);
		break;
	default:
		break; /* hang up */
	}
	free(whole);
	return on;
}

static bool answer_error(struct server *server, struct kvd_vfu_header *header, uint32_t error)
{
	header->flags |= KVD_VFU_ERROR;
	header->error = error;
	header->bytes = sizeof(*header);
	return server_send(server, header, NULL, 0, NULL, 0);
}

static bool answer_wrong(struct server *server, struct kvd_vfu_header *header, const void *payload, size_t bytes)
{
	static const uint8_t extra[1 << 21];

	switch (server->fault) {
	case FAULT_ID:
		header->id++;
		break;
	case FAULT_COMMAND:
		header->command++;
		break;
	case FAULT_TYPE:
		header->flags |= KVD_VFU_TYPE_MASK;
		break;
	case FAULT_SHORT:
		bytes -= bytes != 0;
		break;
	case FAULT_LONG:
		payload = extra;
		bytes += server->header.command == KVD_VFU_VERSION ||
			 server->header.command == KVD_VFU_DEVICE_GET_REGION_INFO ||
			 server->header.command == KVD_VFU_DEVICE_GET_INFO ? 70000 : 1;
		break;
	case FAULT_EMPTY:
		bytes = 0;
		break;
	case FAULT_TINY:
		header->bytes = sizeof(*header) - 1;
		return server_send(server, header, payload, bytes, NULL, 0);
	case FAULT_HUGE:
		header->bytes = UINT32_MAX;
		return server_send(server, header, payload, bytes, NULL, 0);
	case FAULT_UNASKED:
		header->id += 100;
		server_send(server, header, payload, bytes, NULL, 0);
		header->id -= 100;
		break;
	case FAULT_FLOOD_FDS:
		return with_fds(server, header, payload, bytes, FAULT_FDS);
	case FAULT_STRAY_FDS:
		return with_fds(server, header, payload, bytes, 5);
	case FAULT_ERROR:
		return answer_error(server, header, EEXIST);
	case FAULT_ERROR_ZERO:
		return answer_error(server, header, 0);
	case FAULT_ERROR_WILD:
		return answer_error(server, header, 1u << 31);
	default:
		return answer_cut(server, header, payload, bytes);
	}
	header->bytes = (uint32_t)(sizeof(*header) + bytes);
	return server_send(server, header, payload, bytes, NULL, 0);
}

bool server_answer(struct server *server, const void *payload, size_t bytes, int error, const int *fds, uint32_t n_fds)
{
	struct kvd_vfu_header header = {
		.id = server->header.id,
		.command = server->header.command,
		.bytes = (uint32_t)(sizeof(header) + bytes),
		.flags = KVD_VFU_TYPE_REPLY | (error ? KVD_VFU_ERROR : 0),
		.error = (uint32_t)error,
	};

	if (server->fault != FAULT_HANG_UP_EARLY && server_is_due(server))
		return answer_wrong(server, &header, payload, bytes);
	return server_send(server, &header, payload, bytes, fds, n_fds);
}
