//! The command inside the kernel: its start, its streams, signals to it, and its end.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{OpenptyResult, openpty};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::termios::{OutputFlags, SetArg, tcgetattr, tcsetattr};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Gid, Uid};
use thalweg_guest::system as kernel;

use crate::agent::Reporter;
use crate::control::{self, FromInside, Job, ToInside, WindowSize};
use crate::delivery;
use crate::error::Error;
use crate::inside::Link;
use crate::system_error;

/// Bytes read from a stream at once.
const CHUNK_BYTES: usize = 64 << 10;

/// The command with its streams and their carriers.
pub(crate) struct Program {
    pid: u32,
    terminal: Option<Arc<File>>,
    ended: Arc<EventFd>,
    carriers: Vec<JoinHandle<()>>,
}

impl Program {
    /// Starts it, or returns the system's answer.
    pub(crate) fn start_program(
        job: &Job,
        link: &Link,
        cgroup: Option<OwnedFd>,
    ) -> Result<Result<Self, i32>, Error> {
        fs::metadata(&job.directory)
            .map_err(Error::io("cannot enter the directory", &job.directory))?;
        let mut files: [Option<OwnedFd>; 3] = [const { None }; 3];
        let mut joints = Vec::new();
        let mut terminal = None;
        if let Some(wanted) = &job.terminal {
            let (master, slave) = open_terminal(job, wanted)?;
            for number in (0..3).filter(|&it| job.streams.is_terminal(it)) {
                files[number] = Some(slave.try_clone().map_err(stream_error())?);
            }
            let connection = link.connect_outside(control::TERMINAL)?;
            let master = File::from(master);
            if wanted.raw {
                let copies = (connection.try_clone(), master.try_clone());
                joints.push(Joint::In(
                    copies.0.map_err(stream_error())?,
                    copies.1.map_err(stream_error())?,
                ));
            }
            let copy = master.try_clone().map_err(stream_error())?;
            joints.push(Joint::Out(copy, connection));
            terminal = Some(Arc::new(master));
        }
        for (number, file) in files.iter_mut().enumerate() {
            if file.is_some() {
                continue;
            }
            let connection = link.connect_outside(control::STREAMS[number])?;
            let (from, to) = io::pipe().map_err(stream_error())?;
            let (from, to) = (OwnedFd::from(from), OwnedFd::from(to));
            // The command may open it once more, as /dev/stdout.
            fchown(&to, Some(job.user), Some(job.group)).map_err(stream_error())?;
            if number == 0 {
                joints.push(Joint::In(connection, to.into()));
                *file = Some(from);
            } else {
                joints.push(Joint::Out(from.into(), connection));
                *file = Some(to);
            }
        }
        let pid = match spawn_command(
            job,
            cgroup,
            files.map(|it| it.map(Stdio::from).unwrap_or_else(Stdio::null)),
        ) {
            Ok(pid) => pid,
            Err(error) => return Ok(Err(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        let ended = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)
            .map_err(system_error("cannot make an event descriptor"))?;
        let ended = Arc::new(ended);
        let mut carriers = Vec::new();
        for joint in joints {
            if let Some(carrier) = joint.carry_stream(&ended)? {
                carriers.push(carrier);
            }
        }
        Ok(Ok(Self {
            pid,
            terminal,
            ended,
            carriers,
        }))
    }

    /// Waits for its end, and reports it after all output was sent.
    pub(crate) fn wait_and_report(
        self,
        messages: &TcpStream,
        lines: BufReader<TcpStream>,
        learns: Option<&Reporter>,
    ) -> io::Result<()> {
        let (over, hurry) = (Arc::default(), Arc::default());
        let (pid, terminal) = (self.pid as i32, self.terminal);
        let known: (Arc<AtomicBool>, Arc<AtomicBool>) = (Arc::clone(&over), Arc::clone(&hurry));
        thread::spawn(move || obey_messages(lines, pid, terminal.as_deref(), &known.0, &known.1));
        let status = kernel::reap_child(self.pid).map_err(io::Error::other)?;
        over.store(true, Ordering::SeqCst);
        let _ = self.ended.write(1);
        for carrier in self.carriers {
            let _ = carrier.join();
        }
        let by_signal = matches!(status, WaitStatus::Signaled(..));
        delivery::wait_for_delivery(by_signal, &hurry);
        if let Some(learns) = learns {
            learns.report_last()?;
        }
        // This writes everything through to the machine's files.
        nix::unistd::sync();
        let code = match status {
            WaitStatus::Exited(_, code) => code as u8,
            WaitStatus::Signaled(_, signal, _) => 128 + signal as u8,
            other => return Err(io::Error::other(format!("an end that is none: {other:?}"))),
        };
        control::send_message(messages, &FromInside::Ended { code })
    }
}

/// Obeys messages from the process that started the kernel. A signal after the command's end
/// (`over`) means that its caller is in a `hurry`.
fn obey_messages(
    lines: BufReader<TcpStream>,
    pid: i32,
    terminal: Option<&File>,
    over: &AtomicBool,
    hurry: &AtomicBool,
) {
    for line in lines.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(ToInside::Signal { number, to_group }) if !over.load(Ordering::SeqCst) => {
                let target = if to_group { -pid } else { pid };
                // SAFETY: the arguments are two integers.
                unsafe { libc::kill(target, number) };
            }
            Ok(ToInside::Signal { .. }) => hurry.store(true, Ordering::SeqCst),
            Ok(ToInside::Resized(size)) => {
                if let Some(terminal) = terminal {
                    resize_terminal(terminal, size);
                }
            }
            _ => {}
        }
    }
}

fn resize_terminal(terminal: &File, size: WindowSize) {
    let size = to_winsize(size);
    // SAFETY: the call reads a structure that lives throughout.
    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
}

fn to_winsize(size: WindowSize) -> libc::winsize {
    libc::winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// A terminal of this size: its master, and its slave, which belongs to the user.
fn open_terminal(job: &Job, wanted: &control::Terminal) -> Result<(OwnedFd, OwnedFd), Error> {
    let failed = "cannot make a terminal";
    let size = to_winsize(wanted.size);
    let OpenptyResult { master, slave } = openpty(&size, None).map_err(system_error(failed))?;
    if !wanted.raw {
        // The terminal outside does that.
        let mut settings = tcgetattr(&slave).map_err(system_error(failed))?;
        settings.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).map_err(system_error(failed))?;
    }
    fchown(&slave, Some(job.user), None).map_err(stream_error())?;
    for descriptor in [&master, &slave] {
        nix::fcntl::fcntl(
            descriptor,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
        )
        .map_err(system_error(failed))?;
    }
    Ok((master, slave))
}

/// Starts the command as its user, in a session of its own, and in a cgroup if there is one.
fn spawn_command(job: &Job, cgroup: Option<OwnedFd>, streams: [Stdio; 3]) -> io::Result<u32> {
    let [input, output, errors] = streams;
    let mut command = Command::new(&job.command[0]);
    command
        .args(&job.command[1..])
        .env_clear()
        .envs(job.environment.iter().map(|(key, value)| (key, value)))
        .current_dir(&job.directory)
        .stdin(input)
        .stdout(output)
        .stderr(errors);
    let groups: Vec<Gid> = job.groups.iter().map(|&it| Gid::from_raw(it)).collect();
    let (user, group) = (Uid::from_raw(job.user), Gid::from_raw(job.group));
    let umask = job.umask;
    let limits = allowed_limits(job);
    let terminal = (0..3).find(|&it| job.streams.is_terminal(it));
    let terminal = terminal.filter(|_| job.terminal.is_some());
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            if let Some(cgroup) = &cgroup {
                // 0 means the process that writes (cgroups(7)).
                nix::unistd::write(cgroup, b"0")?;
            }
            nix::unistd::setsid()?;
            if let Some(number) = terminal
                && libc::ioctl(number as i32, libc::TIOCSCTTY, 0) != 0
            {
                return Err(io::Error::last_os_error());
            }
            for (number, limit) in (0..).zip(&limits) {
                if libc::setrlimit(number, limit) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            nix::unistd::setgroups(&groups)?;
            nix::unistd::setgid(group)?;
            nix::unistd::setuid(user)?;
            libc::umask(umask as libc::mode_t);
            Ok(())
        });
    }
    Ok(command.spawn()?.id())
}

/// The command's limits, as far as this kernel allows them.
fn allowed_limits(job: &Job) -> Vec<libc::rlimit> {
    let most = fs::read_to_string("/proc/sys/fs/nr_open").unwrap_or_default();
    let most: u64 = most.trim().parse().unwrap_or(libc::RLIM_INFINITY);
    let mut limits: Vec<_> = job
        .limits
        .iter()
        .map(|&(rlim_cur, rlim_max)| libc::rlimit { rlim_cur, rlim_max })
        .collect();
    if let Some(files) = limits.get_mut(libc::RLIMIT_NOFILE as usize) {
        files.rlim_cur = files.rlim_cur.min(most);
        files.rlim_max = files.rlim_max.min(most);
    }
    limits
}

/// A stream of the command, with its connection.
enum Joint {
    In(TcpStream, File),
    Out(File, TcpStream),
}

impl Joint {
    /// Carries the stream. The thread is returned if its end must be awaited.
    fn carry_stream(self, ended: &Arc<EventFd>) -> Result<Option<JoinHandle<()>>, Error> {
        let builder = thread::Builder::new();
        match self {
            Self::In(from, to) => builder.spawn(move || carry_in(&from, to)).map(|_| None),
            Self::Out(from, to) => {
                let ended = Arc::clone(ended);
                builder
                    .spawn(move || carry_out(from, &to, &ended))
                    .map(Some)
            }
        }
        .map_err(stream_error())
    }
}

/// Carries input to the command, until it ends or nobody reads it.
fn carry_in(mut from: &TcpStream, mut to: File) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Read);
}

/// Carries output of the command until nobody reads it, or until the command has ended and the pipe
/// is empty. Other processes may still hold the pipe open then.
fn carry_out(mut from: File, mut to: &TcpStream, ended: &EventFd) {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let mut watched = [
            PollFd::new(from.as_fd(), PollFlags::POLLIN),
            PollFd::new(ended.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => break,
        }
        let [stream, ended] = watched.map(|it| it.revents().unwrap_or(PollFlags::empty()));
        if stream.contains(PollFlags::POLLIN) {
            match from.read(&mut bytes) {
                Ok(count @ 1..) if to.write_all(&bytes[..count]).is_ok() => {}
                _ => break,
            }
        } else if !stream.is_empty() || !ended.is_empty() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn stream_error() -> impl FnOnce(io::Error) -> Error {
    Error::system("cannot make the command's streams")
}
