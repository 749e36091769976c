/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The arithmetic of H-TCP and DCTCP, freestanding. The programs htcp.bpf.c and
 * dctcp.bpf.c run it in the kernel, tests run it natively. No state and no clock: every
 * number is an argument.
 */
#ifndef THALWEG_CC_H
#define THALWEG_CC_H

#include <linux/types.h>

#define THALWEG_ONE_Q7 128
#define THALWEG_CC_ONE_Q16 65536

/* H-TCP: for this long after a congestion event it grows as Reno does. */
#define THALWEG_HTCP_LOW_SPEED_US 1000000ull
/* H-TCP: growth is scaled to this round-trip time, within the two factors below. */
#define THALWEG_HTCP_REFERENCE_RTT_US 100000u
/* Bounds of the backoff factor: 0.5 and 0.8. */
#define THALWEG_HTCP_BETA_MIN_Q7 64
#define THALWEG_HTCP_BETA_MAX_Q7 102
/* Limit of the elapsed time, so that nothing overflows: 1000 s. */
#define THALWEG_HTCP_ELAPSED_MAX_MS 1000000ull

/* DCTCP: weight of a new measurement, 2^-4 (RFC 8257, section 4.2). */
#define THALWEG_DCTCP_SHIFT_G 4
/* No congestion window is cut below this. */
#define THALWEG_CC_MIN_CWND 2

/*
 * H-TCP: segments by which the window grows per round trip, Q7, at least 1. elapsed_us:
 * time since the last congestion event; beta_q7: the backoff factor of that event;
 * min_rtt_us: 0 if unknown, which disables the scaling.
 *
 * alpha = 2 (1 - beta) s a(t), a(t) = 1 + 10 t + t^2 / 4, t in seconds beyond the first
 * (Leith and Shorten, PFLDnet 2004; draft-leith-tcp-htcp-06, section 2). s = min_rtt /
 * 100 ms within 0.1 and 2 is the draft's scaling by round-trip time; s a(t) is never
 * below 1, Reno's growth.
 */
static inline __u32 thalweg_htcp_alpha_q7(__u64 elapsed_us, __u32 beta_q7, __u32 min_rtt_us)
{
	const __u64 lowest = THALWEG_HTCP_REFERENCE_RTT_US / 10;
	const __u64 highest = THALWEG_HTCP_REFERENCE_RTT_US * 2;
	__u64 growth_q7 = THALWEG_ONE_Q7, ms, rtt = min_rtt_us;

	if (elapsed_us > THALWEG_HTCP_LOW_SPEED_US) {
		ms = (elapsed_us - THALWEG_HTCP_LOW_SPEED_US) / 1000;
		if (ms > THALWEG_HTCP_ELAPSED_MAX_MS)
			ms = THALWEG_HTCP_ELAPSED_MAX_MS;
		growth_q7 += 10 * THALWEG_ONE_Q7 * ms / 1000;
		growth_q7 += THALWEG_ONE_Q7 / 4 * ms * ms / 1000000;
	}
	if (rtt) {
		if (rtt < lowest)
			rtt = lowest;
		if (rtt > highest)
			rtt = highest;
		growth_q7 = growth_q7 * rtt / THALWEG_HTCP_REFERENCE_RTT_US;
		if (growth_q7 < THALWEG_ONE_Q7)
			growth_q7 = THALWEG_ONE_Q7;
	}
	if (beta_q7 < THALWEG_HTCP_BETA_MIN_Q7)
		beta_q7 = THALWEG_HTCP_BETA_MIN_Q7;
	if (beta_q7 > THALWEG_HTCP_BETA_MAX_Q7)
		beta_q7 = THALWEG_HTCP_BETA_MAX_Q7;
	return 2 * (THALWEG_ONE_Q7 - beta_q7) * growth_q7 / THALWEG_ONE_Q7;
}

/*
 * H-TCP: share of the window that is kept at a congestion event, Q7. The shortest and
 * the longest round-trip time show how much of the longest was queueing delay. The share
 * is one half if the rate is unknown, or differs by more than a fifth from that before
 * the previous event (adaptive backoff, section 2.2). Rates are in any unit, 0 for
 * unknown.
 */
static inline __u32 thalweg_htcp_beta_q7(__u32 min_rtt_us, __u32 max_rtt_us, __u32 rate,
					 __u32 previous_rate)
{
	__u64 five = 5ull * rate, previous = previous_rate;
	__u64 beta_q7;

	if (!min_rtt_us || !max_rtt_us || !rate || !previous_rate)
		return THALWEG_HTCP_BETA_MIN_Q7;
	if (five < 4 * previous || five > 6 * previous)
		return THALWEG_HTCP_BETA_MIN_Q7;
	beta_q7 = (__u64)min_rtt_us * THALWEG_ONE_Q7 / max_rtt_us;
	if (beta_q7 < THALWEG_HTCP_BETA_MIN_Q7)
		return THALWEG_HTCP_BETA_MIN_Q7;
	if (beta_q7 > THALWEG_HTCP_BETA_MAX_Q7)
		return THALWEG_HTCP_BETA_MAX_Q7;
	return beta_q7;
}

/* Segments of a window times a factor, Q7. */
static inline __u32 thalweg_htcp_ssthresh(__u32 cwnd, __u32 beta_q7)
{
	__u32 left = (__u64)cwnd * beta_q7 / THALWEG_ONE_Q7;

	return left < THALWEG_CC_MIN_CWND ? THALWEG_CC_MIN_CWND : left;
}

/*
 * H-TCP: acknowledged segments per segment of growth, at least 1, so that growth is
 * never faster than in slow start.
 */
static inline __u32 thalweg_htcp_acks_per_segment(__u32 cwnd, __u32 alpha_q7)
{
	__u64 acks = alpha_q7 ? (__u64)cwnd * THALWEG_ONE_Q7 / alpha_q7 : cwnd;

	return acks ? acks : 1;
}

/*
 * DCTCP: the estimated share of marked segments, Q16, after a window in which `marked`
 * of `acked` were marked: alpha (1 - g) + g marked/acked (RFC 8257, section 3.3). It
 * falls by at least the smallest step, so that it reaches 0.
 */
static inline __u32 thalweg_dctcp_alpha_q16(__u32 alpha_q16, __u32 marked, __u32 acked)
{
	__u32 fall = alpha_q16 >> THALWEG_DCTCP_SHIFT_G;
	__u64 share_q16 = 0;

	if (!fall && alpha_q16)
		fall = 1;
	if (acked) {
		if (marked > acked)
			marked = acked;
		share_q16 = (__u64)marked * THALWEG_CC_ONE_Q16 / acked;
	}
	alpha_q16 = alpha_q16 - fall + (share_q16 >> THALWEG_DCTCP_SHIFT_G);
	return alpha_q16 > THALWEG_CC_ONE_Q16 ? THALWEG_CC_ONE_Q16 : alpha_q16;
}

/* DCTCP: segments of a window after marks: cwnd (1 - alpha/2) (section 3.4). */
static inline __u32 thalweg_dctcp_ssthresh(__u32 cwnd, __u32 alpha_q16)
{
	__u32 left = cwnd - (__u32)(((__u64)cwnd * alpha_q16) >> 17);

	return left < THALWEG_CC_MIN_CWND ? THALWEG_CC_MIN_CWND : left;
}

#endif
