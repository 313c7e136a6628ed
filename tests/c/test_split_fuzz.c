/*
 * Requests and replies with bytes changed, cut off and added, from a seed. Whatever comes, the split neither crashes nor
 * hangs, and goes on to answer a good request.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "split_rig.h"

enum {
	ROUNDS = 12000, /* of a request and a reply each */
	SEED_BYTES_MAX = 512,
	PROBE_EVERY = 50,
	PROBE_OPCODE = FUSE_IOCTL,
};

struct sample {
	size_t bytes;
	_Alignas(8) uint8_t data[SEED_BYTES_MAX];
};

static uint64_t random_state;

static uint32_t next_random(void)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(random_state >> 33);
}

/* As a kernel 6.18 sends them, for node 5 (an object), 6 (a verified one) or 7 (none); each is a complete folder, too. */
static struct sample request_sample(uint32_t kind, uint64_t unique)
{
	static const uint32_t opcodes[] = {
		FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_READ, FUSE_WRITE, FUSE_FALLOCATE, FUSE_LSEEK, FUSE_SETXATTR,
		FUSE_GETXATTR, FUSE_REMOVEXATTR, FUSE_CREATE, KVD_WIRE_OP_TMPFILE, FUSE_INIT, FUSE_INTERRUPT, FUSE_FORGET,
		FUSE_BATCH_FORGET, FUSE_RELEASE, FUSE_FLUSH, FUSE_OPENDIR, FUSE_RELEASEDIR, FUSE_READDIR, FUSE_READDIRPLUS,
	};
	uint32_t opcode = opcodes[kind % (sizeof(opcodes) / sizeof(*opcodes))];
	struct sample sample = { .bytes = sizeof(struct fuse_in_header) + 40 };
	struct fuse_in_header *header = (void *)sample.data;
	struct fuse_write_in *in = (void *)(header + 1);

	if (opcode == FUSE_WRITE) {
		in->size = 300;
		sample.bytes += in->size;
	} else if (opcode == FUSE_LOOKUP) {
		memcpy(in, next_random() % 2 ? "hot" : "not", 4);
	} else if (opcode == FUSE_FORGET) {
		((struct fuse_forget_in *)(void *)in)->nlookup = 1 + next_random() % 3;
	} else if (opcode == FUSE_BATCH_FORGET) {
		*(struct fuse_batch_forget_in *)(void *)in = (struct fuse_batch_forget_in){ .count = 2 };
		((struct fuse_forget_one *)(void *)in)[1] = (struct fuse_forget_one){ 5 + next_random() % 3, 1 };
	} else if (opcode == FUSE_READDIR || opcode == FUSE_READDIRPLUS) {
		in->offset = next_random() % 4;
		in->size = next_random() % 2 ? 4096 : 200;
	} else if (opcode == FUSE_RELEASE) {
		in->fh = KVD_HOT_FH | (5 + next_random() % 3);
	} else if (opcode == FUSE_READ) {
		in->size = 4096;
	} else if (opcode == FUSE_FALLOCATE) {
		((struct fuse_fallocate_in *)(void *)in)->length = 4096;
	} else if (opcode == FUSE_INTERRUPT) {
		((struct fuse_interrupt_in *)(void *)in)->unique = unique - 2 * (next_random() % 8);
	}
	*header = (struct fuse_in_header){
		.len = (uint32_t)sample.bytes,
		.opcode = opcode,
		.unique = unique,
		.nodeid = 5 + next_random() % 3,
	};
	return sample;
}

static struct sample reply_sample(uint64_t unique)
{
	static const size_t bodies[] = { 0, 8, 16, 64, 104, 128, 144 };
	struct sample sample = { .bytes = sizeof(struct fuse_out_header) + bodies[next_random() % 7] };
	struct fuse_out_header *header = (void *)sample.data;

	*header = (struct fuse_out_header){
		.len = (uint32_t)sample.bytes,
		.error = next_random() % 3 ? 0 : -(int)(next_random() % 40),
		.unique = unique - 2 * (next_random() % 30),
	};
	return sample;
}

static void mutate(struct sample *sample)
{
	for (uint32_t n = next_random() % 4; n > 0; n--) {
		uint32_t at = next_random() % (uint32_t)sample->bytes;

		/* Mostly the headers: there the decisions are. */
		if (next_random() % 4)
			at %= 80 < sample->bytes ? 80 : (uint32_t)sample->bytes;
		sample->data[at] = (uint8_t)(next_random() % 3 ? sample->data[at] ^ 1u << next_random() % 8
							       : next_random());
	}
	if (next_random() % 8 == 0) {
		size_t bytes = 1 + next_random() % SEED_BYTES_MAX;

		/* A cut that the length knows of, or not. */
		sample->bytes = bytes;
		if (next_random() % 2 && bytes >= 4)
			memcpy(sample->data, &(uint32_t){ (uint32_t)bytes }, 4);
	}
}

/* Take what has come so far. */
static void drain(int fd, struct message *message)
{
	while (recv(fd, message->raw, sizeof(message->raw), MSG_DONTWAIT | MSG_TRUNC) > 0)
		continue;
}

/* A good request still gets its answer, among what the mutants got. */
static void probe(struct rig *rig, struct message *message)
{
	/* So many bits from any other that no mutant has it. */
	uint64_t unique = (0x5a5aull << 40) + rig->unique;

	struct fuse_in_header header = { .len = sizeof(header), .opcode = PROBE_OPCODE, .unique = unique, .nodeid = 1 };

	kernel_send_raw(rig, &header, sizeof(header));
	do
		kernel_recv(rig, message);
	while (message->out.header.unique != unique);
	assert_int_equal(message->out.header.error, -ENOTTY);
}

static void add_objects(struct rig *rig, int fd)
{
	static const uint64_t runs[] = { 0, 1 };
	static const uint32_t crc[] = { 1 };
	struct kvd_split_sums sums = { .page_bytes = 4096, .n_runs = 1, .runs = runs, .crc = crc };
	struct kvd_split_object object = { .node = 6, .mode = KVD_MODE_CACHED, .fd = fd, .sums = &sums };

	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
	object = (struct kvd_split_object){
		.node = 5,
		.mode = KVD_MODE_DIRECT,
		.fd = fd,
		.writable = 1,
		.limit_bytes = 64 << 10,
		.size_max_bytes = 1 << 20, /* mutants allocate no more than this */
	};
	assert_int_equal(kvd_split_object_add(rig->split, &object), 0);
}

static void add_hot(struct rig *rig)
{
	for (uint64_t node = 5; node <= 7; node++) {
		struct kvd_hot_attr attr = { .node = node, .mode = 0100644 };

		assert_int_equal(kvd_hot_put(rig->split, &attr), 0);
		assert_int_equal(kvd_hot_name(rig->split, node, "hot", 3, node, 12 - node), 0);
		assert_int_equal(kvd_hot_folder(rig->split, node, KVD_HOT_COMPLETE), 0);
		assert_int_equal(kvd_hot_folder_parent(rig->split, node, 1), 0);
	}
	assert_int_equal(kvd_hot_share(rig->split, 5), 0);
	assert_int_equal(kvd_hot_share(rig->split, 6), 0);
}

static void test_mutants(void **state)
{
	struct message *message = malloc(sizeof(*message));
	struct rig rig;
	int fd = rig_file(8192);

	(void)state;
	random_state = 20260101;
	rig_start(&rig, 2);
	add_objects(&rig, fd);
	add_hot(&rig);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct sample request = request_sample(next_random(), rig.unique += 2);
		struct sample reply = reply_sample(rig.unique);

		mutate(&request);
		mutate(&reply);
		kernel_send_raw(&rig, request.data, request.bytes);
		peer_send_raw(&rig, reply.data, reply.bytes);
		if (i % PROBE_EVERY == 0) {
			drain(rig.peer, message);
			drain(rig.kernel, message);
			probe(&rig, message);
		}
	}
	assert_true(rig_stats(&rig).late_replies > ROUNDS / 10);
	assert_true(rig_stats(&rig).errors > ROUNDS / 10);
	assert_true(rig_stats(&rig).reads > 0);
	assert_true(rig_stats(&rig).writes > 0);
	assert_true(rig_stats(&rig).hot_lookups > 0 && rig_stats(&rig).hot_negatives > 0);
	assert_true(rig_stats(&rig).hot_opens > 0 && rig_stats(&rig).hot_releases > 0);
	assert_true(rig_stats(&rig).hot_getattrs > 0 && rig_stats(&rig).hot_readdirs > 0);
	kvd_split_stop(rig.split);
	assert_int_equal(rig_stats(&rig).pending, 0);
	close(fd);
	rig_close(&rig);
	free(message);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mutants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
