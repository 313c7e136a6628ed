/* The card and its client: coming, talking, leaving. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/internal.h"

enum { SERVE_MESSAGES_MAX = 64 }; /* in one go: doorbells wait so long */

struct command {
	int (*handle)(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply);
	uint32_t bytes_min; /* of the payload */
	uint32_t bytes_max;
	uint32_t fds_max;
};

static int device_reset(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	(void)request;
	(void)reply;
	/* As the kernel's VFIO has it, who saves and restores configuration space around the reset. */
	kvd_card_reset(card);
	return 0;
}

#define EXACTLY(type) sizeof(struct type), sizeof(struct type)
#define AT_LEAST(type) sizeof(struct type), KVD_CARD_PAYLOAD_BYTES_MAX

static const struct command commands[] = {
	[KVD_VFU_VERSION] = {kvd_card_version, sizeof(struct kvd_vfu_version),
			     sizeof(struct kvd_vfu_version) + KVD_VFU_VERSION_BYTES_MAX, 0},
	[KVD_VFU_DMA_MAP] = {kvd_card_dma_map, EXACTLY(kvd_vfu_dma_map), 1},
	[KVD_VFU_DMA_UNMAP] = {kvd_card_dma_unmap, EXACTLY(kvd_vfu_dma_unmap), 0},
	[KVD_VFU_DEVICE_GET_INFO] = {kvd_card_device_info, AT_LEAST(kvd_vfu_device_info), 0},
	[KVD_VFU_DEVICE_GET_REGION_INFO] = {kvd_card_region_info, AT_LEAST(vfio_region_info), 0},
	[KVD_VFU_DEVICE_GET_IRQ_INFO] = {kvd_card_irq_info, AT_LEAST(vfio_irq_info), 0},
	[KVD_VFU_DEVICE_SET_IRQS] = {kvd_card_irq_set, AT_LEAST(vfio_irq_set), KVD_CARD_VECTORS},
	[KVD_VFU_REGION_READ] = {kvd_card_region_read, EXACTLY(kvd_vfu_region_access), 0},
	[KVD_VFU_REGION_WRITE] = {kvd_card_region_write, AT_LEAST(kvd_vfu_region_access), 0},
	[KVD_VFU_DEVICE_RESET] = {device_reset, 0, 0, 0},
	[KVD_VFU_REGION_WRITE_MULTI] = {kvd_card_region_write_multi, AT_LEAST(kvd_vfu_write_multi), 0},
};

static bool bad_config(const struct kvd_card_config *config)
{
	const uint32_t depth = config->depth_max;

	if (config->ddr_bytes < KVD_CARD_DDR_BYTES_MIN || config->ddr_bytes > KVD_CARD_DDR_BYTES_MAX ||
	    config->ddr_bytes & (config->ddr_bytes - 1))
		return true;
	if (!config->queues || config->queues > KVD_CARD_QUEUES_MAX)
		return true;
	if (depth < 2 || depth > KVD_CARD_DEPTH_MAX || depth & (depth - 1) || config->fault_count > KVD_CARD_FAULTS_MAX)
		return true;
	for (uint32_t i = 0; i < config->fault_count; i++) {
		if (config->faults[i].kind <= KVD_CARD_FAULT_NONE || config->faults[i].kind >= KVD_CARD_FAULT_COUNT)
			return true;
	}
	return false;
}

/* The fault of dead BARs needs files that can be cut. */
static bool sealed(const struct kvd_card *card)
{
	for (uint32_t i = 0; i < card->config.fault_count; i++) {
		if (card->config.faults[i].kind == KVD_CARD_FAULT_DEAD_BAR)
			return false;
	}
	return true;
}

static int make_ddr(struct kvd_card *card)
{
	return kvd_card_bar_init(&card->ddr, "kvd-card-ddr", card->config.ddr_bytes, sealed(card));
}

int kvd_card_init(const struct kvd_card_config *config, kvd_card **out)
{
	struct kvd_card *card;
	int err;

	if (bad_config(config))
		return -EINVAL;
	card = calloc(1, sizeof(*card));
	if (!card)
		return -ENOMEM;
	card->config = *config;
	card->conn.fd = -1;
	card->twin.fd = -1;
	card->twin_peer = -1;
	card->ddr.fd = -1;
	card->doorbells.fd = -1;
	kvd_card_faults_arm(card);
	err = kvd_card_guard_init();
	if (!err)
		err = kvd_card_operations_probe(&card->operations);
	if (!err)
		err = kvd_card_irqs_init(card);
	if (!err)
		err = kvd_card_dma_init(&card->dma);
	if (!err)
		err = make_ddr(card);
	if (err) {
		kvd_card_fini(card);
		return err;
	}
	*out = card;
	return 0;
}

void kvd_card_fini(kvd_card *card)
{
	if (!card)
		return;
	kvd_card_detach(card);
	kvd_card_bar_fini(&card->ddr);
	kvd_card_dma_fini(&card->dma);
	kvd_card_irqs_fini(card);
	free(card);
}

int kvd_card_attach(kvd_card *card, int fd)
{
	int err;

	if (card->attached) {
		close(fd);
		return -EBUSY;
	}
	err = card->ddr.base ? 0 : make_ddr(card);
	/* A file of its own for each client: the one before may still have its doorbells mapped. */
	if (!err)
		err = kvd_card_bar_init(&card->doorbells, "kvd-card-doorbells", KVD_CARD_BAR2_BYTES, sealed(card));
	if (!err)
		err = kvd_card_conn_init(&card->conn, fd);
	if (err) {
		kvd_card_bar_fini(&card->doorbells);
		close(fd);
		return err;
	}
	card->attached = true;
	card->stats.clients++;
	kvd_card_reset(card);
	kvd_card_config_reset(card);
	return 0;
}

void kvd_card_detach(kvd_card *card)
{
	if (!card->attached)
		return;
	kvd_card_conn_fini(&card->conn);
	kvd_card_conn_fini(&card->twin);
	if (card->twin_peer >= 0)
		close(card->twin_peer);
	card->twin_peer = -1;
	kvd_card_reset(card);
	kvd_card_bounce_drop(card);
	kvd_card_irqs_clear(card);
	kvd_card_dma_clear(&card->dma);
	kvd_card_bar_fini(&card->doorbells);
	if (card->bars_dead)
		kvd_card_bar_fini(&card->ddr);
	card->bars_dead = false;
	card->all_ones = false;
	card->silent = false;
	card->remove_at_ms = 0;
	card->attached = false;
	card->negotiated = false;
	card->hang_up = false;
}

bool kvd_card_attached(const kvd_card *card)
{
	return card->attached;
}

int kvd_card_poll_fd(const kvd_card *card, short *events)
{
	*events = card->conn.out_sent < card->conn.out_bytes ? POLLOUT : POLLIN;
	return card->conn.fd;
}

int kvd_card_wait_ms(const kvd_card *card)
{
	int64_t left_ms = card->remove_at_ms - kvd_card_now_ms();

	if (!card->remove_at_ms)
		return -1;
	return left_ms > 0 ? (int)left_ms : 0;
}

static int execute(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	const uint32_t number = request->header.command;
	const struct command *command;

	if (!card->negotiated && number != KVD_VFU_VERSION) {
		card->hang_up = true;
		return -EINVAL;
	}
	if (number >= sizeof(commands) / sizeof(commands[0]) || !commands[number].handle)
		return -ENOTSUP;
	command = &commands[number];
	if (request->bytes < command->bytes_min || request->bytes > command->bytes_max ||
	    request->fd_count > command->fds_max)
		return -EINVAL;
	return command->handle(card, request, reply);
}

/* Answer one command. -errno: the client is gone. */
static int answer(struct kvd_card *card, const struct kvd_card_request *request)
{
	const uint32_t type = request->header.flags & KVD_VFU_TYPE_MASK;
	struct kvd_vfu_header header = {.id = request->header.id, .command = request->header.command};
	struct kvd_card_reply reply;
	int err, sent;

	if (type == KVD_VFU_TYPE_REPLY) {
		card->stats.dropped++;
		return 0;
	}
	if (type != KVD_VFU_TYPE_COMMAND)
		return -EPROTO;
	card->stats.messages++;
	kvd_card_conn_reply_begin(&card->conn, &reply);
	err = execute(card, request, &reply);
	header.flags = KVD_VFU_TYPE_REPLY;
	if (err) {
		card->stats.refused++;
		header.flags |= KVD_VFU_ERROR;
		header.error = (uint32_t)-err;
		reply.bytes = 0;
		reply.fd_count = 0;
	}
	if (request->header.flags & KVD_VFU_NO_REPLY)
		return 0;
	sent = kvd_card_conn_send(&card->conn, &header, &reply);
	return sent < 0 ? sent : 0;
}

/* Take one message and answer it. 0: there is none; -errno: the client is to go. */
static int serve_one(struct kvd_card *card)
{
	struct kvd_card_request request;
	int got;

	got = kvd_card_conn_flush(&card->conn);
	if (got)
		return got > 0 ? 0 : got;
	if (card->twin_peer >= 0)
		close(card->twin_peer);
	card->twin_peer = -1;
	if (card->hang_up)
		return -EPIPE;
	if (kvd_card_conn_deferred(&card->conn, &request)) {
		got = answer(card, &request);
		kvd_card_conn_deferred_next(&card->conn);
		return got ? got : 1;
	}
	got = kvd_card_conn_receive(&card->conn);
	if (got <= 0)
		return got;
	kvd_card_conn_request(&card->conn, &request);
	got = answer(card, &request);
	kvd_card_conn_next(&card->conn);
	return got ? got : 1;
}

bool kvd_card_serve(kvd_card *card)
{
	const uint32_t sent = card->conn.out_sent;
	uint32_t served = 0;
	int got = 1;

	if (!card->attached)
		return false;
	if (kvd_card_fault_tick(card))
		return true;
	while (got > 0 && served < SERVE_MESSAGES_MAX) {
		got = serve_one(card);
		served += got > 0;
	}
	if (got < 0)
		kvd_card_detach(card);
	return served || got < 0 || card->conn.out_sent != sent;
}

void kvd_card_stats(const kvd_card *card, struct kvd_card_stats *out)
{
	*out = card->stats;
	out->commands = card->taken;
}
