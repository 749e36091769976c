// SPDX-License-Identifier: GPL-2.0-only
/*
 * timers: the least retransmission timeout of connections that recover from losses, and the
 * first timeout of a SYN, by remote network (sockops).
 *
 * The agent computes the timers of each network from what this program reports of connections
 * that are over; a share of them keeps the kernel's. The kernel waits 200 ms at least before it
 * retransmits by timeout (TCP_RTO_MIN), and a second before it sends a SYN again (RFC 6298), however
 * short the path is.
 *
 * The floor is set at a retransmission and taken back at the next RTT sample, or, in networks of
 * short connections, from the SYN to the first sample. It shortens the timeout, after which an idle
 * connection begins with its initial window again (net/ipv4/tcp_output.c, tcp_cwnd_restart). A
 * connection without losses keeps the kernel's timeout for all of its life.
 *
 * connect() gives up after a number of SYNs, whatever their times: a connection that loses one gets a
 * number that takes as long as usual, and its own back once it is established.
 *
 * Connections to peers that bound the delay of their ACKs bound their own.
 *
 * It needs the kernel's BTF: else a connection's own timeouts, and whether its peer acknowledges
 * selectively, could not be read.
 */
#define THALWEG_KERNEL_BTF

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_beside.h"
#include "learn_covered.h"
#include "learn_sample.h"

char LICENSE[] SEC("license") = "GPL";

#define TCP_SYNCNT 7

/* linux/rtnetlink.h */
#define RTAX_LOCK 1
#define RTAX_RTO_MIN 13

/* What the agent asks of each connection. */
#define CALLBACKS \
	(BPF_SOCK_OPS_RETRANS_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

/* The kernel's longest delay of an ACK (TCP_DELACK_MAX, include/net/tcp.h). */
#define DELAYED_ACK_US 200000

/* The kernel's first timeout of a SYN (TCP_TIMEOUT_INIT, include/net/tcp.h). */
#define USUAL_SYN_US 1000000

/* Timers by network (the level of prefixes). Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_TIMERS_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_host_key);
	__type(value, struct thalweg_timers);
} timers SEC(".maps");

/* Connections that had a timeout, a floor, or a SYN that was lost. */
struct timed {
	__u32 floor_us; /* in force; 0: none is */
	__u32 syn_us; /* first timeout of the lost SYN; 0: the kernel's */
	__u32 timeouts;
	__u32 floors;
	__u16 syn_retrans;
	__u16 flags; /* enum thalweg_timed_flag */
	__u16 syn_count; /* retransmissions that it got for a lost SYN; 0: it has its own number */
	__u16 usual_syn_count; /* to put back */
	/* Of a connection that was open before: its counters then. */
	__u32 segs_before;
	__u32 retrans_before;
	__u32 dsacks_before;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct timed);
} timed SEC(".maps");

/*
 * Bounds of the delay of ACKs by network of the peer. One more keeps IPv4 out of ::/0. Written by the
 * agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, THALWEG_TIMERS_PEERS + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, struct thalweg_timers_peers);
} peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, THALWEG_TIMERS_RING);
} reports SEC(".maps");

/* Reports that the ring had no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void add_callbacks(struct bpf_sock_ops *ops, int flags)
{
	if ((ops->bpf_sock_ops_cb_flags & flags) != flags)
		bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | flags);
}

/* What is known of the connection beside its figures; NULL: nothing. */
static __always_inline struct timed *timed_of(struct context *c, __u64 flags)
{
	return bpf_sk_storage_get(&timed, c->sk, 0, flags);
}

/* Timers of the connection's network, NULL if it has none. */
static __always_inline struct thalweg_timers *timers_of(struct context *c)
{
	struct thalweg_host_key key = {};

	return network_key(c, &key) ? bpf_map_lookup_elem(&timers, &key) : 0;
}

/* Whether the draw gives the connection its network's timers. */
static __always_inline int is_drawn(struct context *c, const struct thalweg_timers *t)
{
	return is_in_share(bpf_get_socket_cookie(c->ops), t->salt, t->share_q16);
}

/* Whether timers of the network are in force for new connections. */
static __always_inline int are_valid(struct context *c, const struct thalweg_timers *t)
{
	return !c->params->dry_run && bpf_ktime_get_ns() < t->until_ns;
}

static __always_inline __u32 ticks_of(__u32 us)
{
	__u32 tick = load_params()->jiffy_us;

	return tick ? (us + tick - 1) / tick : 0;
}

/* Ticks of a time that the kernel has as a fraction of a second. */
static __always_inline __u32 usual_ticks(__u32 us)
{
	__u32 tick = load_params()->jiffy_us;

	return tick ? (us + tick / 2) / tick : 0;
}

/* A policy decides about timers of its connections; an application's choices are not of timers. */
static __always_inline int is_of_policy(struct context *c)
{
	__u32 *mark = bpf_sk_storage_get(&owned, c->sk, 0, 0);

	return mark && *mark & THALWEG_OWNED_BY_POLICY;
}

static __always_inline struct inet_connection_sock *connection_of(struct context *c)
{
	return (struct inet_connection_sock *)c->tcp;
}

/* The kernel asks for the first timeout of a SYN, in ticks. What another program answered stays. */
static __always_inline int ask_timeout(struct bpf_sock_ops *ops, struct context *c,
				       const struct thalweg_timers *t)
{
	if (ops->reply || !t->syn_us || t->credit <= 0 || connection_of(c)->icsk_syn_retries)
		return 0;
	/* Without it the number of SYNs would not grow when one is lost. */
	if (ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_RETRANS_CB_FLAG)
		ops->reply = ticks_of(t->syn_us);
	return 0;
}

/* A SYN was sent again. */
static __noinline int lose_syn(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct thalweg_timers *t;
	struct timed *timed;
	int count;

	if (!find_sock(&c, ops) || !find_tcp(&c))
		return 0;
	timed = timed_of(&c, BPF_SK_STORAGE_GET_F_CREATE);
	if (!timed)
		return 0;
	if (timed->syn_retrans++)
		return 0;
	t = timers_of(&c);
	if (!t)
		return 0;
	/* Also where the timeout is the kernel's: a server that answers few has no credit for long. */
	if (t->credit > -THALWEG_SYN_LOSSES * THALWEG_SYN_CREDIT)
		__sync_fetch_and_sub(&t->credit, THALWEG_SYN_CREDIT);
	/* The first timeout is the kernel's where the network had none, or no credit. */
	if (connection_of(&c)->icsk_rto >= usual_ticks(USUAL_SYN_US) || is_of_policy(&c))
		return 0;
	if (!t->syn_count || connection_of(&c)->icsk_syn_retries || !is_drawn(&c, t))
		return 0;
	count = t->syn_count;
	if (bpf_setsockopt(ops, SOL_TCP, TCP_SYNCNT, &count, sizeof(count)))
		return 0;
	timed->syn_count = t->syn_count;
	timed->usual_syn_count = t->usual_syn_count;
	timed->syn_us = t->syn_us;
	return 0;
}

/* Sets the least retransmission timeout; 0 or -errno. */
static __always_inline int set_floor(struct bpf_sock_ops *ops, int us)
{
	return bpf_setsockopt(ops, SOL_TCP, TCP_BPF_RTO_MIN, &us, sizeof(us));
}

/* Puts back what a lost SYN got. A number that the application has set since stays. */
static __always_inline void put_back_syn_count(struct bpf_sock_ops *ops, struct context *c,
					       struct timed *timed)
{
	int count = timed->usual_syn_count;

	if (timed->syn_count && find_tcp(c) &&
	    connection_of(c)->icsk_syn_retries == timed->syn_count)
		bpf_setsockopt(ops, SOL_TCP, TCP_SYNCNT, &count, sizeof(count));
	timed->syn_count = 0;
}

/* A socket connects, perhaps once more: an attempt that failed leaves nothing to the next one. */
static __noinline int begin_connect(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct timed *timed;

	if (!find_sock(&c, ops))
		return 0;
	timed = timed_of(&c, 0);
	if (!timed)
		return 0;
	put_back_syn_count(ops, &c, timed);
	if (timed->floor_us)
		set_floor(ops, THALWEG_RTO_MIN_US);
	*timed = (struct timed){};
	return 0;
}

/* A connection is established: what its SYNs had is put back. */
static __noinline int answer_syn(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct thalweg_timers *t;
	struct timed *timed;

	if (!find_sock(&c, ops))
		return 0;
	t = timers_of(&c);
	if (!ops->total_retrans) {
		if (t && t->credit < THALWEG_SYN_LOSSES * THALWEG_SYN_CREDIT)
			__sync_fetch_and_add(&t->credit, 1);
		return 0;
	}
	timed = timed_of(&c, 0);
	if (timed)
		put_back_syn_count(ops, &c, timed);
	return 0;
}

/* Linux 6.2. */
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym __weak;

/*
 * Least timeout of the connection's route, ms; 0: it has none, or it cannot be read. The kernel takes
 * it before the socket's (include/net/tcp.h, tcp_rto_min).
 */
static __always_inline __u32 route_rto_min_ms(struct tcp_sock *tp)
{
	struct dst_entry *route = ((struct sock *)tp)->sk_dst_cache;
	struct dst_metrics *of;

	if (!route || !bpf_rdonly_cast)
		return 0;
	of = bpf_rdonly_cast((const void *)(route->_metrics & ~3ul),
			     bpf_core_type_id_kernel(struct dst_metrics));
	return of->metrics[RTAX_LOCK - 1] & 1u << RTAX_RTO_MIN ? of->metrics[RTAX_RTO_MIN - 1] : 0;
}

/* Least timeout that the socket or its route has from others, µs; 0: the kernel's. */
static __always_inline __u32 others_floor_us(struct context *c)
{
	__u32 ticks = connection_of(c)->icsk_rto_min, ms = route_rto_min_ms(c->tcp);

	if (ms)
		return ms * 1000;
	return ticks == usual_ticks(THALWEG_RTO_MIN_US) ? 0 : ticks * load_params()->jiffy_us;
}

/* Whether the connection's least timeout is the kernel's. */
static __always_inline int is_usual(struct context *c, struct timed *timed)
{
	if (!others_floor_us(c) && !is_of_policy(c))
		return 1;
	timed->flags |= THALWEG_TIMED_OWNED;
	return 0;
}

/* Likewise, and its peer tells of duplicates. */
static __always_inline int takes_floor(struct context *c, struct timed *timed)
{
	struct tcp_options_received *options = &c->tcp->rx_opt;

	if (BPF_CORE_READ_BITFIELD(options, sack_ok))
		return is_usual(c, timed);
	timed->flags |= THALWEG_TIMED_NO_SACK;
	return 0;
}

/*
 * Puts the floor in force until the next RTT sample. The SYN's SACK option is not known yet at the
 * start: an ACK that comes without ends the floor all the same.
 */
static __always_inline int begin_floor(struct bpf_sock_ops *ops, struct context *c,
				       const struct thalweg_timers *t, struct timed *timed)
{
	if (!timed || set_floor(ops, t->floor_us))
		return 0;
	timed->floor_us = t->floor_us;
	timed->floors++;
	add_callbacks(ops, BPF_SOCK_OPS_RTT_CB_FLAG);
	return 0;
}

/* A connection is opened here. Of one that is accepted there is no socket at this point. */
static __noinline int start(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct thalweg_timers *t;
	struct timed *timed;

	if (!find_sock(&c, ops) || !find_tcp(&c))
		return 0;
	t = timers_of(&c);
	if (!t || !are_valid(&c, t))
		return 0;
	/* SYNs of all connections count, whatever their timeout. */
	if (t->syn_count)
		add_callbacks(ops, BPF_SOCK_OPS_RETRANS_CB_FLAG);
	if (!is_drawn(&c, t) || is_of_policy(&c))
		return 0;
	ask_timeout(ops, &c, t);
	if (!t->floor_us || !(t->flags & THALWEG_TIMERS_FROM_START))
		return 0;
	timed = timed_of(&c, BPF_SK_STORAGE_GET_F_CREATE);
	if (timed && is_usual(&c, timed))
		begin_floor(ops, &c, t, timed);
	return 0;
}

/* A segment was sent again: the connection recovers. */
static __noinline int recover(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct thalweg_timers *t;
	struct timed *timed;

	if (!find_sock(&c, ops))
		return 0;
	timed = timed_of(&c, 0);
	if (timed && (timed->floor_us || timed->flags & THALWEG_TIMED_OWNED))
		return 0;
	t = timers_of(&c);
	if (!t || !t->floor_us || !are_valid(&c, t))
		return 0;
	if (!is_drawn(&c, t)) {
		/* The kernel's timeout rules how fast it is. */
		leave_unscored(&c);
		return 0;
	}
	if (t->flags & THALWEG_TIMERS_AFTER_TIMEOUT && !(timed && timed->timeouts))
		return 0;
	if (!timed)
		timed = timed_of(&c, BPF_SK_STORAGE_GET_F_CREATE);
	if (!timed || !find_tcp(&c) || !takes_floor(&c, timed))
		return 0;
	return begin_floor(ops, &c, t, timed);
}

/*
 * A sample of the RTT ends the recovery. The kernel calls once a round trip. That of the handshake
 * leaves a floor in force: the timeout of the first data is computed after it, from the RTT that is
 * remembered of the host (net/ipv4/tcp_metrics.c, tcp_init_metrics).
 */
static __noinline int end_recovery(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct timed *timed;

	if (ops->state == BPF_TCP_SYN_SENT || !find_sock(&c, ops))
		return 0;
	timed = timed_of(&c, 0);
	if (!timed || !timed->floor_us || set_floor(ops, THALWEG_RTO_MIN_US))
		return 0;
	timed->floor_us = 0;
	return 0;
}

/* The peer bounds the delay of its ACKs, and expects the same. Another's bound stays. */
static __noinline int bound_acks(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_key6 key = { 128, {} };
	struct thalweg_timers_peers *bound;
	struct request request = {};
	struct context c = { .request = &request };
	__u32 default_arm;
	int us;

	if (!host_of(ops, (__u32 *)key.addr))
		return 0;
	bound = bpf_map_lookup_elem(&peers, &key);
	if (!bound || bpf_ktime_get_ns() >= bound->until_ns)
		return 0;
	if (!find_sock(&c, ops) || !find_tcp(&c) || !find_key(&c) || is_outside(&c, &default_arm))
		return 0;
	if (is_of_policy(&c) || connection_of(&c)->icsk_delack_max != usual_ticks(DELAYED_ACK_US))
		return 0;
	us = bound->delay_us;
	return bpf_setsockopt(ops, SOL_TCP, TCP_BPF_DELACK_MAX, &us, sizeof(us));
}

static __noinline int count_timeout(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct timed *timed;

	if (!find_sock(&c, ops))
		return 0;
	timed = timed_of(&c, BPF_SK_STORAGE_GET_F_CREATE);
	if (timed)
		timed->timeouts++;
	return 0;
}

/* Fills a report; 0 if there is nothing to tell. */
static __always_inline int fill_report(struct context *c, struct thalweg_timers_report *report)
{
	struct bpf_tcp_sock *tp = bpf_tcp_sock(c->sk);
	struct timed *timed = timed_of(c, 0);
	struct chronographs now = {};
	struct thalweg_timers *t;
	__u32 before;

	if (!tp || !host_of(c->ops, (__u32 *)report->remote))
		return 0;
	report->netns = netns_of(c->ops);
	report->bytes = tp->bytes_acked;
	report->segs_out = tp->data_segs_out;
	report->retrans = tp->total_retrans;
	report->dsacks = tp->dsack_dups;
	report->min_rtt_us = tp->rtt_min == THALWEG_U32_MAX ? 0 : tp->rtt_min;
	report->srtt_us = tp->srtt_us >> 3;
	if (tp->data_segs_out && read_chronographs(c, &now))
		report->busy_us = ticks_us(c, now.busy - now.receiver + 1);
	if (timed) {
		before = timed->retrans_before + timed->syn_retrans;
		report->retrans = tp->total_retrans > before ? tp->total_retrans - before : 0;
		report->segs_out -= timed->segs_before;
		report->dsacks -= timed->dsacks_before;
		/* Their time is not known. */
		if (timed->flags & THALWEG_TIMED_EARLIER)
			report->bytes = 0;
		report->timeouts = timed->timeouts;
		report->floors = timed->floors;
		report->syn_retrans = timed->syn_retrans;
		report->syn_us = timed->syn_us;
		report->flags = timed->flags;
	}
	if (!timed || !timed->floor_us)
		report->other_us = others_floor_us(c);
	if (report->other_us)
		report->flags |= THALWEG_TIMED_OWNED;
	t = timers_of(c);
	if (!t)
		return 1;
	report->flags |= THALWEG_TIMED_KNOWN;
	report->floor_us = t->floor_us;
	if (is_drawn(c, t))
		report->flags |= THALWEG_TIMED_DRAWN;
	return 1;
}

/* A connection is over. */
static __noinline int end(struct bpf_sock_ops *ops)
{
	struct thalweg_timers_report report = {};
	struct request request = {};
	struct context c = { .request = &request };
	__u32 default_arm;

	if (!find_sock(&c, ops) || !find_tcp(&c) || !find_key(&c) || is_outside(&c, &default_arm))
		return 0;
	if (is_routed_home(c.tcp) || !fill_report(&c, &report))
		return 0;
	if (bpf_ringbuf_output(&reports, &report, sizeof(report), BPF_RB_NO_WAKEUP))
		COUNT_LOST(lost);
	return 0;
}

SEC("sockops")
int timers_sockops(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		begin_connect(ops);
		break;
	case BPF_SOCK_OPS_TIMEOUT_INIT:
		start(ops);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		answer_syn(ops);
		bound_acks(ops);
		add_callbacks(ops, CALLBACKS);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		bound_acks(ops);
		add_callbacks(ops, CALLBACKS);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		if (ops->state == BPF_TCP_SYN_SENT)
			lose_syn(ops);
		else
			recover(ops);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		if (ops->state != BPF_TCP_SYN_SENT)
			count_timeout(ops);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		end_recovery(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ops->args[1] == BPF_TCP_CLOSE)
			end(ops);
		break;
	}
	return 1;
}

/*
 * Requests the callbacks of connections that were open before the program. It writes the kernel's
 * error number where it refuses: before Linux 6.12.
 */
SEC("?iter/tcp")
int timers_open(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct timed *known;
	struct tcp_sock *tp;
	__u8 refusal;
	int flags;

	if (!skc || (skc->skc_state != BPF_TCP_ESTABLISHED && skc->skc_state != BPF_TCP_CLOSE_WAIT))
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp || !is_covered(tp))
		return 0;
	/* Those that began since the program have a report of their whole life. */
	if (bpf_sk_storage_get(&timed, tp, 0, 0))
		return 0;
	known = bpf_sk_storage_get(&timed, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!known)
		return 0;
	known->flags = THALWEG_TIMED_EARLIER;
	known->segs_before = tp->data_segs_out;
	known->retrans_before = tp->total_retrans;
	known->dsacks_before = tp->dsack_dups;
	flags = tp->bpf_sock_ops_cb_flags;
	if ((flags & CALLBACKS) == CALLBACKS)
		return 0;
	flags |= CALLBACKS;
	refusal = -bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	if (!refusal)
		return 0;
	/* The next visit tries again. */
	bpf_sk_storage_delete(&timed, tp);
	bpf_seq_write(ctx->meta->seq, &refusal, sizeof(refusal));
	return 0;
}
