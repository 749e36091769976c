/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The learner's arithmetic, freestanding: no helpers, no clock, no randomness of its
 * own. It compiles for BPF and natively. crates/learner is the documented reference of
 * the same arithmetic, and docs/reference/learner.md describes it. tests/learner keeps
 * both bit-identical.
 *
 * Masks such as `arm & THALWEG_ARM_MASK` are for the verifier: callers pass indices
 * below THALWEG_MAX_ARMS.
 */
#ifndef THALWEG_ALGO_H
#define THALWEG_ALGO_H

#include "thalweg_abi.h"

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define THALWEG_ARM_MASK (THALWEG_MAX_ARMS - 1)
#define THALWEG_U64_MAX (~(__u64)0)
#define THALWEG_U32_MAX (~(__u32)0)

/*
 * The number x, of which the BPF verifier knows nothing. It follows each known number, and
 * in Linux 6.1 each known range, through every branch separately, and a choice among 16
 * arms has more paths than its limit. Unknown numbers share one path. So numbers that are
 * carried into a loop over arms, or from one arm to the next, are unknown where that saves
 * paths (docs/reference/kernels.md, The verifier).
 */
#ifdef __bpf__
static volatile __u64 thalweg_zero; /* never written */
#define THALWEG_UNKNOWN(x) ((__typeof__(x))((x) + thalweg_zero))
#else
#define THALWEG_UNKNOWN(x) (x)
#endif

/* Keeps a branch: the compiler would compute both outcomes, which costs more than a jump. */
#ifdef __bpf__
#define THALWEG_BRANCH(x) asm volatile("" : "+r"(x))
#else
#define THALWEG_BRANCH(x)
#endif

/* classic: scale of both terms of the cost. */
#define THALWEG_CLASSIC_SCALE 1000000u
/* classic: the learning rate is 1 / 2^2. */
#define THALWEG_CLASSIC_RATE_SHIFT 2
/* classic: one choice in 20 is random. */
#define THALWEG_CLASSIC_EPSILON 20
/* classic: connections to a host before the first choice. */
#define THALWEG_CLASSIC_MIN_CONNECTIONS 4
/* classic: index of bbr among its four fixed arms. */
#define THALWEG_CLASSIC_BBR 1

/* thalweg: offset that keeps a cost above 0 whatever the rate; bits, Q16. */
#define THALWEG_COST_OFFSET_Q16 (64u << 16)
/*
 * thalweg: a measurement counts as at most two and a half mean deviations worse than the
 * mean, but one bit at least and four at most; a time-out as one. It counts as at most two
 * bits better.
 */
#define THALWEG_CLIP_HALF_DEVIATIONS 5
#define THALWEG_CLIP_WORSE_Q16 (1u << 16)
#define THALWEG_CLIP_WORSE_MAX_Q16 (4u << 16)
#define THALWEG_CLIP_BETTER_Q16 (2u << 16)
/* thalweg: a measurement this much better than the mean of up to one other replaces it. */
#define THALWEG_ACCIDENT_Q16 (1u << 16)
/* thalweg: a measurement clipped as worse costs 1/2^this of the evidence. */
#define THALWEG_SURPRISE_SHIFT 2
/* thalweg: the clip applies from this evidence on. */
#define THALWEG_CLIP_WEIGHT_Q16 (1u << 15)
/*
 * thalweg: handicap of an arm against the system's own: 13/4 mean deviations / (4 +
 * evidence), from a twentieth of a bit to half a bit.
 */
#define THALWEG_CAUTION_QUARTERS 13
#define THALWEG_CAUTION_EVIDENCE_Q16 (4u << 16)
#define THALWEG_CAUTION_MIN_Q16 (THALWEG_ONE_Q16 / 20)
#define THALWEG_CAUTION_MAX_Q16 (1u << 15)
/* thalweg: an arm's memory grows with this many mean deviations, up to this multiple. */
#define THALWEG_MEMORY_DEVIATIONS 5
#define THALWEG_MEMORY_MULTIPLE 3
/* thalweg: bits of cost for each retransmission of all segments. */
#define THALWEG_WASTE_BITS 3
/*
 * thalweg: a measurement is slow if it costs 2.5 bits more than the system's mean and its
 * own. From 4 bits on it counts twice. The counts are halved at this many measurements.
 */
#define THALWEG_SLOW_Q16 (5u << 15)
#define THALWEG_VERY_SLOW_Q16 (4u << 16)
#define THALWEG_COUNTED_MAX 256
/* thalweg: added to the counts of the system's arm, for its uncertainty. */
#define THALWEG_SLOW_DOUBT 1
#define THALWEG_COUNTED_DOUBT 8
/* thalweg: handicap of an arm that is slow more often than the system's; bits, Q16. */
#define THALWEG_UNSTEADY_Q16 (3u << 15)
/* thalweg: the loss rule changes arms for an advantage of at least half a bit ... */
#define THALWEG_RESCUE_GAP_Q16 (1u << 15)
/* ... and in three cases of four, so that the present arm is measured too. */
#define THALWEG_RESCUE_SHARE_Q16 (THALWEG_ONE_Q16 / 4 * 3)
/*
 * thalweg: an arm causes losses of its own if its retransmissions exceed a sum: 1.5
 * times those expected of the system's arm, one segment in 256, this number, and an
 * allowance for chance.
 */
#define THALWEG_OWN_LOSS_SHIFT 8
#define THALWEG_OWN_LOSS_GRACE 8
/*
 * thalweg: no verdict on fewer segments: a lost burst, and what it makes TCP send again,
 * is most of them.
 */
#define THALWEG_OWN_LOSS_SEGS 1000
/* thalweg: added to the retransmissions of the system's arm, for its uncertainty. */
#define THALWEG_OWN_LOSS_DOUBT 4
/* thalweg: chance adds 2^(this/2) times the root of the expected number: losses come in bursts. */
#define THALWEG_OWN_LOSS_CHANCE_SHIFT 8
/*
 * thalweg: a bottleneck is full if the system's arm loses this many segments, and its queue
 * lengthens the RTT by a quarter of a bit. Half a bit suffices without losses. An arm whose
 * rate there exceeds the system's arm's by a quarter of a bit takes it from others.
 */
#define THALWEG_FULL_RETRANS 4
/*
 * thalweg: jitter is no queue: a half of the base RTT, 4 ms at most, is added to it, and
 * the sum counts as 3 ms at least.
 */
#define THALWEG_JITTER_US 4000u
#define THALWEG_LEAST_RTT_US 3000u
#define THALWEG_QUEUE_Q16 (1u << 14)
#define THALWEG_DEEP_QUEUE_Q16 (1u << 15)
#define THALWEG_TAKES_Q16 (1u << 14)
/*
 * thalweg: if the system's arm loses a little, a gain of up to this counts as taken,
 * too: a bit and a half. A bolder arm can win that much from others. Random loss costs
 * the system's arm a multiple.
 */
#define THALWEG_BOLDER_Q16 (3u << 15)
/* thalweg: weight of the last RTT under the system's arm, 1/2^this. */
#define THALWEG_QUEUE_SHIFT 2
/* thalweg: handicap of a harmful arm against the system's arm; bits, Q16. */
#define THALWEG_HARM_Q16 (4u << 16)
/*
 * thalweg: largest number of segments that one stretch adds, and its discount of older
 * ones: 1/2^this.
 */
#define THALWEG_SEGS_MAX 8192
#define THALWEG_SEGS_SHIFT 3
/* thalweg: least weight of a scored measurement, and of a time-out. */
#define THALWEG_WEIGHT_MIN_Q16 (1u << 12)
#define THALWEG_WEIGHT_TIMEOUT_Q16 (1u << 15)
/*
 * thalweg: a time-out, or a change of arm, after this many segments is scored however
 * little was delivered.
 */
#define THALWEG_STALLED_SEGS 32
/* thalweg: largest number of open trials per host ... */
#define THALWEG_TRIALS 2
/* ... and the time after which they expire, ns. */
#define THALWEG_TRIAL_NS 10000000000ull
/* thalweg: a stretch is limited if its receiver or its buffer was full for this part of the time ... */
#define THALWEG_LIMITED_PART 4
/* ... and for this long, us: the kernel counts that time in jiffies of up to 10 ms. */
#define THALWEG_LIMITED_LEAST_US 20000u
/* thalweg: the kernel's rate sample at this many times the mean means application-limited ... */
#define THALWEG_APP_LIMITED_RATIO 16
/* ... unless more than one segment in this many was lost. */
#define THALWEG_APP_LIMITED_LOSS 256

/* thalweg: a host's credit for each full-weight measurement, 1/25 bit ... */
#define THALWEG_EARN_Q16 2621
/* ... and at most. A measurement of another arm than the system's costs what it was worse ... */
#define THALWEG_CREDIT_MAX_Q16 (5 << 16)
/* ... and earns what it was better, at most this. */
#define THALWEG_CHARGE_MAX_Q16 (4 << 16)
/* thalweg: 1/2^this of what an arm costs more is charged on top, or withheld of what it gains. */
#define THALWEG_CHARGE_SHIFT 2
/* thalweg: the credit that a first trial needs, or this for each arm if that is more. */
#define THALWEG_PRICE_Q16 (THALWEG_ONE_Q16 / 5)
#define THALWEG_PRICE_ARM_Q16 (THALWEG_ONE_Q16 / 50)
/* thalweg: the credit that the trial of an arm with less evidence than this needs at most. */
#define THALWEG_PRICE_OLD_Q16 (4u << 16)
#define THALWEG_OLD_Q16 (1u << 8)
/* thalweg: no trials with less evidence of the best arm: the result would be forgotten. */
#define THALWEG_FADED_Q16 (1u << 14)
/* thalweg: least share of the system's arm, 1 / (this + measurements), within this gap. */
#define THALWEG_DEFAULT_SHARE 2
#define THALWEG_DEFAULT_GAP_Q16 (2u << 16)
/* thalweg: trials without a measurement that halve an untried arm's share ... */
#define THALWEG_FRUITLESS_HALF 8
/* ... which falls no further after this many: an eighth is left. */
#define THALWEG_FRUITLESS_MAX 56

/*
 * thalweg: each stretch of a long connection on an arm is twice as long as the one before,
 * up to 2^this times the first.
 */
#define THALWEG_LONGEST_SHIFT 4
/*
 * thalweg: a long connection leaves an arm judged this much worse than the system's at
 * once: half a bit.
 */
#define THALWEG_LEAVE_GAP_Q16 (1u << 15)
/* thalweg: it is decided anew on an arm this much worse than the best: an eighth ... */
#define THALWEG_ANEW_GAP_Q16 (1u << 13)
/* ... and at most once in this time: an hour. */
#define THALWEG_ANEW_NS 3600000000000ull

/* Groups: cost and log2 of the rate of the system's arm, bits in Q16. */
#define THALWEG_OFFSET_Q16 (32u << 16)
/* Groups: evidence of the system's arm from which one decides, and gives others what it knows. */
#define THALWEG_KNOWN_Q16 (8u << 16)
/* Groups: a host tells of the first measurement of each arm, and of one in this many of all. */
#define THALWEG_TOLD_EACH 16
/* Groups: weight of the last new host in the usual cost, and in the queue, 1/2^this. */
#define THALWEG_USUAL_SHIFT 4
/* Groups remember 2^this times as many measurements ... */
#define THALWEG_GROUP_MEMORY_SHIFT 3
/* ... this many times as long. */
#define THALWEG_GROUP_HALF_LIVES 48
/* Groups: a measurement takes less of the other arms' evidence, by this power of two. */
#define THALWEG_GROUP_IDLE_SHIFT 8
/* Groups explore more for the same evidence, by this power of two. */
#define THALWEG_GROUP_GAP_SHIFT 5
/* Groups: credit for each full-weight measurement, 1/5 bit; of a trial a part is paid before it, 1/10. */
#define THALWEG_GROUP_EARN_Q16 (THALWEG_ONE_Q16 / 5)
#define THALWEG_ADVANCE_Q16 (THALWEG_ONE_Q16 / 10)

/* Windows: older segments are not discounted by each connection (thalweg_window_halve()). */
#define THALWEG_WINDOW_SEGS_SHIFT 31
/* Windows: one connection in this many has the kernel's own, for comparison. */
#define THALWEG_WINDOW_OWN_EACH 32

/*
 * The state of an arm. The compiler drops a mask if an earlier comparison makes it
 * redundant, and then the verifier misses it.
 */
static __always_inline const struct thalweg_arm_state *
thalweg_arm_at(const struct thalweg_host *host, __u32 i)
{
#ifdef __bpf__
	asm volatile("" : "+r"(i));
#endif
	return &host->arms[i & THALWEG_ARM_MASK];
}

/* Likewise, the rest of it. */
static __always_inline const struct thalweg_arm_statistics *
thalweg_statistics_at(const struct thalweg_host *host, __u32 i)
{
#ifdef __bpf__
	asm volatile("" : "+r"(i));
#endif
	return &host->statistics[i & THALWEG_ARM_MASK];
}

/* Whether the arms of a record are initial windows. */
static __always_inline int thalweg_is_window(const struct thalweg_host *host)
{
	return host->level - THALWEG_LEVEL_WINDOW_PREFIX <
	       THALWEG_ALL_LEVELS - THALWEG_LEVEL_WINDOW_PREFIX;
}

/* The result of thalweg_decide(). */
struct thalweg_decision {
	__u32 arm; /* index, or THALWEG_NO_ARM: leave the connection unchanged */
	__u32 reason; /* enum thalweg_reason */
	__u32 propensity_q16;
};

/* The result of thalweg_score(). */
struct thalweg_verdict {
	__u32 outcome; /* enum thalweg_outcome */
	__u32 weight_q16;
	__u64 cost;
};

/* 2^64 divided by the golden ratio. */
#define THALWEG_GOLDEN 0x9e3779b97f4a7c15ull

static __always_inline __u64 thalweg_mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * THALWEG_GOLDEN;
	return hash ^ (hash >> 32);
}

/*
 * The hash of a key that identifies a record. Its upper half chooses the lock. Never 0,
 * which marks an empty record.
 */
static __always_inline __u64 thalweg_tag(const struct thalweg_host_key *key)
{
	const __u64 *address = (const __u64 *)key->addr;
	__u64 hash =
		thalweg_mix(key->netns + key->prefix_len + ((__u64)key->level << 8), address[0]);

	return thalweg_mix(thalweg_mix(hash, address[1]), 0x7468616c77656721ull) | 1;
}

/* Whether the connections of a cluster, by its tag, belong to the control group now. */
static __always_inline int thalweg_is_control(__u64 tag, const struct thalweg_params *params,
					      __u64 now_ns)
{
	__u64 salt = params->control_salt, hour, always;

	/* Two rounds: after one, consecutive hours differ by a constant. */
	hour = thalweg_mix(thalweg_mix(tag ^ salt, now_ns / THALWEG_HOUR_NS), salt);
	always = thalweg_mix(thalweg_mix(tag, salt + 1), 0);

	return (hour & 0xffff) < params->control_share_q16 ||
	       (always & 0xffff) < params->control_permanent_q16;
}

/*
 * The arm of a cluster's trials in this hour, of a mask that is not empty: each with the
 * same probability. Each arm has a rank of its own, so that an arm that comes or goes
 * moves no cluster from one of the others to another.
 */
static __always_inline __u32 thalweg_drawn_arm(__u64 tag, __u32 allowed,
					       const struct thalweg_params *params, __u64 now_ns)
{
	__u64 salt = params->control_salt, draw, rank, highest = 0;
	__u32 i, arm = THALWEG_NO_ARM;

	draw = thalweg_mix(thalweg_mix(tag ^ salt, now_ns / THALWEG_HOUR_NS), salt + 2);
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		rank = thalweg_mix(thalweg_mix(draw, i), salt);
		if (allowed >> i & 1 && (arm == THALWEG_NO_ARM || rank > highest)) {
			arm = THALWEG_UNKNOWN(i);
			highest = rank;
		}
	}
	return arm;
}

/* Socket cookies that a CPU reserves at a time, as a power of two (Linux, COOKIE_LOCAL_BATCH). */
#define THALWEG_COOKIE_BATCH_SHIFT 12

/*
 * An index for the state of a socket, 16 bits, of which the caller takes as many as its
 * table has; `probe` is 0 to 3. Cookies are sequential, but each CPU reserves a batch at
 * a time: the remainder alone would put many CPUs' connections on top of each other. So
 * each batch starts at a random index. Consecutive cookies are adjacent, which suits the
 * caches. If that slot is taken, the other probes are random.
 */
static __always_inline __u32 thalweg_place(__u64 cookie, __u32 probe)
{
	__u64 batch = thalweg_mix(thalweg_mix(cookie >> THALWEG_COOKIE_BATCH_SHIFT, 0), 0);

	if (!probe)
		return (cookie + batch) & 0xffff;
	return thalweg_mix(thalweg_mix(cookie, 0), 0) >> (16 * (probe & 3)) & 0xffff;
}

/* A possible slot of a connection in `conns`; there are THALWEG_PROBES of them. */
static __always_inline __u32 thalweg_conn_slot(__u64 cookie, __u32 probe)
{
	return thalweg_place(cookie, probe) & (THALWEG_CONNECTIONS - 1);
}

static __always_inline __u64 thalweg_min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/*
 * Without branches, of numbers below 2^32: whether one is not 0, and the lesser of two. The
 * verifier follows both ways of each branch in a loop over arms.
 */
static __always_inline __u64 thalweg_some(__u64 x)
{
	return (x + THALWEG_U32_MAX) >> 32;
}

static __always_inline __u64 thalweg_lesser(__u32 a, __u32 b)
{
	__s64 difference = (__s64)a - b, mask = difference >> 63;

	THALWEG_BRANCH(mask);
	return b + (difference & mask);
}

/* Counts without wrapping. */
static __always_inline void thalweg_increment(__u32 *count)
{
	if (*count != THALWEG_U32_MAX)
		(*count)++;
}

static __always_inline __u64 thalweg_distance(__u64 a, __u64 b)
{
	return a < b ? b - a : a - b;
}

/* Moves `old` towards `new` by weight / total of the way, rounding towards `old`. */
static __always_inline __u64 thalweg_blend(__u64 old, __u64 new, __u64 weight, __u64 total)
{
	__u64 step = thalweg_distance(old, new) * weight / total;

	return new > old ? old + step : old - step;
}

/*
 * log2(x) in Q16; 0 for x = 0. Piecewise parabola through the powers of two, exact there
 * and monotonic; the error is at most 0.009 bits.
 */
static __always_inline __u32 thalweg_log2_q16(__u64 x)
{
	__u32 high = x >> 32, zeros = 0, fraction;

	/* Halving steps: BPF has no count of leading zeros. 32 bits compare with constants. */
	if (!high) {
		high = x;
		zeros = 32;
	}
	if (high < 1u << 16) {
		THALWEG_BRANCH(high);
		high <<= 16;
		zeros += 16;
	}
	if (high < 1u << 24) {
		THALWEG_BRANCH(high);
		high <<= 8;
		zeros += 8;
	}
	if (high < 1u << 28) {
		THALWEG_BRANCH(high);
		high <<= 4;
		zeros += 4;
	}
	if (high < 1u << 30) {
		THALWEG_BRANCH(high);
		high <<= 2;
		zeros += 2;
	}
	/* For x = 0 these are 63, and the fraction is 0. */
	zeros += high < 1u << 31;
	zeros = THALWEG_UNKNOWN(zeros);
	fraction = x << zeros << 1 >> 48;
	/* 22528 = 0.34375 in Q16, the excess of log2 over the chord. */
	return ((63 - zeros) << 16) + fraction +
	       (((((__u64)fraction * (THALWEG_ONE_Q16 - fraction)) >> 16) * 22528) >> 16);
}

/* Bytes per second, saturating; a duration of 0 counts as 1 us. */
static __always_inline __u64 thalweg_rate(__u64 bytes, __u64 duration_us)
{
	__u64 per_us;

	if (!duration_us)
		duration_us = 1;
	if (bytes <= THALWEG_U64_MAX / 1000000)
		return bytes * 1000000 / duration_us;
	per_us = bytes / duration_us;
	return per_us > THALWEG_U64_MAX / 1000000 ? THALWEG_U64_MAX : per_us * 1000000;
}

/*
 * thalweg's cost of a measurement in bits, Q16, below 2^32: 64 - log2(rate) +
 * latency_weight * log2(srtt + guard). A doubled rate costs one bit less.
 */
static __always_inline __u64 thalweg_cost(__u32 log_rate_q16, __u32 srtt_us,
					  const struct thalweg_params *params)
{
	__u64 latency = thalweg_log2_q16((__u64)srtt_us + params->latency_guard_us);

	latency = (latency * params->latency_weight_q16) >> 16;
	return thalweg_min(THALWEG_COST_OFFSET_Q16 - log_rate_q16 + latency, THALWEG_U32_MAX);
}

/* What a sample's retransmissions cost, bits in Q16, by their share of the segments. */
static __always_inline __u64 thalweg_waste_q16(const struct thalweg_sample *sample)
{
	__u64 retrans = thalweg_min(sample->retrans, sample->segs_out);

	return retrans ? (retrans * THALWEG_WASTE_BITS << 16) / sample->segs_out : 0;
}

/* The published rate of a connection: delivered packets * MSS / interval, bytes per us. */
static __always_inline __u64 thalweg_classic_rate(const struct thalweg_sample *sample)
{
	if (!sample->rate_interval_us)
		return 0;
	return sample->rate_delivered_bytes / sample->rate_interval_us;
}

/* (above - base) * S / base without overflow: saturates where the product would. */
static __always_inline __u64 thalweg_classic_term(__u64 excess, __u64 base)
{
	if (!base)
		return 0;
	if (excess > THALWEG_U64_MAX / THALWEG_CLASSIC_SCALE)
		return THALWEG_U64_MAX / 2;
	return thalweg_min(excess * THALWEG_CLASSIC_SCALE / base, THALWEG_U64_MAX / 2);
}

/*
 * The published cost. As published, it also lowers the host's minimum RTT and raises its
 * maximum rate. `rate` is the arm's highest, bytes per us.
 */
static __always_inline __u64 thalweg_classic_cost(struct thalweg_host *host, __u32 min_rtt_us,
						  __u64 rate)
{
	if (!host->min_rtt_us || min_rtt_us < host->min_rtt_us)
		host->min_rtt_us = min_rtt_us;
	if (!host->max_rate || rate > host->max_rate)
		host->max_rate = rate;
	return thalweg_classic_term(min_rtt_us - host->min_rtt_us, host->min_rtt_us) +
	       thalweg_classic_term(host->max_rate - rate, host->max_rate);
}

/* The published delta rule: the first cost unchanged, then a quarter of the way. */
static __always_inline __u64 thalweg_classic_update(__u64 value, __u64 cost)
{
	if (!value)
		return cost;
	if (cost > value)
		return value + ((cost - value) >> THALWEG_CLASSIC_RATE_SHIFT);
	return value - ((value - cost) >> THALWEG_CLASSIC_RATE_SHIFT);
}

/* Half-life of a record's evidence, saturating. */
static __always_inline __u64 thalweg_half_life(const struct thalweg_host *host,
					       const struct thalweg_params *params)
{
	__u64 half_life_ns = params->half_life_ns;

	if (!host->level)
		return half_life_ns;
	if (half_life_ns > THALWEG_U64_MAX / THALWEG_GROUP_HALF_LIVES)
		return THALWEG_U64_MAX;
	return half_life_ns * THALWEG_GROUP_HALF_LIVES;
}

/* Whether evidence is to be halved: without, thalweg_forget() at most notes the time. */
static __always_inline int thalweg_is_stale(const struct thalweg_host *host,
					    const struct thalweg_params *params, __u64 now_ns)
{
	return host->forgot_ns && params->half_life_ns && now_ns > host->forgot_ns &&
	       now_ns - host->forgot_ns >= thalweg_half_life(host, params);
}

/* Evidence halves once per half-life, in whole steps; a trace of it is left. */
static __always_inline void thalweg_forget(struct thalweg_host *host,
					   const struct thalweg_params *params, __u64 now_ns)
{
	__u64 steps, shift, own_shift, half_life_ns = thalweg_half_life(host, params);
	__u32 i;

	if (!host->forgot_ns || !half_life_ns)
		host->forgot_ns = now_ns;
	if (!thalweg_is_stale(host, params, now_ns))
		return;
	steps = (now_ns - host->forgot_ns) / half_life_ns;
	host->forgot_ns += steps * half_life_ns;
	shift = THALWEG_UNKNOWN(thalweg_min(steps, 32));
	/* A group's own evidence. */
	own_shift = THALWEG_UNKNOWN(host->level ? shift : 0);
	for (i = 0; i < THALWEG_MAX_ARMS && i < host->used; i++) {
		struct thalweg_arm_state *arm = &host->arms[i];
		struct thalweg_arm_statistics *statistics = &host->statistics[i];
		__u64 left = (__u64)arm->weight_q16 >> shift;

		arm->weight_q16 = left + thalweg_some(arm->weight_q16) - thalweg_some(left);
		statistics->segs = (__u64)statistics->segs >> shift;
		statistics->retrans = (__u64)statistics->retrans >> shift;
		statistics->min_rtt_us = (__u64)statistics->min_rtt_us >> own_shift;
	}
	host->last_base_rtt_us = steps == 1 ? host->base_rtt_us : 0;
	host->base_rtt_us = 0;
}

/*
 * Whether `retrans` of `segs` segments are more than the path itself loses, by the
 * system's arm. Random loss does not depend on the arm.
 */
static __always_inline int thalweg_too_many(const struct thalweg_arm_statistics *system, __u64 segs,
					    __u64 retrans)
{
	__u64 expected, usual;

	/* Too few in any case: saves most calls the division. */
	if (!system->segs || segs < THALWEG_OWN_LOSS_SEGS || retrans <= THALWEG_OWN_LOSS_GRACE)
		return 0;
	expected = ((__u64)system->retrans + THALWEG_OWN_LOSS_DOUBT) * segs / system->segs;
	usual = expected + expected / 2 + (segs >> THALWEG_OWN_LOSS_SHIFT) + THALWEG_OWN_LOSS_GRACE;
	return retrans > usual &&
	       (retrans - usual) * (retrans - usual) > expected << THALWEG_OWN_LOSS_CHANCE_SHIFT;
}

/*
 * Updates the base RTT of the path, and its excess under the system's arm. That RTT is
 * taken at losses, when an overflowing queue is full, or else at the end. Must be called
 * before the sample is learned.
 */
static __always_inline void thalweg_note_queue(struct thalweg_host *host, __u32 index,
					       __u32 system_arm,
					       const struct thalweg_sample *sample)
{
	__u32 srtt = sample->loss_srtt_us ? sample->loss_srtt_us : sample->srtt_us;
	__u32 base, queue_q16 = 0;
	__u64 quiet;

	if (sample->min_rtt_us && (!host->base_rtt_us || sample->min_rtt_us < host->base_rtt_us))
		host->base_rtt_us = sample->min_rtt_us;
	base = host->base_rtt_us;
	if (!base || (host->last_base_rtt_us && host->last_base_rtt_us < base))
		base = host->last_base_rtt_us;
	if (index != system_arm || !base || !srtt)
		return;
	quiet = (__u64)base + thalweg_min(base / 2, THALWEG_JITTER_US);
	if (quiet < THALWEG_LEAST_RTT_US)
		quiet = THALWEG_LEAST_RTT_US;
	if (srtt > base)
		queue_q16 = thalweg_log2_q16(quiet + (srtt - base)) - thalweg_log2_q16(quiet);
	if (thalweg_arm_at(host, index)->weight_q16)
		queue_q16 = thalweg_blend(host->queue_q16, queue_q16, 1, 1 << THALWEG_QUEUE_SHIFT);
	host->queue_q16 = queue_q16;
}

/*
 * Updates which arms gain at the expense of others: those that retransmit much more than
 * the system's arm, and, if that already fills the bottleneck, those with a higher rate.
 */
static __always_inline void thalweg_note_harm(struct thalweg_host *host, __u32 system_arm,
					      const struct thalweg_params *params)
{
	const struct thalweg_arm_statistics *system;
	__u32 i, mask = 0, known, deep_q16, most_q16 = 0;
	int loses, bolder;

	if (system_arm >= THALWEG_MAX_ARMS) {
		host->harmful = 0;
		return;
	}
	system = thalweg_statistics_at(host, system_arm);
	known = thalweg_arm_at(host, system_arm)->weight_q16;
	loses = known && system->retrans >= THALWEG_FULL_RETRANS;
	/* Random losses meet a queue of any length. */
	bolder = loses && system->retrans <= system->segs >> (params->loss_shift & 31);
	deep_q16 = bolder ? THALWEG_QUEUE_Q16 : THALWEG_DEEP_QUEUE_Q16;
	/* A gain up to this is taken from others. */
	if (known && host->queue_q16 > deep_q16)
		most_q16 = THALWEG_U32_MAX;
	else if (bolder)
		most_q16 = THALWEG_BOLDER_Q16;
	most_q16 = THALWEG_UNKNOWN(most_q16);
	for (i = 0; i < THALWEG_MAX_ARMS && i < host->used; i++) {
		const struct thalweg_arm_statistics *arm = &host->statistics[i];
		__s64 gain_q16 = (__s64)arm->log_rate_q16 - system->log_rate_q16;

		if (!host->arms[i].weight_q16)
			continue;
		if (thalweg_too_many(system, arm->segs, arm->retrans) ||
		    (gain_q16 > THALWEG_TAKES_Q16 && gain_q16 <= most_q16))
			mask |= THALWEG_UNKNOWN(1u << i);
	}
	host->harmful = mask & ~(1u << (system_arm & THALWEG_ARM_MASK));
}

/* Inputs of an arm's judgement beside its own state. */
struct thalweg_judge {
	__u32 system; /* mask of the system's own arm; not its index: see thalweg_arm_at */
	__u32 harmful; /* mask */
	__u32 unsteady; /* mask */
	__u64 system_value;
};

static __always_inline void thalweg_convene(struct thalweg_judge *judge,
					    const struct thalweg_host *host, __u32 system_arm)
{
	judge->system = 0;
	judge->harmful = 0;
	judge->unsteady = host->unsteady;
	judge->system_value = 0;
	if (system_arm >= THALWEG_MAX_ARMS)
		return;
	judge->system = 1u << system_arm;
	judge->harmful = host->harmful & ~judge->system;
	judge->system_value = thalweg_arm_at(host, system_arm)->value;
}

/*
 * Judged cost of an arm, bits in Q16: its mean cost, plus its handicap if it is not the
 * system's. A harmful one is judged worse than the system's, an unsteady one worse than
 * its mean.
 */
static __always_inline __u64 thalweg_judged_q16(const struct thalweg_host *host, __u32 i,
						const struct thalweg_judge *judge)
{
	const struct thalweg_arm_state *arm = &host->arms[i & THALWEG_ARM_MASK];
	__u64 value = arm->value;

	if (judge->system & (1u << i))
		return value;
	if (judge->harmful & (1u << i))
		value = (value > judge->system_value ? value : judge->system_value) +
			THALWEG_HARM_Q16;
	if (judge->unsteady & (1u << i))
		value += THALWEG_UNSTEADY_Q16;
	return value + arm->caution_q16;
}

/*
 * Best-judged arm among the measured ones of `allowed`, or THALWEG_NO_ARM. `untried`: mask
 * of the others of `allowed`; `lowest`: the best arm's judgement. Among equals the
 * system's arm wins, so it comes first.
 */
static __always_inline __u32 thalweg_best(const struct thalweg_host *host, __u32 allowed,
					  const struct thalweg_judge *judge, __u32 system_arm,
					  __u32 *untried, __u64 *lowest)
{
	__u32 i, best = THALWEG_NO_ARM, bit = 1, rest = allowed & ~judge->system;

	*untried = 0;
	*lowest = THALWEG_U64_MAX;
	if (allowed & judge->system) {
		if (thalweg_arm_at(host, system_arm)->weight_q16) {
			best = system_arm;
			*lowest = judge->system_value;
		} else {
			*untried = judge->system;
		}
	}
	best = THALWEG_UNKNOWN(best);
	*lowest = THALWEG_UNKNOWN(*lowest);
	for (i = 0; i < THALWEG_MAX_ARMS && rest; i++, rest >>= 1, bit <<= 1) {
		const struct thalweg_arm_state *arm = &host->arms[i];
		__u64 judged;

		if (!(rest & 1))
			continue;
		if (!arm->weight_q16) {
			*untried |= THALWEG_UNKNOWN(bit);
			continue;
		}
		/* No arm is judged better than its mean. */
		if (arm->value >= *lowest)
			continue;
		judged = thalweg_judged_q16(host, i, judge);
		if (judged < *lowest) {
			best = THALWEG_UNKNOWN(i);
			*lowest = judged;
		}
	}
	return best;
}

/*
 * Probability (Q16) of a measured arm that is not the best: 1 / (2 * arms + gap_scale *
 * gap * evidence). Inverse gap weighting: rare if the gap is wide and certain, frequent
 * if it is narrow or the evidence old.
 */
static __always_inline __u32 thalweg_explore_q16(__u64 gap_q16, __u32 weight_q16, __u32 arms,
						 __u32 gap_scale)
{
	__u64 known = (thalweg_min(gap_q16, THALWEG_U32_MAX) * weight_q16) >> 16;

	known = thalweg_min(known, THALWEG_U32_MAX) * thalweg_min(gap_scale, 1u << 20);
	return ((__u64)1 << 32) / (((__u64)2 * arms << 16) + known);
}

/* Number of arms in a mask of at most 16. */
static __always_inline __u32 thalweg_count(__u32 mask)
{
	mask = (mask & 0x5555) + ((mask >> 1) & 0x5555);
	mask = (mask & 0x3333) + ((mask >> 2) & 0x3333);
	mask = (mask & 0x0f0f) + ((mask >> 4) & 0x0f0f);
	return (mask & 0xff) + (mask >> 8);
}

/* Open trials. A trial without an end expires after a while. */
static __always_inline __u32 thalweg_trials(const struct thalweg_host *host, __u64 now_ns)
{
	/* The time lies apart: it is read only where there is a trial. */
	if (!host->trials ||
	    (now_ns > host->trial_ns && now_ns - host->trial_ns >= THALWEG_TRIAL_NS))
		return 0;
	return host->trials;
}

/* Share (Q16) of an arm in the first trials: it falls with trials that brought no measurement. */
static __always_inline __u32 thalweg_hope_q16(const struct thalweg_host *host, __u32 i)
{
	__u32 chosen = thalweg_arm_at(host, i)->chosen;
	__u32 scored = thalweg_statistics_at(host, i)->scored;
	__u32 fruitless = chosen > scored ? chosen - scored : 0;

	fruitless = thalweg_min(fruitless, THALWEG_FRUITLESS_MAX);
	return THALWEG_ONE_Q16 * THALWEG_FRUITLESS_HALF / (THALWEG_FRUITLESS_HALF + fruitless);
}

/* Inputs of thalweg_decide()'s probabilities beside the arm. */
struct thalweg_shares {
	struct thalweg_judge judge;
	__u64 lowest; /* judgement of the best arm */
	__u32 untried; /* mask */
	__u32 arms; /* number of those allowed */
	__u32 first; /* mask of the untried arm that goes before the others, if any */
	__u32 first_q16; /* its share */
	__u32 others_q16; /* shared by the first trials of the others */
	__u32 price_q16; /* of a first trial */
};

/*
 * All first trials together take half of the connections. If the system's arm loses
 * much, the rescue arm goes first, and the others share the rest.
 */
static __always_inline void thalweg_first_trials(struct thalweg_shares *shares,
						 const struct thalweg_host *host, __u32 system_arm,
						 __u32 allowed, const struct thalweg_params *params)
{
	const struct thalweg_arm_statistics *system;
	__u32 rescue = params->rescue_arm;

	shares->first = 0;
	shares->first_q16 = 0;
	shares->others_q16 = THALWEG_ONE_Q16 / 2;
	if (rescue >= THALWEG_MAX_ARMS || !(shares->untried & (1u << rescue)))
		return;
	system = thalweg_statistics_at(host, system_arm);
	if (!(allowed & shares->judge.system) || thalweg_is_window(host) ||
	    system->retrans <= system->segs >> (params->loss_shift & 31))
		return;
	shares->first = 1u << rescue;
	shares->first_q16 = thalweg_hope_q16(host, rescue) / 2;
	shares->others_q16 -= shares->first_q16;
}

/* Probability (Q16) that thalweg_decide() chooses the allowed arm `i`, if it is not the best. */
static __always_inline __u32 thalweg_propensity_q16(const struct thalweg_host *host, __u32 i,
						    const struct thalweg_shares *shares,
						    const struct thalweg_params *params)
{
	const struct thalweg_arm_state *arm = &host->arms[i & THALWEG_ARM_MASK];
	__u64 gap_q16, price_q16 = shares->price_q16;
	__u32 share_q16, least_q16, gap_scale;

	if (shares->first & (1u << i))
		return shares->first_q16;
	/* The system's arm has been measured, or else there are no trials. */
	if (shares->untried & (1u << i)) {
		if (host->credit_q16 < price_q16)
			return 0;
		return (((__u64)shares->others_q16 * thalweg_hope_q16(host, i)) >> 16) /
		       thalweg_count(shares->untried & ~shares->first);
	}
	gap_q16 = thalweg_judged_q16(host, i, &shares->judge) - shares->lowest;
	gap_scale = params->gap_scale >> (host->level ? THALWEG_GROUP_GAP_SHIFT : 0);
	share_q16 = thalweg_explore_q16(gap_q16, arm->weight_q16, shares->arms, gap_scale);
	if (shares->judge.system & (1u << i)) {
		least_q16 =
			(__u32)thalweg_min(host->scored, THALWEG_ONE_Q16) + THALWEG_DEFAULT_SHARE;
		/* What its groups know of it counts as measurements, and what the fleet told. */
		if (!thalweg_statistics_at(host, i)->scored)
			least_q16 += arm->weight_q16 >> 16;
		if (!thalweg_is_window(host))
			least_q16 += thalweg_min(host->step, THALWEG_ONE_Q16);
		if (thalweg_is_window(host))
			least_q16 = thalweg_min(least_q16, THALWEG_WINDOW_OWN_EACH);
		least_q16 = THALWEG_ONE_Q16 / least_q16;
		if (gap_q16 < THALWEG_DEFAULT_GAP_Q16 && share_q16 < least_q16)
			return least_q16;
		return share_q16;
	}
	if (arm->weight_q16 < THALWEG_OLD_Q16)
		gap_q16 = thalweg_min(gap_q16, THALWEG_PRICE_OLD_Q16);
	if (gap_q16 > price_q16)
		price_q16 = gap_q16;
	return host->credit_q16 < price_q16 ? 0 : share_q16;
}

/* classic: the cost of an arm. */
static __always_inline __u64 thalweg_classic_value(const struct thalweg_host *host, __u32 i)
{
	return (__u64)host->statistics[i & THALWEG_ARM_MASK].value_high << 32 |
	       host->arms[i & THALWEG_ARM_MASK].value;
}

/* Notes a probability (Q16) in 16 bits: 65535 is 1. */
static __always_inline void thalweg_note_share(__u16 *shares_q16, __u32 i, __u32 share_q16)
{
	shares_q16[i & THALWEG_ARM_MASK] = share_q16 - (share_q16 >> 16);
}

/* The published choice: lowest value, ties at random, one in 20 at random. */
static __always_inline void thalweg_classic_decide(const struct thalweg_host *host, __u32 allowed,
						   const __u32 *random,
						   struct thalweg_decision *out, __u16 *shares_q16)
{
	__u32 i, arms, ties = 0, tie_count, nth, greedy = 0, pick, random_q16, greedy_q16;
	__u64 lowest = THALWEG_U64_MAX;

	arms = thalweg_count(allowed);
	if (host->connections <= THALWEG_CLASSIC_MIN_CONNECTIONS || !arms) {
		out->arm = THALWEG_NO_ARM;
		out->reason = THALWEG_REASON_WARM_UP;
		out->propensity_q16 = THALWEG_ONE_Q16;
		return;
	}
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		__u64 value = thalweg_classic_value(host, i);

		if (!(allowed & (1u << i)) || value > lowest)
			continue;
		if (value < lowest)
			ties = 0;
		ties |= THALWEG_UNKNOWN(1u << i);
		lowest = value;
	}
	tie_count = thalweg_count(ties);
	nth = tie_count > 1 ? random[0] % tie_count : 0;
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		if (!(ties & (1u << i)))
			continue;
		if (!nth) {
			greedy = THALWEG_UNKNOWN(i);
			break;
		}
		nth--;
	}
	pick = greedy;
	if (random[1] % THALWEG_CLASSIC_EPSILON == 0) {
		nth = random[2] % arms;
		for (i = 0; i < THALWEG_MAX_ARMS; i++) {
			if (!(allowed & (1u << i)))
				continue;
			if (!nth) {
				pick = THALWEG_UNKNOWN(i);
				break;
			}
			nth--;
		}
	}
	out->arm = pick;
	out->reason = pick == greedy ? THALWEG_REASON_GREEDY : THALWEG_REASON_EXPLORE;
	random_q16 = THALWEG_ONE_Q16 / (THALWEG_CLASSIC_EPSILON * arms);
	greedy_q16 = THALWEG_ONE_Q16 * (THALWEG_CLASSIC_EPSILON - 1) /
		     (THALWEG_CLASSIC_EPSILON * tie_count);
	out->propensity_q16 = random_q16 + (ties >> (pick & THALWEG_ARM_MASK) & 1) * greedy_q16;
	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		/* Without branches, for the verifier. */
		__u32 share_q16 = random_q16 + (ties >> i & 1) * greedy_q16;

		thalweg_note_share(shares_q16, i, (allowed >> i & 1) * share_q16);
	}
}

/*
 * Chooses the arm of a new connection; the caller has counted the connection. `allowed`
 * is the mask of allowed arms, THALWEG_NO_TRIALS beside it, and `system_arm` the arm that
 * the system gave it. `random` has three uniform numbers (thalweg uses the first).
 * `shares_q16`, zeros before, gets the probability of each arm.
 */
static __always_inline void thalweg_decide(const struct thalweg_host *host, __u32 system_arm,
					   __u32 allowed, const struct thalweg_params *params,
					   const __u32 *random, __u64 now_ns,
					   struct thalweg_decision *out, __u16 *shares_q16)
{
	__u32 i, best, others, left = THALWEG_ONE_Q16, ticket, pick, pick_q16 = 0;
	int tries = !(allowed & THALWEG_NO_TRIALS);
	struct thalweg_shares shares;

	allowed &= 0xffff;
	if (params->mode == THALWEG_MODE_CLASSIC) {
		thalweg_classic_decide(host, allowed, random, out, shares_q16);
		return;
	}
	thalweg_convene(&shares.judge, host, system_arm);
	best = THALWEG_NO_ARM;
	/* Nothing to compare with before the system's own arm has been measured. */
	if (host->scored >= params->warm_up &&
	    !(allowed & shares.judge.system && !thalweg_arm_at(host, system_arm)->weight_q16))
		best = thalweg_best(host, allowed, &shares.judge, system_arm, &shares.untried,
				    &shares.lowest);
	if (best == THALWEG_NO_ARM) {
		out->arm = system_arm;
		out->reason = THALWEG_REASON_WARM_UP;
		out->propensity_q16 = THALWEG_ONE_Q16;
		return;
	}
	pick = best;
	others = 0;
	if (tries && thalweg_trials(host, now_ns) < THALWEG_TRIALS &&
	    thalweg_arm_at(host, best)->weight_q16 >= THALWEG_FADED_Q16) {
		others = allowed & ~(1u << (best & THALWEG_ARM_MASK));
		thalweg_first_trials(&shares, host, system_arm, allowed, params);
		/* Most hosts cannot pay the least price: what costs them nothing is left. */
		if (host->credit_q16 < THALWEG_PRICE_Q16)
			others &= shares.judge.system | shares.first;
	}
	if (others) {
		shares.arms = thalweg_count(allowed);
		shares.price_q16 = shares.arms * THALWEG_PRICE_ARM_Q16;
		if (shares.price_q16 < THALWEG_PRICE_Q16)
			shares.price_q16 = THALWEG_PRICE_Q16;
		ticket = random[0] & (THALWEG_ONE_Q16 - 1);
		shares.price_q16 = THALWEG_UNKNOWN(shares.price_q16);
		shares.first = THALWEG_UNKNOWN(shares.first);
		for (i = 0; i < THALWEG_MAX_ARMS && others; i++, others >>= 1) {
			__u32 share_q16;

			if (!(others & 1))
				continue;
			share_q16 =
				THALWEG_UNKNOWN(thalweg_propensity_q16(host, i, &shares, params));
			thalweg_note_share(shares_q16, i, share_q16);
			/* Tickets count down from the top; the rest belong to the best arm. */
			if (ticket < left && ticket >= left - share_q16) {
				pick = THALWEG_UNKNOWN(i);
				pick_q16 = share_q16;
			}
			left -= share_q16;
		}
	}
	thalweg_note_share(shares_q16, best, left);
	out->arm = pick;
	if (pick == best) {
		out->reason = THALWEG_REASON_GREEDY;
		out->propensity_q16 = left;
	} else {
		out->reason = shares.untried & (1u << pick) ? THALWEG_REASON_UNTRIED
							    : THALWEG_REASON_EXPLORE;
		out->propensity_q16 = pick_q16;
	}
}

/* Whether a connection got its arm for learning about it. */
static __always_inline int thalweg_is_trial(__u32 reason)
{
	return reason == THALWEG_REASON_EXPLORE || reason == THALWEG_REASON_UNTRIED;
}

/* Records that a trial was applied. */
static __always_inline void thalweg_begin_trial(struct thalweg_host *host, __u64 now_ns)
{
	host->trials = thalweg_min(thalweg_trials(host, now_ns) + 1, 0xffff);
	host->trial_ns = now_ns;
}

/* Records the end of a trial. */
static __always_inline void thalweg_end_trial(struct thalweg_host *host)
{
	if (host->trials)
		host->trials--;
}

/* Counts a decision that was applied (or would have been, in a dry run). */
static __always_inline void thalweg_count_decision(struct thalweg_host *host,
						   const struct thalweg_decision *decision)
{
	struct thalweg_arm_state *arm = &host->arms[decision->arm & THALWEG_ARM_MASK];

	if (decision->arm >= THALWEG_MAX_ARMS)
		return;
	/* The counts stop together. */
	if (arm->chosen == THALWEG_U32_MAX)
		return;
	arm->chosen++;
	if (decision->reason != THALWEG_REASON_GREEDY)
		host->statistics[decision->arm & THALWEG_ARM_MASK].other++;
}

/* A connection mid-flow, as input of thalweg_change(). */
struct thalweg_flow {
	__u32 arm; /* index, or THALWEG_NO_ARM */
	__u32 system_arm;
	__u64 segs; /* data segments sent on its arm, including retransmissions */
	__u64 retrans; /* retransmissions among them */
};

static __always_inline void thalweg_answer(struct thalweg_decision *out, __u32 arm, __u32 reason,
					   __u32 propensity_q16)
{
	out->arm = arm;
	out->reason = reason;
	out->propensity_q16 = propensity_q16;
}

/*
 * The change of arm that is due for a connection mid-flow. 0: no change is due. If a
 * connection on the system's arm loses much, it moves to an arm known to be better, in
 * three cases of four. In the fourth, the result is its present arm. A connection on
 * another arm goes back to the system's arm if it loses much more than that arm would.
 */
static __always_inline int thalweg_change(const struct thalweg_host *host,
					  const struct thalweg_flow *flow, __u32 allowed,
					  const struct thalweg_params *params, __u32 random,
					  struct thalweg_decision *out)
{
	const struct thalweg_arm_state *from, *to;
	struct thalweg_judge judge;
	__u32 target, untried;
	__u64 lowest;

	if (flow->retrans <= flow->segs >> (params->loss_shift & 63))
		return 0;
	if (params->mode == THALWEG_MODE_CLASSIC) {
		thalweg_answer(out, THALWEG_CLASSIC_BBR, THALWEG_REASON_LOSS, THALWEG_ONE_Q16);
		return flow->arm != THALWEG_CLASSIC_BBR;
	}
	if (flow->segs < params->loss_min_segs || flow->arm >= THALWEG_MAX_ARMS ||
	    flow->system_arm >= THALWEG_MAX_ARMS)
		return 0;
	from = thalweg_arm_at(host, flow->system_arm);
	if (flow->arm != flow->system_arm) {
		thalweg_answer(out, flow->system_arm, THALWEG_REASON_WITHDRAWN, THALWEG_ONE_Q16);
		return allowed & (1u << flow->system_arm) &&
		       thalweg_too_many(thalweg_statistics_at(host, flow->system_arm), flow->segs,
					flow->retrans);
	}
	thalweg_convene(&judge, host, flow->system_arm);
	target = thalweg_best(host, allowed & 0xffff, &judge, flow->system_arm, &untried, &lowest);
	if (target >= THALWEG_MAX_ARMS || target == flow->arm)
		return 0;
	to = thalweg_arm_at(host, target);
	if (!from->weight_q16 || (__u64)to->value + THALWEG_RESCUE_GAP_Q16 > from->value)
		return 0;
	if ((random & (THALWEG_ONE_Q16 - 1)) < THALWEG_RESCUE_SHARE_Q16)
		thalweg_answer(out, target, THALWEG_REASON_LOSS, THALWEG_RESCUE_SHARE_Q16);
	else
		thalweg_answer(out, flow->arm, THALWEG_REASON_LOSS,
			       THALWEG_ONE_Q16 - THALWEG_RESCUE_SHARE_Q16);
	return 1;
}

/* Whether a measurement says anything about the congestion control. */
static __always_inline __u32 thalweg_assess(const struct thalweg_sample *sample,
					    const struct thalweg_params *params)
{
	__u64 burst, mean;

	if (sample->bytes < params->score_min_bytes &&
	    !((sample->end == THALWEG_END_TIMEOUT || sample->end == THALWEG_END_SWITCH) &&
	      sample->segs_out >= THALWEG_STALLED_SEGS))
		return THALWEG_SKIPPED_SMALL;
	/* Busy time excludes pauses; in wall time they show as a low mean rate. */
	if (sample->flags & THALWEG_SAMPLE_BUSY_TIME)
		return THALWEG_SCORED;
	burst = thalweg_rate(sample->rate_delivered_bytes, sample->rate_interval_us);
	mean = thalweg_rate(sample->bytes, sample->duration_us);
	if (sample->rate_interval_us && burst / THALWEG_APP_LIMITED_RATIO > mean &&
	    sample->retrans <= sample->segs_out / THALWEG_APP_LIMITED_LOSS &&
	    sample->end != THALWEG_END_TIMEOUT)
		return THALWEG_SKIPPED_APP_LIMITED;
	return THALWEG_SCORED;
}

/*
 * Whether the receiver's window or the send buffer, not the path, limited a stretch. Its
 * rate is one that the path can carry at least.
 */
static __always_inline int thalweg_is_limited(const struct thalweg_sample *sample)
{
	__u64 limited_us = (__u64)sample->receiver_us + sample->buffer_us;

	return sample->flags & THALWEG_SAMPLE_BUSY_TIME && sample->end != THALWEG_END_TIMEOUT &&
	       limited_us >= THALWEG_LIMITED_LEAST_US &&
	       limited_us > sample->duration_us / THALWEG_LIMITED_PART;
}

/*
 * The cost below which a limited measurement of an arm tells something new: that the path
 * carries more than was known. A lower rate may be the receiver's. With less evidence than
 * a half the system's arm has no such bound, and another arm that of the system's.
 */
static __always_inline __u64 thalweg_least_news(const struct thalweg_host *host, __u32 index,
						__u32 system_arm)
{
	const struct thalweg_arm_state *arm = thalweg_arm_at(host, index);

	if (arm->weight_q16 < THALWEG_CLIP_WEIGHT_Q16) {
		if (system_arm == index)
			return THALWEG_U64_MAX;
		if (system_arm >= THALWEG_MAX_ARMS)
			return 0;
		arm = thalweg_arm_at(host, system_arm);
	}
	return arm->weight_q16 ? arm->value : 0;
}

/* Weight (Q16) of a measurement, by bytes, up to one at score_full_bytes. */
static __always_inline __u32 thalweg_weight_q16(const struct thalweg_sample *sample,
						const struct thalweg_params *params)
{
	__u64 full = thalweg_min(params->score_full_bytes, (__u64)1 << 47), weight;

	if (sample->bytes >= full)
		return THALWEG_ONE_Q16;
	/* full > bytes >= 0 here, so it is not 0. */
	weight = (sample->bytes << 16) / full;
	if (weight < THALWEG_WEIGHT_MIN_Q16)
		weight = THALWEG_WEIGHT_MIN_Q16;
	if (sample->end == THALWEG_END_TIMEOUT && weight < THALWEG_WEIGHT_TIMEOUT_Q16)
		weight = THALWEG_WEIGHT_TIMEOUT_Q16;
	return weight;
}

/* The least mean cost of any measured arm; all ones before the first measurement. */
static __always_inline __u64 thalweg_least_known(const struct thalweg_host *host)
{
	__u64 least = THALWEG_U64_MAX;
	__u32 i;

	for (i = 0; i < THALWEG_MAX_ARMS && i < host->used; i++)
		if (host->arms[i].weight_q16 && host->arms[i].value < least)
			least = THALWEG_UNKNOWN(host->arms[i].value);
	return least;
}

/* Adds a stretch's segments to the count; a large number counts as SEGS_MAX. */
static __always_inline void thalweg_count_segments(struct thalweg_arm_statistics *arm,
						   const struct thalweg_sample *sample, __u32 shift)
{
	__u32 segs = sample->steady_segs, retrans = thalweg_min(sample->steady_retrans, segs);

	if (segs > THALWEG_SEGS_MAX) {
		retrans = (__u64)retrans * THALWEG_SEGS_MAX / segs;
		segs = THALWEG_SEGS_MAX;
	}
	arm->segs = arm->segs - (arm->segs >> shift) + segs;
	arm->retrans = arm->retrans - (arm->retrans >> shift) + retrans;
}

/*
 * Credits the host with a measurement, and charges it with what an arm other than the
 * system's cost more. A connection that goes on earns nothing: credit pays for
 * connections, and a long one would earn that of many.
 */
static __always_inline void thalweg_note_credit(struct thalweg_host *host, __u32 index,
						__u32 system_arm, __u64 cost, __u32 weight_q16,
						int earns)
{
	__s64 change = 0, credit = host->credit_q16, excess = 0;
	const struct thalweg_arm_state *system;

	if (earns)
		change = host->level ? THALWEG_GROUP_EARN_Q16 : THALWEG_EARN_Q16;
	if (system_arm < THALWEG_MAX_ARMS && system_arm != index) {
		system = thalweg_arm_at(host, system_arm);
		if (system->weight_q16)
			excess = (__s64)cost - (__s64)system->value;
		if (excess > THALWEG_CHARGE_MAX_Q16)
			excess = THALWEG_CHARGE_MAX_Q16;
		if (excess < -THALWEG_CHARGE_MAX_Q16)
			excess = -THALWEG_CHARGE_MAX_Q16;
		change -= excess;
		/* In a group's measurements luck is most of the difference. */
		if (!host->level)
			change -= (excess < 0 ? -excess : excess) >> THALWEG_CHARGE_SHIFT;
	}
	/* Rounded towards 0; there is no signed division before version 4 of the instructions. */
	if (change >= 0) {
		credit += (__s64)(((__u64)change * weight_q16) >> 16);
		if (credit > THALWEG_CREDIT_MAX_Q16)
			credit = THALWEG_CREDIT_MAX_Q16;
	} else {
		credit -= (__s64)(((__u64)-change * weight_q16) >> 16);
		if (credit < 0)
			credit = 0;
	}
	host->credit_q16 = credit;
}

/* What a measurement tells of an arm. */
struct thalweg_measured {
	__u64 cost; /* bits, Q16 */
	__u32 log_rate_q16;
	__u32 weight_q16;
};

/* Adds one cost to an arm's discounted estimate. */
static __always_inline void thalweg_learn(struct thalweg_arm_state *arm,
					  struct thalweg_arm_statistics *statistics, int is_group,
					  const struct thalweg_measured *measured, __u32 srtt_us,
					  const struct thalweg_params *params, int timeout)
{
	__u32 log_rate_q16 = measured->log_rate_q16, weight_q16 = measured->weight_q16;
	__u64 cost = measured->cost, total = (__u64)arm->weight_q16 + weight_q16;
	__u64 kept, worse = THALWEG_CLIP_WORSE_Q16, memory = THALWEG_ONE_Q16, deviations;
	__u32 weight_max_q16 = params->weight_max_q16;

	if (is_group)
		weight_max_q16 <<= THALWEG_GROUP_MEMORY_SHIFT;

	deviations = (__u64)statistics->deviation_q16 * THALWEG_CLIP_HALF_DEVIATIONS / 2;
	if (!timeout && deviations > worse)
		worse = thalweg_min(deviations, THALWEG_CLIP_WORSE_MAX_Q16);
	deviations = (__u64)statistics->deviation_q16 * THALWEG_MEMORY_DEVIATIONS;
	if (deviations > memory)
		memory = thalweg_min(deviations, THALWEG_MEMORY_MULTIPLE * THALWEG_ONE_Q16);
	memory = weight_max_q16 * memory >> 16;
	kept = thalweg_min(total, memory);
	/* The only measurement before this one had met an accident. */
	if (!arm->weight_q16 ||
	    (arm->weight_q16 <= THALWEG_ONE_Q16 && cost + THALWEG_ACCIDENT_Q16 < arm->value)) {
		kept = thalweg_min(weight_q16, memory);
		arm->value = cost;
		statistics->deviation_q16 = 0;
		statistics->log_rate_q16 = log_rate_q16;
		statistics->srtt_us = srtt_us;
	} else {
		if (arm->weight_q16 >= THALWEG_CLIP_WEIGHT_Q16) {
			if (cost > arm->value + worse) {
				cost = arm->value + worse;
				/*
				 * Once is luck; several times in a row is another path. Of many
				 * hosts some are always unlucky.
				 */
				if (!is_group)
					kept -= kept >> THALWEG_SURPRISE_SHIFT;
			} else if (cost + THALWEG_CLIP_BETTER_Q16 < arm->value) {
				cost = arm->value - THALWEG_CLIP_BETTER_Q16;
			}
		}
		statistics->deviation_q16 =
			thalweg_blend(statistics->deviation_q16, thalweg_distance(cost, arm->value),
				      weight_q16, total);
		arm->value = thalweg_blend(arm->value, cost, weight_q16, total);
		statistics->log_rate_q16 =
			thalweg_blend(statistics->log_rate_q16, log_rate_q16, weight_q16, total);
		statistics->srtt_us =
			thalweg_blend(statistics->srtt_us, srtt_us, weight_q16, total);
	}
	arm->weight_q16 = kept;
}

/*
 * Counts a measurement, and whether it is much slower than the system's mean and its own.
 * Must be called before the sample is learned.
 */
static __always_inline void thalweg_count_slow(const struct thalweg_host *host, __u32 system_arm,
					       const struct thalweg_arm_state *arm,
					       struct thalweg_arm_statistics *counts, __u64 cost)
{
	const struct thalweg_arm_state *system;
	__u64 usual;

	if (system_arm >= THALWEG_MAX_ARMS)
		return;
	system = thalweg_arm_at(host, system_arm);
	if (!system->weight_q16)
		return;
	usual = system->value > arm->value ? system->value : arm->value;
	counts->counted++;
	if (cost > usual + THALWEG_SLOW_Q16)
		counts->slow++;
	if (cost > usual + THALWEG_VERY_SLOW_Q16)
		counts->slow++;
	if (counts->counted >= THALWEG_COUNTED_MAX) {
		counts->counted /= 2;
		counts->slow /= 2;
	}
}

/* Takes an arm's handicap anew, after its measurement. */
static __always_inline void thalweg_note_caution(const struct thalweg_host *host, __u32 system_arm,
						 struct thalweg_arm_state *arm,
						 const struct thalweg_arm_statistics *statistics)
{
	__u64 deviation = statistics->deviation_q16, caution;

	if (system_arm < THALWEG_MAX_ARMS &&
	    thalweg_statistics_at(host, system_arm)->deviation_q16 > deviation)
		deviation = thalweg_statistics_at(host, system_arm)->deviation_q16;
	caution = (deviation * THALWEG_CAUTION_QUARTERS << 14) /
		  ((__u64)THALWEG_CAUTION_EVIDENCE_Q16 + arm->weight_q16);
	if (caution < THALWEG_CAUTION_MIN_Q16)
		caution = THALWEG_CAUTION_MIN_Q16;
	arm->caution_q16 = thalweg_min(caution, THALWEG_CAUTION_MAX_Q16);
}

/*
 * Updates whether an arm is unsteady: slow more than twice as often as the system's arm,
 * by more than one and a half measurements.
 */
static __always_inline void thalweg_note_unsteady(struct thalweg_host *host, __u32 index,
						  __u32 system_arm)
{
	const struct thalweg_arm_statistics *arm = thalweg_statistics_at(host, index), *system;
	__u32 bit = 1u << (index & THALWEG_ARM_MASK);

	host->unsteady &= ~bit;
	if (arm->slow < 2 || system_arm >= THALWEG_MAX_ARMS || system_arm == index)
		return;
	system = thalweg_statistics_at(host, system_arm);
	if ((2u * arm->slow - 3) * (system->counted + THALWEG_COUNTED_DOUBT) >
	    4u * (system->slow + THALWEG_SLOW_DOUBT) * arm->counted)
		host->unsteady |= bit;
}

/* The published scoring: arm's highest rate, this connection's minimum RTT. */
static __always_inline void thalweg_classic_score(struct thalweg_host *host, __u32 index,
						  const struct thalweg_sample *sample,
						  struct thalweg_verdict *out)
{
	struct thalweg_arm_statistics *arm = &host->statistics[index & THALWEG_ARM_MASK];
	__u64 rate = thalweg_classic_rate(sample), value;

	if (!arm->min_rtt_us || sample->min_rtt_us < arm->min_rtt_us)
		arm->min_rtt_us = sample->min_rtt_us;
	if (rate > arm->max_rate)
		arm->max_rate = rate;
	out->cost = thalweg_classic_cost(host, sample->min_rtt_us, arm->max_rate);
	out->outcome = THALWEG_SCORED;
	out->weight_q16 = THALWEG_ONE_Q16;
	value = thalweg_classic_update(thalweg_classic_value(host, index), out->cost);
	host->arms[index & THALWEG_ARM_MASK].value = value;
	arm->value_high = value >> 32;
	thalweg_increment(&arm->scored);
	thalweg_increment(&host->scored);
}

/* Loops over arms end at the last one with a measurement. */
static __always_inline void thalweg_note_use(struct thalweg_host *host, __u32 index)
{
	if (host->used <= (index & THALWEG_ARM_MASK))
		host->used = (index & THALWEG_ARM_MASK) + 1;
}

/* Discounts earlier evidence before a measurement. */
static __always_inline void thalweg_prepare(struct thalweg_host *host, __u32 index,
					    const struct thalweg_params *params, __u64 now_ns)
{
	__u32 i, shift = params->idle_shift + (host->level ? THALWEG_GROUP_IDLE_SHIFT : 0);

	thalweg_note_use(host, index);
	thalweg_forget(host, params, now_ns);
	for (i = 0; i < THALWEG_MAX_ARMS && i < host->used; i++)
		host->arms[i].weight_q16 -= (host->arms[i].weight_q16 >> (shift & 31)) *
					    thalweg_some(i ^ (index & THALWEG_ARM_MASK));
}

/* Adds a measurement to the record of a host or group, and judges its arms anew. */
static __always_inline void thalweg_take(struct thalweg_host *host, __u32 index, __u32 system_arm,
					 const struct thalweg_measured *measured,
					 const struct thalweg_sample *sample,
					 const struct thalweg_params *params)
{
	struct thalweg_arm_state *arm = &host->arms[index & THALWEG_ARM_MASK];
	struct thalweg_arm_statistics *statistics = &host->statistics[index & THALWEG_ARM_MASK];

	thalweg_count_slow(host, system_arm, arm, statistics, measured->cost);
	thalweg_note_credit(host, index, system_arm, measured->cost, measured->weight_q16,
			    sample->end != THALWEG_END_STRETCH);
	thalweg_learn(arm, statistics, host->level != THALWEG_LEVEL_HOST, measured, sample->srtt_us,
		      params, sample->end == THALWEG_END_TIMEOUT);
	thalweg_count_segments(statistics, sample,
			       thalweg_is_window(host) ? THALWEG_WINDOW_SEGS_SHIFT
						       : THALWEG_SEGS_SHIFT);
	thalweg_increment(&statistics->scored);
	thalweg_increment(&host->scored);
	thalweg_note_caution(host, system_arm, arm, statistics);
	thalweg_note_unsteady(host, index, system_arm);
	thalweg_note_harm(host, system_arm, params);
}

/* A number of 32 bits after a change, saturating. */
static __always_inline __u32 thalweg_moved(__u32 value, __s64 by)
{
	__s64 moved = value + by;

	if (moved < 0)
		return 0;
	return moved > THALWEG_U32_MAX ? THALWEG_U32_MAX : moved;
}

/*
 * Moves the arms that were never measured on the host along with `index`: what is known
 * of them is their distance. They follow the system's arm, or any while that is one of
 * them.
 */
static __always_inline void thalweg_follow(struct thalweg_host *host, __u32 index, __u32 system_arm,
					   __s64 by, __s64 log_rate_by)
{
	__u32 i;

	if (system_arm >= THALWEG_MAX_ARMS ||
	    (index != system_arm && thalweg_statistics_at(host, system_arm)->scored))
		return;
	for (i = 0; i < THALWEG_MAX_ARMS && i < host->used; i++) {
		struct thalweg_arm_statistics *statistics = &host->statistics[i];

		if (statistics->scored || !host->arms[i].weight_q16)
			continue;
		host->arms[i].value = thalweg_moved(host->arms[i].value, by);
		statistics->log_rate_q16 = thalweg_moved(statistics->log_rate_q16, log_rate_by);
	}
}

/* Scores one measured stretch of a connection on `index`; the system had given it `system_arm`. */
static __always_inline void thalweg_score(struct thalweg_host *host, __u32 index, __u32 system_arm,
					  const struct thalweg_sample *sample,
					  const struct thalweg_params *params, __u64 now_ns,
					  struct thalweg_verdict *out)
{
	struct thalweg_arm_state *arm = &host->arms[index & THALWEG_ARM_MASK];
	struct thalweg_arm_statistics *statistics = &host->statistics[index & THALWEG_ARM_MASK];
	struct thalweg_measured measured;
	__u64 rate, cost, known;
	__u32 log_rate_q16, before_q16, before_log_rate_q16;

	host->seen_ns = now_ns;
	if (params->mode == THALWEG_MODE_CLASSIC) {
		thalweg_note_use(host, index);
		thalweg_classic_score(host, index, sample, out);
		return;
	}
	out->cost = 0;
	out->weight_q16 = 0;
	out->outcome = thalweg_assess(sample, params);
	if (out->outcome != THALWEG_SCORED)
		return;
	rate = thalweg_rate(sample->bytes, sample->duration_us);
	log_rate_q16 = thalweg_log2_q16(rate);
	cost = thalweg_cost(log_rate_q16, sample->srtt_us, params) + thalweg_waste_q16(sample);
	out->cost = thalweg_min(cost, THALWEG_U32_MAX);
	if (thalweg_is_limited(sample) &&
	    out->cost >= thalweg_least_news(host, index, system_arm)) {
		out->cost = 0;
		out->outcome = THALWEG_SKIPPED_APP_LIMITED;
		return;
	}
	if (sample->end == THALWEG_END_TIMEOUT) {
		/* A time-out alone may be a peer that vanished. */
		known = thalweg_least_known(host);
		if (known == THALWEG_U64_MAX) {
			out->cost = 0;
			out->outcome = THALWEG_SKIPPED_TIMEOUT;
			return;
		}
		/* With so little evidence the arm's mean does not bound the sample. */
		if (arm->weight_q16 < THALWEG_CLIP_WEIGHT_Q16)
			out->cost = thalweg_min(out->cost, known + THALWEG_CLIP_WORSE_Q16);
	}
	out->weight_q16 = thalweg_weight_q16(sample, params);

	thalweg_prepare(host, index, params, now_ns);
	thalweg_note_queue(host, index, system_arm, sample);
	measured.cost = out->cost;
	measured.log_rate_q16 = log_rate_q16;
	measured.weight_q16 = out->weight_q16;
	known = arm->weight_q16;
	before_q16 = arm->value;
	before_log_rate_q16 = statistics->log_rate_q16;
	thalweg_take(host, index, system_arm, &measured, sample, params);
	if (known)
		thalweg_follow(host, index, system_arm, (__s64)arm->value - before_q16,
			       (__s64)statistics->log_rate_q16 - before_log_rate_q16);

	if (rate > statistics->max_rate)
		statistics->max_rate = rate;
	if (rate > host->max_rate)
		host->max_rate = rate;
	/* 0 is the kernel's "no sample". */
	if (sample->min_rtt_us &&
	    (!statistics->min_rtt_us || sample->min_rtt_us < statistics->min_rtt_us))
		statistics->min_rtt_us = sample->min_rtt_us;
	if (sample->min_rtt_us && (!host->min_rtt_us || sample->min_rtt_us < host->min_rtt_us))
		host->min_rtt_us = sample->min_rtt_us;
}

/*
 * Whether the stretch of an open connection is scored now, and another begins: it is half
 * an interval of looks old, doubled by each of `count` earlier stretches on the same arm,
 * and has full weight.
 */
static __always_inline int thalweg_stretch_due(__u64 age_ns, __u64 bytes, __u32 count,
					       const struct thalweg_params *params)
{
	return params->stretch_ns &&
	       age_ns >> thalweg_min(count, THALWEG_LONGEST_SHIFT) >= params->stretch_ns / 2 &&
	       bytes >= params->score_full_bytes;
}

/* A long connection whose stretch was just scored, as input of thalweg_review(). */
struct thalweg_long {
	__u32 arm; /* index, or THALWEG_NO_ARM */
	__u32 system_arm;
	__u64 decided_ns; /* when it was last decided anew; 0 = never */
	__u32 trial; /* it had its arm for a trial, which this stretch has ended */
};

/* Result of thalweg_review(). */
enum thalweg_reviewed {
	THALWEG_KEEPS, /* no decision */
	THALWEG_REVIEWED,
	THALWEG_REVIEWED_TRIAL, /* ... whose arm is a trial */
};

/*
 * Decides about a long connection. From an arm that is harmful, not allowed any more, or
 * half a bit worse than the system's it goes to the best one at once. On the best arm it
 * stays. On another one the rule for new connections decides, at most once an hour. Its arm
 * must be an eighth of a bit worse than the best one, or have been a trial. `random` and
 * `shares_q16` as in thalweg_decide().
 */
static __always_inline enum thalweg_reviewed
thalweg_review(const struct thalweg_host *host, const struct thalweg_long *flow, __u32 allowed,
	       const struct thalweg_params *params, const __u32 *random, __u64 now_ns,
	       struct thalweg_decision *out, __u16 *shares_q16)
{
	__u32 best, untried, arm = flow->arm, system = flow->system_arm;
	struct thalweg_judge judge;
	__u64 own, lowest;
	int trial;

	if (params->mode == THALWEG_MODE_CLASSIC || host->scored < params->warm_up ||
	    arm >= THALWEG_MAX_ARMS || system >= THALWEG_MAX_ARMS ||
	    !thalweg_arm_at(host, arm)->weight_q16 || !thalweg_arm_at(host, system)->weight_q16)
		return THALWEG_KEEPS;
	thalweg_convene(&judge, host, system);
	best = thalweg_best(host, allowed & 0xffff, &judge, system, &untried, &lowest);
	if (best == THALWEG_NO_ARM || best == arm)
		return THALWEG_KEEPS;
	own = thalweg_judged_q16(host, arm, &judge);
	if (arm != system && allowed & judge.system &&
	    (!(allowed & 1u << arm) || own >= judge.system_value + THALWEG_LEAVE_GAP_Q16)) {
		thalweg_answer(out, best, THALWEG_REASON_RETURNED, THALWEG_ONE_Q16);
		thalweg_note_share(shares_q16, best, THALWEG_ONE_Q16);
		return THALWEG_REVIEWED;
	}
	if (flow->decided_ns &&
	    (now_ns < flow->decided_ns || now_ns - flow->decided_ns < THALWEG_ANEW_NS))
		return THALWEG_KEEPS;
	if (!flow->trial && own < lowest + THALWEG_ANEW_GAP_Q16)
		return THALWEG_KEEPS;
	thalweg_decide(host, system, allowed, params, random, now_ns, out, shares_q16);
	trial = thalweg_is_trial(out->reason);
	out->reason = THALWEG_REASON_ANEW;
	return trial ? THALWEG_REVIEWED_TRIAL : THALWEG_REVIEWED;
}

#endif
