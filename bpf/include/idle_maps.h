/* SPDX-License-Identifier: GPL-2.0-only */
/* idle: maps that its two programs share. */
#ifndef THALWEG_IDLE_MAPS_H
#define THALWEG_IDLE_MAPS_H

/* Networks where windows are kept (the level of prefixes). Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THALWEG_IDLE_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thalweg_host_key);
	__type(value, struct thalweg_idle_network);
} idle_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thalweg_idle_flow);
} idle_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, THALWEG_IDLE_RING);
} idle_reports SEC(".maps");

/* Reports that the ring had no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} idle_lost SEC(".maps");

#endif
