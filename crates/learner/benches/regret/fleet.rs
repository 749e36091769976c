//! A fleet in simulation: many agents in the same networks, whose groups' numbers are shared, and new
//! agents that start with them. Some agents lie.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use thalweg_learner::fleet::{
    AgentReport, ArmReport, Fleet, Prior, aggregate_sample, fleet_record, own_report,
};
use thalweg_learner::{
    End, Host, Level, MAX_ARMS, Mode, Params, Sample, WORTH_Q16, adopt_wider, fleet_worth_q16,
    worth_q16,
};
use thalweg_units::random::mix;

use crate::policy::{Core, Group, Policy, SYSTEM, Seat, Worth};
use crate::random::Random;

/// Arms; arm 0 is the default.
pub const ARMS: usize = 4;
/// Networks of the world, and hosts of each.
const NETWORKS: usize = 100;
const HOSTS: u64 = 30;
/// Deviation of the networks' rates on an arm, bits; of one agent's around them; of one host's.
const NETWORK_SPREAD: f64 = 0.7;
const AGENT_SPREAD: f64 = 0.2;
const HOST_SPREAD: f64 = 0.2;
/// Deviation of the hosts' rates, and of one connection's, bits.
const RATE_SPREAD: f64 = 1.0;
const LUCK: f64 = 1.0;
/// Bytes of a transfer, and rate at 0 bits, bytes per second.
const BYTES: u64 = 8_000_000;
const BASE_RATE: f64 = 4e6;
/// Time between two connections of an agent, ns.
const PAUSE_NS: u64 = 10_000_000_000;
/// Connections between two refreshes of the worth, and between two exchanges with the fleet: a
/// minute, and ten.
const WORTH_EACH: usize = 6;
const EXCHANGE_EACH: usize = 60;
/// Connections of an agent that count.
pub const CONNECTIONS: usize = 1000;
/// Best arms that are this much better than all others count as a draw with a gap, bits.
const GAP: f64 = 0.5;
/// A network is known to the fleet if so many of its agents had connections there.
const KNOWN_TO: usize = 10;

/// The world of a seed: what each arm carries in each network.
pub struct World {
    seed: u64,
    networks: Vec<[f64; ARMS]>,
    /// Sums of the networks' shares of the connections.
    popular: Vec<f64>,
}

impl World {
    /// Draws it.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 11);
        let networks = (0..NETWORKS).map(|_| {
            std::array::from_fn(|arm| match arm {
                SYSTEM => 0.0,
                _ => random.normal() * NETWORK_SPREAD,
            })
        });
        let networks = networks.collect();
        // Zipf.
        let mut sum = 0.0;
        let popular = (1..=NETWORKS).map(|place| {
            sum += 1.0 / place as f64;
            sum
        });
        Self {
            seed,
            networks,
            popular: popular.collect(),
        }
    }

    fn network(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.popular[NETWORKS - 1];
        let found = self.popular.partition_point(|&sum| sum < at);
        found.min(NETWORKS - 1)
    }

    /// The arms' rates towards a host, bits, as an agent has them.
    fn rates(&self, agent: u64, network: usize, host: u64) -> [f64; ARMS] {
        let place = self.seed * 1_000_003 + network as u64;
        let mut of_agent = Random::new(place * 65_537 + agent, 12);
        let mut of_host = Random::new((place * 65_537 + agent) * 257 + host, 13);
        let base = of_host.normal() * RATE_SPREAD;
        let mut rates = self.networks[network].map(|rate| {
            base + rate + of_agent.normal() * AGENT_SPREAD + of_host.normal() * HOST_SPREAD
        });
        // The default's own are as good as any.
        rates[SYSTEM] = base;
        rates
    }

    /// The same for the agent's hosts on the mean.
    fn means(&self, agent: u64, network: usize) -> [f64; ARMS] {
        let place = self.seed * 1_000_003 + network as u64;
        let mut of_agent = Random::new(place * 65_537 + agent, 12);
        let mut rates = self.networks[network].map(|rate| rate + of_agent.normal() * AGENT_SPREAD);
        rates[SYSTEM] = 0.0;
        rates
    }
}

fn best(rates: &[f64; ARMS]) -> usize {
    (0..ARMS).fold(0, |best, arm| match rates[arm] > rates[best] {
        true => arm,
        false => best,
    })
}

/// How far the best is ahead of all others, bits.
fn gap(rates: &[f64; ARMS]) -> f64 {
    let best = best(rates);
    let others = (0..ARMS).filter(|&arm| arm != best).map(|arm| rates[arm]);
    rates[best] - others.fold(f64::NEG_INFINITY, f64::max)
}

/// What the fleet told an agent.
pub type Reports = BTreeMap<usize, Vec<AgentReport>>;

/// What the fleet tells for ten minutes.
pub struct Told {
    /// Of each network a sample, and how many told of it.
    reports: BTreeMap<usize, (Vec<AgentReport>, usize)>,
    fleet: Fleet,
    /// Of networks, as agents have them that told nothing of it.
    shared: RefCell<BTreeMap<usize, Option<Prior>>>,
}

impl Told {
    /// `kept`: of each network a sample of so many reports, drawn by chance.
    fn new(reports: Reports, kept: usize) -> Self {
        let agents: BTreeSet<u64> = reports.values().flatten().map(|it| it.agent).collect();
        let sample = |(network, mut told): (usize, Vec<AgentReport>)| {
            let count = told.len();
            told.sort_by_key(|it| mix(it.agent << 32 | network as u64));
            told.truncate(kept);
            (network, (told, count))
        };
        let reports: BTreeMap<_, _> = reports.into_iter().map(sample).collect();
        let fleet = Fleet::judge_agents(agents.len(), SYSTEM, |judge| {
            for (told, count) in reports.values() {
                judge(told, *count);
            }
        });
        Self {
            reports,
            fleet,
            shared: RefCell::default(),
        }
    }

    /// What others than `agent` told of a network, and how many.
    fn prior(&self, network: usize, agent: u64) -> Option<(Prior, usize)> {
        let (told, count) = self.reports.get(&network)?;
        if told.iter().all(|report| report.agent != agent) {
            let mut shared = self.shared.borrow_mut();
            let known = shared.entry(network);
            let prior =
                *known.or_insert_with(|| aggregate_sample(told, *count, &self.fleet, SYSTEM));
            return Some((prior?, *count));
        }
        let others = told.iter().filter(|report| report.agent != agent);
        let others: Vec<AgentReport> = others.copied().collect();
        let prior = aggregate_sample(&others, count - 1, &self.fleet, SYSTEM)?;
        Some((prior, count - 1))
    }
}

/// The groups of an agent: of each network, and (`None`) of all.
struct Place {
    own: Group,
    fleet: Group,
}

impl Place {
    fn new(level: Level) -> Self {
        let group = |level| {
            Group::new(RefCell::new(Host {
                level,
                ..Host::default()
            }))
        };
        Self {
            own: group(level),
            // Of all there is none.
            fleet: group(level.fleet_level().unwrap_or(Level::FleetPrefix)),
        }
    }
}

/// Losses of an agent.
#[derive(Clone, Copy, Default)]
pub struct Losses {
    /// Share of the best arm's goodput lost, summed over connections.
    pub regret: f64,
    /// The same where the best arm of the network, as it is on the mean, is always taken.
    pub least: f64,
    /// First connections to networks that the fleet knows, where the best arm is ahead by [`GAP`], and
    /// those on it; likewise to all networks.
    pub firsts: f64,
    pub first_right: f64,
    pub all_firsts: f64,
    pub all_right: f64,
}

/// An agent at work.
pub struct Agent<'a> {
    world: &'a World,
    number: u64,
    random: Random,
    places: BTreeMap<Option<usize>, Place>,
    hosts: BTreeMap<(usize, u64), Core>,
    worth: Worth,
    fleet_worth: Worth,
    known: Vec<bool>,
    /// Of each network, when it last took what the fleet tells: a number of [`EXCHANGE_EACH`].
    taken: BTreeMap<usize, usize>,
    connections: usize,
    pub losses: Losses,
}

impl<'a> Agent<'a> {
    pub fn new(world: &'a World, number: u64) -> Self {
        Self {
            world,
            number,
            random: Random::new(world.seed * 1_000_003 + number, 14),
            places: BTreeMap::from([(None, Place::new(Level::Namespace))]),
            hosts: BTreeMap::new(),
            worth: Worth::new(Cell::new(WORTH_Q16)),
            fleet_worth: Worth::new(Cell::new(WORTH_Q16)),
            known: vec![false; NETWORKS],
            taken: BTreeMap::new(),
            connections: 0,
            losses: Losses::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        1 + self.connections as u64 * PAUSE_NS
    }

    fn place(&mut self, network: Option<usize>) -> &Place {
        let new = || Place::new(Level::Prefix);
        self.places.entry(network).or_insert_with(new)
    }

    /// What it tells the fleet.
    fn tell(&self, reports: &mut Reports) {
        for (network, place) in &self.places {
            let own = place.own.borrow();
            if let (Some(network), Some(arms)) = (network, own_report(&own)) {
                reports.entry(*network).or_default().push(AgentReport {
                    agent: self.number,
                    age_ns: 0,
                    queue_q16: own.queue_q16,
                    arms,
                });
            }
        }
    }

    /// Takes what the fleet tells of one network.
    fn take(&mut self, told: &Told, network: usize) {
        let (now_ns, params) = (self.now_ns(), params());
        let Some((prior, agents)) = told.prior(network, self.number) else {
            return;
        };
        let worth = self.fleet_worth.get();
        let mut fleet = fleet_record(Level::FleetPrefix, &prior, SYSTEM, &worth, &params, now_ns);
        let all = self.places[&None].own.borrow().clone();
        adopt_wider(&mut fleet, &all, Some(SYSTEM), &self.worth.get());
        *self.place(Some(network)).fleet.borrow_mut() = fleet;
        self.known[network] = agents >= KNOWN_TO;
    }

    /// The agent's part, every minute.
    fn refresh(&mut self) {
        let all = self.places[&None].own.borrow();
        let networks = self.places.iter().filter(|(network, _)| network.is_some());
        let records: Vec<_> = networks
            .map(|(_, place)| (place.own.borrow(), place.fleet.borrow()))
            .collect();
        let own = records.iter().map(|(own, _)| &**own);
        self.worth.set(worth_q16(own, &all, SYSTEM));
        let pairs = records.iter().map(|(own, fleet)| (&**own, &**fleet));
        self.fleet_worth.set(fleet_worth_q16(pairs, &all, SYSTEM));
    }

    /// One connection. The agent takes all that the fleet tells every ten minutes; here only that of
    /// networks when they matter.
    pub fn connect(&mut self, told: Option<&Told>) {
        let network = self.world.network(&mut self.random);
        if let Some(told) = told {
            let now = 1 + self.connections / EXCHANGE_EACH;
            if self.taken.insert(network, now) != Some(now) {
                self.take(told, network);
            }
        }
        let host = self.random.u64() % HOSTS;
        let rates = self.world.rates(self.number, network, host);
        let means = self.world.means(self.number, network);
        let is_first = !self.hosts.keys().any(|&(known, _)| known == network);
        let now_ns = self.now_ns();
        let key = (network, host);
        if !self.hosts.contains_key(&key) {
            let mut groups = Vec::new();
            for network in [Some(network), None] {
                let place = self.place(network);
                groups.extend([place.own.clone(), place.fleet.clone()]);
            }
            let seat = Seat {
                arms: ARMS,
                groups,
                worth: self.worth.clone(),
                fleet_worth: self.fleet_worth.clone(),
            };
            self.hosts.insert(key, Core::new(Mode::Thalweg, &seat));
        }
        let Some(core) = self.hosts.get_mut(&key) else {
            return;
        };
        let arm = core.choose(&mut self.random, now_ns);
        let bits = rates[arm] + self.random.normal() * LUCK;
        core.learn(arm, &sample(bits), now_ns);
        let lost = |arm: usize| 1.0 - (rates[arm] - rates[best(&rates)]).exp2();
        self.losses.regret += lost(arm);
        self.losses.least += lost(best(&means));
        if is_first && gap(&means) >= GAP {
            let right = f64::from(arm == best(&means));
            self.losses.all_firsts += 1.0;
            self.losses.all_right += right;
            if self.known[network] {
                self.losses.firsts += 1.0;
                self.losses.first_right += right;
            }
        }
        self.connections += 1;
        if self.connections.is_multiple_of(WORTH_EACH) {
            self.refresh();
        }
    }
}

fn params() -> Params {
    Params {
        rescue_arm: Some(1),
        ..Params::default()
    }
}

fn sample(bits: f64) -> Sample {
    let duration_us = (BYTES as f64 * 1e6 / (BASE_RATE * bits.exp2())) as u64;
    let segs = (BYTES / 1448) as u32;
    Sample {
        bytes: BYTES,
        duration_us,
        rate_delivered_bytes: BYTES,
        rate_interval_us: duration_us,
        srtt_us: 30_000,
        min_rtt_us: 27_000,
        segs_out: segs,
        retrans: 0,
        steady_segs: segs,
        steady_retrans: 0,
        loss_srtt_us: 0,
        limited_us: 0,
        busy_time: true,
        end: End::FinLocal,
    }
}

/// What a hostile agent tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The truth: none is hostile.
    None,
    /// What is better is worse, with all the evidence there may be.
    Inverted,
    /// Numbers at random over their whole range, of each network.
    Extreme,
    /// Nothing.
    Silent,
    /// What an honest agent told.
    Copying,
    /// All that the last arm is far better, in each network.
    Colluding,
    /// All that the last arm is a little better than the best honest one, in each network.
    Subtle,
    /// All that the worst arm, as it is, is best by far, in each network.
    Worst,
    /// The same, but only where few honest agents have been: elsewhere the truth.
    Rare,
}

/// Every strategy.
pub const LIES: [Lie; 9] = [
    Lie::None,
    Lie::Inverted,
    Lie::Extreme,
    Lie::Silent,
    Lie::Copying,
    Lie::Colluding,
    Lie::Subtle,
    Lie::Worst,
    Lie::Rare,
];

/// Replaces what agents `0..hostile` told.
fn lie(world: &World, lie: Lie, hostile: u64, truth: &Reports, random: &mut Random) -> Reports {
    if lie == Lie::None {
        return truth.clone();
    }
    let mut told = truth.clone();
    // They know of each network.
    for network in 0..NETWORKS {
        let of_network = told.entry(network).or_default();
        let honest: Vec<AgentReport> = of_network
            .iter()
            .filter(|report| report.agent >= hostile)
            .copied()
            .collect();
        let own: Vec<AgentReport> = of_network
            .iter()
            .filter(|report| report.agent < hostile)
            .copied()
            .collect();
        *of_network = honest.clone();
        let arm = |bits: f64| ArmReport {
            cost_q16: ((32.0 + bits) * 65536.0) as u32,
            evidence_q16: u32::MAX,
            log_rate_q16: ((32.0 - bits) * 65536.0) as u32,
            deviation_q16: 1 << 16,
            segs: 60_000,
            retrans: 0,
        };
        let all_worse = |best: usize, bits: f64| {
            let mut arms = [ArmReport::default(); MAX_ARMS];
            for (index, state) in arms[..ARMS].iter_mut().enumerate() {
                *state = arm(if index == best { bits } else { 0.0 });
            }
            arms
        };
        let rates = world.networks[network].map(|rate| -rate);
        let worst = best(&rates);
        for agent in 0..hostile {
            let mine = own.iter().find(|report| report.agent == agent);
            let arms = match lie {
                Lie::None | Lie::Silent => None,
                Lie::Inverted => mine.map(|report| {
                    report.arms.map(|arm| match arm.evidence_q16 {
                        0 => arm,
                        _ => ArmReport {
                            cost_q16: (64u32 << 16).saturating_sub(arm.cost_q16),
                            log_rate_q16: (64u32 << 16).saturating_sub(arm.log_rate_q16),
                            evidence_q16: u32::MAX,
                            ..arm
                        },
                    })
                }),
                Lie::Extreme => {
                    let mut arms = [ArmReport::default(); MAX_ARMS];
                    for state in &mut arms[..ARMS] {
                        *state = ArmReport {
                            cost_q16: random.u32(),
                            evidence_q16: u32::MAX,
                            log_rate_q16: random.u32(),
                            deviation_q16: random.u32(),
                            segs: random.u32(),
                            retrans: random.u32(),
                        };
                    }
                    Some(arms)
                }
                Lie::Copying => match honest.len() {
                    0 => None,
                    count => Some(honest[random.u64() as usize % count].arms),
                },
                Lie::Colluding => Some(all_worse(ARMS - 1, -8.0)),
                Lie::Subtle => Some(all_worse(ARMS - 1, -0.6)),
                Lie::Worst => Some(all_worse(worst, -8.0)),
                Lie::Rare if honest.len() < 2 * hostile as usize => Some(all_worse(worst, -8.0)),
                Lie::Rare => mine.map(|report| report.arms),
            };
            of_network.extend(arms.map(|arms| AgentReport {
                agent,
                age_ns: 0,
                queue_q16: if lie == Lie::Extreme { random.u32() } else { 0 },
                arms,
            }));
        }
    }
    told
}

/// A seed's outcome.
#[derive(Clone, Copy)]
pub struct Outcome {
    /// Share of first connections of new agents to networks that the fleet knows, with a gap, that are
    /// on the best arm; to all networks; and by agents that begin blind.
    pub first: f64,
    pub first_all: f64,
    pub first_blind: f64,
    /// Regret of new agents with what the fleet tells, over that of the same agents blind …
    pub new: f64,
    /// … and of honest agents that began together and told each other all along.
    pub together: f64,
    /// Share of goodput that new agents lose, blind, …
    pub blind_lost: f64,
    /// … and where each has the best arm of its networks from the start.
    pub least_lost: f64,
}

/// The size of a game.
#[derive(Clone, Copy)]
pub struct Size {
    /// Agents of the fleet.
    pub agents: u64,
    /// New agents that start with what it knows.
    pub new: u64,
    /// Reports of a network that an agent keeps.
    pub kept: usize,
}

/// Agents that have no fleet.
fn alone(world: &World, numbers: std::ops::Range<u64>) -> Vec<Agent<'_>> {
    let mut agents: Vec<Agent<'_>> = numbers.map(|number| Agent::new(world, number)).collect();
    for agent in &mut agents {
        (0..CONNECTIONS).for_each(|_| agent.connect(None));
    }
    agents
}

fn sum<'a>(agents: impl Iterator<Item = &'a Agent<'a>>, of: fn(&Losses) -> f64) -> f64 {
    agents.map(|agent| of(&agent.losses)).sum()
}

/// What agents tell.
fn truth<'a>(agents: impl Iterator<Item = &'a Agent<'a>>) -> Reports {
    let mut reports = Reports::new();
    agents.for_each(|agent| agent.tell(&mut reports));
    reports
}

/// Agents that begin together, and tell each other every ten minutes. A tenth, those with the lowest
/// numbers, lie.
fn all_along(world: &World, size: Size, strategy: Lie) -> Vec<Agent<'_>> {
    let mut random = Random::new(world.seed, 16);
    let numbers = 0..size.agents;
    let mut agents: Vec<Agent<'_>> = numbers.map(|number| Agent::new(world, number)).collect();
    for _ in 0..CONNECTIONS.div_ceil(EXCHANGE_EACH) {
        let truth = truth(agents.iter());
        let told = Told::new(
            lie(world, strategy, size.agents / 10, &truth, &mut random),
            size.kept,
        );
        for agent in &mut agents {
            let left = CONNECTIONS - agent.connections;
            (0..EXCHANGE_EACH.min(left)).for_each(|_| agent.connect(Some(&told)));
        }
    }
    agents
}

/// Plays one seed against the given lies, of a tenth of the agents.
pub fn play(seed: u64, size: Size, lies: &[Lie]) -> Vec<Outcome> {
    let world = World::new(seed);
    let without = alone(&world, 0..size.agents);
    let newcomers = 10_000..10_000 + size.new;
    let blind = alone(&world, newcomers.clone());
    let hostile = size.agents / 10;
    let regret = |losses: &Losses| losses.regret;
    let lost =
        |of: fn(&Losses) -> f64| sum(blind.iter(), of) / (size.new as f64 * CONNECTIONS as f64);
    let outcomes = lies.iter().map(|&strategy| {
        let fleet = all_along(&world, size, strategy);
        let mut random = Random::new(seed, 15);
        let truth = truth(fleet.iter());
        let told = Told::new(
            lie(&world, strategy, hostile, &truth, &mut random),
            size.kept,
        );
        let mut new: Vec<Agent<'_>> = newcomers
            .clone()
            .map(|number| Agent::new(&world, number))
            .collect();
        for agent in &mut new {
            (0..CONNECTIONS).for_each(|_| agent.connect(Some(&told)));
        }
        let honest = |agent: &&Agent<'_>| agent.number >= hostile;
        let first_all = |agents: &[Agent<'_>]| {
            let all = sum(agents.iter(), |losses| losses.all_firsts);
            sum(agents.iter(), |losses| losses.all_right) / all
        };
        let firsts = sum(new.iter(), |losses| losses.firsts);
        Outcome {
            first: sum(new.iter(), |losses| losses.first_right) / firsts,
            first_all: first_all(&new),
            first_blind: first_all(&blind),
            new: sum(new.iter(), regret) / sum(blind.iter(), regret),
            together: sum(fleet.iter().filter(honest), regret)
                / sum(without.iter().filter(honest), regret),
            blind_lost: lost(regret),
            least_lost: lost(|losses| losses.least),
        }
    });
    outcomes.collect()
}
