// SPDX-License-Identifier: GPL-2.0-only
/*
 * policy_mark: tells policy.bpf.c which named cgroups contain a socket.
 *
 * A sockops program cannot query a socket's cgroup. So each cgroup that a rule names
 * gets this program, with a bit of its own. The kernel runs the programs of a cgroup
 * before those of its ancestors. So in any event the marks are there when the main
 * program runs, which is attached further up. Marks are stored by cookie on their CPU,
 * since a soft interrupt or another task may run programs of another socket in between.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "thalweg_policy_abi.h"

char LICENSE[] SEC("license") = "GPL";

/* The cgroup's bit. A section of its own: written whole before load. */
const volatile __u32 cgroup_bit SEC(".rodata.mark") = 0;

/* Shared with the main program of the same policy. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MARKS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_mark);
} marks SEC(".maps");

SEC("sockops")
int policy_mark(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_mark *mark;
	__u64 cookie;
	__u32 slot;

	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
	case BPF_SOCK_OPS_TIMEOUT_INIT:
	case BPF_SOCK_OPS_RWND_INIT:
	case BPF_SOCK_OPS_NEEDS_ECN:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		break;
	default:
		return 1;
	}
	cookie = bpf_get_socket_cookie(ops);
	slot = cookie & (THALWEG_POLICY_MARKS - 1);
	mark = bpf_map_lookup_elem(&marks, &slot);
	if (!mark)
		return 1;
	/* A child's program may have run for this very event. */
	if (mark->cookie != cookie || mark->op != ops->op)
		mark->cgroups = 0;
	mark->cookie = cookie;
	mark->op = ops->op;
	mark->cgroups |= cgroup_bit;
	return 1;
}
