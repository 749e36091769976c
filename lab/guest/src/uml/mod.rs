//! User-mode Linux: a Linux kernel that is an ordinary process. It needs no privilege. It has
//! queueing disciplines and congestion controls that the machine's kernel may lack.
//!
//! The kernel's root is the machine's file system (hostfs). It finds this program there, and starts
//! it as its first process. Its files appear in their usual places.

mod boot;
mod idle;
pub mod ptrace;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thalweg_process::tool;
use thalweg_units::Size;

use crate::channel::CHANNEL;
use crate::error::Error;
use crate::modules::Tree;
use crate::workdir::{self, WorkDir};
use crate::{Job, KernelKind, Limits, Task, follow_messages, read_answer};
pub use boot::{Machine, allowed_processors, next_processor};
pub use idle::{EARLY, LATE, in_time};
pub use trial::{Trial, try_out};

/// The packaged kernel.
pub(crate) const PROGRAM: &str = "linux.uml";
/// Package of the packaged kernel.
const PACKAGE: &str = "user-mode-linux";
/// The package's modules, one directory per version.
const MODULES: &str = "/usr/lib/uml/modules";
/// Directories that the kernel mounts itself, and that hide the machine's files.
const OWN_DIRECTORIES: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// The parent of the work directory, in messages.
const TEMPORARY: &str = "the temporary directory";

/// A kernel that can run as a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kernel {
    /// The program.
    pub program: PathBuf,
    /// Modules of the kernel, each after its dependencies.
    pub modules: Vec<PathBuf>,
    /// Further words for its command line.
    pub words: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(String, String)>,
    /// Factor by which it may be slower than real time.
    pub slowness: u32,
    /// Whether it sets all of the processor's register state. If not, its `ptrace` is
    /// [wrapped](ptrace::wrap_ptrace).
    pub sets_all_state: bool,
}

impl Kernel {
    /// The packaged user-mode Linux, with the modules of a network and these.
    ///
    /// # Errors
    /// [`Error::Preconditions`] if it is not installed or lacks a module.
    pub fn packaged_kernel(further: impl Iterator<Item = String>) -> Result<Self, Error> {
        let program = tool::find_program(PROGRAM)
            .ok_or_else(|| Error::Preconditions(missing_requirements()))?;
        let version = kernel_version(&program)?;
        let tree = Tree::read(&Path::new(MODULES).join(&version))?;
        Ok(Self {
            modules: tree.wanted_files(&program.display().to_string(), further)?,
            program,
            words: Vec::new(),
            environment: Vec::new(),
            slowness: 1,
            sets_all_state: sets_all_state(&version),
        })
    }
}

impl Kernel {
    /// A kernel in the machine's time, for a program on the machine's network: the packaged one or
    /// another. It has IPv6, these modules, and the `wished` ones that exist.
    ///
    /// # Errors
    /// [`Error::Preconditions`] if it is not installed; [`Error::Options`] if the file is no such
    /// kernel or lacks a module.
    pub fn real_time_kernel(
        file: Option<&Path>,
        modules: &[String],
        wished: &[&str],
    ) -> Result<Self, Error> {
        let program = match file {
            Some(file) => fs::canonicalize(file).map_err(Error::io("cannot find", file))?,
            None => tool::find_program(PROGRAM).ok_or_else(|| {
                Error::Preconditions(crate::missing_programs([(PROGRAM, PACKAGE)]))
            })?,
        };
        let version = kernel_version(&program)?;
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
            let there = wished.iter().filter(|name| tree.has_module(name));
            wanted.extend(there.map(|&name| name.to_owned()));
            tree.module_files(&wanted)
                .map_err(|name| Error::Options(missing_module_message(&program, &tree, &name)))?
        } else {
            // Built-in features show when they are used.
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

/// A message: the kernel lacks the module of a congestion control or queueing discipline, but has
/// these.
fn missing_module_message(program: &Path, tree: &Tree, module: &str) -> String {
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
            tree.names_with_prefix(prefix).join(", ")
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

/// A kernel's own version, such as `6.1.176`.
///
/// # Errors
/// It cannot be started, or says nothing: with its complaint, such as the dynamic linker's about another
/// glibc.
pub fn kernel_version(program: &Path) -> Result<String, Error> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(Error::io("cannot start", program))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    match complaints
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
    {
        Some(complaint) if version.is_empty() => {
            let program = program.display().to_string();
            let own = format!("{program}: ");
            let complaint = complaint.strip_prefix(&own).unwrap_or(complaint);
            Err(Error::Options(format!(
                "{program} does not start: {complaint}"
            )))
        }
        _ => Ok(version),
    }
}

/// Whether a kernel of this version asks the machine for the size of the register state.
fn sets_all_state(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|part| part.parse().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

/// Everything that this machine lacks for user-mode Linux, one line each.
pub fn missing_requirements() -> Vec<String> {
    crate::missing_programs([(PROGRAM, PACKAGE)].into_iter().chain(crate::TOOLS))
}

/// The parts of the machine that a kernel sees: its work directory, this program, and its current
/// directory.
#[derive(Debug)]
pub struct Surroundings {
    /// The work directory. Dropped, it is removed.
    pub work: WorkDir,
    /// This program's file.
    pub program: PathBuf,
    /// The current directory.
    pub current: PathBuf,
}

impl Surroundings {
    /// Makes a work directory, and checks that the kernel will see everything.
    ///
    /// # Errors
    /// The path that it would not see, with the remedy.
    pub fn prepare_surroundings(program: &Path) -> Result<Self, Error> {
        let current = std::env::current_dir().map_err(Error::system("where am I"))?;
        let program =
            fs::canonicalize(program).map_err(Error::io("cannot find this program", program))?;
        workdir::remove_stale();
        let work = WorkDir::create()?;
        for (what, path, remedy) in [
            (TEMPORARY, work.path(), "set TMPDIR to another"),
            ("this program", &program, "copy it elsewhere"),
            ("the current directory", &current, "change to another"),
        ] {
            check_visible(what, path, remedy)?;
        }
        Ok(Self {
            work,
            program,
            current,
        })
    }
}

/// A kernel, ready to start for a job.
#[derive(Debug)]
pub struct Ready<'a> {
    kernel: &'a Kernel,
    memory: Size,
    surroundings: Surroundings,
}

impl<'a> Ready<'a> {
    /// Prepares a kernel; `program` is this program.
    ///
    /// # Errors
    /// As of [`Surroundings::prepare_surroundings`].
    pub fn new(kernel: &'a Kernel, memory: Size, program: &Path) -> Result<Self, Error> {
        Ok(Self {
            kernel,
            memory,
            surroundings: Surroundings::prepare_surroundings(program)?,
        })
    }

    /// The parts of the machine that the kernel will see.
    pub fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// File of the job's [channel](crate::Channel).
    pub fn channel_file(&self) -> PathBuf {
        self.surroundings.work.path().join(CHANNEL)
    }

    /// The command line of the kernel, for a reader.
    pub fn command_line(&self) -> String {
        self.machine().command_line()
    }

    fn machine(&self) -> Machine<'_> {
        Machine {
            kernel: self.kernel,
            memory: self.memory,
            work: self.surroundings.work.path(),
        }
    }

    /// Boots the kernel, hands a document in, and returns the answer. `told` takes the job's
    /// messages, and returns their faults. Kernel and directory are gone on every way out.
    ///
    /// # Errors
    /// A kernel that does not boot, hangs or dies; a failure inside.
    pub fn run_document(
        self,
        document: Value,
        limits: Limits,
        told: &mut dyn FnMut(Value) -> Result<(), String>,
    ) -> Result<Value, Error> {
        let job = Job {
            kind: KernelKind::UserMode,
            task: Task::Document(document),
            current: self.surroundings.current.clone(),
            modules: self.kernel.modules.clone(),
        };
        let mut running = self.machine().boot_job(&job, &self.surroundings.program)?;
        let done = follow_messages(&mut running, limits, self.kernel.slowness, told);
        done.map_err(|error| running.explain_error(error))?;
        read_answer(self.surroundings.work.path())
    }
}

/// Fails for a path that the kernel hides, or that does not fit its command line.
///
/// # Errors
/// [`Error::Options`] with the remedy.
pub fn check_visible(what: &str, path: &Path, remedy: &str) -> Result<(), Error> {
    if let Some(own) = OWN_DIRECTORIES.iter().find(|own| path.starts_with(own)) {
        return Err(Error::Options(format!(
            "{what} is {}, but user-mode Linux has a {own} of its own: {remedy}",
            path.display()
        )));
    }
    if what == TEMPORARY && !path.to_str().is_some_and(boot::can_be_a_word) {
        return Err(Error::Options(format!(
            "{what} is {}, which the command line of a kernel cannot hold \
             (blanks, quotes, commas): {remedy}",
            path.display()
        )));
    }
    Ok(())
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
        let odd = check_visible(TEMPORARY, Path::new("/tmp/a b"), "set TMPDIR");
        assert!(odd.unwrap_err().to_string().contains("blanks"));
    }
}
