/* How the engine reaches the buffers that commands name. */
#include <stdlib.h>
#include <string.h>

#include "model/internal.h"

/* A copy of the client's memory, for the time of one command. */
static void *bounce(struct kvd_card *card, uint64_t iova, uint64_t bytes, bool written)
{
	struct kvd_card_bounce *at;

	/* What was reached once is the same memory when it is reached again. */
	for (uint32_t i = 0; i < card->bounce_count; i++) {
		at = &card->bounces[i];
		if (at->iova == iova && at->bytes == bytes) {
			at->written = at->written || written;
			return at->data;
		}
	}
	at = &card->bounces[card->bounce_count];
	if (bytes > KVD_CARD_BOUNCE_BYTES_MAX || card->bounce_count == KVD_CARD_BOUNCES)
		return NULL;
	*at = (struct kvd_card_bounce){.iova = iova, .bytes = bytes, .data = calloc(1, bytes), .written = written};
	if (!at->data)
		return NULL;
	/* What may be written only begins as zeros; all of it will be brought back. */
	if (kvd_card_dma_allowed(card, iova, bytes, false) && kvd_card_dma_copy(card, iova, at->data, bytes, false)) {
		free(at->data);
		return NULL;
	}
	card->bounce_count++;
	return at->data;
}

void *kvd_card_reach(void *context, uint64_t address, uint64_t bytes, int writable)
{
	struct kvd_card *card = context;
	void *at;

	at = kvd_card_dma(card, address, bytes, writable);
	if (!at && card->dma.indirect && bytes && kvd_card_dma_allowed(card, address, bytes, writable))
		at = bounce(card, address, bytes, writable);
	if (!at)
		card->counters.faults++;
	else if (writable)
		card->counters.written_bytes += bytes;
	else
		card->counters.read_bytes += bytes;
	return at;
}

void kvd_card_bounce_drop(struct kvd_card *card)
{
	while (card->bounce_count)
		free(card->bounces[--card->bounce_count].data);
}

bool kvd_card_bounce_end(struct kvd_card *card, uint64_t *address)
{
	bool all = true;

	for (uint32_t i = 0; i < card->bounce_count; i++) {
		struct kvd_card_bounce *at = &card->bounces[i];

		if (!at->written || !kvd_card_dma_copy(card, at->iova, at->data, at->bytes, true))
			continue;
		card->counters.faults++;
		*address = at->iova;
		all = false;
	}
	kvd_card_bounce_drop(card);
	return all;
}
