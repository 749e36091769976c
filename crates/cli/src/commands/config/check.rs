//! `thalweg config check`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_agent::config::{Config, DEFAULT_FILE};
use thalweg_agent::named::Named;
use thalweg_terminal::Failure;
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::output::{self, count_text};
use thalweg_units::file::{self, MAX_FILE_BYTES, ReadError};
use thalweg_units::reader::decode_text;
use thalweg_units::{Faults, excerpt};

use crate::options::Global;

/// Options of `config check`.
#[derive(Debug, Args)]
pub struct Options {
    /// Configuration files. Default: that of --config, or /etc/thalweg/thalweg.toml.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Faults of one file.
#[derive(Serialize)]
struct Report {
    file: String,
    faults: Vec<output::Fault>,
}

/// Checks all files before it reports a failure.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let default = [global.config.clone().unwrap_or_else(|| DEFAULT_FILE.into())];
    let files = match &options.files[..] {
        [] => &default[..],
        files => files,
    };
    let mut reports = Vec::new();
    for file in files {
        kinds::expect_kind(file, Kind::Configuration)?;
        let bytes = file::read_bytes(file, MAX_FILE_BYTES)?;
        let parsed = decode_text(&bytes, file).and_then(|text| Config::parse(text, file));
        reports.push(report_file(global, file, &bytes, parsed.as_ref().err())?);
        if let Ok(Config { networks, .. }) = parsed
            && let Some(table) = networks.table
        {
            let faults = match Named::read(Some(&table)) {
                Ok(_) => None,
                Err(ReadError::Text(faults)) => Some(faults),
                Err(other) => return Err(other.into()),
            };
            let bytes = match &faults {
                Some(_) => std::fs::read(&table)?,
                None => Vec::new(),
            };
            reports.push(report_file(global, &table, &bytes, faults.as_ref())?);
        }
    }
    if global.format.json {
        output::print_json(&reports)?;
    }
    match reports.iter().map(|report| report.faults.len()).sum() {
        0usize => Ok(()),
        found => Err(Failure::Faults(format!("found {}", count_text(found, "fault"))).into()),
    }
}

/// The report of a file; as text it is printed at once.
fn report_file(
    global: &Global,
    file: &Path,
    bytes: &[u8],
    faults: Option<&Faults>,
) -> Result<Report> {
    if !global.format.json {
        output::print(&report_text(file, bytes, faults))?;
    }
    Ok(Report {
        file: file.display().to_string(),
        faults: faults.into_iter().flat_map(output::json_faults).collect(),
    })
}

fn report_text(file: &Path, bytes: &[u8], faults: Option<&Faults>) -> String {
    let Some(faults) = faults else {
        return format!("{}: good\n", file.display());
    };
    let text = String::from_utf8_lossy(bytes);
    let told = faults.0.iter().map(|fault| {
        let place = excerpt(&text, fault.at);
        format!("{fault}\n{place}")
    });
    let summary = format!(
        "{}: {}\n",
        file.display(),
        count_text(faults.0.len(), "fault")
    );
    told.chain([summary]).collect()
}
