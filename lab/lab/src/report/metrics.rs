//! The statistics of a document: of a mode, of its classes of flows, of each of its rounds.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::outcome::ModeOutcome;
use crate::query::Query;
use crate::statistic::{Scope, Statistic};

/// Statistics that a round has by itself. The others are of a whole run: how it converged, its
/// last half, the packets that its path dropped.
const OF_A_ROUND: [Statistic; 25] = [
    Statistic::Median,
    Statistic::Mean,
    Statistic::LowerQuartile,
    Statistic::Total,
    Statistic::RetransmissionShare,
    Statistic::RttMedian,
    Statistic::RttP95,
    Statistic::RttP99,
    Statistic::SrttMedian,
    Statistic::SrttP95,
    Statistic::SrttP99,
    Statistic::QueueDelayMedian,
    Statistic::QueueDelayP95,
    Statistic::FctMean,
    Statistic::FctMedian,
    Statistic::FctP95,
    Statistic::FctP99,
    Statistic::PageMean,
    Statistic::PageMedian,
    Statistic::PageP95,
    Statistic::PageP99,
    Statistic::Share,
    Statistic::Jain,
    Statistic::Fairness,
    Statistic::Harm,
];

/// The statistics that a mode has; a goal that was not reached is null.
pub(super) fn mode_statistics(
    wanted: &[Statistic],
    modes: &[ModeOutcome],
    mode: &ModeOutcome,
    class: Option<&str>,
) -> Value {
    let all: serde_json::Map<String, Value> = wanted
        .iter()
        .copied()
        .filter(|statistic| class.is_none() || statistic.takes_class())
        .filter(|statistic| *statistic != Statistic::ArmShare)
        // Paths of several hosts are not mixed.
        .filter(|statistic| mode.remotes.is_empty() || statistic.scope() != Scope::Path)
        .filter_map(|statistic| {
            let query = Query {
                class,
                ..statistic.into()
            };
            let value = query.mode_value(mode, modes).ok()?;
            Some((statistic.key().to_owned(), value.into()))
        })
        .collect();
    all.into()
}

/// The statistics of each class of a mode's connections.
pub(super) fn class_statistics(
    wanted: &[Statistic],
    modes: &[ModeOutcome],
    mode: &ModeOutcome,
) -> serde_json::Map<String, Value> {
    let classes = mode
        .class_names()
        .into_iter()
        .filter(|class| !class.is_empty());
    classes
        .map(|class| {
            let of = mode_statistics(wanted, modes, mode, Some(class));
            (class.to_owned(), of)
        })
        .collect()
}

/// For each mode, the figures of each round that it has connections in.
pub(super) fn by_round(modes: &[ModeOutcome]) -> Vec<Vec<Value>> {
    let rounds: BTreeSet<u32> = modes
        .iter()
        .flat_map(|mode| mode.connections.iter().map(|one| one.round))
        .collect();
    let mut found = vec![Vec::new(); modes.len()];
    for round in rounds {
        let alone: Vec<ModeOutcome> = modes.iter().map(|mode| within_round(mode, round)).collect();
        for (mode, into) in alone.iter().zip(&mut found) {
            if mode.connections.is_empty() {
                continue;
            }
            let mut figures = json!({
                "round": round,
                "statistics": mode_statistics(&OF_A_ROUND, &alone, mode, None),
            });
            let classes = class_statistics(&OF_A_ROUND, &alone, mode);
            if !classes.is_empty() {
                figures["classes"] = classes.into();
            }
            into.push(figures);
        }
    }
    found
}

/// A mode with the connections of one round. Queue delay still counts from the least round-trip
/// time of the scenario.
fn within_round(mode: &ModeOutcome, round: u32) -> ModeOutcome {
    let of_round = mode.connections.iter().filter(|one| one.round == round);
    ModeOutcome {
        mode: mode.mode.clone(),
        rounds: 1,
        connections: of_round.cloned().collect(),
        forward: mode.forward,
        reverse: mode.reverse,
        hosts: Vec::new(),
        least_rtt_us: mode.least_rtt_us,
        last_change: None,
        remotes: Vec::new(),
        gain: None,
        processor_share: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use crate::host::loss::LossCounters;
    use crate::outcome::Connection;

    fn mode(name: &str, connections: Vec<Connection>) -> ModeOutcome {
        ModeOutcome {
            mode: Mode::Fixed(name.into()),
            rounds: 2,
            connections,
            forward: LossCounters::default(),
            reverse: LossCounters::default(),
            hosts: Vec::new(),
            least_rtt_us: Some(1000.0),
            last_change: None,
            remotes: Vec::new(),
            gain: None,
            processor_share: None,
        }
    }

    fn flow(round: u32, mbits: f64, srtt_us: &[u32], class: &str) -> Connection {
        Connection {
            round,
            goodput_bps: mbits * 1e6,
            part_bps: Some(mbits * 1e6),
            srtt_us: srtt_us.to_vec(),
            class: class.into(),
            ..Default::default()
        }
    }

    #[test]
    fn each_round_has_its_own_figures() {
        let modes = [
            mode(
                "cubic",
                vec![
                    flow(0, 60.0, &[3000, 3000], "a"),
                    flow(0, 30.0, &[3000], "b"),
                    flow(1, 40.0, &[1000, 5000], "a"),
                    flow(1, 40.0, &[6000], "a"),
                ],
            ),
            mode("bbr", vec![flow(1, 7.0, &[1000], "a")]),
        ];
        let [cubic, bbr] = by_round(&modes).try_into().unwrap();
        let figures = |one: &Value| {
            let of = |key: &str| one["statistics"][key].as_f64().unwrap();
            [of("total") / 1e6, of("fairness"), of("queue-delay-median")]
        };
        assert_eq!(figures(&cubic[0]), [90.0, 0.5, 2000.0]);
        assert_eq!(figures(&cubic[1]), [80.0, 1.0, 4000.0]);
        assert_eq!(cubic[0]["classes"]["b"]["total"], 30e6);
        assert_eq!(cubic[1]["classes"].get("b"), None);
        // Of the run, not of a round.
        assert_eq!(cubic[0]["statistics"].get("median-last-half"), None);
        // A mode that a round left out has no figures of it.
        assert_eq!((bbr.len(), &bbr[0]["round"]), (1, &json!(1)));
    }
}
