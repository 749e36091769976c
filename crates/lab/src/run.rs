//! The run itself: set everything up, interleave the modes, take it all down.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use thalweg_process::interrupt;
use thalweg_units::file::replace;

use crate::agent::{self, Agent, Places};
use crate::arms;
use crate::backend::{Backend, Place};
use crate::ends::{self, Sender, Stacks};
use crate::error::Error;
use crate::expect;
use crate::flows;
use crate::host::{self, Pair, PairOptions, Remote, Side, preflight, stale};
use crate::mode::{self, Mode};
use crate::outcome::{
    Connection, Cpu, Environment, FORMAT, ModeOutcome, Outcome, RemoteOutcome, ScenarioOutcome,
};
use crate::policy::PolicyInForce;
use crate::progress::Progress;
use crate::report;
use crate::rundir::RunDir;
use crate::scenario::{self, End, Kind, Scenario};
use crate::ticks::Ticks;
use crate::traffic::{self, Pause, Server};
use crate::units::Size;

/// The port of iperf3, registered for it. Each pair has its own namespace.
const PORT: u16 = 5201;

/// What to run and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Scenario files, run one after the other.
    pub scenarios: Vec<PathBuf>,
    /// Where the policies that each scenario names are looked for; empty: beside it.
    pub policy_folders: Vec<PathBuf>,
    /// What to measure; [`Mode::EveryFixed`] is expanded.
    pub modes: Vec<Mode>,
    /// Connections per mode, instead of the scenario's number.
    pub connections: Option<u32>,
    /// Modes without an agent run in every n-th round only. At least 1.
    pub reference_every: u32,
    /// Where the report goes; none: a new directory below `lab-results`. With
    /// several scenarios each gets a subdirectory of its name.
    pub out: Option<PathBuf>,
    /// The agent: started as `BINARY --socket PATH run --config PATH`, and in a
    /// kernel of its own first as `BINARY lab guest DIRECTORY`. It is also what makes
    /// traffic other than bulk: `BINARY lab worker …`, see [`crate::worker`].
    pub agent_binary: PathBuf,
    /// The command line for the report; none: this process's own.
    pub command: Option<String>,
    /// Whether to draw a progress bar on a terminal's standard error.
    pub progress: bool,
    /// What [`crate::backend::run`] is asked for. [`run`] itself is always on the
    /// kernel that it is called on.
    pub backend: Backend,
    /// Memory of a kernel of its own; none: the scenarios' largest, or 1 GiB.
    pub memory: Option<Size>,
    /// For [`Backend::Qemu`]: the kernel, by its name in the list or its file; none: the newest.
    pub kernel: Option<OsString>,
    /// For [`Backend::Qemu`]: an instruction takes two to the power of this many nanoseconds.
    pub shift: u8,
    /// How long a kernel of its own may take to boot, seconds; none: 60, in QEMU 300.
    pub boot_limit_s: Option<u64>,
    /// For the report: where the run takes place.
    pub place: Place,
    /// For the report: when the run began, RFC 3339; none: now.
    pub started: Option<String>,
    /// A file that is told how far the run has come; none: nobody is.
    pub channel: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scenarios: Vec::new(),
            policy_folders: Vec::new(),
            modes: vec![
                Mode::Baseline,
                Mode::EveryFixed,
                Mode::Classic,
                Mode::Thalweg,
            ],
            connections: None,
            reference_every: 1,
            out: None,
            agent_binary: PathBuf::from("thalweg"),
            command: None,
            progress: true,
            backend: Backend::default(),
            memory: None,
            kernel: None,
            shift: 0,
            boot_limit_s: None,
            place: Place::default(),
            started: None,
            channel: None,
        }
    }
}

/// Runs the scenarios and writes a report of each.
///
/// While it runs, SIGINT and SIGTERM end it in order; on every way out, error and
/// panic included, all that it created is removed. It must be called from a
/// thread that lives until it returns.
///
/// # Errors
/// The first fault: a scenario that is not valid (before anything is created), a
/// missing precondition, a step that failed. A missed expectation is not an
/// error, see [`Outcome::passed`].
pub fn run(options: &Options) -> Result<Outcome, Error> {
    let scenarios = check(options)?;
    preflight::check(&scenarios, &options.modes, options.place.name.wire())?;
    let _signals = interrupt::Guard::install()?;
    stale::remove();

    let _arms = arms::load(&options.agent_binary, &scenarios)?;
    let stacks = Stacks::find(options, &scenarios)?;
    let environment = environment(options, stacks.as_ref())?;
    let modes = mode::expand(&options.modes, &environment.congestion_controls);
    let directories = report::directories(options.out.as_deref(), &scenarios, &started(options))?;
    let mut outcome = Outcome {
        format: FORMAT,
        environment,
        scenarios: Vec::new(),
    };
    for (serial, (mut scenario, directory)) in scenarios.into_iter().zip(directories).enumerate() {
        if let Some(connections) = options.connections {
            scenario.traffic.connections = connections;
        }
        let bench = Bench {
            options,
            stacks: stacks.as_ref(),
            scenario: &scenario,
        };
        let (modes, wall_s) = run_scenario(bench, &modes, serial, &directory)?;
        let result = ScenarioOutcome {
            checks: expect::evaluate(&scenario.expect, &modes),
            scenario,
            reference_every: options.reference_every,
            modes,
            wall_s,
            report: directory,
        };
        report::write(&outcome.environment, &result)?;
        outcome.scenarios.push(result);
    }
    Ok(outcome)
}

/// Checks the options and reads the scenarios; nothing is created.
pub(crate) fn check(options: &Options) -> Result<Vec<Scenario>, Error> {
    if options.scenarios.is_empty() {
        return Err(Error::Options("no scenario was given".into()));
    }
    if options.modes.is_empty() {
        return Err(Error::Options("no mode was given".into()));
    }
    if options.reference_every == 0 || options.connections == Some(0) {
        return Err(Error::Options(
            "the number of rounds must be at least 1".into(),
        ));
    }
    let load = |(index, file): (usize, &PathBuf)| {
        let scenario = match options.policy_folders.get(index) {
            Some(folder) => Scenario::load_in(file, folder)?,
            None => Scenario::load(file)?,
        };
        for mode in &options.modes {
            if let Mode::Policy(name) = mode {
                scenario::policy::known(name, &scenario.policies).map_err(|why| {
                    Error::Options(format!("{}: {why} (mode {mode})", file.display()))
                })?;
            }
        }
        Ok(scenario)
    };
    options.scenarios.iter().enumerate().map(load).collect()
}

/// A scenario, and what it is run with.
#[derive(Clone, Copy)]
struct Bench<'a> {
    options: &'a Options,
    stacks: Option<&'a Stacks>,
    scenario: &'a Scenario,
}

/// One mode's hosts and what runs in them. Fields are dropped in this order.
struct Rig {
    agent: Option<Agent>,
    policy: Option<PolicyInForce>,
    /// One for each remote host.
    servers: Vec<Server>,
    /// The client where it is a stack.
    sender: Option<Mutex<Sender>>,
    pair: Pair,
    mode: Mode,
    connections: Vec<Connection>,
    /// How many of the scenario's changes its path has seen.
    changed: usize,
}

impl Rig {
    fn set_up(
        bench: Bench<'_>,
        mode: &Mode,
        directory: &Path,
        bpf: Option<&Path>,
    ) -> Result<Self, Error> {
        let Bench {
            options, scenario, ..
        } = bench;
        let mut paths = scenario.remotes().into_iter().map(|(_, path)| path);
        let first = paths.next().unwrap_or(&scenario.path);
        let mut settings = PairOptions::new(&mode.label(), first, &scenario.system);
        settings.further_paths = paths.cloned().collect();
        if let Mode::Fixed(arm) = mode {
            settings.congestion_control = Some(arm.clone());
        }
        settings.wire = options.place.name.wire();
        let ends = [
            (Side::Client, scenario.sender),
            (Side::Server, scenario.receiver),
        ];
        let stacks = ends.into_iter().filter(|(_, end)| *end == End::Stack);
        settings.stacks = stacks.map(|(side, _)| side).collect();
        let pair = Pair::new(&settings)?;
        // Agent and policy first, so that they see the server's socket from the start.
        let places = bpf.map(|bpf| Places {
            directory,
            bpf,
            cgroup: pair.cgroup(),
        });
        let agent = match &places {
            Some(places) if mode.learns() => {
                Some(Agent::start(&options.agent_binary, mode, places)?)
            }
            _ => None,
        };
        let policy = match (&places, mode.policy(scenario)) {
            (Some(places), Some(policy)) => {
                Some(PolicyInForce::apply(&options.agent_binary, policy, places)?)
            }
            _ => None,
        };
        let servers = pair
            .remotes()
            .iter()
            .map(|remote| server(bench, &pair, remote, mode))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            agent,
            policy,
            servers,
            sender: sender(bench, &pair, mode)?,
            pair,
            mode: mode.clone(),
            connections: Vec::new(),
            changed: 0,
        })
    }

    fn connect(&mut self, bench: Bench<'_>, round: u32, raw: &Path) -> Result<(), Error> {
        let Bench {
            options, scenario, ..
        } = bench;
        if let Some(agent) = &mut self.agent {
            agent.check_alive()?;
        }
        self.pair.check()?;
        let remotes = self.pair.remotes();
        for (running, remote) in self.servers.iter_mut().zip(remotes) {
            if !running.await_turn()? {
                running.stop();
                *running = server(bench, &self.pair, remote, &self.mode)?;
                running.await_turn()?;
            }
        }
        if let Some(running) = &mut self.sender {
            let running = running.get_mut().unwrap_or_else(PoisonError::into_inner);
            if running.ended()? {
                // First the old one, whose place it takes.
                self.sender = None;
                self.sender = sender(bench, &self.pair, &self.mode)?;
            }
        }
        let mut pauses = changes(&self.pair, scenario, round, &mut self.changed)?;
        if let Some(warmup) = scenario.traffic.warmup {
            // What went round before is not measured.
            for (pauses, remote) in pauses.iter_mut().zip(remotes) {
                pauses.push(Pause {
                    after: warmup.duration(),
                    act: Box::new(|| self.pair.take_round_trips(remote.address()).map(drop)),
                });
                pauses.sort_by_key(|pause| pause.after);
            }
        }
        let ways: Vec<Way<'_>> = scenario
            .remotes()
            .into_iter()
            .zip(remotes)
            .zip(pauses)
            .map(|(((name, _), remote), pauses)| Way {
                server: SocketAddr::new(remote.address(), PORT),
                host: name,
                raw: raw.join(match name {
                    "" => format!("{}-{round:04}.json", self.mode.label()),
                    name => format!("{}-{round:04}-{name}.json", self.mode.label()),
                }),
                pauses,
            })
            .collect();
        let before = self.cpu(options)?;
        let mut results = transfer(
            &self.pair,
            self.sender.as_ref(),
            options,
            scenario,
            round,
            ways,
        )?;
        if let [connections] = &mut results[..]
            && let [only] = &mut connections[..]
            && let (Some(before), Some(after)) = (before, self.cpu(options)?)
        {
            only.cpu = Some(Cpu {
                machine_s: after.machine_s - before.machine_s,
                stack_s: after
                    .stack_s
                    .zip(before.stack_s)
                    .map(|(after, before)| after - before),
            });
        }
        for ((connections, running), remote) in
            results.into_iter().zip(&mut self.servers).zip(remotes)
        {
            let failed = connections.iter().find_map(|one| one.error.as_ref());
            if let Some(error) = failed {
                tracing::warn!("{} round {round}, {}: {error}", self.mode, remote.address());
                // The server may still wait for the client that is gone.
                running.stop();
                *running = server(bench, &self.pair, remote, &self.mode)?;
            }
            self.connections.extend(connections);
        }
        Ok(())
    }

    /// Processor time so far; none where the clock is not the machine's.
    fn cpu(&self, options: &Options) -> Result<Option<Cpu>, Error> {
        if !matches!(options.place.name, Backend::Host | Backend::Link) {
            return Ok(None);
        }
        let stack_s = match (&self.sender, &self.servers[..]) {
            (Some(sender), _) => {
                let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
                Some(sender.cpu_s()?)
            }
            (None, [only]) => only.stack_cpu_s()?,
            _ => None,
        };
        Ok(Some(Cpu {
            machine_s: ends::machine_cpu_s()?,
            stack_s,
        }))
    }

    /// Takes it down and returns what it measured.
    fn finish(self, scenario: &Scenario, report: &Path) -> Result<ModeOutcome, Error> {
        let Self {
            agent,
            policy,
            servers,
            sender,
            pair,
            mode,
            connections,
            changed: _,
        } = self;
        drop(servers);
        drop(sender);
        let mut hosts = Vec::new();
        if let Some(agent) = agent {
            let body = agent.hosts()?;
            let file = report.join(format!("hosts-{}.json", mode.label()));
            replace(&file, &body).map_err(Error::io("cannot write", file))?;
            hosts = agent::parse_hosts(&body);
            let log = report.join(format!("agent-{}.log", mode.label()));
            let from = agent.log().to_owned();
            let detached = agent.detach();
            fs::copy(from, &log).map_err(Error::io("cannot write", log))?;
            detached?;
        }
        if let Some(policy) = policy {
            let file = report.join(format!("{}.json", mode.label()));
            replace(&file, policy.show()?).map_err(Error::io("cannot write", file))?;
        }
        let mut remotes = scenario
            .remotes()
            .into_iter()
            .zip(pair.remotes())
            .map(|((name, _), remote)| {
                Ok(RemoteOutcome {
                    name: name.to_owned(),
                    address: remote.address(),
                    forward: remote.forward()?,
                    reverse: remote.reverse()?,
                    least_rtt_us: None,
                    last_change: None,
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let (forward, reverse) = match &remotes[..] {
            // Not summed: the digest of one link is kept as it is.
            [only] => (only.forward, only.reverse),
            several => (
                several.iter().map(|remote| remote.forward).sum(),
                several.iter().map(|remote| remote.reverse).sum(),
            ),
        };
        if scenario.hosts.is_empty() {
            remotes.clear();
        }
        Ok(ModeOutcome {
            mode,
            rounds: scenario.traffic.connections,
            connections,
            forward,
            reverse,
            hosts,
            least_rtt_us: None,
            last_change: None,
            remotes,
        })
    }
}

/// What one round needs to reach one remote host.
struct Way<'a> {
    server: SocketAddr,
    host: &'a str,
    /// Where the raw result goes.
    raw: PathBuf,
    /// What becomes of its path meanwhile.
    pauses: Vec<Pause<'a>>,
}

/// One round: the connections to every remote host, at the same time.
fn transfer(
    pair: &Pair,
    sender: Option<&Mutex<Sender>>,
    options: &Options,
    scenario: &Scenario,
    round: u32,
    ways: Vec<Way<'_>>,
) -> Result<Vec<Vec<Connection>>, Error> {
    let one = |way: Way<'_>| -> Result<Vec<Connection>, Error> {
        let (server, raw, pauses) = (way.server, &way.raw, &way.pauses);
        let mut connections = match flows::plan(&scenario.traffic, server) {
            Some(plan) => {
                let worker = &options.agent_binary;
                flows::transfer(pair, worker, &plan, round, raw, pauses)?
            }
            None => {
                let duration = scenario.traffic.duration;
                vec![traffic::transfer(
                    pair, sender, server, round, duration, raw, pauses,
                )?]
            }
        };
        for connection in &mut connections {
            way.host.clone_into(&mut connection.host);
        }
        Ok(connections)
    };
    let one = &one;
    if ways.len() == 1 {
        return ways.into_iter().map(one).collect();
    }
    // A thread each: a client is tied to the thread that starts it, and a path changes
    // while its own connection runs.
    std::thread::scope(|scope| {
        let threads: Vec<_> = ways
            .into_iter()
            .map(|way| scope.spawn(move || one(way)))
            .collect();
        // All are joined, whatever became of the first.
        let results: Vec<Result<Vec<Connection>, Error>> = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        results.into_iter().collect()
    })
}

/// Starts what receives the scenario's traffic on a remote host.
fn server(bench: Bench<'_>, pair: &Pair, remote: &Remote, mode: &Mode) -> Result<Server, Error> {
    let Bench {
        options,
        stacks,
        scenario,
    } = bench;
    let name = mode.to_string();
    if let (End::Stack, Some(stacks)) = (scenario.receiver, stacks) {
        let words = traffic::iperf3_server(remote, PORT);
        let words: Vec<&str> = ["iperf3"]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .collect();
        let (command, cgroup) = stacks.receiver(options, scenario, pair, mode, &words)?;
        return Server::on_stack(command, cgroup, &name);
    }
    match scenario.traffic.kind {
        Kind::Bulk => Server::iperf3(pair, remote, &name, PORT),
        _ => Server::worker(pair, remote, &name, PORT, &options.agent_binary),
    }
}

/// Starts the client where it is a stack.
fn sender(bench: Bench<'_>, pair: &Pair, mode: &Mode) -> Result<Option<Mutex<Sender>>, Error> {
    let Bench {
        options,
        stacks,
        scenario,
    } = bench;
    match (scenario.sender, stacks) {
        (End::Stack, Some(stacks)) => stacks
            .sender(options, scenario, pair, mode)
            .map(|sender| Some(Mutex::new(sender))),
        _ => Ok(None),
    }
}

/// Makes the changes of the paths that are due before a round, and returns for each
/// remote host those that are due within it. A reference may have skipped the rounds
/// before.
fn changes<'a>(
    pair: &'a Pair,
    scenario: &'a Scenario,
    round: u32,
    changed: &mut usize,
) -> Result<Vec<Vec<Pause<'a>>>, Error> {
    let names = scenario.remotes();
    let mut pauses: Vec<Vec<Pause<'a>>> = names.iter().map(|_| Vec::new()).collect();
    for change in &scenario.changes[*changed..] {
        let place = names
            .iter()
            .position(|(name, _)| *name == change.host)
            .unwrap_or(0);
        let remote = &pair.remotes()[place];
        match change.within {
            Some(within) if change.at == round + 1 => pauses[place].push(Pause {
                after: within.duration(),
                act: Box::new(|| remote.change(&change.path)),
            }),
            _ if change.at <= round + 1 => remote.change(&change.path)?,
            _ => break,
        }
        *changed += 1;
    }
    Ok(pauses)
}

/// Returns what each mode gave, and how long all took, seconds.
fn run_scenario(
    bench: Bench<'_>,
    modes: &[Mode],
    serial: usize,
    report: &Path,
) -> Result<(Vec<ModeOutcome>, f64), Error> {
    let Bench {
        options, scenario, ..
    } = bench;
    let started = Instant::now();
    let raw = report.join("raw");
    fs::create_dir_all(&raw).map_err(Error::io("cannot create", &raw))?;
    let directory = RunDir::create(serial)?;
    let bpf = if modes.iter().any(Mode::pins) {
        Some(directory.mount_bpf()?)
    } else {
        None
    };
    // Each is set up when its first turn comes, so that the first connection does
    // not wait for all. The first round has a turn of each.
    let mut rigs: Vec<Option<Rig>> = modes.iter().map(|_| None).collect();
    let rounds = scenario.traffic.connections;
    let turns = schedule(modes, rounds, options.reference_every);
    let progress = Progress::new(
        options.progress,
        options.channel.as_deref(),
        &scenario.name,
        turns.len() as u64,
    )?;
    for (made, Turn { round, mode }) in turns.into_iter().enumerate() {
        interrupt::check()?;
        let of = &modes[mode];
        progress.begin(made as u64, of.to_string());
        let rig = match &mut rigs[mode] {
            Some(rig) => rig,
            vacant => {
                let rig = Rig::set_up(bench, of, directory.path(), bpf.as_deref())?;
                vacant.insert(rig)
            }
        };
        rig.connect(bench, round, &raw)?;
    }
    progress.finish();

    let mut modes = rigs
        .into_iter()
        .flatten()
        .map(|rig| rig.finish(scenario, report))
        .collect::<Result<Vec<_>, _>>()?;
    relate(&mut modes, scenario);
    Ok((modes, started.elapsed().as_secs_f64()))
}

/// Tells each mode what holds for all of the scenario.
fn relate(modes: &mut [ModeOutcome], scenario: &Scenario) {
    let least = |modes: &[ModeOutcome], host: &str| {
        modes
            .iter()
            .flat_map(|mode| &mode.connections)
            .filter(|connection| connection.host == host)
            .filter_map(|connection| connection.min_rtt_us)
            .reduce(f64::min)
    };
    let last_change = |host: Option<&str>| {
        scenario
            .changes
            .iter()
            .filter(|change| host.is_none_or(|name| change.host == name))
            .map(|change| change.at - 1)
            .rfind(|round| *round < scenario.traffic.connections)
    };
    let alone = least(modes, "");
    let of_hosts: Vec<_> = scenario
        .hosts
        .iter()
        .map(|host| (least(modes, &host.name), last_change(Some(&host.name))))
        .collect();
    for mode in modes {
        // Several hosts have a least round-trip time each and none together.
        mode.least_rtt_us = alone;
        mode.last_change = last_change(None);
        for (remote, of_host) in mode.remotes.iter_mut().zip(&of_hosts) {
            (remote.least_rtt_us, remote.last_change) = *of_host;
        }
    }
}

/// One connection to make: a round and an index into the modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    round: u32,
    mode: usize,
}

/// Every connection in the order it is made. The modes of a round follow each
/// other, so that a disturbance of the machine meets all alike, and each round
/// begins with another mode.
fn schedule(modes: &[Mode], rounds: u32, reference_every: u32) -> Vec<Turn> {
    let mut turns = Vec::new();
    for round in 0..rounds {
        for place in 0..modes.len() {
            let mode = (place + round as usize) % modes.len();
            if modes[mode].learns() || round % reference_every == 0 {
                turns.push(Turn { round, mode });
            }
        }
    }
    turns
}

fn environment(options: &Options, stacks: Option<&Stacks>) -> Result<Environment, Error> {
    let name = nix::sys::utsname::uname().map_err(|errno| Error::system("uname")(errno.into()))?;
    let version = host::tool::command("iperf3").arg("--version").output();
    let iperf3 = version
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .unwrap_or("")
                .to_owned()
        })
        .map_err(Error::system("cannot start iperf3"))?;
    let ticks = Ticks::here()?;
    Ok(Environment {
        hz: ticks.hz,
        timers: ticks.timers,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: format!(
            "{} {} {}",
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy(),
            name.machine().to_string_lossy()
        ),
        cpus: std::thread::available_parallelism().map_or(1, Into::into),
        congestion_controls: host::available_congestion_controls()?,
        iperf3,
        command: options.command.clone().unwrap_or_else(own_command),
        started: match options.place.name {
            // As all times of the run.
            Backend::Virtual | Backend::Qemu => now(),
            _ => started(options),
        },
        backend: options.place.clone(),
        stack: stacks.map(|stacks| stacks.text.clone()),
    })
}

/// When the run began by the machine's clock, UTC, RFC 3339.
fn started(options: &Options) -> String {
    options.started.clone().unwrap_or_else(now)
}

/// The present time, UTC, RFC 3339, whole seconds.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// This process's command line, with quotes where a shell would want them.
pub(crate) fn own_command() -> String {
    let words: Vec<String> = std::env::args_os()
        .map(|word| quote(&word.to_string_lossy()))
        .collect();
    words.join(" ")
}

/// The same without `--out`: what makes the same run again.
pub(crate) fn command_to_repeat() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = without_out(words).map(|word| quote(&word)).collect();
    words.join(" ")
}

fn without_out(words: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut is_value = false;
    words.filter(move |word| {
        let left_out = is_value || word == "--out" || word.starts_with("--out=");
        is_value = word == "--out" && !is_value;
        !left_out
    })
}

/// A word as a shell would want it.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
