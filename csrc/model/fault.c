/* Faults that the configuration asks for. Each comes once, so that the card can be taken back after it. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "model/internal.h"

#define UNKNOWN_STATUS 0x7777u
#define MS_PER_S 1000
#define NS_PER_MS 1000000

int64_t kvd_card_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * MS_PER_S + now.tv_nsec / NS_PER_MS;
}

void kvd_card_faults_arm(struct kvd_card *card)
{
	card->fault_at = UINT64_MAX;
	for (uint32_t i = 0; i < card->config.fault_count; i++) {
		if (!(card->faults_fired & 1u << i) && card->config.faults[i].after < card->fault_at)
			card->fault_at = card->config.faults[i].after;
	}
}

/* Is it time for that fault? It will not be again. */
static bool due(struct kvd_card *card, enum kvd_card_fault_kind kind)
{
	for (uint32_t i = 0; i < card->config.fault_count; i++) {
		const struct kvd_card_fault *fault = &card->config.faults[i];

		if (fault->kind != kind || card->faults_fired & 1u << i || card->taken < fault->after)
			continue;
		card->faults_fired |= 1u << i;
		kvd_card_faults_arm(card);
		return true;
	}
	return false;
}

static void die(void)
{
	kill(getpid(), SIGKILL);
}

/* Stores to the first page are the intent, the journal and the counters of the head. */
static void die_within(struct kvd_card *card)
{
	uint64_t at = kvd_card_register(card, KVD_ABI_BAR0_TABLES_ADDRESS_AT);
	uint64_t bytes = kvd_card_register(card, KVD_ABI_BAR0_TABLES_BYTES_AT);

	if (bytes <= KVD_CARD_PAGE_BYTES ||
	    kvd_card_guard_die_at(card->dma.window + at + KVD_CARD_PAGE_BYTES, bytes - KVD_CARD_PAGE_BYTES))
		die();
}

/* Faults of the whole card, which need no command to be seen. */
static void strike(struct kvd_card *card)
{
	if (due(card, KVD_CARD_FAULT_ALL_ONES))
		card->all_ones = true;
	if (due(card, KVD_CARD_FAULT_NO_INTERRUPT))
		card->silent = true;
	if (due(card, KVD_CARD_FAULT_DEAD_BAR)) {
		card->bars_dead = true;
		(void)kvd_card_bar_cut(&card->doorbells);
		(void)kvd_card_bar_cut(&card->ddr);
	}
	if (due(card, KVD_CARD_FAULT_REMOVE)) {
		card->remove_at_ms = kvd_card_now_ms() + card->config.grace_ms;
		kvd_card_irq_trigger(card, VFIO_PCI_REQ_IRQ_INDEX, 0);
	}
}

bool kvd_card_fault_before(struct kvd_card *card)
{
	strike(card);
	if (due(card, KVD_CARD_FAULT_RESET)) {
		kvd_card_reset(card);
		return false;
	}
	if (due(card, KVD_CARD_FAULT_NEVER_COMPLETES))
		card->hung = true;
	if (due(card, KVD_CARD_FAULT_DIE))
		die();
	if (due(card, KVD_CARD_FAULT_DIE_WITHIN))
		die_within(card);
	return !card->hung && !card->bars_dead;
}

void kvd_card_fault_after(struct kvd_card *card, struct kvd_abi_cpl *cpl)
{
	if (due(card, KVD_CARD_FAULT_DIE_AFTER))
		die();
	if (due(card, KVD_CARD_FAULT_UNKNOWN_ID))
		cpl->id = ~cpl->id;
	if (due(card, KVD_CARD_FAULT_UNKNOWN_STATUS))
		cpl->status = UNKNOWN_STATUS;
	if (due(card, KVD_CARD_FAULT_LYING_PHASE))
		card->lies = true;
}

bool kvd_card_fault_tick(struct kvd_card *card)
{
	if (!card->negotiated)
		return false;
	if (card->taken >= card->fault_at)
		strike(card);
	if (!card->remove_at_ms || kvd_card_now_ms() < card->remove_at_ms)
		return false;
	kvd_card_detach(card);
	return true;
}
