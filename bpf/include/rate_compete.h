/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rate: beside flows that fill the queue, such as cubic's. They leave nothing to a flow
 * that goes by the queue. It then goes by losses as they do (as Copa, NSDI 2018, does),
 * until they are gone.
 */
#ifndef THALWEG_RATE_COMPETE_H
#define THALWEG_RATE_COMPETE_H

#include "rate_round.h"

/*
 * The window of RFC 9438, 4.3, which is Reno's share: what a loss leaves, and what a round
 * without one adds. More would harm the others.
 */
#define FAIR_KEEP_Q16 45875
#define FAIR_ADD 542
/* Of a fair window in its unit, segments / 1024. */
#define FAIR_SHIFT 10
#define FAIR_MAX ((__u32)WINDOW_MAX << FAIR_SHIFT)
#define FAIR_MIN (2u << FAIR_SHIFT)
#define FAIR_FIRST (FIRST_WINDOW << FAIR_SHIFT)
/* A probe drained the queue if less than this part of it is left. */
#define DRAINED_PART 4
/*
 * ... or less than half the base, and than this if the flow is not starved: bbr, too, keeps a
 * queue, but a short one, and leaves others their share.
 */
#define SHORT_QUEUE_US 8000u
/*
 * Common probes that find a queue, after which it counts as part of the path: the path has
 * become longer.
 */
#define UNDRAINED_MAX 4

/* Whether the flow competes, or will after its probe. */
static __always_inline int is_competing(const struct rate *ca)
{
	return ca->phase == COMPETE || (ca->phase == PROBE_RTT && ca->resumed == COMPETE);
}

/*
 * Whether the common probe that ends has left a queue. Flows under this control drain theirs,
 * so it is that of others. Only something sent late in the probe can tell.
 */
static __always_inline int is_undrained(const struct rate *ca, __u32 prior_us, __u32 base_us)
{
	__u32 found_us = ca->round_rtt_us, short_us = base_us / 2;

	if (!(ca->flags & STARVED) && short_us < SHORT_QUEUE_US)
		short_us = SHORT_QUEUE_US;
	return ca->flags & SURE && ca->flags & LATE && ca->undrained < UNDRAINED_MAX &&
	       found_us > prior_us + short_us && ca->prior_mean_us > prior_us &&
	       (found_us - prior_us) * DRAINED_PART > ca->prior_mean_us - prior_us;
}

/* Makes TCP send its fair window, a little ahead of ACKs. */
static __always_inline void apply_fair(struct sock *sk, struct rate *ca)
{
	__u64 rate = ca->flags & RAMP ? 2 * ca->rate : ca->rate + ca->rate / 4;

	ca->window = thalweg_min(ca->fair_window >> FAIR_SHIFT, tcp_sk(sk)->snd_cwnd_clamp);
	if (!ca->window)
		ca->window = 1;
	sk->sk_pacing_rate = thalweg_min(rate, sk->sk_max_pacing_rate);
}

/* The first fair window: that of the present rate. */
static __always_inline void start_competing(struct rate *ca, const struct tcp_sock *tp)
{
	__u64 window = (ca->rate * ca->prior_mean_us / US_PER_S << FAIR_SHIFT) / mss_of(tp);

	ca->fair_window = thalweg_min(max_u64(window, FAIR_FIRST), FAIR_MAX);
	ca->flags |= RAMP;
}

/*
 * A round of COMPETE: sets the bounds of the rate to what its window sends. Half as much again
 * until the first loss or mark.
 */
static __always_inline void compete(struct rate *ca, const struct tcp_sock *tp, struct round *round)
{
	__u64 rtt_us = max_u64(ca->mean_rtt >> MEAN_SHIFT, 1), rate;
	int is_full = tp->lost != ca->round_lost || tp->delivered_ce != ca->round_marked;

	round->keep_q16 = THALWEG_ONE_Q16;
	round->flags |= THALWEG_RATE_COMPETING;
	if (is_full && !(ca->flags & CUT)) {
		round->keep_q16 = FAIR_KEEP_Q16;
		ca->flags &= ~RAMP;
	} else if (!(ca->flags & LIMITED)) {
		ca->fair_window += ca->flags & RAMP ? ca->fair_window / 2 : FAIR_ADD;
	}
	ca->fair_window = thalweg_min(ca->fair_window, FAIR_MAX);
	rate = ((__u64)ca->fair_window * mss_of(tp) >> FAIR_SHIFT) * US_PER_S / rtt_us;
	round->floor = thalweg_min(max_u64(rate, THALWEG_RATE_FLOOR), THALWEG_MAX_RATE);
	round->cap = round->floor;
	ca->fair_window = max_u64((__u64)ca->fair_window * round->keep_q16 >> 16, FAIR_MIN);
}

/* A time-out: half the window. */
static __always_inline void halve_fair(struct rate *ca)
{
	ca->fair_window = max_u64(ca->fair_window / 2, FAIR_MIN);
}

#endif
