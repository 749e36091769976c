//! One initial window for all, judged by the log of a learner, where the truth is known.
#![allow(clippy::unwrap_used)]

use thalweg_gain::replay::{Cost, First, Untold, Windows};
use thalweg_learner::window::{self, COUNT, OWN};
use thalweg_units::random::Random;

/// The windows in use, as arms: 10, 16 and 24 segments.
const USED: [usize; 3] = [OWN, 3, 7];
const NETWORKS: u64 = 40;
/// Hosts of a network.
const HOSTS: u64 = 4;

/// What the log says.
#[derive(Clone, Copy, PartialEq)]
enum Log {
    /// All, and the truth.
    Honest,
    /// False: that each window that a network permits is as likely as the others.
    Even,
    /// A share of the connections, fewer in busy hours, and what each stands for.
    Sampled,
}

/// A simulated log, and the true differences of each window in use from what ran: over all
/// connections in which the learner could choose it.
struct World {
    windows: Windows,
    truth: [f64; USED.len()],
}

/// Every other network is bad for large windows, and never permits the largest. The others permit it
/// from some time on. In one hour of four everything takes longer, and the learner, who sees that,
/// prefers small windows: a mean by window would flatter the large ones.
fn world(seed: u64, each: u64, log: Log) -> World {
    let mut random = Random::new(seed);
    let noise = |random: &mut Random| 2.0 * ((0..6).map(|_| random.fraction()).sum::<f64>() - 3.0);
    let paths: Vec<[f64; 3]> = (0..NETWORKS)
        .map(|network| {
            let small = -0.3 + 0.1 * random.fraction();
            let large = if network % 2 == 0 { -0.5 } else { 0.8 };
            [0.0, small, large]
        })
        .collect();
    let hosts: Vec<f64> = (0..NETWORKS * HOSTS)
        .map(|_| 2.0 * random.fraction())
        .collect();
    let steps: Vec<(u64, u64)> = (0..NETWORKS)
        .map(|_| (random.below(each / 4), each / 4 + random.below(each / 4)))
        .collect();
    let mut windows = Windows::default();
    let mut sums = [[0.0; 2]; USED.len()];
    for number in 0..NETWORKS * each {
        let network = random.below(NETWORKS);
        let time = number / NETWORKS;
        let is_busy = time * 20 / each % 4 == 3;
        let (first, second) = steps[network as usize];
        let permitted = match time {
            _ if time < first => 1,
            _ if time < second || network % 2 == 1 => 2,
            _ => 3,
        };
        let likes = if is_busy {
            [0.85, 0.1, 0.05]
        } else {
            [0.1, 0.2, 0.7]
        };
        let sum: f64 = likes[..permitted].iter().sum();
        let shares: Vec<f64> = likes[..permitted].iter().map(|like| like / sum).collect();
        let mut left = random.fraction();
        let drawn = shares.iter().position(|share| {
            left -= share;
            left < 0.0
        });
        let drawn = drawn.unwrap_or(permitted - 1);
        let effects = paths[network as usize];
        let mean: f64 = shares
            .iter()
            .zip(effects)
            .map(|(share, it)| share * it)
            .sum();
        for (sum, effect) in sums.iter_mut().zip(effects).take(permitted) {
            sum[0] += effect - mean;
            sum[1] += 1.0;
        }
        let host = network * HOSTS + random.below(HOSTS);
        let busy = if is_busy { 2.0 } else { 0.0 };
        let time_bits = hosts[host as usize] + effects[drawn] + busy + noise(&mut random);
        let kept = match (log, is_busy) {
            (Log::Sampled, true) => 0.25,
            (Log::Sampled, false) => 0.5,
            _ => 1.0,
        };
        if random.fraction() >= kept {
            continue;
        }
        windows.add_connection(&First {
            host,
            network,
            start_ns: number,
            arm: USED[drawn],
            propensity: match log {
                Log::Even => 1.0 / permitted as f64,
                _ => shares[drawn],
            },
            control: false,
            stands_for: 1.0 / kept,
            bytes: 20_000 << random.below(3),
            cost: Some(Cost {
                bits: time_bits + 1.0,
                time_bits,
            }),
        });
    }
    World {
        windows,
        truth: sums.map(|[sum, count]| sum / count),
    }
}

/// Of each window in use the share of seeds in which the doubly robust interval, and the weighted
/// one, contain the truth; and the mean truth.
fn coverage(seeds: u64, each: u64, log: Log) -> [[f64; 3]; USED.len()] {
    let mut found = [[0.0; 3]; USED.len()];
    for seed in 0..seeds {
        let world = world(seed, each, log);
        let outcomes = world.windows.window_outcomes(0);
        assert_eq!(outcomes.len(), USED.len());
        for (at, of) in outcomes.iter().enumerate() {
            assert_eq!(of.arm, USED[at]);
            let judged = of.judged.unwrap();
            let truth = world.truth[at];
            // Bits that the cost has more cancel out.
            assert!((judged.cost.robust.mean - judged.time.robust.mean).abs() < 1e-9);
            for (to, hit) in [
                judged.time.robust.contains_value(truth),
                judged.time.weighted.contains_value(truth),
            ]
            .into_iter()
            .enumerate()
            {
                found[at][to] += f64::from(u8::from(hit)) / seeds as f64;
            }
            found[at][2] += truth / seeds as f64;
        }
    }
    println!("{seeds} seeds of {each} connections a network: {found:.3?}");
    found
}

#[test]
fn intervals_contain_the_truth_of_each_window() {
    for (log, each) in [(Log::Honest, 200), (Log::Sampled, 400)] {
        for (at, [robust, weighted, _]) in coverage(60, each, log).into_iter().enumerate() {
            // Binomial with 60 draws at 0.95: one in a thousand is below 0.83.
            let window = window::arm_segments(USED[at]);
            assert!(robust >= 0.83, "{window} segments, doubly robust: {robust}");
            assert!(weighted >= 0.83, "{window} segments, weighted: {weighted}");
        }
    }
}

#[test]
fn false_probabilities_are_not_forgiven() {
    // As if nobody had chosen by anything: no estimate is left that holds.
    let [own, _, most] = coverage(20, 200, Log::Even);
    assert!(own[0] < 0.3 && most[0] < 0.3, "{own:?} {most:?}");
}

/// One connection to each of so many hosts of one network, with one window or another.
fn even(hosts: u64, arm: usize, control: bool) -> Windows {
    let mut windows = Windows::default();
    for host in 0..hosts {
        windows.add_connection(&First {
            host,
            network: 0,
            start_ns: host,
            arm: if host % 2 == 0 { OWN } else { arm },
            propensity: 0.5,
            control,
            stands_for: 1.0,
            bytes: 30_000,
            cost: (host % 5 != 4).then_some(Cost {
                bits: 1.0,
                time_bits: 1.0,
            }),
        });
    }
    windows
}

#[test]
fn what_nothing_can_be_told_of_is_said() {
    let judged = |windows: &Windows, arm: usize| {
        let all = windows.window_outcomes(1 << arm);
        all.iter().find(|of| of.arm == arm).unwrap().judged
    };
    let words = |windows: &Windows, arm: usize| judged(windows, arm).unwrap_err().to_string();
    let many = even(500, 3, false);
    assert_eq!((many.connection_count(), many.without_cost()), (400, 100));
    let same = judged(&many, 3).unwrap();
    assert!(same.time.robust.contains_value(0.0), "{same:?}");
    assert_eq!(words(&many, COUNT - 1), "no connection had it");
    let few = even(150, 3, false);
    let said = words(&few, 3);
    assert!(
        said.starts_with("an effective sample of ") && said.ends_with("are needed"),
        "{said}"
    );
    // Connections of the control group tell nothing: all have one window.
    let control = even(500, 3, true);
    assert_eq!(
        (control.control_count(), control.connection_count()),
        (500, 0)
    );
    assert!(control.window_outcomes(0).is_empty());
    assert_eq!(judged(&control, OWN), Err(Untold::Never));
}

#[test]
fn connections_count_only_where_the_window_had_a_chance() {
    // Half of the networks never get the larger window, and nothing of them may count.
    let mut windows = Windows::default();
    for number in 0..4000 {
        let network = number % 40;
        let larger = network < 20 && number / 40 % 2 == 1;
        windows.add_connection(&First {
            host: network,
            network,
            start_ns: number,
            arm: if larger { 3 } else { OWN },
            propensity: if network < 20 { 0.5 } else { 1.0 },
            control: false,
            stands_for: 1.0,
            bytes: 30_000,
            cost: Some(Cost {
                bits: 0.0,
                time_bits: if larger { 0.0 } else { 1.0 },
            }),
        });
    }
    let outcomes = windows.window_outcomes(0);
    let [own, larger] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    let (own, larger) = (own.judged.unwrap(), larger.judged.unwrap());
    // The first connection is only learned from; of the others the second of a network is the first
    // that had the larger window.
    assert_eq!((own.size.connections, own.size.uncovered), (3999, 0));
    assert_eq!(larger.size.connections, 20 * 98);
    assert!((larger.time.robust.mean + 0.5).abs() < 0.02, "{larger:?}");
    assert!((own.time.robust.mean - 0.25).abs() < 0.02, "{own:?}");

    // A window that its network gave up no longer counts, soon.
    let mut windows = Windows::default();
    for number in 0..9000u64 {
        let network = number % 30;
        let permits = number < 900;
        let larger = permits && number / 30 % 2 == 1;
        windows.add_connection(&First {
            host: network,
            network,
            start_ns: number,
            arm: if larger { 3 } else { OWN },
            propensity: if permits { 0.5 } else { 1.0 },
            control: false,
            stands_for: 1.0,
            bytes: 30_000,
            cost: Some(Cost {
                bits: 0.0,
                time_bits: 0.0,
            }),
        });
    }
    let of = windows.window_outcomes(0)[1];
    let Err(Untold::Seldom(size)) = of.judged else {
        panic!("{of:?}")
    };
    assert!(size.connections < 30 * (30 + 100), "{size:?}");
    let said = of.judged.unwrap_err().to_string();
    assert!(said.starts_with("it had a chance in 2"), "{said}");
}
