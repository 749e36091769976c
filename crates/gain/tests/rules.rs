//! Rules judged by the log of another, against what they do when they decide themselves.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use thalweg_gain::replay::{ARMS, Connection, Outcome, Replay, Rule, Stretch};
use thalweg_learner::{
    End, Host, ONE_Q16, Params, Sample, halve_evidence, propensities_q16, score,
};
use thalweg_units::random::Random;

const USED: usize = 3;
const ALLOWED: u16 = (1 << USED) - 1;
const SYSTEM: usize = 0;

/// Hosts of which a third is better off with arm 1, by about half, and one in six with arm 2.
struct World {
    random: Random,
    speeds: Vec<[f64; USED]>,
    /// Host of each connection, in order.
    order: Vec<usize>,
}

fn world(seed: u64, hosts: usize, each: usize) -> World {
    let mut random = Random::new(seed);
    let speeds = (0..hosts)
        .map(|host| {
            let path = 4.0 * random.fraction();
            let second = if host % 3 == 0 { 0.6 } else { -0.4 };
            let third = if host % 6 == 1 { 1.0 } else { -1.0 };
            [path, path + second, path + third]
        })
        .collect();
    let mut order: Vec<usize> = (0..hosts)
        .flat_map(|host| std::iter::repeat_n(host, each))
        .collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    World {
        random,
        speeds,
        order,
    }
}

impl World {
    /// A connection's measurement: 1 MiB to 4 MiB, a noisy rate.
    fn sample(&mut self, host: usize, arm: usize) -> Sample {
        let noise = (0..3).map(|_| self.random.fraction() - 0.5).sum::<f64>();
        let bytes = (1 << 20) + self.random.below(3 << 20);
        let rate = 1e6 * (self.speeds[host][arm] + noise).exp2();
        let segs = (bytes / 1448) as u32;
        Sample {
            bytes,
            duration_us: (bytes as f64 / rate * 1e6) as u64,
            rate_delivered_bytes: 0,
            rate_interval_us: 0,
            srtt_us: 20_000,
            min_rtt_us: 20_000,
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

    /// The same hosts and connections with other luck.
    fn anew(mut self) -> Self {
        self.random = Random::new(self.random.u64());
        self
    }

    /// What a rule does in this world: its log, with an arm in `floor` at random. The connections
    /// come ten seconds apart and end before the next.
    fn log(mut self, rule: Rule, floor: f64) -> Vec<Connection> {
        let mut records: BTreeMap<usize, Host> = BTreeMap::new();
        let mut log = Vec::new();
        for (number, host) in self.order.clone().into_iter().enumerate() {
            let start_ns = (1 + number as u64) * 1_000_000_000;
            let record = records.entry(host).or_default();
            let mut propensities = [0.0; ARMS];
            match rule {
                Rule::Default => propensities[SYSTEM] = 1.0,
                Rule::Random => propensities[..USED].fill(1.0 / USED as f64),
                Rule::Learner(params) => {
                    halve_evidence(record, &params, start_ns);
                    let known = propensities_q16(record, Some(SYSTEM), ALLOWED, &params, start_ns);
                    for (to, from) in propensities.iter_mut().zip(known) {
                        *to = f64::from(from) / f64::from(ONE_Q16);
                    }
                }
            }
            for share in &mut propensities[..USED] {
                *share = *share * (1.0 - floor) + floor / USED as f64;
            }
            let draw = self.random.fraction();
            let mut sum = 0.0;
            let arm = (0..USED)
                .find(|&arm| {
                    sum += propensities[arm];
                    draw < sum
                })
                .unwrap_or(SYSTEM);
            let sample = self.sample(host, arm);
            let end_ns = start_ns + 500_000_000;
            if let Rule::Learner(params) = rule {
                let record = records.get_mut(&host).unwrap();
                score(record, arm, Some(SYSTEM), &sample, &params, end_ns);
            }
            log.push(Connection {
                host: host as u64,
                start_ns,
                system: Some(SYSTEM),
                arm,
                allowed: ALLOWED,
                control: false,
                propensities,
                stands_for: 1.0,
                stretches: vec![Stretch {
                    end_ns,
                    arm: Some(arm),
                    sample,
                }],
            });
        }
        log
    }
}

/// Mean of the true log2 of the time per byte on a log's arms.
fn time(world: &World, log: &[Connection]) -> f64 {
    let of = |it: &Connection| -world.speeds[it.host as usize][it.arm];
    log.iter().map(of).sum::<f64>() / log.len() as f64
}

fn judged(rule: Rule, log: &[Connection]) -> Outcome {
    let mut replay = Replay::new(rule);
    log.iter()
        .for_each(|connection| replay.add_connection(connection));
    replay.replay_outcome().unwrap()
}

/// Means over some worlds with a number of connections to each host: a rule's estimated difference from the log, what it truly is, and what
/// it is over only as many connections to each host as the estimate has decisions.
fn compared(rule: Rule, each: usize) -> [f64; 3] {
    const SEEDS: u64 = 4;
    const HOSTS: usize = 150;
    let mut means = [0.0; 3];
    for seed in 0..SEEDS {
        let hosts = world(seed, HOSTS, each);
        let log = world(seed, HOSTS, each).log(Rule::Learner(Params::default()), 0.1);
        let found = judged(rule, &log);
        // Equal RTTs: the cost differs by the rate alone.
        let of_cost = found.cost.robust.mean - found.time.robust.mean;
        assert!(of_cost.abs() < 0.01, "{of_cost}");
        let truth = |each: usize| {
            let own = world(seed, HOSTS, each).anew().log(rule, 0.0);
            time(&hosts, &own) - time(&hosts, &log)
        };
        let decisions = (found.size.decisions / HOSTS as f64).round() as usize;
        let figures = [found.time.robust.mean, truth(each), truth(decisions)];
        for (mean, figure) in means.iter_mut().zip(figures) {
            *mean += figure / SEEDS as f64;
        }
    }
    println!("{rule:?}: {means:.3?}");
    means
}

#[test]
fn rules_are_judged_as_they_do() {
    for rule in [Rule::Default, Rule::Random] {
        let [estimate, truth, _] = compared(rule, 40);
        assert!((estimate - truth).abs() < 0.04 && truth > 0.1);
    }
}

#[test]
fn rules_that_learn_are_judged_by_a_past_of_their_own() {
    let [estimate, truth, _] = compared(Rule::Learner(Params::default()), 160);
    assert!((estimate - truth).abs() < 0.04);
    // Over a past that is shorter than the log's, the price of learning weighs more.
    let slow = Params {
        warm_up: 20,
        ..Params::default()
    };
    let [estimate, truth, short] = compared(Rule::Learner(slow), 40);
    assert!(truth + 0.05 < short, "the worlds do not tell");
    assert!((truth - 0.03..short + 0.03).contains(&estimate));
}

#[test]
fn the_control_group_is_no_decision_of_a_rule() {
    let mut log = world(1, 150, 20).log(Rule::Random, 0.0);
    for connection in log.iter_mut().filter(|it| it.host % 2 == 0) {
        connection.control = true;
        connection.propensities = [0.0; ARMS];
        connection.propensities[connection.arm] = 1.0;
    }
    let found = judged(Rule::Default, &log);
    assert_eq!((found.control, found.size.hosts), (1500, 75));
}
