/* What the tests of the card model share: a card in this process, and a client at the other end of its socket. */
#ifndef KVD_TESTS_CARD_RIG_H
#define KVD_TESTS_CARD_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/internal.h"

enum {
	RIG_DDR_BYTES = 1 << 20,
	RIG_REPLY_BYTES_MAX = (1 << 20) + 4096,
	RIG_FDS_MAX = 8,
};

struct rig {
	kvd_card *card;
	int fd; /* the client's end; -1: hung up */
	uint16_t id;
	/* The last reply. */
	struct kvd_vfu_header header;
	uint8_t payload[RIG_REPLY_BYTES_MAX];
	uint32_t bytes;
	int fds[RIG_FDS_MAX];
	uint32_t fd_count;
};

/* A card, a client, and VERSION done. */
int rig_setup(void **state);
int rig_teardown(void **state);
void rig_open(struct rig *rig, const struct kvd_card_config *config);
void rig_close(struct rig *rig);
/* Connect a client that has not said anything yet; the one before hangs up. */
void rig_connect(struct rig *rig);
void rig_hello(struct rig *rig);

/* Send bytes as they are, with descriptors beside them. */
void rig_send(struct rig *rig, const void *data, size_t bytes, const int *fds, uint32_t fd_count);
/* Send a command. */
void rig_command(struct rig *rig, uint16_t command, uint32_t flags, const void *payload, uint32_t bytes,
		 const int *fds, uint32_t fd_count);
/* Let the card serve until it has nothing more to do. */
void rig_step(struct rig *rig);
/* Take a reply. False: there is none. */
bool rig_receive(struct rig *rig);
/* Has the card hung up? */
bool rig_hung_up(struct rig *rig);
/* Send a command and take its reply; returns 0 or -errno as the reply says. */
int rig_call(struct rig *rig, uint16_t command, const void *payload, uint32_t bytes);
int rig_call_fds(struct rig *rig, uint16_t command, const void *payload, uint32_t bytes, const int *fds, uint32_t fd_count);

int rig_read(struct rig *rig, uint32_t region, uint64_t offset, void *data, uint32_t bytes);
int rig_write(struct rig *rig, uint32_t region, uint64_t offset, const void *data, uint32_t bytes);
uint32_t rig_read32(struct rig *rig, uint32_t region, uint64_t offset);
uint64_t rig_read64(struct rig *rig, uint32_t region, uint64_t offset);
void rig_write32(struct rig *rig, uint32_t region, uint64_t offset, uint32_t value);
void rig_write64(struct rig *rig, uint32_t region, uint64_t offset, uint64_t value);
/* Map memory; `fd` -1: without a descriptor. */
int rig_map(struct rig *rig, uint64_t iova, uint64_t bytes, uint32_t flags, int fd, uint64_t offset);
int rig_unmap(struct rig *rig, uint64_t iova, uint64_t bytes, uint32_t flags);
/* SET_IRQS with the given data type and action. */
int rig_irqs(struct rig *rig, uint32_t index, uint32_t flags, uint32_t start, uint32_t count, const void *data,
	     uint32_t data_bytes, const int *fds, uint32_t fd_count);
/* The descriptor of a region, which the caller closes. */
int rig_region_fd(struct rig *rig, uint32_t region);
/* How often an eventfd was signalled since the last look. */
uint64_t rig_signals(int eventfd);
void rig_bus_master(struct rig *rig, bool on);
/* A file of zeros. */
int rig_file(uint64_t bytes);
/* Descriptors this process has open: nothing may be left behind. */
uint32_t rig_open_fds(void);

extern const struct kvd_card_config rig_config;

/*
 * Under ThreadSanitizer an atomic access is a call that holds a lock: a fault within it can't be left by a jump. The model
 * has one thread, so nothing is lost by leaving those tests to the other builds.
 */
#ifdef __SANITIZE_THREAD__
#define RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT() skip()
#else
#define RIG_SKIP_UNLESS_FAULTS_CAN_BE_LEFT() ((void)0)
#endif

#endif
