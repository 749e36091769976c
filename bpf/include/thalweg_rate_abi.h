/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for rate.bpf.c (included there, under its rules): its
 * settings, and its reports of decisions.
 */
#ifndef THALWEG_RATE_ABI_H
#define THALWEG_RATE_ABI_H

#include <linux/types.h>

#include "thalweg_network_abi.h"

/*
 * Version of what crosses the border in this file and in thalweg_network_abi.h. A change
 * of layout or meaning raises it: user space asks programs of its own version only. 0:
 * programs from before there was one.
 */
#define THALWEG_RATE_VERSION 1
/* The lowest rate of a flow, bytes/s: 200 kbit/s, a full segment in 60 ms. */
#define THALWEG_RATE_FLOOR 25000ull
/*
 * Default reference: the rate that counts as 1, bytes/s, and the round-trip time below
 * which all count alike, us.
 */
#define THALWEG_RATE_DEFAULT_REFERENCE 1250000000ull
#define THALWEG_RATE_DEFAULT_REFERENCE_RTT_US 2000u
/* Bytes of a model's name, for lists; longer names are cut. */
#define THALWEG_RATE_NAME 64
/* Bytes of the ring of decisions: a power of two, a multiple of the page size. */
#define THALWEG_RATE_RING (256 * 1024)

/* Settings, written before any flow can use the congestion control. */
struct thalweg_rate_settings {
	__u64 reference_rate; /* bytes/s */
	__u32 reference_rtt_us;
	__u32 version; /* THALWEG_RATE_VERSION of the loader; here in every version */
	__u8 name[THALWEG_RATE_NAME]; /* of the model, UTF-8; the program does not read it */
	struct thalweg_model model;
};

/* Which decisions are reported; all zero: none. */
struct thalweg_rate_trace {
	__u64 until_ns; /* CLOCK_MONOTONIC: a dead tracer is not served forever */
	__u8 remote[16]; /* IPv4 as ::ffff:a.b.c.d; all zero: every host */
	__u64 lost; /* decisions that did not fit the ring; counted by the program */
};

/* Circumstances of a decision. */
enum thalweg_rate_flag {
	THALWEG_RATE_HELD = 1, /* no growth: the rate was not used, or losses or marks */
	THALWEG_RATE_LIMITED = 2, /* the application or the receiver held the flow back */
	THALWEG_RATE_FIRST = 4, /* the first decision of the flow */
	THALWEG_RATE_PROBING = 8, /* a probe for the shortest round-trip time starts */
	THALWEG_RATE_COMPETING = 16, /* floor and cap are the rate of a window like Reno's */
};

/* One decision. rate * action, limited to floor and cap, times keep_q16: next_rate. */
struct thalweg_rate_decision {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u8 remote[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u16 remote_port;
	__u16 local_port;
	__u32 netns; /* inode of the flow's network namespace */
	struct thalweg_measurement measurement; /* rates in bytes/s */
	__u64 floor; /* bytes/s, like the following rates */
	__u64 cap;
	__u64 next_rate;
	__u64 delivered_rate;
	__s16 inputs[THALWEG_MODEL_INPUTS]; /* Q15, oldest decision first */
	__s16 action_q15;
	__u16 flags; /* enum thalweg_rate_flag */
	__u32 keep_q16; /* share of the rate kept after losses and marks; 65536: all */
	__u32 min_rtt_us;
	__u32 round_rtt_us; /* the base plus the queue of the round */
	__u32 window; /* segments */
	__u32 reserved;
};

_Static_assert(sizeof(struct thalweg_rate_settings) ==
		       16 + THALWEG_RATE_NAME + sizeof(struct thalweg_model),
	       "no padding");
_Static_assert(sizeof(struct thalweg_rate_trace) == 32, "no padding");
_Static_assert(sizeof(struct thalweg_rate_decision) == 152, "no padding");

#endif
