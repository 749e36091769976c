/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The learner's header functions, compiled for this machine. */
#include "request.h"

int thalweg_vector_answer(struct vector_request *request);

/* Answers the request in place; -1 for an unknown function. */
int thalweg_vector_answer(struct vector_request *request)
{
	switch (request->function) {
	case VECTOR_CONNECT:
		return vector_connect(request);
	case VECTOR_SCORE:
		return vector_score(request);
	case VECTOR_CHANGE:
		return vector_change(request);
	case VECTOR_REVIEW:
		return vector_review(request);
	case VECTOR_SCORE_GROUP:
		return vector_score_group(request);
	case VECTOR_ADOPT:
		return vector_adopt(request);
	case VECTOR_INHERIT:
		return vector_inherit(request);
	case VECTOR_WINDOW_REPORT:
	case VECTOR_WINDOW_MASK:
	case VECTOR_WINDOW_STEP:
	case VECTOR_WINDOW_START:
		return vector_window(request);
	}
	return vector_unit(request);
}
