/* The hot table's bounds: what has no room is forwarded, and nothing is wrong. */
#include <errno.h>
#include <stdio.h>

#include "hot_rig.h"

enum { ROOM_NAMES = 64 };

static void name_of(char *out, uint32_t number)
{
	/* Of every length that a name may have. */
	memset(out, 'x', 255);
	out[number % 250 + 5] = 0;
	out[snprintf(out, 6, "%u", number)] = '.';
}

static void test_off(void **state)
{
	struct kvd_hot_attr attr = hot_attr(5, HOT_FILE);
	struct kvd_hot_gone gone;
	struct kvd_hot_use use;
	uint64_t cookie = 1;
	uint32_t bytes = 1;
	struct rig rig;

	(void)state;
	for (uint32_t off = 0; off < 2; off++) {
		rig_open_hot(&rig, 1, off ? 8 : 0, off ? 0 : 8);
		assert_int_equal(kvd_hot_put(rig.split, &attr), -ENOSPC);
		assert_int_equal(kvd_hot_name(rig.split, 1, "a", 1, 1, 5), -ENOSPC);
		assert_int_equal(kvd_hot_name_unsure(rig.split, 1, "a", 1), -ENOSPC);
		assert_int_equal(kvd_hot_name_gone(rig.split, 1, "a", 1), 0);
		assert_int_equal(kvd_hot_folder(rig.split, 1, KVD_HOT_COMPLETE), -ENOSPC);
		assert_int_equal(kvd_hot_folder(rig.split, 1, KVD_HOT_PARTIAL), 0);
		assert_int_equal(kvd_hot_fill(rig.split, 1, &attr, &cookie, &bytes, "a", 1), -ENOSPC);
		assert_int_equal(kvd_hot_unsure(rig.split, 5), -ENOENT);
		assert_int_equal(kvd_hot_drop(rig.split, 5, &gone), -ENOENT);
		assert_int_equal(kvd_hot_forget_folder(rig.split, 1), -ENOENT);
		assert_int_equal(kvd_hot_used(rig.split, &use, 1), 0);
		expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, 1, "a"));
		expect_forwarded(&rig, FUSE_GETATTR, send_getattr(&rig, 5));
		expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, 1, 0, 4096));
		rig_close(&rig);
	}
}

static void test_inodes(void **state)
{
	struct kvd_hot_attr attr = hot_attr(99, HOT_FILE);
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 1, 4, 64);
	for (uint64_t node = 1; node <= 4; node++)
		hot_put(&rig, node, HOT_FILE);
	assert_int_equal(kvd_hot_put(rig.split, &attr), -ENOSPC);
	hot_put(&rig, 2, HOT_FILE); /* what is there can be settled */
	assert_int_equal(kvd_hot_drop(rig.split, 3, &gone), 0);
	assert_int_equal(kvd_hot_put(rig.split, &attr), 0);
	assert_int_equal(rig_stats(&rig).hot_inodes, 4);
	/* So many folders, too. */
	for (uint64_t node = 1; node <= 4; node++)
		hot_complete(&rig, node);
	assert_int_equal(kvd_hot_folder(rig.split, 5, KVD_HOT_COMPLETE), -ENOSPC);
	assert_int_equal(kvd_hot_name(rig.split, 5, "a", 1, 1, 2), -ENOSPC);
	assert_int_equal(kvd_hot_folder(rig.split, 4, KVD_HOT_PARTIAL), 0);
	assert_int_equal(kvd_hot_folder(rig.split, 5, KVD_HOT_COMPLETE), 0);
	rig_close(&rig);
}

/* A complete folder that has no room for a name is no longer complete. */
static void test_names(void **state)
{
	char name[256];
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 1, 16, ROOM_NAMES);
	hot_put(&rig, 5, HOT_FILE);
	hot_complete(&rig, HOT_FOLDER);
	for (int round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < ROOM_NAMES; i++) {
			name_of(name, i + (uint32_t)round * 7);
			hot_name(&rig, HOT_FOLDER, name, i + 1, 5);
		}
		expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "other"));
		hot_name(&rig, HOT_FOLDER, name, ROOM_NAMES + 9, 5); /* one that is there can move */
		if (round % 2)
			assert_int_equal(kvd_hot_name(rig.split, HOT_FOLDER, "other", 5, ROOM_NAMES + 1, 5), -ENOSPC);
		else
			assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, "other", 5), -ENOSPC);
		expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "other"));
		expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, 4096));
		expect_found(&rig, send_lookup(&rig, HOT_FOLDER, name), 5, HOT_FILE);
		assert_int_equal(rig_stats(&rig).hot_names, ROOM_NAMES);
		assert_int_equal(kvd_hot_forget_folder(rig.split, HOT_FOLDER), 0);
		assert_int_equal(rig_stats(&rig).hot_names, 0);
		hot_complete(&rig, HOT_FOLDER);
	}
	rig_close(&rig);
}

/* Of those that are not there the oldest make room, and their folders go with them. */
static void test_absent_names(void **state)
{
	char name[16];
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 1, 64, 80); /* an eighth, and one: 11 */
	for (uint32_t i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		hot_name(&rig, 2 + i / 5, name, 0, 0);
	}
	assert_int_equal(rig_stats(&rig).hot_names, 11);
	assert_int_equal(rig_stats(&rig).hot_folders, 3);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, 7, "n28"));
	expect_not_there(&rig, send_lookup(&rig, 7, "n29"));
	expect_not_there(&rig, send_lookup(&rig, 9, "n39"));
	/* What has become a name, or unsure, is out of that order. */
	hot_put(&rig, 5, HOT_FILE);
	hot_name(&rig, 8, "n30", 1, 5);
	assert_int_equal(kvd_hot_name_unsure(rig.split, 8, "n31", 3), 0);
	assert_int_equal(kvd_hot_name_gone(rig.split, 8, "n32", 3), 0);
	for (uint32_t i = 50; i < 70; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		hot_name(&rig, 20, name, 0, 0);
		hot_name(&rig, 20, name, 0, 0); /* again */
	}
	expect_found(&rig, send_lookup(&rig, 8, "n30"), 5, HOT_FILE);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, 8, "n31"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, 8, "n33"));
	expect_not_there(&rig, send_lookup(&rig, 20, "n69"));
	assert_true(rig_stats(&rig).hot_names <= 13);
	rig_close(&rig);
}

static void test_forgetting_keeps_what_is_unsure(void **state)
{
	struct kvd_hot_gone gone;
	char name[16];
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 1, 16, 4096);
	hot_put(&rig, 5, HOT_FILE);
	hot_complete(&rig, HOT_FOLDER);
	for (uint32_t i = 0; i < 2000; i++) {
		int bytes = snprintf(name, sizeof(name), "n%u", i);

		hot_name(&rig, HOT_FOLDER, name, i + 1, 5);
		if (i % 100 < 3)
			assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, name, (uint32_t)bytes), 0);
	}
	assert_int_equal(kvd_hot_forget_folder(rig.split, HOT_FOLDER), 0);
	assert_int_equal(rig_stats(&rig).hot_names, 60);
	/* A listing that comes meanwhile settles nothing. */
	for (uint32_t i = 0; i < 4; i++) {
		struct kvd_hot_attr attr = hot_attr(5, HOT_FILE);
		uint32_t bytes = (uint32_t)snprintf(name, sizeof(name), "n%u", i);
		uint64_t cookie = i + 1;

		assert_int_equal(kvd_hot_fill(rig.split, HOT_FOLDER, &attr, &cookie, &bytes, name, 1), 0);
	}
	hot_complete(&rig, HOT_FOLDER);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "n2"));
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "n3"), 5, HOT_FILE);
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, 4096));
	hot_name(&rig, HOT_FOLDER, "n2", 3, 5);
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "n2"), 5, HOT_FILE);
	assert_int_equal(kvd_hot_drop(rig.split, 5, &gone), 0);
	assert_int_equal(gone.lookups, 2);
	rig_close(&rig);
}

static void test_fill(void **state)
{
	struct kvd_hot_attr attrs[3];
	uint64_t cookies[] = { 4, 5, 6 };
	uint32_t bytes[] = { 1, 2, 3 };
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 1, 2, 64);
	for (uint64_t i = 0; i < 3; i++)
		attrs[i] = hot_attr(5 + i, HOT_FILE);
	hot_put(&rig, 5, HOT_FILE);
	assert_int_equal(kvd_hot_unsure(rig.split, 5), 0);
	assert_int_equal(kvd_hot_fill(rig.split, HOT_FOLDER, attrs, cookies, bytes, "abbccc", 3), -ENOSPC);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "a")); /* unsure before */
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "bb"), 6, HOT_FILE);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "ccc")); /* no room for its inode */
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_inodes),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_absent_names),
		cmocka_unit_test(test_forgetting_keeps_what_is_unsure),
		cmocka_unit_test(test_fill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
