/* A mover and a scratch directory on a real file system, for the tests of the mover. */
#ifndef KVD_TESTS_MOVER_UTIL_H
#define KVD_TESTS_MOVER_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "mover/mover.h"

enum {
	PAGE_BYTES = 65536,
	IO_BYTES = 4 * PAGE_BYTES, /* small, so that a middling object is cut */
	QUEUE_JOBS = 8,
	QUEUE_DEPTH = 4,
	DEVICES = 3,
	REQUEST_MS = 60000,        /* more than a device needs, however slow the machine */
	DEADLINE_MS = 60000,       /* of a job that is to succeed, however slow the machine */
};

struct rig {
	char dir[64];
	int dir_fd;
	kvd_mover *mover;
};

struct kvd_mover_config rig_config(void);

/* An object: what it holds where, and the files it is in. */
struct object {
	uint64_t size_bytes;
	uint64_t n_runs;
	const struct kvd_mover_run *runs;
	uint8_t *bytes; /* zeroes in its holes */
	uint32_t *crc;  /* filled by a demotion */
	int ddr_fd;
	int nvme_fd[DEVICES]; /* of its parts */
	bool direct;
	uint32_t n_parts;
	uint64_t stripe_bytes;
	struct kvd_mover_part parts[DEVICES]; /* of the last job made */
};

int rig_setup(void **state);
int rig_teardown(void **state);

/* Open NAME in the rig; O_DIRECT is dropped, and *direct cleared, where the file system has none. */
int rig_open(const struct rig *rig, const char *name, int flags, bool *direct);

void object_make(const struct rig *rig, struct object *object, const char *name, uint64_t size_bytes,
		 const struct kvd_mover_run *runs, uint64_t n_runs, bool direct);
/* The same in `n_parts` stripes. */
void object_make_striped(const struct rig *rig, struct object *object, const char *name, uint64_t size_bytes,
			 const struct kvd_mover_run *runs, uint64_t n_runs, bool direct, uint32_t n_parts,
			 uint64_t stripe_bytes);
void object_free(struct object *object);
uint64_t object_run_bytes(const struct object *object);

/* The part of one job whose pages are all on the first device. */
struct kvd_mover_part part_of(int fd, bool direct);
struct kvd_mover_job job_demote(const struct rig *rig, struct object *object, uint64_t token);
struct kvd_mover_job job_promote(struct object *object, int ddr_fd, uint64_t token);
struct kvd_mover_job job_verify(struct object *object, uint64_t token);

/* Take the next result; fails the test when none comes. */
struct kvd_mover_result next_result(kvd_mover *mover);
/* Submit and take the only result. */
struct kvd_mover_result run_job(kvd_mover *mover, const struct kvd_mover_job *job);

/* A memory file as the ddr tier has them. */
int memory_file(void);
void assert_file_is(int fd, const uint8_t *bytes, uint64_t size_bytes);

#endif
