/* READDIR and READDIRPLUS from the hot table: their bytes, where they go on, and a folder that changes against a model. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "hot_rig.h"

enum {
	LIST_BYTES = 64 << 10,
	MODEL_NAMES = 3000, /* more than ten runs */
	MODEL_STEPS = 60000,
	MODEL_CHECK_EVERY = 3000,
};

static struct message message;

/* One line; `entry` with PLUS. Where the next begins. */
static size_t line_at(size_t at, bool plus, struct fuse_entry_out *entry, struct fuse_dirent *dirent, char *name)
{
	const uint8_t *body = message.out.body + at;
	size_t bytes = message.bytes - sizeof(message.out.header) - at;

	if (plus) {
		assert_true(bytes >= sizeof(*entry));
		memcpy(entry, body, sizeof(*entry));
		body += sizeof(*entry);
		at += sizeof(*entry);
	}
	memcpy(dirent, body, FUSE_NAME_OFFSET);
	assert_true(dirent->namelen > 0 && dirent->namelen <= 255);
	memcpy(name, body + FUSE_NAME_OFFSET, dirent->namelen);
	name[dirent->namelen] = 0;
	at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + dirent->namelen);
	assert_true(at <= message.bytes - sizeof(message.out.header));
	return at;
}

static size_t expect_lines(struct rig *rig, uint64_t unique)
{
	kernel_recv(rig, &message);
	assert_int_equal(message.out.header.unique, unique);
	assert_int_equal(message.out.header.error, 0);
	return message.bytes - sizeof(message.out.header);
}

static void three_names(struct rig *rig)
{
	rig_start(rig, 1);
	hot_put(rig, 5, HOT_FILE);
	hot_put(rig, 6, S_IFLNK | 0777);
	hot_put(rig, 7, S_IFDIR | 0755);
	/* In the order of their cookies, whenever they came. */
	hot_name(rig, HOT_FOLDER, "link", 20, 6);
	hot_name(rig, HOT_FOLDER, "a", 10, 5);
	hot_name(rig, HOT_FOLDER, "folder", 30, 7);
	hot_name(rig, HOT_FOLDER, ".hidden", 0, 5); /* found, not listed */
	hot_complete(rig, HOT_FOLDER);
}

static void check_three(bool plus, size_t bytes)
{
	static const struct {
		const char *name;
		uint64_t ino;
		uint64_t off;
		uint32_t type;
		uint32_t mode;
	} want[] = {
		{ ".", HOT_FOLDER, 1, 4, 0 },	      { "..", HOT_FOLDER_PARENT, 2, 4, 0 },
		{ "a", 5, 12, 8, HOT_FILE },	      { "link", 6, 22, 10, S_IFLNK | 0777 },
		{ "folder", 7, 32, 4, S_IFDIR | 0755 },
	};
	struct fuse_entry_out entry;
	struct fuse_dirent dirent;
	char name[256];
	size_t at = 0;

	for (size_t i = 0; i < 5; i++) {
		at = line_at(at, plus, &entry, &dirent, name);
		assert_string_equal(name, want[i].name);
		assert_int_equal(dirent.ino, want[i].ino);
		assert_int_equal(dirent.off, want[i].off);
		assert_int_equal(dirent.type, want[i].type);
		if (plus && want[i].mode) {
			assert_int_equal(entry.nodeid, want[i].ino);
			assert_int_equal(entry.entry_valid, 60);
			assert_attr(&entry.attr, want[i].ino, want[i].mode);
		} else if (plus) {
			assert_memory_equal(&entry, &(struct fuse_entry_out){ 0 }, sizeof(entry));
		}
	}
	assert_int_equal(at, bytes);
}

static void test_bytes(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	three_names(&rig);
	check_three(false, expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES)));
	assert_int_equal(kvd_hot_drop(rig.split, 5, &gone), 0);
	assert_int_equal(gone.lookups, 0); /* names alone give no look-ups */
	hot_put(&rig, 5, HOT_FILE);
	check_three(true, expect_lines(&rig, send_readdir(&rig, FUSE_READDIRPLUS, HOT_FOLDER, 0, LIST_BYTES)));
	for (uint64_t node = 5; node <= 7; node++) {
		assert_int_equal(kvd_hot_drop(rig.split, node, &gone), 0);
		assert_int_equal(gone.lookups, 1);
	}
	assert_int_equal(rig_stats(&rig).hot_readdirs, 2);
	rig_close(&rig);
}

/* With room for one line at a time, from each cookie on. */
static void test_goes_on_at_a_cookie(void **state)
{
	static const uint64_t offsets[] = { 0, 1, 2, 12, 22, 32 };
	struct fuse_entry_out entry;
	struct fuse_dirent dirent;
	char name[256];
	struct rig rig;
	size_t bytes;

	(void)state;
	three_names(&rig);
	for (int plus = 0; plus < 2; plus++) {
		uint32_t opcode = plus ? FUSE_READDIRPLUS : FUSE_READDIR;
		uint32_t room = plus ? 160 : 32;

		for (size_t i = 0; i + 1 < 6; i++) {
			bytes = expect_lines(&rig, send_readdir(&rig, opcode, HOT_FOLDER, offsets[i], room));
			assert_int_equal(line_at(0, plus, &entry, &dirent, name), bytes);
			assert_int_equal(dirent.off, offsets[i + 1]);
		}
		assert_int_equal(expect_lines(&rig, send_readdir(&rig, opcode, HOT_FOLDER, 32, room)), 0);
		assert_int_equal(expect_lines(&rig, send_readdir(&rig, opcode, HOT_FOLDER, UINT64_MAX, room)), 0);
		/* Between two, as after a name that went. */
		bytes = expect_lines(&rig, send_readdir(&rig, opcode, HOT_FOLDER, 13, room));
		line_at(0, plus, &entry, &dirent, name);
		assert_int_equal(dirent.off, 22);
		/* Without room for a line nothing would mean the end. */
		expect_forwarded(&rig, opcode, send_readdir(&rig, opcode, HOT_FOLDER, 2, 24));
	}
	rig_close(&rig);
}

static void test_what_is_forwarded(void **state)
{
	struct fuse_entry_out entry;
	struct fuse_dirent dirent;
	struct kvd_hot_gone gone;
	char name[256];
	struct rig rig;
	size_t at = 0;

	(void)state;
	three_names(&rig);
	kernel_send(&rig, FUSE_READDIR, HOT_FOLDER, name, 8, NULL, 0);
	peer_recv(&rig, &message);
	assert_int_equal(message.in.header.opcode, FUSE_READDIR);
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, 2, 0, LIST_BYTES));
	/* A name that is unsure. */
	assert_int_equal(kvd_hot_name_unsure(rig.split, HOT_FOLDER, "new", 3), 0);
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES));
	assert_int_equal(kvd_hot_name_gone(rig.split, HOT_FOLDER, "new", 3), 0);
	check_three(false, expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES)));
	/* Of an inode that is unsure: name and type. */
	assert_int_equal(kvd_hot_unsure(rig.split, 5), 0);
	check_three(false, expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES)));
	expect_lines(&rig, send_readdir(&rig, FUSE_READDIRPLUS, HOT_FOLDER, 2, LIST_BYTES));
	at = line_at(at, true, &entry, &dirent, name);
	assert_string_equal(name, "a");
	assert_int_equal(dirent.type, 8);
	assert_memory_equal(&entry, &(struct fuse_entry_out){ 0 }, sizeof(entry));
	line_at(at, true, &entry, &dirent, name);
	assert_int_equal(entry.nodeid, 6);
	/* Of one that is not there nothing is known; what was counted before it was met is taken back. */
	assert_int_equal(kvd_hot_drop(rig.split, 7, &gone), 0);
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES));
	expect_forwarded(&rig, FUSE_READDIRPLUS, send_readdir(&rig, FUSE_READDIRPLUS, HOT_FOLDER, 0, LIST_BYTES));
	assert_int_equal(kvd_hot_drop(rig.split, 6, &gone), 0);
	assert_int_equal(gone.lookups, 1);
	rig_close(&rig);
}

static void test_without_a_parent(void **state)
{
	struct rig rig;

	(void)state;
	three_names(&rig);
	assert_int_equal(kvd_hot_folder_parent(rig.split, HOT_FOLDER, 0), 0);
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 0, LIST_BYTES));
	expect_forwarded(&rig, FUSE_READDIR, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 1, LIST_BYTES));
	assert_true(expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, HOT_FOLDER, 2, LIST_BYTES)) > 0);
	/* An empty one. */
	hot_complete(&rig, 50);
	assert_int_equal(expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, 50, 2, LIST_BYTES)), 0);
	assert_int_equal(expect_lines(&rig, send_readdir(&rig, FUSE_READDIR, 50, 0, LIST_BYTES)), 64);
	rig_close(&rig);
}

static void test_a_lost_listing_is_taken_back(void **state)
{
	struct kvd_hot_gone gone;
	struct rig rig;

	(void)state;
	three_names(&rig);
	atomic_store(&fake_write_error, ENOENT);
	send_readdir(&rig, FUSE_READDIRPLUS, HOT_FOLDER, 0, LIST_BYTES);
	kernel_expect_silence(&rig);
	for (uint64_t node = 5; node <= 7; node++) {
		assert_int_equal(kvd_hot_drop(rig.split, node, &gone), 0);
		assert_int_equal(gone.lookups, 0);
	}
	rig_close(&rig);
}

static uint32_t next_random(void)
{
	static uint64_t state = 11;

	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(state >> 33);
}

/* Each name has its number in it; its cookie, or 0. */
static uint64_t model[MODEL_NAMES];

static void check_model(struct rig *rig)
{
	struct fuse_entry_out entry;
	struct fuse_dirent dirent;
	char name[256];
	uint64_t offset = 2;
	uint32_t there = 0;
	uint32_t listed = 0;
	size_t bytes;

	for (uint32_t i = 0; i < MODEL_NAMES; i++)
		there += model[i] != 0;
	while ((bytes = expect_lines(rig, send_readdir(rig, FUSE_READDIR, HOT_FOLDER, offset, 4096))) > 0) {
		for (size_t at = 0; at < bytes; listed++) {
			uint32_t number;

			at = line_at(at, false, &entry, &dirent, name);
			assert_int_equal(sscanf(name, "name-%u", &number), 1);
			assert_true(dirent.off > offset);
			assert_int_equal(dirent.off, model[number] + 2);
			offset = dirent.off;
		}
	}
	assert_int_equal(listed, there);
	for (int i = 0; i < 20; i++) {
		uint32_t number = next_random() % MODEL_NAMES;
		uint64_t unique;

		snprintf(name, sizeof(name), "name-%u", number);
		unique = send_lookup(rig, HOT_FOLDER, name);
		if (model[number])
			expect_found(rig, unique, 5, HOT_FILE);
		else
			expect_not_there(rig, unique);
	}
}

/* Names that come at the end and in between, go, move and are forgotten. */
static void test_order_against_a_model(void **state)
{
	uint64_t last = 1 << 20;
	char name[32];
	struct rig rig;

	(void)state;
	rig_start(&rig, 1);
	hot_put(&rig, 5, HOT_FILE);
	hot_complete(&rig, HOT_FOLDER);
	for (uint32_t step = 1; step <= MODEL_STEPS; step++) {
		uint32_t number = next_random() % MODEL_NAMES;
		/* Waves of more and of fewer names, so that runs split and merge. */
		bool fewer = step / 10000 % 2;
		int bytes = snprintf(name, sizeof(name), "name-%u", number);

		if (next_random() % 8 < (fewer ? 6 : 1)) {
			assert_int_equal(kvd_hot_name_gone(rig.split, HOT_FOLDER, name, (uint32_t)bytes), 0);
			model[number] = 0;
		} else {
			/* A cookie that nobody has: numbers below 2^20 are every name's own. */
			model[number] = next_random() % 4 ? ++last : 1 + number + MODEL_NAMES * (uint64_t)(step % 300);
			hot_name(&rig, HOT_FOLDER, name, model[number], 5);
		}
		if (step % MODEL_CHECK_EVERY == 0)
			check_model(&rig);
	}
	assert_int_equal(kvd_hot_forget_folder(rig.split, HOT_FOLDER), 0);
	assert_int_equal(rig_stats(&rig).hot_names, 0);
	assert_int_equal(rig_stats(&rig).hot_folders, 0);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_goes_on_at_a_cookie),
		cmocka_unit_test(test_what_is_forwarded),
		cmocka_unit_test(test_without_a_parent),
		cmocka_unit_test(test_a_lost_listing_is_taken_back),
		cmocka_unit_test(test_order_against_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
