/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * One request to the learner's arithmetic and its answer, and the calls that answer it.
 * They are the same for the native build and for the kernel, so both run only the
 * header's functions. Every number comes with the request; no constant of a test is
 * known here.
 */
#ifndef THALWEG_TESTS_REQUEST_H
#define THALWEG_TESTS_REQUEST_H

#include "thalweg_window.h"

#define VECTOR_INPUTS 4
#define VECTOR_OUTPUTS 3

enum vector_function {
	/* Functions of plain numbers, with their inputs and outputs. */
	VECTOR_LOG2 = 0, /* x -> log2_q16 */
	VECTOR_RATE = 1, /* bytes, duration_us -> rate */
	VECTOR_COST = 2, /* rate, srtt_us; params -> cost */
	VECTOR_CLASSIC_COST = 3, /* min_rtt_us, rate; host -> cost; host */
	VECTOR_CLASSIC_UPDATE = 4, /* value, cost -> value */
	VECTOR_EXPLORE = 5, /* gap_q16, weight_q16, arms, gap_scale -> share_q16 */
	VECTOR_JUDGED = 6, /* arm, system_arm; host -> judged_q16 */
	VECTOR_WEIGHT = 7, /* sample, params -> weight_q16 */
	VECTOR_ASSESS = 8, /* sample, params -> outcome */
	VECTOR_FORGET = 9, /* now_ns; params, host -> host */
	/* Steps in the life of a host record. */
	VECTOR_CONNECT = 10, /* allowed, random, now_ns -> arm, reason, propensity */
	VECTOR_SCORE = 11, /* arm, now_ns, sample, trial -> outcome, weight_q16, cost; report */
	VECTOR_CHANGE = 12, /* arm, segs, retrans, allowed, random -> arm, reason, propensity */
	VECTOR_TAG = 13, /* key as four numbers -> tag */
	VECTOR_SLOT = 14, /* cookie, probe -> slot */
	VECTOR_CONTROL = 15, /* tag, now_ns; params -> in the control group */
	VECTOR_STRETCH = 16, /* age_ns, bytes, count; params -> due */
	/* arm, trial, decided_ns, allowed, random, now_ns -> arm, reason, propensity */
	VECTOR_REVIEW = 17,
	VECTOR_DRAWN = 18, /* tag, now_ns, allowed; params -> arm */
	/* Of groups; `host` is the record that changes. */
	VECTOR_SCORE_GROUP = 19, /* arm, now_ns, sample, report -> */
	VECTOR_ADOPT = 20, /* wider, worth -> */
	VECTOR_INHERIT = 21, /* arm, wider, worth -> */
	VECTOR_KNOWS = 22, /* now_ns -> 1 if it knows enough */
	/* Of records of initial windows; `allowed` is the mask of windows. */
	VECTOR_WINDOW_REPORT = 23, /* sample -> 1 if it tells something; sample, report */
	VECTOR_WINDOW_MASK = 24, /* allowed -> those that the record permits */
	VECTOR_WINDOW_STEP = 25, /* allowed -> */
	VECTOR_WINDOW_START = 26, /* wider -> */
};

struct vector_request {
	__u32 function; /* enum vector_function */
	__u32 arm; /* of the connection */
	__u32 system_arm;
	__u32 allowed; /* mask of arms */
	__u32 random[3];
	__u32 trial; /* a trial is over; review: it had its arm for one */
	__u64 now_ns;
	__u64 segs;
	__u64 retrans;
	__u64 inputs[VECTOR_INPUTS];
	__u64 outputs[VECTOR_OUTPUTS];
	__u16 shares_q16[THALWEG_MAX_ARMS]; /* connect, review: probability of each arm */
	struct thalweg_params params;
	struct thalweg_sample sample;
	struct thalweg_host host;
	struct thalweg_report report;
	struct thalweg_worth worth;
	struct thalweg_host wider;
};

_Static_assert(sizeof(struct vector_request) ==
		       56 + 8 * (VECTOR_INPUTS + VECTOR_OUTPUTS) + 2 * THALWEG_MAX_ARMS +
			       sizeof(struct thalweg_params) + sizeof(struct thalweg_sample) +
			       2 * sizeof(struct thalweg_host) + sizeof(struct thalweg_report) +
			       sizeof(struct thalweg_worth),
	       "no padding in struct vector_request");

#ifndef THALWEG_TESTS_LAYOUT_ONLY
/* 0, or -1 if the function is not one of the plain ones. */
static __always_inline int vector_unit(struct vector_request *r)
{
	__u64 *in = r->inputs, *out = r->outputs;
	struct thalweg_host_key key = {};
	struct thalweg_judge judge;

	switch (r->function) {
	case VECTOR_LOG2:
		out[0] = thalweg_log2_q16(in[0]);
		return 0;
	case VECTOR_RATE:
		out[0] = thalweg_rate(in[0], in[1]);
		return 0;
	case VECTOR_COST:
		out[0] = thalweg_cost(thalweg_log2_q16(in[0]), in[1], &r->params);
		return 0;
	case VECTOR_CLASSIC_COST:
		out[0] = thalweg_classic_cost(&r->host, in[0], in[1]);
		return 0;
	case VECTOR_CLASSIC_UPDATE:
		out[0] = thalweg_classic_update(in[0], in[1]);
		return 0;
	case VECTOR_EXPLORE:
		out[0] = thalweg_explore_q16(in[0], in[1], in[2], in[3]);
		return 0;
	case VECTOR_JUDGED:
		thalweg_convene(&judge, &r->host, in[1]);
		out[0] = thalweg_judged_q16(&r->host, in[0], &judge);
		return 0;
	case VECTOR_WEIGHT:
		out[0] = thalweg_weight_q16(&r->sample, &r->params);
		return 0;
	case VECTOR_ASSESS:
		out[0] = thalweg_assess(&r->sample, &r->params);
		return 0;
	case VECTOR_FORGET:
		thalweg_forget(&r->host, &r->params, in[0]);
		return 0;
	case VECTOR_TAG:
		key.netns = in[0];
		key.prefix_len = in[1];
		key.level = in[1] >> 32;
		__builtin_memcpy(key.addr, &in[2], 8);
		__builtin_memcpy(key.addr + 8, &in[3], 8);
		out[0] = thalweg_tag(&key);
		return 0;
	case VECTOR_CONTROL:
		out[0] = thalweg_is_control(in[0], &r->params, in[1]);
		return 0;
	case VECTOR_STRETCH:
		out[0] = thalweg_stretch_due(in[0], in[1], in[2], &r->params);
		return 0;
	case VECTOR_DRAWN:
		out[0] = thalweg_drawn_arm(in[0], in[2], &r->params, in[1]);
		return 0;
	case VECTOR_KNOWS:
		thalweg_forget(&r->host, &r->params, r->now_ns);
		out[0] = thalweg_knows(&r->host, r->system_arm);
		return 0;
	case VECTOR_SLOT:
		out[0] = thalweg_conn_slot(in[0], in[1]);
		return 0;
	}
	return -1;
}

/* Counts the connection, chooses its arm, counts the decision. */
static __always_inline int vector_connect(struct vector_request *r)
{
	struct thalweg_decision decision = {};

	thalweg_increment(&r->host.connections);
	if (r->host.level)
		thalweg_forget(&r->host, &r->params, r->now_ns);
	thalweg_decide(&r->host, r->system_arm, r->allowed, &r->params, r->random, r->now_ns,
		       &decision, r->shares_q16);
	thalweg_count_decision(&r->host, &decision);
	if (r->host.level)
		thalweg_pay_advance(&r->host, r->system_arm, &decision);
	else if (thalweg_is_trial(decision.reason))
		thalweg_begin_trial(&r->host, r->now_ns);
	r->outputs[0] = decision.arm;
	r->outputs[1] = decision.reason;
	r->outputs[2] = decision.propensity_q16;
	return 0;
}

/* Scores; what the host tells its groups is in the report, whose weight is 0 if it is nothing. */
static __always_inline int vector_score(struct vector_request *r)
{
	struct thalweg_verdict verdict = {};
	int tells;

	if (r->trial)
		thalweg_end_trial(&r->host);
	tells = thalweg_tells(&r->host, r->arm, r->system_arm, &r->report);
	thalweg_score(&r->host, r->arm, r->system_arm, &r->sample, &r->params, r->now_ns, &verdict);
	r->report.cost_q16 = verdict.cost;
	r->report.log_rate_q16 =
		thalweg_log2_q16(thalweg_rate(r->sample.bytes, r->sample.duration_us));
	r->report.weight_q16 = tells ? verdict.weight_q16 : 0;
	r->report.queue_q16 = r->host.queue_q16;
	r->outputs[0] = verdict.outcome;
	r->outputs[1] = verdict.weight_q16;
	r->outputs[2] = verdict.cost;
	return 0;
}

static __always_inline int vector_score_group(struct vector_request *r)
{
	thalweg_score_group(&r->host, r->arm, r->system_arm, &r->report, &r->sample, &r->params,
			    r->now_ns);
	return 0;
}

static __always_inline int vector_adopt(struct vector_request *r)
{
	if (thalweg_knows(&r->wider, r->system_arm))
		thalweg_adopt(&r->host, &r->wider, r->system_arm, &r->worth);
	return 0;
}

static __always_inline int vector_inherit(struct vector_request *r)
{
	if (thalweg_knows(&r->wider, r->system_arm))
		thalweg_inherit(&r->host, &r->wider, r->arm, &r->worth);
	return 0;
}

static __always_inline int vector_window(struct vector_request *r)
{
	switch (r->function) {
	case VECTOR_WINDOW_REPORT:
		r->outputs[0] = thalweg_window_tells(&r->sample);
		if (r->outputs[0])
			thalweg_window_report(&r->sample, &r->report);
		return 0;
	case VECTOR_WINDOW_MASK:
		r->outputs[0] = thalweg_window_mask(&r->host, r->allowed);
		return 0;
	case VECTOR_WINDOW_STEP:
		thalweg_window_step(&r->host, r->allowed);
		return 0;
	case VECTOR_WINDOW_START:
		if (thalweg_knows(&r->wider, r->system_arm))
			thalweg_window_start(&r->host, &r->wider);
		return 0;
	}
	return -1;
}

static __always_inline int vector_change(struct vector_request *r)
{
	struct thalweg_flow flow = { r->arm, r->system_arm, r->segs, r->retrans };
	struct thalweg_decision decision = { THALWEG_NO_ARM, 0, 0 };

	if (!thalweg_change(&r->host, &flow, r->allowed, &r->params, r->random[0], &decision)) {
		decision.arm = THALWEG_NO_ARM;
		decision.reason = 0;
		decision.propensity_q16 = 0;
	}
	r->outputs[0] = decision.arm;
	r->outputs[1] = decision.reason;
	r->outputs[2] = decision.propensity_q16;
	return 0;
}

/* Decides about a long connection, and counts the decision; inputs[0] is decided_ns. */
static __always_inline int vector_review(struct vector_request *r)
{
	struct thalweg_long flow = { r->arm, r->system_arm, r->inputs[0], r->trial };
	struct thalweg_decision decision = { THALWEG_NO_ARM, 0, 0 };
	enum thalweg_reviewed found;

	found = thalweg_review(&r->host, &flow, r->allowed, &r->params, r->random, r->now_ns,
			       &decision, r->shares_q16);
	if (found)
		thalweg_count_decision(&r->host, &decision);
	if (found == THALWEG_REVIEWED_TRIAL)
		thalweg_begin_trial(&r->host, r->now_ns);
	r->outputs[0] = decision.arm;
	r->outputs[1] = decision.reason;
	r->outputs[2] = decision.propensity_q16;
	return 0;
}
#endif

#endif
