/*
 * Whether one process sees at once what another has changed: the changes are made in a child, one at a time, and the
 * parent looks after each with what the kernel remembers from before.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/load.h"

enum {
	WATCH_SHORT_BYTES = 1000,
	WATCH_LONG_BYTES = 5000,
	WATCH_CUT_BYTES = 10,
	WATCH_MODE = 0600,
	WATCH_OTHER_MODE = 0640,
};

struct names {
	char one[PATH_MAX];
	char two[PATH_MAX];
};

static int append(const char *name, int flags, size_t bytes)
{
	static const char zeroes[WATCH_LONG_BYTES];
	int fd = open(name, O_WRONLY | O_CLOEXEC | flags, WATCH_MODE);
	int err = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, zeroes, bytes) != (ssize_t)bytes)
		err = errno ? -errno : -EIO;
	if (close(fd) < 0 && !err)
		err = -errno;
	return err;
}

/* The steps of a round, in order; each returns 0 or -errno. */
static int make(const struct names *names)
{
	return append(names->one, O_CREAT | O_EXCL, WATCH_SHORT_BYTES);
}

static int grow(const struct names *names)
{
	return append(names->one, O_APPEND, WATCH_LONG_BYTES - WATCH_SHORT_BYTES);
}

static int cut(const struct names *names)
{
	return truncate(names->one, WATCH_CUT_BYTES) ? -errno : 0;
}

static int change_mode(const struct names *names)
{
	return chmod(names->one, WATCH_OTHER_MODE) ? -errno : 0;
}

static int move(const struct names *names)
{
	return rename(names->one, names->two) ? -errno : 0;
}

static int take_away(const struct names *names)
{
	return unlink(names->two) ? -errno : 0;
}

/* What must be so after each step; a size of -1: the name is not there. */
static const struct step {
	int (*change)(const struct names *names);
	off_t size_one, size_two;
	mode_t mode;
} steps[] = {
	{make, WATCH_SHORT_BYTES, -1, WATCH_MODE},
	{grow, WATCH_LONG_BYTES, -1, WATCH_MODE},
	{cut, WATCH_CUT_BYTES, -1, WATCH_MODE},
	{change_mode, WATCH_CUT_BYTES, -1, WATCH_OTHER_MODE},
	{move, -1, WATCH_CUT_BYTES, WATCH_OTHER_MODE},
	{take_away, -1, -1, 0},
};
enum { STEPS = sizeof(steps) / sizeof(*steps) };

static bool is_so(const char *name, off_t size, mode_t mode)
{
	struct stat found;

	if (stat(name, &found) < 0)
		return size < 0 && errno == ENOENT;
	return found.st_size == size && (found.st_mode & ALLPERMS) == mode;
}

/* The child: a step for each byte that comes, answered by its result. */
static void change(const struct names *names, int from_fd, int to_fd)
{
	unsigned char step;

	while (read(from_fd, &step, 1) == 1) {
		int err = steps[step].change(names);

		if (write(to_fd, &err, sizeof(err)) != sizeof(err))
			return;
	}
}

/* One step, and what this process sees of it. */
static int look(const struct names *names, unsigned char number, int to_fd, int from_fd)
{
	const struct step *step = &steps[number];
	int err;

	if (write(to_fd, &number, 1) != 1 || read(from_fd, &err, sizeof(err)) != sizeof(err))
		return -EPIPE; /* the child is no more */
	if (err)
		return err;
	return is_so(names->one, step->size_one, step->mode) && is_so(names->two, step->size_two, step->mode) ? 0 : -ESTALE;
}

static void look_at_all(const struct kvd_bench_load *load, const struct names *names, int to_fd, int from_fd,
			struct kvd_bench_tally *tally)
{
	/* The names are known not to be there, before the first change. */
	(void)is_so(names->one, -1, 0);
	(void)is_so(names->two, -1, 0);
	for (uint32_t round = 0; round < load->rounds; round++) {
		for (unsigned char i = 0; i < STEPS; i++) {
			int err = look(names, i, to_fd, from_fd);

			tally->ops++;
			if (err)
				kvd_bench_fail(tally, -err);
			if (err && err != -ESTALE)
				return;
		}
	}
}

void kvd_bench_watch(const struct kvd_bench_load *load, struct kvd_bench_tally *tally)
{
	int to[2], from[2];
	struct names names;
	pid_t child;

	if (snprintf(names.one, sizeof(names.one), "%s/one", load->files[0]) >= (int)sizeof(names.one) ||
	    snprintf(names.two, sizeof(names.two), "%s/two", load->files[0]) >= (int)sizeof(names.two)) {
		kvd_bench_fail(tally, ENAMETOOLONG);
		return;
	}
	if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0) {
		kvd_bench_fail(tally, errno);
		return; /* the process ends at once, and its descriptors with it */
	}
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close(to[1]);
		(void)close(from[0]);
		change(&names, to[0], from[1]);
		_exit(EXIT_SUCCESS);
	}
	(void)close(to[0]);
	(void)close(from[1]);
	if (child < 0)
		kvd_bench_fail(tally, errno);
	else
		look_at_all(load, &names, to[1], from[0], tally);
	(void)close(to[1]);
	(void)close(from[0]);
	if (child > 0)
		(void)waitpid(child, NULL, 0);
}
