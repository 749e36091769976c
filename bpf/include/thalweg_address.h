/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Addresses in one form: four words in network byte order, IPv4 as ::ffff:a.b.c.d.
 * Freestanding, like thalweg_algo.h; crates/units/src/address.rs is the documented
 * reference.
 */
#ifndef THALWEG_ADDRESS_H
#define THALWEG_ADDRESS_H

#include "thalweg_abi.h"

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define THALWEG_NET32(word) __builtin_bswap32(word)
#else
#define THALWEG_NET32(word) (word)
#endif

/* Bits before the IPv4 address in ::ffff:a.b.c.d. */
#define THALWEG_MAPPED 96

/* The mask of a word of an address, for a prefix of this length. */
static __always_inline __u32 prefix_mask(__u32 prefix_len, __u32 word)
{
	__u32 bits = prefix_len > word * 32 ? prefix_len - word * 32 : 0;

	if (!bits)
		return 0;
	return bits >= 32 ? ~0u : THALWEG_NET32(~0u << (32 - bits));
}

static __always_inline int same_prefix(const __u32 *a, const __u32 *b, __u32 prefix_len)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < 4; i++)
		if ((a[i] ^ b[i]) & prefix_mask(prefix_len, i))
			return 0;
	return 1;
}

/* Whether an address is IPv4. */
static __always_inline int thalweg_is_ipv4(const __u32 *address)
{
	return !address[0] && !address[1] && address[2] == THALWEG_NET32(0xffff);
}

/* Whether an address, of IPv4 if `ipv4`, means the machine itself: 127.0.0.0/8, ::1. */
static __always_inline int thalweg_is_loopback(const __u32 *address, int ipv4)
{
	if (ipv4)
		return (address[3] & THALWEG_NET32(0xff000000)) == THALWEG_NET32(0x7f000000);
	return !address[0] && !address[1] && !address[2] && address[3] == THALWEG_NET32(1);
}

/* Likewise, whether it means another host on each interface: 169.254.0.0/16, fe80::/10. */
static __always_inline int thalweg_is_link_local(const __u32 *address, int ipv4)
{
	if (ipv4)
		return (address[3] & THALWEG_NET32(0xffff0000)) == THALWEG_NET32(0xa9fe0000);
	return (address[0] & THALWEG_NET32(0xffc00000)) == THALWEG_NET32(0xfe800000);
}

/*
 * The IPv4 address in an address under a prefix of NAT64 (RFC 6052, section 2.2). It
 * follows the prefix, without the eight bits from bit 64, which must be 0.
 */
static __always_inline int thalweg_embedded(const __u32 *address, __u32 prefix_len, __u32 *ipv4)
{
	__u64 head, tail;

	head = (__u64)THALWEG_NET32(address[0]) << 32 | THALWEG_NET32(address[1]);
	tail = (__u64)THALWEG_NET32(address[2]) << 32 | THALWEG_NET32(address[3]);
	if (tail >> 56)
		return 0;
	if (prefix_len == 96) {
		*ipv4 = address[3];
		return 1;
	}
	tail <<= 8;
	if (prefix_len < 64)
		tail = head << (prefix_len & 63) | tail >> ((64 - prefix_len) & 63);
	*ipv4 = THALWEG_NET32((__u32)(tail >> 32));
	return 1;
}

/* An address behind NAT64 becomes its IPv4 address; others stay. */
static __always_inline void thalweg_unwrap(__u32 *address, const struct thalweg_nat64 *nat64)
{
	__u32 i, length, ipv4;

	for (i = 0; i < THALWEG_NAT64_PREFIXES; i++) {
		length = nat64[i].prefix_len;
		if (!length)
			return;
		if (!same_prefix(address, (const __u32 *)nat64[i].addr, length) ||
		    !thalweg_embedded(address, length, &ipv4))
			continue;
		address[0] = 0;
		address[1] = 0;
		address[2] = THALWEG_NET32(0xffff);
		address[3] = ipv4;
		return;
	}
}

#endif
