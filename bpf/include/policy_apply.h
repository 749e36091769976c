/* SPDX-License-Identifier: GPL-2.0-only */
/* Policies: the operations of the sockops program on a flow. */
#ifndef THALWEG_POLICY_APPLY_H
#define THALWEG_POLICY_APPLY_H

#include "policy_handshake.h"
#include "policy_statistics.h"

/*
 * A global function is verified by itself, not at each call. Without the kernel's BTF the
 * verifier knows no context in one.
 */
#ifdef THALWEG_KERNEL_BTF
#define VERIFIED_ONCE __noinline
#else
#define VERIFIED_ONCE static __noinline
#endif

/* Mask of all arms. */
#define ANY_ARM ((1u << THALWEG_MAX_ARMS) - 1)

/* From now on the learner does not touch the socket's congestion control. */
static __always_inline void own(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	__u32 *arms;

	if (!sk)
		return;
	arms = bpf_sk_storage_get(&owned, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (arms)
		*arms = THALWEG_OWNED_BY_POLICY | (*arms & THALWEG_OWNED_WINDOW);
}

/* From now on the learner does not touch the socket's initial window. */
static __always_inline void own_window(struct bpf_sock_ops *ops)
{
	__u32 any = THALWEG_OWNED_BY_POLICY | ANY_ARM, *arms;
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return;
	arms = bpf_sk_storage_get(&owned, sk, &any, BPF_SK_STORAGE_GET_F_CREATE);
	if (arms)
		*arms |= THALWEG_OWNED_WINDOW;
}

/* Whether a socket without a mark got its congestion control before the programs were attached. */
static __always_inline int is_chosen_before(struct bpf_sock *sk)
{
#ifdef THALWEG_KERNEL_BTF
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	return tp && is_chosen(tp);
#else
	return 0;
#endif
}

/*
 * Restricts the learner to a set of arms for the socket, unless the application has chosen.
 * Returns whether it did.
 */
static __always_inline int learn_from(struct bpf_sock_ops *ops, __u32 set)
{
	struct bpf_sock *sk = ops->sk;
	__u32 *from, mask;

	/* 0: the rule's own congestion control stays, refused or not. */
	from = set ? bpf_map_lookup_elem(&arm_sets, &set) : 0;
	if (!from || !sk)
		return 0;
	mask = *from;
	from = bpf_sk_storage_get(&owned, sk, 0, 0);
	if (from ? is_applications(*from) : is_chosen_before(sk))
		return 0;
	from = bpf_sk_storage_get(&owned, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!from)
		return 0;
	*from = mask | THALWEG_OWNED_BY_POLICY | (*from & THALWEG_OWNED_WINDOW);
	return 1;
}

static __always_inline int is_ipv4(struct bpf_sock_ops *ops)
{
	__u32 remote[4], local[4];

	return addresses(ops, remote, local) == THALWEG_RULE_IPV4;
}

/*
 * Sets the type of service. The kernel derives the priority from it, unless the rule
 * sets the priority.
 */
static __always_inline int set_tos(struct bpf_sock_ops *ops, const struct thalweg_policy_flow *flow,
				   int tos)
{
	struct bpf_sock *sk = ops->sk;
	int priority, error;

	if (!sk)
		return -EINVAL;
	priority = sk->priority;
	error = bpf_setsockopt(ops, SOL_IP, IP_TOS, &tos, sizeof(tos));
	if (!error && flow->flags & THALWEG_FLOW_PRIORITY)
		error = bpf_setsockopt(ops, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	return error;
}

/*
 * Sets the largest window. The first flight would exceed it: when the kernel calls, its
 * initial window is already set.
 */
static __always_inline int set_clamp(struct bpf_sock_ops *ops, int clamp)
{
	int error = bpf_setsockopt(ops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp));

	/* Refused once data has been sent: then the window shrinks by itself. */
	if (!error && ops->snd_cwnd > (__u32)clamp)
		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &clamp, sizeof(clamp));
	if (!error)
		own_window(ops);
	return error;
}

static __always_inline int set_int(struct bpf_sock_ops *ops, const struct thalweg_policy_flow *flow,
				   const struct thalweg_policy_op *op)
{
	int value = op->value, error;

	if (op->level == SOL_IP && op->name == IP_TOS)
		return set_tos(ops, flow, value);
	if (op->level == SOL_TCP && op->name == TCP_BPF_SNDCWND_CLAMP)
		return set_clamp(ops, value);
	error = bpf_setsockopt(ops, op->level, op->name, &value, sizeof(value));
	if (!error && op->level == SOL_TCP && op->name == TCP_BPF_IW)
		own_window(ops);
	return error;
}

static __always_inline int set_text(struct bpf_sock_ops *ops, const struct thalweg_policy_op *op)
{
	char text[THALWEG_POLICY_NAME];
	struct thalweg_policy_text *from;
	__u32 index = op->text;
	int error;

	from = bpf_map_lookup_elem(&texts, &index);
	if (!from)
		return -1;
	__builtin_memcpy(text, from->text, sizeof(text));
	error = bpf_setsockopt(ops, op->level, op->name, text, sizeof(text));
	if (!error && op->level == SOL_TCP && op->name == TCP_CONGESTION)
		own(ops);
	return error;
}

/* Sets the type of service (traffic class) of the peer's SYN. */
static __always_inline int reflect_tos(struct bpf_sock_ops *ops,
				       const struct thalweg_policy_flow *flow)
{
	__u8 ip[4] = {};
	int tos, error;

	/* The rest does not fit, and is not needed. */
	error = bpf_getsockopt(ops, SOL_TCP, TCP_BPF_SYN_IP, ip, sizeof(ip));
	if (error < 0 && error != -ENOSPC)
		return error;
	if (ip[0] >> 4 == 4)
		return set_tos(ops, flow, ip[1]);
	tos = (ip[0] << 4 | ip[1] >> 4) & 0xff;
	return bpf_setsockopt(ops, SOL_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
}

/* Notes that the kernel refused a setting of a flow, for its trial, which may be yet to begin. */
static __noinline int note_refused(struct bpf_sock_ops *ops, __u32 stage)
{
	struct thalweg_policy_trial *trial;
	struct bpf_sock *sk = ops->sk;

	if (!sk || stage == THALWEG_STAGE_LISTEN || !(load_head()->flags & THALWEG_POLICY_TRIALS))
		return 0;
	trial = bpf_sk_storage_get(&trials, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (trial)
		trial->flags |= THALWEG_OUTCOME_OVERRIDDEN;
	return 0;
}

/* Carries out one operation of a flow, and counts the result. */
VERIFIED_ONCE int carry_out_one(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
				__u32 place, __u32 stage)
{
	struct thalweg_policy_counters *count;
	struct thalweg_policy_op *op;
	int error;

	if (!flow || place >= THALWEG_POLICY_MAX_OPS)
		return 0;
	op = &flow->ops[place];
	if (!(op->stages & 1u << (stage & 7)))
		return 0;
	/* Carried out before the SYN. */
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op->stages & 1u << THALWEG_STAGE_CONNECT)
		return 0;
	switch (op->kind) {
	case THALWEG_OP_SET_INT:
		/* Two operations set a traffic class, one per family. */
		if ((op->level == SOL_IP || op->level == SOL_IPV6) &&
		    op->level == (is_ipv4(ops) ? SOL_IPV6 : SOL_IP))
			return 0;
		/* Later stages set what they say. */
		if (stage <= THALWEG_STAGE_ESTABLISHED && is_stricter(ops, ops->sk, op))
			return 0;
		error = set_int(ops, flow, op);
		if (!error)
			remember_cap(ops->sk, op);
		break;
	case THALWEG_OP_SET_TEXT:
		error = set_text(ops, op);
		break;
	case THALWEG_OP_REFLECT_TOS:
		if (ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
			return 0;
		error = reflect_tos(ops, flow);
		break;
	case THALWEG_OP_LEARN_FROM:
		if (!learn_from(ops, op->value))
			return 0;
		error = 0;
		break;
	case THALWEG_OP_STATISTICS:
		return tell(ops, flow, op->value);
	default:
		return 0;
	}
	if (error) {
		count_failure(flow, place, stage, error);
		note_refused(ops, stage);
	}
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(error ? &count->failed : &count->done, 1);
	return 0;
}

/* Carries out a flow's operations for a stage. */
static __noinline int carry_out(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
				__u32 stage)
{
	__u32 i;

	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++) {
		if (i >= flow->count)
			break;
		carry_out_one(ops, flow, i, stage);
	}
	return 0;
}

/*
 * Requests callbacks. They are never released: by then another program may rely on them.
 */
static __always_inline void callbacks(struct bpf_sock_ops *ops, int on)
{
	int have = ops->bpf_sock_ops_cb_flags, want = have | on;

	if (want != have)
		bpf_sock_ops_cb_flags_set(ops, want);
}

#endif
