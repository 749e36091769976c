// SPDX-License-Identifier: GPL-2.0-only
/*
 * idle: gives connections the congestion control of idle_cubic.bpf.c in the place of cubic (sockops).
 * The two share the state of connections.
 *
 * Connections with another congestion control, or one that an application or a policy chose, are left
 * alone. It needs the kernel's BTF.
 */
#define THALWEG_KERNEL_BTF

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_beside.h"
#include "learn_steps.h"

char LICENSE[] SEC("license") = "GPL";

#include "idle_maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_idle_settings);
} idle_settings SEC(".maps");

/* A connection is established, and the learner has chosen. */
static __noinline int establish(struct bpf_sock_ops *ops)
{
	struct thalweg_idle_settings *settings;
	struct thalweg_idle_flow *flow;
	struct request request = {};
	struct context c = { .request = &request };
	__u32 default_arm, zero = 0;

	if (!find_sock(&c, ops) || !find_tcp(&c) || current_name(c.tcp)[0] != CUBIC)
		return 0;
	if (!find_key(&c) || is_outside(&c, &default_arm) || app_owned(&c))
		return 0;
	if (is_routed_home(c.tcp))
		return 0;
	settings = bpf_map_lookup_elem(&idle_settings, &zero);
	flow = bpf_sk_storage_get(&idle_flows, c.sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!settings || !flow || !network_key(&c, &flow->report.key))
		return 0;
	flow->cookie = bpf_get_socket_cookie(ops);
	return bpf_setsockopt(ops, SOL_TCP, TCP_CONGESTION, settings->name, sizeof(settings->name));
}

SEC("sockops")
int idle_sockops(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	    ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		establish(ops);
	return 1;
}
