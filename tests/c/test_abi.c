/* From driver/spec/kvd.rdl by `make abi`: generated, do not edit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "abi/abi.h"
#include "engine/internal.h"

static void test_cmd(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_cmd), 64);
	assert_int_equal(offsetof(struct kvd_abi_cmd, id), 0);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->id), 4);
	assert_int_equal(offsetof(struct kvd_abi_cmd, op), 4);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->op), 2);
	assert_int_equal(offsetof(struct kvd_abi_cmd, flags), 6);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->flags), 2);
	assert_int_equal(offsetof(struct kvd_abi_cmd, session), 8);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->session), 8);
	assert_int_equal(offsetof(struct kvd_abi_cmd, slot), 16);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->slot), 2);
	assert_int_equal(offsetof(struct kvd_abi_cmd, other_slot), 18);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->other_slot), 2);
	assert_int_equal(offsetof(struct kvd_abi_cmd, tier), 20);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_abi_cmd, first_page), 24);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_abi_cmd, count), 32);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_abi_cmd, key), 40);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_abi_cmd, buffer), 48);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->buffer), 8);
	assert_int_equal(offsetof(struct kvd_abi_cmd, buffer_bytes), 56);
	assert_int_equal(sizeof(((struct kvd_abi_cmd *)0)->buffer_bytes), 8);
	assert_int_equal(sizeof(struct kvd_engine_cmd), 64);
	assert_int_equal(offsetof(struct kvd_engine_cmd, id), 0);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->id), 4);
	assert_int_equal(offsetof(struct kvd_engine_cmd, op), 4);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->op), 2);
	assert_int_equal(offsetof(struct kvd_engine_cmd, flags), 6);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->flags), 2);
	assert_int_equal(offsetof(struct kvd_engine_cmd, session), 8);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->session), 8);
	assert_int_equal(offsetof(struct kvd_engine_cmd, slot), 16);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->slot), 2);
	assert_int_equal(offsetof(struct kvd_engine_cmd, other_slot), 18);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->other_slot), 2);
	assert_int_equal(offsetof(struct kvd_engine_cmd, tier), 20);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_engine_cmd, first_page), 24);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_engine_cmd, count), 32);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_engine_cmd, key), 40);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_engine_cmd, buffer), 48);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->buffer), 8);
	assert_int_equal(offsetof(struct kvd_engine_cmd, buffer_bytes), 56);
	assert_int_equal(sizeof(((struct kvd_engine_cmd *)0)->buffer_bytes), 8);
}

static void test_cpl(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_cpl), 24);
	assert_int_equal(offsetof(struct kvd_abi_cpl, id), 0);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->id), 4);
	assert_int_equal(offsetof(struct kvd_abi_cpl, status), 4);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->status), 4);
	assert_int_equal(offsetof(struct kvd_abi_cpl, result0), 8);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->result0), 8);
	assert_int_equal(offsetof(struct kvd_abi_cpl, result1), 16);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->result1), 8);
	assert_int_equal(sizeof(struct kvd_engine_cpl), 24);
	assert_int_equal(offsetof(struct kvd_engine_cpl, id), 0);
	assert_int_equal(sizeof(((struct kvd_engine_cpl *)0)->id), 4);
	assert_int_equal(offsetof(struct kvd_engine_cpl, status), 4);
	assert_int_equal(sizeof(((struct kvd_engine_cpl *)0)->status), 4);
	assert_int_equal(offsetof(struct kvd_engine_cpl, result0), 8);
	assert_int_equal(sizeof(((struct kvd_engine_cpl *)0)->result0), 8);
	assert_int_equal(offsetof(struct kvd_engine_cpl, result1), 16);
	assert_int_equal(sizeof(((struct kvd_engine_cpl *)0)->result1), 8);
}

static void test_map_run(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_map_run), 24);
	assert_int_equal(offsetof(struct kvd_abi_map_run, first_page), 0);
	assert_int_equal(sizeof(((struct kvd_abi_map_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_abi_map_run, count), 8);
	assert_int_equal(sizeof(((struct kvd_abi_map_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_abi_map_run, blocks), 16);
	assert_int_equal(sizeof(((struct kvd_abi_map_run *)0)->blocks), 4);
	assert_int_equal(offsetof(struct kvd_abi_map_run, reserved), 20);
	assert_int_equal(sizeof(((struct kvd_abi_map_run *)0)->reserved), 4);
	assert_int_equal(sizeof(struct kvd_engine_map_run), 24);
	assert_int_equal(offsetof(struct kvd_engine_map_run, first_page), 0);
	assert_int_equal(sizeof(((struct kvd_engine_map_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_engine_map_run, count), 8);
	assert_int_equal(sizeof(((struct kvd_engine_map_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_engine_map_run, blocks), 16);
	assert_int_equal(sizeof(((struct kvd_engine_map_run *)0)->blocks), 4);
	assert_int_equal(offsetof(struct kvd_engine_map_run, reserved), 20);
	assert_int_equal(sizeof(((struct kvd_engine_map_run *)0)->reserved), 4);
}

static void test_run(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_run), 32);
	assert_int_equal(offsetof(struct kvd_abi_run, first_page), 0);
	assert_int_equal(sizeof(((struct kvd_abi_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_abi_run, count), 8);
	assert_int_equal(sizeof(((struct kvd_abi_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_abi_run, first_frame), 16);
	assert_int_equal(sizeof(((struct kvd_abi_run *)0)->first_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_run, tier), 24);
	assert_int_equal(sizeof(((struct kvd_abi_run *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_abi_run, blocks), 28);
	assert_int_equal(sizeof(((struct kvd_abi_run *)0)->blocks), 4);
	assert_int_equal(sizeof(struct kvd_engine_run), 32);
	assert_int_equal(offsetof(struct kvd_engine_run, first_page), 0);
	assert_int_equal(sizeof(((struct kvd_engine_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_engine_run, count), 8);
	assert_int_equal(sizeof(((struct kvd_engine_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_engine_run, first_frame), 16);
	assert_int_equal(sizeof(((struct kvd_engine_run *)0)->first_frame), 8);
	assert_int_equal(offsetof(struct kvd_engine_run, tier), 24);
	assert_int_equal(sizeof(((struct kvd_engine_run *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_engine_run, blocks), 28);
	assert_int_equal(sizeof(((struct kvd_engine_run *)0)->blocks), 4);
}

static void test_tier_info(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_tier_info), 40);
	assert_int_equal(offsetof(struct kvd_abi_tier_info, capacity_blocks), 0);
	assert_int_equal(sizeof(((struct kvd_abi_tier_info *)0)->capacity_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_info, used_blocks), 8);
	assert_int_equal(sizeof(((struct kvd_abi_tier_info *)0)->used_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_info, reserved_blocks), 16);
	assert_int_equal(sizeof(((struct kvd_abi_tier_info *)0)->reserved_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_info, used_frames), 24);
	assert_int_equal(sizeof(((struct kvd_abi_tier_info *)0)->used_frames), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_info, total_frames), 32);
	assert_int_equal(sizeof(((struct kvd_abi_tier_info *)0)->total_frames), 8);
	assert_int_equal(sizeof(struct kvd_engine_tier_info), 40);
	assert_int_equal(offsetof(struct kvd_engine_tier_info, capacity_blocks), 0);
	assert_int_equal(sizeof(((struct kvd_engine_tier_info *)0)->capacity_blocks), 8);
	assert_int_equal(offsetof(struct kvd_engine_tier_info, used_blocks), 8);
	assert_int_equal(sizeof(((struct kvd_engine_tier_info *)0)->used_blocks), 8);
	assert_int_equal(offsetof(struct kvd_engine_tier_info, reserved_blocks), 16);
	assert_int_equal(sizeof(((struct kvd_engine_tier_info *)0)->reserved_blocks), 8);
	assert_int_equal(offsetof(struct kvd_engine_tier_info, used_frames), 24);
	assert_int_equal(sizeof(((struct kvd_engine_tier_info *)0)->used_frames), 8);
	assert_int_equal(offsetof(struct kvd_engine_tier_info, total_frames), 32);
	assert_int_equal(sizeof(((struct kvd_engine_tier_info *)0)->total_frames), 8);
}

static void test_session_info(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_session_info), 136);
	assert_int_equal(offsetof(struct kvd_abi_session_info, key), 0);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_abi_session_info, leases), 8);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->leases), 8);
	assert_int_equal(offsetof(struct kvd_abi_session_info, mapped_pages), 16);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->mapped_pages), 40);
	assert_int_equal(offsetof(struct kvd_abi_session_info, mapped_blocks), 56);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->mapped_blocks), 40);
	assert_int_equal(offsetof(struct kvd_abi_session_info, reserved_blocks), 96);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->reserved_blocks), 40);
	assert_int_equal(sizeof(struct kvd_engine_session_info), 136);
	assert_int_equal(offsetof(struct kvd_engine_session_info, key), 0);
	assert_int_equal(sizeof(((struct kvd_engine_session_info *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_engine_session_info, leases), 8);
	assert_int_equal(sizeof(((struct kvd_engine_session_info *)0)->leases), 8);
	assert_int_equal(offsetof(struct kvd_engine_session_info, mapped_pages), 16);
	assert_int_equal(sizeof(((struct kvd_engine_session_info *)0)->mapped_pages), 40);
	assert_int_equal(offsetof(struct kvd_engine_session_info, mapped_blocks), 56);
	assert_int_equal(sizeof(((struct kvd_engine_session_info *)0)->mapped_blocks), 40);
	assert_int_equal(offsetof(struct kvd_engine_session_info, reserved_blocks), 96);
	assert_int_equal(sizeof(((struct kvd_engine_session_info *)0)->reserved_blocks), 40);
}

static void test_pte(void **state)
{
	(void)state;
	assert_true(kvd_pte_make(0, 1, 0) == KVD_ABI_PTE_VALID_MASK);
	assert_true(kvd_pte_make(7, 1, 0) == (KVD_ABI_PTE_VALID_MASK | KVD_ABI_PTE_TIER_MASK));
	assert_true(kvd_pte_make(0, 512, 0) == (KVD_ABI_PTE_VALID_MASK | KVD_ABI_PTE_BLOCKS_MASK));
	assert_true(kvd_pte_make(0, 1, KVD_FRAMES_MAX - 1) == (KVD_ABI_PTE_VALID_MASK | KVD_ABI_PTE_FRAME_MASK));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cmd),
		cmocka_unit_test(test_cpl),
		cmocka_unit_test(test_map_run),
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_tier_info),
		cmocka_unit_test(test_session_info),
		cmocka_unit_test(test_pte),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
