//! What a run is asked for: scenarios, modes, and a backend to run them on.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thalweg_process::tool::quote;

use crate::host::WireKind;
use crate::mode::Mode;
use crate::units::Size;

/// What to run and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Scenario files, run one after the other.
    pub scenarios: Vec<PathBuf>,
    /// What to measure; [`Mode::EveryFixed`] is expanded.
    pub modes: Vec<Mode>,
    /// Connections per mode, instead of the scenario's number.
    pub connections: Option<u32>,
    /// Modes without an agent run in every n-th round only. At least 1.
    pub reference_every: u32,
    /// Where the report goes; none: a new directory below `lab-results`. With
    /// several scenarios each gets a subdirectory of its name.
    pub out: Option<PathBuf>,
    /// The agent: started as `BINARY --socket PATH run --config PATH`, and in a
    /// kernel of its own first as `BINARY lab guest DIRECTORY`. It is also what makes
    /// traffic other than bulk: `BINARY lab worker …`, see [`crate::worker`].
    pub agent_binary: PathBuf,
    /// Whether to draw a progress bar on a terminal's standard error.
    pub progress: bool,
    /// What [`crate::backend::run`] is to run them on. [`run`] itself is always on the
    /// kernel that it is called on.
    pub kernel: KernelOptions,
    /// What is known of the run where it was asked for.
    pub origin: Origin,
}

/// The kernel of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KernelOptions {
    /// Which kind of kernel.
    pub backend: Backend,
    /// Memory of a kernel of its own; none: the scenarios' largest, or 1 GiB.
    pub memory: Option<Size>,
    /// For [`Backend::Qemu`]: the kernel, by its name in the list or its file; none: the newest.
    /// For ends that are stacks: the user-mode kernel, a file; none: the packaged one.
    pub name: Option<OsString>,
    /// For [`Backend::Qemu`]: an instruction takes two to the power of this many nanoseconds.
    pub shift: u8,
    /// How long a kernel of its own may take to boot, seconds; none: 60, in QEMU 300.
    pub boot_limit_s: Option<u64>,
}

/// What is known of a run where it was asked for; in a kernel of its own, it is told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Origin {
    /// For the report: where the run takes place.
    pub place: Place,
    /// For the report: the command line; none: this process's own.
    pub command: Option<String>,
    /// For the report: when the run began, RFC 3339; none: now.
    pub started: Option<String>,
    /// Where the policies that each scenario names are looked for; empty: beside it.
    pub policy_folders: Vec<PathBuf>,
    /// A file that is told how far the run has come; none: nobody is.
    pub channel: Option<PathBuf>,
}

impl Origin {
    pub(crate) fn command(&self) -> String {
        self.command.clone().unwrap_or_else(own_command)
    }

    pub(crate) fn started(&self) -> String {
        self.started.clone().unwrap_or_else(now)
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
            agent_binary: PathBuf::from("thalweg"),
            progress: true,
            kernel: KernelOptions::default(),
            origin: Origin::default(),
        }
    }
}

/// The kernel that a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The machine's own where it has all that is needed; otherwise
    /// [`Backend::Link`] if every path is slow enough for it; otherwise
    /// [`Backend::Uml`].
    #[default]
    Auto,
    /// The machine's own kernel, in network namespaces. Needs root.
    Host,
    /// The machine's own kernel, and a path that this process forwards: delay
    /// without netem. Needs root.
    Link,
    /// Debian's user-mode Linux, an ordinary process.
    Uml,
    /// A user-mode Linux whose time is simulated: no noise from the machine.
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
    /// What joins the hosts where the machine's own kernel is used.
    pub(crate) fn wire(self) -> WireKind {
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

/// Which backend ran, and why that one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The backend; never [`Backend::Auto`].
    pub name: Backend,
    /// Why this one.
    pub why: String,
    /// The command line of the kernel that was started; none on the machine's own.
    pub kernel_command: Option<String>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            name: Backend::Host,
            why: "called from within a program".to_owned(),
            kernel_command: None,
        }
    }
}

/// The present time, UTC, RFC 3339, whole seconds.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// This process's command line, with quotes where a shell would want them.
pub(crate) fn own_command() -> String {
    let words: Vec<String> = std::env::args_os()
        .map(|word| quote(&word.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// The same without `--out`: what makes the same run again.
pub(crate) fn command_to_repeat() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = without_out(words).map(|word| quote(&word)).collect();
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
