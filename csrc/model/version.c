/* The first message: versions and capabilities. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "model/internal.h"

/* Our end is the twin; the client's end waits for the reply that carries it. */
static int make_twin(struct kvd_card *card)
{
	int ends[2];
	int err;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
		return -errno;
	err = kvd_card_conn_init(&card->twin, ends[0]);
	if (err) {
		close(ends[0]);
		close(ends[1]);
		card->twin.fd = -1;
		return err;
	}
	card->twin_peer = ends[1];
	return 0;
}

struct text {
	char *at;
	size_t left;
	const char *separator;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
	va_list arguments;
	int n = snprintf(text->at, text->left, "%s", text->separator);

	text->at += n;
	text->left -= (size_t)n;
	va_start(arguments, format);
	n = vsnprintf(text->at, text->left, format, arguments);
	va_end(arguments);
	text->at += n;
	text->left -= (size_t)n;
	text->separator = ",";
}

/* Only what was proposed is answered, as the specification has it; for the rest its defaults hold. */
static size_t write_caps(const struct kvd_card *card, char *out, size_t bytes)
{
	struct text text = {out, bytes, ""};

	add(&text, "{\"capabilities\":{");
	text.separator = "";
	if (card->caps.has_msg_fds)
		add(&text, "\"max_msg_fds\":%d", KVD_CARD_MSG_FDS);
	if (card->caps.has_xfer)
		add(&text, "\"max_data_xfer_size\":%d", KVD_CARD_XFER_BYTES);
	if (card->caps.has_dma_maps)
		add(&text, "\"max_dma_maps\":%d", KVD_CARD_MAPS_MAX);
	if (card->caps.has_pgsizes)
		add(&text, "\"pgsizes\":%d", KVD_CARD_PAGE_BYTES);
	if (card->caps.write_multiple)
		add(&text, "\"write_multiple\":true");
	if (card->twin.fd >= 0)
		add(&text, "\"twin_socket\":{\"supported\":true,\"fd_index\":0}");
	text.separator = "";
	add(&text, "}}");
	return (size_t)(text.at - out) + 1;
}

int kvd_card_version(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_vfu_version version;
	int err;

	if (card->negotiated)
		return -EINVAL;
	memcpy(&version, request->payload, sizeof(version));
	/* With a client of another major version there is nothing to talk about. */
	card->hang_up = true;
	if (version.major != KVD_VFU_MAJOR)
		return -EPROTONOSUPPORT;
	err = kvd_card_caps_parse((const char *)request->payload + sizeof(version), request->bytes - sizeof(version),
				  &card->caps);
	if (err)
		return err;
	if (card->caps.twin_socket) {
		err = make_twin(card);
		if (err)
			return err;
		reply->fds[0] = card->twin_peer;
		reply->fd_count = 1;
	}
	if (version.minor > KVD_VFU_MINOR)
		version.minor = KVD_VFU_MINOR;
	memcpy(reply->payload, &version, sizeof(version));
	reply->bytes = (uint32_t)sizeof(version);
	reply->bytes += (uint32_t)write_caps(card, (char *)reply->payload + sizeof(version), KVD_VFU_VERSION_BYTES_MAX);
	card->negotiated = true;
	card->hang_up = false;
	return 0;
}
