// SPDX-License-Identifier: GPL-2.0-only
/*
 * policy: sets TCP parameters of flows by the rules of a compiled policy (sockops;
 * tables in thalweg_policy_abi.h).
 *
 * It covers the published TCP-BPF samples, from a table instead of one program per
 * effect. Departures from them:
 *  - flags of callbacks, and answers to the kernel's queries, are left to other programs
 *    unless a rule sets them: nothing is overwritten;
 *  - a flow keeps its rule while policies change;
 *  - failures are counted by operation, stage and errno.
 *
 * Nothing here runs per packet unless a rule requests it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "policy_apply.h"
#include "policy_handshake.h"
#include "policy_tcp_option.h"
#include "policy_trial.h"

char LICENSE[] SEC("license") = "GPL";

/* Stages of connections: all but a listener's. */
#define CONNECTIONS (0xffu & ~(1u << THALWEG_STAGE_LISTEN))

static __always_inline void connecting(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;

	/* Of an earlier connection of the socket. */
	if (sk && load_head()->flags & THALWEG_POLICY_TRIALS)
		bpf_sk_storage_delete(&trials, sk);
	if (!(load_head()->stages & EARLY))
		return;
	flow = handshake_flow(ops, bpf_get_socket_cookie(ops), THALWEG_RULE_ACTIVE);
	/* For failed(). */
	callbacks(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
	if (!flow)
		return;
	if (flow->flags & THALWEG_FLOW_NEVER) {
		let_alone(sk);
		return;
	}
	carry_out(ops, flow, THALWEG_STAGE_CONNECT);
	if (flow->flags & THALWEG_FLOW_SENDS)
		callbacks(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void listening(struct bpf_sock_ops *ops)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_flow *flow;
	int one = 1, kept = 0;
	__u32 rule;

	/*
	 * Any listener may get a connection whose rule needs these. An application may have asked
	 * for the headers by itself, and for more of them.
	 */
	if (h->flags & THALWEG_POLICY_SAVE_SYN &&
	    (bpf_getsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &kept, sizeof(kept)) || !kept))
		bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &one, sizeof(one));
	if (h->flags & THALWEG_POLICY_OPTIONS)
		callbacks(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	if (!(h->stages & 1u << THALWEG_STAGE_LISTEN))
		return;
	rule = look_up(ops, THALWEG_RULE_PASSIVE);
	flow = bpf_map_lookup_elem(&actions, &rule);
	if (flow && !(flow->flags & THALWEG_FLOW_NEVER))
		carry_out(ops, flow, THALWEG_STAGE_LISTEN);
}

/* Answers a query of the kernel if the flow's rule does. */
static __always_inline void asked(struct bpf_sock_ops *ops, __u32 kind)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_counters *count;
	struct thalweg_policy_flow *flow = 0;
	__u32 tick = h->jiffy_us, direction, rule;
	struct bpf_sock *sk = ops->sk;
	__u64 cookie, value;
	int place;

	if (!(h->stages & 1u << THALWEG_STAGE_ASKED))
		return;
	direction = sk ? THALWEG_RULE_ACTIVE : THALWEG_RULE_PASSIVE;
	cookie = bpf_get_socket_cookie(ops);
	if (kind == THALWEG_OP_BASE_RTT) {
		/* Congestion controls query when they start: after the handshake, too. */
		if (sk)
			flow = bpf_sk_storage_get(&flows, sk, 0, 0);
		if (!flow) {
			struct thalweg_policy_handshake *slot;

			slot = handshake_of(cookie, direction);
			if (!slot)
				return;
			/* For the verifier: no arithmetic before the check. */
			barrier_var(slot);
			flow = &slot->flow;
		}
	} else {
		flow = handshake_flow(ops, cookie, direction);
		/*
		 * The kernel queries ECN before the call at a flow's start (for a SYN that offers
		 * it), and again with each SYN-ACK. An answer without a record is right for the
		 * former. Otherwise it marks at most a SYN-ACK of an older flow.
		 */
		if (!flow && !sk && kind == THALWEG_OP_NEEDS_ECN && began_before() &&
		    !probe_of(cookie, direction)) {
			rule = look_up(ops, direction);
			flow = bpf_map_lookup_elem(&actions, &rule);
		}
	}
	if (!flow)
		return;
	place = op_of(flow, kind);
	if (place < 0 || place >= THALWEG_POLICY_MAX_OPS)
		return;
	value = flow->ops[place].value;
	if (kind == THALWEG_OP_TIMEOUT_INIT && tick)
		value = (value + tick - 1) / tick;
	ops->reply = value;
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(&count->asked, 1);
}

/* Keeps a flow's operations beyond its handshake, and requests its callbacks. */
static __noinline int keep(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	struct thalweg_policy_flow *kept;
	struct bpf_sock *sk = ops->sk;

	if (!flow || !sk)
		return 0;
	kept = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return 0;
	*kept = *flow;
	callbacks(ops, callbacks_of(flow));
	return 1;
}

/* The stage ESTABLISHED of a flow with a rule. */
static __noinline int settle(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	if (!flow)
		return 0;
	if (flow->flags & THALWEG_FLOW_NEVER) {
		let_alone(ops->sk);
		return 0;
	}
	if (flow->flags & THALWEG_FLOW_KEEPS)
		keep(ops, flow);
	carry_out(ops, flow, THALWEG_STAGE_ESTABLISHED);
	return 1;
}

/*
 * The slot of a flow whose handshake is over, marked so: until the caller frees it,
 * nobody else takes it.
 */
static __always_inline struct thalweg_policy_handshake *finish(struct bpf_sock_ops *ops,
							       __u32 direction)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct thalweg_policy_handshake *slot;

	slot = handshake_of(cookie, direction);
	/* It may be a simultaneous open. */
	if (!slot && direction == THALWEG_RULE_PASSIVE)
		slot = handshake_of(cookie, THALWEG_RULE_ACTIVE);
	if (!slot ||
	    __sync_val_compare_and_swap(&slot->cookie, cookie, THALWEG_POLICY_OVER) != cookie)
		return 0;
	return slot;
}

static __always_inline void established(struct bpf_sock_ops *ops, __u32 direction)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_handshake *slot = 0;
	struct thalweg_policy_counters *count;
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;
	__u32 rule, reads = 0, early;
	__u64 found = ~0ull;

	if (!sk)
		return;
	flow = 0;
	if (h->flags & THALWEG_POLICY_REMEMBERS) {
		slot = finish(ops, direction);
		if (slot) {
			barrier_var(slot);
			flow = &slot->flow;
		} else {
			flow = stored_opening(ops);
		}
	}
	if (flow) {
		if (h->flags & THALWEG_POLICY_TRIALS && flow->generation == h->generation) {
			/* The draw is the same again; a flow whose conditions changed is in no trial. */
			found = look_up(ops, direction);
			if ((__u32)found != flow->rule)
				found = ~0ull;
		}
		if (flow->rule != THALWEG_POLICY_NONE) {
			flow->flags &= ~THALWEG_FLOW_OPENING;
			reads = flow->flags & THALWEG_FLOW_READS;
			settle(ops, flow);
		}
		if (slot)
			slot->cookie = 0;
		else if (!(flow->flags & THALWEG_FLOW_KEEPS))
			bpf_sk_storage_delete(&flows, sk);
	} else {
		if (!(h->stages & CONNECTIONS))
			return;
		early = h->stages & early_stages(direction);
		/* Then it is remembered, unless it started before the policy. */
		if (early && may_have_begun_before(ops, direction))
			return;
		found = look_up(ops, direction);
		rule = found;
		/* Otherwise it was counted at its start. */
		if (!early)
			count_matched(rule);
		flow = bpf_map_lookup_elem(&actions, &rule);
		if (flow) {
			reads = flow->flags & THALWEG_FLOW_READS;
			settle(ops, flow);
		}
	}
	if (h->flags & THALWEG_POLICY_TRIALS)
		begin_trial(ops, found);
	if (!reads)
		return;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!flow || !read_option(ops, flow))
		return;
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(&count->done, 1);
}

static __always_inline void later(struct bpf_sock_ops *ops, __u32 stage)
{
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (flow && flow->stages & 1u << stage)
		carry_out(ops, flow, stage);
}

/* A connection of this machine that was not established: its slot is free at once. */
static __always_inline void failed(struct bpf_sock_ops *ops)
{
	__u64 cookie = bpf_get_socket_cookie(ops);
	struct thalweg_policy_handshake *slot;
	struct bpf_sock *sk = ops->sk;

	if (!sk || !(load_head()->flags & THALWEG_POLICY_REMEMBERS))
		return;
	slot = handshake_of(cookie, THALWEG_RULE_ACTIVE);
	if (slot)
		__sync_val_compare_and_swap(&slot->cookie, cookie, 0);
	else if (stored_opening(ops))
		bpf_sk_storage_delete(&flows, sk);
}

static __always_inline void changed_state(struct bpf_sock_ops *ops)
{
	__u32 old = ops->args[0], state = ops->args[1];

	/* From SYN_SENT to SYN_RECV: a simultaneous open. */
	if ((old == BPF_TCP_SYN_SENT && state == BPF_TCP_CLOSE) ||
	    (old == BPF_TCP_SYN_RECV && state != BPF_TCP_ESTABLISHED))
		failed(ops);
	else if (state == BPF_TCP_CLOSE)
		later(ops, THALWEG_STAGE_CLOSE);
	if (load_head()->flags & THALWEG_POLICY_TRIALS)
		follow_trial(ops);
}

SEC("sockops")
int policy_sockops(struct bpf_sock_ops *ops)
{
	__u32 kind = 0, direction = 0;

	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connecting(ops);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listening(ops);
		break;
	case BPF_SOCK_OPS_TIMEOUT_INIT:
		kind = THALWEG_UNKNOWN(THALWEG_OP_TIMEOUT_INIT);
		break;
	case BPF_SOCK_OPS_RWND_INIT:
		kind = THALWEG_UNKNOWN(THALWEG_OP_RWND_INIT);
		break;
	case BPF_SOCK_OPS_NEEDS_ECN:
		kind = THALWEG_UNKNOWN(THALWEG_OP_NEEDS_ECN);
		break;
	case BPF_SOCK_OPS_BASE_RTT:
		kind = THALWEG_UNKNOWN(THALWEG_OP_BASE_RTT);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		direction = THALWEG_UNKNOWN(THALWEG_RULE_ACTIVE);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		direction = THALWEG_UNKNOWN(THALWEG_RULE_PASSIVE);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		later(ops, THALWEG_STAGE_RETRANSMIT);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		later(ops, THALWEG_STAGE_RTO);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		later(ops, THALWEG_STAGE_RTT);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		changed_state(ops);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve_option(ops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ops);
		break;
	}
	/* Once each, or the verifier walks through them for every case. */
	if (kind)
		asked(ops, kind);
	if (direction)
		established(ops, direction);
	return 1;
}

/* For tests: find() on a query that comes as packet data. Not loaded otherwise. */
SEC("?tc")
int policy_find(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct query q;

	if (data + sizeof(q) > end)
		return -2;
	__builtin_memcpy(&q, data, sizeof(q));
	return find(&q);
}
