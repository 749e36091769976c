/* SPDX-License-Identifier: GPL-2.0-only */
/* rate: the state of a flow, and how TCP is made to send at a rate. */
#ifndef THALWEG_RATE_STATE_H
#define THALWEG_RATE_STATE_H

#include "thalweg_tcp.h"

#include "thalweg_network.h"
#include "thalweg_rate_abi.h"

#define US_PER_S 1000000ull
/* Largest round-trip time for the window, in base round-trip times. */
#define WINDOW_ROUND_TRIPS 8
#define WINDOW_MAX (1 << 20)
/* First window of a connection, segments (RFC 6928). */
#define FIRST_WINDOW 10u
/* Of a mean in its unit, us / 16. */
#define MEAN_SHIFT 4

enum phase {
	STARTUP,
	STEADY,
	PROBE_RTT, /* at half the rate */
	COMPETE, /* by losses, beside flows that fill the queue: rate_compete.h */
};

enum {
	LIMITED = 1, /* by the application, in this round */
	CUT = 2, /* in the last round */
	SURE = 4, /* the last probe, a common one, found no much shorter path */
	RAMP = 8, /* COMPETE: no loss so far */
	LATE = 16, /* PROBE_RTT: something sent in its second half has arrived */
	SUSPECT = 32, /* the last probe, a common one, left a queue */
	STARVED = 64, /* others seemed to fill the queue when the probe began */
};

/* State of a flow. Times are the low half of TCP's clock in microseconds. */
struct rate {
	struct thalweg_rate_flow network;
	__u64 rate; /* bytes/s */
	/* Values at the start of this round. */
	__u32 round_us;
	__u32 round_delivered;
	__u32 round_lost;
	union {
		__u32 round_marked;
		__u32 prior_mean_us; /* PROBE_RTT: the mean round-trip time before it */
	};
	__u32 round_rtt_us; /* shortest so far; 0: none */
	__u32 min_rtt_us; /* 0: none */
	__u32 window; /* segments */
	__u8 phase; /* enum phase */
	__u8 resumed : 4; /* PROBE_RTT: the phase that follows */
	__u8 undrained : 4; /* COMPETE: common probes in a row that left a queue */
	__u8 flags;
	__u8 second; /* of the clock, at the end of the last round */
	__u16 epoch; /* of the clock, when the last probe started */
	__u16 samples; /* round-trip times in this round */
	union {
		__u32 full_rounds; /* STARTUP: rounds in a row with hardly more delivered */
		__u32 falls; /* STEADY: decisions in a row that reduce the rate */
		__u32 prior_min_rtt_us; /* PROBE_RTT: the shortest round-trip time before it */
	};
	__u32 mean_rtt; /* of this round, or of the last one with any, us / 16; 0: none */
	union {
		__u32 last_delivered; /* in the round before, KiB/s; in STARTUP, the maximum so far */
		__u32 fair_window; /* COMPETE, and its probes: segments / 1024 */
	};
};

_Static_assert(sizeof(struct rate) == THALWEG_CA_PRIV_BYTES, "a flow's record fits");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_rate_settings);
} settings SEC(".maps");

static __always_inline __u64 max_u64(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

static __always_inline struct thalweg_rate_settings *the_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* At least the reference: nearer hosts all count alike. */
static __always_inline __u32 base_rtt_us(const struct rate *ca,
					 const struct thalweg_rate_settings *set)
{
	__u32 base =
		ca->min_rtt_us > set->reference_rtt_us ? ca->min_rtt_us : set->reference_rtt_us;

	return base ? base : 1;
}

static __always_inline __u64 mss_of(const struct tcp_sock *tp)
{
	return tp->mss_cache ? tp->mss_cache : 536;
}

static __always_inline void start_round(struct rate *ca, const struct tcp_sock *tp)
{
	ca->round_us = tp->tcp_mstamp;
	ca->round_delivered = tp->delivered;
	ca->round_lost = tp->lost;
	ca->round_marked = tp->delivered_ce;
	ca->round_rtt_us = 0;
	ca->samples = 0;
	ca->flags &= ~LIMITED;
}

/*
 * Whether TCP paces. A timer for each burst costs more CPU than the rest of TCP. So a
 * flow goes without pacing if it has the whole rate of the fastest link and there is no
 * queue. With SO_MAX_PACING_RATE it must pace. The qdisc fq, which has a status of its
 * own, paces anyway.
 */
static __always_inline void pace(struct sock *sk, int needed)
{
	__u32 status;

	needed |= sk->sk_max_pacing_rate != ~0ul;
	status = needed ? SK_PACING_NEEDED : SK_PACING_NONE;
	if (sk->sk_pacing_status != status && sk->sk_pacing_status <= SK_PACING_NEEDED)
		sk->sk_pacing_status = status;
}

/* Makes TCP send at `rate`, with at most twice that rate's data in flight. */
static __always_inline void apply(struct sock *sk, struct rate *ca, __u64 rate, __u32 base_us,
				  __u32 rtt_us)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u64 limit = sk->sk_max_pacing_rate, window;

	if (rtt_us > base_us * WINDOW_ROUND_TRIPS)
		rtt_us = base_us * WINDOW_ROUND_TRIPS;
	if (rtt_us < base_us)
		rtt_us = base_us;
	/* Below 2^40 times below 2^24 for round-trip times of 10 s. */
	rtt_us = thalweg_min(rtt_us, (1 << 23) - 1);
	/*
	 * Even, as segments go in pairs: the other host acknowledges each second one at once,
	 * and a single one up to 40 ms late.
	 */
	window = (2 * rate * rtt_us / US_PER_S / mss_of(tp) + 3) & ~1ull;
	ca->window = thalweg_min(thalweg_min(window, WINDOW_MAX), tp->snd_cwnd_clamp);
	if (!ca->window)
		ca->window = 1;
	sk->sk_pacing_rate = thalweg_min(rate, limit);
}

#endif
