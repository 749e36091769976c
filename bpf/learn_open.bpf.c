// SPDX-License-Identifier: GPL-2.0-only
/*
 * learn_open: scores long connections in stretches while they are open, and decides anew
 * about them where that pays (thalweg_review() in thalweg_algo.h). Without it the learner
 * knows nothing of connections that do not close.
 *
 * A TCP iterator: the agent reads it every now and then, and one reading visits every
 * socket of a network namespace, each under its lock. So no callback of the same socket
 * runs meanwhile. It shares the maps of learn.bpf.c; who has no slot there is not
 * touched. Once the agent is gone nobody reads it.
 *
 * It needs the kernel's BTF, and Linux 5.15 for bpf_setsockopt in iterators.
 */
#define THALWEG_KERNEL_BTF
#define THALWEG_ITERATOR

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_steps.h"

char LICENSE[] SEC("license") = "GPL";

/*
 * Sockets after which the agent's read returns (a power of two). It makes room in the
 * ring, and other tasks get the processor: the kernel itself pauses only after a million.
 */
#define PAUSE_SOCKETS 256

/* Results of measure(). */
#define MEASURED 1
#define ENDED_TRIAL 2

/* State for a socket whose stretch may be due; 0 if it is not measured. */
static __always_inline int open_conn(struct context *c, struct tcp_sock *tp)
{
	if (!prepare(c, tp) || is_of_mptcp(tp) || !find_conn(c, tp))
		return 0;
	c->request->now_ns = bpf_ktime_get_ns();
	return c->origin->arm < THALWEG_MAX_ARMS;
}

/*
 * Scores the stretch of a connection if it is due, and begins another. Returns MEASURED if
 * it was scored, and ENDED_TRIAL beside it if that was a trial.
 */
static __noinline int measure(struct tcp_sock *tp)
{
	struct request request = {};
	struct context c = { .request = &request };
	struct thalweg_conn *conn;
	__u32 trial, outcome, count;

	if (!open_conn(&c, tp))
		return 0;
	conn = c.conn;
	count = conn->origin.flags & THALWEG_CONN_LONG ? conn->count : 0;
	if (!thalweg_stretch_due(c.request->now_ns - conn->start_ns,
				 tp->bytes_acked - conn->start_bytes, count, c.params))
		return 0;
	if (app_owned(&c) || !has_its_arm(&c))
		return 0;
	trial = conn->origin.flags & THALWEG_CONN_TRIAL ? ENDED_TRIAL : 0;
	outcome = score(&c, tp, THALWEG_END_STRETCH);
	start_stretch(&c, tp, conn->origin.arm);
	conn->origin.flags |= THALWEG_CONN_STEADY;
	if (outcome != THALWEG_SCORED)
		return 0;
	COUNT(&c, stretches);
	return MEASURED | trial;
}

/* Decides about a long connection under the record's lock, and counts the decision. */
__noinline int review(struct request *r, struct shares *shares, __u64 decided_ns, __u32 trial)
{
	const struct thalweg_params *params = load_params();
	enum thalweg_reviewed found = THALWEG_KEEPS;
	struct thalweg_long flow;
	struct thalweg_host *host;
	struct thalweg_lock *lock;

	if (!r || !shares)
		return THALWEG_KEEPS;
	flow.arm = r->arm;
	flow.system_arm = r->system_arm;
	flow.decided_ns = decided_ns;
	flow.trial = trial;
	host = find_host(r);
	lock = host_lock(r);
	if (!host || !lock)
		return THALWEG_KEEPS;
	r->random[0] = bpf_get_prandom_u32();
	bpf_spin_lock(&lock->lock);
	if (open_host(host, r->tag)) {
		found = thalweg_review(host, &flow, r->allowed, params, r->random, r->now_ns,
				       &r->decision, shares->q16);
		if (found != THALWEG_KEEPS) {
			thalweg_count_decision(host, &r->decision);
			if (r->decision.arm != r->arm)
				thalweg_increment(&host->switched);
		}
		if (found == THALWEG_REVIEWED_TRIAL)
			thalweg_begin_trial(host, r->now_ns);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return found;
}

/*
 * Has the loss rule watch a connection that left the system's arm. Its callbacks are on since
 * its beginning, unless another program cleared them: before Linux 6.12 they cannot be requested
 * again; then the next look notices losses.
 */
static __always_inline void watch_losses(struct context *c, struct tcp_sock *tp)
{
	int flags = tp->bpf_sock_ops_cb_flags;

	c->origin->flags &= ~THALWEG_CONN_UNWATCHED;
	if (flags & BPF_SOCK_OPS_RETRANS_CB_FLAG)
		return;
	flags |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}

/*
 * Moves the connection to the arm of the decision. Returns 0 or -errno of a refused arm.
 * The decision is made: a refusal is not tried again before the next one.
 */
static __always_inline int move(struct context *c, struct tcp_sock *tp, int trial)
{
	const struct thalweg_decision *decision = &c->request->decision;
	struct thalweg_origin *origin = c->origin;
	int error = 0;

	c->conn->decided_ns = c->request->now_ns;
	origin->reason = decision->reason;
	origin->chosen_arm = decision->arm;
	origin->propensity_q16 = decision->propensity_q16;
	if (trial)
		origin->flags |= THALWEG_CONN_TRIAL;
	if (decision->arm == origin->arm)
		return 0;
	error = set_arm(c, decision->arm);
	if (error) {
		origin->flags |= THALWEG_CONN_SET_FAILED;
		return error;
	}
	COUNT(c, moved);
	origin->flags |= THALWEG_CONN_SWITCHED;
	start_stretch(c, tp, decision->arm);
	c->conn->count = 0;
	if (decision->arm != origin->system_arm)
		watch_losses(c, tp);
	return 0;
}

/*
 * Mask of the arms that a connection may get, THALWEG_NO_TRIALS beside it; 0 if it is not
 * moved. A function of its own, as its keys take room on the stack.
 */
static __noinline __u32 open_arms(struct tcp_sock *tp)
{
	struct request request = {};
	struct context c = { .request = &request };
	__u32 permitted, system;

	if (!open_conn(&c, tp) || !find_key(&c))
		return 0;
	/* Neither the control group nor a trial of advice is moved, and a dry run sets nothing. */
	if (c.origin->flags & THALWEG_CONN_CONTROL || c.params->dry_run || c.params->advise)
		return 0;
	permitted = permitted_arms(&c);
	system = c.origin->system_arm;
	if (system >= THALWEG_MAX_ARMS)
		return 0;
	/* In an hour of the control group only the way back is open. */
	if (draw(&c) & IN_CONTROL)
		permitted &= 1u << system;
	permitted &= allowed_arms(&c, c.origin->flags & THALWEG_CONN_ECN);
	return permitted ? permitted | no_trials(&c) : 0;
}

/* Decides anew about a connection whose stretch was just scored. */
static __noinline int decide_anew(struct tcp_sock *tp, __u32 allowed, int trial)
{
	struct shares shares = {};
	struct request request = {};
	struct context c = { .request = &request };
	int found, error;

	if (!open_conn(&c, tp) || !find_key(&c))
		return 0;
	c.request->arm = c.origin->arm;
	c.request->system_arm = c.origin->system_arm;
	c.request->allowed = allowed;
	found = review(c.request, &shares, c.conn->decided_ns, trial);
	if (found == THALWEG_KEEPS)
		return 0;
	COUNT(&c, anew);
	error = move(&c, tp, found == THALWEG_REVIEWED_TRIAL);
	send_decision(&c, error, &shares);
	return 0;
}

SEC("iter/tcp")
int learn_open(struct bpf_iter__tcp *ctx)
{
	const struct thalweg_params *params = load_params();
	struct sock_common *skc = ctx->sk_common;
	struct thalweg_counters *count;
	__u32 zero = 0;
	struct tcp_sock *tp;
	__u32 allowed;
	int measured;

	if (!skc)
		return 0;
	if (!(ctx->meta->seq_num & (PAUSE_SOCKETS - 1)))
		bpf_seq_write(ctx->meta->seq, &zero, 1);
	count = bpf_map_lookup_elem(&counters, &zero);
	if (!count)
		return 0;
	__sync_fetch_and_add(&count->visited, 1);
	if (skc->skc_state != BPF_TCP_ESTABLISHED && skc->skc_state != BPF_TCP_CLOSE_WAIT)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	/* Most have sent too little in all. */
	if (!tp || tp->bytes_acked < params->score_full_bytes)
		return 0;
	measured = measure(tp);
	allowed = measured ? open_arms(tp) : 0;
	if (allowed)
		decide_anew(tp, allowed, measured & ENDED_TRIAL);
	return 0;
}
