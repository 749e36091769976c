//! The rig of one mode, from set-up to outcome.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use thalweg_units::file::replace_file;

use super::RunContext;
use super::paths::{apply_changes, traced_rates};
use crate::agent::{self, Agent, AgentPaths, Learner};
use crate::error::Error;
use crate::flows::{self, Round};
use crate::gain::Gain;
use crate::host::{Pair, PairOptions, Remote, Side, available_congestion_controls};
use crate::http;
use crate::mode::Mode;
use crate::options::{Backend, Options};
use crate::outcome::{Connection, Cpu, ModeOutcome, RemoteOutcome};
use crate::policy::PolicyInForce;
use crate::scenario::{End, Learning, Scenario, TrafficKind};
use crate::stack_endpoints::{self, Sender};
use crate::traffic::{self, Bulk, Pause, Server};

/// The port of iperf3, registered for it. Each pair has its own namespace.
const PORT: u16 = 5201;

/// One mode's hosts and the processes on them. Fields are dropped in this order.
pub(super) struct Testbed {
    agent: Option<Agent>,
    policy: Option<PolicyInForce>,
    /// One for each remote host; none where nginx serves.
    servers: Vec<Server>,
    nginx: Option<Server>,
    /// The client, if it is a stack.
    sender: Option<Mutex<Sender>>,
    pair: Pair,
    mode: Mode,
    /// Congestion controls among which chance decides in its mode.
    arms: Vec<String>,
    connections: Vec<Connection>,
    /// Number of the scenario's changes that its path has seen.
    changed: usize,
    /// Processor time and its limit while flows ran.
    processors: Processors,
}

/// Time that processors were busy and could have been, seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Processors {
    busy_s: f64,
    all_s: f64,
}

impl Testbed {
    /// Sets a rig up in a run's directory.
    pub(super) fn set_up(
        bench: RunContext<'_>,
        mode: &Mode,
        directory: &Path,
        bpf: Option<&Path>,
    ) -> Result<Self, Error> {
        let RunContext {
            options, scenario, ..
        } = bench;
        let mut paths = scenario.remote_paths().into_iter().map(|(_, path)| path);
        let first = paths.next().unwrap_or(&scenario.path);
        let mut settings = PairOptions::new(&mode.file_label(), first, &scenario.system);
        settings.further_paths = paths.cloned().collect();
        settings.networks = scenario.hosts_per_network();
        if let Mode::Fixed(arm) = mode {
            settings.congestion_control = Some(arm.clone());
        }
        settings.further_addresses = (scenario.traffic.kind.server_addresses() - 1) as u8;
        settings.wire = options.origin.place.name.wire_kind();
        let ends = [
            (Side::Client, scenario.sender),
            (Side::Server, scenario.receiver),
        ];
        let stacks = ends.into_iter().filter(|(_, end)| *end == End::Stack);
        settings.stacks = stacks.map(|(side, _)| side).collect();
        let pair = Pair::new(&settings)?;
        // Agent and policy come first, so that they see the server's socket from the start.
        let places = bpf.map(|bpf| AgentPaths {
            directory,
            bpf,
            cgroup: pair.cgroup_path(),
        });
        let agent = match &places {
            Some(places) if mode.learns() => {
                let default_alone = Learning {
                    arms: vec![scenario.system.default_cc.clone()],
                    ..Learning::default()
                };
                let learner = Learner {
                    mode,
                    learning: match mode {
                        Mode::Null => &default_alone,
                        _ => &scenario.agent,
                    },
                    seed: scenario.path.seed,
                };
                Some(Agent::start_agent(&options.agent_binary, learner, places)?)
            }
            _ => None,
        };
        let policy = match (&places, scenario.mode_policy(mode)) {
            (Some(places), Some(policy)) => Some(PolicyInForce::apply_policy(
                &options.agent_binary,
                policy,
                places,
            )?),
            _ => None,
        };
        let (mut servers, mut nginx) = (Vec::new(), None);
        if scenario.has_nginx() {
            let directory = directory.join(format!("nginx-{}", mode.file_label()));
            nginx = Some(http::start_nginx(&pair, &mode.to_string(), &directory)?);
        } else {
            servers = pair
                .remotes()
                .iter()
                .map(|remote| start_server(bench, &pair, remote, mode))
                .collect::<Result<_, _>>()?;
        }
        let mut arms = Vec::new();
        if *mode == Mode::Random {
            arms = available_congestion_controls()?;
            // The kernel's order is that in which its modules were loaded.
            arms.sort();
        }
        Ok(Self {
            agent,
            policy,
            servers,
            nginx,
            sender: start_sender(bench, &pair, mode)?,
            pair,
            arms,
            mode: mode.clone(),
            connections: Vec::new(),
            changed: 0,
            processors: Processors::default(),
        })
    }

    /// Ensures that both ends run; an end that has stopped is started again.
    fn ensure_running(&mut self, bench: RunContext<'_>) -> Result<(), Error> {
        if let Some(agent) = &mut self.agent {
            agent.check_alive()?;
        }
        self.pair.check_joined()?;
        for (running, remote) in self.servers.iter_mut().zip(self.pair.remotes()) {
            if !running.await_turn()? {
                running.stop_server();
                *running = start_server(bench, &self.pair, remote, &self.mode)?;
                running.await_turn()?;
            }
        }
        if let Some(running) = &mut self.nginx
            && !running.await_turn()?
        {
            return Err(Error::Server {
                mode: self.mode.to_string(),
                why: "nginx has ended".to_owned(),
            });
        }
        if let Some(running) = &mut self.sender {
            let running = running.get_mut().unwrap_or_else(PoisonError::into_inner);
            if running.has_ended()? {
                // The old one goes first, as the new one takes its place.
                self.sender = None;
                self.sender = start_sender(bench, &self.pair, &self.mode)?;
            }
        }
        Ok(())
    }

    /// One round.
    pub(super) fn connect_round(
        &mut self,
        bench: RunContext<'_>,
        round: u32,
        raw: &Path,
    ) -> Result<(), Error> {
        let RunContext {
            options, scenario, ..
        } = bench;
        self.ensure_running(bench)?;
        let remotes = self.pair.remotes();
        let mut pauses = apply_changes(&self.pair, scenario, round, &mut self.changed)?;
        if let Some(warmup) = scenario.traffic.warmup {
            // Round-trip times of the warm-up are not measured.
            for (pauses, remote) in pauses.iter_mut().zip(remotes) {
                pauses.push(Pause {
                    after: warmup.duration(),
                    meanwhile: false,
                    act: Box::new(|| self.pair.take_round_trips(remote.first_address()).map(drop)),
                });
                pauses.sort_by_key(|pause| pause.after);
            }
        }
        for ((pauses, remote), (_, path)) in
            pauses.iter_mut().zip(remotes).zip(scenario.remote_paths())
        {
            if path.trace.is_some() {
                pauses.extend(traced_rates(remote, &scenario.traffic, round));
                pauses.sort_by_key(|pause| pause.after);
            }
        }
        let ways: Vec<RemoteTarget<'_>> = scenario
            .remote_paths()
            .into_iter()
            .zip(remotes)
            .zip(pauses)
            .map(|(((name, path), remote), pauses)| RemoteTarget {
                servers: match self.nginx {
                    Some(_) => vec![http::server_address(remote.address_of(Side::Client))],
                    None => (remote.addresses().into_iter())
                        .map(|address| SocketAddr::new(address, PORT))
                        .collect(),
                },
                remote,
                seed: path.seed,
                host: name,
                raw: raw.join(self.raw_name(round, name, remote)),
                pauses,
            })
            .collect();
        let before = self.cpu_time(options)?;
        let (busy_s, began) = (stack_endpoints::machine_cpu_s()?, Instant::now());
        let mut results = transfer_round(
            &self.pair,
            self.sender.as_ref(),
            options,
            scenario,
            (round, &self.arms),
            ways,
        )?;
        // User-mode Linux does not know when its processor waits for the machine's.
        if !matches!(options.origin.place.name, Backend::Uml | Backend::Virtual) {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            self.processors.busy_s += stack_endpoints::machine_cpu_s()? - busy_s;
            self.processors.all_s += began.elapsed().as_secs_f64() * count as f64;
        }
        if let [connections] = &mut results[..]
            && let [only] = &mut connections[..]
        {
            only.cpu = cpu_between(before, self.cpu_time(options)?);
        }
        for ((place, connections), remote) in results.into_iter().enumerate().zip(remotes) {
            let failed = connections.iter().find_map(|one| one.error.as_ref());
            if let Some(error) = failed {
                tracing::warn!(
                    "{} round {round}, {}: {error}",
                    self.mode,
                    remote.first_address()
                );
                // The server may still wait for the client that is gone. nginx waits for none.
                if let Some(running) = self.servers.get_mut(place) {
                    running.stop_server();
                    *running = start_server(bench, &self.pair, remote, &self.mode)?;
                }
            }
            self.connections.extend(connections);
        }
        Ok(())
    }

    /// The file of a round's raw result towards a host.
    fn raw_name(&self, round: u32, host: &str, remote: &Remote) -> String {
        let label = self.mode.file_label();
        match host {
            "" => format!("{label}-{round:04}.json"),
            name if remote.shares_network() => {
                format!("{label}-{round:04}-{name}-{}.json", remote.first_address())
            }
            name => format!("{label}-{round:04}-{name}.json"),
        }
    }

    /// Processor time so far; none if the clock is not the machine's.
    fn cpu_time(&self, options: &Options) -> Result<Option<Cpu>, Error> {
        if !matches!(options.origin.place.name, Backend::Host | Backend::Link) {
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
            machine_s: stack_endpoints::machine_cpu_s()?,
            stack_s,
        }))
    }

    /// Takes the rig down and returns its results.
    pub(super) fn into_outcome(
        self,
        scenario: &Scenario,
        report: &Path,
    ) -> Result<ModeOutcome, Error> {
        let Self {
            agent,
            policy,
            servers,
            nginx,
            sender,
            pair,
            mode,
            arms: _,
            connections,
            changed: _,
            processors,
        } = self;
        drop((servers, nginx, sender));
        let (mut hosts, mut gain) = (Vec::new(), None);
        if let Some(agent) = agent {
            if mode.has_control_group() {
                gain = Some(Gain::parse(&agent.fetch_gain()?)?);
            }
            let body = agent.fetch_hosts()?;
            let file = report.join(format!("hosts-{}.json", mode.file_label()));
            replace_file(&file, &body).map_err(Error::io("cannot write", file))?;
            hosts = agent::parse_hosts(&body);
            let log = report.join(format!("agent-{}.log", mode.file_label()));
            let from = agent.log_file().to_owned();
            let detached = agent.detach_and_end();
            fs::copy(from, &log).map_err(Error::io("cannot write", log))?;
            detached?;
        }
        if let Some(policy) = policy {
            let file = report.join(format!("{}.json", mode.file_label()));
            replace_file(&file, policy.show_policy()?).map_err(Error::io("cannot write", file))?;
        }
        let remotes = scenario
            .remote_paths()
            .into_iter()
            .zip(pair.remotes())
            .map(|((name, _), remote)| {
                Ok(RemoteOutcome {
                    name: name.to_owned(),
                    address: remote.first_address(),
                    others: Vec::new(),
                    forward: remote.forward_counters()?,
                    reverse: remote.reverse_counters()?,
                    least_rtt_us: None,
                    last_change: None,
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let (forward, reverse) = match &remotes[..] {
            // Not summed: the digest of a single link is kept as it is.
            [only] => (only.forward, only.reverse),
            several => (
                several.iter().map(|remote| remote.forward).sum(),
                several.iter().map(|remote| remote.reverse).sum(),
            ),
        };
        let remotes = match scenario.hosts.is_empty() {
            true => Vec::new(),
            false => by_name(remotes),
        };
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
            gain,
            processor_share: (processors.all_s > 0.0).then(|| processors.busy_s / processors.all_s),
        })
    }
}

/// The hosts of one name as one.
fn by_name(remotes: Vec<RemoteOutcome>) -> Vec<RemoteOutcome> {
    let mut all: Vec<RemoteOutcome> = Vec::new();
    for remote in remotes {
        match all.last_mut().filter(|last| last.name == remote.name) {
            Some(last) => {
                last.others.push(remote.address);
                last.forward = [last.forward, remote.forward].into_iter().sum();
                last.reverse = [last.reverse, remote.reverse].into_iter().sum();
            }
            None => all.push(remote),
        }
    }
    all
}

/// Processor time between two moments.
fn cpu_between(before: Option<Cpu>, after: Option<Cpu>) -> Option<Cpu> {
    let (before, after) = before.zip(after)?;
    let stack = after.stack_s.zip(before.stack_s);
    Some(Cpu {
        machine_s: after.machine_s - before.machine_s,
        stack_s: stack.map(|(after, before)| after - before),
    })
}

/// One round's way to one remote host.
struct RemoteTarget<'a> {
    /// Addresses of the server.
    servers: Vec<SocketAddr>,
    /// Seed of its path.
    seed: u64,
    host: &'a str,
    remote: &'a Remote,
    /// File of the raw result.
    raw: PathBuf,
    /// Changes of its path meanwhile.
    pauses: Vec<Pause<'a>>,
}

/// One round: the connections to every remote host, at the same time.
fn transfer_round(
    pair: &Pair,
    sender: Option<&Mutex<Sender>>,
    options: &Options,
    scenario: &Scenario,
    (number, arms): (u32, &[String]),
    ways: Vec<RemoteTarget<'_>>,
) -> Result<Vec<Vec<Connection>>, Error> {
    let one = |way: RemoteTarget<'_>| -> Result<Vec<Connection>, Error> {
        let (raw, pauses) = (&way.raw, &way.pauses);
        let round = Round {
            number,
            servers: &way.servers,
            seed: way.seed,
            arms,
        };
        let mut connections = match flows::plan_round(&scenario.traffic, &round) {
            Some(plan) => {
                let worker = &options.program;
                flows::run_plan((pair, way.remote), worker, &plan, number, raw, pauses)?
            }
            None => {
                let bulk = Bulk {
                    server: way.servers[0],
                    round: number,
                    duration: scenario.traffic.duration,
                    cc: round.drawn_arm(),
                };
                vec![traffic::transfer_bulk(pair, sender, &bulk, raw, pauses)?]
            }
        };
        for connection in &mut connections {
            way.host.clone_into(&mut connection.host);
            if way.remote.shares_network() {
                connection.address = Some(way.remote.first_address());
            }
        }
        Ok(connections)
    };
    let one = &one;
    if ways.len() == 1 {
        return ways.into_iter().map(one).collect();
    }
    // One thread per host: a client is tied to the thread that starts it, and a path changes while
    // its own connection runs.
    std::thread::scope(|scope| {
        let threads: Vec<_> = ways
            .into_iter()
            .map(|way| scope.spawn(move || one(way)))
            .collect();
        // All threads are joined, even if the first has failed.
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

/// Starts the server of the scenario's traffic on a remote host.
fn start_server(
    bench: RunContext<'_>,
    pair: &Pair,
    remote: &Remote,
    mode: &Mode,
) -> Result<Server, Error> {
    let RunContext {
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
        let (command, cgroup) = stacks.receiver_command(options, scenario, pair, mode, &words)?;
        return Server::on_stack(command, cgroup, &name);
    }
    match scenario.traffic.kind {
        TrafficKind::Bulk => Server::start_iperf3(pair, remote, &name, PORT),
        _ => Server::start_worker(pair, remote, &name, PORT, &options.program),
    }
}

/// Starts the client, if it is a stack.
fn start_sender(
    bench: RunContext<'_>,
    pair: &Pair,
    mode: &Mode,
) -> Result<Option<Mutex<Sender>>, Error> {
    let RunContext {
        options,
        stacks,
        scenario,
    } = bench;
    match (scenario.sender, stacks) {
        (End::Stack, Some(stacks)) => stacks
            .start_sender(options, scenario, pair, mode)
            .map(|sender| Some(Mutex::new(sender))),
        _ => Ok(None),
    }
}
