/*
 * Loads and stores of a mapping whose device may vanish under it. The handler for SIGBUS is installed once for the
 * process, at the first access, and hands every fault that is not of such an access to the handler before it. A
 * program that installs its own afterwards takes this protection away, unless it chains too.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <ucontext.h>

#include "vfio/vfio.h"

struct mmio_guard {
	sigjmp_buf back;
	uintptr_t address;
};

enum { MMIO_PAGE_BYTES = 4096 }; /* a fault may be reported for the page */

/* Initial-exec: the handler must not be the one who makes the thread's storage. */
static _Thread_local struct mmio_guard *volatile mmio_guard __attribute__((tls_model("initial-exec")));
static struct sigaction mmio_before;
static pthread_once_t mmio_once = PTHREAD_ONCE_INIT;
static int mmio_install_error;

/* Not ours: as if this handler were not there. */
static void pass_on(int signal_number, siginfo_t *info, void *context)
{
	bool sent = info->si_code <= 0; /* by somebody, not by an access: returning would swallow it */

	if (mmio_before.sa_flags & SA_SIGINFO) {
		mmio_before.sa_sigaction(signal_number, info, context);
	} else if (mmio_before.sa_handler == SIG_IGN && sent) {
		return;
	} else if (mmio_before.sa_handler == SIG_IGN || mmio_before.sa_handler == SIG_DFL) {
		/* When this returns the access is repeated, or the signal delivered: the end is the right one. */
		signal(signal_number, SIG_DFL);
		if (sent)
			raise(signal_number);
	} else {
		mmio_before.sa_handler(signal_number);
	}
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
	struct mmio_guard *guard = mmio_guard;
	bool of_access = info->si_code > 0 && info->si_code != BUS_MCEERR_AO;

	if (!guard || !of_access ||
	    ((uintptr_t)info->si_addr ^ guard->address) / MMIO_PAGE_BYTES != 0) {
		pass_on(signal_number, info, context);
		return;
	}
	mmio_guard = NULL;
	/* The handler is left by a jump: what was not blocked before the fault is not blocked after it. */
	pthread_sigmask(SIG_SETMASK, &((const ucontext_t *)context)->uc_sigmask, NULL);
	siglongjmp(guard->back, 1);
}

static void install(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	sigemptyset(&action.sa_mask);
	/* What was there is known before a fault can ask for it. */
	if (sigaction(SIGBUS, NULL, &mmio_before) || sigaction(SIGBUS, &action, NULL))
		mmio_install_error = -errno;
}

static int prepare(uintptr_t address, size_t bytes)
{
	pthread_once(&mmio_once, install);
	if (mmio_install_error)
		return mmio_install_error;
	return address % bytes ? -EINVAL : 0;
}

/* The body of an access: sigsetjmp has to stand in the function that makes it. */
#define GUARDED(address_, bytes_, access_)                                 \
	do {                                                               \
		struct mmio_guard guard = {.address = (uintptr_t)(address_)}; \
		int err = prepare(guard.address, bytes_);                  \
                                                                           \
		if (err)                                                   \
			return err;                                        \
		if (sigsetjmp(guard.back, 0))                              \
			return -ENODEV;                                    \
		mmio_guard = &guard;                                       \
		access_;                                                   \
		mmio_guard = NULL;                                         \
		return 0;                                                  \
	} while (0)

int kvd_vfio_load32(const void *address, uint32_t *value)
{
	GUARDED(address, sizeof(*value), *value = *(const volatile uint32_t *)address);
}

int kvd_vfio_load64(const void *address, uint64_t *value)
{
	GUARDED(address, sizeof(*value), *value = *(const volatile uint64_t *)address);
}

int kvd_vfio_store32(void *address, uint32_t value)
{
	GUARDED(address, sizeof(value), *(volatile uint32_t *)address = value);
}

int kvd_vfio_store64(void *address, uint64_t value)
{
	GUARDED(address, sizeof(value), *(volatile uint64_t *)address = value);
}
