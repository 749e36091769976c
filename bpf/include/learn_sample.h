/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: samples of connections, and events. */
#ifndef THALWEG_LEARN_SAMPLE_H
#define THALWEG_LEARN_SAMPLE_H

#include "learn_state.h"

/*
 * No arm is changed before a connection has had it for this long (thalweg): one
 * retransmission time-out. So the stretch shows the effect of losses on the arm, and not
 * the burst before them.
 */
#define CHANGE_MIN_NS (200 * 1000 * 1000ull)
/* Slow start takes at most this many round trips plus this time. */
#define SLOW_START_ROUNDS 16
/* Largest number of segments whose losses are evaluated together. */
#define LOOK_SEGS_MAX 8192

/* Wakes the agent once the ring has this many bytes; below, the agent polls. */
#define WAKE_BYTES (256 * 1024)

#ifdef THALWEG_KERNEL_BTF
/*
 * Time with data outstanding, us since the connection's start, including waits for the
 * receiver's window (kernel: tcp_get_info_chrono_stats).
 */
static __always_inline int busy_time(struct context *c, __u64 *busy_us)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(c->sk);
	__u32 ticks;

	if (!tp || !c->params->jiffy_us)
		return 0;
	ticks = tp->chrono_stat[0] + tp->chrono_stat[1] + tp->chrono_stat[2];
	if (BPF_CORE_READ_BITFIELD(tp, chrono_type))
		ticks += (__u32)bpf_jiffies64() - tp->chrono_start;
	*busy_us = (__u64)ticks * c->params->jiffy_us;
	return 1;
}

static __always_inline int timed_out(struct context *c)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(c->sk);

	return tp && ((struct sock *)tp)->sk_err == ETIMEDOUT;
}
#else
static __always_inline int busy_time(struct context *c, __u64 *busy_us)
{
	return 0;
}

static __always_inline int timed_out(struct context *c)
{
	struct bpf_tcp_sock *tp = bpf_tcp_sock(c->sk);

	return tp && tp->icsk_retransmits;
}
#endif

/* Starts a measured stretch on `arm`. */
static __always_inline void start_stretch(struct context *c, const struct bpf_tcp_sock *tp,
					  __u32 arm)
{
	struct thalweg_conn *conn = c->conn;
	__u64 busy_us = 0;

	busy_time(c, &busy_us);
	conn->start_ns = c->request.now_ns;
	conn->acked_ns = 0;
	conn->start_bytes = tp->bytes_acked;
	conn->start_busy_us = busy_us;
	conn->start_segs = tp->data_segs_out;
	conn->start_retrans = tp->total_retrans;
	conn->look_segs = c->params->loss_min_segs;
	conn->look_ns = c->request.now_ns;
	conn->looked_segs = 0;
	conn->looked_retrans = 0;
	conn->slow_start_segs = 0;
	conn->slow_start_retrans = 0;
	conn->loss_srtt_us = 0;
	conn->origin.arm = arm;
}

/*
 * Whether a stretch is past its slow start, which overflows queues on any arm. Losses in
 * slow start do not count if there are segments after it.
 */
static __always_inline int is_steady(struct context *c, const struct bpf_tcp_sock *tp)
{
	__u64 slow_start_ns = CHANGE_MIN_NS + (tp->srtt_us >> 3) * (SLOW_START_ROUNDS * 1000ull);

	return c->request.now_ns - c->conn->start_ns >= slow_start_ns;
}

/*
 * Records the RTT at a retransmission after slow start. A drop at a full queue shows the
 * queue's length; at the end of a connection it may be empty.
 */
static __always_inline void note_loss_rtt(struct thalweg_conn *conn, __u32 srtt_us)
{
	if (conn->loss_srtt_us)
		srtt_us = thalweg_blend(conn->loss_srtt_us, srtt_us, 1, 4);
	conn->loss_srtt_us = srtt_us;
}

/* Measures the stretch that ends now. */
static __always_inline void take_sample(struct context *c, struct bpf_tcp_sock *tp, __u32 end,
					struct thalweg_sample *sample)
{
	const struct thalweg_conn *conn = c->conn;
	__u64 until_ns = conn->acked_ns ? conn->acked_ns : c->request.now_ns;
	__u64 busy_us;

	sample->bytes = tp->bytes_acked - conn->start_bytes;
	sample->duration_us = (until_ns - conn->start_ns) / 1000;
	sample->rate_delivered_bytes = (__u64)tp->rate_delivered * tp->mss_cache;
	sample->rate_interval_us = tp->rate_interval_us;
	sample->srtt_us = tp->srtt_us >> 3;
	sample->min_rtt_us = tp->rtt_min;
	sample->segs_out = tp->data_segs_out - conn->start_segs;
	sample->retrans = tp->total_retrans - conn->start_retrans;
	sample->steady_segs = sample->segs_out;
	sample->steady_retrans = sample->retrans;
	if (is_steady(c, tp)) {
		sample->steady_segs -= conn->slow_start_segs;
		sample->steady_retrans -= conn->slow_start_retrans;
	}
	sample->loss_srtt_us = conn->loss_srtt_us;
	sample->flags = 0;
	sample->end = end;
	/* tcp_sock.rtt_min is all ones until the first measurement. */
	if (sample->min_rtt_us == THALWEG_U32_MAX)
		sample->min_rtt_us = 0;
	if (!busy_time(c, &busy_us))
		return;
	busy_us -= conn->start_busy_us;
	/*
	 * Counted in whole ticks, so it may be one tick short, which matters only for the
	 * shortest times.
	 */
	busy_us += c->params->jiffy_us;
	sample->duration_us = thalweg_min(sample->duration_us, busy_us);
	sample->flags |= THALWEG_SAMPLE_BUSY_TIME;
}

/* Reserves an event and fills the fields that all events share. */
static __always_inline struct thalweg_event *new_event(struct context *c, __u32 kind)
{
	struct thalweg_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	const struct thalweg_origin *origin = c->origin;

	if (!event) {
		COUNT(c, events_dropped);
		return 0;
	}
	COUNT(c, events);
	__builtin_memset(event, 0, sizeof(*event));
	event->time_ns = c->request.now_ns;
	event->connection = c->cookie;
	event->host = c->request.key;
	__builtin_memcpy(event->remote, c->remote, sizeof(event->remote));
	/* remote_port is in network byte order, local_port is not (UAPI). */
	event->remote_port = bpf_ntohl(c->ops->remote_port);
	event->local_port = c->ops->local_port;
	event->kind = kind;
	event->arm = origin->arm;
	event->system_arm = origin->system_arm;
	event->chosen_arm = origin->chosen_arm;
	event->reason = origin->reason;
	event->flags = origin->flags;
	event->propensity_q16 = origin->propensity_q16;
	return event;
}

static __always_inline void send_event(struct thalweg_event *event)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	bpf_ringbuf_submit(event, waiting > WAKE_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

static __always_inline void send_decision(struct context *c, int error)
{
	struct thalweg_event *event = new_event(c, THALWEG_EVENT_DECISION);

	if (!event)
		return;
	event->error = error;
	send_event(event);
}

static __always_inline void send_close(struct context *c, const struct thalweg_sample *sample,
				       const struct thalweg_verdict *verdict)
{
	struct thalweg_event *event = new_event(c, THALWEG_EVENT_CLOSE);

	if (!event)
		return;
	event->end = sample->end;
	event->outcome = verdict->outcome;
	event->bytes = sample->bytes;
	event->duration_us = sample->duration_us;
	event->cost = verdict->cost;
	event->weight_q16 = verdict->weight_q16;
	event->srtt_us = sample->srtt_us;
	event->min_rtt_us = sample->min_rtt_us;
	event->segs_out = sample->segs_out;
	event->retrans = sample->retrans;
	event->sample_flags = sample->flags;
	send_event(event);
}

#endif
