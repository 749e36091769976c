/* SPDX-License-Identifier: GPL-2.0-only */
/* Policies: a flow's operations, its state, and its counters. */
#ifndef THALWEG_POLICY_FLOW_H
#define THALWEG_POLICY_FLOW_H

#include "policy_find.h"

/* Stages after the handshake: a flow's operations are kept for them. */
#define LATER                                                                                 \
	(1u << THALWEG_STAGE_RETRANSMIT | 1u << THALWEG_STAGE_RTO | 1u << THALWEG_STAGE_RTT | \
	 1u << THALWEG_STAGE_CLOSE)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_flow);
} actions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_counters);
} counters SEC(".maps");

/* Flows and events that could not be remembered, reported or counted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_missed);
} missed SEC(".maps");

/*
 * Arms of each set that rules name, by the number of the set. Written by the loader and
 * the agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MAX_ARM_SETS + 1);
	__type(key, __u32);
	__type(value, __u32);
} arm_sets SEC(".maps");

/* The maps from here on outlive a policy: pinned, and shared by all instances. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MAX_TEXTS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_text);
} texts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct thalweg_policy_failure);
	__type(value, __u64);
} failures SEC(".maps");

/* Established flows whose rule has later operations. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_policy_flow);
} flows SEC(".maps");

/* Established flows that a rule's share took or left. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_policy_trial);
} trials SEC(".maps");

/*
 * learn's map of that name: sockets that it must not touch (0), or whose arms are
 * restricted (a mask), with flags of policies.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} owned SEC(".maps");

/*
 * Whether a mark says that the application chose its congestion control. A policy's window may
 * stand beside it.
 */
static __always_inline int is_applications(__u32 mark)
{
	return !(mark & ~THALWEG_OWNED_WINDOW);
}

/*
 * From now on the learner touches neither the socket's congestion control nor its windows.
 * What the application chose stays its own.
 */
static __always_inline void let_alone(void *sk)
{
	__u32 initial = THALWEG_OWNED_BY_POLICY, *mark;

	if (!sk)
		return;
	mark = bpf_sk_storage_get(&owned, sk, &initial, BPF_SK_STORAGE_GET_F_CREATE);
	if (mark)
		*mark = (is_applications(*mark) ? 0 : THALWEG_OWNED_BY_POLICY) |
			THALWEG_OWNED_WINDOW;
}

/* Sockets on which a policy has set a cap. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct thalweg_policy_caps);
} caps SEC(".maps");

#define COUNT_MISSED(what)                                                             \
	do {                                                                           \
		__u32 only = 0;                                                        \
		struct thalweg_policy_missed *m = bpf_map_lookup_elem(&missed, &only); \
                                                                                       \
		if (m)                                                                 \
			__sync_fetch_and_add(&m->what, 1);                             \
	} while (0)

static __always_inline struct thalweg_policy_counters *
counters_of(const struct thalweg_policy_flow *flow)
{
	__u32 rule = flow->rule;

	/* An earlier policy's flow: its counters no longer exist. */
	if (flow->generation != load_head()->generation)
		return 0;
	return bpf_map_lookup_elem(&counters, &rule);
}

/* Counts a flow that gets a rule, if it gets one. */
static __always_inline void count_matched(__u32 rule)
{
	struct thalweg_policy_counters *count = bpf_map_lookup_elem(&counters, &rule);

	if (count)
		__sync_fetch_and_add(&count->matched, 1);
}

static __always_inline void count_failure(const struct thalweg_policy_flow *flow, __u32 op,
					  __u32 stage, int error)
{
	struct thalweg_policy_failure key = {};
	__u64 one = 1, *count;

	key.generation = flow->generation;
	key.rule = flow->rule;
	key.op = op;
	key.stage = stage;
	key.error = error;
	count = bpf_map_lookup_elem(&failures, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&failures, &key, &one, BPF_NOEXIST))
		COUNT_MISSED(failures);
}

/* The index of the first operation of a kind, or -1. Global: see rank. */
__noinline int op_of(struct thalweg_policy_flow *flow, __u32 kind)
{
	__u32 i;

	if (!flow)
		return -1;
	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++) {
		if (i >= flow->count)
			break;
		if (flow->ops[i].kind == kind)
			return i;
	}
	return -1;
}

/*
 * Whether the application has set a lower value than an operation that is a cap: lower is stricter.
 * What a policy set before is not the application's. Kernels before 6.1 cannot read most options
 * here: then it is not known.
 */
static __always_inline int is_stricter(void *ctx, void *sk, const struct thalweg_policy_op *op)
{
	struct thalweg_policy_caps *set;
	__u32 own = 0;

	if (!op->text || op->text == THALWEG_CAP_OVERRIDES || !sk)
		return 0;
	if (bpf_getsockopt(ctx, op->level, op->name, &own, sizeof(own)))
		return 0;
	if (own + 1 == op->text || own >= op->value)
		return 0;
	set = bpf_sk_storage_get(&caps, sk, 0, 0);
	return !set || set->values[op->name % THALWEG_CAPS] != own;
}

/* Remembers the value of a cap that was set. */
static __always_inline void remember_cap(void *sk, const struct thalweg_policy_op *op)
{
	struct thalweg_policy_caps *set;

	if (!op->text || !sk)
		return;
	set = bpf_sk_storage_get(&caps, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (set)
		set->values[op->name % THALWEG_CAPS] = op->value;
}

/* The callbacks for a flow's later stages. */
static __always_inline int callbacks_of(const struct thalweg_policy_flow *flow)
{
	int on = 0;

	if (flow->stages & 1u << THALWEG_STAGE_RETRANSMIT)
		on |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_RTO)
		on |= BPF_SOCK_OPS_RTO_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_RTT)
		on |= BPF_SOCK_OPS_RTT_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_CLOSE)
		on |= BPF_SOCK_OPS_STATE_CB_FLAG;
	return on;
}

#endif
