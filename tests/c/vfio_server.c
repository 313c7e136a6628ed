#include "vfio_server.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CAPABILITIES \
	"{ \"capabilities\": {\"max_msg_fds\": 8, \"max_data_xfer_size\": 1048576, \"max_dma_maps\": 3,\n" \
	"  \"pgsizes\": 4096, \"migration\": {\"pgsize\": 4096},\n" \
	"  \"twin_socket\": {\"supported\": false}}, \"x\": [1, {}] }"

enum { SERVER_ROOM = (1 << 20) + 4096 };

uint32_t server_open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	uint32_t n = 0;

	assert(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static bool receive_bytes(struct server *server, void *into, size_t bytes)
{
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(server->in_fds))];
	} control;

	for (size_t at = 0; at < bytes;) {
		struct iovec iov = {.iov_base = (uint8_t *)into + at, .iov_len = bytes - at};
		struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
					 .msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(server->fd, &message, 0);
		struct cmsghdr *part = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

		if (n <= 0)
			return false;
		if (part) {
			server->n_in_fds = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(server->in_fds, CMSG_DATA(part), server->n_in_fds * sizeof(int));
		}
		at += (size_t)n;
	}
	return true;
}

static void drop_fds(struct server *server)
{
	for (uint32_t i = 0; i < server->n_in_fds; i++) {
		if (server->in_fds[i] >= 0)
			close(server->in_fds[i]);
	}
	server->n_in_fds = 0;
}

static void keep_answer(struct server *server, const struct kvd_vfu_header *header, const void *payload, size_t bytes)
{
	server->asked_flags = header->flags;
	server->asked_error = header->error;
	server->asked_bytes = bytes;
	memcpy(server->asked, payload, bytes);
}

/* Ask the client for something and keep its answer. */
static bool ask(struct server *server, uint16_t command, size_t data_bytes, uint32_t flags, bool wait)
{
	struct kvd_vfu_header header = {.id = 77, .command = command, .flags = flags};
	struct kvd_vfu_dma_access *access = (void *)server->out;
	size_t bytes = sizeof(*access) + data_bytes;

	*access = (struct kvd_vfu_dma_access){.iova = server->ask_iova, .count = server->ask_bytes};
	memset(access + 1, 0xab, data_bytes);
	header.bytes = (uint32_t)(sizeof(header) + bytes);
	if (!server_send(server, &header, access, bytes, NULL, 0))
		return false;
	if (!wait)
		return true;
	if (!receive_bytes(server, &header, sizeof(header)) || header.bytes - sizeof(header) > SERVER_ROOM ||
	    !receive_bytes(server, server->out, header.bytes - sizeof(header)))
		return false;
	keep_answer(server, &header, server->out, header.bytes - sizeof(header));
	return header.id == 77 && header.command == command;
}

static bool ask_as_told(struct server *server, uint64_t where)
{
	switch (where) {
	case SERVER_ASK_READ:
		return ask(server, KVD_VFU_DMA_READ, 0, 0, true);
	case SERVER_ASK_WRITE:
		return ask(server, KVD_VFU_DMA_WRITE, server->ask_bytes, 0, true);
	case SERVER_ASK_NONSENSE:
		return ask(server, KVD_VFU_DEVICE_FEATURE, 0, 0, true);
	case SERVER_ASK_SILENT:
		return ask(server, KVD_VFU_DMA_WRITE, server->ask_bytes, KVD_VFU_NO_REPLY, false);
	case SERVER_ASK_SHORT:
		return ask(server, KVD_VFU_DMA_WRITE, server->ask_bytes - 1, 0, true);
	default:
		return true;
	}
}

static uint8_t *bytes_of(struct server *server, const struct kvd_vfu_region_access *access)
{
	static uint8_t scratch[SERVER_BAR0_BYTES];

	if (access->region == KVD_VFIO_CONFIG && access->offset + access->count <= SERVER_CONFIG_BYTES)
		return server->config + access->offset;
	if (access->region == KVD_VFIO_BAR4 && access->offset + access->count <= SERVER_BAR4_BYTES)
		return server->bar4 + access->offset;
	return access->region == KVD_VFIO_BAR0 && access->count <= sizeof(scratch) ? scratch : NULL;
}

static bool on_access(struct server *server)
{
	bool reads = server->header.command == KVD_VFU_REGION_READ;
	struct kvd_vfu_region_access access;
	uint8_t *bytes;

	memcpy(&access, server->in, sizeof(access));
	bytes = bytes_of(server, &access);
	if (!bytes)
		return server_answer(server, NULL, 0, EINVAL, NULL, 0);
	memcpy(server->out, &access, sizeof(access));
	if (reads) {
		memcpy(server->out + sizeof(access), bytes, access.count);
	} else {
		memcpy(bytes, server->in + sizeof(access), access.count);
		if (access.region == KVD_VFIO_BAR0 && !ask_as_told(server, access.offset))
			return false;
		memcpy(server->out, &access, sizeof(access));
	}
	return server_answer(server, server->out, sizeof(access) + (reads ? access.count : 0), 0, NULL, 0);
}

static bool on_region_info(struct server *server)
{
	struct {
		struct vfio_region_info info;
		struct vfio_region_info_cap_sparse_mmap sparse;
		struct vfio_region_sparse_mmap_area area;
	} answer = {0};
	uint32_t argsz = ((struct vfio_region_info *)(void *)server->in)->argsz;
	uint32_t index = ((struct vfio_region_info *)(void *)server->in)->index;
	size_t bytes = sizeof(answer.info);
	int fd = -1;

	answer.info.index = index;
	answer.info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	if (index == KVD_VFIO_BAR0 && server->region0) {
		bytes = argsz < server->region0_full_bytes ? sizeof(answer.info) : server->region0_bytes;
		return server_answer(server, server->region0, bytes, 0, &server->bar0_fd, 1);
	}
	if (index == KVD_VFIO_BAR0) {
		answer.info.size = SERVER_BAR0_BYTES;
		answer.info.flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
		answer.info.cap_offset = sizeof(answer.info);
		answer.sparse.header.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
		answer.sparse.header.version = 1;
		answer.sparse.nr_areas = 1;
		answer.area.offset = SERVER_PAGE_BYTES;
		answer.area.size = SERVER_PAGE_BYTES;
		bytes = sizeof(answer);
		fd = server->bar0_fd;
	} else if (index == KVD_VFIO_BAR2) {
		answer.info.size = SERVER_BAR2_BYTES;
		answer.info.offset = SERVER_PAGE_BYTES; /* in its file */
		answer.info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
		fd = server->bar2_fd;
	} else if (index == KVD_VFIO_BAR4) {
		answer.info.size = SERVER_BAR4_BYTES;
	} else if (index == KVD_VFIO_CONFIG) {
		answer.info.size = SERVER_CONFIG_BYTES;
	}
	answer.info.argsz = (uint32_t)bytes;
	return server_answer(server, &answer, bytes, 0, &fd, fd >= 0 ? 1 : 0);
}

static bool on_irq_info(struct server *server)
{
	static const uint32_t counts[SERVER_IRQS] = {0, 1, SERVER_VECTORS, 0, 1};
	struct vfio_irq_info info;

	memcpy(&info, server->in, sizeof(info));
	info.flags = VFIO_IRQ_INFO_EVENTFD;
	info.count = info.index < SERVER_IRQS ? counts[info.index] : 0;
	return server_answer(server, &info, sizeof(info), 0, NULL, 0);
}

static bool on_irqs(struct server *server)
{
	struct vfio_irq_set set;

	memcpy(&set, server->in, sizeof(set));
	for (uint32_t i = 0; set.index == KVD_VFIO_IRQ_MSIX && i < SERVER_VECTORS; i++) {
		if (set.count && (i < set.start || i >= set.start + set.count))
			continue;
		if (server->irq_fds[i] >= 0)
			close(server->irq_fds[i]);
		server->irq_fds[i] = -1;
		if (server->n_in_fds == set.count && set.count) {
			server->irq_fds[i] = server->in_fds[i - set.start];
			server->in_fds[i - set.start] = -1;
		}
	}
	return server_answer(server, NULL, 0, 0, NULL, 0);
}

static bool on_version(struct server *server)
{
	const char *json = server->json ? server->json : CAPABILITIES;
	struct kvd_vfu_version version = {server->major, server->minor};
	size_t bytes = server->no_json ? 0 : strlen(json) + 1;

	memcpy(server->out, &version, sizeof(version));
	memcpy(server->out + sizeof(version), json, bytes);
	return server_answer(server, server->out, sizeof(version) + bytes, 0, NULL, 0);
}

static bool on_request(struct server *server)
{
	struct kvd_vfu_device_info info = {
		.argsz = sizeof(info),
		.flags = (VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET) & ~server->flags_off,
		.regions = server->regions ? server->regions : KVD_VFIO_REGIONS_MAX,
		.irqs = SERVER_IRQS,
	};

	switch (server->header.command) {
	case KVD_VFU_VERSION:
		return on_version(server);
	case KVD_VFU_DEVICE_GET_INFO:
		return server_answer(server, &info, sizeof(info), 0, NULL, 0);
	case KVD_VFU_DEVICE_GET_REGION_INFO:
		return on_region_info(server);
	case KVD_VFU_DEVICE_GET_IRQ_INFO:
		return on_irq_info(server);
	case KVD_VFU_DEVICE_SET_IRQS:
		return on_irqs(server);
	case KVD_VFU_REGION_READ:
	case KVD_VFU_REGION_WRITE:
		return on_access(server);
	case KVD_VFU_DMA_MAP:
		if (server->n_in_fds && server->dma_fd < 0) {
			server->dma_fd = server->in_fds[0];
			server->in_fds[0] = -1;
		}
		return server_answer(server, NULL, 0, 0, NULL, 0);
	case KVD_VFU_DMA_UNMAP:
		memcpy(server->out, server->in, sizeof(struct kvd_vfu_dma_unmap));
		return server_answer(server, server->out, sizeof(struct kvd_vfu_dma_unmap), 0, NULL, 0);
	default:
		return server_answer(server, NULL, 0, server->header.command == KVD_VFU_DEVICE_RESET ? 0 : ENOTSUP,
				     NULL, 0);
	}
}

static void note_call(struct server *server)
{
	struct server_call *call = &server->calls[server->n_calls % SERVER_CALLS_MAX];

	*call = (struct server_call){.command = server->header.command, .n_fds = server->n_in_fds};
	if (call->command == KVD_VFU_DEVICE_SET_IRQS)
		memcpy(&call->irqs, server->in, sizeof(call->irqs));
	if (call->command == KVD_VFU_REGION_READ || call->command == KVD_VFU_REGION_WRITE)
		call->count = ((struct kvd_vfu_region_access *)(void *)server->in)->count;
	server->n_calls++;
}

/* Our DMA_WRITE sets out before the request has arrived. */
static bool cross(struct server *server)
{
	return !server->cross || server->header.command != KVD_VFU_REGION_WRITE ||
	       ask(server, KVD_VFU_DMA_WRITE, server->ask_bytes, KVD_VFU_NO_REPLY, false);
}

static void *serve(void *argument)
{
	struct server *server = argument;
	bool on;

	server->fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	do {
		size_t bytes;

		on = receive_bytes(server, &server->header, sizeof(server->header));
		bytes = server->header.bytes - sizeof(server->header);
		if (!on || bytes > SERVER_ROOM || !cross(server))
			break;
		if (server->fault == FAULT_HANG_UP_EARLY && server_is_due(server))
			break;
		on = receive_bytes(server, server->in, bytes);
		server->in_bytes = bytes;
		if (on) {
			note_call(server);
			on = on_request(server);
		}
		drop_fds(server);
	} while (on);
	drop_fds(server);
	shutdown(server->fd, SHUT_RDWR);
	return NULL;
}

static int memory_file(off_t bytes)
{
	int fd = memfd_create("bar", MFD_CLOEXEC);

	assert(fd >= 0 && !ftruncate(fd, bytes));
	return fd;
}

void server_start(struct server *server)
{
	static atomic_uint number;
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(server->path, sizeof(server->path), "/tmp/kvd-vfio-%d-%u", getpid(), atomic_fetch_add(&number, 1));
	strcpy(address.sun_path, server->path);
	server->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(server->listen_fd >= 0);
	assert(!bind(server->listen_fd, (struct sockaddr *)&address, sizeof(address)) && !listen(server->listen_fd, 1));
	server->bar0_fd = memory_file(SERVER_BAR0_BYTES);
	server->bar2_fd = memory_file(SERVER_PAGE_BYTES + SERVER_BAR2_BYTES);
	server->dma_fd = -1;
	server->in = malloc(SERVER_ROOM);
	server->out = malloc(SERVER_ROOM);
	server->asked = calloc(1, SERVER_ROOM);
	server->bar4 = calloc(1, SERVER_BAR4_BYTES);
	assert(server->in && server->out && server->asked && server->bar4);
	for (uint32_t i = 0; i < SERVER_VECTORS; i++)
		server->irq_fds[i] = -1;
	memcpy(server->config, "\x1d\x1d\x34\x12\x00\x00\x10\x00\x07\x56\x34\x12", 12);
	assert(!pthread_create(&server->thread, NULL, serve, server));
}

void server_stop(struct server *server)
{
	/* Whether or not a client ever came. */
	shutdown(server->listen_fd, SHUT_RDWR);
	pthread_join(server->thread, NULL);
	unlink(server->path);
	close(server->listen_fd);
	if (server->fd >= 0)
		close(server->fd);
	close(server->bar0_fd);
	close(server->bar2_fd);
	if (server->dma_fd >= 0)
		close(server->dma_fd);
	for (uint32_t i = 0; i < SERVER_VECTORS; i++) {
		if (server->irq_fds[i] >= 0)
			close(server->irq_fds[i]);
	}
	free(server->in);
	free(server->out);
}

void server_free(struct server *server)
{
	free(server->asked);
	free(server->bar4);
}
