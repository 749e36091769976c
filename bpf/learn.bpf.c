// SPDX-License-Identifier: GPL-2.0-only
/*
 * learn: chooses a congestion control for each connection, by remote host, and learns
 * from the connection's result (sockops; algorithm in thalweg_algo.h).
 *
 * The idea and mode `classic` are those of bpftune's published TCP connection tuner.
 * Departures, all of them in mode `thalweg` unless noted otherwise:
 *  - arms come from a table that the agent fills, not from four fixed names;
 *  - the key has the network namespace and the remote address, not the next hop; records
 *    are in an LRU map (both modes);
 *  - records are changed under a lock, so that no CPU loses another's update (both
 *    modes);
 *  - a connection is scored when it is over, however it ends, over the time in which it
 *    had data to send;
 *  - an application's own TCP_CONGESTION is respected;
 *  - connections that stay on the machine, and those of network namespaces unknown to the
 *    agent, are not touched (both modes);
 *  - a connection whose arm causes losses of its own goes back to the system's.
 *
 * Nothing here runs per packet: the program is called at establishment, at changes of
 * TCP state, and at retransmissions; with each RTT sample, too, where it raised the initial
 * window.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_clamp.h"
#include "learn_steps.h"
#include "learn_window.h"

char LICENSE[] SEC("license") = "GPL";

/*
 * Tells the agent of a network namespace that it may not know. Not inlined, as callers
 * have no stack for the time.
 */
static __noinline int note_stranger(__u64 netns)
{
	__u64 now;

	if (bpf_map_lookup_elem(&strangers, &netns))
		return 0;
	now = bpf_ktime_get_ns();
	return bpf_map_update_elem(&strangers, &netns, &now, BPF_ANY);
}

/*
 * Requests callbacks beside those of others. None is ever released: whoever set a flag cannot be
 * told, and another program may want it.
 */
static __always_inline void request_callbacks(struct context *c, int flags)
{
	bpf_sock_ops_cb_flags_set(c->ops, c->ops->bpf_sock_ops_cb_flags | flags);
}

/* A connection that is neither changed nor scored. Advice measures it all the same. */
static __always_inline void leave_alone(struct context *c, __u32 reason)
{
	struct thalweg_origin *origin = c->origin;

	origin->reason = reason;
	origin->arm = origin->system_arm;
	origin->chosen_arm = THALWEG_NO_ARM;
	origin->propensity_q16 = 0;
	if (reason == THALWEG_REASON_APPLICATION)
		COUNT(c, app_owned);
	send_decision(c, 0, 0);
}

/* Asks a group of a host without record; whether it knows, and has decided. */
static __always_inline int ask_group(struct context *c, struct shares *shares, __u32 level,
				     struct thalweg_worths *worths)
{
	if (!asked_key(c->ops, c->request, c->origin, level, worths) || !choose(c->request, shares))
		return 0;
	if (!(c->request->allowed & ONLY_ASKED))
		COUNT(c, by_group);
	c->origin->flags |= level << THALWEG_CONN_LEVEL_SHIFT;
	return 1;
}

/* Asks the groups of a host without record, the narrowest first; the first that knows decides. */
static __always_inline void ask_groups(struct context *c, struct shares *shares,
				       struct thalweg_worths *worths)
{
	__u32 level;

	for (level = THALWEG_LEVEL_PREFIX; level < THALWEG_LEVELS; level++) {
		if (!has_level(level))
			continue;
		if (ask_group(c, shares, level, worths))
			break;
		if (has_told(level) && ask_group(c, shares, level | THALWEG_LEVEL_FLEET, worths))
			break;
	}
	/* The tag is not used any more. */
	host_key(c);
}

/* Decides, and applies the decision; 0 or -errno of a refused arm. */
static __always_inline int decide(struct context *c, struct shares *shares)
{
	const struct thalweg_decision *decision = &c->request->decision;
	struct thalweg_origin *origin = c->origin;
	struct thalweg_worths *worths;
	__u32 drawn = draw(c);
	int error = 0;

	c->request->allowed |= drawn;
	if (drawn & IN_CONTROL) {
		origin->flags |= THALWEG_CONN_CONTROL;
		COUNT(c, control);
	}
	/*
	 * What the fleet told is compared with the control group: of that, too, it is known what
	 * would have decided.
	 */
	if (!choose(c->request, shares) && (!drawn || (has_fleet && !c->params->advise)) &&
	    (worths = groups_know(c->request->key.netns))) {
		c->request->allowed |= drawn ? ONLY_ASKED : 0;
		ask_groups(c, shares, worths);
	}
	COUNT(c, decided);
	origin->flags |= THALWEG_CONN_DECIDED;
	origin->arm = origin->system_arm;
	origin->reason = decision->reason;
	origin->chosen_arm = decision->arm;
	origin->propensity_q16 = decision->propensity_q16;
	if (c->params->dry_run) {
		origin->flags |= THALWEG_CONN_DRY_RUN;
	} else if (decision->arm < THALWEG_MAX_ARMS) {
		if (decision->arm != origin->system_arm)
			error = set_arm(c, decision->arm);
		if (!error)
			origin->arm = decision->arm;
		else
			origin->flags |= THALWEG_CONN_SET_FAILED;
		/* A group's ends when it begins. */
		if (thalweg_is_trial(decision->reason) &&
		    !(origin->flags & THALWEG_CONN_LEVEL_MASK))
			origin->flags |= THALWEG_CONN_TRIAL;
	}
	/* Classic scores only its own choices. */
	if (c->params->mode == THALWEG_MODE_CLASSIC && (error || decision->arm >= THALWEG_MAX_ARMS))
		origin->arm = THALWEG_NO_ARM;
	return error;
}

/* Whether the connection has no loss rule: in the control group, and under advice. */
static __always_inline int keeps_arm(const struct context *c)
{
	return c->params->advise || c->origin->flags & THALWEG_CONN_CONTROL;
}

/* Starts to measure the connection. */
static __always_inline void track(struct context *c, const struct bpf_tcp_sock *tp)
{
	struct thalweg_conn *slot = take_slot(c);
	int flags = BPF_SOCK_OPS_STATE_CB_FLAG;

	if (!slot)
		return;
	slot->origin = *c->origin;
	slot->netns = c->request->key.netns;
	c->conn = slot;
	if (c->params->windows)
		take_window(c);
	start_stretch(c, tp, slot->origin.arm);
	if (!keeps_arm(c))
		flags |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	/* An accepted connection's usual window is read once it is established. */
	if (c->params->windows && slot->window.segments &&
	    (slot->window.segments > THALWEG_WINDOW_LEAST ||
	     !(slot->origin.flags & THALWEG_CONN_PASSIVE)))
		flags |= BPF_SOCK_OPS_RTT_CB_FLAG;
	request_callbacks(c, flags);
}

/* Not inlined, like the others below: together they would exceed the stack. */
static __noinline int established(struct bpf_sock_ops *ops, struct bpf_sock *sk,
				  struct tcp_sock *tcp)
{
	struct thalweg_origin origin = {};
	struct shares shares = {};
	/* Its key, tag and time are found below. */
	struct request request;
	struct context c = {
		.ops = ops,
		.params = load_params(),
		.sk = sk,
		.tcp = tcp,
		.request = &request,
		.origin = &origin,
	};
	struct bpf_tcp_sock *tp;
	__u32 default_arm, ecn, permitted;
	int error = 0;

	__builtin_memset(&request.segs, 0,
			 sizeof(request) - __builtin_offsetof(struct request, segs));
	if (!find_maps(&c) || !find_key(&c))
		return 0;
	if (is_outside(&c, &default_arm)) {
		COUNT(&c, outside);
		return note_stranger(request.key.netns);
	}
	COUNT(&c, established);
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return 0;
	c.cookie = bpf_get_socket_cookie(ops);
	request.now_ns = bpf_ktime_get_ns();
	origin.hour = request.now_ns / THALWEG_HOUR_NS;
	ecn = tp->ecn_flags & TCP_ECN_ANY;
	if (ecn)
		origin.flags |= THALWEG_CONN_ECN;
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		origin.flags |= THALWEG_CONN_PASSIVE;
	origin.handshake_rtt_us = tp->srtt_us >> 3;
	origin.system_arm = current_arm(&c, default_arm);
	permitted = permitted_at_start(&c);
	if (!permitted) {
		origin.flags |= THALWEG_CONN_APP_OWNED;
		leave_alone(&c, THALWEG_REASON_APPLICATION);
	} else if (origin.system_arm == THALWEG_NO_ARM || default_arm != origin.system_arm) {
		leave_alone(&c, THALWEG_REASON_FOREIGN);
	} else {
		request.system_arm = origin.system_arm;
		request.allowed = (allowed_arms(&c, ecn) & permitted) | no_trials(&c);
		error = decide(&c, &shares);
	}
	if (!(origin.flags & THALWEG_CONN_DECIDED) && !c.params->advise)
		return 0;
	track(&c, tp);
	/*
	 * During warm-up there was no decision: it is counted, but makes no event. What is left
	 * alone has made its own.
	 */
	if (origin.flags & THALWEG_CONN_DECIDED && origin.reason != THALWEG_REASON_WARM_UP)
		send_decision(&c, error, &shares);
	return 0;
}

/*
 * Whether the losses of a connection are due to be evaluated, and which: on the system's
 * arm all of the stretch, on another one those after slow start and the last evaluation.
 */
static __always_inline int losses(struct context *c, const struct bpf_tcp_sock *tp)
{
	struct thalweg_conn *conn = c->conn;
	__u32 segs = tp->data_segs_out - conn->start_segs, looked;
	__u32 retrans = tp->total_retrans - conn->start_retrans;
	int other = conn->origin.arm != conn->origin.system_arm;

	c->request->now_ns = bpf_ktime_get_ns();
	if (!is_steady(c, tp)) {
		conn->slow_start_segs = segs;
		conn->slow_start_retrans = retrans;
		if (other) {
			conn->looked_segs = segs;
			conn->looked_retrans = retrans;
			return 0;
		}
	} else {
		note_loss_rtt(conn, tp->srtt_us >> 3);
	}
	if (segs - conn->looked_segs < conn->look_segs ||
	    c->request->now_ns - conn->look_ns < CHANGE_MIN_NS)
		return 0;
	looked = segs - conn->looked_segs;
	c->request->segs = looked;
	c->request->retrans = retrans - conn->looked_retrans;
	/* Evaluated again when it has sent as much again. */
	conn->look_segs = looked > LOOK_SEGS_MAX / 2 ? LOOK_SEGS_MAX : 2 * looked;
	conn->look_ns = c->request->now_ns;
	if (other) {
		conn->looked_segs = segs;
		conn->looked_retrans = retrans;
	}
	return 1;
}

/* A decision mid-flow, in one number: its three steps share no stack. */
static __always_inline __u64 packed(const struct request *r)
{
	const struct thalweg_decision *decision = &r->decision;

	return 1ull << 63 | (__u64)(r->allowed & 0xffff) << 40 |
	       (__u64)decision->propensity_q16 << 16 | (decision->reason & 0xff) << 8 |
	       (decision->arm & 0xff);
}

static __always_inline void unpack(struct request *r, __u64 number)
{
	r->allowed = number >> 40 & 0xffff;
	r->decision.propensity_q16 = number >> 16 & 0xffffff;
	r->decision.reason = number >> 8 & 0xff;
	r->decision.arm = number & 0xff;
}

/*
 * The change that is due for a connection to a host without record, by the network that
 * decided about it. 0: none.
 */
static __always_inline int change_by_group(struct context *c)
{
	__u32 level = (c->origin->flags & THALWEG_CONN_LEVEL_MASK) >> THALWEG_CONN_LEVEL_SHIFT;

	return level && group_key(c->ops, c->request, c->origin, level) && change(c->request) == 1;
}

/* Evaluates losses. Returns the decision that they lead to, packed, or 0. */
static __noinline __u64 retransmitted(struct bpf_sock_ops *ops)
{
	struct request request = {};
	struct context c = { .request = &request };
	struct bpf_tcp_sock *tp;
	__u32 ecn, permitted;
	int due;

	/*
	 * The most frequent case comes first: too few retransmissions to matter. Callbacks are on
	 * for connections without loss rule too, and for those that it is done with.
	 */
	if (!find_sock(&c, ops) || !find_conn(&c, ops) || keeps_arm(&c) ||
	    c.origin->flags & THALWEG_CONN_UNWATCHED)
		return 0;
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return 0;
	if (c.params->mode == THALWEG_MODE_CLASSIC) {
		request.segs = tp->segs_out;
		request.retrans = tp->total_retrans;
		request.now_ns = bpf_ktime_get_ns();
	} else if (!losses(&c, tp)) {
		return 0;
	}
	if (request.retrans <= request.segs >> (c.params->loss_shift & 63))
		return 0;
	if (c.params->mode == THALWEG_MODE_CLASSIC)
		c.origin->flags |= THALWEG_CONN_UNWATCHED;
	if (!find_maps(&c) || !find_tcp(&c))
		return 0;
	/* The losses of another congestion control say nothing about the arm. */
	if (c.origin->arm < THALWEG_MAX_ARMS && !has_its_arm(&c))
		return 0;
	ecn = c.origin->flags & THALWEG_CONN_ECN;
	permitted = permitted_arms(&c);
	if (!permitted || !find_key(&c))
		return 0;
	request.arm = c.origin->arm;
	request.system_arm = c.origin->system_arm;
	request.allowed = allowed_arms(&c, ecn) & permitted & 0xffff;
	due = change(&request);
	if (due == NO_RECORD)
		due = change_by_group(&c);
	return due == 1 ? packed(&request) : 0;
}

/*
 * The stretch so far belongs to the old arm, if the decision is for another one. Returns
 * the decision: a result that nobody used might be left out, and a pointer in its place.
 */
static __noinline __u64 score_before(struct bpf_sock_ops *ops, __u64 number)
{
	struct request request = {};
	struct context c = { .request = &request };
	struct bpf_tcp_sock *tp;

	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return number;
	tp = find_tcp(&c) ? bpf_tcp_sock(c.sk) : 0;
	/* Classic credits all to bbr. */
	if (!tp || c.params->dry_run || c.params->mode == THALWEG_MODE_CLASSIC)
		return number;
	if (c.origin->arm == (number & 0xff))
		return number;
	request.now_ns = bpf_ktime_get_ns();
	score(&c, tp, THALWEG_END_SWITCH);
	return number;
}

/* Moves the connection to the decision's arm; 0 or -errno of a refused one. */
static __always_inline int switch_arm(struct context *c, const struct bpf_tcp_sock *tp, __u32 arm)
{
	int error = set_arm(c, arm);

	if (c->params->mode != THALWEG_MODE_CLASSIC)
		start_stretch(c, tp, error ? c->origin->arm : arm);
	else if (!error)
		c->origin->arm = arm;
	c->origin->flags |= error ? THALWEG_CONN_SET_FAILED : THALWEG_CONN_SWITCHED;
	return error;
}

/* Carries out a decision mid-flow. */
static __noinline int take_over(struct bpf_sock_ops *ops, __u64 number)
{
	struct request request = {};
	struct context c = { .request = &request };
	struct bpf_tcp_sock *tp;
	int stays, error = 0;
	__u32 arm, reason;

	if (!prepare(&c, ops) || !find_conn(&c, ops) || !find_key(&c))
		return 0;
	tp = find_tcp(&c) ? bpf_tcp_sock(c.sk) : 0;
	if (!tp)
		return 0;
	request.now_ns = bpf_ktime_get_ns();
	unpack(&request, number);
	arm = request.decision.arm;
	reason = request.decision.reason;
	stays = arm == c.origin->arm;
	if (!stays) {
		if (reason == THALWEG_REASON_WITHDRAWN)
			COUNT(&c, withdrawn);
		else
			COUNT(&c, switched);
		if (!c.params->dry_run)
			error = switch_arm(&c, tp, arm);
	}
	/* Nothing more is decided for a connection that stays, or is back on the system's arm. */
	if (stays || arm == c.origin->system_arm || error)
		c.origin->flags |= THALWEG_CONN_UNWATCHED;
	c.origin->reason = reason;
	c.origin->chosen_arm = arm;
	c.origin->propensity_q16 = request.decision.propensity_q16;
	send_decision(&c, error, 0);
	return 0;
}

/*
 * Whether a change of state ends a stretch, or a part of it. As published, classic scores
 * when an orderly close starts, never otherwise.
 */
static __always_inline int is_of_interest(__u32 state)
{
	if (state == BPF_TCP_CLOSE || state == BPF_TCP_FIN_WAIT2)
		return 1;
	return load_params()->mode == THALWEG_MODE_CLASSIC &&
	       (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_CLOSE_WAIT);
}

/*
 * Notes under advice what a connection that is not decided about ends with: what its
 * application, a route or another program chose. Not inlined: state_changed has no stack left.
 */
static __noinline int note_own(struct bpf_sock_ops *ops)
{
	struct context c = {};

	if (!prepare(&c, ops) || !find_conn(&c, ops) || !find_tcp(&c))
		return 0;
	if (app_owned(&c))
		c.origin->flags |= THALWEG_CONN_APP_OWNED;
	else if (c.origin->flags & THALWEG_CONN_DECIDED)
		return 0;
	c.origin->arm = current_arm(&c, c.origin->arm);
	return 0;
}

static __noinline int state_changed(struct bpf_sock_ops *ops)
{
	__u32 old_state = ops->args[0], state = ops->args[1], end;
	struct request request = {};
	struct context c = { .request = &request };
	struct bpf_tcp_sock *tp;

	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return 0;
	request.now_ns = bpf_ktime_get_ns();
	if (state == BPF_TCP_FIN_WAIT2) {
		c.conn->acked_ns = request.now_ns;
		return 0;
	}
	if (c.params->advise)
		note_own(ops);
	tp = find_tcp(&c) ? bpf_tcp_sock(c.sk) : 0;
	if (!tp)
		return 0;
	COUNT(&c, closed);
	if (state == BPF_TCP_FIN_WAIT1) {
		end = THALWEG_END_FIN_LOCAL;
	} else if (state == BPF_TCP_CLOSE_WAIT) {
		end = THALWEG_END_FIN_REMOTE;
	} else {
		end = end_of(&c, old_state);
		if (c.params->mode == THALWEG_MODE_CLASSIC)
			c.origin->arm = THALWEG_NO_ARM;
	}
	score(&c, tp, end);
	__sync_val_compare_and_swap(&c.conn->cookie, c.cookie, 0);
	return 0;
}

/* A connection is established. The kernel's own structure is asked for once for all of this. */
static __always_inline void begin(struct bpf_sock_ops *ops)
{
	struct context c = { .sk = ops->sk };

	if (!c.sk || !find_tcp(&c) || is_local(ops, c.sk, c.tcp))
		return;
	/* Before the congestion control, which begins with it. */
	if (params.windows)
		choose_window(ops);
	established(ops, c.sk, c.tcp);
#ifdef THALWEG_KERNEL_BTF
	if (params.clamps)
		clamp_new(ops);
#endif
}

/* Most calls are of no interest, and end after a few instructions. */
SEC("sockops")
int learn_sockops(struct bpf_sock_ops *ops)
{
	__u32 op = ops->op;
	__u64 decision;

	if (op < BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
	if (op <= BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		begin(ops);
	} else if (op == BPF_SOCK_OPS_RETRANS_CB) {
		decision = retransmitted(ops);
		if (decision)
			take_over(ops, score_before(ops, decision));
	} else if (op == BPF_SOCK_OPS_RTT_CB) {
		/* Later ones are of no interest. */
		if (params.windows && ops->data_segs_out <= FIRST_SEGS)
			check_window(ops, 1);
	} else if (op == BPF_SOCK_OPS_STATE_CB && ops->args[1] == BPF_TCP_ESTABLISHED) {
		if (params.windows)
			check_window(ops, 0);
	} else if (op == BPF_SOCK_OPS_STATE_CB && is_of_interest(ops->args[1])) {
		if (params.windows && ops->args[1] == BPF_TCP_CLOSE)
			score_window(ops);
		state_changed(ops);
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
		/* A policy's window stays its own. */
		if (arms)
			*arms &= THALWEG_OWNED_WINDOW;
	}
	/* The kernel copied at most one page of the value; 0 = use the original. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return 1;
}

/*
 * Not attached. The agent runs it (BPF_PROG_RUN) for a host when the slot of an arm goes
 * to another: it cannot take the record's lock itself. The packet is a struct
 * thalweg_forget.
 */
SEC("tc")
int forget_arms(struct __sk_buff *packet)
{
	struct thalweg_forget forget;

	if (bpf_skb_load_bytes(packet, 0, &forget, sizeof(forget)))
		return -1;
	forget_arms_of(&forget);
	return 0;
}
