// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel state left by an agent of an earlier kernel interface version: its maps with
 * their sizes, HOST_BYTES of a record and CONN_BYTES of a connection among them, and
 * programs of its names that only count.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;

char LICENSE[] SEC("license") = "GPL";

struct bytes_32 {
	__u8 bytes[32];
};

struct host {
	__u64 words[HOST_BYTES / 8];
};

struct arms {
	__u64 words[(8 + 32 * 16) / 8];
};

struct meta {
	__u32 abi_version, mode, host_bytes, event_bytes;
	__u64 hosts_max;
};

struct conn {
	__u64 words[CONN_BYTES / 8];
};

struct counters {
	__u64 established;
	__u64 words[15];
};

struct lock {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct bytes_32);
	__type(value, struct host);
} hosts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct lock);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arms);
} arms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meta);
} meta SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} defaults SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct conn);
} conns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} owned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} events SEC(".maps");

SEC("sockops")
int learn_sockops(struct bpf_sock_ops *ops)
{
	struct counters *count;
	__u32 zero = 0;

	count = bpf_map_lookup_elem(&counters, &zero);
	if (count && (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
		      ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB))
		__sync_fetch_and_add(&count->established, 1);
	return 1;
}

SEC("cgroup/setsockopt")
int learn_setsockopt(struct bpf_sockopt *ctx)
{
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return 1;
}
