// SPDX-License-Identifier: GPL-2.0-only
/*
 * htcp: H-TCP as a congestion control in BPF, for kernels without tcp_htcp.
 *
 * After Leith and Shorten, "H-TCP: TCP for high-speed and long-distance networks"
 * (PFLDnet 2004), and draft-leith-tcp-htcp-06. The window grows faster with time since
 * the last congestion, and is cut in proportion to the queue. Arithmetic in
 * thalweg_cc.h.
 *
 * Where the sources leave a choice:
 *  - The time since the last congestion event counts from the end of its recovery. After
 *    a connection was idle for longer than its retransmission time-out, it counts from
 *    the restart.
 *  - The longest round-trip time is that of the present epoch, measured while no loss is
 *    being repaired. The shortest is that of the connection.
 *  - The rate is the delivery rate per round trip, the highest of the epoch.
 */
#include "thalweg_tcp.h"
#include "thalweg_cc.h"

char LICENSE[] SEC("license") = "GPL";

/* State of a flow. */
struct htcp {
	__u64 epoch_us; /* end of the last congestion event */
	__u64 round_us; /* start of the present measurement of the rate */
	__u32 round_delivered; /* segments delivered by then */
	__u32 min_rtt_us; /* 0: none yet */
	__u32 max_rtt_us; /* of this epoch; 0: none yet */
	__u32 rate; /* highest of this epoch, segments/s; 0: none yet */
	__u32 previous_rate; /* of the epoch before */
	__u32 beta_q7;
	/* State before the last congestion event, in case it is undone. */
	__u64 undo_epoch_us;
	__u32 undo_cwnd;
	__u32 undo_max_rtt_us;
	__u32 undo_rate;
	__u32 undo_previous_rate;
	__u32 undo_beta_q7;
};

_Static_assert(sizeof(struct htcp) <= THALWEG_CA_PRIV_BYTES, "a flow's record fits");

static __always_inline void start_round(struct htcp *ca, const struct tcp_sock *tp)
{
	ca->round_us = tp->tcp_mstamp;
	ca->round_delivered = tp->delivered;
}

SEC("struct_ops")
void BPF_PROG(htcp_init, struct sock *sk)
{
	struct htcp *ca = inet_csk_ca(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	ca->epoch_us = tp->tcp_mstamp;
	start_round(ca, tp);
	ca->min_rtt_us = 0;
	ca->max_rtt_us = 0;
	ca->rate = 0;
	ca->previous_rate = 0;
	ca->beta_q7 = THALWEG_HTCP_BETA_MIN_Q7;
	ca->undo_epoch_us = ca->epoch_us;
	ca->undo_cwnd = 0;
	ca->undo_max_rtt_us = 0;
	ca->undo_rate = 0;
	ca->undo_previous_rate = 0;
	ca->undo_beta_q7 = ca->beta_q7;
}

/* Delivery rate, measured over at least one shortest round-trip time. */
static __always_inline void measure_rate(struct htcp *ca, const struct tcp_sock *tp)
{
	__u64 us = tp->tcp_mstamp - ca->round_us, rate;

	if (!us || us < ca->min_rtt_us)
		return;
	rate = (__u64)(tp->delivered - ca->round_delivered) * 1000000 / us;
	if (rate > ~0u)
		rate = ~0u;
	if (rate > ca->rate)
		ca->rate = rate;
	start_round(ca, tp);
}

SEC("struct_ops")
void BPF_PROG(htcp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct htcp *ca = inet_csk_ca(sk);
	__s32 rtt_us = sample->rtt_us;

	if (rtt_us > 0) {
		if (!ca->min_rtt_us || rtt_us < ca->min_rtt_us)
			ca->min_rtt_us = rtt_us;
		if (rtt_us > ca->max_rtt_us &&
		    BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == CA_STATE_OPEN)
			ca->max_rtt_us = rtt_us;
	}
	if (ca->min_rtt_us)
		measure_rate(ca, tcp_sk(sk));
}

SEC("struct_ops")
void BPF_PROG(htcp_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct htcp *ca = inet_csk_ca(sk);
	__u64 elapsed_us = tp->tcp_mstamp - ca->epoch_us;
	__u32 alpha_q7;

	if (!cwnd_limited(tp))
		return;
	if (in_slow_start(tp)) {
		acked = tcp_slow_start(tp, acked);
		if (!acked)
			return;
	}
	alpha_q7 = thalweg_htcp_alpha_q7(elapsed_us, ca->beta_q7, ca->min_rtt_us);
	tcp_cong_avoid_ai(tp, thalweg_htcp_acks_per_segment(tp->snd_cwnd, alpha_q7), acked);
}

SEC("struct_ops")
__u32 BPF_PROG(htcp_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct htcp *ca = inet_csk_ca(sk);

	ca->undo_epoch_us = ca->epoch_us;
	ca->undo_cwnd = tp->snd_cwnd;
	ca->undo_max_rtt_us = ca->max_rtt_us;
	ca->undo_rate = ca->rate;
	ca->undo_previous_rate = ca->previous_rate;
	ca->undo_beta_q7 = ca->beta_q7;

	ca->beta_q7 =
		thalweg_htcp_beta_q7(ca->min_rtt_us, ca->max_rtt_us, ca->rate, ca->previous_rate);
	ca->previous_rate = ca->rate;
	ca->rate = 0;
	ca->max_rtt_us = 0;
	ca->epoch_us = tp->tcp_mstamp;
	return thalweg_htcp_ssthresh(tp->snd_cwnd, ca->beta_q7);
}

SEC("struct_ops")
void BPF_PROG(htcp_set_state, struct sock *sk, __u8 new_state)
{
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct htcp *ca = inet_csk_ca(sk);
	__u8 old_state = BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);

	/* Reordering (Disorder) is no congestion: undo_cwnd of 0 means that no event is over. */
	if (new_state != CA_STATE_OPEN || old_state == CA_STATE_OPEN || !ca->undo_cwnd)
		return;
	ca->epoch_us = tcp_sk(sk)->tcp_mstamp;
	start_round(ca, tcp_sk(sk));
	ca->undo_cwnd = 0;
}

SEC("struct_ops")
void BPF_PROG(htcp_cwnd_event, struct sock *sk, int event)
{
	struct htcp *ca = inet_csk_ca(sk);

	if (event != CA_EVENT_CWND_RESTART)
		return;
	ca->epoch_us = tcp_sk(sk)->tcp_mstamp;
	start_round(ca, tcp_sk(sk));
}

/* The congestion event was spurious: reordering, or an early time-out. */
SEC("struct_ops")
__u32 BPF_PROG(htcp_undo_cwnd, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct htcp *ca = inet_csk_ca(sk);
	__u32 cwnd = tp->snd_cwnd;

	if (!ca->undo_cwnd)
		return cwnd;
	if (cwnd < ca->undo_cwnd)
		cwnd = ca->undo_cwnd;
	ca->epoch_us = ca->undo_epoch_us;
	if (ca->max_rtt_us < ca->undo_max_rtt_us)
		ca->max_rtt_us = ca->undo_max_rtt_us;
	if (ca->rate < ca->undo_rate)
		ca->rate = ca->undo_rate;
	ca->previous_rate = ca->undo_previous_rate;
	ca->beta_q7 = ca->undo_beta_q7;
	ca->undo_cwnd = 0;
	return cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops htcp = {
	.init = (void *)htcp_init,
	.ssthresh = (void *)htcp_ssthresh,
	.cong_avoid = (void *)htcp_cong_avoid,
	.set_state = (void *)htcp_set_state,
	.cwnd_event = (void *)htcp_cwnd_event,
	.pkts_acked = (void *)htcp_pkts_acked,
	.undo_cwnd = (void *)htcp_undo_cwnd,
	.name = "htcp",
};
