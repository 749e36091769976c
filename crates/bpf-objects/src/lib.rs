//! Every kernel program, compiled: objects for libbpf, and skeletons of the laboratory's programs.
//!
//! There is one build script and one set of rules. This crate knows nothing of what the programs
//! do. The types that they share with user space are in `thalweg-bpf-types`.

/// Declares the module of a skeleton that the build script generated.
macro_rules! skeleton {
    ($(#[$attribute:meta])* $name:ident, $file:literal) => {
        $(#[$attribute])*
        #[allow(
            missing_docs,
            unused_imports,
            clippy::all,
            clippy::undocumented_unsafe_blocks,
            clippy::unwrap_used
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file));
        }
    };
}

skeleton!(
    /// Packet loss on an interface (`loss.bpf.c`), TC programs.
    loss,
    "loss.skel.rs"
);
skeleton!(
    /// Round-trip times of packets on an interface (`rtt.bpf.c`), TC programs.
    rtt,
    "rtt.skel.rs"
);
skeleton!(
    /// How late the kernel's timers are (`timer.bpf.c`).
    timer,
    "timer.skel.rs"
);

/// Names of maps and programs in the compiled objects, one module per object. Both objects of
/// `learn` have the same names, and both of `policy`.
#[allow(missing_docs)]
pub mod names {
    include!(concat!(env!("OUT_DIR"), "/names.rs"));
}

/// An ELF object for libbpf, in zlib's format (RFC 1950): all together have 1.4 MB, and packed 0.4 MB.
#[derive(Clone, Copy, Debug)]
pub struct Packed(&'static [u8]);

impl Packed {
    /// The object's bytes.
    pub fn unpack(self) -> Vec<u8> {
        miniz_oxide::inflate::decompress_to_vec_zlib(self.0)
            .unwrap_or_else(|fault| panic!("the build packs it: {fault}"))
    }
}

/// The program `learn` against the UAPI only.
pub const LEARN: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/learn.bpf.z")));

/// The program `learn` with CO-RE reads of the kernel's `tcp_sock`: needs kernel BTF.
pub const LEARN_BTF: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/learn_btf.bpf.z")));

/// The iterator `learn_open`, for long connections of the learner: needs kernel BTF.
pub const LEARN_OPEN: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/learn_open.bpf.z"
)));

/// The iterator `learn_clamp`, for learned clamps of open connections: needs kernel BTF.
pub const LEARN_CLAMP: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/learn_clamp.bpf.z"
)));

/// The program `timers`, for timeouts by network: needs kernel BTF.
pub const TIMERS: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/timers.bpf.z")));

/// The program `buffers`, which bounds connections in namespaces with raised limits of buffers: needs
/// kernel BTF.
pub const BUFFERS: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/buffers.bpf.z")));

/// The program `idle`, which chooses connections that keep their windows over idle times: needs kernel
/// BTF.
pub const IDLE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/idle.bpf.z")));

/// The congestion control `idle_cubic` of these connections: needs kernel BTF.
pub const IDLE_CUBIC: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/idle_cubic.bpf.z"
)));

/// The program `policy`: needs no kernel BTF.
pub const POLICY: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/policy.bpf.z")));

/// The program `policy` with CO-RE reads of the kernel's `tcp_sock`: needs kernel BTF.
pub const POLICY_BTF: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/policy_btf.bpf.z"
)));

/// The program `policy_mark`, for each cgroup that a policy names.
pub const POLICY_MARK: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/policy_mark.bpf.z"
)));

/// The iterator `policy_existing`, for connections that were open before a policy: needs kernel BTF.
pub const POLICY_EXISTING: Packed = Packed(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/policy_existing.bpf.z"
)));

/// H-TCP as a congestion control (`htcp.bpf.c`): needs kernel BTF.
pub const HTCP: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/htcp.bpf.z")));

/// DCTCP as a congestion control (`dctcp.bpf.c`): needs kernel BTF.
pub const DCTCP: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/dctcp.bpf.z")));

/// The learned rate controller as a congestion control (`rate.bpf.c`): needs kernel BTF.
pub const RATE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/rate.bpf.z")));

/// All programs that the command loads, by the names of their sources; two each come from `learn.bpf.c`
/// and `policy.bpf.c`.
pub const OBJECTS: [(&str, Packed); 15] = [
    ("learn", LEARN),
    ("learn_btf", LEARN_BTF),
    ("learn_open", LEARN_OPEN),
    ("learn_clamp", LEARN_CLAMP),
    ("timers", TIMERS),
    ("buffers", BUFFERS),
    ("idle", IDLE),
    ("idle_cubic", IDLE_CUBIC),
    ("policy", POLICY),
    ("policy_btf", POLICY_BTF),
    ("policy_mark", POLICY_MARK),
    ("policy_existing", POLICY_EXISTING),
    ("htcp", HTCP),
    ("dctcp", DCTCP),
    ("rate", RATE),
];

/// The compiler that built them.
pub const CLANG: &str = env!("THALWEG_CLANG");
