//! The gate: in the worlds like servers' of the bench `regret`, each bad learner must break a named
//! bound, and the shipped one none but the known ones.

#![allow(
    dead_code,
    reason = "the modules belong to the bench, which uses all of them"
)]

#[path = "../benches/regret/long.rs"]
mod long;
#[path = "../benches/regret/policy.rs"]
mod policy;
#[path = "../benches/regret/random.rs"]
mod random;
#[path = "../benches/regret/serve.rs"]
mod serve;
#[path = "../benches/regret/server.rs"]
mod server;

use policy::GATE;
use serve::{broken, outcome};
use server::SERVERS;

/// Worlds of each kind: the same in every run.
const SEEDS: u64 = 20;

/// The bounds that a learner breaks, as `world: bound`.
fn breaks(learner: &str) -> Vec<String> {
    let (_, build) = GATE
        .iter()
        .find(|(name, _)| *name == learner)
        .expect("a learner of the gate");
    let of_world = |server| {
        let bounds = broken(server, &outcome(server, *build, SEEDS));
        bounds
            .into_iter()
            .map(|bound| format!("{}: {bound}", server.name))
    };
    SERVERS.iter().flat_map(of_world).collect()
}

fn fails(learner: &str, bounds: &[&str]) {
    let breaks = breaks(learner);
    for bound in bounds {
        assert!(
            breaks.iter().any(|broken| broken == bound),
            "{learner} should break \"{bound}\", but breaks {breaks:?}"
        );
    }
}

#[test]
fn a_learner_that_does_nothing_fails() {
    fails(
        "default only",
        &[
            "one an hour, another twice as fast: best",
            "bulk, another twice as fast: best",
            "5 % loss, bbr 50 x faster: best",
        ],
    );
}

#[test]
fn a_learner_that_chooses_at_random_fails() {
    fails(
        "uniform random",
        &[
            "three visits, default 0.3 bits best: mean",
            "one an hour, default 3 bits best: wrong",
            "heavy tail: 19 % faster, one in ten 16 x slower: p99",
            "shared uplink, arm 1 takes: harm",
        ],
    );
}

#[test]
fn a_learner_that_always_takes_bbr_fails() {
    fails(
        "always bbr",
        &[
            "three visits, default 3 bits best: worst",
            "responses over two hours: mean",
            "shared uplink, arm 1 takes: harm",
        ],
    );
}

#[test]
fn the_published_learner_fails() {
    fails(
        "classic",
        &[
            "one an hour, default 3 bits best: mean",
            "heavy tail: 19 % faster, one in ten 16 x slower: p99",
            "shared uplink, arm 1 takes: harm",
        ],
    );
}

#[test]
fn a_learner_that_knows_hosts_alone_fails() {
    fails(
        "hosts alone",
        &[
            "a network, three visits a host, another 0.5 bits better: gained",
            "a network, three visits a host, another 0.5 bits better: first",
        ],
    );
}

#[test]
fn a_learner_that_waits_for_the_end_of_connections_fails() {
    fails(
        "ends only",
        &[
            "replication, two endless flows: mean",
            "replication, another twice as fast: best",
        ],
    );
}

/// Every bound that the shipped learner breaks is documented in docs/measurements/learner.md. One
/// that it breaks no longer goes from this list.
#[test]
fn the_shipped_learner_breaks_the_known_bounds_alone() {
    assert_eq!(breaks("thalweg (core)"), KNOWN);
}

const KNOWN: &[&str] = &[
    "heavy tail: 19 % faster, one in ten 16 x slower: p99",
    "shared uplink, arm 1 takes: harm",
];
