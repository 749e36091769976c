/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rate: the shortest round-trip times that flows to a host have found lately. A flow that
 * starts in a queue of others cannot see how long its path is without it. It would take
 * the queue for the path, and get more than its part until the next common probe.
 */
#ifndef THALWEG_RATE_PATH_H
#define THALWEG_RATE_PATH_H

#include <bpf/bpf_endian.h>

#include "rate_state.h"

#define AF_INET6 10
/* Hosts; the least recently used are forgotten. */
#define PATHS 4096
/* Periods of probes for which a path is known. */
#define PATH_EPOCHS 4

/* A remote host, in a network namespace. */
struct path_key {
	__u32 remote[4]; /* IPv4 as ::ffff:a.b.c.d */
	__u32 netns; /* inode */
};

struct path {
	__u32 min_rtt_us;
	__u32 epoch; /* of the clock, when it was found */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PATHS);
	__type(key, struct path_key);
	__type(value, struct path);
} paths SEC(".maps");

static __always_inline void remote_of(const struct sock *sk, __u32 *remote)
{
	if (sk->__sk_common.skc_family == AF_INET6) {
		remote[0] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[0];
		remote[1] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[1];
		remote[2] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[2];
		remote[3] = sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32[3];
	} else {
		remote[2] = bpf_htonl(0xffff);
		remote[3] = sk->__sk_common.skc_daddr;
	}
}

static __always_inline void path_of(const struct sock *sk, struct path_key *key)
{
	remote_of(sk, key->remote);
	key->netns = sk->__sk_common.skc_net.net->ns.inum;
}

/* Takes over a shorter round-trip time from other flows to the same host. */
static __always_inline void ask_path(const struct sock *sk, struct rate *ca, __u16 epoch)
{
	struct path_key key = {};
	const struct path *known;

	path_of(sk, &key);
	known = bpf_map_lookup_elem(&paths, &key);
	if (known && (__u16)(epoch - known->epoch) < PATH_EPOCHS &&
	    known->min_rtt_us < ca->min_rtt_us)
		ca->min_rtt_us = known->min_rtt_us;
}

/*
 * Tells them of this flow's. What a common probe found (`probed`) replaces what is known of
 * an earlier period, as the path may have become longer. Any other flow may have its value
 * from the table: it tells only a shorter one, or nothing would ever expire.
 */
static __always_inline void tell_path(const struct sock *sk, const struct rate *ca, __u16 epoch,
				      int probed)
{
	struct path fresh = { .min_rtt_us = ca->min_rtt_us, .epoch = epoch };
	struct path_key key = {};
	const struct path *known;
	__u16 age;

	if (!ca->min_rtt_us)
		return;
	path_of(sk, &key);
	known = bpf_map_lookup_elem(&paths, &key);
	age = known ? epoch - known->epoch : PATH_EPOCHS;
	if (age >= (probed ? 1 : PATH_EPOCHS) || ca->min_rtt_us < known->min_rtt_us)
		bpf_map_update_elem(&paths, &key, &fresh, BPF_ANY);
}

#endif
