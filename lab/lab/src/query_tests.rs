use super::*;
use crate::host::loss::LossCounters;

fn outcome(mode: &str, goodputs: &[f64]) -> ModeOutcome {
    let connections = goodputs
        .iter()
        .enumerate()
        .map(|(round, goodput)| Connection {
            round: round as u32,
            goodput_bps: *goodput,
            arm: "bbr".into(),
            ..Connection::default()
        });
    ModeOutcome {
        mode: mode.parse().unwrap(),
        rounds: goodputs.len() as u32,
        connections: connections.collect(),
        forward: LossCounters::default(),
        reverse: LossCounters::default(),
        hosts: Vec::new(),
        least_rtt_us: None,
        last_change: None,
        remotes: Vec::new(),
        gain: None,
        processor_share: None,
    }
}

/// Rounds of two incumbents and one newcomer.
fn competition(mode: &str, rounds: &[[f64; 3]]) -> ModeOutcome {
    let mut outcome = outcome(mode, &[]);
    for (round, goodputs) in rounds.iter().enumerate() {
        for (goodput, class) in goodputs.iter().zip([INCUMBENT, INCUMBENT, ""]) {
            outcome.connections.push(Connection {
                round: round as u32,
                class: class.into(),
                goodput_bps: *goodput,
                arm: if class == INCUMBENT { "cubic" } else { "bbr" }.into(),
                ..Connection::default()
            });
        }
    }
    outcome
}

fn value(
    statistic: Statistic,
    outcome: &ModeOutcome,
    modes: &[ModeOutcome],
) -> Result<f64, String> {
    let value = Query::from(statistic).mode_value(outcome, modes);
    value.map_err(|why| why.to_string())
}

#[test]
fn the_last_half_has_a_lower_quartile_and_a_tail_of_its_own() {
    let mut learner = outcome("thalweg", &[1.0, 1.0, 1.0, 1.0, 10.0, 20.0, 30.0, 40.0]);
    for one in &mut learner.connections {
        one.flow_bytes = Some(1);
        one.fct_us = Some(1e3 / one.goodput_bps);
    }
    let of = |statistic| value(statistic, &learner, &[]).unwrap();
    // Type 7: a quarter of the way through three gaps is 0.75 of the first.
    assert_eq!(of(Statistic::LowerQuartileLastHalf), 17.5);
    assert_eq!(of(Statistic::LowerQuartile), 1.0);
    assert_eq!(of(Statistic::FctP99), 1e3);
    let tail = of(Statistic::FctP99LastHalf);
    assert!((50.0..=100.0).contains(&tail), "{tail}");
    // A flow that failed takes for ever.
    learner.connections[7].error = Some("x".into());
    let tail = value(Statistic::FctP99LastHalf, &learner, &[]).unwrap();
    assert_eq!(tail, f64::INFINITY);
}

#[test]
fn convergence_is_the_end_of_the_first_good_window() {
    let best = outcome("fixed:bbr", &[100.0; 12]);
    let learner = outcome(
        "thalweg",
        &[
            10.0, 10.0, 95.0, 10.0, 95.0, 95.0, 10.0, 95.0, 95.0, 95.0, 95.0, 95.0,
        ],
    );
    // Connections 2 to 6 hold 10, 95, 10, 95, 95: the first median of 95.
    let modes = [best, learner];
    assert_eq!(value(Statistic::Convergence, &modes[1], &modes), Ok(6.0));
    assert_eq!(value(Statistic::Convergence, &modes[0], &modes), Ok(5.0));
    let never = outcome("thalweg", &[89.0; 12]);
    assert_eq!(
        value(Statistic::Convergence, &never, &modes),
        Ok(f64::INFINITY)
    );
    assert!(
        value(Statistic::Convergence, &never, &[])
            .unwrap_err()
            .contains("fixed:ARM")
    );
}

#[test]
fn recovery_is_counted_from_the_change_against_what_is_best_after_it() {
    let mut before = [100.0; 20];
    before[10..].fill(20.0);
    let mut after = [20.0; 20];
    after[10..].fill(50.0);
    let mut learner = [100.0; 20];
    learner[10..13].fill(20.0);
    learner[13..].fill(50.0);
    let mut modes = [
        outcome("fixed:cubic", &before),
        outcome("fixed:bbr", &after),
        outcome("thalweg", &learner),
    ];
    assert_eq!(
        value(Statistic::Recovery, &modes[2], &modes),
        Err("the path does not change".into())
    );
    modes[2].last_change = Some(10);
    // After the change: 20, 20, 20, 50, 50, 50. The sixth value's window is 20 20 50 50 50.
    assert_eq!(value(Statistic::Recovery, &modes[2], &modes), Ok(6.0));
}

#[test]
fn regret_counts_lost_connections_of_the_best_arm() {
    let modes = [
        outcome("fixed:bbr", &[100.0; 4]),
        outcome("thalweg", &[0.0, 50.0, 100.0, 110.0]),
    ];
    let regret = value(Statistic::Regret, &modes[1], &modes).unwrap();
    assert!((regret - 1.4).abs() < 1e-12, "{regret}");
    let each = value(Statistic::RegretPerConnection, &modes[1], &modes).unwrap();
    assert!((each - 0.35).abs() < 1e-12, "{each}");
}

#[test]
fn competition_has_share_fairness_and_harm() {
    let modes = [
        competition("fixed:cubic", &[[30.0, 30.0, 30.0], [32.0, 28.0, 30.0]]),
        competition("fixed:bbr", &[[15.0, 15.0, 60.0], [15.0, 15.0, 60.0]]),
        // One incumbent starves beside the other: no harm by the newcomer.
        competition("fixed:reno", &[[58.0, 2.0, 30.0], [1.0, 59.0, 30.0]]),
    ];
    let share = value(Statistic::Share, &modes[1], &modes).unwrap();
    assert!((share - 2.0 / 3.0).abs() < 1e-12);
    // 90² / (3 · (225 + 225 + 3600)) = 8100 / 12150
    let index = value(Statistic::Jain, &modes[1], &modes).unwrap();
    assert!((index - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(value(Statistic::Harm, &modes[1], &modes), Ok(0.5));
    assert_eq!(value(Statistic::Harm, &modes[0], &modes), Ok(0.0));
    assert_eq!(value(Statistic::Harm, &modes[2], &modes), Ok(0.0));
    assert_eq!(
        value(Statistic::Harm, &modes[1], &modes[1..]),
        Err("mode fixed:cubic was not run".into())
    );
    // Incumbents count only if they are named.
    assert_eq!(value(Statistic::Median, &modes[1], &modes), Ok(60.0));
    let named = Query {
        class: Some(INCUMBENT),
        ..Statistic::Median.into()
    };
    assert_eq!(named.mode_value(&modes[1], &modes), Ok(15.0));
    let lone = [outcome("thalweg", &[1.0, 2.0])];
    for statistic in [Statistic::Share, Statistic::Jain, Statistic::Harm] {
        assert!(value(statistic, &lone[0], &lone).is_err());
    }
}

#[test]
fn rounds_in_which_nothing_arrived_count_as_unfair() {
    // One fair round, two dead ones.
    let modes = [competition("fixed:bbr", &[[30.0; 3], [0.0; 3], [0.0; 3]])];
    assert_eq!(value(Statistic::Jain, &modes[0], &modes), Ok(0.0));
}

#[test]
fn share_with_a_dead_round_is_unmeasured() {
    // A share of 0 would keep upper bounds. One such round of three is enough.
    let modes = [competition("fixed:bbr", &[[30.0; 3], [30.0; 3], [0.0; 3]])];
    assert_eq!(
        Query::from(Statistic::Share).mode_value(&modes[0], &modes),
        Err(NoValue::not_measured("nothing arrived in a round"))
    );
    let starving = [competition("fixed:bbr", &[[30.0, 30.0, 0.0]])];
    assert_eq!(value(Statistic::Share, &starving[0], &starving), Ok(0.0));
}

/// The mode, with its incumbents failed.
fn without_incumbents(mut mode: ModeOutcome) -> ModeOutcome {
    let incumbents = mode.connections.iter_mut();
    for one in incumbents.filter(|one| one.class == INCUMBENT) {
        one.goodput_bps = 0.0;
        one.arm = String::new();
        one.error = Some("timed out".into());
    }
    mode
}

#[test]
fn harm_is_whole_where_every_incumbent_failed() {
    let alive = || competition("fixed:cubic", &[[30.0, 30.0, 30.0]]);
    let killer = || without_incumbents(competition("thalweg", &[[0.0, 0.0, 90.0]]));
    let modes = [alive(), killer()];
    assert_eq!(value(Statistic::Harm, &modes[1], &modes), Ok(1.0));
    // Among their like they got nothing either.
    let other = competition("baseline", &[[30.0, 30.0, 30.0]]);
    let modes = [without_incumbents(alive()), killer(), other];
    assert_eq!(
        value(Statistic::Harm, &modes[1], &modes),
        Err("neither it nor fixed:cubic moved anything".into())
    );
    // Nobody tells their congestion control.
    assert_eq!(
        value(Statistic::Harm, &modes[1], &modes[1..2]),
        Err("every incumbent failed".into())
    );
}

#[test]
fn failures_are_those_of_all_flows_or_of_a_class() {
    let mut mode = without_incumbents(competition("thalweg", &[[0.0, 0.0, 90.0]]));
    assert_eq!(value(Statistic::Failures, &mode, &[]), Ok(2.0));
    mode.connections[2].error = Some("timed out".into());
    assert_eq!(value(Statistic::Failures, &mode, &[]), Ok(3.0));
    let incumbents = Query {
        class: Some(INCUMBENT),
        ..Statistic::Failures.into()
    };
    assert_eq!(incumbents.mode_value(&mode, &[]), Ok(2.0));
}

#[test]
fn times_are_percentiles_over_all_samples_and_failures_are_the_slowest() {
    let mut modes = [outcome("baseline", &[1.0; 100])];
    for (number, connection) in modes[0].connections.iter_mut().enumerate() {
        connection.flow_bytes = Some(10_000);
        connection.fct_us = Some(number as f64);
        connection.srtt_us = vec![100 + number as u32, 100 + number as u32];
        connection.rtt_us = vec![(number as f64, 9), (1000.0, 1)];
        connection.sent_segments = Some(10);
        connection.retransmits = u64::from(number < 50);
    }
    modes[0].least_rtt_us = Some(90.0);
    assert_eq!(value(Statistic::FctMedian, &modes[0], &modes), Ok(49.5));
    assert_eq!(value(Statistic::SrttMedian, &modes[0], &modes), Ok(149.5));
    // The last hundred of 1000 samples are 1000 µs. The median lies between samples 499 and 500:
    // nine samples each from 0 on, so both are 55.
    assert_eq!(value(Statistic::RttMedian, &modes[0], &modes), Ok(55.0));
    assert_eq!(value(Statistic::RttP95, &modes[0], &modes), Ok(1000.0));
    assert_eq!(
        value(Statistic::QueueDelayMedian, &modes[0], &modes),
        Ok(59.5)
    );
    assert_eq!(
        value(Statistic::RetransmissionShare, &modes[0], &modes),
        Ok(0.05)
    );
    for connection in &mut modes[0].connections[98..] {
        connection.error = Some("timed out".into());
        connection.fct_us = None;
    }
    assert_eq!(
        value(Statistic::FctP99, &modes[0], &modes),
        Ok(f64::INFINITY)
    );
    assert_eq!(value(Statistic::FctMedian, &modes[0], &modes), Ok(49.5));
}

#[test]
fn an_arms_share_is_that_of_the_last_half() {
    let mut modes = [outcome("thalweg", &[1.0; 8])];
    for connection in &mut modes[0].connections[..5] {
        connection.arm = "reno".into();
    }
    let query = Query {
        arm: Some("bbr"),
        ..Statistic::ArmShare.into()
    };
    assert_eq!(query.mode_value(&modes[0], &modes), Ok(0.75));
}

#[test]
fn the_total_is_the_median_of_what_rounds_carry() {
    let mut mode = outcome("baseline", &[]);
    for (round, class, part_bps) in [
        (0, "rpc-1mb", 10.0),
        (0, "stream", 5.0),
        (1, "rpc-1mb", 20.0),
        (1, "rpc-1mb", 30.0),
        (2, "stream", 1.0),
    ] {
        mode.connections.push(Connection {
            round,
            class: class.into(),
            part_bps: Some(part_bps),
            ..Connection::default()
        });
    }
    // Rounds of 15, 50 and 1; of the calls alone 10 and 50.
    assert_eq!(value(Statistic::Total, &mode, &[]), Ok(15.0));
    let calls = Query {
        class: Some("rpc-1mb"),
        ..Statistic::Total.into()
    };
    assert_eq!(calls.mode_value(&mode, &[]), Ok(30.0));
    // Rounds without a time have no total.
    let without = outcome("baseline", &[7.0]);
    assert!(value(Statistic::Total, &without, &[]).is_err());
}

#[test]
fn fairness_is_the_least_over_the_greatest_of_each_round_of_several() {
    let flow = |round: u32, part: f64| Connection {
        round,
        part_bps: Some(part),
        ..Connection::default()
    };
    let of = |connections: &[Connection]| round_fairness(&connections.iter().collect::<Vec<_>>());
    // 0.25, 0.75, and 0 where nothing arrived; rounds of one flow do not count.
    let all = [
        flow(0, 10.0),
        flow(0, 40.0),
        flow(1, 30.0),
        flow(1, 40.0),
        flow(2, 9.0),
        flow(3, 0.0),
        flow(3, 0.0),
    ];
    assert_eq!(of(&all), Some(0.25));
    assert_eq!(of(&all[..5]), Some(0.5));
    assert_eq!(of(&all[4..5]), None);
    assert_eq!(of(&[Connection::default(), Connection::default()]), None);
}
