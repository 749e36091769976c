// SPDX-License-Identifier: GPL-2.0-only
/*
 * learn: picks a congestion control for each connection, by remote host, and
 * learns from how the connection went (sockops; algorithm in thalweg_algo.h).
 *
 * The idea and mode `classic` are those of bpftune's published TCP connection
 * tuner. Departures, all of them in mode `thalweg` unless said otherwise:
 *  - arms come from a table that the agent fills, not from four fixed names;
 *  - the key holds the network namespace, and the remote address, not the
 *    next hop; records live in an LRU map (both modes);
 *  - records are changed under a lock, so that no CPU loses another's update
 *    (both modes);
 *  - a connection is scored when it is over, however it ends, over the time in
 *    which it had data to send;
 *  - an application's own TCP_CONGESTION is respected;
 *  - connections of the machine with itself over loopback addresses are left
 *    alone (both modes).
 *
 * Nothing here runs per packet: the program is called at establishment, at
 * changes of TCP state, and at retransmissions while the loss rule is armed.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "thalweg_compat.h"
#include "thalweg_algo.h"

char LICENSE[] SEC("license") = "GPL";

/* Wake the agent once this much waits in the ring; below, it looks by itself. */
#define WAKE_BYTES (256 * 1024)

/*
 * The loss rule lets a connection alone for this long (thalweg): one retransmission
 * time-out, so that the stretch it ends shows what the losses did to the arm, and
 * not the burst before them.
 */
#define RESCUE_MIN_NS (200 * 1000 * 1000ull)

/* A section of its own: the agent writes this map's value whole before load. */
const volatile struct thalweg_params params SEC(".rodata.params") = {};

/* What a new record starts from (too large for the stack). */
static const volatile struct thalweg_host empty_host = {};

struct thalweg_lock {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, THALWEG_DEFAULT_HOSTS);
	__type(key, struct thalweg_host_key);
	__type(value, struct thalweg_host);
} hosts SEC(".maps");

/* Writers of `hosts` take lock `tag % THALWEG_LOCKS`: an LRU map holds none itself. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_LOCKS);
	__type(key, __u32);
	__type(value, struct thalweg_lock);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_arms);
} arms SEC(".maps");

/* Read and written by the agent alone: which version of this file owns the pins. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_meta);
} meta SEC(".maps");

/* Arm that a network namespace gives by default, where the agent knows it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} defaults SEC(".maps");

/*
 * Connections being measured. A connection lies in one of the THALWEG_PROBES slots
 * from its socket cookie on; cookies are given out in sequence, so slots fill evenly.
 * Not socket storage, nor a hash map: those cost 0.8 and 0.4 us a connection.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_CONNECTIONS);
	__type(key, __u32);
	__type(value, struct thalweg_conn);
} conns SEC(".maps");

/*
 * Sockets that are not free: 0 where the application chose its congestion control
 * itself, or a policy did; otherwise the mask of the arms that a policy leaves to
 * choose from (policy.bpf.c has this map too). BPF_F_CLONE: a listener's mark passes
 * to what it accepts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} owned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, THALWEG_DEFAULT_RING);
} events SEC(".maps");

/*
 * What a host record is asked or told. It goes to the functions that hold the
 * lock; those are global, so that the verifier checks each of them once and not
 * again for every path that leads there. Hence no pointers in here.
 */
struct request {
	struct thalweg_host_key key;
	__u64 tag;
	__u64 now_ns;
	__u32 arm; /* the system's (choose), or what the connection runs */
	__u32 allowed; /* mask of arms */
	__u64 segs; /* rescue */
	__u64 retrans; /* rescue */
	struct thalweg_sample sample; /* score */
	struct thalweg_verdict verdict; /* answer of score */
	struct thalweg_decision decision; /* answer of choose; rescue: arm alone */
};

/* Everything about one socket operation that several steps need. */
struct context {
	struct bpf_sock_ops *ops;
	const struct thalweg_params *params;
	struct thalweg_counters *counters;
	struct thalweg_arms *arms;
	struct bpf_sock *sk;
	struct thalweg_conn *conn;
	__u64 cookie; /* of the socket */
	__u32 remote[4]; /* full address, network byte order */
	struct request request;
};

/* Atomic although per CPU: a softirq may run this program on top of itself. */
#define COUNT(context, field) __sync_fetch_and_add(&(context)->counters->field, 1)

/* The parameters, hidden from the compiler, which would fold their initial zeros. */
static __always_inline const struct thalweg_params *load_params(void)
{
	const struct thalweg_params *p = (const struct thalweg_params *)&params;

	barrier_var(p);
	return p;
}

static __always_inline __u32 prefix_mask(__u32 prefix_len, __u32 word)
{
	__u32 bits = prefix_len > word * 32 ? prefix_len - word * 32 : 0;

	if (!bits)
		return 0;
	return bits >= 32 ? ~0u : bpf_htonl(~0u << (32 - bits));
}

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ (hash >> 32);
}

/* Remote address and key. Returns 0 for what is no TCP over IP, or loopback. */
static __always_inline int find_key(struct context *c)
{
	const __u32 mapped = bpf_htonl(0xffff);
	struct thalweg_host_key *key = &c->request.key;
	__u32 *remote = c->remote, *addr = (__u32 *)key->addr;
	__u32 i, prefix_len;

	if (c->ops->family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = mapped;
		remote[3] = c->ops->remote_ip4;
	} else if (c->ops->family == AF_INET6) {
		remote[0] = c->ops->remote_ip6[0];
		remote[1] = c->ops->remote_ip6[1];
		remote[2] = c->ops->remote_ip6[2];
		remote[3] = c->ops->remote_ip6[3];
	} else {
		return 0;
	}
	if (!remote[0] && !remote[1] && remote[2] == mapped) {
		if ((remote[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000))
			return 0;
		prefix_len = 96 + c->params->ipv4_prefix;
	} else {
		if (!remote[0] && !remote[1] && !remote[2] && remote[3] == bpf_htonl(1))
			return 0;
		prefix_len = c->params->ipv6_prefix;
	}
	for (i = 0; i < 4; i++)
		addr[i] = remote[i] & prefix_mask(prefix_len, i);
	key->netns = bpf_get_netns_cookie(c->ops);
	key->prefix_len = prefix_len;
	key->reserved = 0;
	c->request.tag =
		mix(mix(mix(key->netns + prefix_len, *(__u64 *)addr), *(__u64 *)(addr + 2)),
		    0x7468616c77656721ull);
	/* 0 marks a record that nobody has claimed yet. */
	c->request.tag |= 1;
	return 1;
}

/* What every operation needs; returns 0 where there is nothing to do. */
static __always_inline int prepare(struct context *c, struct bpf_sock_ops *ops)
{
	__u32 zero = 0;

	c->ops = ops;
	c->params = load_params();
	c->counters = bpf_map_lookup_elem(&counters, &zero);
	c->arms = bpf_map_lookup_elem(&arms, &zero);
	c->sk = ops->sk;
	return c->counters && c->arms && c->sk;
}

static __always_inline struct thalweg_conn *conn_slot(__u64 cookie, __u32 probe)
{
	__u32 slot = (cookie + probe) & (THALWEG_CONNECTIONS - 1);

	return bpf_map_lookup_elem(&conns, &slot);
}

/* Finds the record of a connection that is being measured; returns 0 if there is none. */
static __always_inline int find_conn(struct context *c, struct bpf_sock_ops *ops)
{
	__u32 i;

	c->cookie = bpf_get_socket_cookie(ops);
	for (i = 0; i < THALWEG_PROBES; i++) {
		c->conn = conn_slot(c->cookie, i);
		if (c->conn && c->conn->cookie == c->cookie)
			return 1;
	}
	return 0;
}

/*
 * Keeps the record of a new connection. Where all its slots are taken the oldest
 * gives way: it may be one whose end nobody saw.
 */
static __always_inline void keep_conn(struct context *c, struct thalweg_conn *conn)
{
	struct thalweg_conn *slot, *oldest = 0;
	__u64 oldest_cookie;
	__u32 i;

	conn->cookie = c->cookie;
	for (i = 0; i < THALWEG_PROBES; i++) {
		slot = conn_slot(c->cookie, i);
		if (!slot)
			return;
		if (!slot->cookie && !__sync_val_compare_and_swap(&slot->cookie, 0, c->cookie)) {
			*slot = *conn;
			return;
		}
		if (!oldest || slot->start_ns < oldest->start_ns)
			oldest = slot;
	}
	COUNT(c, conns_missed);
	oldest_cookie = oldest->cookie;
	if (__sync_val_compare_and_swap(&oldest->cookie, oldest_cookie, c->cookie) == oldest_cookie)
		*oldest = *conn;
}

/* Mask of the arms that the socket may be given, 0 where it is to be left alone. */
static __always_inline __u32 permitted_arms(struct context *c)
{
	__u32 *arms = bpf_sk_storage_get(&owned, c->sk, 0, 0);

	return arms ? *arms & ~THALWEG_OWNED_BY_POLICY : ~0u;
}

/* Whether the application, or a policy, chose the socket's congestion control. */
static __always_inline int app_owned(struct context *c)
{
	return !permitted_arms(c);
}

/*
 * The record of a host, created if need be; NULL if none can be had. It may be
 * recycled for another host at any time (LRU): `open_host` checks.
 */
static __always_inline struct thalweg_host *host_record(struct request *r)
{
	/* Linux 6.1 takes a key from the function's own stack only. */
	struct thalweg_host_key key = r->key;
	struct thalweg_host *host = bpf_map_lookup_elem(&hosts, &key);
	struct thalweg_counters *count;
	__u32 zero = 0;

	if (host)
		return host;
	if (!bpf_map_update_elem(&hosts, &key, (const void *)&empty_host, BPF_NOEXIST)) {
		count = bpf_map_lookup_elem(&counters, &zero);
		if (count)
			__sync_fetch_and_add(&count->hosts_created, 1);
	}
	return bpf_map_lookup_elem(&hosts, &key);
}

static __always_inline struct thalweg_lock *host_lock(struct request *r)
{
	__u32 slot = r->tag >> 32 & (THALWEG_LOCKS - 1);

	return bpf_map_lookup_elem(&locks, &slot);
}

/*
 * To be called with the lock held. Claims a new record, recognises a recycled
 * one (returns 0), and opens the write for readers without the lock.
 */
static __always_inline int open_host(struct thalweg_host *host, __u64 tag)
{
	if (!host->tag)
		host->tag = tag;
	if (host->tag != tag)
		return 0;
	host->seq_tail++;
	barrier();
	return 1;
}

static __always_inline void close_host(struct thalweg_host *host)
{
	barrier();
	host->seq_head = host->seq_tail;
}

/* Counts the connection and chooses its arm; 0 if no record could be had. */
__noinline int choose(struct request *r)
{
	const struct thalweg_params *params = load_params();
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	__u32 random[3] = {};
	int found;

	if (!r)
		return 0;
	host = host_record(r);
	lock = host_lock(r);
	if (!host || !lock)
		return 0;
	random[0] = bpf_get_prandom_u32();
	if (params->mode == THALWEG_MODE_CLASSIC) {
		random[1] = bpf_get_prandom_u32();
		random[2] = bpf_get_prandom_u32();
	}
	bpf_spin_lock(&lock->lock);
	found = open_host(host, r->tag);
	if (found) {
		thalweg_increment(&host->connections);
		host->seen_ns = r->now_ns;
		thalweg_forget(host, params, r->now_ns);
		thalweg_decide(host, r->arm, r->allowed, params, random, &r->decision);
		thalweg_count_decision(host, &r->decision);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return found;
}

/* Scores a sample of arm r->arm; 0 if no record could be had. */
__noinline int learn(struct request *r)
{
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	int found;

	if (!r)
		return 0;
	host = host_record(r);
	lock = host_lock(r);
	if (!host || !lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	found = open_host(host, r->tag);
	if (found) {
		thalweg_score(host, r->arm, &r->sample, load_params(), r->now_ns, &r->verdict);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return found;
}

/* Asks the loss rule and counts a switch; the arm to change to, or THALWEG_NO_ARM. */
__noinline int rescue(struct request *r)
{
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	__u32 target = THALWEG_NO_ARM;

	if (!r)
		return target;
	host = host_record(r);
	lock = host_lock(r);
	if (!host || !lock)
		return target;
	bpf_spin_lock(&lock->lock);
	if (open_host(host, r->tag)) {
		target = thalweg_rescue(host, r->arm, r->segs, r->retrans, r->allowed,
					load_params());
		if (target != THALWEG_NO_ARM)
			thalweg_increment(&host->switched);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return target;
}

/* Index of the arm with this name, or THALWEG_NO_ARM. */
static __always_inline __u32 arm_by_name(const struct thalweg_arms *table, const char *name)
{
	const __u64 *wanted = (const __u64 *)name;
	__u32 i;

	for (i = 0; i < THALWEG_MAX_ARMS; i++) {
		const __u64 *have = (const __u64 *)table->arms[i].name;

		if (have[0] == wanted[0] && have[1] == wanted[1])
			return THALWEG_UNKNOWN(i);
	}
	return THALWEG_NO_ARM;
}

/* Arm of the congestion control that the socket runs now, or THALWEG_NO_ARM. */
static __always_inline __u32 current_arm(struct context *c)
{
	char name[THALWEG_CC_NAME] __attribute__((aligned(8))) = {};

	if (bpf_getsockopt(c->ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)) || !name[0])
		return THALWEG_NO_ARM;
	return arm_by_name(c->arms, name);
}

/* Mask of the arms that a connection may be given. */
static __always_inline __u32 allowed_arms(const struct thalweg_arms *table, int ecn)
{
	return ecn ? table->allowed_ecn : table->allowed;
}

/* Sets the congestion control; a refusal is noted in the table. 0 or -errno. */
static __always_inline int set_arm(struct context *c, __u32 index)
{
	struct thalweg_arm *arm = &c->arms->arms[index & THALWEG_ARM_MASK];
	char name[THALWEG_CC_NAME] __attribute__((aligned(8)));
	int error;

	__builtin_memcpy(name, arm->name, sizeof(name));
	error = bpf_setsockopt(c->ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	if (error) {
		__sync_fetch_and_or(&arm->flags, THALWEG_ARM_REFUSED);
		/* Classic goes on choosing among its four, as published. */
		if (c->params->mode == THALWEG_MODE_THALWEG) {
			__sync_fetch_and_and(&c->arms->allowed,
					     ~(1u << (index & THALWEG_ARM_MASK)));
			__sync_fetch_and_and(&c->arms->allowed_ecn,
					     ~(1u << (index & THALWEG_ARM_MASK)));
		}
		arm->refused_errno = error;
		__sync_fetch_and_add(&arm->refused, 1);
		COUNT(c, refused);
	} else {
		COUNT(c, changed);
	}
	return error;
}

#ifdef THALWEG_KERNEL_BTF
/*
 * Time with data outstanding, us since the connection began, waits for the
 * receiver's window included (kernel: tcp_get_info_chrono_stats).
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

/* Begins a measured stretch on `arm`. */
static __always_inline void start_stretch(struct context *c, struct bpf_tcp_sock *tp, __u32 arm)
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
	conn->arm = arm;
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
	sample->flags = 0;
	sample->end = end;
	/* tcp_sock.rtt_min is all ones until the first measurement. */
	if (sample->min_rtt_us == THALWEG_U32_MAX)
		sample->min_rtt_us = 0;
	if (!busy_time(c, &busy_us))
		return;
	busy_us -= conn->start_busy_us;
	/* Counted in whole ticks, so it may be one tick short: no matter but for the shortest. */
	busy_us += c->params->jiffy_us;
	sample->duration_us = thalweg_min(sample->duration_us, busy_us);
	sample->flags |= THALWEG_SAMPLE_BUSY_TIME;
}

/* Reserves an event and fills what all events share. */
static __always_inline struct thalweg_event *new_event(struct context *c, __u32 kind)
{
	struct thalweg_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	const struct thalweg_conn *conn = c->conn;

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
	event->arm = conn->arm;
	event->system_arm = conn->system_arm;
	event->chosen_arm = conn->chosen_arm;
	event->reason = conn->reason;
	event->flags = conn->flags;
	event->propensity_q16 = conn->propensity_q16;
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

/* Asks for (or gives back) callbacks without touching what others asked for. */
static __always_inline void callbacks(struct context *c, int on, int off)
{
	bpf_sock_ops_cb_flags_set(c->ops, (c->ops->bpf_sock_ops_cb_flags | on) & ~off);
}

/* A connection that is left as it is, and not scored. */
static __always_inline void leave_alone(struct context *c, __u32 reason)
{
	struct thalweg_conn *conn = c->conn;

	conn->reason = reason;
	conn->arm = conn->system_arm;
	conn->chosen_arm = THALWEG_NO_ARM;
	conn->propensity_q16 = 0;
	if (reason == THALWEG_REASON_APPLICATION)
		COUNT(c, app_owned);
	send_decision(c, 0);
}

static __always_inline void established(struct bpf_sock_ops *ops)
{
	struct thalweg_decision *decision;
	struct thalweg_conn conn = {};
	struct context c = {};
	struct bpf_tcp_sock *tp;
	__u32 *default_arm, arm, ecn, permitted;
	int error = 0, want = BPF_SOCK_OPS_STATE_CB_FLAG;

	if (!prepare(&c, ops) || !find_key(&c))
		return;
	COUNT(&c, established);
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	c.conn = &conn;
	c.cookie = bpf_get_socket_cookie(ops);
	c.request.now_ns = bpf_ktime_get_ns();
	ecn = tp->ecn_flags & TCP_ECN_OK;
	if (ecn)
		conn.flags |= THALWEG_CONN_ECN;
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		conn.flags |= THALWEG_CONN_PASSIVE;
	conn.system_arm = current_arm(&c);
	permitted = permitted_arms(&c);
	if (!permitted) {
		conn.flags |= THALWEG_CONN_APP_OWNED;
		leave_alone(&c, THALWEG_REASON_APPLICATION);
		return;
	}
	default_arm = bpf_map_lookup_elem(&defaults, &c.request.key.netns);
	if (conn.system_arm == THALWEG_NO_ARM || (default_arm && *default_arm != conn.system_arm)) {
		leave_alone(&c, THALWEG_REASON_FOREIGN);
		return;
	}
	c.request.arm = conn.system_arm;
	c.request.allowed = allowed_arms(c.arms, ecn) & permitted;
	decision = &c.request.decision;
	if (!choose(&c.request)) {
		COUNT(&c, hosts_missed);
		return;
	}
	COUNT(&c, decided);
	conn.flags |= THALWEG_CONN_DECIDED;
	conn.reason = decision->reason;
	conn.chosen_arm = decision->arm;
	conn.propensity_q16 = decision->propensity_q16;
	arm = conn.system_arm;
	if (c.params->dry_run) {
		conn.flags |= THALWEG_CONN_DRY_RUN;
	} else if (decision->arm < THALWEG_MAX_ARMS) {
		if (decision->arm != arm)
			error = set_arm(&c, decision->arm);
		if (!error)
			arm = decision->arm;
		else
			conn.flags |= THALWEG_CONN_SET_FAILED;
	}
	/* Classic keeps no score for what it did not choose. */
	if (c.params->mode == THALWEG_MODE_CLASSIC && (error || decision->arm >= THALWEG_MAX_ARMS))
		arm = THALWEG_NO_ARM;
	start_stretch(&c, tp, arm);
	keep_conn(&c, &conn);
	if (arm != c.params->rescue_arm)
		want |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	callbacks(&c, want, 0);
	/* Where nothing is known there was nothing to decide: counted, but no event. */
	if (decision->reason != THALWEG_REASON_WARM_UP)
		send_decision(&c, error);
}

/*
 * Scores the stretch that ends now. What says nothing about a congestion control,
 * as most connections do, costs neither the host's record nor an event.
 */
static __always_inline void score(struct context *c, struct bpf_tcp_sock *tp, __u32 end)
{
	struct request *r = &c->request;

	r->arm = c->conn->arm;
	r->verdict.outcome = THALWEG_SKIPPED_NOT_TRACKED;
	take_sample(c, tp, end, &r->sample);
	barrier();
	/* The slot may have been taken away meanwhile. */
	if (c->conn->cookie != c->cookie)
		return;
	if (r->arm < THALWEG_MAX_ARMS && !app_owned(c)) {
		if (c->params->mode == THALWEG_MODE_THALWEG)
			r->verdict.outcome = thalweg_assess(&r->sample, c->params);
		else
			r->verdict.outcome = THALWEG_SCORED;
	}
	if (r->verdict.outcome < THALWEG_OUTCOMES)
		__sync_fetch_and_add(&c->counters->outcomes[r->verdict.outcome], 1);
	if (r->verdict.outcome != THALWEG_SCORED || !find_key(c))
		return;
	if (!learn(r))
		COUNT(c, hosts_missed);
	send_close(c, &r->sample, &r->verdict);
}

static __always_inline void retransmitted(struct bpf_sock_ops *ops)
{
	struct context c = {};
	struct bpf_tcp_sock *tp;
	__u32 target, ecn, permitted;
	__u64 segs, retrans;
	int classic, error = 0;

	/* First what almost always answers: too few retransmissions to care. */
	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return;
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	classic = c.params->mode == THALWEG_MODE_CLASSIC;
	if (classic) {
		segs = tp->segs_out;
		retrans = tp->total_retrans;
	} else {
		segs = tp->data_segs_out - c.conn->start_segs;
		retrans = tp->total_retrans - c.conn->start_retrans;
		if (segs < c.params->loss_min_segs)
			return;
	}
	if (retrans <= segs >> (c.params->loss_shift & 63))
		return;
	c.request.now_ns = bpf_ktime_get_ns();
	if (!classic && c.request.now_ns - c.conn->start_ns < RESCUE_MIN_NS)
		return;
	ecn = c.conn->flags & THALWEG_CONN_ECN;
	callbacks(&c, 0, BPF_SOCK_OPS_RETRANS_CB_FLAG);
	permitted = permitted_arms(&c);
	if (!permitted || !find_key(&c))
		return;
	c.request.arm = c.conn->arm;
	c.request.segs = segs;
	c.request.retrans = retrans;
	c.request.allowed = allowed_arms(c.arms, ecn) & permitted;
	target = rescue(&c.request);
	if (target >= THALWEG_MAX_ARMS)
		return;
	COUNT(&c, switched);
	if (!c.params->dry_run) {
		/* The stretch so far is the old arm's; classic credits all of it to bbr. */
		if (!classic)
			score(&c, tp, THALWEG_END_SWITCH);
		error = set_arm(&c, target);
		if (classic) {
			if (!error)
				c.conn->arm = target;
		} else {
			start_stretch(&c, tp, error ? c.conn->arm : target);
		}
		c.conn->flags |= error ? THALWEG_CONN_SET_FAILED : THALWEG_CONN_SWITCHED;
	}
	c.conn->reason = THALWEG_REASON_LOSS;
	c.conn->chosen_arm = target;
	c.conn->propensity_q16 = THALWEG_ONE_Q16;
	send_decision(&c, error);
}

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

static __always_inline void state_changed(struct bpf_sock_ops *ops)
{
	__u32 old_state = ops->args[0], state = ops->args[1], end;
	int classic = load_params()->mode == THALWEG_MODE_CLASSIC;
	struct context c = {};
	struct bpf_tcp_sock *tp;

	/* Published: scored when an orderly close begins, never otherwise. */
	int over = classic && (state == BPF_TCP_FIN_WAIT1 || state == BPF_TCP_CLOSE_WAIT);

	if (!over && state != BPF_TCP_CLOSE && state != BPF_TCP_FIN_WAIT2)
		return;
	if (!prepare(&c, ops) || !find_conn(&c, ops))
		return;
	c.request.now_ns = bpf_ktime_get_ns();
	if (state == BPF_TCP_FIN_WAIT2) {
		c.conn->acked_ns = c.request.now_ns;
		return;
	}
	tp = bpf_tcp_sock(c.sk);
	if (!tp)
		return;
	COUNT(&c, closed);
	if (over) {
		end = state == BPF_TCP_FIN_WAIT1 ? THALWEG_END_FIN_LOCAL : THALWEG_END_FIN_REMOTE;
	} else {
		end = end_of(&c, old_state);
		if (classic)
			c.conn->arm = THALWEG_NO_ARM;
	}
	score(&c, tp, end);
	__sync_val_compare_and_swap(&c.conn->cookie, c.cookie, 0);
}

SEC("sockops")
int learn_sockops(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established(ops);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		retransmitted(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		state_changed(ops);
		break;
	}
	return 1;
}

/* Marks sockets whose application chooses its congestion control itself. */
SEC("cgroup/setsockopt")
int learn_setsockopt(struct bpf_sockopt *ctx)
{
	__u32 *arms;

	if (ctx->level == IPPROTO_TCP && ctx->optname == TCP_CONGESTION && ctx->sk) {
		arms = bpf_sk_storage_get(&owned, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		if (arms)
			*arms = 0;
	}
	/* The kernel copied one page of the value at most; 0 = take the original. */
	if (ctx->optlen > 4096)
		ctx->optlen = 0;
	return 1;
}
