/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: the records of hosts, changed under their locks.
 */
#ifndef THALWEG_LEARN_HOST_H
#define THALWEG_LEARN_HOST_H

#include "learn_state.h"

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

#endif
