//! Structs, enums and constants of `thalweg_abi.h`. Generated; to make it anew after a change of
//! the header: `THALWEG_GENERATE=1 cargo test -p thalweg-bpf-types --test generated`

pub const THALWEG_MODEL_INPUTS: u32 = 16;
pub const THALWEG_MODEL_WIDTH: u32 = 32;
pub const THALWEG_MODEL_LAYERS: u32 = 3;
pub const THALWEG_MODEL_NODES: u32 = 2048;
pub const THALWEG_MODEL_TREES: u32 = 128;
pub const THALWEG_MODEL_DEPTH: u32 = 16;
pub const THALWEG_POLICY_VERSION: u32 = 4;
pub const THALWEG_POLICY_MAX_RULES: u32 = 65536;
pub const THALWEG_POLICY_MAX_CANDIDATES: u32 = 64;
pub const THALWEG_POLICY_MAX_OPS: u32 = 16;
pub const THALWEG_POLICY_MAX_PORTS: u32 = 4;
pub const THALWEG_POLICY_MAX_CGROUPS: u32 = 32;
pub const THALWEG_POLICY_MAX_ARM_SETS: u32 = 63;
pub const THALWEG_POLICY_NAME: u32 = 16;
pub const THALWEG_POLICY_MAX_TEXTS: u32 = 1024;
pub const THALWEG_POLICY_HANDSHAKES: u32 = 8192;
pub const THALWEG_POLICY_PROBES: u32 = 4;
pub const THALWEG_POLICY_HANDSHAKE_NS: u64 = 130000000000;
pub const THALWEG_POLICY_MARKS: u32 = 64;
pub const THALWEG_POLICY_NONE: u32 = 4294967295;
pub const THALWEG_OPTION_KIND: u32 = 253;
pub const THALWEG_OPTION_LENGTH: u32 = 8;
pub const THALWEG_OPTION_MAGIC: u32 = 21591;
pub const THALWEG_CAP_OVERRIDES: u32 = 65535;
pub const THALWEG_CAPS: u32 = 16;
pub const THALWEG_POLICY_OVER: i32 = -1;
pub const THALWEG_POLICY_CALLBACKS: u32 = 16;
pub const THALWEG_POLICY_EXISTING: u32 = 8;
pub const THALWEG_RATE_VERSION: u32 = 1;
pub const THALWEG_RATE_FLOOR: u32 = 25000;
pub const THALWEG_RATE_DEFAULT_REFERENCE: u32 = 1250000000;
pub const THALWEG_RATE_DEFAULT_REFERENCE_RTT_US: u32 = 2000;
pub const THALWEG_RATE_NAME: u32 = 64;
pub const THALWEG_RATE_RING: u32 = 262144;
pub const THALWEG_TIMERS_NETWORKS: u32 = 16384;
pub const THALWEG_TIMERS_RING: u32 = 131072;
pub const THALWEG_RTO_MIN_US: u32 = 200000;
pub const THALWEG_SYN_LOSSES: u32 = 8;
pub const THALWEG_SYN_CREDIT: u32 = 4;
pub const THALWEG_TIMERS_PEERS: u32 = 64;
pub const THALWEG_ABI_VERSION: u32 = 11;
pub const THALWEG_RULE: u32 = 5;
pub const THALWEG_RULE_CLASSIC: u32 = 1;
pub const THALWEG_MAX_ARMS: u32 = 16;
pub const THALWEG_CC_NAME: u32 = 16;
pub const THALWEG_NO_ARM: u32 = 255;
pub const THALWEG_OWNED_BY_POLICY: u32 = 2147483648;
pub const THALWEG_OWNED_WINDOW: u32 = 1073741824;
pub const THALWEG_UNSCORED: u32 = 536870912;
pub const THALWEG_MARK_FLAGS: u32 = 3758096384;
pub const THALWEG_WINDOW_LEAST: u32 = 10;
pub const THALWEG_WINDOW_MOST: u32 = 32;
pub const THALWEG_WINDOWS: u32 = 12;
pub const THALWEG_WINDOW_RTT_US: u32 = 2048;
pub const THALWEG_WINDOW_READ: u32 = 128;
pub const THALWEG_DEFAULT_HOSTS: u32 = 65536;
pub const THALWEG_CONNECTIONS: u32 = 65536;
pub const THALWEG_OVERRIDDEN: u32 = 64;
pub const THALWEG_PROBES: u32 = 4;
pub const THALWEG_STRANGERS: u32 = 1024;
pub const THALWEG_NAMESPACES: u32 = 1024;
pub const THALWEG_NAMESPACE_FACTOR: u32 = 2654435761;
pub const THALWEG_NAMESPACE_SHIFT: u32 = 22;
pub const THALWEG_ECN_PREFIXES: u32 = 1024;
pub const THALWEG_CLAMP_PREFIXES: u32 = 1024;
pub const THALWEG_CLAMPS: u32 = 16384;
pub const THALWEG_CLAMP_TURNS: u32 = 16;
pub const THALWEG_CLAMP_ROOM: u32 = 4;
pub const THALWEG_CLAMP_TURN_SHIFT: u32 = 28;
pub const THALWEG_LOCKS: u32 = 1024;
pub const THALWEG_NAT64_PREFIXES: u32 = 8;
pub const THALWEG_DEFAULT_RING: u32 = 1048576;
pub const THALWEG_ONE_Q16: u32 = 65536;
pub const THALWEG_HOUR_NS: u64 = 3600000000000;
pub const THALWEG_GROUP_BITS: u32 = 65536;
pub const THALWEG_NO_TRIALS: u32 = 2147483648;
pub const THALWEG_BUFFERS_NETWORKS: u32 = 16384;
pub const THALWEG_BUFFERS_RING: u32 = 65536;
pub const THALWEG_IDLE_NETWORKS: u32 = 16384;
pub const THALWEG_IDLE_RING: u32 = 65536;
pub const THALWEG_IDLE_MAX_US: u32 = 300000000;
pub const THALWEG_IDLE_BYTES: u32 = 1048576;
pub const THALWEG_IDLE_DRAW_SHIFT: u32 = 34;
pub const THALWEG_IDLE_EXCHANGES: u32 = 8;
pub type __u8 = ::std::os::raw::c_uchar;
pub type __s16 = ::std::os::raw::c_short;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __s32 = ::std::os::raw::c_int;
pub type __u32 = ::std::os::raw::c_uint;
pub type __s64 = ::std::os::raw::c_longlong;
pub type __u64 = ::std::os::raw::c_ulonglong;
pub const THALWEG_FEATURE_ACTION: thalweg_feature = 0;
pub const THALWEG_FEATURE_ERROR: thalweg_feature = 1;
pub const THALWEG_FEATURE_LOG_RATE: thalweg_feature = 2;
pub const THALWEG_FEATURE_QUEUE: thalweg_feature = 3;
pub const THALWEG_FEATURE_ERROR_CHANGE: thalweg_feature = 4;
pub type thalweg_feature = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_model_feature {
    pub kind: __u32,
    pub scale_q16: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_model_layer {
    pub rows: __u32,
    pub columns: __u32,
    pub shift: __u32,
    pub low: __s32,
    pub high: __s32,
    pub reserved: __u32,
    pub multiplier: [__u32; 32usize],
    pub bias: [__s32; 32usize],
    pub weights: [[__s64; 32usize]; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_model_node {
    pub value_q15: __s32,
    pub threshold_q15: __s16,
    pub left: __u16,
    pub right: __u16,
    pub input: __u8,
    pub reserved: __u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct thalweg_model {
    pub features: __u32,
    pub history: __u32,
    pub target_q24: __u32,
    pub offset_q16: __u32,
    pub input_multiplier: __u32,
    pub input_shift: __u32,
    pub layers: __u32,
    pub trees: __u32,
    pub feature: [thalweg_model_feature; 16usize],
    pub layer: [thalweg_model_layer; 3usize],
    pub node: [thalweg_model_node; 2048usize],
    pub root: [__u16; 128usize],
}
impl Default for thalweg_model {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_rate_flow {
    pub inputs: [__s16; 16usize],
    pub action_q15: __s16,
    pub decided: __u16,
    pub reserved: __u32,
    pub signal_q24: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_measurement {
    pub rtt_ns: __u64,
    pub base_rtt_ns: __u64,
    pub rate: __u64,
    pub line_rate: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_scratch {
    pub values: [[__s64; 32usize]; 2usize],
}
pub const THALWEG_STAGE_CONNECT: thalweg_stage = 0;
pub const THALWEG_STAGE_LISTEN: thalweg_stage = 1;
pub const THALWEG_STAGE_ASKED: thalweg_stage = 2;
pub const THALWEG_STAGE_ESTABLISHED: thalweg_stage = 3;
pub const THALWEG_STAGE_RETRANSMIT: thalweg_stage = 4;
pub const THALWEG_STAGE_RTO: thalweg_stage = 5;
pub const THALWEG_STAGE_RTT: thalweg_stage = 6;
pub const THALWEG_STAGE_CLOSE: thalweg_stage = 7;
pub const THALWEG_STAGES: thalweg_stage = 8;
pub type thalweg_stage = ::std::os::raw::c_uint;
pub const THALWEG_OP_SET_INT: thalweg_policy_op_kind = 1;
pub const THALWEG_OP_SET_TEXT: thalweg_policy_op_kind = 2;
pub const THALWEG_OP_TIMEOUT_INIT: thalweg_policy_op_kind = 3;
pub const THALWEG_OP_RWND_INIT: thalweg_policy_op_kind = 4;
pub const THALWEG_OP_NEEDS_ECN: thalweg_policy_op_kind = 5;
pub const THALWEG_OP_BASE_RTT: thalweg_policy_op_kind = 6;
pub const THALWEG_OP_REFLECT_TOS: thalweg_policy_op_kind = 7;
pub const THALWEG_OP_STATISTICS: thalweg_policy_op_kind = 8;
pub const THALWEG_OP_SEND_OPTION: thalweg_policy_op_kind = 9;
pub const THALWEG_OP_SEND_OPTION_CC: thalweg_policy_op_kind = 10;
pub const THALWEG_OP_READ_OPTION: thalweg_policy_op_kind = 11;
pub const THALWEG_OP_LEARN_FROM: thalweg_policy_op_kind = 12;
pub type thalweg_policy_op_kind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_op {
    pub kind: __u8,
    pub stages: __u8,
    pub level: __u16,
    pub name: __u16,
    pub text: __u16,
    pub value: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_caps {
    pub values: [__u32; 16usize],
}
pub const THALWEG_RULE_NEVER: thalweg_policy_rule_flag = 1;
pub const THALWEG_RULE_ACTIVE: thalweg_policy_rule_flag = 2;
pub const THALWEG_RULE_PASSIVE: thalweg_policy_rule_flag = 4;
pub const THALWEG_RULE_REMOTE_PORTS: thalweg_policy_rule_flag = 8;
pub const THALWEG_RULE_LOCAL_PORTS: thalweg_policy_rule_flag = 16;
pub const THALWEG_RULE_IPV4: thalweg_policy_rule_flag = 32;
pub const THALWEG_RULE_IPV6: thalweg_policy_rule_flag = 64;
pub const THALWEG_RULE_SUSPENDED: thalweg_policy_rule_flag = 128;
pub type thalweg_policy_rule_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_ports {
    pub first: __u16,
    pub last: __u16,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_rule {
    pub id: __u32,
    pub flags: __u32,
    pub netns: __u64,
    pub cgroups: __u32,
    pub sample: __u32,
    pub local: [__u8; 16usize],
    pub local_len: __u8,
    pub same_len: __u8,
    pub remote_len: __u8,
    pub stages: __u8,
    pub first_op: __u32,
    pub ops: __u32,
    pub reserved: __u32,
    pub remote_ports: [thalweg_policy_ports; 4usize],
    pub local_ports: [thalweg_policy_ports; 4usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_node {
    pub first: __u32,
    pub rules: __u32,
    pub parent: __u32,
    pub never: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_key4 {
    pub prefix_len: __u32,
    pub addr: [__u8; 4usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_key6 {
    pub prefix_len: __u32,
    pub addr: [__u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_text {
    pub text: [::std::os::raw::c_char; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_head {
    pub generation: __u32,
    pub stages: __u32,
    pub flags: __u32,
    pub jiffy_us: __u32,
    pub cgroups: __u32,
    pub version: __u32,
}
pub const THALWEG_POLICY_DRY_RUN: thalweg_policy_head_flag = 1;
pub const THALWEG_POLICY_REMEMBERS: thalweg_policy_head_flag = 4;
pub const THALWEG_POLICY_SAVE_SYN: thalweg_policy_head_flag = 8;
pub const THALWEG_POLICY_OPTIONS: thalweg_policy_head_flag = 16;
pub const THALWEG_POLICY_CGROUPS: thalweg_policy_head_flag = 32;
pub const THALWEG_POLICY_NETNS: thalweg_policy_head_flag = 64;
pub const THALWEG_POLICY_SAMPLES: thalweg_policy_head_flag = 128;
pub const THALWEG_POLICY_TRIALS: thalweg_policy_head_flag = 256;
pub type thalweg_policy_head_flag = ::std::os::raw::c_uint;
pub const THALWEG_FLOW_NEVER: thalweg_policy_flow_flag = 1;
pub const THALWEG_FLOW_KEEPS: thalweg_policy_flow_flag = 2;
pub const THALWEG_FLOW_SENDS: thalweg_policy_flow_flag = 4;
pub const THALWEG_FLOW_READS: thalweg_policy_flow_flag = 8;
pub const THALWEG_FLOW_OPENING: thalweg_policy_flow_flag = 16;
pub const THALWEG_FLOW_PRIORITY: thalweg_policy_flow_flag = 32;
pub type thalweg_policy_flow_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_flow {
    pub generation: __u32,
    pub rule: __u32,
    pub count: __u8,
    pub stages: __u8,
    pub flags: __u8,
    pub has_received: __u8,
    pub received: __u32,
    pub told_ns: __u64,
    pub sent: __u32,
    pub lasting: __u32,
    pub ops: [thalweg_policy_op; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_handshake {
    pub cookie: __u64,
    pub since_ns: __u64,
    pub flow: thalweg_policy_flow,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_mark {
    pub cookie: __u64,
    pub op: __u32,
    pub cgroups: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_counters {
    pub matched: __u64,
    pub done: __u64,
    pub failed: __u64,
    pub asked: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_failure {
    pub generation: __u32,
    pub rule: __u32,
    pub op: __u16,
    pub stage: __u16,
    pub error: __s32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_reached {
    pub matched: __u64,
    pub done: __u64,
    pub unchanged: __u64,
    pub left: __u64,
    pub failed: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_seen {
    pub open: __u64,
    pub outside: __u64,
    pub unmatched: __u64,
    pub newer: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_silenced {
    pub later: __u64,
    pub ends: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_missed {
    pub handshakes: __u64,
    pub statistics: __u64,
    pub failures: __u64,
    pub outcomes: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_trial {
    pub generation: __u32,
    pub rule: __u32,
    pub trial: __u32,
    pub draw: __u32,
    pub start_ns: __u64,
    pub acked_ns: __u64,
    pub start_bytes: __u64,
    pub start_busy_ticks: __u32,
    pub handshake_rtt_us: __u32,
    pub flags: __u32,
    pub settings: __u32,
}
pub const THALWEG_OUTCOME_PASSIVE: thalweg_policy_outcome_flag = 1;
pub const THALWEG_OUTCOME_FAILED: thalweg_policy_outcome_flag = 2;
pub const THALWEG_OUTCOME_BUSY_TIME: thalweg_policy_outcome_flag = 4;
pub const THALWEG_OUTCOME_OVERRIDDEN: thalweg_policy_outcome_flag = 8;
pub type thalweg_policy_outcome_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_outcome {
    pub time_ns: __u64,
    pub connection: __u64,
    pub netns: __u64,
    pub remote: [__u8; 16usize],
    pub local_port: __u32,
    pub remote_port: __u32,
    pub generation: __u32,
    pub rule: __u32,
    pub trial: __u32,
    pub draw: __u32,
    pub bytes: __u64,
    pub wall_us: __u64,
    pub busy_us: __u64,
    pub segs_out: __u32,
    pub retrans: __u32,
    pub srtt_us: __u32,
    pub min_rtt_us: __u32,
    pub handshake_rtt_us: __u32,
    pub flags: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_event {
    pub time_ns: __u64,
    pub connection: __u64,
    pub local: [__u8; 16usize],
    pub remote: [__u8; 16usize],
    pub local_port: __u32,
    pub remote_port: __u32,
    pub rule: __u32,
    pub generation: __u32,
    pub bytes_acked: __u64,
    pub bytes_received: __u64,
    pub delivered: __u32,
    pub delivered_ce: __u32,
    pub retrans: __u32,
    pub dsack_dups: __u32,
    pub srtt_us: __u32,
    pub min_rtt_us: __u32,
    pub snd_cwnd: __u32,
    pub snd_ssthresh: __u32,
    pub received: __u32,
    pub has_received: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct thalweg_rate_settings {
    pub reference_rate: __u64,
    pub reference_rtt_us: __u32,
    pub version: __u32,
    pub name: [__u8; 64usize],
    pub model: thalweg_model,
}
impl Default for thalweg_rate_settings {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_rate_trace {
    pub until_ns: __u64,
    pub remote: [__u8; 16usize],
    pub lost: __u64,
}
pub const THALWEG_RATE_HELD: thalweg_rate_flag = 1;
pub const THALWEG_RATE_LIMITED: thalweg_rate_flag = 2;
pub const THALWEG_RATE_FIRST: thalweg_rate_flag = 4;
pub const THALWEG_RATE_PROBING: thalweg_rate_flag = 8;
pub const THALWEG_RATE_COMPETING: thalweg_rate_flag = 16;
pub type thalweg_rate_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_rate_decision {
    pub time_ns: __u64,
    pub remote: [__u8; 16usize],
    pub remote_port: __u16,
    pub local_port: __u16,
    pub netns: __u32,
    pub measurement: thalweg_measurement,
    pub floor: __u64,
    pub cap: __u64,
    pub next_rate: __u64,
    pub delivered_rate: __u64,
    pub inputs: [__s16; 16usize],
    pub action_q15: __s16,
    pub flags: __u16,
    pub keep_q16: __u32,
    pub min_rtt_us: __u32,
    pub round_rtt_us: __u32,
    pub window: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_timers_peers {
    pub until_ns: __u64,
    pub delay_us: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_timers {
    pub until_ns: __u64,
    pub floor_us: __u32,
    pub syn_us: __u32,
    pub syn_count: __u32,
    pub usual_syn_count: __u32,
    pub share_q16: __u32,
    pub salt: __u32,
    pub flags: __u32,
    pub credit: __s32,
}
pub const THALWEG_TIMERS_AFTER_TIMEOUT: thalweg_timers_flag = 1;
pub const THALWEG_TIMERS_FROM_START: thalweg_timers_flag = 2;
pub type thalweg_timers_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_timers_report {
    pub netns: __u64,
    pub remote: [__u8; 16usize],
    pub bytes: __u64,
    pub busy_us: __u64,
    pub segs_out: __u32,
    pub retrans: __u32,
    pub dsacks: __u32,
    pub min_rtt_us: __u32,
    pub srtt_us: __u32,
    pub floor_us: __u32,
    pub syn_us: __u32,
    pub timeouts: __u32,
    pub floors: __u32,
    pub other_us: __u32,
    pub syn_retrans: __u16,
    pub flags: __u16,
    pub unused: __u32,
}
pub const THALWEG_TIMED_KNOWN: thalweg_timed_flag = 1;
pub const THALWEG_TIMED_DRAWN: thalweg_timed_flag = 2;
pub const THALWEG_TIMED_OWNED: thalweg_timed_flag = 4;
pub const THALWEG_TIMED_NO_SACK: thalweg_timed_flag = 8;
pub const THALWEG_TIMED_EARLIER: thalweg_timed_flag = 16;
pub type thalweg_timed_flag = ::std::os::raw::c_uint;
pub const THALWEG_MODE_CLASSIC: thalweg_mode = 0;
pub const THALWEG_MODE_THALWEG: thalweg_mode = 1;
pub type thalweg_mode = ::std::os::raw::c_uint;
pub const THALWEG_ARM_PRESENT: thalweg_arm_flag = 1;
pub const THALWEG_ARM_NEEDS_ECN: thalweg_arm_flag = 2;
pub const THALWEG_ARM_REFUSED: thalweg_arm_flag = 4;
pub const THALWEG_ARM_STRUCT_OPS: thalweg_arm_flag = 8;
pub type thalweg_arm_flag = ::std::os::raw::c_uint;
pub const THALWEG_CONN_DECIDED: thalweg_conn_flag = 1;
pub const THALWEG_CONN_APP_OWNED: thalweg_conn_flag = 2;
pub const THALWEG_CONN_SWITCHED: thalweg_conn_flag = 4;
pub const THALWEG_CONN_DRY_RUN: thalweg_conn_flag = 8;
pub const THALWEG_CONN_CONTROL: thalweg_conn_flag = 16;
pub const THALWEG_CONN_PASSIVE: thalweg_conn_flag = 32;
pub const THALWEG_CONN_ECN: thalweg_conn_flag = 64;
pub const THALWEG_CONN_SET_FAILED: thalweg_conn_flag = 128;
pub const THALWEG_CONN_TRIAL: thalweg_conn_flag = 256;
pub const THALWEG_CONN_STEADY: thalweg_conn_flag = 512;
pub const THALWEG_CONN_LONG: thalweg_conn_flag = 1024;
pub const THALWEG_CONN_LEVEL_SHIFT: thalweg_conn_flag = 11;
pub const THALWEG_CONN_LEVEL_MASK: thalweg_conn_flag = 30720;
pub const THALWEG_CONN_UNWATCHED: thalweg_conn_flag = 32768;
pub type thalweg_conn_flag = ::std::os::raw::c_uint;
pub const THALWEG_REASON_WARM_UP: thalweg_reason = 0;
pub const THALWEG_REASON_GREEDY: thalweg_reason = 1;
pub const THALWEG_REASON_EXPLORE: thalweg_reason = 2;
pub const THALWEG_REASON_UNTRIED: thalweg_reason = 3;
pub const THALWEG_REASON_APPLICATION: thalweg_reason = 4;
pub const THALWEG_REASON_FOREIGN: thalweg_reason = 5;
pub const THALWEG_REASON_LOSS: thalweg_reason = 6;
pub const THALWEG_REASON_WITHDRAWN: thalweg_reason = 7;
pub const THALWEG_REASON_CONTROL: thalweg_reason = 8;
pub const THALWEG_REASON_ANEW: thalweg_reason = 9;
pub const THALWEG_REASON_RETURNED: thalweg_reason = 10;
pub const THALWEG_REASON_DRAWN: thalweg_reason = 11;
pub type thalweg_reason = ::std::os::raw::c_uint;
pub const THALWEG_END_FIN_LOCAL: thalweg_end = 0;
pub const THALWEG_END_FIN_REMOTE: thalweg_end = 1;
pub const THALWEG_END_RESET: thalweg_end = 2;
pub const THALWEG_END_TIMEOUT: thalweg_end = 3;
pub const THALWEG_END_SWITCH: thalweg_end = 4;
pub const THALWEG_END_STRETCH: thalweg_end = 5;
pub type thalweg_end = ::std::os::raw::c_uint;
pub const THALWEG_SCORED: thalweg_outcome = 0;
pub const THALWEG_SKIPPED_SMALL: thalweg_outcome = 1;
pub const THALWEG_SKIPPED_APP_LIMITED: thalweg_outcome = 2;
pub const THALWEG_SKIPPED_NOT_TRACKED: thalweg_outcome = 3;
pub const THALWEG_SKIPPED_TIMEOUT: thalweg_outcome = 4;
pub const THALWEG_SKIPPED_OVERRIDDEN: thalweg_outcome = 5;
pub const THALWEG_OUTCOMES: thalweg_outcome = 6;
pub type thalweg_outcome = ::std::os::raw::c_uint;
pub const THALWEG_EVENT_DECISION: thalweg_event_kind = 1;
pub const THALWEG_EVENT_CLOSE: thalweg_event_kind = 2;
pub type thalweg_event_kind = ::std::os::raw::c_uint;
pub const THALWEG_LEVEL_HOST: thalweg_level = 0;
pub const THALWEG_LEVEL_PREFIX: thalweg_level = 1;
pub const THALWEG_LEVEL_NAMED: thalweg_level = 2;
pub const THALWEG_LEVEL_SERVICE: thalweg_level = 3;
pub const THALWEG_LEVEL_NAMESPACE: thalweg_level = 4;
pub const THALWEG_LEVELS: thalweg_level = 5;
pub const THALWEG_LEVEL_WINDOW_PREFIX: thalweg_level = 5;
pub const THALWEG_LEVEL_WINDOW_SERVICE: thalweg_level = 6;
pub const THALWEG_LEVEL_WINDOW_NAMESPACE: thalweg_level = 7;
pub const THALWEG_ALL_LEVELS: thalweg_level = 8;
pub const THALWEG_LEVEL_FLEET: thalweg_level = 8;
pub const THALWEG_LEVEL_FLEET_PREFIX: thalweg_level = 9;
pub const THALWEG_LEVEL_FLEET_NAMED: thalweg_level = 10;
pub const THALWEG_LEVEL_MASK: thalweg_level = 15;
pub type thalweg_level = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_host_key {
    pub netns: __u64,
    pub addr: [__u8; 16usize],
    pub prefix_len: __u32,
    pub level: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_nat64 {
    pub prefix_len: __u32,
    pub addr: [__u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_nat64_table {
    pub prefixes: [thalweg_nat64; 8usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arm_state {
    pub value: __u32,
    pub weight_q16: __u32,
    pub chosen: __u32,
    pub caution_q16: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arm_statistics {
    pub max_rate: __u64,
    pub value_high: __u32,
    pub deviation_q16: __u32,
    pub log_rate_q16: __u32,
    pub srtt_us: __u32,
    pub min_rtt_us: __u32,
    pub other: __u32,
    pub scored: __u32,
    pub segs: __u32,
    pub retrans: __u32,
    pub counted: __u16,
    pub slow: __u16,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_host {
    pub seq_head: __u32,
    pub connections: __u32,
    pub tag: __u64,
    pub seen_ns: __u64,
    pub forgot_ns: __u64,
    pub scored: __u32,
    pub harmful: __u16,
    pub trials: __u16,
    pub used: __u16,
    pub unsteady: __u16,
    pub credit_q16: __u32,
    pub arms: [thalweg_arm_state; 16usize],
    pub trial_ns: __u64,
    pub max_rate: __u64,
    pub min_rtt_us: __u32,
    pub switched: __u32,
    pub queue_q16: __u32,
    pub base_rtt_us: __u32,
    pub last_base_rtt_us: __u32,
    pub level: __u32,
    pub usual_q16: __u32,
    pub usual_log_rate_q16: __u32,
    pub step: __u32,
    pub step_scored: __u32,
    pub statistics: [thalweg_arm_statistics; 16usize],
    pub tag_tail: __u32,
    pub seq_tail: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_forget {
    pub key: thalweg_host_key,
    pub arms: __u32,
    pub reserved: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_worth {
    pub arms_q16: [__u32; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct thalweg_worths {
    pub levels: [thalweg_worth; 16usize],
    pub known: __u64,
    pub known_windows: __u64,
    pub groups: [__u64; 1024usize],
}
impl Default for thalweg_worths {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_sample {
    pub bytes: __u64,
    pub duration_us: __u64,
    pub rate_delivered_bytes: __u64,
    pub rate_interval_us: __u64,
    pub srtt_us: __u32,
    pub min_rtt_us: __u32,
    pub segs_out: __u32,
    pub retrans: __u32,
    pub steady_segs: __u32,
    pub steady_retrans: __u32,
    pub loss_srtt_us: __u32,
    pub flags: __u16,
    pub end: __u16,
    pub receiver_us: __u32,
    pub buffer_us: __u32,
}
pub const THALWEG_SAMPLE_BUSY_TIME: thalweg_sample_flag = 1;
pub const THALWEG_SAMPLE_APP_LIMITED: thalweg_sample_flag = 2;
pub type thalweg_sample_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_params {
    pub mode: __u32,
    pub dry_run: __u32,
    pub warm_up: __u32,
    pub gap_scale: __u32,
    pub weight_max_q16: __u32,
    pub idle_shift: __u32,
    pub half_life_ns: __u64,
    pub stretch_ns: __u64,
    pub latency_weight_q16: __u32,
    pub latency_guard_us: __u32,
    pub score_min_bytes: __u64,
    pub score_full_bytes: __u64,
    pub loss_shift: __u32,
    pub loss_min_segs: __u32,
    pub rescue_arm: __u32,
    pub ipv4_prefix: __u32,
    pub ipv6_prefix: __u32,
    pub jiffy_us: __u32,
    pub rule: __u32,
    pub parameters: __u32,
    pub control_salt: __u64,
    pub control_share_q16: __u32,
    pub control_permanent_q16: __u32,
    pub cluster_ipv4: __u32,
    pub cluster_ipv6: __u32,
    pub heartbeat_max_ns: __u64,
    pub advise: __u32,
    pub groups: __u32,
    pub group_ipv4: __u32,
    pub group_ipv6: __u32,
    pub windows: __u32,
    pub clamps: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arm {
    pub name: [::std::os::raw::c_char; 16usize],
    pub flags: __u32,
    pub refused_errno: __s32,
    pub refused: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arms {
    pub allowed: __u32,
    pub allowed_ecn: __u32,
    pub arms: [thalweg_arm; 16usize],
    pub heartbeat_ns: __u64,
    pub reverted: __u32,
    pub used: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_clamp_key {
    pub netns: __u64,
    pub addr: [__u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_clamp_report {
    pub cookie: __u64,
    pub host: thalweg_clamp_key,
    pub bytes_acked: __u64,
    pub rate_delivered_bytes: __u64,
    pub rate_interval_us: __u32,
    pub min_rtt_us: __u32,
    pub mss: __u32,
    pub segments: __u32,
    pub error: __s32,
    pub flags: __u32,
}
pub const THALWEG_CLAMP_SET: thalweg_clamp_flag = 1;
pub const THALWEG_CLAMP_LEFT: thalweg_clamp_flag = 2;
pub type thalweg_clamp_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_meta {
    pub abi_version: __u32,
    pub mode: __u32,
    pub host_bytes: __u32,
    pub event_bytes: __u32,
    pub hosts_max: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_origin {
    pub flags: __u16,
    pub hour: __u16,
    pub propensity_q16: __u32,
    pub handshake_rtt_us: __u32,
    pub arm: __u8,
    pub reason: __u8,
    pub system_arm: __u8,
    pub chosen_arm: __u8,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_sums {
    pub bytes: __u64,
    pub duration_us: __u64,
    pub wall_us: __u64,
    pub segs_out: __u32,
    pub retrans: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_window_choice {
    pub segments: __u8,
    pub chosen: __u8,
    pub propensity_q16: __u16,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_conn {
    pub cookie: __u64,
    pub start_ns: __u64,
    pub acked_ns: __u64,
    pub start_bytes: __u64,
    pub start_busy_ticks: __u32,
    pub start_receiver_ticks: __u32,
    pub start_buffer_ticks: __u32,
    pub start_segs: __u32,
    pub start_retrans: __u32,
    pub origin: thalweg_origin,
    pub look_segs: __u32,
    pub look_ns: __u64,
    pub looked_segs: __u32,
    pub looked_retrans: __u32,
    pub slow_start_segs: __u32,
    pub slow_start_retrans: __u32,
    pub loss_srtt_us: __u32,
    pub netns: __u32,
    pub decided_ns: __u64,
    pub before: thalweg_sums,
    pub count: __u32,
    pub window: thalweg_window_choice,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_event {
    pub time_ns: __u64,
    pub connection: __u64,
    pub host: thalweg_host_key,
    pub remote: [__u8; 16usize],
    pub remote_port: __u16,
    pub local_port: __u16,
    pub window: thalweg_window_choice,
    pub kind: __u8,
    pub arm: __u8,
    pub system_arm: __u8,
    pub reason: __u8,
    pub flags: __u8,
    pub end: __u8,
    pub outcome: __u8,
    pub chosen_arm: __u8,
    pub propensity_q16: __u32,
    pub error: __s32,
    pub bytes: __u64,
    pub duration_us: __u64,
    pub cost: __u64,
    pub weight_q16: __u32,
    pub srtt_us: __u32,
    pub min_rtt_us: __u32,
    pub segs_out: __u32,
    pub retrans: __u32,
    pub sample_flags: __u16,
    pub window_cost_q10: __u16,
    pub wall_us: __u64,
    pub receiver_us: __u32,
    pub buffer_us: __u32,
    pub handshake_rtt_us: __u32,
    pub parameters: __u32,
    pub rule: __u16,
    pub allowed: __u16,
    pub hour: __u16,
    pub level: __u16,
    pub propensities_q16: [__u16; 16usize],
    pub before: thalweg_sums,
}
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_cc_name {
    pub text: [::std::os::raw::c_char; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_counters {
    pub established: __u64,
    pub decided: __u64,
    pub changed: __u64,
    pub refused: __u64,
    pub closed: __u64,
    pub outcomes: [__u64; 6usize],
    pub switched: __u64,
    pub withdrawn: __u64,
    pub app_owned: __u64,
    pub events: __u64,
    pub events_dropped: __u64,
    pub by_group: __u64,
    pub hosts_created: __u64,
    pub hosts_missed: __u64,
    pub conns_missed: __u64,
    pub outside: __u64,
    pub control: __u64,
    pub visited: __u64,
    pub stretches: __u64,
    pub anew: __u64,
    pub moved: __u64,
    pub windows: __u64,
    pub windows_raised: __u64,
    pub windows_refused: __u64,
    pub windows_left: __u64,
    pub windows_scored: __u64,
    pub windows_overridden: __u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_buffers_bounds {
    pub until_ns: __u64,
    pub receive: __u32,
    pub send: __u32,
    pub share_q16: __u32,
    pub salt: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_buffers_report {
    pub key: thalweg_host_key,
    pub bytes: __u64,
    pub busy_us: __u64,
    pub segs_out: __u32,
    pub retrans: __u32,
    pub min_rtt_us: __u32,
    pub srtt_us: __u32,
    pub bounded: __u32,
    pub reserved: __u32,
}
pub const THALWEG_BOUNDED_NOT: thalweg_bounded = 0;
pub const THALWEG_BOUNDED_BY_DRAW: thalweg_bounded = 1;
pub const THALWEG_BOUNDED_WITH_ALL: thalweg_bounded = 2;
pub type thalweg_bounded = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_idle_network {
    pub until_ns: __u64,
    pub kept_q16: __u32,
    pub salt: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_idle_settings {
    pub name: [__u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_idle_report {
    pub key: thalweg_host_key,
    pub bytes: __u64,
    pub time_us: __u64,
    pub exchanges: __u32,
    pub segs: __u32,
    pub retrans: __u32,
    pub rtt_us: __u32,
    pub group: __u32,
    pub draw: __u32,
}
pub const THALWEG_IDLE_RESTARTED: thalweg_idle_group = 0;
pub const THALWEG_IDLE_KEPT: thalweg_idle_group = 1;
pub const THALWEG_IDLE_CONTROL: thalweg_idle_group = 2;
pub type thalweg_idle_group = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_idle_flow {
    pub report: thalweg_idle_report,
    pub acked_us: __u64,
    pub begun_us: __u64,
    pub train_us: __u64,
    pub rate: __u64,
    pub cwnd: __u32,
    pub restart_cwnd: __u32,
    pub begun_una: __u32,
    pub begun_segs: __u32,
    pub begun_retrans: __u32,
    pub train_una: __u32,
    pub train_end: __u32,
    pub cookie: __u32,
    pub paced: __u32,
    pub reserved: __u32,
}
