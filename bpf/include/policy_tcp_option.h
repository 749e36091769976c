/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: the experimental TCP option of the handshake, written and read.
 */
#ifndef THALWEG_POLICY_TCP_OPTION_H
#define THALWEG_POLICY_TCP_OPTION_H

#include "policy_apply.h"

/* Reads the peer's option from the SYN or the SYN-ACK. 1: read, 0: there is none. */
static __always_inline int read_option(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	__u8 option[THALWEG_OPTION_LENGTH] = { THALWEG_OPTION_KIND, 4, THALWEG_OPTION_MAGIC >> 8,
					       THALWEG_OPTION_MAGIC & 0xff };
	__u64 from = ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? BPF_LOAD_HDR_OPT_TCP_SYN : 0;

	if (bpf_load_hdr_opt(ops, option, sizeof(option), from) != sizeof(option))
		return 0;
	flow->received = (__u32)option[4] << 24 | option[5] << 16 | option[6] << 8 | option[7];
	flow->has_received = 1;
	return 1;
}

/*
 * The flow whose SYN or SYN-ACK is being written, if its rule sends the option. Later segments
 * come here as well: the flag stays.
 */
static __always_inline struct thalweg_policy_flow *sending(struct bpf_sock_ops *ops)
{
	__u32 direction = ops->is_fullsock ? THALWEG_RULE_ACTIVE : THALWEG_RULE_PASSIVE;
	struct thalweg_policy_flow *flow;

	if (ops->is_fullsock && ops->state != BPF_TCP_SYN_SENT)
		return 0;
	flow = handshake_flow(ops, bpf_get_socket_cookie(ops), direction);
	return flow && flow->flags & THALWEG_FLOW_SENDS ? flow : 0;
}

static __always_inline void count_option(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
					 int error)
{
	struct thalweg_policy_counters *count = counters_of(flow);
	int place = op_of(flow, THALWEG_OP_SEND_OPTION);

	if (place < 0)
		place = op_of(flow, THALWEG_OP_SEND_OPTION_CC);
	if (error)
		count_failure(flow, place,
			      ops->is_fullsock ? THALWEG_STAGE_CONNECT : THALWEG_STAGE_ASKED,
			      error);
	if (count)
		__sync_fetch_and_add(error ? &count->failed : &count->done, 1);
}

/*
 * How often the SYN or SYN-ACK was sent with the option before. Firewalls drop segments with
 * options that they do not know: only the first has it.
 */
static __always_inline __u32 times_sent(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_handshake *slot;

	if (ops->is_fullsock)
		return ops->total_retrans;
	slot = handshake_of(bpf_get_socket_cookie(ops), THALWEG_RULE_PASSIVE);
	if (!slot)
		return 0;
	/* For the verifier: no arithmetic before the check. */
	barrier_var(slot);
	return slot->flow.sent++;
}

static __always_inline void reserve_option(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow;
	__u32 sent;
	int error;

	if (ops->args[0] == BPF_WRITE_HDR_TCP_CURRENT_MSS)
		return;
	flow = sending(ops);
	if (!flow)
		return;
	sent = times_sent(ops);
	if (sent > 1)
		return;
	error = sent ? -ETIMEDOUT : bpf_reserve_hdr_opt(ops, THALWEG_OPTION_LENGTH, 0);
	if (error)
		count_option(ops, flow, error);
}

/* FNV-1a of the name of the congestion control in use; 0 if it is not known yet. */
static __always_inline __u32 hash_of_cc(struct bpf_sock_ops *ops)
{
	char name[THALWEG_POLICY_NAME] = {};
	__u32 i, hash = 2166136261u;

	if (!ops->is_fullsock || bpf_getsockopt(ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	for (i = 0; i < sizeof(name); i++) {
		if (!name[i])
			break;
		hash = (hash ^ (__u8)name[i]) * 16777619u;
	}
	return hash;
}

static __always_inline void write_option(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow = sending(ops);
	__u8 option[THALWEG_OPTION_LENGTH] = {};
	__u32 value;
	int place;

	if (!flow)
		return;
	place = op_of(flow, THALWEG_OP_SEND_OPTION);
	if (place >= 0 && place < THALWEG_POLICY_MAX_OPS) {
		value = flow->ops[place].value;
	} else {
		place = op_of(flow, THALWEG_OP_SEND_OPTION_CC);
		value = hash_of_cc(ops);
	}
	option[0] = THALWEG_OPTION_KIND;
	option[1] = THALWEG_OPTION_LENGTH;
	option[2] = THALWEG_OPTION_MAGIC >> 8;
	option[3] = THALWEG_OPTION_MAGIC & 0xff;
	option[4] = value >> 24;
	option[5] = value >> 16;
	option[6] = value >> 8;
	option[7] = value;
	count_option(ops, flow, bpf_store_hdr_opt(ops, option, sizeof(option), 0));
}

#endif
