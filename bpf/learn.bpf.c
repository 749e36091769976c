// SPDX-License-Identifier: GPL-2.0-only
/*
 * learn: picks a congestion control for each connection, by remote host, and
 * learns from how the connection went (sockops; algorithm in thalweg_algo.h).
 *
 * The idea and mode `classic` are those of bpftune's published TCP connection
 * tuner. Departures, all of them in mode `thalweg` unless said otherwise:
 *  - arms come from a table that the agent fills, not from four fixed names;
 *  - the key holds the network namespace, and the remote address, not the
 *    next hop; records live in an LRU map (both modes);
 *  - records are changed under a lock, so that no CPU loses another's update
 *    (both modes);
 *  - a connection is scored when it is over, however it ends, over the time in
 *    which it had data to send;
 *  - an application's own TCP_CONGESTION is respected;
 *  - connections of the machine with itself over loopback addresses are left
 *    alone (both modes).
 *
 * Nothing here runs per packet: the program is called at establishment, at
 * changes of TCP state, and at retransmissions while the loss rule is armed.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_host.h"
#include "learn_sample.h"

char LICENSE[] SEC("license") = "GPL";

/*
 * The loss rule lets a connection alone for this long (thalweg): one retransmission
 * time-out, so that the stretch it ends shows what the losses did to the arm, and
 * not the burst before them.
 */
#define RESCUE_MIN_NS (200 * 1000 * 1000ull)

/* Index of the arm with this name, or THALWEG_NO_ARM. */
static __always_inline __u32 arm_by_name(const struct thalweg_arms *table, const char *name)
{
	const __u64 *wanted = (const __u64 *)name;
	__u32 i;

	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		const __u64 *have = (const __u64 *)table->arms[i].name;

		if (have[0] == wanted[0] && have[1] == wanted[1])
			return THALWEG_UNKNOWN(i);
	}
	return THALWEG_NO_ARM;
}

/* Arm of the congestion control that the socket runs now, or THALWEG_NO_ARM. */
static __always_inline __u32 current_arm(struct context *c)
{
	char name[THALWEG_CC_NAME] __attribute__((aligned(8))) = {};

	if (bpf_getsockopt(c->ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)) || !name[0])
		return THALWEG_NO_ARM;
	return arm_by_name(c->arms, name);
}

/* Mask of the arms that a connection may be given. */
static __always_inline __u32 allowed_arms(const struct thalweg_arms *table, int ecn)
{
	return ecn ? table->allowed_ecn : table->allowed;
}

/* Sets the congestion control; a refusal is noted in the table. 0 or -errno. */
static __always_inline int set_arm(struct context *c, __u32 index)
{
	struct thalweg_arm *arm = &c->arms->arms[index & THALWEG_ARM_MASK];
	char name[THALWEG_CC_NAME] __attribute__((aligned(8)));
	int error;

	__builtin_memcpy(name, arm->name, sizeof(name));
	error = bpf_setsockopt(c->ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	if (error) {
		__sync_fetch_and_or(&arm->flags, THALWEG_ARM_REFUSED);
		/* Classic goes on choosing among its four, as published. */
		if (c->params->mode == THALWEG_MODE_THALWEG) {
			__sync_fetch_and_and(&c->arms->allowed,
					     ~(1u << (index & THALWEG_ARM_MASK)));
			__sync_fetch_and_and(&c->arms->allowed_ecn,
					     ~(1u << (index & THALWEG_ARM_MASK)));
		}
		arm->refused_errno = error;
		__sync_fetch_and_add(&arm->refused, 1);
		COUNT(c, refused);
	} else {
		COUNT(c, changed);
	}
	return error;
}

/* Asks for (or gives back) callbacks without touching what others asked for. */
static __always_inline void callbacks(struct context *c, int on, int off)
{
	bpf_sock_ops_cb_flags_set(c->ops, (c->ops->bpf_sock_ops_cb_flags | on) & ~off);
}

/* A connection that is left as it is, and not scored. */
static __always_inline void leave_alone(struct context *c, __u32 reason)
{
	struct thalweg_conn *conn = c->conn;

	conn->reason = reason;
	conn->arm = conn->system_arm;
	conn->chosen_arm = THALWEG_NO_ARM;
	conn->propensity_q16 = 0;
	if (reason == THALWEG_REASON_APPLICATION)
		COUNT(c, app_owned);
	send_decision(c, 0);
}

static __always_inline void established(struct bpf_sock_ops *ops)
{
	struct thalweg_decision *decision;
	struct thalweg_conn conn = {};
	struct context c = {};
	struct bpf_tcp_sock *tp;
	__u32 *default_arm, arm, ecn, permitted;
	int error = 0, want = BPF_SOCK_OPS_STATE_CB_FLAG;

	if (!prepare(&c, ops) || !find_key(&c))
		return;
	COUNT(&c, established);
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	c.conn = &conn;
	c.cookie = bpf_get_socket_cookie(ops);
	c.request.now_ns = bpf_ktime_get_ns();
	ecn = tp->ecn_flags & TCP_ECN_OK;
	if (ecn)
		conn.flags |= THALWEG_CONN_ECN;
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		conn.flags |= THALWEG_CONN_PASSIVE;
	conn.system_arm = current_arm(&c);
	permitted = permitted_arms(&c);
	if (!permitted) {
		conn.flags |= THALWEG_CONN_APP_OWNED;
		leave_alone(&c, THALWEG_REASON_APPLICATION);
		return;
	}
	default_arm = bpf_map_lookup_elem(&defaults, &c.request.key.netns);
	if (conn.system_arm == THALWEG_NO_ARM || (default_arm && *default_arm != conn.system_arm)) {
		leave_alone(&c, THALWEG_REASON_FOREIGN);
		return;
	}
	c.request.arm = conn.system_arm;
	c.request.allowed = allowed_arms(c.arms, ecn) & permitted;
	decision = &c.request.decision;
	if (!choose(&c.request)) {
		COUNT(&c, hosts_missed);
		return;
	}
	COUNT(&c, decided);
	conn.flags |= THALWEG_CONN_DECIDED;
	conn.reason = decision->reason;
	conn.chosen_arm = decision->arm;
	conn.propensity_q16 = decision->propensity_q16;
	arm = conn.system_arm;
	if (c.params->dry_run) {
		conn.flags |= THALWEG_CONN_DRY_RUN;
	} else if (decision->arm < THALWEG_MAX_ARMS) {
		if (decision->arm != arm)
			error = set_arm(&c, decision->arm);
		if (!error)
			arm = decision->arm;
		else
			conn.flags |= THALWEG_CONN_SET_FAILED;
	}
	/* Classic keeps no score for what it did not choose. */
	if (c.params->mode == THALWEG_MODE_CLASSIC && (error || decision->arm >= THALWEG_MAX_ARMS))
		arm = THALWEG_NO_ARM;
	start_stretch(&c, tp, arm);
	keep_conn(&c, &conn);
	if (arm != c.params->rescue_arm)
		want |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	callbacks(&c, want, 0);
	/* Where nothing is known there was nothing to decide: counted, but no event. */
	if (decision->reason != THALWEG_REASON_WARM_UP)
		send_decision(&c, error);
}

/*
 * Scores the stretch that ends now. What says nothing about a congestion control,
 * as most connections do, costs neither the host's record nor an event.
 */
static __always_inline void score(struct context *c, struct bpf_tcp_sock *tp, __u32 end)
{
	struct request *r = &c->request;

	r->arm = c->conn->arm;
	r->verdict.outcome = THALWEG_SKIPPED_NOT_TRACKED;
	take_sample(c, tp, end, &r->sample);
	barrier();
	/* The slot may have been taken away meanwhile. */
	if (c->conn->cookie != c->cookie)
		return;
	if (r->arm < THALWEG_MAX_ARMS && !app_owned(c)) {
		if (c->params->mode == THALWEG_MODE_THALWEG)
			r->verdict.outcome = thalweg_assess(&r->sample, c->params);
		else
			r->verdict.outcome = THALWEG_SCORED;
	}
	if (r->verdict.outcome < THALWEG_OUTCOMES)
		__sync_fetch_and_add(&c->counters->outcomes[r->verdict.outcome], 1);
	if (r->verdict.outcome != THALWEG_SCORED || !find_key(c))
		return;
	if (!learn(r))
		COUNT(c, hosts_missed);
	send_close(c, &r->sample, &r->verdict);
}

static __always_inline void retransmitted(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct bpf_tcp_sock *tp;
	__u32 target, ecn, permitted;
	__u64 segs, retrans;
	int classic, error = 0;

	/* First what almost always answers: too few retransmissions to care. */
	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return;
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	classic = c.params->mode == THALWEG_MODE_CLASSIC;
	if (classic) {
		segs = tp->segs_out;
		retrans = tp->total_retrans;
	} else {
		segs = tp->data_segs_out - c.conn->start_segs;
		retrans = tp->total_retrans - c.conn->start_retrans;
		if (segs < c.params->loss_min_segs)
			return;
	}
	if (retrans <= segs >> (c.params->loss_shift & 63))
		return;
	c.request.now_ns = bpf_ktime_get_ns();
	if (!classic && c.request.now_ns - c.conn->start_ns < RESCUE_MIN_NS)
		return;
	ecn = c.conn->flags & THALWEG_CONN_ECN;
	callbacks(&c, 0, BPF_SOCK_OPS_RETRANS_CB_FLAG);
	permitted = permitted_arms(&c);
	if (!permitted || !find_key(&c))
		return;
	c.request.arm = c.conn->arm;
	c.request.segs = segs;
	c.request.retrans = retrans;
	c.request.allowed = allowed_arms(c.arms, ecn) & permitted;
	target = rescue(&c.request);
	if (target >= THALWEG_MAX_ARMS)
		return;
	COUNT(&c, switched);
	if (!c.params->dry_run) {
		/* The stretch so far is the old arm's; classic credits all of it to bbr. */
		if (!classic)
			score(&c, tp, THALWEG_END_SWITCH);
		error = set_arm(&c, target);
		if (classic) {
			if (!error)
				c.conn->arm = target;
		} else {
			start_stretch(&c, tp, error ? c.conn->arm : target);
		}
		c.conn->flags |= error ? THALWEG_CONN_SET_FAILED : THALWEG_CONN_SWITCHED;
	}
	c.conn->reason = THALWEG_REASON_LOSS;
	c.conn->chosen_arm = target;
	c.conn->propensity_q16 = THALWEG_ONE_Q16;
	send_decision(&c, error);
}

/* How a connection that has just reached CLOSE ended. */
static __always_inline __u32 end_of(struct context *c, __u32 old_state)
{
	if (timed_out(c))
		return THALWEG_END_TIMEOUT;
	switch (old_state) {
	case BPF_TCP_FIN_WAIT2:
	case BPF_TCP_CLOSING:
	case BPF_TCP_TIME_WAIT:
		return THALWEG_END_FIN_LOCAL;
	case BPF_TCP_LAST_ACK:
		return THALWEG_END_FIN_REMOTE;
	default:
		return THALWEG_END_RESET;
	}
}

static __always_inline void state_changed(struct bpf_sock_ops *ops)
{
	__u32 old_state = ops->args[0], state = ops->args[1], end;
	int classic = load_params()->mode == THALWEG_MODE_CLASSIC;
	struct context c = {};
	struct bpf_tcp_sock *tp;

	/* Published: scored when an orderly close begins, never otherwise. */
	int over = classic && (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_CLOSE_WAIT);

	if (!over && state != BPF_TCP_CLOSE && state != BPF_TCP_FIN_WAIT2)
		return;
	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return;
	c.request.now_ns = bpf_ktime_get_ns();
	if (state == BPF_TCP_FIN_WAIT2) {
		c.conn->acked_ns = c.request.now_ns;
		return;
	}
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	COUNT(&c, closed);
	if (over) {
		end = state == BPF_TCP_FIN_WAIT1 ? THALWEG_END_FIN_LOCAL : THALWEG_END_FIN_REMOTE;
	} else {
		end = end_of(&c, old_state);
		if (classic)
			c.conn->arm = THALWEG_NO_ARM;
	}
	score(&c, tp, end);
	__sync_val_compare_and_swap(&c.conn->cookie, c.cookie, 0);
}

SEC("sockops")
int learn_sockops(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established(ops);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		retransmitted(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		state_changed(ops);
		break;
	}
	return 1;
}

/* Marks sockets whose application chooses its congestion control itself. */
SEC("cgroup/setsockopt")
int learn_setsockopt(struct bpf_sockopt *ctx)
{
	__u32 *arms;

	if (ctx->level == IPPROTO_TCP && ctx->optname == TCP_CONGESTION && ctx->sk) {
		arms = bpf_sk_storage_get(&owned, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (arms)
			*arms = 0;
	}
	/* The kernel copied one page of the value at most; 0 = take the original. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return 1;
}
