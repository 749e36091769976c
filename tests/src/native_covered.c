/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The learner's header functions once more, not inlined and with clang's flags of reached
 * edges (-fsanitize-coverage=inline-bool-flag,pc-table). The flags of all callers are one.
 */
#define __always_inline inline
#define thalweg_vector_answer thalweg_vector_answer_covered
#include "native.c"

#include <stddef.h>

struct place {
	__u64 address;
	__u64 kind;
};

static const _Bool *flags, *flags_end;
static const struct place *places;
extern const char __executable_start;

/* Called by clang's code at the start; the names are clang's. */
void __sanitizer_cov_bool_flag_init(_Bool *start, _Bool *end);
void __sanitizer_cov_pcs_init(const __u64 *start, const __u64 *end);

void __sanitizer_cov_bool_flag_init(_Bool *start, _Bool *end)
{
	flags = start;
	flags_end = end;
}

void __sanitizer_cov_pcs_init(const __u64 *start, const __u64 *end)
{
	(void)end;
	places = (const struct place *)start;
}

size_t thalweg_edges(void);
__u64 thalweg_edge_missed(size_t index);

/* The number of edges in the header's functions. */
size_t thalweg_edges(void)
{
	return flags_end - flags;
}

/* 0 if an edge was reached, else its address in the program's file. */
__u64 thalweg_edge_missed(size_t index)
{
	return flags[index] ? 0 : places[index].address - (__u64)&__executable_start;
}
