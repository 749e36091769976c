//! Everything that crosses the kernel border.
//!
//! [`raw`] is generated from `bpf/include/thalweg_abi.h`, the only definition. [`LEARN`] and
//! [`LEARN_BTF`] are the compiled kernel program in two variants, [`LIMIT`] is the limiter. The conversions turn bytes
//! of the kernel into types of [`thalweg_core`] and back.

mod convert;
mod model;
mod pod;
pub mod version4;

pub use convert::{
    Copied, arm_name, arm_name_bytes, copied, host_from_raw, host_to_raw, key_from_raw, key_to_raw,
};
pub use model::model_to_raw;
pub use pod::{Pod, bytes_of, from_bytes};

/// Structs, enums and constants of `thalweg_abi.h`.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all,
    // Of large arrays, bindgen writes zeros itself.
    clippy::undocumented_unsafe_blocks
)]
pub mod raw {
    include!(concat!(env!("OUT_DIR"), "/raw.rs"));
}

/// The program `learn` against the UAPI alone: an ELF object for libbpf.
pub const LEARN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/learn.bpf.o"));

/// The same program with CO-RE reads of the kernel's `tcp_sock`: needs kernel BTF.
pub const LEARN_BTF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/learn_btf.bpf.o"));

/// The egress limiter (`limit.bpf.c`), against the UAPI alone.
pub const LIMIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/limit.bpf.o"));

/// The program `policy`: needs no kernel BTF.
pub const POLICY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/policy.bpf.o"));

/// The program `policy_mark`, for each cgroup that a policy names.
pub const POLICY_MARK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/policy_mark.bpf.o"));

/// The iterator `policy_existing`, for connections that were open before a policy: needs kernel BTF.
pub const POLICY_EXISTING: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/policy_existing.bpf.o"));

/// H-TCP as a congestion control (`htcp.bpf.c`): needs kernel BTF.
pub const HTCP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/htcp.bpf.o"));

/// DCTCP as a congestion control (`dctcp.bpf.c`): needs kernel BTF.
pub const DCTCP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dctcp.bpf.o"));

/// The learned rate controller as a congestion control (`rate.bpf.c`): needs kernel BTF.
pub const RATE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rate.bpf.o"));

/// All of them, by the names of their sources; two of `learn.bpf.c`.
pub const OBJECTS: [(&str, &[u8]); 9] = [
    ("learn", LEARN),
    ("learn_btf", LEARN_BTF),
    ("policy", POLICY),
    ("policy_mark", POLICY_MARK),
    ("policy_existing", POLICY_EXISTING),
    ("limit", LIMIT),
    ("htcp", HTCP),
    ("dctcp", DCTCP),
    ("rate", RATE),
];

/// The compiler that they come from.
pub const CLANG: &str = env!("THALWEG_CLANG");
