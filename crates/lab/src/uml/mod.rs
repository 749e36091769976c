//! A run in a Linux kernel of its own that is an ordinary process: user-mode
//! Linux. It needs no privilege, and has queueing disciplines and congestion
//! controls that the machine's own kernel may lack.
//!
//! The kernel's root is the machine's file system (hostfs), so it finds this
//! very program there and starts it as its first process ([`crate::guest`]). That runs
//! the scenarios as on any kernel, and its files appear where they would have.
//! How far it has come, and how it ended, it says in a file of the work directory.

mod boot;
pub mod ptrace;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::backend::Finished;
use crate::error::Error;
use crate::guest::workdir::{self, WorkDir};
use crate::guest::{self, Job, Kind, Task};
use crate::host::tool;
use crate::mode::Mode;
use crate::modules::{self, Tree};
use crate::run::{self, Options};
use crate::scenario::{self, Scenario};
pub(crate) use boot::{Machine, processor, processors};
pub use trial::{Trial, try_out};

/// The packaged kernel.
pub(crate) const PROGRAM: &str = "linux.uml";
/// The package that has it.
const PACKAGE: &str = "user-mode-linux";
/// Where the package has its modules, one directory a version.
const MODULES: &str = "/usr/lib/uml/modules";
/// What the kernel has for itself, and the machine's files must not be in.
const OWN_DIRECTORIES: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// A kernel that can be started as a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kernel {
    /// The program.
    pub program: PathBuf,
    /// Its modules, each after those that it needs.
    pub modules: Vec<PathBuf>,
    /// Further words for its command line.
    pub words: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(String, String)>,
    /// How much slower than real time it may be.
    pub slowness: u32,
    /// Whether it sets all of the processor's register state; otherwise its `ptrace` is
    /// [wrapped](ptrace::wrap).
    pub sets_all_state: bool,
}

impl Kernel {
    /// The packaged user-mode Linux, with the modules that the scenarios and
    /// modes need.
    ///
    /// # Errors
    /// [`Error::Preconditions`] where it is not installed, or has no module for a
    /// congestion control that is named.
    pub fn packaged(scenarios: &[Scenario], modes: &[Mode]) -> Result<Self, Error> {
        let program = tool::find(PROGRAM).ok_or_else(|| Error::Preconditions(missing()))?;
        let version = version(&program)?;
        let tree = Tree::read(&Path::new(MODULES).join(&version))?;
        let named = modules::of_congestion_controls(scenarios, modes);
        Ok(Self {
            modules: tree.wanted(&program.display().to_string(), named)?,
            program,
            words: Vec::new(),
            environment: Vec::new(),
            slowness: 1,
            sets_all_state: sets_all_state(&version),
        })
    }
}

impl Kernel {
    /// A kernel that lives in the machine's time, for a program on its network: the packaged one
    /// or another, with IPv6, these modules, and those that are `wished` as far as there are any.
    ///
    /// # Errors
    /// [`Error::Missing`] where it is not installed; [`Error::Options`] where the file is no such
    /// kernel, or has no such module.
    pub(crate) fn plain(
        file: Option<&Path>,
        modules: &[String],
        wished: &[&str],
    ) -> Result<Self, Error> {
        let program = match file {
            Some(file) => fs::canonicalize(file).map_err(Error::io("cannot find", file))?,
            None => tool::find(PROGRAM)
                .ok_or_else(|| Error::Missing(guest::missing([(PROGRAM, PACKAGE)]).join("; ")))?,
        };
        let version = version(&program)?;
        if !version.starts_with(|first: char| first.is_ascii_digit()) {
            let first = version.lines().next().unwrap_or("nothing");
            return Err(Error::Options(format!(
                "{} is no user-mode kernel: `--version` gives {first:?}, where 6.1 or the like \
                 was expected",
                program.display()
            )));
        }
        let directory = Path::new(MODULES).join(&version);
        let modules = if directory.is_dir() && takes_modules(&program)? {
            let tree = Tree::read(&directory)?;
            let mut wanted = [&["ipv6".to_owned()], modules].concat();
            let there = wished.iter().filter(|name| tree.has(name));
            wanted.extend(there.map(|&name| name.to_owned()));
            tree.files(&wanted)
                .map_err(|name| Error::Options(lacks(&program, &tree, &name)))?
        } else {
            // What is built in shows when it is asked for.
            Vec::new()
        };
        Ok(Self {
            modules,
            sets_all_state: sets_all_state(&version),
            program,
            words: Vec::new(),
            environment: Vec::new(),
            slowness: 1,
        })
    }
}

/// Says that a kernel has no module of a congestion control or queueing discipline, and which it
/// has.
fn lacks(program: &Path, tree: &Tree, module: &str) -> String {
    let program = program.display();
    let kinds = [
        ("tcp_", "congestion control"),
        ("sch_", "queueing discipline"),
    ];
    let kind = kinds
        .iter()
        .find_map(|(prefix, kind)| Some((prefix, kind, module.strip_prefix(prefix)?)));
    match kind {
        Some((prefix, kind, name)) => format!(
            "{program} has no {kind} {name:?}; it has {}",
            tree.names(prefix).join(", ")
        ),
        None => format!("{program} has no module {module}"),
    }
}

/// Whether a kernel was built with loadable modules.
fn takes_modules(program: &Path) -> Result<bool, Error> {
    let output = Command::new(program)
        .arg("--showconfig")
        .output()
        .map_err(Error::io("cannot start", program))?;
    let configuration = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(configuration.lines().any(|line| line == "CONFIG_MODULES=y"))
}

/// What a kernel says that it is, as `6.1.176`.
pub(crate) fn version(program: &Path) -> Result<String, Error> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(Error::io("cannot start", program))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a kernel of this version asks the machine for the size of the register state.
fn sets_all_state(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|part| part.parse().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

/// What a run in user-mode Linux lacks on this machine, one line each.
pub fn missing() -> Vec<String> {
    guest::missing([(PROGRAM, PACKAGE)].into_iter().chain(guest::TOOLS))
}

/// Boots the kernel, runs the scenarios there, and returns what they gave. On
/// every way out the kernel is gone, and so is its directory.
pub(crate) fn run(
    kernel: &Kernel,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Finished, Error> {
    let memory = guest::memory(Kind::UserMode, options, scenarios)?;
    workdir::remove_stale();
    let work = WorkDir::create()?;
    let current = std::env::current_dir().map_err(Error::system("where am I"))?;
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| crate::report::DEFAULT.into());
    let program = guest::program(options)?;
    // Now, and not after a minute, if it cannot be done.
    fs::create_dir_all(&out).map_err(Error::io("cannot create", &out))?;
    let out = fs::canonicalize(&out).map_err(Error::io("cannot find", &out))?;
    for (what, path, remedy) in [
        (
            "the report's directory",
            out.as_path(),
            "choose another with --out",
        ),
        (
            "the temporary directory",
            work.path(),
            "set TMPDIR to another",
        ),
        ("this program", program.as_path(), "copy it elsewhere"),
        (
            "the current directory",
            current.as_path(),
            "change to another",
        ),
    ] {
        check_visible(what, path, remedy)?;
    }

    let mut inner = options.clone();
    inner.scenarios = copy_scenarios(&options.scenarios, work.path())?;
    inner.policy_folders = options
        .scenarios
        .iter()
        .map(|file| current.join(scenario::folder(file)))
        .collect();
    for scenario in scenarios {
        for policy in &scenario.policies {
            let file = fs::canonicalize(&policy.file)
                .map_err(Error::io("cannot find the policy", &policy.file))?;
            check_visible("the policy", &file, "copy it elsewhere")?;
        }
    }
    inner.agent_binary.clone_from(&program);
    inner.progress = false;
    inner.channel = Some(work.path().join(guest::CHANNEL));
    inner.command = Some(options.command.clone().unwrap_or_else(run::own_command));
    inner.started = Some(options.started.clone().unwrap_or_else(run::now));
    let machine = Machine {
        kernel,
        memory,
        work: work.path(),
    };
    inner.place.kernel_command = Some(machine.command_line());
    let job = Job {
        kind: Kind::UserMode,
        task: Task::Run(Box::new(inner)),
        current,
        modules: kernel.modules.clone(),
    };
    let mut running = machine.boot(&job, &program)?;
    let result = guest::follow(&mut running, options, scenarios, kernel.slowness);
    result.map_err(|error| running.explain(error))?;
    guest::result(work.path())
}

/// Fails for a path that the kernel has as its own, or cannot be told of.
pub(crate) fn check_visible(what: &str, path: &Path, remedy: &str) -> Result<(), Error> {
    if let Some(own) = OWN_DIRECTORIES.iter().find(|own| path.starts_with(own)) {
        return Err(Error::Options(format!(
            "{what} is {}, but user-mode Linux has a {own} of its own: {remedy}",
            path.display()
        )));
    }
    if what == "the temporary directory" && !path.to_str().is_some_and(boot::can_be_a_word) {
        return Err(Error::Options(format!(
            "{what} is {}, which the command line of a kernel cannot hold \
             (blanks, quotes, commas): {remedy}",
            path.display()
        )));
    }
    Ok(())
}

/// Copies the scenarios to where the kernel sees them.
fn copy_scenarios(files: &[PathBuf], work: &Path) -> Result<Vec<PathBuf>, Error> {
    files
        .iter()
        .enumerate()
        .map(|(index, file)| {
            let copy = work.join(guest::copy_of_scenario(index));
            fs::copy(file, &copy).map_err(Error::io("cannot copy the scenario", file))?;
            Ok(copy)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_size_the_state_themselves() {
        for (version, themselves) in [
            ("6.1.176", false),
            ("6.12.48", false),
            ("6.14", true),
            ("6.18.1-rc2", true),
            ("7.0", true),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(sets_all_state(version), themselves, "{version}");
        }
    }

    #[test]
    fn paths_that_the_kernel_does_not_see_are_refused() {
        let check = |path: &str| check_visible("the report's directory", Path::new(path), "x");
        assert!(check("/home/a/out").is_ok());
        assert!(check("/runs/out").is_ok());
        let error = check("/run/user/1000/out").unwrap_err().to_string();
        assert!(error.contains("has a /run of its own"), "{error}");
        let odd = check_visible(
            "the temporary directory",
            Path::new("/tmp/a b"),
            "set TMPDIR",
        );
        assert!(odd.unwrap_err().to_string().contains("blanks"));
    }
}
