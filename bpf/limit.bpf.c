// SPDX-License-Identifier: GPL-2.0-only
/*
 * limit: the rate that a cgroup may send (cgroup_skb/egress), and a pacer that keeps TCP
 * from overrunning it (sockops).
 *
 * The idea is that of the host bandwidth manager among the kernel's samples: a virtual
 * queue that holds no packets. It drains at the limit's rate. Beyond one length, packets
 * get a CE mark or, if the sender cannot use ECN, TCP is told to enter CWR. Beyond
 * another they are dropped.
 *
 * Departures:
 *  - The queue is one number, the time at which it will be empty ("virtual departure
 *    time"). Thresholds are times, so that they mean the same at every rate. An idle
 *    cgroup has that time in the past: its credit.
 *  - TCP is paced. The round-trip time may be much shorter than the queue (two machines
 *    in a rack, containers on one host). A congestion window of two segments is then
 *    still far above the limit. The queue then fills however early TCP is told. A sender
 *    whose packets are all dropped before they leave is silent for a probe time-out of
 *    200 ms and more. So each connection's maximum pacing rate is set to a share that is
 *    controlled as in RCP (Dukkipati, "Rate Control Protocol", 2007). It is one number
 *    for all connections, which rises while the limit is not used up and falls with the
 *    queue. TCP paces itself if there is no fq.
 *  - A packet dropped by a limit further down is not counted. The kernel runs the
 *    programs of all ancestors, whatever the first one returned.
 *  - Everything happens in the kernel: no process needs to stay.
 *
 * Only UAPI types are used, so that the program loads on a kernel without BTF.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "thalweg_compat.h"
#include "thalweg_abi.h"

char LICENSE[] SEC("license") = "GPL";

/* Return values of a cgroup_skb program. Bit 0: the packet may pass; bit 1: TCP is told. */
#define PASS 1
#define PASS_AND_TELL 3
/*
 * Told and dropped: the socket sees a full queue of its own, not EPERM, which would
 * reach applications as an error of sendto().
 */
#define DROP_AND_TELL 2

#define NSEC_PER_SEC 1000000000ull
/* Index of the loopback device in each network namespace. */
#define LOOPBACK_IFINDEX 1
#define IPPROTO_HOPOPTS 0
#define IPPROTO_UDP 17
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define SOL_SOCKET 1
#define UNLIMITED (~0u)
/* Time for which a note of a drop is valid, see `dropped`. */
#define NOTE_NS 20000
#define ONE_Q16 65536
/* Two initial windows of full segments. */
#define LIGHT_BYTES 30000
/* TCP's shortest retransmission time-out, net/tcp.h, TCP_RTO_MIN. */
#define SILENT_NS 200000000ull

struct {
	/* Not preallocated: an update replaces the element and never changes one in use. */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_limit_settings);
} settings SEC(".maps");

struct locked_state {
	struct thalweg_limit_state s;
	struct bpf_spin_lock lock;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct locked_state);
} state SEC(".maps");

/* Each of the three maps below serves all limits: the agent pins and reuses them. */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_pacing);
} pacing SEC(".maps");

/* Recent bytes of each TCP connection, see spend(); an entry is removed with its socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct thalweg_limit_flow);
} flows SEC(".maps");

struct note {
	__u64 skb;
	__u64 time_ns;
	__u64 depth; /* of the cgroup with the limit */
};

/*
 * The last packet dropped by a limit on this CPU, for the limits of ancestor cgroups,
 * which run next. The kernel gives the memory of a dropped packet to the next one, so
 * the address alone proves nothing. A note is valid for ancestors of its cgroup, while
 * their programs run, and until the next packet there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct note);
} dropped SEC(".maps");

/* Bytes sent by all cgroups, counted only if a limit is work-conserving. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} line SEC(".maps");

struct packet {
	__u64 bytes; /* on the wire, from the IP header on */
	__u64 count; /* on the wire */
	__u32 is_tcp;
	__u32 is_empty; /* TCP without data: SYN, ACK, FIN, RST */
	__u32 can_mark; /* ECT(0) or ECT(1) */
};

/*
 * The packet's form on the wire. The stack hands over up to 64 KiB at a time under one
 * header, which each segment will have.
 */
static __always_inline void parse(struct __sk_buff *skb, struct packet *p)
{
	__u8 first[2] = {}, next = 0, offset = 0;
	__u32 ip = 0, transport = 0;

	p->bytes = skb->len;
	p->count = skb->gso_segs > 1 ? skb->gso_segs : 1;
	p->is_tcp = 0;
	p->is_empty = 0;
	p->can_mark = 0;
	if (bpf_skb_load_bytes(skb, 0, first, 2))
		return;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		ip = (first[0] & 0xf) * 4;
		p->can_mark = first[1] & 3;
		bpf_skb_load_bytes(skb, 9, &next, 1);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		/* Extension headers hide TCP; then it is treated like other protocols. */
		ip = 40;
		p->can_mark = (first[1] >> 4) & 3;
		bpf_skb_load_bytes(skb, 6, &next, 1);
		/*
		 * An exception: the one that TCP itself puts before more than 64 KiB handed over at
		 * once, and that no wire sees (RFC 2675, 8 bytes). Two segments on loopback are
		 * that large.
		 */
		if (next == IPPROTO_HOPOPTS && !bpf_skb_load_bytes(skb, 40, first, 2) &&
		    !first[1]) {
			next = first[0];
			ip = 48;
		}
	}
	if (next == IPPROTO_TCP && !bpf_skb_load_bytes(skb, ip + 12, &offset, 1)) {
		transport = (offset >> 4) * 4;
		p->is_tcp = 1;
		p->is_empty = skb->len <= ip + transport;
	} else if (next == IPPROTO_UDP) {
		transport = 8;
	}
	p->bytes += (p->count - 1) * (ip + transport);
}

static __always_inline int dropped_below(struct __sk_buff *skb, __u64 now, __u64 depth)
{
	__u32 zero = 0;
	struct note *note = bpf_map_lookup_elem(&dropped, &zero);

	return note && note->skb == (__u64)(long)skb && note->depth > depth &&
	       now - note->time_ns < NOTE_NS;
}

static __always_inline void note_verdict(struct __sk_buff *skb, __u64 now, __u64 depth, int drop)
{
	__u32 zero = 0;
	struct note *note = bpf_map_lookup_elem(&dropped, &zero);

	if (!note)
		return;
	note->skb = drop ? (__u64)(long)skb : 0;
	note->time_ns = now;
	note->depth = depth;
}

/*
 * The rate in force. A work-conserving limit takes the unused part of the line, an
 * eighth of it per measurement. So several limits do not overshoot together. It gives
 * back half of its excess. A sixteenth of the line stays free: it lets others show that
 * they want more.
 */
static __always_inline void conserve_work(struct thalweg_limit_state *s,
					  const struct thalweg_limit_settings *set,
					  __u64 line_bytes, __u64 elapsed)
{
	__u64 target = set->line_bps - set->line_bps / 16;
	__u64 sent = (line_bytes - s->line_bytes) * 8;
	__u64 used = sent < (1ull << 33) ? sent * NSEC_PER_SEC / elapsed
					 : sent / (elapsed / 1000 + 1) * (NSEC_PER_SEC / 1000);
	__u64 rate = s->rate_bps;

	s->line_bytes = line_bytes;
	if (used < target)
		rate += (target - used) / 8;
	else if ((used - target) / 2 < rate)
		rate -= (used - target) / 2;
	else
		rate = 0;
	if (rate > target)
		rate = target;
	if (rate < set->rate_bps)
		rate = set->rate_bps;
	s->rate_bps = rate;
}

/*
 * RCP's control law: the share changes by
 *	(elapsed / d) * (1/2 * (1 - used / rate) - 1/4 * queue / d)
 * where d is the reaction time of a connection: its round-trip time, or, if that is
 * longer, twice the pause of a paced sender after its largest packet (on short paths
 * TCP hands over 64 KiB at once, however slowly it is paced). Credit counts as a
 * negative queue. So a recent shortfall is made up for, and the mean is exact. TCP's
 * dropped packets count as used, too.
 */
static __always_inline void control(struct thalweg_limit_state *s,
				    const struct thalweg_limit_settings *set, __s64 queue_ns,
				    __u64 elapsed)
{
	__u64 rate = s->rate_bps, most = rate + rate / 4, least = rate / 256 + 1;
	__u64 sleep_ns = s->largest_bytes * 16 * NSEC_PER_SEC / (s->share_bps + 1);
	__u64 d = s->rtt_ns > set->interval_ns ? s->rtt_ns : set->interval_ns;
	__u64 used = s->look_bytes * 8 * NSEC_PER_SEC / elapsed;
	__u64 depth = queue_ns < 0 ? -queue_ns : queue_ns;
	__s64 change, by_queue;

	if (d < sleep_ns)
		d = sleep_ns < NSEC_PER_SEC ? sleep_ns : NSEC_PER_SEC;
	if (used > 4 * rate)
		used = 4 * rate;
	change = (ONE_Q16 - (__s64)(used * ONE_Q16 / rate)) >> 1;
	if (depth > 4 * d)
		depth = 4 * d;
	by_queue = depth * ONE_Q16 / d / 4;
	change += queue_ns < 0 ? by_queue : -by_queue;
	if (change > ONE_Q16 / 2)
		change = ONE_Q16 / 2;
	if (change < -ONE_Q16 / 2)
		change = -ONE_Q16 / 2;
	/* A sender with drops is silent for a while: that is no spare capacity. */
	if (change > 0 && s->look_ns - s->drop_ns < SILENT_NS)
		return;
	if (elapsed < d)
		change = change * (__s64)(elapsed * ONE_Q16 / d) >> 16;
	s->share_bps += (__s64)s->share_bps * change >> 16;
	if (s->share_bps > most)
		s->share_bps = most;
	if (s->share_bps < least)
		s->share_bps = least;
}

/*
 * A connection is light until it has sent LIGHT_BYTES, less what it may send in the
 * elapsed time at a quarter of a share. So one at its share is not light, and one that
 * has paused becomes light again.
 */
static __always_inline int spend(struct thalweg_limit_flow *f, __u64 share_bps, __u64 bytes,
				 __u64 now)
{
	__u64 elapsed = now - f->time_ns, spent = f->spent, back;

	if (elapsed > 16 * NSEC_PER_SEC)
		elapsed = 16 * NSEC_PER_SEC;
	back = share_bps / 32 * (elapsed / 1000) / 1000000;
	spent = spent > back ? spent - back : 0;
	f->time_ns = now;
	f->spent = spent + bytes < 2 * LIGHT_BYTES ? spent + bytes : 2 * LIGHT_BYTES;
	return spent <= LIGHT_BYTES;
}

static __always_inline void look(struct thalweg_limit_state *s,
				 const struct thalweg_limit_settings *set, __u64 line_bytes,
				 __s64 queue_ns, __u64 now)
{
	__u64 elapsed = now - s->look_ns, rate = s->rate_bps, share_q16;

	if (!s->look_ns) {
		/* The first packet. */
		s->share_bps = s->rate_bps = set->rate_bps;
		s->line_bytes = line_bytes;
		s->second_ns = now;
	} else {
		share_q16 = s->share_bps * ONE_Q16 / s->rate_bps;
		if (set->flags & THALWEG_LIMIT_WORK_CONSERVING)
			conserve_work(s, set, line_bytes, elapsed);
		else
			s->rate_bps = set->rate_bps;
		/* A new rate is shared in the proportions of the old one. */
		if (s->rate_bps != rate)
			s->share_bps = share_q16 * s->rate_bps >> 16;
		control(s, set, queue_ns, elapsed);
	}
	s->look_ns = now;
	s->look_bytes = 0;
	s->largest_bytes -= s->largest_bytes >> 4;
	if (now - s->second_ns >= NSEC_PER_SEC) {
		s->measured_bps = s->second_bytes * 8 * 1000000 / ((now - s->second_ns) / 1000);
		s->second_ns = now;
		s->second_bytes = 0;
	}
}

/* `moved`: among the packets of all cgroups, those of sockets that have moved into this one. */
static __always_inline int police(struct __sk_buff *skb, int moved)
{
	__u32 zero = 0;
	struct thalweg_limit_settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct locked_state *locked = bpf_map_lookup_elem(&state, &zero);
	__u64 *meter = bpf_map_lookup_elem(&line, &zero);
	__u64 now, clock, drop_ns, line_bytes, departure;
	struct thalweg_limit_flow *flow = NULL;
	struct bpf_sock *sk = skb->sk;
	struct thalweg_limit_state *s;
	__u32 drop, slow;
	__s64 queue_ns;
	struct packet p;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (moved) {
		flow = sk ? bpf_sk_storage_get(&flows, sk, 0, 0) : NULL;
		if (!flow || flow->place != THALWEG_LIMIT_IN)
			return PASS;
	}
	if (!set || !locked || !meter || !set->rate_bps)
		return PASS;
	if (skb->ifindex == LOOPBACK_IFINDEX && !(set->flags & THALWEG_LIMIT_LOOPBACK))
		return PASS;
	clock = now = bpf_ktime_get_ns();
	if (dropped_below(skb, now, moved ? 0 : set->depth))
		return PASS;
	parse(skb, &p);
	if (!moved && sk) {
		flow = bpf_sk_storage_get(
			&flows, sk, 0, p.is_tcp && !p.is_empty ? BPF_SK_STORAGE_GET_F_CREATE : 0);
		if (flow && flow->place == THALWEG_LIMIT_OUT)
			return PASS;
	}
	line_bytes = *meter;
	s = &locked->s;
	drop_ns = set->drop_ns;
	/*
	 * Space beyond the threshold lets ACKs, handshakes and light senders pass those that
	 * fill the queue.
	 */
	if (p.is_empty || (p.is_tcp && flow && spend(flow, s->share_bps, p.bytes, now)))
		drop_ns *= 2;

	bpf_spin_lock(&locked->lock);
	/* Another CPU may have read the clock later and been first. */
	if (now < s->look_ns)
		now = s->look_ns;
	if (s->next_ns + set->burst_ns < now)
		s->next_ns = now - set->burst_ns;
	queue_ns = s->next_ns - now;
	if (now - s->look_ns >= set->interval_ns)
		look(s, set, line_bytes, queue_ns, now);
	s->credit_q8_ns += -queue_ns * 4 - (s->credit_q8_ns >> 6);
	drop = queue_ns > (__s64)drop_ns;
	slow = queue_ns > (__s64)set->mark_ns;
	departure = s->next_ns;
	if (drop) {
		s->dropped_packets += p.count;
		s->dropped_bytes += p.bytes;
		if (p.is_tcp) {
			s->look_bytes += p.bytes;
			s->drop_ns = now;
		}
	} else {
		s->next_ns += p.bytes * 8 * NSEC_PER_SEC / s->rate_bps;
		s->look_bytes += p.bytes;
		if (p.is_tcp && s->largest_bytes < p.bytes)
			s->largest_bytes = p.bytes;
		s->second_bytes += p.bytes;
		s->packets += p.count;
		s->bytes += p.bytes;
	}
	bpf_spin_unlock(&locked->lock);

	note_verdict(skb, clock, set->depth, drop);
	if (drop)
		return DROP_AND_TELL;
	if (set->flags & THALWEG_LIMIT_EDT && departure > now && departure > skb->tstamp)
		skb->tstamp = departure;
	if (!slow)
		return PASS;
	/* Marks are counted without the lock, under which the helper cannot be called. */
	if (p.can_mark) {
		if (bpf_skb_ecn_set_ce(skb))
			__sync_fetch_and_add(&s->marked, p.count);
		return PASS;
	}
	if (!p.is_tcp || p.is_empty)
		return PASS;
	__sync_fetch_and_add(&s->notified, p.count);
	return PASS_AND_TELL;
}

SEC("cgroup_skb/egress")
int limit_egress(struct __sk_buff *skb)
{
	return police(skb, 0);
}

/*
 * On the root cgroup. The kernel binds a socket, and the connections that it accepts, to
 * the cgroup of its creation, whoever holds it later. The agent marks those that have
 * moved.
 */
SEC("cgroup_skb/egress")
int limit_egress_moved(struct __sk_buff *skb)
{
	return police(skb, 1);
}

/* On the root cgroup: bytes sent by the whole machine. */
SEC("cgroup_skb/egress")
int limit_line(struct __sk_buff *skb)
{
	__u32 zero = 0;
	__u64 *meter = bpf_map_lookup_elem(&line, &zero);
	struct packet p;

	if (!meter || skb->ifindex == LOOPBACK_IFINDEX || dropped_below(skb, bpf_ktime_get_ns(), 0))
		return PASS;
	parse(skb, &p);
	__sync_fetch_and_add(meter, p.bytes);
	return PASS;
}

/* A connection of the machine to itself, which will use loopback. */
static __always_inline int is_local(struct bpf_sock_ops *ops)
{
	if (ops->family == AF_INET)
		return ops->local_ip4 == ops->remote_ip4;
	return ops->local_ip6[0] == ops->remote_ip6[0] && ops->local_ip6[1] == ops->remote_ip6[1] &&
	       ops->local_ip6[2] == ops->remote_ip6[2] && ops->local_ip6[3] == ops->remote_ip6[3];
}

/* Sets a connection's maximum pacing rate to the minimum of its limits. */
static __always_inline void pace(struct bpf_sock_ops *ops, struct bpf_sock *sk, __u32 slot,
				 __u32 share)
{
	struct thalweg_pacing *p;
	__u32 now = UNLIMITED, want;
	int i;

	p = bpf_sk_storage_get(&pacing, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!p)
		return;
	/* Any other rate is the application's. */
	if (bpf_getsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &now, sizeof(now)))
		now = p->set ? p->set : UNLIMITED;
	if (now != p->set)
		p->own = now;
	p->shares[slot % (2 * THALWEG_LIMIT_SLOTS)] = share;
	want = p->own;
	for (i = 0; i < 2 * THALWEG_LIMIT_SLOTS; i++)
		if (p->shares[i] && p->shares[i] < want)
			want = p->shares[i];
	/* A change of less than one part in 128 is not worth the call. */
	if (p->set && want <= now + now / 128 && want >= now - now / 128)
		return;
	if (!bpf_setsockopt(ops, SOL_SOCKET, SO_MAX_PACING_RATE, &want, sizeof(want)))
		p->set = want;
}

static __always_inline int pace_at_share(struct bpf_sock_ops *ops, int moved)
{
	__u32 zero = 0, slot;
	struct thalweg_limit_settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct locked_state *locked = bpf_map_lookup_elem(&state, &zero);
	struct thalweg_limit_flow *flow;
	struct bpf_sock *sk = ops->sk;
	__u64 share, rtt_ns;

	if (!set || !locked || !sk)
		return 1;
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_RTT_CB)
		return 1;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (moved ? !flow || flow->place != THALWEG_LIMIT_IN
		  : flow && flow->place == THALWEG_LIMIT_OUT)
		return 1;
	if (is_local(ops) && !(set->flags & THALWEG_LIMIT_LOOPBACK))
		return 1;
	if (ops->op == BPF_SOCK_OPS_RTT_CB) {
		/* The kernel's value is in eighths of a microsecond. */
		rtt_ns = (__u64)ops->srtt_us * 125;
		/* Two CPUs may lose one measurement of many. */
		locked->s.rtt_ns += ((__s64)rtt_ns - (__s64)locked->s.rtt_ns) >> 4;
	} else {
		bpf_sock_ops_cb_flags_set(ops,
					  ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	}
	slot = set->depth % THALWEG_LIMIT_SLOTS + (moved ? THALWEG_LIMIT_SLOTS : 0);
	if (!(set->flags & THALWEG_LIMIT_PACE)) {
		pace(ops, sk, slot, 0);
		return 1;
	}
	share = locked->s.share_bps;
	/* Light connections need no share. */
	if (!share || !flow || flow->spent <= LIGHT_BYTES)
		share = set->rate_bps;
	share = share / 8 + 1;
	/* From 34 Gbit/s on it does not fit, and pacing would not help either. */
	pace(ops, sk, slot, share < UNLIMITED ? share : 0);
	return 1;
}

SEC("sockops")
int limit_sockops(struct bpf_sock_ops *ops)
{
	return pace_at_share(ops, 0);
}

/* On the root cgroup: connections that have moved. */
SEC("sockops")
int limit_sockops_moved(struct bpf_sock_ops *ops)
{
	return pace_at_share(ops, 1);
}

/*
 * Makes TCP call the pacer for a connection older than the limit. Only BPF can request
 * that, so the agent sets an option with a level unknown to the kernel, on a copy of the
 * socket. It fails on kernels without support (before 6.12).
 */
SEC("cgroup/setsockopt")
int limit_follow(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int flags = 0;

	if (ctx->level != THALWEG_LIMIT_LEVEL)
		return 1;
	/* The kernel must not handle it. */
	ctx->optlen = -1;
	if (!sk || bpf_getsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return 0;
	flags |= BPF_SOCK_OPS_RTT_CB_FLAG;
	return !bpf_setsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}
