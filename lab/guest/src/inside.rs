//! Inside a kernel that is a process: its first process, and the job.
//!
//! This program is both. As process 1 it mounts file systems, inserts modules, starts itself once
//! more, and stops the machine after that child has ended. The child does the job. The work
//! directory (job and answer) and the channel (progress and end) connect both with the process that
//! started the kernel. A user-mode kernel shares the machine's files. In QEMU the work directory is
//! part of the initial file system, and answers go through the channel, a serial line.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::statfs::{FsType, statfs};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::wait::WaitStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::channel::{CHANNEL, Channel, Message, SERIAL};
use crate::error::Error;
use crate::system::{self, TEMPORARY, insert_module, mount_all, mount_one, reap_child, set_sysctl};
use crate::{KernelKind, available_bytes};

/// `RAMFS_MAGIC`, linux/magic.h: the type of an unpacked initial file system.
const RAMFS: FsType = FsType(0x8584_58f6_u32 as _);
/// Directory in the work directory where a job in QEMU leaves its result files.
pub const OUT: &str = "reports";
const JOB: &str = "job.json";
const ANSWER: &str = "result.json";
const ERROR: &str = "error";
/// The arguments with which this program calls [`main`]; the work directory follows.
pub(crate) const GUEST_ARGUMENTS: [&str; 1] = ["guest"];
/// A kernel boots with timers that wait for ticks, and switches to others at one of its first
/// ticks. In simulated time those ticks are still to come after booting.
const SETTLING: Duration = Duration::from_millis(100);
/// The job of a kernel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The kind of the kernel.
    pub(crate) kind: KernelKind,
    /// Task of the job.
    pub(crate) task: Task,
    /// The directory where relative paths begin.
    pub(crate) current: PathBuf,
    /// Modules to insert, in this order.
    pub(crate) modules: Vec<PathBuf>,
}

/// The task of a kernel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Only boot.
    Boot,
    /// A document; the answer is another.
    Document(Value),
    /// A program; the answer is its standard output.
    Program {
        program: PathBuf,
        arguments: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
    },
}

impl Job {
    /// The document, and its name in the work directory.
    ///
    /// # Errors
    /// [`Error::Process`] if a path cannot be written as JSON.
    pub(crate) fn as_document(&self) -> Result<(&'static str, Vec<u8>), Error> {
        let text = serde_json::to_vec(self);
        let text = text.map_err(|error| Error::system("cannot write the job")(error.into()))?;
        Ok((JOB, text))
    }

    fn read_job(work: &Path) -> Result<Self, Error> {
        read_json(&work.join(JOB))
    }
}

/// The answer to a document, from the work directory.
pub(crate) fn read_answer(work: &Path) -> Result<Value, Error> {
    read_json(&work.join(ANSWER))
}

/// The output of a program.
pub(crate) fn read_output(work: &Path) -> Result<String, Error> {
    let file = work.join(ANSWER);
    fs::read_to_string(&file).map_err(Error::io("cannot read", file))
}

/// Does the job of a work directory. As process 1 of a kernel it prepares the system instead and
/// starts itself for the job. `answer` handles a document.
///
/// # Errors
/// There is no job, or it fails. As process 1 it stops the machine and does not return.
pub fn main<E: Display + From<Error>>(
    work: &Path,
    answer: impl FnOnce(Value) -> Result<Value, E>,
) -> Result<(), E> {
    if std::process::id() != 1 {
        return do_job(work, answer);
    }
    // A container has a process 1, too, which must not stop the machine.
    let root = statfs("/").map(|it| it.filesystem_type());
    let kind = match root {
        _ if system::is_user_mode() => KernelKind::UserMode,
        Ok(RAMFS) if work.join(JOB).is_file() => KernelKind::Qemu,
        _ => {
            let why = "`thalweg-lab guest` is what the laboratory starts in a kernel of its own; it is of \
                       no use elsewhere";
            return Err(Error::Options(why.to_owned()).into());
        }
    };
    let channel = match kind {
        KernelKind::UserMode => Channel::open(&work.join(CHANNEL)),
        KernelKind::Qemu => open_serial(),
    };
    let told = channel.and_then(|channel| {
        let end = be_first_process(kind, work, &channel);
        let error = end.err().map(|error| match error {
            Error::Inside { why, .. } => why,
            other => other.to_string(),
        });
        channel.send_message(&Message::End { error })
    });
    if let Err(error) = told {
        eprintln!("{error}");
    }
    nix::unistd::sync();
    let never = reboot(match kind {
        KernelKind::UserMode => RebootMode::RB_POWER_OFF,
        // A reset ends QEMU. After power-off the processor would run on and block it.
        KernelKind::Qemu => RebootMode::RB_AUTOBOOT,
    });
    let failed = Error::system(format!("cannot stop the machine: {never:?}"));
    Err(failed(io::ErrorKind::Other.into()).into())
}

/// The second serial line, raw.
fn open_serial() -> Result<Channel, Error> {
    mount_one("devtmpfs", "/dev", "")?;
    let line = Channel::open(Path::new(SERIAL))?;
    tcgetattr(line.file())
        .and_then(|mut settings| {
            cfmakeraw(&mut settings);
            tcsetattr(line.file(), SetArg::TCSANOW, &settings)
        })
        .map_err(|errno| Error::io("cannot set up", SERIAL)(errno.into()))?;
    Ok(line)
}

/// Sends the answer and the files in [`OUT`], if there are any.
fn send_results(work: &Path, channel: &Channel) -> Result<(), Error> {
    let mut open = vec![PathBuf::from(ANSWER), PathBuf::from(OUT)];
    open.retain(|path| work.join(path).exists());
    while let Some(path) = open.pop() {
        let here = work.join(&path);
        let failed = || Error::io("cannot read", &here);
        if here.is_dir() {
            let entries = fs::read_dir(&here).map_err(failed())?;
            let mut names: Vec<PathBuf> = entries
                .map(|entry| Ok(path.join(entry.map_err(failed())?.file_name())))
                .collect::<Result<_, Error>>()?;
            // Sorted, as the order of the directory may differ.
            names.sort();
            open.extend(names);
            continue;
        }
        let content = fs::read(&here).map_err(failed())?;
        channel.send_file(path, &content)?;
    }
    Ok(())
}

/// Does the job itself.
fn do_job<E: Display + From<Error>>(
    work: &Path,
    answer: impl FnOnce(Value) -> Result<Value, E>,
) -> Result<(), E> {
    let file = work.join(ANSWER);
    let done = match Job::read_job(work)?.task {
        Task::Boot => Ok(()),
        Task::Document(document) => {
            answer(document).and_then(|answer| Ok(write_json(&answer, &file)?))
        }
        Task::Program {
            program,
            arguments,
            environment,
        } => {
            let mut command = Command::new(&program);
            command.args(arguments).envs(environment);
            execute_program(command, &file).map_err(E::from)
        }
    };
    if let Err(error) = &done {
        let file = work.join(ERROR);
        fs::write(&file, error.to_string()).map_err(Error::io("cannot write", file))?;
    }
    done
}

/// Runs a program to its end, with its output in a file.
fn execute_program(mut command: Command, file: &Path) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Error::system(format!("cannot start {name}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it said nothing");
        let why = format!("{name}: {}: {first}", output.status);
        return Err(Error::Inside {
            kind: KernelKind::Qemu,
            why,
        });
    }
    fs::write(file, output.stdout).map_err(Error::io("cannot write", file))
}

fn be_first_process(kind: KernelKind, work: &Path, channel: &Channel) -> Result<(), Error> {
    mount_all()?;
    let job = Job::read_job(work)?;
    for module in &job.modules {
        insert_module(module)?;
    }
    apply_settings()?;
    std::thread::sleep(SETTLING);
    channel.send_message(&Message::Ready)?;
    let program = std::env::current_exe().map_err(Error::system("cannot find this program"))?;
    let mut child = Command::new(program)
        .args(GUEST_ARGUMENTS)
        .arg(work)
        .current_dir(&job.current)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/run")
        .env("TMPDIR", TEMPORARY)
        .spawn()
        .map_err(Error::system("cannot start the job"))?;
    let status = reap_child(child.id());
    // The child is reaped above; this only tells the standard library.
    let _ = child.try_wait();
    match status? {
        WaitStatus::Exited(_, 0) if kind == KernelKind::Qemu => send_results(work, channel),
        WaitStatus::Exited(_, 0) => Ok(()),
        status => Err(Error::Inside {
            kind,
            why: fs::read_to_string(work.join(ERROR))
                .unwrap_or_else(|_| format!("the run ended without a result: {status:?}")),
        }),
    }
}

/// Settings of the whole kernel, outside network namespaces.
fn apply_settings() -> Result<(), Error> {
    // A burst that leaves a delay passes a queue at each veth link. 1000 packets, the default,
    // would lose some of it.
    set_sysctl("net.core.netdev_max_backlog", "1000000")?;
    // TCP may use 9 % of the memory by default. But this kernel may have two hosts with windows of
    // 100 MB. The values are pages: no pressure, pressure, maximum.
    let pages = fs::read_to_string("/proc/meminfo")
        .ok()
        .as_deref()
        .and_then(available_bytes)
        .unwrap_or(64 << 20)
        / 4096;
    set_sysctl(
        "net.ipv4.tcp_mem",
        &format!("{} {} {}", pages / 2, pages / 8 * 5, pages / 4 * 3),
    )
}

/// Writes a JSON file through to the machine's file system.
fn write_json(value: &impl Serialize, file: &Path) -> Result<(), Error> {
    let failed = || Error::io("cannot write", file);
    let text = serde_json::to_vec(value).map_err(|error| failed()(error.into()))?;
    let mut output = File::create(file).map_err(failed())?;
    output
        .write_all(&text)
        .and_then(|()| output.sync_all())
        .map_err(failed())
}

fn read_json<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<T, Error> {
    let text = fs::read(file).map_err(Error::io("cannot read", file))?;
    serde_json::from_slice(&text).map_err(|error| Error::io("cannot read", file)(error.into()))
}
