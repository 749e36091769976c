/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fields of the kernel's own structures that policy_existing.bpf.c reads, found by name at
 * load time (CO-RE).
 */
#ifndef THALWEG_KERNEL_TCP_H
#define THALWEG_KERNEL_TCP_H

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

struct sock {
	struct sock_common __sk_common;
	struct {
		struct cgroup *cgroup; /* a plain pointer since Linux 5.15 */
	} sk_cgrp_data;
};

struct tcp_sock {
	__u32 snd_cwnd_clamp;
	__u8 bpf_sock_ops_cb_flags;
};

struct bpf_iter__tcp {
	struct sock_common *sk_common;
};

#pragma clang attribute pop

#endif
