//! The kernel of a run: this machine's own, or one that runs as a process.

use std::path::Path;

use thalweg_guest::virtual_kernel::{self, Time};
use thalweg_guest::{kernels, qemu, uml};
use thalweg_process::interrupt;

use crate::error::Error;
use crate::host::WireKind;
use crate::mode::Mode;
use crate::options::{Backend, Options, UsedBackend, command_to_repeat};
use crate::report::Finished;
use crate::run::check_options;
use crate::scenario::Scenario;
use crate::ticks::{self, Timers};
use crate::units::Rate;
use crate::{host, inside, timing};

/// Runs the scenarios on the chosen backend and writes a report of each, as [`crate::run_scenarios`] does
/// on the machine's own kernel.
///
/// # Errors
/// The first fault; see [`crate::run_scenarios`]. A backend that cannot be used here, with all that is
/// missing. A kernel that does not boot or hangs, with its console.
pub fn run_on_backend(options: &Options) -> Result<Finished, Error> {
    let scenarios = check_options(options)?;
    let has_stack = scenarios
        .iter()
        .any(|scenario| scenario.first_stack().is_some());
    if options.kernel.name.is_some() && options.kernel.backend != Backend::Qemu && !has_stack {
        return Err(Error::Options(
            "--kernel goes with --backend qemu, or with a scenario that has an end \"stack\""
                .into(),
        ));
    }
    let (name, mut why) = choose_backend(options, &scenarios)?;
    check_stacks(options, &scenarios, name)?;
    let stock = match name {
        Backend::Qemu => Some(kernels::find_kernel(options.kernel.name.as_deref())?),
        _ => None,
    };
    if let Some(stock) = &stock {
        // The figures depend on these, too.
        why = format!(
            "{why}: {}, kernel {}",
            qemu::qemu_version()?,
            stock.origin_description()
        );
    }
    let mut options = options.clone();
    options.origin.place = UsedBackend {
        name,
        why,
        kernel_command: None,
    };
    if name == Backend::Virtual {
        check_virtual(&options, &scenarios)?;
    }
    if matches!(name, Backend::Virtual | Backend::Qemu) {
        // The path of the report must not make the results of two runs differ.
        let command = &mut options.origin.command;
        command.get_or_insert_with(command_to_repeat);
    }
    let asked = timing::requested_timing(&scenarios)?;
    if let Some(stock) = &stock {
        let _signals = interrupt::Guard::install_handlers()?;
        return inside::qemu::run_in_qemu(stock, asked.timers, &options, &scenarios);
    }
    let seed = scenarios.first().map_or(0, |first| first.path.seed);
    let mut kernel = match name {
        Backend::Auto | Backend::Host | Backend::Link | Backend::Qemu => {
            return Finished::from_outcome(&crate::run_scenarios(&options)?);
        }
        Backend::Uml if asked.hz == ticks::DEFAULT => {
            inside::uml::packaged_kernel(&scenarios, &options.modes)?
        }
        Backend::Uml => virtual_kernel::find_virtual(asked.hz, Time::Real, seed)?,
        Backend::Virtual => virtual_kernel::find_virtual(asked.hz, Time::Simulated, seed)?,
    };
    if asked.timers == Timers::Tick {
        kernel.words.push("highres=off".to_owned());
    }
    let _signals = interrupt::Guard::install_handlers()?;
    inside::uml::run_in_uml(&kernel, &options, &scenarios)
}

/// Runs the job of a work directory, inside a kernel of its own (`thalweg-lab guest`, see
/// [`thalweg_guest::main`]).
///
/// # Errors
/// There is no job, or the run fails.
pub fn run_inside(work: &Path) -> Result<(), Error> {
    thalweg_guest::main(work, |document| {
        let options: Options = inside::from_document(document)?;
        inside::to_document(&Finished::from_outcome(&crate::run_scenarios(&options)?)?)
    })
}

/// Simulated time passes only while every process waits. Without a bottleneck none ever does.
fn check_virtual(options: &Options, scenarios: &[Scenario]) -> Result<(), Error> {
    let endless = scenarios
        .iter()
        .zip(&options.scenarios)
        .find(|(scenario, _)| {
            let paths = scenario.remote_paths();
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

/// A stack is one end of the path. The other end, or the path between two stacks, is on this
/// machine's own kernel.
fn check_stacks(options: &Options, scenarios: &[Scenario], name: Backend) -> Result<(), Error> {
    let stack = scenarios
        .iter()
        .zip(&options.scenarios)
        .find_map(|(scenario, file)| Some((scenario.first_stack()?, file)));
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

fn choose_backend(options: &Options, scenarios: &[Scenario]) -> Result<(Backend, String), Error> {
    let missing = match options.kernel.backend {
        Backend::Auto | Backend::Host | Backend::Link => {
            let missing = host::missing_requirements();
            if missing.is_empty() {
                host::missing_for(
                    scenarios,
                    &options.modes,
                    options.kernel.backend.wire_kind(),
                )
            } else {
                missing
            }
        }
        Backend::Uml | Backend::Virtual | Backend::Qemu => Vec::new(),
    };
    let link = || {
        let mut missing = host::missing_requirements();
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
    decide_backend(
        options.kernel.backend,
        missing,
        link,
        uml::missing_requirements,
    )
}

/// The sum of the rates of all paths; none if one is unlimited.
fn total_rate(scenario: &Scenario) -> Option<Rate> {
    let rates = scenario
        .remote_paths()
        .into_iter()
        .map(|(_, path)| path.rate);
    let sum: Option<u64> = rates.map(|rate| rate.map(Rate::bps)).sum();
    sum.map(Rate::from_bps)
}

/// The rate that [`Backend::Link`] sustains on any machine. Above it, that backend must be named.
const LINK_RATE: Rate = Rate::from_bps(1_000_000_000);

/// Chooses the backend and says why: by the option, by what the machine's own kernel lacks, and by
/// what user-mode Linux lacks.
fn decide_backend(
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
        Backend::Qemu if !qemu::missing_requirements().is_empty() => {
            Err(Error::Preconditions(qemu::missing_requirements()))
        }
        named => Ok((named, format!("asked for with --backend {named}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (name, why) = decide_backend(asked, lines(host), link, || lines(uml)).unwrap();
            assert_eq!(name, chosen, "{asked} {host} {uml}");
            assert!(why.contains(because), "{why}");
        }
    }

    #[test]
    fn a_forwarded_path_where_only_the_delay_is_missing() {
        let none = || Vec::new();
        let (name, why) = decide_backend(Backend::Auto, lines("no netem"), none, none).unwrap();
        assert_eq!(name, Backend::Link);
        assert!(why.contains("no netem"), "{why}");
        let (name, _) = decide_backend(Backend::Auto, Vec::new(), none, none).unwrap();
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
            let error = decide_backend(asked, lines(host), link, || lines(uml))
                .unwrap_err()
                .to_string();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
