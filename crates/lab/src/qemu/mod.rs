//! A run on a distribution's stock kernel, in QEMU, in virtual time: the clock counts
//! instructions and jumps to the next timer where all wait. No figure depends on the machine
//! or on what else it does, and nothing needs a privilege.
//!
//! The kernel unpacks a file system that is made here ([`initial`]) and starts this very
//! program ([`crate::guest`]). No input reaches it after that: an interrupt from outside would
//! come at no moment that is the same in the next run.

pub mod cpio;
mod initial;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use initial::Needs;
use thalweg_process::interrupt;
use thalweg_report::escape;

use crate::backend::Finished;
use crate::error::Error;
use crate::guest::preload::preload;
use crate::guest::running::{CONSOLE, Running};
use crate::guest::workdir::{self, WorkDir};
use crate::guest::{self, CHANNEL, Job, Kind, REPORTS, Task};
use crate::host::tool;
use crate::kernels::Stock;
use crate::modules::{self, Tree};
use crate::report;
use crate::run::{self, Options, quote};
use crate::scenario::Scenario;
use crate::ticks::Timers;
use crate::units::Size;

/// What makes QEMU's threads take turns (`lockstep.c`), built by `build.rs`.
#[cfg(target_arch = "x86_64")]
static LOCKSTEP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lockstep.so"));
#[cfg(not(target_arch = "x86_64"))]
static LOCKSTEP: &[u8] = &[];
/// The emulator, and the package that has it.
const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// The processor. A model by name is the same on every machine and in every version of QEMU;
/// this is the newest whose instructions QEMU 7.2 has all, and it has no random numbers of its
/// own. Without cmpxchg16b: after it QEMU 7.2 may have one of its operands in the flags when an
/// interrupt comes, and the kernel, whose allocator uses it, ends in a double fault.
const PROCESSOR: &str = "Nehalem,-cx16";
/// When the guest's time begins.
const BEGIN: &str = "2026-01-01T00:00:00";
/// The initial file system, in the work directory.
const INITIAL: &str = "initial.cpio";
/// Modules that are used where the kernel has them.
const FURTHER: [&str; 2] = ["tcp_diag", "tun"];
/// How much slower than real time it may be.
const SLOWNESS: u32 = 60;
/// Seconds in which a guest that runs a program must boot: some ten of a processor, of which
/// other guests may leave little.
const BUSY_BOOT_S: u64 = 1800;
/// What stands for the command line in what the guest writes: a longer one would cost it
/// time.
const COMMAND: &str = "@COMMAND@";

/// What a run in QEMU lacks on this machine, one line each.
pub fn missing() -> Vec<String> {
    let mut missing = guest::missing(
        [(PROGRAM, PACKAGE), ("ldd", "libc-bin")]
            .into_iter()
            .chain(guest::TOOLS),
    );
    if !cfg!(target_arch = "x86_64") {
        missing.push("no x86-64: the kernels are for that, and run this program".to_owned());
    }
    missing
}

/// What QEMU says that it is.
///
/// # Errors
/// [`Error::System`] where it cannot be started.
pub fn version() -> Result<String, Error> {
    let output = tool::command(PROGRAM)
        .arg("--version")
        .output()
        .map_err(Error::system(format!("cannot start {PROGRAM}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A processor, its memory, and the kernel that runs on it.
struct Machine<'a> {
    kernel: &'a Stock,
    memory: Size,
    /// An instruction takes two to the power of this many nanoseconds.
    shift: u8,
    seed: u64,
    /// Whether timers wait for the tick.
    timers: Timers,
}

impl Machine<'_> {
    /// The command line of QEMU. Files are named as seen from the work directory, the image as
    /// whoever asks wants it.
    fn arguments(&self, image: &str) -> Vec<String> {
        let mut words: Vec<String> = [
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-M",
            "q35",
            "-cpu",
            PROCESSOR,
            "-accel",
            "tcg",
        ]
        .map(str::to_owned)
        .into();
        words.extend([
            "-icount".to_owned(),
            format!("shift={},sleep=off", self.shift),
        ]);
        words.extend(["-rtc".to_owned(), format!("base={BEGIN},clock=vm")]);
        words.extend(["-seed".to_owned(), self.seed.to_string()]);
        words.extend(["-m".to_owned(), format!("{}K", self.memory.bytes() / 1024)]);
        for name in [CONSOLE, CHANNEL] {
            let file = format!("file,id={name},path={name},append=on");
            words.extend(["-chardev".to_owned(), file]);
            words.extend(["-serial".to_owned(), format!("chardev:{name}")]);
        }
        words.extend(["-kernel".to_owned(), image.to_owned()]);
        words.extend(["-initrd", INITIAL, "-append"].map(str::to_owned));
        words.push(self.parameters());
        words
    }

    /// The kernel's own command line (Documentation/admin-guide/kernel-parameters).
    fn parameters(&self) -> String {
        let timers = match self.timers {
            Timers::HighResolution => "",
            Timers::Tick => "highres=off ",
        };
        format!(
            "console=ttyS0 quiet panic=-1 tsc=reliable nokaslr norandmaps random.trust_cpu=off \
             mitigations=off rootfstype=ramfs {timers}thalweg.seed={seed} rdinit={program} -- lab \
             guest {job}",
            // The kernel makes randomness of its command line, and QEMU 7.2 gives it no other.
            seed = self.seed,
            program = initial::program().display(),
            job = initial::JOB
        )
    }

    /// The command line for a reader, the same on every machine.
    fn command_line(&self) -> String {
        let image = format!("vmlinuz-{}", self.kernel.name);
        let words = std::iter::once(PROGRAM.to_owned()).chain(self.arguments(&image));
        let words: Vec<String> = words.map(|word| quote(&word)).collect();
        words.join(" ")
    }

    fn boot(&self, work: &Path) -> Result<Running, Error> {
        let mut command: Command = tool::command(PROGRAM);
        command.args(self.arguments(&self.kernel.image.to_string_lossy()));
        preload(&mut command, c"thalweg-lockstep.so", LOCKSTEP)?;
        Running::start(Kind::Qemu, &mut command, work)
    }
}

/// Boots the kernel, runs the scenarios there, and returns what they gave. On
/// every way out the kernel is gone, and so is its directory.
pub(crate) fn run(
    kernel: &Stock,
    timers: Timers,
    options: &Options,
    scenarios: &[Scenario],
) -> Result<Finished, Error> {
    let tree = Tree::read(&kernel.modules)?;
    let further = FURTHER
        .map(str::to_owned)
        .into_iter()
        .filter(|name| tree.has(name));
    let named = modules::of_congestion_controls(scenarios, &options.modes)
        // One that a scenario brings along is no module.
        .filter(|name| {
            let mut arms = scenarios.iter().flat_map(|scenario| &scenario.arms);
            tree.has(name) || !arms.any(|arm| format!("tcp_{}", arm.name) == *name)
        });
    let modules = tree.wanted(&format!("the kernel {}", kernel.name), further.chain(named))?;
    let machine = Machine {
        kernel,
        memory: guest::memory(Kind::Qemu, options, scenarios)?,
        shift: options.shift,
        seed: scenarios.first().map_or(0, |first| first.path.seed),
        timers,
    };
    let own = guest::program(options)?;
    workdir::remove_stale();
    let work = WorkDir::create()?;
    let started = options.started.clone().unwrap_or_else(run::now);
    // Now, and not after a minute, if it cannot be done.
    let directories = report::directories(options.out.as_deref(), scenarios, &started)?;

    let copies: Vec<(PathBuf, initial::Copy)> = options
        .scenarios
        .iter()
        .zip(scenarios)
        .enumerate()
        .map(|(index, (file, scenario))| (file.clone(), initial::copy(index, file, scenario)))
        .collect();
    let mut inner = options.clone();
    inner.scenarios = copies.iter().map(|(_, copy)| copy.file.clone()).collect();
    inner.policy_folders = copies.iter().map(|(_, copy)| copy.folder.clone()).collect();
    inner.out = Some(Path::new(initial::JOB).join(REPORTS));
    inner.agent_binary = initial::program();
    inner.progress = false;
    inner.channel = Some(guest::SERIAL.into());
    inner.command = Some(COMMAND.to_owned());
    inner.started = None;
    inner.kernel = None;
    inner.place.kernel_command = Some(machine.command_line());
    let job = Job {
        kind: Kind::Qemu,
        task: Task::Run(Box::new(inner)),
        current: "/".into(),
        modules: modules.iter().map(|file| initial::module(file)).collect(),
    };
    let needs = Needs {
        programs: vec![(initial::program(), own)],
        data: Vec::new(),
        modules: &modules,
        scenarios: &copies,
    };
    initial::write(&work.path().join(INITIAL), &job, &needs)?;

    let mut running = machine.boot(work.path())?;
    let result = guest::follow(&mut running, options, scenarios, SLOWNESS);
    result.map_err(|error| running.explain(error))?;
    let command = options.command.clone().unwrap_or_else(run::own_command);
    keep(&work, scenarios, &directories, &command)
}

/// A program to run on a kernel in QEMU, beside nothing else.
#[derive(Debug)]
pub struct Program<'a> {
    /// The `thalweg` binary, which is the first process there.
    pub thalweg: &'a Path,
    /// The program. `thalweg`, iproute2 and iperf3 are in its `PATH`.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables of its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Files that it reads; [`place`] tells where it finds them.
    pub data: &'a [&'a Path],
    /// What else it needs, by where it finds it: files, and programs with their libraries.
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// The kernel's memory; none: 1 GiB.
    pub memory: Option<Size>,
}

/// Where a program in QEMU finds a file that was brought along.
pub fn place(file: &Path) -> PathBuf {
    initial::data(file)
}

/// Runs a program as root on a kernel in QEMU and returns what it writes to its standard
/// output. An instruction takes a nanosecond there.
///
/// # Errors
/// What is missing on this machine or in the kernel; that the kernel died, with the end of its
/// console; that the program failed, with the first line of its standard error.
pub fn execute(kernel: &Stock, what: &Program<'_>) -> Result<String, Error> {
    let missing = missing();
    if !missing.is_empty() {
        return Err(Error::Preconditions(missing));
    }
    let options = Options {
        memory: what.memory,
        progress: false,
        boot_limit_s: Some(BUSY_BOOT_S),
        ..Options::default()
    };
    let further = FURTHER.map(str::to_owned).into_iter();
    let modules = modules_of(kernel, further)?;
    let machine = Machine {
        kernel,
        memory: guest::memory(Kind::Qemu, &options, &[])?,
        shift: 0,
        seed: 0,
        timers: Timers::HighResolution,
    };
    let _signals = interrupt::Guard::install()?;
    workdir::remove_stale();
    let work = WorkDir::create()?;
    let inside = initial::program_of(what.program);
    let job = Job {
        kind: Kind::Qemu,
        task: Task::Program {
            program: inside.clone(),
            arguments: what.arguments.clone(),
            environment: what.environment.clone(),
        },
        current: "/".into(),
        modules: modules.iter().map(|file| initial::module(file)).collect(),
    };
    let further = what.files.iter();
    let needs = Needs {
        programs: [
            (initial::program(), what.thalweg.to_owned()),
            (inside, what.program.to_owned()),
        ]
        .into_iter()
        .chain(further.map(|(place, file)| (place.clone(), file.clone())))
        .collect(),
        data: what
            .data
            .iter()
            .map(|file| (place(file), file.to_path_buf()))
            .collect(),
        modules: &modules,
        scenarios: &[],
    };
    initial::write(&work.path().join(INITIAL), &job, &needs)?;
    let mut running = machine.boot(work.path())?;
    let result = guest::follow(&mut running, &options, &[], SLOWNESS);
    result.map_err(|error| running.explain(error))?;
    guest::written(work.path())
}

/// The modules of a kernel that a run needs, and of `further` those that it has.
fn modules_of(
    kernel: &Stock,
    further: impl Iterator<Item = String>,
) -> Result<Vec<PathBuf>, Error> {
    let tree = Tree::read(&kernel.modules)?;
    let there = further.filter(|name| tree.has(name));
    tree.wanted(&format!("the kernel {}", kernel.name), there)
}

/// Puts what came out of the guest where it was asked for.
fn keep(
    work: &WorkDir,
    scenarios: &[Scenario],
    directories: &[PathBuf],
    command: &str,
) -> Result<Finished, Error> {
    let reports = work.path().join(REPORTS);
    let inside = report::directories(Some(&reports), scenarios, "")?;
    for (from, to) in inside.iter().zip(directories) {
        move_tree(from, to, command)?;
    }
    let mut finished: Finished = guest::result(work.path())?;
    finished.document["environment"]["command"] = command.into();
    for (index, directory) in directories.iter().enumerate() {
        finished.document["scenarios"][index]["report"] = directory.to_string_lossy().into();
    }
    Ok(finished)
}

/// Copies a directory; what stands for the command becomes the command.
fn move_tree(from: &Path, to: &Path, command: &str) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(Error::io("cannot create", to))?;
    let entries = fs::read_dir(from).map_err(Error::io("cannot read", from))?;
    for entry in entries {
        let entry = entry.map_err(Error::io("cannot read", from))?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            move_tree(&path, &place, command)?;
            continue;
        }
        let content = fs::read(&path).map_err(Error::io("cannot read", &path))?;
        let shown = match path.extension().and_then(|ending| ending.to_str()) {
            Some("html") => Some(escape(command)),
            // As JSON has it between quotes.
            Some("json") => serde_json::to_string(command)
                .ok()
                .map(|text| text[1..text.len() - 1].to_owned()),
            _ => None,
        };
        let content = match (shown, String::from_utf8(content)) {
            (Some(shown), Ok(text)) => text.replace(COMMAND, &shown).into_bytes(),
            (_, Ok(text)) => text.into_bytes(),
            (_, Err(other)) => other.into_bytes(),
        };
        fs::write(&place, content).map_err(Error::io("cannot write", &place))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_nothing_of_this_machine() {
        let image = "/root/.cache/vmlinuz-6.12.1".into();
        let kernel = Stock::new("6.12.1", None, image, "/absent".into(), None);
        let machine = Machine {
            kernel: &kernel,
            memory: Size::from_bytes(512 << 20),
            shift: 1,
            seed: 7,
            timers: Timers::Tick,
        };
        assert_eq!(
            machine.command_line(),
            "qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -M q35 -cpu \
             Nehalem,-cx16 -accel tcg -icount shift=1,sleep=off -rtc base=2026-01-01T00:00:00,clock=vm \
             -seed 7 -m 524288K -chardev file,id=console,path=console,append=on -serial \
             chardev:console -chardev file,id=messages,path=messages,append=on -serial \
             chardev:messages -kernel vmlinuz-6.12.1 -initrd initial.cpio -append 'console=ttyS0 \
             quiet panic=-1 tsc=reliable nokaslr norandmaps random.trust_cpu=off mitigations=off \
             rootfstype=ramfs highres=off thalweg.seed=7 rdinit=/usr/bin/thalweg -- lab guest /job'"
        );
    }
}
