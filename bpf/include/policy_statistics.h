/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: events with the statistics of a flow.
 */
#ifndef THALWEG_POLICY_STATISTICS_H
#define THALWEG_POLICY_STATISTICS_H

#include "policy_handshake.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

/* Sends the flow's statistics, unless it did so less than `interval_us` ago. */
static __noinline int tell(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
			   __u32 interval_us)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 remote[4], local[4];
	struct thalweg_policy_event *event;
	struct bpf_sock *sk = ops->sk;
	struct bpf_tcp_sock *tp;

	if (!flow || !sk)
		return 0;
	if (flow->told_ns && now - flow->told_ns < interval_us * 1000ull)
		return 0;
	tp = bpf_tcp_sock(sk);
	if (!tp || !addresses(ops, remote, local))
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		COUNT_MISSED(statistics);
		return 0;
	}
	flow->told_ns = now;
	event->time_ns = now;
	event->connection = bpf_get_socket_cookie(ops);
	__builtin_memcpy(event->local, local, sizeof(local));
	__builtin_memcpy(event->remote, remote, sizeof(remote));
	event->local_port = ops->local_port;
	event->remote_port = bpf_ntohl(ops->remote_port);
	event->rule = flow->rule;
	event->generation = flow->generation;
	event->bytes_acked = tp->bytes_acked;
	event->bytes_received = tp->bytes_received;
	event->delivered = tp->delivered;
	event->delivered_ce = tp->delivered_ce;
	event->retrans = tp->total_retrans;
	event->dsack_dups = tp->dsack_dups;
	event->srtt_us = tp->srtt_us >> 3;
	event->min_rtt_us = tp->rtt_min;
	event->snd_cwnd = tp->snd_cwnd;
	event->snd_ssthresh = tp->snd_ssthresh;
	event->received = flow->received;
	event->has_received = flow->has_received;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

#endif
