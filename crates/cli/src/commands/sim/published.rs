//! The published tables, and how entries compare.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use thalweg_sim::Statistic;

/// The figures, with their source.
const FIGURES: &str = include_str!("published.toml");

/// A published table.
#[derive(Debug, Deserialize)]
pub struct Published {
    /// What the sizes count.
    pub what: String,
    /// What each entry tells, in order.
    pub statistics: Vec<Statistic>,
    /// One for each algorithm.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// An algorithm's entries.
#[derive(Debug, Deserialize)]
pub struct Row {
    /// As the paper calls it.
    pub name: String,
    /// Our controller of that kind, if there is one.
    pub cc: Option<String>,
    /// By size.
    #[serde(flatten)]
    pub entries: BTreeMap<String, Entry>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// In the order of the statistics.
    Figures(Vec<f64>),
    /// "loss": no figures.
    Loss(Loss),
}

/// The word for no figures.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Extensive loss of packets.
    Loss,
}

/// The published table of that name.
pub fn table(name: &str) -> Result<Published> {
    let mut tables: BTreeMap<String, Published> =
        toml::from_str(FIGURES).context("the published figures")?;
    tables.remove(name).context("the published figures")
}

/// Whether more of a statistic is better.
fn more_is_better(statistic: Statistic) -> bool {
    matches!(
        statistic,
        Statistic::Utilisation | Statistic::Fairness | Statistic::LongRate
    )
}

/// Entries within this part of the larger are alike.
const ALIKE: f64 = 0.05;

/// Whether `a` dominates `b` (Pareto): it is better in one figure and in none worse, where
/// figures within 5 % of each other are alike. What has no figures is dominated by what has.
pub fn dominates(statistics: &[Statistic], a: Option<&[f64]>, b: Option<&[f64]>) -> bool {
    let (a, b) = match (a, b) {
        (None, _) => return false,
        (Some(_), None) => return true,
        (Some(a), Some(b)) => (a, b),
    };
    let mut better = false;
    for (statistic, (a, b)) in statistics.iter().zip(a.iter().zip(b)) {
        if (a - b).abs() <= ALIKE * a.abs().max(b.abs()) {
            continue;
        }
        if (a > b) != more_is_better(*statistic) {
            return false;
        }
        better = true;
    }
    better
}

/// Whether two figures of a statistic differ by more than 10 of its unit; times that span
/// orders of magnitude (recovery), by more than a factor of 10.
pub fn differ(statistic: Statistic, a: f64, b: f64) -> bool {
    if statistic == Statistic::Recovery {
        return a.max(b) > 10.0 * a.min(b);
    }
    (a - b).abs() > 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_its_figures() {
        for (name, sizes) in [
            ("many-to-one", &["128", "1024", "4096", "8192"][..]),
            ("all-to-all", &["4", "8"]),
            ("long-short", &["2", "128", "1024", "2048"]),
        ] {
            let table = table(name).unwrap();
            for row in &table.rows {
                for (size, entry) in &row.entries {
                    assert!(sizes.contains(&size.as_str()), "{name} {size}");
                    if let Entry::Figures(figures) = entry {
                        assert_eq!(figures.len(), table.statistics.len());
                    }
                }
                if let Some(cc) = &row.cc {
                    cc.parse::<thalweg_sim::cc::Spec>().unwrap();
                }
            }
        }
    }

    /// The paper's rule: at 1024 flows Swift (89/96/27) is not dominated by DCQCN (100/50/13),
    /// and HPCC (59/48/27) is by both.
    #[test]
    fn domination_is_the_papers() {
        let of = [
            Statistic::Utilisation,
            Statistic::Fairness,
            Statistic::QueueLatency,
        ];
        let (dcqcn, hpcc, swift) = ([100.0, 50.0, 13.0], [59.0, 48.0, 27.0], [89.0, 96.0, 27.0]);
        assert!(dominates(&of, Some(&dcqcn), Some(&hpcc)));
        assert!(dominates(&of, Some(&swift), Some(&hpcc)));
        assert!(!dominates(&of, Some(&swift), Some(&dcqcn)));
        assert!(!dominates(&of, Some(&dcqcn), Some(&swift)));
        assert!(dominates(&of, Some(&hpcc), None));
        assert!(!dominates(&of, None, Some(&hpcc)));
        // Within 5 % in all: alike.
        assert!(!dominates(
            &of,
            Some(&[97.0, 96.0, 10.0]),
            Some(&[95.0, 95.0, 10.4])
        ));
    }

    #[test]
    fn differences() {
        assert!(!differ(Statistic::Fairness, 50.0, 60.0));
        assert!(differ(Statistic::Fairness, 50.0, 60.1));
        assert!(!differ(Statistic::Recovery, 1e-3, 1e-2));
        assert!(differ(Statistic::Recovery, 1e-3, 2e-2));
    }
}
