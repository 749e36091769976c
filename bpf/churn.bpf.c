// SPDX-License-Identifier: GPL-2.0-only
/*
 * churn: host records that many CPUs create, change and evict in a small map. A test
 * runs this program (never loaded by the agent). A record's content follows from its
 * key, so the test detects a record mixed with another.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "learn_host.h"

char LICENSE[] SEC("license") = "GPL";

/* Hosts that come and go. */
#define CHURN_HOSTS 4096

SEC("tc")
int churn(struct __sk_buff *skb)
{
	__u32 id = bpf_get_prandom_u32() % CHURN_HOSTS;
	__u32 address[4] = { 0, 0, bpf_htonl(0xffff), bpf_htonl(0x0a000000 | id) };
	struct request r = {};
	struct shares shares = {};
	struct lesson l = {};

	r.key.netns = 1;
	r.key.prefix_len = 128;
	__builtin_memcpy(r.key.addr, address, sizeof(address));
	r.tag = thalweg_tag(&r.key);
	r.now_ns = bpf_ktime_get_ns();
	r.arm = id & THALWEG_ARM_MASK;
	r.system_arm = r.arm;
	r.allowed = 1u << r.arm;
	r.segs = 1000;
	r.retrans = 100;
	l.sample.bytes = 1 << 20;
	l.sample.duration_us = 1000000;
	l.sample.srtt_us = id + 1;
	l.sample.min_rtt_us = id + 1;
	l.sample.flags = THALWEG_SAMPLE_BUSY_TIME;
	l.verdict.outcome = THALWEG_SCORED;
	learn(&r, &l);
	choose(&r, &shares);
	change(&r);
	return 0;
}
