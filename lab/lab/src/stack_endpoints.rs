//! Ends of a path that are stacks (`sender = "stack"`, `receiver = "stack"`): `thalweg-lab stack` on a
//! TAP device of the laboratory.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use thalweg_guest::uml::{self, Kernel};
use thalweg_guest::virtual_kernel::{self, Time};
use thalweg_guest::{Error as GuestError, KernelKind};
use thalweg_process::interrupt::{self, OnSignal};
use thalweg_process::{Process, tool};

use crate::error::Error;
use crate::host::cgroup::Cgroup;
use crate::host::{Pair, Side};
use crate::inside;
use crate::mode::Mode;
use crate::options::Options;
use crate::scenario::{End, Qdisc, Scenario};
use crate::ticks::{self, Timers};
use crate::timing;
use crate::traffic::Pause;
use crate::units::Size;
use crate::worker::turns::{Done, Order, READY};

/// Time within which an end must be up. It gives up earlier by itself.
pub(crate) const START: Duration = Duration::from_secs(90);
/// Interval of the checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time that an end gets to stop.
pub(crate) const STOP: Duration = Duration::from_secs(10);

/// The kernel that all stacks of a run share.
#[derive(Debug)]
pub(crate) struct Stacks {
    kernel: Kernel,
    memory: Size,
    /// Description of the kernel.
    pub(crate) text: String,
}

impl Stacks {
    /// Finds the kernel; none if no scenario has a stack.
    ///
    /// # Errors
    /// The machine lacks something, or the kernel lacks something that a scenario or mode names.
    pub(crate) fn find_kernel(
        options: &Options,
        scenarios: &[Scenario],
    ) -> Result<Option<Self>, Error> {
        let stacks: Vec<Scenario> = scenarios
            .iter()
            .filter(|scenario| scenario.first_stack().is_some())
            .cloned()
            .collect();
        let Some(first) = stacks.first() else {
            return Ok(None);
        };
        let memory = inside::guest_memory(KernelKind::UserMode, options, &stacks)?;
        let asked = timing::requested_timing(&stacks)?;
        let file = options.kernel.name.as_deref().map(Path::new);
        let mut kernel = if file.is_none() && asked.hz != ticks::DEFAULT {
            virtual_kernel::find_virtual(asked.hz, Time::Real, first.path.seed)?
        } else {
            Kernel::real_time_kernel(file, &needed_modules(&stacks, &options.modes), &[])?
        };
        if asked.timers == Timers::Tick {
            kernel.words.push("highres=off".to_owned());
        }
        let text = format!(
            "user-mode Linux {} ({}), {} ticks a second, {} timers, {memory} of memory",
            uml::kernel_version(&kernel.program)?,
            kernel.program.display(),
            asked.hz,
            asked.timers
        );
        Ok(Some(Self {
            kernel,
            memory,
            text,
        }))
    }

    /// The command that runs a program at one end, and that end's cgroup.
    fn stack_command(
        &self,
        options: &Options,
        scenario: &Scenario,
        pair: &Pair,
        mode: &Mode,
        side: Side,
        words: &[&str],
    ) -> Result<(Command, Cgroup), Error> {
        let end = thalweg_stack::End {
            namespace: pair.namespace_file(side),
            tap: Pair::STACK.to_owned(),
            kernel: self.kernel.clone(),
            memory: self.memory,
            // The sender's congestion control counts, as on the machine's kernel.
            congestion_control: (side == Side::Client).then(|| match mode {
                Mode::Fixed(name) => name.clone(),
                _ => scenario.system.default_cc.clone(),
            }),
            qdisc: match (side, scenario.system.qdisc.tc_name()) {
                (Side::Client, Some(kind)) => Some(kind.to_owned()),
                _ => None,
            },
            sysctls: scenario.system.sysctl.clone().into_iter().collect(),
            network: Pair::stack_commands(&scenario.path, side, thalweg_stack::INTERFACE),
        };
        let end = serde_json::to_string(&end)
            .map_err(|error| Error::system("the end of a path")(error.into()))?;
        let cgroup = pair.cgroup_below(match side {
            Side::Client => "sender",
            Side::Server => "receiver",
        })?;
        let entrance = cgroup.open_procs()?;
        let mut command = tool::program_command(&options.program.to_string_lossy());
        command.args(["stack", "end", &end, "--"]).args(words);
        thalweg_process::tie_to_thread(&mut command);
        // SAFETY: between fork and exec only write(2) is called, of one byte of a constant, to a
        // descriptor that the closure owns.
        unsafe {
            command.pre_exec(move || {
                match libc::write(entrance.as_raw_fd(), c"0".as_ptr().cast(), 1) {
                    1 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        Ok((command, cgroup))
    }

    /// The command that runs a program as the server.
    pub(crate) fn receiver_command(
        &self,
        options: &Options,
        scenario: &Scenario,
        pair: &Pair,
        mode: &Mode,
        words: &[&str],
    ) -> Result<(Command, Cgroup), Error> {
        self.stack_command(options, scenario, pair, mode, Side::Server, words)
    }

    /// Starts the client.
    pub(crate) fn start_sender(
        &self,
        options: &Options,
        scenario: &Scenario,
        pair: &Pair,
        mode: &Mode,
    ) -> Result<Sender, Error> {
        let program = inside::lab_program(options)?;
        let words = [&*program.to_string_lossy(), "worker", "turns"];
        let (command, cgroup) =
            self.stack_command(options, scenario, pair, mode, Side::Client, &words)?;
        Sender::start_client(command, cgroup)
    }
}

/// Kernel modules that the scenarios and modes need.
fn needed_modules(scenarios: &[Scenario], modes: &[Mode]) -> Vec<String> {
    let senders = || {
        scenarios
            .iter()
            .filter(|scenario| scenario.sender == End::Stack)
    };
    let fixed = modes.iter().filter_map(|mode| match mode {
        Mode::Fixed(name) if senders().next().is_some() => Some(name),
        _ => None,
    });
    let defaults = senders().map(|scenario| &scenario.system.default_cc);
    let mut modules: Vec<String> = fixed
        .chain(defaults)
        .map(|it| format!("tcp_{it}"))
        .collect();
    if senders().any(|scenario| scenario.system.qdisc == Qdisc::Fq) {
        modules.push("sch_fq".to_owned());
    }
    modules.sort();
    modules.dedup();
    modules
}

/// A client on a stack: it runs one program after the other. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Sender {
    process: Process,
    /// The client ends when this closes.
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    errors: mpsc::Receiver<String>,
    // Dropped after the process.
    cgroup: Cgroup,
}

impl Sender {
    fn start_client(mut command: Command, cgroup: Cgroup) -> Result<Self, Error> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn_tied(&mut command)?;
        let child = process.child_mut();
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all were asked for");
        };
        let mut sender = Self {
            process,
            input: Some(input),
            lines: lines_of(output),
            errors: lines_of(errors),
            cgroup,
        };
        match sender.read_line(Instant::now() + START)? {
            Some(line) if line == READY => Ok(sender),
            _ => Err(GuestError::Inside {
                kind: KernelKind::UserMode,
                why: sender.error_output(),
            }
            .into()),
        }
    }

    /// Runs a program and carries out the pauses meanwhile. None if it misses the deadline; the
    /// kernel is then killed.
    pub(crate) fn run_program(
        &mut self,
        program: &str,
        arguments: &[String],
        started: Instant,
        deadline: Instant,
        pauses: &[Pause<'_>],
    ) -> Result<Option<Done>, Error> {
        let order = Order {
            program: program.to_owned(),
            arguments: arguments.to_vec(),
        };
        let mut order = serde_json::to_string(&order)
            .map_err(|error| Error::system("an order")(error.into()))?;
        order.push('\n');
        if let Some(input) = &mut self.input {
            // If nobody reads the order, the missing answer tells so.
            let _ = input.write_all(order.as_bytes());
        }
        let mut reply = None;
        for pause in pauses {
            if reply.is_none() {
                reply = self.read_line(started + pause.after)?;
            }
            (pause.act)()?;
        }
        if reply.is_none() {
            reply = self.read_line(deadline)?;
        }
        match reply {
            Some(line) => serde_json::from_str(&line)
                .map(Some)
                .map_err(|error| Error::system("what a stack says")(error.into())),
            None if self.process.exit_status()?.is_some() => Ok(Some(Done {
                ended: Err(format!("the kernel has ended: {}", self.error_output())),
                output: String::new(),
            })),
            None => {
                self.process.terminate(STOP);
                Ok(None)
            }
        }
    }

    /// Whether the client has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Error> {
        Ok(self.process.exit_status()?.is_some())
    }

    /// Processor time of the kernel and everything on it, seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, Error> {
        self.cgroup.cpu_s()
    }

    /// The next line of output; none at the deadline, or if the output has ended.
    fn read_line(&mut self, deadline: Instant) -> Result<Option<String>, Error> {
        loop {
            interrupt::check_interrupt()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(line) => return Ok(Some(line)),
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    // The output closes a moment before the process ends.
                    let deadline = deadline.min(Instant::now() + STOP);
                    self.process.wait_until(deadline, OnSignal::Fail)?;
                    return Ok(None);
                }
            }
        }
    }

    /// Standard error of the client.
    fn error_output(&mut self) -> String {
        self.process.terminate(STOP);
        let said: Vec<String> = self.errors.iter().collect();
        let last = said.iter().rev().find(|line| !line.trim().is_empty());
        last.map_or_else(
            || "it ended without a word".to_owned(),
            |line| line.trim_start_matches("thalweg: ").to_owned(),
        )
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // With no program left, the kernel shuts down.
        self.input = None;
        let _ = self
            .process
            .wait_until(Instant::now() + STOP, OnSignal::KeepWaiting);
        self.process.terminate(STOP);
    }
}

/// The lines of a stream. It is read to its end; else its writer would block.
fn lines_of(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

/// Busy processor time of the machine since it booted, seconds.
pub(crate) fn machine_cpu_s() -> Result<f64, Error> {
    let path = "/proc/stat";
    let table = std::fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
    let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .unwrap_or(100);
    busy_ticks(&table)
        .map(|units| units as f64 / hertz as f64)
        .ok_or_else(|| Error::io("no line `cpu` in", path)(std::io::ErrorKind::InvalidData.into()))
}

/// The sum of user, nice, system, irq and softirq of all processors (proc(5)).
fn busy_ticks(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let units: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|it| it.parse().ok())
        .collect();
    [0, 1, 2, 5, 6]
        .into_iter()
        .map(|place| units.get(place))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_time_is_not_busy() {
        let table = "cpu  1 2 3 1000 2000 4 5 6000 7 8\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy_ticks(table), Some(15));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7"), None);
        assert_eq!(busy_ticks("cpu 1 2"), None);
    }
}
