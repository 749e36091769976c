/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * learn: clamps of congestion windows, in the prefixes that the operator names.
 *
 * The agent computes the clamp of each remote host (crates/learner/src/clamp.rs). New
 * connections get it at establishment, open ones by the iterator learn_clamp.bpf.c.
 */
#ifndef THALWEG_LEARN_CLAMP_H
#define THALWEG_LEARN_CLAMP_H

#include "learn_state.h"

/* Time without a sign of the agent after which new connections get no clamp. */
#define CLAMP_SILENCE_NS (30 * 1000 * 1000 * 1000ull)

/* Clamps by remote host, segments. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_CLAMPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_clamp_key);
	__type(value, __u32);
} clamps SEC(".maps");

/* Sockets that have a clamp from here, and which, segments. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} clamped SEC(".maps");

/* Whether a socket has a clamp from here. */
static __always_inline int has_clamp(struct context *c)
{
	return bpf_sk_storage_get(&clamped, c->sk, 0, 0) != 0;
}

/* The clamp of a connection's host; 0: none. */
static __always_inline __u32 host_clamp(const struct thalweg_clamp_key *host)
{
	__u32 *segments = bpf_map_lookup_elem(&clamps, host);

	return segments ? *segments : 0;
}

#if defined(THALWEG_KERNEL_BTF) && !defined(THALWEG_ITERATOR)
/*
 * A new connection gets the clamp of its host. Without the agent it does not, as nobody
 * would lift it.
 */
static __noinline int clamp_new(struct bpf_sock_ops *ops)
{
	struct thalweg_clamp_key host = {};
	struct context c = {};
	__u32 segments;

	if (!prepare(&c, ops) || !host_of(ops, (__u32 *)host.addr))
		return 0;
	host.netns = netns_of(ops);
	segments = host_clamp(&host);
	if (!segments || bpf_ktime_get_ns() > c.arms->heartbeat_ns + CLAMP_SILENCE_NS)
		return 0;
	if (!find_tcp(&c) || owned_window(&c) || !is_free(c.tcp, 0))
		return 0;
	if (!bpf_sk_storage_get(&clamped, c.sk, &segments, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	bpf_setsockopt(ops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &segments, sizeof(segments));
	/* As the initial window. */
	if (ops->snd_cwnd > segments)
		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments));
	return 0;
}
#endif

#endif
