/* An engine with memory behind its tier, and a slot whose frames lie partly one after the other, partly not. */
#ifndef KVD_TESTS_TEST_ENGINE_TRANSFER_H
#define KVD_TESTS_TEST_ENGINE_TRANSFER_H

#include <errno.h>
#include <stdlib.h>

#include "convert/convert.h"
#include "test_engine_ops.h"

#define RIG_PAGE ((uint64_t)KVD_PAGE_BYTES_MIN)
#define RIG_PAGES 128u
#define RIG_SLOT 4u
#define RIG_FRAMES TEST_DDR_BLOCKS

struct rig {
	kvd_engine *engine;
	uint64_t session;
	unsigned char *memory; /* of the DDR tier */
};

static inline unsigned char *rig_page(const struct rig *rig, uint64_t page)
{
	return rig->memory + kvd_pte_frame(pte_of(rig->engine, rig->session, RIG_SLOT, page)) * RIG_PAGE;
}

static inline struct rig *rig_new(void)
{
	struct kvd_engine_config config = test_config;
	struct rig *rig = malloc(sizeof(*rig));

	assert_non_null(rig);
	config.page_bytes = RIG_PAGE;
	rig->engine = engine_new(&config);
	rig->session = session_new(rig->engine, 1);
	rig->memory = calloc(RIG_FRAMES, RIG_PAGE);
	assert_non_null(rig->memory);
	assert_int_equal(kvd_engine_tier_memory(rig->engine, KVD_ABI_TIER_DDR, (uintptr_t)rig->memory, RIG_FRAMES * RIG_PAGE), 0);
	/* Frames in order for the second half, and every page of the first half after a page of another slot. */
	for (uint64_t page = RIG_PAGES / 2; page-- > 0;) {
		assert_ok(map(rig->engine, rig->session, 0, KVD_ABI_TIER_DDR, page, 1, 1));
		assert_ok(map(rig->engine, rig->session, RIG_SLOT, KVD_ABI_TIER_DDR, page, 1, 1));
	}
	assert_ok(map(rig->engine, rig->session, RIG_SLOT, KVD_ABI_TIER_DDR, RIG_PAGES / 2, RIG_PAGES / 2, 1));
	return rig;
}

static inline void rig_end(struct rig *rig)
{
	engine_end(rig->engine);
	free(rig->memory);
	free(rig);
}

static inline void rig_write(const struct rig *rig, uint64_t at, const unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		rig_page(rig, (at + i) / RIG_PAGE)[(at + i) % RIG_PAGE] = bytes[i];
}

static inline void rig_compare(const struct rig *rig, uint64_t at, const unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(rig_page(rig, (at + i) / RIG_PAGE)[(at + i) % RIG_PAGE], bytes[i]);
}

static inline struct test_reply rig_submit(const struct rig *rig, uint16_t op, uint64_t first, uint64_t count,
					   const struct kvd_abi_transfer *transfer)
{
	return submit_one(rig->engine, (struct kvd_abi_cmd){
					       .op = op,
					       .session = rig->session,
					       .slot = RIG_SLOT,
					       .first_page = first,
					       .count = count,
					       .buffer = (uintptr_t)transfer,
					       .buffer_bytes = sizeof(*transfer),
				       });
}

static inline struct test_reply gather(const struct rig *rig, uint64_t first, uint64_t count,
				       const struct kvd_abi_transfer *transfer)
{
	return rig_submit(rig, KVD_ABI_OP_GATHER, first, count, transfer);
}

static inline struct test_reply scatter(const struct rig *rig, uint64_t first, uint64_t count,
					const struct kvd_abi_transfer *transfer)
{
	return rig_submit(rig, KVD_ABI_OP_SCATTER, first, count, transfer);
}

#endif
