// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded into QEMU, it has the main loop and the processor's thread take turns.
 *
 * With instruction counting the main loop moves the clock to the next timer where the processor
 * is idle (accel/tcg: icount_start_warp_timer()). It is woken by each timer that the guest sets, and
 * may find the processor halted before that has accounted for its last instructions: they are
 * then counted on top, and the timer is late by them. Whether that happens is up to the machine's
 * scheduler. Here the main loop goes on only while the processor's thread waits, so whoever is quick
 * makes no difference. Nothing from outside needs its attention meanwhile.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int (*next_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
static int (*next_wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*next_signal)(pthread_cond_t *);
static int (*next_broadcast)(pthread_cond_t *);

static pid_t main_loop;
/* What the processor's thread waits for, none before it has waited once, and what it unlocks then. */
static _Atomic(pthread_cond_t *) waits_for;
static _Atomic(pthread_mutex_t *) lock;
/* Whether it waits and nobody has woken it. */
static _Atomic uint32_t waits;

__attribute__((constructor)) static void find_next(void)
{
	main_loop = gettid();
	*(void **)&next_ppoll = dlsym(RTLD_NEXT, "ppoll");
	/* By version: without one, it may be that of 2002. */
	*(void **)&next_wait = dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2");
	*(void **)&next_signal = dlvsym(RTLD_NEXT, "pthread_cond_signal", "GLIBC_2.3.2");
	*(void **)&next_broadcast = dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");
}

static int is_main_loop(void)
{
	return gettid() == main_loop;
}

/* Whether this thread keeps the processor's from waiting, as it does while QEMU ends. */
static int holds_lock(void)
{
	return atomic_load(&lock)->__data.__owner == main_loop;
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	int ready = next_ppoll(fds, count, timeout, mask);

	if (!is_main_loop() || !atomic_load(&waits_for) || holds_lock())
		return ready;
	while (!atomic_load(&waits))
		syscall(SYS_futex, &waits, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	return ready;
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
	int result;

	if (is_main_loop())
		return next_wait(condition, mutex);
	/* The processor's is the one other thread that waits so. */
	atomic_store(&lock, mutex);
	atomic_store(&waits_for, condition);
	atomic_store(&waits, 1);
	syscall(SYS_futex, &waits, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	result = next_wait(condition, mutex);
	atomic_store(&waits, 0);
	return result;
}

static void awaken(pthread_cond_t *condition)
{
	if (condition == atomic_load(&waits_for))
		atomic_store(&waits, 0);
}

int pthread_cond_signal(pthread_cond_t *condition)
{
	awaken(condition);
	return next_signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t *condition)
{
	awaken(condition);
	return next_broadcast(condition);
}
