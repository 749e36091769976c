/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The learned rate controller's header again, compiled with clang's
 * UndefinedBehaviorSanitizer. Its handlers are here and not in a library. They record
 * the finding, so that a test can tell which request caused it.
 */
#include "network_request.h"

static _Thread_local const char *fault;

/* Called by clang with -fsanitize-minimal-runtime; the names are clang's. */
#define HANDLER(name)                                  \
	void __ubsan_handle_##name##_minimal(void);    \
	void __ubsan_handle_##name##_minimal(void)     \
	{                                              \
		fault = #name;                         \
	}
HANDLER(type_mismatch)
HANDLER(alignment_assumption)
HANDLER(add_overflow)
HANDLER(sub_overflow)
HANDLER(mul_overflow)
HANDLER(negate_overflow)
HANDLER(divrem_overflow)
HANDLER(shift_out_of_bounds)
HANDLER(out_of_bounds)
HANDLER(builtin_unreachable)
HANDLER(load_invalid_value)
HANDLER(invalid_builtin)
HANDLER(nonnull_arg)
HANDLER(pointer_overflow)

/* Guards around the only memory that the header writes at computed offsets. */
#define GUARD 0x5a5aa5a5c3c33c3cull

struct guarded {
	__u64 before[8];
	struct thalweg_scratch scratch;
	__u64 after[8];
};

int thalweg_network_answer_checked(const struct thalweg_model *model,
				   struct network_request *request, const char **found);
int thalweg_checked_shift(int by, const char **found);

/* As thalweg_network_answer(); `found` is the kind of undefined behaviour, or null. */
int thalweg_network_answer_checked(const struct thalweg_model *model,
				   struct network_request *request, const char **found)
{
	struct guarded room = {};
	int i, answer;

	for (i = 0; i < 8; i++)
		room.before[i] = room.after[i] = GUARD;
	fault = 0;
	answer = network_answer(model, request, &room.scratch);
	for (i = 0; i < 8; i++)
		if (room.before[i] != GUARD || room.after[i] != GUARD)
			fault = "write beyond the scratch memory";
	*found = fault;
	return answer;
}

/* Undefined from 31 on: shows that faults are found. */
int thalweg_checked_shift(int by, const char **found)
{
	int shifted;

	fault = 0;
	shifted = 1 << by;
	*found = fault;
	return shifted;
}
