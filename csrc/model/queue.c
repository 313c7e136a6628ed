/* The rings: taking commands, writing completions. */
#include <string.h>

#include "model/internal.h"

enum {
	DEPTH_MIN = 2,
	RING_ALIGN = 4096,
	TURN_COMMANDS_MAX = 64, /* of one queue in one turn: the socket and the other queues wait so long */
};

static uint32_t register32(const struct kvd_card *card, uint32_t at)
{
	return (uint32_t)kvd_card_register(card, at);
}

/* Find a queue's rings; the card stops where they can't be reached. */
static bool rings_reached(struct kvd_card *card, uint32_t number)
{
	struct kvd_card_queue *queue = &card->queues[number];

	queue->sq = kvd_card_dma(card, queue->sq_address, queue->depth * sizeof(*queue->sq), false);
	queue->cq = kvd_card_dma(card, queue->cq_address, queue->depth * sizeof(*queue->cq), true);
	if (queue->sq && queue->cq)
		return true;
	card->counters.faults++;
	kvd_card_stop(card, KVD_ABI_SYNDROME_DMA_FAULT, number, queue->sq ? queue->cq_address : queue->sq_address);
	return false;
}

static bool queue_open(struct kvd_card *card, uint32_t number)
{
	const uint32_t at = KVD_ABI_BAR0_QUEUE_AT + number * KVD_ABI_BAR0_QUEUE_STRIDE;
	struct kvd_card_queue *queue = &card->queues[number];

	*queue = (struct kvd_card_queue){
		.sq_address = kvd_card_register(card, at + KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT),
		.cq_address = kvd_card_register(card, at + KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT),
		.depth = register32(card, at + KVD_ABI_BAR0_QUEUE_DEPTH_AT),
		.vector = register32(card, at + KVD_ABI_BAR0_QUEUE_VECTOR_AT),
		.phase = KVD_ABI_CPL_FLAGS_PHASE_MASK,
	};
	if (!queue->depth)
		return true;
	if (queue->depth < DEPTH_MIN || queue->depth > card->config.depth_max || queue->depth & (queue->depth - 1) ||
	    (queue->sq_address | queue->cq_address) % RING_ALIGN || queue->vector >= KVD_CARD_VECTORS) {
		kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_QUEUE, number, number);
		return false;
	}
	return rings_reached(card, number);
}

bool kvd_card_queues_open(struct kvd_card *card)
{
	for (uint32_t i = 0; i < card->config.queues; i++) {
		if (!queue_open(card, i))
			return false;
	}
	return true;
}

void kvd_card_queues_recheck(struct kvd_card *card)
{
	if (!kvd_card_enabled(card))
		return;
	if (!kvd_card_tables_reached(card)) {
		card->counters.faults++;
		kvd_card_stop(card, KVD_ABI_SYNDROME_NO_TABLES, 0, kvd_card_register(card, KVD_ABI_BAR0_TABLES_ADDRESS_AT));
		return;
	}
	for (uint32_t i = 0; i < card->config.queues; i++) {
		if (card->queues[i].depth && !rings_reached(card, i))
			return;
	}
}

/* Look at a queue's doorbells. False: one is wrong, the card is stopped. */
static bool look(struct kvd_card *card, struct kvd_card_queue *queue, const uint8_t *doorbell)
{
	uint32_t tail = __atomic_load_n((const uint32_t *)(const void *)(doorbell + KVD_ABI_BAR2_QUEUE_SQ_TAIL_AT),
					__ATOMIC_ACQUIRE);
	uint32_t head = __atomic_load_n((const uint32_t *)(const void *)(doorbell + KVD_ABI_BAR2_QUEUE_CQ_HEAD_AT),
					__ATOMIC_ACQUIRE);
	const uint32_t mask = queue->depth - 1;

	/* A tail only goes on, at most to the head; a head at most to the tail. */
	if (tail != queue->sq_tail) {
		card->counters.doorbells++;
		if (tail > mask || ((tail - queue->sq_head) & mask) < ((queue->sq_tail - queue->sq_head) & mask)) {
			kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_DOORBELL, card->queue_now, tail);
			return false;
		}
		queue->sq_tail = tail;
	}
	if (head != queue->cq_head) {
		if (head > mask || ((queue->cq_tail - head) & mask) > ((queue->cq_tail - queue->cq_head) & mask)) {
			kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_DOORBELL, card->queue_now, head);
			return false;
		}
		queue->cq_head = head;
	}
	return true;
}

/* Its first word holds the phase, and is written last. */
static void publish(struct kvd_abi_cpl *to, const struct kvd_abi_cpl *cpl)
{
	uint64_t words[sizeof(*cpl) / sizeof(uint64_t)];
	uint64_t *out = (uint64_t *)(void *)to;

	memcpy(words, cpl, sizeof(words));
	for (uint32_t i = sizeof(words) / sizeof(words[0]) - 1; i; i--)
		__atomic_store_n(&out[i], words[i], __ATOMIC_RELAXED);
	__atomic_store_n(&out[0], words[0], __ATOMIC_RELEASE);
	static_assert(offsetof(struct kvd_abi_cpl, flags) + sizeof(cpl->flags) == sizeof(words[0]), "flags end word 0");
}

/* The fault: the place behind looks new, and holds what an earlier round left there. */
static void lie(struct kvd_card_queue *queue)
{
	uint16_t *flags = &queue->cq[queue->cq_tail].flags;

	__atomic_store_n(flags, (uint16_t)(*flags ^ KVD_ABI_CPL_FLAGS_PHASE_MASK), __ATOMIC_RELEASE);
}

static void complete(struct kvd_card *card, struct kvd_card_queue *queue, struct kvd_abi_cpl *cpl)
{
	cpl->flags = queue->phase;
	cpl->sq_head = queue->sq_head;
	cpl->reserved = 0;
	publish(&queue->cq[queue->cq_tail], cpl);
	queue->cq_tail = (queue->cq_tail + 1) & (queue->depth - 1);
	if (!queue->cq_tail)
		queue->phase ^= KVD_ABI_CPL_FLAGS_PHASE_MASK;
	card->completed++;
	if (card->lies)
		lie(queue);
	card->lies = false;
}

/* Take one command, execute it, write its completion. False: this queue, or all, must not go on. */
static bool execute_one(struct kvd_card *card, struct kvd_card_queue *queue)
{
	struct kvd_abi_cmd cmd;
	struct kvd_abi_cpl cpl;

	memcpy(&cmd, &queue->sq[queue->sq_head], sizeof(cmd));
	queue->sq_head = (queue->sq_head + 1) & (queue->depth - 1);
	if (card->taken >= card->fault_at && !kvd_card_fault_before(card))
		return false;
	card->torn = true;
	kvd_engine_submit(card->engine, &cmd, &cpl, 1);
	card->torn = false;
	if (card->bounce_count && !kvd_card_bounce_end(card, &cpl.result0))
		cpl.status = KVD_ABI_STATUS_BAD_ADDRESS;
	queue->executed++;
	card->counters.commands++;
	card->counters.refused += cpl.status != KVD_ABI_STATUS_OK;
	if (card->taken >= card->fault_at)
		kvd_card_fault_after(card, &cpl);
	card->taken++;
	complete(card, queue, &cpl);
	if (cpl.status != KVD_ABI_STATUS_BAD_TABLES)
		return !card->hang_up;
	kvd_card_stop(card, KVD_ABI_SYNDROME_BAD_TABLES, card->queue_now, kvd_card_tables_sequence(card));
	return false;
}

static uint32_t work_queue(struct kvd_card *card, struct kvd_card_queue *queue)
{
	const uint32_t mask = queue->depth - 1;
	uint32_t done = 0;
	bool on = look(card, queue, card->doorbells.base + card->queue_now * KVD_ABI_BAR2_QUEUE_STRIDE);

	while (on && done < TURN_COMMANDS_MAX && queue->sq_head != queue->sq_tail &&
	       ((queue->cq_tail + 1) & mask) != queue->cq_head) {
		on = execute_one(card, queue);
		done++;
	}
	return done;
}

struct turn {
	struct kvd_card *card;
	uint32_t done;
};

static void work_turn(void *context)
{
	struct turn *turn = context;
	struct kvd_card *card = turn->card;

	for (uint32_t i = 0; i < card->config.queues && kvd_card_enabled(card) && !card->hung && !card->bars_dead; i++) {
		struct kvd_card_queue *queue = &card->queues[i];

		if (!queue->depth)
			continue;
		card->queue_now = i;
		card->completed = 0;
		turn->done += work_queue(card, queue);
		if (card->completed)
			kvd_card_signal(card, queue->vector);
	}
}

bool kvd_card_work(struct kvd_card *card)
{
	const uint32_t status = register32(card, KVD_ABI_BAR0_STATUS_AT);
	struct turn turn = {card, 0};
	uint64_t address;

	if (!(status & KVD_ABI_BAR0_STATUS_ENABLED_MASK) || status & KVD_ABI_BAR0_STATUS_QUIET_MASK || card->hung ||
	    card->bars_dead)
		return false;
	if (kvd_card_guard(work_turn, &turn, &address)) {
		card->counters.faults++;
		kvd_card_bounce_drop(card);
		kvd_card_stop(card, KVD_ABI_SYNDROME_DMA_FAULT, card->queue_now,
			      address - (uint64_t)(uintptr_t)card->dma.window);
		return true;
	}
	return turn.done;
}
