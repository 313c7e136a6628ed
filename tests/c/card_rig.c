#include "card_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/pci_regs.h>

const struct kvd_card_config rig_config = {
	.ddr_bytes = RIG_DDR_BYTES,
	.queues = 2,
	.depth_max = 64,
	.grace_ms = 0,
};

void rig_open(struct rig *rig, const struct kvd_card_config *config)
{
	*rig = (struct rig){.fd = -1};
	assert_int_equal(kvd_card_init(config, &rig->card), 0);
}

static void close_fds(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->fd_count; i++)
		close(rig->fds[i]);
	rig->fd_count = 0;
}

void rig_close(struct rig *rig)
{
	close_fds(rig);
	if (rig->fd >= 0)
		close(rig->fd);
	kvd_card_fini(rig->card);
}

void rig_connect(struct rig *rig)
{
	int ends[2];

	if (rig->fd >= 0)
		close(rig->fd);
	rig_step(rig);
	assert_false(kvd_card_attached(rig->card));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
	rig->fd = ends[0];
	assert_int_equal(kvd_card_attach(rig->card, ends[1]), 0);
	assert_true(kvd_card_attached(rig->card));
}

void rig_hello(struct rig *rig)
{
	static const char text[] = "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576,\"write_multiple\":true}}";
	struct {
		struct kvd_vfu_version version;
		char text[sizeof(text)];
	} hello = {{0, 1}, ""};

	memcpy(hello.text, text, sizeof(text));
	assert_int_equal(rig_call(rig, KVD_VFU_VERSION, &hello, sizeof(hello)), 0);
}

int rig_setup(void **state)
{
	struct rig *rig = malloc(sizeof(*rig));

	assert_non_null(rig);
	rig_open(rig, &rig_config);
	rig_connect(rig);
	rig_hello(rig);
	*state = rig;
	return 0;
}

int rig_teardown(void **state)
{
	rig_close(*state);
	free(*state);
	return 0;
}

void rig_send(struct rig *rig, const void *data, size_t bytes, const int *fds, uint32_t fd_count)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * KVD_CARD_FDS_MAX)];
		struct cmsghdr header;
	} control = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd_count) {
		message.msg_control = control.space;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * fd_count);
	}
	/* A card that has hung up takes nothing more; the test looks at that. */
	while (iov.iov_len) {
		ssize_t n = sendmsg(rig->fd, &message, MSG_NOSIGNAL);

		if (n < 0 && errno == EAGAIN) {
			rig_step(rig);
			continue;
		}
		if (n < 0)
			return;
		iov.iov_base = (uint8_t *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
		message.msg_control = NULL;
		message.msg_controllen = 0;
	}
}

void rig_command(struct rig *rig, uint16_t command, uint32_t flags, const void *payload, uint32_t bytes,
		 const int *fds, uint32_t fd_count)
{
	struct kvd_vfu_header header = {
		.id = ++rig->id,
		.command = command,
		.bytes = (uint32_t)sizeof(header) + bytes,
		.flags = flags,
	};
	uint8_t *message = malloc(sizeof(header) + bytes);

	assert_non_null(message);
	memcpy(message, &header, sizeof(header));
	if (bytes)
		memcpy(message + sizeof(header), payload, bytes);
	rig_send(rig, message, header.bytes, fds, fd_count);
	free(message);
}

void rig_step(struct rig *rig)
{
	while (kvd_card_serve(rig->card))
		;
}

/* Exactly `bytes`, stepping the card while they are on their way. 0: nothing, and nothing will come. */
static size_t receive_bytes(struct rig *rig, void *data, size_t bytes)
{
	union {
		char space[CMSG_SPACE(sizeof(int) * RIG_FDS_MAX)];
		struct cmsghdr header;
	} control;
	size_t have = 0;

	while (have < bytes) {
		struct iovec iov = {.iov_base = (uint8_t *)data + have, .iov_len = bytes - have};
		struct msghdr message = {
			.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control.space,
			.msg_controllen = sizeof(control.space),
		};
		ssize_t n = recvmsg(rig->fd, &message, MSG_CMSG_CLOEXEC);
		struct cmsghdr *c;

		if (n < 0 && errno == EAGAIN && have && kvd_card_serve(rig->card))
			continue;
		if (n <= 0)
			return have;
		c = CMSG_FIRSTHDR(&message);
		if (c) {
			close_fds(rig);
			rig->fd_count = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(rig->fds, CMSG_DATA(c), rig->fd_count * sizeof(int));
		}
		have += (size_t)n;
	}
	return have;
}

bool rig_receive(struct rig *rig)
{
	close_fds(rig);
	if (receive_bytes(rig, &rig->header, sizeof(rig->header)) != sizeof(rig->header))
		return false;
	rig->bytes = rig->header.bytes - (uint32_t)sizeof(rig->header);
	assert_true(rig->bytes <= sizeof(rig->payload));
	assert_int_equal(receive_bytes(rig, rig->payload, rig->bytes), rig->bytes);
	return true;
}

bool rig_hung_up(struct rig *rig)
{
	char byte;
	ssize_t n;

	rig_step(rig);
	do
		n = recv(rig->fd, &byte, sizeof(byte), 0);
	while (n > 0);
	return !kvd_card_attached(rig->card) && (!n || errno == ECONNRESET);
}

int rig_call_fds(struct rig *rig, uint16_t command, const void *payload, uint32_t bytes, const int *fds, uint32_t fd_count)
{
	rig_command(rig, command, 0, payload, bytes, fds, fd_count);
	rig_step(rig);
	if (!rig_receive(rig))
		return -EPIPE;
	assert_int_equal(rig->header.id, rig->id);
	assert_int_equal(rig->header.command, command);
	assert_int_equal(rig->header.flags & KVD_VFU_TYPE_MASK, KVD_VFU_TYPE_REPLY);
	if (!(rig->header.flags & KVD_VFU_ERROR)) {
		assert_int_equal(rig->header.error, 0);
		return 0;
	}
	assert_int_equal(rig->bytes, 0);
	assert_int_equal(rig->fd_count, 0);
	assert_int_not_equal(rig->header.error, 0);
	return -(int)rig->header.error;
}

int rig_call(struct rig *rig, uint16_t command, const void *payload, uint32_t bytes)
{
	return rig_call_fds(rig, command, payload, bytes, NULL, 0);
}

int rig_read(struct rig *rig, uint32_t region, uint64_t offset, void *data, uint32_t bytes)
{
	struct kvd_vfu_region_access access = {.offset = offset, .region = region, .count = bytes};
	int err = rig_call(rig, KVD_VFU_REGION_READ, &access, sizeof(access));

	if (err)
		return err;
	assert_int_equal(rig->bytes, sizeof(access) + bytes);
	assert_memory_equal(rig->payload, &access, sizeof(access));
	memcpy(data, rig->payload + sizeof(access), bytes);
	return 0;
}

int rig_write(struct rig *rig, uint32_t region, uint64_t offset, const void *data, uint32_t bytes)
{
	struct kvd_vfu_region_access access = {.offset = offset, .region = region, .count = bytes};
	uint8_t *payload = malloc(sizeof(access) + bytes);
	int err;

	assert_non_null(payload);
	memcpy(payload, &access, sizeof(access));
	memcpy(payload + sizeof(access), data, bytes);
	err = rig_call(rig, KVD_VFU_REGION_WRITE, payload, (uint32_t)sizeof(access) + bytes);
	free(payload);
	if (err)
		return err;
	assert_int_equal(rig->bytes, sizeof(access));
	assert_memory_equal(rig->payload, &access, sizeof(access));
	return 0;
}

uint32_t rig_read32(struct rig *rig, uint32_t region, uint64_t offset)
{
	uint32_t value;

	assert_int_equal(rig_read(rig, region, offset, &value, sizeof(value)), 0);
	return value;
}

uint64_t rig_read64(struct rig *rig, uint32_t region, uint64_t offset)
{
	uint64_t value;

	assert_int_equal(rig_read(rig, region, offset, &value, sizeof(value)), 0);
	return value;
}

void rig_write32(struct rig *rig, uint32_t region, uint64_t offset, uint32_t value)
{
	assert_int_equal(rig_write(rig, region, offset, &value, sizeof(value)), 0);
}

void rig_write64(struct rig *rig, uint32_t region, uint64_t offset, uint64_t value)
{
	assert_int_equal(rig_write(rig, region, offset, &value, sizeof(value)), 0);
}

int rig_map(struct rig *rig, uint64_t iova, uint64_t bytes, uint32_t flags, int fd, uint64_t offset)
{
	struct kvd_vfu_dma_map map = {sizeof(map), flags, offset, iova, bytes};

	return rig_call_fds(rig, KVD_VFU_DMA_MAP, &map, sizeof(map), &fd, fd >= 0);
}

int rig_unmap(struct rig *rig, uint64_t iova, uint64_t bytes, uint32_t flags)
{
	struct kvd_vfu_dma_unmap unmap = {sizeof(unmap), flags, iova, bytes};
	int err = rig_call(rig, KVD_VFU_DMA_UNMAP, &unmap, sizeof(unmap));

	if (!err) {
		assert_int_equal(rig->bytes, sizeof(unmap));
		assert_memory_equal(rig->payload, &unmap, sizeof(unmap));
	}
	return err;
}

int rig_irqs(struct rig *rig, uint32_t index, uint32_t flags, uint32_t start, uint32_t count, const void *data,
	     uint32_t data_bytes, const int *fds, uint32_t fd_count)
{
	struct vfio_irq_set set = {
		.argsz = (uint32_t)sizeof(set) + data_bytes,
		.flags = flags,
		.index = index,
		.start = start,
		.count = count,
	};
	uint8_t payload[sizeof(set) + 256];

	assert_true(data_bytes <= 256);
	memcpy(payload, &set, sizeof(set));
	if (data_bytes)
		memcpy(payload + sizeof(set), data, data_bytes);
	return rig_call_fds(rig, KVD_VFU_DEVICE_SET_IRQS, payload, set.argsz, fds, fd_count);
}

int rig_region_fd(struct rig *rig, uint32_t region)
{
	struct vfio_region_info info = {.argsz = 256, .index = region};

	assert_int_equal(rig_call(rig, KVD_VFU_DEVICE_GET_REGION_INFO, &info, sizeof(info)), 0);
	assert_int_equal(rig->fd_count, 1);
	rig->fd_count = 0;
	return rig->fds[0];
}

uint64_t rig_signals(int eventfd)
{
	uint64_t count = 0;

	if (read(eventfd, &count, sizeof(count)) < 0)
		assert_int_equal(errno, EAGAIN);
	return count;
}

void rig_bus_master(struct rig *rig, bool on)
{
	uint16_t command = on ? PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER : PCI_COMMAND_MEMORY;

	assert_int_equal(rig_write(rig, VFIO_PCI_CONFIG_REGION_INDEX, PCI_COMMAND, &command, sizeof(command)), 0);
}

int rig_file(uint64_t bytes)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

uint32_t rig_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}
