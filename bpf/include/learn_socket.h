/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: a socket as its callbacks see it, or as an iterator does (THALWEG_ITERATOR).
 *
 * struct learn_handle is what helpers take, struct learn_tcp has TCP's figures. Of those
 * both kinds have the same names. The names are macros: a relocation names its struct.
 */
#ifndef THALWEG_LEARN_SOCKET_H
#define THALWEG_LEARN_SOCKET_H

#include "thalweg_compat.h"

#ifdef THALWEG_ITERATOR
#define learn_handle tcp_sock
#define learn_tcp tcp_sock
#define learn_sock tcp_sock

static __always_inline struct sock_common *common_of(struct learn_handle *tp)
{
	return &((struct sock *)tp)->__sk_common;
}

static __always_inline struct learn_sock *sock_of(struct learn_handle *tp)
{
	return tp;
}

/* The kernel's own structure. */
static __always_inline struct tcp_sock *kernel_tcp(struct learn_sock *sk)
{
	return sk;
}

static __always_inline __u32 lowest_rtt_us(const struct learn_tcp *tp)
{
	return tp->rtt_min.s[0].v;
}

static __always_inline __u64 netns_of(struct learn_handle *tp)
{
	return common_of(tp)->skc_net.net->net_cookie;
}

static __always_inline __u32 family_of(struct learn_handle *tp)
{
	return common_of(tp)->skc_family;
}

static __always_inline __u32 remote_port_of(struct learn_handle *tp)
{
	return bpf_ntohs(common_of(tp)->skc_dport);
}

static __always_inline __u32 local_port_of(struct learn_handle *tp)
{
	return common_of(tp)->skc_num;
}

/* Full remote address, network byte order, IPv4 mapped; 0 if it is not TCP over IP. */
static __always_inline int remote_of(struct learn_handle *tp, __u32 *remote)
{
	struct sock_common *skc = common_of(tp);
	__u32 i;

	if (skc->skc_family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = bpf_htonl(0xffff);
		remote[3] = skc->skc_daddr;
		return 1;
	}
	if (skc->skc_family != AF_INET6 || !bpf_core_field_exists(skc->skc_v6_daddr))
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++)
		remote[i] = skc->skc_v6_daddr.in6_u.u6_addr32[i];
	return 1;
}
#else
#define learn_handle bpf_sock_ops
#define learn_tcp bpf_tcp_sock
#define learn_sock bpf_sock

static __always_inline struct learn_sock *sock_of(struct learn_handle *ops)
{
	return ops->sk;
}

#ifdef THALWEG_KERNEL_BTF
/* The kernel's own structure. */
static __always_inline struct tcp_sock *kernel_tcp(struct learn_sock *sk)
{
	return bpf_skc_to_tcp_sock(sk);
}
#endif

static __always_inline __u32 lowest_rtt_us(const struct learn_tcp *tp)
{
	return tp->rtt_min;
}

static __always_inline __u64 netns_of(struct learn_handle *ops)
{
	return bpf_get_netns_cookie(ops);
}

static __always_inline __u32 family_of(struct learn_handle *ops)
{
	return ops->family;
}

static __always_inline __u32 remote_port_of(struct learn_handle *ops)
{
	/* In network byte order; local_port is not (UAPI). */
	return bpf_ntohl(ops->remote_port);
}

static __always_inline __u32 local_port_of(struct learn_handle *ops)
{
	return ops->local_port;
}

/* Full remote address, network byte order, IPv4 mapped; 0 if it is not TCP over IP. */
static __always_inline int remote_of(struct learn_handle *ops, __u32 *remote)
{
	if (ops->family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = bpf_htonl(0xffff);
		remote[3] = ops->remote_ip4;
		/* The verifier wants each field's own offset in its load. */
		barrier();
	} else if (ops->family == AF_INET6) {
		remote[0] = ops->remote_ip6[0];
		remote[1] = ops->remote_ip6[1];
		remote[2] = ops->remote_ip6[2];
		remote[3] = ops->remote_ip6[3];
		barrier();
	} else {
		return 0;
	}
	return 1;
}
#endif

#endif
