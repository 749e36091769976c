// SPDX-License-Identifier: GPL-2.0-only
/*
 * dctcp: Data Center TCP (RFC 8257) as a congestion control in BPF, for kernels without
 * tcp_dctcp. Section numbers below are that document's. Arithmetic in thalweg_cc.h.
 *
 * The window is cut by the share of segments that arrived with a CE mark. Both ends must
 * use it, and ECN must have been negotiated. The flag TCP_CONG_NEEDS_ECN makes the SYN
 * request ECN if a socket gets this congestion control before it connects or listens.
 * For later changes a policy's `needs_ecn` or net.ipv4.tcp_ecn does so. A flow without
 * ECN uses reno instead.
 *
 * Departures:
 *  - Segments are counted, not bytes, as the kernel counts deliveries.
 *  - A loss halves the window from before marks in the same round trip cut it. So both
 *    together cost no more than the loss alone (3.5).
 */
#include "thalweg_tcp.h"
#include "thalweg_cc.h"

char LICENSE[] SEC("license") = "GPL";

/* State of a flow. */
struct dctcp {
	__u32 alpha_q16; /* estimated share of marked segments */
	__u32 window_end; /* an ACK of this ends the observation window */
	__u32 delivered; /* at the window's start */
	__u32 delivered_ce; /* at the window's start */
	__u32 cut_from; /* congestion window before it was last cut */
	/* The receiving side. */
	__u32 last_rcv_nxt; /* rcv_nxt when the last segment arrived */
	__u32 ce; /* that segment had a CE mark */
};

_Static_assert(sizeof(struct dctcp) <= THALWEG_CA_PRIV_BYTES, "a flow's record fits");

static __always_inline void start_window(struct dctcp *ca, const struct tcp_sock *tp)
{
	ca->window_end = tp->snd_nxt;
	ca->delivered = tp->delivered;
	ca->delivered_ce = tp->delivered_ce;
}

SEC("struct_ops")
void BPF_PROG(dctcp_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);
	__u8 state = sk->__sk_common.skc_state;
	char reno[16] = "reno";

	/* No marks will be reported, and none may be requested (RFC 3168, 6.1.1). */
	if (!(tp->ecn_flags & TCP_ECN_ANY) && state != TCP_STATE_CLOSE &&
	    state != TCP_STATE_LISTEN) {
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno));
		return;
	}
	/* The whole window counts as marked at first: one mark has full effect (4.2). */
	ca->alpha_q16 = THALWEG_CC_ONE_Q16;
	ca->cut_from = 0;
	ca->last_rcv_nxt = tp->rcv_nxt;
	ca->ce = 0;
	start_window(ca, tp);
}

/* Once per window: the share of marked segments (3.3). */
SEC("struct_ops")
void BPF_PROG(dctcp_in_ack_event, struct sock *sk, __u32 flags)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);

	if (seq_before(tp->snd_una, ca->window_end))
		return;
	if (tp->delivered != ca->delivered)
		ca->alpha_q16 =
			thalweg_dctcp_alpha_q16(ca->alpha_q16, tp->delivered_ce - ca->delivered_ce,
						tp->delivered - ca->delivered);
	start_window(ca, tp);
}

/* The kernel calls this at most once per round trip, for marks (3.4) and for losses. */
SEC("struct_ops")
__u32 BPF_PROG(dctcp_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);

	ca->cut_from = tp->snd_cwnd;
	return thalweg_dctcp_ssthresh(tp->snd_cwnd, ca->alpha_q16);
}

/* The reaction to a loss is that of any TCP (3.5). */
static __always_inline void lost(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);
	__u32 half = ca->cut_from / 2;

	if (half < THALWEG_CC_MIN_CWND)
		half = THALWEG_CC_MIN_CWND;
	if (tp->snd_ssthresh > half)
		tp->snd_ssthresh = half;
}

SEC("struct_ops")
void BPF_PROG(dctcp_set_state, struct sock *sk, __u8 new_state)
{
	struct inet_connection_sock *icsk = inet_csk(sk);

	if (new_state == CA_STATE_RECOVERY &&
	    BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) != CA_STATE_RECOVERY)
		lost(sk);
}

/*
 * The receiver. Each ACK states for all its segments either that they were marked or
 * that they were not. When that changes, a delayed ACK goes out first for the earlier
 * segments, and this segment is acknowledged at once (3.2).
 */
static __always_inline void received(struct sock *sk, __u32 ce)
{
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);

	if (ca->ce != ce) {
		if (icsk->icsk_ack.pending & ICSK_ACK_TIMER) {
			if (ca->ce)
				tp->ecn_flags |= TCP_ECN_DEMAND_CWR;
			else
				tp->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
			bpf_tcp_send_ack(tp, ca->last_rcv_nxt);
		}
		icsk->icsk_ack.pending |= ICSK_ACK_NOW;
	}
	ca->last_rcv_nxt = tp->rcv_nxt;
	ca->ce = ce;
	if (ce)
		tp->ecn_flags |= TCP_ECN_DEMAND_CWR;
	else
		tp->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
}

SEC("struct_ops")
void BPF_PROG(dctcp_cwnd_event, struct sock *sk, int event)
{
	switch (event) {
	case CA_EVENT_ECN_IS_CE:
		received(sk, 1);
		break;
	case CA_EVENT_ECN_NO_CE:
		received(sk, 0);
		break;
	case CA_EVENT_LOSS:
		lost(sk);
		break;
	}
}

SEC("struct_ops")
void BPF_PROG(dctcp_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
__u32 BPF_PROG(dctcp_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct dctcp *ca = inet_csk_ca(sk);

	return tp->snd_cwnd < ca->cut_from ? ca->cut_from : tp->snd_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops dctcp = {
	.init = (void *)dctcp_init,
	.ssthresh = (void *)dctcp_ssthresh,
	.cong_avoid = (void *)dctcp_cong_avoid,
	.set_state = (void *)dctcp_set_state,
	.cwnd_event = (void *)dctcp_cwnd_event,
	.in_ack_event = (void *)dctcp_in_ack_event,
	.undo_cwnd = (void *)dctcp_undo_cwnd,
	.name = "dctcp",
	.flags = TCP_CONG_NEEDS_ECN,
};
