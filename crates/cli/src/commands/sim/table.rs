//! `thalweg sim table`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use thalweg_sim::{Scenario, Statistic};

use super::batch::{Common, ControllerRuns, Runs, measure};
use super::document;
use super::published::{self, Entry, Published};
use crate::failure::Failure;
use crate::options::Global;
use crate::output;

#[derive(Debug, Args)]
pub struct Options {
    /// Which table.
    table: Which,
    #[command(flatten)]
    common: Common,
    /// Sizes: flows, of all-to-all hosts; separated by commas. Default: those published.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    flows: Vec<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    /// Endless flows to one host: utilisation, fairness, queue latency.
    ManyToOne,
    /// Endless flows from every host to every other: the same.
    AllToAll,
    /// One endless flow among bursts: recovery time, loss, rate of the endless flow.
    LongShort,
}

/// The scenario files, with their texts.
macro_rules! scenarios {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../../scenarios/sim/", $name, ".toml"))),)*]
    };
}

const SCENARIOS: &[(&str, &str)] = scenarios! {
    "many-to-one-2" "many-to-one-4" "many-to-one-16" "many-to-one-32" "many-to-one-64"
    "many-to-one-128" "many-to-one-256" "many-to-one-512" "many-to-one-1024" "many-to-one-2048"
    "many-to-one-4096" "many-to-one-8192"
    "all-to-all-4" "all-to-all-8" "all-to-all-16"
    "long-short-2" "long-short-128" "long-short-1024" "long-short-2048"
};

/// From so much on a run has loss, percent of what arrives at the queues.
const LOSS_PERCENT: f64 = 0.1;

pub fn run(global: &Global, options: &Options) -> Result<()> {
    let (name, mut sizes) = match options.table {
        Which::ManyToOne => ("many-to-one", vec![128, 1024, 4096, 8192]),
        Which::AllToAll => ("all-to-all", vec![4, 8]),
        Which::LongShort => ("long-short", vec![2, 128, 1024, 2048]),
    };
    if !options.flows.is_empty() {
        sizes.clone_from(&options.flows);
    }
    let table = published::table(name)?;
    let scenarios = (sizes.iter())
        .map(|size| scenario(name, *size))
        .collect::<Result<Vec<_>>>()?;
    let batch = measure(scenarios, &options.common, false)?;
    let compared: Vec<Compared> = (sizes.iter().zip(&batch.scenarios))
        .map(|(size, runs)| compare(&table, *size, runs))
        .collect();
    if global.json {
        output::print_json(&json!({
            "table": name,
            "interrupted": batch.done.0 < batch.done.1,
            "statistics": table.statistics,
            "sizes": compared.iter().map(|one| one.json(&table)).collect::<Vec<_>>(),
        }))?;
    } else {
        output::print(&text(name, &table, &compared))?;
    }
    if batch.done.0 < batch.done.1 {
        bail!(
            "interrupted: {} of {} runs were done",
            batch.done.0,
            batch.done.1
        );
    }
    Ok(())
}

fn scenario(table: &str, size: u32) -> Result<Scenario> {
    let name = format!("{table}-{size}");
    let Some((_, text)) = SCENARIOS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = (SCENARIOS.iter())
            .filter_map(|(known, _)| known.strip_prefix(table)?.strip_prefix('-'))
            .collect();
        let message = format!("--flows: {table} has {}; found {size}", known.join(", "));
        return Err(Failure::Usage(message).into());
    };
    Scenario::parse(text, Path::new(&name)).context("a scenario of this program")
}

/// The published entries of one size beside ours.
struct Compared {
    size: u32,
    rows: Vec<Pair>,
}

/// An algorithm, as published and as measured.
struct Pair {
    name: String,
    published: Option<Cell>,
    ours: Option<Cell>,
}

/// An entry.
struct Cell {
    /// None where there is loss.
    figures: Option<Vec<f64>>,
    /// For a reader, a column a statistic.
    shown: Vec<String>,
    dominated: bool,
}

fn compare(table: &Published, size: u32, runs: &Runs) -> Compared {
    let mut rows: Vec<Pair> = (table.rows.iter())
        .map(|row| Pair {
            name: row.cc.clone().unwrap_or_else(|| row.name.clone()),
            published: row.entries.get(&size.to_string()).map(cell_of_entry),
            ours: None,
        })
        .collect();
    for one in &runs.controllers {
        let name = one.controller.to_string();
        let ours = cell_of_runs(&table.statistics, one);
        // A controller with other parameters stands for the published algorithm too.
        let same = |pair: &&mut Pair| pair.name == one.controller.name() && pair.ours.is_none();
        match rows.iter_mut().find(same) {
            Some(pair) => {
                pair.name = name;
                pair.ours = ours;
            }
            None => rows.push(Pair {
                name,
                published: None,
                ours,
            }),
        }
    }
    let mark = |cells: Vec<&mut Cell>| {
        let figures: Vec<Option<Vec<f64>>> =
            cells.iter().map(|cell| cell.figures.clone()).collect();
        for (cell, own) in cells.into_iter().zip(&figures) {
            cell.dominated = (figures.iter()).any(|other| {
                published::dominates(&table.statistics, other.as_deref(), own.as_deref())
            });
        }
    };
    mark(
        rows.iter_mut()
            .filter_map(|pair| pair.published.as_mut())
            .collect(),
    );
    mark(
        rows.iter_mut()
            .filter_map(|pair| pair.ours.as_mut())
            .collect(),
    );
    Compared { size, rows }
}

fn cell_of_entry(entry: &Entry) -> Cell {
    let (figures, shown) = match entry {
        Entry::Figures(figures) => {
            let shown = figures.iter().map(f64::to_string).collect();
            (Some(figures.clone()), shown)
        }
        Entry::Loss(_) => (None, vec!["loss".to_owned()]),
    };
    Cell {
        figures,
        shown,
        dominated: false,
    }
}

fn cell_of_runs(statistics: &[Statistic], runs: &ControllerRuns) -> Option<Cell> {
    let dropped = runs.summary(Statistic::DroppedPercent)?;
    let shown = (statistics.iter())
        .map(|statistic| {
            let summary = runs.summary(*statistic);
            summary.map_or_else(|| "–".to_owned(), |summary| document::cell(&summary))
        })
        .collect();
    // A table that has a column for loss does not replace figures by the word.
    let loss = dropped.mean >= LOSS_PERCENT && !statistics.contains(&Statistic::Dropped);
    let figures = (statistics.iter())
        .map(|statistic| match runs.summary(*statistic) {
            Some(summary) => Some(summary.mean),
            // It never recovered.
            None if *statistic == Statistic::Recovery => Some(f64::INFINITY),
            None => None,
        })
        .collect::<Option<Vec<f64>>>();
    Some(Cell {
        figures: figures.filter(|_| !loss),
        shown,
        dominated: false,
    })
}

impl Pair {
    /// Where both have an entry, what differs.
    fn differences(&self, statistics: &[Statistic]) -> Vec<String> {
        let (Some(published), Some(ours)) = (&self.published, &self.ours) else {
            return Vec::new();
        };
        let (theirs, ours) = match (&published.figures, &ours.figures) {
            (Some(theirs), Some(ours)) => (theirs, ours),
            (None, None) => return Vec::new(),
            (None, Some(_)) => return vec!["published: loss; ours: none".into()],
            (Some(_), None) => return vec!["published: no loss; ours: loss".into()],
        };
        (statistics.iter().zip(theirs.iter().zip(ours)))
            .filter(|(statistic, (a, b))| published::differ(**statistic, **a, **b))
            .map(|(statistic, (a, b))| {
                let unit = statistic.unit();
                format!(
                    "{}: published {a}{unit}, ours {b:.3}{unit}",
                    statistic.key()
                )
            })
            .collect()
    }
}

impl Compared {
    fn json(&self, table: &Published) -> Value {
        let cell = |cell: &Option<Cell>| match cell {
            None => Value::Null,
            Some(cell) => json!({
                "loss": cell.figures.is_none(),
                "figures": cell.figures,
                "shown": cell.shown,
                "dominated": cell.dominated,
            }),
        };
        let rows: Vec<Value> = (self.rows.iter())
            .map(|pair| {
                json!({
                    "name": pair.name,
                    "published": cell(&pair.published),
                    "ours": cell(&pair.ours),
                    "differences": pair.differences(&table.statistics),
                })
            })
            .collect();
        json!({ "size": self.size, "rows": rows })
    }
}

fn text(name: &str, table: &Published, compared: &[Compared]) -> String {
    let count = table.statistics.len();
    let mut header = vec!["controller".to_owned()];
    for whose in ["published", "ours"] {
        for statistic in &table.statistics {
            header.push(format!("{whose} {}", statistic.short()));
        }
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    let mut text = String::new();
    let mut differences = Vec::new();
    for one in compared {
        let columns = |cell: &Option<Cell>| -> Vec<String> {
            let Some(cell) = cell else {
                return vec![String::new(); count];
            };
            let mut columns = cell.shown.clone();
            if cell.figures.is_none() && columns[0] != "loss" {
                columns[0] = format!("loss, {}", columns[0]);
            }
            columns.resize(count, String::new());
            if cell.dominated {
                columns[0].push('*');
            }
            columns
        };
        let rows = (one.rows.iter())
            .filter(|pair| pair.published.is_some() || pair.ours.is_some())
            .map(|pair| {
                let mut row = vec![pair.name.clone()];
                row.extend(columns(&pair.published));
                row.extend(columns(&pair.ours));
                row
            })
            .collect();
        text.push_str(&format!("{name}, {} {}\n", one.size, table.what));
        text.push_str(&output::table(&header, &numbers, rows));
        text.push('\n');
        for pair in &one.rows {
            for difference in pair.differences(&table.statistics) {
                differences.push(format!("{} at {}: {difference}\n", pair.name, one.size));
            }
        }
    }
    text.push_str(
        "* another entry of the same column dominates it: better in one figure, worse in none\n",
    );
    if !differences.is_empty() {
        text.push_str("\nDifferences of more than 10 (recovery: a factor of 10):\n");
        text.push_str(&differences.concat());
    }
    text
}
