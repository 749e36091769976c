//! The tables of a run, as text for a terminal and as rows for the page.

pub use thalweg_report::Table;
use thalweg_units::figures::PUBLISHED_HOSTS;
use thalweg_units::figures::{rate_text, three_digits};

use crate::figure::Unit;
use crate::mode::Mode;
use crate::multi_host;
use crate::outcome::{Check, ModeOutcome, ScenarioOutcome};
use crate::query::Query;
use crate::statistic::Statistic;
use crate::summary;
use crate::web;

fn header_cells<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The statistics in [`measures_table`]: all that [`summary_table`] lacks.
const MEASURES: [Statistic; 26] = [
    Statistic::Total,
    Statistic::ConvergedShare,
    Statistic::Convergence,
    Statistic::Recovery,
    Statistic::Regret,
    Statistic::RegretPerConnection,
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
];

/// The statistics that get a row for each class of flows.
pub(crate) const BY_CLASS: [Statistic; 7] = [
    Statistic::Total,
    Statistic::Median,
    Statistic::RetransmissionShare,
    Statistic::FctMean,
    Statistic::FctMedian,
    Statistic::FctP95,
    Statistic::FctP99,
];

/// A row for each further statistic that a mode has, a column for each mode.
pub fn measures_table(outcome: &ScenarioOutcome) -> Table {
    let modes = &outcome.modes;
    let row = |name: String, query: Query<'_>| {
        let cells: Vec<Option<String>> = modes
            .iter()
            .map(|mode| {
                let value = query.mode_value(mode, modes).ok()?;
                Some(query.statistic.unit().with_unit(value))
            })
            .collect();
        cells.iter().any(Option::is_some).then(|| {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or("–".into()));
            std::iter::once(name).chain(cells).collect::<Vec<_>>()
        })
    };
    let mut rows: Vec<Vec<String>> = MEASURES
        .into_iter()
        .chain([Statistic::Harm])
        .filter_map(|statistic| row(statistic.reader_name().to_owned(), statistic.into()))
        .collect();
    let classes = outcome.scenario.traffic.kind.flow_classes();
    for class in classes {
        rows.extend(BY_CLASS.into_iter().filter_map(|statistic| {
            let query = Query {
                class: Some(class),
                ..statistic.into()
            };
            row(format!("{}, {class}", statistic.reader_name()), query)
        }));
    }
    Table {
        title: "Measures".into(),
        header: std::iter::once("measure".to_owned())
            .chain(modes.iter().map(|mode| mode.mode.to_string()))
            .collect(),
        rows,
    }
}

fn format_percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.2}%", share * 100.0))
}

/// The summary: a row of figures for each mode.
pub fn summary_table(outcome: &ScenarioOutcome) -> Table {
    let median = |mode: Option<&ModeOutcome>| Some(mode?.mode_summary()?.median_bps);
    let baseline = median(outcome.mode_outcome(&Mode::Baseline));
    let best = median(outcome.best_fixed());
    let rows = outcome.modes.iter().filter_map(|mode| {
        let figures = mode.mode_summary()?;
        // The last half shows a learner after it has learned; references do not learn.
        let settled = if mode.mode.learns() {
            figures.median_last_half_bps.unwrap_or(figures.median_bps)
        } else {
            figures.median_bps
        };
        let ratio = |to: Option<f64>| match to {
            Some(to) if to > 0.0 => format!("{}×", three_digits(settled / to)),
            _ => "–".to_owned(),
        };
        let arms: Vec<String> = mode
            .arm_counts()
            .iter()
            .map(|(arm, count)| format!("{arm} {count}"))
            .collect();
        let failures = match mode.failure_count() {
            0 => String::new(),
            count => format!(" ({count} failed)"),
        };
        let bound = match mode.is_processor_bound() {
            true => " (processor-bound)",
            false => "",
        };
        Some(vec![
            format!("{}{bound}", mode.mode),
            format!("{}{failures}", mode.measured_connections().count()),
            rate_text(figures.median_bps),
            figures.median_last_half_bps.map_or("–".into(), rate_text),
            rate_text(figures.mean_bps),
            format!(
                "{} – {}",
                rate_text(figures.lower_quartile_bps),
                rate_text(figures.upper_quartile_bps)
            ),
            ratio(baseline),
            ratio(best),
            figures.retransmits.to_string(),
            format_percent(mode.forward.loss_share()),
            format_percent(mode.forward.queue_loss()),
            arms.join(", "),
        ])
    });
    Table {
        title: format!(
            "{}: {}",
            outcome.scenario.name,
            outcome.scenario.path.describe()
        ),
        header: header_cells([
            "mode",
            "connections",
            "median",
            "last half",
            "mean",
            "quartiles",
            "to baseline",
            "to best fixed",
            "retransmits",
            "lost",
            "queue drops",
            "arms",
        ]),
        rows: rows.collect(),
    }
}

/// Every connection of each mode: goodput and arm.
pub fn connections_table(outcome: &ScenarioOutcome) -> Table {
    let rows = outcome.modes.iter().flat_map(|mode| {
        mode.connections.iter().map(|connection| {
            vec![
                mode.mode.to_string(),
                match connection.host.as_str() {
                    "" => (connection.round + 1).to_string(),
                    host => format!("{} {host}", connection.round + 1),
                },
                rate_text(connection.goodput_bps),
                connection.arm.clone(),
                connection.retransmits.to_string(),
                connection
                    .mean_rtt_us
                    .map_or("–".into(), |rtt| format!("{rtt:.0} µs")),
                connection.error.clone().unwrap_or_default(),
            ]
        })
    });
    Table {
        title: "Every connection".into(),
        header: header_cells([
            "mode",
            "round",
            "goodput",
            "arm",
            "retransmits",
            "mean RTT",
            "error",
        ]),
        rows: rows.collect(),
    }
}

/// An agent's records at the end, in the columns of published tables.
pub fn learned_table(mode: &ModeOutcome) -> Table {
    let figure = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.0}"));
    let count = |value: Option<u64>| value.map_or("–".into(), |value| value.to_string());
    let rows = mode.hosts.iter().flat_map(|host| {
        host.arms.iter().map(move |arm| {
            vec![
                named_address(mode, &host.address),
                arm.arm.clone(),
                figure(arm.metric),
                count(arm.count),
                count(arm.greedy),
                figure(arm.min_rtt_us),
                figure(arm.max_rate),
            ]
        })
    });
    Table {
        title: format!("What {} learned", mode.mode),
        header: header_cells(PUBLISHED_HOSTS),
        rows: rows.collect(),
    }
}

/// The agent's report in mode `gain`, beside the direct measurement.
pub fn gain_table(mode: &ModeOutcome) -> Option<Table> {
    let gain = mode.gain.as_ref()?;
    let rows = gain.rows.iter().map(|row| {
        let unit = if row.unit == "percent" { " %" } else { " pts" };
        let signed = |value: f64| {
            format!(
                "{}{}",
                if value > 0.0 { "+" } else { "" },
                three_digits(value)
            )
        };
        let span = |low: Option<f64>, high: Option<f64>| match (low, high) {
            (Some(low), Some(high)) => format!("{} to {}", signed(low), signed(high)),
            _ => "–".to_owned(),
        };
        let of = |value: Option<f64>| value.map_or("–".into(), |value| signed(value) + unit);
        let direct = row.direct.as_ref();
        vec![
            row.size.clone().unwrap_or_else(|| row.measure.clone()),
            of(row.effect),
            span(row.low, row.high),
            row.verdict.clone(),
            format!("{} + {}", row.control, row.treated),
            of(direct.map(|it| it.effect)),
            span(direct.map(|it| it.low), direct.map(|it| it.high)),
            direct.map_or(0, |it| it.transfers).to_string(),
            match row.interval_holds() {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            }
            .to_owned(),
        ]
    });
    Some(Table {
        title: format!(
            "What {} says that treated connections have more, and what was measured directly",
            mode.mode
        ),
        header: header_cells([
            "",
            "gain",
            "interval",
            "verdict",
            "host-hours",
            "direct",
            "95 % interval",
            "transfers",
            "held",
        ]),
        rows: rows.collect(),
    })
}

/// An address with its host's name in the scenario.
fn named_address(mode: &ModeOutcome, address: &str) -> String {
    match mode.remotes.iter().find(|remote| remote.is_at(address)) {
        Some(remote) => format!("{address} ({})", remote.name),
        None => address.to_owned(),
    }
}

/// The expectations and their verdicts.
pub fn checks_table(outcome: &ScenarioOutcome) -> Table {
    checks_of("Expected outcome", &outcome.checks)
}

/// Verdicts on a learner that always keeps the default; none unless it ran.
pub fn null_checks(outcome: &ScenarioOutcome) -> Option<Table> {
    let table = checks_of("A learner that does nothing", &outcome.null_checks);
    (!table.rows.is_empty()).then_some(table)
}

fn checks_of(title: &str, checks: &[Check]) -> Table {
    let rows = checks.iter().map(|check| {
        vec![
            check.text.clone(),
            measured_cell(check),
            check.verdict.to_string(),
        ]
    });
    Table {
        title: title.into(),
        header: header_cells(["expectation", "measured", "verdict"]),
        rows: rows.collect(),
    }
}

fn measured_cell(check: &Check) -> String {
    let expectation = &check.expectation;
    match (check.value, &check.reference, &check.reason) {
        (Some(value), Some(reference), _) => format!("{value:.3} × {reference}"),
        (Some(value), None, _) => match expectation.statistic.unit() {
            // In the form of the bound, for comparison.
            Unit::Share if value.is_finite() => format!("{value:.4}"),
            unit => unit.with_unit(value),
        },
        (None, _, Some(reason)) => reason.clone(),
        (None, _, None) => String::new(),
    }
}

/// The outcomes that have tables of their own: each of several hosts, or the whole scenario.
pub(crate) fn path_outcomes<'a>(
    outcome: &'a ScenarioOutcome,
    views: &'a [ScenarioOutcome],
) -> Vec<&'a ScenarioOutcome> {
    if views.is_empty() {
        return vec![outcome];
    }
    views.iter().collect()
}

/// The text about a scenario on a terminal.
pub fn scenario_text(outcome: &ScenarioOutcome) -> String {
    let mut text = String::new();
    let views = outcome.by_host();
    if let Some(table) = multi_host::hosts_table(outcome) {
        text.push_str(&table.to_text());
        text.push('\n');
    }
    for (place, path) in path_outcomes(outcome, &views).iter().enumerate() {
        if place > 0 {
            text.push('\n');
        }
        text.push_str(&summary_table(path).to_text());
        let measures = measures_table(path);
        if !measures.rows.is_empty() {
            text.push('\n');
            text.push_str(&measures.to_text());
        }
    }
    if let Some(table) = web::web_table(outcome) {
        text.push('\n');
        text.push_str(&table.to_text());
    }
    for mode in outcome.modes.iter().filter(|mode| !mode.hosts.is_empty()) {
        text.push('\n');
        text.push_str(&learned_table(mode).to_text());
    }
    for table in outcome.modes.iter().filter_map(gain_table) {
        text.push('\n');
        text.push_str(&table.to_text());
    }
    if !outcome.checks.is_empty() {
        text.push('\n');
        text.push_str(&checks_table(outcome).to_text());
    }
    if let Some(table) = null_checks(outcome) {
        text.push('\n');
        text.push_str(&table.to_text());
    }
    text.push('\n');
    for sentence in summary::scenario_sentences(outcome) {
        text.push_str(&sentence);
        text.push('\n');
    }
    text
}
