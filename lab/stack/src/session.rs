//! This side of a running command: its streams, signals and end.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::socket::{setsockopt, sockopt};
use thalweg_guest::{BOOT, CONSOLE, Error as GuestError, KernelKind, console};
use thalweg_process::Process;
use thalweg_process::signals::{CaughtSignal, Signals};

use crate::contact::Contact;
use crate::control::{self, FromInside, Job, ToInside};
use crate::error::Error;
use crate::learn::Store;
use crate::terminal::{self, Raw};

/// Time that the command gets to end after it was asked to, and the kernel to report it.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes read from a stream at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The begin of an error message of the process inside, on the console.
pub(crate) const COMPLAINT: &str = "thalweg-lab stack: ";

/// A running kernel with its connections. Dropped, it is killed with all its processes.
pub(crate) struct Session<'a> {
    kernel: Process,
    contact: &'a Contact,
    signals: &'a Signals,
    work: &'a Path,
    store: Option<&'a Store>,
    boot: Duration,
    /// Why the last learned records are not in the store.
    unkept: Option<String>,
    messages: Option<TcpStream>,
    received: Vec<u8>,
    /// The connections of the standard streams, by number, and of the terminal.
    streams: [Option<TcpStream>; 4],
}

/// An event.
enum Event {
    Signal(CaughtSignal),
    Connection(TcpStream),
    Message(FromInside),
    /// The deadline has passed.
    Late,
}

/// Threads that carry the command's output, and the connections, all open until the end.
#[derive(Default)]
struct Carriers {
    threads: Vec<JoinHandle<()>>,
    connections: Vec<TcpStream>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        kernel: Process,
        contact: &'a Contact,
        signals: &'a Signals,
        work: &'a Path,
        store: Option<&'a Store>,
        boot: Option<Duration>,
    ) -> Self {
        Self {
            kernel,
            contact,
            signals,
            work,
            store,
            boot: boot.unwrap_or(BOOT),
            unkept: None,
            messages: None,
            received: Vec::new(),
            streams: [const { None }; 4],
        }
    }

    /// Has the job done, and returns the exit code of its command.
    pub(crate) fn run_job(mut self, job: &Job, program: &OsStr) -> Result<u8, Error> {
        match self.hand_in_job(job)? {
            FromInside::Started => {}
            FromInside::NotStarted { errno } => {
                return Err(thalweg_link::Error::Start {
                    program: program.to_owned(),
                    why: io::Error::from_raw_os_error(errno),
                }
                .into());
            }
            FromInside::Failed { why } => return Err(failed_inside(why)),
            FromInside::Ended { code } => return Ok(code),
            // These are handled when they arrive.
            FromInside::Note { .. } | FromInside::Learned | FromInside::NotLearned { .. } => {}
        }
        let raw = job.terminal.is_some_and(|it| it.raw);
        let raw = raw.then(Raw::set_raw).transpose()?;
        let carriers = self.carry_streams(job)?;
        let code = self.supervise_command();
        if code.is_err() {
            carriers.cut_streams();
        }
        carriers.wait_until_written();
        drop(raw);
        if let Some(why) = self.unkept.take() {
            eprintln!("{COMPLAINT}what was learned is not kept: {why}");
        }
        code
    }

    /// Hands the job in and returns its outcome. A signal meanwhile ends everything.
    fn hand_in_job(&mut self, job: &Job) -> Result<FromInside, Error> {
        let mut deadline = Instant::now() + self.boot;
        loop {
            match self.next(Some(deadline))? {
                Event::Signal(caught) if caught.ends_process() => {
                    let code = 128 + caught.number as u8;
                    return Ok(FromInside::Ended { code });
                }
                Event::Signal(_) => {}
                Event::Connection(connection) => {
                    self.take_connection(connection, job)?;
                    // It has booted, and gets as long again to be set up.
                    deadline = Instant::now() + self.boot;
                }
                Event::Message(FromInside::Note { text }) => eprintln!("{COMPLAINT}{text}"),
                Event::Message(message) => return Ok(message),
                Event::Late => {
                    return Err(GuestError::Kernel {
                        what: format!(
                            "user-mode Linux did not boot within {} s (--boot-limit)",
                            self.boot.as_secs()
                        ),
                        console: console::last_lines(&self.console_text()),
                    }
                    .into());
                }
            }
        }
    }

    /// Takes a connection from inside, whose first byte tells its purpose.
    fn take_connection(&mut self, connection: TcpStream, job: &Job) -> Result<(), Error> {
        let mut purpose = [0];
        // Reset when it closes. Unsent data for a killed kernel would otherwise keep the kernel's
        // place for minutes.
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&connection, sockopt::Linger, &at_once)
            .map_err(|errno| broken_connection()(errno.into()))?;
        // The byte comes with the connection.
        connection
            .set_read_timeout(Some(END_TIMEOUT))
            .and_then(|()| (&connection).read_exact(&mut purpose))
            .and_then(|()| connection.set_read_timeout(None))
            .and_then(|()| connection.set_nodelay(true))
            .map_err(broken_connection())?;
        let purpose = purpose[0];
        let stream = control::STREAMS.iter().position(|&it| it == purpose);
        if let Some(number) = stream {
            self.streams[number] = Some(connection);
        } else if purpose == control::TERMINAL {
            self.streams[3] = Some(connection);
        } else if purpose == control::MESSAGES {
            control::send_message(&connection, job).map_err(broken_connection())?;
            self.messages = Some(connection);
        }
        Ok(())
    }

    /// Starts to carry the streams.
    fn carry_streams(&mut self, job: &Job) -> Result<Carriers, Error> {
        let [input, output, errors, terminal] = std::mem::take(&mut self.streams);
        let mut carriers = Carriers::default();
        if let Some(connection) = input {
            carriers.add_input(connection)?;
        }
        if let Some(connection) = output {
            carriers.add(connection, io::stdout())?;
        }
        if let Some(connection) = errors {
            carriers.add(connection, io::stderr())?;
        }
        if let Some(connection) = terminal {
            if job.streams.is_raw() {
                let copy = connection.try_clone().map_err(broken_connection())?;
                carriers.add_input(copy)?;
            }
            if job.streams.is_terminal(1) {
                carriers.add(connection, io::stdout())?;
            } else {
                carriers.add(connection, io::stderr())?;
            }
        }
        Ok(carriers)
    }

    /// Waits for the end of the command, and passes signals on to it.
    fn supervise_command(&mut self) -> Result<u8, Error> {
        let mut asked: Option<Instant> = None;
        let mut killed = false;
        loop {
            match self.next(asked)? {
                Event::Signal(caught) if caught.number == libc::SIGWINCH => {
                    self.send_message(&ToInside::Resized(terminal::window_size()))?;
                }
                Event::Signal(caught) => {
                    // A key of the terminal signals every process in its foreground.
                    self.send_message(&ToInside::Signal {
                        number: caught.number,
                        to_group: !caught.to_us_alone,
                    })?;
                    if caught.to_us_alone && caught.ends_process() {
                        asked.get_or_insert_with(|| Instant::now() + END_TIMEOUT);
                    }
                }
                Event::Message(FromInside::Ended { code }) => return Ok(code),
                Event::Message(FromInside::Failed { why }) => return Err(failed_inside(why)),
                Event::Message(FromInside::Learned) => {
                    let kept = self
                        .store
                        .map_or(Ok(()), |store| store.keep_records(self.work));
                    self.unkept = kept.err().map(|error| error.to_string());
                }
                Event::Message(FromInside::NotLearned { why }) => self.unkept = Some(why),
                Event::Message(_) | Event::Connection(_) => {}
                Event::Late if killed => return Ok(128 + libc::SIGKILL as u8),
                Event::Late => {
                    self.send_message(&ToInside::Signal {
                        number: libc::SIGKILL,
                        to_group: false,
                    })?;
                    killed = true;
                    asked = Some(Instant::now() + END_TIMEOUT);
                }
            }
        }
    }

    /// Stops with the command, and continues with it.
    fn stop_with_command(&self) -> Result<(), Error> {
        let tell = |signal: Signal| {
            self.send_message(&ToInside::Signal {
                number: signal as i32,
                to_group: true,
            })
        };
        // The kernel alone would not stop a command without a shell inside.
        tell(Signal::SIGSTOP)?;
        let own: SigSet = [Signal::SIGTSTP].into_iter().collect();
        let stop = || {
            raise(Signal::SIGTSTP)?;
            // The signal takes effect here, until another process continues this one.
            sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&own), None)?;
            sigprocmask(SigmaskHow::SIG_BLOCK, Some(&own), None)
        };
        stop().map_err(crate::system_error("cannot stop"))?;
        tell(Signal::SIGCONT)
    }

    fn send_message(&self, message: &ToInside) -> Result<(), Error> {
        match &self.messages {
            Some(messages) => control::send_message(messages, message).map_err(broken_connection()),
            None => Ok(()),
        }
    }

    /// Waits for the next event.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Event, Error> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(Event::Message(message));
            }
            if let Some(caught) = self.signals.next()? {
                if caught.number == libc::SIGTSTP {
                    self.stop_with_command()?;
                    continue;
                }
                return Ok(Event::Signal(caught));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(Event::Late);
            }
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                let milliseconds = left.as_micros().div_ceil(1000) as u64;
                PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
            });
            let mut watched = vec![
                PollFd::new(self.signals.descriptor(), PollFlags::POLLIN),
                PollFd::new(self.kernel.descriptor(), PollFlags::POLLIN),
                PollFd::new(self.contact.listener().as_fd(), PollFlags::POLLIN),
            ];
            if let Some(messages) = &self.messages {
                watched.push(PollFd::new(messages.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut watched, timeout) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(crate::system_error("poll")(errno)),
            }
            let ready: Vec<bool> = watched.iter().map(|it| it.any() == Some(true)).collect();
            drop(watched);
            // Connections come first: the message that the command runs follows them.
            if ready[2] {
                let (connection, _) = self
                    .contact
                    .listener()
                    .accept()
                    .map_err(broken_connection())?;
                return Ok(Event::Connection(connection));
            } else if ready.get(3) == Some(&true) {
                self.receive_bytes()?;
            } else if ready[1] {
                return Err(self.end_reason()?);
            }
        }
    }

    fn receive_bytes(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 4096];
        let Some(mut messages) = self.messages.as_ref() else {
            return Ok(());
        };
        match messages.read(&mut bytes).map_err(broken_connection())? {
            // The process inside is gone, and the kernel is about to stop.
            0 => self.messages = None,
            count => self.received.extend_from_slice(&bytes[..count]),
        }
        Ok(())
    }

    /// A complete message.
    fn next_message(&mut self) -> Result<Option<FromInside>, Error> {
        let Some(end) = self.received.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let message = serde_json::from_slice(&line);
        message
            .map(Some)
            .map_err(|error| broken_connection()(io::Error::other(error)))
    }

    /// Why the kernel has ended.
    fn end_reason(&mut self) -> Result<Error, Error> {
        let console = self.console_text();
        let mut lines = console.lines();
        if let Some(why) = lines.find_map(|line| line.strip_prefix(COMPLAINT)) {
            return Ok(failed_inside(why.trim().to_owned()));
        }
        Ok(match self.kernel.exit_status()? {
            Some(status) => {
                console::kernel_ended_error(KernelKind::UserMode, status, &console).into()
            }
            None => failed_inside("it ended".to_owned()),
        })
    }

    fn console_text(&self) -> String {
        let bytes = fs::read(self.work.join(CONSOLE)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Carriers {
    /// Carries a connection's data to a standard stream, until it ends or nobody reads that stream.
    /// The command then notices, as with a pipe.
    fn add(&mut self, from: TcpStream, mut to: impl Write + Send + 'static) -> Result<(), Error> {
        let copy = from.try_clone().map_err(broken_connection())?;
        let thread = thread::Builder::new()
            .name("stack-out".to_owned())
            .spawn(move || {
                let mut bytes = vec![0; CHUNK_BYTES];
                while let Ok(count @ 1..) = (&from).read(&mut bytes) {
                    if to
                        .write_all(&bytes[..count])
                        .and_then(|()| to.flush())
                        .is_err()
                    {
                        break;
                    }
                }
                let _ = from.shutdown(Shutdown::Both);
            })
            .map_err(broken_connection())?;
        self.threads.push(thread);
        self.connections.push(copy);
        Ok(())
    }

    /// Carries standard input into a connection, until it ends or nobody reads there. The thread
    /// ends with the process, as nothing else ends a wait for a key.
    fn add_input(&mut self, to: TcpStream) -> Result<(), Error> {
        self.connections
            .push(to.try_clone().map_err(broken_connection())?);
        thread::Builder::new()
            .name("stack-in".to_owned())
            .spawn(move || {
                let mut bytes = vec![0; CHUNK_BYTES];
                // Unbuffered, so that nothing is read that is not passed on.
                loop {
                    match nix::unistd::read(io::stdin(), &mut bytes) {
                        Ok(count @ 1..) if (&to).write_all(&bytes[..count]).is_ok() => {}
                        // A signal came.
                        Err(Errno::EINTR) => {}
                        _ => break,
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            })
            .map(drop)
            .map_err(broken_connection())
    }

    /// Waits until everything is written.
    fn wait_until_written(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Stops waiting: there is nobody at the other end.
    fn cut_streams(&self) {
        for connection in &self.connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn broken_connection() -> impl FnOnce(io::Error) -> Error {
    Error::system("the connection to the process inside")
}

fn failed_inside(why: String) -> Error {
    let kind = KernelKind::UserMode;
    GuestError::Inside { kind, why }.into()
}
