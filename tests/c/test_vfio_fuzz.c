/*
 * A server of noise: answers that are nearly right, with bytes flipped, cut, repeated, and requests in between. The
 * client may refuse, may lose the device, may be deceived about values; it never touches what is not its own (the
 * sanitizers look), never waits longer than its deadline, and keeps no descriptor.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "vfio_server.h"

enum {
	SESSIONS_MAX = 3000,
	SECONDS_MAX = 20,
	MESSAGES_MAX = 60, /* of a session */
	DEADLINE_MS = 20,  /* short: noise often ends in silence */
	ROOM = 8192,
	IOVA = 0x100000,
	MEMORY_BYTES = 8192,
};

static char why[KVD_VFIO_TEXT_BYTES];

/* splitmix64; the server's thread and the client have each their own. */
static uint64_t draw(uint64_t *at)
{
	uint64_t mixed = *at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

static uint64_t draw_number(uint64_t *at)
{
	static const uint64_t edges[] = {
		0, 1, 7, 8, 16, 32, 48, 4095, 4096, 8192, 1 << 20, (1 << 20) + 1,
		INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX,
	};

	return draw(at) % 2 ? edges[draw(at) % (sizeof(edges) / sizeof(edges[0]))] : draw(at);
}

struct noise {
	int listen_fd;
	int memory_fd;
	uint64_t at;
	uint8_t out[ROOM];
};

/* A right answer, as far as this server knows one; its payload's bytes. */
static size_t right_answer(uint16_t command, const uint8_t *in, uint8_t *out)
{
	static const char json[] =
		"{\"capabilities\":{\"max_msg_fds\":4,\"max_data_xfer_size\":512,\"max_dma_maps\":4}}";
	struct kvd_vfu_device_info info = {sizeof(info), VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET, 9, 5};
	struct vfio_region_info region;
	struct kvd_vfu_region_access access;

	switch (command) {
	case KVD_VFU_VERSION:
		memset(out, 0, 4);
		memcpy(out + 4, json, sizeof(json));
		return 4 + sizeof(json);
	case KVD_VFU_DEVICE_GET_INFO:
		memcpy(out, &info, sizeof(info));
		return sizeof(info);
	case KVD_VFU_DEVICE_GET_REGION_INFO:
		memcpy(&region, in, sizeof(region));
		region.argsz = 64;
		region.flags = 0xf;
		region.size = 8192;
		region.cap_offset = 32;
		memcpy(out, &region, sizeof(region));
		memcpy(out + 32, (uint32_t[]){1 | 1 << 16, 0, 1, 0}, 16);
		memcpy(out + 48, (uint64_t[]){4096, 4096}, 16);
		return 64;
	case KVD_VFU_DEVICE_GET_IRQ_INFO:
		memcpy(out, in, 16);
		memcpy(out + 4, (uint32_t[]){1}, 4);
		memcpy(out + 12, (uint32_t[]){8}, 4);
		return 16;
	case KVD_VFU_REGION_READ:
		memcpy(&access, in, sizeof(access));
		memset(out, 0x11, ROOM / 2);
		memcpy(out, &access, sizeof(access));
		return sizeof(access) + (access.count <= ROOM / 4 ? access.count : 0);
	case KVD_VFU_REGION_WRITE:
		memcpy(out, in, 16);
		return 16;
	case KVD_VFU_DMA_UNMAP:
		memcpy(out, in, 24);
		return 24;
	default:
		return 0;
	}
}

static void flip(struct noise *noise, size_t bytes)
{
	for (uint64_t n = draw(&noise->at) % 4; n && bytes; n--) {
		size_t at = draw(&noise->at) % bytes;
		uint64_t number = draw_number(&noise->at);

		if (draw(&noise->at) % 2)
			noise->out[at] ^= (uint8_t)(1u << draw(&noise->at) % 8);
		else
			memcpy(noise->out + at / 4 * 4, &number, 4);
	}
}

/* Something that the client was not asked for. */
static bool intrude(struct noise *noise, struct server *link)
{
	struct kvd_vfu_header header = {
		.id = (uint16_t)draw(&noise->at),
		.command = (uint16_t)(draw(&noise->at) % 20),
		.flags = draw(&noise->at) % 8 ? 0 : (uint32_t)draw(&noise->at) % 64,
	};
	struct kvd_vfu_dma_access access = {
		.iova = draw(&noise->at) % 2 ? IOVA + draw(&noise->at) % MEMORY_BYTES : draw_number(&noise->at),
		.count = draw(&noise->at) % 2 ? draw(&noise->at) % 600 : draw_number(&noise->at),
	};
	size_t bytes = header.command == KVD_VFU_DMA_WRITE && access.count < 600 ? access.count : draw(&noise->at) % 40;

	memcpy(noise->out, &access, sizeof(access));
	bytes += sizeof(access);
	header.bytes = (uint32_t)(sizeof(header) + bytes);
	return server_send(link, &header, noise->out, bytes, NULL, 0);
}

static bool answer(struct noise *noise, struct server *link, const struct kvd_vfu_header *request, const uint8_t *in)
{
	size_t bytes = right_answer(request->command, in, noise->out);
	struct kvd_vfu_header header = {
		.id = request->id, .command = request->command, .flags = KVD_VFU_TYPE_REPLY,
	};
	int fds[3] = {noise->memory_fd, noise->memory_fd, noise->memory_fd};
	bool bad = draw(&noise->at) % 12 == 0;

	if (bad)
		flip(noise, bytes);
	if (bad && draw(&noise->at) % 3 == 0)
		bytes = draw(&noise->at) % (bytes + 20);
	header.bytes = (uint32_t)(sizeof(header) + bytes);
	if (bad && draw(&noise->at) % 4 == 0)
		((uint8_t *)&header)[draw(&noise->at) % sizeof(header)] ^= (uint8_t)(1u << draw(&noise->at) % 8);
	return server_send(link, &header, noise->out, bytes, fds,
			   request->command == KVD_VFU_DEVICE_GET_REGION_INFO ? (uint32_t)(draw(&noise->at) % 4) : 0);
}

/* A request of the client, or what it answered to one of ours; its descriptors, if any, are closed by the read. */
static bool receive(struct server *link, struct kvd_vfu_header *header, uint8_t *in)
{
	static uint8_t rest[1 << 16];

	if (recv(link->fd, header, sizeof(*header), MSG_WAITALL) != (ssize_t)sizeof(*header))
		return false;
	for (size_t left = header->bytes - sizeof(*header), at = 0; left;) {
		size_t piece = left < sizeof(rest) ? left : sizeof(rest);

		if (recv(link->fd, rest, piece, MSG_WAITALL) != (ssize_t)piece)
			return false;
		if (at < ROOM)
			memcpy(in + at, rest, piece < ROOM - at ? piece : ROOM - at);
		at += piece;
		left -= piece;
	}
	return true;
}

static void *be_noise(void *argument)
{
	static uint8_t in[ROOM];
	struct noise *noise = argument;
	struct server link = {.fd = accept4(noise->listen_fd, NULL, NULL, SOCK_CLOEXEC)};
	struct kvd_vfu_header header;
	bool on = link.fd >= 0;

	for (uint32_t i = 0; on && i < MESSAGES_MAX; i++) {
		on = receive(&link, &header, in);
		if (on && (header.flags & KVD_VFU_TYPE_MASK) == KVD_VFU_TYPE_REPLY)
			continue;
		while (on && draw(&noise->at) % 4 == 0)
			on = intrude(noise, &link);
		on = on && draw(&noise->at) % 40 && answer(noise, &link, &header, in);
	}
	if (link.fd >= 0)
		close(link.fd);
	return NULL;
}

/* Whatever it is that the client can do; true: it still has the device. */
static bool act(kvd_vfio *vfio, uint64_t *at, uint8_t *memory, int memory_fd)
{
	static uint8_t data[2048];
	uint32_t region = (uint32_t)(draw(at) % 10), bytes = (uint32_t)(draw(at) % sizeof(data));
	uint64_t offset = draw(at) % 4 ? draw(at) % 8192 : draw_number(at);
	int fds[8] = {memory_fd, memory_fd, -1, -1, memory_fd, memory_fd, memory_fd, memory_fd};
	void *bar;

	switch (draw(at) % 8) {
	case 0:
		kvd_vfio_read(vfio, region, offset, data, bytes);
		break;
	case 1:
		kvd_vfio_write(vfio, region, offset, data, bytes);
		break;
	case 2:
	case 3:
		kvd_vfio_dma_map(vfio, memory, draw(at) % 3 * 4096, IOVA + draw(at) % 3 * 4096, memory_fd, 0,
				 (int)(draw(at) % 2));
		break;
	case 4:
		kvd_vfio_dma_unmap(vfio, IOVA + draw(at) % 3 * 4096, draw(at) % 3 * 4096);
		break;
	case 5:
		kvd_vfio_irqs(vfio, (uint32_t)(draw(at) % 6), (uint32_t)(draw(at) % 9), (uint32_t)(draw(at) % 9), fds);
		break;
	case 6:
		kvd_vfio_region_map(vfio, region, offset & -4096ull, draw(at) % 8193, &bar);
		break;
	default:
		kvd_vfio_reset(vfio);
	}
	return !kvd_vfio_is_gone(vfio);
}

/* One connection; how many acts it lived for, -1: it was not opened. */
static int one_session(uint64_t seed, struct noise *noise, const char *path, uint8_t *memory)
{
	uint64_t at = seed ^ 0xc11e47;
	kvd_vfio *vfio = NULL;
	pthread_t thread;
	int acts = -1;

	noise->at = seed;
	assert_int_equal(pthread_create(&thread, NULL, be_noise, noise), 0);
	if (kvd_vfio_open_user(path, DEADLINE_MS, why, &vfio) == 0) {
		acts = 0;
		while (acts < MESSAGES_MAX && act(vfio, &at, memory, noise->memory_fd))
			acts++;
		kvd_vfio_close(vfio);
	}
	pthread_join(thread, NULL);
	return acts;
}

static void test_noise(void **state)
{
	static struct noise noise;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	time_t until = time(NULL) + SECONDS_MAX;
	uint32_t opened = 0, acts = 0, fds;
	uint8_t *memory;

	(void)state;
	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/kvd-vfio-noise-%d", getpid());
	noise.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(noise.listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(noise.listen_fd, 1), 0);
	noise.memory_fd = memfd_create("memory", MFD_CLOEXEC);
	assert_int_equal(ftruncate(noise.memory_fd, MEMORY_BYTES), 0);
	memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, noise.memory_fd, 0);
	fds = server_open_fds();
	for (uint32_t i = 0; i < SESSIONS_MAX && time(NULL) < until; i++) {
		int lived = one_session(i, &noise, address.sun_path, memory);

		assert_int_equal(server_open_fds(), fds);
		opened += lived >= 0;
		acts += lived > 0 ? (uint32_t)lived : 0;
	}
	print_message("%u opened, %u acts\n", opened, acts);
	/* Noise that lets nothing through would test nothing. */
	assert_true(opened > 20 && acts > 100);
	munmap(memory, MEMORY_BYTES);
	close(noise.memory_fd);
	close(noise.listen_fd);
	unlink(address.sun_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_noise)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
