//! Estimates of a rule from the decisions of another, where the truth is known.
#![allow(clippy::unwrap_used)]

use thalweg_gain::Sampling;
use thalweg_gain::replay::{ARMS, CLASSES, Decided, Estimate, Estimator, TooSmall};
use thalweg_units::random::Random;

/// Number of arms in use.
const USED: usize = 4;

/// A standard normal number (sum of twelve uniform ones; its tails do not matter here).
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
}

/// What the log says.
#[derive(Clone, Copy, PartialEq)]
enum Log {
    /// All, and the truth.
    Honest,
    /// False: that each arm was as likely as the others.
    Uniform,
    /// A share of the host-hours, less where more happens: there the rule does better. It says what
    /// each connection stands for.
    Sampled,
    /// False: the same, and that each connection stands for itself.
    Unweighted,
}

/// Hours of a log.
const HOURS: usize = 24;

impl Log {
    fn is_sampled(self) -> bool {
        matches!(self, Log::Sampled | Log::Unweighted)
    }

    /// Share of the hosts that an hour has.
    fn share(self, hour: usize) -> f64 {
        match hour * 2 < HOURS {
            false if self.is_sampled() => 0.25,
            _ => 1.0,
        }
    }
}

/// A simulated log and what is true of it.
struct World {
    estimator: Estimator,
    /// Sum over connections of the true difference between rule and log, and their number.
    difference: f64,
    count: f64,
}

/// Connections to hosts with a path, a best arm and an activity of their own. The log learns: it
/// takes what did best at the host so far, and another arm in one case of five. The rule takes
/// what a stranger knows about the host, with some chance. One outcome in ten is far worse. In a
/// log with shares the stranger knows more about the second half.
fn world(seed: u64, hosts: usize, log: Log) -> World {
    let mut random = Random::new(seed);
    let mut world = World {
        estimator: Estimator::default(),
        difference: 0.0,
        count: 0.0,
    };
    let mut paths: Vec<([f64; USED], [[f64; 2]; USED], usize)> = (0..hosts)
        .map(|_| {
            let path = 2.0 * normal(&mut random);
            let effects =
                std::array::from_fn(|arm| path - 0.2 * arm as f64 + 0.6 * normal(&mut random));
            (
                effects,
                [[0.0; 2]; USED],
                random.below(USED as u64) as usize,
            )
        })
        .collect();
    // Activities: from 5 connections up to 80.
    let mut order: Vec<usize> = (0..hosts)
        .flat_map(|host| {
            let times = 5 << random.below(5);
            std::iter::repeat_n(host, times as usize)
        })
        .collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let all = order.len();
    for (number, host) in order.into_iter().enumerate() {
        let hour = number * HOURS / all;
        let share = log.share(hour);
        let (constant, seen, favourite) = &mut paths[host];
        let mut effects = *constant;
        if share < 1.0 {
            effects[*favourite] -= 2.0;
        }
        let mean = |arm: usize| seen[arm][0] / (seen[arm][1] + 1.0);
        let best = (0..USED)
            .min_by(|&a, &b| mean(a).total_cmp(&mean(b)))
            .unwrap();
        let mut logged = [0.0; ARMS];
        logged[..USED].fill(0.2 / USED as f64);
        logged[best] += 0.8;
        let mut rule = [0.0; ARMS];
        rule[..USED].fill(0.1);
        rule[*favourite] += 0.6;
        let draw = random.fraction();
        let mut sum = 0.0;
        let arm = (0..USED).find(|&arm| {
            sum += logged[arm];
            draw < sum
        });
        let arm = arm.unwrap_or(USED - 1);
        let class = random.below(CLASSES as u64) as usize;
        let tail = if random.below(10) == 0 { 4.0 } else { 0.0 };
        let outcome = effects[arm] - 0.5 * class as f64 + normal(&mut random) + tail;
        world.difference += (0..USED)
            .map(|i| (rule[i] - logged[i]) * effects[i])
            .sum::<f64>();
        world.count += 1.0;
        seen[arm][0] += outcome;
        seen[arm][1] += 1.0;
        if log == Log::Uniform {
            logged[..USED].fill(1.0 / USED as f64);
        }
        let tag = thalweg_units::random::mix(host as u64);
        if !(Sampling { salt: seed }).keeps_host(tag, hour as u64, share) {
            continue;
        }
        world.estimator.add_decision(&Decided {
            host: host as u64,
            class,
            arm,
            logged: &logged,
            rule: &rule,
            stands_for: match log {
                Log::Unweighted => 1.0,
                _ => 1.0 / share,
            },
            pace: 1.0,
            outcome,
        });
    }
    world
}

/// Shares of seeds in which the intervals (weighted, doubly robust) contain the truth.
fn coverage(seeds: u64, hosts: usize, log: Log) -> (f64, f64) {
    let worlds: Vec<World> = (0..seeds).map(|seed| world(seed, hosts, log)).collect();
    let sum = |of: fn(&World) -> f64| worlds.iter().map(of).sum::<f64>();
    let truth = sum(|world| world.difference) / sum(|world| world.count);
    let estimates: Vec<Estimate> = worlds
        .iter()
        .map(|world| world.estimator.estimate().unwrap())
        .collect();
    let covered = |of: fn(&Estimate, f64) -> bool| {
        let hits = estimates.iter().filter(|it| of(it, truth)).count();
        hits as f64 / seeds as f64
    };
    let width = |of: fn(&Estimate) -> f64| estimates.iter().map(of).sum::<f64>() / seeds as f64;
    let found = (
        covered(|it, truth| it.weighted.contains_value(truth)),
        covered(|it, truth| it.robust.contains_value(truth)),
    );
    println!(
        "{seeds} seeds of {hosts} hosts, truth {truth:.3}: weighted {:.3}, doubly robust {:.3}; \
         widths {:.3} and {:.3}",
        found.0,
        found.1,
        width(|it| it.weighted.high - it.weighted.low),
        width(|it| it.robust.high - it.robust.low),
    );
    found
}

#[test]
fn intervals_contain_the_truth() {
    let (weighted, robust) = coverage(150, 150, Log::Honest);
    // Binomial with 150 draws at 0.95: one in a thousand is below 0.89.
    assert!((0.89..=1.0).contains(&robust), "doubly robust: {robust}");
    assert!((0.89..=1.0).contains(&weighted), "weighted: {weighted}");
    let (_, robust) = coverage(40, 150, Log::Uniform);
    assert!(robust < 0.5, "a log with false probabilities: {robust}");
}

#[test]
fn intervals_contain_the_truth_of_all_by_a_share_of_the_host_hours() {
    let (weighted, robust) = coverage(150, 300, Log::Sampled);
    assert!((0.89..=1.0).contains(&robust), "doubly robust: {robust}");
    assert!((0.89..=1.0).contains(&weighted), "weighted: {weighted}");
    let (_, robust) = coverage(40, 300, Log::Unweighted);
    assert!(robust < 0.5, "as if each stood for itself: {robust}");
}

#[test]
fn the_size_of_a_sample_is_what_was_logged_and_what_it_stands_for() {
    let of = |stands_for: f64| {
        let mut estimator = Estimator::default();
        for host in 0..401 {
            let mut logged = [0.0; ARMS];
            logged[..2].fill(0.5);
            estimator.add_decision(&Decided {
                host,
                class: 0,
                arm: (host % 2) as usize,
                logged: &logged,
                rule: &logged,
                stands_for: if host % 4 < 2 { 1.0 } else { stands_for },
                pace: 0.5,
                outcome: 1.0,
            });
        }
        estimator.sample_size()
    };
    for (stands_for, effective) in [(1.0, 400.0), (3.0, 800.0f64.powi(2) / 2000.0)] {
        let size = of(stands_for);
        assert_eq!((size.connections, size.hosts), (400, 400));
        assert_eq!(size.stand_for, 200.0 * (1.0 + stands_for));
        // Of the rule's own decisions only those in the log count.
        assert_eq!(size.decisions, 200.0);
        assert!((size.effective - effective).abs() < 1e-6, "{size:?}");
        assert!((size.effective_hosts - effective).abs() < 1e-6, "{size:?}");
    }
}

/// One decision a host: half the log's connections take either arm.
fn even(hosts: u64, rule: [f64; 2], gives_no_chance: bool) -> Estimator {
    let mut estimator = Estimator::default();
    for host in 0..hosts {
        let mut logged = [0.0; ARMS];
        let mut wanted = [0.0; ARMS];
        logged[..2].fill(0.5);
        wanted[..2].copy_from_slice(&rule);
        if gives_no_chance {
            logged[..2].copy_from_slice(&[1.0, 0.0]);
        }
        let arm = if gives_no_chance {
            0
        } else {
            (host % 2) as usize
        };
        estimator.add_decision(&Decided {
            host,
            class: 0,
            arm,
            logged: &logged,
            rule: &wanted,
            stands_for: 1.0,
            pace: 1.0,
            outcome: (1 + arm) as f64 + (host % 7) as f64 / 7.0,
        });
    }
    estimator
}

#[test]
fn the_same_rule_differs_by_nothing() {
    let estimate = even(400, [0.5, 0.5], false).estimate().unwrap();
    for interval in [estimate.weighted, estimate.robust] {
        assert!(interval.mean.abs() < 1e-9, "{interval:?}");
        assert!(interval.contains_value(0.0));
    }
    let second = even(400, [0.0, 1.0], false).estimate().unwrap();
    for interval in [second.weighted, second.robust] {
        assert!(
            interval.contains_value(0.5) && interval.low > 0.4,
            "{interval:?}"
        );
    }
}

#[test]
fn too_small_a_sample_is_refused_with_both_numbers() {
    let refused = |estimator: Estimator| estimator.estimate().unwrap_err();
    let few = refused(even(190, [1.0, 0.0], false));
    assert_eq!(
        few.to_string(),
        "an effective sample of 94 connections is too small, 100 are needed"
    );
    let uncovered = refused(even(400, [0.5, 0.5], true));
    assert_eq!(
        (uncovered.size.connections, uncovered.size.uncovered),
        (0, 399)
    );
    let TooSmall { size, hosts } = refused(Estimator::default());
    assert!(hosts && size.effective_hosts == 0.0);
}

#[test]
#[ignore = "slow: the whole table"]
fn intervals_contain_the_truth_in_500_seeds() {
    for hosts in [150, 600] {
        let (_, robust) = coverage(500, hosts, Log::Honest);
        assert!((0.93..=0.97).contains(&robust), "{hosts}: {robust}");
    }
    let (_, robust) = coverage(500, 600, Log::Sampled);
    assert!((0.93..=0.97).contains(&robust), "sampled: {robust}");
}
