// SPDX-License-Identifier: GPL-2.0-only
/*
 * network_vectors: the learned rate controller's arithmetic as a program that a test
 * runs (never loaded by the agent). Model and request come through maps, as in the
 * controller itself.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "network_request.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_model);
} models SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct network_request);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_scratch);
} scratches SEC(".maps");

SEC("syscall")
int network_vector(void *context)
{
	struct network_request *request;
	struct thalweg_scratch *scratch;
	struct thalweg_model *model;
	__u32 zero = 0;

	model = bpf_map_lookup_elem(&models, &zero);
	request = bpf_map_lookup_elem(&requests, &zero);
	scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!model || !request || !scratch)
		return -1;
	return network_answer(model, request, scratch);
}
