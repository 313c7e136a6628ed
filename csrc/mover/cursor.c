#include "mover/lane.h"

enum { CURSOR_WORD_BITS = 64 };

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Of `count` pages from `page` on, how many the leg has to skip, and how many then follow that are its own. */
static void own(const struct kvd_mover_job *spec, uint32_t index, uint64_t page, uint64_t count, uint64_t *skip,
		uint64_t *length)
{
	uint64_t stripe_pages, stripe, distance;

	*skip = 0;
	*length = count;
	if (spec->n_parts == 1)
		return;
	stripe_pages = spec->stripe_bytes / spec->page_bytes;
	stripe = page / stripe_pages;
	distance = (index + spec->n_parts - stripe % spec->n_parts) % spec->n_parts;
	if (distance > 0)
		*skip = min_u64(count, distance * stripe_pages - page % stripe_pages);
	*length = min_u64(count - *skip, stripe_pages - (page + *skip) % stripe_pages);
}

static void forward(const struct kvd_mover_job *spec, struct kvd_cursor *at, uint64_t pages)
{
	at->page += pages;
	at->crc += pages;
	if (at->page == spec->runs[at->run].count) {
		at->page = 0;
		at->run++;
	}
}

bool kvd_cursor_next(const struct kvd_leg *leg, struct kvd_cursor *at, uint64_t pages_max, struct kvd_piece *piece)
{
	const struct kvd_mover_job *spec = &leg->job->spec;

	while (at->run < spec->n_runs) {
		const struct kvd_mover_run *run = &spec->runs[at->run];
		uint64_t skip, length;

		own(spec, leg->index, run->first_page + at->page, run->count - at->page, &skip, &length);
		if (skip > 0)
			forward(spec, at, skip);
		if (length == 0)
			continue;
		length = min_u64(length, pages_max);
		*piece = (struct kvd_piece){
			.first_page = run->first_page + at->page,
			.count = length,
			.first_crc = at->crc,
		};
		forward(spec, at, length);
		return true;
	}
	return false;
}

/* Of the `count` pages of one run, those of the leg: by whole rounds of the stripes, and what is left. */
static uint64_t pages_of_run(const struct kvd_mover_job *spec, uint32_t index, const struct kvd_mover_run *run)
{
	uint64_t stripe_pages = spec->n_parts > 1 ? spec->stripe_bytes / spec->page_bytes : 0;
	uint64_t round = stripe_pages * spec->n_parts, page = run->first_page, left = run->count, pages = 0;

	if (spec->n_parts == 1)
		return run->count;
	pages = left / round * stripe_pages;
	left %= round;
	while (left > 0) {
		uint64_t skip, length;

		own(spec, index, page, left, &skip, &length);
		pages += length;
		page += skip + length;
		left -= skip + length;
	}
	return pages;
}

uint64_t kvd_cursor_pages(const struct kvd_mover_job *spec, uint32_t index)
{
	uint64_t pages = 0;

	for (uint64_t i = 0; i < spec->n_runs; i++)
		pages += pages_of_run(spec, index, &spec->runs[i]);
	return pages;
}

void kvd_cursor_init(struct kvd_leg *leg)
{
	leg->at = leg->reserved_to = (struct kvd_cursor){0};
	leg->pages_left = kvd_cursor_pages(&leg->job->spec, leg->index);
	leg->want_seen = 0;
}

static bool was_asked(const struct kvd_job *job, uint64_t page)
{
	return atomic_load(&job->asked[page / CURSOR_WORD_BITS]) & UINT64_C(1) << page % CURSOR_WORD_BITS;
}

/* A reader waits for another page: go on from there, or from the first one behind it that is no hole. */
static void follow_want(struct kvd_leg *leg, const struct kvd_stream *stream)
{
	const struct kvd_mover_job *spec = &leg->job->spec;
	uint64_t want = atomic_load(&stream->want);
	struct kvd_cursor at = {0};

	if (want == leg->want_seen)
		return;
	leg->want_seen = want;
	if (want == 0)
		return;
	for (; at.run < spec->n_runs; at.run++) {
		const struct kvd_mover_run *run = &spec->runs[at.run];

		if (want - 1 < run->first_page + run->count) {
			at.page = want - 1 > run->first_page ? want - 1 - run->first_page : 0;
			at.crc += at.page;
			break;
		}
		at.crc += run->count;
	}
	leg->at = at;
}

/* Cut `piece` down to its first pages that were not asked for, and the cursor, which was at `before`, with it. */
static bool cut_asked(struct kvd_leg *leg, struct kvd_cursor before, struct kvd_piece *piece)
{
	const struct kvd_job *job = leg->job;
	struct kvd_piece passed;
	uint64_t skip = 0, length = 0;

	while (skip < piece->count && was_asked(job, piece->first_page + skip))
		skip++;
	while (skip + length < piece->count && !was_asked(job, piece->first_page + skip + length))
		length++;
	leg->at = before;
	(void)kvd_cursor_next(leg, &leg->at, skip + length, &passed);
	piece->first_page += skip;
	piece->first_crc += skip;
	piece->count = length;
	return length > 0;
}

void kvd_cursor_take(struct kvd_leg *leg, uint64_t pages_max, struct kvd_piece *piece)
{
	struct kvd_job *job = leg->job;
	const struct kvd_stream *stream = (const struct kvd_stream *)(uintptr_t)job->spec.stream;

	if (stream)
		follow_want(leg, stream);
	for (;;) {
		struct kvd_cursor before = leg->at;

		if (!kvd_cursor_next(leg, &leg->at, pages_max, piece)) {
			leg->at = (struct kvd_cursor){0}; /* back to what was left out */
			continue;
		}
		if (!stream || cut_asked(leg, before, piece))
			break;
	}
	for (uint64_t i = 0; stream && i < piece->count; i++) {
		uint64_t page = piece->first_page + i;

		atomic_fetch_or(&job->asked[page / CURSOR_WORD_BITS], UINT64_C(1) << page % CURSOR_WORD_BITS);
	}
	leg->pages_left -= piece->count;
}
