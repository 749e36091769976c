//! Plays learners in the worlds like servers', and holds them to the bounds.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::long::{Long, Step};
use thalweg_learner::{Host, Level, WORTH_Q16, worth_q16};

use crate::policy::{Build, Group, OnItsWay, Policy, SYSTEM, Seat, Worth};
use crate::random::Random;
use crate::server::{Server, Visit};

/// The connections whose arms make the load of the shared uplink.
const RECENT: usize = 20;

/// How often the agent takes the worth of knowledge anew.
const WORTH_EACH_NS: u64 = 60_000_000_000;
/// Worlds of at least this many hosts are played with a tenth of the seeds.
const MANY_HOSTS: usize = 1000;

/// Outcome of one seed.
pub struct Served {
    /// Mean speed against the best arm's, of the learner and of the default.
    speed: f64,
    default_speed: f64,
    /// Share lost by the neighbours at the uplink.
    harm: f64,
    /// Share of connections on another arm than the best.
    wrong: f64,
    /// Share of hosts, the first half left out, whose first connection is on the best arm.
    first: f64,
    times: Vec<f32>,
    default_times: Vec<f32>,
}

/// Outcome of a learner in a world; shares of goodput, unless stated otherwise.
pub struct Outcome {
    /// Lost against the best arm.
    pub best: f64,
    /// Lost against the default: mean over seeds, and over the worst 5 % of seeds.
    pub mean: f64,
    pub worst: f64,
    /// 99th percentile of the time, as a multiple of the default's.
    pub p99: f64,
    /// Lost by the neighbours.
    pub harm: f64,
    /// Share of connections on another arm than the best.
    pub wrong: f64,
    /// Share of the best arm's gain over the default; 1 where there is none to be had.
    pub gained: f64,
    /// Share of hosts, the first half left out, whose first connection is on the best arm.
    pub first: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    /// The end of a step of a long connection.
    Step,
    Start,
}

struct Open {
    arm: usize,
    visit: usize,
    drawn: Visit,
    start_s: f64,
    takers: f64,
}

/// A long connection, and its step on the way.
struct Stepping {
    connection: OnItsWay,
    long: Long,
    step: Step,
}

/// Plays one seed with a learner of its own for each host.
pub fn serve(server: &Server, build: Build, seed: u64) -> Served {
    let mut game = Game::new(server, build, seed);
    while let Some(Reverse((now_ns, event, host, visit))) = game.heap.pop() {
        game.shrink(now_ns);
        match event {
            Event::Start => game.start(now_ns, host, visit),
            Event::Step => game.step(now_ns, host, visit),
            Event::End => game.end(now_ns, host, visit),
        }
    }
    game.tally.served()
}

/// The place of a host in the order of arrival: a permutation.
fn order(seed: u64, host: usize, hosts: usize) -> usize {
    // A step without a common divisor: the hosts of a prefix come apart.
    let step = (hosts * 618 / 1000 + 1..)
        .find(|&step| gcd(step, hosts) == 1)
        .unwrap_or(1);
    (host * step + seed as usize) % hosts
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One seed being played.
struct Game<'a> {
    /// Of each prefix, and of all.
    groups: Vec<Group>,
    worth: Worth,
    worth_ns: u64,
    server: &'a Server,
    seed: u64,
    random: Random,
    policies: Vec<Box<dyn Policy>>,
    heap: BinaryHeap<Reverse<(u64, Event, usize, usize)>>,
    recent: VecDeque<usize>,
    open: BTreeMap<(usize, usize), Open>,
    long: BTreeMap<(usize, usize), Stepping>,
    tally: Tally,
}

impl<'a> Game<'a> {
    /// The agent's part, every minute.
    fn shrink(&mut self, now_ns: u64) {
        if now_ns < self.worth_ns + WORTH_EACH_NS {
            return;
        }
        self.worth_ns = now_ns;
        let records: Vec<_> = self.groups.iter().map(|group| group.borrow()).collect();
        if let Some((wider, narrower)) = records.split_last() {
            let narrower = narrower.iter().map(|group| &**group);
            self.worth.set(worth_q16(narrower, wider, SYSTEM));
        }
    }

    fn new(server: &'a Server, build: Build, seed: u64) -> Self {
        let first = |host| {
            let begins_s = match server.arrive_s {
                0.0 => Visit::draw(server, seed, host, 0).pause_s,
                arrive_s => arrive_s * order(seed, host, server.hosts) as f64,
            };
            Reverse(((begins_s * 1e9) as u64 + 1, Event::Start, host, 0))
        };
        let prefixes = server.hosts.div_ceil(server.together);
        // The last is all of them.
        let levels = vec![Level::Prefix; prefixes]
            .into_iter()
            .chain([Level::Namespace]);
        let group = |level| {
            Group::new(RefCell::new(Host {
                level,
                ..Host::default()
            }))
        };
        let groups: Vec<Group> = levels.map(group).collect();
        let worth = Worth::new(Cell::new(WORTH_Q16));
        let seat = |host: usize| {
            let of_host = [host / server.together, prefixes];
            Seat {
                worth: worth.clone(),
                fleet_worth: Worth::default(),
                arms: server.arms(),
                groups: of_host.map(|group| groups[group].clone()).into(),
            }
        };
        Self {
            server,
            seed,
            random: Random::new(seed, 5),
            policies: (0..server.hosts).map(|host| build(&seat(host))).collect(),
            groups,
            worth,
            worth_ns: 0,
            heap: (0..server.hosts).map(first).collect(),
            recent: VecDeque::from(vec![SYSTEM; RECENT]),
            open: BTreeMap::new(),
            long: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    fn push(&mut self, now_ns: u64, after_s: f64, event: Event, host: usize, visit: usize) {
        let at_ns = now_ns + (after_s * 1e9) as u64 + 1;
        self.heap.push(Reverse((at_ns, event, host, visit)));
    }

    fn start(&mut self, now_ns: u64, host: usize, visit: usize) {
        let server = self.server;
        let arm = self.policies[host].choose(&mut self.random, now_ns);
        let drawn = Visit::draw(server, self.seed, host, visit);
        let takers = self.recent.iter().filter(|&&recent| recent == 1).count();
        let takers = takers as f64 / RECENT as f64;
        self.recent.pop_front();
        self.recent.push_back(arm);
        let start_s = now_ns as f64 / 1e9;
        self.tally.connections += 1.0;
        let is_wrong = arm != server.best(&drawn, visit);
        self.tally.wrong += f64::from(is_wrong);
        if visit == 0 && order(self.seed, host, server.hosts) >= server.hosts / 2 {
            self.tally.firsts += 1.0;
            self.tally.first_right += f64::from(!is_wrong);
        }
        if server.open_s > 0.0 {
            self.tally.neighbours += 1.0;
            let mut long = self.long_of(drawn, host, visit, start_s);
            let step = long.step(server, arm, start_s);
            self.push(now_ns, step.end_s - start_s, Event::Step, host, visit);
            let connection = OnItsWay {
                arm,
                age_ns: 0,
                decided_ns: 0,
                count: 0,
            };
            let stepping = Stepping {
                connection,
                long,
                step,
            };
            self.long.insert((host, visit), stepping);
        } else {
            let service = server.serve(&drawn, visit, arm, start_s, takers);
            // The default and the best arm are judged where all connections are on it.
            let [default, ideal] = [SYSTEM, server.best(&drawn, visit)].map(|arm| {
                let takers = if arm == 1 { 1.0 } else { 0.0 };
                server.serve(&drawn, visit, arm, start_s, takers).time_s
            });
            self.tally.neighbours += service.neighbours;
            if service.counts {
                self.tally.add(service.time_s, default, ideal);
            }
            self.push(now_ns, service.open_s(), Event::End, host, visit);
            let open = Open {
                arm,
                visit,
                drawn,
                start_s,
                takers,
            };
            self.open.insert((host, visit), open);
        }
        if visit + 1 < server.visits {
            let pause_s = Visit::draw(server, self.seed, host, visit + 1).pause_s;
            self.push(now_ns, pause_s, Event::Start, host, visit + 1);
        }
    }

    fn end(&mut self, now_ns: u64, host: usize, visit: usize) {
        let Some(ended) = self.open.remove(&(host, visit)) else {
            return;
        };
        let service = self.server.serve(
            &ended.drawn,
            ended.visit,
            ended.arm,
            ended.start_s,
            ended.takers,
        );
        self.policies[host].learn(ended.arm, &service.sample, now_ns);
    }

    fn long_of(&self, drawn: Visit, host: usize, visit: usize, start_s: f64) -> Long {
        let place = (self.seed * 1_000_003 + host as u64) * 65_537 + visit as u64;
        let luck = Random::new(place, 6);
        Long::new(self.server, drawn, luck, visit, start_s)
    }

    fn step(&mut self, now_ns: u64, host: usize, visit: usize) {
        let Some(mut on) = self.long.remove(&(host, visit)) else {
            return;
        };
        let now_s = now_ns as f64 / 1e9;
        if on.step.is_over {
            if let Some(sample) = &on.step.sample {
                self.policies[host].learn(on.connection.arm, sample, now_ns);
            }
            let drawn = Visit::draw(self.server, self.seed, host, visit);
            let best = self.server.best(&drawn, visit);
            let [default, ideal] = [SYSTEM, best].map(|arm| {
                let drawn = Visit::draw(self.server, self.seed, host, visit);
                let long = self.long_of(drawn, host, visit, on.long.start_s);
                long.whole(self.server, arm)
            });
            return self.tally.add(on.long.time_s, default, ideal);
        }
        on.connection.age_ns = (on.long.age_s(now_s) * 1e9) as u64;
        if let Some(sample) = &on.step.sample
            && self.policies[host].look(&mut on.connection, sample, &mut self.random, now_ns)
        {
            on.long.cut(now_s);
        }
        on.step = on.long.step(self.server, on.connection.arm, now_s);
        self.push(now_ns, on.step.end_s - now_s, Event::Step, host, visit);
        self.long.insert((host, visit), on);
    }
}

#[derive(Default)]
struct Tally {
    connections: f64,
    counted: f64,
    wrong: f64,
    firsts: f64,
    first_right: f64,
    speed: f64,
    default_speed: f64,
    neighbours: f64,
    times: Vec<f32>,
    default_times: Vec<f32>,
}

impl Tally {
    /// Adds a connection that took `time_s`.
    fn add(&mut self, time_s: f64, default_s: f64, ideal_s: f64) {
        self.counted += 1.0;
        self.speed += ideal_s / time_s;
        self.default_speed += ideal_s / default_s;
        self.times.push(time_s as f32);
        self.default_times.push(default_s as f32);
    }

    fn served(self) -> Served {
        Served {
            speed: self.speed / self.counted,
            default_speed: self.default_speed / self.counted,
            harm: 1.0 - self.neighbours / self.connections,
            wrong: self.wrong / self.connections,
            first: self.first_right / self.firsts,
            times: self.times,
            default_times: self.default_times,
        }
    }
}

/// Plays seeds `0..seeds`, and sums up.
pub fn outcome(server: &Server, build: Build, seeds: u64) -> Outcome {
    let seeds = match server.hosts {
        MANY_HOSTS.. => (seeds / 10).max(2),
        _ => seeds,
    };
    let runs: Vec<Served> = (0..seeds).map(|seed| serve(server, build, seed)).collect();
    let mean = |value: fn(&Served) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
    let losses: Vec<f64> = runs
        .iter()
        .map(|run| 1.0 - run.speed / run.default_speed)
        .collect();
    let p99 = |times: fn(&Served) -> &Vec<f32>| {
        let mut all: Vec<f32> = runs.iter().flat_map(times).copied().collect();
        let at = all.len() * 99 / 100;
        f64::from(*all.select_nth_unstable_by(at, f32::total_cmp).1)
    };
    Outcome {
        best: 1.0 - mean(|run| run.speed),
        mean: losses.iter().sum::<f64>() / losses.len() as f64,
        worst: worst_twentieth(losses),
        p99: p99(|run| &run.times) / p99(|run| &run.default_times),
        harm: mean(|run| run.harm),
        wrong: mean(|run| run.wrong),
        gained: match 1.0 - mean(|run| run.default_speed) {
            gap if gap > 1e-9 => (gap - 1.0 + mean(|run| run.speed)) / gap,
            _ => 1.0,
        },
        first: mean(|run| run.first),
    }
}

/// Mean of the highest 5 % of values.
pub fn worst_twentieth(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = (values.len() / 20).max(1);
    values[values.len() - count..].iter().sum::<f64>() / count as f64
}

/// The bounds of a world that an outcome breaks, by name.
pub fn broken(server: &Server, outcome: &Outcome) -> Vec<&'static str> {
    let bounds = &server.bounds;
    let pairs = [
        ("best", outcome.best, bounds.best),
        ("mean", outcome.mean, bounds.mean),
        ("worst", outcome.worst, bounds.worst),
        ("p99", outcome.p99, bounds.p99),
        ("harm", outcome.harm, bounds.harm),
        ("wrong", outcome.wrong, bounds.wrong),
        ("gained", -outcome.gained, -bounds.gained),
        ("first", -outcome.first, -bounds.first),
    ];
    let over = pairs.iter().filter(|(_, value, bound)| value > bound);
    over.map(|&(name, ..)| name).collect()
}
