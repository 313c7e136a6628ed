/* Regions that are files, so that the client can map them. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/internal.h"

int kvd_card_bar_init(struct kvd_card_bar *bar, const char *name, uint64_t bytes, bool sealed)
{
	int err;

	*bar = (struct kvd_card_bar){.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), .bytes = bytes};
	if (bar->fd < 0)
		return -errno;
	/* Sealed, the client can't cut it under us. */
	if (ftruncate(bar->fd, (off_t)bytes) ||
	    (sealed && fcntl(bar->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
		err = -errno;
		goto close_file;
	}
	bar->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, bar->fd, 0);
	if (bar->base == MAP_FAILED) {
		err = -errno;
		goto close_file;
	}
	err = kvd_card_guard_add(bar->base, bytes);
	if (err)
		goto unmap;
	return 0;

unmap:
	munmap(bar->base, bytes);
close_file:
	close(bar->fd);
	*bar = (struct kvd_card_bar){.fd = -1};
	return err;
}

void kvd_card_bar_fini(struct kvd_card_bar *bar)
{
	if (!bar->base)
		return;
	kvd_card_guard_remove(bar->base);
	munmap(bar->base, bar->bytes);
	close(bar->fd);
	*bar = (struct kvd_card_bar){.fd = -1};
}

int kvd_card_bar_cut(struct kvd_card_bar *bar)
{
	return ftruncate(bar->fd, 0) ? -errno : 0;
}
