//! `thalweg-lab compare`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use thalweg_lab::measure::Measure;
use thalweg_lab::{Mode, compare};
use thalweg_terminal::{Failure, Format, output};

/// Two runs, and how they are compared.
#[derive(Debug, Args)]
pub struct Options {
    /// The run to compare with.
    a: PathBuf,
    /// The run that may be better or worse.
    b: PathBuf,
    /// Difference to ignore: 0.05 is 5 % of A's median, or of shares 5 percentage points.
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    tolerance: f64,
    /// Confidence of the intervals.
    #[arg(long, value_name = "PART", default_value_t = 0.95)]
    confidence: f64,
    /// Resamples of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    resamples: u32,
    /// Seed of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only this measure (goodput, retransmission-share, rtt, srtt, queue-delay, fct); repeatable.
    #[arg(long, value_name = "MEASURE")]
    measure: Vec<Measure>,
    /// Only this mode; repeatable.
    #[arg(long, value_name = "MODE")]
    mode: Vec<Mode>,
}

/// Compares two runs.
///
/// # Errors
/// A run that cannot be read or compared; B is worse than A.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    let settings = compare::Options {
        tolerance: options.tolerance,
        confidence: options.confidence,
        resamples: options.resamples,
        seed: options.seed,
        measures: options.measure.clone(),
        modes: options.mode.iter().map(Mode::to_string).collect(),
    };
    let comparison = compare::compare_runs(&options.a, &options.b, &settings)?;
    output::show_value(format, &comparison, || {
        let mut text = format!("{}\n", compare::comparison_title(&comparison));
        for table in compare::comparison_tables(&comparison) {
            let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
            text.push_str(&format!("\n{}\n", table.title));
            text.push_str(&output::table(&header, &[2, 3, 4, 5, 6, 7], table.rows));
        }
        for remark in compare::comparison_remarks(&comparison) {
            text.push_str(&format!("{remark}\n"));
        }
        text
    })?;
    if comparison.is_worse() {
        return Err(Failure::with_code(6, "B is worse than A").into());
    }
    Ok(())
}
