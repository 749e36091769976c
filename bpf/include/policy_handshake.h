/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: the rule of a flow of the sockops program, remembered until its handshake is over.
 */
#ifndef THALWEG_POLICY_HANDSHAKE_H
#define THALWEG_POLICY_HANDSHAKE_H

#include "policy_flow.h"
#include "thalweg_algo.h"

/* Stages before its end: what a flow was given is remembered from there on. */
#define EARLY (1u << THALWEG_STAGE_CONNECT | 1u << THALWEG_STAGE_ASKED)

/* What the programs of named cgroups (policy_mark.bpf.c) say of the event under way. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MARKS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_mark);
} marks SEC(".maps");

/*
 * Until when (bpf_ktime_get_ns) flows that nobody remembers began before this policy; 0 where
 * the policy before it remembered them. User space writes it just before each swap.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} swap SEC(".maps");

/*
 * Flows in their handshake, in an array like learn's: socket storage and hash maps cost
 * several times as much a connection, and request sockets cannot have socket storage.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * THALWEG_POLICY_HANDSHAKES);
	__type(key, __u32);
	__type(value, struct thalweg_policy_handshake);
} handshakes SEC(".maps");

/* The bits of named cgroups that the socket lies in; their programs ran just before. */
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

/* Both addresses, IPv4 mapped; the flag of the family, or 0 for what is no TCP over IP. */
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
	/* A listener has no peer: its own address tells. */
	end = remote[0] | remote[1] | (remote[2] ^ mapped);
	own_end = local[0] | local[1] | (local[2] ^ mapped);
	/* For the verifier: no choice of one pointer into the context out of two. */
	barrier_var(own_end);
	if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		end = own_end;
	return end ? THALWEG_RULE_IPV6 : THALWEG_RULE_IPV4;
}

/* Finds the rule of a flow: its id, or THALWEG_POLICY_NONE. */
static __noinline __u32 look_up(struct bpf_sock_ops *ops, __u32 direction)
{
	const struct thalweg_policy_head *h = load_head();
	struct query q = {};
	__u32 family;

	family = addresses(ops, q.remote, q.local);
	if (!family)
		return THALWEG_POLICY_NONE;
	q.needs = direction | family;
	q.listener = ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB;
	/* remote_port is in network byte order, local_port is not (UAPI). */
	q.remote_port = bpf_ntohl(ops->remote_port);
	q.local_port = ops->local_port;
	if (h->flags & THALWEG_POLICY_NETNS)
		q.netns = bpf_get_netns_cookie(ops);
	if (h->flags & THALWEG_POLICY_SAMPLES)
		q.draw = bpf_get_prandom_u32();
	q.cgroups = marked(ops);
	return find(&q);
}

/* A slot in which a handshake may lie; there are THALWEG_POLICY_PROBES of them. */
static __always_inline struct thalweg_policy_handshake *handshake_slot(__u64 cookie, __u32 probe,
								       __u32 direction)
{
	__u32 slot = thalweg_place(cookie, probe) & (THALWEG_POLICY_HANDSHAKES - 1);

	if (direction == THALWEG_RULE_PASSIVE)
		slot += THALWEG_POLICY_HANDSHAKES;
	return bpf_map_lookup_elem(&handshakes, &slot);
}

/* Which of its slots a handshake lies in, from 1; 0 = in none. */
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
 * Remembers what a flow was given until its handshake is over, in the first of its slots that is
 * free or whose handshake must be dead. Otherwise the oldest gives way, if peers opened them.
 * Returns which slot it is, from 1; 0 where none can be had.
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

/* The stages of a policy for which flows of a direction are remembered from the beginning. */
static __always_inline __u32 early_stages(__u32 direction)
{
	return direction == THALWEG_RULE_ACTIVE ? EARLY : 1u << THALWEG_STAGE_ASKED;
}

/* Whether a flow that nobody remembers, past its beginning, may have begun before this policy. */
static __always_inline int began_before(void)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&swap, &zero);

	return until && *until && bpf_ktime_get_ns() < *until;
}

/*
 * The same of a flow that is established now. The kernel asks nothing, and nobody remembers,
 * where it answers a SYN with a cookie. The SYN-ACK was then sent once, and the time since then
 * is known if timestamps are in use; of other handshakes without a second SYN-ACK it always is.
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

/* Whether the kernel makes this call for a flow at its beginning, and then no more. */
static __always_inline int begins(struct bpf_sock_ops *ops)
{
	return ops->op == (ops->is_fullsock ? BPF_SOCK_OPS_TCP_CONNECT_CB : BPF_SOCK_OPS_RWND_INIT);
}

/*
 * Looks up the rule of a flow in its handshake and remembers it. Of a flow that this machine
 * opens socket storage remembers it where no slot can be had; that costs more, and requests of
 * peers have none.
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

/* What socket storage remembers of a flow in its handshake, or NULL. */
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
 * What a flow in its handshake is given: as it is remembered, or else looked up now. NULL where
 * there is nothing to do for it.
 */
static __always_inline struct thalweg_policy_flow *handshake_flow(struct bpf_sock_ops *ops,
								  __u64 cookie, __u32 direction)
{
	struct thalweg_policy_handshake *slot = handshake_of(cookie, direction);
	struct thalweg_policy_flow *flow;
	int first = begins(ops);
	__u32 rule;

	/* A socket that failed to connect may try again, with another peer. */
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
