//! `thalweg-lab stack`: a program on the TCP of a Linux kernel that is a process, on a real wire.
//!
//! The kernel is user-mode Linux. Its network interface is a TAP device in a network namespace of
//! its own. A veth pair joins that to the machine, which translates addresses (`nat`). The kernel
//! sees the machine's files. This program is its first process (`inside`), which starts the
//! command. Standard streams, signals and the exit code cross a second interface (`control`) that
//! the command does not see.
//!
//! Nothing outlives this process, whatever ends it. The kernel's processes are in a process
//! namespace, whose first process dies with this one. The devices are in a network namespace, which
//! goes with those processes. nftables removes a table when its owner goes. A process of its own
//! (`keeper`) removes the directory, and ends the remains of an ordinary user's kernel.
//!
//! An ordinary user attaches to a device that root has prepared (`prepared`).
//!
//! The crate must not know the laboratory, which uses it as an [end of a path](End).

mod agent;
mod boot;
mod contact;
mod control;
mod delivery;
mod end;
mod error;
mod inside;
mod keeper;
mod learn;
mod names;
mod nat;
mod path;
mod place;
mod prepared;
mod program;
mod publish;
mod session;
mod terminal;
mod wire;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid, getgroups};
use thalweg_guest::uml::{Kernel, Surroundings};
use thalweg_guest::{DEFAULT_MEMORY, KernelKind};
use thalweg_link::Report;
use thalweg_process::signals::Signals;
use thalweg_process::tool;
use thalweg_units::Size;

use contact::Contact;
use control::{Job, Terminal};
pub use end::{End, INTERFACE, run_end};
pub use error::Error;
pub use inside::main as guest;
use keeper::Keeper;
pub use learn::{Rules, Store};
pub use path::Emulated;
pub use prepared::{prepare_wires, prepared_users, remove_wires};
pub use publish::Publish;
use session::Session;
use wire::Wire;

/// Modules of a learner's candidates, beside those that every kernel has.
const CANDIDATES: [&str; 2] = ["tcp_bbr", "tcp_htcp"];
/// Programs that a stack needs, with their packages.
const TOOLS: [(&str, &str); 2] = [("ip", "iproute2"), ("nft", "nftables")];

/// Options of a stack.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The kernel's congestion control; none: its default.
    pub congestion_control: Option<String>,
    /// The queueing discipline of its interface; none: its default.
    pub qdisc: Option<String>,
    /// Settings of the kernel and their values, in this order.
    pub sysctls: Vec<(String, String)>,
    /// Ports of the machine that lead to servers inside.
    pub publish: Vec<Publish>,
    /// The kernel's memory; none: 1 GiB.
    pub memory: Option<Size>,
    /// A user-mode kernel; none: the packaged one.
    pub kernel: Option<PathBuf>,
    /// The time that it may take to boot; none: 300 s.
    pub boot_limit: Option<Duration>,
    /// The records of an agent that learns from the command; none: no agent runs.
    pub store: Option<Arc<Store>>,
    /// A path to a far end, instead of the machine's network.
    pub path: Option<Emulated>,
    /// A policy for the command's connections.
    pub rules: Option<Rules>,
    /// This program's file.
    pub program: PathBuf,
    /// The agent's file; needed for what is learned, and for a policy.
    pub agent: Option<PathBuf>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Finished {
    /// Exit code of the command, or 128 plus the number of the signal that ended it.
    pub exit: u8,
    /// The path's counters, if there was one.
    pub report: Option<Report>,
}

/// Runs a program on a kernel of its own. The caller has a single thread.
///
/// # Errors
/// The machine or the user lacks something, the kernel refuses a setting, or the command cannot be
/// started. Everything that was set up is removed, as after success.
pub fn run_program(options: &Options) -> Result<Finished, Error> {
    let Some(program) = options.command.first() else {
        return Err(Error::Options("expected a command to run".to_owned()));
    };
    for word in options.command.iter().filter(|word| is_fifo(word)) {
        eprintln!(
            "thalweg-lab stack: note: {} is a FIFO: who opens it inside waits for another end inside, whatever opens \
             it on the machine; use a pipe",
            word.display()
        );
    }
    publish::check_pairing(&options.publish)?;
    if options.agent.is_none() && (options.store.is_some() || options.rules.is_some()) {
        let why = "--learn and --policy need the agent: found no `thalweg` beside this program or on \
                   PATH; install the package thalweg";
        return Err(Error::Missing(why.to_owned()));
    }
    let kernel = find_kernel(options)?;
    let memory = options.memory.unwrap_or(DEFAULT_MEMORY);
    thalweg_guest::check_available(KernelKind::UserMode, memory, "--memory")?;
    let mut bed = Testbed::make_testbed(&options.program)?;
    bed.store.clone_from(&options.store);
    bed.boot_limit = options.boot_limit;
    if let Some(store) = &options.store {
        store.hand_in(bed.work_directory())?;
    }
    let rules = options.rules.as_ref();
    let policy = rules
        .map(|rules| rules.hand_in(bed.work_directory()))
        .transpose()?;
    let job = Job {
        congestion_control: options.congestion_control.clone(),
        congestion_controls: rules.map_or_else(Vec::new, |it| it.congestion_controls().to_vec()),
        learn: options.store.is_some(),
        policy,
        agent: options.agent.clone(),
        qdisc: options.qdisc.clone(),
        sysctls: publish::reserved_ports(&options.publish)
            .into_iter()
            .chain(options.sysctls.iter().cloned())
            .collect(),
        ..bed.job_without_network(&options.command, &kernel)?
    };
    if let Some(path) = &options.path {
        return path.run_at_near_end(&bed, &kernel, memory, job, program);
    }
    let wire = Wire::create(&options.publish)?;
    let job = Job {
        ends: Some(wire.wire_addresses()),
        resolver: names::for_the_kernel(&wire)?,
        ..job
    };
    let device = boot::Wire::Device(wire.tap_name());
    let exit = bed.run_job(&kernel, memory, &job, wire.contact(), device, program)?;
    Ok(Finished { exit, report: None })
    // Dropped in this order: the kernel with all its processes, the wire, the directory.
}

fn is_fifo(path: &OsStr) -> bool {
    fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo())
}

/// The parts that a kernel needs with any wire.
struct Testbed {
    signals: Signals,
    // Dropped before the directory.
    _keeper: Keeper,
    surroundings: Surroundings,
    store: Option<Arc<Store>>,
    boot_limit: Option<Duration>,
}

impl Testbed {
    fn make_testbed(program: &Path) -> Result<Self, Error> {
        // Caught from here on, so that a signal ends everything in order.
        let signals = Signals::catch(&[Signal::SIGWINCH, Signal::SIGTSTP])?;
        let surroundings = Surroundings::prepare_surroundings(program)?;
        Ok(Self {
            signals,
            _keeper: Keeper::start_keeper(surroundings.work.path())?,
            surroundings,
            store: None,
            boot_limit: None,
        })
    }

    fn work_directory(&self) -> &Path {
        self.surroundings.work.path()
    }

    /// The job without a network.
    fn job_without_network(&self, command: &[OsString], kernel: &Kernel) -> Result<Job, Error> {
        let streams = terminal::terminal_streams();
        Ok(Job {
            command: command.to_vec(),
            environment: std::env::vars_os().collect(),
            directory: self.surroundings.current.clone(),
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            groups: supplementary_groups()?,
            umask: current_umask(),
            limits: resource_limits()?,
            host_name: nix::unistd::gethostname()
                .map_err(system_error("cannot read the host's name"))?,
            modules: kernel.modules.clone(),
            congestion_control: None,
            congestion_controls: Vec::new(),
            learn: false,
            policy: None,
            agent: None,
            qdisc: None,
            sysctls: Vec::new(),
            ends: None,
            network: Vec::new(),
            resolver: None,
            terminal: streams.has_terminal().then(|| Terminal {
                size: terminal::window_size(),
                raw: streams.is_raw(),
            }),
            streams,
        })
    }

    fn run_job(
        &self,
        kernel: &Kernel,
        memory: Size,
        job: &Job,
        contact: &Contact,
        wire: boot::Wire<'_>,
        program: &OsStr,
    ) -> Result<u8, Error> {
        let work = self.work_directory();
        let program_inside = &self.surroundings.program;
        let process = boot::boot_kernel(kernel, memory, work, program_inside, contact, wire)?;
        let store = self.store.as_deref();
        Session::new(
            process,
            contact,
            &self.signals,
            work,
            store,
            self.boot_limit,
        )
        .run_job(job, program)
    }
}

/// The kernel, with the modules that the options need.
fn find_kernel(options: &Options) -> Result<Kernel, Error> {
    check_tools()?;
    let mut modules = Vec::new();
    if let Some(name) = &options.congestion_control {
        modules.push(format!("tcp_{name}"));
    }
    if let Some(name) = &options.qdisc {
        modules.push(format!("sch_{name}"));
    }
    let rules = options.rules.iter().flat_map(Rules::congestion_controls);
    modules.extend(rules.map(|name| format!("tcp_{name}")));
    let wished = options.store.as_ref().map_or(&[][..], |_| &CANDIDATES);
    Ok(Kernel::real_time_kernel(
        options.kernel.as_deref(),
        &modules,
        wished,
    )?)
}

fn check_tools() -> Result<(), Error> {
    let missing = thalweg_guest::missing_programs(TOOLS);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Missing(missing.join("; ")))
    }
}

fn supplementary_groups() -> Result<Vec<u32>, Error> {
    let groups = getgroups().map_err(system_error("cannot read this process's groups"))?;
    Ok(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

/// This process's umask, read without changing it.
fn current_umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o022)
}

/// This process's limits, in the order of their numbers.
fn resource_limits() -> Result<Vec<(u64, u64)>, Error> {
    (0..=libc::RLIMIT_RTTIME)
        .map(|number| {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the call fills a structure that lives throughout.
            let read = unsafe { libc::getrlimit(number, &raw mut limit) };
            nix::errno::Errno::result(read)
                .map_err(system_error("cannot read this process's limits"))?;
            Ok((limit.rlim_cur, limit.rlim_max))
        })
        .collect()
}

fn system_error(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> Error {
    move |errno| Error::system(what)(errno.into())
}

/// Runs several commands of `ip` in the calling thread's namespace.
fn run_ip(commands: &[String]) -> Result<(), Error> {
    Ok(tool::batch_here(commands)?)
}
