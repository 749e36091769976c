/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The learned rate controller's header, compiled for this machine. */
#include "network_request.h"

int thalweg_network_answer(const struct thalweg_model *model, struct network_request *request);

/* Answers the request in place; -1 for an unknown function. */
int thalweg_network_answer(const struct thalweg_model *model, struct network_request *request)
{
	struct thalweg_scratch scratch = {};

	return network_answer(model, request, &scratch);
}
