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
	assert_int_equal(sizeof(struct kvd_abi_session_info), 208);
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
	assert_int_equal(offsetof(struct kvd_abi_session_info, state), 136);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->state), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_info, reserved), 140);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->reserved), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_info, window_start), 144);
	assert_int_equal(sizeof(((struct kvd_abi_session_info *)0)->window_start), 64);
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

static void test_prefix_entry(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_prefix_entry), 64);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, key), 0);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, place), 8);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->place), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, hash), 16);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->hash), 32);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, holder), 48);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->holder), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, next), 56);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->next), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_entry, previous), 60);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_entry *)0)->previous), 4);
}

static void test_prefix_bucket(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_prefix_bucket), 64);
	assert_int_equal(offsetof(struct kvd_abi_prefix_bucket, version), 0);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_bucket *)0)->version), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_bucket, more), 4);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_bucket *)0)->more), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_bucket, slots), 8);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_bucket *)0)->slots), 56);
}

static void test_prefix_head(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_prefix_head), 64);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, stage), 0);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->stage), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, seed), 8);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->seed), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, entries), 16);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->entries), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, removals), 24);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->removals), 8);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, directory), 32);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->directory), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, slabs), 36);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->slabs), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, entry_free), 40);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->entry_free), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, fresh), 44);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->fresh), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, fresh_end), 48);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->fresh_end), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, bucket_free), 52);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->bucket_free), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, root), 56);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->root), 4);
	assert_int_equal(offsetof(struct kvd_abi_prefix_head, buckets), 60);
	assert_int_equal(sizeof(((struct kvd_abi_prefix_head *)0)->buckets), 4);
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

static void test_tier_head(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_tier_head), 128);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, capacity_blocks), 0);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->capacity_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, total_frames), 8);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->total_frames), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, levels), 16);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->levels), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, level_at), 24);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->level_at), 56);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, used_blocks), 80);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->used_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, reserved_blocks), 88);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->reserved_blocks), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, used_frames), 96);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->used_frames), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, next_frame), 104);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->next_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, high_frame), 112);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->high_frame), 8);
	assert_int_equal(offsetof(struct kvd_abi_tier_head, shares), 120);
	assert_int_equal(sizeof(((struct kvd_abi_tier_head *)0)->shares), 8);
}

static void test_intent(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_intent), 352);
	assert_int_equal(offsetof(struct kvd_abi_intent, sequence), 0);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->sequence), 8);
	assert_int_equal(offsetof(struct kvd_abi_intent, stage), 8);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->stage), 4);
	assert_int_equal(offsetof(struct kvd_abi_intent, words), 12);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->words), 4);
	assert_int_equal(offsetof(struct kvd_abi_intent, session), 16);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->session), 8);
	assert_int_equal(offsetof(struct kvd_abi_intent, word_at), 24);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->word_at), 64);
	assert_int_equal(offsetof(struct kvd_abi_intent, word), 88);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->word), 64);
	assert_int_equal(offsetof(struct kvd_abi_intent, steps), 152);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->steps), 8);
	assert_int_equal(offsetof(struct kvd_abi_intent, step_at), 160);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->step_at), 16);
	assert_int_equal(offsetof(struct kvd_abi_intent, step), 176);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->step), 16);
	assert_int_equal(offsetof(struct kvd_abi_intent, scratch), 192);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->scratch), 8);
	assert_int_equal(offsetof(struct kvd_abi_intent, payload), 200);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->payload), 56);
	assert_int_equal(offsetof(struct kvd_abi_intent, cmd), 256);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->cmd), 64);
	assert_int_equal(offsetof(struct kvd_abi_intent, cpl), 320);
	assert_int_equal(sizeof(((struct kvd_abi_intent *)0)->cpl), 32);
}

static void test_table_head(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_table_head), 1376);
	assert_int_equal(offsetof(struct kvd_abi_table_head, magic), 0);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->magic), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, version), 8);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->version), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, page_bytes), 12);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->page_bytes), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, arena_bytes), 16);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->arena_bytes), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, sessions_at), 24);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->sessions_at), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, sessions_max), 32);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->sessions_max), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, hash_at), 40);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->hash_at), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, hash_mask), 48);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->hash_mask), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, journal_at), 56);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->journal_at), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, journal_entries), 64);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->journal_entries), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, heap_at), 72);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->heap_at), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, heap_end), 80);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->heap_end), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, in_use), 88);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->in_use), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, sequence), 96);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->sequence), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, change), 104);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->change), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, generation), 112);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->generation), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, age), 116);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->age), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, sessions_high), 120);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->sessions_high), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, sessions_live), 128);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->sessions_live), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, session_free), 136);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->session_free), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, age_floor), 140);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->age_floor), 4);
	assert_int_equal(offsetof(struct kvd_abi_table_head, heap_next), 144);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->heap_next), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, free_nodes), 152);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->free_nodes), 32);
	assert_int_equal(offsetof(struct kvd_abi_table_head, table_bytes), 184);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->table_bytes), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, mapped_pages), 192);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->mapped_pages), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, refused), 200);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->refused), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, refused_transitions), 208);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->refused_transitions), 8);
	assert_int_equal(offsetof(struct kvd_abi_table_head, prefix), 216);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->prefix), 64);
	assert_int_equal(offsetof(struct kvd_abi_table_head, reserved2), 280);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->reserved2), 104);
	assert_int_equal(offsetof(struct kvd_abi_table_head, intent), 384);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->intent), 352);
	assert_int_equal(offsetof(struct kvd_abi_table_head, tiers), 736);
	assert_int_equal(sizeof(((struct kvd_abi_table_head *)0)->tiers), 640);
}

static void test_session_context(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_session_context), 320);
	assert_int_equal(offsetof(struct kvd_abi_session_context, key), 0);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->key), 8);
	assert_int_equal(offsetof(struct kvd_abi_session_context, leases), 8);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->leases), 8);
	assert_int_equal(offsetof(struct kvd_abi_session_context, generation), 16);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->generation), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_context, state), 20);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->state), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_context, version), 24);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->version), 8);
	assert_int_equal(offsetof(struct kvd_abi_session_context, next), 32);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->next), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_context, prefix_head), 36);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->prefix_head), 4);
	assert_int_equal(offsetof(struct kvd_abi_session_context, slots), 40);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->slots), 64);
	assert_int_equal(offsetof(struct kvd_abi_session_context, window_start), 104);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->window_start), 64);
	assert_int_equal(offsetof(struct kvd_abi_session_context, reserved_blocks), 168);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->reserved_blocks), 32);
	assert_int_equal(offsetof(struct kvd_abi_session_context, pages), 200);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->pages), 32);
	assert_int_equal(offsetof(struct kvd_abi_session_context, blocks), 232);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->blocks), 32);
	assert_int_equal(offsetof(struct kvd_abi_session_context, reserved), 264);
	assert_int_equal(sizeof(((struct kvd_abi_session_context *)0)->reserved), 56);
}

static void test_journal_entry(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct kvd_abi_journal_entry), 40);
	assert_int_equal(offsetof(struct kvd_abi_journal_entry, sequence), 0);
	assert_int_equal(sizeof(((struct kvd_abi_journal_entry *)0)->sequence), 8);
	assert_int_equal(offsetof(struct kvd_abi_journal_entry, cpl), 8);
	assert_int_equal(sizeof(((struct kvd_abi_journal_entry *)0)->cpl), 32);
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
		cmocka_unit_test(test_prefix_entry),
		cmocka_unit_test(test_prefix_bucket),
		cmocka_unit_test(test_prefix_head),
		cmocka_unit_test(test_capability),
		cmocka_unit_test(test_capability_page_sizes),
		cmocka_unit_test(test_capability_tiers),
		cmocka_unit_test(test_capability_queues),
		cmocka_unit_test(test_capability_formats),
		cmocka_unit_test(test_capability_operations),
		cmocka_unit_test(test_capability_limits),
		cmocka_unit_test(test_tier_head),
		cmocka_unit_test(test_intent),
		cmocka_unit_test(test_table_head),
		cmocka_unit_test(test_session_context),
		cmocka_unit_test(test_journal_entry),
		cmocka_unit_test(test_pte),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
