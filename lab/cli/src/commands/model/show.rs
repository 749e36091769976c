//! `thalweg-lab model show`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_rate::Decider;
use thalweg_rate::models::{Document, ModelFile, Policy, Run};
use thalweg_units::figures;

use thalweg_terminal::Format;
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::output::{self, decimal_text};

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
    /// Number of trained values: weights and biases, or the nodes of trees.
    size: usize,
    /// Whether the model can run in the kernel.
    integer: bool,
    /// Results of the model in the simulator; also in `evaluation`.
    #[serde(skip)]
    runs: Vec<Run>,
}

/// Shows the model.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    kinds::expect_kind(&options.file, Kind::Model)?;
    let file = ModelFile::read(&options.file)?;
    let report = Report {
        document: &file.document,
        inputs: file.features.input_count(),
        size: model_size(&file.policy),
        integer: file.policy.integer_model().is_some(),
        // A file with unreadable runs was refused.
        runs: file.document.evaluation_runs().unwrap_or_default(),
    };
    if format.json {
        return output::print_json(&report);
    }
    output::print(&output::pairs_table(model_rows(&file, &report)))?;
    if report.runs.is_empty() {
        return Ok(());
    }
    output::print(&format!("\n{}", results_text(&report.runs)))
}

fn model_size(policy: &Policy) -> usize {
    match policy {
        Policy::Mlp { float, .. } => {
            let layers = float.layers().iter();
            layers
                .map(|layer| layer.row_count() * (layer.column_count() + 1))
                .sum()
        }
        // Four gates of 16 units with 32 inputs each, an output, and the layer before them.
        Policy::Lstm(lstm) => 16 * (lstm.input_count() + 1) + 4 * 16 * 33 + 17,
        Policy::Tree(model) => match model.decider() {
            Decider::Forest(forest) => forest.nodes().len(),
            Decider::Network(_) => 0,
        },
    }
}

fn model_rows(file: &ModelFile, report: &Report<'_>) -> Vec<(&'static str, String)> {
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
            scale => format!("{} × {}", feature.name, decimal_text(scale)),
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
        ("target", decimal_text(document.target)),
        ("offset", decimal_text(document.offset)),
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
            // Shortened as by git; --json has all of it.
            training.commit.chars().take(12).collect::<String>(),
            training.base_rtt_ns as f64 / 1e3,
            figures::rate_text(training.line_rate_bps as f64)
        ),
    ));
    let others = document
        .evaluation
        .iter()
        .filter(|(name, _)| *name != "runs");
    for (number, (name, value)) in others.enumerate() {
        let label = if number == 0 { "results" } else { "" };
        rows.push((label, format!("{name}: {value}")));
    }
    rows
}

/// The model's results in the simulator.
fn results_text(runs: &[Run]) -> String {
    let header = [
        "Scenario",
        "Inference",
        "SU %",
        "FR %",
        "QL µs",
        "Dropped %",
        "Measured s",
        "Begin %",
        "Seeds",
    ];
    let rows = runs.iter().map(|run| {
        vec![
            run.scenario.clone(),
            run.inference.clone(),
            decimal_text(run.utilisation_percent),
            decimal_text(run.fairness_percent),
            decimal_text(run.queue_us),
            decimal_text(run.dropped_percent),
            format!(
                "{} to {}",
                decimal_text(run.warmup_s),
                decimal_text(run.duration_s)
            ),
            decimal_text(run.initial_fraction * 100.0),
            run.seeds.to_string(),
        ]
    });
    output::table(&header, &[2, 3, 4, 5, 6, 7, 8], rows.collect())
}
