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
pub const THALWEG_ABI_VERSION: u32 = 11;
pub const THALWEG_RULE: u32 = 5;
pub const THALWEG_RULE_CLASSIC: u32 = 1;
pub const THALWEG_MAX_ARMS: u32 = 16;
pub const THALWEG_CC_NAME: u32 = 16;
pub const THALWEG_NO_ARM: u32 = 255;
pub const THALWEG_OWNED_BY_POLICY: u32 = 2147483648;
pub const THALWEG_OWNED_WINDOW: u32 = 1073741824;
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
pub const THALWEG_DEFAULT_RING: u32 = 4194304;
pub const THALWEG_ONE_Q16: u32 = 65536;
pub const THALWEG_HOUR_NS: u64 = 3600000000000;
pub const THALWEG_GROUP_BITS: u32 = 65536;
pub const THALWEG_NO_TRIALS: u32 = 2147483648;
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_model_feature"][::std::mem::size_of::<thalweg_model_feature>() - 8usize];
    ["Alignment of thalweg_model_feature"]
        [::std::mem::align_of::<thalweg_model_feature>() - 4usize];
    ["Offset of field: thalweg_model_feature::kind"]
        [::std::mem::offset_of!(thalweg_model_feature, kind) - 0usize];
    ["Offset of field: thalweg_model_feature::scale_q16"]
        [::std::mem::offset_of!(thalweg_model_feature, scale_q16) - 4usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_model_layer"][::std::mem::size_of::<thalweg_model_layer>() - 4376usize];
    ["Alignment of thalweg_model_layer"][::std::mem::align_of::<thalweg_model_layer>() - 8usize];
    ["Offset of field: thalweg_model_layer::rows"]
        [::std::mem::offset_of!(thalweg_model_layer, rows) - 0usize];
    ["Offset of field: thalweg_model_layer::columns"]
        [::std::mem::offset_of!(thalweg_model_layer, columns) - 4usize];
    ["Offset of field: thalweg_model_layer::shift"]
        [::std::mem::offset_of!(thalweg_model_layer, shift) - 8usize];
    ["Offset of field: thalweg_model_layer::low"]
        [::std::mem::offset_of!(thalweg_model_layer, low) - 12usize];
    ["Offset of field: thalweg_model_layer::high"]
        [::std::mem::offset_of!(thalweg_model_layer, high) - 16usize];
    ["Offset of field: thalweg_model_layer::reserved"]
        [::std::mem::offset_of!(thalweg_model_layer, reserved) - 20usize];
    ["Offset of field: thalweg_model_layer::multiplier"]
        [::std::mem::offset_of!(thalweg_model_layer, multiplier) - 24usize];
    ["Offset of field: thalweg_model_layer::bias"]
        [::std::mem::offset_of!(thalweg_model_layer, bias) - 152usize];
    ["Offset of field: thalweg_model_layer::weights"]
        [::std::mem::offset_of!(thalweg_model_layer, weights) - 280usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_model_node"][::std::mem::size_of::<thalweg_model_node>() - 12usize];
    ["Alignment of thalweg_model_node"][::std::mem::align_of::<thalweg_model_node>() - 4usize];
    ["Offset of field: thalweg_model_node::value_q15"]
        [::std::mem::offset_of!(thalweg_model_node, value_q15) - 0usize];
    ["Offset of field: thalweg_model_node::threshold_q15"]
        [::std::mem::offset_of!(thalweg_model_node, threshold_q15) - 4usize];
    ["Offset of field: thalweg_model_node::left"]
        [::std::mem::offset_of!(thalweg_model_node, left) - 6usize];
    ["Offset of field: thalweg_model_node::right"]
        [::std::mem::offset_of!(thalweg_model_node, right) - 8usize];
    ["Offset of field: thalweg_model_node::input"]
        [::std::mem::offset_of!(thalweg_model_node, input) - 10usize];
    ["Offset of field: thalweg_model_node::reserved"]
        [::std::mem::offset_of!(thalweg_model_node, reserved) - 11usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_model"][::std::mem::size_of::<thalweg_model>() - 38120usize];
    ["Alignment of thalweg_model"][::std::mem::align_of::<thalweg_model>() - 8usize];
    ["Offset of field: thalweg_model::features"]
        [::std::mem::offset_of!(thalweg_model, features) - 0usize];
    ["Offset of field: thalweg_model::history"]
        [::std::mem::offset_of!(thalweg_model, history) - 4usize];
    ["Offset of field: thalweg_model::target_q24"]
        [::std::mem::offset_of!(thalweg_model, target_q24) - 8usize];
    ["Offset of field: thalweg_model::offset_q16"]
        [::std::mem::offset_of!(thalweg_model, offset_q16) - 12usize];
    ["Offset of field: thalweg_model::input_multiplier"]
        [::std::mem::offset_of!(thalweg_model, input_multiplier) - 16usize];
    ["Offset of field: thalweg_model::input_shift"]
        [::std::mem::offset_of!(thalweg_model, input_shift) - 20usize];
    ["Offset of field: thalweg_model::layers"]
        [::std::mem::offset_of!(thalweg_model, layers) - 24usize];
    ["Offset of field: thalweg_model::trees"]
        [::std::mem::offset_of!(thalweg_model, trees) - 28usize];
    ["Offset of field: thalweg_model::feature"]
        [::std::mem::offset_of!(thalweg_model, feature) - 32usize];
    ["Offset of field: thalweg_model::layer"]
        [::std::mem::offset_of!(thalweg_model, layer) - 160usize];
    ["Offset of field: thalweg_model::node"]
        [::std::mem::offset_of!(thalweg_model, node) - 13288usize];
    ["Offset of field: thalweg_model::root"]
        [::std::mem::offset_of!(thalweg_model, root) - 37864usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_rate_flow"][::std::mem::size_of::<thalweg_rate_flow>() - 48usize];
    ["Alignment of thalweg_rate_flow"][::std::mem::align_of::<thalweg_rate_flow>() - 8usize];
    ["Offset of field: thalweg_rate_flow::inputs"]
        [::std::mem::offset_of!(thalweg_rate_flow, inputs) - 0usize];
    ["Offset of field: thalweg_rate_flow::action_q15"]
        [::std::mem::offset_of!(thalweg_rate_flow, action_q15) - 32usize];
    ["Offset of field: thalweg_rate_flow::decided"]
        [::std::mem::offset_of!(thalweg_rate_flow, decided) - 34usize];
    ["Offset of field: thalweg_rate_flow::reserved"]
        [::std::mem::offset_of!(thalweg_rate_flow, reserved) - 36usize];
    ["Offset of field: thalweg_rate_flow::signal_q24"]
        [::std::mem::offset_of!(thalweg_rate_flow, signal_q24) - 40usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_measurement {
    pub rtt_ns: __u64,
    pub base_rtt_ns: __u64,
    pub rate: __u64,
    pub line_rate: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_measurement"][::std::mem::size_of::<thalweg_measurement>() - 32usize];
    ["Alignment of thalweg_measurement"][::std::mem::align_of::<thalweg_measurement>() - 8usize];
    ["Offset of field: thalweg_measurement::rtt_ns"]
        [::std::mem::offset_of!(thalweg_measurement, rtt_ns) - 0usize];
    ["Offset of field: thalweg_measurement::base_rtt_ns"]
        [::std::mem::offset_of!(thalweg_measurement, base_rtt_ns) - 8usize];
    ["Offset of field: thalweg_measurement::rate"]
        [::std::mem::offset_of!(thalweg_measurement, rate) - 16usize];
    ["Offset of field: thalweg_measurement::line_rate"]
        [::std::mem::offset_of!(thalweg_measurement, line_rate) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_scratch {
    pub values: [[__s64; 32usize]; 2usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_scratch"][::std::mem::size_of::<thalweg_scratch>() - 512usize];
    ["Alignment of thalweg_scratch"][::std::mem::align_of::<thalweg_scratch>() - 8usize];
    ["Offset of field: thalweg_scratch::values"]
        [::std::mem::offset_of!(thalweg_scratch, values) - 0usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_op"][::std::mem::size_of::<thalweg_policy_op>() - 12usize];
    ["Alignment of thalweg_policy_op"][::std::mem::align_of::<thalweg_policy_op>() - 4usize];
    ["Offset of field: thalweg_policy_op::kind"]
        [::std::mem::offset_of!(thalweg_policy_op, kind) - 0usize];
    ["Offset of field: thalweg_policy_op::stages"]
        [::std::mem::offset_of!(thalweg_policy_op, stages) - 1usize];
    ["Offset of field: thalweg_policy_op::level"]
        [::std::mem::offset_of!(thalweg_policy_op, level) - 2usize];
    ["Offset of field: thalweg_policy_op::name"]
        [::std::mem::offset_of!(thalweg_policy_op, name) - 4usize];
    ["Offset of field: thalweg_policy_op::text"]
        [::std::mem::offset_of!(thalweg_policy_op, text) - 6usize];
    ["Offset of field: thalweg_policy_op::value"]
        [::std::mem::offset_of!(thalweg_policy_op, value) - 8usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_caps {
    pub values: [__u32; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_caps"][::std::mem::size_of::<thalweg_policy_caps>() - 64usize];
    ["Alignment of thalweg_policy_caps"][::std::mem::align_of::<thalweg_policy_caps>() - 4usize];
    ["Offset of field: thalweg_policy_caps::values"]
        [::std::mem::offset_of!(thalweg_policy_caps, values) - 0usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_ports"][::std::mem::size_of::<thalweg_policy_ports>() - 4usize];
    ["Alignment of thalweg_policy_ports"][::std::mem::align_of::<thalweg_policy_ports>() - 2usize];
    ["Offset of field: thalweg_policy_ports::first"]
        [::std::mem::offset_of!(thalweg_policy_ports, first) - 0usize];
    ["Offset of field: thalweg_policy_ports::last"]
        [::std::mem::offset_of!(thalweg_policy_ports, last) - 2usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_rule"][::std::mem::size_of::<thalweg_policy_rule>() - 88usize];
    ["Alignment of thalweg_policy_rule"][::std::mem::align_of::<thalweg_policy_rule>() - 8usize];
    ["Offset of field: thalweg_policy_rule::id"]
        [::std::mem::offset_of!(thalweg_policy_rule, id) - 0usize];
    ["Offset of field: thalweg_policy_rule::flags"]
        [::std::mem::offset_of!(thalweg_policy_rule, flags) - 4usize];
    ["Offset of field: thalweg_policy_rule::netns"]
        [::std::mem::offset_of!(thalweg_policy_rule, netns) - 8usize];
    ["Offset of field: thalweg_policy_rule::cgroups"]
        [::std::mem::offset_of!(thalweg_policy_rule, cgroups) - 16usize];
    ["Offset of field: thalweg_policy_rule::sample"]
        [::std::mem::offset_of!(thalweg_policy_rule, sample) - 20usize];
    ["Offset of field: thalweg_policy_rule::local"]
        [::std::mem::offset_of!(thalweg_policy_rule, local) - 24usize];
    ["Offset of field: thalweg_policy_rule::local_len"]
        [::std::mem::offset_of!(thalweg_policy_rule, local_len) - 40usize];
    ["Offset of field: thalweg_policy_rule::same_len"]
        [::std::mem::offset_of!(thalweg_policy_rule, same_len) - 41usize];
    ["Offset of field: thalweg_policy_rule::remote_len"]
        [::std::mem::offset_of!(thalweg_policy_rule, remote_len) - 42usize];
    ["Offset of field: thalweg_policy_rule::stages"]
        [::std::mem::offset_of!(thalweg_policy_rule, stages) - 43usize];
    ["Offset of field: thalweg_policy_rule::first_op"]
        [::std::mem::offset_of!(thalweg_policy_rule, first_op) - 44usize];
    ["Offset of field: thalweg_policy_rule::ops"]
        [::std::mem::offset_of!(thalweg_policy_rule, ops) - 48usize];
    ["Offset of field: thalweg_policy_rule::reserved"]
        [::std::mem::offset_of!(thalweg_policy_rule, reserved) - 52usize];
    ["Offset of field: thalweg_policy_rule::remote_ports"]
        [::std::mem::offset_of!(thalweg_policy_rule, remote_ports) - 56usize];
    ["Offset of field: thalweg_policy_rule::local_ports"]
        [::std::mem::offset_of!(thalweg_policy_rule, local_ports) - 72usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_node {
    pub first: __u32,
    pub rules: __u32,
    pub parent: __u32,
    pub never: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_node"][::std::mem::size_of::<thalweg_policy_node>() - 16usize];
    ["Alignment of thalweg_policy_node"][::std::mem::align_of::<thalweg_policy_node>() - 4usize];
    ["Offset of field: thalweg_policy_node::first"]
        [::std::mem::offset_of!(thalweg_policy_node, first) - 0usize];
    ["Offset of field: thalweg_policy_node::rules"]
        [::std::mem::offset_of!(thalweg_policy_node, rules) - 4usize];
    ["Offset of field: thalweg_policy_node::parent"]
        [::std::mem::offset_of!(thalweg_policy_node, parent) - 8usize];
    ["Offset of field: thalweg_policy_node::never"]
        [::std::mem::offset_of!(thalweg_policy_node, never) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_key4 {
    pub prefix_len: __u32,
    pub addr: [__u8; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_key4"][::std::mem::size_of::<thalweg_policy_key4>() - 8usize];
    ["Alignment of thalweg_policy_key4"][::std::mem::align_of::<thalweg_policy_key4>() - 4usize];
    ["Offset of field: thalweg_policy_key4::prefix_len"]
        [::std::mem::offset_of!(thalweg_policy_key4, prefix_len) - 0usize];
    ["Offset of field: thalweg_policy_key4::addr"]
        [::std::mem::offset_of!(thalweg_policy_key4, addr) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_key6 {
    pub prefix_len: __u32,
    pub addr: [__u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_key6"][::std::mem::size_of::<thalweg_policy_key6>() - 20usize];
    ["Alignment of thalweg_policy_key6"][::std::mem::align_of::<thalweg_policy_key6>() - 4usize];
    ["Offset of field: thalweg_policy_key6::prefix_len"]
        [::std::mem::offset_of!(thalweg_policy_key6, prefix_len) - 0usize];
    ["Offset of field: thalweg_policy_key6::addr"]
        [::std::mem::offset_of!(thalweg_policy_key6, addr) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_text {
    pub text: [::std::os::raw::c_char; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_text"][::std::mem::size_of::<thalweg_policy_text>() - 16usize];
    ["Alignment of thalweg_policy_text"][::std::mem::align_of::<thalweg_policy_text>() - 1usize];
    ["Offset of field: thalweg_policy_text::text"]
        [::std::mem::offset_of!(thalweg_policy_text, text) - 0usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_head"][::std::mem::size_of::<thalweg_policy_head>() - 24usize];
    ["Alignment of thalweg_policy_head"][::std::mem::align_of::<thalweg_policy_head>() - 4usize];
    ["Offset of field: thalweg_policy_head::generation"]
        [::std::mem::offset_of!(thalweg_policy_head, generation) - 0usize];
    ["Offset of field: thalweg_policy_head::stages"]
        [::std::mem::offset_of!(thalweg_policy_head, stages) - 4usize];
    ["Offset of field: thalweg_policy_head::flags"]
        [::std::mem::offset_of!(thalweg_policy_head, flags) - 8usize];
    ["Offset of field: thalweg_policy_head::jiffy_us"]
        [::std::mem::offset_of!(thalweg_policy_head, jiffy_us) - 12usize];
    ["Offset of field: thalweg_policy_head::cgroups"]
        [::std::mem::offset_of!(thalweg_policy_head, cgroups) - 16usize];
    ["Offset of field: thalweg_policy_head::version"]
        [::std::mem::offset_of!(thalweg_policy_head, version) - 20usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_flow"][::std::mem::size_of::<thalweg_policy_flow>() - 224usize];
    ["Alignment of thalweg_policy_flow"][::std::mem::align_of::<thalweg_policy_flow>() - 8usize];
    ["Offset of field: thalweg_policy_flow::generation"]
        [::std::mem::offset_of!(thalweg_policy_flow, generation) - 0usize];
    ["Offset of field: thalweg_policy_flow::rule"]
        [::std::mem::offset_of!(thalweg_policy_flow, rule) - 4usize];
    ["Offset of field: thalweg_policy_flow::count"]
        [::std::mem::offset_of!(thalweg_policy_flow, count) - 8usize];
    ["Offset of field: thalweg_policy_flow::stages"]
        [::std::mem::offset_of!(thalweg_policy_flow, stages) - 9usize];
    ["Offset of field: thalweg_policy_flow::flags"]
        [::std::mem::offset_of!(thalweg_policy_flow, flags) - 10usize];
    ["Offset of field: thalweg_policy_flow::has_received"]
        [::std::mem::offset_of!(thalweg_policy_flow, has_received) - 11usize];
    ["Offset of field: thalweg_policy_flow::received"]
        [::std::mem::offset_of!(thalweg_policy_flow, received) - 12usize];
    ["Offset of field: thalweg_policy_flow::told_ns"]
        [::std::mem::offset_of!(thalweg_policy_flow, told_ns) - 16usize];
    ["Offset of field: thalweg_policy_flow::sent"]
        [::std::mem::offset_of!(thalweg_policy_flow, sent) - 24usize];
    ["Offset of field: thalweg_policy_flow::lasting"]
        [::std::mem::offset_of!(thalweg_policy_flow, lasting) - 28usize];
    ["Offset of field: thalweg_policy_flow::ops"]
        [::std::mem::offset_of!(thalweg_policy_flow, ops) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_handshake {
    pub cookie: __u64,
    pub since_ns: __u64,
    pub flow: thalweg_policy_flow,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_handshake"]
        [::std::mem::size_of::<thalweg_policy_handshake>() - 240usize];
    ["Alignment of thalweg_policy_handshake"]
        [::std::mem::align_of::<thalweg_policy_handshake>() - 8usize];
    ["Offset of field: thalweg_policy_handshake::cookie"]
        [::std::mem::offset_of!(thalweg_policy_handshake, cookie) - 0usize];
    ["Offset of field: thalweg_policy_handshake::since_ns"]
        [::std::mem::offset_of!(thalweg_policy_handshake, since_ns) - 8usize];
    ["Offset of field: thalweg_policy_handshake::flow"]
        [::std::mem::offset_of!(thalweg_policy_handshake, flow) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_mark {
    pub cookie: __u64,
    pub op: __u32,
    pub cgroups: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_mark"][::std::mem::size_of::<thalweg_policy_mark>() - 16usize];
    ["Alignment of thalweg_policy_mark"][::std::mem::align_of::<thalweg_policy_mark>() - 8usize];
    ["Offset of field: thalweg_policy_mark::cookie"]
        [::std::mem::offset_of!(thalweg_policy_mark, cookie) - 0usize];
    ["Offset of field: thalweg_policy_mark::op"]
        [::std::mem::offset_of!(thalweg_policy_mark, op) - 8usize];
    ["Offset of field: thalweg_policy_mark::cgroups"]
        [::std::mem::offset_of!(thalweg_policy_mark, cgroups) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_counters {
    pub matched: __u64,
    pub done: __u64,
    pub failed: __u64,
    pub asked: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_counters"][::std::mem::size_of::<thalweg_policy_counters>() - 32usize];
    ["Alignment of thalweg_policy_counters"]
        [::std::mem::align_of::<thalweg_policy_counters>() - 8usize];
    ["Offset of field: thalweg_policy_counters::matched"]
        [::std::mem::offset_of!(thalweg_policy_counters, matched) - 0usize];
    ["Offset of field: thalweg_policy_counters::done"]
        [::std::mem::offset_of!(thalweg_policy_counters, done) - 8usize];
    ["Offset of field: thalweg_policy_counters::failed"]
        [::std::mem::offset_of!(thalweg_policy_counters, failed) - 16usize];
    ["Offset of field: thalweg_policy_counters::asked"]
        [::std::mem::offset_of!(thalweg_policy_counters, asked) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_failure {
    pub generation: __u32,
    pub rule: __u32,
    pub op: __u16,
    pub stage: __u16,
    pub error: __s32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_failure"][::std::mem::size_of::<thalweg_policy_failure>() - 16usize];
    ["Alignment of thalweg_policy_failure"]
        [::std::mem::align_of::<thalweg_policy_failure>() - 4usize];
    ["Offset of field: thalweg_policy_failure::generation"]
        [::std::mem::offset_of!(thalweg_policy_failure, generation) - 0usize];
    ["Offset of field: thalweg_policy_failure::rule"]
        [::std::mem::offset_of!(thalweg_policy_failure, rule) - 4usize];
    ["Offset of field: thalweg_policy_failure::op"]
        [::std::mem::offset_of!(thalweg_policy_failure, op) - 8usize];
    ["Offset of field: thalweg_policy_failure::stage"]
        [::std::mem::offset_of!(thalweg_policy_failure, stage) - 10usize];
    ["Offset of field: thalweg_policy_failure::error"]
        [::std::mem::offset_of!(thalweg_policy_failure, error) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_reached {
    pub matched: __u64,
    pub done: __u64,
    pub unchanged: __u64,
    pub left: __u64,
    pub failed: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_reached"][::std::mem::size_of::<thalweg_policy_reached>() - 40usize];
    ["Alignment of thalweg_policy_reached"]
        [::std::mem::align_of::<thalweg_policy_reached>() - 8usize];
    ["Offset of field: thalweg_policy_reached::matched"]
        [::std::mem::offset_of!(thalweg_policy_reached, matched) - 0usize];
    ["Offset of field: thalweg_policy_reached::done"]
        [::std::mem::offset_of!(thalweg_policy_reached, done) - 8usize];
    ["Offset of field: thalweg_policy_reached::unchanged"]
        [::std::mem::offset_of!(thalweg_policy_reached, unchanged) - 16usize];
    ["Offset of field: thalweg_policy_reached::left"]
        [::std::mem::offset_of!(thalweg_policy_reached, left) - 24usize];
    ["Offset of field: thalweg_policy_reached::failed"]
        [::std::mem::offset_of!(thalweg_policy_reached, failed) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_seen {
    pub open: __u64,
    pub outside: __u64,
    pub unmatched: __u64,
    pub newer: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_seen"][::std::mem::size_of::<thalweg_policy_seen>() - 32usize];
    ["Alignment of thalweg_policy_seen"][::std::mem::align_of::<thalweg_policy_seen>() - 8usize];
    ["Offset of field: thalweg_policy_seen::open"]
        [::std::mem::offset_of!(thalweg_policy_seen, open) - 0usize];
    ["Offset of field: thalweg_policy_seen::outside"]
        [::std::mem::offset_of!(thalweg_policy_seen, outside) - 8usize];
    ["Offset of field: thalweg_policy_seen::unmatched"]
        [::std::mem::offset_of!(thalweg_policy_seen, unmatched) - 16usize];
    ["Offset of field: thalweg_policy_seen::newer"]
        [::std::mem::offset_of!(thalweg_policy_seen, newer) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_silenced {
    pub later: __u64,
    pub ends: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_silenced"][::std::mem::size_of::<thalweg_policy_silenced>() - 16usize];
    ["Alignment of thalweg_policy_silenced"]
        [::std::mem::align_of::<thalweg_policy_silenced>() - 8usize];
    ["Offset of field: thalweg_policy_silenced::later"]
        [::std::mem::offset_of!(thalweg_policy_silenced, later) - 0usize];
    ["Offset of field: thalweg_policy_silenced::ends"]
        [::std::mem::offset_of!(thalweg_policy_silenced, ends) - 8usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_policy_missed {
    pub handshakes: __u64,
    pub statistics: __u64,
    pub failures: __u64,
    pub outcomes: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_missed"][::std::mem::size_of::<thalweg_policy_missed>() - 32usize];
    ["Alignment of thalweg_policy_missed"]
        [::std::mem::align_of::<thalweg_policy_missed>() - 8usize];
    ["Offset of field: thalweg_policy_missed::handshakes"]
        [::std::mem::offset_of!(thalweg_policy_missed, handshakes) - 0usize];
    ["Offset of field: thalweg_policy_missed::statistics"]
        [::std::mem::offset_of!(thalweg_policy_missed, statistics) - 8usize];
    ["Offset of field: thalweg_policy_missed::failures"]
        [::std::mem::offset_of!(thalweg_policy_missed, failures) - 16usize];
    ["Offset of field: thalweg_policy_missed::outcomes"]
        [::std::mem::offset_of!(thalweg_policy_missed, outcomes) - 24usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_trial"][::std::mem::size_of::<thalweg_policy_trial>() - 56usize];
    ["Alignment of thalweg_policy_trial"][::std::mem::align_of::<thalweg_policy_trial>() - 8usize];
    ["Offset of field: thalweg_policy_trial::generation"]
        [::std::mem::offset_of!(thalweg_policy_trial, generation) - 0usize];
    ["Offset of field: thalweg_policy_trial::rule"]
        [::std::mem::offset_of!(thalweg_policy_trial, rule) - 4usize];
    ["Offset of field: thalweg_policy_trial::trial"]
        [::std::mem::offset_of!(thalweg_policy_trial, trial) - 8usize];
    ["Offset of field: thalweg_policy_trial::draw"]
        [::std::mem::offset_of!(thalweg_policy_trial, draw) - 12usize];
    ["Offset of field: thalweg_policy_trial::start_ns"]
        [::std::mem::offset_of!(thalweg_policy_trial, start_ns) - 16usize];
    ["Offset of field: thalweg_policy_trial::acked_ns"]
        [::std::mem::offset_of!(thalweg_policy_trial, acked_ns) - 24usize];
    ["Offset of field: thalweg_policy_trial::start_bytes"]
        [::std::mem::offset_of!(thalweg_policy_trial, start_bytes) - 32usize];
    ["Offset of field: thalweg_policy_trial::start_busy_ticks"]
        [::std::mem::offset_of!(thalweg_policy_trial, start_busy_ticks) - 40usize];
    ["Offset of field: thalweg_policy_trial::handshake_rtt_us"]
        [::std::mem::offset_of!(thalweg_policy_trial, handshake_rtt_us) - 44usize];
    ["Offset of field: thalweg_policy_trial::flags"]
        [::std::mem::offset_of!(thalweg_policy_trial, flags) - 48usize];
    ["Offset of field: thalweg_policy_trial::settings"]
        [::std::mem::offset_of!(thalweg_policy_trial, settings) - 52usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_outcome"][::std::mem::size_of::<thalweg_policy_outcome>() - 112usize];
    ["Alignment of thalweg_policy_outcome"]
        [::std::mem::align_of::<thalweg_policy_outcome>() - 8usize];
    ["Offset of field: thalweg_policy_outcome::time_ns"]
        [::std::mem::offset_of!(thalweg_policy_outcome, time_ns) - 0usize];
    ["Offset of field: thalweg_policy_outcome::connection"]
        [::std::mem::offset_of!(thalweg_policy_outcome, connection) - 8usize];
    ["Offset of field: thalweg_policy_outcome::netns"]
        [::std::mem::offset_of!(thalweg_policy_outcome, netns) - 16usize];
    ["Offset of field: thalweg_policy_outcome::remote"]
        [::std::mem::offset_of!(thalweg_policy_outcome, remote) - 24usize];
    ["Offset of field: thalweg_policy_outcome::local_port"]
        [::std::mem::offset_of!(thalweg_policy_outcome, local_port) - 40usize];
    ["Offset of field: thalweg_policy_outcome::remote_port"]
        [::std::mem::offset_of!(thalweg_policy_outcome, remote_port) - 44usize];
    ["Offset of field: thalweg_policy_outcome::generation"]
        [::std::mem::offset_of!(thalweg_policy_outcome, generation) - 48usize];
    ["Offset of field: thalweg_policy_outcome::rule"]
        [::std::mem::offset_of!(thalweg_policy_outcome, rule) - 52usize];
    ["Offset of field: thalweg_policy_outcome::trial"]
        [::std::mem::offset_of!(thalweg_policy_outcome, trial) - 56usize];
    ["Offset of field: thalweg_policy_outcome::draw"]
        [::std::mem::offset_of!(thalweg_policy_outcome, draw) - 60usize];
    ["Offset of field: thalweg_policy_outcome::bytes"]
        [::std::mem::offset_of!(thalweg_policy_outcome, bytes) - 64usize];
    ["Offset of field: thalweg_policy_outcome::wall_us"]
        [::std::mem::offset_of!(thalweg_policy_outcome, wall_us) - 72usize];
    ["Offset of field: thalweg_policy_outcome::busy_us"]
        [::std::mem::offset_of!(thalweg_policy_outcome, busy_us) - 80usize];
    ["Offset of field: thalweg_policy_outcome::segs_out"]
        [::std::mem::offset_of!(thalweg_policy_outcome, segs_out) - 88usize];
    ["Offset of field: thalweg_policy_outcome::retrans"]
        [::std::mem::offset_of!(thalweg_policy_outcome, retrans) - 92usize];
    ["Offset of field: thalweg_policy_outcome::srtt_us"]
        [::std::mem::offset_of!(thalweg_policy_outcome, srtt_us) - 96usize];
    ["Offset of field: thalweg_policy_outcome::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_policy_outcome, min_rtt_us) - 100usize];
    ["Offset of field: thalweg_policy_outcome::handshake_rtt_us"]
        [::std::mem::offset_of!(thalweg_policy_outcome, handshake_rtt_us) - 104usize];
    ["Offset of field: thalweg_policy_outcome::flags"]
        [::std::mem::offset_of!(thalweg_policy_outcome, flags) - 108usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_policy_event"][::std::mem::size_of::<thalweg_policy_event>() - 120usize];
    ["Alignment of thalweg_policy_event"][::std::mem::align_of::<thalweg_policy_event>() - 8usize];
    ["Offset of field: thalweg_policy_event::time_ns"]
        [::std::mem::offset_of!(thalweg_policy_event, time_ns) - 0usize];
    ["Offset of field: thalweg_policy_event::connection"]
        [::std::mem::offset_of!(thalweg_policy_event, connection) - 8usize];
    ["Offset of field: thalweg_policy_event::local"]
        [::std::mem::offset_of!(thalweg_policy_event, local) - 16usize];
    ["Offset of field: thalweg_policy_event::remote"]
        [::std::mem::offset_of!(thalweg_policy_event, remote) - 32usize];
    ["Offset of field: thalweg_policy_event::local_port"]
        [::std::mem::offset_of!(thalweg_policy_event, local_port) - 48usize];
    ["Offset of field: thalweg_policy_event::remote_port"]
        [::std::mem::offset_of!(thalweg_policy_event, remote_port) - 52usize];
    ["Offset of field: thalweg_policy_event::rule"]
        [::std::mem::offset_of!(thalweg_policy_event, rule) - 56usize];
    ["Offset of field: thalweg_policy_event::generation"]
        [::std::mem::offset_of!(thalweg_policy_event, generation) - 60usize];
    ["Offset of field: thalweg_policy_event::bytes_acked"]
        [::std::mem::offset_of!(thalweg_policy_event, bytes_acked) - 64usize];
    ["Offset of field: thalweg_policy_event::bytes_received"]
        [::std::mem::offset_of!(thalweg_policy_event, bytes_received) - 72usize];
    ["Offset of field: thalweg_policy_event::delivered"]
        [::std::mem::offset_of!(thalweg_policy_event, delivered) - 80usize];
    ["Offset of field: thalweg_policy_event::delivered_ce"]
        [::std::mem::offset_of!(thalweg_policy_event, delivered_ce) - 84usize];
    ["Offset of field: thalweg_policy_event::retrans"]
        [::std::mem::offset_of!(thalweg_policy_event, retrans) - 88usize];
    ["Offset of field: thalweg_policy_event::dsack_dups"]
        [::std::mem::offset_of!(thalweg_policy_event, dsack_dups) - 92usize];
    ["Offset of field: thalweg_policy_event::srtt_us"]
        [::std::mem::offset_of!(thalweg_policy_event, srtt_us) - 96usize];
    ["Offset of field: thalweg_policy_event::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_policy_event, min_rtt_us) - 100usize];
    ["Offset of field: thalweg_policy_event::snd_cwnd"]
        [::std::mem::offset_of!(thalweg_policy_event, snd_cwnd) - 104usize];
    ["Offset of field: thalweg_policy_event::snd_ssthresh"]
        [::std::mem::offset_of!(thalweg_policy_event, snd_ssthresh) - 108usize];
    ["Offset of field: thalweg_policy_event::received"]
        [::std::mem::offset_of!(thalweg_policy_event, received) - 112usize];
    ["Offset of field: thalweg_policy_event::has_received"]
        [::std::mem::offset_of!(thalweg_policy_event, has_received) - 116usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct thalweg_rate_settings {
    pub reference_rate: __u64,
    pub reference_rtt_us: __u32,
    pub version: __u32,
    pub name: [__u8; 64usize],
    pub model: thalweg_model,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_rate_settings"][::std::mem::size_of::<thalweg_rate_settings>() - 38200usize];
    ["Alignment of thalweg_rate_settings"]
        [::std::mem::align_of::<thalweg_rate_settings>() - 8usize];
    ["Offset of field: thalweg_rate_settings::reference_rate"]
        [::std::mem::offset_of!(thalweg_rate_settings, reference_rate) - 0usize];
    ["Offset of field: thalweg_rate_settings::reference_rtt_us"]
        [::std::mem::offset_of!(thalweg_rate_settings, reference_rtt_us) - 8usize];
    ["Offset of field: thalweg_rate_settings::version"]
        [::std::mem::offset_of!(thalweg_rate_settings, version) - 12usize];
    ["Offset of field: thalweg_rate_settings::name"]
        [::std::mem::offset_of!(thalweg_rate_settings, name) - 16usize];
    ["Offset of field: thalweg_rate_settings::model"]
        [::std::mem::offset_of!(thalweg_rate_settings, model) - 80usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_rate_trace"][::std::mem::size_of::<thalweg_rate_trace>() - 32usize];
    ["Alignment of thalweg_rate_trace"][::std::mem::align_of::<thalweg_rate_trace>() - 8usize];
    ["Offset of field: thalweg_rate_trace::until_ns"]
        [::std::mem::offset_of!(thalweg_rate_trace, until_ns) - 0usize];
    ["Offset of field: thalweg_rate_trace::remote"]
        [::std::mem::offset_of!(thalweg_rate_trace, remote) - 8usize];
    ["Offset of field: thalweg_rate_trace::lost"]
        [::std::mem::offset_of!(thalweg_rate_trace, lost) - 24usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_rate_decision"][::std::mem::size_of::<thalweg_rate_decision>() - 152usize];
    ["Alignment of thalweg_rate_decision"]
        [::std::mem::align_of::<thalweg_rate_decision>() - 8usize];
    ["Offset of field: thalweg_rate_decision::time_ns"]
        [::std::mem::offset_of!(thalweg_rate_decision, time_ns) - 0usize];
    ["Offset of field: thalweg_rate_decision::remote"]
        [::std::mem::offset_of!(thalweg_rate_decision, remote) - 8usize];
    ["Offset of field: thalweg_rate_decision::remote_port"]
        [::std::mem::offset_of!(thalweg_rate_decision, remote_port) - 24usize];
    ["Offset of field: thalweg_rate_decision::local_port"]
        [::std::mem::offset_of!(thalweg_rate_decision, local_port) - 26usize];
    ["Offset of field: thalweg_rate_decision::netns"]
        [::std::mem::offset_of!(thalweg_rate_decision, netns) - 28usize];
    ["Offset of field: thalweg_rate_decision::measurement"]
        [::std::mem::offset_of!(thalweg_rate_decision, measurement) - 32usize];
    ["Offset of field: thalweg_rate_decision::floor"]
        [::std::mem::offset_of!(thalweg_rate_decision, floor) - 64usize];
    ["Offset of field: thalweg_rate_decision::cap"]
        [::std::mem::offset_of!(thalweg_rate_decision, cap) - 72usize];
    ["Offset of field: thalweg_rate_decision::next_rate"]
        [::std::mem::offset_of!(thalweg_rate_decision, next_rate) - 80usize];
    ["Offset of field: thalweg_rate_decision::delivered_rate"]
        [::std::mem::offset_of!(thalweg_rate_decision, delivered_rate) - 88usize];
    ["Offset of field: thalweg_rate_decision::inputs"]
        [::std::mem::offset_of!(thalweg_rate_decision, inputs) - 96usize];
    ["Offset of field: thalweg_rate_decision::action_q15"]
        [::std::mem::offset_of!(thalweg_rate_decision, action_q15) - 128usize];
    ["Offset of field: thalweg_rate_decision::flags"]
        [::std::mem::offset_of!(thalweg_rate_decision, flags) - 130usize];
    ["Offset of field: thalweg_rate_decision::keep_q16"]
        [::std::mem::offset_of!(thalweg_rate_decision, keep_q16) - 132usize];
    ["Offset of field: thalweg_rate_decision::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_rate_decision, min_rtt_us) - 136usize];
    ["Offset of field: thalweg_rate_decision::round_rtt_us"]
        [::std::mem::offset_of!(thalweg_rate_decision, round_rtt_us) - 140usize];
    ["Offset of field: thalweg_rate_decision::window"]
        [::std::mem::offset_of!(thalweg_rate_decision, window) - 144usize];
    ["Offset of field: thalweg_rate_decision::reserved"]
        [::std::mem::offset_of!(thalweg_rate_decision, reserved) - 148usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_host_key"][::std::mem::size_of::<thalweg_host_key>() - 32usize];
    ["Alignment of thalweg_host_key"][::std::mem::align_of::<thalweg_host_key>() - 8usize];
    ["Offset of field: thalweg_host_key::netns"]
        [::std::mem::offset_of!(thalweg_host_key, netns) - 0usize];
    ["Offset of field: thalweg_host_key::addr"]
        [::std::mem::offset_of!(thalweg_host_key, addr) - 8usize];
    ["Offset of field: thalweg_host_key::prefix_len"]
        [::std::mem::offset_of!(thalweg_host_key, prefix_len) - 24usize];
    ["Offset of field: thalweg_host_key::level"]
        [::std::mem::offset_of!(thalweg_host_key, level) - 28usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_nat64 {
    pub prefix_len: __u32,
    pub addr: [__u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_nat64"][::std::mem::size_of::<thalweg_nat64>() - 20usize];
    ["Alignment of thalweg_nat64"][::std::mem::align_of::<thalweg_nat64>() - 4usize];
    ["Offset of field: thalweg_nat64::prefix_len"]
        [::std::mem::offset_of!(thalweg_nat64, prefix_len) - 0usize];
    ["Offset of field: thalweg_nat64::addr"][::std::mem::offset_of!(thalweg_nat64, addr) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_nat64_table {
    pub prefixes: [thalweg_nat64; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_nat64_table"][::std::mem::size_of::<thalweg_nat64_table>() - 160usize];
    ["Alignment of thalweg_nat64_table"][::std::mem::align_of::<thalweg_nat64_table>() - 4usize];
    ["Offset of field: thalweg_nat64_table::prefixes"]
        [::std::mem::offset_of!(thalweg_nat64_table, prefixes) - 0usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arm_state {
    pub value: __u32,
    pub weight_q16: __u32,
    pub chosen: __u32,
    pub caution_q16: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_arm_state"][::std::mem::size_of::<thalweg_arm_state>() - 16usize];
    ["Alignment of thalweg_arm_state"][::std::mem::align_of::<thalweg_arm_state>() - 4usize];
    ["Offset of field: thalweg_arm_state::value"]
        [::std::mem::offset_of!(thalweg_arm_state, value) - 0usize];
    ["Offset of field: thalweg_arm_state::weight_q16"]
        [::std::mem::offset_of!(thalweg_arm_state, weight_q16) - 4usize];
    ["Offset of field: thalweg_arm_state::chosen"]
        [::std::mem::offset_of!(thalweg_arm_state, chosen) - 8usize];
    ["Offset of field: thalweg_arm_state::caution_q16"]
        [::std::mem::offset_of!(thalweg_arm_state, caution_q16) - 12usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_arm_statistics"][::std::mem::size_of::<thalweg_arm_statistics>() - 48usize];
    ["Alignment of thalweg_arm_statistics"]
        [::std::mem::align_of::<thalweg_arm_statistics>() - 8usize];
    ["Offset of field: thalweg_arm_statistics::max_rate"]
        [::std::mem::offset_of!(thalweg_arm_statistics, max_rate) - 0usize];
    ["Offset of field: thalweg_arm_statistics::value_high"]
        [::std::mem::offset_of!(thalweg_arm_statistics, value_high) - 8usize];
    ["Offset of field: thalweg_arm_statistics::deviation_q16"]
        [::std::mem::offset_of!(thalweg_arm_statistics, deviation_q16) - 12usize];
    ["Offset of field: thalweg_arm_statistics::log_rate_q16"]
        [::std::mem::offset_of!(thalweg_arm_statistics, log_rate_q16) - 16usize];
    ["Offset of field: thalweg_arm_statistics::srtt_us"]
        [::std::mem::offset_of!(thalweg_arm_statistics, srtt_us) - 20usize];
    ["Offset of field: thalweg_arm_statistics::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_arm_statistics, min_rtt_us) - 24usize];
    ["Offset of field: thalweg_arm_statistics::other"]
        [::std::mem::offset_of!(thalweg_arm_statistics, other) - 28usize];
    ["Offset of field: thalweg_arm_statistics::scored"]
        [::std::mem::offset_of!(thalweg_arm_statistics, scored) - 32usize];
    ["Offset of field: thalweg_arm_statistics::segs"]
        [::std::mem::offset_of!(thalweg_arm_statistics, segs) - 36usize];
    ["Offset of field: thalweg_arm_statistics::retrans"]
        [::std::mem::offset_of!(thalweg_arm_statistics, retrans) - 40usize];
    ["Offset of field: thalweg_arm_statistics::counted"]
        [::std::mem::offset_of!(thalweg_arm_statistics, counted) - 44usize];
    ["Offset of field: thalweg_arm_statistics::slow"]
        [::std::mem::offset_of!(thalweg_arm_statistics, slow) - 46usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_host"][::std::mem::size_of::<thalweg_host>() - 1136usize];
    ["Alignment of thalweg_host"][::std::mem::align_of::<thalweg_host>() - 8usize];
    ["Offset of field: thalweg_host::seq_head"]
        [::std::mem::offset_of!(thalweg_host, seq_head) - 0usize];
    ["Offset of field: thalweg_host::connections"]
        [::std::mem::offset_of!(thalweg_host, connections) - 4usize];
    ["Offset of field: thalweg_host::tag"][::std::mem::offset_of!(thalweg_host, tag) - 8usize];
    ["Offset of field: thalweg_host::seen_ns"]
        [::std::mem::offset_of!(thalweg_host, seen_ns) - 16usize];
    ["Offset of field: thalweg_host::forgot_ns"]
        [::std::mem::offset_of!(thalweg_host, forgot_ns) - 24usize];
    ["Offset of field: thalweg_host::scored"]
        [::std::mem::offset_of!(thalweg_host, scored) - 32usize];
    ["Offset of field: thalweg_host::harmful"]
        [::std::mem::offset_of!(thalweg_host, harmful) - 36usize];
    ["Offset of field: thalweg_host::trials"]
        [::std::mem::offset_of!(thalweg_host, trials) - 38usize];
    ["Offset of field: thalweg_host::used"][::std::mem::offset_of!(thalweg_host, used) - 40usize];
    ["Offset of field: thalweg_host::unsteady"]
        [::std::mem::offset_of!(thalweg_host, unsteady) - 42usize];
    ["Offset of field: thalweg_host::credit_q16"]
        [::std::mem::offset_of!(thalweg_host, credit_q16) - 44usize];
    ["Offset of field: thalweg_host::arms"][::std::mem::offset_of!(thalweg_host, arms) - 48usize];
    ["Offset of field: thalweg_host::trial_ns"]
        [::std::mem::offset_of!(thalweg_host, trial_ns) - 304usize];
    ["Offset of field: thalweg_host::max_rate"]
        [::std::mem::offset_of!(thalweg_host, max_rate) - 312usize];
    ["Offset of field: thalweg_host::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_host, min_rtt_us) - 320usize];
    ["Offset of field: thalweg_host::switched"]
        [::std::mem::offset_of!(thalweg_host, switched) - 324usize];
    ["Offset of field: thalweg_host::queue_q16"]
        [::std::mem::offset_of!(thalweg_host, queue_q16) - 328usize];
    ["Offset of field: thalweg_host::base_rtt_us"]
        [::std::mem::offset_of!(thalweg_host, base_rtt_us) - 332usize];
    ["Offset of field: thalweg_host::last_base_rtt_us"]
        [::std::mem::offset_of!(thalweg_host, last_base_rtt_us) - 336usize];
    ["Offset of field: thalweg_host::level"]
        [::std::mem::offset_of!(thalweg_host, level) - 340usize];
    ["Offset of field: thalweg_host::usual_q16"]
        [::std::mem::offset_of!(thalweg_host, usual_q16) - 344usize];
    ["Offset of field: thalweg_host::usual_log_rate_q16"]
        [::std::mem::offset_of!(thalweg_host, usual_log_rate_q16) - 348usize];
    ["Offset of field: thalweg_host::step"][::std::mem::offset_of!(thalweg_host, step) - 352usize];
    ["Offset of field: thalweg_host::step_scored"]
        [::std::mem::offset_of!(thalweg_host, step_scored) - 356usize];
    ["Offset of field: thalweg_host::statistics"]
        [::std::mem::offset_of!(thalweg_host, statistics) - 360usize];
    ["Offset of field: thalweg_host::tag_tail"]
        [::std::mem::offset_of!(thalweg_host, tag_tail) - 1128usize];
    ["Offset of field: thalweg_host::seq_tail"]
        [::std::mem::offset_of!(thalweg_host, seq_tail) - 1132usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_forget {
    pub key: thalweg_host_key,
    pub arms: __u32,
    pub reserved: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_forget"][::std::mem::size_of::<thalweg_forget>() - 40usize];
    ["Alignment of thalweg_forget"][::std::mem::align_of::<thalweg_forget>() - 8usize];
    ["Offset of field: thalweg_forget::key"][::std::mem::offset_of!(thalweg_forget, key) - 0usize];
    ["Offset of field: thalweg_forget::arms"]
        [::std::mem::offset_of!(thalweg_forget, arms) - 32usize];
    ["Offset of field: thalweg_forget::reserved"]
        [::std::mem::offset_of!(thalweg_forget, reserved) - 36usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_worth {
    pub arms_q16: [__u32; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_worth"][::std::mem::size_of::<thalweg_worth>() - 64usize];
    ["Alignment of thalweg_worth"][::std::mem::align_of::<thalweg_worth>() - 4usize];
    ["Offset of field: thalweg_worth::arms_q16"]
        [::std::mem::offset_of!(thalweg_worth, arms_q16) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct thalweg_worths {
    pub levels: [thalweg_worth; 16usize],
    pub known: __u64,
    pub known_windows: __u64,
    pub groups: [__u64; 1024usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_worths"][::std::mem::size_of::<thalweg_worths>() - 9232usize];
    ["Alignment of thalweg_worths"][::std::mem::align_of::<thalweg_worths>() - 8usize];
    ["Offset of field: thalweg_worths::levels"]
        [::std::mem::offset_of!(thalweg_worths, levels) - 0usize];
    ["Offset of field: thalweg_worths::known"]
        [::std::mem::offset_of!(thalweg_worths, known) - 1024usize];
    ["Offset of field: thalweg_worths::known_windows"]
        [::std::mem::offset_of!(thalweg_worths, known_windows) - 1032usize];
    ["Offset of field: thalweg_worths::groups"]
        [::std::mem::offset_of!(thalweg_worths, groups) - 1040usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_sample"][::std::mem::size_of::<thalweg_sample>() - 72usize];
    ["Alignment of thalweg_sample"][::std::mem::align_of::<thalweg_sample>() - 8usize];
    ["Offset of field: thalweg_sample::bytes"]
        [::std::mem::offset_of!(thalweg_sample, bytes) - 0usize];
    ["Offset of field: thalweg_sample::duration_us"]
        [::std::mem::offset_of!(thalweg_sample, duration_us) - 8usize];
    ["Offset of field: thalweg_sample::rate_delivered_bytes"]
        [::std::mem::offset_of!(thalweg_sample, rate_delivered_bytes) - 16usize];
    ["Offset of field: thalweg_sample::rate_interval_us"]
        [::std::mem::offset_of!(thalweg_sample, rate_interval_us) - 24usize];
    ["Offset of field: thalweg_sample::srtt_us"]
        [::std::mem::offset_of!(thalweg_sample, srtt_us) - 32usize];
    ["Offset of field: thalweg_sample::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_sample, min_rtt_us) - 36usize];
    ["Offset of field: thalweg_sample::segs_out"]
        [::std::mem::offset_of!(thalweg_sample, segs_out) - 40usize];
    ["Offset of field: thalweg_sample::retrans"]
        [::std::mem::offset_of!(thalweg_sample, retrans) - 44usize];
    ["Offset of field: thalweg_sample::steady_segs"]
        [::std::mem::offset_of!(thalweg_sample, steady_segs) - 48usize];
    ["Offset of field: thalweg_sample::steady_retrans"]
        [::std::mem::offset_of!(thalweg_sample, steady_retrans) - 52usize];
    ["Offset of field: thalweg_sample::loss_srtt_us"]
        [::std::mem::offset_of!(thalweg_sample, loss_srtt_us) - 56usize];
    ["Offset of field: thalweg_sample::flags"]
        [::std::mem::offset_of!(thalweg_sample, flags) - 60usize];
    ["Offset of field: thalweg_sample::end"][::std::mem::offset_of!(thalweg_sample, end) - 62usize];
    ["Offset of field: thalweg_sample::receiver_us"]
        [::std::mem::offset_of!(thalweg_sample, receiver_us) - 64usize];
    ["Offset of field: thalweg_sample::buffer_us"]
        [::std::mem::offset_of!(thalweg_sample, buffer_us) - 68usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_params"][::std::mem::size_of::<thalweg_params>() - 152usize];
    ["Alignment of thalweg_params"][::std::mem::align_of::<thalweg_params>() - 8usize];
    ["Offset of field: thalweg_params::mode"]
        [::std::mem::offset_of!(thalweg_params, mode) - 0usize];
    ["Offset of field: thalweg_params::dry_run"]
        [::std::mem::offset_of!(thalweg_params, dry_run) - 4usize];
    ["Offset of field: thalweg_params::warm_up"]
        [::std::mem::offset_of!(thalweg_params, warm_up) - 8usize];
    ["Offset of field: thalweg_params::gap_scale"]
        [::std::mem::offset_of!(thalweg_params, gap_scale) - 12usize];
    ["Offset of field: thalweg_params::weight_max_q16"]
        [::std::mem::offset_of!(thalweg_params, weight_max_q16) - 16usize];
    ["Offset of field: thalweg_params::idle_shift"]
        [::std::mem::offset_of!(thalweg_params, idle_shift) - 20usize];
    ["Offset of field: thalweg_params::half_life_ns"]
        [::std::mem::offset_of!(thalweg_params, half_life_ns) - 24usize];
    ["Offset of field: thalweg_params::stretch_ns"]
        [::std::mem::offset_of!(thalweg_params, stretch_ns) - 32usize];
    ["Offset of field: thalweg_params::latency_weight_q16"]
        [::std::mem::offset_of!(thalweg_params, latency_weight_q16) - 40usize];
    ["Offset of field: thalweg_params::latency_guard_us"]
        [::std::mem::offset_of!(thalweg_params, latency_guard_us) - 44usize];
    ["Offset of field: thalweg_params::score_min_bytes"]
        [::std::mem::offset_of!(thalweg_params, score_min_bytes) - 48usize];
    ["Offset of field: thalweg_params::score_full_bytes"]
        [::std::mem::offset_of!(thalweg_params, score_full_bytes) - 56usize];
    ["Offset of field: thalweg_params::loss_shift"]
        [::std::mem::offset_of!(thalweg_params, loss_shift) - 64usize];
    ["Offset of field: thalweg_params::loss_min_segs"]
        [::std::mem::offset_of!(thalweg_params, loss_min_segs) - 68usize];
    ["Offset of field: thalweg_params::rescue_arm"]
        [::std::mem::offset_of!(thalweg_params, rescue_arm) - 72usize];
    ["Offset of field: thalweg_params::ipv4_prefix"]
        [::std::mem::offset_of!(thalweg_params, ipv4_prefix) - 76usize];
    ["Offset of field: thalweg_params::ipv6_prefix"]
        [::std::mem::offset_of!(thalweg_params, ipv6_prefix) - 80usize];
    ["Offset of field: thalweg_params::jiffy_us"]
        [::std::mem::offset_of!(thalweg_params, jiffy_us) - 84usize];
    ["Offset of field: thalweg_params::rule"]
        [::std::mem::offset_of!(thalweg_params, rule) - 88usize];
    ["Offset of field: thalweg_params::parameters"]
        [::std::mem::offset_of!(thalweg_params, parameters) - 92usize];
    ["Offset of field: thalweg_params::control_salt"]
        [::std::mem::offset_of!(thalweg_params, control_salt) - 96usize];
    ["Offset of field: thalweg_params::control_share_q16"]
        [::std::mem::offset_of!(thalweg_params, control_share_q16) - 104usize];
    ["Offset of field: thalweg_params::control_permanent_q16"]
        [::std::mem::offset_of!(thalweg_params, control_permanent_q16) - 108usize];
    ["Offset of field: thalweg_params::cluster_ipv4"]
        [::std::mem::offset_of!(thalweg_params, cluster_ipv4) - 112usize];
    ["Offset of field: thalweg_params::cluster_ipv6"]
        [::std::mem::offset_of!(thalweg_params, cluster_ipv6) - 116usize];
    ["Offset of field: thalweg_params::heartbeat_max_ns"]
        [::std::mem::offset_of!(thalweg_params, heartbeat_max_ns) - 120usize];
    ["Offset of field: thalweg_params::advise"]
        [::std::mem::offset_of!(thalweg_params, advise) - 128usize];
    ["Offset of field: thalweg_params::groups"]
        [::std::mem::offset_of!(thalweg_params, groups) - 132usize];
    ["Offset of field: thalweg_params::group_ipv4"]
        [::std::mem::offset_of!(thalweg_params, group_ipv4) - 136usize];
    ["Offset of field: thalweg_params::group_ipv6"]
        [::std::mem::offset_of!(thalweg_params, group_ipv6) - 140usize];
    ["Offset of field: thalweg_params::windows"]
        [::std::mem::offset_of!(thalweg_params, windows) - 144usize];
    ["Offset of field: thalweg_params::clamps"]
        [::std::mem::offset_of!(thalweg_params, clamps) - 148usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_arm {
    pub name: [::std::os::raw::c_char; 16usize],
    pub flags: __u32,
    pub refused_errno: __s32,
    pub refused: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_arm"][::std::mem::size_of::<thalweg_arm>() - 32usize];
    ["Alignment of thalweg_arm"][::std::mem::align_of::<thalweg_arm>() - 8usize];
    ["Offset of field: thalweg_arm::name"][::std::mem::offset_of!(thalweg_arm, name) - 0usize];
    ["Offset of field: thalweg_arm::flags"][::std::mem::offset_of!(thalweg_arm, flags) - 16usize];
    ["Offset of field: thalweg_arm::refused_errno"]
        [::std::mem::offset_of!(thalweg_arm, refused_errno) - 20usize];
    ["Offset of field: thalweg_arm::refused"]
        [::std::mem::offset_of!(thalweg_arm, refused) - 24usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_arms"][::std::mem::size_of::<thalweg_arms>() - 536usize];
    ["Alignment of thalweg_arms"][::std::mem::align_of::<thalweg_arms>() - 8usize];
    ["Offset of field: thalweg_arms::allowed"]
        [::std::mem::offset_of!(thalweg_arms, allowed) - 0usize];
    ["Offset of field: thalweg_arms::allowed_ecn"]
        [::std::mem::offset_of!(thalweg_arms, allowed_ecn) - 4usize];
    ["Offset of field: thalweg_arms::arms"][::std::mem::offset_of!(thalweg_arms, arms) - 8usize];
    ["Offset of field: thalweg_arms::heartbeat_ns"]
        [::std::mem::offset_of!(thalweg_arms, heartbeat_ns) - 520usize];
    ["Offset of field: thalweg_arms::reverted"]
        [::std::mem::offset_of!(thalweg_arms, reverted) - 528usize];
    ["Offset of field: thalweg_arms::used"][::std::mem::offset_of!(thalweg_arms, used) - 532usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_clamp_key {
    pub netns: __u64,
    pub addr: [__u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_clamp_key"][::std::mem::size_of::<thalweg_clamp_key>() - 24usize];
    ["Alignment of thalweg_clamp_key"][::std::mem::align_of::<thalweg_clamp_key>() - 8usize];
    ["Offset of field: thalweg_clamp_key::netns"]
        [::std::mem::offset_of!(thalweg_clamp_key, netns) - 0usize];
    ["Offset of field: thalweg_clamp_key::addr"]
        [::std::mem::offset_of!(thalweg_clamp_key, addr) - 8usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_clamp_report"][::std::mem::size_of::<thalweg_clamp_report>() - 72usize];
    ["Alignment of thalweg_clamp_report"][::std::mem::align_of::<thalweg_clamp_report>() - 8usize];
    ["Offset of field: thalweg_clamp_report::cookie"]
        [::std::mem::offset_of!(thalweg_clamp_report, cookie) - 0usize];
    ["Offset of field: thalweg_clamp_report::host"]
        [::std::mem::offset_of!(thalweg_clamp_report, host) - 8usize];
    ["Offset of field: thalweg_clamp_report::bytes_acked"]
        [::std::mem::offset_of!(thalweg_clamp_report, bytes_acked) - 32usize];
    ["Offset of field: thalweg_clamp_report::rate_delivered_bytes"]
        [::std::mem::offset_of!(thalweg_clamp_report, rate_delivered_bytes) - 40usize];
    ["Offset of field: thalweg_clamp_report::rate_interval_us"]
        [::std::mem::offset_of!(thalweg_clamp_report, rate_interval_us) - 48usize];
    ["Offset of field: thalweg_clamp_report::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_clamp_report, min_rtt_us) - 52usize];
    ["Offset of field: thalweg_clamp_report::mss"]
        [::std::mem::offset_of!(thalweg_clamp_report, mss) - 56usize];
    ["Offset of field: thalweg_clamp_report::segments"]
        [::std::mem::offset_of!(thalweg_clamp_report, segments) - 60usize];
    ["Offset of field: thalweg_clamp_report::error"]
        [::std::mem::offset_of!(thalweg_clamp_report, error) - 64usize];
    ["Offset of field: thalweg_clamp_report::flags"]
        [::std::mem::offset_of!(thalweg_clamp_report, flags) - 68usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_meta"][::std::mem::size_of::<thalweg_meta>() - 24usize];
    ["Alignment of thalweg_meta"][::std::mem::align_of::<thalweg_meta>() - 8usize];
    ["Offset of field: thalweg_meta::abi_version"]
        [::std::mem::offset_of!(thalweg_meta, abi_version) - 0usize];
    ["Offset of field: thalweg_meta::mode"][::std::mem::offset_of!(thalweg_meta, mode) - 4usize];
    ["Offset of field: thalweg_meta::host_bytes"]
        [::std::mem::offset_of!(thalweg_meta, host_bytes) - 8usize];
    ["Offset of field: thalweg_meta::event_bytes"]
        [::std::mem::offset_of!(thalweg_meta, event_bytes) - 12usize];
    ["Offset of field: thalweg_meta::hosts_max"]
        [::std::mem::offset_of!(thalweg_meta, hosts_max) - 16usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_origin"][::std::mem::size_of::<thalweg_origin>() - 16usize];
    ["Alignment of thalweg_origin"][::std::mem::align_of::<thalweg_origin>() - 4usize];
    ["Offset of field: thalweg_origin::flags"]
        [::std::mem::offset_of!(thalweg_origin, flags) - 0usize];
    ["Offset of field: thalweg_origin::hour"]
        [::std::mem::offset_of!(thalweg_origin, hour) - 2usize];
    ["Offset of field: thalweg_origin::propensity_q16"]
        [::std::mem::offset_of!(thalweg_origin, propensity_q16) - 4usize];
    ["Offset of field: thalweg_origin::handshake_rtt_us"]
        [::std::mem::offset_of!(thalweg_origin, handshake_rtt_us) - 8usize];
    ["Offset of field: thalweg_origin::arm"][::std::mem::offset_of!(thalweg_origin, arm) - 12usize];
    ["Offset of field: thalweg_origin::reason"]
        [::std::mem::offset_of!(thalweg_origin, reason) - 13usize];
    ["Offset of field: thalweg_origin::system_arm"]
        [::std::mem::offset_of!(thalweg_origin, system_arm) - 14usize];
    ["Offset of field: thalweg_origin::chosen_arm"]
        [::std::mem::offset_of!(thalweg_origin, chosen_arm) - 15usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_sums {
    pub bytes: __u64,
    pub duration_us: __u64,
    pub wall_us: __u64,
    pub segs_out: __u32,
    pub retrans: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_sums"][::std::mem::size_of::<thalweg_sums>() - 32usize];
    ["Alignment of thalweg_sums"][::std::mem::align_of::<thalweg_sums>() - 8usize];
    ["Offset of field: thalweg_sums::bytes"][::std::mem::offset_of!(thalweg_sums, bytes) - 0usize];
    ["Offset of field: thalweg_sums::duration_us"]
        [::std::mem::offset_of!(thalweg_sums, duration_us) - 8usize];
    ["Offset of field: thalweg_sums::wall_us"]
        [::std::mem::offset_of!(thalweg_sums, wall_us) - 16usize];
    ["Offset of field: thalweg_sums::segs_out"]
        [::std::mem::offset_of!(thalweg_sums, segs_out) - 24usize];
    ["Offset of field: thalweg_sums::retrans"]
        [::std::mem::offset_of!(thalweg_sums, retrans) - 28usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_window_choice {
    pub segments: __u8,
    pub chosen: __u8,
    pub propensity_q16: __u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_window_choice"][::std::mem::size_of::<thalweg_window_choice>() - 4usize];
    ["Alignment of thalweg_window_choice"]
        [::std::mem::align_of::<thalweg_window_choice>() - 2usize];
    ["Offset of field: thalweg_window_choice::segments"]
        [::std::mem::offset_of!(thalweg_window_choice, segments) - 0usize];
    ["Offset of field: thalweg_window_choice::chosen"]
        [::std::mem::offset_of!(thalweg_window_choice, chosen) - 1usize];
    ["Offset of field: thalweg_window_choice::propensity_q16"]
        [::std::mem::offset_of!(thalweg_window_choice, propensity_q16) - 2usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_conn"][::std::mem::size_of::<thalweg_conn>() - 152usize];
    ["Alignment of thalweg_conn"][::std::mem::align_of::<thalweg_conn>() - 8usize];
    ["Offset of field: thalweg_conn::cookie"]
        [::std::mem::offset_of!(thalweg_conn, cookie) - 0usize];
    ["Offset of field: thalweg_conn::start_ns"]
        [::std::mem::offset_of!(thalweg_conn, start_ns) - 8usize];
    ["Offset of field: thalweg_conn::acked_ns"]
        [::std::mem::offset_of!(thalweg_conn, acked_ns) - 16usize];
    ["Offset of field: thalweg_conn::start_bytes"]
        [::std::mem::offset_of!(thalweg_conn, start_bytes) - 24usize];
    ["Offset of field: thalweg_conn::start_busy_ticks"]
        [::std::mem::offset_of!(thalweg_conn, start_busy_ticks) - 32usize];
    ["Offset of field: thalweg_conn::start_receiver_ticks"]
        [::std::mem::offset_of!(thalweg_conn, start_receiver_ticks) - 36usize];
    ["Offset of field: thalweg_conn::start_buffer_ticks"]
        [::std::mem::offset_of!(thalweg_conn, start_buffer_ticks) - 40usize];
    ["Offset of field: thalweg_conn::start_segs"]
        [::std::mem::offset_of!(thalweg_conn, start_segs) - 44usize];
    ["Offset of field: thalweg_conn::start_retrans"]
        [::std::mem::offset_of!(thalweg_conn, start_retrans) - 48usize];
    ["Offset of field: thalweg_conn::origin"]
        [::std::mem::offset_of!(thalweg_conn, origin) - 52usize];
    ["Offset of field: thalweg_conn::look_segs"]
        [::std::mem::offset_of!(thalweg_conn, look_segs) - 68usize];
    ["Offset of field: thalweg_conn::look_ns"]
        [::std::mem::offset_of!(thalweg_conn, look_ns) - 72usize];
    ["Offset of field: thalweg_conn::looked_segs"]
        [::std::mem::offset_of!(thalweg_conn, looked_segs) - 80usize];
    ["Offset of field: thalweg_conn::looked_retrans"]
        [::std::mem::offset_of!(thalweg_conn, looked_retrans) - 84usize];
    ["Offset of field: thalweg_conn::slow_start_segs"]
        [::std::mem::offset_of!(thalweg_conn, slow_start_segs) - 88usize];
    ["Offset of field: thalweg_conn::slow_start_retrans"]
        [::std::mem::offset_of!(thalweg_conn, slow_start_retrans) - 92usize];
    ["Offset of field: thalweg_conn::loss_srtt_us"]
        [::std::mem::offset_of!(thalweg_conn, loss_srtt_us) - 96usize];
    ["Offset of field: thalweg_conn::netns"]
        [::std::mem::offset_of!(thalweg_conn, netns) - 100usize];
    ["Offset of field: thalweg_conn::decided_ns"]
        [::std::mem::offset_of!(thalweg_conn, decided_ns) - 104usize];
    ["Offset of field: thalweg_conn::before"]
        [::std::mem::offset_of!(thalweg_conn, before) - 112usize];
    ["Offset of field: thalweg_conn::count"]
        [::std::mem::offset_of!(thalweg_conn, count) - 144usize];
    ["Offset of field: thalweg_conn::window"]
        [::std::mem::offset_of!(thalweg_conn, window) - 148usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_event"][::std::mem::size_of::<thalweg_event>() - 232usize];
    ["Alignment of thalweg_event"][::std::mem::align_of::<thalweg_event>() - 8usize];
    ["Offset of field: thalweg_event::time_ns"]
        [::std::mem::offset_of!(thalweg_event, time_ns) - 0usize];
    ["Offset of field: thalweg_event::connection"]
        [::std::mem::offset_of!(thalweg_event, connection) - 8usize];
    ["Offset of field: thalweg_event::host"][::std::mem::offset_of!(thalweg_event, host) - 16usize];
    ["Offset of field: thalweg_event::remote"]
        [::std::mem::offset_of!(thalweg_event, remote) - 48usize];
    ["Offset of field: thalweg_event::remote_port"]
        [::std::mem::offset_of!(thalweg_event, remote_port) - 64usize];
    ["Offset of field: thalweg_event::local_port"]
        [::std::mem::offset_of!(thalweg_event, local_port) - 66usize];
    ["Offset of field: thalweg_event::window"]
        [::std::mem::offset_of!(thalweg_event, window) - 68usize];
    ["Offset of field: thalweg_event::kind"][::std::mem::offset_of!(thalweg_event, kind) - 72usize];
    ["Offset of field: thalweg_event::arm"][::std::mem::offset_of!(thalweg_event, arm) - 73usize];
    ["Offset of field: thalweg_event::system_arm"]
        [::std::mem::offset_of!(thalweg_event, system_arm) - 74usize];
    ["Offset of field: thalweg_event::reason"]
        [::std::mem::offset_of!(thalweg_event, reason) - 75usize];
    ["Offset of field: thalweg_event::flags"]
        [::std::mem::offset_of!(thalweg_event, flags) - 76usize];
    ["Offset of field: thalweg_event::end"][::std::mem::offset_of!(thalweg_event, end) - 77usize];
    ["Offset of field: thalweg_event::outcome"]
        [::std::mem::offset_of!(thalweg_event, outcome) - 78usize];
    ["Offset of field: thalweg_event::chosen_arm"]
        [::std::mem::offset_of!(thalweg_event, chosen_arm) - 79usize];
    ["Offset of field: thalweg_event::propensity_q16"]
        [::std::mem::offset_of!(thalweg_event, propensity_q16) - 80usize];
    ["Offset of field: thalweg_event::error"]
        [::std::mem::offset_of!(thalweg_event, error) - 84usize];
    ["Offset of field: thalweg_event::bytes"]
        [::std::mem::offset_of!(thalweg_event, bytes) - 88usize];
    ["Offset of field: thalweg_event::duration_us"]
        [::std::mem::offset_of!(thalweg_event, duration_us) - 96usize];
    ["Offset of field: thalweg_event::cost"]
        [::std::mem::offset_of!(thalweg_event, cost) - 104usize];
    ["Offset of field: thalweg_event::weight_q16"]
        [::std::mem::offset_of!(thalweg_event, weight_q16) - 112usize];
    ["Offset of field: thalweg_event::srtt_us"]
        [::std::mem::offset_of!(thalweg_event, srtt_us) - 116usize];
    ["Offset of field: thalweg_event::min_rtt_us"]
        [::std::mem::offset_of!(thalweg_event, min_rtt_us) - 120usize];
    ["Offset of field: thalweg_event::segs_out"]
        [::std::mem::offset_of!(thalweg_event, segs_out) - 124usize];
    ["Offset of field: thalweg_event::retrans"]
        [::std::mem::offset_of!(thalweg_event, retrans) - 128usize];
    ["Offset of field: thalweg_event::sample_flags"]
        [::std::mem::offset_of!(thalweg_event, sample_flags) - 132usize];
    ["Offset of field: thalweg_event::window_cost_q10"]
        [::std::mem::offset_of!(thalweg_event, window_cost_q10) - 134usize];
    ["Offset of field: thalweg_event::wall_us"]
        [::std::mem::offset_of!(thalweg_event, wall_us) - 136usize];
    ["Offset of field: thalweg_event::receiver_us"]
        [::std::mem::offset_of!(thalweg_event, receiver_us) - 144usize];
    ["Offset of field: thalweg_event::buffer_us"]
        [::std::mem::offset_of!(thalweg_event, buffer_us) - 148usize];
    ["Offset of field: thalweg_event::handshake_rtt_us"]
        [::std::mem::offset_of!(thalweg_event, handshake_rtt_us) - 152usize];
    ["Offset of field: thalweg_event::parameters"]
        [::std::mem::offset_of!(thalweg_event, parameters) - 156usize];
    ["Offset of field: thalweg_event::rule"]
        [::std::mem::offset_of!(thalweg_event, rule) - 160usize];
    ["Offset of field: thalweg_event::allowed"]
        [::std::mem::offset_of!(thalweg_event, allowed) - 162usize];
    ["Offset of field: thalweg_event::hour"]
        [::std::mem::offset_of!(thalweg_event, hour) - 164usize];
    ["Offset of field: thalweg_event::level"]
        [::std::mem::offset_of!(thalweg_event, level) - 166usize];
    ["Offset of field: thalweg_event::propensities_q16"]
        [::std::mem::offset_of!(thalweg_event, propensities_q16) - 168usize];
    ["Offset of field: thalweg_event::before"]
        [::std::mem::offset_of!(thalweg_event, before) - 200usize];
};
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Default, Copy, Clone)]
pub struct thalweg_cc_name {
    pub text: [::std::os::raw::c_char; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_cc_name"][::std::mem::size_of::<thalweg_cc_name>() - 16usize];
    ["Alignment of thalweg_cc_name"][::std::mem::align_of::<thalweg_cc_name>() - 8usize];
    ["Offset of field: thalweg_cc_name::text"]
        [::std::mem::offset_of!(thalweg_cc_name, text) - 0usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of thalweg_counters"][::std::mem::size_of::<thalweg_counters>() - 256usize];
    ["Alignment of thalweg_counters"][::std::mem::align_of::<thalweg_counters>() - 8usize];
    ["Offset of field: thalweg_counters::established"]
        [::std::mem::offset_of!(thalweg_counters, established) - 0usize];
    ["Offset of field: thalweg_counters::decided"]
        [::std::mem::offset_of!(thalweg_counters, decided) - 8usize];
    ["Offset of field: thalweg_counters::changed"]
        [::std::mem::offset_of!(thalweg_counters, changed) - 16usize];
    ["Offset of field: thalweg_counters::refused"]
        [::std::mem::offset_of!(thalweg_counters, refused) - 24usize];
    ["Offset of field: thalweg_counters::closed"]
        [::std::mem::offset_of!(thalweg_counters, closed) - 32usize];
    ["Offset of field: thalweg_counters::outcomes"]
        [::std::mem::offset_of!(thalweg_counters, outcomes) - 40usize];
    ["Offset of field: thalweg_counters::switched"]
        [::std::mem::offset_of!(thalweg_counters, switched) - 88usize];
    ["Offset of field: thalweg_counters::withdrawn"]
        [::std::mem::offset_of!(thalweg_counters, withdrawn) - 96usize];
    ["Offset of field: thalweg_counters::app_owned"]
        [::std::mem::offset_of!(thalweg_counters, app_owned) - 104usize];
    ["Offset of field: thalweg_counters::events"]
        [::std::mem::offset_of!(thalweg_counters, events) - 112usize];
    ["Offset of field: thalweg_counters::events_dropped"]
        [::std::mem::offset_of!(thalweg_counters, events_dropped) - 120usize];
    ["Offset of field: thalweg_counters::by_group"]
        [::std::mem::offset_of!(thalweg_counters, by_group) - 128usize];
    ["Offset of field: thalweg_counters::hosts_created"]
        [::std::mem::offset_of!(thalweg_counters, hosts_created) - 136usize];
    ["Offset of field: thalweg_counters::hosts_missed"]
        [::std::mem::offset_of!(thalweg_counters, hosts_missed) - 144usize];
    ["Offset of field: thalweg_counters::conns_missed"]
        [::std::mem::offset_of!(thalweg_counters, conns_missed) - 152usize];
    ["Offset of field: thalweg_counters::outside"]
        [::std::mem::offset_of!(thalweg_counters, outside) - 160usize];
    ["Offset of field: thalweg_counters::control"]
        [::std::mem::offset_of!(thalweg_counters, control) - 168usize];
    ["Offset of field: thalweg_counters::visited"]
        [::std::mem::offset_of!(thalweg_counters, visited) - 176usize];
    ["Offset of field: thalweg_counters::stretches"]
        [::std::mem::offset_of!(thalweg_counters, stretches) - 184usize];
    ["Offset of field: thalweg_counters::anew"]
        [::std::mem::offset_of!(thalweg_counters, anew) - 192usize];
    ["Offset of field: thalweg_counters::moved"]
        [::std::mem::offset_of!(thalweg_counters, moved) - 200usize];
    ["Offset of field: thalweg_counters::windows"]
        [::std::mem::offset_of!(thalweg_counters, windows) - 208usize];
    ["Offset of field: thalweg_counters::windows_raised"]
        [::std::mem::offset_of!(thalweg_counters, windows_raised) - 216usize];
    ["Offset of field: thalweg_counters::windows_refused"]
        [::std::mem::offset_of!(thalweg_counters, windows_refused) - 224usize];
    ["Offset of field: thalweg_counters::windows_left"]
        [::std::mem::offset_of!(thalweg_counters, windows_left) - 232usize];
    ["Offset of field: thalweg_counters::windows_scored"]
        [::std::mem::offset_of!(thalweg_counters, windows_scored) - 240usize];
    ["Offset of field: thalweg_counters::windows_overridden"]
        [::std::mem::offset_of!(thalweg_counters, windows_overridden) - 248usize];
};
