/* SPDX-License-Identifier: GPL-2.0-only */
/* rate: the measurements of a round, and the resulting bounds for the next rate. */
#ifndef THALWEG_RATE_ROUND_H
#define THALWEG_RATE_ROUND_H

#include "rate_state.h"

/* Largest burst of TCP, whatever the rate: the resolution of measurements. */
#define BURST_BYTES 65536
/* Base round trips in which a queue should drain. */
#define DRAIN_ROUNDS 4
/*
 * Less than one packet lost in LOSS_SHARE counts as random loss. Without a queue nothing
 * overflows: then it is one in CLEAR_LOSS_SHARE, and CLEAR_LOSSES beside, as one packet is
 * a large share of a short round.
 */
#define LOSS_SHARE 50
#define CLEAR_LOSS_SHARE 10
#define CLEAR_LOSSES 2
/* A queue is seen from this part of the target on. */
#define QUEUE_PART 4
/*
 * With fewer bytes in a base round trip, a round has one burst or two. Then its delivery
 * rate is inexact, and few round-trip times are measured.
 */
#define COARSE_BYTES 16384
/*
 * Others fill the queue of a flow that is at the lowest rates and above its target, or so far
 * above it after so many decisions that reduced the rate.
 */
#define STARVED_RATE (2 * THALWEG_RATE_FLOOR)
#define STARVED_TARGETS 4
#define STARVED_FALLS 12

/* A finished round: its measurements, and their consequences for the rate. */
struct round {
	__u64 delivered_rate;
	__u64 arriving; /* the higher rate of two rounds, because ACKs of both may come in one */
	__u64 floor;
	__u64 cap;
	__u32 rtt_us; /* the base plus the queue */
	__u32 base_us;
	__u32 keep_q16;
	__u32 flags; /* enum thalweg_rate_flag */
	int coarse;
	int at_target;
	int starved; /* others seem to fill the queue */
};

/* The model's signal for this rate and queue, Q24. */
static __always_inline __u64 signal_q24(const struct thalweg_rate_settings *set, __u64 rate,
					__u64 rtt_us, __u64 base_us)
{
	__u64 inflation = thalweg_inflation_q16(rtt_us * 1000, base_us * 1000);
	__u64 root = thalweg_root(thalweg_share_q48(rate, set->reference_rate));
	__u64 excess = thalweg_positive((__s64)(inflation - set->model.offset_q16));

	return (excess * root) >> 16;
}

/*
 * Whether the rate is so low that a round has only a burst or two. Not by the delivery
 * rate: while an application pauses, its flow sends little, but not coarsely.
 */
static __always_inline int is_coarse(const struct rate *ca, __u32 base_us)
{
	return ca->phase != STARTUP && ca->rate * base_us < COARSE_BYTES * US_PER_S;
}

/* Share of the rate that is kept after the round's losses and marks, Q16. */
static __always_inline __u32 keep_q16(const struct rate *ca, __u64 delivered, __u64 lost,
				      __u64 marked, int queue)
{
	__u64 keep = THALWEG_ONE_Q16, all = delivered + lost;
	int is_overflow;

	if (ca->flags & CUT || !all)
		return keep;
	if (queue)
		is_overflow = lost && lost * LOSS_SHARE >= all;
	else
		is_overflow =
			lost > CLEAR_LOSSES && (lost - CLEAR_LOSSES) * CLEAR_LOSS_SHARE >= all;
	if (is_overflow)
		keep = thalweg_positive((__s64)(THALWEG_ONE_Q16 - lost * THALWEG_ONE_Q16 / all));
	if (keep < THALWEG_ONE_Q16 / 2)
		keep = THALWEG_ONE_Q16 / 2;
	/* A round with nothing but marks costs a fifth (RFC 8511). */
	marked = thalweg_min(marked, all);
	return keep - keep * marked / (5 * all);
}

/*
 * The mean of the round, or of the one before if all its ACKs were delayed. The mean does
 * not depend on how many round-trip times a round has: the shortest one would be shorter
 * the faster a flow is, and fast flows would take from slow ones.
 */
static __always_inline __u32 queue_us(const struct rate *ca)
{
	__u32 mean_us = ca->mean_rtt >> MEAN_SHIFT;

	return mean_us > ca->min_rtt_us ? mean_us - ca->min_rtt_us : 0;
}

/* The measurements of the round. */
static __always_inline void measure(struct rate *ca, const struct tcp_sock *tp,
				    const struct thalweg_rate_settings *set, __u32 base_us,
				    struct round *round)
{
	__u32 elapsed_us = (__u32)tp->tcp_mstamp - ca->round_us;
	__u64 delivered = tp->delivered - ca->round_delivered, signal;

	if (!elapsed_us)
		elapsed_us = 1;
	round->delivered_rate = delivered * mss_of(tp) * US_PER_S / elapsed_us;
	round->arriving = round->delivered_rate;
	if (ca->phase != COMPETE)
		round->arriving = max_u64(round->arriving, (__u64)ca->last_delivered << 10);
	if (ca->phase == STEADY)
		ca->last_delivered = thalweg_min(round->delivered_rate >> 10, THALWEG_U32_MAX);
	round->coarse = is_coarse(ca, base_us);
	round->base_us = base_us;
	round->rtt_us = base_us + queue_us(ca);
	signal = signal_q24(set, ca->rate, round->rtt_us, base_us);
	round->at_target = signal >= set->model.target_q24;
	round->starved = ca->phase == STEADY && round->at_target &&
			 (ca->rate <= STARVED_RATE ||
			  (ca->falls >= STARVED_FALLS &&
			   signal >= STARVED_TARGETS * (__u64)set->model.target_q24));
	round->keep_q16 = keep_q16(ca, delivered, tp->lost - ca->round_lost,
				   tp->delivered_ce - ca->round_marked,
				   signal * QUEUE_PART >= set->model.target_q24);
	if (ca->flags & LIMITED)
		round->flags |= THALWEG_RATE_LIMITED;
}

/* The bounds of the next rate. */
static __always_inline void bound(const struct rate *ca, const struct tcp_sock *tp,
				  struct round *round)
{
	__u64 arriving = round->arriving, base_us = round->base_us;
	__u64 burst, used, queue, drained;

	/*
	 * An unused rate does not grow, however empty the model sees the queue, and decays after
	 * a while. The decay is left out if the application limits the rate.
	 */
	burst = thalweg_min(BURST_BYTES, ca->window * mss_of(tp));
	used = 2 * arriving + burst * US_PER_S / base_us;
	round->cap = ca->rate - (ca->flags & LIMITED ? 0 : ca->rate / 8);
	round->cap = thalweg_min(max_u64(round->cap, used), THALWEG_MAX_RATE);
	/*
	 * Below the delivery rate only by what drains the queue in DRAIN_ROUNDS: a quarter at
	 * most, and a sixteenth if no queue is seen. The model would go on for the rounds in
	 * which it still sees the queue. It would then need many more to recover from a rate
	 * that leaves the link idle.
	 */
	queue = thalweg_min(max_u64(round->rtt_us - base_us, base_us / 4), base_us);
	drained = arriving - arriving * queue / (DRAIN_ROUNDS * base_us);
	round->floor = max_u64(thalweg_min(ca->rate, drained), THALWEG_RATE_FLOOR);
	/*
	 * Both bounds hold a flow to its present rate. Flows become equal only because the model
	 * takes more from the faster one. With a delivery rate known only to a burst, the bounds
	 * would also change rates by chance, most at low rates.
	 */
	if (round->coarse)
		round->floor = THALWEG_RATE_FLOOR;
	/*
	 * While there is a queue, a rate above the delivery rate only lengthens it. The model
	 * sees the queue rounds late and reduces the rate in small steps.
	 */
	if (ca->phase != STARTUP && round->at_target && !round->coarse)
		round->cap = thalweg_min(round->cap, max_u64(arriving * 9 / 8, ca->rate / 2));
	if (ca->flags & LIMITED || round->keep_q16 < THALWEG_ONE_Q16) {
		round->flags |= THALWEG_RATE_HELD;
		round->cap = thalweg_min(ca->rate, round->cap);
	}
}

#endif
