/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fuzzes the learner's arithmetic (bpf/include/thalweg_algo.h and thalweg_window.h): any
 * parameters that crates/learner accepts, then the life of one host's record, and of one of
 * initial windows, step by step. It checks the headers' promises in addition to the
 * sanitizers.
 *
 * The input is little-endian: parameters in the order of take_params(), then steps, each
 * a byte for its kind and its arguments. seeds.py writes the same format.
 */
#include <math.h>
#include <string.h>

#include "input.h"
#include "thalweg_window.h"

static __u32 take_arm(struct input *input)
{
	__u32 arm = take(input, 1);

	return arm < THALWEG_MAX_ARMS ? arm : THALWEG_NO_ARM;
}

/* Ranges are those of crates/learner/src/params.rs. */
static struct thalweg_params take_params(struct input *input)
{
	struct thalweg_params params = {};

	params.mode = take(input, 1) & 1 ? THALWEG_MODE_THALWEG : THALWEG_MODE_CLASSIC;
	params.warm_up = take(input, 4);
	params.gap_scale = take(input, 4);
	params.weight_max_q16 = take(input, 4);
	params.idle_shift = take(input, 1) & 31;
	params.half_life_ns = take(input, 8);
	params.latency_weight_q16 = take(input, 4);
	params.latency_guard_us = take(input, 4);
	params.score_min_bytes = take(input, 8);
	params.score_full_bytes = take(input, 8);
	params.loss_shift = take(input, 1) & 63;
	params.loss_min_segs = take(input, 4);
	params.rescue_arm = take_arm(input);
	return params;
}

static void connect_one(struct input *input, struct thalweg_host *host,
			const struct thalweg_params *params)
{
	struct thalweg_decision decision = {};
	__u16 shares_q16[THALWEG_MAX_ARMS] = {};
	__u32 system_arm = take_arm(input), allowed = take(input, 2), random[3], before, trials, i;
	__u64 now_ns;

	for (i = 0; i < 3; i++)
		random[i] = take(input, 4);
	now_ns = take(input, 8);
	before = host->connections;
	thalweg_increment(&host->connections);
	CHECK(host->connections >= before, "the count of connections wrapped");
	trials = thalweg_trials(host, now_ns);
	thalweg_decide(host, system_arm, allowed, params, random, now_ns, &decision, shares_q16);
	thalweg_count_decision(host, &decision);
	if (params->mode == THALWEG_MODE_THALWEG && thalweg_is_trial(decision.reason)) {
		CHECK(trials < THALWEG_TRIALS, "a trial beside %u", trials);
		thalweg_begin_trial(host, now_ns);
		CHECK(thalweg_trials(host, now_ns) == trials + 1, "a trial was not noted");
	}
	CHECK(decision.propensity_q16 >= 1 && decision.propensity_q16 <= THALWEG_ONE_Q16,
	      "a choice was made that has probability %u", decision.propensity_q16);
	if (decision.reason == THALWEG_REASON_WARM_UP) {
		__u32 expected = params->mode == THALWEG_MODE_CLASSIC ? THALWEG_NO_ARM : system_arm;

		CHECK(decision.arm == expected, "warm-up took arm %u", decision.arm);
		return;
	}
	CHECK(decision.arm < THALWEG_MAX_ARMS && allowed >> decision.arm & 1, "arm %u of mask %#x",
	      decision.arm, allowed);
	if (params->mode == THALWEG_MODE_THALWEG && decision.reason == THALWEG_REASON_UNTRIED)
		CHECK(!host->arms[decision.arm].weight_q16, "an arm with evidence is not untried");
}

static struct thalweg_sample take_sample(struct input *input)
{
	struct thalweg_sample sample = {};

	sample.bytes = take(input, 8);
	sample.duration_us = take(input, 8);
	sample.rate_delivered_bytes = take(input, 8);
	sample.rate_interval_us = take(input, 8);
	sample.srtt_us = take(input, 4);
	sample.min_rtt_us = take(input, 4);
	sample.segs_out = take(input, 4);
	sample.retrans = take(input, 4);
	sample.steady_segs = take(input, 4);
	sample.steady_retrans = take(input, 4);
	sample.loss_srtt_us = take(input, 4);
	sample.flags = take(input, 1) & THALWEG_SAMPLE_BUSY_TIME;
	sample.end = take(input, 1);
	sample.receiver_us = take(input, 4);
	sample.buffer_us = take(input, 4);
	return sample;
}

/* A new estimate is between the old one and the measurement. */
static void check_between(const char *what, __u64 new, __u64 old, __u64 measured)
{
	__u64 low = old < measured ? old : measured, high = old < measured ? measured : old;

	CHECK(new >= low &&new <= high, "%s went from %llu to %llu on %llu", what,
	      (unsigned long long)old, (unsigned long long)new, (unsigned long long)measured);
}

static void score_one(struct input *input, struct thalweg_host *host,
		      const struct thalweg_params *params)
{
	__u32 index = take(input, 1) & THALWEG_ARM_MASK, system_arm = take_arm(input), i;
	int trial = take(input, 1) & 1;
	__u64 now_ns = take(input, 8), rate;
	struct thalweg_sample sample = take_sample(input);
	struct thalweg_host before;
	const struct thalweg_arm_state *arm = &host->arms[index], *old = &before.arms[index];
	const struct thalweg_arm_statistics *more = &host->statistics[index];
	const struct thalweg_arm_statistics *less = &before.statistics[index];
	struct thalweg_verdict verdict = {};

	if (trial)
		thalweg_end_trial(host);
	before = *host;
	thalweg_score(host, index, system_arm, &sample, params, now_ns, &verdict);
	CHECK(host->seen_ns == now_ns, "not seen");
	if (verdict.outcome != THALWEG_SCORED) {
		before.seen_ns = now_ns;
		CHECK(!memcmp(host, &before, sizeof(before)), "a skipped sample left a trace");
		return;
	}
	CHECK(more->scored > less->scored || more->scored == THALWEG_U32_MAX, "not counted");
	CHECK(host->max_rate >= before.max_rate && more->max_rate >= less->max_rate,
	      "a highest rate fell");
	CHECK(!before.min_rtt_us || host->min_rtt_us <= before.min_rtt_us, "a lowest RTT rose");
	CHECK(verdict.weight_q16 && verdict.weight_q16 <= THALWEG_ONE_Q16, "weight %u",
	      verdict.weight_q16);
	if (params->mode == THALWEG_MODE_CLASSIC) {
		if (thalweg_classic_value(&before, index))
			check_between("the value", thalweg_classic_value(host, index),
				      thalweg_classic_value(&before, index), verdict.cost);
		return;
	}
	CHECK(system_arm >= THALWEG_MAX_ARMS || !(host->harmful >> system_arm & 1),
	      "the system's arm harms itself");
	CHECK(more->retrans <= more->segs, "%u of %u segments", more->retrans, more->segs);
	CHECK(!thalweg_is_limited(&sample) || old->weight_q16 < THALWEG_CLIP_WEIGHT_Q16 ||
		      verdict.cost < old->value,
	      "a limited sample is worse news");
	CHECK(verdict.cost <= THALWEG_U32_MAX, "cost %llu", (unsigned long long)verdict.cost);
	CHECK(arm->weight_q16 <= (__u64)THALWEG_MEMORY_MULTIPLE * params->weight_max_q16,
	      "evidence %u", arm->weight_q16);
	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		CHECK(i == index || host->arms[i].weight_q16 <= before.arms[i].weight_q16,
		      "arm %u gained evidence from arm %u", i, index);
	rate = thalweg_rate(sample.bytes, sample.duration_us);
	if (old->weight_q16) {
		/* All evidence may have decayed; then only the measurement counts. */
		check_between("the value", arm->value, old->value, verdict.cost);
		check_between("the RTT", more->srtt_us, less->srtt_us, sample.srtt_us);
		check_between("the rate", more->log_rate_q16, less->log_rate_q16,
			      thalweg_log2_q16(rate));
	} else {
		CHECK(arm->value == verdict.cost, "the first measurement is not the estimate");
	}
}

static void change_one(struct input *input, struct thalweg_host *host,
		       const struct thalweg_params *params)
{
	struct thalweg_flow flow = {};
	struct thalweg_decision decision = {};
	__u32 allowed, random;

	flow.arm = take_arm(input);
	flow.system_arm = take_arm(input);
	flow.segs = take(input, 8);
	flow.retrans = take(input, 8);
	allowed = take(input, 2);
	random = take(input, 4);
	if (!thalweg_change(host, &flow, allowed, params, random, &decision))
		return;
	CHECK(flow.retrans > flow.segs >> params->loss_shift, "moved without loss");
	CHECK(decision.propensity_q16 >= 1 && decision.propensity_q16 <= THALWEG_ONE_Q16,
	      "a choice was made that has probability %u", decision.propensity_q16);
	if (params->mode == THALWEG_MODE_CLASSIC) {
		CHECK(decision.arm != flow.arm, "moved to where it was");
		return;
	}
	if (decision.reason == THALWEG_REASON_WITHDRAWN)
		CHECK(decision.arm == flow.system_arm && decision.arm != flow.arm,
		      "taken back to arm %u", decision.arm);
	CHECK(decision.arm == flow.arm || allowed >> decision.arm & 1, "arm %u of %#x",
	      decision.arm, allowed);
}

static void review_one(struct input *input, struct thalweg_host *host,
		       const struct thalweg_params *params)
{
	struct thalweg_decision decision = {};
	__u16 shares_q16[THALWEG_MAX_ARMS] = {};
	__u32 allowed, random, sum = 0, trials, i;
	enum thalweg_reviewed found;
	struct thalweg_long flow;
	__u64 now_ns;

	flow.arm = take_arm(input);
	flow.system_arm = take_arm(input);
	flow.trial = take(input, 1) & 1;
	flow.decided_ns = take(input, 8);
	allowed = take(input, 2);
	random = take(input, 4);
	now_ns = take(input, 8);
	trials = thalweg_trials(host, now_ns);
	found = thalweg_review(host, &flow, allowed, params, &random, now_ns, &decision,
			       shares_q16);
	if (found == THALWEG_KEEPS)
		return;
	CHECK(params->mode == THALWEG_MODE_THALWEG, "classic decided anew");
	CHECK(decision.arm < THALWEG_MAX_ARMS && allowed >> decision.arm & 1, "arm %u of mask %#x",
	      decision.arm, allowed);
	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		sum += shares_q16[i];
	/* Each share of 1 lacks a unit. */
	CHECK(sum == THALWEG_ONE_Q16 || sum == THALWEG_ONE_Q16 - 1, "shares are %u", sum);
	CHECK(decision.propensity_q16 - (decision.propensity_q16 >> 16) == shares_q16[decision.arm],
	      "a share of %u, a probability of %u", shares_q16[decision.arm],
	      decision.propensity_q16);
	thalweg_count_decision(host, &decision);
	if (found == THALWEG_REVIEWED_TRIAL) {
		CHECK(trials < THALWEG_TRIALS, "a trial beside %u", trials);
		CHECK(decision.reason == THALWEG_REASON_ANEW, "a trial for reason %u",
		      decision.reason);
		thalweg_begin_trial(host, now_ns);
	}
}

/* Decides the initial window of a connection; the record may know too little. */
static void window_decided(struct thalweg_host *group, __u32 windows, const __u32 *random,
			   const struct thalweg_params *params, __u64 now_ns)
{
	struct thalweg_decision decision = {};
	__u16 shares_q16[THALWEG_MAX_ARMS] = {};
	__u32 allowed;

	thalweg_forget(group, params, now_ns);
	if (!thalweg_knows(group, 0))
		return;
	allowed = thalweg_window_mask(group, windows);
	CHECK(!(allowed & ~windows) && allowed < 2u << group->step, "windows %#x of %#x", allowed,
	      windows);
	thalweg_decide(group, 0, allowed, params, random, now_ns, &decision, shares_q16);
	thalweg_count_decision(group, &decision);
	thalweg_pay_advance(group, 0, &decision);
	if (params->mode == THALWEG_MODE_THALWEG)
		CHECK(!decision.arm || allowed >> decision.arm & 1, "window %u of %#x",
		      decision.arm, allowed);
}

/* A connection whose initial window is decided, and measured at its end. */
static void window_one(struct input *input, struct thalweg_host *group,
		       const struct thalweg_params *params)
{
	__u32 windows = take(input, 2) | 1, random[3] = { take(input, 4) }, index, wait, i;
	__u64 now_ns = take(input, 8);
	struct thalweg_report report = {};
	struct thalweg_sample sample;
	struct thalweg_host before;

	windows &= (1u << THALWEG_WINDOWS) - 1;
	index = take(input, 1) % THALWEG_WINDOWS;
	window_decided(group, windows, random, params, now_ns);
	now_ns = take(input, 8);
	sample = take_sample(input);
	if (!thalweg_window_tells(&sample))
		return;
	thalweg_window_report(&sample, &report);
	CHECK(report.system_q16 && report.weight_q16, "nothing to compare with");
	thalweg_score_group(group, index, 0, &report, &sample, params, now_ns);
	before = *group;
	for (i = 0; i < THALWEG_WINDOWS; i++)
		thalweg_window_halve(&before, i);
	thalweg_window_step(group, windows);
	for (i = 0; i < THALWEG_WINDOWS; i++)
		CHECK(group->statistics[i].retrans <= group->statistics[i].segs,
		      "%u of %u segments", group->statistics[i].retrans, group->statistics[i].segs);
	if (group->step == before.step && group->step_scored == before.step_scored) {
		CHECK(!memcmp(group, &before, sizeof(before)), "no step, but a trace");
		return;
	}
	CHECK(windows >> group->step & 1, "a step to window %u of %#x", group->step, windows);
	CHECK(group->step_scored == group->scored, "a step at %u of %u", group->step_scored,
	      group->scored);
	if (group->step > before.step) {
		wait = before.step_scored ? THALWEG_WINDOW_STEP : THALWEG_WINDOW_FIRST;
		CHECK(group->scored - before.step_scored >= wait, "up after %u",
		      group->scored - before.step_scored);
		for (i = before.step + 1; i < group->step; i++)
			CHECK(!(windows >> i & 1), "window %u was left out", i);
		CHECK(!group->statistics[group->step].segs &&
			      group->arms[group->step].weight_q16 <= 1,
		      "window %u is not forgotten", group->step);
		return;
	}
	CHECK(group->step < before.step, "a step that stays");
}

/* Functions of plain numbers against wider arithmetic. */
static void numbers(struct input *input)
{
	__u64 a = take(input, 8), b = take(input, 8), rate;
	unsigned __int128 exact;
	double off;

	if (a) {
		off = thalweg_log2_q16(a) / 65536.0 - log2((double)a);
		/* The header's bound, and a unit of Q16 for truncation. */
		CHECK(fabs(off) <= 0.009 + 1.0 / 65536, "log2(%llu) is off by %f",
		      (unsigned long long)a, off);
		CHECK(thalweg_log2_q16(a) >= thalweg_log2_q16(a - 1), "log2 falls at %llu",
		      (unsigned long long)a);
	}
	rate = thalweg_rate(a, b);
	exact = (unsigned __int128)a * 1000000 / (b ? b : 1);
	if (exact > THALWEG_U64_MAX)
		exact = THALWEG_U64_MAX;
	/* Large numbers are divided first, which loses less than 1 byte/us. */
	CHECK(rate <= exact, "rate %llu", (unsigned long long)rate);
	CHECK(exact - rate <= (a > THALWEG_U64_MAX / 1000000 ? 1000000 : 0), "rate %llu of %llu",
	      (unsigned long long)rate, (unsigned long long)exact);
}

int LLVMFuzzerTestOneInput(const __u8 *data, size_t size)
{
	struct input input = { data, size };
	struct thalweg_params params = take_params(&input);
	struct thalweg_host host = {}, windows = { .level = THALWEG_LEVEL_WINDOW_NAMESPACE };

	while (input.left) {
		switch (take(&input, 1) % 6) {
		case 0:
			connect_one(&input, &host, &params);
			break;
		case 1:
			score_one(&input, &host, &params);
			break;
		case 2:
			change_one(&input, &host, &params);
			break;
		case 3:
			numbers(&input);
			break;
		case 4:
			review_one(&input, &host, &params);
			break;
		case 5:
			window_one(&input, &windows, &params);
			break;
		}
	}
	return 0;
}
