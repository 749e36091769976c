/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: what becomes of flows that a rule's share took, and of those that it left.
 *
 * Only policies with such rules measure anything: at establishment, when our FIN is
 * acknowledged, and at the end. Nothing runs between.
 *
 * A flow without its rule's settings says nothing of the rule. So refusals are noted, and
 * options that last are read at establishment and at the end.
 */
#ifndef THALWEG_POLICY_TRIAL_H
#define THALWEG_POLICY_TRIAL_H

#include "policy_apply.h"

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

/* Adds the option of one of a flow's operations to a hash; what cannot be read adds nothing. */
VERIFIED_ONCE __u32 hash_option(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
				__u32 place, __u32 hash)
{
	__u64 value[THALWEG_POLICY_NAME / 8] = {};
	struct thalweg_policy_op *op;
	int size;

	if (!flow || place >= THALWEG_POLICY_MAX_OPS)
		return hash;
	op = &flow->ops[place];
	size = op->kind == THALWEG_OP_SET_TEXT ? sizeof(value) : sizeof(int);
	if (bpf_getsockopt(ops, op->level, op->name, value, size))
		return hash;
	/* ECN's bits are TCP's own. */
	if (op->level == SOL_IP || op->level == SOL_IPV6)
		value[0] &= ~3ull;
	return draw_of((value[0] ^ hash) * 31 + value[1] + place);
}

/* Hash of what a flow has of its rule's lasting settings. */
static __noinline __u32 hash_settings(struct bpf_sock_ops *ops, __u32 rule)
{
	struct thalweg_policy_flow *flow = bpf_map_lookup_elem(&actions, &rule);
	__u32 i, hash = 0;

	if (!flow)
		return 0;
	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++)
		if (flow->lasting & 1u << i)
			hash = hash_option(ops, flow, i, hash);
	return hash;
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
	trial->acked_ns = 0;
	trial->start_bytes = tp->bytes_acked;
	trial->start_busy_ticks = busy_ticks(sk);
	trial->handshake_rtt_us = tp->srtt_us >> 3;
	trial->settings = hash_settings(ops, trial->rule);
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		trial->flags |= THALWEG_OUTCOME_PASSIVE;
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
	if (!trial || !trial->generation || !tp)
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
	if (trial->generation == load_head()->generation &&
	    trial->settings != hash_settings(ops, trial->rule))
		outcome->flags |= THALWEG_OUTCOME_OVERRIDDEN;
	measure(sk, tp, trial, outcome);
	bpf_ringbuf_submit(outcome, BPF_RB_NO_WAKEUP);
	bpf_sk_storage_delete(&trials, sk);
	return 0;
}

#endif
