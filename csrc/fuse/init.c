/* The two negotiations: the kernel's offer is answered here, once the peer has agreed to a smaller one of its own. */
#include <errno.h>
#include <string.h>

#include "fuse/internal.h"
#include "fuse/sys.h"

enum { KVD_PAGE_BYTES = 4096 };

/* What the peer may know of. */
#define KVD_PEER_FLAGS                                                                                             \
	(FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ATOMIC_O_TRUNC | FUSE_PARALLEL_DIROPS | FUSE_DO_READDIRPLUS |    \
	 FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS)

/*
 * Not wanted: locks (the kernel's own are right for one host), DONT_MASK and POSIX_ACL (the kernel applies the umask),
 * WRITEBACK_CACHE (excludes passthrough), HANDLE_KILLPRIV* (the kernel does it), READDIRPLUS_AUTO.
 */
static uint32_t wanted_flags(uint32_t features)
{
	uint32_t flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
			 FUSE_CACHE_SYMLINKS | KVD_WIRE_INIT_EXT;

	if (features & KVD_FEATURE_ATOMIC_TRUNC)
		flags |= FUSE_ATOMIC_O_TRUNC;
	if (features & KVD_FEATURE_READDIRPLUS)
		flags |= FUSE_DO_READDIRPLUS;
	return flags;
}

static uint32_t wanted_flags2(uint32_t features)
{
	uint32_t flags2 = 0;

	if ((features & KVD_FEATURE_PASSTHROUGH) && kvd_sys_may_back())
		flags2 |= KVD_WIRE_PASSTHROUGH2;
	if (features & KVD_FEATURE_DIRECT_MMAP)
		flags2 |= KVD_WIRE_DIRECT_IO_ALLOW_MMAP2;
	return flags2;
}

static uint32_t features_of(const struct kvd_wire_init_out *out)
{
	uint32_t features = 0;

	if (out->flags2 & KVD_WIRE_PASSTHROUGH2)
		features |= KVD_FEATURE_PASSTHROUGH;
	if (out->flags2 & KVD_WIRE_DIRECT_IO_ALLOW_MMAP2)
		features |= KVD_FEATURE_DIRECT_MMAP;
	if (out->flags & FUSE_DO_READDIRPLUS)
		features |= KVD_FEATURE_READDIRPLUS;
	if (out->flags & FUSE_ATOMIC_O_TRUNC)
		features |= KVD_FEATURE_ATOMIC_TRUNC;
	return features;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void answer_offer(const struct kvd_split_config *config, const struct kvd_wire_init_in *offer,
			 struct kvd_wire_init_out *out)
{
	*out = (struct kvd_wire_init_out){
		.major = KVD_WIRE_MAJOR,
		.minor = smaller(offer->minor, KVD_WIRE_MINOR_MAX),
		.max_readahead = smaller(offer->max_readahead, config->readahead_bytes),
		.flags = offer->flags & wanted_flags(config->features),
		.max_background = (uint16_t)config->background,
		.congestion_threshold = (uint16_t)(config->background - config->background / 4),
		.max_write = config->io_bytes_max,
		.time_gran = 1,
		.max_pages = (uint16_t)(config->io_bytes_max / KVD_PAGE_BYTES),
	};
	if (out->flags & KVD_WIRE_INIT_EXT)
		out->flags2 = offer->flags2 & wanted_flags2(config->features);
	if (out->flags2 & KVD_WIRE_PASSTHROUGH2)
		out->max_stack_depth = KVD_WIRE_STACK_DEPTH;
}

/* A newer major: say which one we speak, and the kernel asks again in it. */
static int offer_major(kvd_split *split, uint64_t unique)
{
	struct kvd_wire_init_out out = { .major = KVD_WIRE_MAJOR, .minor = KVD_WIRE_MINOR_MAX };

	kvd_reply_data(split, unique, &out, sizeof(out));
	return 0;
}

int kvd_init_request(kvd_split *split, const struct kvd_request *request)
{
	struct kvd_wire_init_in offer = { 0 };
	struct kvd_wire_init_in shown;
	size_t bytes = request->body_bytes;

	if (bytes < KVD_WIRE_INIT_IN_SHORT)
		return -EINVAL;
	memcpy(&offer, request->body, bytes < sizeof(offer) ? bytes : sizeof(offer));
	if (!(offer.flags & KVD_WIRE_INIT_EXT) || bytes < sizeof(offer))
		offer.flags2 = 0;
	if (offer.major > KVD_WIRE_MAJOR)
		return offer_major(split, request->header->unique);
	if (offer.major < KVD_WIRE_MAJOR || offer.minor < KVD_WIRE_MINOR_MIN) {
		kvd_event_post(split, KVD_EVENT_REFUSED, 0, offer.minor);
		return -EPROTO;
	}
	if (atomic_exchange(&split->init_seen, true))
		return -EIO;
	answer_offer(&split->config, &offer, &split->init_out);
	shown = (struct kvd_wire_init_in){
		.major = KVD_WIRE_MAJOR,
		.minor = KVD_WIRE_MINOR_MIN,
		.max_readahead = offer.max_readahead,
		.flags = split->init_out.flags & KVD_PEER_FLAGS,
	};
	return kvd_forward_init(split, request, &shown);
}

void kvd_init_reply(kvd_split *split, uint64_t unique, int error)
{
	uint32_t features = features_of(&split->init_out);

	if (error) {
		kvd_reply_error(split, unique, error);
		return;
	}
	/* Before the answer: the next request may come at once. */
	atomic_store(&split->features, features);
	if (!kvd_reply_data(split, unique, &split->init_out, sizeof(split->init_out)))
		kvd_event_post(split, KVD_EVENT_INIT, 0, features);
}
