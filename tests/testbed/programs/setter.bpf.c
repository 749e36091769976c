// SPDX-License-Identifier: GPL-2.0-only
/*
 * setter: a sockops program that sets options after the learner. AT_ESTABLISHED: reno at once;
 * AT_RTT: reno with the first RTT sample; WINDOW: an initial window of 40 segments at once.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define IPPROTO_TCP 6
#define TCP_CONGESTION 13

static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) =
	(void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*bpf_setsockopt)(void *ops, int level, int name, void *value, int bytes) =
	(void *)BPF_FUNC_setsockopt;

char LICENSE[] SEC("license") = "GPL";

static inline void set_reno(struct bpf_sock_ops *ops)
{
	char reno[] = "reno";

	bpf_setsockopt(ops, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno));
}

SEC("sockops")
int setter(struct bpf_sock_ops *ops)
{
	int window = 40;

	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	    ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
#ifdef AT_ESTABLISHED
		set_reno(ops);
#endif
#ifdef AT_RTT
		bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_RTT_CB_FLAG);
#endif
#ifdef WINDOW
		bpf_setsockopt(ops, IPPROTO_TCP, TCP_BPF_IW, &window, sizeof(window));
#endif
	}
#ifdef AT_RTT
	if (ops->op == BPF_SOCK_OPS_RTT_CB)
		set_reno(ops);
#endif
	return 1;
}
