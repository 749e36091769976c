// SPDX-License-Identifier: GPL-2.0-only
/*
 * Packet loss for the laboratory: one TC program, attached to the egress of a sender's
 * link, drops packets by a two-state Markov chain.
 *
 * The chain is that of Gilbert (1960) and Elliott (1963). It has a good and a bad state,
 * each with its own probability of loss. For each packet it first moves: good to bad
 * with probability to_bad, bad to good with to_good. Then it draws whether the packet is
 * lost. Independent (Bernoulli) loss is the special case that never leaves the good
 * state. A SYN, a TCP segment with SYN and without ACK, has a further, independent draw.
 *
 * Departures from netem's "loss gemodel":
 *  - the draws come from a counter-based generator: the fate of the n-th packet is a
 *    pure function of seed and n;
 *  - the sender's notice of a drop is a choice. TC_ACT_STOLEN makes the transmit path
 *    return NET_XMIT_SUCCESS, as netem does: the sender finds out by missing ACKs.
 *    TC_ACT_SHOT makes it return NET_XMIT_DROP, which TCP takes as a full local queue.
 *    It enters CWR at once and leaves the segment unsent at the head of its queue
 *    (__tcp_transmit_skb and tcp_write_xmit, net/ipv4/tcp_output.c).
 *
 * Only UAPI types are used, so that the program loads on a kernel without BTF.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Probabilities are Q32: 1 << 32 is certainty. They have their own section, which user
 * space writes to while packets pass, when the path changes.
 */
struct probabilities {
	__u64 to_bad_q32;
	__u64 to_good_q32;
	__u64 loss_good_q32;
	__u64 loss_bad_q32;
	__u64 syn_loss_q32;
};

volatile struct probabilities probabilities SEC(".data.chain");

const volatile __u64 seed;
/* TC_ACT_STOLEN or TC_ACT_SHOT. */
const volatile __u32 drop_action;

/* Packets since the program was loaded. Written under the chain's lock. */
struct counters {
	__u64 seen_packets;
	__u64 seen_bytes;
	__u64 seen_segments;
	__u64 dropped_packets;
	__u64 dropped_bytes;
	__u64 dropped_segments;
	__u64 bursts; /* runs of consecutive drops */
	__u64 bad_packets; /* packets that met the bad state */
	__u64 largest_bytes; /* longest packet, including the link header */
	__u64 digest; /* FNV-1a over the fates, one byte a packet */
};

struct counters counters;

struct chain {
	struct bpf_spin_lock lock;
	__u32 bad;
	__u32 last_dropped;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chain);
} chains SEC(".maps");

/* splitmix64 (Steele, Lea, Flood 2014) as a function of the counter. */
static __always_inline __u64 draw_q32(__u64 stream, __u64 index)
{
	__u64 z = stream + (index + 1) * 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return (z ^ (z >> 31)) >> 32;
}

/*
 * Whether a packet opens a TCP connection. Relative to the network header, because a TUN
 * device has no other. Segments with IP options before them are not looked at.
 */
static __always_inline bool is_syn(struct __sk_buff *skb)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			struct iphdr ip;
			struct tcphdr tcp;
		} h;

		return !bpf_skb_load_bytes_relative(skb, 0, &h, sizeof(h), BPF_HDR_START_NET) &&
		       h.ip.ihl == 5 && h.ip.protocol == IPPROTO_TCP && h.tcp.syn && !h.tcp.ack;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct {
			struct ipv6hdr ip;
			struct tcphdr tcp;
		} h;

		return !bpf_skb_load_bytes_relative(skb, 0, &h, sizeof(h), BPF_HDR_START_NET) &&
		       h.ip.nexthdr == IPPROTO_TCP && h.tcp.syn && !h.tcp.ack;
	}
	return false;
}

SEC("tc")
int lose(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct chain *chain = bpf_map_lookup_elem(&chains, &zero);
	__u64 index, length = skb->len;
	__u64 segments = skb->gso_segs ? skb->gso_segs : 1;
	/* Read once: user space may write to it meanwhile. */
	__u64 syn_loss_q32 = probabilities.syn_loss_q32;
	__u64 move, drop;

	/* Never taken: an array of one always has its entry. For the verifier. */
	if (!chain)
		return TC_ACT_UNSPEC;

	/* Before the lock, under which a program calls no helper. */
	if (syn_loss_q32 && !is_syn(skb))
		syn_loss_q32 = 0;

	bpf_spin_lock(&chain->lock);
	index = counters.seen_packets++;
	move = draw_q32(seed, 2 * index);
	if (chain->bad)
		chain->bad = move >= probabilities.to_good_q32;
	else
		chain->bad = move < probabilities.to_bad_q32;
	drop = draw_q32(seed, 2 * index + 1) <
	       (chain->bad ? probabilities.loss_bad_q32 : probabilities.loss_good_q32);
	/* Another stream: the chain's draws are those of the same packets without this loss. */
	drop |= draw_q32(~seed, index) < syn_loss_q32;

	counters.seen_bytes += length;
	counters.seen_segments += segments;
	counters.bad_packets += chain->bad;
	if (length > counters.largest_bytes)
		counters.largest_bytes = length;
	if (drop) {
		counters.dropped_packets++;
		counters.dropped_bytes += length;
		counters.dropped_segments += segments;
		counters.bursts += !chain->last_dropped;
	}
	chain->last_dropped = drop;
	counters.digest = (counters.digest ^ drop) * 0x100000001b3ULL;
	bpf_spin_unlock(&chain->lock);

	/* Not TC_ACT_OK: the programs after this one see the packets that it lets pass. */
	return drop ? drop_action : TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
