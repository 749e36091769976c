//! Starts a user-mode kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, Pid, access};

use thalweg_process::tool::quote_word;
use thalweg_units::Size;

use super::{Kernel, ptrace};
use crate::error::Error;
use crate::inside::GUEST_ARGUMENTS;
use crate::running::Running;
use crate::{Job, KernelKind, workdir};

/// The kernel's first process: a link in the work directory.
const INIT: &str = "thalweg-lab";
/// The calling thread, for sched_setaffinity(2).
const THIS: Pid = Pid::from_raw(0);

/// A kernel, its memory, and its work directory.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Memory of the machine.
    pub memory: Size,
    /// The work directory, absolute.
    pub work: &'a Path,
}

/// Whether a text can be one word of a kernel's command line, and a directory of user-mode Linux.
pub(super) fn can_be_a_word(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_./+@:~".contains(&byte))
}

impl Machine<'_> {
    /// The kernel's command line for a reader. `DIR` stands for the work directory, which does not
    /// last.
    pub(super) fn command_line(&self) -> String {
        let program = self.kernel.program.display().to_string();
        let work = self.work.display().to_string();
        let words: Vec<String> = std::iter::once(program)
            .chain(self.kernel_arguments(&[], &self.first_process_arguments()))
            .map(|word| quote_word(&word.replace(&work, "DIR")))
            .collect();
        words.join(" ")
    }

    /// The arguments of this program as the kernel's first process.
    fn first_process_arguments(&self) -> Vec<String> {
        let work = self.work.display().to_string();
        GUEST_ARGUMENTS
            .map(str::to_owned)
            .into_iter()
            .chain([work])
            .collect()
    }

    /// The kernel's arguments (`arch/um`, Documentation/admin-guide/kernel-parameters), with these
    /// devices and arguments of the first process.
    fn kernel_arguments(&self, devices: &[String], inside: &[String]) -> Vec<String> {
        let work = self.work.display();
        let mut words = vec![
            format!("mem={}K", self.memory.bytes() / 1024),
            // The machine's files, with the user's rights.
            "root=/dev/root".to_owned(),
            "rootfstype=hostfs".to_owned(),
            "rootflags=/".to_owned(),
            "rw".to_owned(),
            "quiet".to_owned(),
            // Unless it is named here, the kernel appends it to the first process's arguments.
            "console=tty0".to_owned(),
            // The console goes to standard output. There is no other terminal, and no xterm.
            "con=null".to_owned(),
            "con0=null,fd:1".to_owned(),
            // Directory of its pid file and control socket; the default is in $HOME.
            workdir::uml_dir(self.work),
            "umid=kernel".to_owned(),
        ];
        words.extend(self.kernel.words.iter().chain(devices).cloned());
        words.push(format!("init={work}/{INIT}"));
        words.push("--".to_owned());
        words.extend(inside.iter().cloned());
        words
    }

    /// Starts the kernel for a job of `program`.
    pub(super) fn boot_job(&self, job: &Job, program: &Path) -> Result<Running, Error> {
        let (name, document) = job.as_document()?;
        let file = self.work.join(name);
        fs::write(&file, document).map_err(Error::io("cannot write", file))?;
        let mut command = self.kernel_command(
            program,
            &[],
            &self.first_process_arguments(),
            next_processor(),
        )?;
        Running::start_kernel(KernelKind::UserMode, &mut command, self.work)
    }

    /// The command that starts the kernel with `program` as its first process, on one [`next_processor`]
    /// of the machine.
    ///
    /// # Errors
    /// The work directory cannot be used, or no directory has room for the memory.
    pub fn kernel_command(
        &self,
        program: &Path,
        devices: &[String],
        inside: &[String],
        processor: Option<usize>,
    ) -> Result<Command, Error> {
        symlink(program, self.work.join(INIT))
            .map_err(Error::io("cannot create a link in", self.work))?;
        let mut command = Command::new(&self.kernel.program);
        without_randomization(&mut command);
        if let Some(processor) = processor {
            pin_to_processor(&mut command, processor)?;
        }
        if !self.kernel.sets_all_state {
            ptrace::wrap_ptrace(&mut command)?;
        }
        command
            .args(self.kernel_arguments(devices, inside))
            .envs(self.kernel.environment.iter().cloned())
            .env("TMPDIR", self.memory_directory()?);
        Ok(command)
    }

    /// The directory of the kernel's memory, an unnamed file: in memory if the machine has room
    /// there, else the work directory.
    fn memory_directory(&self) -> Result<PathBuf, Error> {
        let shared = PathBuf::from("/dev/shm");
        for directory in [shared, self.work.to_owned()] {
            let suits = statvfs(&directory).is_ok_and(|it| {
                let room = it.blocks_available() * it.fragment_size();
                // Programs inside are executed from this memory.
                room >= self.memory.bytes() && !it.flags().contains(FsFlags::ST_NOEXEC)
            });
            if suits && access(&directory, AccessFlags::W_OK).is_ok() {
                return Ok(directory);
            }
        }
        Err(Error::Options(format!(
            "user-mode Linux shall have {} of memory, but neither /dev/shm nor {} has that room \
             and may hold programs (not mounted noexec): ask for less (--memory), or set TMPDIR \
             to another directory",
            self.memory,
            self.work.display()
        )))
    }
}

/// Switches off the randomization of the program's address space. The kernel's memory begins after
/// its heap, and its size depends on that distance.
fn without_randomization(command: &mut Command) {
    // SAFETY: between fork and exec only personality(2) is called, a bare system call.
    unsafe {
        command.pre_exec(|| {
            let asked = libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
            // A container may refuse it; then two runs differ a little.
            libc::personality(asked);
            Ok(())
        });
    }
}

/// Ties the kernel and everything on it to one processor of the machine. They take turns at each
/// system call of a program (ptrace), and waking another processor takes longer than the call.
/// Nothing in such a kernel runs in parallel anyway.
fn pin_to_processor(command: &mut Command, processor: usize) -> Result<(), Error> {
    let mut one = CpuSet::new();
    one.set(processor)
        .map_err(|error| Error::system("a processor")(error.into()))?;
    // SAFETY: between fork and exec only sched_setaffinity(2) is called.
    unsafe {
        command.pre_exec(move || Ok(sched_setaffinity(THIS, &one)?));
    }
    Ok(())
}

/// One of the processors that this process may use; none if they are unknown. Kernels of one
/// process get different ones while there are enough. Kernels of several processes may share one.
pub fn next_processor() -> Option<usize> {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let all = allowed_processors();
    let turn = TURN.fetch_add(1, Ordering::Relaxed) + std::process::id() as usize;
    all.get(turn % all.len().max(1)).copied()
}

/// The processors that this process may use.
pub fn allowed_processors() -> Vec<usize> {
    let allowed = sched_getaffinity(THIS).unwrap_or_default();
    (0..CpuSet::count())
        .filter(|&it| allowed.is_set(it) == Ok(true))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_take_turns_on_the_processors() {
        let allowed = allowed_processors();
        let mut given: Vec<usize> = allowed.iter().filter_map(|_| next_processor()).collect();
        given.sort_unstable();
        assert_eq!(given, allowed);
    }

    fn kernel() -> Kernel {
        Kernel {
            program: "/usr/bin/linux.uml".into(),
            modules: Vec::new(),
            words: vec!["time-travel=inf-cpu".to_owned()],
            environment: Vec::new(),
            slowness: 1,
            sets_all_state: false,
        }
    }

    #[test]
    fn the_command_line_of_the_kernel() {
        let kernel = kernel();
        let machine = Machine {
            kernel: &kernel,
            memory: Size::from_bytes(512 << 20),
            work: Path::new("/tmp/w"),
        };
        assert_eq!(
            machine.command_line(),
            "/usr/bin/linux.uml mem=524288K root=/dev/root rootfstype=hostfs rootflags=/ rw quiet \
             console=tty0 con=null con0=null,fd:1 uml_dir=DIR/ umid=kernel \
             time-travel=inf-cpu init=DIR/thalweg-lab -- guest DIR"
        );
    }

    #[test]
    fn words_of_a_kernels_command_line() {
        assert!(can_be_a_word("/tmp/thalweg-lab-1-kernel0"));
        for text in ["/tmp/a b", "/tmp/\"", "/tmp/a,b", "/tmp/ä", "a=b"] {
            assert!(!can_be_a_word(text), "{text}");
        }
    }
}
