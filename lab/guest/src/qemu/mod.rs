//! A distribution's stock kernel in QEMU, in virtual time. The clock counts instructions, and jumps
//! to the next timer while all wait. No figure depends on the machine or its load, and no privilege
//! is needed.
//!
//! The kernel unpacks a file system made here (`initial`) and starts this program. After that no
//! input reaches it: an interrupt from outside would come at another moment in each run.

pub mod cpio;
mod initial;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use thalweg_process::interrupt;
use thalweg_process::tool::{self, quote_word};
use thalweg_units::Size;

use crate::channel::CHANNEL;
use crate::error::Error;
use crate::inside::GUEST_ARGUMENTS;
use crate::kernels::Stock;
use crate::modules::Tree;
use crate::preload::preload_library;
use crate::running::{CONSOLE, Running};
use crate::ticks::Timers;
use crate::workdir::{self, WorkDir};
use crate::{
    DEFAULT_MEMORY, Job, KernelKind, Limits, Task, follow_messages, read_answer, read_output,
};
pub use initial::{JOB, Needs, program_path};

/// The library that makes QEMU's threads take turns (`lockstep.c`), built by `build.rs`.
#[cfg(target_arch = "x86_64")]
static LOCKSTEP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lockstep.so"));
#[cfg(not(target_arch = "x86_64"))]
static LOCKSTEP: &[u8] = &[];
/// The emulator and its package.
const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
/// The processor. A named model is the same on every machine and in every version of QEMU. This is
/// the newest that QEMU 7.2 emulates fully, and it has no random numbers. cmpxchg16b is switched
/// off: QEMU 7.2 may leave one of its operands in the flags when an interrupt comes. The kernel's
/// allocator uses it and would end in a double fault.
const PROCESSOR: &str = "Nehalem,-cx16";
/// The guest's time at boot.
const BEGIN: &str = "2026-01-01T00:00:00";
/// The initial file system, in the work directory.
const INITIAL: &str = "initial.cpio";
/// Modules that are used if the kernel has them.
const FURTHER: [&str; 2] = ["tcp_diag", "tun"];
/// Factor by which it may be slower than real time.
const SLOWNESS: u32 = 60;
/// Time limit for booting a guest that runs a program, seconds. It takes some ten seconds of a
/// processor, which other guests may be using.
const BUSY_BOOT_S: u64 = 1800;

/// Everything that this machine lacks for QEMU, one line each.
pub fn missing_requirements() -> Vec<String> {
    let own = [(PROGRAM, PACKAGE), ("ldd", "libc-bin")];
    let mut missing = crate::missing_programs(own.into_iter().chain(crate::TOOLS));
    if !cfg!(target_arch = "x86_64") {
        missing.push("no x86-64: the kernels are for that, and run this program".to_owned());
    }
    missing
}

/// QEMU's own version line.
///
/// # Errors
/// [`Error::Process`] if QEMU cannot be started.
pub fn qemu_version() -> Result<String, Error> {
    let output = tool::program_command(PROGRAM)
        .arg("--version")
        .output()
        .map_err(Error::system(format!("cannot start {PROGRAM}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// A machine: kernel, memory, clock.
#[derive(Debug, Clone)]
pub struct Machine<'a> {
    /// The kernel.
    pub kernel: &'a Stock,
    /// Memory of the machine.
    pub memory: Size,
    /// An instruction takes 2^shift nanoseconds.
    pub shift: u8,
    /// Seed of all its randomness.
    pub seed: u64,
    /// Whether timers wait for the tick.
    pub timers: Timers,
}

impl Machine<'_> {
    /// The arguments of QEMU. File names are relative to the work directory; `image` is used as
    /// given.
    fn qemu_arguments(&self, image: &str) -> Vec<String> {
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
        words.push(self.kernel_parameters());
        words
    }

    /// The kernel's own command line (Documentation/admin-guide/kernel-parameters).
    fn kernel_parameters(&self) -> String {
        let timers = match self.timers {
            Timers::HighResolution => "",
            Timers::Tick => "highres=off ",
        };
        format!(
            "console=ttyS0 quiet panic=-1 tsc=reliable nokaslr norandmaps random.trust_cpu=off \
             mitigations=off rootfstype=ramfs {timers}thalweg.seed={seed} rdinit={program} -- \
             {words} {job}",
            // The kernel takes randomness from its command line; QEMU 7.2 gives it no other.
            seed = self.seed,
            program = initial::program_path().display(),
            words = GUEST_ARGUMENTS.join(" "),
            job = initial::JOB
        )
    }

    /// The command line for a reader, the same on every machine.
    pub fn command_line(&self) -> String {
        let image = format!("vmlinuz-{}", self.kernel.name);
        let words = std::iter::once(PROGRAM.to_owned()).chain(self.qemu_arguments(&image));
        let words: Vec<String> = words.map(|word| quote_word(&word)).collect();
        words.join(" ")
    }

    fn boot_kernel(&self, work: &Path) -> Result<Running, Error> {
        let mut command: Command = tool::program_command(PROGRAM);
        command.args(self.qemu_arguments(&self.kernel.image.to_string_lossy()));
        preload_library(&mut command, c"thalweg-lockstep.so", LOCKSTEP)?;
        Running::start_kernel(KernelKind::Qemu, &mut command, work)
    }

    /// The files of the needed modules.
    ///
    /// # Errors
    /// [`Error::Preconditions`] with the first that the kernel lacks.
    pub fn needed_modules(&self, needs: &Needs) -> Result<Vec<PathBuf>, Error> {
        let tree = Tree::read(&self.kernel.modules)?;
        let always = FURTHER.map(str::to_owned);
        let wished = always.into_iter().chain(needs.wished.iter().cloned());
        let there = wished.filter(|name| tree.has_module(name));
        let further = there.chain(needs.modules.iter().cloned());
        tree.wanted_files(&format!("the kernel {}", self.kernel.name), further)
    }

    /// Hands a document in, and returns the answer and the work directory with the other results,
    /// below [`crate::OUT`]. `own` is this program. `told` takes the job's messages, and returns
    /// their faults.
    ///
    /// # Errors
    /// A missing module; a kernel that does not boot, hangs or dies; a failure inside.
    pub fn run_document(
        &self,
        own: &Path,
        document: Value,
        needs: Needs,
        limits: Limits,
        told: &mut dyn FnMut(Value) -> Result<(), String>,
    ) -> Result<(Value, WorkDir), Error> {
        let task = Task::Document(document);
        let work = self.run_guest_task(own, task, needs, limits, told)?;
        Ok((read_answer(work.path())?, work))
    }

    /// Has a task done, and returns the directory with its results.
    fn run_guest_task(
        &self,
        own: &Path,
        task: Task,
        mut needs: Needs,
        limits: Limits,
        told: &mut dyn FnMut(Value) -> Result<(), String>,
    ) -> Result<WorkDir, Error> {
        let modules = self.needed_modules(&needs)?;
        workdir::remove_stale();
        let work = WorkDir::create()?;
        let job = Job {
            kind: KernelKind::Qemu,
            task,
            current: "/".into(),
            modules: modules
                .iter()
                .map(|file| initial::module_path(file))
                .collect(),
        };
        needs.programs.insert(0, (program_path(), own.to_owned()));
        initial::write_initial(&work.path().join(INITIAL), &job, &modules, &needs)?;
        let mut running = self.boot_kernel(work.path())?;
        let done = follow_messages(&mut running, limits, SLOWNESS, told);
        done.map_err(|error| running.explain_error(error))?;
        Ok(work)
    }
}

/// A program to run alone on a kernel in QEMU.
#[derive(Debug)]
pub struct Program<'a> {
    /// The `thalweg-lab` binary, the first process there.
    pub laboratory: &'a Path,
    /// The program. iproute2 and iperf3 are in its `PATH`.
    pub program: &'a Path,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Variables of its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Files that it reads; [`path_in_guest`] gives their paths there.
    pub data: &'a [&'a Path],
    /// Further files, and programs with their libraries, by their paths there.
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// The kernel's memory; none: 1 GiB.
    pub memory: Option<Size>,
}

/// The path in QEMU of a file in [`Program::data`].
pub fn path_in_guest(file: &Path) -> PathBuf {
    initial::data_path(file)
}

/// Runs a program as root on a kernel in QEMU and returns its standard output. An instruction takes
/// a nanosecond.
///
/// # Errors
/// Something is missing on this machine or in the kernel. The kernel died, with the end of its
/// console. The program failed, with the first line of its standard error.
pub fn run_program(kernel: &Stock, what: &Program<'_>) -> Result<String, Error> {
    let missing = missing_requirements();
    if !missing.is_empty() {
        return Err(Error::Preconditions(missing));
    }
    let memory = what.memory.unwrap_or(DEFAULT_MEMORY);
    crate::check_available(KernelKind::Qemu, memory, "--memory")?;
    let machine = Machine {
        kernel,
        memory,
        shift: 0,
        seed: 0,
        timers: Timers::HighResolution,
    };
    let _signals = interrupt::Guard::install_handlers()?;
    let inside = initial::program_of(what.program);
    let task = Task::Program {
        program: inside.clone(),
        arguments: what.arguments.clone(),
        environment: what.environment.clone(),
    };
    let own = [(inside, what.program.to_owned())];
    let further = what.files.iter();
    let further = further.map(|(place, file)| (place.clone(), file.clone()));
    let data = what.data.iter();
    let needs = Needs {
        programs: own.into_iter().chain(further).collect(),
        data: data
            .map(|file| (path_in_guest(file), file.to_path_buf()))
            .collect(),
        ..Needs::default()
    };
    let limits = Limits {
        boot_s: Some(BUSY_BOOT_S),
        silence: Duration::ZERO,
    };
    let nothing = &mut |_| Ok(());
    let work = machine.run_guest_task(what.laboratory, task, needs, limits, nothing)?;
    read_output(work.path())
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
             rootfstype=ramfs highres=off thalweg.seed=7 rdinit=/usr/bin/thalweg-lab -- guest /job'"
        );
    }
}
