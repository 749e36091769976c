/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Groups of hosts: what is known of a network decides about a host of which nothing is
 * known. Freestanding, like thalweg_algo.h; crates/learner/src/group.rs is the documented
 * reference.
 *
 * A group's record has the form of a host's. Its costs are relative: bits above what the
 * system's arm costs on the same host, plus THALWEG_OFFSET_Q16. `value` and `weight_q16`
 * of its arms contain what wider groups know; the group's own are in `value_high` and
 * `min_rtt_us` of the arm's statistics.
 */
#ifndef THALWEG_GROUP_H
#define THALWEG_GROUP_H

#include "thalweg_algo.h"

/* What a host tells its groups of one measurement. */
struct thalweg_report {
	__u32 cost_q16;
	__u32 log_rate_q16;
	__u32 weight_q16; /* 0: nothing is told */
	__u32 system_q16; /* mean cost of the system's arm on the host before; 0 = not measured */
	__u32 system_log_rate_q16; /* ... and its mean log2(bytes per second) */
	__u32 queue_q16; /* the host's queue after it */
};

/*
 * Whether a host tells its groups of its next measurement, which is of `index`; if so,
 * notes what it knew before.
 */
static __always_inline int thalweg_tells(const struct thalweg_host *host, __u32 index,
					 __u32 system_arm, struct thalweg_report *out)
{
	if (system_arm >= THALWEG_MAX_ARMS ||
	    (thalweg_statistics_at(host, index)->scored && host->scored % THALWEG_TOLD_EACH))
		return 0;
	out->system_q16 = 0;
	out->system_log_rate_q16 = 0;
	/* What was inherited is no measurement. */
	if (thalweg_statistics_at(host, system_arm)->scored &&
	    thalweg_arm_at(host, system_arm)->weight_q16) {
		out->system_q16 = thalweg_arm_at(host, system_arm)->value;
		out->system_log_rate_q16 = thalweg_statistics_at(host, system_arm)->log_rate_q16;
	}
	return 1;
}

/* A host's value by a group's measure, where the system's arm has `reference`. */
static __always_inline __u32 thalweg_relative_q16(__u32 value, __u32 reference)
{
	__s64 relative = (__s64)THALWEG_OFFSET_Q16 + value - reference;

	if (relative < 0)
		return 0;
	return thalweg_min(relative, 2 * THALWEG_OFFSET_Q16);
}

/* Exchanges the estimates of all arms for those by the group's own measurements, or back. */
static __always_inline void thalweg_take_own(struct thalweg_host *group)
{
	__u32 i;

	for (i = 0; i < THALWEG_MAX_ARMS && i < group->used; i++) {
		group->arms[i].value = group->statistics[i].value_high;
		group->arms[i].weight_q16 = group->statistics[i].min_rtt_us;
	}
}

static __always_inline void thalweg_keep_own(struct thalweg_host *group)
{
	__u32 i;

	for (i = 0; i < THALWEG_MAX_ARMS && i < group->used; i++) {
		group->statistics[i].value_high = group->arms[i].value;
		group->statistics[i].min_rtt_us = group->arms[i].weight_q16;
	}
}

/*
 * Adds a host's report on `index` to the record of one of its groups; thalweg_adopt()
 * follows. The reference is the host's own mean of the system's arm. A host that has none
 * is compared with the usual cost of that arm at such hosts, at half the weight, as hosts
 * differ. Where that is unknown too, nothing is learned from another arm.
 */
static __always_inline void thalweg_score_group(struct thalweg_host *group, __u32 index,
						__u32 system_arm,
						const struct thalweg_report *report,
						const struct thalweg_sample *sample,
						const struct thalweg_params *params, __u64 now_ns)
{
	__u32 reference = report->system_q16, rate = report->system_log_rate_q16;
	struct thalweg_measured measured;

	group->seen_ns = now_ns;
	measured.weight_q16 = report->weight_q16;
	if (!reference) {
		measured.weight_q16 /= 2;
		if (index == system_arm && !group->usual_q16) {
			group->usual_q16 = report->cost_q16;
			group->usual_log_rate_q16 = report->log_rate_q16;
		}
		reference = group->usual_q16;
		rate = group->usual_log_rate_q16;
		if (!reference)
			return;
		if (index == system_arm) {
			group->usual_q16 = thalweg_blend(reference, report->cost_q16, 1,
							 1 << THALWEG_USUAL_SHIFT);
			group->usual_log_rate_q16 = thalweg_blend(rate, report->log_rate_q16, 1,
								  1 << THALWEG_USUAL_SHIFT);
		}
	}
	measured.cost = thalweg_relative_q16(report->cost_q16, reference);
	measured.log_rate_q16 = thalweg_relative_q16(report->log_rate_q16, rate);
	thalweg_take_own(group);
	if (index == system_arm) {
		if (thalweg_arm_at(group, index)->weight_q16)
			group->queue_q16 = thalweg_blend(group->queue_q16, report->queue_q16, 1,
							 1 << THALWEG_USUAL_SHIFT);
		else
			group->queue_q16 = report->queue_q16;
	}
	thalweg_prepare(group, index, params, now_ns);
	thalweg_take(group, index, system_arm, &measured, sample, params);
	thalweg_keep_own(group);
}

/* Whether a group knows enough to decide. */
static __always_inline int thalweg_knows(const struct thalweg_host *group, __u32 system_arm)
{
	return system_arm < THALWEG_MAX_ARMS &&
	       thalweg_arm_at(group, system_arm)->weight_q16 >= THALWEG_KNOWN_Q16;
}

/*
 * Adds to a group's own measurements what a wider one, which knows enough, knows of each
 * arm, as if it were a number of measurements: its evidence, `worth` at most.
 */
static __always_inline void thalweg_adopt(struct thalweg_host *group,
					  const struct thalweg_host *wider, __u32 system_arm,
					  const struct thalweg_worth *worth)
{
	__u32 i;

	if (group->used < wider->used)
		group->used = wider->used;
	if (!thalweg_is_window(group) && !(group->level & THALWEG_LEVEL_FLEET))
		group->step = wider->step;
	for (i = 0; i < THALWEG_MAX_ARMS && i < wider->used; i++) {
		struct thalweg_arm_state *arm = &group->arms[i];
		struct thalweg_arm_statistics *statistics = &group->statistics[i];
		__u32 weight = thalweg_lesser(wider->arms[i].weight_q16, worth->arms_q16[i]);
		__u64 total = (__u64)statistics->min_rtt_us + weight;

		if (!weight)
			continue;
		if (statistics->min_rtt_us) {
			arm->value = thalweg_blend(statistics->value_high, wider->arms[i].value,
						   weight, total);
		} else {
			arm->value = wider->arms[i].value;
			statistics->log_rate_q16 = wider->statistics[i].log_rate_q16;
			statistics->deviation_q16 = wider->statistics[i].deviation_q16;
		}
		arm->weight_q16 = thalweg_min(total, THALWEG_U32_MAX);
		thalweg_note_caution(group, system_arm, arm, statistics);
	}
}

/* Pays a part of a trial that a group has decided, when it begins: many hosts may come at once. */
static __always_inline void thalweg_pay_advance(struct thalweg_host *group, __u32 system_arm,
						const struct thalweg_decision *decision)
{
	if (!thalweg_is_trial(decision->reason) || decision->arm == system_arm)
		return;
	group->credit_q16 -= thalweg_min(group->credit_q16, THALWEG_ADVANCE_Q16);
}

/*
 * Gives a host's record, after its first measurement, what a group that knows enough knows
 * of the other arms: their distance from `index`, which was measured, with the evidence
 * `worth` at most.
 */
static __always_inline void thalweg_inherit(struct thalweg_host *host,
					    const struct thalweg_host *group, __u32 index,
					    const struct thalweg_worth *worth)
{
	const struct thalweg_arm_state *known = thalweg_arm_at(group, index);
	const struct thalweg_arm_statistics *known_statistics = thalweg_statistics_at(group, index);
	struct thalweg_arm_state *own = &host->arms[index & THALWEG_ARM_MASK];
	struct thalweg_arm_statistics *own_statistics = &host->statistics[index & THALWEG_ARM_MASK];
	__u32 i;

	if (!known->weight_q16)
		return;
	host->step = group->step;
	if (host->used < group->used)
		host->used = group->used;
	for (i = 0; i < THALWEG_MAX_ARMS && i < group->used; i++) {
		struct thalweg_arm_state *arm = &host->arms[i];
		struct thalweg_arm_statistics *statistics = &host->statistics[i];
		const struct thalweg_arm_statistics *theirs = &group->statistics[i];
		__u32 weight = thalweg_min(group->arms[i].weight_q16, worth->arms_q16[i]);

		if (i == (index & THALWEG_ARM_MASK) || !weight)
			continue;
		arm->value = thalweg_moved(own->value, (__s64)group->arms[i].value - known->value);
		arm->weight_q16 = weight;
		arm->caution_q16 = group->arms[i].caution_q16;
		statistics->log_rate_q16 =
			thalweg_moved(own_statistics->log_rate_q16,
				      (__s64)theirs->log_rate_q16 - known_statistics->log_rate_q16);
		statistics->deviation_q16 = theirs->deviation_q16;
		statistics->srtt_us = own_statistics->srtt_us;
		statistics->segs = theirs->segs;
		statistics->retrans = theirs->retrans;
	}
	own->weight_q16 +=
		thalweg_min(known->weight_q16, worth->arms_q16[index & THALWEG_ARM_MASK]);
	own->caution_q16 = known->caution_q16;
	own_statistics->deviation_q16 = known_statistics->deviation_q16;
	host->harmful |= group->harmful;
}

#endif
