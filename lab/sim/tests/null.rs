//! Each controller with bounds in a shipped scenario is told from one that does nothing: flows at
//! the line's rate miss one of its bounds, or the scenario says that it only bounds harm.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use thalweg_sim::cc::Spec;
use thalweg_sim::expect::{Expectation, NULL, Verdict, met_by_null};
use thalweg_sim::metrics::Summary;
use thalweg_sim::scenario::Workload;
use thalweg_sim::sweep::{Job, run_sweep};
use thalweg_sim::{Scenario, Time};

/// The beginning of a scenario. What does nothing fills queues at once, so little of it tells.
fn beginning(mut scenario: Scenario) -> Scenario {
    let us = match &mut scenario.workload {
        Workload::Poisson { until, .. } => {
            *until = Time::from_us(15_000);
            20_000
        }
        Workload::LongShort { .. } => 40_000,
        // Ten thousand packets, and as many before; flows begin within a millisecond.
        _ => {
            let packet_bits = u64::from(scenario.network.packet_bytes) * 8;
            1_000 + 20_000 * packet_bits * 1_000_000 / scenario.network.link.rate_bps
        }
    };
    scenario.duration = scenario.duration.min(Time::from_us(us));
    scenario.warmup = scenario.warmup.min(Time::from_us(us / 2));
    scenario
}

#[test]
fn null_misses_a_bound_of_each_controller_with_bounds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sim");
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let scenarios: Vec<Scenario> = (files.iter())
        .map(|file| beginning(Scenario::load(file).unwrap()))
        .filter(|scenario| !scenario.expect.is_empty() && !scenario.only_bounds_harm)
        .collect();
    assert!(scenarios.len() >= 20, "{files:?}");
    let controller: Spec = NULL.parse().unwrap();
    let jobs: Vec<Job<'_>> = (scenarios.iter())
        .map(|scenario| Job {
            scenario,
            controller: &controller,
            seed: 1,
        })
        .collect();
    let outcomes = run_sweep(&jobs, 2, &AtomicBool::new(false), |_, _| ());
    let mut met = Vec::new();
    for (scenario, outcome) in scenarios.iter().zip(outcomes) {
        let outcome = outcome.unwrap();
        let verdict = |one: &Expectation| {
            let value = one.statistic.value_in(&outcome);
            let summary = value.and_then(|value| Summary::from_values(&[value]));
            println!("{}: {one}: {value:?}", scenario.name);
            one.judge_summary(Some(summary.as_ref()))
        };
        let verdicts: Vec<(&Expectation, Verdict)> = (scenario.expect.iter())
            .map(|one| (one, verdict(one)))
            .collect();
        let all = met_by_null(&verdicts).into_iter();
        met.extend(all.map(|cc| format!("{}: {cc}", scenario.name)));
    }
    assert_eq!(
        met,
        Vec::<String>::new(),
        "{NULL} meets every bound of these"
    );
}
