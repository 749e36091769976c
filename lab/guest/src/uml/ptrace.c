// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded into a user-mode kernel before 6.14: its ptrace(2) sets the whole extended register
 * state where it means to. See xstate.c for why.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*next)(enum __ptrace_request, ...);

#define ptrace next
#include "xstate.c"
#undef ptrace

__attribute__((constructor)) static void find_next(void)
{
	*(void **)&next = dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	pid_t pid;
	void *address, *data;

	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	address = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	if (request == PTRACE_SETREGSET && (unsigned long)address == NT_X86_XSTATE) {
		struct iovec *part = data;

		return set_xstate(pid, part->iov_base, part->iov_len);
	}
	return next(request, pid, address, data);
}
