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
}

static void test_cpl(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_cpl), 32);
	assert_int_equal(offsetof(struct kvd_abi_cpl, id), 0);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->id), 4);
	assert_int_equal(offsetof(struct kvd_abi_cpl, status), 4);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->status), 2);
	assert_int_equal(offsetof(struct kvd_abi_cpl, flags), 6);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->flags), 2);
	assert_int_equal(offsetof(struct kvd_abi_cpl, result0), 8);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->result0), 8);
	assert_int_equal(offsetof(struct kvd_abi_cpl, result1), 16);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->result1), 8);
	assert_int_equal(offsetof(struct kvd_abi_cpl, sq_head), 24);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->sq_head), 4);
	assert_int_equal(offsetof(struct kvd_abi_cpl, reserved), 28);
	assert_int_equal(sizeof(((struct kvd_abi_cpl *)0)->reserved), 4);
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
}

static void test_copy_run(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_copy_run), 40);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, first_page), 0);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, count), 8);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, old_frame), 16);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->old_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, new_frame), 24);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->new_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, tier), 32);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_abi_copy_run, blocks), 36);
	assert_int_equal(sizeof(((struct kvd_abi_copy_run *)0)->blocks), 4);
}

static void test_window(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_window), 48);
	assert_int_equal(offsetof(struct kvd_abi_window, base), 0);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->base), 8);
	assert_int_equal(offsetof(struct kvd_abi_window, plane_bytes), 8);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->plane_bytes), 8);
	assert_int_equal(offsetof(struct kvd_abi_window, planes), 16);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->planes), 4);
	assert_int_equal(offsetof(struct kvd_abi_window, token_bytes), 20);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->token_bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_window, tokens), 24);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->tokens), 8);
	assert_int_equal(offsetof(struct kvd_abi_window, window_tokens), 32);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->window_tokens), 8);
	assert_int_equal(offsetof(struct kvd_abi_window, sink_tokens), 40);
	assert_int_equal(sizeof(((struct kvd_abi_window *)0)->sink_tokens), 8);
}

static void test_age_cursor(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_age_cursor), 32);
	assert_int_equal(offsetof(struct kvd_abi_age_cursor, session), 0);
	assert_int_equal(sizeof(((struct kvd_abi_age_cursor *)0)->session), 8);
	assert_int_equal(offsetof(struct kvd_abi_age_cursor, page), 8);
	assert_int_equal(sizeof(((struct kvd_abi_age_cursor *)0)->page), 8);
	assert_int_equal(offsetof(struct kvd_abi_age_cursor, slot), 16);
	assert_int_equal(sizeof(((struct kvd_abi_age_cursor *)0)->slot), 4);
	assert_int_equal(offsetof(struct kvd_abi_age_cursor, done), 20);
	assert_int_equal(sizeof(((struct kvd_abi_age_cursor *)0)->done), 4);
	assert_int_equal(offsetof(struct kvd_abi_age_cursor, generation), 24);
	assert_int_equal(sizeof(((struct kvd_abi_age_cursor *)0)->generation), 8);
}

static void test_cold_run(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_cold_run), 40);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, session), 0);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->session), 8);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, first_page), 8);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->first_page), 8);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, count), 16);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->count), 8);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, first_frame), 24);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->first_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, tier), 32);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->tier), 4);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, slot), 36);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->slot), 2);
	assert_int_equal(offsetof(struct kvd_abi_cold_run, age), 38);
	assert_int_equal(sizeof(((struct kvd_abi_cold_run *)0)->age), 2);
}

static void test_transfer(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_transfer), 56);
	assert_int_equal(offsetof(struct kvd_abi_transfer, host), 0);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->host), 8);
	assert_int_equal(offsetof(struct kvd_abi_transfer, host_bytes), 8);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->host_bytes), 8);
	assert_int_equal(offsetof(struct kvd_abi_transfer, scales), 16);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->scales), 8);
	assert_int_equal(offsetof(struct kvd_abi_transfer, scales_bytes), 24);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->scales_bytes), 8);
	assert_int_equal(offsetof(struct kvd_abi_transfer, page_offset), 32);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->page_offset), 8);
	assert_int_equal(offsetof(struct kvd_abi_transfer, tokens), 40);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->tokens), 4);
	assert_int_equal(offsetof(struct kvd_abi_transfer, channels), 44);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->channels), 4);
	assert_int_equal(offsetof(struct kvd_abi_transfer, host_format), 48);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->host_format), 2);
	assert_int_equal(offsetof(struct kvd_abi_transfer, page_format), 50);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->page_format), 2);
	assert_int_equal(offsetof(struct kvd_abi_transfer, scaling), 52);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->scaling), 2);
	assert_int_equal(offsetof(struct kvd_abi_transfer, reserved), 54);
	assert_int_equal(sizeof(((struct kvd_abi_transfer *)0)->reserved), 2);
}

static void test_capability(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability), 8);
	assert_int_equal(offsetof(struct kvd_abi_capability, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability *)0)->bytes), 4);
}

static void test_capability_page_sizes(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_page_sizes), 16);
	assert_int_equal(offsetof(struct kvd_abi_capability_page_sizes, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_page_sizes *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_page_sizes, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_page_sizes *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_page_sizes, mask), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_page_sizes *)0)->mask), 8);
}

static void test_capability_tiers(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_tiers), 48);
	assert_int_equal(offsetof(struct kvd_abi_capability_tiers, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_tiers *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_tiers, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_tiers *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_tiers, capacity_bytes), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_tiers *)0)->capacity_bytes), 40);
}

static void test_capability_queues(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_queues), 24);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, count), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->count), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, depth_max), 12);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->depth_max), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, vectors), 16);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->vectors), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_queues, reserved), 20);
	assert_int_equal(sizeof(((struct kvd_abi_capability_queues *)0)->reserved), 4);
}

static void test_capability_formats(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_formats), 16);
	assert_int_equal(offsetof(struct kvd_abi_capability_formats, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_formats *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_formats, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_formats *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_formats, mask), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_formats *)0)->mask), 8);
}

static void test_capability_operations(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_operations), 16);
	assert_int_equal(offsetof(struct kvd_abi_capability_operations, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_operations *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_operations, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_operations *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_operations, mask), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_operations *)0)->mask), 8);
}

static void test_capability_limits(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_capability_limits), 40);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, head), 0);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->head), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, bytes), 4);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, sessions_max), 8);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->sessions_max), 8);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, tables_bytes_max), 16);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->tables_bytes_max), 8);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, address_last), 24);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->address_last), 8);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, slots_max), 32);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->slots_max), 4);
	assert_int_equal(offsetof(struct kvd_abi_capability_limits, page_bits), 36);
	assert_int_equal(sizeof(((struct kvd_abi_capability_limits *)0)->page_bits), 4);
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
		cmocka_unit_test(test_copy_run),
		cmocka_unit_test(test_window),
		cmocka_unit_test(test_age_cursor),
		cmocka_unit_test(test_cold_run),
		cmocka_unit_test(test_transfer),
		cmocka_unit_test(test_capability),
		cmocka_unit_test(test_capability_page_sizes),
		cmocka_unit_test(test_capability_tiers),
		cmocka_unit_test(test_capability_queues),
		cmocka_unit_test(test_capability_formats),
		cmocka_unit_test(test_capability_operations),
		cmocka_unit_test(test_capability_limits),
		cmocka_unit_test(test_pte),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
