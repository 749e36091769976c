/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's interface for a congestion control as BPF struct_ops: fields of its
 * structures (found by name at load time, CO-RE), its functions and the table of
 * callbacks. Such programs need a kernel with BTF, and Linux 6.4 for the link that keeps
 * them registered without a process.
 *
 * Fields that these programs may write (bpf_tcp_ca.c): sk_pacing_rate, icsk_ca_priv,
 * icsk_ack.pending, snd_cwnd, snd_cwnd_cnt, snd_cwnd_stamp, snd_ssthresh, ecn_flags,
 * app_limited; sk_pacing_status since 6.0. The verifier refuses others.
 */
#ifndef THALWEG_TCP_H
#define THALWEG_TCP_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Bytes of icsk_ca_priv, the state of a congestion control for each flow. */
#define THALWEG_CA_PRIV_BYTES 104

/* tcp_congestion_ops.flags: only for flows with ECN, and their SYN requests it. */
#define TCP_CONG_NEEDS_ECN 2

/*
 * tcp_sock.ecn_flags: negotiated, by RFC 3168 or (Linux 7.0) as Accurate ECN; our ACKs carry ECE
 * until CWR comes, which Accurate ECN ignores.
 */
#define TCP_ECN_ANY (1 << 0 | 1 << 4)
#define TCP_ECN_DEMAND_CWR 4

/* inet_connection_sock.icsk_ack.pending: an ACK is delayed; one must go at once. */
#define ICSK_ACK_TIMER 2
#define ICSK_ACK_NOW 16

#define SOL_TCP 6
#define TCP_CONGESTION 13

enum {
	TCP_STATE_CLOSE = 7,
	TCP_STATE_LISTEN = 10,
};

/* icsk_ca_state. */
enum {
	CA_STATE_OPEN = 0,
	CA_STATE_RECOVERY = 3,
	CA_STATE_LOSS = 4, /* after a retransmission time-out */
};

/* sk_pacing_status. */
enum {
	SK_PACING_NONE = 0,
	SK_PACING_NEEDED = 1, /* TCP paces by timers of its own, unless the qdisc fq does it */
};

/* An int to the verifier. Numbers as since Linux 4.19. */
enum tcp_ca_event {
	CA_EVENT_TX_START = 0, /* sends with nothing in flight */
	CA_EVENT_CWND_RESTART = 1, /* sends again after an idle time longer than an RTO */
	CA_EVENT_LOSS = 3, /* retransmission time-out */
	CA_EVENT_ECN_NO_CE = 4, /* a segment arrived without CE mark */
	CA_EVENT_ECN_IS_CE = 5, /* a segment arrived with one */
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	__u32 inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	unsigned char skc_state;
	unsigned short skc_family;
	__u32 skc_daddr; /* network byte order, as is the port; other host's, if IPv4 */
	__u16 skc_dport;
	__u16 skc_num; /* own port */
	struct in6_addr skc_v6_daddr;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_pacing_status;
	unsigned long sk_pacing_rate; /* bytes/s */
	unsigned long sk_max_pacing_rate; /* SO_MAX_PACING_RATE */
};

struct inet_sock {
	struct sock sk;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_ca_state : 5;
	struct {
		__u8 pending;
	} icsk_ack;
	__u64 icsk_ca_priv[13];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_cwnd; /* segments */
	__u32 snd_ssthresh; /* segments */
	__u32 snd_cwnd_clamp; /* segments, at most */
	__u32 mss_cache; /* bytes */
	__u32 write_seq; /* behind the last byte that the application wrote */
	__u32 data_segs_out; /* data segments sent, ever */
	__u32 total_retrans; /* those among them that were sent again */
	__u32 srtt_us; /* smoothed, times 8 */
	__u32 lost; /* segments counted as lost, ever */
	__u32 snd_una; /* first sequence number that is not acknowledged */
	__u32 snd_nxt;
	__u32 rcv_nxt;
	__u32 max_packets_out; /* most segments in flight in the last window */
	__u32 delivered; /* segments that arrived, ever */
	__u32 delivered_ce; /* acknowledged by an ACK with ECE */
	__u64 tcp_mstamp; /* us; of the present segment */
	__u8 is_cwnd_limited : 1;
	__u8 ecn_flags;
};

struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us; /* negative if there is none */
	__u32 in_flight;
};

/* A sample of an ACK for cong_control. */
struct rate_sample {
	__u64 prior_mstamp; /* us; 0: the acknowledged segments were not timed */
	__u32 prior_delivered; /* tcp_sock.delivered when the acknowledged segment was sent */
	long rtt_us; /* negative if there is none */
	__u32 acked_sacked;
	_Bool is_app_limited; /* the application had nothing to send */
	_Bool is_ack_delayed; /* the other host may have delayed the ACK */
};

#pragma clang attribute pop

/*
 * Facts about the kernel, which the loader sets before load in a program that uses
 * THALWEG_KERNEL. Linux 6.10 gave cong_control two more arguments in the middle: (sk,
 * rs) became (sk, ack, flag, rs). A program with such a callback takes the bare context
 * and reads ctx[args - 1] for rs. The verifier knows the number and does not check the
 * other branch.
 */
struct thalweg_kernel {
	__u32 cong_control_args; /* 2 or 4 */
};

#define THALWEG_KERNEL \
	const volatile struct thalweg_kernel thalweg_kernel SEC(".rodata.kernel") = {}

/* Callbacks by name; the kernel has more, and libbpf finds each one's offset. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, int event);
	void (*in_ack_event)(struct sock *sk, __u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	int (*cong_control)(__u64 *context); /* as THALWEG_KERNEL says */
	__u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
	__u32 flags;
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

/* The kernel's functions for congestion controls (kfuncs). */
extern __u32 tcp_slow_start(struct tcp_sock *tp, __u32 acked) __ksym;
extern void tcp_cong_avoid_ai(struct tcp_sock *tp, __u32 w, __u32 acked) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

static __always_inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline struct inet_connection_sock *inet_csk(const struct sock *sk)
{
	return (struct inet_connection_sock *)sk;
}

static __always_inline void *inet_csk_ca(const struct sock *sk)
{
	return (void *)inet_csk(sk)->icsk_ca_priv;
}

/* Serial numbers: whether a comes before b. */
static __always_inline int seq_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline int in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* Whether the window, and not the application, limits the flow (RFC 7661). */
static __always_inline int cwnd_limited(struct tcp_sock *tp)
{
	if (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited))
		return 1;
	return in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out;
}

#endif
