/*
 * Many requests at once, four readers, a peer that answers out of order, refuses, grants and forgets, interrupts in between,
 * objects that come and go: each request that wants an answer gets one, and only one.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "split_rig.h"

enum {
	REQUESTS = 15000,
	NODES = 6,
	FLIGHT_MAX = 40, /* below RIG_PENDING_MAX, so that no answer is ENOMEM */
	HELD_MAX = 16,
};

struct storm {
	struct rig rig;
	atomic_bool ending;
	atomic_uint sent;
	atomic_uint answered;
	uint8_t answers[REQUESTS + 8]; /* by number of the request */
	uint64_t releases;             /* synthetic, seen by the peer */
	atomic_uint opened;            /* the peer's successful OPENs */
};

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*seed >> 33);
}

static void *read_answers(void *arg)
{
	struct storm *storm = arg;
	struct message *message = malloc(sizeof(*message));

	while (atomic_load(&storm->answered) < REQUESTS) {
		uint64_t number;

		kernel_recv(&storm->rig, message);
		number = message->out.header.unique / 2;
		assert_true(number < sizeof(storm->answers));
		storm->answers[number]++;
		atomic_fetch_add(&storm->answered, 1);
	}
	free(message);
	return NULL;
}

static void answer(struct storm *storm, const struct message *held, uint64_t *seed)
{
	const struct fuse_in_header *in = &held->in.header;
	struct kvd_wire_open_out open_out = { .fh = in->unique };
	uint32_t dice = next_random(seed) % 8;

	if (in->opcode == FUSE_RELEASE && in->unique >> 63)
		storm->releases++;
	if (dice == 0) {
		peer_send(&storm->rig, in->unique, -EAGAIN, NULL, 0);
	} else if (in->opcode == FUSE_OPEN) {
		atomic_fetch_add(&storm->opened, 1);
		peer_send(&storm->rig, in->unique, 0, &open_out, sizeof(open_out));
	} else {
		if (in->opcode == FUSE_SETXATTR && dice > 2)
			(void)kvd_split_object_limit(storm->rig.split, in->nodeid, 1 << 20);
		peer_send(&storm->rig, in->unique, 0, NULL, 0);
	}
	/* Twice, now and then, and what nobody asked for. */
	if (dice == 1)
		peer_send(&storm->rig, in->unique, 0, NULL, 0);
	if (dice == 2)
		peer_send(&storm->rig, (in->unique | 1) + (1ull << 40), 0, NULL, 0);
}

/* Holds up to HELD_MAX requests and answers any of them; ends with the FORGET of node 0xffff. */
static void *be_peer(void *arg)
{
	struct storm *storm = arg;
	struct message **held = calloc(HELD_MAX, sizeof(struct message *));
	uint64_t seed = 7;
	uint32_t count = 0;
	bool more = true;

	while (more || count) {
		struct message *message = NULL;

		if (more && count < HELD_MAX) {
			uint8_t peek;

			/* Wait only when nothing is held: the rest may be waiting for these answers. */
			if (count == 0 || recv(storm->rig.peer, &peek, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
				message = malloc(sizeof(*message));
				peer_recv(&storm->rig, message);
			}
		}
		if (message && message->in.header.opcode == FUSE_FORGET) {
			more = message->in.header.nodeid != 0xffff;
			free(message);
		} else if (message) {
			held[count++] = message;
		} else {
			uint32_t at = next_random(&seed) % count;

			answer(storm, held[at], &seed);
			free(held[at]);
			held[at] = held[--count];
		}
	}
	free(held);
	return NULL;
}

/* Adds and removes the object of the last node, and invalidates. */
static void *churn(void *arg)
{
	struct storm *storm = arg;
	int fd = rig_file(64 << 10);
	struct kvd_split_object object = {
		.node = NODES,
		.mode = KVD_MODE_DIRECT,
		.fd = fd,
		.writable = 1,
		.size_max_bytes = 1 << 20,
	};

	while (!atomic_load(&storm->ending)) {
		struct kvd_split_stats stats;

		assert_int_equal(kvd_split_object_add(storm->rig.split, &object), 0);
		assert_int_equal(kvd_split_object_switch(storm->rig.split, &object), 0);
		assert_int_equal(kvd_split_object_limit(storm->rig.split, NODES, 1 << 20), 0);
		assert_int_equal(kvd_split_object_remove(storm->rig.split, NODES), 0);
		kvd_split_stats(storm->rig.split, &stats);
		assert_true(stats.pending <= RIG_PENDING_MAX);
	}
	close(fd);
	return NULL;
}

static void send_one(struct storm *storm, uint64_t *seed)
{
	static const uint8_t data[16 << 10];
	uint64_t node = 1 + next_random(seed) % NODES;
	uint64_t offset = next_random(seed) % (256 << 10);
	struct rig *rig = &storm->rig;
	uint64_t unique;

	switch (next_random(seed) % 8) {
	case 0:
		unique = kernel_send(rig, FUSE_OPEN, node, data, 8, NULL, 0);
		break;
	case 1:
		unique = kernel_send(rig, FUSE_GETATTR, node, data, 16, NULL, 0);
		break;
	case 2:
		unique = kernel_send(rig, FUSE_FSYNC, node, data, 16, NULL, 0);
		break;
	case 3:
		unique = send_read(rig, node, offset, 16 << 10);
		break;
	case 4:
		unique = send_fallocate(rig, node, 0, offset, 16 << 10);
		break;
	case 5:
		unique = send_fallocate(rig, node, 3, offset, 64 << 10);
		break;
	default:
		unique = send_write(rig, node, offset, data, sizeof(data));
		break;
	}
	if (next_random(seed) % 3 == 0)
		send_interrupt(rig, unique);
}

static void test_each_is_answered_once(void **state)
{
	struct storm *storm = calloc(1, sizeof(*storm));
	uint64_t seed = 42;
	struct fuse_forget_in forget = { .nlookup = 1 };
	pthread_t threads[3];
	int fd[NODES];
	uint64_t first;

	(void)state;
	rig_start(&storm->rig, 4);
	for (int i = 1; i < NODES; i++) {
		fd[i] = rig_file(0);
		rig_add(&storm->rig, (uint64_t)i, fd[i], (uint64_t)i * (32 << 10));
	}
	first = storm->rig.unique / 2 + 1;
	assert_true(first < 8);
	assert_int_equal(pthread_create(&threads[0], NULL, read_answers, storm), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, be_peer, storm), 0);
	assert_int_equal(pthread_create(&threads[2], NULL, churn, storm), 0);
	for (uint32_t sent = 0; sent < REQUESTS; sent++) {
		while (sent - atomic_load(&storm->answered) >= FLIGHT_MAX)
			sched_yield();
		send_one(storm, &seed);
	}
	assert_int_equal(pthread_join(threads[0], NULL), 0);
	atomic_store(&storm->ending, true);
	assert_int_equal(pthread_join(threads[2], NULL), 0);
	kernel_send(&storm->rig, FUSE_FORGET, 0xffff, &forget, sizeof(forget), NULL, 0);
	assert_int_equal(pthread_join(threads[1], NULL), 0);
	for (uint64_t i = first; i < first + REQUESTS; i++)
		assert_int_equal(storm->answers[i], 1);
	/* Nothing is left that could answer again. */
	kvd_split_stop(storm->rig.split);
	assert_int_equal(rig_stats(&storm->rig).pending, 0);
	assert_true(recv(storm->rig.kernel, &first, sizeof(first), MSG_DONTWAIT) < 0);
	assert_true(rig_stats(&storm->rig).asks > 0);
	assert_true(rig_stats(&storm->rig).interrupted > 0);
	assert_true(rig_stats(&storm->rig).late_replies > 0);
	assert_true(storm->releases <= atomic_load(&storm->opened));
	for (int i = 1; i < NODES; i++)
		close(fd[i]);
	rig_close(&storm->rig);
	free(storm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_is_answered_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
