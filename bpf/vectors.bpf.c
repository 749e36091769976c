// SPDX-License-Identifier: GPL-2.0-only
/*
 * vectors: the learner's arithmetic as programs that a test runs (never loaded by the
 * agent). Parameters, record and inputs come through a map, so neither the compiler nor
 * the verifier knows any of the numbers. There is one program per operation: together
 * they have more paths than the verifier's limit.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "request.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vector_request);
} requests SEC(".maps");

static __always_inline struct vector_request *the_request(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&requests, &zero);
}

SEC("syscall")
int vectors_unit(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_unit(request) : -1;
}

SEC("syscall")
int vectors_connect(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_connect(request) : -1;
}

SEC("syscall")
int vectors_score(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_score(request) : -1;
}

SEC("syscall")
int vectors_change(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_change(request) : -1;
}

SEC("syscall")
int vectors_review(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_review(request) : -1;
}

SEC("syscall")
int vectors_score_group(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_score_group(request) : -1;
}

SEC("syscall")
int vectors_adopt(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_adopt(request) : -1;
}

SEC("syscall")
int vectors_inherit(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_inherit(request) : -1;
}

SEC("syscall")
int vectors_window(void *context)
{
	struct vector_request *request = the_request();

	return request ? vector_window(request) : -1;
}
