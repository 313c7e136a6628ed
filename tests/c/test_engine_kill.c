/* A process that executes commands on tables in a file is killed at any time: what it left is recovered, again and again. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test_engine_crash.h"

#define KILLS 60u
#define WAIT_NS_MAX 3000000u

void kvd_engine_stored(void)
{
}

static struct kvd_engine *attach(int fd)
{
	struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH, .arena_fd = fd};
	struct kvd_engine *engine;

	assert_int_equal(kvd_engine_init(&config, &engine), 0);
	return engine;
}

/* The child: attach, and execute commands for as long as it lives. It tells in shared memory what it was told. */
static void live(int fd, struct rig *rig, volatile uint64_t *told)
{
	struct kvd_engine_config config = {.flags = KVD_ENGINE_ATTACH, .arena_fd = fd};

	if (kvd_engine_init(&config, &rig->engine) || kvd_engine_dirty(rig->engine))
		_exit(1);
	for (;;) {
		struct kvd_abi_cmd cmd = rig_command(rig);
		struct kvd_abi_cpl cpl;

		kvd_engine_submit(rig->engine, &cmd, &cpl, 1);
		rig_follow(rig, &cmd, &cpl);
		*told = kvd_engine_sequence(rig->engine);
	}
}

/* Which sessions there are, for the next child. */
static void learn(struct rig *rig, const kvd_engine *engine)
{
	for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
		const struct kvd_session *session = kvd_session_of_key(engine, i * 16 + 5);

		rig->handle[i] = session ? kvd_session_handle(engine, session) : 0;
	}
}

static void test_killed_at_any_time(void **state)
{
	int fd = memfd_create("arena", MFD_CLOEXEC);
	struct kvd_engine_config config = test_config;
	struct rig *rig = aligned_alloc(_Alignof(struct rig), sizeof(*rig));
	uint64_t *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t dirty = 0, undone = 0, finished = 0;
	kvd_engine *engine;

	(void)state;
	assert_true(fd >= 0 && told != MAP_FAILED && rig);
	memset(rig, 0, sizeof(*rig));
	config.arena_fd = fd;
	config.arena_bytes = RIG_BYTES;
	config.sessions_max = RIG_SESSIONS;
	engine = engine_new(&config);
	engine_end(engine);
	for (uint32_t i = 0; i < KILLS; i++) {
		struct kvd_engine_recovery result = {0};
		struct kvd_abi_cpl cpl;
		struct timespec wait;
		int status;
		pid_t child;

		rig->random = i;
		wait = (struct timespec){.tv_nsec = rig_draw(rig, WAIT_NS_MAX)};
		child = fork();
		assert_true(child >= 0);
		if (!child)
			live(fd, rig, told);
		nanosleep(&wait, NULL);
		assert_int_equal(kill(child, SIGKILL), 0);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status));
		engine = attach(fd);
		dirty += (uint64_t)kvd_engine_dirty(engine);
		assert_int_equal(kvd_engine_recover(engine, &result), 0);
		assert_int_equal(result.losses_count, 0);
		undone += result.undone;
		finished += result.finished;
		/* What was told is executed; of what was not told, at most one is. */
		assert_true(kvd_engine_sequence(engine) >= *told && kvd_engine_sequence(engine) <= *told + 1);
		assert_true(!*told || !kvd_engine_completion(engine, *told, &cpl));
		learn(rig, engine);
		/* One that was executed and not told is known now: the next child may be killed before it tells anything. */
		*told = kvd_engine_sequence(engine);
		engine_end(engine);
	}
	print_message("%u commands, %u of %u left in disorder, %u finished, %u undone\n", (unsigned int)*told,
		      (unsigned int)dirty, KILLS, (unsigned int)finished, (unsigned int)undone);
	assert_true(dirty > 0 && *told > KILLS);
	munmap(told, sizeof(*told));
	free(rig);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed_at_any_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
