// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lateness of the kernel's high-resolution timers: each one's callback records it, and
 * arms the next. A user program would include its return from the kernel.
 *
 * Only UAPI types are used, so that it loads on a kernel without BTF of its own.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MOST 4096 /* a power of two */
#define KINDS 16 /* a power of two */
#define CLOCK_MONOTONIC 1

struct element {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct element);
} timers SEC(".maps");

/* How far ahead timers are set, in turn, and over again. */
const volatile __u64 ahead_ns[KINDS];
const volatile __u32 kinds = 1;
/* Number of timers to run. */
const volatile __u32 wanted;

__u64 late_ns[MOST];
volatile __u32 expired;

static __u64 due_ns;

static __always_inline void arm(struct element *element)
{
	__u64 ahead = ahead_ns[expired % kinds & (KINDS - 1)];

	due_ns = bpf_ktime_get_ns() + ahead;
	bpf_timer_start(&element->timer, ahead, 0);
}

static int note(void *map, int *key, struct element *element)
{
	late_ns[expired & (MOST - 1)] = bpf_ktime_get_ns() - due_ns;
	expired++;
	if (expired < wanted)
		arm(element);
	return 0;
}

SEC("tc")
int begin(struct __sk_buff *skb)
{
	__u32 key = 0;
	struct element *element = bpf_map_lookup_elem(&timers, &key);

	if (!element || bpf_timer_init(&element->timer, &timers, CLOCK_MONOTONIC))
		return 1;
	if (bpf_timer_set_callback(&element->timer, note))
		return 1;
	arm(element);
	return 0;
}

char _license[] SEC("license") = "GPL";
