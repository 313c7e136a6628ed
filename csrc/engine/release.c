/* Pages that leave a table: their frames go back in runs, and the books are settled once. */
#include "engine/internal.h"

void kvd_release_flush(struct kvd_release *release)
{
	if (release->count)
		kvd_frames_give(release->engine, &release->engine->head->tiers[release->tier], release->first,
				release->count);
	release->count = 0;
}

static void add(struct kvd_books *books, uint64_t pte)
{
	books->pages++;
	books->blocks += kvd_pte_blocks(pte);
}

void kvd_release_add(struct kvd_release *release, uint64_t pte)
{
	uint32_t tier = kvd_pte_tier(pte);
	uint64_t frame = kvd_pte_frame(pte);

	if (!kvd_pte_sound(release->engine, pte))
		return;
	add(&release->pages[tier], pte);
	if (kvd_shares_drop(release->engine, pte))
		return;
	add(&release->frames[tier], pte);
	if (release->count && tier == release->tier && frame == release->first + release->count) {
		release->count++;
		return;
	}
	kvd_release_flush(release);
	release->tier = tier;
	release->first = frame;
	release->count = 1;
}

void kvd_release_visit(void *context, uint64_t first_page, union kvd_entry *entries, uint32_t count)
{
	(void)first_page;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t pte = kvd_get(&entries[i].pte);

		if (pte)
			kvd_release_add(context, pte);
	}
}

uint64_t kvd_release_settle(struct kvd_release *release, struct kvd_session *session)
{
	struct kvd_head *head = release->engine->head;
	uint64_t pages = 0;

	kvd_release_flush(release);
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		const struct kvd_books *gone = &release->pages[i];

		if (!gone->pages)
			continue;
		kvd_add(&session->pages[i - 1], 0 - gone->pages);
		kvd_add(&session->blocks[i - 1], 0 - gone->blocks);
		kvd_add(&head->tiers[i].used_blocks, 0 - release->frames[i].blocks);
		pages += gone->pages;
	}
	kvd_add(&head->mapped_pages, 0 - pages);
	return pages;
}
