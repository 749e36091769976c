/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: steps that a socket's callbacks and the iterator share: arms, and scores. */
#ifndef THALWEG_LEARN_STEPS_H
#define THALWEG_LEARN_STEPS_H

#include "learn_group.h"
#include "learn_sample.h"

/* "cubic" and its mask, "thalweg_", "dctcp" and "dctcp-re", little-endian. */
#define CUBIC 0x6369627563ull
#define CUBIC_MASK 0xffffffffffull
#define THALWEG_NAME 0x5f6765776c616874ull
#define DCTCP 0x7063746364ull
#define DCTCP_RENO 0x65722d7063746364ull

/* Whether an arm has this name, given as two numbers. */
static __always_inline int is_named(const struct thalweg_arm *arm, __u64 first, __u64 rest)
{
	const __u64 *name = (const __u64 *)arm->name;

	return name[0] == first && name[1] == rest;
}

/*
 * Whether an arm runs under this name. Without ECN the kernel's dctcp goes on as dctcp-reno
 * (net/ipv4/tcp_dctcp.c), which the published rule books as dctcp; cubic may go on as
 * thalweg_cubic, perhaps with a number (idle_cubic.bpf.c).
 */
static __always_inline int runs_as(const struct thalweg_arm *arm, __u64 first, __u64 rest)
{
	if (first == THALWEG_NAME && (rest & CUBIC_MASK) == CUBIC)
		return *(const __u64 *)arm->name == CUBIC;
	return is_named(arm, first, rest) ||
	       (first == DCTCP_RENO && *(const __u64 *)arm->name == DCTCP &&
		load_params()->mode == THALWEG_MODE_CLASSIC);
}

/* Index of the arm with this name, or THALWEG_NO_ARM. `likely` is tried first. */
static __always_inline __u32 arm_by_name(const struct thalweg_arms *table, const __u64 *name,
					 __u32 likely)
{
	__u64 first = name[0], rest = name[1];
	__u32 i;

	/* Hidden: the mask must stand beside the access, as Linux 6.1 forgets the comparison. */
	if (likely < THALWEG_MAX_ARMS) {
		i = likely;
		barrier_var(i);
		if (is_named(&table->arms[i & THALWEG_ARM_MASK], first, rest))
			return likely;
	}
	for (i = 0; i < THALWEG_MAX_ARMS && i < table->used; i++)
		if (is_named(&table->arms[i], first, rest))
			return THALWEG_UNKNOWN(i);
	return THALWEG_NO_ARM;
}

/*
 * What runs: current_arm(), the arm of the socket's present congestion control, or
 * THALWEG_NO_ARM; has_its_arm(), whether that is the one that the learner knows of: others may
 * set it, too; read_name(), its name, or 0.
 */
#ifdef THALWEG_KERNEL_BTF
static __always_inline const __u64 *current_name(struct tcp_sock *tcp)
{
	return (const __u64 *)((struct inet_connection_sock *)tcp)->icsk_ca_ops->name;
}

static __always_inline __u32 current_arm(struct context *c, __u32 likely)
{
	return arm_by_name(c->arms, current_name(c->tcp), likely);
}

static __always_inline int has_its_arm(struct context *c)
{
	const __u64 *name = current_name(c->tcp);

	return runs_as(&c->arms->arms[c->origin->arm & THALWEG_ARM_MASK], name[0], name[1]);
}

static __always_inline int read_name(struct learn_handle *ops, __u64 *name)
{
	struct tcp_sock *tcp = sock_of(ops) ? kernel_tcp(sock_of(ops)) : 0;
	const __u64 *current;

	if (!tcp)
		return 0;
	current = current_name(tcp);
	name[0] = current[0];
	name[1] = current[1];
	return 1;
}
#else
static __always_inline int read_name(struct learn_handle *ops, __u64 *name)
{
	return !bpf_getsockopt(ops, SOL_TCP, TCP_CONGESTION, name, THALWEG_CC_NAME) &&
	       *(const char *)name;
}

static __always_inline __u32 current_arm(struct context *c, __u32 likely)
{
	__u64 name[THALWEG_CC_NAME / 8] = {};

	return read_name(c->ops, name) ? arm_by_name(c->arms, name, likely) : THALWEG_NO_ARM;
}

/* Not inlined, as callers have no stack for the name. */
static __noinline int runs_arm(struct learn_handle *ops, __u32 index)
{
	__u64 name[THALWEG_CC_NAME / 8] = {};
	const struct thalweg_arms *table;
	__u32 zero = 0;

	table = bpf_map_lookup_elem(&arms, &zero);
	if (!table || !read_name(ops, name))
		return 1;
	return runs_as(&table->arms[index & THALWEG_ARM_MASK], name[0], name[1]);
}

static __always_inline int has_its_arm(struct context *c)
{
	return runs_arm(c->ops, c->origin->arm);
}
#endif

/* Counts a stretch that did not end with its arm, by what ran instead. */
static __noinline int note_overridden(struct learn_handle *ops)
{
	__u64 name[THALWEG_CC_NAME / 8] = {}, one = 1, *count;

	if (!read_name(ops, name))
		return 0;
	count = bpf_map_lookup_elem(&overridden, name);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&overridden, name, &one, BPF_NOEXIST);
	return 1;
}

/*
 * Whether arms that need ECN may be chosen towards the remote host. Not inlined, as
 * callers have no stack for the key.
 */
static __noinline int has_ecn_prefix(struct learn_handle *ops)
{
	struct thalweg_policy_key6 key = { 128, {} };
	const __u32 *allows;

	host_of(ops, (__u32 *)key.addr);
	allows = bpf_map_lookup_elem(&ecn_prefixes, &key);
	return allows && *allows;
}

/*
 * Mask of the arms allowed for a connection. Arms that need ECN are allowed only if it
 * was negotiated, and within the operator's prefixes (RFC 8257, section 6).
 */
static __always_inline __u32 allowed_arms(struct context *c, int ecn)
{
	const struct thalweg_arms *table = c->arms;
	__u32 allowed = table->allowed;

	if (ecn && allowed != table->allowed_ecn && has_ecn_prefix(c->ops))
		allowed = table->allowed_ecn;
	/* What the connection would have without the learner cannot be taken back. */
	return allowed & (~table->reverted | 1u << (c->origin->system_arm & THALWEG_ARM_MASK));
}

/* THALWEG_NO_TRIALS if nothing is to be tried: by order, or as the agent is silent. */
static __always_inline __u32 no_trials(struct context *c)
{
	const struct thalweg_arms *table = c->arms;
	__u64 limit_ns = c->params->heartbeat_max_ns;

	if (table->reverted & THALWEG_NO_TRIALS)
		return THALWEG_NO_TRIALS;
	if (limit_ns && c->request->now_ns > table->heartbeat_ns + limit_ns)
		return THALWEG_NO_TRIALS;
	return 0;
}

/*
 * Sets the congestion control; 0 or -errno. Only "no such" concerns the arm. A route
 * that locks its congestion control (EPERM) concerns one connection. Otherwise a user
 * who may set routes in a namespace could take the arm from everybody.
 */
static __always_inline int set_arm(struct context *c, __u32 index)
{
	struct thalweg_arm *arm = &c->arms->arms[index & THALWEG_ARM_MASK];
	int error;

	/* Kept as a pointer: Linux 6.1 forgets the mask of a number on the stack. */
	barrier_var(arm);
	error = bpf_setsockopt(c->ops, SOL_TCP, TCP_CONGESTION, arm->name, sizeof(arm->name));
	if (!error) {
		COUNT(c, changed);
		return 0;
	}
	COUNT(c, refused);
	__sync_fetch_and_add(&arm->refused, 1);
	if (error != -ENOENT && error != -ENOTSUPP)
		return error;
	arm->refused_errno = error;
	__sync_fetch_and_or(&arm->flags, THALWEG_ARM_REFUSED);
	/* Classic still chooses among its four, as published. */
	if (c->params->mode == THALWEG_MODE_THALWEG) {
		__sync_fetch_and_and(&c->arms->allowed, ~(1u << (index & THALWEG_ARM_MASK)));
		__sync_fetch_and_and(&c->arms->allowed_ecn, ~(1u << (index & THALWEG_ARM_MASK)));
	}
	return error;
}

/*
 * Scores the stretch that ends now. Most stretches say nothing about a congestion
 * control, and cost no access to the host's record. Their events are for the comparison
 * with the control group, which is fair only over all connections that sent data. Returns
 * the outcome.
 */
static __always_inline __u32 score(struct context *c, struct learn_tcp *tp, __u32 end)
{
	struct request *r = c->request;
	struct lesson lesson = {};
	__u32 outcome = THALWEG_SKIPPED_NOT_TRACKED;
	__u64 wall_us;
	int told = 0, tells = 0, goes_on = end == THALWEG_END_SWITCH || end == THALWEG_END_STRETCH;

	r->arm = c->origin->arm;
	r->system_arm = c->origin->system_arm;
	if (c->origin->flags & THALWEG_CONN_TRIAL)
		r->allowed |= TRIAL_OVER;
	wall_us = take_sample(c, tp, end, &lesson.sample);
	/* The sample is read from where it lies: copies of it would exceed the stack on Linux 6.1. */
	asm volatile("" : : "r"(&lesson) : "memory");
	/* The slot may have been reused meanwhile. */
	if (c->conn->cookie != c->cookie)
		return outcome;
	c->origin->flags &= ~THALWEG_CONN_TRIAL;
	if (r->arm < THALWEG_MAX_ARMS && c->origin->flags & THALWEG_CONN_DECIDED && is_scored(c)) {
		if (!has_its_arm(c))
			outcome = THALWEG_SKIPPED_OVERRIDDEN;
		else if (c->params->mode == THALWEG_MODE_THALWEG)
			outcome = thalweg_assess(&lesson.sample, c->params);
		else
			outcome = THALWEG_SCORED;
	}
	lesson.verdict.outcome = outcome;
	if (outcome == THALWEG_SKIPPED_OVERRIDDEN)
		note_overridden(c->ops);
	else if (outcome == THALWEG_SCORED)
		told = 1;
	else if (outcome != THALWEG_SKIPPED_NOT_TRACKED || c->params->advise)
		told = !goes_on && (lesson.sample.segs_out || c->origin->flags & THALWEG_CONN_LONG);
	if ((told || r->allowed & TRIAL_OVER) && !find_key(c))
		return outcome;
	if (outcome == THALWEG_SCORED || r->allowed & TRIAL_OVER) {
		if (outcome == THALWEG_SCORED && c->params->groups)
			tells = note_news(r);
		if (!learn(r, &lesson) && lesson.verdict.outcome == THALWEG_SCORED)
			COUNT(c, hosts_missed);
		outcome = lesson.verdict.outcome;
		if (tells && outcome == THALWEG_SCORED && !tell(c, &lesson))
			return outcome;
	}
	/* In one register from here: Linux 6.1 forgets the bound of a copy on the stack. */
	barrier_var(outcome);
	if (outcome < THALWEG_OUTCOMES)
		__sync_fetch_and_add(&c->counters->outcomes[outcome], 1);
	if (told)
		send_close(c, &lesson.sample, &lesson.verdict, wall_us);
	if (goes_on)
		note_before(c, &lesson.sample, wall_us, end == THALWEG_END_STRETCH);
	return outcome;
}

#endif
