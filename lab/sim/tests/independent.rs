//! Swift and DCTCP against an independent simulator.
//!
//! The figures are csg-htsim's (commit 841d9e7): its event list, pipes and queues, its own Swift, and
//! a DCTCP written after the RFC. N flows to one over a star, 100 Gbit/s, packets of 1 KiB, a base
//! RTT of 12 µs, 10 MiB of queue, marks above 100 kB, no reaction time.

use std::path::{Path, PathBuf};

use thalweg_sim::cc::Spec;
use thalweg_sim::scenario::Ecn;
use thalweg_sim::{Outcome, Scenario, Simulation, Time};

/// Flows, and the other simulator's fairness (percent) and mean queueing delay (µs). Its utilisation
/// is 100 % in every row.
type Rows = [(u32, f64, f64); 4];

const SWIFT: Rows = [
    (2, 100.0, 10.05),
    (8, 100.0, 12.23),
    (32, 100.0, 16.83),
    (128, 99.0, 25.91),
];
const DCTCP: Rows = [
    (2, 98.0, 7.62),
    (8, 93.0, 7.33),
    (32, 92.0, 7.31),
    (128, 100.0, 8.97),
];

fn run(cc: &str, flows: u32) -> Outcome {
    let file = format!("../../scenarios/sim/many-to-one-{flows}.toml");
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let mut scenario = Scenario::load(&file).expect("a scenario of this repository");
    scenario.hosts.reaction = Time::ZERO;
    scenario.network.ecn = Some(Ecn {
        min_bytes: 100_000,
        max_bytes: 100_000,
        max_probability: 1.0,
    });
    scenario.warmup = Time::from_us(30_000);
    scenario.duration = Time::from_us(130_000);
    let spec: Spec = cc.parse().expect("a controller of the list");
    Simulation::new(&scenario, move |_, _| spec.build(), 1).run()
}

/// Queueing delay within a share of theirs. Fairness is that of other 100 ms than theirs, and
/// windows drift for longer than that, so it may be lower by `drift`. With two flows, either
/// simulator has any fairness for a while.
fn compare(cc: &str, rows: &Rows, share: f64, drift: f64) {
    for (flows, fairness, queue_us) in rows {
        let outcome = run(cc, *flows);
        let found = outcome.queue_latency.mean_us;
        assert!(
            outcome.utilisation_percent > 99.9,
            "{cc} {flows}: {outcome:?}"
        );
        assert!(
            (found / queue_us - 1.0).abs() < share,
            "{cc}, {flows} flows: {found} µs, expected {queue_us} µs"
        );
        assert!(
            *flows == 2 || outcome.fairness_percent > fairness - drift,
            "{cc}, {flows} flows: {} %, expected {fairness} %",
            outcome.fairness_percent
        );
    }
}

#[test]
fn swift_agrees() {
    compare("swift", &SWIFT, 0.003, 3.0);
}

#[test]
fn dctcp_agrees() {
    compare("dctcp", &DCTCP, 0.015, 15.0);
}
