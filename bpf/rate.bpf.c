// SPDX-License-Identifier: GPL-2.0-only
/*
 * rate: the learned rate controller as a congestion control. Once per round trip
 * a model (docs/reference/model.md) sees how long the queue and how high the rate is, and
 * multiplies the rate by 0.83 to 1.2. The arithmetic is thalweg_network.h's; what
 * is here makes measurements of what TCP knows, and says what else moves the rate.
 * docs/guide/cc.md has it in words, with the reasons.
 *
 * What the model sees is not that of one simulated network, but fits its terms:
 *  - the line rate is a reference, the same for all flows (settings);
 *  - the base round trip is the shortest one, but no shorter than a reference;
 *  - the round trip is the base plus the queue: what the shortest one of this
 *    round has above the shortest one of the last seconds.
 *
 * From TCP's side:
 *  - TCP paces, at our rate; the window is only a cap. At rates beyond the
 *    reference TCP does not pace, because its timers would be what limits.
 *  - While it starts, the rate doubles each round until the model's signal is at
 *    its target, or much is lost, something is marked, or no more arrives.
 *  - Flows probe for their shortest round trip all at the same moments.
 *  - After a round that lost 2 % or more, or had marks, the rate is cut and does
 *    not grow; a round after a cut is not cut, or random loss would end in nothing.
 */
#include "thalweg_tcp.h"
#include <bpf/bpf_endian.h>

#include "thalweg_network.h"
#include "thalweg_rate_abi.h"

#define AF_INET6 10

#define US_PER_S 1000000ull
/* How often a flow probes for the shortest round trip, and how long at least. */
#define PROBE_PERIOD_NS 5000000000ull
#define PROBE_US 20000u
/* How long at most for the queue to go. */
#define PROBE_QUEUE_US 500000u
/* A probe that takes longer than this, after one that found nothing, waits for the fourth period. */
#define LONG_PROBE_US 250000u
/* So many rounds at the start in which hardly more arrived, and it is over. */
#define FULL_ROUNDS 3
/* So many decisions for less in a row, and the shortest round trip must have changed. */
#define FALLING_MAX 48
/* A pause that a flow starts anew after. */
#define IDLE_US 1000000u
/* TCP sends up to so many bytes at a time, whatever the rate: the grain of measurements. */
#define BURST_BYTES 65536
/* A queue is given so many base round trips to go. */
#define DRAIN_ROUNDS 4
/* One loss in so many is none of congestion. */
#define LOSS_SHARE 50
/*
 * Of less in a base round trip one burst or two are all that there is: what arrives
 * in a round says nothing exact of the rate, and few round trips are measured.
 */
#define COARSE_BYTES 16384
/* So many base round trips such a flow waits at most for the second one measured. */
#define COARSE_ROUND_TRIPS 4
/* The round trip that counts for the window, in base round trips, at most. */
#define WINDOW_ROUND_TRIPS 8
#define WINDOW_MAX (1 << 20)
#define SLOTS 4

char LICENSE[] SEC("license") = "GPL";

THALWEG_KERNEL;

enum {
	STARTING = 1,
	PROBING = 2, /* for the shortest round trip, at half the rate */
	LIMITED = 4, /* by the application, in this round */
	CUT = 8, /* the last round was */
	SURE = 16, /* the last probe, a common one, found no path that is much shorter */
	SEVERAL = 32, /* round trips were measured in this round, not one or none */
};

/* What a flow keeps. Times are the low half of TCP's clock in microseconds. */
struct rate {
	struct thalweg_rate_flow network;
	__u64 rate; /* bytes/s */
	/* As it was when this round began. */
	__u32 round_us;
	__u32 round_delivered;
	__u32 round_lost;
	__u32 round_marked;
	__u32 round_rtt_us; /* shortest so far; 0: none */
	__u32 min_rtt_us; /* 0: none */
	__u32 epoch; /* of the clock, when the last probe began */
	__u32 window; /* segments */
	__u32 flags;
	/*
	 * Decisions for less in a row; at the start, rounds without growth; while
	 * probing, the shortest round trip before.
	 */
	__u32 falling;
	__u32 last_rtt_us; /* shortest of the round before; 0: none */
	__u32 last_delivered; /* in the round before, KiB/s; at the start, the most so far */
};

_Static_assert(sizeof(struct rate) == THALWEG_CA_PRIV_BYTES, "a flow's record fits");

/*
 * What a decision works on: the network indexes it by variables, which it cannot
 * do in a socket, and it is too large for the stack.
 */
struct slot {
	__u32 taken;
	__u32 reserved;
	struct thalweg_rate_flow flow;
	struct thalweg_measurement measurement;
	struct thalweg_scratch scratch;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_rate_settings);
} settings SEC(".maps");

/*
 * Several a CPU: while a process handles its ACKs, an interrupt may bring one of
 * another flow, and another process may take the CPU where the kernel preempts.
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

static __always_inline __u64 max_u64(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

static __always_inline struct thalweg_rate_settings *the_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* No shorter than the reference: hosts that are nearer are all alike. */
static __always_inline __u32 base_rtt_us(const struct rate *ca,
					 const struct thalweg_rate_settings *set)
{
	__u32 base =
		ca->min_rtt_us > set->reference_rtt_us ? ca->min_rtt_us : set->reference_rtt_us;

	return base ? base : 1;
}

/*
 * Counts up at the same moments for all flows, and on all hosts whose clocks agree:
 * a queue that flows share goes only where they probe together. Of a probe alone
 * each would take the queue of the others for the length of the path.
 */
static __always_inline __u32 epoch_now(void)
{
	return bpf_ktime_get_tai_ns() / PROBE_PERIOD_NS;
}

static __always_inline __u64 mss_of(const struct tcp_sock *tp)
{
	return tp->mss_cache ? tp->mss_cache : 536;
}

/*
 * How long a probe takes: at half the rate a queue takes twice its length to go. Of
 * a very long one a part goes each time.
 */
static __always_inline __u32 probe_us(const struct rate *ca, __u32 base_us)
{
	return 2 * base_us + thalweg_min(2 * ca->last_rtt_us, PROBE_QUEUE_US) + PROBE_US;
}

static __always_inline void start_round(struct rate *ca, const struct tcp_sock *tp)
{
	ca->round_us = tp->tcp_mstamp;
	ca->round_delivered = tp->delivered;
	ca->round_lost = tp->lost;
	ca->round_marked = tp->delivered_ce;
	ca->round_rtt_us = 0;
	ca->flags &= ~(LIMITED | SEVERAL);
}

/*
 * Whether TCP spaces what it sends. A timer for each burst costs more CPU than all
 * else of TCP, so where a flow wants all that the fastest link has and no queue
 * stands, it goes without; SO_MAX_PACING_RATE cannot. The qdisc fq, which has a
 * status of its own, paces as it did.
 */
static __always_inline void pace(struct sock *sk, int needed)
{
	__u32 status;

	needed |= sk->sk_max_pacing_rate != ~0ul;
	status = needed ? SK_PACING_NEEDED : SK_PACING_NONE;
	if (sk->sk_pacing_status != status && sk->sk_pacing_status <= SK_PACING_NEEDED)
		sk->sk_pacing_status = status;
}

/* Has TCP send at `rate`, with at most twice of what that has under way. */
static __always_inline void apply(struct sock *sk, struct rate *ca, __u64 rate, __u32 base_us,
				  __u32 rtt_us)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 limit = sk->sk_max_pacing_rate, window;

	if (rtt_us > base_us * WINDOW_ROUND_TRIPS)
		rtt_us = base_us * WINDOW_ROUND_TRIPS;
	if (rtt_us < base_us)
		rtt_us = base_us;
	/* Below 2^40 times below 2^24 for round trips of 10 s. */
	rtt_us = thalweg_min(rtt_us, (1 << 23) - 1);
	/*
	 * Even, as segments go in pairs: the other host acknowledges each second one
	 * at once, and a single one up to 40 ms late.
	 */
	window = (2 * rate * rtt_us / US_PER_S / mss_of(tp) + 3) & ~1ull;
	ca->window = thalweg_min(thalweg_min(window, WINDOW_MAX), tp->snd_cwnd_clamp);
	if (!ca->window)
		ca->window = 1;
	sk->sk_pacing_rate = thalweg_min(rate, limit);
}

SEC("struct_ops")
void BPF_PROG(rate_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct rate *ca = inet_csk_ca(sk);
	struct thalweg_rate_settings *set = the_settings();
	__u32 rtt_us = tp->srtt_us >> 3;
	__u64 rate;

	if (!set)
		return;
	/* The kernel has set all to 0. */
	ca->min_rtt_us = rtt_us;
	ca->epoch = epoch_now();
	ca->flags = STARTING;
	start_round(ca, tp);
	rate = (__u64)tp->snd_cwnd * mss_of(tp) * US_PER_S / base_rtt_us(ca, set);
	ca->rate = max_u64(thalweg_min(rate, THALWEG_MAX_RATE), THALWEG_RATE_FLOOR);
	apply(sk, ca, ca->rate, base_rtt_us(ca, set), rtt_us);
	tp->snd_ssthresh = 0x7fffffff;
	/* The qdisc fq would have set its own by now: no race that matters. */
	pace(sk, 1);
}

/* Whether the signal of the model is at its target, for this rate and queue. */
static __always_inline int is_at_target(const struct thalweg_rate_settings *set, __u64 rate,
					__u64 rtt_us, __u64 base_us)
{
	__u64 inflation = thalweg_inflation_q16(rtt_us * 1000, base_us * 1000);
	__u64 root = thalweg_root(thalweg_share_q48(rate, set->reference_rate));
	__u64 excess = thalweg_positive((__s64)(inflation - set->model.offset_q16));

	return (excess * root) >> 16 >= set->model.target_q24;
}

/*
 * Whether the rate is so low that a round has a burst or two of it. Not what arrives:
 * an application that pauses has its flow send little, but not coarsely.
 */
static __always_inline int is_coarse(const struct rate *ca, __u32 base_us)
{
	return !(ca->flags & STARTING) && ca->rate * base_us < COARSE_BYTES * US_PER_S;
}

/* The number of a slot that nobody else has, or SLOTS. */
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
 * Has the model decide on what is in a slot. A global function, so that the
 * verifier checks it once and apart from the rest, without which it gives up.
 */
__noinline int rate_think(__u32 number)
{
	struct slot *slot = bpf_map_lookup_elem(&slots, &number);
	struct thalweg_rate_settings *set = the_settings();

	if (slot && set)
		thalweg_act(&set->model, &slot->flow, &slot->measurement, &slot->scratch);
	return 0;
}

/* Copies what the model remembers of a flow, 8 bytes at a time. */
static __always_inline void copy_flow(void *to, const void *from)
{
	__u64 *out = to;
	const __u64 *in = from;
	__u32 i;

#pragma unroll
	for (i = 0; i < sizeof(struct thalweg_rate_flow) / 8; i++)
		out[i] = in[i];
}

/* What a decision was made on, for the ring. */
struct round {
	__u64 delivered_rate;
	__u64 before; /* rate */
	__u64 floor;
	__u64 cap;
	__u32 rtt_us;
	__u32 base_us;
	__u32 keep_q16;
	__u32 flags;
};

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
	if (sk->__sk_common.skc_family == AF_INET6) {
		remote[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
		remote[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
		remote[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
		remote[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
	} else {
		remote[2] = bpf_htonl(0xffff);
		remote[3] = sk->__sk_common.skc_daddr;
	}
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

/* The model's decision; false where it has to wait for the next ACK. */
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

	ca->rate = thalweg_next_rate(ca->rate, action, round->floor, round->cap);
	ca->rate = max_u64(ca->rate * round->keep_q16 >> 16, THALWEG_RATE_FLOOR);
	ca->falling = action < 0 ? ca->falling + 1 : 0;
	apply(sk, ca, ca->rate, round->base_us, round->rtt_us);
	tell(sk, ca, slot, round);
	__sync_lock_test_and_set(&slot->taken, 0);
	return 1;
}

/* What is left of the rate after what was lost and marked in the round, Q16. */
static __always_inline __u32 keep_q16(const struct rate *ca, __u64 delivered, __u64 lost,
				      __u64 marked)
{
	__u64 keep = THALWEG_ONE_Q16, all = delivered + lost;

	if (ca->flags & CUT || !all)
		return keep;
	if (lost * LOSS_SHARE >= all && lost)
		keep = thalweg_positive((__s64)(THALWEG_ONE_Q16 - lost * THALWEG_ONE_Q16 / all));
	if (keep < THALWEG_ONE_Q16 / 2)
		keep = THALWEG_ONE_Q16 / 2;
	/* A round of nothing but marks costs a fifth (RFC 8511). */
	marked = thalweg_min(marked, all);
	return keep - keep * marked / (5 * all);
}

/*
 * The queue that stood for two rounds. A round that this host slept through (busy
 * CPUs, ACKs held back and sent together) looks like one with a queue; two in a
 * row are rare. A shrinking queue is seen at once.
 *
 * Many flows that share a queue have one round trip a round each. Were theirs to
 * look back as well, every decision would rest on half of what the one before it
 * did, and all of them together would drive the queue up and down; so they wait for
 * two in a round, and these count alone. The round of a flow that waited in vain is
 * taken as any other.
 */
static __always_inline __u32 queue_us(struct rate *ca, int coarse)
{
	/* Where all came with delayed ACKs nothing is known but what was. */
	__u32 now = ca->round_rtt_us ? ca->round_rtt_us : ca->last_rtt_us;
	__u32 last = ca->last_rtt_us;

	ca->last_rtt_us = now;
	if (last && last < now && !(coarse && ca->flags & SEVERAL))
		now = last;
	/* The shortest may be newer than the round before. */
	return now > ca->min_rtt_us ? now - ca->min_rtt_us : 0;
}

/*
 * Whether the start has found the capacity: at twice the rate hardly more arrives,
 * round after round. A flow that begins in a queue of others sees none grow.
 */
static __always_inline int is_full(struct rate *ca, const struct round *round)
{
	__u64 delivered = round->delivered_rate >> 10;

	if (delivered * 4 >= (__u64)ca->last_delivered * 5) {
		ca->last_delivered = thalweg_min(delivered, THALWEG_U32_MAX);
		ca->falling = 0;
	} else if (!(round->flags & THALWEG_RATE_LIMITED)) {
		ca->falling++;
	}
	return ca->falling >= FULL_ROUNDS;
}

/* The round is over. */
static __always_inline void end_round(struct sock *sk, struct rate *ca,
				      const struct thalweg_rate_settings *set, __u32 base_us)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 elapsed_us = (__u32)tp->tcp_mstamp - ca->round_us;
	__u64 delivered = tp->delivered - ca->round_delivered, used, arriving, burst;
	__u64 queue, drained;
	struct round round = {};
	__u32 epoch;
	int at_target, coarse, common;

	if (ca->flags & PROBING) {
		/* Half the rate, long enough for the queue to go, and this is what is left. */
		if (ca->round_rtt_us)
			ca->min_rtt_us = ca->round_rtt_us;
		if (ca->min_rtt_us < ca->falling - ca->falling / 8)
			ca->flags &= ~SURE;
		ca->falling = 0;
		ca->flags &= ~PROBING;
		apply(sk, ca, ca->rate, base_rtt_us(ca, set), ca->min_rtt_us);
		start_round(ca, tp);
		return;
	}

	if (!elapsed_us)
		elapsed_us = 1;
	round.delivered_rate = delivered * mss_of(tp) * US_PER_S / elapsed_us;
	round.keep_q16 = keep_q16(ca, delivered, tp->lost - ca->round_lost,
				  tp->delivered_ce - ca->round_marked);
	/* Of two rounds, because ACKs may come in one for two. */
	arriving = max_u64(round.delivered_rate, (__u64)ca->last_delivered << 10);
	coarse = is_coarse(ca, base_us);
	round.base_us = base_us;
	round.rtt_us = base_us + queue_us(ca, coarse);
	/*
	 * What is not used does not grow, however the model sees an empty queue, and is
	 * given up in a while, unless it is the application that does not use it.
	 */
	burst = thalweg_min(BURST_BYTES, ca->window * mss_of(tp));
	used = 2 * arriving + burst * US_PER_S / base_us;
	round.cap = ca->rate - (ca->flags & LIMITED ? 0 : ca->rate / 8);
	round.cap = thalweg_min(max_u64(round.cap, used), THALWEG_MAX_RATE);
	if (!(ca->flags & STARTING))
		ca->last_delivered = thalweg_min(round.delivered_rate >> 10, THALWEG_U32_MAX);
	/*
	 * Below what arrives by no more than empties the queue in DRAIN_ROUNDS, a quarter
	 * at most, and a sixteenth where none is seen. The model would go on for the rounds
	 * in which it does not yet see it gone, and needs many more to come back from a
	 * rate that leaves the link idle.
	 */
	queue = thalweg_min(max_u64(round.rtt_us - base_us, base_us / 4), base_us);
	drained = arriving - arriving * queue / (DRAIN_ROUNDS * base_us);
	round.floor = max_u64(thalweg_min(ca->rate, drained), THALWEG_RATE_FLOOR);
	at_target = is_at_target(set, ca->rate, round.rtt_us, base_us);
	/*
	 * Both bounds hold a flow to what it has, and what makes flows equal is only that
	 * the model takes more from the one that has more. Where what arrives is known to a
	 * burst they would also cut or lift by chance, most where least arrives.
	 */
	if (coarse)
		round.floor = THALWEG_RATE_FLOOR;
	/*
	 * While a queue stands, more than what arrives only lengthens it. The model
	 * hears of the queue rounds late and goes down in small steps.
	 */
	if (!(ca->flags & STARTING) && at_target && !coarse)
		round.cap = thalweg_min(round.cap, max_u64(arriving * 9 / 8, ca->rate / 2));
	if (ca->flags & LIMITED)
		round.flags |= THALWEG_RATE_LIMITED;
	if (ca->flags & LIMITED || round.keep_q16 < THALWEG_ONE_Q16) {
		round.flags |= THALWEG_RATE_HELD;
		round.cap = thalweg_min(ca->rate, round.cap);
	}

	epoch = epoch_now();
	common = ca->epoch != epoch &&
		 (!(ca->flags & SURE) || !(epoch & 3) || probe_us(ca, base_us) < LONG_PROBE_US);
	if (common)
		round.flags |= THALWEG_RATE_PROBING;
	if (ca->flags & STARTING) {
		int full = is_full(ca, &round);

		if (round.keep_q16 < THALWEG_ONE_Q16 || full ||
		    is_at_target(set, round.delivered_rate, round.rtt_us, base_us)) {
			/* Full without a queue: the path looks longer than it is. */
			if (full)
				round.flags |= THALWEG_RATE_PROBING;
			ca->falling = 0;
			ca->flags &= ~STARTING;
			if (ca->rate > round.delivered_rate)
				ca->rate = max_u64(round.delivered_rate, THALWEG_RATE_FLOOR);
		} else {
			ca->rate = thalweg_min(2 * ca->rate, round.cap);
		}
		apply(sk, ca, ca->rate, base_us, round.rtt_us);
	} else {
		if (ca->falling >= FALLING_MAX)
			round.flags |= THALWEG_RATE_PROBING;
		if (!decide(sk, ca, set, &round))
			return;
	}
	ca->epoch = epoch;
	if (round.flags & THALWEG_RATE_PROBING) {
		/*
		 * Half of what arrives: the rate may be more than the flow's part. What an
		 * application sends that has little to send makes no queue, and is not held up.
		 */
		__u64 probe = thalweg_min(ca->rate, arriving) / 2;

		/* What a flow finds alone may be the others' queue. */
		ca->flags &= ~SURE;
		ca->flags |= common ? PROBING | SURE : PROBING;
		ca->falling = ca->min_rtt_us;
		if (round.flags & THALWEG_RATE_LIMITED)
			probe = max_u64(ca->rate / 2, arriving);
		apply(sk, ca, max_u64(probe, THALWEG_RATE_FLOOR), base_us, base_us);
	}
	pace(sk, at_target || ca->flags & PROBING || ca->rate < set->reference_rate);
	ca->flags &= ~CUT;
	if (round.keep_q16 < THALWEG_ONE_Q16)
		ca->flags |= CUT;
	start_round(ca, tp);
}

static __always_inline void measure_rtt(struct rate *ca, __u32 rtt_us, int is_ack_delayed)
{
	if (is_ack_delayed && rtt_us > ca->min_rtt_us)
		return;
	if (ca->round_rtt_us)
		ca->flags |= SEVERAL;
	if (!ca->round_rtt_us || rtt_us < ca->round_rtt_us)
		ca->round_rtt_us = rtt_us;
	if (!ca->min_rtt_us || rtt_us < ca->min_rtt_us)
		ca->min_rtt_us = rtt_us;
}

/* Whether a round that is long enough waits for one more round trip. */
static __always_inline int is_waiting(const struct rate *ca, __u32 elapsed_us, __u32 base_us)
{
	return !(ca->flags & (PROBING | SEVERAL)) && is_coarse(ca, base_us) &&
	       elapsed_us < COARSE_ROUND_TRIPS * base_us;
}

SEC("struct_ops")
int rate_control(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct rate *ca = inet_csk_ca(sk);
	struct thalweg_rate_settings *set = the_settings();
	const struct rate_sample *sample;
	__u32 base_us, length_us, elapsed_us;
	long rtt_us;

	if (thalweg_kernel.cong_control_args == 4) {
		sample = (void *)ctx[3];
		/* Keeps the compiler from making one load at an unknown place of the two. */
		asm volatile("" ::: "memory");
	} else {
		sample = (void *)ctx[1];
	}
	if (!set)
		return 0;
	rtt_us = sample->rtt_us;
	if (rtt_us >= 0)
		measure_rtt(ca, rtt_us > 10000000 ? 10000000 : rtt_us + !rtt_us,
			    sample->is_ack_delayed);
	if (sample->is_app_limited)
		ca->flags |= LIMITED;

	base_us = base_rtt_us(ca, set);
	length_us = base_us;
	if (ca->flags & PROBING)
		length_us = probe_us(ca, base_us);
	elapsed_us = (__u32)tp->tcp_mstamp - ca->round_us;
	if (sample->prior_mstamp && !seq_before(sample->prior_delivered, ca->round_delivered) &&
	    elapsed_us >= length_us && !is_waiting(ca, elapsed_us, base_us))
		end_round(sk, ca, set, base_us);

	if (BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == CA_STATE_LOSS) {
		/* As much as leaves the network may enter it. */
		__u32 window = tp->snd_cwnd + sample->acked_sacked;

		tp->snd_cwnd = window < ca->window ? window : ca->window;
	} else if (tp->snd_cwnd != ca->window) {
		tp->snd_cwnd = ca->window;
	}
	return 0;
}

/* Sets a rate outside the rounds. */
static __always_inline void restart(struct sock *sk, struct rate *ca, __u64 rate)
{
	struct thalweg_rate_settings *set = the_settings();

	ca->rate = max_u64(rate, THALWEG_RATE_FLOOR);
	if (ca->flags & PROBING)
		ca->falling = 0;
	ca->flags &= ~(PROBING | CUT);
	start_round(ca, tcp_sk(sk));
	pace(sk, 1);
	if (set)
		apply(sk, ca, ca->rate, base_rtt_us(ca, set), ca->min_rtt_us);
}

SEC("struct_ops")
void BPF_PROG(rate_cwnd_event, struct sock *sk, int event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct rate *ca = inet_csk_ca(sk);
	__u32 idle_us = (__u32)tp->tcp_mstamp - ca->round_us;

	if (event == CA_EVENT_LOSS) {
		ca->flags &= ~STARTING;
		restart(sk, ca, ca->rate / 2);
	} else if (event == CA_EVENT_TX_START && idle_us > IDLE_US &&
		   idle_us > ca->min_rtt_us * 4) {
		/* What was learned is the older the longer it is ago; halves are soon back. */
		ca->flags |= STARTING;
		restart(sk, ca, ca->rate >> thalweg_min(idle_us / IDLE_US, 4));
	}
}

/* The window is no measure of what the path holds: it is never cut by it. */
SEC("struct_ops")
__u32 BPF_PROG(rate_ssthresh, struct sock *sk)
{
	return tcp_sk(sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(rate_undo_cwnd, struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops rate = {
	.init = (void *)rate_init,
	.ssthresh = (void *)rate_ssthresh,
	.cong_control = (void *)rate_control,
	.cwnd_event = (void *)rate_cwnd_event,
	.undo_cwnd = (void *)rate_undo_cwnd,
	.name = "thalweg_rl",
};
