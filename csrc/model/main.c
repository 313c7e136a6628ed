/* kvd-card: the card model as a program. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/program.h"

enum {
	EXIT_USAGE = 2, /* as usual for wrong options */
};

static int open_signals(void)
{
	sigset_t signals;

	/* Who started us may stop listening to what we say. */
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	if (sigprocmask(SIG_BLOCK, &signals, NULL))
		return -errno;
	return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Remove the socket, if it is still the one that was made. */
static void remove_socket(const char *path, const struct stat *made)
{
	struct stat now;

	if (!lstat(path, &now) && now.st_ino == made->st_ino && now.st_dev == made->st_dev)
		(void)unlink(path);
}

static int serve(const struct kvd_card_options *options, kvd_card *card)
{
	char why[KVD_CARD_WHY_BYTES];
	struct stat made = {0};
	int listen_fd, signal_fd, err;

	signal_fd = open_signals();
	if (signal_fd < 0) {
		fprintf(stderr, "kvd-card: signals can't be received\n");
		return EXIT_FAILURE;
	}
	err = kvd_card_listen(options->socket_path, &listen_fd, why);
	if (err) {
		fprintf(stderr, "kvd-card: %s\n", why);
		close(signal_fd);
		return EXIT_FAILURE;
	}
	(void)lstat(options->socket_path, &made);
	kvd_card_say(options, card, "listening");
	err = kvd_card_run(card, options, listen_fd, signal_fd);
	kvd_card_detach(card);
	kvd_card_say(options, card, "stopped");
	remove_socket(options->socket_path, &made);
	close(listen_fd);
	close(signal_fd);
	if (err)
		fprintf(stderr, "kvd-card: %s\n", strerror(-err));
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct kvd_card_options options;
	char why[KVD_CARD_WHY_BYTES];
	kvd_card *card;
	int err, status;

	if (kvd_card_options_parse(argc, argv, &options, why)) {
		fprintf(stderr, "kvd-card: %s\n", why);
		return EXIT_USAGE;
	}
	if (options.help) {
		fputs(kvd_card_usage, stdout);
		return EXIT_SUCCESS;
	}
	err = kvd_card_init(&options.card, &card);
	if (err) {
		fprintf(stderr, "kvd-card: the card can't be set up: %s\n", strerror(-err));
		return EXIT_FAILURE;
	}
	status = serve(&options, card);
	kvd_card_fini(card);
	return status;
}
