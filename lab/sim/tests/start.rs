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
        format!(
            "learned:model={},initial_fraction=1,overload=decide",
            file.display()
        )
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

/// With restarts nothing is lost any more, and the link is in use, before the queue was full ten
/// times (128 flows), or 25 times (8192).
#[test]
fn flows_that_restart_end_the_overload_soon() {
    for (flows, losses_end_us, used_from_us) in [(128, 5_000, 20_000), (8192, 20_000, 60_000)] {
        let file = root().join(format!("scenarios/sim/many-to-one-{flows}.toml"));
        let mut scenario = Scenario::load(&file).unwrap();
        let model = root().join("models/adpg-plus.safetensors");
        let cc = format!("learned:model={},initial_fraction=1", model.display());
        let spec: Spec = cc.parse().unwrap();
        let mut run = |warmup, duration| {
            scenario.warmup = Time::from_us(warmup);
            scenario.duration = Time::from_us(duration);
            let spec = spec.clone();
            Simulation::new(&scenario, move |_, _| spec.build(), 1).run()
        };
        let early = run(0, 1_500);
        assert!(early.dropped_gbps > 1_000.0, "{flows}: {early:?}");
        let later = run(losses_end_us, used_from_us);
        assert_eq!(later.dropped_gbps, 0.0, "{flows}");
        let used = run(used_from_us, used_from_us + 10_000);
        assert!(used.utilisation_percent > 95.0, "{flows}: {used:?}");
    }
}
