/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for policies (included there, under its rules): a compiled
 * policy, as user space writes it into maps and policy.bpf.c reads it.
 *
 * A policy is compiled into tables:
 *   prefixes4, prefixes6   longest matching remote prefix -> index of a node
 *   nodes                  the rules of that prefix, and the next shorter prefix
 *   rules                  conditions, and the index of the rule in the file
 *   actions                by rule of the file: operations of a flow
 *   counters               by rule of the file: results
 *
 * Each policy in force is a program instance with its own tables, sized and filled
 * before it is attached. A new policy replaces the old one in the link. So a run of the
 * program sees one policy and never a table that is gone. This needs no slots, retries
 * or waits for grace periods, and tables are read without an outer map.
 *
 * A flow gets its rule once, at the first stage at which the policy does anything. Its
 * operations are kept until the handshake is over (`handshakes`), then, if its rule
 * needs more, in socket storage (`flows`). Whatever happens to the policy meanwhile, the
 * flow never sees parts of two. Only a policy that acts on handshakes remembers flows in
 * theirs. A flow must not get only the later part of a policy that came in the middle of
 * its handshake. So such a policy knows a time (`swap`). Before it, flows without a
 * record started under an earlier policy. They are not touched.
 *
 * Precedence among the rules whose conditions all match: a `never` rule before any
 * other; then the longest remote prefix (same_prefix counts as one of its length), then
 * the longest local prefix, then the first in the file. User space has sorted the rules
 * of a node by that order.
 */
#ifndef THALWEG_POLICY_ABI_H
#define THALWEG_POLICY_ABI_H

#include <linux/types.h>

/* Version of everything below that is pinned; raised when a layout or a meaning changes. */
#define THALWEG_POLICY_VERSION 4
/* Rules of one policy after compilation (a rule counts once per remote prefix). */
#define THALWEG_POLICY_MAX_RULES 65536
/* Rules compared with one flow; a policy that could need more is refused. */
#define THALWEG_POLICY_MAX_CANDIDATES 64
/* Operations of one rule. */
#define THALWEG_POLICY_MAX_OPS 16
/* Ranges of ports in one condition. */
#define THALWEG_POLICY_MAX_PORTS 4
/* cgroups that the rules of all loaded policies may name. */
#define THALWEG_POLICY_MAX_CGROUPS 32
/* Sets of arms that the rules of all loaded policies may name; 0 = no set. */
#define THALWEG_POLICY_MAX_ARM_SETS 63
/* Names of congestion controls and devices: TCP_CA_NAME_MAX and IFNAMSIZ. */
#define THALWEG_POLICY_NAME 16
/* Texts of all policies since the program was first attached. */
#define THALWEG_POLICY_MAX_TEXTS 1024
/* Open handshakes whose flow is remembered, per direction (a power of two up to 2^15). */
#define THALWEG_POLICY_HANDSHAKES 8192
/* Possible slots of a handshake: 16 bits of one hash each. */
#define THALWEG_POLICY_PROBES 4
/* A handshake that started this long ago, in ns, is over or dead. */
#define THALWEG_POLICY_HANDSHAKE_NS 130000000000ull
/* Marks that cgroups' programs leave for the main one, on each CPU (a power of two). */
#define THALWEG_POLICY_MARKS 64
/* No node, no rule. */
#define THALWEG_POLICY_NONE 0xffffffffu

/* When an operation is carried out; masks are 1 << stage. */
enum thalweg_stage {
	THALWEG_STAGE_CONNECT = 0, /* TCP_CONNECT_CB: before the SYN leaves */
	THALWEG_STAGE_LISTEN = 1, /* TCP_LISTEN_CB */
	THALWEG_STAGE_ASKED = 2, /* the kernel asks for a value: TIMEOUT_INIT, RWND_INIT, ... */
	THALWEG_STAGE_ESTABLISHED = 3, /* ACTIVE_ or PASSIVE_ESTABLISHED_CB */
	THALWEG_STAGE_RETRANSMIT = 4, /* RETRANS_CB; switches that callback on */
	THALWEG_STAGE_RTO = 5, /* RTO_CB; switches that callback on */
	THALWEG_STAGE_RTT = 6, /* RTT_CB; switches that callback on */
	THALWEG_STAGE_CLOSE = 7, /* STATE_CB to TCP_CLOSE; switches that callback on */
	THALWEG_STAGES = 8,
};

/* Kinds of operations. */
enum thalweg_policy_op_kind {
	/* bpf_setsockopt(level, name, value as an int) */
	THALWEG_OP_SET_INT = 1,
	/* bpf_setsockopt(level, name, text): TCP_CONGESTION, SO_BINDTODEVICE */
	THALWEG_OP_SET_TEXT = 2,
	/* Answers to queries of the kernel (stage ASKED). */
	THALWEG_OP_TIMEOUT_INIT = 3, /* value in microseconds */
	THALWEG_OP_RWND_INIT = 4, /* value in packets */
	THALWEG_OP_NEEDS_ECN = 5, /* value 0 or 1 */
	THALWEG_OP_BASE_RTT = 6, /* value in microseconds */
	/* Answers with the type of service (traffic class) of the peer's SYN. */
	THALWEG_OP_REFLECT_TOS = 7,
	/* An event with the flow's statistics, at most every `value` microseconds. */
	THALWEG_OP_STATISTICS = 8,
	/* Sends experimental TCP option 253 in the SYN / SYN-ACK: see
	 * THALWEG_OPTION_MAGIC. Value: the 32 bits to send. */
	THALWEG_OP_SEND_OPTION = 9,
	/* The same, with the hash of the congestion control's name at that time. */
	THALWEG_OP_SEND_OPTION_CC = 10,
	/* Reads the peer's option: stored with the flow, counted, reported in events. */
	THALWEG_OP_READ_OPTION = 11,
	/* The learner may choose from a set of arms only; value: index of the set. */
	THALWEG_OP_LEARN_FROM = 12,
};

/* The experimental option (RFC 4727 kind 253, RFC 6994 ExID): 253, length 8, magic, value. */
#define THALWEG_OPTION_KIND 253
#define THALWEG_OPTION_LENGTH 8
#define THALWEG_OPTION_MAGIC 0x5457

struct thalweg_policy_op {
	__u8 kind; /* enum thalweg_policy_op_kind */
	__u8 stages; /* mask of 1 << enum thalweg_stage */
	__u16 level; /* of setsockopt: SOL_SOCKET, SOL_TCP, SOL_IP, SOL_IPV6 */
	__u16 name; /* of setsockopt */
	/*
	 * SET_TEXT: index into the texts. SET_INT: not 0 if the value is a cap, which leaves an
	 * application's lower one: 1 + the value that means none, or THALWEG_CAP_OVERRIDES.
	 */
	__u16 text;
	__u32 value;
};

/* A cap that leaves no application's value. */
#define THALWEG_CAP_OVERRIDES 0xffff
/* Caps that policies set on a socket, by the option's name modulo this. */
#define THALWEG_CAPS 16

/* Values of caps that policies set on a socket, or on the listener that accepted it; 0: none. */
struct thalweg_policy_caps {
	__u32 values[THALWEG_CAPS];
};

enum thalweg_policy_rule_flag {
	THALWEG_RULE_NEVER = 1 << 0, /* protects: no operations, and no learner */
	THALWEG_RULE_ACTIVE = 1 << 1, /* matches flows opened by this machine */
	THALWEG_RULE_PASSIVE = 1 << 2, /* matches flows opened by the peer, and listeners */
	THALWEG_RULE_REMOTE_PORTS = 1 << 3, /* the ranges below are conditions */
	THALWEG_RULE_LOCAL_PORTS = 1 << 4,
	THALWEG_RULE_IPV4 = 1 << 5, /* matches IPv4 flows */
	THALWEG_RULE_IPV6 = 1 << 6,
	THALWEG_RULE_SUSPENDED = 1 << 7, /* matches nothing: the agent found it to be worse */
};

/* Ports in host byte order, both ends included; first > last: unused. */
struct thalweg_policy_ports {
	__u16 first;
	__u16 last;
};

/*
 * One rule. Prefix lengths count in the 128-bit address (IPv4 as ::ffff:a.b.c.d, so 96 +
 * n); an unset condition matches all flows.
 */
struct thalweg_policy_rule {
	__u32 id; /* index in the file: for counters, and the last criterion of precedence */
	__u32 flags; /* enum thalweg_policy_rule_flag */
	__u64 netns; /* network namespace cookie; 0 = any */
	__u32 cgroups; /* mask of cgroup bits, one of which the flow must have; 0 = any */
	__u32 sample; /* number of matching flows of 2^32; 0 = all */
	__u8 local[16];
	__u8 local_len; /* 0 = any */
	__u8 same_len; /* leading bits that both ends share; 0 = any */
	__u8 remote_len; /* only for precedence: the trie has tested it */
	__u8 stages; /* mask of the stages at which it has operations */
	__u32 first_op; /* its operations in the table, adjacent */
	__u32 ops;
	__u32 reserved; /* 0 */
	struct thalweg_policy_ports remote_ports[THALWEG_POLICY_MAX_PORTS];
	struct thalweg_policy_ports local_ports[THALWEG_POLICY_MAX_PORTS];
};

/*
 * A remote prefix of rules. Node 0 is ::/0 of IPv4 and node 1 of IPv6. They also have
 * the rules with same_prefix and those without a remote prefix.
 */
struct thalweg_policy_node {
	__u32 first; /* its rules in the table, in order of precedence */
	__u32 rules;
	__u32 parent; /* node of the next shorter prefix, or THALWEG_POLICY_NONE */
	__u32 never; /* number of `never` rules, which come first */
};

/* Key of the tries; IPv4 uses 4 bytes of it. */
struct thalweg_policy_key4 {
	__u32 prefix_len;
	__u8 addr[4];
};

struct thalweg_policy_key6 {
	__u32 prefix_len;
	__u8 addr[16];
};

/* A text that operations refer to. */
struct thalweg_policy_text {
	char text[THALWEG_POLICY_NAME];
};

/* A program instance's description of its policy, written before load. */
struct thalweg_policy_head {
	__u32 generation; /* counts policies, from 1 */
	__u32 stages; /* union of all rules' stages: others are skipped */
	__u32 flags; /* enum thalweg_policy_head_flag */
	__u32 jiffy_us; /* the kernel takes TIMEOUT_INIT in ticks */
	__u32 cgroups; /* bits of all flows: of the cgroup it is attached to */
	__u32 version; /* THALWEG_POLICY_VERSION; 0 in pins without a version */
};

enum thalweg_policy_head_flag {
	/* The actions are empty: matches are counted, and nothing is set. */
	THALWEG_POLICY_DRY_RUN = 1 << 0,
	/* This policy or an earlier one remembers flows in their handshake. */
	THALWEG_POLICY_REMEMBERS = 1 << 2,
	/* Some rule needs the peer's SYN: listeners save it. */
	THALWEG_POLICY_SAVE_SYN = 1 << 3,
	/* Some rule sends an option with the SYN-ACK: listeners write options. */
	THALWEG_POLICY_OPTIONS = 1 << 4,
	/* Some rule names a cgroup, a network namespace, a share of flows. */
	THALWEG_POLICY_CGROUPS = 1 << 5,
	THALWEG_POLICY_NETNS = 1 << 6,
	THALWEG_POLICY_SAMPLES = 1 << 7,
	/* Flows that a share took or left are measured. */
	THALWEG_POLICY_TRIALS = 1 << 8,
};

enum thalweg_policy_flow_flag {
	/* Protected: no operations, and the learner does not touch it. */
	THALWEG_FLOW_NEVER = 1 << 0,
	/* Its operations are needed after the handshake. */
	THALWEG_FLOW_KEEPS = 1 << 1,
	/* Whether it sends, or reads, the option. */
	THALWEG_FLOW_SENDS = 1 << 2,
	THALWEG_FLOW_READS = 1 << 3,
	/* In socket storage until its handshake is over, because no slot was free. */
	THALWEG_FLOW_OPENING = 1 << 4,
	/* It sets the priority, which IP_TOS would overwrite. */
	THALWEG_FLOW_PRIORITY = 1 << 5,
};

/* Operations (table `actions`) and state (`handshakes`, `flows`) of a flow. */
struct thalweg_policy_flow {
	__u32 generation;
	__u32 rule; /* its id, or THALWEG_POLICY_NONE: looked up, none matched */
	__u8 count; /* of ops */
	__u8 stages; /* stages with operations */
	__u8 flags; /* enum thalweg_policy_flow_flag */
	__u8 has_received; /* the peer's option arrived */
	__u32 received; /* its value */
	__u64 told_ns; /* time of the last STATISTICS event */
	__u32 sent; /* SYN-ACKs with the option */
	/* Mask of ops whose option stays as set unless somebody else sets it. */
	__u32 lasting;
	struct thalweg_policy_op ops[THALWEG_POLICY_MAX_OPS];
};

/*
 * A flow in its handshake. One that this machine opens is in the first half of the table
 * until it is established or fails, or for THALWEG_POLICY_HANDSHAKE_NS. One that the
 * peer opens is in the second half and is replaced by newer ones: anybody can start
 * handshakes and never finish them.
 */
struct thalweg_policy_handshake {
	__u64 cookie; /* of the socket (a connection inherits its request's); 0 = free */
	__u64 since_ns;
	struct thalweg_policy_flow flow;
};

/* Value of `cookie` above: the handshake is just over, and the slot is still in use. */
#define THALWEG_POLICY_OVER 0xffffffffffffffffull

/* Set by the programs of named cgroups, for the main program in the same event. */
struct thalweg_policy_mark {
	__u64 cookie; /* of the socket */
	__u32 op; /* enum of the kernel: BPF_SOCK_OPS_... */
	__u32 cgroups; /* bits */
};

/* One per rule id. */
struct thalweg_policy_counters {
	__u64 matched; /* flows that got this rule */
	__u64 done; /* operations that succeeded */
	__u64 failed; /* operations that failed; by errno in `failures` */
	__u64 asked; /* answers given to the kernel */
};

/* Key of the `failures` hash (value: __u64 count). */
struct thalweg_policy_failure {
	__u32 generation;
	__u32 rule;
	__u16 op; /* its index in the rule */
	__u16 stage;
	__s32 error; /* negative errno */
};

/* Value of `op` in a failure: the callbacks of an open connection could not be requested. */
#define THALWEG_POLICY_CALLBACKS 16
/* Value of `stage` in a failure: a connection that was open before the policy. */
#define THALWEG_POLICY_EXISTING 8

/* Results for connections that were open before the policy; one per rule id. */
struct thalweg_policy_reached {
	__u64 matched; /* connections that got this rule */
	__u64 done; /* operations that changed a value */
	__u64 unchanged; /* operations whose value the connection already had */
	__u64 left; /* operations left out because of the application's own choice */
	__u64 failed; /* operations that failed; by errno in `failures` */
};

/* Open connections that were visited, in all network namespaces. */
struct thalweg_policy_seen {
	__u64 open; /* in the cgroup of the policy */
	__u64 outside; /* in another cgroup: not changed */
	__u64 unmatched; /* in the cgroup, and matched by no rule */
	__u64 newer; /* in the cgroup, and already with a rule of this policy */
};

/* Open connections whose callbacks another program switched off; one per rule id. */
struct thalweg_policy_silenced {
	__u64 later; /* whose later stages are over */
	__u64 ends; /* of the rule's share, taken or left: their ends are not seen */
};

/* Flows and events that could not be remembered, reported or counted; one per policy. */
struct thalweg_policy_missed {
	__u64 handshakes; /* flows evicted in their handshake: looked up again at its end */
	__u64 statistics; /* events that found the ring full */
	__u64 failures; /* failures of kinds that did not fit `failures` */
	__u64 outcomes; /* ends of flows in trials that found the ring full */
};

/* A flow in the trial of a rule with a share (socket storage `trials`). */
struct thalweg_policy_trial {
	__u32 generation;
	__u32 rule; /* the rule that it got, or THALWEG_POLICY_NONE */
	__u32 trial; /* the first rule with a share whose other conditions it meets */
	__u32 draw;
	__u64 start_ns; /* when it was established */
	__u64 acked_ns; /* when our FIN was acknowledged, 0 before */
	__u64 start_bytes; /* bytes_acked when it was established */
	__u32 start_busy_ticks; /* kernel ticks with data outstanding until then */
	__u32 handshake_rtt_us; /* smoothed RTT then; 0 = unknown */
	__u32 flags; /* enum thalweg_policy_outcome_flag */
	__u32 settings; /* hash of the lasting options, as read once established */
};

enum thalweg_policy_outcome_flag {
	THALWEG_OUTCOME_PASSIVE = 1 << 0, /* the peer opened it */
	THALWEG_OUTCOME_FAILED = 1 << 1, /* it ended by a reset or a time-out */
	THALWEG_OUTCOME_BUSY_TIME = 1 << 2, /* busy_us is the kernel's own busy time */
	/* The kernel refused a setting of the rule, or something replaced one. */
	THALWEG_OUTCOME_OVERRIDDEN = 1 << 3,
};

/* The end of such a flow, through the ring `outcomes`. */
struct thalweg_policy_outcome {
	__u64 time_ns;
	__u64 connection; /* socket cookie: the draw comes from it */
	__u64 netns; /* network namespace cookie */
	__u8 remote[16];
	__u32 local_port;
	__u32 remote_port;
	__u32 generation;
	__u32 rule;
	__u32 trial;
	__u32 draw;
	__u64 bytes; /* acknowledged */
	__u64 wall_us; /* until our FIN was acknowledged */
	__u64 busy_us; /* with data outstanding; without BTF the wall time */
	__u32 segs_out; /* data segments, retransmissions included */
	__u32 retrans;
	__u32 srtt_us;
	__u32 min_rtt_us;
	__u32 handshake_rtt_us;
	__u32 flags; /* enum thalweg_policy_outcome_flag */
};

/* A STATISTICS event through the ring. */
struct thalweg_policy_event {
	__u64 time_ns;
	__u64 connection; /* socket cookie */
	__u8 local[16];
	__u8 remote[16];
	__u32 local_port;
	__u32 remote_port;
	__u32 rule;
	__u32 generation;
	__u64 bytes_acked;
	__u64 bytes_received;
	__u32 delivered;
	__u32 delivered_ce;
	__u32 retrans; /* total_retrans */
	__u32 dsack_dups;
	__u32 srtt_us;
	__u32 min_rtt_us;
	__u32 snd_cwnd;
	__u32 snd_ssthresh;
	__u32 received; /* the peer's option, if has_received */
	__u32 has_received;
};

_Static_assert(sizeof(struct thalweg_policy_op) == 12, "size of struct thalweg_policy_op");
_Static_assert(sizeof(struct thalweg_policy_rule) == 88, "size of struct thalweg_policy_rule");
_Static_assert(sizeof(struct thalweg_policy_node) == 16, "size of struct thalweg_policy_node");
_Static_assert(sizeof(struct thalweg_policy_flow) == 32 + 12 * THALWEG_POLICY_MAX_OPS,
	       "size of struct thalweg_policy_flow");
_Static_assert(sizeof(struct thalweg_policy_handshake) == 240,
	       "size of struct thalweg_policy_handshake");
_Static_assert(THALWEG_POLICY_CALLBACKS == THALWEG_POLICY_MAX_OPS, "no operation has this place");
_Static_assert(THALWEG_POLICY_EXISTING == THALWEG_STAGES, "no stage has this number");
_Static_assert(sizeof(struct thalweg_policy_event) == 120, "size of struct thalweg_policy_event");
_Static_assert(sizeof(struct thalweg_policy_trial) == 56, "size of struct thalweg_policy_trial");
_Static_assert(sizeof(struct thalweg_policy_outcome) == 112,
	       "size of struct thalweg_policy_outcome");

#endif
