// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Part of ptrace.c, and of the kernels that the laboratory builds.
 *
 * A user-mode kernel before 6.14 keeps the first 2,696 bytes of the extended register state of
 * each of its processes. Linux sets the whole state or none of it (xstateregs_set(),
 * arch/x86/kernel/fpu/regset.c), and with AMX the whole has 11,008 bytes.
 */
#include <string.h>

/*
 * Sets the first `size` bytes of a stopped process's state; the rest stays as it is. Programs in
 * a user-mode kernel have no use for that rest: Linux gives AMX to those alone who ask for it by
 * arch_prctl(2), and such a kernel does not pass that on.
 */
static long set_xstate(int pid, void *part, unsigned long size)
{
	/* The stack of a user-mode kernel has 16 KiB. Nothing here is called twice at once. */
	static unsigned char whole[64 << 10] __attribute__((aligned(64)));
	static unsigned long whole_size;
	struct iovec state = { whole, sizeof(whole) };

	if (!whole_size) {
		if (ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &state) < 0)
			return -1;
		whole_size = state.iov_len;
	}
	if (size < whole_size) {
		if (ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &state) < 0)
			return -1;
		memcpy(whole, part, size);
	} else {
		state.iov_base = part;
		state.iov_len = size;
	}
	return ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &state);
}
