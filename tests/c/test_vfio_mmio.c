/* Loads and stores of a mapping that vanishes, and what becomes of everybody else's faults. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "vfio/vfio.h"

enum {
	PAGE_BYTES = 4096,
	ROUNDS = 2000,
	THREADS = 2,
	EXIT_SEEN = 42,     /* the handler before ours was reached */
	EXIT_SURVIVED = 43, /* the end was reached */
	EXIT_CHECK = 44,    /* a check failed */
};

/*
 * cmocka puts its own handler in place before each test, so everything is done in children, which are as a program is:
 * nobody changes the handler after the first access. A check that fails there ends the child.
 */
#define CHECK(condition_)                        \
	do {                                     \
		if (!(condition_))               \
			_exit(EXIT_CHECK);       \
	} while (0)

/* A mapping of which only the first page is there. */
static uint8_t *mapping(void)
{
	int fd = memfd_create("bar", MFD_CLOEXEC);
	uint8_t *address;

	CHECK(ftruncate(fd, (off_t)2 * PAGE_BYTES) == 0);
	address = mmap(NULL, 2 * (size_t)PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(address != MAP_FAILED);
	CHECK(ftruncate(fd, PAGE_BYTES) == 0);
	close(fd);
	return address;
}

static void access_it(uint8_t *bar)
{
	uint64_t value64 = 0;
	uint32_t value32 = 0;

	CHECK(kvd_vfio_store64(bar + 8, 0x1122334455667788) == 0);
	CHECK(kvd_vfio_load64(bar + 8, &value64) == 0 && value64 == 0x1122334455667788);
	CHECK(kvd_vfio_store32(bar + 8, 5) == 0);
	CHECK(kvd_vfio_load32(bar + 12, &value32) == 0 && value32 == 0x11223344);
	CHECK(kvd_vfio_load32(bar + 8, &value32) == 0 && value32 == 5);
	CHECK(kvd_vfio_load32(bar + 2, &value32) == -EINVAL);
	CHECK(kvd_vfio_store64(bar + 4, 1) == -EINVAL);
}

/* Each kind, again and again: the signal is not left blocked, and what was there is not overwritten. */
static void access_what_is_gone(uint8_t *bar)
{
	uint64_t value64 = 77;
	uint32_t value32 = 78;

	for (uint32_t i = 0; i < 3; i++) {
		CHECK(kvd_vfio_load32(bar + PAGE_BYTES, &value32) == -ENODEV);
		CHECK(kvd_vfio_load64(bar + PAGE_BYTES + 8, &value64) == -ENODEV);
		CHECK(kvd_vfio_store32(bar + 2 * PAGE_BYTES - 4, 1) == -ENODEV);
		CHECK(kvd_vfio_store64(bar + PAGE_BYTES, 1) == -ENODEV);
		CHECK(kvd_vfio_store32(bar, i) == 0);
	}
	CHECK(value64 == 77 && value32 == 78);
}

static void *hammer(void *argument)
{
	uint8_t *bar = argument;
	uint32_t value;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		CHECK(kvd_vfio_load32(bar + PAGE_BYTES, &value) == -ENODEV);
		CHECK(kvd_vfio_load32(bar, &value) == 0);
	}
	return NULL;
}

static void access_by_threads(uint8_t *bar)
{
	pthread_t threads[THREADS];

	for (uint32_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, hammer, bar) == 0);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* In a child: whatever it does there with the mapping, the status of its end. */
static int end_of(void (*what)(uint8_t *bar))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		/* No report of a sanitizer, no core. */
		if (!freopen("/dev/null", "w", stderr))
			_exit(EXIT_SURVIVED);
		signal(SIGBUS, SIG_DFL); /* cmocka's is off */
		what(mapping());
		_exit(EXIT_SURVIVED);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void foreign_fault(uint8_t *bar)
{
	uint32_t value;

	kvd_vfio_load32(bar + PAGE_BYTES, &value); /* ours is installed, and was at work */
	*(volatile uint8_t *)(bar + PAGE_BYTES) = 1;
}

static void foreign_fault_by_default(uint8_t *bar)
{
	signal(SIGBUS, SIG_DFL);
	foreign_fault(bar);
}

static void foreign_fault_ignored(uint8_t *bar)
{
	signal(SIGBUS, SIG_IGN);
	foreign_fault(bar);
}

static void seen(int signal_number)
{
	(void)signal_number;
	_exit(EXIT_SEEN);
}

static void seen_with_info(int signal_number, siginfo_t *info, void *context)
{
	(void)context;
	_exit(signal_number == SIGBUS && info->si_addr ? EXIT_SEEN : EXIT_SURVIVED);
}

static void foreign_fault_handled(uint8_t *bar)
{
	signal(SIGBUS, seen);
	foreign_fault(bar);
}

static void foreign_fault_handled_with_info(uint8_t *bar)
{
	struct sigaction action = {.sa_sigaction = seen_with_info, .sa_flags = SA_SIGINFO};

	sigaction(SIGBUS, &action, NULL);
	foreign_fault(bar);
}

static void sent(uint8_t *bar)
{
	uint32_t value;

	kvd_vfio_load32(bar, &value);
	raise(SIGBUS);
}

static void sent_by_default(uint8_t *bar)
{
	signal(SIGBUS, SIG_DFL);
	sent(bar);
}

static void sent_ignored(uint8_t *bar)
{
	signal(SIGBUS, SIG_IGN);
	sent(bar);
}

static void expect(void (*what)(uint8_t *bar), int exit_status)
{
	int status = end_of(what);

	if (!WIFEXITED(status) || WEXITSTATUS(status) != exit_status)
		print_message("status %#x\n", (unsigned int)status);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), exit_status);
}

static void expect_sigbus(void (*what)(uint8_t *bar))
{
	int status = end_of(what);

	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void test_access(void **state)
{
	(void)state;
	expect(access_it, EXIT_SURVIVED);
}

static void test_gone(void **state)
{
	(void)state;
	expect(access_what_is_gone, EXIT_SURVIVED);
}

static void test_threads(void **state)
{
	(void)state;
	expect(access_by_threads, EXIT_SURVIVED);
}

static void test_foreign(void **state)
{
	(void)state;
	expect_sigbus(foreign_fault_by_default);
	expect_sigbus(foreign_fault_ignored);
	expect(foreign_fault_handled, EXIT_SEEN);
	expect(foreign_fault_handled_with_info, EXIT_SEEN);
}

static void test_sent(void **state)
{
	(void)state;
	expect_sigbus(sent_by_default);
	expect(sent_ignored, EXIT_SURVIVED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_access),  cmocka_unit_test(test_gone), cmocka_unit_test(test_threads),
		cmocka_unit_test(test_foreign), cmocka_unit_test(test_sent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
