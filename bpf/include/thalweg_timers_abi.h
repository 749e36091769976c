/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for timers.bpf.c (included there, under its rules): timers of
 * networks, and reports of connections that are over. The program lives no longer than its
 * agent, so nothing here crosses versions.
 */
#ifndef THALWEG_TIMERS_ABI_H
#define THALWEG_TIMERS_ABI_H

#include <linux/types.h>

/* Networks with timers of their own at a time. */
#define THALWEG_TIMERS_NETWORKS 16384
/* Bytes of the ring of reports: a power of two, a multiple of the page size. */
#define THALWEG_TIMERS_RING (128 * 1024)
/* The kernel's least retransmission timeout (TCP_RTO_MIN, include/net/tcp.h). */
#define THALWEG_RTO_MIN_US 200000u
/*
 * SYNs that a network's connections may lose without being answered in the meantime, and the largest
 * debt. A SYN that is answered gives back 1 / THALWEG_SYN_CREDIT of one.
 */
#define THALWEG_SYN_LOSSES 8
#define THALWEG_SYN_CREDIT 4

/* Networks whose hosts bound the delay of their ACKs, at most. */
#define THALWEG_TIMERS_PEERS 64

/* Bound of the delay of ACKs to such a network. */
struct thalweg_timers_peers {
	__u64 until_ns; /* CLOCK_MONOTONIC up to which new connections get it; 0: there is none */
	__u32 delay_us;
	__u32 reserved;
};

/* Timers of a network. The agent writes them; programs change `credit` alone. */
struct thalweg_timers {
	__u64 until_ns; /* CLOCK_MONOTONIC up to which new connections get them */
	__u32 floor_us; /* least retransmission timeout of a connection that recovers; 0: the kernel's */
	__u32 syn_us; /* first timeout of a SYN; 0: the kernel's */
	__u32 syn_count; /* retransmissions of a SYN that take as long as usual with that timeout */
	__u32 usual_syn_count; /* ... and usually */
	__u32 share_q16; /* share of the connections that get them */
	__u32 salt; /* of the draw */
	__u32 flags; /* enum thalweg_timers_flag */
	__s32 credit; /* of SYNs, in 1 / THALWEG_SYN_CREDIT */
};

enum thalweg_timers_flag {
	/* The floor is for connections that have had a timeout. */
	THALWEG_TIMERS_AFTER_TIMEOUT = 1 << 0,
	/* The floor is in force from the SYN to the first RTT sample after the handshake. */
	THALWEG_TIMERS_FROM_START = 1 << 1,
};

/* A connection that is over. */
struct thalweg_timers_report {
	__u64 netns; /* network namespace cookie */
	__u8 remote[16]; /* network byte order, IPv4 mapped, also behind NAT64 */
	__u64 bytes; /* acknowledged */
	__u64 busy_us; /* with data outstanding, so that idle times do not count; 0: not known */
	__u32 segs_out; /* data segments, retransmissions among them */
	__u32 retrans;
	__u32 dsacks; /* duplicates that the peer told of: spurious retransmissions */
	__u32 min_rtt_us; /* 0: not measured */
	__u32 srtt_us;
	__u32 floor_us; /* floor of the connection's network; 0: the kernel's */
	__u32 syn_us; /* likewise, first timeout of the SYN */
	__u32 timeouts;
	__u32 floors; /* times that the floor was set */
	__u32 other_us; /* least timeout of a route, a policy, an application or a sysctl; 0: none */
	__u16 syn_retrans;
	__u16 flags; /* enum thalweg_timed_flag */
	__u32 unused;
};

enum thalweg_timed_flag {
	/* The network had timers when the connection ended. */
	THALWEG_TIMED_KNOWN = 1 << 0,
	/* The draw gave them to the connection. */
	THALWEG_TIMED_DRAWN = 1 << 1,
	/* The least timeout is another's: of a route, a policy, an application, a sysctl. */
	THALWEG_TIMED_OWNED = 1 << 2,
	/* The peer does not acknowledge selectively, and so tells of no duplicates. */
	THALWEG_TIMED_NO_SACK = 1 << 3,
	/* The connection was open before the program. */
	THALWEG_TIMED_EARLIER = 1 << 4,
};

#endif
