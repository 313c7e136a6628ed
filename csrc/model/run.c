/* The loop: doorbells are memory, so they are looked at; sockets and signals are waited for. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "model/program.h"

enum {
	LOOKS_PER_POLL = 64, /* at the doorbells, while they are watched without a pause */
	NAP_NS_MIN = 50000,
	NAP_NS_MAX = 1000000,
	NS_PER_US = 1000,
	NS_PER_MS = 1000000,
	NS_PER_S = 1000000000,
};

struct loop {
	kvd_card *card;
	const struct kvd_card_options *options;
	int listen_fd;
	int signal_fd;
	int64_t worked_ns; /* when there was work the last time */
	int64_t nap_ns;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void put_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
			printf("\\u%04x", (unsigned char)*text);
		else
			putchar(*text);
	}
}

void kvd_card_say(const struct kvd_card_options *options, const kvd_card *card, const char *event)
{
	struct kvd_card_stats stats;

	kvd_card_stats(card, &stats);
	if (options->json) {
		printf("{\"event\":\"%s\",\"socket\":\"", event);
		put_text(options->socket_path);
		printf("\",\"clients\":%llu,\"messages\":%llu,\"refused\":%llu,\"dropped\":%llu,\"commands\":%llu}\n",
		       (unsigned long long)stats.clients, (unsigned long long)stats.messages,
		       (unsigned long long)stats.refused, (unsigned long long)stats.dropped,
		       (unsigned long long)stats.commands);
	} else {
		printf("kvd-card: %s on %s; %llu clients, %llu messages, %llu of them refused, %llu commands\n", event,
		       options->socket_path, (unsigned long long)stats.clients, (unsigned long long)stats.messages,
		       (unsigned long long)stats.refused, (unsigned long long)stats.commands);
	}
	(void)fflush(stdout);
}

/* One client at a time: another one is told at once, by the end of its connection. */
static void take_client(struct loop *loop)
{
	int fd = accept4(loop->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int err;

	if (fd < 0)
		return;
	err = kvd_card_attach(loop->card, fd);
	if (!err)
		kvd_card_say(loop->options, loop->card, "attached");
	else if (err != -EBUSY)
		fprintf(stderr, "kvd-card: a client could not be served: error %d\n", -err);
}

/* How long to wait for sockets; NULL: until one is ready. */
static const struct timespec *nap(struct loop *loop, struct timespec *out)
{
	int wait_ms = kvd_card_wait_ms(loop->card);
	int64_t ns = (int64_t)wait_ms * NS_PER_MS;

	if (kvd_card_enabled(loop->card)) {
		if (now_ns() - loop->worked_ns < (int64_t)loop->options->spin_us * NS_PER_US) {
			loop->nap_ns = 0;
		} else {
			loop->nap_ns = loop->nap_ns ? loop->nap_ns * 2 : NAP_NS_MIN;
			if (loop->nap_ns > NAP_NS_MAX)
				loop->nap_ns = NAP_NS_MAX;
		}
		if (wait_ms < 0 || loop->nap_ns < ns)
			ns = loop->nap_ns;
	} else if (wait_ms < 0) {
		return NULL;
	}
	*out = (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
	return out;
}

static bool work(struct loop *loop)
{
	bool worked = false;

	for (uint32_t i = 0; i < LOOKS_PER_POLL && !worked; i++)
		worked = kvd_card_work(loop->card);
	if (worked)
		loop->worked_ns = now_ns();
	return worked;
}

static void serve(struct loop *loop)
{
	bool attached = kvd_card_attached(loop->card);

	/* A message may be what comes before the next doorbell. */
	if (kvd_card_serve(loop->card))
		loop->worked_ns = now_ns();
	if (attached && !kvd_card_attached(loop->card))
		kvd_card_say(loop->options, loop->card, "left");
}

int kvd_card_run(kvd_card *card, const struct kvd_card_options *options, int listen_fd, int signal_fd)
{
	struct loop loop = {.card = card, .options = options, .listen_fd = listen_fd, .signal_fd = signal_fd};

	for (;;) {
		struct pollfd fds[] = {
			{.fd = signal_fd, .events = POLLIN},
			{.fd = listen_fd, .events = POLLIN},
			{.fd = -1},
		};
		struct timespec timeout;
		bool worked = work(&loop);

		fds[2].fd = kvd_card_poll_fd(card, &fds[2].events);
		if (ppoll(fds, sizeof(fds) / sizeof(fds[0]), nap(&loop, &timeout), NULL) < 0 && errno != EINTR)
			return -errno;
		if (fds[0].revents)
			return 0;
		/* The client first: if it is leaving, the next one can have the card. */
		if (fds[2].revents || fds[1].revents || kvd_card_wait_ms(card) >= 0)
			serve(&loop);
		if (fds[1].revents)
			take_client(&loop);
		/* On a crowded processor the client may be what waits for us to let go. */
		if (!worked && kvd_card_enabled(card) && !loop.nap_ns)
			sched_yield();
	}
}
