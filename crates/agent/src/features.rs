//! Features of Thalweg and their needs of the kernel: the one table for `thalweg doctor` and
//! docs/reference/kernels.md.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use libbpf_rs::ProgramType;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use thalweg_control::system;
use thalweg_policy::Version;

/// A feature that Thalweg has on some kernels only.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Its identity.
    pub id: Id,
    /// Its name, in the doctor's table and on the page.
    pub name: &'static str,
    /// Its use.
    pub means: &'static str,
    /// Oldest kernel that meets its needs.
    pub since: Version,
    /// The feature of that kernel that it needs.
    pub because: &'static str,
    /// Options or modules that the kernel must have.
    pub needs: &'static [Need],
    /// Whether the agent cannot run without it.
    pub required: bool,
}

/// Identity of a feature, for code that handles each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// The agent.
    Learning,
    /// The agent's variant that reads the kernel's own structures.
    BusyTime,
    /// Long connections, scored on their way.
    LongConnections,
    /// Learned clamps of congestion windows.
    LearnedClamps,
    /// `thalweg policy apply`.
    Policies,
    /// `thalweg policy apply --existing`.
    OpenConnections,
    /// `--existing`, with settings of later stages.
    LaterStages,
    /// `thalweg cc load`.
    CongestionControls,
    /// Programs compiled to machine code.
    MachineCode,
    /// The laboratory's namespaces and packet loss.
    Laboratory,
    /// The laboratory's delays.
    Delays,
    /// The laboratory's ECN marks.
    Marks,
    /// `thalweg link`.
    Link,
}

/// A capability that a kernel may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Programs at TCP callbacks.
    SockOps,
    /// Programs at setsockopt(2).
    CgroupSockopt,
    /// Its own type information (BTF).
    KernelBtf,
    /// Iterators over TCP sockets.
    TcpIterator,
    /// The compiler of BPF programs.
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

/// A feature per row: identity, name, oldest kernel, needs; use; what that kernel has for it.
macro_rules! features {
    ($($id:ident, $name:literal, ($major:literal, $minor:literal),
        [$($need:ident$(($kind:literal))?),*],
        $means:literal,
        $because:literal;)*) => {
        /// The table.
        pub const FEATURES: [Feature; [$($name),*].len()] = [$(Feature {
            id: Id::$id,
            name: $name,
            means: $means,
            since: Version($major, $minor),
            because: $because,
            needs: &[$(Need::$need$(($kind))?),*],
            required: matches!(Id::$id, Id::Learning),
        },)*];
    };
}

features! {
    Learning, "learning", (5, 15), [SockOps, CgroupSockopt],
        "`thalweg run` measures connections and chooses for new ones",
        "`bpf_get_netns_cookie` in sockops programs";
    BusyTime, "learning by busy time", (5, 15), [SockOps, CgroupSockopt, KernelBtf],
        "connections are scored by the time in which they had something to send, not by wall time",
        "as learning";
    LongConnections, "learning from long connections", (5, 15),
        [SockOps, CgroupSockopt, KernelBtf, TcpIterator],
        "long connections are scored on their way, and leave a bad arm; else only their end is scored",
        "`bpf_setsockopt` in TCP iterators";
    LearnedClamps, "learned clamps", (5, 15),
        [SockOps, CgroupSockopt, KernelBtf, TcpIterator],
        "congestion windows to datacenters are bounded by what their paths carry (`[clamp]`)",
        "`bpf_setsockopt` in TCP iterators";
    Policies, "policies", (5, 15), [SockOps],
        "`thalweg policy apply`, `statistics` and `on.rtt` included",
        "`bpf_get_netns_cookie` in sockops programs; later for some keys ([policy.md](policy.md))";
    OpenConnections, "policies: open connections", (5, 15), [SockOps, KernelBtf, TcpIterator],
        "`thalweg policy apply --existing`",
        "`bpf_setsockopt` in TCP iterators";
    LaterStages, "policies: later stages", (6, 12), [SockOps, KernelBtf, TcpIterator],
        "`on.rtt`, `on.rto`, `on.retransmission` and `on.close` for open connections",
        "`TCP_BPF_SOCK_OPS_CB_FLAGS`";
    CongestionControls, "congestion controls in BPF", (6, 4), [StructOps],
        "`thalweg cc load` brings those that the kernel lacks, and learned ones",
        "links for `struct_ops`";
    MachineCode, "programs as machine code", (5, 15), [Jit],
        "programs are not interpreted, which takes several times as long",
        "as learning; on arm64 5.18, whose JIT has all atomic operations";
    Laboratory, "lab: rates and losses", (5, 15), [TcFilter, Qdisc("tbf")],
        "`thalweg lab run` on this kernel",
        "as learning; nothing newer than 5.11";
    Delays, "lab: delays", (5, 15), [TcFilter, Qdisc("tbf"), Qdisc("netem")],
        "`delay` of a scenario on this kernel",
        "as above";
    Marks, "lab: ECN marks", (5, 15), [TcFilter, Qdisc("tbf"), Qdisc("red")],
        "`aqm = \"red\"` of a scenario on this kernel",
        "as above";
    Link, "links", (5, 15), [Tun],
        "`thalweg link`: a command behind an emulated path",
        "as learning; nothing newer than 5.11";
}

/// Result of a check of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is present.
    Yes,
    /// It is missing: which part, and the remedy.
    No(String, String),
    /// The caller lacks the privilege to know: why, and the remedy.
    Unknown(String, String),
}

impl Need {
    /// The need, in words.
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

    /// The kernel's options that provide it, built in or as modules.
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
            Self::StructOps => match thalweg_control::cc::check() {
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

impl Feature {
    /// Options of the kernel that it needs, each once.
    pub fn options(&self) -> Vec<&'static str> {
        let mut options = Vec::new();
        for option in self.needs.iter().flat_map(|need| need.options()) {
            if !options.contains(option) {
                options.push(*option);
            }
        }
        options
    }

    /// Whether the running kernel, of this release, meets all needs; else the first missing one.
    pub fn look(&self, release: &str) -> Found {
        for need in self.needs {
            let found = need.look();
            if found != Found::Yes {
                return found;
            }
        }
        if version(release) >= self.since {
            Found::Yes
        } else {
            Found::No(
                format!("Linux {release}"),
                format!("Linux {} or newer", self.since),
            )
        }
    }
}

/// The first two numbers of a release.
fn version(release: &str) -> Version {
    let mut numbers = release
        .split(['.', '-', '+'])
        .map_while(|part| part.parse::<u16>().ok());
    Version(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Tries a queueing discipline on the loopback device of a temporary network namespace.
fn try_qdisc(kind: &str) -> Found {
    let mut command = Command::new("tc");
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
    fn an_older_kernel_is_told_apart() {
        let feature = Feature {
            needs: &[],
            ..FEATURES[0]
        };
        assert_eq!(feature.look("5.15.0-9-generic"), Found::Yes);
        assert_eq!(feature.look("6.12.117+deb12-cloud-amd64"), Found::Yes);
        let Found::No(found, fix) = feature.look("5.10.0") else {
            panic!("5.10 has it all");
        };
        assert_eq!(
            (found.as_str(), fix.as_str()),
            ("Linux 5.10.0", "Linux 5.15 or newer")
        );
    }

    #[test]
    fn each_option_is_named_once() {
        let named: Vec<_> = FEATURES.iter().map(|feature| feature.name).collect();
        let mut unique = named.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), named.len());
        let learning = FEATURES[0].options();
        assert_eq!(learning, ["CONFIG_BPF_SYSCALL", "CONFIG_CGROUP_BPF"]);
        for feature in FEATURES {
            for need in feature.needs {
                assert!(!need.options().is_empty(), "{need:?}");
            }
        }
    }
}
