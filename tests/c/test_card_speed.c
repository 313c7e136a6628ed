/* How fast a card behind a socket is: kvd-card and a client in two processes, both watching memory. */
#include "card_client.h"

#include <sys/resource.h>
#include <unistd.h>

enum {
	CALLS = 100000,
	BATCH = 256,
	WINDOW = 64,   /* batches */
	WINDOWS = 100,
	IDLE_MS = 1000,
};

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void round_trips(struct client *client, const char *name, const struct kvd_abi_cmd *cmd)
{
	uint64_t *took_ns = malloc(CALLS * sizeof(*took_ns)), sum_ns = 0;

	for (int i = 0; i < CALLS; i++) {
		uint64_t start_ns = client_now_ns();

		(void)client_call(client, cmd);
		took_ns[i] = client_now_ns() - start_ns;
		sum_ns += took_ns[i];
	}
	qsort(took_ns, CALLS, sizeof(*took_ns), by_value);
	printf("round trip, %s: median %.2f us, mean %.2f us, 99 %% %.2f us\n", name, (double)took_ns[CALLS / 2] / 1e3,
	       (double)sum_ns / CALLS / 1e3, (double)took_ns[CALLS / 100 * 99] / 1e3);
	free(took_ns);
}

static void batches(struct client *client, const char *name, const struct kvd_abi_cmd *cmd)
{
	uint64_t took_ns[WINDOWS], start_ns = client_now_ns(), last_ns = start_ns;
	struct kvd_abi_cpl cpl;

	/* Two batches are under way at any time: few of what a window holds, so what it took is what both sides needed. */
	for (int i = 0; i < WINDOWS * WINDOW + 1; i++) {
		for (int j = 0; j < BATCH && i < WINDOWS * WINDOW; j++)
			client_put(client, cmd);
		client_ring(client);
		for (int j = 0; j < BATCH && i; j++)
			assert_true(client_take(client, &cpl, CLIENT_DEADLINE_MS));
		if (i && i % WINDOW == 0) {
			took_ns[i / WINDOW - 1] = client_now_ns() - last_ns;
			last_ns = client_now_ns();
		}
	}
	qsort(took_ns, WINDOWS, sizeof(*took_ns), by_value);
	printf("batched, %s: best %.2f, median %.2f, over all %.2f M commands/s\n", name,
	       BATCH * WINDOW * 1e3 / (double)took_ns[0], BATCH * WINDOW * 1e3 / (double)took_ns[WINDOWS / 2],
	       (double)BATCH * WINDOW * WINDOWS * 1e3 / (double)(last_ns - start_ns));
}

static double cpu_ms(pid_t pid)
{
	unsigned long user = 0, system = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system), 2);
	fclose(file);
	return (double)(user + system) * 1e3 / (double)sysconf(_SC_CLK_TCK);
}

int main(int argc, char **argv)
{
	struct kvd_abi_cmd lease = {.op = KVD_ABI_OP_LEASE, .count = 1};
	struct kvd_abi_cmd query = {
		.op = KVD_ABI_OP_QUERY_TIER, .tier = KVD_ABI_TIER_DDR, .buffer = CLIENT_RINGS_IOVA + CLIENT_BUFFER_AT,
		.buffer_bytes = sizeof(struct kvd_abi_tier_info),
	};
	struct client client;
	double before_ms;

	if (argc != 2)
		return 2;
	client_start(&client, argv[1], (const char *const[]){NULL});
	client_open(&client);
	assert_int_equal(client_enable(&client), KVD_ABI_BAR0_STATUS_READY_MASK | KVD_ABI_BAR0_STATUS_ENABLED_MASK);
	lease.session = client_call(&client, &(struct kvd_abi_cmd){.op = KVD_ABI_OP_SESSION_CREATE, .key = 1}).result0;
	round_trips(&client, "LEASE", &lease);
	round_trips(&client, "QUERY_TIER", &query);
	batches(&client, "LEASE", &lease);
	batches(&client, "QUERY_TIER", &query);
	before_ms = cpu_ms(client.pid);
	usleep(IDLE_MS * 1000);
	printf("enabled and idle: %.1f %% of a processor\n", (cpu_ms(client.pid) - before_ms) * 100 / IDLE_MS);
	client_close(&client);
	assert_int_equal(client_stop(&client), 0);
	client_end(&client);
	return 0;
}
