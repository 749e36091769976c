// SPDX-License-Identifier: GPL-2.0-only
/*
 * fixed: a congestion control for tests, with a constant window of WINDOW segments. It
 * has cong_control, whose arguments differ between kernels, and needs no header but the
 * kernel's.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define CORE __attribute__((preserve_access_index))

#ifndef WINDOW
#define WINDOW 10
#endif

char LICENSE[] SEC("license") = "GPL";

struct tcp_sock {
	__u32 snd_cwnd;
	__u32 srtt_us;
} CORE;

struct rate_sample {
	int acked_sacked;
} CORE;

/* As with THALWEG_KERNEL of thalweg_tcp.h. */
const volatile struct {
	__u32 cong_control_args;
} kernel SEC(".rodata.kernel") = {};

/* Segments acknowledged, ever: shows that the sample was found. */
__u64 acknowledged = 0;

SEC("struct_ops")
int fixed_control(__u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	const struct rate_sample *sample;

	if (kernel.cong_control_args == 4) {
		sample = (void *)ctx[3];
		/* Keeps the compiler from making one load at an unknown place of the two. */
		asm volatile("" ::: "memory");
	} else {
		sample = (void *)ctx[1];
	}
	if (sample->acked_sacked > 0)
		__sync_fetch_and_add(&acknowledged, sample->acked_sacked);
	tp->snd_cwnd = WINDOW;
#ifdef REFUSED
	tp->srtt_us = 1;
#endif
	return 0;
}

SEC("struct_ops")
int fixed_window(__u64 *ctx)
{
	return WINDOW;
}

SEC("struct_ops")
int fixed_undo(__u64 *ctx)
{
	return WINDOW;
}

struct tcp_congestion_ops {
	__u32 (*ssthresh)(void *sk);
	void (*cong_control)(void *sk);
	__u32 (*undo_cwnd)(void *sk);
	char name[16];
	__u32 flags;
};

#ifdef PLAIN
SEC(".struct_ops")
#else
SEC(".struct_ops.link")
#endif
struct tcp_congestion_ops fixed = {
	.ssthresh = (void *)fixed_window,
	.cong_control = (void *)fixed_control,
	.undo_cwnd = (void *)fixed_undo,
	.name = "t_fixed",
#ifdef ANYBODY
	.flags = 1, /* TCP_CONG_NON_RESTRICTED: may be the default of any namespace */
#endif
};
