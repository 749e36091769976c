/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The learner's arithmetic, freestanding: no helpers, no clock, no randomness
 * of its own. It compiles for BPF and natively. crates/core is the documented
 * reference of the same arithmetic and docs/learner.md says it in words; the
 * vectors in tests/vectors/ keep the three bit-identical.
 *
 * Masks such as `arm & THALWEG_ARM_MASK` are there for the verifier: callers
 * pass indices below THALWEG_MAX_ARMS.
 */
#ifndef THALWEG_ALGO_H
#define THALWEG_ALGO_H

#include "thalweg_abi.h"

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define THALWEG_ARM_MASK (THALWEG_MAX_ARMS - 1)
#define THALWEG_U64_MAX (~(__u64)0)
#define THALWEG_U32_MAX (~(__u32)0)

/*
 * The number x, which the BPF verifier does not know. It follows each known
 * number through every branch by itself, and a choice among 16 arms has more
 * paths than it is willing to walk; of unknown numbers it follows one.
 */
#ifdef __bpf__
static volatile __u32 thalweg_zero; /* never written */
#define THALWEG_UNKNOWN(x) ((x) + thalweg_zero)
#else
#define THALWEG_UNKNOWN(x) (x)
#endif

/* classic: scale of both terms of the cost. */
#define THALWEG_CLASSIC_SCALE 1000000u
/* classic: the learning rate is 1 / 2^2. */
#define THALWEG_CLASSIC_RATE_SHIFT 2
/* classic: one choice in 20 is random. */
#define THALWEG_CLASSIC_EPSILON 20
/* classic: connections to a host before the first choice. */
#define THALWEG_CLASSIC_MIN_CONNECTIONS 4
/* classic: index of bbr among its four fixed arms. */
#define THALWEG_CLASSIC_BBR 1

/* thalweg: offset that keeps a cost above 0 whatever the rate; bits, Q16. */
#define THALWEG_COST_OFFSET_Q16 (64u << 16)
/* thalweg: a measurement counts as no worse, no better than the mean by more; bits, Q16. */
#define THALWEG_CLIP_WORSE_Q16 (1u << 16)
#define THALWEG_CLIP_BETTER_Q16 (4u << 16)
/* thalweg: a sample clipped for being worse leaves 1/2^this of the evidence. */
#define THALWEG_SURPRISE_SHIFT 1
/* thalweg: evidence from which on the clip applies. */
#define THALWEG_CLIP_WEIGHT_Q16 (1u << 15)
/* thalweg: handicap of an arm without evidence against the system's own; bits, Q16. */
#define THALWEG_CAUTION_Q16 (1u << 15)
/* thalweg: the loss rule changes arms for an advantage of half a bit at least. */
#define THALWEG_RESCUE_GAP_Q16 (1u << 15)
/* thalweg: least weight of a scored measurement, and of a time-out. */
#define THALWEG_WEIGHT_MIN_Q16 (1u << 12)
#define THALWEG_WEIGHT_TIMEOUT_Q16 (1u << 15)
/* thalweg: a time-out after this many segments is scored whatever arrived. */
#define THALWEG_TIMEOUT_SEGS 32
/* thalweg: kernel's rate sample this many times above the mean = application-limited. */
#define THALWEG_APP_LIMITED_RATIO 16
/* thalweg: ... unless more than one segment in this many was lost. */
#define THALWEG_APP_LIMITED_LOSS 256

/* thalweg: after this many trials without a measurement, an untried arm's share halves ... */
#define THALWEG_FRUITLESS_HALF 8
/* ... and does not fall further after this many: an eighth. */
#define THALWEG_FRUITLESS_MAX 56

/* What thalweg_decide() answers. */
struct thalweg_decision {
	__u32 arm; /* index, or THALWEG_NO_ARM: leave the connection alone */
	__u32 reason; /* enum thalweg_reason */
	__u32 propensity_q16;
};

/* What thalweg_score() answers. */
struct thalweg_verdict {
	__u32 outcome; /* enum thalweg_outcome */
	__u32 weight_q16;
	__u64 cost;
};

static __always_inline __u64 thalweg_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/* Counts without wrapping. */
static __always_inline void thalweg_increment(__u32 *count)
{
	if (*count != THALWEG_U32_MAX)
		(*count)++;
}

static __always_inline __u64 thalweg_distance(__u64 a, __u64 b)
{
	return a < b ? b - a : a - b;
}

/* Moves `old` towards `new` by weight / total of the way, rounding towards `old`. */
static __always_inline __u64 thalweg_blend(__u64 old, __u64 new, __u64 weight, __u64 total)
{
	__u64 step = thalweg_distance(old, new) * weight / total;

	return new > old ? old + step : old - step;
}

/*
 * log2(x) in Q16; 0 for x = 0. Piecewise parabola through the powers of two,
 * exact there, never off by more than 0.009 bits, never falling.
 */
static __always_inline __u32 thalweg_log2_q16(__u64 x)
{
	__u32 whole = 63, fraction;

	if (!x)
		return 0;
	/* Normalise by halving steps: BPF has no count-leading-zeros. */
	if (!(x >> 32)) {
		x <<= 32;
		whole -= 32;
	}
	if (!(x >> 48)) {
		x <<= 16;
		whole -= 16;
	}
	if (!(x >> 56)) {
		x <<= 8;
		whole -= 8;
	}
	if (!(x >> 60)) {
		x <<= 4;
		whole -= 4;
	}
	if (!(x >> 62)) {
		x <<= 2;
		whole -= 2;
	}
	if (!(x >> 63)) {
		x <<= 1;
		whole -= 1;
	}
	fraction = (x << 1) >> 48;
	/* 22528 = 0.34375 in Q16, the bulge of log2 over the chord. */
	return (whole << 16) + fraction +
	       (((((__u64)fraction * (THALWEG_ONE_Q16 - fraction)) >> 16) * 22528) >> 16);
}

/* Bytes per second, saturating; a duration of 0 counts as 1 us. */
static __always_inline __u64 thalweg_rate(__u64 bytes, __u64 duration_us)
{
	__u64 per_us;

	if (!duration_us)
		duration_us = 1;
	if (bytes <= THALWEG_U64_MAX / 1000000)
		return bytes * 1000000 / duration_us;
	per_us = bytes / duration_us;
	return per_us > THALWEG_U64_MAX / 1000000 ? THALWEG_U64_MAX : per_us * 1000000;
}

/*
 * thalweg's cost of a measurement in bits, Q16, below 2^32: 64 - log2(rate) +
 * latency_weight * log2(srtt + guard). A rate twice as high costs one bit less.
 */
static __always_inline __u64 thalweg_cost(__u64 rate, __u32 srtt_us,
					  const struct thalweg_params *params)
{
	__u64 latency = thalweg_log2_q16((__u64)srtt_us + params->latency_guard_us);

	latency = (latency * params->latency_weight_q16) >> 16;
	return thalweg_min(THALWEG_COST_OFFSET_Q16 - thalweg_log2_q16(rate) + latency,
			   THALWEG_U32_MAX);
}

/* The published rate of a connection: delivered packets * MSS / interval, bytes per us. */
static __always_inline __u64 thalweg_classic_rate(const struct thalweg_sample *sample)
{
	if (!sample->rate_interval_us)
		return 0;
	return sample->rate_delivered_bytes / sample->rate_interval_us;
}

/* (above - base) * S / base without overflow: saturates where the product would. */
static __always_inline __u64 thalweg_classic_term(__u64 excess, __u64 base)
{
	if (!base)
		return 0;
	if (excess > THALWEG_U64_MAX / THALWEG_CLASSIC_SCALE)
		return THALWEG_U64_MAX / 2;
	return thalweg_min(excess * THALWEG_CLASSIC_SCALE / base, THALWEG_U64_MAX / 2);
}

/*
 * The published cost; it lowers the host's minimum RTT and raises its maximum
 * rate on the way, as published. `rate` is the arm's highest, bytes per us.
 */
static __always_inline __u64 thalweg_classic_cost(struct thalweg_host *host, __u32 min_rtt_us,
						  __u64 rate)
{
	if (!host->min_rtt_us || min_rtt_us < host->min_rtt_us)
		host->min_rtt_us = min_rtt_us;
	if (!host->max_rate || rate > host->max_rate)
		host->max_rate = rate;
	return thalweg_classic_term(min_rtt_us - host->min_rtt_us, host->min_rtt_us) +
	       thalweg_classic_term(host->max_rate - rate, host->max_rate);
}

/* The published delta rule: the first cost as it is, then a quarter of the way. */
static __always_inline __u64 thalweg_classic_update(__u64 value, __u64 cost)
{
	if (!value)
		return cost;
	if (cost > value)
		return value + ((cost - value) >> THALWEG_CLASSIC_RATE_SHIFT);
	return value - ((value - cost) >> THALWEG_CLASSIC_RATE_SHIFT);
}

/* Evidence halves once per half-life, in whole steps. */
static __always_inline void thalweg_forget(struct thalweg_host *host,
					   const struct thalweg_params *params, __u64 now_ns)
{
	__u64 steps;
	__u32 i;

	if (!host->forgot_ns || !params->half_life_ns) {
		host->forgot_ns = now_ns;
		return;
	}
	if (now_ns <= host->forgot_ns)
		return;
	steps = (now_ns - host->forgot_ns) / params->half_life_ns;
	if (!steps)
		return;
	host->forgot_ns += steps * params->half_life_ns;
	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		host->arms[i].weight_q16 = steps < 32 ? host->arms[i].weight_q16 >> steps : 0;
}

/*
 * What an arm is judged by, bits in Q16: its mean cost, and for every arm but the
 * system's own a handicap of CAUTION / (1 + evidence).
 */
static __always_inline __u64 thalweg_judged_q16(const struct thalweg_host *host, __u32 i,
						__u32 system_arm)
{
	const struct thalweg_arm_state *arm = &host->arms[i & THALWEG_ARM_MASK];

	if (i == system_arm)
		return arm->value;
	return arm->value +
	       ((__u64)THALWEG_CAUTION_Q16 << 16) / ((__u64)THALWEG_ONE_Q16 + arm->weight_q16);
}

/* Best-judged arm among the measured ones of `allowed`, or THALWEG_NO_ARM. */
static __always_inline __u32 thalweg_best(const struct thalweg_host *host, __u32 allowed,
					  __u32 system_arm)
{
	__u32 i, best = THALWEG_NO_ARM;
	__u64 lowest = 0;

	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		__u64 judged;

		if (!(allowed & (1u << i)) || !host->arms[i].weight_q16)
			continue;
		judged = thalweg_judged_q16(host, i, system_arm);
		if (best == THALWEG_NO_ARM || judged < lowest ||
		    (judged == lowest && i == system_arm)) {
			best = THALWEG_UNKNOWN(i);
			lowest = judged;
		}
	}
	return best;
}

/*
 * Probability (Q16) of a measured arm that is not the best: 1 / (2 * arms +
 * gap_scale * gap * evidence). Inverse gap weighting: rarely where the gap is
 * wide and well known, often where it is narrow or the evidence old.
 */
static __always_inline __u32 thalweg_explore_q16(__u64 gap_q16, __u32 weight_q16, __u32 arms,
						 __u32 gap_scale)
{
	__u64 known = (thalweg_min(gap_q16, THALWEG_U32_MAX) * weight_q16) >> 16;

	known = thalweg_min(known, THALWEG_U32_MAX) * thalweg_min(gap_scale, 1u << 20);
	return ((__u64)1 << 32) / (((__u64)2 * arms << 16) + known);
}

/* Number of arms in a mask of at most 16. */
static __always_inline __u32 thalweg_count(__u32 mask)
{
	mask = (mask & 0x5555) + ((mask >> 1) & 0x5555);
	mask = (mask & 0x3333) + ((mask >> 2) & 0x3333);
	mask = (mask & 0x0f0f) + ((mask >> 4) & 0x0f0f);
	return (mask & 0xff) + (mask >> 8);
}

/* Arms of `allowed` without any evidence. */
static __always_inline __u32 thalweg_untried(const struct thalweg_host *host, __u32 allowed)
{
	__u32 i, mask = 0;

	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		if (allowed & (1u << i) && !host->arms[i].weight_q16)
			mask |= THALWEG_UNKNOWN(1u << i);
	return mask;
}

/* Probability (Q16) that thalweg_decide() takes arm `i`, if `i` is not `best`. */
static __always_inline __u32 thalweg_propensity_q16(const struct thalweg_host *host, __u32 i,
						    __u32 system_arm, __u32 allowed, __u32 untried,
						    __u64 lowest,
						    const struct thalweg_params *params)
{
	const struct thalweg_arm_state *arm = &host->arms[i & THALWEG_ARM_MASK];
	__u32 fruitless;

	if (!(allowed & (1u << i)))
		return 0;
	if (untried & (1u << i)) {
		/* Half for all first trials, less the more of them brought no measurement. */
		fruitless = arm->chosen > arm->scored ? arm->chosen - arm->scored : 0;
		fruitless = thalweg_min(fruitless, THALWEG_FRUITLESS_MAX);
		return THALWEG_ONE_Q16 / 2 * THALWEG_FRUITLESS_HALF /
		       (thalweg_count(untried) * (THALWEG_FRUITLESS_HALF + fruitless));
	}
	return thalweg_explore_q16(thalweg_judged_q16(host, i, system_arm) - lowest,
				   arm->weight_q16, thalweg_count(allowed), params->gap_scale);
}

/* The published choice: lowest value, ties at random, one in 20 at random. */
static __always_inline void thalweg_classic_decide(const struct thalweg_host *host, __u32 allowed,
						   const __u32 *random,
						   struct thalweg_decision *out)
{
	__u32 i, arms, ties = 0, tie_count, nth, greedy = 0, pick;
	__u64 lowest = THALWEG_U64_MAX;

	arms = thalweg_count(allowed);
	if (host->connections <= THALWEG_CLASSIC_MIN_CONNECTIONS || !arms) {
		out->arm = THALWEG_NO_ARM;
		out->reason = THALWEG_REASON_WARM_UP;
		out->propensity_q16 = THALWEG_ONE_Q16;
		return;
	}
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		__u64 value = host->arms[i].value;

		if (!(allowed & (1u << i)) || value > lowest)
			continue;
		if (value < lowest)
			ties = 0;
		ties |= THALWEG_UNKNOWN(1u << i);
		lowest = value;
	}
	tie_count = thalweg_count(ties);
	nth = tie_count > 1 ? random[0] % tie_count : 0;
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		if (!(ties & (1u << i)))
			continue;
		if (!nth) {
			greedy = THALWEG_UNKNOWN(i);
			break;
		}
		nth--;
	}
	pick = greedy;
	if (random[1] % THALWEG_CLASSIC_EPSILON == 0) {
		nth = random[2] % arms;
		for (i = 0; i < THALWEG_MAX_ARMS; i++) {
			if (!(allowed & (1u << i)))
				continue;
			if (!nth) {
				pick = THALWEG_UNKNOWN(i);
				break;
			}
			nth--;
		}
	}
	out->arm = pick;
	out->reason = pick == greedy ? THALWEG_REASON_GREEDY : THALWEG_REASON_EXPLORE;
	out->propensity_q16 = THALWEG_ONE_Q16 / (THALWEG_CLASSIC_EPSILON * arms);
	if (ties & (1u << (pick & THALWEG_ARM_MASK)))
		out->propensity_q16 += THALWEG_ONE_Q16 * (THALWEG_CLASSIC_EPSILON - 1) /
				       (THALWEG_CLASSIC_EPSILON * tie_count);
}

/*
 * Chooses the arm of a new connection; the caller has counted the connection.
 * `allowed` is the mask of arms that may be taken, `system_arm` what the system
 * gave it, `random` three uniform numbers (thalweg uses the first).
 */
static __always_inline void thalweg_decide(const struct thalweg_host *host, __u32 system_arm,
					   __u32 allowed, const struct thalweg_params *params,
					   const __u32 *random, struct thalweg_decision *out)
{
	__u32 i, best, untried, left = THALWEG_ONE_Q16, ticket, pick, pick_q16;
	__u64 lowest;

	if (params->mode == THALWEG_MODE_CLASSIC) {
		thalweg_classic_decide(host, allowed, random, out);
		return;
	}
	best = thalweg_best(host, allowed, system_arm);
	if (best == THALWEG_NO_ARM || host->scored < params->warm_up) {
		out->arm = system_arm;
		out->reason = THALWEG_REASON_WARM_UP;
		out->propensity_q16 = THALWEG_ONE_Q16;
		return;
	}
	untried = thalweg_untried(host, allowed);
	lowest = thalweg_judged_q16(host, best, system_arm);
	ticket = random[0] & (THALWEG_ONE_Q16 - 1);
	pick = best;
	pick_q16 = 0;
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		__u32 share_q16;

		if (i == best)
			continue;
		share_q16 = thalweg_propensity_q16(host, i, system_arm, allowed, untried, lowest,
						   params);
		/* Tickets count down from the top, so that what is left is the best arm's. */
		if (pick == best && ticket < left && ticket >= left - share_q16) {
			pick = THALWEG_UNKNOWN(i);
			pick_q16 = share_q16;
		}
		left -= share_q16;
	}
	out->arm = pick;
	if (pick == best) {
		out->reason = THALWEG_REASON_GREEDY;
		out->propensity_q16 = left;
	} else {
		out->reason =
			untried & (1u << pick) ? THALWEG_REASON_UNTRIED : THALWEG_REASON_EXPLORE;
		out->propensity_q16 = pick_q16;
	}
}

/* Counts a decision that was put into effect (or would have been, in a dry run). */
static __always_inline void thalweg_count_decision(struct thalweg_host *host,
						   const struct thalweg_decision *decision)
{
	struct thalweg_arm_state *arm = &host->arms[decision->arm & THALWEG_ARM_MASK];

	if (decision->arm >= THALWEG_MAX_ARMS)
		return;
	thalweg_increment(&arm->chosen);
	if (decision->reason == THALWEG_REASON_GREEDY)
		thalweg_increment(&arm->greedy);
}

/*
 * The loss rule: the arm that a connection on `current` should move to after
 * `segs` segments of which `retrans` were retransmissions, or THALWEG_NO_ARM.
 */
static __always_inline __u32 thalweg_rescue(const struct thalweg_host *host, __u32 current,
					    __u64 segs, __u64 retrans, __u32 allowed,
					    const struct thalweg_params *params)
{
	const struct thalweg_arm_state *from, *to;
	__u32 target;

	if (retrans <= segs >> (params->loss_shift & 63))
		return THALWEG_NO_ARM;
	if (params->mode == THALWEG_MODE_CLASSIC)
		return current == THALWEG_CLASSIC_BBR ? THALWEG_NO_ARM : THALWEG_CLASSIC_BBR;
	if (segs < params->loss_min_segs)
		return THALWEG_NO_ARM;
	target = thalweg_best(host, allowed, current);
	if (target == THALWEG_NO_ARM || target == current)
		target = params->rescue_arm;
	if (target >= THALWEG_MAX_ARMS || target == current || !(allowed & (1u << target)))
		return THALWEG_NO_ARM;
	from = &host->arms[current & THALWEG_ARM_MASK];
	to = &host->arms[target & THALWEG_ARM_MASK];
	if (current < THALWEG_MAX_ARMS && from->weight_q16 && to->weight_q16 &&
	    to->value + THALWEG_RESCUE_GAP_Q16 > from->value)
		return THALWEG_NO_ARM;
	return target;
}

/* Whether a measurement says anything about the congestion control. */
static __always_inline __u32 thalweg_assess(const struct thalweg_sample *sample,
					    const struct thalweg_params *params)
{
	__u64 burst, mean;

	if (sample->bytes < params->score_min_bytes &&
	    !(sample->end == THALWEG_END_TIMEOUT && sample->segs_out >= THALWEG_TIMEOUT_SEGS))
		return THALWEG_SKIPPED_SMALL;
	/* Busy time leaves pauses out by itself; wall time shows them as a low mean. */
	if (sample->flags & THALWEG_SAMPLE_BUSY_TIME)
		return THALWEG_SCORED;
	burst = thalweg_rate(sample->rate_delivered_bytes, sample->rate_interval_us);
	mean = thalweg_rate(sample->bytes, sample->duration_us);
	if (sample->rate_interval_us && burst / THALWEG_APP_LIMITED_RATIO > mean &&
	    sample->retrans <= sample->segs_out / THALWEG_APP_LIMITED_LOSS &&
	    sample->end != THALWEG_END_TIMEOUT)
		return THALWEG_SKIPPED_APP_LIMITED;
	return THALWEG_SCORED;
}

/* Weight (Q16) of a measurement: by bytes moved, up to one at score_full_bytes. */
static __always_inline __u32 thalweg_weight_q16(const struct thalweg_sample *sample,
						const struct thalweg_params *params)
{
	__u64 full = thalweg_min(params->score_full_bytes, (__u64)1 << 47), weight;

	if (sample->bytes >= full)
		return THALWEG_ONE_Q16;
	/* full > bytes >= 0 here, so it is not 0. */
	weight = (sample->bytes << 16) / full;
	if (weight < THALWEG_WEIGHT_MIN_Q16)
		weight = THALWEG_WEIGHT_MIN_Q16;
	if (sample->end == THALWEG_END_TIMEOUT && weight < THALWEG_WEIGHT_TIMEOUT_Q16)
		weight = THALWEG_WEIGHT_TIMEOUT_Q16;
	return weight;
}

/* Adds one cost to an arm's discounted estimate. */
static __always_inline void thalweg_learn(struct thalweg_arm_state *arm, __u64 cost,
					  __u32 log_rate_q16, __u32 srtt_us, __u32 weight_q16,
					  __u32 weight_max_q16)
{
	__u64 total = (__u64)arm->weight_q16 + weight_q16;
	__u64 kept = thalweg_min(total, weight_max_q16);

	if (!arm->weight_q16) {
		arm->value = cost;
		arm->deviation_q16 = 0;
		arm->log_rate_q16 = log_rate_q16;
		arm->srtt_us = srtt_us;
	} else {
		if (arm->weight_q16 >= THALWEG_CLIP_WEIGHT_Q16) {
			if (cost > arm->value + THALWEG_CLIP_WORSE_Q16) {
				cost = arm->value + THALWEG_CLIP_WORSE_Q16;
				/* Once is luck, again and again is another path. */
				kept >>= THALWEG_SURPRISE_SHIFT;
			} else if (cost + THALWEG_CLIP_BETTER_Q16 < arm->value) {
				cost = arm->value - THALWEG_CLIP_BETTER_Q16;
			}
		}
		arm->deviation_q16 = thalweg_blend(
			arm->deviation_q16, thalweg_distance(cost, arm->value), weight_q16, total);
		arm->value = thalweg_blend(arm->value, cost, weight_q16, total);
		arm->log_rate_q16 =
			thalweg_blend(arm->log_rate_q16, log_rate_q16, weight_q16, total);
		arm->srtt_us = thalweg_blend(arm->srtt_us, srtt_us, weight_q16, total);
	}
	arm->weight_q16 = kept;
}

/* The published scoring: arm's highest rate, this connection's minimum RTT. */
static __always_inline void thalweg_classic_score(struct thalweg_host *host,
						  struct thalweg_arm_state *arm,
						  const struct thalweg_sample *sample,
						  struct thalweg_verdict *out)
{
	__u64 rate = thalweg_classic_rate(sample);

	if (!arm->min_rtt_us || sample->min_rtt_us < arm->min_rtt_us)
		arm->min_rtt_us = sample->min_rtt_us;
	if (rate > arm->max_rate)
		arm->max_rate = rate;
	out->cost = thalweg_classic_cost(host, sample->min_rtt_us, arm->max_rate);
	out->outcome = THALWEG_SCORED;
	out->weight_q16 = THALWEG_ONE_Q16;
	arm->value = thalweg_classic_update(arm->value, out->cost);
	thalweg_increment(&arm->scored);
	thalweg_increment(&host->scored);
}

/* Scores one measured stretch of a connection that ran on `index`. */
static __always_inline void thalweg_score(struct thalweg_host *host, __u32 index,
					  const struct thalweg_sample *sample,
					  const struct thalweg_params *params, __u64 now_ns,
					  struct thalweg_verdict *out)
{
	struct thalweg_arm_state *arm = &host->arms[index & THALWEG_ARM_MASK];
	__u64 rate;
	__u32 i;

	host->seen_ns = now_ns;
	if (params->mode == THALWEG_MODE_CLASSIC) {
		thalweg_classic_score(host, arm, sample, out);
		return;
	}
	out->cost = 0;
	out->weight_q16 = 0;
	out->outcome = thalweg_assess(sample, params);
	if (out->outcome != THALWEG_SCORED)
		return;
	rate = thalweg_rate(sample->bytes, sample->duration_us);
	out->cost = thalweg_cost(rate, sample->srtt_us, params);
	out->weight_q16 = thalweg_weight_q16(sample, params);

	thalweg_forget(host, params, now_ns);
	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		if (i != (index & THALWEG_ARM_MASK))
			host->arms[i].weight_q16 -=
				host->arms[i].weight_q16 >> (params->idle_shift & 31);
	thalweg_learn(arm, out->cost, thalweg_log2_q16(rate), sample->srtt_us, out->weight_q16,
		      params->weight_max_q16);

	if (rate > arm->max_rate)
		arm->max_rate = rate;
	if (rate > host->max_rate)
		host->max_rate = rate;
	/* 0 is the kernel's "no sample". */
	if (sample->min_rtt_us && (!arm->min_rtt_us || sample->min_rtt_us < arm->min_rtt_us))
		arm->min_rtt_us = sample->min_rtt_us;
	if (sample->min_rtt_us && (!host->min_rtt_us || sample->min_rtt_us < host->min_rtt_us))
		host->min_rtt_us = sample->min_rtt_us;
	thalweg_increment(&arm->scored);
	thalweg_increment(&host->scored);
}

#endif
