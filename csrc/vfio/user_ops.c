/* The operations of a handle as messages of vfio-user. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vfio/user.h"

static struct vfio_user *user_of(struct kvd_vfio *vfio)
{
	return (struct vfio_user *)vfio;
}

/* A call whose answer has exactly `reply_bytes`, with one piece of payload. */
static int call(struct vfio_user *user, uint16_t command, void *payload, size_t bytes, void *reply, size_t reply_bytes)
{
	struct vfio_user_call request = {
		.command = command,
		.payload = {{.iov_base = payload, .iov_len = bytes}},
		.n_payload = bytes ? 1 : 0,
		.reply_min = reply_bytes,
		.reply_max = reply_bytes,
	};
	const void *answer;
	size_t got;
	int err = kvd_vfio_user_call(user, &request, &answer, &got);

	if (!err && reply_bytes)
		memcpy(reply, answer, reply_bytes);
	return err;
}

/* Ask for a region, leaving `argsz` bytes for the answer; *needed: what all of it takes. */
static int ask_region(struct vfio_user *user, uint32_t region, uint32_t argsz, uint32_t *needed)
{
	struct kvd_vfio_part *part = &user->vfio.parts[region];
	struct vfio_region_info info = {.argsz = argsz, .index = region};
	struct vfio_user_call request = {
		.command = KVD_VFU_DEVICE_GET_REGION_INFO,
		.payload = {{.iov_base = &info, .iov_len = sizeof(info)}},
		.n_payload = 1,
		.reply_min = sizeof(info),
		.reply_max = argsz,
	};
	const void *answer;
	size_t bytes;
	int err = kvd_vfio_user_call(user, &request, &answer, &bytes);

	if (err)
		return err;
	memcpy(&info, answer, sizeof(info));
	*needed = info.argsz;
	if (*needed > argsz)
		return 0;
	err = kvd_vfio_part_parse(part, region, answer, bytes);
	if (err || !part->info.mappable)
		return err;
	part->fd = kvd_vfio_chan_take_fd(&user->chan);
	/* A region that is said to be mappable, with nothing to map. */
	part->info.mappable = part->fd >= 0;
	return 0;
}

int kvd_vfio_user_region_info(struct vfio_user *user, uint32_t region)
{
	uint32_t needed;
	int err = ask_region(user, region, KVD_VFIO_REGION_REPLY_MIN, &needed);

	if (err || needed <= KVD_VFIO_REGION_REPLY_MIN)
		return err;
	if (needed > KVD_VFIO_REGION_REPLY_MAX)
		return -EPROTO;
	err = ask_region(user, region, KVD_VFIO_REGION_REPLY_MAX, &needed);
	return !err && needed > KVD_VFIO_REGION_REPLY_MAX ? -EPROTO : err;
}

int kvd_vfio_user_irq_info(struct vfio_user *user, uint32_t irq)
{
	struct vfio_irq_info info = {.argsz = sizeof(info), .index = irq};
	int err = call(user, KVD_VFU_DEVICE_GET_IRQ_INFO, &info, sizeof(info), &info, sizeof(info));

	if (err)
		return err;
	if (info.index != irq)
		return -EPROTO;
	user->vfio.info.irqs[irq] = info.flags & VFIO_IRQ_INFO_EVENTFD ? info.count : 0;
	return 0;
}

static int read_piece(struct vfio_user *user, struct kvd_vfu_region_access access, void *data)
{
	struct vfio_user_call request = {
		.command = KVD_VFU_REGION_READ,
		.payload = {{.iov_base = &access, .iov_len = sizeof(access)}},
		.n_payload = 1,
		.reply_min = sizeof(access) + access.count,
		.reply_max = sizeof(access) + access.count,
	};
	const void *answer;
	size_t bytes;
	int err = kvd_vfio_user_call(user, &request, &answer, &bytes);

	if (err)
		return err;
	if (memcmp(answer, &access, sizeof(access)) != 0)
		return -ENODEV;
	memcpy(data, (const uint8_t *)answer + sizeof(access), access.count);
	return 0;
}

static int write_piece(struct vfio_user *user, struct kvd_vfu_region_access access, const void *data)
{
	struct vfio_user_call request = {
		.command = KVD_VFU_REGION_WRITE,
		.payload = {
			{.iov_base = &access, .iov_len = sizeof(access)},
			{.iov_base = (void *)(uintptr_t)data, .iov_len = access.count},
		},
		.n_payload = 2,
		.reply_min = sizeof(access),
		.reply_max = sizeof(access),
	};
	const void *answer;
	size_t bytes;
	int err = kvd_vfio_user_call(user, &request, &answer, &bytes);

	return !err && memcmp(answer, &access, sizeof(access)) != 0 ? -ENODEV : err;
}

static int user_read(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, void *data, uint32_t bytes)
{
	struct vfio_user *user = user_of(vfio);
	int err = 0;

	for (uint32_t at = 0, piece; at < bytes && !err; at += piece) {
		piece = bytes - at < user->xfer_bytes ? bytes - at : user->xfer_bytes;
		err = read_piece(user, (struct kvd_vfu_region_access){offset + at, region, piece},
				 (uint8_t *)data + at);
	}
	return err;
}

static int user_write(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, const void *data, uint32_t bytes)
{
	struct vfio_user *user = user_of(vfio);
	int err = 0;

	for (uint32_t at = 0, piece; at < bytes && !err; at += piece) {
		piece = bytes - at < user->xfer_bytes ? bytes - at : user->xfer_bytes;
		err = write_piece(user, (struct kvd_vfu_region_access){offset + at, region, piece},
				  (const uint8_t *)data + at);
	}
	return err;
}

static int user_dma_map(struct kvd_vfio *vfio, const struct kvd_vfio_dma *dma, int fd, uint64_t fd_offset)
{
	struct vfio_user *user = user_of(vfio);
	/* A server that takes no descriptors, or is given none, asks for the bytes by DMA_READ and DMA_WRITE. */
	bool by_file = fd >= 0 && user->msg_fds > 0;
	struct kvd_vfu_dma_map map = {
		.argsz = sizeof(map),
		.flags = KVD_VFU_DMA_F_READ | (dma->writable ? KVD_VFU_DMA_F_WRITE : 0),
		.offset = by_file ? fd_offset : 0,
		.iova = dma->iova,
		.bytes = dma->bytes,
	};
	struct vfio_user_call request = {
		.command = KVD_VFU_DMA_MAP,
		.payload = {{.iov_base = &map, .iov_len = sizeof(map)}},
		.n_payload = 1,
		.fds = &fd,
		.n_fds = by_file ? 1 : 0,
	};
	const void *answer;
	size_t bytes;

	return kvd_vfio_user_call(user, &request, &answer, &bytes);
}

static int user_dma_unmap(struct kvd_vfio *vfio, uint64_t iova, uint64_t bytes)
{
	struct vfio_user *user = user_of(vfio);
	struct kvd_vfu_dma_unmap unmap = {.argsz = sizeof(unmap), .iova = iova, .bytes = bytes};
	struct kvd_vfu_dma_unmap answer;
	int err;

	err = call(user, KVD_VFU_DMA_UNMAP, &unmap, sizeof(unmap), &answer, sizeof(answer));
	if (err)
		return err;
	return answer.iova == iova && answer.bytes == bytes ? 0 : -ENODEV;
}

/* One SET_IRQS: `n_fds` eventfds for as many vectors, or none: these vectors are switched off. */
static int set_irqs(struct vfio_user *user, uint32_t irq, uint32_t first, uint32_t count, uint32_t data,
		    const int *fds, uint32_t n_fds)
{
	struct vfio_irq_set set = {
		.argsz = sizeof(set),
		.flags = data | VFIO_IRQ_SET_ACTION_TRIGGER,
		.index = irq,
		.start = first,
		.count = count,
	};
	struct vfio_user_call request = {
		.command = KVD_VFU_DEVICE_SET_IRQS,
		.payload = {{.iov_base = &set, .iov_len = sizeof(set)}},
		.n_payload = 1,
		.fds = fds,
		.n_fds = n_fds,
	};
	const void *answer;
	size_t bytes;

	return kvd_vfio_user_call(user, &request, &answer, &bytes);
}

static int user_irqs(struct kvd_vfio *vfio, uint32_t irq, uint32_t first, uint32_t count, const int *eventfds)
{
	struct vfio_user *user = user_of(vfio);
	int err = 0;

	if (!count)
		return set_irqs(user, irq, 0, 0, VFIO_IRQ_SET_DATA_NONE, NULL, 0);
	/* A message is about a run of vectors that all get an eventfd or all lose theirs: a hole can't be sent. */
	for (uint32_t at = 0, run; at < count && !err; at += run) {
		bool on = eventfds[at] >= 0;

		if (on && !user->msg_fds)
			return -EOPNOTSUPP;
		for (run = 1; at + run < count && (eventfds[at + run] >= 0) == on; run++) {
			if (on && run == user->msg_fds)
				break;
		}
		err = set_irqs(user, irq, first + at, run, VFIO_IRQ_SET_DATA_EVENTFD, eventfds + at, on ? run : 0);
	}
	return err;
}

static int user_reset(struct kvd_vfio *vfio)
{
	struct vfio_user *user = user_of(vfio);

	return call(user, KVD_VFU_DEVICE_RESET, NULL, 0, NULL, 0);
}

static int user_map(struct kvd_vfio *vfio, uint32_t region, uint64_t offset, uint64_t bytes, int prot, void **out)
{
	void *address;

	if (vfio->parts[region].fd < 0)
		return -EINVAL;
	address = mmap(NULL, bytes, prot, MAP_SHARED, vfio->parts[region].fd, (off_t)offset);
	if (address == MAP_FAILED)
		return -errno;
	*out = address;
	return 0;
}

static void user_unmap(struct kvd_vfio *vfio, void *address, uint64_t bytes)
{
	(void)vfio;
	munmap(address, bytes);
}

static void user_close(struct kvd_vfio *vfio)
{
	struct vfio_user *user = user_of(vfio);

	kvd_vfio_chan_fini(&user->chan);
	kvd_vfio_fini(vfio);
	free(user->out);
	free(user);
}

const struct kvd_vfio_ops kvd_vfio_user_ops = {
	.read = user_read,
	.write = user_write,
	.dma_map = user_dma_map,
	.dma_unmap = user_dma_unmap,
	.irqs = user_irqs,
	.reset = user_reset,
	.look = kvd_vfio_user_look,
	.map = user_map,
	.unmap = user_unmap,
	.close = user_close,
};
