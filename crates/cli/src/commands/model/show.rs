//! `thalweg model show`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_core::rate::Decider;
use thalweg_model::{Document, ModelFile, Policy, Run};

use crate::options::Global;
use crate::output;

/// Which file.
#[derive(Debug, Args)]
pub struct Options {
    /// Model file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    document: &'a Document,
    /// Inputs of the network: features times history.
    inputs: usize,
    /// Numbers that training found: weights and biases, or the nodes of trees.
    size: usize,
    /// Whether the model can run in the kernel.
    integer: bool,
    /// How it did in the simulator; in `evaluation` as well.
    #[serde(skip)]
    runs: Vec<Run>,
}

/// Shows it.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let file = ModelFile::read(&options.file)?;
    let report = Report {
        document: &file.document,
        inputs: file.features.inputs(),
        size: size(&file.policy),
        integer: file.policy.integer().is_some(),
        // What cannot be read was refused with the file.
        runs: file.document.runs().unwrap_or_default(),
    };
    if global.json {
        return output::print_json(&report);
    }
    output::print(&output::pairs(rows(&file, &report)))
}

fn size(policy: &Policy) -> usize {
    match policy {
        Policy::Mlp { float, .. } => {
            let layers = float.layers().iter();
            layers
                .map(|layer| layer.rows() * (layer.columns() + 1))
                .sum()
        }
        // Four gates of 16 units that see 32 numbers, an output, and what is before them.
        Policy::Lstm(lstm) => 16 * (lstm.inputs() + 1) + 4 * 16 * 33 + 17,
        Policy::Tree(model) => match model.decider() {
            Decider::Forest(forest) => forest.nodes().len(),
            Decider::Network(_) => 0,
        },
    }
}

fn rows(file: &ModelFile, report: &Report<'_>) -> Vec<(&'static str, String)> {
    let document = report.document;
    let what = match &file.policy {
        Policy::Mlp { .. } => {
            let widths = [report.inputs].into_iter().chain(document.hidden.clone());
            let widths: Vec<String> = widths.chain([1]).map(|width| width.to_string()).collect();
            format!("mlp {}, {} parameters", widths.join("-"), report.size)
        }
        Policy::Lstm(_) => format!("lstm {}-16-16-1, {} parameters", report.inputs, report.size),
        Policy::Tree(model) => {
            let trees = match model.decider() {
                Decider::Forest(forest) => forest.roots().len(),
                Decider::Network(_) => 0,
            };
            format!("tree, {trees} with {} nodes in all", report.size)
        }
    };
    let features: Vec<String> = document
        .features
        .iter()
        .map(|feature| match feature.scale {
            1.0 => feature.name.clone(),
            scale => format!("{} × {scale}", feature.name),
        })
        .collect();
    let integer = if report.integer {
        "yes: it can run in the kernel"
    } else {
        "no: floating point only"
    };
    let training = &document.training;
    let mut rows = vec![
        ("name", document.name.clone()),
        ("kind", what),
        ("sees", features.join(", ")),
        ("history", format!("{} decisions", document.history)),
        ("target", document.target.to_string()),
        ("offset", document.offset.to_string()),
        ("integers", integer.to_owned()),
    ];
    if let Some(amax) = &document.activation_amax {
        let amax: Vec<String> = amax.iter().map(|amax| format!("{amax:.4}")).collect();
        rows.push(("ranges", format!("{} (by calibration)", amax.join(", "))));
    }
    rows.push(("trained on", training.scenarios.join(", ")));
    rows.push((
        "with",
        format!(
            "seed {}, commit {}, base RTT {} µs, line rate {}",
            training.seed,
            training.commit,
            training.base_rtt_ns as f64 / 1e3,
            output::rate(training.line_rate_bps as f64 / 8.0)
        ),
    ));
    let others = document
        .evaluation
        .iter()
        .filter(|(name, _)| *name != "runs");
    let results = report
        .runs
        .iter()
        .map(result)
        .chain(others.map(|(name, value)| format!("{name}: {value}")));
    for (number, result) in results.enumerate() {
        let label = if number == 0 { "results" } else { "" };
        rows.push((label, result));
    }
    rows
}

/// How the model did in a scenario, in one line.
fn result(run: &Run) -> String {
    format!(
        "{}, {}: SU {} %, FR {} %, QL {} µs, {} % dropped; {} s after {} s, flows begin at {} % \
         of the line rate, mean of {} seed{}",
        run.scenario,
        run.inference,
        run.utilisation_percent,
        run.fairness_percent,
        run.queue_us,
        run.dropped_percent,
        run.duration_s - run.warmup_s,
        run.warmup_s,
        run.initial_fraction * 100.0,
        run.seeds,
        if run.seeds == 1 { "" } else { "s" },
    )
}
