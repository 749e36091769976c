/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: the records of hosts, changed under their locks.
 */
#ifndef THALWEG_LEARN_HOST_H
#define THALWEG_LEARN_HOST_H

#include "learn_state.h"

/*
 * A new record is built here before it goes into the map, because it is too large for
 * the stack. It has its tag, so a record in the map is never without an owner.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thalweg_host);
} blank SEC(".maps");

/*
 * What a host tells its groups, and what a group knows for the next narrower one: too much
 * for the stack, and a program can hold one record's lock only. Each CPU has its own; an
 * interrupt that uses it as well is recognised by the tags.
 */
struct news {
	__u64 tag; /* of the host; 0: nothing is told */
	__u64 is_new; /* the record of the host */
	struct thalweg_report report;
	/* The last group that was told, if its tag is not 0: that of the host. */
	struct thalweg_host wider;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct news);
} the_news SEC(".maps");

static __always_inline struct news *get_news(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&the_news, &zero);
}

/* The record of a host, or NULL. Once the agent removes it, the map may reuse it for another. */
static __always_inline struct thalweg_host *find_host(struct request *r)
{
	/* Linux 6.1 takes a key only from the function's own stack. */
	struct thalweg_host_key key = r->key;

	return bpf_map_lookup_elem(&hosts, &key);
}

/* The record of a host, created if there is none; NULL if that fails. */
static __always_inline struct thalweg_host *make_host(struct request *r)
{
	struct thalweg_host_key key = r->key;
	struct thalweg_host *host = bpf_map_lookup_elem(&hosts, &key), *new;
	struct thalweg_counters *count;
	__u32 zero = 0;

	if (!host) {
		new = bpf_map_lookup_elem(&blank, &zero);
		if (!new)
			return 0;
		/* All other fields are always 0. */
		new->tag = r->tag;
		new->tag_tail = r->tag;
		new->level = key.level;
		new->connections = 1; /* the scored one */
		if (!bpf_map_update_elem(&hosts, &key, new, BPF_NOEXIST)) {
			count = bpf_map_lookup_elem(&counters, &zero);
			if (count && !key.level)
				__sync_fetch_and_add(&count->hosts_created, 1);
		}
		host = bpf_map_lookup_elem(&hosts, &key);
	}
	/* An interrupt may have put its own tag into the blank one: then the record is unusable. */
	if (host && host->tag != r->tag) {
		bpf_map_delete_elem(&hosts, &key);
		return 0;
	}
	return host;
}

static __always_inline struct thalweg_lock *host_lock(struct request *r)
{
	__u32 slot = r->tag >> 32 & (THALWEG_LOCKS - 1);

	return bpf_map_lookup_elem(&locks, &slot);
}

/*
 * Opens a write for readers without the lock. An exchange is a full barrier: on arm64
 * plain stores may be reordered.
 */
static __always_inline void open_write(struct thalweg_host *host)
{
	__sync_lock_test_and_set(&host->seq_tail, host->seq_tail + 1);
}

/*
 * To be called with the lock held. Recognises a recycled record (returns 0), and opens
 * the write.
 */
static __always_inline int open_host(struct thalweg_host *host, __u64 tag)
{
	if (host->tag != tag)
		return 0;
	open_write(host);
	return 1;
}

static __always_inline void close_host(struct thalweg_host *host)
{
	__sync_lock_test_and_set(&host->seq_head, host->seq_tail);
}

/* Clears some arms of a host's record. */
static __always_inline void forget_arms_of(const struct thalweg_forget *forget)
{
	struct request r = { .key = forget->key };
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	__u32 i;

	r.tag = thalweg_tag(&r.key);
	host = find_host(&r);
	lock = host_lock(&r);
	if (!host || !lock)
		return;
	bpf_spin_lock(&lock->lock);
	if (open_host(host, r.tag)) {
		for (i = 0; i < THALWEG_MAX_ARMS; i++)
			if (forget->arms >> i & 1) {
				__builtin_memset(&host->arms[i], 0, sizeof(host->arms[i]));
				__builtin_memset(&host->statistics[i], 0,
						 sizeof(host->statistics[i]));
			}
		host->harmful &= ~forget->arms;
		host->unsteady &= ~forget->arms;
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
}

/* The decision of a draw: the control group's, or that of a trial of advice. */
static __always_inline void note_draw(struct request *r, struct shares *shares)
{
	__u32 trial = r->allowed & DRAWN, i, share_q16;

	r->decision.arm = trial ? r->arm : r->system_arm;
	r->decision.reason = trial ? THALWEG_REASON_DRAWN : THALWEG_REASON_CONTROL;
	r->decision.propensity_q16 = THALWEG_ONE_Q16;
	if (!trial) {
		thalweg_note_share(shares->q16, r->system_arm, THALWEG_ONE_Q16);
		return;
	}
	share_q16 = THALWEG_ONE_Q16 / thalweg_count(r->allowed & 0xffff);
	r->decision.propensity_q16 = share_q16;
	for (i = 0; i < THALWEG_MAX_ARMS; i++)
		thalweg_note_share(shares->q16, i, (r->allowed >> i & 1) * share_q16);
}

/*
 * Whether a record that was found may decide: one of a host, or of a group that knows
 * enough. Evidence is lost with time before.
 */
static __always_inline int may_decide(struct thalweg_host *host, const struct request *r,
				      const struct thalweg_params *params)
{
	int writes = thalweg_is_stale(host, params, r->now_ns);

	if (writes)
		open_write(host);
	thalweg_forget(host, params, r->now_ns);
	if (writes)
		close_host(host);
	return !host->level || thalweg_knows(host, r->system_arm);
}

/*
 * Decides, and counts; under the lock. A decision for the best arm raises three numbers,
 * of which each is right by itself. So it is no write to readers, and leaves the record's
 * last cache line alone, which most decisions have no other need of.
 */
static __always_inline void decide_and_count(struct thalweg_host *host, struct request *r,
					     struct shares *shares,
					     const struct thalweg_params *params, int decides)
{
	__u32 allowed = r->allowed;
	int writes;

	thalweg_increment(&host->connections);
	host->seen_ns = r->now_ns;
	if (thalweg_is_window(host))
		allowed = thalweg_window_mask(host, allowed) | (allowed & THALWEG_NO_TRIALS);
	if (decides)
		thalweg_decide(host, r->system_arm, allowed, params, r->random, r->now_ns,
			       &r->decision, shares->q16);
	writes = r->decision.reason != THALWEG_REASON_GREEDY;
	if (writes)
		open_write(host);
	thalweg_count_decision(host, &r->decision);
	if (!params->dry_run && thalweg_is_trial(r->decision.reason)) {
		/* Those of groups are paid for, and not counted. */
		if (host->level)
			thalweg_pay_advance(host, r->system_arm, &r->decision);
		else
			thalweg_begin_trial(host, r->now_ns);
	}
	if (writes)
		close_host(host);
}

/*
 * Counts the connection and chooses its arm; returns whether a record decided. Without a
 * record nothing is known of the host, and the system's arm stays: peers that are never
 * measured leave no trace. A connection whose arm is drawn is only counted; ONLY_ASKED, it is
 * not even counted.
 */
__noinline int choose(struct request *r, struct shares *shares)
{
	const struct thalweg_params *params = load_params();
	int classic = params->mode == THALWEG_MODE_CLASSIC, found = 0;
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	__u32 drawn;

	if (!r || !shares)
		return 0;
	drawn = r->allowed & (IN_CONTROL | DRAWN);
	if (drawn)
		note_draw(r, shares);
	/* Classic counts connections from the first one, as published. */
	host = classic ? make_host(r) : find_host(r);
	lock = host ? host_lock(r) : 0;
	if (lock) {
		if (!drawn) {
			r->random[0] = bpf_get_prandom_u32();
			if (classic) {
				r->random[1] = bpf_get_prandom_u32();
				r->random[2] = bpf_get_prandom_u32();
			}
		}
		bpf_spin_lock(&lock->lock);
		found = host->tag == r->tag && may_decide(host, r, params);
		if (found && !(r->allowed & ONLY_ASKED))
			decide_and_count(host, r, shares, params, !drawn);
		bpf_spin_unlock(&lock->lock);
	}
	if (!found && !drawn) {
		r->decision.arm = classic ? THALWEG_NO_ARM : r->system_arm;
		r->decision.reason = THALWEG_REASON_WARM_UP;
		r->decision.propensity_q16 = THALWEG_ONE_Q16;
	}
	return found;
}

/*
 * Scores a sample of arm r->arm; 0 if there is no record and none can be created. An
 * unscored sample only ends a trial.
 */
__noinline int learn(struct request *r, struct lesson *l)
{
	const struct thalweg_params *params = load_params();
	struct thalweg_host *host;
	struct thalweg_lock *lock;
	int found, scores, beside;

	if (!r || !l)
		return 0;
	scores = l->verdict.outcome == THALWEG_SCORED;
	/*
	 * A time-out is scored only beside another measurement, so never in a new record. Nor
	 * is a limited one, but of the system's arm.
	 */
	beside = THALWEG_SCORED;
	if (params->mode != THALWEG_MODE_THALWEG)
		;
	else if (l->sample.end == THALWEG_END_TIMEOUT)
		beside = THALWEG_SKIPPED_TIMEOUT;
	else if (r->arm != r->system_arm && thalweg_is_limited(&l->sample))
		beside = THALWEG_SKIPPED_APP_LIMITED;
	host = scores && !beside ? make_host(r) : find_host(r);
	if (!host && scores && beside)
		l->verdict.outcome = beside;
	lock = host_lock(r);
	if (!host || !lock)
		return 0;
	bpf_spin_lock(&lock->lock);
	found = open_host(host, r->tag);
	if (found) {
		if (r->allowed & TRIAL_OVER)
			thalweg_end_trial(host);
		if (scores) {
			thalweg_score(host, r->arm, r->system_arm, &l->sample, params, r->now_ns,
				      &l->verdict);
			/* For groups; it has been used. */
			l->sample.loss_srtt_us = host->queue_q16;
		}
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return found;
}

/* Result of change(). */
#define NO_RECORD -1

/*
 * Decides on a change of arm mid-flow, and counts it. 1: one is due, which is r->decision;
 * NO_RECORD: nothing is known.
 */
__noinline int change(struct request *r)
{
	const struct thalweg_params *params = load_params();
	struct thalweg_host *host;
	struct thalweg_flow flow;
	struct thalweg_lock *lock;
	__u32 random;
	int due = NO_RECORD;

	if (!r)
		return NO_RECORD;
	flow.arm = r->arm;
	flow.system_arm = r->system_arm;
	flow.segs = r->segs;
	flow.retrans = r->retrans;
	host = find_host(r);
	lock = host_lock(r);
	if (!host || !lock)
		return NO_RECORD;
	random = bpf_get_prandom_u32();
	bpf_spin_lock(&lock->lock);
	if (open_host(host, r->tag)) {
		due = thalweg_change(host, &flow, r->allowed, params, random, &r->decision);
		if (due && r->decision.arm != r->arm)
			thalweg_increment(&host->switched);
		close_host(host);
	}
	bpf_spin_unlock(&lock->lock);
	return due;
}

#endif
