/* The program kvd-card, as its user starts it: options, its socket, its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi/abi.h"
#include "vfio/proto.h"

enum {
	TEXT_BYTES = 4096,
	ARGUMENTS_MAX = 16,
	DEADLINE_MS = 20000,
};

static const char *program;
static char folder[] = "/tmp/kvd-card-XXXXXX";
static char socket_path[64];

struct run {
	pid_t pid;
	int out; /* its standard output and error */
	char text[TEXT_BYTES];
	size_t used;
};

static void start(struct run *run, const char *const *arguments)
{
	const char *argv[ARGUMENTS_MAX + 2] = {program};
	int pipes[2];

	for (int i = 0; arguments[i]; i++) {
		assert_true(i < ARGUMENTS_MAX);
		argv[i + 1] = arguments[i];
	}
	*run = (struct run){0};
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	run->pid = fork();
	assert_true(run->pid >= 0);
	if (!run->pid) {
		dup2(pipes[1], STDOUT_FILENO);
		dup2(pipes[1], STDERR_FILENO);
		execv(program, (char *const *)(uintptr_t)argv);
		_exit(99);
	}
	close(pipes[1]);
	run->out = pipes[0];
}

/* More of its output. False: there will be none. */
static int more(struct run *run)
{
	struct pollfd poll_fd = {.fd = run->out, .events = POLLIN};
	ssize_t n;

	assert_int_equal(poll(&poll_fd, 1, DEADLINE_MS), 1);
	assert_true(run->used < TEXT_BYTES - 1);
	n = read(run->out, run->text + run->used, TEXT_BYTES - 1 - run->used);
	assert_true(n >= 0);
	run->used += (size_t)n;
	return n > 0;
}

static void wait_text(struct run *run, const char *text)
{
	while (!strstr(run->text, text))
		assert_true(more(run));
}

/* Read the rest and return the exit status. */
static int finish(struct run *run)
{
	int status;

	while (more(run))
		;
	close(run->out);
	assert_int_equal(waitpid(run->pid, &status, 0), run->pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int stop(struct run *run, int number)
{
	assert_int_equal(kill(run->pid, number), 0);
	return finish(run);
}

static void refused(const char *const *arguments, int exit_status, const char *part)
{
	struct run run;

	start(&run, arguments);
	assert_int_equal(finish(&run), exit_status);
	assert_non_null(strstr(run.text, part));
	/* One line, one sentence. */
	assert_ptr_equal(strchr(run.text, '\n'), run.text + run.used - 1);
	assert_memory_equal(run.text, "kvd-card: ", 10);
}

#define REFUSED(part, ...) refused((const char *const[]){__VA_ARGS__, NULL}, 2, part)

static void test_wrong_options(void **state)
{
	char long_path[200];

	(void)state;
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	REFUSED("--socket PATH is missing", "--json");
	REFUSED("--nonsense", "--nonsense");
	REFUSED("value is missing", "--socket");
	REFUSED("empty", "--socket", "");
	REFUSED("less than 108 bytes", "--socket", long_path);
	REFUSED("only options", "--socket", "x", "y");
	REFUSED("--card-ddr 3M", "--socket", "x", "--card-ddr", "3M");
	REFUSED("--card-ddr 512K", "--socket", "x", "--card-ddr", "512K");
	REFUSED("--card-ddr 1T", "--socket", "x", "--card-ddr", "1T");
	REFUSED("--card-ddr M", "--socket", "x", "--card-ddr", "M");
	REFUSED("--card-ddr 18446744073709551617", "--socket", "x", "--card-ddr", "18446744073709551617");
	REFUSED("--queues 0", "--socket", "x", "--queues", "0");
	REFUSED("--queues 17", "--socket", "x", "--queues", "17");
	REFUSED("--queues -1", "--socket", "x", "--queues", "-1");
	REFUSED("--depth 1", "--socket", "x", "--depth", "1");
	REFUSED("--depth 100", "--socket", "x", "--depth", "100");
	REFUSED("--depth 2048", "--socket", "x", "--depth", "2048");
	REFUSED("--spin 1x", "--socket", "x", "--spin", "1x");
	REFUSED("--grace 99999999", "--socket", "x", "--grace", "99999999");
	REFUSED("--fault fire", "--socket", "x", "--fault", "fire");
	REFUSED("--fault die=", "--socket", "x", "--fault", "die=");
	REFUSED("--fault die=x", "--socket", "x", "--fault", "die=x");
	REFUSED("8 faults already", "--fault", "die", "--fault", "die", "--fault", "die", "--fault", "die", "--fault",
		"die", "--fault", "die", "--fault", "die", "--fault=die", "--fault=die");
}

static void test_help(void **state)
{
	struct run run;

	(void)state;
	start(&run, (const char *const[]){"--help", NULL});
	assert_int_equal(finish(&run), 0);
	assert_non_null(strstr(run.text, "--card-ddr SIZE"));
	assert_non_null(strstr(run.text, "reset-mid-batch"));
}

static int client(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	strcpy(address.sun_path, socket_path);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* Receive exactly so much. 0: the other side hung up. */
static int receive(int fd, void *data, size_t bytes)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	size_t have = 0;

	while (have < bytes) {
		ssize_t n;

		assert_int_equal(poll(&poll_fd, 1, DEADLINE_MS), 1);
		n = recv(fd, (uint8_t *)data + have, bytes - have, 0);
		if (n <= 0)
			return 0;
		have += (size_t)n;
	}
	return 1;
}

static void hello(int fd)
{
	struct {
		struct kvd_vfu_header header;
		struct kvd_vfu_version version;
	} message = {.header = {.command = KVD_VFU_VERSION, .bytes = sizeof(message)}};
	char reply[TEXT_BYTES];

	assert_int_equal(send(fd, &message, sizeof(message), MSG_NOSIGNAL), sizeof(message));
	assert_true(receive(fd, &message.header, sizeof(message.header)));
	assert_int_equal(message.header.flags, KVD_VFU_TYPE_REPLY);
	assert_true(receive(fd, reply, message.header.bytes - sizeof(message.header)));
}

static uint64_t read_magic(int fd)
{
	struct {
		struct kvd_vfu_header header;
		struct kvd_vfu_region_access access;
		uint64_t value;
	} message = {
		.header = {.command = KVD_VFU_REGION_READ, .bytes = sizeof(message) - sizeof(uint64_t)},
		.access = {.offset = KVD_ABI_BAR0_MAGIC_AT, .count = sizeof(uint64_t)},
	};

	assert_int_equal(send(fd, &message, message.header.bytes, MSG_NOSIGNAL), message.header.bytes);
	assert_true(receive(fd, &message, sizeof(message)));
	return message.value;
}

static void test_serves(void **state)
{
	static const int ends[] = {SIGTERM, SIGINT};
	struct stat stat_now;
	struct run run;
	char byte;

	(void)state;
	for (int i = 0; i < 2; i++) {
		int first, second;

		start(&run, (const char *const[]){"--socket", socket_path, "--card-ddr=1MiB", "--queues", "1", "--depth", "2",
						  i ? "--json" : "--spin=0", NULL});
		wait_text(&run, "listening");
		assert_int_equal(stat(socket_path, &stat_now), 0);
		assert_int_equal(stat_now.st_mode & 0777, 0700);
		first = client();
		hello(first);
		assert_int_equal(read_magic(first), KVD_ABI_BAR0_MAGIC_RESET);
		/* A second one is told at once, and the first notices nothing. */
		second = client();
		assert_int_equal(receive(second, &byte, 1), 0);
		close(second);
		assert_int_equal(read_magic(first), KVD_ABI_BAR0_MAGIC_RESET);
		/* The next one has the card as soon as the first has gone. */
		close(first);
		second = client();
		hello(second);
		assert_int_equal(read_magic(second), KVD_ABI_BAR0_MAGIC_RESET);
		/* A hang-up by the card, for nonsense. */
		assert_int_equal(send(second, "nonsense, more than sixteen bytes", 33, MSG_NOSIGNAL), 33);
		assert_int_equal(receive(second, &byte, 1), 0);
		close(second);
		assert_int_equal(stop(&run, ends[i]), 0);
		assert_non_null(strstr(run.text, i ? "\"event\":\"stopped\"" : "stopped on"));
		assert_int_equal(stat(socket_path, &stat_now), -1);
	}
}

/* Its end does not wait for a client. */
static void test_ends_with_client(void **state)
{
	struct run run;
	int fd;
	char byte;

	(void)state;
	start(&run, (const char *const[]){"--socket-path", socket_path, NULL});
	wait_text(&run, "listening");
	fd = client();
	hello(fd);
	assert_int_equal(stop(&run, SIGTERM), 0);
	assert_int_equal(receive(fd, &byte, 1), 0);
	close(fd);
}

static void test_socket_taken(void **state)
{
	const char *const arguments[] = {"--socket", socket_path, NULL};
	struct run first, again;
	int file;

	(void)state;
	start(&first, arguments);
	wait_text(&first, "listening");
	refused(arguments, 1, "another process listens there");
	/* The one that died left a socket; it is replaced. */
	assert_int_equal(kill(first.pid, SIGKILL), 0);
	assert_int_equal(waitpid(first.pid, NULL, 0), first.pid);
	close(first.out);
	start(&again, arguments);
	wait_text(&again, "listening");
	assert_int_equal(stop(&again, SIGTERM), 0);
	/* What is no socket stays. */
	file = open(socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	close(file);
	refused(arguments, 1, "is no socket");
	assert_int_equal(unlink(socket_path), 0);
	refused((const char *const[]){"--socket", "/nowhere/at/all", NULL}, 1, "No such file or directory");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_options), cmocka_unit_test(test_help), cmocka_unit_test(test_serves),
		cmocka_unit_test(test_ends_with_client), cmocka_unit_test(test_socket_taken),
	};
	int failed;

	if (argc != 2 || !mkdtemp(folder)) {
		fprintf(stderr, "usage: %s KVD-CARD\n", argv[0]);
		return 2;
	}
	program = argv[1];
	snprintf(socket_path, sizeof(socket_path), "%s/card.sock", folder);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(socket_path);
	rmdir(folder);
	return failed;
}
