/* SPDX-License-Identifier: GPL-2.0-only */
/* learn: the cgroup that the agent covers, for iterators. */
#ifndef THALWEG_LEARN_COVERED_H
#define THALWEG_LEARN_COVERED_H

#include "thalweg_kernel_tcp.h"

/* Levels from a socket's cgroup to the root: deeper ones are not reached. */
#define LEVELS 64

/* Id of the cgroup that the agent covers. A section of its own: the agent writes it before load. */
const volatile __u64 covered SEC(".rodata.covered") = 0;

/* Whether a socket is in the cgroup that the agent covers: an iterator sees all of them. */
static __always_inline int is_covered(struct tcp_sock *tp)
{
	struct cgroup *cgroup = ((struct sock *)tp)->sk_cgrp_data.cgroup;
	struct cgroup_subsys_state *parent;
	__u32 i;

	for (i = 0; i < LEVELS && cgroup; i++) {
		if (cgroup->kn->id == covered)
			return 1;
		parent = cgroup->self.parent;
		if (!parent)
			return 0;
		cgroup = parent->cgroup;
	}
	return 0;
}

#endif
