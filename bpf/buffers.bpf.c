// SPDX-License-Identifier: GPL-2.0-only
/*
 * buffers: bounds connections to what the limits of buffers permitted before the agent raised them
 * (sockops): a share of all, so that there is something to compare with, and those to networks where
 * larger buffers brought nothing but a longer queue.
 *
 * The receive window is clamped, and the congestion window: a buffer itself cannot be bounded without
 * an end of its growth. It needs the kernel's BTF.
 */
#define THALWEG_KERNEL_BTF

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_beside.h"
#include "learn_sample.h"

char LICENSE[] SEC("license") = "GPL";

#define TCP_WINDOW_CLAMP 10

/* Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_BUFFERS_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_host_key);
	__type(value, struct thalweg_buffers_bounds);
} buffer_bounds SEC(".maps");

/* Connections of namespaces with raised limits: enum thalweg_bounded. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} buffer_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, THALWEG_BUFFERS_RING);
} buffer_reports SEC(".maps");

/* Reports that the ring had no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} buffer_lost SEC(".maps");

/* Bounds of the connection's network, or of its namespace; NULL if the limits there are not raised. */
static __always_inline struct thalweg_buffers_bounds *bounds_of(struct context *c)
{
	struct thalweg_host_key key = { .level = THALWEG_LEVEL_PREFIX };
	struct thalweg_buffers_bounds *found;

	key.netns = netns_of(c->ops);
	found = bpf_map_lookup_elem(&buffer_bounds, &key);
	if (!found || bpf_ktime_get_ns() >= found->until_ns || !network_key(c, &key))
		return 0;
	return bpf_map_lookup_elem(&buffer_bounds, &key) ?: found;
}

/* Bounds both windows; the connection's congestion control is not scored then. */
static __always_inline void bound_windows(struct context *c,
					  const struct thalweg_buffers_bounds *bounds)
{
	__u32 mss = c->tcp->mss_cache;
	int receive = bounds->receive, segments;

	if (!mss)
		return;
	segments = bounds->send / mss;
	bpf_setsockopt(c->ops, SOL_TCP, TCP_WINDOW_CLAMP, &receive, sizeof(receive));
	bpf_setsockopt(c->ops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &segments, sizeof(segments));
	leave_unscored(c);
}

/* A connection is established. What a policy, a learned clamp or a route bounds stays. */
static __noinline int establish(struct bpf_sock_ops *ops)
{
	struct thalweg_buffers_bounds *bounds;
	struct request request = {};
	struct context c = { .request = &request };
	__u32 default_arm, drawn;

	if (!find_sock(&c, ops))
		return 0;
	bounds = bounds_of(&c);
	if (!bounds || !find_tcp(&c) || !find_key(&c) || is_outside(&c, &default_arm))
		return 0;
	if (owned_window(&c) || !is_free(c.tcp, 0) || is_routed_home(c.tcp))
		return 0;
	drawn = is_in_share(bpf_get_socket_cookie(ops), bounds->salt, bounds->share_q16);
	if (drawn && bounds->share_q16 >= THALWEG_ONE_Q16)
		drawn = THALWEG_BOUNDED_WITH_ALL;
	if (!bpf_sk_storage_get(&buffer_groups, c.sk, &drawn, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	if (drawn)
		bound_windows(&c, bounds);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 0;
}

/* A connection is over. */
static __noinline int end(struct bpf_sock_ops *ops)
{
	struct thalweg_buffers_report report = {};
	struct chronographs now = {};
	struct bpf_tcp_sock *tp;
	struct context c = {};
	__u32 *group;

	if (!find_sock(&c, ops))
		return 0;
	group = bpf_sk_storage_get(&buffer_groups, c.sk, 0, 0);
	tp = bpf_tcp_sock(c.sk);
	if (!group || !tp || !tp->data_segs_out || !find_tcp(&c) || !network_key(&c, &report.key))
		return 0;
	if (!read_chronographs(&c, &now))
		return 0;
	report.bytes = tp->bytes_acked;
	report.busy_us = ticks_us(&c, now.busy + 1);
	report.segs_out = tp->data_segs_out;
	report.retrans = tp->total_retrans;
	report.min_rtt_us = tp->rtt_min == THALWEG_U32_MAX ? 0 : tp->rtt_min;
	report.srtt_us = tp->srtt_us >> 3;
	report.bounded = *group;
	if (bpf_ringbuf_output(&buffer_reports, &report, sizeof(report), BPF_RB_NO_WAKEUP))
		COUNT_LOST(buffer_lost);
	return 0;
}

SEC("sockops")
int buffers_sockops(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		establish(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ops->args[1] == BPF_TCP_CLOSE)
			end(ops);
		break;
	}
	return 1;
}
