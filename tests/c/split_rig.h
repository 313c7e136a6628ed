/* Both ends of a split under test: the kernel's and the peer's, each a SOCK_SEQPACKET socket. */
#ifndef KVD_TESTS_SPLIT_RIG_H
#define KVD_TESTS_SPLIT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fuse/split.h"
#include "fuse/wire.h"

enum {
	RIG_IO_BYTES = 1 << 20,
	RIG_MESSAGE_BYTES = RIG_IO_BYTES + (128 << 10),
	RIG_PENDING_MAX = 64,
	RIG_HOT_MAX = 16384, /* inodes, and names */
	RIG_HOT_ABSENT_MS = 61500,
};

struct rig {
	kvd_split *split;
	int kernel;      /* the test's end of what the split takes for /dev/fuse */
	int peer;        /* where pyfuse3 would be */
	int split_kernel;
	int split_peer;
	uint64_t unique; /* of the last request; the kernel counts in twos */
};

/* A message from the split. */
struct message {
	size_t bytes;
	union {
		uint8_t raw[RIG_MESSAGE_BYTES];
		struct {
			struct fuse_in_header header;
			uint8_t body[];
		} in;
		struct {
			struct fuse_out_header header;
			uint8_t body[];
		} out;
	};
};

/* What the next split lets a READ wait for a stream. */
extern uint32_t rig_read_wait_ms;
/* What it lets a device take for a READ of a cold object. */
extern uint32_t rig_device_wait_ms;

#define RIG_FEATURES                                                                                              \
	(KVD_FEATURE_PASSTHROUGH | KVD_FEATURE_DIRECT_MMAP | KVD_FEATURE_READDIRPLUS | KVD_FEATURE_ATOMIC_TRUNC)

/* Make a split with `readers` threads and start it; not negotiated. */
void rig_open(struct rig *rig, uint32_t readers);
/* The same, with that much room in the hot table. */
void rig_open_hot(struct rig *rig, uint32_t readers, uint32_t hot_inodes_max, uint32_t hot_names_max);
/* As rig_open, negotiated with a new kernel. */
void rig_start(struct rig *rig, uint32_t readers);
void rig_close(struct rig *rig);

/* Send a request made of two parts; returns its unique. */
uint64_t kernel_send(struct rig *rig, uint32_t opcode, uint64_t node, const void *body, size_t bytes, const void *tail,
		     size_t tail_bytes);
void kernel_send_raw(struct rig *rig, const void *data, size_t bytes);
/* The next answer; fails the test when none comes. */
void kernel_recv(struct rig *rig, struct message *message);
/* The next answer is this error to that unique. */
void kernel_expect_error(struct rig *rig, uint64_t unique, int error);
/* Nothing was sent to the kernel: a request that the split answers itself gets the next answer. One reader only. */
void kernel_expect_silence(struct rig *rig);

void peer_recv(struct rig *rig, struct message *message);
/* The next message is that opcode with that unique. */
void peer_expect(struct rig *rig, struct message *message, uint32_t opcode, uint64_t unique);
void peer_send(struct rig *rig, uint64_t unique, int error, const void *body, size_t bytes);
void peer_send_raw(struct rig *rig, const void *data, size_t bytes);

uint64_t send_read(struct rig *rig, uint64_t node, uint64_t offset, uint32_t size);
uint64_t send_write(struct rig *rig, uint64_t node, uint64_t offset, const void *data, uint32_t size);
uint64_t send_fallocate(struct rig *rig, uint64_t node, uint32_t mode, uint64_t offset, uint64_t length);
uint64_t send_interrupt(struct rig *rig, uint64_t target);
void expect_read(struct rig *rig, uint64_t node, uint64_t offset, uint32_t size, const void *want, size_t bytes);
void expect_write_reply(struct rig *rig, uint64_t unique, uint32_t bytes);
/* The peer gets KVD_ASK_GROW for `unique`. */
void expect_ask(struct rig *rig, uint64_t unique, struct kvd_split_ask *ask);

/* Wait for an event of that kind. */
struct kvd_split_event expect_event(struct rig *rig, uint32_t kind);
bool has_event(struct rig *rig);
struct kvd_split_stats rig_stats(struct rig *rig);
/* Until nothing is pending: an entry goes a moment after its answer. */
void await_idle(struct rig *rig);

/* A new unlinked file on a tmpfs with `bytes` bytes of a pattern. */
int rig_file(size_t bytes);
/* What a file takes of its storage. */
uint64_t rig_held_bytes(int fd);
void rig_pattern(uint8_t *out, size_t bytes);
/* A writable DIRECT object of `fd` with node `node`. */
void rig_add(struct rig *rig, uint64_t node, int fd, uint64_t limit_bytes);

/* split_sys_fake.c */
extern atomic_int fake_read_error;   /* > 0: the next read fails with it, once */
extern atomic_int fake_write_error;  /* > 0: the next write of an answer fails with it, once, and sends nothing */
extern atomic_bool fake_may_back;
/* Reads of the file with this inode number hang until it is another; how many do. */
extern atomic_ullong fake_hang_ino;
extern atomic_int fake_hanging;
extern atomic_int fake_backing_closed;
/* Let others run before each write of an answer: what was decided for it may be old by then. */
extern atomic_bool fake_dawdles;
/* Told of the unique of each answer that fake_write_error loses; NULL: nobody. */
extern void (*_Atomic fake_on_lost)(uint64_t unique);

#endif
