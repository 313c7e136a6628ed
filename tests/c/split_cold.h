/* Cold objects of a split under test, whose drive hangs: a file that the fake twin of the system calls does not read. */
#ifndef KVD_TESTS_SPLIT_COLD_H
#define KVD_TESTS_SPLIT_COLD_H

#include "split_rig.h"

enum {
	PAGE = 64 << 10,
	PAGES = 16,
	FILE_BYTES = PAGES * PAGE - 777,
	STRIPE = 4 * PAGE,
	THREADS = 8, /* KVD_COLD_THREADS */
	BAD = 3,     /* the device of what hangs */
	GOOD = 5,
	NODE = 7,
	OTHER = 8,
	DEADLINE_S = 10,
};

extern uint8_t cold_want[FILE_BYTES];
extern uint32_t cold_crc[PAGES];

struct kvd_split_sums cold_sums(void);
/* A new file with `cold_want`. */
int cold_file(void);
void cold_add(struct rig *rig, uint64_t node, int fd, uint32_t device);
/* NODE of two parts, on BAD and on GOOD. */
void cold_add_striped(struct rig *rig, const int *fds);
/* Reads of the file hang until others do, or none. */
void cold_hang(int fd);
/* Until so many reads are in the drive's hands. */
void cold_await_hanging(int count);
/* Until so many of them are nobody's any more. */
void cold_await_given_up(struct rig *rig, uint64_t count);
/* The drive is a good one again, and has given back all of them. */
void cold_heal(struct rig *rig);
void cold_expect_whole(struct rig *rig, uint64_t node);

#endif
