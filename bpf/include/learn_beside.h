/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: what sockops programs of other features share. */
#ifndef THALWEG_LEARN_BESIDE_H
#define THALWEG_LEARN_BESIDE_H

#include "learn_state.h"
#include "thalweg_share.h"

/* Fills the key of the connection's network (the level of prefixes); 0: it has none. */
static __always_inline int network_key(struct context *c, struct thalweg_host_key *key)
{
	__u32 *remote = (__u32 *)key->addr, family = host_of(c->ops, remote);

	key->netns = netns_of(c->ops);
	key->level = THALWEG_LEVEL_PREFIX;
	key->prefix_len = cut(remote, family, c->params->group_ipv4, c->params->group_ipv6);
	return family != 0;
}

/* A connection does without what others to its network have: the learner must not compare them. */
static __always_inline void leave_unscored(struct context *c)
{
	__u32 any = THALWEG_UNSCORED | ((1u << THALWEG_MAX_ARMS) - 1), *mark;

	mark = bpf_sk_storage_get(&owned, c->sk, &any, BPF_SK_STORAGE_GET_F_CREATE);
	/* 0, but for a window: the application's. */
	if (mark && *mark & ~THALWEG_MARK_FLAGS)
		*mark |= THALWEG_UNSCORED;
}

/* Counts a report that a ring had no room for. */
#define COUNT_LOST(map)                                              \
	do {                                                         \
		__u32 zero_ = 0;                                     \
		__u64 *count_ = bpf_map_lookup_elem(&(map), &zero_); \
                                                                     \
		if (count_)                                          \
			__sync_fetch_and_add(count_, 1);             \
	} while (0)

#endif
