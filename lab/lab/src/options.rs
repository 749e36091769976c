//! Options of a run: scenarios, modes, and the backend.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thalweg_process::tool::{self, quote_word};

use crate::host::WireKind;
use crate::mode::Mode;
use crate::units::Size;

/// Options of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Scenario files, run one after the other.
    pub scenarios: Vec<PathBuf>,
    /// Modes to measure; [`Mode::EveryFixed`] is expanded.
    pub modes: Vec<Mode>,
    /// Connections per mode, instead of the scenario's number.
    pub connections: Option<u32>,
    /// Modes without an agent run only in every n-th round. At least 1.
    pub reference_every: u32,
    /// Directory of the report; none: a new one below `lab-results`. Several scenarios get a
    /// subdirectory each.
    pub out: Option<PathBuf>,
    /// The agent's command, `thalweg`: `AGENT --socket PATH run --config PATH`.
    pub agent_binary: PathBuf,
    /// The laboratory's command, `thalweg-lab`. A kernel of its own starts `PROGRAM guest DIRECTORY`.
    /// All traffic but bulk is made by `PROGRAM worker …`, see [`crate::worker`].
    pub program: PathBuf,
    /// Whether to draw a progress bar on a terminal's standard error.
    pub progress: bool,
    /// The kernel for [`crate::backend::run_on_backend`]. [`crate::run_scenarios`] always uses the kernel that it is
    /// called on.
    pub kernel: KernelOptions,
    /// Facts about the run from the place where it was started.
    pub origin: Origin,
}

/// The kernel of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KernelOptions {
    /// Which kind of kernel.
    pub backend: Backend,
    /// Memory of a kernel of its own; none: the largest that a scenario asks for, or 1 GiB.
    pub memory: Option<Size>,
    /// For [`Backend::Qemu`]: name in the list or file of the kernel; none: the newest. For stacks:
    /// file of the user-mode kernel; none: the packaged one.
    pub name: Option<OsString>,
    /// For [`Backend::Qemu`]: an instruction takes 2^shift nanoseconds.
    pub shift: u8,
    /// Time limit for booting a kernel of its own, seconds; none: 300.
    pub boot_limit_s: Option<u64>,
}

/// Facts about a run from the place where it was started. A kernel of its own is told them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Origin {
    /// Place of the run, for the report.
    pub place: UsedBackend,
    /// Command line, for the report; none: this process's own.
    pub command: Option<String>,
    /// Start of the run, RFC 3339, for the report; none: now.
    pub started: Option<String>,
    /// For each scenario, the folder of its policies; empty: that of the scenario file.
    pub policy_folders: Vec<PathBuf>,
    /// File that progress is reported to; none: no report.
    pub channel: Option<PathBuf>,
}

impl Origin {
    pub(crate) fn command_line(&self) -> String {
        self.command.clone().unwrap_or_else(own_command)
    }

    pub(crate) fn start_time(&self) -> String {
        self.started.clone().unwrap_or_else(current_time)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scenarios: Vec::new(),
            modes: vec![
                Mode::Baseline,
                Mode::EveryFixed,
                Mode::Classic,
                Mode::Thalweg,
            ],
            connections: None,
            reference_every: 1,
            out: None,
            agent_binary: tool::find_agent().unwrap_or_else(|| tool::AGENT.into()),
            program: PathBuf::from("thalweg-lab"),
            progress: true,
            kernel: KernelOptions::default(),
            origin: Origin::default(),
        }
    }
}

/// The kind of kernel that a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The machine's own kernel if it has everything needed; else [`Backend::Link`] if every path
    /// is slow enough; else [`Backend::Uml`].
    #[default]
    Auto,
    /// The machine's own kernel, in network namespaces. Needs root.
    Host,
    /// The machine's own kernel, and a path that this process forwards: delay without netem. Needs
    /// root.
    Link,
    /// Debian's user-mode Linux, an ordinary process.
    Uml,
    /// User-mode Linux in simulated time, without noise of the machine.
    Virtual,
    /// A distribution's kernel in QEMU, in virtual time.
    Qemu,
}

impl Backend {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Auto, "auto"),
        (Self::Host, "host"),
        (Self::Link, "link"),
        (Self::Uml, "uml"),
        (Self::Virtual, "virtual"),
        (Self::Qemu, "qemu"),
    ];
}

impl Backend {
    /// The wire between the hosts on the machine's own kernel.
    pub(crate) fn wire_kind(self) -> WireKind {
        match self {
            Self::Link => WireKind::Tun,
            _ => WireKind::Veth,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(backend, _)| backend == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|(_, name)| *name == text)
            .map(|(backend, _)| backend)
            .ok_or_else(|| {
                let names = Self::ALL.map(|(_, name)| name).join(", ");
                format!("expected one of {names}, found {text:?}")
            })
    }
}

/// The backend that ran, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedBackend {
    /// The backend; never [`Backend::Auto`].
    pub name: Backend,
    /// The reason.
    pub why: String,
    /// Command line of the kernel that was started; none on the machine's own.
    pub kernel_command: Option<String>,
}

impl Default for UsedBackend {
    fn default() -> Self {
        Self {
            name: Backend::Host,
            why: "called from within a program".to_owned(),
            kernel_command: None,
        }
    }
}

/// The present time: UTC, RFC 3339, whole seconds.
pub(crate) fn current_time() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// This process's command line, quoted for a shell.
pub(crate) fn own_command() -> String {
    let words: Vec<String> = std::env::args_os()
        .map(|word| quote_word(&word.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// The command without `--out`, which repeats the run.
pub(crate) fn command_to_repeat() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = without_out(words).map(|word| quote_word(&word)).collect();
    words.join(" ")
}

fn without_out(words: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut is_value = false;
    words.filter(move |word| {
        let left_out = is_value || word == "--out" || word.starts_with("--out=");
        is_value = word == "--out" && !is_value;
        !left_out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_repeat_has_no_report() {
        for (words, left) in [
            ("lab run a.toml --out b --seed 1", "lab run a.toml --seed 1"),
            ("lab run --out=b a.toml", "lab run a.toml"),
            ("lab run --out --out a.toml --out", "lab run a.toml"),
        ] {
            let words: Vec<String> = without_out(words.split(' ').map(str::to_owned)).collect();
            assert_eq!(words.join(" "), left);
        }
    }

    #[test]
    fn names_round_trip() {
        for name in ["auto", "host", "link", "uml", "virtual", "qemu"] {
            assert_eq!(name.parse::<Backend>().unwrap().to_string(), name);
        }
        let error = "kvm".parse::<Backend>().unwrap_err();
        assert_eq!(
            error,
            "expected one of auto, host, link, uml, virtual, qemu, found \"kvm\""
        );
    }
}
