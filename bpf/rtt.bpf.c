// SPDX-License-Identifier: GPL-2.0-only
/*
 * Round-trip times for the laboratory: two TC programs on a sender's link, one at its
 * egress and one at its ingress. They take one sample for each value of the TCP
 * timestamp clock (RFC 7323) that data was sent with.
 *
 * The method is that of K. Nichols' pping: record when a TSval is first sent, and when
 * it first returns as TSecr. Only data is recorded, so a sample is a round-trip time
 * under load. Departures from pping:
 *  - it counts samples in a histogram per connection instead of printing them;
 *  - the sending time is when the packet may leave the host: a packet that fq holds back
 *    for pacing waits in the sender and not in the network. TCP's own samples start
 *    there, too (tcp_update_skb_after_send, net/ipv4/tcp_output.c);
 *  - the sending times are in one array for all connections, indexed by the sum of the
 *    connection's random number and TSval. A collision costs one sample; there is
 *    nothing to clean up.
 *
 * A receiver echoes the TSval of the earliest segment that it has not acknowledged yet,
 * and none that arrived out of order. So a retransmission is never taken for the
 * original. A sample includes the delay of a delayed ACK, as TCP's own does.
 *
 * Only UAPI types are used, so that the programs load on a kernel without BTF.
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

/* Times are counted in units of 64 ns. */
#define UNIT_SHIFT 6
/* Each doubling has 16 buckets: below 16 units a bucket is one unit. */
#define PART_BITS 4
#define PARTS (1 << PART_BITS)
/* 27 ranges of 16: up to 2^30 units, which are 68.7 s. */
#define BUCKETS (27 * PARTS)
/* A power of two. At 1000 a second it holds a minute of one connection. */
#define STAMPS 65536
/* Connections between two readings; further ones have no samples. */
#define FLOWS 16384
/* NOP, NOP, timestamps, 10 bytes: the start of the options in Linux and RFC 7323 appendix A. */
#define TIMESTAMPS 0x0101080a

struct endpoints {
	__be32 remote[4]; /* IPv4 as ::ffff:a.b.c.d */
	__be16 local_port;
	__be16 remote_port;
};

struct flow {
	__u32 id; /* random, odd */
	__u32 last_sent; /* TSval of the last data segment */
	__u32 last_echoed; /* TSecr of the last segment that arrived */
	__u32 buckets[BUCKETS];
};

struct stamp {
	__u64 sent_ns;
	__u32 flow; /* 0: none */
	__u32 tsval;
};

/* The needed fields of a segment. */
struct segment {
	struct endpoints endpoints;
	__u32 payload_bytes;
	__u32 tsval;
	__u32 tsecr;
};

struct tcp_with_timestamps {
	struct tcphdr tcp;
	__be32 kind;
	__be32 tsval;
	__be32 tsecr;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FLOWS);
	__type(key, struct endpoints);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STAMPS);
	__type(key, __u32);
	__type(value, struct stamp);
} stamps SEC(".maps");

/* Too large for the stack. */
const volatile struct flow fresh;

/* The bucket of a time, as in HdrHistogram: the leading bits of the number. */
static __always_inline __u64 bucket(__u64 ns)
{
	__u64 units = ns >> UNIT_SHIFT;
	__u64 shift = 0;

	if (units >> 30)
		return BUCKETS - 1;
	/* The position of the highest bit, less those that select the part. */
	if (units >> (PART_BITS + 16))
		shift += 16;
	if (units >> (PART_BITS + 8 + shift))
		shift += 8;
	if (units >> (PART_BITS + 4 + shift))
		shift += 4;
	if (units >> (PART_BITS + 2 + shift))
		shift += 2;
	if (units >> (PART_BITS + 1 + shift))
		shift += 1;
	if (units >> (PART_BITS + shift))
		shift += 1;
	if (shift == 0)
		return units;
	/* units >> (shift - 1) has PART_BITS + 1 bits, and the first of them is 1. */
	return shift * PARTS + ((units >> (shift - 1)) & (PARTS - 1));
}

static __always_inline void read_tcp(struct segment *segment,
				     const struct tcp_with_timestamps *header, bool outgoing,
				     __u32 tcp_bytes)
{
	const struct tcphdr *tcp = &header->tcp;

	segment->endpoints.local_port = outgoing ? tcp->source : tcp->dest;
	segment->endpoints.remote_port = outgoing ? tcp->dest : tcp->source;
	segment->payload_bytes = tcp_bytes - 4 * tcp->doff;
	segment->tsval = bpf_ntohl(header->tsval);
	segment->tsecr = bpf_ntohl(header->tsecr);
}

/*
 * Reads a TCP segment with timestamps; false if it is none, or has IP options before it.
 * Relative to the network header, because a TUN device has no other.
 */
static __always_inline bool read_segment(struct __sk_buff *skb, bool outgoing,
					 struct segment *segment)
{
	__be32 *remote = segment->endpoints.remote;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct {
			struct iphdr ip;
			struct tcp_with_timestamps rest;
		} h;

		if (bpf_skb_load_bytes_relative(skb, 0, &h, sizeof(h), BPF_HDR_START_NET) ||
		    h.ip.ihl != 5 || h.ip.protocol != IPPROTO_TCP ||
		    h.rest.kind != bpf_htonl(TIMESTAMPS))
			return false;
		remote[0] = 0;
		remote[1] = 0;
		remote[2] = bpf_htonl(0xffff);
		remote[3] = outgoing ? h.ip.daddr : h.ip.saddr;
		read_tcp(segment, &h.rest, outgoing, bpf_ntohs(h.ip.tot_len) - sizeof(h.ip));
		return true;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct {
			struct ipv6hdr ip;
			struct tcp_with_timestamps rest;
		} h;

		if (bpf_skb_load_bytes_relative(skb, 0, &h, sizeof(h), BPF_HDR_START_NET) ||
		    h.ip.nexthdr != IPPROTO_TCP || h.rest.kind != bpf_htonl(TIMESTAMPS))
			return false;
		__builtin_memcpy(remote, outgoing ? &h.ip.daddr : &h.ip.saddr, 16);
		read_tcp(segment, &h.rest, outgoing, bpf_ntohs(h.ip.payload_len));
		return true;
	}
	return false;
}

static __always_inline struct stamp *stamp_of(__u32 flow, __u32 tsval)
{
	__u32 place = (flow + tsval) & (STAMPS - 1);

	return bpf_map_lookup_elem(&stamps, &place);
}

static __always_inline struct flow *create(const struct endpoints *endpoints, __u32 tsval)
{
	struct flow *flow;

	bpf_map_update_elem(&flows, endpoints, (const void *)&fresh, BPF_NOEXIST);
	flow = bpf_map_lookup_elem(&flows, endpoints);
	if (flow) {
		flow->id = bpf_get_prandom_u32() | 1;
		/* Not this one. */
		flow->last_sent = tsval - 1;
		flow->last_echoed = tsval - 1;
	}
	return flow;
}

/* At the egress, after the loss program: dropped packets never get here. */
SEC("tc")
int note_sent(struct __sk_buff *skb)
{
	struct segment segment;
	struct flow *flow;
	struct stamp *stamp;
	__u64 now, departs;

	if (!read_segment(skb, true, &segment) || !segment.payload_bytes)
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&flows, &segment.endpoints);
	if (!flow)
		flow = create(&segment.endpoints, segment.tsval);
	if (!flow || flow->last_sent == segment.tsval)
		return TC_ACT_UNSPEC;
	flow->last_sent = segment.tsval;
	stamp = stamp_of(flow->id, segment.tsval);
	if (!stamp)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	departs = skb->tstamp;
	/* The time is of another clock if it is far ahead. */
	if (departs < now || departs - now > 1000000000)
		departs = now;
	stamp->sent_ns = departs;
	stamp->tsval = segment.tsval;
	stamp->flow = flow->id;
	return TC_ACT_UNSPEC;
}

/* At the ingress. */
SEC("tc")
int match_echo(struct __sk_buff *skb)
{
	struct segment segment;
	struct flow *flow;
	struct stamp *stamp;
	__u64 now, sent_ns, place;

	if (!read_segment(skb, false, &segment))
		return TC_ACT_UNSPEC;
	flow = bpf_map_lookup_elem(&flows, &segment.endpoints);
	if (!flow || flow->last_echoed == segment.tsecr)
		return TC_ACT_UNSPEC;
	flow->last_echoed = segment.tsecr;
	stamp = stamp_of(flow->id, segment.tsecr);
	if (!stamp || stamp->flow != flow->id || stamp->tsval != segment.tsecr)
		return TC_ACT_UNSPEC;
	sent_ns = stamp->sent_ns;
	/* The first match only. */
	stamp->flow = 0;
	now = bpf_ktime_get_ns();
	place = bucket(now > sent_ns ? now - sent_ns : 0);
	/* Never taken: for the verifier, and it must be the same register. */
	barrier_var(place);
	if (place >= BUCKETS)
		return TC_ACT_UNSPEC;
	__sync_fetch_and_add(&flow->buckets[place], 1);
	return TC_ACT_UNSPEC;
}

/* The bucket of the time in a packet's last 8 bytes. For tests of the arithmetic. */
SEC("tc")
int find_bucket(struct __sk_buff *skb)
{
	__u64 ns;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ns, sizeof(ns)))
		return -1;
	return bucket(ns);
}

char LICENSE[] SEC("license") = "GPL";
