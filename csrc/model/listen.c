/* The socket that clients come to. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "model/program.h"

enum { BACKLOG = 8 };

static int refuse(char *why, const char *path, const char *what, int err)
{
	snprintf(why, KVD_CARD_WHY_BYTES, "%.120s: %s%s%s", path, what, err ? ": " : "", err ? strerror(-err) : "");
	return err;
}

/* What stands at the path, if it may go: a socket that nobody listens on. */
static int clear_path(const char *path, const struct sockaddr_un *address, char *why)
{
	struct stat stat;
	int fd, err;

	if (lstat(path, &stat))
		return errno == ENOENT ? 0 : refuse(why, path, "can't be looked at", -errno);
	if (!S_ISSOCK(stat.st_mode)) {
		refuse(why, path, "is there and is no socket; it stays", 0);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return refuse(why, path, "no socket can be made", -errno);
	err = connect(fd, (const struct sockaddr *)address, sizeof(*address)) ? -errno : 0;
	close(fd);
	if (!err || err == -EAGAIN) {
		refuse(why, path, "another process listens there; stop it or choose another path", 0);
		return -EADDRINUSE;
	}
	if (err != -ECONNREFUSED)
		return refuse(why, path, "can't be tried", err);
	return unlink(path) && errno != ENOENT ? refuse(why, path, "is stale and can't be removed", -errno) : 0;
}

int kvd_card_listen(const char *path, int *out, char *why)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	mode_t mask;
	int fd, err;

	if (strlen(path) >= sizeof(address.sun_path)) {
		refuse(why, path, "is too long for a socket", 0);
		return -ENAMETOOLONG;
	}
	strcpy(address.sun_path, path);
	err = clear_path(path, &address, why);
	if (err)
		return err;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return refuse(why, path, "no socket can be made", -errno);
	/* Who may connect may have all of the card: only its owner. */
	mask = umask(0077);
	err = bind(fd, (const struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	umask(mask);
	if (!err && listen(fd, BACKLOG))
		err = -errno;
	if (err) {
		close(fd);
		return refuse(why, path, "can't listen there", err);
	}
	*out = fd;
	return 0;
}
