/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Draws of connections by their cookies, freestanding. */
#ifndef THALWEG_SHARE_H
#define THALWEG_SHARE_H

#include <linux/types.h>

/*
 * Whether a draw takes a connection of this cookie into a share, Q16. The same for all of its
 * life.
 */
static inline __attribute__((always_inline)) int is_in_share(__u32 cookie, __u32 salt,
							     __u32 share_q16)
{
	__u32 mixed = (cookie ^ salt) * 0x9e3779b1u;

	/* The upper bits are mixed best. */
	return (mixed ^ mixed >> 15) * 0x85ebca6bu >> 16 < share_q16;
}

#endif
