/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Initial windows: a second choice for a connection, by what its groups know. Freestanding,
 * like thalweg_algo.h; crates/learner/src/window.rs is the documented reference.
 *
 * The record has the form of a group's, and its arms are windows (thalweg_abi.h). Arm 0 is
 * the kernel's own window, and takes the place of the system's arm.
 */
#ifndef THALWEG_WINDOW_H
#define THALWEG_WINDOW_H

#include "thalweg_group.h"

/* Windows: transfers of more bytes say little about the first round trip. */
#define THALWEG_WINDOW_BYTES_MAX (256 * 1024)
/* Windows: scored connections before the first step up, and before any other. */
#define THALWEG_WINDOW_FIRST 128
#define THALWEG_WINDOW_STEP 1000
/* Windows: evidence of the largest one below which there is no step up. */
#define THALWEG_WINDOW_KNOWN_Q16 (8u << 16)
/*
 * Windows: a window is too large if its retransmissions exceed those of the kernel's own
 * by three segments in a thousand, and by chance: 2^(this/2) times the root of the expected
 * number. No verdict on fewer segments.
 */
#define THALWEG_WINDOW_EXCESS 3
#define THALWEG_WINDOW_CHANCE_SHIFT 3
#define THALWEG_WINDOW_SEGS 2000
/*
 * Windows: the counts of a window's segments and retransmissions are halved at this many
 * segments. A share of them per connection would round to no retransmission at all.
 */
#define THALWEG_WINDOW_SEGS_MAX (1u << 15)

/* Whether a connection says anything about its initial window: it is over, and was longer. */
static __always_inline int thalweg_window_tells(const struct thalweg_sample *sample)
{
	__u64 segs = sample->segs_out;

	if (sample->end > THALWEG_END_RESET || !sample->min_rtt_us || !sample->duration_us)
		return 0;
	return segs > (__u64)sample->retrans + THALWEG_WINDOW_LEAST &&
	       sample->bytes <= THALWEG_WINDOW_BYTES_MAX;
}

/*
 * What a connection reports of its initial window: the time with data outstanding in units
 * of the round trips that it takes with the kernel's own window, bits. Losses in slow start
 * count. Needs a sample that tells something.
 */
static __always_inline void thalweg_window_report(struct thalweg_sample *sample,
						  struct thalweg_report *out)
{
	__u32 segs = sample->segs_out - sample->retrans, rounds_q16;

	/* Slow start: 1 + log2(1 + segments / (first window)), of which the first is whole. */
	rounds_q16 = thalweg_log2_q16((__u64)segs + THALWEG_WINDOW_LEAST) -
		     thalweg_log2_q16(THALWEG_WINDOW_LEAST);
	out->cost_q16 = thalweg_min(THALWEG_OFFSET_Q16 + thalweg_log2_q16(sample->duration_us) +
					    thalweg_waste_q16(sample),
				    THALWEG_U32_MAX);
	/* The number of rounds is in Q16, so its logarithm has 16 bits more. */
	out->system_q16 = THALWEG_OFFSET_Q16 - (16u << 16) + thalweg_log2_q16(sample->min_rtt_us) +
			  thalweg_log2_q16(rounds_q16);
	out->weight_q16 = THALWEG_ONE_Q16;
	/* A rate tells nothing beside the time. */
	out->log_rate_q16 = 1;
	out->system_log_rate_q16 = 1;
	out->queue_q16 = 0;
	sample->steady_segs = sample->segs_out;
	sample->steady_retrans = sample->retrans;
}

/* Mask of the windows that a record permits, of those that the operator permits. */
static __always_inline __u32 thalweg_window_mask(const struct thalweg_host *group, __u32 windows)
{
	return windows & ((2u << (group->step & THALWEG_ARM_MASK)) - 1);
}

/* Whether window `i` causes losses of its own. */
static __always_inline int thalweg_window_overflows(const struct thalweg_host *group, __u32 i)
{
	const struct thalweg_arm_statistics *arm = thalweg_statistics_at(group, i);
	__u64 segs = arm->segs, own_segs = group->statistics[0].segs, expected, usual;

	if (segs < THALWEG_WINDOW_SEGS || own_segs < THALWEG_WINDOW_SEGS)
		return 0;
	expected = ((__u64)group->statistics[0].retrans + 1) * segs / own_segs;
	usual = expected + segs * THALWEG_WINDOW_EXCESS / 1000;
	return arm->retrans > usual && (arm->retrans - usual) * (arm->retrans - usual) >
					       expected << THALWEG_WINDOW_CHANCE_SHIFT;
}

/* Halves the counts of window `i` if they are full. */
static __always_inline void thalweg_window_halve(struct thalweg_host *group, __u32 i)
{
	struct thalweg_arm_statistics *statistics = &group->statistics[i & THALWEG_ARM_MASK];

	if (statistics->segs >= THALWEG_WINDOW_SEGS_MAX) {
		statistics->segs /= 2;
		statistics->retrans /= 2;
	}
}

/* Forgets the losses of window `i`, and its evidence but for a trace, as with time. */
static __always_inline void thalweg_window_clear(struct thalweg_host *group, __u32 i)
{
	struct thalweg_arm_statistics *statistics = &group->statistics[i & THALWEG_ARM_MASK];
	struct thalweg_arm_state *arm = &group->arms[i & THALWEG_ARM_MASK];

	statistics->segs = 0;
	statistics->retrans = 0;
	/* The group's own evidence. */
	statistics->min_rtt_us = !!statistics->min_rtt_us;
	arm->weight_q16 = !!arm->weight_q16;
}

/*
 * Halves the counts of segments that are full, and takes a step after a measurement. Down,
 * below the smallest window that causes losses of its own. Up, by one window, if the
 * largest that may be chosen is the best one; what was counted of the new one before is
 * forgotten, so that it is tried anew.
 */
static __always_inline void thalweg_window_step(struct thalweg_host *group, __u32 windows)
{
	__u32 i, below = 0, above = 0, wait, least = group->arms[0].value;
	const struct thalweg_arm_state *top;

	for (i = 0; i < THALWEG_WINDOWS; i++)
		thalweg_window_halve(group, i);
	for (i = 1; i < THALWEG_WINDOWS; i++) {
		if (!(windows >> i & 1))
			continue;
		if (i > group->step) {
			above = THALWEG_UNKNOWN(i);
			break;
		}
		if (thalweg_window_overflows(group, i)) {
			group->step = below;
			group->step_scored = group->scored;
			return;
		}
		if (group->arms[i].weight_q16 && group->arms[i].value < least)
			least = THALWEG_UNKNOWN(group->arms[i].value);
		below = THALWEG_UNKNOWN(i);
	}
	wait = group->step_scored ? THALWEG_WINDOW_STEP : THALWEG_WINDOW_FIRST;
	top = thalweg_arm_at(group, below);
	if (!above || group->scored - group->step_scored < wait ||
	    top->weight_q16 < THALWEG_WINDOW_KNOWN_Q16 || top->value > least)
		return;
	thalweg_window_clear(group, above);
	group->step = above;
	group->step_scored = group->scored;
}

/* A new record begins where the wider one is. */
static __always_inline void thalweg_window_start(struct thalweg_host *group,
						 const struct thalweg_host *wider)
{
	if (group->scored > 1 || group->step >= wider->step)
		return;
	group->step = wider->step;
	group->step_scored = group->scored;
}

#endif
