/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * One question of the golden vectors, and its answer. The same functions put it
 * to the learner's header compiled natively (native.c) and for BPF
 * (bpf/vectors.bpf.c). Test code: nothing of it is part of the agent.
 */
#ifndef VECTORS_JOB_H
#define VECTORS_JOB_H

#include "thalweg_algo.h"

/* What `function` asks; the first three are the steps of a sequence. */
enum vector_function {
	VECTOR_CONNECT = 0,
	VECTOR_SCORE = 1,
	VECTOR_RESCUE = 2,
	VECTOR_LOG2 = 3,
	VECTOR_RATE = 4,
	VECTOR_COST = 5,
	VECTOR_CLASSIC_COST = 6,
	VECTOR_CLASSIC_UPDATE = 7,
	VECTOR_EXPLORE = 8,
	VECTOR_JUDGED = 9,
	VECTOR_WEIGHT = 10,
	VECTOR_ASSESS = 11,
	VECTOR_FORGET = 12,
};

/* No padding: the whole of it is a map value. */
struct vector_job {
	__u32 function; /* enum vector_function */
	__u32 arm; /* connect, judged: the system's; score: that; rescue: the current one */
	__u32 allowed; /* mask of arms */
	__u32 random[3];
	__u64 now_ns;
	__u64 segs;
	__u64 retrans;
	__u64 given[4]; /* arguments of the small functions, in their order */
	struct thalweg_params params;
	struct thalweg_sample sample;
	struct thalweg_host host; /* changed in place */
	/* Answers. */
	__u64 answer; /* of the small functions and of rescue */
	struct thalweg_verdict verdict;
	struct thalweg_decision decision;
	__u32 reserved;
};

_Static_assert(sizeof(struct vector_job) ==
		       80 + sizeof(struct thalweg_params) + sizeof(struct thalweg_sample) +
			       sizeof(struct thalweg_host) + 8 + 16 + 12 + 4,
	       "padding in struct vector_job");

static __always_inline void vector_connect(struct vector_job *job)
{
	thalweg_increment(&job->host.connections);
	thalweg_decide(&job->host, job->arm, job->allowed, &job->params, job->random,
		       &job->decision);
	thalweg_count_decision(&job->host, &job->decision);
}

static __always_inline void vector_score(struct vector_job *job)
{
	thalweg_score(&job->host, job->arm, &job->sample, &job->params, job->now_ns,
		      &job->verdict);
}

static __always_inline void vector_rescue(struct vector_job *job)
{
	job->answer = thalweg_rescue(&job->host, job->arm, job->segs, job->retrans, job->allowed,
				     &job->params);
}

static __always_inline void vector_small(struct vector_job *job)
{
	const __u64 *given = job->given;

	switch (job->function) {
	case VECTOR_LOG2:
		job->answer = thalweg_log2_q16(given[0]);
		break;
	case VECTOR_RATE:
		job->answer = thalweg_rate(given[0], given[1]);
		break;
	case VECTOR_COST:
		job->answer = thalweg_cost(given[0], given[1], &job->params);
		break;
	case VECTOR_CLASSIC_COST:
		job->answer = thalweg_classic_cost(&job->host, given[0], given[1]);
		break;
	case VECTOR_CLASSIC_UPDATE:
		job->answer = thalweg_classic_update(given[0], given[1]);
		break;
	case VECTOR_EXPLORE:
		job->answer = thalweg_explore_q16(given[0], given[1], given[2], given[3]);
		break;
	case VECTOR_JUDGED:
		job->answer = thalweg_judged_q16(&job->host, given[0], job->arm);
		break;
	case VECTOR_WEIGHT:
		job->answer = thalweg_weight_q16(&job->sample, &job->params);
		break;
	case VECTOR_ASSESS:
		job->answer = thalweg_assess(&job->sample, &job->params);
		break;
	case VECTOR_FORGET:
		thalweg_forget(&job->host, &job->params, job->now_ns);
		break;
	}
}

#endif
