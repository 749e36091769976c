//! The results of a run in sentences.

use thalweg_report::Verdict;
use thalweg_units::figures::three_digits;

use crate::mode::Mode;
use crate::multi_host;
use crate::outcome::{Check, ModeOutcome, ScenarioOutcome};
use crate::query::Query;
use crate::scenario::{SHORT, TrafficKind};
use crate::statistic::Statistic;
use crate::web;

/// The sentences about a scenario: learners, comparisons, expectations.
pub fn scenario_sentences(outcome: &ScenarioOutcome) -> Vec<String> {
    let mut sentences = multi_host::host_sentences(outcome);
    let views = outcome.by_host();
    if views.is_empty() {
        sentences.extend(of_path(outcome));
    }
    for view in views {
        let name = &view.scenario.name;
        let host = |sentence| format!("Host {name}: {sentence}");
        sentences.extend(of_path(&view).into_iter().map(host));
    }
    sentences.extend(outcome.modes.iter().filter_map(failure_reason));
    sentences.extend(outcome.modes.iter().filter_map(gain_sentence));
    sentences.extend(processor_sentence(outcome));
    sentences.extend(checks_sentence(outcome));
    sentences.extend(null_sentence(outcome));
    sentences
}

/// Why connections failed: the most frequent reason.
fn failure_reason(mode: &ModeOutcome) -> Option<String> {
    let reasons: Vec<&str> = (mode.connections.iter())
        .filter_map(|connection| connection.error.as_deref())
        .collect();
    let times = |reason: &str| reasons.iter().filter(|it| **it == reason).count();
    let first_of_most = reasons.iter().rev().max_by_key(|reason| times(reason))?;
    let of = match times(first_of_most) {
        count if count == reasons.len() => String::new(),
        count => format!(" ({count} of them)"),
    };
    let (name, all) = (&mode.mode, mode.connections.len());
    let failed = reasons.len();
    Some(format!(
        "{name}: {failed} of {all} connections failed: {first_of_most}{of}."
    ))
}

/// Gain that the agent reports, and the direct measurement.
fn gain_sentence(mode: &ModeOutcome) -> Option<String> {
    let gain = mode.gain.as_ref()?;
    let says = format!("{} says: {}", mode.mode, gain.summary);
    let Some(direct) = gain.transfer_time_row().and_then(|time| time.direct) else {
        return Some(says);
    };
    let more = if direct.effect < 0.0 { "less" } else { "more" };
    Some(format!(
        "{says} Measured directly they took {} % {more} [{}, {}].",
        three_digits(direct.effect.abs()),
        three_digits(direct.low),
        three_digits(direct.high)
    ))
}

/// The sentences about one path.
fn of_path(outcome: &ScenarioOutcome) -> Vec<String> {
    let mut sentences = Vec::new();
    for mode in outcome.modes.iter().filter(|mode| mode.mode.learns()) {
        sentences.extend(learner_sentence(outcome, mode));
    }
    if let Some(baseline) = outcome.mode_outcome(&Mode::Baseline) {
        sentences.extend(reference_sentence(outcome, baseline));
    }
    match outcome.scenario.traffic.kind {
        TrafficKind::Bulk => {}
        TrafficKind::Streams { .. } => sentences.extend(sharing_sentence(outcome)),
        TrafficKind::LongShort { .. } => {
            sentences.extend(times_sentence(outcome, Some(SHORT)));
        }
        TrafficKind::Short { .. } | TrafficKind::Responses { .. } => {
            sentences.extend(times_sentence(outcome, None))
        }
        TrafficKind::Web(_) => sentences.extend(web::page_sentence(outcome)),
        TrafficKind::Incast { .. } => {
            for class in outcome.scenario.traffic.kind.flow_classes() {
                sentences.extend(times_sentence(outcome, Some(class)));
            }
        }
        TrafficKind::Competing { .. } => sentences.extend(competition_sentences(outcome)),
    }
    sentences
}

fn query_value(
    outcome: &ScenarioOutcome,
    mode: &ModeOutcome,
    query: impl Into<Query<'static>>,
) -> Option<f64> {
    query.into().mode_value(mode, &outcome.modes).ok()
}

fn learner_sentence(outcome: &ScenarioOutcome, mode: &ModeOutcome) -> Option<String> {
    let (best, best_bps) = Query::from(Statistic::Median).best_fixed(&outcome.modes, 0)?;
    let settled = mode.mode_summary()?.median_last_half_bps?;
    let name = &mode.mode;
    let mut text = format!(
        "In its last half {name} reached {:.2} of the best fixed arm ({}, median {})",
        settled / best_bps,
        arm_name(&best.mode),
        Statistic::Median.unit().with_unit(best_bps),
    );
    match query_value(outcome, mode, Statistic::Convergence) {
        Some(count) if count.is_finite() => {
            text.push_str(&format!(
                "; it came within 10 % of it after {count:.0} connections"
            ));
        }
        Some(_) => text.push_str("; it did not come within 10 % of it"),
        None => {}
    }
    if let (Some((most, _)), Some(share)) = (mode.arm_counts().first(), mode.converged_share()) {
        let most = mode
            .last_half_arms()
            .first()
            .map_or(most.clone(), |(arm, _)| arm.clone());
        text.push_str(&format!(
            "; {:.0} % of the last half ran {most}",
            share * 100.0
        ));
    }
    if let Some(regret) = query_value(outcome, mode, Statistic::Regret) {
        let count = mode.measured_connections().count();
        text.push_str(&if regret >= 0.0 {
            format!(". Over all {count} connections, learning included, it lost the goodput of {regret:.1} of that arm's")
        } else {
            format!(". Over all {count} connections, learning included, it gained the goodput of {:.1} of that arm's", -regret)
        });
    }
    match query_value(outcome, mode, Statistic::Recovery) {
        Some(count) if count.is_finite() => text.push_str(&format!(
            ". After the last change of the path it was within 10 % of the arm then best after {count:.0} connections"
        )),
        Some(_) => text.push_str(
            ". After the last change of the path it did not come within 10 % of the arm then best",
        ),
        None => {}
    }
    Some(text + ".")
}

fn reference_sentence(outcome: &ScenarioOutcome, baseline: &ModeOutcome) -> Option<String> {
    let (best, best_bps) = Query::from(Statistic::Median).best_fixed(&outcome.modes, 0)?;
    let median = baseline.mode_summary()?.median_bps;
    let (default, best) = (&outcome.scenario.system.default_cc, arm_name(&best.mode));
    if *default == best {
        return Some(format!(
            "No fixed arm was better than the system default, {default}."
        ));
    }
    let part = median / best_bps;
    Some(format!(
        "The system default ({default}) reached {part:.2} of the best fixed arm ({best})."
    ))
}

/// Total goodput of flows that share a bottleneck, and their fairness.
fn sharing_sentence(outcome: &ScenarioOutcome) -> Option<String> {
    let parts: Vec<String> = outcome
        .modes
        .iter()
        .filter_map(|mode| {
            let total = query_value(outcome, mode, Statistic::Total)?;
            let total = Statistic::Total.unit().with_unit(total);
            Some(match query_value(outcome, mode, Statistic::Fairness) {
                Some(fairness) => format!("{} {total} ({:.0} %)", mode.mode, fairness * 100.0),
                None => format!("{} {total}", mode.mode),
            })
        })
        .collect();
    (!parts.is_empty()).then(|| {
        format!(
            "All flows together (and the least of the greatest): {}.",
            parts.join(", ")
        )
    })
}

fn times_sentence(outcome: &ScenarioOutcome, class: Option<&'static str>) -> Option<String> {
    let of = |mode: &ModeOutcome, statistic: Statistic| {
        let query = Query {
            class,
            ..statistic.into()
        };
        let value = query_value(outcome, mode, query)?;
        Some(match value.is_finite() {
            true => statistic.unit().with_unit(value),
            false => "for ever".to_owned(),
        })
    };
    let parts: Vec<String> = outcome
        .modes
        .iter()
        .filter_map(|mode| {
            Some(format!(
                "{} {} ({})",
                mode.mode,
                of(mode, Statistic::FctMedian)?,
                of(mode, Statistic::FctP99)?
            ))
        })
        .collect();
    let what = class.map_or("A flow".to_owned(), |class| format!("A flow of {class}"));
    (!parts.is_empty()).then(|| {
        format!(
            "{what} took, median (and 99th percentile): {}.",
            parts.join(", ")
        )
    })
}

fn competition_sentences(outcome: &ScenarioOutcome) -> Vec<String> {
    outcome
        .modes
        .iter()
        .filter_map(|mode| {
            let share = query_value(outcome, mode, Statistic::Share)?;
            let index = query_value(outcome, mode, Statistic::Jain)?;
            let harm = query_value(outcome, mode, Statistic::Harm).map_or(String::new(), |harm| {
                let verb = if harm < 0.0 { "gain" } else { "lose" };
                let part = harm.abs() * 100.0;
                format!(", and the incumbents {verb} {part:.0} % of what they have among their like")
            });
            Some(format!(
                "Where {} decides for the newcomers they take {:.0} % of the bottleneck (Jain's index {index:.2}){harm}.",
                mode.mode,
                share * 100.0
            ))
        })
        .collect()
}

/// Which modes' figures are limited by processors.
fn processor_sentence(outcome: &ScenarioOutcome) -> Option<String> {
    let bound = outcome.modes.iter().filter(|one| one.is_processor_bound());
    let bound: Vec<String> = bound.map(|one| one.mode.to_string()).collect();
    (!bound.is_empty()).then(|| {
        format!(
            "WARNING: the processors were busy all the time in {}: these figures are theirs, not \
             the path's.",
            bound.join(", ")
        )
    })
}

fn null_sentence(outcome: &ScenarioOutcome) -> Option<String> {
    let all = outcome.null_checks.len();
    let missed = |check: &&Check| check.verdict == Verdict::Missed;
    let missed = outcome.null_checks.iter().filter(missed).count();
    if outcome.passes_null() {
        let why = "no bound tells it from one that learns";
        return Some(format!(
            "FAILED: a learner that does nothing passes; {why}."
        ));
    }
    (all > 0).then(|| format!("A learner that does nothing misses {missed} of {all} bounds."))
}

fn checks_sentence(outcome: &ScenarioOutcome) -> Option<String> {
    let count = |verdict| {
        let of = |check: &&Check| check.verdict == verdict;
        outcome.checks.iter().filter(of).count()
    };
    let all = outcome.checks.len();
    match (count(Verdict::Missed), count(Verdict::NotChecked)) {
        _ if all == 0 => None,
        (0, 0) if all == 1 => Some("The expectation was met.".to_owned()),
        (0, 0) => Some(format!("All {all} expectations were met.")),
        (missed, unchecked) => Some(format!(
            "Expectations: {} met, {missed} missed, {unchecked} not checked.",
            all - missed - unchecked
        )),
    }
}

fn arm_name(mode: &Mode) -> String {
    match mode {
        Mode::Fixed(arm) => arm.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::loss::LossCounters;
    use crate::outcome::Connection;
    use crate::scenario::Scenario;

    fn mode(name: &str, goodputs: &[f64], arm: &str) -> ModeOutcome {
        let connections = goodputs
            .iter()
            .enumerate()
            .map(|(round, goodput)| Connection {
                round: round as u32,
                goodput_bps: *goodput,
                arm: arm.into(),
                ..Connection::default()
            });
        ModeOutcome {
            mode: name.parse().unwrap(),
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

    #[test]
    fn connections_that_fail_say_why() {
        let mut one = mode("fixed:bbr", &[1.0, 0.0, 0.0, 0.0], "bbr");
        assert_eq!(failure_reason(&one), None);
        for (place, reason) in [(1, "reset"), (2, "timed out"), (3, "timed out")] {
            one.connections[place].error = Some(reason.to_owned());
        }
        assert_eq!(
            failure_reason(&one).unwrap(),
            "fixed:bbr: 3 of 4 connections failed: timed out (2 of them)."
        );
    }

    #[test]
    fn figures_of_busy_processors_are_named() {
        let scenario = Scenario::parse("name = \"x\"\n", std::path::Path::new("x")).unwrap();
        let share = |name, share| ModeOutcome {
            processor_share: share,
            ..mode(name, &[20e6; 4], "cubic")
        };
        let outcome = ScenarioOutcome {
            checks: Vec::new(),
            null_checks: Vec::new(),
            scenario,
            reference_every: 1,
            modes: vec![
                share("baseline", Some(0.94)),
                share("fixed:bbr", Some(0.95)),
                share("random", None),
            ],
            wall_s: 1.0,
            report: "x".into(),
        };
        let all = scenario_sentences(&outcome).join("\n");
        assert!(all.contains("busy all the time in fixed:bbr:"), "{all}");
        let rows = crate::table::summary_table(&outcome).rows;
        let modes: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        let expected = ["baseline", "fixed:bbr (processor-bound)", "random"];
        assert_eq!(modes, expected);
    }

    #[test]
    fn the_sentences_have_the_figures() {
        let text =
            "name = \"x\"\n[[expect]]\nmode = \"thalweg\"\nstatistic = \"failures\"\nat_most = 0";
        let scenario = Scenario::parse(text, std::path::Path::new("x")).unwrap();
        let mut learner = [95e6; 10];
        learner[..2].fill(10e6);
        let modes = vec![
            mode("baseline", &[20e6; 10], "cubic"),
            mode("fixed:bbr", &[100e6; 10], "bbr"),
            mode("thalweg", &learner, "bbr"),
        ];
        let outcome = ScenarioOutcome {
            checks: crate::expect::evaluate_expectations(&scenario.expect, &modes),
            null_checks: Vec::new(),
            scenario,
            reference_every: 1,
            modes,
            wall_s: 1.0,
            report: "x".into(),
        };
        // Of 1 − x/100: 2 · 0.9 + 8 · 0.05 = 2.2.
        assert_eq!(
            scenario_sentences(&outcome),
            [
                "In its last half thalweg reached 0.95 of the best fixed arm (bbr, median 100 Mbit/s); \
                 it came within 10 % of it after 5 connections; 100 % of the last half ran bbr. \
                 Over all 10 connections, learning included, it lost the goodput of 2.2 of that arm's.",
                "The system default (cubic) reached 0.20 of the best fixed arm (bbr).",
                "The expectation was met.",
            ]
        );
    }
}
