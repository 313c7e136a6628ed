/*
 * The client can cut the file behind memory that we have mapped (SIGBUS), and lead the engine to an address that no map
 * covers (SIGSEGV). Work on such memory runs under guard: the fault ends the work, not the model.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "model/internal.h"

enum { RANGES_MAX = 64 };
#define TRAP_FLAG 0x100 /* of x86's flags register: stop after one instruction */

struct range {
	const uint8_t *start;
	uint64_t bytes;
};

static struct range ranges[RANGES_MAX];
static _Thread_local sigjmp_buf jump;
static _Thread_local volatile sig_atomic_t guarded;
static _Thread_local uint64_t fault_address;
static struct sigaction old_bus, old_segv;
static struct range deadly; /* the first store here is the last one */

static bool within(const struct range *range, const void *address)
{
	return range->bytes && (uint64_t)((const uint8_t *)address - range->start) < range->bytes;
}

static bool is_clients(const void *address)
{
	for (uint32_t i = 0; i < RANGES_MAX; i++) {
		if (within(&ranges[i], address))
			return true;
	}
	return false;
}

static void die(int number)
{
	(void)number;
	kill(getpid(), SIGKILL);
}

/* Let the store happen, then die; where an instruction can't be stepped over, die before it. */
static void die_after_store(void *context)
{
#ifdef __x86_64__
	ucontext_t *at = context;
	struct sigaction action = {.sa_handler = die};

	if (!sigaction(SIGTRAP, &action, NULL) &&
	    !mprotect((void *)(uintptr_t)deadly.start, deadly.bytes, PROT_READ | PROT_WRITE)) {
		at->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
		deadly.bytes = 0;
		return;
	}
#else
	(void)context;
#endif
	die(SIGKILL);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	const struct sigaction *old = number == SIGBUS ? &old_bus : &old_segv;

	if (number == SIGSEGV && within(&deadly, info->si_addr)) {
		die_after_store(context);
		return;
	}
	if (guarded && is_clients(info->si_addr)) {
		fault_address = (uint64_t)(uintptr_t)info->si_addr;
		/* The handler is left by a jump: what was not blocked before the fault is not blocked after it. */
		pthread_sigmask(SIG_SETMASK, &((const ucontext_t *)context)->uc_sigmask, NULL);
		siglongjmp(jump, 1);
	}
	/* Not ours: whoever was here before decides, after the instruction faults once more. */
	if (old->sa_flags & SA_SIGINFO) {
		old->sa_sigaction(number, info, context);
		return;
	}
	(void)sigaction(number, old, NULL);
	if (info->si_code <= 0)
		raise(number); /* was sent by somebody, and will not come again by itself */
}

static int install(int number, struct sigaction *old)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	struct sigaction now;

	sigemptyset(&action.sa_mask);
	if (sigaction(number, NULL, &now))
		return -errno;
	if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)
		return 0;
	*old = now;
	return sigaction(number, &action, NULL) ? -errno : 0;
}

int kvd_card_guard_init(void)
{
	int err = install(SIGBUS, &old_bus);

	return err ? err : install(SIGSEGV, &old_segv);
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

int kvd_card_guard_die_at(void *start, uint64_t bytes)
{
	if (mprotect(start, bytes, PROT_READ))
		return -errno;
	deadly = (struct range){start, bytes};
	return 0;
}

/* The signal mask is not saved here, as that costs a system call: the handler knows what it was. */
int kvd_card_guard(void (*work)(void *context), void *context, uint64_t *address)
{
	/* Guarded work within guarded work: a fault ends both. */
	if (guarded) {
		work(context);
		return 0;
	}
	if (sigsetjmp(jump, 0)) {
		guarded = 0;
		if (address)
			*address = fault_address;
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

	return kvd_card_guard(copy_work, &copy, NULL);
}
