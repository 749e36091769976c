/* SPDX-License-Identifier: GPL-2.0-only */
/* rate: the model's decision, and the ring that reports it. */
#ifndef THALWEG_RATE_DECIDE_H
#define THALWEG_RATE_DECIDE_H

#include "rate_compete.h"
#include "rate_path.h"

#define SLOTS 4

/*
 * Data of a decision. The network indexes it by variables, which is impossible in a
 * socket, and it is too large for the stack.
 */
struct slot {
	__u32 taken;
	__u32 reserved;
	struct thalweg_rate_flow flow;
	struct thalweg_measurement measurement;
	struct thalweg_scratch scratch;
};

/*
 * Several per CPU. While a process handles its ACKs, an interrupt may bring one of
 * another flow. If the kernel preempts, another process may take the CPU.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_rate_trace);
} trace SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, THALWEG_RATE_RING);
} decisions SEC(".maps");

/* The number of a free slot, now taken, or SLOTS. */
static __always_inline __u32 take_slot(void)
{
	__u32 i;

	for (i = 0; i < SLOTS; i++) {
		__u32 key = i;
		struct slot *slot = bpf_map_lookup_elem(&slots, &key);

		if (slot && !__sync_val_compare_and_swap(&slot->taken, 0, 1))
			return i;
	}
	return SLOTS;
}

/*
 * Runs the model on a slot. A global function, so that the verifier checks it once and
 * separately; otherwise it gives up.
 */
__noinline int rate_think(__u32 number)
{
	struct slot *slot = bpf_map_lookup_elem(&slots, &number);
	struct thalweg_rate_settings *set = the_settings();

	if (slot && set)
		thalweg_act(&set->model, &slot->flow, &slot->measurement, &slot->scratch);
	return 0;
}

/* Copies the model's state of a flow, 8 bytes at a time. */
static __always_inline void copy_flow(void *to, const void *from)
{
	__u64 *out = to;
	const __u64 *in = from;
	__u32 i;

#pragma unroll
	for (i = 0; i < sizeof(struct thalweg_rate_flow) / 8; i++)
		out[i] = in[i];
}

static __always_inline int is_traced(const struct thalweg_rate_trace *which, const __u32 *remote)
{
	const __u32 *wanted = (const __u32 *)which->remote;

	if (bpf_ktime_get_ns() >= which->until_ns)
		return 0;
	if (!(wanted[0] | wanted[1] | wanted[2] | wanted[3]))
		return 1;
	return wanted[0] == remote[0] && wanted[1] == remote[1] && wanted[2] == remote[2] &&
	       wanted[3] == remote[3];
}

static __always_inline void tell(struct sock *sk, const struct rate *ca, const struct slot *slot,
				 const struct round *round)
{
	struct thalweg_rate_trace *which;
	struct thalweg_rate_decision *decision;
	__u32 remote[4] = {}, zero = 0, i;

	which = bpf_map_lookup_elem(&trace, &zero);
	if (!which || !which->until_ns)
		return;
	remote_of(sk, remote);
	if (!is_traced(which, remote))
		return;
	decision = bpf_ringbuf_reserve(&decisions, sizeof(*decision), 0);
	if (!decision) {
		__sync_fetch_and_add(&which->lost, 1);
		return;
	}
	decision->time_ns = bpf_ktime_get_ns();
	__builtin_memcpy(decision->remote, remote, sizeof(remote));
	decision->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	decision->local_port = sk->__sk_common.skc_num;
	decision->netns = sk->__sk_common.skc_net.net->ns.inum;
	decision->measurement = slot->measurement;
	decision->floor = round->floor;
	decision->cap = round->cap;
	decision->next_rate = ca->rate;
	decision->delivered_rate = round->delivered_rate;
	for (i = 0; i < THALWEG_MODEL_INPUTS; i++)
		decision->inputs[i] = slot->flow.inputs[i];
	decision->action_q15 = slot->flow.action_q15;
	decision->flags = round->flags;
	decision->keep_q16 = round->keep_q16;
	decision->min_rtt_us = ca->min_rtt_us;
	decision->round_rtt_us = round->rtt_us;
	decision->window = ca->window;
	decision->reserved = 0;
	bpf_ringbuf_submit(decision, 0);
}

/*
 * The model's decision; false if it must wait for the next ACK. In COMPETE the window decides,
 * but the model sees on, so that it knows the last rounds when its turn comes again.
 */
static __always_inline int decide(struct sock *sk, struct rate *ca,
				  const struct thalweg_rate_settings *set, struct round *round)
{
	__u32 number = take_slot();
	struct slot *slot = bpf_map_lookup_elem(&slots, &number);
	__s32 action;

	if (!slot)
		return 0;
	copy_flow(&slot->flow, &ca->network);
	if (!slot->flow.decided)
		round->flags |= THALWEG_RATE_FIRST;
	slot->measurement.rtt_ns = (__u64)round->rtt_us * 1000;
	slot->measurement.base_rtt_ns = (__u64)round->base_us * 1000;
	slot->measurement.rate = ca->rate;
	slot->measurement.line_rate = set->reference_rate;
	rate_think(number);
	action = slot->flow.action_q15;
	copy_flow(&ca->network, &slot->flow);

	if (ca->phase == COMPETE)
		compete(ca, tcp_sk(sk), round);
	ca->rate = thalweg_next_rate(ca->rate, action, round->floor, round->cap);
	ca->rate = max_u64(ca->rate * round->keep_q16 >> 16, THALWEG_RATE_FLOOR);
	if (ca->phase == COMPETE) {
		apply_fair(sk, ca);
	} else {
		ca->falls = action < 0 ? ca->falls + 1 : 0;
		apply(sk, ca, ca->rate, round->base_us, round->rtt_us);
	}
	tell(sk, ca, slot, round);
	__sync_lock_test_and_set(&slot->taken, 0);
	return 1;
}

#endif
