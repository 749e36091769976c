//! Where a run takes place: on this machine's own kernel, or in a kernel that
//! runs as a process.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thalweg_process::interrupt;

use crate::error::Error;
use crate::host::WireKind;
use crate::mode::Mode;
use crate::outcome::Outcome;
use crate::run::{self, Options};
use crate::scenario::Scenario;
use crate::ticks::{self, Ticks, Timers};
use crate::units::Rate;
use crate::virtual_kernel::{self, Time};
use crate::{host, kernels, qemu, report, table, uml};

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

/// What is left of a run once its kernel may be gone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finished {
    /// Whether no expectation was missed.
    pub passed: bool,
    /// The document that [`report::json`] makes.
    pub document: Value,
    /// The tables for a terminal.
    pub text: String,
}

impl Finished {
    /// What is shown of an outcome.
    ///
    /// # Errors
    /// [`Error::System`] where a figure cannot be written as JSON.
    pub fn of(outcome: &Outcome) -> Result<Self, Error> {
        let texts: Vec<String> = outcome.scenarios.iter().map(table::scenario).collect();
        Ok(Self {
            passed: outcome.passed(),
            document: report::json(outcome)?,
            text: texts.join("\n") + "\n",
        })
    }
}

/// Runs the scenarios on the backend that the options ask for, and writes a
/// report of each, as [`run::run`] does on the machine's own kernel.
///
/// # Errors
/// The first fault; see [`run::run`]. Also where the backend cannot be used here,
/// with all that is missing, and where its kernel does not boot or hangs, with
/// its console.
pub fn run(options: &Options) -> Result<Finished, Error> {
    let scenarios = run::check(options)?;
    let has_stack = scenarios.iter().any(|scenario| scenario.stack().is_some());
    if options.kernel.is_some() && options.backend != Backend::Qemu && !has_stack {
        return Err(Error::Options(
            "--kernel goes with --backend qemu, or with a scenario that has an end \"stack\""
                .into(),
        ));
    }
    let (name, mut why) = choose(options, &scenarios)?;
    check_stacks(options, &scenarios, name)?;
    let stock = match name {
        Backend::Qemu => Some(kernels::find(options.kernel.as_deref())?),
        _ => None,
    };
    if let Some(stock) = &stock {
        // What the figures depend on, beside the scenario.
        why = format!("{why}: {}, kernel {}", qemu::version()?, stock.origin());
    }
    let mut options = options.clone();
    options.place = Place {
        name,
        why,
        kernel_command: None,
    };
    if name == Backend::Virtual {
        check_virtual(&options, &scenarios)?;
    }
    if matches!(name, Backend::Virtual | Backend::Qemu) {
        // Two runs give the same results, wherever they are put.
        options.command.get_or_insert_with(run::command_to_repeat);
    }
    let asked = Ticks::asked(&scenarios)?;
    if let Some(stock) = &stock {
        let _signals = interrupt::Guard::install()?;
        return qemu::run(stock, asked.timers, &options, &scenarios);
    }
    let seed = scenarios.first().map_or(0, |first| first.path.seed);
    let mut kernel = match name {
        Backend::Auto | Backend::Host | Backend::Link | Backend::Qemu => {
            return Finished::of(&run::run(&options)?);
        }
        Backend::Uml if asked.hz == ticks::DEFAULT => {
            uml::Kernel::packaged(&scenarios, &options.modes)?
        }
        Backend::Uml => virtual_kernel::find(asked.hz, Time::Real, seed)?,
        Backend::Virtual => virtual_kernel::find(asked.hz, Time::Simulated, seed)?,
    };
    if asked.timers == Timers::Tick {
        kernel.words.push("highres=off".to_owned());
    }
    let _signals = interrupt::Guard::install()?;
    uml::run(&kernel, &options, &scenarios)
}

/// Simulated time passes only while all wait: without a bottleneck nobody ever
/// would.
fn check_virtual(options: &Options, scenarios: &[Scenario]) -> Result<(), Error> {
    let endless = scenarios
        .iter()
        .zip(&options.scenarios)
        .find(|(scenario, _)| {
            let paths = scenario.remotes();
            paths.iter().any(|(_, path)| path.rate.is_none())
        });
    match endless {
        None => Ok(()),
        Some((_, file)) => Err(Error::Options(format!(
            "{}: expected a `rate` of every path, without which data would pass in no time \
             (--backend virtual)",
            file.display()
        ))),
    }
}

/// A stack is one end, and this machine's own kernel the other, or the path between two.
fn check_stacks(options: &Options, scenarios: &[Scenario], name: Backend) -> Result<(), Error> {
    let stack = scenarios
        .iter()
        .zip(&options.scenarios)
        .find_map(|(scenario, file)| Some((scenario.stack()?, file)));
    let Some((key, file)) = stack else {
        return Ok(());
    };
    let refused = |why: String| {
        let file = file.display();
        Err(Error::Options(format!("{file}: `{key} = \"stack\"` {why}")))
    };
    if !matches!(name, Backend::Host | Backend::Link) {
        return refused(format!(
            "needs --backend host or link, found {name}: the other end is this machine's kernel"
        ));
    }
    let fits = |mode: &&Mode| matches!(mode, Mode::Baseline | Mode::Fixed(_));
    match options.modes.iter().find(|mode| !fits(mode)) {
        Some(mode) => refused(format!(
            "goes with the modes baseline and fixed:NAME, found {mode}: agents and policies of \
             a run are in this machine's kernel"
        )),
        None => Ok(()),
    }
}

fn choose(options: &Options, scenarios: &[Scenario]) -> Result<(Backend, String), Error> {
    let missing = match options.backend {
        Backend::Auto | Backend::Host | Backend::Link => {
            let missing = host::missing();
            if missing.is_empty() {
                host::missing_for(scenarios, &options.modes, options.backend.wire())
            } else {
                missing
            }
        }
        Backend::Uml | Backend::Virtual | Backend::Qemu => Vec::new(),
    };
    let link = || {
        let mut missing = host::missing();
        if missing.is_empty() {
            missing = host::missing_for(scenarios, &options.modes, WireKind::Tun);
        }
        let fast = |scenario: &&Scenario| total_rate(scenario).is_none_or(|rate| rate > LINK_RATE);
        missing.extend(scenarios.iter().find(fast).map(|scenario| {
            format!(
                "{}: this process may not keep up above {LINK_RATE}",
                scenario.name
            )
        }));
        missing
    };
    decide(options.backend, missing, link, uml::missing)
}

/// What all paths of a scenario carry together; none where one has no limit.
fn total_rate(scenario: &Scenario) -> Option<Rate> {
    let rates = scenario.remotes().into_iter().map(|(_, path)| path.rate);
    let sum: Option<u64> = rates.map(|rate| rate.map(Rate::bps)).sum();
    sum.map(Rate::from_bps)
}

/// What [`Backend::Link`] carries on any machine: above, it is taken only if named.
const LINK_RATE: Rate = Rate::from_bps(1_000_000_000);

/// The backend and why it is that one, from what is asked for, what the machine's
/// own kernel lacks, and what user-mode Linux lacks.
fn decide(
    asked: Backend,
    mut host: Vec<String>,
    link: impl Fn() -> Vec<String>,
    uml: impl Fn() -> Vec<String>,
) -> Result<(Backend, String), Error> {
    match asked {
        Backend::Auto if host.is_empty() => Ok((
            Backend::Host,
            "this machine's own kernel has all that the scenarios need".to_owned(),
        )),
        Backend::Auto if link().is_empty() => Ok((
            Backend::Link,
            format!(
                "this machine's own kernel with a path forwarded by this process, because {}",
                host.join("; ")
            ),
        )),
        Backend::Auto => {
            let uml = uml();
            if uml.is_empty() {
                let why = format!("not on this machine's own kernel: {}", host.join("; "));
                return Ok((Backend::Uml, why));
            }
            host.extend(
                uml.into_iter()
                    .map(|line| format!("for --backend uml: {line}")),
            );
            Err(Error::Preconditions(host))
        }
        Backend::Host | Backend::Link if !host.is_empty() => {
            host.push("--backend uml brings a kernel of its own and needs no privilege".to_owned());
            Err(Error::Preconditions(host))
        }
        Backend::Uml if !uml().is_empty() => Err(Error::Preconditions(uml())),
        Backend::Qemu if !qemu::missing().is_empty() => Err(Error::Preconditions(qemu::missing())),
        named => Ok((named, format!("asked for with --backend {named}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn lines(text: &str) -> Vec<String> {
        text.split_terminator(',').map(str::to_owned).collect()
    }

    #[test]
    fn the_own_kernel_where_it_has_everything_otherwise_user_mode_linux() {
        for (asked, host, uml, chosen, because) in [
            (Backend::Auto, "", "", Backend::Host, "has all"),
            (Backend::Auto, "", "no linux.uml", Backend::Host, "has all"),
            (Backend::Auto, "no netem", "", Backend::Uml, "no netem"),
            (
                Backend::Host,
                "",
                "no linux.uml",
                Backend::Host,
                "asked for",
            ),
            (Backend::Uml, "", "", Backend::Uml, "asked for"),
            (Backend::Virtual, "", "", Backend::Virtual, "asked for"),
        ] {
            let link = || vec!["too fast".to_owned()];
            let (name, why) = decide(asked, lines(host), link, || lines(uml)).unwrap();
            assert_eq!(name, chosen, "{asked} {host} {uml}");
            assert!(why.contains(because), "{why}");
        }
    }

    #[test]
    fn a_forwarded_path_where_only_the_delay_is_missing() {
        let none = || Vec::new();
        let (name, why) = decide(Backend::Auto, lines("no netem"), none, none).unwrap();
        assert_eq!(name, Backend::Link);
        assert!(why.contains("no netem"), "{why}");
        let (name, _) = decide(Backend::Auto, Vec::new(), none, none).unwrap();
        assert_eq!(name, Backend::Host);
    }

    #[test]
    fn what_is_missing_is_named_in_full() {
        for (asked, host, uml, words) in [
            (
                Backend::Host,
                "no netem",
                "",
                ["no netem", "--backend uml brings"],
            ),
            (
                Backend::Auto,
                "no netem",
                "no linux.uml",
                ["no netem", "for --backend uml: no linux.uml"],
            ),
            (Backend::Uml, "", "no linux.uml", ["no linux.uml", ""]),
        ] {
            let link = || vec!["too fast".to_owned()];
            let error = decide(asked, lines(host), link, || lines(uml))
                .unwrap_err()
                .to_string();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
