/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * thalweg_address.h, compiled for this machine. Each line of the input has an address and
 * prefixes of NAT64 as "ADDRESS LENGTH PREFIX ...", the answer is the address in its one form
 * and its scope.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "thalweg_address.h"

int main(void)
{
	char line[1024], address[64], prefix[64];
	struct thalweg_nat64 nat64[THALWEG_NAT64_PREFIXES];
	unsigned int words[4], length, used, at, count;
	int ipv4;

	while (fgets(line, sizeof(line), stdin)) {
		memset(nat64, 0, sizeof(nat64));
		if (sscanf(line, "%63s%n", address, (int *)&at) != 1 ||
		    inet_pton(AF_INET6, address, words) != 1)
			return 1;
		for (count = 0; sscanf(line + at, "%u %63s%n", &length, prefix, (int *)&used) == 2;
		     count++, at += used) {
			if (count == THALWEG_NAT64_PREFIXES)
				return 2;
			nat64[count].prefix_len = length;
			if (inet_pton(AF_INET6, prefix, nat64[count].addr) != 1)
				return 3;
		}
		if (!thalweg_is_ipv4(words))
			thalweg_unwrap(words, nat64);
		for (count = 0; count < 16; count++)
			printf("%02x", ((unsigned char *)words)[count]);
		ipv4 = thalweg_is_ipv4(words);
		printf(" %d %d %d\n", ipv4, thalweg_is_loopback(words, ipv4),
		       thalweg_is_link_local(words, ipv4));
	}
	return 0;
}
