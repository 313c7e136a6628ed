/* The check of all tables: sessions, their hash, the books; it follows no index that it has not looked at. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/prefix.h"

#define FAULT_BYTES_MAX 200u

void kvd_check_fault(struct kvd_check *check, const char *format, ...)
{
	char line[FAULT_BYTES_MAX];
	va_list args;
	int length;

	check->faults++;
	va_start(args, format);
	length = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (length < 0 || (size_t)length >= sizeof(line))
		return;
	/* A line, the newline before it, the zero after it. */
	if (check->text_used + (size_t)length + 2 > check->text_bytes)
		return;
	check->text_used += (size_t)snprintf(check->text + check->text_used, check->text_bytes - check->text_used,
					     "%s%s", check->text_used ? "\n" : "", line);
}

/* Compare a counter with what was found. */
static void expect(struct kvd_check *check, const char *what, uint64_t told, uint64_t found)
{
	if (told != found)
		kvd_check_fault(check, "%s: the books say %" PRIu64 ", the tables %" PRIu64, what, told, found);
}

static void check_session(struct kvd_check *check, const struct kvd_session *session)
{
	uint64_t handle = kvd_session_handle(check->engine, session);

	for (uint32_t i = 0; i < KVD_ABI_TIER_COUNT; i++)
		check->session[i] = (struct kvd_books){0};
	if (session->version & 1)
		kvd_check_fault(check, "session %" PRIx64 ": its version says that it is being changed", handle);
	if (session->state >= KVD_ABI_STATE_COUNT)
		kvd_check_fault(check, "session %" PRIx64 ": there is no state %u", handle, session->state);
	if (!kvd_check_slots(check, session, handle))
		return;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		uint64_t pages = session->pages[i - 1];
		uint64_t blocks = session->blocks[i - 1];
		const struct kvd_books *found = &check->session[i];

		if (pages != found->pages || blocks != found->blocks)
			kvd_check_fault(check,
					"session %" PRIx64 ", tier %u: the books say %" PRIu64 " pages of %" PRIu64
					" blocks, the tables %" PRIu64 " of %" PRIu64,
					handle, i, pages, blocks, found->pages, found->blocks);
		check->pages += found->pages;
		check->reserved[i] += session->reserved_blocks[i - 1];
	}
}

/* Is `number` (index + 1) a context that was ever used? */
static bool known(const struct kvd_check *check, uint32_t number)
{
	return number <= check->engine->head->sessions_high && number <= check->engine->layout.sessions_max;
}

static void check_free_sessions(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	uint64_t count = 0;
	uint32_t at = head->session_free;

	while (at && known(check, at) && count <= head->sessions_high) {
		const struct kvd_session *session = kvd_session_at(check->engine, at - 1);

		if (session->generation) {
			kvd_check_fault(check, "session context %u is free and in use", at - 1);
			return;
		}
		count++;
		at = session->next;
	}
	expect(check, "free session contexts", head->sessions_high - head->sessions_live, count);
}

/* Does a session before `number` in the chain from `at` have its key? */
static bool shadowed(const struct kvd_check *check, uint32_t at, uint32_t number)
{
	uint64_t key = kvd_session_at(check->engine, number - 1)->key;

	while (at != number) {
		const struct kvd_session *session = kvd_session_at(check->engine, at - 1);

		if (session->key == key)
			return true;
		at = session->next;
	}
	return false;
}

/* Each live session is in the chain of its key, once: a chain member has one chain only, so counting is enough. */
static void check_hash(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	const uint32_t *buckets = (const void *)(check->engine->base + check->engine->layout.hash_at);
	uint64_t count = 0;

	for (uint64_t i = 0; i <= check->engine->layout.hash_mask; i++) {
		for (uint32_t at = buckets[i]; at;) {
			const struct kvd_session *session;

			if (!known(check, at) || count++ == head->sessions_live) {
				kvd_check_fault(check, "hash chain %" PRIu64 " leads nowhere or has no end", i);
				return;
			}
			session = kvd_session_at(check->engine, at - 1);
			if (!session->generation || kvd_session_bucket(check->engine, session->key) != &buckets[i] ||
			    shadowed(check, buckets[i], at)) {
				kvd_check_fault(check, "session context %u is in hash chain %" PRIu64 " wrongly",
						at - 1, i);
				return;
			}
			at = session->next;
		}
	}
	expect(check, "sessions in the hash", head->sessions_live, count);
}

static void check_tier(struct kvd_check *check, uint32_t tier)
{
	const struct kvd_tier *of = &check->engine->head->tiers[tier];
	const struct kvd_books *found = &check->tiers[tier];

	expect(check, "used blocks", of->used_blocks, found->blocks);
	expect(check, "reserved blocks", of->reserved_blocks, check->reserved[tier]);
	expect(check, "used frames", of->used_frames, found->pages);
	kvd_check_frames(check, tier);
}

static void check_sessions(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;
	uint64_t live = 0;

	for (uint64_t i = 0; i < head->sessions_high && i < check->engine->layout.sessions_max; i++) {
		const struct kvd_session *session = kvd_session_at(check->engine, i);

		if (!session->generation)
			continue;
		live++;
		check_session(check, session);
	}
	expect(check, "sessions", head->sessions_live, live);
	check_free_sessions(check);
	check_hash(check);
}

static void check_all(struct kvd_check *check)
{
	const struct kvd_head *head = check->engine->head;

	if (kvd_intent_live(check->engine) || head->intent.scratch)
		kvd_check_fault(check, "a command was not finished");
	if (head->change & 1)
		kvd_check_fault(check, "the head's version says that it is being changed");
	check_sessions(check);
	for (uint32_t tier = KVD_ABI_TIER_DDR; tier < KVD_ABI_TIER_COUNT; tier++) {
		if (check->engine->layout.tiers[tier].total_frames)
			check_tier(check, tier);
	}
	kvd_check_shares_end(check);
	kvd_check_shares_tables(check);
	expect(check, "mapped pages", head->mapped_pages, check->pages);
	kvd_prefix_check(check);
	expect(check, "bytes of tables", head->table_bytes, check->table_bytes);
	kvd_check_heap(check);
}

static uint64_t *bits_new(uint64_t bits)
{
	return calloc(bits / 64 + 1, sizeof(uint64_t));
}

uint64_t kvd_engine_check(const kvd_engine *engine, char *text, size_t text_bytes)
{
	struct kvd_check check = {.engine = engine, .text = text, .text_bytes = text_bytes};
	bool ready;

	if (text_bytes)
		text[0] = '\0';
	/* Only what was ever used has to be remembered; a PTE or link beyond that is a fault by itself. */
	check.units = bits_new(kvd_check_units(engine));
	ready = check.units != NULL;
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++) {
		check.frames[i] = bits_new(kvd_check_frames_high(engine, i));
		ready = ready && check.frames[i];
	}
	if (ready && kvd_check_shares_begin(&check))
		check_all(&check);
	else
		kvd_check_fault(&check, "no memory to check with");
	for (uint32_t i = KVD_ABI_TIER_DDR; i < KVD_ABI_TIER_COUNT; i++)
		free(check.frames[i]);
	free(check.units);
	return check.faults;
}
