/* Names of the hot table: each folder's in order of (cookie, number), and those that are known not to be there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/internal.h"

enum { KVD_HOT_RUN_NAMES_MIN = 4 };

/* Whether the name stands before (cookie, number). */
static bool is_before(const struct kvd_hot *hot, uint32_t name, uint64_t cookie, uint32_t number)
{
	uint64_t own = kvd_hot_name_at(hot, name)->cookie;

	return own < cookie || (own == cookie && name < number);
}

/* The last run that begins before (cookie, number), or the first; and in it the first name that is not before. */
static struct kvd_hot_place find(const struct kvd_hot *hot, const struct kvd_hot_folder *folder, uint64_t cookie,
				 uint32_t number)
{
	struct kvd_hot_place place = { 0 };
	uint32_t low = 0;
	uint32_t high = folder->n_runs;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (is_before(hot, folder->runs[middle]->names[0], cookie, number))
			low = middle + 1;
		else
			high = middle;
	}
	place.run = low > 0 ? low - 1 : 0;
	low = 0;
	high = folder->n_runs ? folder->runs[place.run]->count : 0;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (is_before(hot, folder->runs[place.run]->names[middle], cookie, number))
			low = middle + 1;
		else
			high = middle;
	}
	place.at = low;
	return place;
}

struct kvd_hot_place kvd_hot_seek(const struct kvd_hot *hot, const struct kvd_hot_folder *folder, uint64_t cookie)
{
	struct kvd_hot_place place;

	if (cookie == UINT64_MAX)
		return (struct kvd_hot_place){ .run = folder->n_runs };
	place = find(hot, folder, cookie + 1, 0);
	if (place.run < folder->n_runs && place.at == folder->runs[place.run]->count)
		place = (struct kvd_hot_place){ .run = place.run + 1 };
	return place;
}

static struct kvd_hot_run *run_resize(struct kvd_hot_run *run, uint32_t capacity)
{
	struct kvd_hot_run *resized = realloc(run, sizeof(*run) + capacity * sizeof(run->names[0]));

	if (!resized)
		return NULL;
	resized->capacity = capacity;
	return resized;
}

/* An empty run at `at`. */
static bool run_insert(struct kvd_hot_folder *folder, uint32_t at, uint32_t capacity)
{
	struct kvd_hot_run *run;

	if (folder->n_runs == folder->runs_max) {
		uint32_t runs_max = folder->runs_max ? folder->runs_max * 2 : 1;
		struct kvd_hot_run **runs = realloc(folder->runs, runs_max * sizeof(struct kvd_hot_run *));

		if (!runs)
			return false;
		folder->runs = runs;
		folder->runs_max = runs_max;
	}
	run = run_resize(NULL, capacity);
	if (!run)
		return false;
	run->count = 0;
	memmove(folder->runs + at + 1, folder->runs + at, (folder->n_runs - at) * sizeof(struct kvd_hot_run *));
	folder->runs[at] = run;
	folder->n_runs++;
	return true;
}

static void run_remove(struct kvd_hot_folder *folder, uint32_t at)
{
	free(folder->runs[at]);
	folder->n_runs--;
	memmove(folder->runs + at, folder->runs + at + 1, (folder->n_runs - at) * sizeof(struct kvd_hot_run *));
}

/* A full run becomes two: behind the last name a listing only grows, and elsewhere each gets half. */
static bool run_split(struct kvd_hot_folder *folder, struct kvd_hot_place *place)
{
	bool grows = place->at == KVD_HOT_RUN_NAMES && place->run + 1 == folder->n_runs;
	uint32_t keep = grows ? KVD_HOT_RUN_NAMES : KVD_HOT_RUN_NAMES / 2;
	struct kvd_hot_run *from;
	struct kvd_hot_run *to;

	if (!run_insert(folder, place->run + 1, KVD_HOT_RUN_NAMES))
		return false;
	from = folder->runs[place->run];
	to = folder->runs[place->run + 1];
	to->count = from->count - keep;
	memcpy(to->names, from->names + keep, to->count * sizeof(to->names[0]));
	from->count = keep;
	if (place->at > keep || grows)
		*place = (struct kvd_hot_place){ .run = place->run + 1, .at = place->at - keep };
	return true;
}

static bool order_insert(struct kvd_hot *hot, struct kvd_hot_folder *folder, uint32_t number)
{
	struct kvd_hot_place place = find(hot, folder, kvd_hot_name_at(hot, number)->cookie, number);
	struct kvd_hot_run *run;

	if (folder->n_runs == 0 && !run_insert(folder, 0, KVD_HOT_RUN_NAMES_MIN))
		return false;
	if (folder->runs[place.run]->count == KVD_HOT_RUN_NAMES && !run_split(folder, &place))
		return false;
	run = folder->runs[place.run];
	if (run->count == run->capacity) {
		run = run_resize(run, run->capacity * 2);
		if (!run)
			return false;
		folder->runs[place.run] = run;
	}
	memmove(run->names + place.at + 1, run->names + place.at, (run->count - place.at) * sizeof(run->names[0]));
	run->names[place.at] = number;
	run->count++;
	return true;
}

/* Two neighbours that fill half a run together become one, so that what is sparse costs no more than double. */
static void run_merge(struct kvd_hot_folder *folder, uint32_t at)
{
	struct kvd_hot_run *run = folder->runs[at];
	struct kvd_hot_run *next = at + 1 < folder->n_runs ? folder->runs[at + 1] : NULL;

	if (!next || run->count + next->count > KVD_HOT_RUN_NAMES / 2)
		return;
	if (run->capacity < KVD_HOT_RUN_NAMES) {
		run = run_resize(run, KVD_HOT_RUN_NAMES);
		if (!run)
			return; /* they may as well stay two */
		folder->runs[at] = run;
	}
	memcpy(run->names + run->count, next->names, next->count * sizeof(run->names[0]));
	run->count += next->count;
	run_remove(folder, at + 1);
}

static void order_remove(struct kvd_hot *hot, struct kvd_hot_folder *folder, uint32_t number)
{
	/* What is right before it is found, and it after: `find` may stop at the end of the run before its own. */
	struct kvd_hot_place place = find(hot, folder, kvd_hot_name_at(hot, number)->cookie, number);
	struct kvd_hot_run *run = folder->runs[place.run];

	if (place.at == run->count) {
		place = (struct kvd_hot_place){ .run = place.run + 1 };
		run = folder->runs[place.run];
	}
	run->count--;
	memmove(run->names + place.at, run->names + place.at + 1, (run->count - place.at) * sizeof(run->names[0]));
	if (run->count == 0)
		run_remove(folder, place.run);
	else
		run_merge(folder, place.run);
	if (place.run > 0 && place.run <= folder->n_runs)
		run_merge(folder, place.run - 1);
}

static void clear_flags(struct kvd_hot *hot, struct kvd_hot_name *name)
{
	if (name->flags & KVD_HOT_NAME_UNSURE)
		name->folder->unsure--;
	if (name->flags & KVD_HOT_NAME_ABSENT)
		hot->absent[name->node] = 0;
	name->flags = 0;
}

void kvd_hot_name_remove(struct kvd_hot *hot, uint32_t number)
{
	struct kvd_hot_name *name = kvd_hot_name_at(hot, number);

	clear_flags(hot, name);
	order_remove(hot, name->folder, number);
	kvd_hot_name_free(hot, number);
}

/* Make room in the ring of names that are not there, and return it. */
static uint32_t absent_room(struct kvd_hot *hot, const struct kvd_hot_folder *keep)
{
	uint32_t at = hot->absent_next;
	uint32_t number = hot->absent[at];

	hot->absent_next = (at + 1) % hot->absent_max;
	if (number) {
		struct kvd_hot_folder *folder = kvd_hot_name_at(hot, number)->folder;

		kvd_hot_name_remove(hot, number);
		if (folder != keep)
			kvd_hot_folder_tidy(hot, folder);
	}
	return at;
}

/* Find or make the name, in its place; 0: no room, and it is out. */
static uint32_t place_name(struct kvd_hot *hot, struct kvd_hot_folder *folder, const char *text, uint32_t bytes,
			   uint64_t cookie)
{
	uint32_t number = kvd_hot_name_find(hot, folder, text, bytes);
	struct kvd_hot_name *name;

	if (number) {
		name = kvd_hot_name_at(hot, number);
		clear_flags(hot, name);
		if (name->cookie == cookie)
			return number;
		order_remove(hot, folder, number);
	} else {
		number = kvd_hot_name_new(hot, folder, text, bytes);
		if (!number)
			return 0;
		name = kvd_hot_name_at(hot, number);
	}
	name->cookie = cookie;
	if (order_insert(hot, folder, number))
		return number;
	kvd_hot_name_free(hot, number);
	return 0;
}

int kvd_hot_name_set(struct kvd_hot *hot, struct kvd_hot_folder *folder, const char *text, uint32_t bytes,
		     uint64_t cookie, uint64_t node, uint32_t flags)
{
	uint64_t value = flags & KVD_HOT_NAME_ABSENT ? absent_room(hot, folder) : node;
	uint32_t number = place_name(hot, folder, text, bytes, cookie);
	struct kvd_hot_name *name;

	if (!number) {
		folder->state = KVD_HOT_PARTIAL;
		kvd_hot_folder_tidy(hot, folder);
		return -ENOSPC;
	}
	name = kvd_hot_name_at(hot, number);
	name->node = value;
	name->flags = (uint8_t)flags;
	if (flags & KVD_HOT_NAME_ABSENT)
		hot->absent[value] = number;
	if (flags & KVD_HOT_NAME_UNSURE)
		folder->unsure++;
	return 0;
}
