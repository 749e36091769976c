// SPDX-License-Identifier: GPL-2.0-only
/*
 * policy: sets TCP parameters of flows as the rules of a compiled policy say
 * (sockops; tables in thalweg_policy_abi.h).
 *
 * It covers what the published TCP-BPF samples do, from a table instead of one
 * program an effect. Departures from them:
 *  - flags of callbacks, and answers to what the kernel asks, are left to other
 *    programs where no rule speaks: nothing is overwritten;
 *  - a flow keeps the rule it was given while policies change;
 *  - what fails is counted by operation, stage and errno.
 *
 * Nothing here runs per packet unless a rule asks for it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "thalweg_compat.h"
#include "thalweg_policy_abi.h"

char LICENSE[] SEC("license") = "GPL";

/* Stages after the handshake: what a flow was given is kept for them. */
#define LATER                                                                                 \
	(1u << THALWEG_STAGE_RETRANSMIT | 1u << THALWEG_STAGE_RTO | 1u << THALWEG_STAGE_RTT | \
	 1u << THALWEG_STAGE_CLOSE)
/* Stages of connections: all but a listener's. */
#define CONNECTIONS (0xffu & ~(1u << THALWEG_STAGE_LISTEN))
/* Stages before its end: what a flow was given is remembered from there on. */
#define EARLY (1u << THALWEG_STAGE_CONNECT | 1u << THALWEG_STAGE_ASKED)
/* A handshake that began this long ago is over or dead: its slot may be taken. */
#define HANDSHAKE_NS (130 * 1000 * 1000 * 1000ull)
/* Rules of a chain of nodes, and the nodes. */
#define STEPS (2 * THALWEG_POLICY_MAX_CANDIDATES + 2)

/* A section of its own: the loader writes this map's value whole before load. */
const volatile struct thalweg_policy_head head SEC(".rodata.head") = {};

/* The loader gives these maps the policy's size. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key4);
	__type(value, __u32);
} prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, __u32);
} prefixes6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_node);
} nodes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_flow);
} actions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_policy_counters);
} counters SEC(".maps");

/* Arms of each set that rules name, by the number of the set; the loader and the agent write it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MAX_ARM_SETS + 1);
	__type(key, __u32);
	__type(value, __u32);
} arm_sets SEC(".maps");

/* What the programs of named cgroups (policy_mark.bpf.c) say of the event under way. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MARKS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_mark);
} marks SEC(".maps");

/* The maps from here on outlive a policy: pinned, and shared by all instances. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_POLICY_MAX_TEXTS);
	__type(key, __u32);
	__type(value, struct thalweg_policy_text);
} texts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct thalweg_policy_failure);
	__type(value, __u64);
} failures SEC(".maps");

/*
 * Flows in their handshake, in an array like learn's: socket storage and hash maps cost
 * several times as much a connection, and request sockets cannot have socket storage.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_POLICY_HANDSHAKES);
	__type(key, __u32);
	__type(value, struct thalweg_policy_handshake);
} handshakes SEC(".maps");

/* Established flows whose rule has something to do later on. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_policy_flow);
} flows SEC(".maps");

/* Listeners that write options; what they accept inherits the mark as it does the flag. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} listeners SEC(".maps");

/* learn's map of that name: sockets that it leaves alone (0), or may give some arms (a mask). */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u32);
} owned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

/*
 * A flow, as conditions see it. No pointers: it goes to global functions, which the verifier
 * checks once and not again for every path that leads there. (Those that need the context
 * cannot be global: Linux 6.1 wants kernel BTF for that.)
 */
struct query {
	__u32 remote[4]; /* network byte order, IPv4 mapped */
	__u32 local[4];
	__u64 netns;
	__u32 needs; /* flags that a rule must have: family and direction */
	__u32 cgroups;
	__u32 draw; /* one random number a flow */
	__u32 listener; /* there is no remote end */
	__u32 remote_port; /* host byte order */
	__u32 local_port;
};

/* The head, hidden from the compiler, which would fold its initial zeros. */
static __always_inline const struct thalweg_policy_head *load_head(void)
{
	const struct thalweg_policy_head *p = (const struct thalweg_policy_head *)&head;

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

static __always_inline int same_prefix(const __u32 *a, const __u32 *b, __u32 prefix_len)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < 4; i++)
		if ((a[i] ^ b[i]) & prefix_mask(prefix_len, i))
			return 0;
	return 1;
}

static __always_inline int in_ranges(const struct thalweg_policy_ports *ranges, __u32 port)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < THALWEG_POLICY_MAX_PORTS; i++)
		if (ranges[i].first <= port && port <= ranges[i].last)
			return 1;
	return 0;
}

/*
 * The precedence of a rule whose conditions hold (but for the remote prefix): greater goes
 * first; 0 where they do not. Global: verified once, not in every turn of a loop.
 */
__noinline __u64 rank(struct thalweg_policy_rule *rule, struct query *q)
{
	__u64 never;

	if (!rule || !q)
		return 0;
	if ((rule->flags & q->needs) != q->needs)
		return 0;
	if (rule->netns && rule->netns != q->netns)
		return 0;
	if (rule->cgroups && !(rule->cgroups & q->cgroups))
		return 0;
	if (rule->sample && q->draw >= rule->sample)
		return 0;
	if (rule->local_len && !same_prefix((__u32 *)rule->local, q->local, rule->local_len))
		return 0;
	if (rule->same_len && (q->listener || !same_prefix(q->remote, q->local, rule->same_len)))
		return 0;
	if (rule->flags & THALWEG_RULE_REMOTE_PORTS &&
	    (q->listener || !in_ranges(rule->remote_ports, q->remote_port)))
		return 0;
	if (rule->flags & THALWEG_RULE_LOCAL_PORTS && !in_ranges(rule->local_ports, q->local_port))
		return 0;
	never = rule->flags & THALWEG_RULE_NEVER ? 1 : 0;
	return never << 62 | (__u64)rule->remote_len << 48 | (__u64)rule->local_len << 40 |
	       (~rule->id & 0xffffffffu);
}

/* The id of the rule that holds for a flow, or THALWEG_POLICY_NONE. */
__noinline __u32 find(struct query *q)
{
	__u32 i, node, at = 0, left = 0, found = THALWEG_POLICY_NONE;
	struct thalweg_policy_key4 key4 = { 32, {} };
	struct thalweg_policy_key6 key6 = { 128, {} };
	struct thalweg_policy_rule *rule;
	struct thalweg_policy_node *n;
	__u64 key, best = 0;
	__u32 *start = 0;

	if (!q)
		return found;
	node = q->needs & THALWEG_RULE_IPV4 ? 0 : 1;
	if (!q->listener) {
		if (node == 0) {
			__builtin_memcpy(key4.addr, &q->remote[3], sizeof(key4.addr));
			start = bpf_map_lookup_elem(&prefixes4, &key4);
		} else {
			__builtin_memcpy(key6.addr, q->remote, sizeof(key6.addr));
			start = bpf_map_lookup_elem(&prefixes6, &key6);
		}
		if (start)
			node = *start;
	}
	for (i = 0; i < STEPS; i++) {
		if (!left) {
			n = bpf_map_lookup_elem(&nodes, &node);
			if (!n)
				break;
			at = n->first;
			left = n->rules;
			node = n->parent;
			continue;
		}
		rule = bpf_map_lookup_elem(&rules, &at);
		if (!rule)
			break;
		at++;
		left--;
		key = rank(rule, q);
		if (!key)
			continue;
		/* The others of this node come after it. */
		left = 0;
		if (key > best) {
			best = key;
			found = rule->id;
		}
	}
	return found;
}

/* The bits of named cgroups that the socket lies in; their programs ran just before. */
static __always_inline __u32 marked(struct bpf_sock_ops *ops)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_mark *mark;
	__u64 cookie;
	__u32 slot;

	if (!(h->flags & THALWEG_POLICY_CGROUPS))
		return 0;
	cookie = bpf_get_socket_cookie(ops);
	slot = cookie & (THALWEG_POLICY_MARKS - 1);
	mark = bpf_map_lookup_elem(&marks, &slot);
	if (!mark || mark->cookie != cookie || mark->op != ops->op)
		return h->cgroups;
	mark->cookie = 0;
	return mark->cgroups | h->cgroups;
}

/* Both addresses, IPv4 mapped; the flag of the family, or 0 for what is no TCP over IP. */
static __always_inline __u32 addresses(struct bpf_sock_ops *ops, __u32 *remote, __u32 *local)
{
	const __u32 mapped = bpf_htonl(0xffff);

	if (ops->family == AF_INET) {
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = mapped;
		remote[3] = ops->remote_ip4;
		local[0] = 0;
		local[1] = 0;
		local[2] = mapped;
		local[3] = ops->local_ip4;
		return THALWEG_RULE_IPV4;
	}
	if (ops->family != AF_INET6)
		return 0;
	remote[0] = ops->remote_ip6[0];
	remote[1] = ops->remote_ip6[1];
	remote[2] = ops->remote_ip6[2];
	remote[3] = ops->remote_ip6[3];
	local[0] = ops->local_ip6[0];
	local[1] = ops->local_ip6[1];
	local[2] = ops->local_ip6[2];
	local[3] = ops->local_ip6[3];
	if (!remote[0] && !remote[1] && remote[2] == mapped)
		return THALWEG_RULE_IPV4;
	return THALWEG_RULE_IPV6;
}

/* Finds the rule of a flow: its id, or THALWEG_POLICY_NONE. */
static __noinline __u32 look_up(struct bpf_sock_ops *ops, __u32 direction)
{
	const struct thalweg_policy_head *h = load_head();
	struct query q = {};
	__u32 family;

	family = addresses(ops, q.remote, q.local);
	if (!family)
		return THALWEG_POLICY_NONE;
	q.needs = direction | family;
	q.listener = ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB;
	/* remote_port is in network byte order, local_port is not (UAPI). */
	q.remote_port = bpf_ntohl(ops->remote_port);
	q.local_port = ops->local_port;
	if (h->flags & THALWEG_POLICY_NETNS)
		q.netns = bpf_get_netns_cookie(ops);
	if (h->flags & THALWEG_POLICY_SAMPLES)
		q.draw = bpf_get_prandom_u32();
	q.cgroups = marked(ops);
	return find(&q);
}

static __always_inline struct thalweg_policy_counters *
counters_of(const struct thalweg_policy_flow *flow)
{
	__u32 rule = flow->rule;

	/* An earlier policy's flow: its counters are gone with it. */
	if (flow->generation != load_head()->generation)
		return 0;
	return bpf_map_lookup_elem(&counters, &rule);
}

/* What a rule gives; NULL for THALWEG_POLICY_NONE. Counts the flow. */
static __always_inline struct thalweg_policy_flow *give(__u32 rule)
{
	struct thalweg_policy_counters *count = bpf_map_lookup_elem(&counters, &rule);

	if (count)
		__sync_fetch_and_add(&count->matched, 1);
	return bpf_map_lookup_elem(&actions, &rule);
}

static __always_inline struct thalweg_policy_handshake *handshake_slot(__u64 cookie, __u32 probe)
{
	__u32 slot = (cookie + probe) & (THALWEG_POLICY_HANDSHAKES - 1);

	return bpf_map_lookup_elem(&handshakes, &slot);
}

/* Which of its slots a handshake lies in, from 1; 0 = in none. */
__noinline __u32 probe_of(__u64 cookie)
{
	struct thalweg_policy_handshake *slot;
	__u32 i;

	for (i = 0; i < THALWEG_POLICY_PROBES; i++) {
		slot = handshake_slot(cookie, i);
		if (slot && slot->cookie == cookie)
			return i + 1;
	}
	return 0;
}

static __always_inline struct thalweg_policy_handshake *handshake_of(__u64 cookie)
{
	__u32 probe = probe_of(cookie);

	if (probe < 1 || probe > THALWEG_POLICY_PROBES)
		return 0;
	return handshake_slot(cookie, probe - 1);
}

/*
 * Remembers what a flow was given until its handshake is over. Where all slots are taken
 * it is not (0): the flow is then looked up again at the next stage.
 */
static __always_inline __u32 remember(__u64 cookie, const struct thalweg_policy_flow *flow)
{
	__u64 now = bpf_ktime_get_ns(), taken_by;
	struct thalweg_policy_handshake *slot;
	__u32 i;

	for (i = 0; i < THALWEG_POLICY_PROBES; i++) {
		slot = handshake_slot(cookie, i);
		if (!slot)
			return 0;
		taken_by = slot->cookie;
		if (taken_by && now - slot->since_ns < HANDSHAKE_NS)
			continue;
		if (__sync_val_compare_and_swap(&slot->cookie, taken_by, cookie) != taken_by)
			continue;
		slot->since_ns = now;
		if (flow) {
			slot->flow = *flow;
		} else {
			slot->flow.rule = THALWEG_POLICY_NONE;
			slot->flow.generation = load_head()->generation;
			slot->flow.stages = 0;
			slot->flow.count = 0;
			slot->flow.flags = 0;
		}
		return i + 1;
	}
	return 0;
}

/*
 * The rule of a flow in its handshake: what is remembered, or else looked up now. Which
 * of its slots it lies in, from 1; 0 if it could not be remembered.
 */
static __noinline int handshake(struct bpf_sock_ops *ops, __u64 cookie, __u32 direction)
{
	__u32 probe = probe_of(cookie);

	if (!probe)
		probe = remember(cookie, give(look_up(ops, direction)));
	return probe;
}

/* As above; NULL where there is nothing to do for it. */
static __always_inline struct thalweg_policy_flow *handshake_flow(struct bpf_sock_ops *ops,
								  __u64 cookie, __u32 direction)
{
	int probe = handshake(ops, cookie, direction);
	struct thalweg_policy_handshake *slot;

	if (probe < 1 || probe > THALWEG_POLICY_PROBES)
		return 0;
	slot = handshake_slot(cookie, probe - 1);
	if (!slot || slot->flow.rule == THALWEG_POLICY_NONE)
		return 0;
	return &slot->flow;
}

static __always_inline void count_failure(const struct thalweg_policy_flow *flow, __u32 op,
					  __u32 stage, int error)
{
	struct thalweg_policy_failure key = {};
	__u64 one = 1, *count;

	key.generation = flow->generation;
	key.rule = flow->rule;
	key.op = op;
	key.stage = stage;
	key.error = error;
	count = bpf_map_lookup_elem(&failures, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&failures, &key, &one, BPF_NOEXIST);
}

/* The learner leaves the socket's congestion control alone from now on. */
static __always_inline void own(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;

	__u32 *arms;

	if (!sk)
		return;
	arms = bpf_sk_storage_get(&owned, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (arms)
		*arms = 0;
}

/* The learner gives the socket one of a set of arms, unless the application has chosen. */
static __always_inline void learn_from(struct bpf_sock_ops *ops, __u32 set)
{
	struct bpf_sock *sk = ops->sk;
	__u32 *from, mask;

	from = bpf_map_lookup_elem(&arm_sets, &set);
	if (!from || !sk || bpf_sk_storage_get(&owned, sk, 0, 0))
		return;
	mask = *from;
	from = bpf_sk_storage_get(&owned, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (from)
		*from = mask;
}

static __always_inline int is_ipv4(struct bpf_sock_ops *ops)
{
	__u32 remote[4], local[4];

	return addresses(ops, remote, local) == THALWEG_RULE_IPV4;
}

static __always_inline int set_int(struct bpf_sock_ops *ops, const struct thalweg_policy_op *op)
{
	int value = op->value;

	return bpf_setsockopt(ops, op->level, op->name, &value, sizeof(value));
}

static __always_inline int set_text(struct bpf_sock_ops *ops, const struct thalweg_policy_op *op)
{
	char text[THALWEG_POLICY_NAME];
	struct thalweg_policy_text *from;
	__u32 index = op->text;
	int error;

	from = bpf_map_lookup_elem(&texts, &index);
	if (!from)
		return -1;
	__builtin_memcpy(text, from->text, sizeof(text));
	error = bpf_setsockopt(ops, op->level, op->name, text, sizeof(text));
	if (!error && op->level == SOL_TCP && op->name == TCP_CONGESTION)
		own(ops);
	return error;
}

/* Sets the type of service (traffic class) that the peer's SYN had. */
static __always_inline int reflect_tos(struct bpf_sock_ops *ops)
{
	__u8 ip[4] = {};
	int tos, error;

	/* The rest does not fit, and is not wanted. */
	error = bpf_getsockopt(ops, SOL_TCP, TCP_BPF_SYN_IP, ip, sizeof(ip));
	if (error < 0 && error != -ENOSPC)
		return error;
	if (ip[0] >> 4 == 4) {
		tos = ip[1];
		return bpf_setsockopt(ops, SOL_IP, IP_TOS, &tos, sizeof(tos));
	}
	tos = (ip[0] << 4 | ip[1] >> 4) & 0xff;
	return bpf_setsockopt(ops, SOL_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
}

/* Reads the peer's option out of the SYN or the SYN-ACK. 1: read, 0: there is none. */
static __always_inline int read_option(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	__u8 option[THALWEG_OPTION_LENGTH] = { THALWEG_OPTION_KIND, 4, THALWEG_OPTION_MAGIC >> 8,
					       THALWEG_OPTION_MAGIC & 0xff };
	__u64 from = ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ? BPF_LOAD_HDR_OPT_TCP_SYN : 0;

	if (bpf_load_hdr_opt(ops, option, sizeof(option), from) != sizeof(option))
		return 0;
	flow->received = (__u32)option[4] << 24 | option[5] << 16 | option[6] << 8 | option[7];
	flow->has_received = 1;
	return 1;
}

/* Sends the flow's statistics, unless that was done less than `interval_us` ago. */
static __noinline int tell(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
			   __u32 interval_us)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 remote[4], local[4];
	struct thalweg_policy_event *event;
	struct bpf_sock *sk = ops->sk;
	struct bpf_tcp_sock *tp;

	if (!flow || !sk)
		return 0;
	if (flow->told_ns && now - flow->told_ns < interval_us * 1000ull)
		return 0;
	tp = bpf_tcp_sock(sk);
	if (!tp || !addresses(ops, remote, local))
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0;
	flow->told_ns = now;
	event->time_ns = now;
	event->connection = bpf_get_socket_cookie(ops);
	__builtin_memcpy(event->local, local, sizeof(local));
	__builtin_memcpy(event->remote, remote, sizeof(remote));
	event->local_port = ops->local_port;
	event->remote_port = bpf_ntohl(ops->remote_port);
	event->rule = flow->rule;
	event->generation = flow->generation;
	event->bytes_acked = tp->bytes_acked;
	event->bytes_received = tp->bytes_received;
	event->delivered = tp->delivered;
	event->delivered_ce = tp->delivered_ce;
	event->retrans = tp->total_retrans;
	event->dsack_dups = tp->dsack_dups;
	event->srtt_us = tp->srtt_us >> 3;
	event->min_rtt_us = tp->rtt_min;
	event->snd_cwnd = tp->snd_cwnd;
	event->snd_ssthresh = tp->snd_ssthresh;
	event->received = flow->received;
	event->has_received = flow->has_received;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Carries out one operation of a flow, and counts what became of it. */
static __noinline int carry_out_one(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
				    __u32 place, __u32 stage)
{
	struct thalweg_policy_counters *count;
	struct thalweg_policy_op *op;
	int error;

	if (place >= THALWEG_POLICY_MAX_OPS)
		return 0;
	op = &flow->ops[place];
	if (!(op->stages & 1u << (stage & 7)))
		return 0;
	switch (op->kind) {
	case THALWEG_OP_SET_INT:
		/* A traffic class is set by two operations: one is the family's. */
		if ((op->level == SOL_IP || op->level == SOL_IPV6) &&
		    op->level == (is_ipv4(ops) ? SOL_IPV6 : SOL_IP))
			return 0;
		error = set_int(ops, op);
		break;
	case THALWEG_OP_SET_TEXT:
		error = set_text(ops, op);
		break;
	case THALWEG_OP_REFLECT_TOS:
		if (ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
			return 0;
		error = reflect_tos(ops);
		break;
	case THALWEG_OP_LEARN_FROM:
		learn_from(ops, op->value);
		error = 0;
		break;
	case THALWEG_OP_STATISTICS:
		return tell(ops, flow, op->value);
	default:
		return 0;
	}
	if (error)
		count_failure(flow, place, stage, error);
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(error ? &count->failed : &count->done, 1);
	return 0;
}

/* Carries out what a flow was given for a stage. */
static __noinline int carry_out(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow,
				__u32 stage)
{
	__u32 i;

	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++) {
		if (i >= flow->count)
			break;
		carry_out_one(ops, flow, i, stage);
	}
	return 0;
}

/* The place of the first operation of a kind, or -1. Global: see rank. */
__noinline int op_of(struct thalweg_policy_flow *flow, __u32 kind)
{
	__u32 i;

	if (!flow)
		return -1;
	for (i = 0; i < THALWEG_POLICY_MAX_OPS; i++) {
		if (i >= flow->count)
			break;
		if (flow->ops[i].kind == kind)
			return i;
	}
	return -1;
}

/* Asks for (or gives back) callbacks without touching what others asked for. */
static __always_inline void callbacks(struct bpf_sock_ops *ops, int on, int off)
{
	int have = ops->bpf_sock_ops_cb_flags, want = (have | on) & ~off;

	if (want != have)
		bpf_sock_ops_cb_flags_set(ops, want);
}

static __always_inline void connecting(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow;

	if (!(load_head()->stages & EARLY))
		return;
	flow = handshake_flow(ops, bpf_get_socket_cookie(ops), THALWEG_RULE_ACTIVE);
	if (!flow)
		return;
	if (flow->flags & THALWEG_FLOW_NEVER) {
		own(ops);
		return;
	}
	carry_out(ops, flow, THALWEG_STAGE_CONNECT);
	if (flow->flags & THALWEG_FLOW_SENDS)
		callbacks(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
}

static __always_inline void listening(struct bpf_sock_ops *ops)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;
	int one = 1;
	__u32 rule;

	/* Any listener may get a connection whose rule needs these. */
	if (h->flags & THALWEG_POLICY_SAVE_SYN)
		bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &one, sizeof(one));
	if (h->flags & THALWEG_POLICY_OPTIONS && sk) {
		bpf_sk_storage_get(&listeners, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		callbacks(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
	}
	if (!(h->stages & 1u << THALWEG_STAGE_LISTEN))
		return;
	rule = look_up(ops, THALWEG_RULE_PASSIVE);
	flow = bpf_map_lookup_elem(&actions, &rule);
	if (flow && !(flow->flags & THALWEG_FLOW_NEVER))
		carry_out(ops, flow, THALWEG_STAGE_LISTEN);
}

/* Answers what the kernel asks for, where the flow's rule does. */
static __always_inline void asked(struct bpf_sock_ops *ops, __u32 kind)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_counters *count;
	struct thalweg_policy_flow *flow = 0;
	__u32 tick = h->jiffy_us, direction;
	struct bpf_sock *sk = ops->sk;
	__u64 cookie, value;
	int place;

	if (!(h->stages & 1u << THALWEG_STAGE_ASKED))
		return;
	cookie = bpf_get_socket_cookie(ops);
	if (kind == THALWEG_OP_BASE_RTT) {
		/* Congestion controls ask when they begin: after the handshake, too. */
		struct thalweg_policy_handshake *slot = handshake_of(cookie);

		if (slot)
			flow = &slot->flow;
		else if (sk)
			flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	} else {
		direction = sk ? THALWEG_RULE_ACTIVE : THALWEG_RULE_PASSIVE;
		flow = handshake_flow(ops, cookie, direction);
	}
	if (!flow)
		return;
	place = op_of(flow, kind);
	if (place < 0 || place >= THALWEG_POLICY_MAX_OPS)
		return;
	value = flow->ops[place].value;
	if (kind == THALWEG_OP_TIMEOUT_INIT && tick)
		value = (value + tick - 1) / tick;
	ops->reply = value;
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(&count->asked, 1);
}

/* Keeps what a flow was given beyond its handshake, and asks for its callbacks. */
static __noinline int keep(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	struct thalweg_policy_flow *kept;
	struct bpf_sock *sk = ops->sk;
	int on = 0;

	if (!flow || !sk)
		return 0;
	kept = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return 0;
	*kept = *flow;
	if (flow->stages & 1u << THALWEG_STAGE_RETRANSMIT)
		on |= BPF_SOCK_OPS_RETRANS_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_RTO)
		on |= BPF_SOCK_OPS_RTO_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_RTT)
		on |= BPF_SOCK_OPS_RTT_CB_FLAG;
	if (flow->stages & 1u << THALWEG_STAGE_CLOSE)
		on |= BPF_SOCK_OPS_STATE_CB_FLAG;
	callbacks(ops, on, 0);
	return 1;
}

/* The stage ESTABLISHED of a flow with a rule. */
static __noinline int settle(struct bpf_sock_ops *ops, struct thalweg_policy_flow *flow)
{
	if (!flow)
		return 0;
	if (flow->flags & THALWEG_FLOW_NEVER) {
		own(ops);
		return 0;
	}
	if (flow->flags & THALWEG_FLOW_KEEPS)
		keep(ops, flow);
	carry_out(ops, flow, THALWEG_STAGE_ESTABLISHED);
	return 1;
}

static __always_inline void established(struct bpf_sock_ops *ops, __u32 direction)
{
	const struct thalweg_policy_head *h = load_head();
	struct thalweg_policy_handshake *slot = 0;
	struct thalweg_policy_counters *count;
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;
	__u32 *mark, reads;

	if (!sk)
		return;
	/* The options of a handshake are written: from here on that would be per packet. */
	if (ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG) {
		mark = bpf_sk_storage_get(&listeners, sk, 0, 0);
		if (mark)
			callbacks(ops, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	}
	if (h->flags & THALWEG_POLICY_REMEMBERS)
		slot = handshake_of(bpf_get_socket_cookie(ops));
	if (slot) {
		flow = &slot->flow;
		if (flow->rule == THALWEG_POLICY_NONE) {
			slot->cookie = 0;
			return;
		}
		if (direction == THALWEG_RULE_ACTIVE && flow->flags & THALWEG_FLOW_SENDS)
			callbacks(ops, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		reads = flow->flags & THALWEG_FLOW_READS;
		settle(ops, flow);
		slot->cookie = 0;
	} else {
		if (!(h->stages & CONNECTIONS))
			return;
		flow = give(look_up(ops, direction));
		if (!flow)
			return;
		reads = flow->flags & THALWEG_FLOW_READS;
		settle(ops, flow);
	}
	if (!reads)
		return;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!flow || !read_option(ops, flow))
		return;
	count = counters_of(flow);
	if (count)
		__sync_fetch_and_add(&count->done, 1);
}

static __always_inline void later(struct bpf_sock_ops *ops, __u32 stage)
{
	struct thalweg_policy_flow *flow;
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return;
	flow = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (flow && flow->stages & 1u << stage)
		carry_out(ops, flow, stage);
}

/* The flow whose SYN or SYN-ACK is being written, if its rule sends the option. */
static __always_inline struct thalweg_policy_flow *sending(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow;

	if (ops->is_fullsock && ops->state != BPF_TCP_SYN_SENT)
		return 0;
	flow = handshake_flow(ops, bpf_get_socket_cookie(ops),
			      ops->is_fullsock ? THALWEG_RULE_ACTIVE : THALWEG_RULE_PASSIVE);
	return flow && flow->flags & THALWEG_FLOW_SENDS ? flow : 0;
}

static __always_inline void reserve_option(struct bpf_sock_ops *ops)
{
	if (ops->args[0] != BPF_WRITE_HDR_TCP_CURRENT_MSS && sending(ops))
		bpf_reserve_hdr_opt(ops, THALWEG_OPTION_LENGTH, 0);
}

/* FNV-1a of the name of the congestion control in use; 0 where it is not known yet. */
static __always_inline __u32 hash_of_cc(struct bpf_sock_ops *ops)
{
	char name[THALWEG_POLICY_NAME] = {};
	__u32 i, hash = 2166136261u;

	if (!ops->is_fullsock || bpf_getsockopt(ops, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	for (i = 0; i < sizeof(name); i++) {
		if (!name[i])
			break;
		hash = (hash ^ (__u8)name[i]) * 16777619u;
	}
	return hash;
}

static __always_inline void write_option(struct bpf_sock_ops *ops)
{
	struct thalweg_policy_flow *flow = sending(ops);
	__u8 option[THALWEG_OPTION_LENGTH] = {};
	struct thalweg_policy_counters *count;
	__u32 value;
	int place, error;

	if (!flow)
		return;
	place = op_of(flow, THALWEG_OP_SEND_OPTION);
	if (place >= 0 && place < THALWEG_POLICY_MAX_OPS) {
		value = flow->ops[place].value;
	} else {
		place = op_of(flow, THALWEG_OP_SEND_OPTION_CC);
		value = hash_of_cc(ops);
	}
	option[0] = THALWEG_OPTION_KIND;
	option[1] = THALWEG_OPTION_LENGTH;
	option[2] = THALWEG_OPTION_MAGIC >> 8;
	option[3] = THALWEG_OPTION_MAGIC & 0xff;
	option[4] = value >> 24;
	option[5] = value >> 16;
	option[6] = value >> 8;
	option[7] = value;
	error = bpf_store_hdr_opt(ops, option, sizeof(option), 0);
	count = counters_of(flow);
	if (error)
		count_failure(flow, place,
			      ops->is_fullsock ? THALWEG_STAGE_CONNECT : THALWEG_STAGE_ASKED,
			      error);
	if (count)
		__sync_fetch_and_add(error ? &count->failed : &count->done, 1);
}

SEC("sockops")
int policy_sockops(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connecting(ops);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listening(ops);
		break;
	case BPF_SOCK_OPS_TIMEOUT_INIT:
		asked(ops, THALWEG_OP_TIMEOUT_INIT);
		break;
	case BPF_SOCK_OPS_RWND_INIT:
		asked(ops, THALWEG_OP_RWND_INIT);
		break;
	case BPF_SOCK_OPS_NEEDS_ECN:
		asked(ops, THALWEG_OP_NEEDS_ECN);
		break;
	case BPF_SOCK_OPS_BASE_RTT:
		asked(ops, THALWEG_OP_BASE_RTT);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		established(ops, THALWEG_RULE_ACTIVE);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established(ops, THALWEG_RULE_PASSIVE);
		break;
	case BPF_SOCK_OPS_RETRANS_CB:
		later(ops, THALWEG_STAGE_RETRANSMIT);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		later(ops, THALWEG_STAGE_RTO);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		later(ops, THALWEG_STAGE_RTT);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ops->args[1] == BPF_TCP_CLOSE)
			later(ops, THALWEG_STAGE_CLOSE);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve_option(ops);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write_option(ops);
		break;
	}
	return 1;
}

/* For tests: find() on a query that comes as packet data. Not loaded otherwise. */
SEC("?tc")
int policy_find(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct query q;

	if (data + sizeof(q) > end)
		return -2;
	__builtin_memcpy(&q, data, sizeof(q));
	return find(&q);
}
