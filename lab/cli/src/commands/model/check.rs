//! `thalweg-lab model check`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_rate::models::ModelFile;

use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Failure, Format, output};

/// Which files.
#[derive(Debug, Args)]
pub struct Options {
    /// Model files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    file: String,
    /// Null if the file is a model.
    fault: Option<String>,
    /// Whether the model can run in the kernel.
    integer: bool,
}

/// Checks all files before it reports a failure.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    let mut reports = Vec::new();
    for file in &options.files {
        let other = kinds::expect_kind(file, Kind::Model).err();
        let (fault, integer) = match (other, ModelFile::read(file)) {
            (Some(other), _) => (Some(other.to_string()), false),
            (None, Ok(model)) => (None, model.policy.integer_model().is_some()),
            (None, Err(error)) => (Some(error.to_string()), false),
        };
        let file = file.display().to_string();
        if !format.json {
            output::print(&match &fault {
                Some(fault) => format!("error: {fault}\n"),
                None if integer => format!("{file}: good\n"),
                None => format!("{file}: good, in floating point only\n"),
            })?;
        }
        reports.push(Report {
            file,
            fault,
            integer,
        });
    }
    if format.json {
        output::print_json(&reports)?;
    }
    match reports
        .iter()
        .filter(|report| report.fault.is_some())
        .count()
    {
        0 => Ok(()),
        1 => Err(Failure::Faults("1 file is no model".into()).into()),
        count => Err(Failure::Faults(format!("{count} files are no models")).into()),
    }
}
