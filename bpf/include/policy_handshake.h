/* SPDX-License-Identifier: GPL-2.0-only */
/* Policies: the rule of a flow in the sockops program, remembered until the handshake is over. */
#ifndef THALWEG_POLICY_HANDSHAKE_H
#define THALWEG_POLICY_HANDSHAKE_H

#include "policy_flow.h"
#include "thalweg_algo.h"

/* Stages before the handshake's end: a flow's operations are remembered from there on. */
#define EARLY (1u << THALWEG_STAGE_CONNECT | 1u << THALWEG_STAGE_ASKED)

/* Marks by the programs of named cgroups (policy_mark.bpf.c) for the current event. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MARKS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_mark);
} marks SEC(".maps");

/*
 * Time (bpf_ktime_get_ns) before which flows without a record began under an earlier
 * policy; 0 if that policy remembered them. User space writes it just before each swap.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} swap SEC(".maps");

/*
 * Flows in their handshake, in an array like learn's. Socket storage and hash maps cost
 * several times as much per connection, and request sockets cannot have socket storage.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * THALWEG_POLICY_HANDSHAKES);
	__type(key, __u32);
	__type(value, struct thalweg_policy_handshake);
} handshakes SEC(".maps");

/* The bits of named cgroups that contain the socket; their programs ran just before. */
static __always_inline __u32 marked(struct bpf_sock_ops *ops)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_mark *mark;
	__u64 cookie;
	__u32 slot;

	if (!(h->flags & THALWEG_POLICY_CGROUPS))
		return 0;
	cookie = bpf_get_socket_cookie(ops);
	slot = cookie & (THALWEG_POLICY_MARKS - 1);
	mark = bpf_map_lookup_elem(&marks, &slot);
	if (!mark || mark->cookie != cookie || mark->op != ops->op)
		return h->cgroups;
	mark->cookie = 0;
	return mark->cgroups | h->cgroups;
}

/* Both addresses, IPv4 mapped; the flag of the family, or 0 if it is not TCP over IP. */
static __always_inline __u32 addresses(struct bpf_sock_ops *ops, __u32 *remote, __u32 *local)
{
	const __u32 mapped = bpf_htonl(0xffff);
	__u32 end, own_end;

	if (ops->family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = mapped;
		remote[3] = ops->remote_ip4;
		local[0] = 0;
		local[1] = 0;
		local[2] = mapped;
		local[3] = ops->local_ip4;
		return THALWEG_RULE_IPV4;
	}
	if (ops->family != AF_INET6)
		return 0;
	remote[0] = ops->remote_ip6[0];
	remote[1] = ops->remote_ip6[1];
	remote[2] = ops->remote_ip6[2];
	remote[3] = ops->remote_ip6[3];
	local[0] = ops->local_ip6[0];
	local[1] = ops->local_ip6[1];
	local[2] = ops->local_ip6[2];
	local[3] = ops->local_ip6[3];
	/* A listener has no peer: its own address shows the family. */
	end = remote[0] | remote[1] | (remote[2] ^ mapped);
	own_end = local[0] | local[1] | (local[2] ^ mapped);
	/* For the verifier: it does not accept a choice between two pointers into the context. */
	barrier_var(own_end);
	if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		end = own_end;
	return end ? THALWEG_RULE_IPV6 : THALWEG_RULE_IPV4;
}

/* Finds the rule of a flow, and its trial: see find. */
static __noinline __u64 look_up(struct bpf_sock_ops *ops, __u32 direction)
{
	const struct thalweg_policy_head *h = load_head();
	struct query q = {};
	__u32 family;

	family = addresses(ops, q.remote, q.local);
	if (!family)
		return ~0ull;
	q.needs = direction | family;
	q.listener = ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB;
	/* remote_port is in network byte order, local_port is not (UAPI). */
	q.remote_port = bpf_ntohl(ops->remote_port);
	q.local_port = ops->local_port;
	if (h->flags & THALWEG_POLICY_NETNS)
		q.netns = bpf_get_netns_cookie(ops);
	if (h->flags & THALWEG_POLICY_SAMPLES)
		q.draw = draw_of(bpf_get_socket_cookie(ops));
	q.cgroups = marked(ops);
	return find(&q);
}

/* A slot for a handshake; there are THALWEG_POLICY_PROBES of them. */
static __always_inline struct thalweg_policy_handshake *handshake_slot(__u64 cookie, __u32 probe,
								       __u32 direction)
{
	__u32 slot = thalweg_place(cookie, probe) & (THALWEG_POLICY_HANDSHAKES - 1);

	if (direction == THALWEG_RULE_PASSIVE)
		slot += THALWEG_POLICY_HANDSHAKES;
	return bpf_map_lookup_elem(&handshakes, &slot);
}

/* The slot of a handshake, from 1; 0 = none. */
__noinline __u32 probe_of(__u64 cookie, __u32 direction)
{
	struct thalweg_policy_handshake *slot;
	__u32 i;

	for (i = 0; i < THALWEG_POLICY_PROBES; i++) {
		slot = handshake_slot(cookie, i, direction);
		if (slot && slot->cookie == cookie)
			return i + 1;
	}
	return 0;
}

static __always_inline struct thalweg_policy_handshake *handshake_of(__u64 cookie, __u32 direction)
{
	__u32 probe = probe_of(cookie, direction);

	return probe ? handshake_slot(cookie, probe - 1, direction) : 0;
}

static __always_inline void fill(struct thalweg_policy_handshake *slot,
				 const struct thalweg_policy_flow *flow)
{
	slot->since_ns = bpf_ktime_get_ns();
	if (flow) {
		slot->flow = *flow;
	} else {
		slot->flow.rule = THALWEG_POLICY_NONE;
		slot->flow.generation = load_head()->generation;
		slot->flow.stages = 0;
		slot->flow.count = 0;
		slot->flow.flags = 0;
	}
}

/*
 * Remembers a flow's operations until its handshake is over. It takes the first of its
 * slots that is free or whose handshake must be dead. Otherwise the oldest is replaced,
 * if peers opened the handshakes. Returns the slot, from 1; 0 if there is none.
 */
static __always_inline __u32 remember(__u64 cookie, __u32 direction,
				      const struct thalweg_policy_flow *flow)
{
	__u64 now = bpf_ktime_get_ns(), holder, oldest_holder = 0, oldest_ns = ~0ull;
	struct thalweg_policy_handshake *slot;
	__u32 i, oldest = 0;

	for (i = 0; i < THALWEG_POLICY_PROBES; i++) {
		slot = handshake_slot(cookie, i, direction);
		if (!slot)
			return 0;
		holder = slot->cookie;
		if (!holder || now - slot->since_ns >= THALWEG_POLICY_HANDSHAKE_NS) {
			if (__sync_val_compare_and_swap(&slot->cookie, holder, cookie) != holder)
				continue;
			fill(slot, flow);
			return i + 1;
		}
		if (holder != THALWEG_POLICY_OVER && slot->since_ns < oldest_ns) {
			oldest = i + 1;
			oldest_ns = slot->since_ns;
			oldest_holder = holder;
		}
	}
	if (!oldest || direction != THALWEG_RULE_PASSIVE)
		return 0;
	slot = handshake_slot(cookie, oldest - 1, direction);
	if (!slot ||
	    __sync_val_compare_and_swap(&slot->cookie, oldest_holder, cookie) != oldest_holder)
		return 0;
	COUNT_MISSED(handshakes);
	fill(slot, flow);
	return oldest;
}

/* The stages of a policy for which flows of a direction are remembered from their start. */
static __always_inline __u32 early_stages(__u32 direction)
{
	return direction == THALWEG_RULE_ACTIVE ? EARLY : 1u << THALWEG_STAGE_ASKED;
}

/* Whether a flow without a record, past its start, may have begun before this policy. */
static __always_inline int began_before(void)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&swap, &zero);

	return until && *until && bpf_ktime_get_ns() < *until;
}

/*
 * The same for a flow that is established now. If the kernel answers a SYN with a
 * cookie, it makes no queries, and there is no record. The SYN-ACK was then sent once,
 * and the time since then is known if timestamps are in use. For other handshakes
 * without a second SYN-ACK it is always known.
 */
static __always_inline int may_have_begun_before(struct bpf_sock_ops *ops, __u32 direction)
{
	__u64 now = bpf_ktime_get_ns(), *until, age_ns = ((__u64)ops->srtt_us >> 3) * 1000;
	__u32 zero = 0;

	until = bpf_map_lookup_elem(&swap, &zero);
	if (!until || now >= *until)
		return 0;
	if (direction != THALWEG_RULE_PASSIVE || ops->total_retrans)
		return 1;
	return age_ns && now - age_ns + THALWEG_POLICY_HANDSHAKE_NS <= *until;
}

/* Whether the kernel makes this call at a flow's start, and never later. */
static __always_inline int begins(struct bpf_sock_ops *ops)
{
	return ops->op == (ops->is_fullsock ? BPF_SOCK_OPS_TCP_CONNECT_CB : BPF_SOCK_OPS_RWND_INIT);
}

/*
 * Looks up the rule of a flow in its handshake and remembers it. If there is no slot,
 * socket storage remembers a flow that this machine opens. That costs more, and peers'
 * requests have none.
 */
static __noinline __u32 decide(struct bpf_sock_ops *ops, __u64 cookie, __u32 direction)
{
	struct thalweg_policy_flow *flow, *kept;
	__u32 rule = look_up(ops, direction), probe;
	struct bpf_sock *sk = ops->sk;

	flow = bpf_map_lookup_elem(&actions, &rule);
	probe = remember(cookie, direction, flow);
	if (probe || begins(ops))
		count_matched(rule);
	if (probe)
		return rule;
	if (sk && flow) {
		kept = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (kept) {
			*kept = *flow;
			kept->flags |= THALWEG_FLOW_OPENING;
			return rule;
		}
	}
	COUNT_MISSED(handshakes);
	return rule;
}

/* The record of a flow in its handshake in socket storage, or NULL. */
static __always_inline struct thalweg_policy_flow *stored_opening(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return 0;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	return flow && flow->flags & THALWEG_FLOW_OPENING ? flow : 0;
}

/*
 * The operations of a flow in its handshake: as remembered, or else looked up now. NULL
 * if there is nothing to do for it.
 */
static __always_inline struct thalweg_policy_flow *handshake_flow(struct bpf_sock_ops *ops,
								  __u64 cookie, __u32 direction)
{
	struct thalweg_policy_handshake *slot = handshake_of(cookie, direction);
	struct thalweg_policy_flow *flow;
	int first = begins(ops);
	__u32 rule;

	/* A socket that failed to connect may try again, to another peer. */
	if (slot && first && direction == THALWEG_RULE_ACTIVE) {
		slot->cookie = 0;
		slot = 0;
	}
	if (slot) {
		/* For the verifier: no arithmetic before the check. */
		barrier_var(slot);
		return slot->flow.rule == THALWEG_POLICY_NONE ? 0 : &slot->flow;
	}
	if (!first) {
		flow = stored_opening(ops);
		if (flow)
			return flow;
		if (began_before())
			return 0;
	}
	rule = decide(ops, cookie, direction);
	return bpf_map_lookup_elem(&actions, &rule);
}

#endif
