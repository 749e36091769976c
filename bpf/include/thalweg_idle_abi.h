/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for idle.bpf.c and idle_cubic.bpf.c (included there, under its rules):
 * shares of a network's connections, the state of a connection, and reports of its exchanges.
 * The programs live no longer than their agent, so nothing here crosses versions.
 */
#ifndef THALWEG_IDLE_ABI_H
#define THALWEG_IDLE_ABI_H

#include <linux/types.h>

/* Networks with shares of their own at a time. */
#define THALWEG_IDLE_NETWORKS 16384
/* Bytes of the ring of reports: a power of two, a multiple of the page size. */
#define THALWEG_IDLE_RING (64 * 1024)
/* A window that was not used for longer is not kept (RFC 7661, section 4.4.2). */
#define THALWEG_IDLE_MAX_US 300000000ull
/* An exchange that goes on for longer ends here. */
#define THALWEG_IDLE_BYTES (1u << 20)

/*
 * A connection is drawn anew after so long, log2 of ns: in both groups over time, it differs from
 * itself alone.
 */
#define THALWEG_IDLE_DRAW_SHIFT 34

/* Exchanges of a connection in a report at most. */
#define THALWEG_IDLE_EXCHANGES 8

/* What connections of a network do. Written by the agent. */
struct thalweg_idle_network {
	__u64 until_ns; /* CLOCK_MONOTONIC up to which windows are kept */
	__u32 kept_q16; /* share of the connections that keep theirs */
	__u32 salt; /* of the draw */
};

/* Settings of the agent. */
struct thalweg_idle_settings {
	__u8 name[16]; /* of the congestion control, filled up with NUL */
};

/* Exchanges of a connection after idle times, all of one draw and one group. */
struct thalweg_idle_report {
	struct thalweg_host_key key; /* of the network */
	__u64 bytes;
	__u64 time_us; /* from the first segment to the last ACK */
	__u32 exchanges;
	__u32 segs;
	__u32 retrans;
	__u32 rtt_us; /* smoothed RTT after the last one */
	__u32 group; /* enum thalweg_idle_group */
	__u32 draw; /* number of the draw: of the connection and the time */
};

/* What became of the window at the begin of an exchange. */
enum thalweg_idle_group {
	/* The kernel restarted it: the network keeps none, or the idle time was too long. */
	THALWEG_IDLE_RESTARTED,
	/* It was kept. */
	THALWEG_IDLE_KEPT,
	/* The kernel restarted it as the draw left it out. */
	THALWEG_IDLE_CONTROL,
};

/* A connection. Times are those of tcp_sock.tcp_mstamp. */
struct thalweg_idle_flow {
	struct thalweg_idle_report
		report; /* of finished exchanges; none: nothing is to be reported */
	__u64 acked_us; /* last ACK of data */
	__u64 begun_us; /* begin of the exchange after an idle time; 0: there is none */
	__u64 train_us; /* first ACK of the exchange; 0: none yet */
	__u64 rate; /* bytes/s, at which the ACKs of a window came last; 0: not known */
	__u32 cwnd; /* window before the restart that is on its way, segments; 0: none is */
	__u32 restart_cwnd; /* window of the kernel's restart, segments */
	__u32 begun_una; /* tcp_sock's counters at the begin of the exchange */
	__u32 begun_segs;
	__u32 begun_retrans;
	__u32 train_una; /* first sequence number that the first ACK did not acknowledge */
	__u32 train_end; /* last one that was sent by then */
	__u32 cookie; /* of the socket, its lower half */
	__u32 paced; /* the burst is paced */
	__u32 reserved;
};

#endif
