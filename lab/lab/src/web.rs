//! Web traffic: the times of pages and of their objects, compared between modes.
//!
//! Each mode sends the same pages at the same moments. So a mode is compared with the first by its
//! ratio, and the interval of the ratio is a percentile bootstrap over the pages of a host in a
//! round, which both modes share (Efron 1979). Pages of one host and round depend on each other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use thalweg_report::sample;
use thalweg_units::random::Random;

use crate::figure::Unit;
use crate::measure::Measure;
use crate::outcome::{Connection, ModeOutcome, ScenarioOutcome};
use crate::query::Query;
use crate::scenario::TrafficKind;
use crate::statistic::Statistic;
use crate::table::Table;
use crate::worker::OBJECTS;

/// Resamples of the bootstrap, its seed, and the confidence level of its intervals.
const RESAMPLES: u32 = 1000;
const SEED: u64 = 1;
const CONFIDENCE: f64 = 0.95;

/// The pages of a host in a round: round, host, remote address.
type Cluster<'a> = (u32, &'a str, Option<IpAddr>);

fn connection_cluster(one: &Connection) -> Cluster<'_> {
    (one.round, one.host.as_str(), one.address)
}

/// The time of each page of a mode, µs: that of its last object, infinite where one failed.
pub(crate) fn page_times(mode: &ModeOutcome) -> BTreeMap<(Cluster<'_>, u32), f64> {
    let mut pages = BTreeMap::new();
    for one in &mode.connections {
        let Some(number) = one.page else { continue };
        let time = one.page_us.unwrap_or(f64::INFINITY);
        let last = pages
            .entry((connection_cluster(one), number))
            .or_insert(time);
        *last = last.max(time);
    }
    pages
}

/// A figure of times.
#[derive(Debug, Clone, Copy)]
enum Figure {
    Mean,
    Quantile(f64),
}

/// Times by cluster, prepared for resampling.
struct Times {
    /// Each time and the place of its cluster, the longest first.
    longest: Vec<(f64, usize)>,
    /// Sum and number of the times of each cluster.
    sums: Vec<(f64, u64)>,
}

impl Times {
    fn new(clusters: &[Vec<f64>]) -> Self {
        let of = |(place, times): (usize, &Vec<f64>)| -> Vec<(f64, usize)> {
            times.iter().map(|time| (*time, place)).collect()
        };
        let mut longest: Vec<_> = clusters.iter().enumerate().flat_map(of).collect();
        longest.sort_by(|one, other| other.0.total_cmp(&one.0));
        let sum = |times: &Vec<f64>| (times.iter().sum(), times.len() as u64);
        Self {
            longest,
            sums: clusters.iter().map(sum).collect(),
        }
    }

    /// The figure, where each cluster counts so many times; none without times.
    fn weighted_metric(&self, figure: Figure, weights: &[u32]) -> Option<f64> {
        let each = self.sums.iter().zip(weights);
        let (sum, count) = each.fold((0.0, 0), |all, ((sum, count), weight)| {
            let weight = u64::from(*weight);
            // 0 × ∞ is no number.
            let part = if weight == 0 {
                0.0
            } else {
                sum * weight as f64
            };
            (all.0 + part, all.1 + count * weight)
        });
        let share = match figure {
            _ if count == 0 => return None,
            Figure::Mean => return Some(sum / count as f64),
            Figure::Quantile(share) => share,
        };
        // The nearest of the sorted times, counted from the longest.
        let rank = ((1.0 - share) * (count - 1) as f64).round() as u64;
        let mut passed = 0;
        let found = self.longest.iter().find(|(_, place)| {
            passed += u64::from(weights[*place]);
            passed > rank
        });
        found.map(|(time, _)| *time)
    }
}

/// The interval of the ratio of a figure of `ours` to that of `theirs`; none without both.
fn ratio_interval(figure: Figure, ours: &Times, theirs: &Times) -> Option<(f64, f64)> {
    let clusters = ours.sums.len();
    let mut random = Random::new(SEED);
    let mut weights = vec![0; clusters];
    let ratios: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            weights.fill(0);
            for _ in 0..clusters {
                weights[random.below(clusters as u64) as usize] += 1;
            }
            let ratio = ours.weighted_metric(figure, &weights)?
                / theirs.weighted_metric(figure, &weights)?;
            ratio.is_finite().then_some(ratio)
        })
        .collect();
    let tail = (1.0 - CONFIDENCE) / 2.0;
    sample::quantile(&ratios, tail).zip(sample::quantile(&ratios, 1.0 - tail))
}

/// The times of two modes by cluster. Clusters that one of them lacks are left out.
fn pair_times<'a>(
    ours: BTreeMap<Cluster<'a>, Vec<f64>>,
    mut theirs: BTreeMap<Cluster<'a>, Vec<f64>>,
) -> (Times, Times) {
    let both: Vec<(Vec<f64>, Vec<f64>)> = ours
        .into_iter()
        .filter_map(|(cluster, times)| Some((times, theirs.remove(&cluster)?)))
        .collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = both.into_iter().unzip();
    (Times::new(&ours), Times::new(&theirs))
}

/// The times of a mode's pages by cluster; of its objects of a class, with one.
fn times_by_cluster<'a>(
    mode: &'a ModeOutcome,
    what: TableSubject<'_>,
) -> BTreeMap<Cluster<'a>, Vec<f64>> {
    let mut times: BTreeMap<Cluster<'a>, Vec<f64>> = BTreeMap::new();
    match what {
        TableSubject::Pages => {
            for ((cluster, _), time) in page_times(mode) {
                times.entry(cluster).or_default().push(time);
            }
        }
        TableSubject::Objects(class) => {
            let of_class = |one: &&Connection| class.is_none_or(|class| one.class == class);
            for one in mode.connections.iter().filter(of_class) {
                let all = times.entry(connection_cluster(one)).or_default();
                all.extend(Measure::Fct.connection_value(one, None));
            }
        }
    }
    times
}

/// Subject of a row of the table.
#[derive(Debug, Clone, Copy)]
enum TableSubject<'a> {
    Pages,
    Objects(Option<&'a str>),
}

/// The rows of a thing: its figures, and the statistic of each.
fn metric_rows(what: TableSubject<'_>) -> [(Statistic, Figure, &'static str); 4] {
    let statistics = match what {
        TableSubject::Pages => [
            Statistic::PageMean,
            Statistic::PageMedian,
            Statistic::PageP95,
            Statistic::PageP99,
        ],
        TableSubject::Objects(_) => [
            Statistic::FctMean,
            Statistic::FctMedian,
            Statistic::FctP95,
            Statistic::FctP99,
        ],
    };
    let figures = [
        (Figure::Mean, "mean"),
        (Figure::Quantile(0.5), "median"),
        (Figure::Quantile(0.95), "p95"),
        (Figure::Quantile(0.99), "p99"),
    ];
    std::array::from_fn(|at| (statistics[at], figures[at].0, figures[at].1))
}

/// The times of pages and objects by mode, and the ratio of each further mode to the first with
/// its interval. None of other traffic.
pub(crate) fn web_table(outcome: &ScenarioOutcome) -> Option<Table> {
    let modes = &outcome.modes;
    if !matches!(outcome.scenario.traffic.kind, TrafficKind::Web(_)) {
        return None;
    }
    let (first, others) = modes.split_first()?;
    let classes = OBJECTS
        .iter()
        .map(|(class, _)| TableSubject::Objects(Some(class)));
    let mut all = Vec::new();
    for what in [TableSubject::Pages, TableSubject::Objects(None)]
        .into_iter()
        .chain(classes)
    {
        let compared: Vec<(Times, Times)> = others
            .iter()
            .map(|mode| pair_times(times_by_cluster(mode, what), times_by_cluster(first, what)))
            .collect();
        for (statistic, figure, word) in metric_rows(what) {
            let query = Query {
                class: match what {
                    TableSubject::Pages => None,
                    TableSubject::Objects(class) => class,
                },
                ..statistic.into()
            };
            let value = |mode: &ModeOutcome| query.mode_value(mode, modes).ok();
            let name = match what {
                TableSubject::Pages => format!("pages, {word}"),
                TableSubject::Objects(None) => format!("objects, {word}"),
                TableSubject::Objects(Some(class)) => format!("{class} objects, {word}"),
            };
            let shown = |value: Option<f64>| {
                value.map_or("–".to_owned(), |value| {
                    Unit::Microseconds.with_unit(value)
                })
            };
            let mut cells = vec![name];
            cells.extend(modes.iter().map(|mode| shown(value(mode))));
            cells.extend(others.iter().zip(&compared).map(|(mode, (ours, theirs))| {
                let ratio = value(mode)
                    .zip(value(first))
                    .map(|(our, their)| our / their);
                match ratio.zip(ratio_interval(figure, ours, theirs)) {
                    Some((ratio, (low, high))) if ratio.is_finite() => {
                        format!("{ratio:.3} [{low:.3}, {high:.3}]")
                    }
                    _ => "–".to_owned(),
                }
            }));
            all.push(cells);
        }
    }
    let ratio = |mode: &ModeOutcome| format!("{} / {}", mode.mode, first.mode);
    Some(Table {
        title: format!("{}: times of pages and objects", outcome.scenario.name),
        header: std::iter::once("what".to_owned())
            .chain(modes.iter().map(|mode| mode.mode.to_string()))
            .chain(others.iter().map(ratio))
            .collect(),
        rows: all,
    })
}

/// A sentence about the pages of a path.
pub(crate) fn page_sentence(outcome: &ScenarioOutcome) -> Option<String> {
    let parts: Vec<String> = outcome
        .modes
        .iter()
        .filter_map(|mode| {
            let of = |statistic: Statistic| {
                let value = Query::from(statistic)
                    .mode_value(mode, &outcome.modes)
                    .ok()?;
                Some(match value.is_finite() {
                    true => statistic.unit().with_unit(value),
                    false => "for ever".to_owned(),
                })
            };
            let (mean, p99) = (of(Statistic::PageMean)?, of(Statistic::PageP99)?);
            Some(format!("{} {mean} ({p99})", mode.mode))
        })
        .collect();
    (!parts.is_empty()).then(|| {
        format!(
            "A page took, mean (and 99th percentile): {}.",
            parts.join(", ")
        )
    })
}

#[cfg(test)]
#[path = "web_tests.rs"]
mod tests;
