/* What the disk can do: O_DIRECT by io_uring, `depth` blocks in flight, over the borders of files. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <string.h>

#include "bench/load.h"

#define FILE_MODE 0644

struct direct_file {
	int fd;
	uint32_t in_flight;
	uint32_t number; /* in the load */
	uint64_t bytes;
	bool given;      /* all its blocks were submitted */
};

struct direct_block {
	struct direct_file *file;
	uint8_t *buffer;
	uint64_t number;
	uint32_t bytes;
};

struct direct {
	const struct kvd_bench_load *load;
	struct kvd_bench_tally *tally;
	struct io_uring ring;
	struct direct_file *files; /* as many as the load has */
	uint32_t n_files;
	struct direct_file *current;
	uint64_t next_block; /* of `current` */
	struct direct_block blocks[KVD_BENCH_DEPTH_MAX];
	uint32_t free_blocks[KVD_BENCH_DEPTH_MAX];
	uint32_t n_free;
};

static bool writes(const struct direct *direct)
{
	return direct->load->op == KVD_BENCH_DIRECT_WRITE;
}

static int open_file(const struct direct *direct, struct direct_file *file)
{
	const char *name = direct->load->files[file->number];
	struct stat found;

	file->fd = writes(direct) ? open(name, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, FILE_MODE)
				  : open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (file->fd < 0)
		return -errno;
	if (!writes(direct)) {
		if (fstat(file->fd, &found) < 0)
			return -errno;
		file->bytes = (uint64_t)found.st_size;
		return 0;
	}
	file->bytes = direct->load->file_bytes;
	if (direct->load->allocate && fallocate(file->fd, 0, 0, (off_t)file->bytes) < 0)
		return -errno;
	return 0;
}

static void close_file(struct direct_file *file)
{
	if (file->fd >= 0)
		(void)close(file->fd);
	file->fd = -1;
}

/* Go on to the next file that can be opened; false: there is none. */
static bool next_file(struct direct *direct)
{
	uint32_t number;

	while (kvd_bench_take(direct->load, &number)) {
		struct direct_file *file = &direct->files[direct->n_files++];
		int err;

		*file = (struct direct_file){.fd = -1, .number = number};
		err = open_file(direct, file);
		direct->tally->ops++;
		if (!err) {
			direct->current = file;
			direct->next_block = 0;
			return true;
		}
		kvd_bench_fail(direct->tally, -err);
		close_file(file);
	}
	direct->current = NULL;
	return false;
}

/* Submit the next block; false: there is none left. */
static bool give_block(struct direct *direct)
{
	uint64_t block_bytes = direct->load->block_bytes;
	struct direct_block *block;
	struct direct_file *file;
	struct io_uring_sqe *sqe;
	uint64_t at, left;

	while (direct->current && direct->next_block * block_bytes >= direct->current->bytes) {
		file = direct->current;
		file->given = true;
		if (!writes(direct) && file->in_flight == 0)
			close_file(file);
		if (!next_file(direct))
			return false;
	}
	if (!direct->current)
		return false;
	file = direct->current;
	at = direct->next_block * block_bytes;
	left = file->bytes - at;
	block = &direct->blocks[direct->free_blocks[--direct->n_free]];
	block->file = file;
	block->number = direct->next_block++;
	block->bytes = (uint32_t)(left < block_bytes ? left : block_bytes);
	file->in_flight++;
	sqe = io_uring_get_sqe(&direct->ring);
	assert(sqe); /* the ring has an entry for each block */
	if (writes(direct)) {
		uint64_t stamp = kvd_bench_stamp(file->number, block->number);

		memcpy(block->buffer, &stamp, sizeof(stamp));
		io_uring_prep_write(sqe, file->fd, block->buffer, block->bytes, at);
	} else {
		/* The whole block: O_DIRECT takes no odd length, and a file ends where it ends. */
		io_uring_prep_read(sqe, file->fd, block->buffer, (uint32_t)block_bytes, at);
	}
	io_uring_sqe_set_data(sqe, block);
	return true;
}

static int verdict(const struct direct *direct, const struct direct_block *block, int res)
{
	uint64_t found;

	if (res < 0)
		return -res;
	if ((uint32_t)res != block->bytes)
		return EIO;
	if (!direct->load->stamped || writes(direct))
		return 0;
	memcpy(&found, block->buffer, sizeof(found));
	return found == kvd_bench_stamp(block->file->number, block->number) ? 0 : EBADMSG;
}

static void take_block(struct direct *direct, struct direct_block *block, int res)
{
	int error = verdict(direct, block, res);

	if (error)
		kvd_bench_fail(direct->tally, error);
	else
		direct->tally->bytes += block->bytes;
	block->file->in_flight--;
	if (!writes(direct) && block->file->given && block->file->in_flight == 0)
		close_file(block->file);
	direct->free_blocks[direct->n_free++] = (uint32_t)(block - direct->blocks);
}

/* Keep `depth` blocks in flight to the end. 0 or -errno of the ring, with nothing in flight but what it lost. */
static int run(struct direct *direct)
{
	uint32_t depth = direct->load->depth;
	bool more = next_file(direct);

	while (more || direct->n_free < depth) {
		struct io_uring_cqe *cqe;
		int err;

		while (more && direct->n_free > 0)
			more = give_block(direct);
		if (direct->n_free == depth)
			break;
		err = io_uring_submit_and_wait(&direct->ring, 1);
		if (err < 0 && err != -EINTR)
			return err;
		while (io_uring_peek_cqe(&direct->ring, &cqe) == 0) {
			struct direct_block *block = io_uring_cqe_get_data(cqe);
			int res = cqe->res;

			io_uring_cqe_seen(&direct->ring, cqe);
			take_block(direct, block, res);
		}
	}
	return 0;
}

/* What was written is durable before the time is taken, as it is with kvd. */
static void make_durable(struct direct *direct)
{
	for (uint32_t i = 0; i < direct->n_files; i++) {
		struct direct_file *file = &direct->files[i];

		if (writes(direct) && file->fd >= 0 && fdatasync(file->fd) < 0)
			kvd_bench_fail(direct->tally, errno);
		close_file(file);
	}
}

void kvd_bench_direct(const struct kvd_bench_load *load, void *buffer, struct kvd_bench_tally *tally)
{
	struct direct direct = {.load = load, .tally = tally, .n_free = load->depth};
	int err;

	for (uint32_t i = 0; i < load->depth; i++) {
		direct.blocks[i].buffer = (uint8_t *)buffer + (uint64_t)i * load->block_bytes;
		direct.free_blocks[i] = i;
	}
	direct.files = calloc(load->n_files, sizeof(*direct.files));
	if (!direct.files) {
		kvd_bench_fail(tally, ENOMEM);
		return;
	}
	err = io_uring_queue_init(load->depth, &direct.ring, 0);
	if (!err) {
		err = run(&direct);
		make_durable(&direct);
		io_uring_queue_exit(&direct.ring);
	}
	if (err)
		kvd_bench_fail(tally, -err);
	free(direct.files);
}
