/* Look-ups, leases and opens: counted, handed over, and never lost. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "hot_rig.h"

static struct message message;

static void lookups(struct rig *rig, uint32_t count)
{
	for (; count > 0; count--)
		expect_found(rig, send_lookup(rig, HOT_FOLDER, "a"), 5, HOT_FILE);
}

static struct kvd_hot_gone drop(struct rig *rig, uint64_t node)
{
	struct kvd_hot_gone gone;

	assert_int_equal(kvd_hot_drop(rig->split, node, &gone), 0);
	assert_int_equal(gone.node, node);
	return gone;
}

/* The peer gets a FORGET of that many. */
static void expect_forget(struct rig *rig, uint64_t node, uint64_t count)
{
	struct fuse_forget_in in;

	peer_recv(rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_FORGET);
	assert_int_equal(message.in.header.nodeid, node);
	memcpy(&in, message.in.body, sizeof(in));
	assert_int_equal(in.nlookup, count);
}

static void one_file(struct rig *rig)
{
	rig_start(rig, 1);
	hot_put(rig, 5, HOT_FILE);
	hot_name(rig, HOT_FOLDER, "a", 1, 5);
}

static void test_forget(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	one_file(&rig);
	lookups(&rig, 5);
	send_forget(&rig, 5, 2);
	kernel_expect_silence(&rig);
	/* Unsure or not, its counts go on. */
	assert_int_equal(kvd_hot_unsure(rig.split, 5), 0);
	send_forget(&rig, 5, 2);
	kernel_expect_silence(&rig);
	/* One is left: the rest is what the peer gave. */
	send_forget(&rig, 5, 4);
	expect_forget(&rig, 5, 3);
	send_forget(&rig, 5, 1);
	expect_forget(&rig, 5, 1);
	send_forget(&rig, 6, 9);
	expect_forget(&rig, 6, 9);
	hot_put(&rig, 5, HOT_FILE);
	lookups(&rig, 3);
	gone = drop(&rig, 5);
	assert_int_equal(gone.lookups, 3);
	assert_int_equal(gone.leases, 0);
	assert_int_equal(kvd_hot_drop(rig.split, 5, &gone), -ENOENT);
	assert_int_equal(gone.lookups, 0);
	send_forget(&rig, 5, 3);
	expect_forget(&rig, 5, 3);
	/* Too short to be one. */
	kernel_send(&rig, FUSE_FORGET, 5, "1234", 4, NULL, 0);
	peer_recv(&rig, &message);
	assert_int_equal(message.bytes, sizeof(struct fuse_in_header) + 4);
	rig_close(&rig);
}

static void test_batch_forget(void **state)
{
	struct {
		struct fuse_batch_forget_in in;
		struct fuse_forget_one ones[4];
	} batch = { .in = { .count = 4, .dummy = 9 }, .ones = { { 5, 2 }, { 8, 1 }, { 5, 3 }, { 9, 7 } } };
	struct {
		struct fuse_batch_forget_in in;
		struct fuse_forget_one ones[3];
	} want = { .in = { .count = 3, .dummy = 9 }, .ones = { { 8, 1 }, { 5, 1 }, { 9, 7 } } };
	struct rig rig;

	(void)state;
	one_file(&rig);
	lookups(&rig, 4);
	kernel_send(&rig, FUSE_BATCH_FORGET, 0, &batch, sizeof(batch), NULL, 0);
	peer_recv(&rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_BATCH_FORGET);
	assert_int_equal(message.bytes, sizeof(struct fuse_in_header) + sizeof(want));
	assert_memory_equal(message.in.body, &want, sizeof(want));
	/* All of it is the table's. */
	lookups(&rig, 5);
	batch.ones[1] = batch.ones[3] = (struct fuse_forget_one){ 5, 0 };
	kernel_send(&rig, FUSE_BATCH_FORGET, 0, &batch, sizeof(batch), NULL, 0);
	kernel_expect_silence(&rig);
	assert_int_equal(drop(&rig, 5).lookups, 0);
	/* A count that the message does not hold is the peer's to refuse. */
	batch.in.count = UINT32_MAX;
	kernel_send(&rig, FUSE_BATCH_FORGET, 0, &batch, sizeof(batch), NULL, 0);
	peer_recv(&rig, &message);
	assert_memory_equal(message.in.body, &batch, sizeof(batch));
	rig_close(&rig);
}

static void test_leases(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;
	uint64_t fh = KVD_HOT_FH | 5;
	uint64_t unique;

	(void)state;
	one_file(&rig);
	hot_share(&rig, 5, 7);
	for (int i = 0; i < 3; i++)
		expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	assert_int_equal(kvd_split_object_remove(rig.split, 5), -EBUSY);
	assert_int_equal(kvd_hot_shut(rig.split, 5, 1, &gone), -EBUSY);
	assert_int_equal(gone.leases, 0);
	expect_done(&rig, send_release(&rig, 5, fh));
	/* What the peer opened is the peer's, and so is what is another's. */
	expect_forwarded(&rig, FUSE_RELEASE, send_release(&rig, 5, 5));
	expect_forwarded(&rig, FUSE_RELEASE, send_release(&rig, 6, fh));
	expect_forwarded(&rig, FUSE_RELEASE, send_release(&rig, 6, KVD_HOT_FH | 6));
	assert_int_equal(kvd_hot_unsure(rig.split, 5), 0);
	expect_done(&rig, send_release(&rig, 5, fh));
	assert_int_equal(rig_stats(&rig).hot_leases, 1);
	assert_int_equal(kvd_hot_shut(rig.split, 5, 0, &gone), 0);
	assert_int_equal(gone.leases, 1);
	assert_int_equal(gone.opens, 3);
	assert_int_equal(gone.lookups, 0);
	assert_int_equal(rig_stats(&rig).hot_leases, 0);
	assert_int_equal(rig_stats(&rig).hot_shared, 0);
	hot_put(&rig, 5, HOT_FILE);
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDONLY));
	unique = send_release(&rig, 5, fh);
	peer_expect(&rig, &message, FUSE_RELEASE, unique);
	assert_memory_equal(message.in.body, &fh, sizeof(fh));
	peer_send(&rig, unique, 0, NULL, 0);
	expect_done(&rig, unique);
	assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);
	assert_int_equal(kvd_hot_shut(rig.split, 5, 1, &gone), 0);
	assert_int_equal(gone.leases, 0);
	assert_int_equal(kvd_hot_shut(rig.split, 6, 1, &gone), -ENOENT);
	rig_close(&rig);
}

static void test_an_object_that_goes_is_not_shared(void **state)
{
	struct rig rig;

	(void)state;
	one_file(&rig);
	hot_share(&rig, 5, 7);
	assert_int_equal(kvd_hot_share(rig.split, 5), 0);
	assert_int_equal(rig_stats(&rig).hot_shared, 1);
	expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	expect_done(&rig, send_release(&rig, 5, KVD_HOT_FH | 5));
	assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);
	assert_int_equal(rig_stats(&rig).hot_shared, 0);
	expect_forwarded(&rig, FUSE_OPEN, send_open(&rig, 5, O_RDONLY));
	assert_int_equal(drop(&rig, 5).opens, 1);
	rig_close(&rig);
}

static void test_dropped_with_leases(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	one_file(&rig);
	hot_share(&rig, 5, 7);
	lookups(&rig, 1);
	expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	gone = drop(&rig, 5);
	assert_int_equal(gone.lookups, 1);
	assert_int_equal(gone.leases, 1);
	assert_int_equal(gone.opens, 1);
	expect_forwarded(&rig, FUSE_RELEASE, send_release(&rig, 5, KVD_HOT_FH | 5));
	assert_int_equal(kvd_split_object_remove(rig.split, 5), 0);
	rig_close(&rig);
}

static void test_lost_answers_are_taken_back(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	one_file(&rig);
	hot_share(&rig, 5, 7);
	lookups(&rig, 1);
	expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	atomic_store(&fake_write_error, ENOENT);
	send_lookup(&rig, HOT_FOLDER, "a");
	kernel_expect_silence(&rig);
	atomic_store(&fake_write_error, ENOENT);
	send_open(&rig, 5, O_RDONLY);
	kernel_expect_silence(&rig);
	gone = drop(&rig, 5);
	assert_int_equal(gone.lookups, 1);
	assert_int_equal(gone.leases, 1);
	assert_int_equal(gone.opens, 1);
	rig_close(&rig);
}

static struct rig *racing;

/* While one reader loses an answer, another takes what the peer had given for what that answer gives. */
static void forget_meanwhile(uint64_t unique)
{
	(void)unique;
	atomic_store(&fake_on_lost, NULL);
	send_forget(racing, 5, 1);
	kernel_expect_silence(racing); /* by the only other reader, so the FORGET is done */
}

static void release_meanwhile(uint64_t unique)
{
	(void)unique;
	atomic_store(&fake_on_lost, NULL);
	expect_done(racing, send_release(racing, 5, KVD_HOT_FH | 5));
}

static void lose_and(void (*meanwhile)(uint64_t unique))
{
	atomic_store(&fake_on_lost, meanwhile);
	atomic_store(&fake_write_error, ENOENT);
}

/* Then the peer has one too many, and is told. */
static void test_lost_answers_that_are_owed(void **state)
{
	struct kvd_hot_gone gone;
	struct fuse_read_in list = { .size = 4096 };
	struct fuse_release_in in;
	struct rig rig;

	(void)state;
	racing = &rig;
	rig_start(&rig, 2);
	hot_put(&rig, 5, HOT_FILE);
	hot_name(&rig, HOT_FOLDER, "a", 1, 5);
	hot_complete(&rig, HOT_FOLDER);
	hot_share(&rig, 5, 7);
	lose_and(forget_meanwhile);
	send_lookup(&rig, HOT_FOLDER, "a");
	expect_forget(&rig, 5, 1);
	lose_and(forget_meanwhile);
	kernel_send(&rig, FUSE_READDIRPLUS, HOT_FOLDER, &list, sizeof(list), NULL, 0);
	expect_forget(&rig, 5, 1);
	lose_and(release_meanwhile);
	send_open(&rig, 5, O_RDONLY);
	peer_recv(&rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_RELEASE);
	assert_int_equal(message.in.header.nodeid, 5);
	memcpy(&in, message.in.body, sizeof(in));
	assert_true(in.fh == (KVD_HOT_FH | 5));
	gone = drop(&rig, 5);
	assert_int_equal(gone.lookups, 0);
	assert_int_equal(gone.leases, 0);
	assert_int_equal(rig_stats(&rig).hot_leases, 0);
	rig_close(&rig);
}

static void test_used(void **state)
{
	struct kvd_hot_use uses[8];
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	assert_int_equal(kvd_hot_used(rig.split, uses, 8), 0);
	for (uint64_t node = 10; node < 15; node++) {
		hot_put(&rig, node, HOT_FILE);
		hot_share(&rig, node, 7);
		for (uint64_t i = 10; i <= node; i++)
			expect_opened(&rig, send_open(&rig, node, O_RDONLY), node);
	}
	expect_done(&rig, send_release(&rig, 14, KVD_HOT_FH | 14));
	assert_int_equal(drop(&rig, 11).opens, 2); /* out of the middle */
	assert_int_equal(kvd_hot_used(rig.split, uses, 2), 2);
	assert_int_equal(uses[0].node, 10);
	assert_int_equal(uses[0].opens, 1);
	assert_int_equal(uses[0].leases, 1);
	assert_int_equal(uses[1].node, 12);
	assert_int_equal(uses[1].opens, 3);
	expect_opened(&rig, send_open(&rig, 12, O_RDONLY), 12);
	assert_int_equal(kvd_hot_used(rig.split, uses, 8), 3);
	assert_int_equal(uses[0].node, 13);
	assert_int_equal(uses[1].node, 14);
	assert_int_equal(uses[1].opens, 5);
	assert_int_equal(uses[1].leases, 4);
	assert_int_equal(uses[2].node, 12);
	assert_int_equal(uses[2].opens, 1);
	assert_int_equal(uses[2].leases, 4);
	assert_int_equal(kvd_hot_used(rig.split, uses, 8), 0);
	rig_close(&rig);
}

static void test_watch(void **state)
{
	struct rig rig;

	(void)state;
	one_file(&rig);
	hot_share(&rig, 5, 7);
	for (int i = 0; i < 2; i++)
		expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	assert_int_equal(kvd_hot_watch(rig.split), 0);
	expect_done(&rig, send_release(&rig, 5, KVD_HOT_FH | 5));
	kernel_expect_silence(&rig);
	assert_false(has_event(&rig));
	expect_done(&rig, send_release(&rig, 5, KVD_HOT_FH | 5));
	assert_int_equal(expect_event(&rig, KVD_EVENT_FREED).node, 0);
	/* Once. */
	expect_opened(&rig, send_open(&rig, 5, O_RDONLY), 5);
	expect_done(&rig, send_release(&rig, 5, KVD_HOT_FH | 5));
	kernel_expect_silence(&rig);
	assert_false(has_event(&rig));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forget),
		cmocka_unit_test(test_batch_forget),
		cmocka_unit_test(test_leases),
		cmocka_unit_test(test_an_object_that_goes_is_not_shared),
		cmocka_unit_test(test_dropped_with_leases),
		cmocka_unit_test(test_lost_answers_are_taken_back),
		cmocka_unit_test(test_lost_answers_that_are_owed),
		cmocka_unit_test(test_used),
		cmocka_unit_test(test_watch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
