// SPDX-License-Identifier: GPL-2.0-only
/*
 * The program of the tests of `thalweg sockops`: counts established connections and
 * prints a line for each. -DREFUSED makes a program that the verifier refuses,
 * -DNO_SOCKOPS one of another kind, -DLIBRARY one that calls libc, -DOLD_MAP one
 * with a map of a form that libbpf no longer takes; -DHEADERS=1 one that requests callbacks
 * for headers at establishment and counts those at port 5001, or with 0 the others. It needs no
 * header but the kernel's.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

static long (*trace_printk)(const char *format, __u32 size, ...) = (void *)BPF_FUNC_trace_printk;
static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*cb_flags_set)(struct bpf_sock_ops *ops, int flags) =
	(void *)BPF_FUNC_sock_ops_cb_flags_set;

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	__u32 *key;
	__u64 *value;
} established SEC(".maps");

#ifdef LIBRARY
extern int memcmp(const void *a, const void *b, unsigned long length);
#endif

#ifdef OLD_MAP
struct {
	__u32 type, key_size, value_size, max_entries, map_flags;
} old SEC("maps") = { BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0 };
#endif

static const char format[] = "probe: connection %u\n";

#ifdef NO_SOCKOPS
SEC("socket")
int other(struct __sk_buff *skb)
{
	return 0;
}
#else
SEC("sockops")
int probe(struct bpf_sock_ops *ops)
{
	__u32 zero = 0;
	__u64 *count;

#ifdef REFUSED
	return *(int *)((char *)ops + 4000);
#endif
#ifdef LIBRARY
	return memcmp(ops, format, ops->op);
#endif
#ifdef OLD_MAP
	return map_lookup(&old, &zero) ? 1 : 0;
#endif
#ifdef HEADERS
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	    ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
					  BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	if (ops->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB || ops->state != BPF_TCP_ESTABLISHED ||
	    (ops->local_port == 5001) != HEADERS)
		return 1;
#else
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
#endif
	count = map_lookup(&established, &zero);
	if (!count)
		return 1;
	__sync_fetch_and_add(count, 1);
#ifndef HEADERS
	trace_printk(format, sizeof(format), (__u32)*count);
#endif
	return 1;
}

SEC("socket")
int left_out(struct __sk_buff *skb)
{
	return 0;
}
#endif

char LICENSE[] SEC("license") = "GPL";
