// SPDX-License-Identifier: GPL-2.0-only
/*
 * idle_cubic: cubic that keeps its congestion window over idle times.
 *
 * After an idle time longer than its retransmission timeout the kernel restarts a connection from
 * the initial window (tcp_cwnd_restart in net/ipv4/tcp_output.c), where tcp_slow_start_after_idle is
 * 1. This congestion control puts the window back when the first segment is sent: of connections
 * that are drawn, to networks that the agent names. The burst is paced at the rate at which the ACKs
 * of a window came before, which the narrowest link passed on. So it needs no more of a queue than
 * the same window in flight did.
 *
 * Everything else is the kernel's cubic. Exchanges after an idle time are measured in connections that
 * keep their window, and in the others.
 */
#include "thalweg_tcp.h"
#include "thalweg_abi.h"
#include "thalweg_share.h"
#include "idle_maps.h"

char LICENSE[] SEC("license") = "GPL";

/* The kernel's cubic (net/ipv4/tcp_cubic.c). */
extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

#define US_PER_S 1000000ull

static __always_inline struct thalweg_idle_flow *flow_of(struct sock *sk)
{
	return bpf_sk_storage_get(&idle_flows, sk, 0, 0);
}

/* What becomes of the connection's window after so long an idle time, by a draw of this number. */
static __always_inline __u32 group_of(struct thalweg_idle_flow *flow, __u32 draw, __u64 idle_us)
{
	struct thalweg_idle_network *network;

	network = bpf_map_lookup_elem(&idle_networks, &flow->report.key);
	if (!network || bpf_ktime_get_ns() >= network->until_ns || idle_us > THALWEG_IDLE_MAX_US)
		return THALWEG_IDLE_RESTARTED;
	return is_in_share(draw, network->salt, network->kept_q16) ? THALWEG_IDLE_KEPT
								   : THALWEG_IDLE_CONTROL;
}

/* Reports finished exchanges. */
static __always_inline void tell(struct thalweg_idle_flow *flow)
{
	struct thalweg_idle_report *report = &flow->report;
	__u32 zero = 0;
	__u64 *count;

	if (!report->exchanges)
		return;
	if (bpf_ringbuf_output(&idle_reports, report, sizeof(*report), BPF_RB_NO_WAKEUP)) {
		count = bpf_map_lookup_elem(&idle_lost, &zero);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	report->bytes = 0;
	report->time_us = 0;
	report->exchanges = 0;
	report->segs = 0;
	report->retrans = 0;
}

/* Paces the burst until its first ACK, if the qdisc fq does not. */
static __always_inline void pace(struct sock *sk, struct thalweg_idle_flow *flow, __u32 cwnd)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 srtt_us = tp->srtt_us >> 3;
	__u64 rate = flow->rate;

	if (!rate && srtt_us)
		rate = (__u64)cwnd * tp->mss_cache * US_PER_S / srtt_us;
	if (!rate)
		return;
	if (rate > sk->sk_max_pacing_rate)
		rate = sk->sk_max_pacing_rate;
	sk->sk_pacing_rate = rate;
	if (sk->sk_pacing_status != SK_PACING_NONE)
		return;
	sk->sk_pacing_status = SK_PACING_NEEDED;
	flow->paced = 1;
}

static __always_inline void end_pacing(struct sock *sk, struct thalweg_idle_flow *flow)
{
	if (!flow->paced)
		return;
	flow->paced = 0;
	if (sk->sk_pacing_status == SK_PACING_NEEDED)
		sk->sk_pacing_status = SK_PACING_NONE;
}

/* The first segment after an idle time is sent. */
static __always_inline void begin_exchange(struct sock *sk, struct thalweg_idle_flow *flow)
{
	struct tcp_sock *tp = tcp_sk(sk);
	__u32 cwnd = flow->cwnd, group, draw;

	flow->begun_us = 0;
	flow->train_us = 0;
	if (!cwnd)
		return;
	flow->cwnd = 0;
	if (cwnd <= tp->snd_cwnd)
		return;
	flow->restart_cwnd = tp->snd_cwnd;
	flow->begun_us = tp->tcp_mstamp;
	flow->begun_una = tp->snd_una;
	flow->begun_segs = tp->data_segs_out;
	flow->begun_retrans = tp->total_retrans;
	draw = flow->cookie + (__u32)(bpf_ktime_get_ns() >> THALWEG_IDLE_DRAW_SHIFT) * 0x9e3779b1u;
	group = group_of(flow, draw, tp->tcp_mstamp - flow->acked_us);
	if (group != flow->report.group || draw != flow->report.draw)
		tell(flow);
	flow->report.group = group;
	flow->report.draw = draw;
	if (group != THALWEG_IDLE_KEPT)
		return;
	if (cwnd > tp->snd_cwnd_clamp)
		cwnd = tp->snd_cwnd_clamp;
	tp->snd_cwnd = cwnd;
	pace(sk, flow, cwnd);
}

/* Measures the rate at which the ACKs of the first window come. */
static __always_inline void follow_train(struct tcp_sock *tp, struct thalweg_idle_flow *flow)
{
	__u64 us = tp->tcp_mstamp - flow->train_us;
	__u32 bytes = tp->snd_una - flow->train_una;

	if (!flow->train_us) {
		flow->train_us = tp->tcp_mstamp;
		flow->train_una = tp->snd_una;
		flow->train_end = tp->snd_nxt;
		return;
	}
	if (seq_before(flow->train_end, tp->snd_una) || !us || bytes < 8 * tp->mss_cache)
		return;
	flow->rate = (__u64)bytes * US_PER_S / us;
}

/* Ends the exchange once all of it is acknowledged. */
static __always_inline void end_exchange(struct tcp_sock *tp, struct thalweg_idle_flow *flow)
{
	struct thalweg_idle_report *report = &flow->report;
	__u32 bytes = tp->snd_una - flow->begun_una, retrans;

	if (!flow->begun_us || (tp->snd_una != tp->write_seq && bytes < THALWEG_IDLE_BYTES))
		return;
	/* What fits into the window of a restart says nothing. */
	if (bytes > flow->restart_cwnd * tp->mss_cache) {
		report->bytes += bytes;
		report->time_us += tp->tcp_mstamp - flow->begun_us;
		report->segs += tp->data_segs_out - flow->begun_segs;
		retrans = tp->total_retrans - flow->begun_retrans;
		report->retrans += retrans;
		report->rtt_us = tp->srtt_us >> 3;
		/* Harm is told at once. */
		if (++report->exchanges >= THALWEG_IDLE_EXCHANGES || retrans)
			tell(flow);
	}
	flow->begun_us = 0;
}

SEC("struct_ops")
void BPF_PROG(idle_init, struct sock *sk)
{
	cubictcp_init(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(idle_ssthresh, struct sock *sk)
{
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
void BPF_PROG(idle_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(idle_set_state, struct sock *sk, __u8 new_state)
{
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(idle_cwnd_event, struct sock *sk, int event)
{
	struct thalweg_idle_flow *flow;

	if (event == CA_EVENT_CWND_RESTART) {
		flow = flow_of(sk);
		/* Each segment that is queued before the first is sent restarts the window again. */
		if (flow && !flow->cwnd)
			flow->cwnd = tcp_sk(sk)->snd_cwnd;
	} else if (event == CA_EVENT_TX_START) {
		flow = flow_of(sk);
		if (flow)
			begin_exchange(sk, flow);
	}
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(idle_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct thalweg_idle_flow *flow = flow_of(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	cubictcp_acked(sk, sample);
	if (!flow)
		return;
	end_pacing(sk, flow);
	flow->acked_us = tp->tcp_mstamp;
	follow_train(tp, flow);
	end_exchange(tp, flow);
}

SEC("struct_ops")
__u32 BPF_PROG(idle_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(idle_release, struct sock *sk)
{
	struct thalweg_idle_flow *flow = flow_of(sk);

	if (!flow)
		return;
	end_pacing(sk, flow);
	tell(flow);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops thalweg_cubic = {
	.init = (void *)idle_init,
	.release = (void *)idle_release,
	.ssthresh = (void *)idle_ssthresh,
	.cong_avoid = (void *)idle_cong_avoid,
	.set_state = (void *)idle_set_state,
	.cwnd_event = (void *)idle_cwnd_event,
	.pkts_acked = (void *)idle_pkts_acked,
	.undo_cwnd = (void *)idle_undo_cwnd,
	.name = "thalweg_cubic",
};
