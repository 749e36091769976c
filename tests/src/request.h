/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * One question to the learner's arithmetic and its answer, and the calls that
 * answer it: the same for the native build and for the kernel, so that both run
 * the header functions and nothing else of their own. Every number comes in
 * with the request; no constant of a test is known here.
 */
#ifndef THALWEG_TESTS_REQUEST_H
#define THALWEG_TESTS_REQUEST_H

#include "thalweg_abi.h"

#define VECTOR_INPUTS 4
#define VECTOR_OUTPUTS 3

enum vector_function {
	/* Functions of plain numbers, and what their inputs and outputs are. */
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
	VECTOR_CONNECT = 10, /* arm (the system's), allowed, random -> arm, reason, propensity */
	VECTOR_SCORE = 11, /* arm, now_ns, sample -> outcome, weight_q16, cost */
	VECTOR_RESCUE = 12, /* arm (the current), segs, retrans, allowed -> arm */
};

struct vector_request {
	__u32 function; /* enum vector_function */
	__u32 arm;
	__u32 allowed; /* mask of arms */
	__u32 random[3];
	__u64 now_ns;
	__u64 segs;
	__u64 retrans;
	__u64 inputs[VECTOR_INPUTS];
	__u64 outputs[VECTOR_OUTPUTS];
	struct thalweg_params params;
	struct thalweg_sample sample;
	struct thalweg_host host;
};

_Static_assert(sizeof(struct vector_request) ==
		       48 + 8 * (VECTOR_INPUTS + VECTOR_OUTPUTS) + sizeof(struct thalweg_params) +
			       sizeof(struct thalweg_sample) + sizeof(struct thalweg_host),
	       "no padding in struct vector_request");

#ifndef THALWEG_TESTS_LAYOUT_ONLY
#include "thalweg_algo.h"

/* 0, or -1 for a function that is none of the plain ones. */
static __always_inline int vector_unit(struct vector_request *r)
{
	__u64 *in = r->inputs, *out = r->outputs;

	switch (r->function) {
	case VECTOR_LOG2:
		out[0] = thalweg_log2_q16(in[0]);
		return 0;
	case VECTOR_RATE:
		out[0] = thalweg_rate(in[0], in[1]);
		return 0;
	case VECTOR_COST:
		out[0] = thalweg_cost(in[0], in[1], &r->params);
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
		out[0] = thalweg_judged_q16(&r->host, in[0], in[1]);
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
	}
	return -1;
}

/* Counts the connection, chooses its arm, counts the decision. */
static __always_inline int vector_connect(struct vector_request *r)
{
	struct thalweg_decision decision = {};

	thalweg_increment(&r->host.connections);
	thalweg_decide(&r->host, r->arm, r->allowed, &r->params, r->random, &decision);
	thalweg_count_decision(&r->host, &decision);
	r->outputs[0] = decision.arm;
	r->outputs[1] = decision.reason;
	r->outputs[2] = decision.propensity_q16;
	return 0;
}

static __always_inline int vector_score(struct vector_request *r)
{
	struct thalweg_verdict verdict = {};

	thalweg_score(&r->host, r->arm, &r->sample, &r->params, r->now_ns, &verdict);
	r->outputs[0] = verdict.outcome;
	r->outputs[1] = verdict.weight_q16;
	r->outputs[2] = verdict.cost;
	return 0;
}

static __always_inline int vector_rescue(struct vector_request *r)
{
	r->outputs[0] =
		thalweg_rescue(&r->host, r->arm, r->segs, r->retrans, r->allowed, &r->params);
	return 0;
}
#endif

#endif
