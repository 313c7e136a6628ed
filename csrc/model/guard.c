/*
 * A client can cut the file behind memory that we have mapped (SIGBUS), and lead the engine to an address that no map
 * covers (SIGSEGV). Work on such memory runs under guard: the fault ends the work, not the model.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>

#include "model/internal.h"

enum { RANGES_MAX = 64 };

struct range {
	const uint8_t *start;
	uint64_t bytes;
};

static struct range ranges[RANGES_MAX];
static _Thread_local sigjmp_buf jump;
static _Thread_local volatile sig_atomic_t guarded;
static struct sigaction old_bus, old_segv;

static bool is_clients(const void *address)
{
	for (uint32_t i = 0; i < RANGES_MAX; i++) {
		if (ranges[i].bytes && (uint64_t)((const uint8_t *)address - ranges[i].start) < ranges[i].bytes)
			return true;
	}
	return false;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	const struct sigaction *old = number == SIGBUS ? &old_bus : &old_segv;

	if (guarded && is_clients(info->si_addr))
		siglongjmp(jump, 1);
	/* Not ours: whoever was here before decides, after the instruction faults once more. */
	if (old->sa_flags & SA_SIGINFO)
		old->sa_sigaction(number, info, context);
	else
		(void)sigaction(number, old, NULL);
}

int kvd_card_guard_init(void)
{
	static bool done;
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

	if (done)
		return 0;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGBUS, &action, &old_bus) || sigaction(SIGSEGV, &action, &old_segv))
		return -errno;
	done = true;
	return 0;
}

int kvd_card_guard_add(const void *start, uint64_t bytes)
{
	for (uint32_t i = 0; i < RANGES_MAX; i++) {
		if (!ranges[i].bytes) {
			ranges[i] = (struct range){start, bytes};
			return 0;
		}
	}
	return -ENOSPC;
}

void kvd_card_guard_remove(const void *start)
{
	for (uint32_t i = 0; i < RANGES_MAX; i++) {
		if (ranges[i].bytes && ranges[i].start == start)
			ranges[i] = (struct range){0};
	}
}

/* The signal mask is not saved: the handler runs with SA_NODEFER and changes none, and saving costs a system call. */
int kvd_card_guard(void (*work)(void *context), void *context)
{
	/* Guarded work within guarded work: a fault ends both. */
	if (guarded) {
		work(context);
		return 0;
	}
	if (sigsetjmp(jump, 0)) {
		guarded = 0;
		return -EFAULT;
	}
	guarded = 1;
	work(context);
	guarded = 0;
	return 0;
}

struct copy {
	void *to;
	const void *from;
	size_t bytes;
};

static void copy_work(void *context)
{
	const struct copy *copy = context;

	memcpy(copy->to, copy->from, copy->bytes);
}

int kvd_card_guard_copy(void *to, const void *from, size_t bytes)
{
	struct copy copy = {to, from, bytes};

	return kvd_card_guard(copy_work, &copy);
}
