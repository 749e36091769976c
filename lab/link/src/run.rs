//! Sets a link up, runs the commands on it, and takes it down.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use thalweg_process::signals::Signals;

use crate::child::{self, Child, Group};
use crate::error::Error;
use crate::forward::{Forwarder, Passage};
use crate::log::{LogFile, Recorder, Writer};
use crate::namespace::Endpoints;
use crate::outside::Outside;
use crate::ready;
use crate::report::{self, Report};
use crate::settings::Settings;

/// How long the command may take to end after it was asked to.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the command at the far end may take to end by itself, beyond a
/// round-trip time.
const FAREWELL: Duration = Duration::from_millis(200);

/// Commands that run on a link.
#[derive(Debug, Clone)]
pub struct Task {
    /// The command at the near end: the program and its arguments.
    pub command: Vec<OsString>,
    /// A line for `sh -c` at the far end.
    pub far: Option<OsString>,
    /// The command starts once something listens on this port at the far end.
    pub far_port: Option<u16>,
    /// The far end is the machine's network.
    pub outside: bool,
    /// Files for logs of the bottlenecks, near to far and far to near.
    pub logs: [Option<PathBuf>; 2],
}

/// Outcome of a task.
#[derive(Debug)]
pub struct Finished {
    /// The command's exit status, 128 plus the signal's number if one ended it.
    pub exit: u8,
    /// The link's report.
    pub report: Report,
    /// Whether all of the logs has been written.
    pub log: Result<(), Error>,
}

/// Runs a task on a link with these settings. The caller has no other thread.
///
/// # Errors
/// Settings that contradict each other, a trace that cannot be used, a machine
/// that does not allow it, or a command that cannot be started. Everything that
/// was set up is removed, here as after success.
pub fn run_task(settings: &Settings, task: &Task) -> Result<Finished, Error> {
    let directions = settings.directions()?;
    let Some((program, arguments)) = task.command.split_first() else {
        return Err(Error::Options("expected a command to run".to_owned()));
    };
    let names = ["near to far", "far to near"];
    let mut logs = Vec::new();
    for ((path, direction), name) in task.logs.iter().zip(&directions).zip(names) {
        logs.push(match path {
            Some(path) => Some(LogFile::create(path, name, direction)?),
            None => None,
        });
    }
    let signals = Signals::catch(&[])?;
    let (ends, mut outside) = if task.outside {
        Outside::open().map(|(ends, outside)| (ends, Some(outside)))?
    } else {
        (Endpoints::create_pair()?, None)
    };
    let mut writers = Vec::new();
    let mut recorders = [None, None];
    for (log, recorder) in logs.into_iter().zip(&mut recorders) {
        if let Some(log) = log {
            let (taker, writer) = log.start_writer()?;
            *recorder = Some(taker);
            writers.push(writer);
        }
    }
    let mut link = Link::start_recorded(ends, directions, recorders)?;
    if let Some(outside) = &mut outside {
        outside.start_threads()?;
    }
    link.start_far(task.far.as_deref(), task.far_port, &signals)?;

    let mut command = Command::new(program);
    command.args(arguments);
    link.set_environment(&mut command);
    let near = Child::spawn_at(
        &mut command,
        &link.ends,
        &link.ends.near,
        signals.previous_mask(),
        Group::Shared,
    )?;
    let status = link
        .near
        .insert(near)
        .supervise_command(&signals, &link.failed)?;
    let mut report = link.take_down(settings)?;
    report.outside = outside.map(|it| it.way);
    report.add_warnings();
    let written = writers.into_iter().map(Writer::wait_until_written);
    let log = written.fold(Ok(()), Result::and);
    Ok(Finished {
        log,
        exit: exit_code(status),
        report,
    })
}

fn exit_code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    status.code().unwrap_or_else(signal) as u8
}

/// A link that is up. Dropped, it is taken down: first what runs on it, then the
/// threads, and with the descriptors the devices and namespaces.
pub struct Link {
    began: Instant,
    ends: Endpoints,
    near: Option<Child>,
    far: Option<Child>,
    /// Readable when a forwarder ended by itself.
    failed: Arc<EventFd>,
    /// Near to far, far to near.
    forwarders: Vec<Forwarder>,
}

impl Link {
    /// Starts to carry packets between two ends.
    pub fn start_link(
        ends: Endpoints,
        directions: [crate::engine::Direction; 2],
    ) -> Result<Self, Error> {
        Self::start_recorded(ends, directions, [None, None])
    }

    /// As [`Link::start_link`], with logs.
    fn start_recorded(
        ends: Endpoints,
        directions: [crate::engine::Direction; 2],
        recorders: [Option<Recorder>; 2],
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let failed = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| Error::system("cannot make an event descriptor")(errno.into()))?;
        let failed = Arc::new(failed);
        let mut forwarders = Vec::new();
        let [forward, reverse] = directions;
        let [there, back] = recorders;
        for (name, direction, from, to, recorder) in [
            ("near-to-far", forward, &ends.near, &ends.far, there),
            ("far-to-near", reverse, &ends.far, &ends.near, back),
        ] {
            let copy = |device: &std::fs::File| {
                device
                    .try_clone()
                    .map_err(Error::system("cannot duplicate a descriptor"))
            };
            forwarders.push(Forwarder::start_recorded(
                name,
                direction,
                copy(&from.device)?,
                copy(&to.device)?,
                began,
                Arc::clone(&failed),
                recorder,
            )?);
        }
        Ok(Self {
            began,
            ends,
            near: None,
            far: None,
            failed,
            forwarders,
        })
    }

    /// Starts a line for `sh -c` at the far end, if there is one, and waits until something
    /// listens on this port there.
    pub fn start_far(
        &mut self,
        line: Option<&OsStr>,
        port: Option<u16>,
        signals: &Signals,
    ) -> Result<(), Error> {
        let Some(line) = line else {
            return match port {
                None => Ok(()),
                Some(_) => Err(Error::Options("--far-port needs --far".to_owned())),
            };
        };
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).stdin(Stdio::null());
        // Standard output belongs to the near command.
        command.stdout(
            io::stderr()
                .as_fd()
                .try_clone_to_owned()
                .map_err(Error::system("cannot duplicate standard error"))?,
        );
        self.set_environment(&mut command);
        let far = Child::spawn_at(
            &mut command,
            &self.ends,
            &self.ends.far,
            signals.previous_mask(),
            Group::Own,
        )?;
        let far = self.far.insert(far);
        match port {
            Some(port) => ready::wait_for_listener(far, port, signals),
            None => Ok(()),
        }
    }

    /// Environment variables of both commands.
    pub fn environment_variables(&self) -> Vec<(&'static str, String)> {
        let [near, far] = self.ends.addresses;
        let mut all = vec![
            ("THALWEG_LINK_NEAR", near.v4.to_string()),
            ("THALWEG_LINK_FAR", far.v4.to_string()),
        ];
        if self.ends.has_v6 {
            all.push(("THALWEG_LINK_NEAR6", near.v6.to_string()));
            all.push(("THALWEG_LINK_FAR6", far.v6.to_string()));
        }
        all
    }

    fn set_environment(&self, command: &mut Command) {
        command.envs(self.environment_variables());
    }

    /// Takes it down, and says what it did.
    pub fn take_down(mut self, settings: &Settings) -> Result<Report, Error> {
        let far_command_failed = match &mut self.far {
            Some(far) => far
                .exit_status()?
                .filter(|status| !status.success())
                .map(|status| status.to_string()),
            None => None,
        };
        if let Some(far) = &self.far {
            // The command's last packets are still on their way.
            far.wait_up_to(2 * Duration::from_nanos(settings.delay.ns()) + FAREWELL);
        }
        self.end_processes();
        let unread = |end: &crate::namespace::Endpoint| {
            end.unread_packets()
                .map_err(Error::system("cannot read the counters of the TUN device"))
        };
        let unread = [unread(&self.ends.near)?, unread(&self.ends.far)?];
        let mut passages = Vec::new();
        for forwarder in self.forwarders.drain(..) {
            passages.push(forwarder.stop_and_report()?);
        }
        let realtime = passages.iter().all(|passage| passage.realtime);
        let mut directions = passages
            .into_iter()
            .zip(unread)
            .map(|(passage, unread)| direction_report(passage, unread));
        let (Some(near_to_far), Some(far_to_near)) = (directions.next(), directions.next()) else {
            unreachable!("a link has two directions");
        };
        let [near, far] = self.ends.addresses;
        let v6 = |address| self.ends.has_v6.then_some(address);
        let mut report = Report {
            format: report::FORMAT,
            duration_s: self.began.elapsed().as_secs_f64(),
            seed: settings.seed,
            realtime,
            near: near.v4,
            far: far.v4,
            near_v6: v6(near.v6),
            far_v6: v6(far.v6),
            outside: None,
            near_to_far,
            far_to_near,
            far_command_failed,
            warnings: Vec::new(),
        };
        report.add_warnings();
        Ok(report)
    }

    /// Ends what runs on the link.
    fn end_processes(&mut self) {
        self.near = None;
        if let Some(mut far) = self.far.take() {
            far.terminate_or_kill();
        }
        child::kill_leftovers(&self.ends);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end_processes();
    }
}

fn direction_report(passage: Passage, unread: u64) -> report::Direction {
    let bits = passage.counters.delivered_bytes as f64 * 8.0;
    report::Direction {
        counters: passage.counters,
        unread,
        refused: passage.refused,
        rate_bps: match passage.active_ns {
            0 => 0.0,
            active_ns => bits / (active_ns as f64 / 1e9),
        },
        delay_error: passage.error,
    }
}

impl Child {
    /// Waits for the end of the command, and passes signals on to it.
    fn supervise_command(
        &mut self,
        signals: &Signals,
        failed: &EventFd,
    ) -> Result<ExitStatus, Error> {
        let mut deadline: Option<Instant> = None;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            while let Some(caught) = signals.next()? {
                if caught.to_us_alone {
                    self.send_signal(caught.number);
                    if caught.ends_process() {
                        deadline.get_or_insert_with(|| Instant::now() + END_TIMEOUT);
                    }
                }
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.kill_and_reap();
                continue;
            }
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                let milliseconds = left.as_micros().div_ceil(1000) as u64;
                PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
            });
            let mut watched = [
                PollFd::new(self.pidfd(), PollFlags::POLLIN),
                PollFd::new(signals.descriptor(), PollFlags::POLLIN),
                PollFd::new(failed.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut watched, timeout) {
                Ok(_) if watched[2].any() == Some(true) => {
                    // Taking the link down says why.
                    self.kill_and_reap();
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::system("poll")(errno.into())),
            }
        }
    }
}
