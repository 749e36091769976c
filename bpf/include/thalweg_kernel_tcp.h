/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fields of the kernel's own structures that programs read, found by name at load time
 * (CO-RE).
 */
#ifndef THALWEG_KERNEL_TCP_H
#define THALWEG_KERNEL_TCP_H

#include <bpf/bpf_core_read.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	__u64 net_cookie; /* Linux 5.12 */
};

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num; /* local port, host byte order */
	unsigned short skc_family;
	int skc_bound_dev_if;
	volatile unsigned char skc_state;
	struct {
		struct net *net;
	} skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct kernfs_node {
	__u64 id; /* inode number of the cgroup's directory */
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct net_device {
	int ifindex;
};

struct dst_entry {
	struct net_device
		*dev; /* the loopback device if it is to the machine itself, or the VRF's */
	unsigned long _metrics; /* address of the route's metrics; the two lowest bits are flags */
};

struct dst_metrics {
	__u32 metrics[17]; /* RTAX_MAX, linux/rtnetlink.h */
};

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache; /* the route of what is sent */
	int sk_rx_dst_ifindex; /* device of the last packet received by the fast path; Linux 5.16 */
	struct {
		struct cgroup *cgroup; /* a plain pointer since Linux 5.15 */
	} sk_cgrp_data;
	int sk_err;
	unsigned long sk_max_pacing_rate; /* ~0: none */
	void *sk_bpf_storage; /* NULL: no program has storage of the socket */
};

/* Before Linux 5.16. */
struct inet_sock {
	int rx_dst_ifindex;
};

/* Routes, each begins with its struct dst_entry. */
struct rtable {
	__u16 rt_type;
};

struct rt6_info {
	__u32 rt6i_flags;
};

struct sk_buff {
	int skb_iif; /* device that it came in by */
};

/* What struct bpf_sock_ops is in the kernel. */
struct bpf_sock_ops_kern {
	struct sk_buff *skb; /* establishment: the packet that completes the handshake here */
};

struct tcp_congestion_ops {
	char name[16];
};

struct inet_connection_sock {
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u8 icsk_ca_state : 5;
	__u8 icsk_ca_setsockopt : 1; /* somebody set it: an application or a program */
	__u8 icsk_syn_retries; /* 0: as of the network namespace */
	__u32 icsk_rto; /* ticks; the present timeout */
	__u32 icsk_rto_min; /* ticks */
	__u32 icsk_delack_max; /* ticks */
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3]; /* the first is the lowest */
};

struct mptcp_sock {
	struct sock_common *sk; /* only its name matters */
};

struct tcp_options_received {
	__u16 sack_ok : 3; /* 0: the peer does not acknowledge selectively */
};

struct tcp_sock {
	struct tcp_options_received rx_opt;
	__u32 snd_cwnd_clamp;
	__u32 dsack_dups;
	_Bool is_mptcp; /* a subflow; where the kernel has MPTCP */
	__u8 bpf_sock_ops_cb_flags;
	__u64 bytes_acked;
	__u32 data_segs_out;
	__u32 total_retrans;
	__u32 srtt_us; /* smoothed RTT << 3 */
	struct minmax rtt_min;
	__u32 mss_cache;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 chrono_start; /* tick of the last change of chrono_type */
	__u32 chrono_stat[3]; /* ticks busy, receiver-limited, send-buffer-limited */
	__u8 chrono_type : 2; /* 0 = nothing outstanding; 1..3 count into chrono_stat */
	__u8 rate_app_limited : 1; /* the last rate sample was limited by the application */
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 seq_num; /* of the socket, from 0 */
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

#pragma clang attribute pop

/* Whether an application's choice cannot be seen: it is marked at the MPTCP socket. */
static __always_inline int is_of_mptcp(const struct tcp_sock *tp)
{
	return bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp;
}

/*
 * Whether an application or a program set the socket's congestion control, or that of the listener
 * that accepted it.
 */
static __always_inline __u64 is_chosen(const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = (const struct inet_connection_sock *)tp;
	/* BPF_CORE_READ_BITFIELD() would ask for the field's size, which is a byte everywhere. */
	__u64 byte = *((const __u8 *)icsk + __CORE_RELO(icsk, icsk_ca_setsockopt, BYTE_OFFSET));

	/* Its place in most kernels: the verifier removes the branch, and no shift is left. */
	if (__CORE_RELO(icsk, icsk_ca_setsockopt, LSHIFT_U64) == 57)
		return byte & 1 << 6;
	return byte << __CORE_RELO(icsk, icsk_ca_setsockopt, LSHIFT_U64) >> 63;
}

#endif
