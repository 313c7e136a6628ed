/* Connecting to a device in another process. */
#include "vfio/user.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vfio/json.h"

#define USER_US_PER_MS 1000u

enum {
	USER_FDS_PROPOSED = 16, /* the most that libvfio-user lets a client say */
	USER_ACCESS_BYTES_MAX = 8,
	USER_REGIONS_MIN = KVD_VFIO_CONFIG + 1,
};

static int connect_to(const char *path, uint32_t deadline_ms, char *why, int *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	/* Also bounds connect(2), which waits while the server's queue is full. */
	struct timeval limit = {
		.tv_sec = deadline_ms / 1000,
		.tv_usec = (suseconds_t)(deadline_ms % 1000 * USER_US_PER_MS),
	};
	int fd, err;

	if (strlen(path) >= sizeof(address.sun_path))
		return kvd_vfio_why(why, -ENAMETOOLONG,
				    "The socket's path is longer than %zu characters; choose a shorter one.",
				    sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return kvd_vfio_why(why, -errno, "No socket can be made (%s).", strerror(errno));
	if (!setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) &&
	    !connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
		*out = fd;
		return 0;
	}
	err = errno == EAGAIN ? -ETIMEDOUT : -errno;
	close(fd);
	return kvd_vfio_why(why, err, "Nobody answers at %.100s (%s); start the device's server there.", path,
			    strerror(-err));
}

/* A capability of the server, or what holds without it. */
static int capability(const char *json, size_t bytes, const char *name, uint64_t without, uint64_t *out)
{
	const char *const path[] = {"capabilities", name, NULL};
	int err;

	*out = without;
	if (!bytes)
		return 0;
	err = kvd_vfio_json_number(json, bytes, path, out);
	return err == -ENOENT ? 0 : err;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* What the server says it can do; `json` without its NUL. */
static int read_capabilities(struct vfio_user *user, const char *json, size_t bytes)
{
	struct kvd_vfio_info *info = &user->vfio.info;
	uint64_t fds, xfer, pages, maps;
	int err = capability(json, bytes, "max_msg_fds", KVD_VFU_DEFAULT_MSG_FDS, &fds);

	if (!err)
		err = capability(json, bytes, "max_data_xfer_size", KVD_VFU_DEFAULT_XFER_BYTES, &xfer);
	if (!err)
		err = capability(json, bytes, "pgsizes", KVD_VFU_DEFAULT_PGSIZES, &pages);
	if (!err)
		err = capability(json, bytes, "max_dma_maps", KVD_VFU_DEFAULT_DMA_MAPS, &maps);
	if (err)
		return err;
	pages &= -pages; /* the smallest */
	if (xfer < USER_ACCESS_BYTES_MAX || !pages || pages > UINT32_MAX)
		return -EPROTO;
	user->msg_fds = (uint32_t)least_of(fds, KVD_VFU_MSG_FDS_MAX);
	user->xfer_bytes = (uint32_t)least_of(xfer, KVD_VFU_DEFAULT_XFER_BYTES);
	/* A descriptor can be mapped by whole pages of the host only. */
	info->iova_page_bytes = pages > user->vfio.page_bytes ? (uint32_t)pages : user->vfio.page_bytes;
	info->mappings_max = least_of(maps, KVD_VFIO_MAPPINGS_MAX);
	info->iova_last = UINT64_MAX;
	return 0;
}

static int negotiate(struct vfio_user *user)
{
	char json[KVD_VFIO_TEXT_BYTES];
	struct kvd_vfu_version version = {.major = KVD_VFU_MAJOR, .minor = KVD_VFU_MINOR};
	int json_bytes = snprintf(json, sizeof(json),
				  "{\"capabilities\":{\"max_msg_fds\":%d,\"max_data_xfer_size\":%d,\"max_dma_maps\":%d,"
				  "\"pgsizes\":%u}}",
				  USER_FDS_PROPOSED, KVD_VFU_DEFAULT_XFER_BYTES, KVD_VFIO_MAPPINGS_MAX,
				  user->vfio.page_bytes);
	struct vfio_user_call request = {
		.command = KVD_VFU_VERSION,
		.payload = {
			{.iov_base = &version, .iov_len = sizeof(version)},
			{.iov_base = json, .iov_len = (size_t)json_bytes + 1},
		},
		.n_payload = 2,
		.reply_min = sizeof(version),
		.reply_max = sizeof(version) + KVD_VFU_VERSION_BYTES_MAX,
	};
	const void *answer;
	const char *text;
	size_t bytes;
	int err = kvd_vfio_user_call(user, &request, &answer, &bytes);

	if (err)
		return err;
	memcpy(&version, answer, sizeof(version));
	if (version.major != KVD_VFU_MAJOR || version.minor > KVD_VFU_MINOR)
		return -EPROTONOSUPPORT;
	text = (const char *)answer + sizeof(version);
	bytes -= sizeof(version);
	if (bytes && text[--bytes] != '\0')
		return -EPROTO;
	return read_capabilities(user, text, bytes);
}

/* What the device has: regions and interrupts that a PCI device can have; others are left alone. */
static int discover(struct vfio_user *user)
{
	struct kvd_vfu_device_info info = {.argsz = sizeof(info)};
	struct vfio_user_call request = {
		.command = KVD_VFU_DEVICE_GET_INFO,
		.payload = {{.iov_base = &info, .iov_len = sizeof(info)}},
		.n_payload = 1,
		.reply_min = sizeof(info),
		.reply_max = KVD_VFIO_REGION_REPLY_MIN, /* a later version may say more */
	};
	const void *answer;
	size_t bytes;
	int err = kvd_vfio_user_call(user, &request, &answer, &bytes);

	if (err)
		return err;
	memcpy(&info, answer, sizeof(info));
	if (!(info.flags & VFIO_DEVICE_FLAGS_PCI) || info.regions < USER_REGIONS_MIN)
		return -EPROTO;
	user->vfio.info.can_reset = (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0;
	for (uint32_t i = 0; i < KVD_VFIO_REGIONS_MAX && i < info.regions && !err; i++)
		err = kvd_vfio_user_region_info(user, i);
	for (uint32_t i = 0; i < KVD_VFIO_IRQS && i < info.irqs && !err; i++)
		err = kvd_vfio_user_irq_info(user, i);
	return err;
}

static int meet(struct vfio_user *user, const char *path, char *why)
{
	int err = negotiate(user);

	if (err == -EPROTONOSUPPORT)
		return kvd_vfio_why(why, err,
				    "The server at %.100s speaks another version of vfio-user than %d.%d; upgrade it.",
				    path, KVD_VFU_MAJOR, KVD_VFU_MINOR);
	if (!err)
		err = discover(user);
	if (err)
		return kvd_vfio_why(why, err,
				    "The server at %.100s does not speak vfio-user as it should (%s); see whether it "
				    "is a PCI device's, and free.", path, strerror(-err));
	strcpy(user->vfio.info.transport, "vfio-user");
	return kvd_vfio_start(&user->vfio, why);
}

int kvd_vfio_open_user(const char *socket_path, uint32_t deadline_ms, char *why, kvd_vfio **out)
{
	const size_t room = sizeof(struct kvd_vfu_header) + sizeof(struct kvd_vfu_dma_access) +
			    KVD_VFU_DEFAULT_XFER_BYTES;
	struct vfio_user *user = calloc(1, sizeof(*user));
	int fd = -1, err;

	if (!user)
		return kvd_vfio_why(why, -ENOMEM, "There is no memory.");
	kvd_vfio_init(&user->vfio, &kvd_vfio_user_ops, deadline_ms);
	kvd_vfio_begin(&user->vfio);
	user->chan.fd = -1;
	err = connect_to(socket_path, deadline_ms, why, &fd);
	if (err)
		goto out_close;
	user->out = malloc(room);
	err = kvd_vfio_chan_init(&user->chan, fd, room);
	if (err || !user->out) {
		err = kvd_vfio_why(why, -ENOMEM, "There is no memory.");
		goto out_close;
	}
	user->vfio.gone_fd = fd;
	err = meet(user, socket_path, why);
	if (err)
		goto out_close;
	*out = &user->vfio;
	return 0;

out_close:
	user->vfio.gone = true; /* nothing more is sent */
	kvd_vfio_close(&user->vfio);
	return err;
}
