/* Regions by number: what they are, reading and writing them by messages. */
#include <errno.h>
#include <string.h>

#include "abi/abi.h"
#include "model/internal.h"

/* A region that can be mapped, or NULL. */
static const struct kvd_card_bar *file_of(const struct kvd_card *card, uint32_t region)
{
	switch (region) {
	case VFIO_PCI_BAR2_REGION_INDEX:
		return &card->doorbells;
	case VFIO_PCI_BAR4_REGION_INDEX:
		return &card->ddr;
	default:
		return NULL;
	}
}

uint64_t kvd_card_region_bytes(const struct kvd_card *card, uint32_t region)
{
	switch (region) {
	case VFIO_PCI_BAR0_REGION_INDEX:
		return KVD_CARD_BAR0_BYTES;
	case VFIO_PCI_BAR2_REGION_INDEX:
		return KVD_CARD_BAR2_BYTES;
	case VFIO_PCI_BAR4_REGION_INDEX:
		return card->config.ddr_bytes;
	case VFIO_PCI_CONFIG_REGION_INDEX:
		return KVD_CARD_CONFIG_BYTES;
	default:
		return 0;
	}
}

int kvd_card_device_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_vfu_device_info info;

	(void)card;
	memcpy(&info, request->payload, sizeof(info));
	if (info.argsz < sizeof(info))
		return -EINVAL;
	info = (struct kvd_vfu_device_info){
		.argsz = sizeof(info),
		.flags = VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI,
		.regions = VFIO_PCI_NUM_REGIONS,
		.irqs = VFIO_PCI_NUM_IRQS,
	};
	memcpy(reply->payload, &info, sizeof(info));
	reply->bytes = sizeof(info);
	return 0;
}

/* The one area of a region that is mapped as a whole, as a sparse mmap capability. */
struct whole_area {
	struct vfio_region_info info;
	struct vfio_info_cap_header header;
	uint32_t nr_areas;
	uint32_t reserved;
	struct vfio_region_sparse_mmap_area area;
};
static_assert(sizeof(struct whole_area) == 64, "no padding");

int kvd_card_region_info(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct whole_area out = {0};
	const struct kvd_card_bar *file;
	uint32_t argsz;

	memcpy(&out.info, request->payload, sizeof(out.info));
	argsz = out.info.argsz;
	if (argsz < sizeof(out.info) || out.info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	out.info = (struct vfio_region_info){
		.argsz = sizeof(out.info),
		.index = out.info.index,
		.size = kvd_card_region_bytes(card, out.info.index),
	};
	if (out.info.size)
		out.info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	file = file_of(card, out.info.index);
	reply->bytes = sizeof(out.info);
	if (file) {
		out.info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
		out.info.argsz = sizeof(out);
		/*
		 * With too little room the client learns how much it needs; capability and descriptor come when it has that.
		 * Until then there is no flag for them: QEMU looks at cap_offset wherever the flag is set.
		 */
		if (argsz >= sizeof(out)) {
			out.info.flags |= VFIO_REGION_INFO_FLAG_CAPS;
			out.info.cap_offset = offsetof(struct whole_area, header);
			out.header = (struct vfio_info_cap_header){.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP, .version = 1};
			out.nr_areas = 1;
			out.area.size = out.info.size;
			reply->bytes = sizeof(out);
			reply->fds[0] = file->fd;
			reply->fd_count = 1;
		}
	}
	memcpy(reply->payload, &out, reply->bytes);
	return 0;
}

/* Aligned words of a doorbell or of card memory are read and written whole: the other side may be looking. */
static void file_copy(void *to, const void *from, uint32_t bytes)
{
	if (bytes == sizeof(uint32_t) && !(((uintptr_t)to | (uintptr_t)from) % sizeof(uint32_t))) {
		__atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
		return;
	}
	memcpy(to, from, bytes);
}

struct access {
	struct kvd_card *card;
	uint32_t region;
	uint32_t count;
	uint64_t offset;
	uint8_t *data;
	const uint8_t *new_data; /* NULL: read into `data` */
};

static void access_work(void *context)
{
	const struct access *access = context;
	const struct kvd_card_bar *file = file_of(access->card, access->region);
	uint8_t *at = file->base + access->offset;

	if (access->new_data)
		file_copy(at, access->new_data, access->count);
	else
		file_copy(access->data, at, access->count);
}

static int access_region(struct access *access)
{
	uint64_t bytes = access->region < VFIO_PCI_NUM_REGIONS ? kvd_card_region_bytes(access->card, access->region) : 0;

	if (!bytes || access->offset > bytes || access->count > bytes - access->offset)
		return -EINVAL;
	if (file_of(access->card, access->region)) {
		/* A BAR that is dead reads as a device that is gone. */
		if (kvd_card_guard(access_work, access, NULL) && !access->new_data)
			memset(access->data, 0xff, access->count);
		return 0;
	}
	if (access->region == VFIO_PCI_CONFIG_REGION_INDEX) {
		if (access->new_data)
			kvd_card_config_write(access->card, access->offset, access->new_data, access->count);
		else
			kvd_card_config_read(access->card, access->offset, access->data, access->count);
	} else if (access->new_data) {
		kvd_card_registers_write(access->card, access->offset, access->new_data, access->count);
	} else {
		kvd_card_registers_read(access->card, access->offset, access->data, access->count);
	}
	return 0;
}

int kvd_card_region_read(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_vfu_region_access in;
	struct access access;
	int err;

	memcpy(&in, request->payload, sizeof(in));
	if (in.count > KVD_CARD_XFER_BYTES || in.count > card->caps.max_data_xfer_bytes)
		return -EINVAL;
	access = (struct access){
		.card = card,
		.region = in.region,
		.count = in.count,
		.offset = in.offset,
		.data = reply->payload + sizeof(in),
	};
	err = access_region(&access);
	if (err)
		return err;
	memcpy(reply->payload, &in, sizeof(in));
	reply->bytes = (uint32_t)sizeof(in) + in.count;
	return 0;
}

int kvd_card_region_write(struct kvd_card *card, const struct kvd_card_request *request, struct kvd_card_reply *reply)
{
	struct kvd_vfu_region_access in;
	struct access access;
	int err;

	memcpy(&in, request->payload, sizeof(in));
	if (in.count > KVD_CARD_XFER_BYTES || request->bytes != sizeof(in) + in.count)
		return -EINVAL;
	access = (struct access){
		.card = card,
		.region = in.region,
		.count = in.count,
		.offset = in.offset,
		.new_data = request->payload + sizeof(in),
	};
	err = access_region(&access);
	if (err)
		return err;
	memcpy(reply->payload, &in, sizeof(in));
	reply->bytes = sizeof(in);
	return 0;
}

/* Writes up to the first one that is wrong; none where the message itself is. */
int kvd_card_region_write_multi(struct kvd_card *card, const struct kvd_card_request *request,
				struct kvd_card_reply *reply)
{
	struct kvd_vfu_write_multi multi;
	struct kvd_vfu_write_one one;

	if (!card->caps.write_multiple)
		return -ENOTSUP;
	memcpy(&multi, request->payload, sizeof(multi));
	if (multi.count != (request->bytes - sizeof(multi)) / sizeof(one) || (request->bytes - sizeof(multi)) % sizeof(one))
		return -EINVAL;
	for (uint64_t i = 0; i < multi.count; i++) {
		struct access access;
		int err;

		memcpy(&one, request->payload + sizeof(multi) + i * sizeof(one), sizeof(one));
		if (one.count > sizeof(one.data))
			return -EINVAL;
		access = (struct access){
			.card = card,
			.region = one.region,
			.count = one.count,
			.offset = one.offset,
			.new_data = one.data,
		};
		err = access_region(&access);
		if (err)
			return err;
	}
	memcpy(reply->payload, &multi, sizeof(multi));
	reply->bytes = sizeof(multi);
	return 0;
}
