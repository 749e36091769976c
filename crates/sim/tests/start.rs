//! Flows that start at the line rate lose nearly everything, and must still recover.

use std::path::{Path, PathBuf};

use thalweg_sim::cc::Spec;
use thalweg_sim::{Scenario, Simulation, Time};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// 128 flows of 64 hosts offer 64 times the capacity of the receiver's link. At 12 µs a decision
/// takes off a sixth at most. So 100 Gbit/s down to 0.78 Gbit/s are 27 decisions. Each takes 0.85
/// ms, the round-trip time through a full queue, or twice that, the time-out. 60 ms are enough.
#[test]
fn models_recover_from_a_start_at_the_line_rate() {
    let mut scenario = Scenario::load(&root().join("scenarios/sim/many-to-one-128.toml")).unwrap();
    scenario.warmup = Time::from_us(60_000);
    scenario.duration = Time::from_us(80_000);
    let model = |name: &str| {
        let file = root().join("models").join(format!("{name}.safetensors"));
        format!("learned:model={},initial_fraction=1", file.display())
    };
    for cc in [
        "proportional:gain=1".to_owned(),
        model("adpg-strict"),
        model("adpg-plus"),
        format!("{},inference=int8", model("adpg-plus")),
    ] {
        let spec: Spec = cc.parse().unwrap();
        let outcome = Simulation::new(&scenario, move |_, _| spec.build(), 1).run();
        // The premise holds: most packets are lost at first.
        assert!(outcome.counts.dropped_packets > 100_000, "{cc}");
        assert_eq!(outcome.dropped_gbps, 0.0, "{cc}");
        assert!(outcome.utilisation_percent > 90.0, "{cc}: {outcome:?}");
        // The published fairness of the published agent is 95 (table 2).
        assert!(
            outcome.fairness_percent > 80.0,
            "{cc}: {}",
            outcome.fairness_percent
        );
        // Below the delay of a tenth of the queue: 10 MiB take 839 µs.
        assert!(outcome.queue_latency.mean_us < 84.0, "{cc}");
    }
}
