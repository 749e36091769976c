/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: a socket as its callbacks see it, or as an iterator does (THALWEG_ITERATOR).
 *
 * struct learn_handle is what helpers take, struct learn_tcp has TCP's figures. Of those
 * both kinds have the same names. The names are macros: a relocation names its struct.
 */
#ifndef THALWEG_LEARN_SOCKET_H
#define THALWEG_LEARN_SOCKET_H

#include "thalweg_address.h"
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

/* Full remote address, network byte order, IPv4 mapped. Returns its family, 0: not TCP over IP. */
static __always_inline __u32 remote_of(struct learn_handle *tp, __u32 *remote)
{
	struct sock_common *skc = common_of(tp);
	__u32 i;

	if (skc->skc_family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = bpf_htonl(0xffff);
		remote[3] = skc->skc_daddr;
		return AF_INET;
	}
	if (skc->skc_family != AF_INET6 || !bpf_core_field_exists(skc->skc_v6_daddr))
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++)
		remote[i] = skc->skc_v6_daddr.in6_u.u6_addr32[i];
	return AF_INET6;
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

/* Full remote address, network byte order, IPv4 mapped. Returns its family, 0: not TCP over IP. */
static __always_inline __u32 remote_of(struct learn_handle *ops, __u32 *remote)
{
	if (ops->family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = bpf_htonl(0xffff);
		remote[3] = ops->remote_ip4;
		/* The verifier wants each field's own offset in its load. */
		barrier();
		return AF_INET;
	} else if (ops->family == AF_INET6) {
		remote[0] = ops->remote_ip6[0];
		remote[1] = ops->remote_ip6[1];
		remote[2] = ops->remote_ip6[2];
		remote[3] = ops->remote_ip6[3];
		barrier();
		return AF_INET6;
	}
	return 0;
}
#endif

#ifdef THALWEG_KERNEL_BTF
/* Index of the loopback device in every network namespace. */
#define LOOPBACK_IFINDEX 1
/* Type of routes to the machine itself: IPv4's, and the flag of IPv6's. */
#define RTN_LOCAL 2
#define RTF_LOCAL 0x80000000u

/*
 * Whether a route by the device that a socket is bound to is to the machine itself: in a VRF
 * that is the VRF's own device. Read as what the route is: the verifier knows a struct dst_entry.
 */
static __noinline int is_home_in_vrf(struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	struct dst_entry *route = sk->sk_dst_cache;
	__u32 flags = 0;
	__u16 type = 0;

	if (sk->__sk_common.skc_family == AF_INET) {
		bpf_core_read(&type, sizeof(type), &((struct rtable *)route)->rt_type);
		return type == RTN_LOCAL;
	}
	bpf_core_read(&flags, sizeof(flags), &((struct rt6_info *)route)->rt6i_flags);
	return !!(flags & RTF_LOCAL);
}

/* The device of the last packet that came while no process held the socket; 0: none did. */
static __always_inline int received_by(struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	struct inet_sock *inet = (struct inet_sock *)tp;

	if (bpf_core_field_exists(sk->sk_rx_dst_ifindex))
		return sk->sk_rx_dst_ifindex;
	return bpf_core_field_exists(inet->rx_dst_ifindex) ? inet->rx_dst_ifindex : 0;
}

/* Whether a connection goes to the machine itself. */
static __always_inline int is_routed_home(struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	struct dst_entry *route = sk->sk_dst_cache;
	int sent;

	if (!route)
		return 0;
	sent = route->dev->ifindex;
	if (sent == LOOPBACK_IFINDEX)
		return 1;
	return sent == sk->__sk_common.skc_bound_dev_if && is_home_in_vrf(tp);
}
#endif

#ifndef THALWEG_ITERATOR
#ifdef THALWEG_KERNEL_BTF
/* Linux 6.2; free of charge. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* The device of the packet that completes the handshake, read without the verifier's knowledge. */
static __noinline int read_answered_by(struct bpf_sock_ops *ops)
{
	struct bpf_sock_ops_kern *kern = (struct bpf_sock_ops_kern *)ops;
	struct sk_buff *packet = 0;
	int device = 0;

	bpf_core_read(&packet, sizeof(packet), &kern->skb);
	if (packet)
		bpf_core_read(&device, sizeof(device), &packet->skb_iif);
	return device;
}

/* The device of the packet that completes the handshake. */
static __always_inline int answered_by(struct bpf_sock_ops *ops, struct tcp_sock *tp)
{
	struct bpf_sock_ops_kern *kern;
	struct sk_buff *packet;
	int device;

	if (bpf_cast_to_kern_ctx) {
		kern = bpf_cast_to_kern_ctx(ops);
		packet = kern->skb;
		return packet ? packet->skb_iif : 0;
	}
	device = received_by(tp);
	/* Within connect() the answer of a machine to itself waits for the socket. */
	return device ? device : read_answered_by(ops);
}

/*
 * Whether a connection stays on the machine, whatever its addresses: to an address of its
 * own, or taken by a proxy that packets are redirected to. Such a path is not the remote
 * host's.
 */
static __always_inline int is_local(struct bpf_sock_ops *ops, struct bpf_sock *sk,
				    struct tcp_sock *tp)
{
	__u32 device = answered_by(ops, tp);

	if (device == LOOPBACK_IFINDEX)
		return 1;
	/*
	 * A packet from another device comes from elsewhere, unless that is a VRF's, to which the
	 * socket then is bound. So most need no look at the route.
	 */
	return (!device || device == sk->bound_dev_if) && is_routed_home(tp);
}
#else
/* Likewise, as far as the addresses tell. Not inlined: callers have no stack for them. */
static __noinline __attribute__((unused)) int is_local(struct bpf_sock_ops *ops,
						       struct bpf_sock *sk, struct tcp_sock *tp)
{
	__u32 remote[4], local[4];

	if (!remote_of(ops, remote))
		return 0;
	if (ops->family == AF_INET) {
		local[0] = 0;
		local[1] = 0;
		local[2] = bpf_htonl(0xffff);
		local[3] = ops->local_ip4;
		barrier();
	} else {
		local[0] = ops->local_ip6[0];
		local[1] = ops->local_ip6[1];
		local[2] = ops->local_ip6[2];
		local[3] = ops->local_ip6[3];
		barrier();
	}
	return thalweg_is_loopback(local, thalweg_is_ipv4(local)) ||
	       same_prefix(local, remote, 128);
}
#endif
#endif

#endif
