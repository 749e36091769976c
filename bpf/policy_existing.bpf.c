// SPDX-License-Identifier: GPL-2.0-only
/*
 * policy_existing: applies a policy's rules to connections that were open before it.
 *
 * A TCP iterator: reading it once visits every socket of one network namespace, the
 * listeners first, each under its lock. It shares the tables of the policy that has just
 * come into force, and finds a connection's rule as policy.bpf.c does. Differences for
 * old connections:
 *  - whether this machine opened it is not recorded. It counts as passive if a socket
 *    listens on its local port in the same namespace, otherwise as active;
 *  - operations of the stage ESTABLISHED are carried out, except those that need the
 *    handshake (initial window, the peer's SYN);
 *  - the application may have chosen its congestion control after the handshake, so its
 *    known choice stays.
 *
 * It needs the kernel's BTF, and Linux 5.15 for bpf_setsockopt in iterators.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "policy_flow.h"
#include "thalweg_kernel_tcp.h"

char LICENSE[] SEC("license") = "GPL";

/* Levels from a socket's cgroup to the root: deeper ones are not reached. */
#define LEVELS 64

/*
 * Flag in the values of map `cgroups`, beside the bits of named cgroups: the policy is
 * attached here.
 */
#define ATTACHED (1ull << 32)

/* Bits of cgroups, and the policy's attachment, by id of the cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_POLICY_MAX_CGROUPS + 1);
	__type(key, __u64);
	__type(value, __u64);
} cgroups SEC(".maps");

/*
 * By port, the cookie of the network namespace that was visited last of those in which a
 * socket listens on it. The loader visits one namespace after another, so no namespace
 * takes the room of others.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} ports SEC(".maps");

/* By rule; the loader sets its size to the policy's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_reached);
} reached SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_seen);
} seen SEC(".maps");

/* The cgroups that contain a socket, as bits; ATTACHED if the policy's is among them. */
static __always_inline __u64 cgroups_of(struct tcp_sock *tp)
{
	struct cgroup *cgroup = ((struct sock *)tp)->sk_cgrp_data.cgroup;
	struct cgroup_subsys_state *parent;
	__u64 id, *bits, all = 0;
	__u32 i;

	for (i = 0; i < LEVELS && cgroup; i++) {
		id = cgroup->kn->id;
		bits = bpf_map_lookup_elem(&cgroups, &id);
		if (bits)
			all |= *bits;
		parent = cgroup->self.parent;
		if (!parent)
			break;
		cgroup = parent->cgroup;
	}
	return all;
}

/* Both addresses, IPv4 mapped; the flag of the family, or 0 if it is not TCP over IP. */
static __always_inline __u32 addresses_of(struct sock_common *skc, __u32 *remote, __u32 *local)
{
	const __u32 mapped = bpf_htonl(0xffff);
	__u32 i;

	if (skc->skc_family == AF_INET) {
		remote[2] = mapped;
		remote[3] = skc->skc_daddr;
		local[2] = mapped;
		local[3] = skc->skc_rcv_saddr;
		return THALWEG_RULE_IPV4;
	}
	if (skc->skc_family != AF_INET6 || !bpf_core_field_exists(skc->skc_v6_daddr))
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++) {
		remote[i] = skc->skc_v6_daddr.in6_u.u6_addr32[i];
		local[i] = skc->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
	}
	if (!remote[0] && !remote[1] && remote[2] == mapped)
		return THALWEG_RULE_IPV4;
	return THALWEG_RULE_IPV6;
}

/* The rule of a connection: its id, or THALWEG_POLICY_NONE. */
static __noinline __u32 rule_of(struct tcp_sock *tp, __u32 in_cgroups)
{
	struct sock_common *skc = &((struct sock *)tp)->__sk_common;
	const struct thalweg_policy_head *h = load_head();
	struct query q = {};
	__u32 family, port;
	__u64 *listens;

	family = addresses_of(skc, q.remote, q.local);
	if (!family)
		return THALWEG_POLICY_NONE;
	q.netns = skc->skc_net.net->net_cookie;
	q.remote_port = bpf_ntohs(skc->skc_dport);
	port = skc->skc_num;
	q.local_port = port;
	listens = bpf_map_lookup_elem(&ports, &port);
	q.needs = family |
		  (listens && *listens == q.netns ? THALWEG_RULE_PASSIVE : THALWEG_RULE_ACTIVE);
	if (h->flags & THALWEG_POLICY_SAMPLES)
		q.draw = draw_of(bpf_get_socket_cookie(tp));
	q.cgroups = in_cgroups | h->cgroups;
	return find(&q);
}

/* Result of an operation; a negative errno otherwise. */
enum outcome {
	CHANGED,
	UNCHANGED,
	LEFT, /* the application has chosen */
	NOTHING, /* not for open connections, or not for this family */
};

static __always_inline int set_int(struct tcp_sock *tp, const struct thalweg_policy_flow *flow,
				   const struct thalweg_policy_op *op)
{
	int value = op->value, before = 0, after = 0, error, known, keeps, priority = 0;

	if (op->level == SOL_TCP && op->name == TCP_BPF_IW)
		return NOTHING;
	if (is_stricter(tp, tp, op))
		return LEFT;
	/* It resets the slow-start threshold each time. */
	if (op->level == SOL_TCP && op->name == TCP_BPF_SNDCWND_CLAMP &&
	    tp->snd_cwnd_clamp == op->value)
		return UNCHANGED;
	/* Some kernels cannot read the option that they set: then it counts as changed. */
	known = !bpf_getsockopt(tp, op->level, op->name, &before, sizeof(before));
	/* As set_tos of policy_apply.h. */
	keeps = op->level == SOL_IP && op->name == IP_TOS && flow->flags & THALWEG_FLOW_PRIORITY &&
		!bpf_getsockopt(tp, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	error = bpf_setsockopt(tp, op->level, op->name, &value, sizeof(value));
	if (error)
		return error;
	remember_cap(tp, op);
	if (keeps)
		bpf_setsockopt(tp, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	if (known && !bpf_getsockopt(tp, op->level, op->name, &after, sizeof(after)) &&
	    before == after)
		return UNCHANGED;
	return CHANGED;
}

static __always_inline int same_text(const char *a, const char *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline int set_text(struct tcp_sock *tp, const struct thalweg_policy_op *op)
{
	char text[THALWEG_POLICY_NAME] __attribute__((aligned(8)));
	char before[THALWEG_POLICY_NAME] __attribute__((aligned(8))) = {};
	int congestion = op->level == SOL_TCP && op->name == TCP_CONGESTION;
	struct thalweg_policy_text *from;
	__u32 index = op->text, *arms;
	int error, outcome = CHANGED;

	from = bpf_map_lookup_elem(&texts, &index);
	if (!from)
		return -1;
	__builtin_memcpy(text, from->text, sizeof(text));
	if (!congestion)
		return bpf_setsockopt(tp, op->level, op->name, text, sizeof(text));
	arms = bpf_sk_storage_get(&owned, tp, 0, 0);
	if ((arms && is_applications(*arms)) || is_of_mptcp(tp))
		return LEFT;
	if (!bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, before, sizeof(before)) &&
	    same_text(text, before)) {
		outcome = UNCHANGED;
	} else {
		error = bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, text, sizeof(text));
		if (error)
			return error;
	}
	arms = bpf_sk_storage_get(&owned, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (arms)
		*arms = THALWEG_OWNED_BY_POLICY | (*arms & THALWEG_OWNED_WINDOW);
	return outcome;
}

/* The loss rule stays within the set, unless the application has chosen. */
static __always_inline int learn_from(struct tcp_sock *tp, __u32 set)
{
	__u32 *mask = set ? bpf_map_lookup_elem(&arm_sets, &set) : 0, *arms, want;

	if (!mask)
		return NOTHING;
	want = *mask | THALWEG_OWNED_BY_POLICY;
	arms = bpf_sk_storage_get(&owned, tp, 0, 0);
	if (arms && is_applications(*arms))
		return LEFT;
	if (arms && (*arms & ~THALWEG_OWNED_WINDOW) == want)
		return UNCHANGED;
	arms = bpf_sk_storage_get(&owned, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!arms)
		return -ENOMEM;
	*arms = want | (*arms & THALWEG_OWNED_WINDOW);
	return CHANGED;
}

static __always_inline void count_outcome(struct thalweg_policy_reached *count,
					  const struct thalweg_policy_flow *flow, __u32 place,
					  int outcome)
{
	if (outcome < 0) {
		count_failure(flow, place, THALWEG_POLICY_EXISTING, outcome);
		__sync_fetch_and_add(&count->failed, 1);
	} else if (outcome == CHANGED) {
		__sync_fetch_and_add(&count->done, 1);
	} else if (outcome == UNCHANGED) {
		__sync_fetch_and_add(&count->unchanged, 1);
	} else if (outcome == LEFT) {
		__sync_fetch_and_add(&count->left, 1);
	}
}

/* Carries out one operation of the stage ESTABLISHED, and counts the result. */
static __noinline int carry_out_one(struct tcp_sock *tp, struct thalweg_policy_flow *flow,
				    __u32 place, __u32 family)
{
	struct thalweg_policy_reached *count;
	struct thalweg_policy_op *op;
	__u32 rule = flow->rule;
	int outcome = NOTHING;

	if (place >= THALWEG_POLICY_MAX_OPS)
		return 0;
	op = &flow->ops[place];
	count = bpf_map_lookup_elem(&reached, &rule);
	if (!count || !(op->stages & 1u << THALWEG_STAGE_ESTABLISHED))
		return 0;
	switch (op->kind) {
	case THALWEG_OP_SET_INT:
		if ((op->level == SOL_IP || op->level == SOL_IPV6) &&
		    op->level == (family == THALWEG_RULE_IPV4 ? SOL_IPV6 : SOL_IP))
			break;
		outcome = set_int(tp, flow, op);
		break;
	case THALWEG_OP_SET_TEXT:
		outcome = set_text(tp, op);
		break;
	case THALWEG_OP_LEARN_FROM:
		outcome = learn_from(tp, op->value);
		break;
	}
	count_outcome(count, flow, place, outcome);
	return 0;
}

/* Keeps a connection's operations for later stages, and requests its callbacks. */
static __noinline int keep(struct tcp_sock *tp, struct thalweg_policy_flow *flow,
			   struct thalweg_policy_reached *count)
{
	int have = tp->bpf_sock_ops_cb_flags, want = have | callbacks_of(flow), error;
	struct thalweg_policy_flow *kept;

	kept = bpf_sk_storage_get(&flows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept) {
		count_outcome(count, flow, THALWEG_POLICY_CALLBACKS, -ENOMEM);
		return 0;
	}
	*kept = *flow;
	if (want == have)
		return 0;
	error = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &want, sizeof(want));
	if (error)
		count_outcome(count, flow, THALWEG_POLICY_CALLBACKS, error);
	return 0;
}

/* Gives a connection its rule. */
static __noinline int give_rule(struct tcp_sock *tp, __u32 rule)
{
	struct thalweg_policy_reached *count = bpf_map_lookup_elem(&reached, &rule);
	struct thalweg_policy_flow *flow = bpf_map_lookup_elem(&actions, &rule);
	__u32 i, family, remote[4] = {}, local[4] = {};

	if (!count || !flow)
		return 0;
	__sync_fetch_and_add(&count->matched, 1);
	if (load_head()->flags & THALWEG_POLICY_DRY_RUN)
		return 0;
	/* Later operations of an earlier policy are cancelled. */
	bpf_sk_storage_delete(&flows, tp);
	if (flow->flags & THALWEG_FLOW_NEVER) {
		let_alone(tp);
		return 0;
	}
	if (flow->flags & THALWEG_FLOW_KEEPS)
		keep(tp, flow, count);
	family = addresses_of(&((struct sock *)tp)->__sk_common, remote, local);
	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++) {
		if (i >= flow->count)
			break;
		carry_out_one(tp, flow, i, family);
	}
	return 0;
}

static __always_inline void note_listener(struct sock_common *skc)
{
	__u32 port = skc->skc_num;
	__u64 *listens = bpf_map_lookup_elem(&ports, &port);

	if (listens)
		*listens = skc->skc_net.net->net_cookie;
}

SEC("iter/tcp")
int policy_existing(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct thalweg_policy_flow *flow;
	struct thalweg_policy_seen *total;
	__u32 zero = 0, rule;
	struct tcp_sock *tp;
	__u64 bits;

	if (!skc)
		return 0;
	if (skc->skc_state == BPF_TCP_LISTEN) {
		note_listener(skc);
		return 0;
	}
	/* Connections in their handshake meet the policy by themselves. */
	if (skc->skc_state != BPF_TCP_ESTABLISHED && skc->skc_state != BPF_TCP_CLOSE_WAIT)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	total = bpf_map_lookup_elem(&seen, &zero);
	if (!tp || !total)
		return 0;
	bits = cgroups_of(tp);
	if (!(bits & ATTACHED)) {
		__sync_fetch_and_add(&total->outside, 1);
		return 0;
	}
	__sync_fetch_and_add(&total->open, 1);
	flow = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (flow && flow->generation == load_head()->generation) {
		__sync_fetch_and_add(&total->newer, 1);
		return 0;
	}
	rule = rule_of(tp, bits);
	if (rule == THALWEG_POLICY_NONE) {
		__sync_fetch_and_add(&total->unmatched, 1);
		return 0;
	}
	give_rule(tp, rule);
	return 0;
}

/* By rule; its size is the policy's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_silenced);
} silenced SEC(".maps");

/*
 * Counts connections with later stages, or of a trial, for which the kernel calls no more. It
 * changes nothing.
 */
SEC("iter/tcp")
int policy_silenced(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct thalweg_policy_silenced *count;
	struct thalweg_policy_trial *trial;
	struct thalweg_policy_flow *flow;
	struct tcp_sock *tp;
	__u32 rule;
	int on;

	if (!skc || (skc->skc_state != BPF_TCP_ESTABLISHED && skc->skc_state != BPF_TCP_CLOSE_WAIT))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	on = tp->bpf_sock_ops_cb_flags;
	flow = bpf_sk_storage_get(&flows, tp, 0, 0);
	if (flow && flow->generation == load_head()->generation &&
	    !(flow->flags & THALWEG_FLOW_OPENING) && callbacks_of(flow) & ~on) {
		rule = flow->rule;
		count = bpf_map_lookup_elem(&silenced, &rule);
		if (count)
			__sync_fetch_and_add(&count->later, 1);
	}
	trial = bpf_sk_storage_get(&trials, tp, 0, 0);
	if (trial && trial->generation == load_head()->generation &&
	    !(on & BPF_SOCK_OPS_STATE_CB_FLAG)) {
		rule = trial->trial;
		count = bpf_map_lookup_elem(&silenced, &rule);
		if (count)
			__sync_fetch_and_add(&count->ends, 1);
	}
	return 0;
}
