/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: its maps, and the state of an operation on a socket. */
#ifndef THALWEG_LEARN_STATE_H
#define THALWEG_LEARN_STATE_H

#include "learn_socket.h"
#include "thalweg_window.h"

/* A section of its own: the agent writes this map's value whole before load. */
const volatile struct thalweg_params params SEC(".rodata.params") = {};

struct thalweg_lock {
	struct bpf_spin_lock lock;
};

/*
 * Once it is full, new hosts get no record until the agent has made room: an LRU map would
 * give known hosts away for new ones.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_DEFAULT_HOSTS);
	__type(key, struct thalweg_host_key);
	__type(value, struct thalweg_host);
} hosts SEC(".maps");

/* Prefixes behind which an address is an IPv4 one. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_nat64_table);
} nat64 SEC(".maps");

/* Writers of `hosts` take lock `tag % THALWEG_LOCKS`. */
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

/* Read and written only by the agent: the version of this file that owns the pins. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_meta);
} meta SEC(".maps");

/*
 * Default arm of a network namespace, THALWEG_NO_ARM if the default is not an arm.
 * Written by the agent. Connections of other namespaces are not touched: a user who may
 * create namespaces could otherwise train the learner, and fill its tables.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} defaults SEC(".maps");

/*
 * The same for most namespaces, without the cost of a search (a tenth of a decision). Of
 * those with the same slot it has one. Written by the agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_NAMESPACES);
	__type(key, __u32);
	__type(value, __u64);
} namespaces SEC(".maps");

/* Namespaces that are not in `defaults` and had a connection, for the agent to check. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, THALWEG_STRANGERS);
	__type(key, __u64);
	__type(value, __u64); /* bpf_ktime_get_ns() of the first connection */
} strangers SEC(".maps");

/*
 * Remote prefixes where arms that need ECN may be chosen; 0: they may not. One more keeps IPv4
 * out of ::/0. Written by the agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, THALWEG_ECN_PREFIXES + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, __u32);
} ecn_prefixes SEC(".maps");

/*
 * Connections being measured. A connection has one of THALWEG_PROBES slots, given by its
 * socket cookie. Neither socket storage nor a hash map, which cost 0.8 and 0.4 us a
 * connection. The agent reads it whole every now and then, and maps it into its memory.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THALWEG_CONNECTIONS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct thalweg_conn);
} conns SEC(".maps");

/*
 * Sockets with an owner. 0 if the application chose its congestion control itself, or a
 * policy did; otherwise the mask of arms that a policy allows (policy.bpf.c has this
 * map, too), and flags beside it. BPF_F_CLONE: accepted connections inherit a listener's mark.
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
 * Congestion controls that ran instead of an arm, and how often: another program, a route or the
 * arm itself set them. Its values are counts of stretches.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_OVERRIDDEN);
	__type(key, struct thalweg_cc_name);
	__type(value, __u64);
} overridden SEC(".maps");

/* Flag in request.allowed: the connection belongs to the control group. */
#define IN_CONTROL (1u << 30)
/* Flag in request.allowed of learn: a trial is over. */
#define TRIAL_OVER (1u << 29)
/* Flag in request.allowed: a trial of advice, which gets request.arm. */
#define DRAWN (1u << 28)
/* Whether the record would decide is asked; nothing is decided or counted. */
#define ONLY_ASKED (1u << 27)

/*
 * A request to a host record. It goes to the functions that hold the lock. Those are
 * global, so that the verifier checks each of them once, and not again for every path to
 * it. So it has no pointers. It is on the stack. Linux 6.1 allows 512 bytes to a chain
 * of calls and counts each in steps of 32. No step is left.
 */
struct request {
	struct thalweg_host_key key;
	__u64 tag;
	__u64 now_ns;
	union {
		struct {
			__u32 segs; /* change */
			__u32 retrans; /* change */
		};
		struct thalweg_decision decision; /* result of choose and change */
		__u32 random[3]; /* choose: read before the decision is written; saves stack */
	};
	__u32 arm; /* the connection's arm (learn, change); the one that was drawn (choose) */
	__u32 system_arm;
	__u32 allowed; /* mask of arms (choose, change); THALWEG_NO_TRIALS, and the bits above */
};

/* Probability of each arm in a decision, Q16 in 16 bits. */
struct shares {
	__u16 q16[THALWEG_MAX_ARMS] __attribute__((aligned(8)));
};

/* A sample for a host record. */
struct lesson {
	struct thalweg_sample sample;
	struct thalweg_verdict verdict; /* the outcome so far; then the record's verdict */
};

/* State of one socket operation, shared by its steps. */
struct context {
	struct learn_handle *ops;
	const struct thalweg_params *params;
	struct thalweg_counters *counters;
	struct thalweg_arms *arms;
	struct learn_sock *sk;
	struct tcp_sock *tcp; /* see find_tcp() */
	struct thalweg_origin *origin;
	struct thalweg_conn *conn;
	__u64 cookie; /* of the socket */
	struct request *request; /* apart, as it has an address: the rest is in registers */
};

/* Atomic although per CPU: a softirq may interrupt this program and run it again. */
#define COUNT(context, field) __sync_fetch_and_add(&(context)->counters->field, 1)

/* The parameters, hidden from the compiler, which would fold their initial zeros. */
static __always_inline const struct thalweg_params *load_params(void)
{
	const struct thalweg_params *p = (const struct thalweg_params *)&params;

	barrier_var(p);
	return p;
}

/* An address, as a global function takes it. */
struct address {
	__u32 words[4];
};

/* An IPv6 address that is behind NAT64 becomes its IPv4 address. Global: verified once. */
__noinline int unwrap(struct address *address)
{
	struct thalweg_nat64_table *table;
	__u32 zero = 0;

	table = bpf_map_lookup_elem(&nat64, &zero);
	if (!address || !table)
		return 0;
	thalweg_unwrap(address->words, table->prefixes);
	return 0;
}

/*
 * The remote address in the form of records, policies and prefixes: IPv4 also where it is
 * mapped, or behind NAT64. Returns the form's family, which spares callers to look at the
 * address again; 0 if it is not TCP over IP.
 */
static __always_inline __u32 host_of(struct learn_handle *ops, __u32 *remote)
{
	__u32 family = remote_of(ops, remote);

	if (family != AF_INET6)
		return family;
	if (!thalweg_is_ipv4(remote))
		unwrap((struct address *)remote);
	return thalweg_is_ipv4(remote) ? AF_INET : AF_INET6;
}

/* Cuts an address of a family; its prefix length in the key, by the lengths of both families. */
static __always_inline __u32 cut(__u32 *remote, __u32 family, __u32 ipv4_prefix, __u32 ipv6_prefix)
{
	__u32 bits = ipv6_prefix, i;

	if (family == AF_INET) {
		remote[3] &= prefix_mask(ipv4_prefix, 0);
		return THALWEG_MAPPED + ipv4_prefix;
	}
	for (i = 0; i < 4; i++)
		remote[i] &= prefix_mask(bits, i);
	return bits;
}

/*
 * The host's key without its namespace, and without the tag. Returns 0 for connections out
 * of scope: no TCP over IP, loopback, and link-local addresses, which mean another host on
 * each interface.
 */
static __always_inline int host_key(struct context *c)
{
	struct thalweg_host_key *key = &c->request->key;
	__u32 *remote = (__u32 *)key->addr, family = host_of(c->ops, remote);

	if (!family || thalweg_is_loopback(remote, family == AF_INET) ||
	    thalweg_is_link_local(remote, family == AF_INET))
		return 0;
	key->prefix_len = cut(remote, family, c->params->ipv4_prefix, c->params->ipv6_prefix);
	key->level = THALWEG_LEVEL_HOST;
	return 1;
}

/* The key with all of it; 0 for connections out of scope. */
static __always_inline int find_key(struct context *c)
{
	struct request *r = c->request;

	/* First, as the compiler then still has the address in registers for the tag. */
	r->key.netns = netns_of(c->ops);
	if (!host_key(c))
		return 0;
	r->tag = thalweg_tag(&r->key);
	return 1;
}

/* Whether connections of the socket's network namespace are out of scope. */
static __always_inline int is_outside(struct context *c, __u32 *default_arm)
{
	__u64 *netns = &c->request->key.netns, *known, entry;
	__u32 slot = (__u32)*netns * THALWEG_NAMESPACE_FACTOR >> THALWEG_NAMESPACE_SHIFT, *arm;

	known = bpf_map_lookup_elem(&namespaces, &slot);
	if (known) {
		entry = *known;
		if (entry >> 8 == *netns) {
			*default_arm = entry & 0xff;
			return 0;
		}
	}
	arm = bpf_map_lookup_elem(&defaults, netns);
	if (arm) {
		*default_arm = *arm;
		return 0;
	}
	return 1;
}

/*
 * Draws for the connection: IN_CONTROL, DRAWN with the arm in request.arm, or 0: the
 * learner chooses. Connections of a cluster (by default: to a host) share the draw for an
 * hour; some clusters are always in the control group.
 */
static __always_inline __u32 draw(struct context *c)
{
	const struct thalweg_params *p = c->params;
	const struct thalweg_host_key *host = &c->request->key;
	struct thalweg_host_key cluster;
	__u64 tag = c->request->tag;
	__u32 bits, family;

	if (!p->control_share_q16 && !p->control_permanent_q16 && !p->advise)
		return 0;
	bits = thalweg_is_ipv4((const __u32 *)host->addr) ? THALWEG_MAPPED + p->cluster_ipv4
							  : p->cluster_ipv6;
	if (bits != host->prefix_len) {
		cluster = *host;
		family = host_of(c->ops, (__u32 *)cluster.addr);
		cluster.prefix_len =
			cut((__u32 *)cluster.addr, family, p->cluster_ipv4, p->cluster_ipv6);
		tag = thalweg_tag(&cluster);
	}
	if (thalweg_is_control(tag, p, c->request->now_ns))
		return IN_CONTROL;
	if (!p->advise)
		return 0;
	if (c->request->allowed & THALWEG_NO_TRIALS)
		return IN_CONTROL;
	c->request->allowed |= 1u << (c->request->system_arm & THALWEG_ARM_MASK);
	c->request->arm = thalweg_drawn_arm(tag, c->request->allowed, p, c->request->now_ns);
	return DRAWN;
}

/* The first part of prepare(). */
static __always_inline int find_sock(struct context *c, struct learn_handle *ops)
{
	c->ops = ops;
	c->params = load_params();
	c->sk = sock_of(ops);
#ifdef THALWEG_ITERATOR
	c->tcp = ops;
#endif
	return c->sk != 0;
}

/* The other part. */
static __always_inline int find_maps(struct context *c)
{
	__u32 zero = 0;

	c->counters = bpf_map_lookup_elem(&counters, &zero);
	c->arms = bpf_map_lookup_elem(&arms, &zero);
	return c->counters && c->arms;
}

/* State that most operations need; returns 0 if there is nothing to do. */
static __always_inline int prepare(struct context *c, struct learn_handle *ops)
{
	return find_sock(c, ops) && find_maps(c);
}

/*
 * Asks for the kernel's own structure of the socket, where it can be read. Each operation does so
 * once, before what needs it: chronographs, names, the owner's mark. Returns 0 if there is none.
 */
static __always_inline int find_tcp(struct context *c)
{
#ifdef THALWEG_KERNEL_BTF
	c->tcp = kernel_tcp(c->sk);
	return c->tcp != 0;
#else
	return 1;
#endif
}

#ifdef THALWEG_KERNEL_BTF
/* Whether a socket is a subflow of MPTCP, where programs may ask for MPTCP's (Linux 5.19). */
static __always_inline int is_subflow(const struct tcp_sock *tcp)
{
	return bpf_core_field_exists(tcp->is_mptcp) && tcp->is_mptcp &&
	       bpf_core_type_exists(struct mptcp_sock) &&
	       bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_skc_to_mptcp_sock);
}

/* Whether no program has storage of the socket, as of most: it costs less than to ask for some. */
static __always_inline int has_no_storage(const struct tcp_sock *tcp)
{
	return !((const struct sock *)tcp)->sk_bpf_storage;
}
#endif

static __always_inline struct thalweg_conn *conn_slot(__u64 cookie, __u32 probe)
{
	__u32 slot = thalweg_conn_slot(cookie, probe);

	return bpf_map_lookup_elem(&conns, &slot);
}

/* Finds the record of a connection being measured; returns 0 if there is none. */
static __always_inline int find_conn(struct context *c, struct learn_handle *ops)
{
	__u32 i;

	c->cookie = bpf_get_socket_cookie(ops);
	for (i = 0; i < THALWEG_PROBES; i++) {
		c->conn = conn_slot(c->cookie, i);
		if (c->conn && c->conn->cookie == c->cookie) {
			c->origin = &c->conn->origin;
			return 1;
		}
	}
	return 0;
}

static __always_inline int occupy(struct thalweg_conn *slot, __u64 cookie)
{
	return !slot->cookie && !__sync_val_compare_and_swap(&slot->cookie, 0, cookie);
}

/*
 * Takes a slot for a new connection, which the caller fills; NULL if none is free. If
 * all its slots are taken, the oldest is reused: its connection may have ended unseen.
 */
static __always_inline struct thalweg_conn *take_slot(struct context *c)
{
	struct thalweg_conn *slot = conn_slot(c->cookie, 0), *oldest = slot;
	__u64 oldest_cookie;
	__u32 i;

	/* The first is nearly always free. */
	if (!slot || occupy(slot, c->cookie))
		return slot;
	for (i = 1; i < THALWEG_PROBES; i++) {
		slot = conn_slot(c->cookie, i);
		if (!slot || occupy(slot, c->cookie))
			return slot;
		if (slot->start_ns < oldest->start_ns)
			oldest = slot;
	}
	COUNT(c, conns_missed);
	oldest_cookie = oldest->cookie;
	if (__sync_val_compare_and_swap(&oldest->cookie, oldest_cookie, c->cookie) == oldest_cookie)
		return oldest;
	return 0;
}

/*
 * The mark of the socket's owner, or NULL. An application sets options of MPTCP on a socket whose
 * subflows are what programs see, so its mark is there. Iterators cannot reach it.
 */
static __always_inline __u32 *owner_mark(struct context *c)
{
#ifdef THALWEG_KERNEL_BTF
#ifndef THALWEG_ITERATOR
	struct mptcp_sock *mptcp;
	__u32 *mark;

	if (is_subflow(c->tcp)) {
		mptcp = bpf_skc_to_mptcp_sock(c->sk);
		mark = mptcp ? bpf_sk_storage_get(&owned, mptcp, 0, 0) : 0;
		if (mark)
			return mark;
	}
#endif
	if (has_no_storage(c->tcp))
		return 0;
#endif
	return bpf_sk_storage_get(&owned, c->sk, 0, 0);
}

/* Mask of the arms allowed for the socket, 0 if it must not be changed. */
static __always_inline __u32 permitted_arms(struct context *c)
{
	__u32 *arms = owner_mark(c);

	return arms ? *arms & ~THALWEG_MARK_FLAGS : ~0u;
}

/*
 * Likewise for a new connection. One without a mark whose congestion control was set before the
 * programs were attached, by its application or on its listener, is marked, where BTF tells.
 */
static __always_inline __u32 permitted_at_start(struct context *c)
{
	__u32 *arms = owner_mark(c);

	if (arms)
		return *arms & ~THALWEG_MARK_FLAGS;
#ifdef THALWEG_KERNEL_BTF
	if (is_chosen(c->tcp)) {
		bpf_sk_storage_get(&owned, c->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
		return 0;
	}
#endif
	return ~0u;
}

/* Whether a policy bounds the socket's window, or lets the socket alone. */
static __always_inline int owned_window(struct context *c)
{
	__u32 *arms = owner_mark(c);

	return arms && *arms & THALWEG_OWNED_WINDOW;
}

#ifdef THALWEG_KERNEL_BTF
/* No clamp: the largest number that TCP_BPF_SNDCWND_CLAMP takes; the kernel's own is ~0. */
#define UNCLAMPED 0x7fffffff

/* Whether nobody else bounds the congestion window: no policy, and no route. */
static __always_inline int is_free(const struct tcp_sock *tp, const __u32 *mine)
{
	return tp->snd_cwnd_clamp >= UNCLAMPED || (mine && *mine == tp->snd_cwnd_clamp);
}
#endif

/* Whether the socket's initial window must not be changed: its congestion control neither. */
static __always_inline int leaves_window(struct context *c)
{
	__u32 *arms = owner_mark(c);

	return arms && (*arms & THALWEG_OWNED_WINDOW || !(*arms & ~THALWEG_OWNED_BY_POLICY));
}

/* Whether the socket's stretches say something of the congestion control that the learner gave it. */
static __always_inline int is_scored(struct context *c)
{
	__u32 *arms = owner_mark(c);

	return !arms || (!(*arms & THALWEG_UNSCORED) && *arms & ~THALWEG_MARK_FLAGS);
}

/* Whether the application, or a policy, chose the socket's congestion control. */
static __always_inline int app_owned(struct context *c)
{
	return !permitted_arms(c);
}

#endif
