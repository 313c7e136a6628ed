/* Messages of noise, from nearly good to nothing but noise, with fixed seeds: the card answers, hangs up, and lives. */
#include "card_rig.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	SEEDS = 4,
	MESSAGES = 50000, /* of each seed */
	PAYLOAD_BYTES_MAX = 400,
	FDS = 5,
	PAGE = 4096,
};

static uint64_t at;

/* splitmix64 */
static uint64_t draw(void)
{
	uint64_t mixed = at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

static bool seldom(void)
{
	return draw() % 16 == 0;
}

/* A number as an attacker or a bug would send it. */
static uint64_t number(uint64_t usual_max)
{
	static const uint64_t edges[] = {
		0, 1, 3, 4095, 4096, 4097, 1ull << 31, UINT32_MAX, 1ull << 32, (1ull << 40) - PAGE, 1ull << 40, INT64_MAX,
		UINT64_MAX - PAGE + 1, UINT64_MAX,
	};

	if (!seldom())
		return draw() % (usual_max + 1);
	return draw() % 2 ? edges[draw() % (sizeof(edges) / sizeof(edges[0]))] : draw();
}

static uint64_t pages(void)
{
	uint64_t value = number(64);

	return value <= 64 ? value * PAGE : value;
}

union message {
	uint8_t bytes[PAYLOAD_BYTES_MAX];
	struct kvd_vfu_version version;
	struct kvd_vfu_dma_map map;
	struct kvd_vfu_dma_unmap unmap;
	struct kvd_vfu_device_info info;
	struct vfio_region_info region;
	struct vfio_irq_info irq;
	struct vfio_irq_set set;
	struct kvd_vfu_region_access access;
	struct {
		struct kvd_vfu_write_multi multi;
		struct kvd_vfu_write_one ones[8];
	} multi;
};

static uint32_t draw_access(union message *message, bool write)
{
	static const uint32_t regions[] = {0, 2, 4, 7};

	message->access.region = seldom() ? (uint32_t)number(9) : regions[draw() % 4];
	message->access.offset = message->access.region == 7 ? number(0x110) : number(0x3200) & ~(draw() % 2 ? 7ull : 0ull);
	message->access.count = (uint32_t)number(write ? 8 : 64);
	if (draw() % 2)
		message->access.count = 4u << draw() % 2;
	return (uint32_t)sizeof(message->access) + (write && message->access.count <= 64 ? message->access.count : 0);
}

static uint32_t draw_irqs(union message *message)
{
	message->set.argsz = sizeof(message->set);
	message->set.flags = (1u << draw() % 3) | (8u << draw() % 3);
	if (seldom())
		message->set.flags = (uint32_t)number(127);
	message->set.index = seldom() ? (uint32_t)number(6) : 2;
	message->set.start = (uint32_t)number(64);
	message->set.count = (uint32_t)number(4);
	return (uint32_t)sizeof(message->set) +
	       (message->set.flags & VFIO_IRQ_SET_DATA_BOOL && message->set.count <= 64 ? message->set.count : 0);
}

static uint32_t draw_multi(union message *message)
{
	message->multi.multi.count = number(8);
	for (uint32_t i = 0; i < 8; i++) {
		message->multi.ones[i].region = (uint32_t)number(7);
		message->multi.ones[i].offset = number(0x400);
		message->multi.ones[i].count = (uint32_t)number(8);
	}
	return (uint32_t)(8 + (message->multi.multi.count <= 8 ? message->multi.multi.count : 1) * 24);
}

/* A payload that could be good. */
static uint32_t draw_payload(uint16_t command, union message *message)
{
	switch (command) {
	case KVD_VFU_DMA_MAP:
		message->map = (struct kvd_vfu_dma_map){sizeof(message->map), (uint32_t)number(7), pages(), pages(), pages()};
		return sizeof(message->map);
	case KVD_VFU_DMA_UNMAP:
		message->unmap = (struct kvd_vfu_dma_unmap){sizeof(message->unmap), (uint32_t)number(0), pages(), pages()};
		return sizeof(message->unmap);
	case KVD_VFU_DEVICE_GET_INFO:
		message->info.argsz = (uint32_t)number(32);
		return sizeof(message->info);
	case KVD_VFU_DEVICE_GET_REGION_INFO:
		message->region.argsz = (uint32_t)number(100);
		message->region.index = (uint32_t)number(9);
		return sizeof(message->region);
	case KVD_VFU_DEVICE_GET_IRQ_INFO:
		message->irq.argsz = (uint32_t)number(32);
		message->irq.index = (uint32_t)number(5);
		return sizeof(message->irq);
	case KVD_VFU_DEVICE_SET_IRQS:
		return draw_irqs(message);
	case KVD_VFU_REGION_READ:
	case KVD_VFU_REGION_WRITE:
		return draw_access(message, command == KVD_VFU_REGION_WRITE);
	case KVD_VFU_REGION_WRITE_MULTI:
		return draw_multi(message);
	default:
		return (uint32_t)number(40) % PAYLOAD_BYTES_MAX;
	}
}

static uint32_t draw_fds(uint16_t command, const int *all, int *fds)
{
	uint32_t count = 0;

	if (command == KVD_VFU_DMA_MAP)
		count = draw() % 4 != 0;
	else if (command == KVD_VFU_DEVICE_SET_IRQS)
		count = (uint32_t)(draw() % 5);
	if (seldom())
		count = (uint32_t)(draw() % 20);
	for (uint32_t i = 0; i < count; i++)
		fds[i] = command == KVD_VFU_DEVICE_SET_IRQS && !seldom() ? all[0] : all[draw() % FDS];
	return count;
}

static void send_one(struct rig *rig, const int *all)
{
	union message message;
	uint16_t command = (uint16_t)(2 + draw() % 14);
	struct kvd_vfu_header header = {.id = (uint16_t)draw(), .command = command};
	uint8_t whole[sizeof(header) + PAYLOAD_BYTES_MAX];
	uint32_t bytes, fd_count;
	int fds[20];

	for (uint32_t i = 0; i < sizeof(message); i++)
		message.bytes[i] = (uint8_t)draw();
	if (seldom())
		header.command = (uint16_t)number(20);
	bytes = draw_payload(command, &message);
	fd_count = draw_fds(command, all, fds);
	if (seldom())
		bytes = (uint32_t)(draw() % PAYLOAD_BYTES_MAX);
	if (seldom())
		message.bytes[draw() % sizeof(message)] ^= (uint8_t)(1u << draw() % 8);
	header.bytes = (uint32_t)sizeof(header) + bytes;
	header.flags = draw() % 8 ? 0 : KVD_VFU_NO_REPLY;
	if (seldom() && seldom()) {
		header.bytes = (uint32_t)number(64);
		header.flags = (uint32_t)draw();
	}
	memcpy(whole, &header, sizeof(header));
	memcpy(whole + sizeof(header), &message, bytes);
	rig_send(rig, whole, sizeof(header) + bytes, fds, fd_count);
}

/* What the card believes about its maps is consistent whatever it was told. */
static void check_maps(const struct rig *rig)
{
	const struct kvd_card_dma *dma = &rig->card->dma;
	uint32_t indirect = 0;

	for (uint32_t i = 0; i < dma->count; i++) {
		indirect += !dma->maps[i].direct;
		assert_true(dma->maps[i].bytes && dma->maps[i].iova + dma->maps[i].bytes <= dma->window_bytes);
		assert_true(!i || dma->maps[i - 1].iova + dma->maps[i - 1].bytes <= dma->maps[i].iova);
	}
	assert_int_equal(indirect, dma->indirect);
}

static void run(struct rig *rig, const int *all)
{
	for (uint32_t i = 0; i < MESSAGES; i++) {
		send_one(rig, all);
		rig_step(rig);
		while (kvd_card_attached(rig->card) && rig_receive(rig))
			assert_int_equal(rig->header.flags & KVD_VFU_TYPE_MASK, KVD_VFU_TYPE_REPLY);
		(void)kvd_card_work(rig->card);
		check_maps(rig);
		/* A message whose length lies leaves the stream out of step: the client begins anew at times. */
		if (!kvd_card_attached(rig->card) || draw() % 64 == 0) {
			rig_connect(rig);
			rig_hello(rig);
			if (draw() % 2)
				rig_bus_master(rig, true);
		}
	}
}

static void test_noise(void **state)
{
	struct kvd_card_stats stats;
	struct rig *rig = *state;
	int all[FDS], pipes[2];
	uint32_t before;

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	all[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	all[1] = rig_file(64 * PAGE);
	all[2] = rig_file(3 * PAGE);
	all[3] = rig_file(0);
	all[4] = pipes[1];
	before = rig_open_fds();
	assert_int_equal(kvd_card_guard_init(), 0);
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		at = seed;
		run(rig, all);
	}
	/* Much was said, some of it was good, and nothing is left behind. */
	kvd_card_stats(rig->card, &stats);
	assert_true(stats.messages > SEEDS * MESSAGES / 2);
	assert_in_range(stats.refused, stats.messages / 5, stats.messages / 5 * 4);
	rig_connect(rig);
	rig_hello(rig);
	while (rig_receive(rig))
		;
	assert_int_equal(rig_open_fds(), before);
	assert_int_equal(rig_read64(rig, 0, 0), KVD_ABI_BAR0_MAGIC_RESET);
	for (int i = 0; i < FDS; i++)
		close(all[i]);
	close(pipes[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_noise, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
