// SPDX-License-Identifier: GPL-2.0-only
/*
 * learn_clamp: measures open connections in the prefixes of learned clamps, and gives each
 * the clamp of its remote host, which the agent computes from what this program tells.
 *
 * A TCP iterator, as learn_open: one reading visits every socket of a network namespace,
 * each under its lock, and tells of each in the prefixes (struct thalweg_clamp_report). A
 * connection whose host has no clamp any more, or that has left the prefixes, gets its own
 * window back.
 *
 * It needs the kernel's BTF, and Linux 5.15 for bpf_setsockopt in iterators.
 */
#define THALWEG_KERNEL_BTF
#define THALWEG_ITERATOR

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_clamp.h"
#include "learn_covered.h"

char LICENSE[] SEC("license") = "GPL";

/* TCP_CA_Disorder: beyond, TCP recovers from losses. */
#define CA_DISORDER 1

/* States in which data may be left to send. */
#define SENDING                                                                        \
	(1 << BPF_TCP_ESTABLISHED | 1 << BPF_TCP_CLOSE_WAIT | 1 << BPF_TCP_FIN_WAIT1 | \
	 1 << BPF_TCP_CLOSING | 1 << BPF_TCP_LAST_ACK)

/*
 * Prefixes where there are clamps; 0: none. One more keeps IPv4 out of ::/0. Written by the
 * agent.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, THALWEG_CLAMP_PREFIXES + 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_policy_key6);
	__type(value, __u32);
} clamp_prefixes SEC(".maps");

/*
 * Whether a connection has its turn to look for room. A larger clamp shows whether the
 * path carries more; turns are spread over connections, so that queues stay short.
 */
static __always_inline int has_turn(__u64 cookie)
{
	__u32 turn = bpf_ktime_get_ns() >> THALWEG_CLAMP_TURN_SHIFT;

	/* Multiplicative hashing: the upper bits are mixed best. */
	return (((__u32)cookie + turn) * 0x9e3779b1u) / (0xffffffffu / THALWEG_CLAMP_TURNS + 1) ==
	       0;
}

/*
 * Whether a clamp may be set now. It is TCP's slow-start threshold as well, to which a
 * recovery from losses returns.
 */
static __always_inline int is_calm(struct tcp_sock *tp)
{
	struct inet_connection_sock *icsk = (void *)tp;

	return BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) <= CA_DISORDER;
}

/* Sets the clamp; 0 or -errno. */
static __always_inline int set_clamp(struct tcp_sock *tp, __u32 segments)
{
	__u32 *mine = bpf_sk_storage_get(&clamped, tp, &segments, BPF_SK_STORAGE_GET_F_CREATE);
	int error;

	if (!mine)
		return -ENOMEM;
	error = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &segments, sizeof(segments));
	if (!error)
		*mine = segments;
	return error;
}

/* Gives the connection its own window back; 0 or -errno. */
static __always_inline int lift_clamp(struct tcp_sock *tp)
{
	int unclamped = UNCLAMPED, error;

	error = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &unclamped, sizeof(unclamped));
	return error ? error : bpf_sk_storage_delete(&clamped, tp);
}

/* Gives the connection its clamp, and tells what it has. */
static __always_inline void adjust(struct context *c, struct tcp_sock *tp, int inside, __u32 *mine,
				   struct thalweg_clamp_report *report)
{
	int owned = owned_window(c);
	__u32 wanted = 0;

	/* One from here is lifted first where a policy now lets the connection alone. */
	if (!is_free(tp, mine) || (owned && !mine)) {
		/* Somebody else's from now on. */
		if (mine)
			bpf_sk_storage_delete(&clamped, tp);
		report->flags = THALWEG_CLAMP_LEFT;
		return;
	}
	if (inside && !owned)
		wanted = host_clamp(&report->host);
	if (wanted && has_turn(report->cookie))
		wanted *= THALWEG_CLAMP_ROOM;
	report->segments = mine ? *mine : 0;
	if (wanted ? wanted == tp->snd_cwnd_clamp || !is_calm(tp) : !mine)
		return;
	report->error = wanted ? set_clamp(tp, wanted) : lift_clamp(tp);
	if (!report->error) {
		report->segments = wanted;
		report->flags |= THALWEG_CLAMP_SET;
	}
}

static __noinline int visit(struct tcp_sock *tp, struct seq_file *seq)
{
	struct thalweg_clamp_report report = {};
	struct thalweg_policy_key6 key = { 128, {} };
	struct request request = {};
	struct context c = { .request = &request };
	__u32 default_arm, *mine, *found;
	int inside;

	if (!prepare(&c, tp) || !host_of(tp, (__u32 *)report.host.addr))
		return 0;
	__builtin_memcpy(key.addr, report.host.addr, sizeof(key.addr));
	found = bpf_map_lookup_elem(&clamp_prefixes, &key);
	inside = found && *found && received_by(tp) != LOOPBACK_IFINDEX && !is_routed_home(tp);
	/* A number, of which the compiler makes no pointer again. */
	barrier_var(inside);
	mine = bpf_sk_storage_get(&clamped, tp, 0, 0);
	if (!inside && !mine)
		return 0;
	request.key.netns = report.host.netns = netns_of(tp);
	inside = inside && !is_outside(&c, &default_arm) && is_covered(tp);
	if (!inside && !mine)
		return 0;
	report.cookie = bpf_get_socket_cookie(tp);
	report.bytes_acked = tp->bytes_acked;
	report.rate_delivered_bytes = (__u64)tp->rate_delivered * tp->mss_cache;
	report.rate_interval_us = tp->rate_interval_us;
	report.min_rtt_us = lowest_rtt_us(tp);
	report.mss = tp->mss_cache;
	adjust(&c, tp, inside, mine, &report);
	bpf_seq_write(seq, &report, sizeof(report));
	return 0;
}

static __always_inline struct tcp_sock *visited(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;

	if (!skc)
		return 0;
	if (!(SENDING & 1 << skc->skc_state))
		return 0;
	return bpf_skc_to_tcp_sock(skc);
}

SEC("iter/tcp")
int learn_clamp(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = visited(ctx);

	return tp ? visit(tp, ctx->meta->seq) : 0;
}

/*
 * Gives each connection its own window back, when the learner has gone. Writes a byte for
 * each: 0, or 1 where the kernel refuses.
 */
SEC("?iter/tcp")
int learn_unclamp(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = visited(ctx);
	__u32 *mine;
	__u8 failed;

	if (!tp)
		return 0;
	mine = bpf_sk_storage_get(&clamped, tp, 0, 0);
	/* Somebody else's, as in adjust(). */
	if (!mine || !is_free(tp, mine))
		return 0;
	failed = lift_clamp(tp) != 0;
	bpf_seq_write(ctx->meta->seq, &failed, sizeof(failed));
	return 0;
}
