/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Additions of the programs to <linux/bpf.h>: constants of headers that do not mix with
 * it, and the kernel's own structures for the optional variant.
 *
 * The programs are written against the UAPI alone. So they load on kernels without BTF
 * of their own (user-mode Linux, small embedded builds). Built with
 * -DTHALWEG_KERNEL_BTF the same source reads some fields of the kernel's own structures
 * through CO-RE; the agent loads that object where /sys/kernel/btf exists. Oldest kernel
 * aimed at: 5.15 (bpf_get_netns_cookie for sockops).
 */
#ifndef THALWEG_COMPAT_H
#define THALWEG_COMPAT_H

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOL_SOCKET 1
#define SOL_IP 0
#define SOL_TCP 6
#define SOL_IPV6 41
#define SO_PRIORITY 12
#define SO_MAX_PACING_RATE 47
#define IP_TOS 1
#define IPV6_TCLASS 67
#define TCP_CONGESTION 13
#define TCP_SAVE_SYN 27
/* Linux 6.12; older headers lack it. */
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#define ENOENT 2
#define ENOMEM 12
#define EINVAL 22
#define ENOSPC 28
#define ETIMEDOUT 110
/* Internal to the kernel, not in user space. */
#define ENOTSUPP 524
/* tcp_sock.ecn_flags: ECN was negotiated, by RFC 3168 or (Linux 7.0) as Accurate ECN. */
#define TCP_ECN_ANY (1 << 0 | 1 << 4)

#ifdef THALWEG_KERNEL_BTF
#include <bpf/bpf_core_read.h>

#include "thalweg_kernel_tcp.h"
#endif

#endif
