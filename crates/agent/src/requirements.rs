//! Needs of the kernel: rows of `thalweg doctor` and docs/reference/kernels.md. The row of a
//! feature stands with it.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use libbpf_rs::btf::types::{Enum, Struct};
use libbpf_rs::btf::{Btf, TypeId};
use libbpf_rs::{MapType, ProgramType, libbpf_sys};
use thalweg_bpf_objects::Packed;
use thalweg_control::{object, privileges, system};
use thalweg_policy::Version;
use thalweg_units::program;

/// Number of entries of the tables of an object that is tried.
const TRIED_ENTRIES: u32 = 64;

/// A part of Thalweg that runs on some kernels only.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// Name of the part, in the doctor's table and on the page.
    pub name: &'static str,
    /// Use of the part.
    pub means: &'static str,
    /// Oldest kernel that meets the needs.
    pub since: Version,
    /// Capability that this kernel has and older ones lack.
    pub because: &'static str,
    /// Options or modules that the kernel must have.
    pub needs: &'static [Need],
    /// Whether the agent cannot run without the part.
    pub required: bool,
    /// Trial for kernels that meet all needs.
    pub trial: Trial,
}

/// A trial of the running kernel.
#[derive(Clone, Copy, Debug)]
pub enum Trial {
    /// No trial: the needs decide.
    None,
    /// Probe of a helper of sockops programs.
    NetnsCookie,
    /// Load of an object, with small tables.
    Load(Packed),
    /// A constant of the kernel's types.
    Constant(&'static str),
}

/// A capability that a kernel may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Programs at TCP callbacks.
    SockOps,
    /// Programs at setsockopt(2).
    CgroupSockopt,
    /// The kernel's own type information (BTF).
    KernelBtf,
    /// Iterators over TCP sockets.
    TcpIterator,
    /// Compiler of BPF programs.
    Jit,
    /// TCP's table of callbacks in BPF, kept by links.
    StructOps,
    /// A queueing discipline.
    Qdisc(&'static str),
    /// Programs on packets of a device.
    TcFilter,
    /// User namespaces, and devices whose packets a process forwards.
    Tun,
}

/// A list with one row per requirement: name, oldest kernel, needs, trial; use; capability that
/// older kernels lack.
macro_rules! requirements {
    ($(#[$doc:meta])* $list:ident; $($name:literal, ($major:literal, $minor:literal),
        [$($need:ident$(($kind:literal))?),*], $trial:expr,
        $means:literal,
        $because:literal;)*) => {
        $(#[$doc])*
        pub const $list: &[Requirement] = &[$(Requirement {
            name: $name,
            means: $means,
            since: Version($major, $minor),
            because: $because,
            needs: &[$(Need::$need$(($kind))?),*],
            required: false,
            trial: $trial,
        },)*];
    };
}

/// Requirement of the agent itself.
pub const LEARNING: Requirement = Requirement {
    name: "learning",
    means: "`thalweg run` measures connections and chooses for new ones",
    since: Version(5, 15),
    because: "`bpf_get_netns_cookie` in sockops programs",
    needs: &[Need::SockOps, Need::CgroupSockopt],
    required: true,
    trial: Trial::NetnsCookie,
};

requirements! {
    /// Parts of learning, before those that are features.
    LEARNING_PARTS;
    "learning by busy time", (5, 15), [SockOps, CgroupSockopt, KernelBtf], Trial::NetnsCookie,
        "connections are scored by the time in which they had something to send, not by wall time",
        "as learning";
    "learning from long connections", (5, 15),
        [SockOps, CgroupSockopt, KernelBtf, TcpIterator], Trial::Load(thalweg_bpf_objects::LEARN_OPEN),
        "long connections are scored on their way, and leave a bad arm; else only their end is scored",
        "`bpf_setsockopt` in TCP iterators";
}

requirements! {
    /// Needs of the parts that work without the learner.
    OTHERS;
    "policies", (5, 15), [SockOps], Trial::NetnsCookie,
        "`thalweg policy apply`, `statistics` and `on.rtt` included",
        "`bpf_get_netns_cookie` in sockops programs; later for some keys ([policy.md](policy.md))";
    "policies: open connections", (5, 15), [SockOps, KernelBtf, TcpIterator], Trial::Load(thalweg_bpf_objects::POLICY_EXISTING),
        "`thalweg policy apply --existing`",
        "`bpf_setsockopt` in TCP iterators";
    "policies: later stages", (6, 12), [SockOps, KernelBtf, TcpIterator], Trial::Constant("TCP_BPF_SOCK_OPS_CB_FLAGS"),
        "`on.rtt`, `on.rto`, `on.retransmission` and `on.close` for open connections; `timers.existing`",
        "`TCP_BPF_SOCK_OPS_CB_FLAGS`";
    "congestion controls in BPF", (6, 4), [StructOps], Trial::None,
        "`thalweg cc load` brings those that the kernel lacks, and learned ones",
        "links for `struct_ops`";
    "programs as machine code", (5, 15), [Jit], Trial::None,
        "programs are not interpreted, which takes several times as long",
        "as learning; on arm64 5.18, whose JIT has all atomic operations";
    "lab: rates and losses", (5, 15), [TcFilter, Qdisc("tbf")], Trial::None,
        "`thalweg-lab run` on this kernel",
        "as learning; nothing newer than 5.11";
    "lab: delays", (5, 15), [TcFilter, Qdisc("tbf"), Qdisc("netem")], Trial::None,
        "`delay` of a scenario on this kernel",
        "as above";
    "lab: ECN marks", (5, 15), [TcFilter, Qdisc("tbf"), Qdisc("red")], Trial::None,
        "`aqm = \"red\"` of a scenario on this kernel",
        "as above";
    "links", (5, 15), [Tun], Trial::None,
        "`thalweg-lab link`: a command behind an emulated path",
        "as learning; nothing newer than 5.11";
}

/// Result of a check of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The need is met.
    Yes,
    /// A part is missing: its name, and the hint.
    No(String, String),
    /// The caller lacks the privilege to know: the reason, and the hint.
    Unknown(String, String),
}

impl Need {
    /// Text of the need.
    pub fn words(self) -> String {
        match self {
            Self::SockOps => "BPF sockops".to_owned(),
            Self::CgroupSockopt => "BPF cgroup/setsockopt".to_owned(),
            Self::KernelBtf => "kernel BTF".to_owned(),
            Self::TcpIterator => "BPF iterators".to_owned(),
            Self::Jit => "BPF JIT".to_owned(),
            Self::StructOps => "BPF struct_ops with links".to_owned(),
            Self::Qdisc(kind) => format!("qdisc {kind}"),
            Self::TcFilter => "BPF at devices".to_owned(),
            Self::Tun => "/dev/net/tun".to_owned(),
        }
    }

    /// Options of the kernel that provide the need, built in or as modules.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::SockOps | Self::CgroupSockopt => &["CONFIG_BPF_SYSCALL", "CONFIG_CGROUP_BPF"],
            Self::KernelBtf => &["CONFIG_DEBUG_INFO_BTF"],
            Self::TcpIterator => &["CONFIG_BPF_SYSCALL", "CONFIG_PROC_FS"],
            Self::Jit => &["CONFIG_BPF_JIT"],
            Self::StructOps => &[
                "CONFIG_BPF_SYSCALL",
                "CONFIG_BPF_JIT",
                "CONFIG_DEBUG_INFO_BTF",
            ],
            Self::Qdisc("tbf") => &["CONFIG_NET_SCH_TBF"],
            Self::Qdisc("netem") => &["CONFIG_NET_SCH_NETEM"],
            Self::Qdisc("red") => &["CONFIG_NET_SCH_RED"],
            Self::Qdisc(_) => &[],
            Self::TcFilter => &[
                "CONFIG_BPF_SYSCALL",
                "CONFIG_NET_NS",
                "CONFIG_VETH",
                "CONFIG_NET_SCH_INGRESS",
                "CONFIG_NET_CLS_BPF",
            ],
            Self::Tun => &["CONFIG_NET_NS", "CONFIG_USER_NS", "CONFIG_TUN"],
        }
    }

    /// Checks the running kernel. This changes nothing on the machine; queueing disciplines are
    /// tried in a temporary network namespace.
    pub fn look(self) -> Found {
        match self {
            Self::SockOps => self.program(ProgramType::SockOps),
            Self::CgroupSockopt => self.program(ProgramType::CgroupSockopt),
            Self::TcFilter => match self.program(ProgramType::SchedCls) {
                Found::Yes => try_qdisc("clsact"),
                other => other,
            },
            Self::KernelBtf => {
                if system::has_kernel_btf() {
                    Found::Yes
                } else {
                    self.lacks()
                }
            }
            Self::TcpIterator => {
                let types = Btf::from_vmlinux().ok();
                let context = types
                    .as_ref()
                    .and_then(|btf| btf.type_by_name::<Struct<'_>>("bpf_iter__tcp"));
                match context {
                    Some(_) => Found::Yes,
                    None => self.lacks(),
                }
            }
            Self::Jit => {
                let file = "/proc/sys/net/core/bpf_jit_enable";
                let value = std::fs::read_to_string(file).unwrap_or_default();
                match value.trim() {
                    "" => self.lacks(),
                    "0" => Found::No(
                        "the BPF JIT is off".to_owned(),
                        "sysctl net.core.bpf_jit_enable=1".to_owned(),
                    ),
                    _ => Found::Yes,
                }
            }
            Self::StructOps => match thalweg_control::cc::check_kernel_support() {
                Ok(_) => Found::Yes,
                Err(why) => Found::No(
                    why.reason().to_owned(),
                    "a newer kernel, or its modules (tcp_htcp, tcp_dctcp)".to_owned(),
                ),
            },
            Self::Qdisc(kind) => try_qdisc(kind),
            Self::Tun => {
                if std::path::Path::new("/dev/net/tun").exists() {
                    Found::Yes
                } else {
                    Found::No("no /dev/net/tun".to_owned(), "modprobe tun".to_owned())
                }
            }
        }
    }

    fn lacks(self) -> Found {
        Found::No(format!("no {}", self.words()), self.built_with())
    }

    fn built_with(self) -> String {
        format!("a kernel with {}", self.options().join(" and "))
    }

    fn program(self, kind: ProgramType) -> Found {
        match kind.is_supported() {
            Ok(true) => Found::Yes,
            Ok(false) => Found::No(
                format!("no {}", self.words()),
                format!("{}, and root", self.built_with()),
            ),
            Err(error) => Found::Unknown(error.to_string(), "run as root".to_owned()),
        }
    }
}

impl Requirement {
    /// Options of the kernel for all needs, each once.
    pub fn options(&self) -> Vec<&'static str> {
        let mut options = Vec::new();
        for option in self.needs.iter().flat_map(|need| need.options()) {
            if !options.contains(option) {
                options.push(*option);
            }
        }
        options
    }

    /// Checks the needs of the running kernel, then the trial; the first that is missing counts.
    /// Versions decide nothing: distributions backport, and a personality(2) may hide the version.
    pub fn look(&self) -> Found {
        let needs = self.needs.iter().map(|need| need.look());
        let missing = needs.into_iter().find(|found| *found != Found::Yes);
        missing.unwrap_or_else(|| self.try_out())
    }

    /// Tries the capability that makes [`Requirement::since`] the oldest kernel.
    fn try_out(&self) -> Found {
        match self.trial {
            Trial::None => Found::Yes,
            Trial::NetnsCookie => self.by(probe_netns_cookie()),
            Trial::Load(object) => self.by(try_load(object)),
            Trial::Constant(name) => self.by(find_constant(name)),
        }
    }

    fn by(&self, tried: Result<(), String>) -> Found {
        match tried {
            Ok(()) => Found::Yes,
            Err(_)
                if !privileges::missing_capabilities().is_ok_and(|missing| missing.is_empty()) =>
            {
                let why = "trying it takes privileges".to_owned();
                Found::Unknown(why, "run as root".to_owned())
            }
            Err(why) => {
                let needs = self.because.replace('`', "");
                let found = format!("the kernel refuses it ({why})");
                Found::No(found, format!("Linux {} or newer: {needs}", self.since))
            }
        }
    }
}

/// Whether sockops programs may call `bpf_get_netns_cookie`.
fn probe_netns_cookie() -> Result<(), String> {
    let kind = ProgramType::SockOps as u32;
    let helper = libbpf_sys::BPF_FUNC_get_netns_cookie;
    // SAFETY: two numbers and no options.
    match unsafe { libbpf_sys::libbpf_probe_bpf_helper(kind, helper, std::ptr::null()) } {
        1 => Ok(()),
        0 => Err("no bpf_get_netns_cookie in sockops programs".to_owned()),
        errno => Err(std::io::Error::from_raw_os_error(-errno).to_string()),
    }
}

/// Loads an object for a moment, with small tables.
fn try_load(packed: Packed) -> Result<(), String> {
    object::with_libbpf_log(|| {
        let mut open =
            object::open_object("doctor", packed).map_err(|error| format!("{error:#}"))?;
        for mut map in open.maps_mut() {
            let is_table = matches!(
                map.map_type(),
                MapType::Hash | MapType::LruHash | MapType::LpmTrie
            );
            if is_table {
                map.set_max_entries(TRIED_ENTRIES)
                    .map_err(|error| error.to_string())?;
            }
        }
        let loaded = open.load().map(drop);
        loaded.map_err(
            |error| match object::last_words(&object::take_libbpf_log()) {
                said if said.is_empty() => error.to_string(),
                said => said,
            },
        )
    })
}

/// Whether the kernel's types have a constant.
fn find_constant(name: &str) -> Result<(), String> {
    let btf = Btf::from_vmlinux().map_err(|error| error.to_string())?;
    let ids = 1..u32::try_from(btf.len()).unwrap_or(u32::MAX);
    let has_it = |id: u32| {
        let found = btf.type_by_id::<Enum<'_>>(TypeId::from(id));
        found.is_some_and(|it| {
            it.iter()
                .any(|member| member.name.is_some_and(|it| it == name))
        })
    };
    match ids.into_iter().any(has_it) {
        true => Ok(()),
        false => Err(format!("no {name}")),
    }
}

/// Tries a queueing discipline on the loopback device of a temporary network namespace.
fn try_qdisc(kind: &str) -> Found {
    let mut command = program::program_command("tc");
    command.args(["qdisc", "add", "dev", "lo"]);
    match kind {
        "clsact" => command.arg(kind),
        "tbf" => command.args(["root", kind, "rate", "1mbit", "burst", "10kb"]),
        "red" => command.args(["root", kind, "limit", "1000000", "avpkt", "1000"]),
        _ => command.args(["root", kind]),
    };
    match kind {
        "tbf" => command.args(["latency", "10ms"]),
        "red" => command.args(["bandwidth", "10mbit"]),
        _ => &mut command,
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: unshare is a plain system call, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(Into::into)
        });
    }
    match command.status() {
        Ok(status) if status.success() => Found::Yes,
        Ok(_) => {
            let module = match kind {
                "clsact" => "sch_ingress".to_owned(),
                kind => format!("sch_{kind}"),
            };
            Found::No(
                format!("no qdisc {kind}"),
                format!("modprobe {module}, where the kernel has it; root"),
            )
        }
        Err(error) => Found::Unknown(
            format!("cannot try tc: {error}"),
            "install iproute2, run as root".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_trial_names_reason_and_kernel_not_the_version_found() {
        let refused = LEARNING.by(Err("no such helper".to_owned()));
        match refused {
            Found::No(found, fix) => {
                assert_eq!(found, "the kernel refuses it (no such helper)");
                assert!(fix.starts_with("Linux 5.15 or newer: "), "{fix}");
            }
            // Without privileges nothing can be tried.
            Found::Unknown(_, fix) => assert_eq!(fix, "run as root"),
            Found::Yes => panic!("a refusal is no success"),
        }
        assert_eq!(LEARNING.by(Ok(())), Found::Yes);
    }

    #[test]
    fn each_option_is_named_once() {
        let all = || LEARNING_PARTS.iter().chain(OTHERS);
        let named: Vec<_> = all().map(|row| row.name).collect();
        let mut unique = named.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), named.len());
        let learning = LEARNING.options();
        assert_eq!(learning, ["CONFIG_BPF_SYSCALL", "CONFIG_CGROUP_BPF"]);
        for row in all() {
            for need in row.needs {
                assert!(!need.options().is_empty(), "{need:?}");
            }
        }
    }
}
