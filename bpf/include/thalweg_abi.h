/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * All data that crosses the border between the kernel programs and the agent: structs,
 * enums, constants, each defined here and nowhere else. Rust takes its types from this
 * file (bindgen, crates/bpf-types/tests/generated.rs).
 *
 * Rules
 *  - Fixed-width fields only, no implicit padding (asserted at the end).
 *  - Any change of layout or meaning raises THALWEG_ABI_VERSION. The agent compares it
 *    with the pinned `meta` map, converts the records of the four previous versions
 *    (crates/bpf-types/src/earlier.rs), and refuses newer ones.
 *  - Units are in the names: _us, _ns, _bytes, _q16 (fixed point, 65536 = 1).
 *
 * Reserved for extensions that need no new layout:
 *  - policy rules that limit the arms: the choice takes a mask of allowed arms;
 *  - arms supplied by struct_ops: an arm is a name, THALWEG_ARM_STRUCT_OPS shows its
 *    origin.
 */
#ifndef THALWEG_ABI_H
#define THALWEG_ABI_H

#include <linux/types.h>

#include "thalweg_network_abi.h"
#include "thalweg_policy_abi.h"
#include "thalweg_rate_abi.h"
#include "thalweg_timers_abi.h"

#define THALWEG_ABI_VERSION 11

/* Version of the rule of choice (thalweg_algo.h), in events; classic is 1. */
#define THALWEG_RULE 5
#define THALWEG_RULE_CLASSIC 1

/* Largest number of congestion controls of an agent. Masks of arms are __u16. */
#define THALWEG_MAX_ARMS 16
/* TCP_CA_NAME_MAX of the kernel, with the closing NUL. */
#define THALWEG_CC_NAME 16
/* "No arm": the connection uses a congestion control that is not in the table. */
#define THALWEG_NO_ARM 255
/*
 * Flag in the values of map `owned`, beside the mask of arms: a policy wrote it, not the
 * application.
 */
#define THALWEG_OWNED_BY_POLICY (1u << 31)
/*
 * Likewise: a policy set the initial window, or a clamp that bounds it, or lets the socket alone.
 * Beside an application's mark, too, which is 0 without it.
 */
#define THALWEG_OWNED_WINDOW (1u << 30)
/*
 * Likewise: another feature has the connection do without what the others to its network have, and
 * its score would say nothing of its congestion control. Nobody owns it.
 */
#define THALWEG_UNSCORED (1u << 29)
/* All flags: the rest is the mask of arms. */
#define THALWEG_MARK_FLAGS (7u << 29)
/*
 * Initial windows that may be chosen: 10 segments, which is the kernel's own, 12, 14 and
 * so on. In records of initial windows the arm with index i is the window
 * THALWEG_WINDOW_LEAST + 2 i.
 */
#define THALWEG_WINDOW_LEAST 10
#define THALWEG_WINDOW_MOST 32
#define THALWEG_WINDOWS 12
/*
 * Larger windows are chosen from this RTT on. Below, they save next to nothing, and TCP's pacing
 * costs fast connections the most.
 */
#define THALWEG_WINDOW_RTT_US 2048
/* Flag in thalweg_window_choice.chosen, in slots alone: the window that ran was read. */
#define THALWEG_WINDOW_READ 128
/* Default capacity of the `hosts` map; the agent sets it before load. */
#define THALWEG_DEFAULT_HOSTS 65536
/* Slots for connections being measured (a power of two). */
#define THALWEG_CONNECTIONS 65536
/* Names of congestion controls that ran instead of an arm; more are not told apart. */
#define THALWEG_OVERRIDDEN 64
/* Possible slots of a connection; if all are taken, the oldest is not scored. */
#define THALWEG_PROBES 4
/* Largest number of out-of-scope network namespaces that the agent is told of at a time. */
#define THALWEG_STRANGERS 1024
/*
 * Slots for default arms of network namespaces, found without a search: slot
 * `cookie * THALWEG_NAMESPACE_FACTOR >> THALWEG_NAMESPACE_SHIFT`, in 32 bits, has
 * `cookie << 8 | arm`.
 */
#define THALWEG_NAMESPACES 1024
#define THALWEG_NAMESPACE_FACTOR 0x9e3779b1u
#define THALWEG_NAMESPACE_SHIFT 22
/* Remote prefixes where arms that need ECN may be chosen. */
#define THALWEG_ECN_PREFIXES 1024
/* Remote prefixes where the congestion window has a learned clamp. */
#define THALWEG_CLAMP_PREFIXES 1024
/* Remote hosts with a learned clamp at a time. */
#define THALWEG_CLAMPS 16384
/*
 * One connection in THALWEG_CLAMP_TURNS may have THALWEG_CLAMP_ROOM times the clamp of its
 * host, until the next 2^THALWEG_CLAMP_TURN_SHIFT ns are over.
 */
#define THALWEG_CLAMP_TURNS 16
#define THALWEG_CLAMP_ROOM 4
#define THALWEG_CLAMP_TURN_SHIFT 28
/* Locks shared by writers of host records. */
#define THALWEG_LOCKS 1024
/* Prefixes of NAT64, the well-known one among them. */
#define THALWEG_NAT64_PREFIXES 8
/* Default size of the event ring in bytes: a power of two, a multiple of the page size. */
#define THALWEG_DEFAULT_RING (1024 * 1024)

/* Fixed point with 16 fractional bits. */
#define THALWEG_ONE_Q16 65536u

/* Hours since the boot: the control group, and the hosts whose events are stored, change then. */
#define THALWEG_HOUR_NS 3600000000000ull

/* How arms are chosen and connections scored. */
enum thalweg_mode {
	/* The published algorithm, faults included, for comparison. */
	THALWEG_MODE_CLASSIC = 0,
	/* The default. */
	THALWEG_MODE_THALWEG = 1,
};

/* Flags of an arm in `struct thalweg_arm`. */
enum thalweg_arm_flag {
	/* The kernel offers it and the operator allows it. */
	THALWEG_ARM_PRESENT = 1 << 0,
	/* Chosen only for ECN prefixes, and if ECN was negotiated (dctcp). */
	THALWEG_ARM_NEEDS_ECN = 1 << 1,
	/* The kernel does not have it; not chosen until the agent clears this. */
	THALWEG_ARM_REFUSED = 1 << 2,
	/* Supplied by a BPF struct_ops program. Reserved. */
	THALWEG_ARM_STRUCT_OPS = 1 << 3,
};

/* Flags of a connection, and of its events. */
enum thalweg_conn_flag {
	/* The learner decided for it (its arm may still be the system's own). */
	THALWEG_CONN_DECIDED = 1 << 0,
	/* The application called setsockopt(TCP_CONGESTION): the connection is not changed. */
	THALWEG_CONN_APP_OWNED = 1 << 1,
	/* It was moved to another arm mid-flow. */
	THALWEG_CONN_SWITCHED = 1 << 2,
	/* Dry run: the choice was logged, nothing was set. */
	THALWEG_CONN_DRY_RUN = 1 << 3,
	/* Left on the system default as control group. */
	THALWEG_CONN_CONTROL = 1 << 4,
	/* The peer opened it (accept), not this machine (connect). */
	THALWEG_CONN_PASSIVE = 1 << 5,
	/* ECN was negotiated. */
	THALWEG_CONN_ECN = 1 << 6,
	/* bpf_setsockopt(TCP_CONGESTION) failed for the chosen arm. */
	THALWEG_CONN_SET_FAILED = 1 << 7,
	/* An open trial (not in events, whose flags end here). */
	THALWEG_CONN_TRIAL = 1 << 8,
	/* Its stretch follows another one on the same arm: there is no slow start in it. */
	THALWEG_CONN_STEADY = 1 << 9,
	/* It had earlier stretches: the end of its slot is in use. */
	THALWEG_CONN_LONG = 1 << 10,
	/* The four bits from here: enum thalweg_level of the record that decided first. */
	THALWEG_CONN_LEVEL_SHIFT = 11,
	THALWEG_CONN_LEVEL_MASK = 15 << 11,
	/*
	 * Its losses are not evaluated any more. The callbacks stay on: another program may want
	 * them.
	 */
	THALWEG_CONN_UNWATCHED = 1 << 15,
};

/* Why an arm was chosen. */
enum thalweg_reason {
	/* Too little evidence about the host: the system default is kept. */
	THALWEG_REASON_WARM_UP = 0,
	/* Lowest estimated cost. */
	THALWEG_REASON_GREEDY = 1,
	/* Exploration of an arm that has been measured before. */
	THALWEG_REASON_EXPLORE = 2,
	/* First trial of an arm that was never measured on this host. */
	THALWEG_REASON_UNTRIED = 3,
	/* The application made its own choice. */
	THALWEG_REASON_APPLICATION = 4,
	/* Neither application nor system default: a route or an older listener chose. */
	THALWEG_REASON_FOREIGN = 5,
	/* The loss rule, mid-flow: to an arm known to be better, or kept by the draw. */
	THALWEG_REASON_LOSS = 6,
	/* Mid-flow, back to the system default: the arm caused losses of its own. */
	THALWEG_REASON_WITHDRAWN = 7,
	/* The control group: the system default is kept. Advice: all without a trial. */
	THALWEG_REASON_CONTROL = 8,
	/* Mid-flow: a long connection, decided anew by the rule for new ones. */
	THALWEG_REASON_ANEW = 9,
	/* Mid-flow: a long connection, at once from a bad arm to the best one. */
	THALWEG_REASON_RETURNED = 10,
	/* Advice: a trial, drawn for the cluster. */
	THALWEG_REASON_DRAWN = 11,
};

/* How a measured stretch of a connection ended. */
enum thalweg_end {
	THALWEG_END_FIN_LOCAL = 0, /* orderly, closed here first */
	THALWEG_END_FIN_REMOTE = 1, /* orderly, closed by the peer first */
	THALWEG_END_RESET = 2, /* RST either way */
	THALWEG_END_TIMEOUT = 3, /* retransmissions unacknowledged */
	THALWEG_END_SWITCH = 4, /* the arm was changed mid-flow */
	THALWEG_END_STRETCH = 5, /* a long connection, measured on its way */
};

/* Outcome of a measurement. */
enum thalweg_outcome {
	THALWEG_SCORED = 0,
	/* Fewer acknowledged bytes than score_min_bytes: too few to judge a CC. */
	THALWEG_SKIPPED_SMALL = 1,
	/* The application, the receiver's window or the send buffer limited the rate, not the path. */
	THALWEG_SKIPPED_APP_LIMITED = 2,
	/* Not ours to score (application's own CC, unknown CC, below threshold). */
	THALWEG_SKIPPED_NOT_TRACKED = 3,
	/* A time-out, with no other measurement to compare with yet. */
	THALWEG_SKIPPED_TIMEOUT = 4,
	/* The socket ended the stretch with another congestion control than its arm. */
	THALWEG_SKIPPED_OVERRIDDEN = 5,
	THALWEG_OUTCOMES = 6,
};

/* Kinds of `struct thalweg_event`. */
enum thalweg_event_kind {
	THALWEG_EVENT_DECISION = 1,
	THALWEG_EVENT_CLOSE = 2,
};

/* What a record is of: a host, or one of the groups that it is in, the narrowest first. */
enum thalweg_level {
	THALWEG_LEVEL_HOST = 0,
	THALWEG_LEVEL_PREFIX = 1, /* the addresses around it */
	THALWEG_LEVEL_NAMED = 2, /* the network that the operator's table names for it */
	THALWEG_LEVEL_SERVICE = 3, /* the hosts of a service with a similar RTT */
	THALWEG_LEVEL_NAMESPACE = 4, /* all of a network namespace */
	THALWEG_LEVELS = 5,
	/* Records of initial windows, whose arms are windows: of the same groups. */
	THALWEG_LEVEL_WINDOW_PREFIX = 5,
	THALWEG_LEVEL_WINDOW_SERVICE = 6,
	THALWEG_LEVEL_WINDOW_NAMESPACE = 7,
	THALWEG_ALL_LEVELS = 8,
	/*
	 * With the level of a prefix or of a named network, which are the same for all agents:
	 * what others told of it. The agent writes these records; programs never score into them.
	 */
	THALWEG_LEVEL_FLEET = 8,
	THALWEG_LEVEL_FLEET_PREFIX = 9,
	THALWEG_LEVEL_FLEET_NAMED = 10,
	THALWEG_LEVEL_MASK = 15,
};

/*
 * Key of a record of a host or group. IPv4 addresses, IPv4-mapped ones and those behind NAT64
 * are stored as ::ffff:a.b.c.d with prefix_len counted in the 128-bit address (96 + n). Of named networks
 * the last eight bytes of addr are a hash of the name, in network byte order; of services the
 * last four are the port, in network byte order, the class of the RTT, and 1 if the
 * connections were accepted. Their prefix_len is 128. Of namespaces all is 0.
 */
struct thalweg_host_key {
	__u64 netns; /* network namespace cookie */
	__u8 addr[16]; /* network byte order, bits beyond prefix_len are 0 */
	__u32 prefix_len; /* 0..128 */
	__u32 level; /* enum thalweg_level */
};

/* A prefix of NAT64 (RFC 6052): 32, 40, 48, 56, 64 or 96 bits; 0: none, and none after it. */
struct thalweg_nat64 {
	__u32 prefix_len;
	__u8 addr[16]; /* network byte order, bits beyond prefix_len are 0 */
};

/* Value of the one-element `nat64` map. */
struct thalweg_nat64_table {
	struct thalweg_nat64 prefixes[THALWEG_NAT64_PREFIXES];
};

/* Record of one arm for one host: what a decision reads. */
struct thalweg_arm_state {
	/*
	 * classic: lower half of the published cost, scale 1,000,000, 0 = unset.
	 * thalweg: discounted mean cost in bits, Q16 (valid if weight_q16 > 0).
	 */
	__u32 value;
	__u32 weight_q16; /* thalweg: discounted number of full-weight samples */
	__u32 chosen; /* decisions for this arm ("Count") */
	__u32 caution_q16; /* thalweg: handicap against luck, bits */
};

/* ... and the rest of it. */
struct thalweg_arm_statistics {
	/* Highest rate seen. classic: bytes per us; thalweg: bytes per second. */
	__u64 max_rate;
	/* classic: upper half of the published cost; groups: mean cost by own measurements. */
	__u32 value_high;
	__u32 deviation_q16; /* thalweg: discounted mean of |cost - value| */
	__u32 log_rate_q16; /* thalweg: discounted mean of log2(bytes per second) */
	__u32 srtt_us; /* thalweg: discounted mean of the smoothed RTT at close */
	__u32 min_rtt_us; /* lowest RTT seen with this arm; groups: evidence by own measurements */
	__u32 other; /* decisions for other reasons than the lowest cost ("Count" - "Greedy") */
	__u32 scored; /* measurements taken */
	__u32 segs; /* thalweg: discounted number of data segments sent ... */
	__u32 retrans; /* ... and how many of them were retransmissions */
	__u16 counted; /* thalweg: discounted number of measurements compared with the system's */
	__u16 slow; /* ... and how many of them were much slower, the slowest counted twice */
};

/*
 * Record of one remote host, or of a group of hosts, whose costs are relative
 * (thalweg_algo.h). Writers hold the lock `tag % THALWEG_LOCKS`.
 * Readers without the lock (the agent) are safe. Writers raise seq_tail first and
 * seq_head last, and a copy runs from head to tail: equal numbers mean that no writer
 * came between. The same holds for equal tags at both ends: the map may recycle the
 * record for another host in the middle of a copy.
 *
 * What a decision reads comes first. The kernel's table puts 80 bytes of its own before
 * a record, so 48 bytes end a cache line, and four arms are the next one. With a size of
 * 48 bytes and whole lines every record lies so.
 */
struct thalweg_host {
	__u32 seq_head;
	__u32 connections; /* established, however their CC was chosen */
	__u64 tag; /* hash of the key; shows whether the LRU recycled the record */
	__u64 seen_ns; /* CLOCK_MONOTONIC of the last connection or score */
	__u64 forgot_ns; /* CLOCK_MONOTONIC up to which evidence was discounted */
	__u32 scored; /* measurements taken */
	__u16 harmful; /* thalweg: mask of arms that gain at the expense of others */
	__u16 trials; /* thalweg: open trials */
	__u16 used; /* arms with any measurement have indices below this */
	__u16 unsteady; /* thalweg: mask of arms that are much slower now and then */
	__u32 credit_q16; /* thalweg: bits that trials may cost */
	struct thalweg_arm_state arms[THALWEG_MAX_ARMS];
	__u64 trial_ns; /* thalweg: CLOCK_MONOTONIC when the last trial started */
	__u64 max_rate; /* highest rate seen to the host, same unit as the arms' */
	__u32 min_rtt_us; /* lowest RTT seen to the host */
	__u32 switched; /* connections whose arm was changed mid-flow */
	__u32 queue_q16; /* thalweg: log2 of the RTT under the system's arm over the base RTT */
	__u32 base_rtt_us; /* thalweg: lowest RTT since the last half-life; 0 = none yet */
	__u32 last_base_rtt_us; /* thalweg: ... and in the one before */
	__u32 level; /* enum thalweg_level */
	/* Groups: mean cost of the system's arm at hosts that it was new to; 0 = none yet ... */
	__u32 usual_q16;
	__u32 usual_log_rate_q16; /* ... and of its log2(bytes per second) */
	/*
	 * Windows: index of the largest that may be chosen. Else what the fleet told of the
	 * system's arm, in measurements that count in the share of the default ...
	 */
	__u32 step;
	/* ... and `scored` when that last changed. Fleet: agents that told of the system's arm */
	__u32 step_scored;
	struct thalweg_arm_statistics statistics[THALWEG_MAX_ARMS];
	__u32 tag_tail; /* the tag's lower half again: see above */
	__u32 seq_tail;
};

/* Input of forget_arms. */
struct thalweg_forget {
	struct thalweg_host_key key;
	__u32 arms; /* mask */
	__u32 reserved; /* 0 */
};

/*
 * What a wider group's knowledge of each arm is worth to a record, as evidence (Q16). The
 * agent takes it from the spread of the records.
 */
struct thalweg_worth {
	__u32 arms_q16[THALWEG_MAX_ARMS];
};

/* Eight for each record of a group, at most. */
#define THALWEG_GROUP_BITS 65536

/*
 * Value of the one-element map `worth`: by the level of the record that takes over. A fleet
 * level has the worth of its records to those of the same networks; they themselves take
 * over at that of the level without the fleet.
 */
struct thalweg_worths {
	struct thalweg_worth levels[THALWEG_LEVEL_MASK + 1];
	/* Bit netns % 64: a namespace may know enough. Of others no group is asked. */
	__u64 known;
	__u64 known_windows; /* likewise of initial windows */
	/* Bit (tag >> 16) % THALWEG_GROUP_BITS: a group may have a record. Others are not asked. */
	__u64 groups[THALWEG_GROUP_BITS / 64];
};

/* One measured stretch of a connection: the input of scoring. */
struct thalweg_sample {
	__u64 bytes; /* acknowledged in the stretch */
	__u64 duration_us; /* time with data outstanding if known, else wall time */
	__u64 rate_delivered_bytes; /* kernel's last rate sample: delivered packets * MSS ... */
	__u64 rate_interval_us; /* ... over this time */
	__u32 srtt_us;
	__u32 min_rtt_us;
	__u32 segs_out; /* data segments sent in the stretch, including retransmissions */
	__u32 retrans; /* retransmissions among them */
	__u32 steady_segs; /* segments after slow start, if any ... */
	__u32 steady_retrans; /* ... and retransmissions among them; else all */
	__u32 loss_srtt_us; /* smoothed RTT at retransmissions after slow start; 0 = none */
	__u16 flags; /* enum thalweg_sample_flag */
	__u16 end; /* enum thalweg_end */
	__u32 receiver_us; /* part of duration_us in which the receiver's window was full ... */
	__u32 buffer_us; /* ... or the send buffer; 0 without THALWEG_SAMPLE_BUSY_TIME */
};

enum thalweg_sample_flag {
	/* duration_us is the kernel's own busy time, not wall time. */
	THALWEG_SAMPLE_BUSY_TIME = 1 << 0,
	/* The kernel's last rate sample was limited by the application. */
	THALWEG_SAMPLE_APP_LIMITED = 1 << 1,
};

/* Parameters of the learner; documented in docs/reference/configuration.md. */
struct thalweg_params {
	__u32 mode; /* enum thalweg_mode */
	__u32 dry_run; /* 0 or 1 */
	__u32 warm_up; /* thalweg: scored measurements before the first exploration */
	__u32 gap_scale; /* thalweg: how fast exploration falls with cost gap x evidence */
	__u32 weight_max_q16; /* thalweg: cap of an arm's evidence = memory length */
	__u32 idle_shift; /* thalweg: the other arms lose 1/2^idle_shift per measurement */
	__u64 half_life_ns; /* thalweg: half-life of evidence; 0 = never halved */
	__u64 stretch_ns; /* thalweg: interval of looks at long connections; 0 = none */
	__u32 latency_weight_q16; /* thalweg: bits of cost for a doubled RTT */
	__u32 latency_guard_us; /* thalweg: added to the RTT, so that small queues cost nothing */
	__u64 score_min_bytes; /* thalweg: smaller transfers are not scored */
	__u64 score_full_bytes; /* thalweg: transfers of at least this size have full weight */
	__u32 loss_shift; /* loss rule: retransmissions > segments >> loss_shift */
	__u32 loss_min_segs; /* thalweg: segments before the loss rule applies */
	__u32 rescue_arm; /* arm that the loss rule chooses (bbr), or THALWEG_NO_ARM */
	__u32 ipv4_prefix; /* host key, 1..32 */
	__u32 ipv6_prefix; /* host key, 1..128 */
	__u32 jiffy_us; /* length of a kernel tick; 0 = kernel's busy time not readable */
	__u32 rule; /* version of the rule of choice, for events */
	__u32 parameters; /* hash of the fields above, for events */
	__u64 control_salt;
	__u32 control_share_q16; /* share of host-hours in the control group */
	__u32 control_permanent_q16; /* share of hosts that are always in it */
	__u32 cluster_ipv4; /* prefix that is drawn together, 0..32 */
	__u32 cluster_ipv6; /* 0..128 */
	__u64 heartbeat_max_ns; /* no exploration this long after the agent's last sign; 0 = always */
	/*
	 * Advice, 0 or 1: nothing is learned by trying. Clusters outside of the control group
	 * have trials, all others keep what they have and are measured, whoever chose their CC.
	 */
	__u32 advise;
	__u32 groups; /* 0 or 1: groups of hosts learn, and decide about new hosts */
	__u32 group_ipv4; /* prefix of the narrowest groups, 1..32 */
	__u32 group_ipv6; /* 1..128 */
	__u32 windows; /* mask of the initial windows that may be chosen; 0: none is chosen */
	__u32 clamps; /* 0 or 1: new connections get the clamp of their host */
};

/* One arm of the table. */
struct thalweg_arm {
	char name[THALWEG_CC_NAME];
	__u32 flags; /* enum thalweg_arm_flag */
	__s32 refused_errno; /* negative errno of the last refusal, or 0 */
	__u64 refused; /* refusals, ever */
};

/*
 * Value of the one-element `arms` map. The masks are the allowed arms of a connection:
 * in thalweg those present and not refused, in classic its four.
 */
struct thalweg_arms {
	__u32 allowed; /* without ECN */
	__u32 allowed_ecn; /* with ECN negotiated */
	struct thalweg_arm arms[THALWEG_MAX_ARMS];
	__u64 heartbeat_ns; /* CLOCK_MONOTONIC of the agent's last sign */
	__u32 reverted; /* mask of arms taken away everywhere; THALWEG_NO_TRIALS */
	__u32 used; /* highest index of a name + 1 */
};

/* Key of a host's learned clamp. */
struct thalweg_clamp_key {
	__u64 netns; /* network namespace cookie */
	__u8 addr[16]; /* network byte order, IPv4 mapped */
};

/* What the iterator over open connections tells of one in the prefixes of learned clamps. */
struct thalweg_clamp_report {
	__u64 cookie; /* of the socket */
	struct thalweg_clamp_key host;
	__u64 bytes_acked;
	__u64 rate_delivered_bytes; /* kernel's last rate sample: delivered packets * MSS ... */
	__u32 rate_interval_us; /* ... over this time */
	__u32 min_rtt_us; /* all ones: not measured yet */
	__u32 mss;
	__u32 segments; /* the clamp that it has from the agent; 0: none */
	__s32 error; /* negative errno of a refused change, or 0 */
	__u32 flags; /* enum thalweg_clamp_flag */
};

enum thalweg_clamp_flag {
	/* The clamp was changed now. */
	THALWEG_CLAMP_SET = 1 << 0,
	/* A policy, or a route, bounds the congestion window: it is left alone. */
	THALWEG_CLAMP_LEFT = 1 << 1,
};

/* Flag beside a mask of arms: none is tried. */
#define THALWEG_NO_TRIALS (1u << 31)

/* Value of the one-element `meta` map, which a restarted agent checks first. */
struct thalweg_meta {
	__u32 abi_version;
	__u32 mode;
	__u32 host_bytes; /* sizeof(struct thalweg_host) */
	__u32 event_bytes; /* sizeof(struct thalweg_event) */
	__u64 hosts_max;
};

/* The origin of a connection's arm. */
struct thalweg_origin {
	__u16 flags; /* enum thalweg_conn_flag */
	__u16 hour; /* when its arm was chosen: lower half of THALWEG_HOUR_NS since the boot */
	__u32 propensity_q16;
	__u32 handshake_rtt_us; /* smoothed RTT at establishment; 0 = unknown */
	__u8 arm; /* the arm in use */
	__u8 reason; /* enum thalweg_reason */
	__u8 system_arm; /* the arm that the system gave it */
	__u8 chosen_arm; /* the arm that the learner chose; differs from arm in a dry run */
};

/* Sums over stretches of a connection. */
struct thalweg_sums {
	__u64 bytes; /* acknowledged */
	__u64 duration_us; /* with data outstanding if known, else wall time */
	__u64 wall_us;
	__u32 segs_out;
	__u32 retrans;
};

/* The choice of a connection's initial window. */
struct thalweg_window_choice {
	__u8 segments; /* what it has; 0: it is not measured */
	__u8 chosen; /* what the learner chose; differs from that in a dry run */
	__u16 propensity_q16; /* probability of that, 65535 = 1 */
};

/* A connection being measured. */
struct thalweg_conn {
	__u64 cookie; /* of the socket; 0 = the slot is free */
	__u64 start_ns; /* of the stretch being measured */
	__u64 acked_ns; /* when our FIN was acknowledged, 0 before */
	__u64 start_bytes; /* bytes_acked at its start */
	__u32 start_busy_ticks; /* kernel ticks with data outstanding up to then ... */
	__u32 start_receiver_ticks; /* ... limited by the receiver's window ... */
	__u32 start_buffer_ticks; /* ... by the send buffer */
	__u32 start_segs;
	__u32 start_retrans;
	struct thalweg_origin origin;
	__u32 look_segs; /* losses are evaluated after this many more segments */
	__u64 look_ns; /* the last evaluation: its time, ... */
	__u32 looked_segs; /* ... the segments up to then ... */
	__u32 looked_retrans; /* ... and the retransmissions */
	__u32 slow_start_segs; /* segments up to the last retransmission in slow start ... */
	__u32 slow_start_retrans; /* ... and retransmissions */
	__u32 loss_srtt_us; /* smoothed RTT at retransmissions after it, averaged; 0 = none */
	__u32 netns; /* lower half of the namespace's cookie; 0 = unknown */
	/* Long connections only (THALWEG_CONN_LONG): */
	__u64 decided_ns; /* when it was last decided anew; 0 = never */
	struct thalweg_sums before; /* of its earlier stretches */
	__u32 count; /* scored stretches in a row on its arm */
	/* Where initial windows are chosen, of all connections; else 0: */
	struct thalweg_window_choice window;
};

/*
 * One decision, or the end of one stretch that was scored or in which data was sent,
 * through the ring buffer.
 */
struct thalweg_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 connection; /* socket cookie */
	struct thalweg_host_key host;
	__u8 remote[16]; /* full address, IPv4 as ::ffff:a.b.c.d, also behind NAT64 */
	__u16 remote_port;
	__u16 local_port;
	struct thalweg_window_choice window;
	__u8 kind; /* enum thalweg_event_kind */
	__u8 arm; /* index, or THALWEG_NO_ARM */
	__u8 system_arm;
	__u8 reason; /* enum thalweg_reason */
	__u8 flags; /* enum thalweg_conn_flag */
	__u8 end; /* close only: enum thalweg_end */
	__u8 outcome; /* close only: enum thalweg_outcome */
	__u8 chosen_arm;
	__u32 propensity_q16; /* probability of chosen_arm */
	__s32 error; /* negative errno of a refused arm, or 0 */
	/* For close only; zero in decisions. */
	__u64 bytes;
	__u64 duration_us;
	__u64 cost; /* classic: scale 1,000,000; thalweg: Q16 bits */
	__u32 weight_q16; /* weight of the measurement */
	__u32 srtt_us;
	__u32 min_rtt_us;
	__u32 segs_out;
	__u32 retrans;
	__u16 sample_flags; /* enum thalweg_sample_flag */
	__u16 window_cost_q10; /* of its initial window, bits + 32; 0 = it was not scored */
	__u64 wall_us; /* wall time of the stretch */
	__u32 receiver_us; /* part of it limited by the receiver's window ... */
	__u32 buffer_us; /* ... by the send buffer */
	/* For both kinds again. */
	__u32 handshake_rtt_us; /* smoothed RTT at establishment; 0 = unknown */
	__u32 parameters; /* hash of the parameters in force */
	__u16 rule; /* version of the rule of choice */
	__u16 allowed; /* decision only: mask of the permitted arms */
	__u16 hour; /* as in thalweg_origin */
	__u16 level; /* enum thalweg_level of the record that decided first */
	/* Decision only: probability of each arm, 65535 = 1; of the chosen one alone mid-flow. */
	__u16 propensities_q16[THALWEG_MAX_ARMS];
	/* Close only: the connection's stretches before this one. */
	struct thalweg_sums before;
};

/* Key of the map `overridden`: the name of a congestion control, filled up with NUL. */
struct thalweg_cc_name {
	char text[THALWEG_CC_NAME] __attribute__((aligned(8)));
};

/* Value of the per-CPU `counters` map (sum over CPUs). */
struct thalweg_counters {
	__u64 established; /* connections seen */
	__u64 decided; /* decisions by the learner */
	__u64 changed; /* connections whose CC was changed */
	__u64 refused; /* arms the kernel refused to set */
	__u64 closed; /* ends of connections seen */
	__u64 outcomes[THALWEG_OUTCOMES]; /* by enum thalweg_outcome */
	__u64 switched; /* loss rule applied */
	__u64 withdrawn; /* returned to the system default mid-flow */
	__u64 app_owned; /* left to the application */
	__u64 events; /* to the ring: decisions, scored stretches, ends of long connections */
	__u64 events_dropped; /* ring full */
	__u64 by_group; /* decisions by groups, among those decided */
	__u64 hosts_created; /* records of hosts, without those of groups */
	__u64 hosts_missed; /* no host record existed or could be created */
	__u64 conns_missed; /* connections whose slot was reused, and which were not scored */
	__u64 outside; /* connections of network namespaces out of scope */
	__u64 control; /* decisions of the control group, among those decided */
	__u64 visited; /* sockets seen by looks at long connections */
	__u64 stretches; /* long connections scored on their way */
	__u64 anew; /* decisions about long connections on their way */
	__u64 moved; /* long connections moved to another arm */
	__u64 windows; /* initial windows decided by groups */
	__u64 windows_raised; /* connections that got a larger one than the kernel's */
	__u64 windows_refused; /* initial windows, or their pacing, that the kernel refused */
	/* Initial windows left to a policy, a route, an application, or a short RTT. */
	__u64 windows_left;
	__u64 windows_scored; /* connections whose initial window was scored */
	__u64 windows_overridden; /* initial windows that another one replaced before the first data */
};

/* Behind the key, which both use. */
#include "thalweg_buffers_abi.h"
#include "thalweg_idle_abi.h"

#define THALWEG_ASSERT_SIZE(type, bytes) \
	_Static_assert(sizeof(struct type) == (bytes), "size of struct " #type)
THALWEG_ASSERT_SIZE(thalweg_host_key, 32);
THALWEG_ASSERT_SIZE(thalweg_nat64_table, 20 * THALWEG_NAT64_PREFIXES);
THALWEG_ASSERT_SIZE(thalweg_arm_state, 16);
THALWEG_ASSERT_SIZE(thalweg_arm_statistics, 48);
THALWEG_ASSERT_SIZE(thalweg_host, 48 + 17 * 64);
THALWEG_ASSERT_SIZE(thalweg_forget, 40);
THALWEG_ASSERT_SIZE(thalweg_worth, 64);
THALWEG_ASSERT_SIZE(thalweg_worths, 16 * 64 + 16 + THALWEG_GROUP_BITS / 8);
THALWEG_ASSERT_SIZE(thalweg_sample, 72);
THALWEG_ASSERT_SIZE(thalweg_params, 152);
THALWEG_ASSERT_SIZE(thalweg_clamp_key, 24);
THALWEG_ASSERT_SIZE(thalweg_clamp_report, 72);
THALWEG_ASSERT_SIZE(thalweg_arm, 32);
THALWEG_ASSERT_SIZE(thalweg_arms, 8 + 32 * THALWEG_MAX_ARMS + 16);
THALWEG_ASSERT_SIZE(thalweg_meta, 24);
THALWEG_ASSERT_SIZE(thalweg_origin, 16);
THALWEG_ASSERT_SIZE(thalweg_sums, 32);
THALWEG_ASSERT_SIZE(thalweg_window_choice, 4);
THALWEG_ASSERT_SIZE(thalweg_conn, 152);
THALWEG_ASSERT_SIZE(thalweg_event, 232);
THALWEG_ASSERT_SIZE(thalweg_cc_name, THALWEG_CC_NAME);
THALWEG_ASSERT_SIZE(thalweg_counters, 256);
THALWEG_ASSERT_SIZE(thalweg_idle_network, 16);
THALWEG_ASSERT_SIZE(thalweg_idle_settings, 16);
THALWEG_ASSERT_SIZE(thalweg_timers, 40);
THALWEG_ASSERT_SIZE(thalweg_timers_peers, 16);
THALWEG_ASSERT_SIZE(thalweg_timers_report, 88);

#endif
