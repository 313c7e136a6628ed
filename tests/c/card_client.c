#include "card_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/pci_regs.h>

#define BAR0 KVD_VFIO_BAR0

uint64_t client_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wait_listening(struct client *client)
{
	char text[512] = "";
	size_t used = 0;

	while (!strstr(text, "listening")) {
		struct pollfd poll_fd = {.fd = client->out, .events = POLLIN};
		ssize_t n;

		assert_int_equal(poll(&poll_fd, 1, CLIENT_DEADLINE_MS), 1);
		n = read(client->out, text + used, sizeof(text) - 1 - used);
		assert_true(n > 0);
		used += (size_t)n;
		text[used] = '\0';
	}
}

static int make_file(uint64_t bytes, void **at)
{
	int fd = memfd_create("kvd-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	*at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(*at, MAP_FAILED);
	return fd;
}

static void make_tables(struct client *client)
{
	const struct kvd_engine_config config = {
		.page_bytes = 64 << 10,
		.sessions_max = 1024,
		.arena_bytes = CLIENT_TABLES_BYTES,
		.capacity_blocks = {0, 1 << 20, 4096, 1 << 20, 0},
		.arena_fd = client->tables_fd,
	};
	kvd_engine *engine;

	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	kvd_engine_fini(engine);
}

void client_start(struct client *client, const char *program, const char *const *options)
{
	const char *argv[CLIENT_ARGUMENTS_MAX + 4] = {program, "--socket", client->socket_path};
	void *rings;
	int pipes[2];

	*client = (struct client){.folder = "/tmp/kvd-card-XXXXXX"};
	assert_non_null(mkdtemp(client->folder));
	snprintf(client->socket_path, sizeof(client->socket_path), "%s/card.sock", client->folder);
	for (int i = 0; options[i]; i++) {
		assert_true(i < CLIENT_ARGUMENTS_MAX);
		argv[i + 3] = options[i];
	}
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	client->pid = fork();
	assert_true(client->pid >= 0);
	if (!client->pid) {
		dup2(pipes[1], STDOUT_FILENO);
		execv(program, (char *const *)(uintptr_t)argv);
		_exit(99);
	}
	close(pipes[1]);
	client->out = pipes[0];
	wait_listening(client);
	client->tables_fd = make_file(CLIENT_TABLES_BYTES, &client->tables);
	client->rings_fd = make_file(CLIENT_RINGS_BYTES, &rings);
	client->rings = rings;
	client->sq = rings;
	client->cq = (void *)(client->rings + CLIENT_CQ_AT);
	make_tables(client);
}

void client_open(struct client *client)
{
	const uint16_t command = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	char why[KVD_VFIO_TEXT_BYTES] = "";
	void *doorbells;

	if (kvd_vfio_open_user(client->socket_path, CLIENT_DEADLINE_MS, why, &client->vfio))
		fail_msg("%s", why);
	assert_int_equal(kvd_vfio_write(client->vfio, KVD_VFIO_CONFIG, PCI_COMMAND, &command, sizeof(command)), 0);
	assert_int_equal(kvd_vfio_dma_map(client->vfio, client->tables, CLIENT_TABLES_BYTES, CLIENT_TABLES_IOVA,
					  client->tables_fd, 0, 1), 0);
	assert_int_equal(kvd_vfio_dma_map(client->vfio, client->rings, CLIENT_RINGS_BYTES, CLIENT_RINGS_IOVA,
					  client->rings_fd, 0, 1), 0);
	assert_int_equal(kvd_vfio_region_map(client->vfio, KVD_VFIO_BAR2, 0, 4096, &doorbells), 0);
	client->doorbells = doorbells;
	client->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_true(client->eventfd >= 0);
	assert_int_equal(kvd_vfio_irqs(client->vfio, KVD_VFIO_IRQ_MSIX, CLIENT_VECTOR, 1, &client->eventfd), 0);
	client_describe(client);
}

void client_describe(struct client *client)
{
	memset(client->rings, 0, CLIENT_RINGS_BYTES);
	client->tail = 0;
	client->head = 0;
	client->phase = 1;
	client_write64(client, KVD_ABI_BAR0_TABLES_ADDRESS_AT, CLIENT_TABLES_IOVA);
	client_write64(client, KVD_ABI_BAR0_TABLES_BYTES_AT, CLIENT_TABLES_BYTES);
	client_write64(client, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_SQ_ADDRESS_AT, CLIENT_RINGS_IOVA);
	client_write64(client, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_CQ_ADDRESS_AT, CLIENT_RINGS_IOVA + CLIENT_CQ_AT);
	client_write32(client, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_DEPTH_AT, CLIENT_DEPTH);
	client_write32(client, KVD_ABI_BAR0_QUEUE_AT + KVD_ABI_BAR0_QUEUE_VECTOR_AT, CLIENT_VECTOR);
}

void client_close(struct client *client)
{
	kvd_vfio_close(client->vfio);
	client->vfio = NULL;
	client->doorbells = NULL;
	close(client->eventfd);
}

int client_stop(struct client *client)
{
	int status;

	assert_int_equal(kill(client->pid, SIGTERM), 0);
	assert_int_equal(waitpid(client->pid, &status, 0), client->pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

int client_died(struct client *client)
{
	int status;

	assert_int_equal(waitpid(client->pid, &status, 0), client->pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void client_end(struct client *client)
{
	munmap(client->rings, CLIENT_RINGS_BYTES);
	munmap(client->tables, CLIENT_TABLES_BYTES);
	close(client->rings_fd);
	close(client->tables_fd);
	close(client->out);
	unlink(client->socket_path);
	rmdir(client->folder);
}

uint64_t client_read64(struct client *client, uint64_t at)
{
	uint64_t value;

	assert_int_equal(kvd_vfio_read(client->vfio, BAR0, at, &value, sizeof(value)), 0);
	return value;
}

uint32_t client_read32(struct client *client, uint64_t at)
{
	uint32_t value;

	assert_int_equal(kvd_vfio_read(client->vfio, BAR0, at, &value, sizeof(value)), 0);
	return value;
}

void client_write64(struct client *client, uint64_t at, uint64_t value)
{
	assert_int_equal(kvd_vfio_write(client->vfio, BAR0, at, &value, sizeof(value)), 0);
}

void client_write32(struct client *client, uint64_t at, uint32_t value)
{
	assert_int_equal(kvd_vfio_write(client->vfio, BAR0, at, &value, sizeof(value)), 0);
}

uint32_t client_enable(struct client *client)
{
	client_write32(client, KVD_ABI_BAR0_CONTROL_AT, KVD_ABI_BAR0_CONTROL_ENABLE_MASK);
	return client_read32(client, KVD_ABI_BAR0_STATUS_AT);
}

void client_put(struct client *client, const struct kvd_abi_cmd *cmd)
{
	client->sq[client->tail] = *cmd;
	client->tail = (client->tail + 1) % CLIENT_DEPTH;
}

void client_ring(struct client *client)
{
	__atomic_store_n(&client->doorbells[0], client->tail, __ATOMIC_RELEASE);
}

static bool is_new(const struct client *client)
{
	uint16_t flags = __atomic_load_n(&client->cq[client->head].flags, __ATOMIC_ACQUIRE);

	return (flags & KVD_ABI_CPL_FLAGS_PHASE_MASK) == client->phase;
}

bool client_take(struct client *client, struct kvd_abi_cpl *out, uint32_t deadline_ms)
{
	if (!is_new(client)) {
		uint64_t until_ns = client_now_ns() + deadline_ms * 1000000ull;

		while (!is_new(client)) {
			if (client_now_ns() >= until_ns)
				return false;
		}
	}
	*out = client->cq[client->head];
	client->head = (client->head + 1) % CLIENT_DEPTH;
	client->phase ^= !client->head;
	__atomic_store_n(&client->doorbells[1], client->head, __ATOMIC_RELEASE);
	return true;
}

struct kvd_abi_cpl client_call(struct client *client, const struct kvd_abi_cmd *cmd)
{
	struct kvd_abi_cpl cpl;

	client_put(client, cmd);
	client_ring(client);
	assert_true(client_take(client, &cpl, CLIENT_DEADLINE_MS));
	assert_int_equal(cpl.id, cmd->id);
	return cpl;
}
