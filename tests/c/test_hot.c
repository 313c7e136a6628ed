/* What the hot table answers, byte for byte, and what it hands on. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hot_rig.h"

static void test_lookup(void **state)
{
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "a"));
	hot_put(&rig, 5, HOT_FILE);
	hot_name(&rig, HOT_FOLDER, "a", 1, 5);
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "a"), 5, HOT_FILE);
	/* The same name elsewhere, others, and beginnings of it are others. */
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, 2, "a"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "aa"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "b"));
	/* A name whose inode is not there. */
	hot_name(&rig, HOT_FOLDER, "b", 2, 6);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "b"));
	assert_int_equal(rig_stats(&rig).hot_lookups, 1);
	assert_int_equal(rig_stats(&rig).hot_negatives, 0);
	rig_close(&rig);
}

static void test_what_is_no_name_is_forwarded(void **state)
{
	static const char long_name[] = "123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
					"123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
					"1234567890123456789012345678901234567890123456789012345678901234567890123456";
	struct message *message = malloc(sizeof(*message));
	struct rig rig;
	uint64_t unique;

	(void)state;
	assert_int_equal(sizeof(long_name) - 1, 256);
	rig_start(&rig, 1);
	hot_complete(&rig, HOT_FOLDER);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "."));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, ".."));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, ""));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, long_name));
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, long_name + 1));
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "..."));
	/* Without an end. */
	unique = kernel_send(&rig, FUSE_LOOKUP, HOT_FOLDER, "abc", 3, NULL, 0);
	peer_expect(&rig, message, FUSE_LOOKUP, unique);
	unique = kernel_send(&rig, FUSE_LOOKUP, HOT_FOLDER, NULL, 0, NULL, 0);
	peer_expect(&rig, message, FUSE_LOOKUP, unique);
	free(message);
	rig_close(&rig);
}

static void test_misses(void **state)
{
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	hot_put(&rig, 5, HOT_FILE);
	hot_name(&rig, HOT_FOLDER, "a", 1, 5);
	/* One that is known not to be there, in a folder of which not all is known. */
	hot_name(&rig, HOT_FOLDER, "none", 9, 0);
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "none"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "other"));
	assert_int_equal(kvd_hot_folder(rig.split, HOT_FOLDER, KVD_HOT_COMPLETE), 0);
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "other"));
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "a"), 5, HOT_FILE);
	assert_int_equal(rig_stats(&rig).hot_names, 2);
	hot_name(&rig, HOT_FOLDER, "none", 0, 0); /* goes without saying now */
	hot_name(&rig, HOT_FOLDER, "never", 0, 0);
	assert_int_equal(rig_stats(&rig).hot_names, 1);
	assert_int_equal(rig_stats(&rig).hot_negatives, 2);
	assert_int_equal(kvd_hot_folder(rig.split, HOT_FOLDER, KVD_HOT_PARTIAL), 0);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "other"));
	assert_int_equal(kvd_hot_folder_uses(rig.split, HOT_FOLDER), 3);
	assert_int_equal(kvd_hot_folder_uses(rig.split, HOT_FOLDER), 0);
	assert_int_equal(kvd_hot_folder_uses(rig.split, 2), 0);
	rig_close(&rig);
}

static void test_getattr(void **state)
{
	struct answer_attr got;
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	expect_forwarded(&rig, FUSE_GETATTR, send_getattr(&rig, 5));
	hot_put(&rig, 5, HOT_FILE);
	unique = send_getattr(&rig, 5);
	assert_int_equal(recv(rig.kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.header.unique, unique);
	assert_int_equal(got.header.error, 0);
	assert_int_equal(got.body.attr_valid, 0);
	assert_int_equal(got.body.attr_valid_nsec, 2000000);
	assert_int_equal(got.body.dummy, 0);
	assert_attr(&got.body.attr, 5, HOT_FILE);
	assert_int_equal(rig_stats(&rig).hot_getattrs, 1);
	rig_close(&rig);
}

static void test_unsure_inode(void **state)
{
	struct answer_attr got;
	struct kvd_hot_attr attr = hot_attr(5, HOT_FILE);
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	hot_put(&rig, 5, HOT_FILE);
	hot_name(&rig, HOT_FOLDER, "a", 1, 5);
	hot_share(&rig, 5, 7);
	assert_int_equal(kvd_hot_unsure(rig.split, 5), 0);
	assert_int_equal(kvd_hot_unsure(rig.split, 6), -ENOENT);
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "a"));
	expect_forwarded(&rig, FUSE_GETATTR, send_getattr(&rig, 5));
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDONLY));
	attr.size = 12345;
	assert_int_equal(kvd_hot_put(rig.split, &attr), 0);
	send_getattr(&rig, 5);
	assert_int_equal(recv(rig.kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.body.attr.size, 12345);
	expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5); /* still shared */
	rig_close(&rig);
}

static void test_unsure_names(void **state)
{
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	hot_put(&rig, 5, HOT_FILE);
	hot_put(&rig, 6, HOT_FILE);
	hot_name(&rig, HOT_FOLDER, "a", 1, 5);
	hot_name(&rig, HOT_FOLDER, "absent", 0, 0);
	hot_complete(&rig, HOT_FOLDER);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, "a", 1), 0);
		assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, "b", 1), 0);
		assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, "absent", 6), 0);
	}
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "a"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "b"));
	expect_forwarded(&rig, FUSE_LOOKUP, send_lookup(&rig, HOT_FOLDER, "absent"));
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "c"));
	/* Settled: "a" was renamed to "b". */
	assert_int_equal(kvd_hot_name_gone(rig.split, HOT_FOLDER, "a", 1), 0);
	hot_name(&rig, HOT_FOLDER, "b", 2, 5);
	assert_int_equal(kvd_hot_name_gone(rig.split, HOT_FOLDER, "absent", 6), 0);
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "a"));
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "b"), 5, HOT_FILE);
	expect_not_there(&rig, send_lookup(&rig, HOT_FOLDER, "absent"));
	/* Another inode under a name. */
	hot_name(&rig, HOT_FOLDER, "b", 2, 6);
	expect_found(&rig, send_lookup(&rig, HOT_FOLDER, "b"), 6, HOT_FILE);
	assert_int_equal(rig_stats(&rig).hot_names, 1);
	rig_close(&rig);
}

static void test_open(void **state)
{
	struct kvd_wire_open_out out;
	struct fuse_open_in short_in = { .flags = O_RDONLY };
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	hot_put(&rig, 5, HOT_FILE);
	hot_put(&rig, 6, HOT_FILE);
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDONLY)); /* not shared */
	hot_share(&rig, 5, 7);
	hot_share(&rig, 6, 0);
	out = expect_opened(&rig, send_open(&rig, 5, O_RDONLY | O_NOFOLLOW | O_DIRECT), 5);
	assert_int_equal(out.open_flags, 1u << 7);
	assert_int_equal(out.backing_id, 7);
	out = expect_opened(&rig, send_open(&rig, 6, O_RDONLY), 6);
	assert_int_equal(out.open_flags, FOPEN_DIRECT_IO);
	assert_int_equal(out.backing_id, 0);
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_WRONLY));
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDWR));
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDONLY | O_TRUNC));
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_OPEN, 5, &short_in, 4, NULL, 0), EINVAL);
	assert_int_equal(rig_stats(&rig).hot_opens, 2);
	assert_int_equal(rig_stats(&rig).hot_leases, 2);
	assert_int_equal(rig_stats(&rig).hot_shared, 2);
	rig_close(&rig);
}

static void test_folders_are_opened(void **state)
{
	struct answer_open got;
	struct fuse_open_in in = { .flags = O_RDONLY | O_DIRECTORY };
	struct rig rig;
	uint64_t unique;

	(void)state;
	rig_start(&rig, 1);
	unique = kernel_send(&rig, FUSE_OPENDIR, 77, &in, sizeof(in), NULL, 0);
	assert_int_equal(recv(rig.kernel, &got, sizeof(got), MSG_TRUNC), sizeof(got));
	assert_int_equal(got.header.unique, unique);
	assert_int_equal(got.header.error, 0);
	assert_int_equal(got.body.fh, 77);
	assert_int_equal(got.body.open_flags, 0);
	assert_int_equal(got.body.backing_id, 0);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_OPENDIR, 77, &in, 4, NULL, 0), EINVAL);
	expect_done(&rig, kernel_send(&rig, FUSE_RELEASEDIR, 77, &(struct fuse_release_in){ .fh = 77 },
				      sizeof(struct fuse_release_in), NULL, 0));
	/* The kernel never asks again. */
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_ACCESS, 77, &in, 8, NULL, 0), ENOSYS);
	kernel_expect_error(&rig, kernel_send(&rig, FUSE_FLUSH, 77, &got, 24, NULL, 0), ENOSYS);
	rig_close(&rig);
}

static void test_bad_arguments(void **state)
{
	struct kvd_hot_attr attr = hot_attr(5, HOT_FILE);
	struct kvd_hot_attr none = hot_attr(0, HOT_FILE);
	uint64_t cookie = 1;
	uint32_t bytes = 3;
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_hot_put(rig.split, &none), -EINVAL);
	assert_int_equal(kvd_hot_name(rig.split, 0, "a", 1, 1, 5), -EINVAL);
	assert_int_equal(kvd_hot_name(rig.split, 1, "a", 0, 1, 5), -EINVAL);
	assert_int_equal(kvd_hot_name(rig.split, 1, "a\0b", 3, 1, 5), -EINVAL);
	assert_int_equal(kvd_hot_name_unsure(rig.split, 1, "a", 256), -EINVAL);
	assert_int_equal(kvd_hot_name_gone(rig.split, 0, "a", 1), -EINVAL);
	assert_int_equal(kvd_hot_folder(rig.split, 0, KVD_HOT_COMPLETE), -EINVAL);
	assert_int_equal(kvd_hot_folder(rig.split, 1, 2), -EINVAL);
	assert_int_equal(kvd_hot_folder_parent(rig.split, 1, 1), -ENOENT);
	assert_int_equal(kvd_hot_forget_folder(rig.split, 1), -ENOENT);
	assert_int_equal(kvd_hot_fill(rig.split, 0, &attr, &cookie, &bytes, "abc", 1), -EINVAL);
	assert_int_equal(kvd_hot_fill(rig.split, 1, &none, &cookie, &bytes, "abc", 1), -EINVAL);
	bytes = 0;
	assert_int_equal(kvd_hot_fill(rig.split, 1, &attr, &cookie, &bytes, "abc", 1), -EINVAL);
	assert_int_equal(kvd_hot_share(rig.split, 5), -ENOENT); /* neither */
	hot_put(&rig, 5, HOT_FILE);
	assert_int_equal(kvd_hot_share(rig.split, 5), -ENOENT); /* no object */
	assert_int_equal(rig_stats(&rig).hot_names, 0);
	assert_int_equal(rig_stats(&rig).hot_folders, 0);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lookup),
		cmocka_unit_test(test_what_is_no_name_is_forwarded),
		cmocka_unit_test(test_misses),
		cmocka_unit_test(test_getattr),
		cmocka_unit_test(test_unsure_inode),
		cmocka_unit_test(test_unsure_names),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_folders_are_opened),
		cmocka_unit_test(test_bad_arguments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
