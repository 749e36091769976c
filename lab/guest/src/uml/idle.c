// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded into a user-mode kernel: its timers expire when they are due. A kernel that is idle
 * sleeps in sigsuspend(2) until its timer's signal, and the machine takes tens of microseconds
 * to run it again. So the timer is set to a moment earlier, and the rest is waited for with an
 * eye on the clock.
 *
 * os_timer_one_shot() and os_idle_sleep(), arch/um/os-Linux/time.c, are who calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* What is measured, in a file of whoever asks: the last of them, and how many there were. */
#define LATE 4096 /* a power of two */
struct late {
	unsigned long long count;
	long long late_ns[LATE];
};

static int (*next_settime)(timer_t, int, const struct itimerspec *, struct itimerspec *);
static int (*next_sigsuspend)(const sigset_t *);

/* How much before a timer is due the kernel wakes, ns. */
static long long early_ns;
/* When the timer is due, on the clock; 0 if it is not set. */
static long long due_ns;
static struct late *late;

static long long to_ns(const struct timespec *time)
{
	return time->tv_sec * 1000000000LL + time->tv_nsec;
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return to_ns(&now);
}

static void measure(const char *path)
{
	int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *memory;

	if (file < 0)
		return;
	memory = mmap(NULL, sizeof(*late), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (memory != MAP_FAILED)
		late = memory;
}

__attribute__((constructor)) static void find_next(void)
{
	const char *early = getenv("THALWEG_EARLY_NS");

	*(void **)&next_settime = dlsym(RTLD_NEXT, "timer_settime");
	*(void **)&next_sigsuspend = dlsym(RTLD_NEXT, "sigsuspend");
	if (early)
		early_ns = atoll(early);
	measure(getenv("THALWEG_LATE_FILE"));
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *value,
		  struct itimerspec *former)
{
	struct itimerspec earlier = *value;
	long long left_ns = to_ns(&value->it_value);

	due_ns = left_ns && !flags ? now_ns() + left_ns : 0;
	/* As often as others come, when TCP paces at 10 Gbit/s, to wake twice costs too much. */
	if (due_ns && !to_ns(&value->it_interval) && left_ns >= 10 * early_ns) {
		left_ns -= early_ns;
		earlier.it_value.tv_sec = left_ns / 1000000000LL;
		earlier.it_value.tv_nsec = left_ns % 1000000000LL;
	}
	return next_settime(timer, flags, &earlier, former);
}

int sigsuspend(const sigset_t *mask)
{
	long long asked_ns = due_ns;
	long long woken_ns;
	int result;

	/* A signal of another device waits no longer than this. */
	if (due_ns && due_ns - now_ns() <= 2 * early_ns)
		while (now_ns() < due_ns)
			__builtin_ia32_pause();
	/* The handler runs within: that of the timer, and all that was due. */
	result = next_sigsuspend(mask);
	woken_ns = now_ns();
	if (late && asked_ns && woken_ns >= asked_ns)
		late->late_ns[late->count++ & (LATE - 1)] = woken_ns - asked_ns;
	return result;
}
