//! A run in a Linux kernel of its own that is an ordinary process: user-mode
//! Linux. It needs no privilege, and has queueing disciplines and congestion
//! controls that the machine's own kernel may lack.
//!
//! The kernel's root is the machine's file system (hostfs), so it finds this
//! very program there and starts it as its first process ([`guest`]). That runs
//! the scenarios as on any kernel, and its files appear where they would have.
//! How far it has come, and how it ended, it says in a file of the work directory.

mod boot;
mod console;
pub mod guest;
pub mod ptrace;
mod trial;
mod workdir;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::backend::Finished;
use crate::error::Error;
use crate::host::tool;
use crate::mode::Mode;
use crate::modules::{self, Tree};
use crate::progress::{self, Message};
use crate::run::{self, Options};
use crate::scenario::{self, Scenario};
use crate::units::Size;
use boot::Machine;
use guest::Job;
pub use trial::{Trial, try_out};
use workdir::WorkDir;

/// The packaged kernel.
pub(crate) const PROGRAM: &str = "linux.uml";
/// The package that has it.
const PACKAGE: &str = "user-mode-linux";
/// Where the package has its modules, one directory a version.
const MODULES: &str = "/usr/lib/uml/modules";
/// Below this the run itself does not fit beside the kernel.
const LEAST_MEMORY: Size = Size::from_bytes(128 << 20);
/// What [`Size`] can say at most.
const MOST_MEMORY: Size = Size::from_bytes(4_000_000_000);
/// Memory where neither scenario nor options say.
const DEFAULT_MEMORY: Size = Size::from_bytes(1 << 30);
/// What the kernel has for itself, and the machine's files must not be in.
const OWN_DIRECTORIES: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// How much longer than its own time a connection may keep the kernel silent.
const SILENCE: Duration = Duration::from_secs(120);
/// How long it may take to stop once it has said that it will.
const STOP: Duration = Duration::from_secs(20);

/// A kernel that can be started as a process.
#[derive(Debug, Clone)]
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

/// What a kernel says that it is, as `6.1.176`.
fn version(program: &Path) -> Result<String, Error> {
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
    let tools = [
        (PROGRAM, PACKAGE),
        ("iperf3", "iperf3"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
    ];
    tools
        .into_iter()
        .filter(|(program, _)| tool::find(program).is_none())
        .map(|(program, package)| {
            format!("no {program}: install the package {package} (apt-get install {package})")
        })
        .collect()
}

/// Whether a kernel could have this much memory.
pub(crate) fn check_memory(memory: Size) -> Result<(), String> {
    if (LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        Ok(())
    } else {
        Err(format!(
            "expected memory from {LEAST_MEMORY} to {MOST_MEMORY}, found {memory}"
        ))
    }
}

/// Boots the kernel, runs the scenarios there, and returns what they gave. On
/// every way out the kernel is gone, and so is its directory.
pub(crate) fn run(
    kernel: &Kernel,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Finished, Error> {
    let memory = memory(options, scenarios)?;
    workdir::remove_stale();
    let work = WorkDir::create()?;
    let current = std::env::current_dir().map_err(Error::system("where am I"))?;
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| crate::report::DEFAULT.into());
    let program = fs::canonicalize(&options.agent_binary)
        .map_err(Error::io("cannot find the agent", &options.agent_binary))?;
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
        options: Some(inner),
        current,
        modules: kernel.modules.clone(),
    };
    job.write(work.path(), &program)?;

    let longest = scenarios
        .iter()
        .map(|scenario| scenario.traffic.duration.duration())
        .max()
        .unwrap_or_default();
    let silence = (longest + SILENCE) * kernel.slowness;
    let mut running = machine.boot()?;
    let result = follow(&mut running, options, silence);
    result.map_err(|error| running.explain(error))?;
    guest::result(work.path())
}

/// Follows the messages of a running kernel until it has stopped.
fn follow(running: &mut boot::Running, options: &Options, silence: Duration) -> Result<(), Error> {
    let limit = Duration::from_secs(options.boot_limit_s);
    let booting = format!("user-mode Linux did not boot within {} s", limit.as_secs());
    let silent = format!("user-mode Linux was silent for {} s", silence.as_secs());
    let mut bar = progress::bar(false, "", 0);
    let mut deadline = Instant::now() + limit;
    let mut overdue = &booting;
    loop {
        match running.message(deadline, overdue)? {
            Message::Ready => {}
            Message::Scenario { name, connections } => {
                bar.finish_and_clear();
                bar = progress::bar(options.progress, &name, connections);
            }
            Message::Connection { made, mode } => {
                bar.set_position(made);
                bar.set_message(mode);
            }
            Message::End { error } => {
                bar.finish_and_clear();
                running.await_stop(Instant::now() + STOP)?;
                return error.map_or(Ok(()), |why| Err(Error::Guest(why)));
            }
        }
        deadline = Instant::now() + silence;
        overdue = &silent;
    }
}

/// The memory that is asked for, if the machine has it.
fn memory(options: &Options, scenarios: &[Scenario]) -> Result<Size, Error> {
    let largest = scenarios.iter().filter_map(|one| one.system.memory).max();
    let memory = options.uml_memory.or(largest).unwrap_or(DEFAULT_MEMORY);
    check_memory(memory).map_err(|why| Error::Options(format!("--uml-mem: {why}")))?;
    let table =
        fs::read_to_string("/proc/meminfo").map_err(Error::io("cannot read", "/proc/meminfo"))?;
    if let Some(available) = available_bytes(&table)
        && available < memory.bytes()
    {
        return Err(Error::Options(format!(
            "user-mode Linux shall have {memory} of memory, but only {} are available: \
             ask for less (--uml-mem, or `memory` of the scenario)",
            Size::from_bytes(available / 1_000_000 * 1_000_000)
        )));
    }
    Ok(memory)
}

/// `MemAvailable` of proc(5)'s `/proc/meminfo`, bytes.
fn available_bytes(table: &str) -> Option<u64> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// Fails for a path that the kernel has as its own, or cannot be told of.
fn check_visible(what: &str, path: &Path, remedy: &str) -> Result<(), Error> {
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
            let copy = work.join(format!("scenario-{index}.toml"));
            fs::copy(file, &copy).map_err(Error::io("cannot copy the scenario", file))?;
            Ok(copy)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_bounds() {
        for (memory, fine) in [("127mib", false), ("128mib", true), ("4000mb", true)] {
            assert_eq!(
                check_memory(memory.parse().unwrap()).is_ok(),
                fine,
                "{memory}"
            );
        }
    }

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
    fn available_memory_is_read() {
        let table = "MemTotal:       24684096 kB\nMemFree:  1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(available_bytes(table), Some(23_000_000 * 1024));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
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
