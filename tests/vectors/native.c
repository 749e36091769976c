// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The learner's header as native code, for the golden vectors. */
#include "job.h"

void vector_run(struct vector_job *job);

void vector_run(struct vector_job *job)
{
	switch (job->function) {
	case VECTOR_CONNECT:
		vector_connect(job);
		break;
	case VECTOR_SCORE:
		vector_score(job);
		break;
	case VECTOR_RESCUE:
		vector_rescue(job);
		break;
	default:
		vector_small(job);
		break;
	}
}
