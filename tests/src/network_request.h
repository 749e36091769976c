/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * One request to a model of the learned rate controller and its answer: the same for the
 * native build and for the kernel.
 */
#ifndef THALWEG_TESTS_NETWORK_REQUEST_H
#define THALWEG_TESTS_NETWORK_REQUEST_H

#include "thalweg_abi.h"

enum network_function {
	NETWORK_INFER = 0, /* flow.inputs -> action */
	NETWORK_STEP = 1, /* flow, measurement, floor, cap -> flow, action, next_rate */
	NETWORK_RATE = 2, /* measurement.rate, action, floor, cap -> next_rate */
};

struct network_request {
	__u32 function; /* enum network_function */
	__s32 action_q15;
	__u64 floor;
	__u64 cap;
	__u64 next_rate;
	struct thalweg_rate_flow flow;
	struct thalweg_measurement measurement;
};

_Static_assert(sizeof(struct network_request) == 32 + 48 + 32, "no padding");

#ifndef THALWEG_TESTS_LAYOUT_ONLY
#include "thalweg_network.h"

/* Answers in place; -1 for an unknown function. */
static __always_inline int network_answer(const struct thalweg_model *model,
					  struct network_request *r,
					  struct thalweg_scratch *scratch)
{
	switch (r->function) {
	case NETWORK_INFER:
		r->action_q15 = thalweg_infer(model, &r->flow, scratch);
		return 0;
	case NETWORK_STEP:
		r->action_q15 = thalweg_act(model, &r->flow, &r->measurement, scratch);
		break;
	case NETWORK_RATE:
		break;
	default:
		return -1;
	}
	r->next_rate = thalweg_next_rate(r->measurement.rate, r->action_q15, r->floor, r->cap);
	return 0;
}
#endif

#endif
