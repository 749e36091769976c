// SPDX-License-Identifier: GPL-2.0-only
/* A firewall that drops SYNs and SYN-ACKs with TCP option 253 (tc, IPv4 on Ethernet). */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#define SEC(name) __attribute__((section(name), used))

static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) =
	(void *)BPF_FUNC_skb_load_bytes;

char LICENSE[] SEC("license") = "GPL";

#define TCP (14 + 20)

SEC("tc")
int firewall(struct __sk_buff *skb)
{
	__u8 protocol, head[14], option[2];
	__u32 at = TCP + 20, end, i;

	if (bpf_skb_load_bytes(skb, 14 + 9, &protocol, 1) || protocol != 6 ||
	    bpf_skb_load_bytes(skb, TCP, head, sizeof(head)) || !(head[13] & 2))
		return TC_ACT_OK;
	end = TCP + (head[12] >> 4) * 4;
	for (i = 0; i < 40; i++) {
		if (at >= end || bpf_skb_load_bytes(skb, at, option, 2))
			return TC_ACT_OK;
		if (option[0] == 253)
			return TC_ACT_SHOT;
		at += option[0] < 2 ? 1 : option[1];
	}
	return TC_ACT_OK;
}
