// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded, it simulates another machine for a process, by files that may change at any
 * time. TEST_CLOCK has the seconds by which its wall clock is ahead. While
 * TEST_READ_ONLY exists, no file of that directory can be written to, as on a file
 * system that has become read-only.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	const char *path = getenv("TEST_CLOCK");
	char text[32] = "";
	long failed = syscall(SYS_clock_gettime, clock, now);
	int file;

	if (failed || clock != CLOCK_REALTIME || !path)
		return failed;
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	if (read(file, text, sizeof(text) - 1) > 0)
		now->tv_sec += atoll(text);
	close(file);
	return 0;
}

/* Whether a file is in the directory of the switch while that exists. */
static int is_read_only(int file)
{
	const char *path = getenv("TEST_READ_ONLY");
	char name[32], target[PATH_MAX];
	ssize_t length;

	if (!path || access(path, F_OK))
		return 0;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", file);
	length = readlink(name, target, sizeof(target));
	return length > 0 && !strncmp(target, path, strrchr(path, '/') + 1 - path);
}

#define REFUSE(file)                      \
	do {                              \
		if (is_read_only(file)) { \
			errno = EROFS;    \
			return -1;        \
		}                         \
	} while (0)

ssize_t write(int file, const void *bytes, size_t count)
{
	REFUSE(file);
	return syscall(SYS_write, file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
	REFUSE(file);
	return syscall(SYS_pwrite64, file, bytes, count, offset);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset)
{
	return pwrite64(file, bytes, count, offset);
}

int ftruncate64(int file, off64_t length)
{
	REFUSE(file);
	return syscall(SYS_ftruncate, file, length);
}

int ftruncate(int file, off_t length)
{
	return ftruncate64(file, length);
}
