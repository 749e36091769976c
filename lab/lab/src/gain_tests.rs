use super::*;
use crate::host::loss::LossCounters;
use crate::query::{NoValue, Query};
use crate::statistic::Statistic;

const ANSWER: &str = r#"{"summary": "Transfers take 30 % less time.", "age_s": 7, "groups": [
    {"by": "all", "name": "", "rows": [
        {"measure": "time", "size": null, "unit": "percent", "control": 80, "treated": 70,
         "effect": -30.0, "low": -50.0, "high": -10.0, "verdict": "better", "known_in_s": null},
        {"measure": "failed", "size": null, "unit": "points", "control": 80, "treated": 70,
         "effect": 0.0, "low": null, "high": null, "verdict": "unknown", "known_in_s": 9},
        {"measure": "time", "size": "10 kB to 100 kB", "unit": "percent", "control": 80,
         "treated": 70, "effect": 0.0, "low": -1.0, "high": 1.0, "verdict": "same"}]},
    {"by": "arm", "name": "bbr", "rows": []}]}"#;

/// A scenario of short flows to two addresses.
fn scenario() -> Scenario {
    let text = "name = \"x\"\n[traffic]\nkind = \"short\"\nhosts = 2\n";
    Scenario::parse(text, std::path::Path::new("x")).unwrap()
}

/// Rounds of one flow to each of two addresses: bytes, and time in ms.
fn mode(name: &str, rounds: &[[(u64, f64); 2]]) -> ModeOutcome {
    let addresses = ["10.0.0.2", "10.0.0.3"];
    let connections = (0..).zip(rounds).flat_map(|(round, flows)| {
        flows
            .iter()
            .zip(addresses)
            .map(move |(flow, address)| Connection {
                round,
                address: address.parse().ok(),
                flow_bytes: Some(flow.0),
                fct_us: Some(flow.1 * 1e3),
                ..Connection::default()
            })
    });
    ModeOutcome {
        mode: name.parse().unwrap(),
        rounds: rounds.len() as u32,
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

/// Modes of which `gain` has an answer.
fn modes(with: &[[(u64, f64); 2]], without: &[[(u64, f64); 2]]) -> Vec<ModeOutcome> {
    let mut gain = mode("gain", &[]);
    gain.gain = Some(Gain::parse(ANSWER).unwrap());
    let mut modes = vec![mode("fixed:cubic", without), mode("thalweg", with), gain];
    compare_with_measured(&mut modes, &scenario());
    modes
}

fn value(statistic: Statistic, modes: &[ModeOutcome]) -> Result<f64, String> {
    let value = Query::from(statistic).mode_value(&modes[2], modes);
    value.map_err(|why| why.to_string())
}

#[test]
fn the_same_transfers_are_compared() {
    // Small ones take as long, large ones half as long in the second mode.
    let small = (20_000, 10.0);
    let modes = modes(
        &[[small, (500_000, 50.0)], [small, (500_000, 100.0)]],
        &[[small, (500_000, 100.0)], [small, (500_000, 200.0)]],
    );
    let rows = &modes[2].gain.as_ref().unwrap().rows;
    let time = rows[0].direct.unwrap();
    // (0 + 0 − 1 − 1) / 4 bits.
    assert!(
        (time.effect - ((-0.5f64).exp2() - 1.0) * 100.0).abs() < 1e-9,
        "{time:?}"
    );
    assert_eq!((time.transfers, time.hosts), (4, 2));
    // Of two hosts, both may be drawn twice.
    assert!(
        (time.low + 50.0).abs() < 1e-9 && time.high.abs() < 1e-9,
        "{time:?}"
    );
    let small = rows[2].direct.unwrap();
    assert_eq!((small.effect, small.transfers), (0.0, 2));
    let holds: Vec<Option<bool>> = rows.iter().map(GainRow::interval_holds).collect();
    assert_eq!(holds, [Some(true), None, Some(true)]);
    assert_eq!(value(Statistic::GainMisses, &modes), Ok(0.0));
    assert_eq!(value(Statistic::Gain, &modes), Ok(-0.3));
    let ends = [Statistic::GainLow, Statistic::GainHigh].map(|it| value(it, &modes).unwrap());
    assert_eq!(ends, [-0.5, -0.1]);
}

#[test]
fn what_gain_does_not_hold_is_missed() {
    let flows = [[(20_000, 10.0), (20_000, 10.0)]];
    // The same: gain says 30 % less.
    assert_eq!(
        value(Statistic::GainMisses, &modes(&flows, &flows)),
        Ok(1.0)
    );
    let mut without = modes(&flows, &flows);
    without[2].gain.as_mut().unwrap().rows[0].low = None;
    assert_eq!(value(Statistic::GainMisses, &without), Ok(f64::INFINITY));
    assert_eq!(value(Statistic::GainLow, &without), Ok(f64::NEG_INFINITY));
}

#[test]
fn without_the_other_modes_nothing_is_checked() {
    let flows = [[(20_000, 10.0), (20_000, 10.0)]];
    let mut modes = modes(&flows, &flows);
    modes[2].gain = Some(Gain::parse(ANSWER).unwrap());
    modes.remove(1);
    compare_with_measured(&mut modes, &scenario());
    let missing = Query::from(Statistic::GainMisses).mode_value(&modes[1], &modes);
    assert!(missing.unwrap_err().to_string().contains("was not run"));
    let other = Query::from(Statistic::Gain).mode_value(&modes[0], &modes);
    assert!(other.unwrap_err().to_string().contains("mode gain"));
    // No connection has ended.
    modes[1].gain.as_mut().unwrap().rows.clear();
    let nothing = Query::from(Statistic::GainMisses).mode_value(&modes[1], &modes);
    assert!(matches!(nothing, Err(NoValue::Unmeasured(_))));
}

#[test]
fn transfers_that_failed_have_no_time() {
    let flows = [[(20_000, 10.0), (20_000, 10.0)]];
    let (mut with, without) = (mode("thalweg", &flows), mode("fixed:cubic", &flows));
    with.connections[0].fct_us = None;
    with.connections[0].error = Some("no progress".into());
    let pairs = transfer_pairs(&with, &without);
    assert_eq!(direct_difference(Row::Time, &pairs).unwrap().transfers, 1);
    let failed = direct_difference(Row::Failed, &pairs).unwrap();
    assert_eq!((failed.effect, failed.transfers), (50.0, 2));
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let error = Gain::parse("{\"summary\": 3}").unwrap_err().to_string();
    assert!(error.contains("gain"), "{error}");
}
