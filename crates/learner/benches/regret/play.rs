//! Runs policies in worlds and adds up their losses.

use crate::policy::{Entry, Policy, SYSTEM, Seat};
use crate::random::Random;
use crate::world::{EARLY, HORIZON, Scenario, World};

/// Pause between two connections of one client, ns.
const PAUSE_NS: u64 = 1_000_000_000;
/// An arm this close to the best in expected rate counts as equally good: 1 %.
const AS_GOOD_BITS: f64 = 0.0144;

/// Outcome of one seed. Losses are relative to the best arm's expected rate, per connection.
pub struct Run {
    /// Share lost over the first 60 connections.
    pub early_loss: f64,
    /// Share lost over all connections.
    pub loss: f64,
    /// log2 of the ratio to the best, over all connections.
    pub loss_bits: f64,
    /// Share of connections on the best arm, after the first change if there is one.
    pub on_best: f64,
    /// Share of the default's goodput lost over the first 60 connections; negative for a gain.
    pub early_below_default: f64,
}

struct Open {
    ends_ns: u64,
    connection: usize,
    arm: usize,
}

/// The arms taken by the connections of one run.
fn arms_taken(
    scenario: &Scenario,
    world: &World,
    policy: &mut dyn Policy,
    seed: u64,
) -> Vec<usize> {
    let mut random = Random::new(seed, 2);
    let mut open: Vec<Open> = vec![];
    let mut now_ns = 1;
    let mut taken = Vec::with_capacity(HORIZON);
    for connection in 0..HORIZON {
        if open.len() == scenario.in_flight
            && let Some(first) = (0..open.len()).min_by_key(|&slot| open[slot].ends_ns)
        {
            let ended = open.remove(first);
            now_ns = ended.ends_ns;
            let sample = world.sample(ended.connection, ended.arm);
            policy.learn(ended.arm, &sample, now_ns);
        }
        let arm = policy.choose(&mut random, now_ns);
        let duration_us = world.sample(connection, arm).duration_us;
        open.push(Open {
            ends_ns: now_ns + PAUSE_NS + duration_us * 1000,
            connection,
            arm,
        });
        taken.push(arm);
    }
    taken
}

/// Plays one seed.
pub fn play(scenario: &Scenario, entry: &Entry, seed: u64) -> Run {
    let world = World::new(scenario, seed);
    let taken = match entry.build {
        Some(build) => arms_taken(
            scenario,
            &world,
            build(&Seat::alone(scenario.arms())).as_mut(),
            seed,
        ),
        None => (0..HORIZON)
            .map(|connection| world.best(connection))
            .collect(),
    };
    judge(scenario, &world, &taken)
}

/// Adds up the losses of the arms taken, against the best arm and against the default.
pub fn judge(scenario: &Scenario, world: &World, taken: &[usize]) -> Run {
    let gap_bits = |connection: usize, arm: usize| {
        let rates = &world.rates_bits[connection];
        rates[world.best(connection)] - rates[arm]
    };
    let gaps: Vec<f64> = taken
        .iter()
        .enumerate()
        .map(|(connection, &arm)| gap_bits(connection, arm))
        .collect();
    let goodput = |gaps: &[f64]| mean(gaps.iter().map(|gap| (-gap).exp2()));
    let default: Vec<f64> = (0..EARLY)
        .map(|connection| gap_bits(connection, SYSTEM))
        .collect();
    Run {
        early_loss: 1.0 - goodput(&gaps[..EARLY]),
        loss: 1.0 - goodput(&gaps),
        loss_bits: mean(gaps.iter().copied()),
        on_best: mean(
            gaps[scenario.first_change()..]
                .iter()
                .map(|&gap| f64::from(gap <= AS_GOOD_BITS)),
        ),
        early_below_default: 1.0 - goodput(&gaps[..EARLY]) / goodput(&default),
    }
}

/// Arithmetic mean; 0 without values.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
