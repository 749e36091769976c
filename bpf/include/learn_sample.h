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

/* The kernel's chronographs, in ticks since the connection's start. */
struct chronographs {
	__u32 busy; /* data outstanding, the two below included */
	__u32 receiver; /* the receiver's window was full */
	__u32 buffer; /* the send buffer was full */
	int app_limited; /* the application limited the kernel's last rate sample */
};

#ifdef THALWEG_KERNEL_BTF
/* Reads the chronographs (kernel: tcp_get_info_chrono_stats); 0 if they are not readable. */
static __always_inline int read_chronographs(struct context *c, struct chronographs *now)
{
	struct tcp_sock *tp = c->tcp;
	__u32 type, ticks;

	if (!c->params->jiffy_us)
		return 0;
	now->busy = tp->chrono_stat[0];
	now->receiver = tp->chrono_stat[1];
	now->buffer = tp->chrono_stat[2];
	type = BPF_CORE_READ_BITFIELD(tp, chrono_type);
	if (type) {
		ticks = (__u32)bpf_jiffies64() - tp->chrono_start;
		if (type == 2)
			now->receiver += ticks;
		else if (type == 3)
			now->buffer += ticks;
		else
			now->busy += ticks;
	}
	now->busy += now->receiver + now->buffer;
	now->app_limited = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
	return 1;
}

static __always_inline int timed_out(struct context *c)
{
	return ((struct sock *)c->tcp)->sk_err == ETIMEDOUT;
}
#else
static __always_inline int read_chronographs(struct context *c, struct chronographs *now)
{
	return 0;
}

static __always_inline int timed_out(struct context *c)
{
	struct bpf_tcp_sock *tp = bpf_tcp_sock(c->sk);

	return tp && tp->icsk_retransmits;
}
#endif

/* How a connection that has just reached CLOSE ended. */
static __always_inline __u32 end_of(struct context *c, __u32 old_state)
{
	if (timed_out(c))
		return THALWEG_END_TIMEOUT;
	switch (old_state) {
	case BPF_TCP_FIN_WAIT2:
	case BPF_TCP_CLOSING:
	case BPF_TCP_TIME_WAIT:
		return THALWEG_END_FIN_LOCAL;
	case BPF_TCP_LAST_ACK:
		return THALWEG_END_FIN_REMOTE;
	default:
		return THALWEG_END_RESET;
	}
}

/*
 * A connection's initial window, from its choice to its slot, and its cost, from its score
 * to its event. Each CPU has its own; an interrupt that uses it as well is recognised by
 * the cookie.
 */
struct handed_window {
	__u64 cookie; /* of the socket; 0: nothing */
	struct thalweg_window_choice choice;
	__u32 cost_q10;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct handed_window);
} the_window SEC(".maps");

static __always_inline struct handed_window *get_handed(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&the_window, &zero);
}

/* Notes in the slot which initial window the connection has. */
static __always_inline void take_window(struct context *c)
{
	struct handed_window *handed = get_handed();
	struct thalweg_window_choice none = {};

	c->conn->window = handed && handed->cookie == c->cookie ? handed->choice : none;
}

/* Starts a measured stretch on `arm`. */
static __always_inline void start_stretch(struct context *c, const struct learn_tcp *tp, __u32 arm)
{
	struct thalweg_conn *conn = c->conn;
	struct chronographs now = {};

	/* They begin with the first data. */
	if (tp->data_segs_out)
		read_chronographs(c, &now);
	conn->start_ns = c->request->now_ns;
	conn->acked_ns = 0;
	conn->start_bytes = tp->bytes_acked;
	conn->start_busy_ticks = now.busy;
	conn->start_receiver_ticks = now.receiver;
	conn->start_buffer_ticks = now.buffer;
	conn->start_segs = tp->data_segs_out;
	conn->start_retrans = tp->total_retrans;
	conn->look_segs = c->params->loss_min_segs;
	conn->look_ns = c->request->now_ns;
	conn->looked_segs = 0;
	conn->looked_retrans = 0;
	conn->slow_start_segs = 0;
	conn->slow_start_retrans = 0;
	conn->loss_srtt_us = 0;
	conn->origin.arm = arm;
	conn->origin.flags &= ~THALWEG_CONN_STEADY;
}

/*
 * Whether a stretch is past its slow start, which overflows queues on any arm. Losses in
 * slow start do not count if there are segments after it. A stretch that follows another
 * one on the same arm has none.
 */
static __always_inline int is_steady(struct context *c, const struct learn_tcp *tp)
{
	__u64 slow_start_ns = CHANGE_MIN_NS + (tp->srtt_us >> 3) * (SLOW_START_ROUNDS * 1000ull);

	return c->conn->origin.flags & THALWEG_CONN_STEADY ||
	       c->request->now_ns - c->conn->start_ns >= slow_start_ns;
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

static __always_inline __u64 ticks_us(struct context *c, __u32 ticks)
{
	return (__u64)ticks * c->params->jiffy_us;
}

/* Wall time of the stretch that ends now. */
static __always_inline __u64 wall_time_us(struct context *c)
{
	const struct thalweg_conn *conn = c->conn;
	__u64 until_ns = conn->acked_ns ? conn->acked_ns : c->request->now_ns;

	return (until_ns - conn->start_ns) / 1000;
}

/* Measures the stretch that ends now; returns its wall time. */
static __always_inline __u64 take_sample(struct context *c, struct learn_tcp *tp, __u32 end,
					 struct thalweg_sample *sample)
{
	const struct thalweg_conn *conn = c->conn;
	__u64 wall_us = wall_time_us(c);
	struct chronographs now;

	sample->bytes = tp->bytes_acked - conn->start_bytes;
	sample->duration_us = wall_us;
	sample->rate_delivered_bytes = (__u64)tp->rate_delivered * tp->mss_cache;
	sample->rate_interval_us = tp->rate_interval_us;
	sample->srtt_us = tp->srtt_us >> 3;
	sample->min_rtt_us = lowest_rtt_us(tp);
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
	if (!read_chronographs(c, &now))
		return wall_us;
	/*
	 * Counted in whole ticks, so it may be one tick short, which matters only for the
	 * shortest times.
	 */
	sample->duration_us = thalweg_min(sample->duration_us,
					  ticks_us(c, now.busy - conn->start_busy_ticks + 1));
	sample->receiver_us = thalweg_min(ticks_us(c, now.receiver - conn->start_receiver_ticks),
					  sample->duration_us);
	sample->buffer_us = thalweg_min(ticks_us(c, now.buffer - conn->start_buffer_ticks),
					sample->duration_us);
	sample->flags |= THALWEG_SAMPLE_BUSY_TIME;
	if (now.app_limited)
		sample->flags |= THALWEG_SAMPLE_APP_LIMITED;
	return wall_us;
}

/* Adds a stretch to those before the next one, which is on the same arm if `counts`. */
static __always_inline void note_before(struct context *c, const struct thalweg_sample *sample,
					__u64 wall_us, int counts)
{
	struct thalweg_conn *conn = c->conn;
	struct thalweg_sums *before = &conn->before;

	if (!(conn->origin.flags & THALWEG_CONN_LONG)) {
		conn->origin.flags |= THALWEG_CONN_LONG;
		conn->decided_ns = 0;
		conn->count = 0;
		__builtin_memset(before, 0, sizeof(*before));
	}
	before->bytes += sample->bytes;
	before->duration_us += sample->duration_us;
	before->wall_us += wall_us;
	before->segs_out += sample->segs_out;
	before->retrans += sample->retrans;
	conn->count = counts ? conn->count + 1 : 0;
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
	/* What stands before is all set here. */
	__builtin_memset(&event->remote_port, 0,
			 sizeof(*event) - __builtin_offsetof(struct thalweg_event, remote_port));
	event->rule = c->params->rule;
	event->parameters = c->params->parameters;
	event->handshake_rtt_us = origin->handshake_rtt_us;
	event->time_ns = c->request->now_ns;
	event->connection = c->cookie;
	event->host = c->request->key;
	if (!host_of(c->ops, (__u32 *)event->remote))
		__builtin_memset(event->remote, 0, sizeof(event->remote));
	event->remote_port = remote_port_of(c->ops);
	event->local_port = local_port_of(c->ops);
	event->kind = kind;
	event->arm = origin->arm;
	event->system_arm = origin->system_arm;
	event->chosen_arm = origin->chosen_arm;
	event->reason = origin->reason;
	event->flags = origin->flags;
	event->hour = origin->hour;
	event->level = (origin->flags & THALWEG_CONN_LEVEL_MASK) >> THALWEG_CONN_LEVEL_SHIFT;
	event->propensity_q16 = origin->propensity_q16;
	if (c->params->windows && c->conn && c->conn->cookie == c->cookie) {
		event->window = c->conn->window;
		event->window.chosen &= ~THALWEG_WINDOW_READ;
	}
	return event;
}

static __always_inline void send_event(struct thalweg_event *event)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	bpf_ringbuf_submit(event, waiting > WAKE_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* Without `shares` only the probability of the choice is known. */
static __always_inline void send_decision(struct context *c, int error, const struct shares *shares)
{
	struct thalweg_event *event = new_event(c, THALWEG_EVENT_DECISION);

	if (!event)
		return;
	COUNT(c, events);
	event->error = error;
	event->allowed = c->request->allowed;
	if (shares)
		__builtin_memcpy(__builtin_assume_aligned(event->propensities_q16, 8), shares->q16,
				 sizeof(shares->q16));
	else if (c->origin->propensity_q16)
		thalweg_note_share(event->propensities_q16, c->origin->chosen_arm,
				   c->origin->propensity_q16);
	send_event(event);
}

static __always_inline void send_close(struct context *c, const struct thalweg_sample *sample,
				       const struct thalweg_verdict *verdict, __u64 wall_us)
{
	struct thalweg_event *event = new_event(c, THALWEG_EVENT_CLOSE);
	struct handed_window *handed;

	if (!event)
		return;
	if (c->params->windows) {
		handed = get_handed();
		if (handed && handed->cookie == c->cookie)
			event->window_cost_q10 = handed->cost_q10;
	}
	/* By busy time, what is limited would have been scored if it had said something new. */
	if (event->window_cost_q10 || verdict->outcome == THALWEG_SCORED ||
	    c->origin->flags & THALWEG_CONN_LONG ||
	    (verdict->outcome == THALWEG_SKIPPED_APP_LIMITED &&
	     sample->flags & THALWEG_SAMPLE_BUSY_TIME))
		COUNT(c, events);
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
	event->wall_us = wall_us;
	/* The slot may have been reused meanwhile. */
	if (c->origin->flags & THALWEG_CONN_LONG && c->conn->cookie == c->cookie)
		event->before = c->conn->before;
	event->receiver_us = sample->receiver_us;
	event->buffer_us = sample->buffer_us;
	send_event(event);
}

#endif
