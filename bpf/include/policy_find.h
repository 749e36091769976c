/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Policies: which rule a flow gets. The tables of a policy, and the walk through them.
 */
#ifndef THALWEG_POLICY_FIND_H
#define THALWEG_POLICY_FIND_H

#include "thalweg_compat.h"
#include "thalweg_address.h"

/* Rules of a chain of nodes, plus the nodes. */
#define STEPS (2 * THALWEG_POLICY_MAX_CANDIDATES + 2)

/* A section of its own: the loader writes this map's value whole before load. */
const volatile struct thalweg_policy_head head SEC(".rodata.head") = {};

/* The loader sets the size of these maps to the policy's. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key4);
	__type(value, __u32);
} prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, __u32);
} prefixes6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_rule);
} rules SEC(".maps");

/*
 * A flow, as conditions see it. It has no pointers: it goes to global functions, which
 * the verifier checks once and not again for every path. (Functions that need the
 * context cannot be global: Linux 6.1 requires kernel BTF for that.)
 */
struct query {
	__u32 remote[4]; /* network byte order, IPv4 mapped */
	__u32 local[4];
	__u64 netns;
	__u32 needs; /* flags that a rule must have: family and direction */
	__u32 cgroups;
	__u32 draw; /* one number per flow: draw_of */
	__u32 listener; /* whether it is a listener, without a remote end */
	__u32 remote_port; /* host byte order */
	__u32 local_port;
};

/*
 * A flow's draw for rules with `sample`, from its socket's cookie: the same at each look-up,
 * and as good as random, since peers cannot choose cookies (splitmix64).
 */
static __always_inline __u32 draw_of(__u64 cookie)
{
	cookie = (cookie ^ cookie >> 30) * 0xbf58476d1ce4e5b9ull;
	cookie = (cookie ^ cookie >> 27) * 0x94d049bb133111ebull;
	return cookie >> 32;
}

/* The head, hidden from the compiler, which would fold its initial zeros. */
static __always_inline const struct thalweg_policy_head *load_head(void)
{
	const struct thalweg_policy_head *p = (const struct thalweg_policy_head *)&head;

	barrier_var(p);
	return p;
}

static __always_inline int in_ranges(const struct thalweg_policy_ports *ranges, __u32 port)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < THALWEG_POLICY_MAX_PORTS; i++)
		if (ranges[i].first <= port && port <= ranges[i].last)
			return 1;
	return 0;
}

/*
 * The precedence of a rule whose conditions match (apart from the remote prefix and the
 * draw): greater goes first; 0 if they do not match. Global: verified once, not in every
 * iteration of a loop.
 */
__noinline __u64 rank(struct thalweg_policy_rule *rule, struct query *q)
{
	__u64 never;

	if (!rule || !q)
		return 0;
	if ((rule->flags & q->needs) != q->needs || rule->flags & THALWEG_RULE_SUSPENDED)
		return 0;
	if (rule->netns && rule->netns != q->netns)
		return 0;
	if (rule->cgroups && !(rule->cgroups & q->cgroups))
		return 0;
	if (rule->local_len && !same_prefix((__u32 *)rule->local, q->local, rule->local_len))
		return 0;
	if (rule->same_len && (q->listener || !same_prefix(q->remote, q->local, rule->same_len)))
		return 0;
	if (rule->flags & THALWEG_RULE_REMOTE_PORTS &&
	    (q->listener || !in_ranges(rule->remote_ports, q->remote_port)))
		return 0;
	if (rule->flags & THALWEG_RULE_LOCAL_PORTS && !in_ranges(rule->local_ports, q->local_port))
		return 0;
	never = rule->flags & THALWEG_RULE_NEVER ? 1 : 0;
	return never << 62 | (__u64)rule->remote_len << 48 | (__u64)rule->local_len << 40 |
	       (~rule->id & 0xffffffffu);
}

/*
 * The id of the rule that matches a flow, or THALWEG_POLICY_NONE; in the upper half that
 * of the rule with a share that comes first, taken by the draw or left, if no rule
 * without a share comes before it.
 */
__noinline __u64 find(struct query *q)
{
	__u32 i, node, at = 0, left = 0, found = THALWEG_POLICY_NONE;
	__u32 trial = THALWEG_POLICY_NONE;
	struct thalweg_policy_key4 key4 = { 32, {} };
	struct thalweg_policy_key6 key6 = { 128, {} };
	struct thalweg_policy_rule *rule;
	struct thalweg_policy_node *n;
	__u64 key, best = 0, first = 0;
	__u32 *start = 0;

	if (!q)
		return ~0ull;
	node = q->needs & THALWEG_RULE_IPV4 ? 0 : 1;
	if (!q->listener) {
		if (node == 0) {
			__builtin_memcpy(key4.addr, &q->remote[3], sizeof(key4.addr));
			start = bpf_map_lookup_elem(&prefixes4, &key4);
		} else {
			__builtin_memcpy(key6.addr, q->remote, sizeof(key6.addr));
			start = bpf_map_lookup_elem(&prefixes6, &key6);
		}
		if (start)
			node = *start;
	}
	for (i = 0; i < STEPS; i++) {
		if (!left) {
			n = bpf_map_lookup_elem(&nodes, &node);
			if (!n)
				break;
			at = n->first;
			left = n->rules;
			node = n->parent;
			continue;
		}
		rule = bpf_map_lookup_elem(&rules, &at);
		if (!rule)
			break;
		at++;
		left--;
		key = rank(rule, q);
		if (!key)
			continue;
		if (rule->sample && key > first) {
			first = key;
			trial = rule->id;
		}
		if (rule->sample && q->draw >= rule->sample)
			continue;
		/* The other rules of this node come after it. */
		left = 0;
		if (key > best) {
			best = key;
			found = rule->id;
		}
	}
	if (first < best)
		trial = THALWEG_POLICY_NONE;
	return (__u64)trial << 32 | found;
}

#endif
