//! Plays learners in the worlds like servers', and holds them to the bounds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::policy::{Build, SYSTEM};
use crate::random::Random;
use crate::server::{Server, Visit};

/// The connections whose arms make the load of the shared uplink.
const RECENT: usize = 20;

/// Outcome of one seed.
pub struct Served {
    /// Mean speed against the best arm's, of the learner and of the default.
    speed: f64,
    default_speed: f64,
    /// Share lost by the neighbours at the uplink.
    harm: f64,
    /// Share of connections on another arm than the best.
    wrong: f64,
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
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Start,
}

struct Open {
    arm: usize,
    visit: usize,
    drawn: Visit,
    start_s: f64,
    takers: f64,
}

/// Plays one seed with a learner of its own for each host.
pub fn serve(server: &Server, build: Build, seed: u64) -> Served {
    let mut random = Random::new(seed, 5);
    let mut policies: Vec<_> = (0..server.hosts).map(|_| build(server.arms())).collect();
    let mut heap = BinaryHeap::new();
    for host in 0..server.hosts {
        let first = Visit::draw(server, seed, host, 0).pause_s;
        heap.push(Reverse(((first * 1e9) as u64 + 1, Event::Start, host, 0)));
    }
    let mut recent: VecDeque<usize> = VecDeque::from(vec![SYSTEM; RECENT]);
    let mut open: Vec<Option<Open>> = (0..server.hosts * server.visits).map(|_| None).collect();
    let mut tally = Tally::default();
    while let Some(Reverse((now_ns, event, host, visit))) = heap.pop() {
        let slot = &mut open[host * server.visits + visit];
        if event == Event::End {
            let Some(ended) = slot.take() else { continue };
            let service = server.serve(
                &ended.drawn,
                ended.visit,
                ended.arm,
                ended.start_s,
                ended.takers,
            );
            policies[host].learn(ended.arm, &service.sample, now_ns);
            continue;
        }
        let arm = policies[host].choose(&mut random, now_ns);
        let takers = recent.iter().filter(|&&recent| recent == 1).count() as f64 / RECENT as f64;
        recent.pop_front();
        recent.push_back(arm);
        let drawn = Visit::draw(server, seed, host, visit);
        let start_s = now_ns as f64 / 1e9;
        let service = server.serve(&drawn, visit, arm, start_s, takers);
        let best = server.best(visit);
        // The default and the best arm are judged where all connections are on it.
        let [default, ideal] = [SYSTEM, best].map(|arm| {
            let takers = if arm == 1 { 1.0 } else { 0.0 };
            server.serve(&drawn, visit, arm, start_s, takers)
        });
        tally.neighbours += service.neighbours;
        tally.connections += 1.0;
        tally.wrong += f64::from(arm != best);
        if service.counts {
            tally.counted += 1.0;
            tally.speed += ideal.time_s / service.time_s;
            tally.default_speed += ideal.time_s / default.time_s;
            tally.times.push(service.time_s as f32);
            tally.default_times.push(default.time_s as f32);
        }
        let ends_ns = now_ns + (server.open_s(&service) * 1e9) as u64 + 1;
        heap.push(Reverse((ends_ns, Event::End, host, visit)));
        *slot = Some(Open {
            arm,
            visit,
            drawn,
            start_s,
            takers,
        });
        if visit + 1 < server.visits {
            let pause_s = Visit::draw(server, seed, host, visit + 1).pause_s;
            let next_ns = now_ns + (pause_s * 1e9) as u64 + 1;
            heap.push(Reverse((next_ns, Event::Start, host, visit + 1)));
        }
    }
    tally.served()
}

#[derive(Default)]
struct Tally {
    connections: f64,
    counted: f64,
    wrong: f64,
    speed: f64,
    default_speed: f64,
    neighbours: f64,
    times: Vec<f32>,
    default_times: Vec<f32>,
}

impl Tally {
    fn served(self) -> Served {
        Served {
            speed: self.speed / self.counted,
            default_speed: self.default_speed / self.counted,
            harm: 1.0 - self.neighbours / self.connections,
            wrong: self.wrong / self.connections,
            times: self.times,
            default_times: self.default_times,
        }
    }
}

/// Plays seeds `0..seeds`, and sums up.
pub fn outcome(server: &Server, build: Build, seeds: u64) -> Outcome {
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
    ];
    let over = pairs.iter().filter(|(_, value, bound)| value > bound);
    over.map(|&(name, ..)| name).collect()
}
