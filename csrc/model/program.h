/* The program kvd-card: its options, its socket, its loop. */
#ifndef KVD_MODEL_PROGRAM_H
#define KVD_MODEL_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "model/card.h"

enum { KVD_CARD_WHY_BYTES = 256 };

struct kvd_card_options {
	struct kvd_card_config card;
	const char *socket_path;
	uint32_t spin_us; /* how long doorbells are watched without a pause after there was work */
	bool json;
	bool help;
};

/* 0, or -EINVAL and in `why` (KVD_CARD_WHY_BYTES) a sentence that says what is wrong. */
int kvd_card_options_parse(int argc, char **argv, struct kvd_card_options *out, char *why);
extern const char kvd_card_usage[];

/*
 * Listen at a path. A socket that nobody listens on any more is replaced. 0 or -errno, and in `why` a sentence. The
 * descriptor does not block.
 */
int kvd_card_listen(const char *path, int *out, char *why);

/* Serve clients until a signal comes through `signal_fd`. 0 or -errno. */
int kvd_card_run(kvd_card *card, const struct kvd_card_options *options, int listen_fd, int signal_fd);
/* Tell who watches what has happened: one line. */
void kvd_card_say(const struct kvd_card_options *options, const kvd_card *card, const char *event);

#endif
