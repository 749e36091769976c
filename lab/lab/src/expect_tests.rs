use super::*;
use crate::host::loss::LossCounters;
use crate::outcome::{Connection, RemoteOutcome};

fn outcome(mode: &str, goodputs: &[f64], arm: &str) -> ModeOutcome {
    let connections = goodputs
        .iter()
        .enumerate()
        .map(|(round, goodput)| Connection {
            round: round as u32,
            goodput_bps: *goodput,
            arm: arm.into(),
            error: (*goodput == 0.0).then(|| "failed".into()),
            ..Connection::default()
        });
    ModeOutcome {
        mode: mode.parse().unwrap(),
        rounds: goodputs.len() as u32,
        connections: connections.collect(),
        forward: LossCounters {
            seen_packets: 100,
            dropped_packets: 5,
            ..Default::default()
        },
        reverse: LossCounters::default(),
        hosts: Vec::new(),
        least_rtt_us: None,
        last_change: None,
        remotes: Vec::new(),
        gain: None,
        processor_share: None,
    }
}

fn expectation(statistic: Statistic, relative_to: Option<Reference>, at_least: f64) -> Expectation {
    Expectation {
        mode: Mode::Thalweg,
        statistic,
        arm: None,
        class: None,
        host: None,
        relative_to,
        at_least: Some(at_least),
        at_most: None,
    }
}

fn verdict(expectation: Expectation, modes: &[ModeOutcome]) -> (Verdict, Option<f64>) {
    let check = &evaluate_expectations(&[expectation], modes)[0];
    (check.verdict, check.value)
}

#[test]
fn null_stands_in_for_modes_that_learn() {
    let baseline = || Some(Reference::Mode(Mode::Baseline));
    let claims = [
        expectation(Statistic::Median, baseline(), 2.0),
        expectation(Statistic::Median, baseline(), 0.9),
        Expectation {
            mode: Mode::Baseline,
            ..expectation(Statistic::Median, None, 1.0)
        },
    ];
    let mut modes = vec![
        outcome("baseline", &[10.0, 10.0], "cubic"),
        outcome("thalweg", &[30.0, 30.0], "bbr"),
    ];
    assert!(evaluate_null(&claims, &modes).is_empty(), "it did not run");
    modes.push(outcome("null", &[10.0, 10.0], "cubic"));
    let verdicts = |claims: &[Expectation]| -> Vec<(Verdict, Option<f64>)> {
        let checks = evaluate_null(claims, &modes).into_iter();
        checks.map(|check| (check.verdict, check.value)).collect()
    };
    let both = [(Verdict::Missed, Some(1.0)), (Verdict::Met, Some(1.0))];
    assert_eq!(verdicts(&claims), both);
}

#[test]
fn the_last_half_is_compared_with_the_same_rounds() {
    let modes = [
        // The machine became slower halfway.
        outcome("baseline", &[40.0, 40.0, 40.0, 10.0, 10.0, 10.0], "cubic"),
        outcome("thalweg", &[40.0, 40.0, 40.0, 10.0, 10.0, 10.0], "cubic"),
    ];
    let baseline = Some(Reference::Mode(Mode::Baseline));
    assert_eq!(
        verdict(
            expectation(Statistic::MedianLastHalf, baseline, 0.99),
            &modes
        ),
        (Verdict::Met, Some(1.0))
    );
}

#[test]
fn ratios_are_to_the_best_fixed_mode_by_median() {
    let modes = [
        outcome("baseline", &[10.0, 10.0, 10.0, 10.0], "cubic"),
        outcome("fixed:reno", &[20.0, 20.0, 20.0, 20.0], "reno"),
        // The highest mean, but not the highest median.
        outcome("fixed:cubic", &[10.0, 10.0, 10.0, 900.0], "cubic"),
        outcome("fixed:bbr", &[100.0, 100.0, 90.0, 110.0], "bbr"),
        outcome("thalweg", &[10.0, 40.0, 95.0, 95.0], "bbr"),
    ];
    let best = Some(Reference::BestFixed);
    let (fixed, _) = Query::from(Statistic::Median)
        .best_fixed(&modes, 0)
        .unwrap();
    assert_eq!(fixed.mode, Mode::Fixed("bbr".into()));
    assert_eq!(
        verdict(
            expectation(Statistic::MedianLastHalf, best.clone(), 0.95),
            &modes
        ),
        (Verdict::Met, Some(0.95))
    );
    assert_eq!(
        verdict(
            expectation(Statistic::MedianLastHalf, best.clone(), 0.96),
            &modes
        )
        .0,
        Verdict::Missed
    );
    assert_eq!(
        verdict(expectation(Statistic::Mean, best, 0.5), &modes),
        (Verdict::Met, Some(0.6))
    );
    let baseline = Some(Reference::Mode(Mode::Baseline));
    assert_eq!(
        verdict(
            expectation(Statistic::MedianLastHalf, baseline, 9.0),
            &modes
        ),
        (Verdict::Met, Some(9.5))
    );
}

#[test]
fn upper_bounds_count_too() {
    let modes = [outcome("thalweg", &[1.0, 0.0], "bbr")];
    let mut failures = expectation(Statistic::Failures, None, 0.0);
    failures.at_most = Some(0.0);
    assert_eq!(verdict(failures, &modes), (Verdict::Missed, Some(1.0)));
    let mut loss = expectation(Statistic::Loss, None, 0.04);
    loss.at_most = Some(0.06);
    assert_eq!(verdict(loss, &modes), (Verdict::Met, Some(0.05)));
}

#[test]
fn what_was_not_measured_is_neither_met_nor_missed() {
    let thalweg = outcome("thalweg", &[1.0, 1.0], "bbr");
    let best = expectation(Statistic::Median, Some(Reference::BestFixed), 0.9);
    let baseline = expectation(
        Statistic::Median,
        Some(Reference::Mode(Mode::Baseline)),
        0.9,
    );
    let dead = outcome("baseline", &[0.0, 0.0], "");
    for (expectation, modes, reason) in [
        (
            &best,
            vec![outcome("baseline", &[1.0], "cubic")],
            "mode thalweg was not run",
        ),
        (&best, vec![thalweg], "no mode fixed:ARM was run"),
        (
            &baseline,
            vec![outcome("thalweg", &[1.0], "bbr")],
            "mode baseline was not run",
        ),
        (
            &baseline,
            vec![outcome("thalweg", &[1.0], "bbr"), dead],
            "moved nothing",
        ),
        (&best, vec![], "mode thalweg was not run"),
    ] {
        let check = &evaluate_expectations(std::slice::from_ref(expectation), &modes)[0];
        assert_eq!((check.verdict, check.value), (Verdict::NotChecked, None));
        assert!(
            check.reason.as_deref().unwrap().contains(reason),
            "{check:?}"
        );
    }
}

#[test]
fn a_mode_that_ran_and_measured_nothing_misses() {
    let dead = |name: &str| {
        let mut mode = outcome(name, &[0.0; 6], "");
        for one in &mut mode.connections {
            one.flow_bytes = Some(1);
        }
        mode
    };
    let of = |statistic, relative_to| Expectation {
        at_least: None,
        at_most: Some(1e9),
        ..expectation(statistic, relative_to, 0.0)
    };
    let baseline = || Some(Reference::Mode(Mode::Baseline));
    for (expectation, reason) in [
        (of(Statistic::RttP95, None), "nothing was measured"),
        (of(Statistic::RttP95, baseline()), "nothing was measured"),
        (
            Expectation {
                class: Some("short".into()),
                ..of(Statistic::Median, None)
            },
            "no flow of class \"short\" was measured",
        ),
        (
            of(Statistic::Median, baseline()),
            "neither it nor baseline has more than 0",
        ),
        (
            of(Statistic::FctMedian, baseline()),
            "neither it nor baseline got there",
        ),
        (
            of(Statistic::Convergence, None),
            "neither it nor fixed:bbr moved anything",
        ),
    ] {
        let modes = [dead("baseline"), dead("fixed:bbr"), dead("thalweg")];
        let check = &evaluate_expectations(std::slice::from_ref(&expectation), &modes)[0];
        assert_eq!((check.verdict, check.value), (Verdict::Missed, None));
        assert_eq!(check.reason.as_deref(), Some(reason), "{check:?}");
    }
    // The same of a mode that was not run, and of one that lacks its reference.
    let unchecked = (Verdict::NotChecked, None);
    let rtt = of(Statistic::RttP95, None);
    assert_eq!(verdict(rtt, &[dead("baseline")]), unchecked);
    let ratio = of(Statistic::Median, baseline());
    assert_eq!(verdict(ratio, &[dead("thalweg")]), unchecked);
}

#[test]
fn a_mode_without_connections_to_a_host_misses_there() {
    let mut mode = outcome("thalweg", &[1.0, 1.0], "bbr");
    mode.remotes = vec![RemoteOutcome {
        name: "far".into(),
        address: "10.0.1.2".parse().unwrap(),
        others: Vec::new(),
        forward: LossCounters::default(),
        reverse: LossCounters::default(),
        least_rtt_us: None,
        last_change: None,
    }];
    let far = Expectation {
        host: Some("far".into()),
        ..expectation(Statistic::Median, None, 0.0)
    };
    assert_eq!(verdict(far.clone(), &[mode]), (Verdict::Missed, None));
    assert_eq!(verdict(far, &[]), (Verdict::NotChecked, None));
}

#[test]
fn what_was_not_reached_misses_a_lower_bound_too() {
    let mut mode = outcome("thalweg", &[0.0, 0.0], "");
    for one in &mut mode.connections {
        one.flow_bytes = Some(1);
    }
    assert_eq!(
        verdict(expectation(Statistic::FctMedian, None, 80e3), &[mode]),
        (Verdict::Missed, Some(f64::INFINITY))
    );
}

#[test]
fn null_that_measured_nothing_does_not_miss() {
    let claim = expectation(Statistic::RttP95, None, 1.0);
    let modes = [
        outcome("thalweg", &[0.0, 0.0], ""),
        outcome("null", &[0.0, 0.0], ""),
    ];
    let claims = std::slice::from_ref(&claim);
    assert_eq!(
        evaluate_expectations(claims, &modes)[0].verdict,
        Verdict::Missed
    );
    let of_null = evaluate_null(claims, &modes);
    assert_eq!(of_null[0].verdict, Verdict::NotChecked);
}

#[test]
fn convergence_is_the_share_of_the_commonest_arm_of_the_last_half() {
    let mut thalweg = outcome("thalweg", &[1.0; 10], "bbr");
    for connection in &mut thalweg.connections[..6] {
        connection.arm = "cubic".into();
    }
    assert_eq!(
        verdict(
            expectation(Statistic::ConvergedShare, None, 0.8),
            &[thalweg]
        ),
        (Verdict::Met, Some(0.8))
    );
}
