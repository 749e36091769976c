/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: initial windows (thalweg_window.h), chosen before the congestion control. The choice
 * is a chain of calls apart from that of the congestion control, so each has a whole stack.
 */
#ifndef THALWEG_LEARN_WINDOW_H
#define THALWEG_LEARN_WINDOW_H

#include "learn_clamp.h"
#include "learn_steps.h"

/* The largest finite pacing rate, bytes per second in 32 bits. */
#define PACED 0xfffffffeu
#define UNPACED 0xffffffffu
#define UNLIMITED (~0ul)

/* More data segments than a connection has sent when the first RTT sample of data comes. */
#define FIRST_SEGS (4 * THALWEG_WINDOW_MOST)

/*
 * TCP must pace a window that is larger than usual: as a burst it would overflow queues.
 * It does so under fq, and where the pacing rate has been finite once: so the limit is taken
 * back at once. The kernel has no way to end its own pacing. 0 or -errno.
 */
static __always_inline int pace(struct context *c, struct bpf_sock_ops *ops)
{
	__u32 rate = 0;
	int error;

#ifdef THALWEG_KERNEL_BTF
	/* An application's limit of 34 Gbit/s or more does not fit into 32 bits. */
	if (((struct sock *)c->tcp)->sk_max_pacing_rate != UNLIMITED)
		return 0;
#endif
	error = bpf_getsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	if (error || rate != UNPACED)
		return error;
	rate = PACED;
	error = bpf_setsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	if (error)
		return error;
	rate = UNPACED;
	return bpf_setsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
}

/* Sets the initial window; 0 or -errno. */
static __always_inline int set_window(struct context *c, struct bpf_sock_ops *ops, int segments)
{
	int error = pace(c, ops);

	if (error)
		return error;
	return bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
}

/* Asks the groups, the narrowest first; the first that knows decides. */
static __always_inline void ask_about_window(struct context *c, struct shares *shares)
{
	struct thalweg_worths *worths = windows_known(c->request->key.netns);
	__u32 level;

	if (!worths)
		return;
	for (level = THALWEG_LEVEL_WINDOW_PREFIX; level < THALWEG_ALL_LEVELS; level++)
		if (asked_key(c->ops, c->request, c->origin, level, worths) &&
		    choose(c->request, shares)) {
			COUNT(c, windows);
			return;
		}
}

/*
 * Chooses the initial window of a connection that the learner decides about. A window that
 * is not the kernel's usual one is that of a route, of a policy, or of a lost SYN. Without an RTT
 * nothing is known of the path.
 */
static __noinline int choose_window(struct bpf_sock_ops *ops)
{
	struct thalweg_origin origin = {};
	struct shares shares = {};
	struct request request = {};
	struct context c = { .request = &request, .origin = &origin };
	struct handed_window *handed = get_handed();
	__u32 default_arm, segments, share_q16;
	struct bpf_tcp_sock *tp;
	int error = 0;

	if (!handed || !prepare(&c, ops) || !find_key(&c) || is_outside(&c, &default_arm))
		return 0;
	handed->cookie = 0;
	tp = find_tcp(&c) ? bpf_tcp_sock(c.sk) : 0;
	if (!tp)
		return 0;
	if (tp->snd_cwnd != THALWEG_WINDOW_LEAST || tp->srtt_us >> 3 < THALWEG_WINDOW_RTT_US ||
	    leaves_window(&c)) {
		COUNT(&c, windows_left);
		return 0;
	}
	request.now_ns = bpf_ktime_get_ns();
	request.decision.propensity_q16 = THALWEG_ONE_Q16;
	/* What is taken back as a whole includes windows. */
	if (!(draw(&c) & IN_CONTROL) && !(c.arms->reverted & THALWEG_NO_TRIALS)) {
		if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
			origin.flags = THALWEG_CONN_PASSIVE;
		origin.handshake_rtt_us = tp->srtt_us >> 3;
		request.system_arm = 0;
		request.allowed = (c.params->windows & 0xffff) | no_trials(&c);
		ask_about_window(&c, &shares);
	}
	segments = THALWEG_WINDOW_LEAST + 2 * (request.decision.arm & THALWEG_ARM_MASK);
	share_q16 = request.decision.propensity_q16;
	handed->choice.chosen = segments;
	handed->choice.segments = segments;
	handed->choice.propensity_q16 = share_q16 - (share_q16 >> 16);
	if (segments != THALWEG_WINDOW_LEAST && !c.params->dry_run)
		error = set_window(&c, ops, segments);
	if (error)
		COUNT(&c, windows_refused);
	else if (segments != THALWEG_WINDOW_LEAST && !c.params->dry_run)
		COUNT(&c, windows_raised);
	if (error || c.params->dry_run)
		handed->choice.segments = THALWEG_WINDOW_LEAST;
	handed->cookie = bpf_get_socket_cookie(ops);
	return 0;
}

/*
 * Reads the initial window while it is in force: after all programs have seen the connection
 * established, which only the accepting end is told of, and with the first RTT sample of data
 * (`last`). Another program may have replaced it, or TCP after a pause. What ran instead is not
 * scored. After a retransmission it may be TCP's answer to the loss.
 */
static __noinline int check_window(struct bpf_sock_ops *ops, int last)
{
	struct thalweg_window_choice *window;
	struct context c = {};
	struct bpf_tcp_sock *tp;

	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return 0;
	window = &c.conn->window;
	if (!window->segments || window->chosen & THALWEG_WINDOW_READ)
		return 0;
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return 0;
	/* The usual one is read once: what may replace it does so at the start. */
	if (last || window->segments == THALWEG_WINDOW_LEAST)
		window->chosen |= THALWEG_WINDOW_READ;
	if (tp->snd_cwnd == window->segments || tp->total_retrans)
		return 0;
	window->segments = 0;
	COUNT(&c, windows_overridden);
	return 0;
}

/* Scores the initial window of a connection that is over. */
static __noinline int score_window(struct bpf_sock_ops *ops)
{
	struct request request = {};
	struct lesson lesson = {};
	struct context c = { .request = &request };
	struct handed_window *handed = get_handed();
	struct news *news = get_news();
	struct bpf_tcp_sock *tp;
	__u32 segments, level;

	if (!handed || !news || !prepare(&c, ops) || !find_conn(&c, ops))
		return 0;
	handed->cookie = 0;
	segments = c.conn->window.segments;
	if (!segments || c.origin->flags & (THALWEG_CONN_SWITCHED | THALWEG_CONN_LONG))
		return 0;
	tp = find_tcp(&c) ? bpf_tcp_sock(c.sk) : 0;
	if (!tp || owned_window(&c) || (c.params->clamps && has_clamp(&c)))
		return 0;
	/* Without a sample of the RTT nothing but a loss hides which window ran. */
	if (!(c.conn->window.chosen & THALWEG_WINDOW_READ) && !tp->total_retrans)
		return 0;
	request.now_ns = bpf_ktime_get_ns();
	take_sample(&c, tp, end_of(&c, ops->args[0]), &lesson.sample);
	if (!thalweg_window_tells(&lesson.sample) || !find_key(&c))
		return 0;
	thalweg_window_report(&lesson.sample, &news->report);
	news->tag = request.tag;
	news->is_new = 0;
	news->wider.tag = 0;
	handed->cost_q10 =
		thalweg_relative_q16(news->report.cost_q16, news->report.system_q16) >> 6;
	handed->cookie = c.cookie;
	request.arm = (segments - THALWEG_WINDOW_LEAST) / 2;
	request.system_arm = 0;
	COUNT(&c, windows_scored);
	for (level = THALWEG_LEVEL_WINDOW_NAMESPACE; level >= THALWEG_LEVEL_WINDOW_PREFIX; level--)
		if (group_key(ops, &request, c.origin, level) && learn_group(&request, &lesson))
			adopt_group(&request);
	return 0;
}

#endif
