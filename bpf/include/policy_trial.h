/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: what becomes of flows that a rule's share took, and of those that it left.
 *
 * Only policies with such rules measure anything: at establishment, when our FIN is
 * acknowledged, and at the end. Nothing runs between.
 */
#ifndef THALWEG_POLICY_TRIAL_H
#define THALWEG_POLICY_TRIAL_H

#include "policy_apply.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_policy_trial);
} trials SEC(".maps");

/* Read by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} outcomes SEC(".maps");

/* Kernel ticks with data outstanding since the start (kernel: tcp_get_info_chrono_stats). */
static __always_inline __u32 busy_ticks(struct bpf_sock *sk)
{
#ifdef THALWEG_KERNEL_BTF
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	__u32 ticks;

	if (!tp)
		return 0;
	ticks = tp->chrono_stat[0] + tp->chrono_stat[1] + tp->chrono_stat[2];
	if (BPF_CORE_READ_BITFIELD(tp, chrono_type))
		ticks += (__u32)bpf_jiffies64() - tp->chrono_start;
	return ticks;
#else
	return 0;
#endif
}

/* Begins to measure an established flow, given the result of its look-up. */
static __noinline int begin_trial(struct bpf_sock_ops *ops, __u64 found)
{
	struct thalweg_policy_trial *trial;
	struct bpf_sock *sk = ops->sk;
	struct bpf_tcp_sock *tp;

	if (found >> 32 == THALWEG_POLICY_NONE || !sk)
		return 0;
	tp = bpf_tcp_sock(sk);
	if (!tp)
		return 0;
	trial = bpf_sk_storage_get(&trials, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!trial)
		return 0;
	trial->generation = load_head()->generation;
	trial->rule = found;
	trial->trial = found >> 32;
	trial->draw = draw_of(bpf_get_socket_cookie(ops));
	trial->start_ns = bpf_ktime_get_ns();
	trial->start_bytes = tp->bytes_acked;
	trial->start_busy_ticks = busy_ticks(sk);
	trial->handshake_rtt_us = tp->srtt_us >> 3;
	trial->flags = ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? THALWEG_OUTCOME_PASSIVE : 0;
	callbacks(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
	return 1;
}

/* Whether a flow that has just reached CLOSE ended by a reset or a time-out. */
static __always_inline int has_failed(const struct bpf_tcp_sock *tp, __u32 old_state)
{
	switch (old_state) {
	case BPF_TCP_FIN_WAIT2:
	case BPF_TCP_CLOSING:
	case BPF_TCP_TIME_WAIT:
	case BPF_TCP_LAST_ACK:
		return tp->icsk_retransmits != 0;
	default:
		return 1;
	}
}

static __always_inline void measure(struct bpf_sock *sk, const struct bpf_tcp_sock *tp,
				    const struct thalweg_policy_trial *trial,
				    struct thalweg_policy_outcome *outcome)
{
	__u64 until_ns = trial->acked_ns ? trial->acked_ns : outcome->time_ns;

	outcome->bytes = tp->bytes_acked - trial->start_bytes;
	outcome->wall_us = (until_ns - trial->start_ns) / 1000;
	outcome->busy_us = outcome->wall_us;
	outcome->segs_out = tp->data_segs_out;
	outcome->retrans = tp->total_retrans;
	outcome->srtt_us = tp->srtt_us >> 3;
	/* All ones until the first measurement. */
	outcome->min_rtt_us = tp->rtt_min == ~0u ? 0 : tp->rtt_min;
	outcome->handshake_rtt_us = trial->handshake_rtt_us;
#ifdef THALWEG_KERNEL_BTF
	if (load_head()->jiffy_us) {
		/* Whole ticks: it may be one short. */
		__u32 ticks = busy_ticks(sk) - trial->start_busy_ticks + 1;

		outcome->busy_us = (__u64)ticks * load_head()->jiffy_us;
		outcome->busy_us = thalweg_min(outcome->busy_us, outcome->wall_us);
		outcome->flags |= THALWEG_OUTCOME_BUSY_TIME;
	}
#endif
}

/* A flow of a trial has changed its state. */
static __noinline int follow_trial(struct bpf_sock_ops *ops)
{
	__u32 old_state = ops->args[0], state = ops->args[1], local[4];
	struct thalweg_policy_outcome *outcome;
	struct thalweg_policy_trial *trial;
	struct bpf_sock *sk = ops->sk;
	struct bpf_tcp_sock *tp;

	if (!sk || (state != BPF_TCP_FIN_WAIT2 && state != BPF_TCP_CLOSE))
		return 0;
	trial = bpf_sk_storage_get(&trials, sk, 0, 0);
	tp = bpf_tcp_sock(sk);
	if (!trial || !tp)
		return 0;
	if (state == BPF_TCP_FIN_WAIT2) {
		trial->acked_ns = bpf_ktime_get_ns();
		return 0;
	}
	/* What sent nothing says nothing. */
	if (!tp->data_segs_out)
		return 0;
	outcome = bpf_ringbuf_reserve(&outcomes, sizeof(*outcome), 0);
	if (!outcome) {
		COUNT_MISSED(outcomes);
		return 0;
	}
	outcome->time_ns = bpf_ktime_get_ns();
	outcome->connection = bpf_get_socket_cookie(ops);
	outcome->netns = bpf_get_netns_cookie(ops);
	addresses(ops, (__u32 *)outcome->remote, local);
	outcome->local_port = ops->local_port;
	outcome->remote_port = bpf_ntohl(ops->remote_port);
	outcome->generation = trial->generation;
	outcome->rule = trial->rule;
	outcome->trial = trial->trial;
	outcome->draw = trial->draw;
	outcome->flags = trial->flags;
	if (has_failed(tp, old_state))
		outcome->flags |= THALWEG_OUTCOME_FAILED;
	measure(sk, tp, trial, outcome);
	bpf_ringbuf_submit(outcome, BPF_RB_NO_WAKEUP);
	bpf_sk_storage_delete(&trials, sk);
	return 0;
}

#endif
