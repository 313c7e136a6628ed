/*
 * How fast the hot table answers, with a million names in one folder: requests from threads of this process over a socket in
 * the place of /dev/fuse, so two system calls and two wake-ups a request more than a mount has. Run by `meson test --benchmark`.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "split_rig.h"

enum { NAMES = 1000000, FILL = 256, REQUESTS = 200000, BATCH = 16, FIRST_NODE = 1000, FOLDER = 1 };

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint64_t resident_bytes(void)
{
	unsigned long pages = 0;
	unsigned long total = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%lu %lu", &total, &pages), 2);
	fclose(file);
	return (uint64_t)pages * 4096;
}

static void fill(struct rig *rig)
{
	struct kvd_hot_attr attrs[FILL];
	uint64_t cookies[FILL];
	uint32_t bytes[FILL];
	char names[FILL * 24];
	uint64_t before = resident_bytes();
	double begin = seconds();

	for (uint64_t i = 0; i < NAMES; i += FILL) {
		uint32_t count = 0;
		char *at = names;

		for (; count < FILL && i + count < NAMES; count++) {
			attrs[count] = (struct kvd_hot_attr){ .node = FIRST_NODE + i + count, .mode = 0100644 };
			cookies[count] = i + count + 1;
			bytes[count] = (uint32_t)snprintf(at, 24, "chunk-%012lu", (unsigned long)(i + count));
			at += bytes[count];
		}
		assert_int_equal(kvd_hot_fill(rig->split, FOLDER, attrs, cookies, bytes, names, count), 0);
	}
	assert_int_equal(kvd_hot_folder(rig->split, FOLDER, KVD_HOT_COMPLETE), 0);
	assert_int_equal(kvd_hot_folder_parent(rig->split, FOLDER, FOLDER), 0);
	printf("fill: %.0f names/s, %.1f bytes of memory a name of 18 bytes with its inode\n", NAMES / (seconds() - begin),
	       (double)(resident_bytes() - before) / NAMES);
}

/* Requests in batches: as many as there are before the first answer is awaited. */
static void measure(struct rig *rig, const char *what, uint32_t opcode, bool missing)
{
	struct message *message = malloc(sizeof(*message));
	uint64_t state = 1;
	double begin = seconds();

	for (uint32_t i = 0; i < REQUESTS; i += BATCH) {
		for (uint32_t k = 0; k < BATCH; k++) {
			struct fuse_getattr_in in = { 0 };
			char name[24];

			state = state * 6364136223846793005ull + 1442695040888963407ull;
			snprintf(name, sizeof(name), "%s-%012lu", missing ? "other" : "chunk",
				 (unsigned long)((state >> 33) % NAMES));
			if (opcode == FUSE_LOOKUP)
				kernel_send(rig, opcode, FOLDER, name, sizeof("chunk-") + 12, NULL, 0);
			else
				kernel_send(rig, opcode, FIRST_NODE + (state >> 33) % NAMES, &in, sizeof(in), NULL, 0);
		}
		for (uint32_t k = 0; k < BATCH; k++) {
			kernel_recv(rig, message);
			assert_int_equal(message->out.header.error, 0);
		}
	}
	printf("%s: %.0f requests/s\n", what, REQUESTS / (seconds() - begin));
	free(message);
}

static void measure_opens(struct rig *rig)
{
	struct kvd_split_object object = { .node = FIRST_NODE, .mode = KVD_MODE_PASSTHROUGH, .backing_id = 7 };
	struct fuse_open_in open_in = { .flags = O_RDONLY };
	struct fuse_release_in release_in = { .fh = KVD_HOT_FH | FIRST_NODE };
	struct message *message = malloc(sizeof(*message));
	double begin;

	object.fd = rig_file(0);
	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
	assert_int_equal(kvd_hot_share(rig->split, FIRST_NODE), 0);
	begin = seconds();
	for (uint32_t i = 0; i < REQUESTS / 4; i++) {
		kernel_send(rig, FUSE_OPEN, FIRST_NODE, &open_in, sizeof(open_in), NULL, 0);
		kernel_recv(rig, message);
		kernel_send(rig, FUSE_RELEASE, FIRST_NODE, &release_in, sizeof(release_in), NULL, 0);
		kernel_recv(rig, message);
		assert_int_equal(message->out.header.error, 0);
	}
	printf("open and release, one at a time: %.0f pairs/s\n", REQUESTS / 4 / (seconds() - begin));
	assert_int_equal(rig_stats(rig).hot_releases, REQUESTS / 4);
	close(object.fd);
	free(message);
}

static void measure_listing(struct rig *rig)
{
	struct message *message = malloc(sizeof(*message));
	struct fuse_read_in in = { .size = 32 << 10 };
	double begin = seconds();
	double longest = 0;
	uint32_t names = 0;
	size_t bytes;

	do {
		double one = seconds();
		struct fuse_dirent dirent;

		kernel_send(rig, FUSE_READDIRPLUS, FOLDER, &in, sizeof(in), NULL, 0);
		kernel_recv(rig, message);
		bytes = message->bytes - sizeof(message->out.header);
		for (size_t at = 0; at < bytes; names++) {
			memcpy(&dirent, message->out.body + at + sizeof(struct fuse_entry_out), FUSE_NAME_OFFSET);
			in.offset = dirent.off;
			at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + dirent.namelen);
		}
		if (seconds() - one > longest)
			longest = seconds() - one;
	} while (bytes > 0);
	assert_int_equal(names, NAMES + 2);
	printf("listing with attributes: %.0f names/s, the longest answer %.2f ms\n", names / (seconds() - begin),
	       longest * 1e3);
	free(message);
}

static void test_speed(void **state)
{
	struct rig rig;

	(void)state;
	rig_open_hot(&rig, 2, NAMES + 1, NAMES);
	fill(&rig);
	measure(&rig, "look-ups of names that are there", FUSE_LOOKUP, false);
	measure(&rig, "look-ups of names that are not", FUSE_LOOKUP, true);
	measure(&rig, "attributes", FUSE_GETATTR, false);
	measure_opens(&rig);
	measure_listing(&rig);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_speed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
