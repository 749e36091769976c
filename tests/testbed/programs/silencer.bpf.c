// SPDX-License-Identifier: GPL-2.0-only
/*
 * silencer: a sockops program that requests callbacks of its own and clears those of all
 * others, as careless ones do; with SOME on about every other connection.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) =
	(void *)BPF_FUNC_sock_ops_cb_flags_set;

#ifdef SOME
static __u32 (*bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
#endif

char LICENSE[] SEC("license") = "GPL";

SEC("sockops")
int silencer(struct bpf_sock_ops *ops)
{
#ifdef SOME
	if (bpf_get_prandom_u32() & 1)
		return 1;
#endif
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	    ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_RTO_CB_FLAG);
	return 1;
}
