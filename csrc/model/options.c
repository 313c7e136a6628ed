/* The command line. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "model/program.h"

enum {
	DEFAULT_QUEUES = 4,
	DEFAULT_SPIN_US = 1000,
	DEFAULT_GRACE_MS = 2000,
	SPIN_US_MAX = 1000000,
	GRACE_MS_MAX = 3600000,
};
#define DEFAULT_DDR_BYTES (256ull << 20)

const char kvd_card_usage[] =
	"usage: kvd-card --socket PATH [options]\n"
	"\n"
	"A card with a page-table engine, as a vfio-user server: for kvd --device vfio-user:PATH, for QEMU's vfio-user-pci.\n"
	"\n"
	"  --socket PATH        UNIX socket to listen on\n"
	"  --card-ddr SIZE      memory of the card, a power of two from 1M to 64G (256M)\n"
	"  --queues N           1 to 16 (4)\n"
	"  --depth N            entries of a ring at most, a power of two from 2 to 1024 (1024)\n"
	"  --spin US            watch doorbells without a pause for so long after there was work (1000)\n"
	"  --fault NAME[=N]     go wrong once after N commands (0): all-ones, unknown-id, lying-phase, unknown-status,\n"
	"                       never-completes, no-interrupt, dead-bar, remove, die, die-within, die-after,\n"
	"                       reset-mid-batch; up to 8 times\n"
	"  --grace MS           from the fault `remove` to hanging up (2000)\n"
	"  --json               report as JSON, one object a line\n";

static const char *const fault_names[KVD_CARD_FAULT_COUNT] = {
	[KVD_CARD_FAULT_ALL_ONES] = "all-ones",
	[KVD_CARD_FAULT_UNKNOWN_ID] = "unknown-id",
	[KVD_CARD_FAULT_LYING_PHASE] = "lying-phase",
	[KVD_CARD_FAULT_UNKNOWN_STATUS] = "unknown-status",
	[KVD_CARD_FAULT_NEVER_COMPLETES] = "never-completes",
	[KVD_CARD_FAULT_NO_INTERRUPT] = "no-interrupt",
	[KVD_CARD_FAULT_DEAD_BAR] = "dead-bar",
	[KVD_CARD_FAULT_REMOVE] = "remove",
	[KVD_CARD_FAULT_DIE] = "die",
	[KVD_CARD_FAULT_DIE_WITHIN] = "die-within",
	[KVD_CARD_FAULT_DIE_AFTER] = "die-after",
	[KVD_CARD_FAULT_RESET] = "reset-mid-batch",
};

enum option_code {
	OPTION_SOCKET = 256,
	OPTION_CARD_DDR,
	OPTION_QUEUES,
	OPTION_DEPTH,
	OPTION_SPIN,
	OPTION_FAULT,
	OPTION_GRACE,
	OPTION_JSON,
	OPTION_HELP,
};

static const struct option long_options[] = {
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"socket-path", required_argument, NULL, OPTION_SOCKET}, /* as vfio-user's conventions for programs have it */
	{"card-ddr", required_argument, NULL, OPTION_CARD_DDR},
	{"queues", required_argument, NULL, OPTION_QUEUES},
	{"depth", required_argument, NULL, OPTION_DEPTH},
	{"spin", required_argument, NULL, OPTION_SPIN},
	{"fault", required_argument, NULL, OPTION_FAULT},
	{"grace", required_argument, NULL, OPTION_GRACE},
	{"json", no_argument, NULL, OPTION_JSON},
	{"help", no_argument, NULL, OPTION_HELP},
	{0},
};

__attribute__((format(printf, 2, 3))) static int refuse(char *why, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, KVD_CARD_WHY_BYTES, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

/* A decimal number, all of `text`. */
static bool number(const char *text, uint64_t max, uint64_t *out)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && !*end && *out <= max;
}

/* The same with K, M, G; KiB and the like are the same. */
static bool size(const char *text, uint64_t *out)
{
	static const char units[] = "KMG";
	char digits[24];
	size_t used = strspn(text, "0123456789");
	const char *unit = text + used;
	uint32_t shift = 0;

	if (used >= sizeof(digits))
		return false;
	memcpy(digits, text, used);
	digits[used] = '\0';
	if (*unit) {
		const char *at = strchr(units, *unit);

		if (!at || (unit[1] && strcmp(unit + 1, "iB")))
			return false;
		shift = 10 * (uint32_t)(at - units + 1);
	}
	if (!number(digits, UINT64_MAX >> shift, out))
		return false;
	*out <<= shift;
	return true;
}

static bool power_of_two(uint64_t value)
{
	return value && !(value & (value - 1));
}

static int parse_fault(const char *text, struct kvd_card_config *card, char *why)
{
	size_t bytes = strcspn(text, "=");
	struct kvd_card_fault fault = {0};

	for (uint32_t kind = 1; kind < KVD_CARD_FAULT_COUNT; kind++) {
		if (strlen(fault_names[kind]) == bytes && !memcmp(fault_names[kind], text, bytes))
			fault.kind = kind;
	}
	if (fault.kind == KVD_CARD_FAULT_NONE)
		return refuse(why, "--fault %s: there is no such fault; --help lists them", text);
	if (text[bytes] && !number(text + bytes + 1, UINT64_MAX, &fault.after))
		return refuse(why, "--fault %s: after the = comes a number of commands", text);
	if (card->fault_count == KVD_CARD_FAULTS_MAX)
		return refuse(why, "--fault %s: there are %d faults already, no more can be asked for", text, KVD_CARD_FAULTS_MAX);
	card->faults[card->fault_count++] = fault;
	return 0;
}

static int parse_socket(const char *path, const char **out, char *why)
{
	if (!*path)
		return refuse(why, "--socket: the path is empty");
	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return refuse(why, "--socket %.80s...: a path of a socket has less than %zu bytes", path,
			      sizeof(((struct sockaddr_un *)0)->sun_path));
	*out = path;
	return 0;
}

static int parse_one(int option, const char *text, struct kvd_card_options *out, char *why)
{
	uint64_t value;

	switch (option) {
	case OPTION_SOCKET:
		return parse_socket(text, &out->socket_path, why);
	case OPTION_CARD_DDR:
		if (!size(text, &value) || !power_of_two(value) || value < KVD_CARD_DDR_BYTES_MIN || value > KVD_CARD_DDR_BYTES_MAX)
			return refuse(why, "--card-ddr %s: must be a power of two from 1M to 64G", text);
		out->card.ddr_bytes = value;
		return 0;
	case OPTION_QUEUES:
		if (!number(text, KVD_CARD_QUEUES_MAX, &value) || !value)
			return refuse(why, "--queues %s: must be from 1 to %d", text, KVD_CARD_QUEUES_MAX);
		out->card.queues = (uint32_t)value;
		return 0;
	case OPTION_DEPTH:
		if (!number(text, KVD_CARD_DEPTH_MAX, &value) || !power_of_two(value) || value < 2)
			return refuse(why, "--depth %s: must be a power of two from 2 to %d", text, KVD_CARD_DEPTH_MAX);
		out->card.depth_max = (uint32_t)value;
		return 0;
	case OPTION_SPIN:
		if (!number(text, SPIN_US_MAX, &value))
			return refuse(why, "--spin %s: must be microseconds from 0 to %d", text, SPIN_US_MAX);
		out->spin_us = (uint32_t)value;
		return 0;
	case OPTION_GRACE:
		if (!number(text, GRACE_MS_MAX, &value))
			return refuse(why, "--grace %s: must be milliseconds from 0 to %d", text, GRACE_MS_MAX);
		out->card.grace_ms = (uint32_t)value;
		return 0;
	default:
		return parse_fault(text, &out->card, why);
	}
}

int kvd_card_options_parse(int argc, char **argv, struct kvd_card_options *out, char *why)
{
	int option, err;

	*out = (struct kvd_card_options){
		.card = {
			.ddr_bytes = DEFAULT_DDR_BYTES,
			.queues = DEFAULT_QUEUES,
			.depth_max = KVD_CARD_DEPTH_MAX,
			.grace_ms = DEFAULT_GRACE_MS,
		},
		.spin_us = DEFAULT_SPIN_US,
	};
	opterr = 0;
	optind = 0;
	while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
		switch (option) {
		case ':':
			return refuse(why, "%s: a value is missing", argv[optind - 1]);
		case '?':
			return refuse(why, "%s: there is no such option, or it takes no value; see --help", argv[optind - 1]);
		case OPTION_JSON:
			out->json = true;
			break;
		case OPTION_HELP:
			out->help = true;
			return 0;
		default:
			err = parse_one(option, optarg, out, why);
			if (err)
				return err;
		}
	}
	if (optind < argc)
		return refuse(why, "%s: there are only options; see --help", argv[optind]);
	if (!out->socket_path)
		return refuse(why, "--socket PATH is missing; see --help");
	return 0;
}
