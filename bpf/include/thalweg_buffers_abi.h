/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for buffers.bpf.c (included there, under its rules): bounds of
 * connections that do without raised limits of buffers, and reports of those that are over. The
 * program lives no longer than its agent, so nothing here crosses versions.
 */
#ifndef THALWEG_BUFFERS_ABI_H
#define THALWEG_BUFFERS_ABI_H

#include <linux/types.h>

/* Network namespaces and networks with bounds at a time. */
#define THALWEG_BUFFERS_NETWORKS 16384
/* Bytes of the ring of reports: a power of two, a multiple of the page size. */
#define THALWEG_BUFFERS_RING (64 * 1024)

/* Bounds in a network namespace (prefix_len 0), or of a network in it. Written by the agent. */
struct thalweg_buffers_bounds {
	__u64 until_ns; /* CLOCK_MONOTONIC up to which new connections get them */
	__u32 receive; /* window that the limit before the agent's permits, bytes */
	__u32 send; /* likewise, of the sender */
	__u32 share_q16; /* share of the connections that are bounded */
	__u32 salt; /* of the draw */
};

/* A connection that is over, of a namespace with raised limits. */
struct thalweg_buffers_report {
	struct thalweg_host_key key; /* of the network */
	__u64 bytes; /* sent and acknowledged */
	__u64 busy_us; /* with data outstanding */
	__u32 segs_out; /* data segments, retransmissions among them */
	__u32 retrans;
	__u32 min_rtt_us; /* 0: not measured */
	__u32 srtt_us;
	__u32 bounded; /* enum thalweg_bounded */
	__u32 reserved;
};

/* Why a connection is bounded. */
enum thalweg_bounded {
	THALWEG_BOUNDED_NOT,
	THALWEG_BOUNDED_BY_DRAW,
	/* All connections to the network are. */
	THALWEG_BOUNDED_WITH_ALL,
};

#endif
