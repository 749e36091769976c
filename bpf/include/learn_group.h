/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: the records of groups of hosts (thalweg_group.h). */
#ifndef THALWEG_LEARN_GROUP_H
#define THALWEG_LEARN_GROUP_H

#include "learn_host.h"

/* Worth of wider knowledge to the records of each level. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_worths);
} worth SEC(".maps");

/* Numbers of the networks that the operator's table names, in network byte order; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, __u64);
} named SEC(".maps");

/* Whether there is such a table: without one the verifier removes the search. */
const volatile __u32 has_named SEC(".rodata.named") = 0;

/* Whether other agents tell of networks: without them the verifier removes their records. */
const volatile __u32 has_fleet SEC(".rodata.fleet") = 0;

/* Whether other agents may have told of groups of a level. */
static __always_inline int has_told(__u32 level)
{
	return has_fleet && level <= THALWEG_LEVEL_NAMED;
}

/* Whether there can be groups of a level. */
static __always_inline int has_level(__u32 level)
{
	return level != THALWEG_LEVEL_NAMED || has_named;
}

static __always_inline struct thalweg_worths *get_worths(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&worth, &zero);
}

/* The worths, if groups of a network namespace may know enough to decide; else NULL. */
static __always_inline struct thalweg_worths *groups_know(__u64 netns)
{
	struct thalweg_worths *worths = get_worths();

	return worths && worths->known >> (netns & 63) & 1 ? worths : 0;
}

/* Likewise of initial windows. */
static __always_inline struct thalweg_worths *windows_known(__u64 netns)
{
	struct thalweg_worths *worths = get_worths();

	return worths && worths->known_windows >> (netns & 63) & 1 ? worths : 0;
}

/* The word, and the bit in it, that say whether the group of a tag may have a record. */
static __always_inline __u64 *group_word(struct thalweg_worths *worths, __u64 tag)
{
	return &worths->groups[tag >> 22 & (THALWEG_GROUP_BITS / 64 - 1)];
}

static __always_inline __u64 group_bit(__u64 tag)
{
	return 1ull << (tag >> 16 & 63);
}

/* Class of an RTT: below 0.5, 2, 8, 16, 33, 66, 131 ms, and above. */
static __always_inline __u32 rtt_class(__u32 rtt_us)
{
	__u32 class;

	if (rtt_us < 1 << 13)
		class = (rtt_us >= 1 << 9) + (rtt_us >= 1 << 11);
	else if (rtt_us < 1 << 15)
		class = 3 + (rtt_us >= 1 << 14);
	else
		class = 5 + (rtt_us >= 1 << 16) + (rtt_us >= 1 << 17);
	return THALWEG_UNKNOWN(class);
}

/* The addresses around the remote one; 0 where a host's record has as many already. */
static __always_inline int prefix_key(const struct thalweg_params *p, struct learn_handle *ops,
				      struct thalweg_host_key *key)
{
	__u32 *remote = (__u32 *)key->addr, family = host_of(ops, remote);

	if (!family)
		return 0;
	if (family == AF_INET ? p->group_ipv4 >= p->ipv4_prefix : p->group_ipv6 >= p->ipv6_prefix)
		return 0;
	key->prefix_len = cut(remote, family, p->group_ipv4, p->group_ipv6);
	return 1;
}

/*
 * The number of the remote address' network in the operator's table. Not inlined, as the
 * caller has no stack for the prefix.
 */
static __noinline int named_key(struct learn_handle *ops, struct thalweg_host_key *key)
{
	struct thalweg_policy_key6 prefix = { 128, {} };
	const __u64 *number;

	if (!host_of(ops, (__u32 *)prefix.addr))
		return 0;
	number = bpf_map_lookup_elem(&named, &prefix);
	if (!number || !*number)
		return 0;
	__builtin_memset(key->addr, 0, 8);
	*(__u64 *)(key->addr + 8) = *number;
	return 1;
}

/* The level of groups that a level of initial windows, or of the fleet, is of; else its own. */
static __always_inline __u32 level_of_groups(__u32 level)
{
	if (level & THALWEG_LEVEL_FLEET)
		return level & ~THALWEG_LEVEL_FLEET;
	if (level == THALWEG_LEVEL_WINDOW_PREFIX)
		return THALWEG_LEVEL_PREFIX;
	if (level == THALWEG_LEVEL_WINDOW_SERVICE)
		return THALWEG_LEVEL_SERVICE;
	return level == THALWEG_LEVEL_WINDOW_NAMESPACE ? THALWEG_LEVEL_NAMESPACE : level;
}

/*
 * Puts the key of a connection's group of a level into the request, which has its namespace
 * already; 0 if it has none.
 */
static __always_inline int make_group_key(struct learn_handle *ops, struct request *r,
					  const struct thalweg_origin *origin, __u32 level)
{
	struct thalweg_host_key *key = &r->key;
	__u32 port;

	key->level = level;
	key->prefix_len = 128;
	level = level_of_groups(level);
	if (level == THALWEG_LEVEL_PREFIX) {
		if (!prefix_key(load_params(), ops, key))
			return 0;
	} else if (level == THALWEG_LEVEL_NAMED) {
		if (!named_key(ops, key))
			return 0;
	} else if (level == THALWEG_LEVEL_SERVICE) {
		if (!origin->handshake_rtt_us)
			return 0;
		/* The side that listens has the service's port. */
		port = origin->flags & THALWEG_CONN_PASSIVE ? local_port_of(ops)
							    : remote_port_of(ops);
		__builtin_memset(key->addr, 0, sizeof(key->addr));
		key->addr[12] = port >> 8;
		key->addr[13] = port;
		key->addr[14] = rtt_class(origin->handshake_rtt_us);
		key->addr[15] = !!(origin->flags & THALWEG_CONN_PASSIVE);
	} else if (level == THALWEG_LEVEL_NAMESPACE) {
		__builtin_memset(key->addr, 0, sizeof(key->addr));
		key->prefix_len = 0;
	} else {
		return 0;
	}
	r->tag = thalweg_tag(key);
	return 1;
}

/* The same, not inlined: callers have no stack for it. */
static __noinline int group_key(struct learn_handle *ops, struct request *r,
				const struct thalweg_origin *origin, __u32 level)
{
	return make_group_key(ops, r, origin, level);
}

/* Likewise, of a group to be asked; 0 also if it has no record, by the worths. */
static __noinline __attribute__((unused)) int asked_key(struct learn_handle *ops, struct request *r,
							const struct thalweg_origin *origin,
							__u32 level, struct thalweg_worths *worths)
{
	return make_group_key(ops, r, origin, level) &&
	       *group_word(worths, r->tag) & group_bit(r->tag);
}

/* The worth of what `wider` knows to a record of a level. */
static __always_inline const struct thalweg_worth *
worth_of(const struct thalweg_worths *worths, __u32 level, const struct thalweg_host *wider)
{
	/* Of the same networks: the fleet's knowledge has a worth of its own. */
	if (wider->level != (level | THALWEG_LEVEL_FLEET))
		level &= ~THALWEG_LEVEL_FLEET;
	return &worths->levels[level & THALWEG_LEVEL_MASK];
}

/* Copies what narrower records take over. */
static __always_inline void copy_known(struct thalweg_host *to, const struct thalweg_host *from)
{
	__u32 i;

	to->level = from->level;
	to->used = from->used;
	to->harmful = from->harmful;
	to->step = from->step;
	for (i = 0; i < THALWEG_MAX_ARMS && i < from->used; i++) {
		to->arms[i] = from->arms[i];
		to->statistics[i] = from->statistics[i];
	}
}

/*
 * Notes what a host tells its groups of its next measurement, which is of r->arm; 0 if that
 * is nothing. Without the lock: a measurement that comes between is told of twice.
 */
__noinline int note_news(struct request *r)
{
	struct news *news = get_news();
	struct thalweg_host *host;

	if (!r || !news || r->system_arm >= THALWEG_MAX_ARMS)
		return 0;
	news->tag = 0;
	host = find_host(r);
	if (!host || host->tag != r->tag) {
		__builtin_memset(&news->report, 0, sizeof(news->report));
		news->is_new = 1;
	} else {
		if (!thalweg_tells(host, r->arm, r->system_arm, &news->report))
			return 0;
		news->is_new = !host->scored;
	}
	news->tag = r->tag;
	return 1;
}

/* Adds the news of a lesson to the record of a group. */
__noinline int learn_group(struct request *r, struct lesson *l)
{
	const struct thalweg_params *params = load_params();
	struct news *news = get_news();
	struct thalweg_host *group;
	struct thalweg_lock *lock;

	if (!r || !l || !news)
		return 0;
	group = make_host(r);
	lock = host_lock(r);
	if (!group || !lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	if (open_host(group, r->tag)) {
		thalweg_score_group(group, r->arm, r->system_arm, &news->report, &l->sample, params,
				    r->now_ns);
		if (thalweg_is_window(group))
			thalweg_window_step(group, params->windows);
		close_host(group);
	}
	bpf_spin_unlock(&lock->lock);
	return 1;
}

/*
 * Adds what the wider group knows to that of a group, which then is the wider one. Apart
 * from learn_group(), which has no stack left.
 */
__noinline int adopt_group(struct request *r)
{
	struct thalweg_worths *worths = get_worths();
	struct news *news = get_news();
	struct thalweg_host *group;
	struct thalweg_lock *lock;
	__u64 *known;

	if (!r || !news || !worths)
		return 0;
	if (!(*group_word(worths, r->tag) & group_bit(r->tag)))
		__sync_fetch_and_or(group_word(worths, r->tag), group_bit(r->tag));
	group = find_host(r);
	lock = host_lock(r);
	if (!group || !lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	if (open_host(group, r->tag)) {
		if (news->wider.tag == news->tag) {
			thalweg_adopt(group, &news->wider, r->system_arm,
				      worth_of(worths, r->key.level, &news->wider));
			if (thalweg_is_window(group))
				thalweg_window_start(group, &news->wider);
		}
		if (thalweg_knows(group, r->system_arm)) {
			known = &worths->known;
			if (r->key.level - THALWEG_LEVEL_WINDOW_PREFIX <
			    THALWEG_ALL_LEVELS - THALWEG_LEVEL_WINDOW_PREFIX)
				known = &worths->known_windows;
			copy_known(&news->wider, group);
			news->wider.tag = news->tag;
			/* A bit that is lost to another CPU is set by the next measurement. */
			if (!(*known >> (r->key.netns & 63) & 1))
				*known |= 1ull << (r->key.netns & 63);
		}
		close_host(group);
	}
	bpf_spin_unlock(&lock->lock);
	return 1;
}

/* Gives the new record of a host what the narrowest group that knows enough knows. */
__noinline int inherit(struct request *r)
{
	struct thalweg_worths *worths = get_worths();
	struct news *news = get_news();
	struct thalweg_host *host;
	struct thalweg_lock *lock;

	if (!r || !news || news->wider.tag != r->tag)
		return 0;
	host = find_host(r);
	lock = host_lock(r);
	if (!worths || !host || !lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	if (open_host(host, r->tag)) {
		/* Another connection may have been scored meanwhile. */
		if (host->scored == 1)
			thalweg_inherit(host, &news->wider, r->arm,
					&worths->levels[THALWEG_LEVEL_HOST]);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return 1;
}

/*
 * Tells the groups of a connection, the widest first, of a measurement that was scored.
 * Returns 0 only if the key cannot be made again.
 */
static __always_inline int tell(struct context *c, struct lesson *l)
{
	struct request *r = c->request;
	struct thalweg_worths *worths = get_worths();
	struct news *news = get_news();
	__u32 level;

	/* An interrupt may have told of another host meanwhile. */
	if (!worths || !news || news->tag != r->tag)
		return 1;
	news->wider.tag = 0;
	news->report.cost_q16 = l->verdict.cost;
	news->report.weight_q16 = l->verdict.weight_q16;
	news->report.log_rate_q16 =
		thalweg_log2_q16(thalweg_rate(l->sample.bytes, l->sample.duration_us));
	news->report.queue_q16 = l->sample.loss_srtt_us;
	for (level = THALWEG_LEVEL_NAMESPACE; level; level--) {
		if (!has_level(level))
			continue;
		/* What the fleet told is never scored; its record takes over what wider ones know. */
		if (has_told(level) &&
		    asked_key(c->ops, r, c->origin, level | THALWEG_LEVEL_FLEET, worths))
			adopt_group(r);
		if (group_key(c->ops, r, c->origin, level) && learn_group(r, l))
			adopt_group(r);
	}
	if (!find_key(c))
		return 0;
	news = get_news();
	if (news && news->tag == r->tag && news->is_new)
		inherit(r);
	return 1;
}

#endif
