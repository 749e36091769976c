//! `thalweg import`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};
use thalweg_agent::store::IMPORT_MAX_BYTES;
use thalweg_units::file::{self, ReadError};

use crate::options::Global;
use crate::output;

/// Where from.
#[derive(Debug, Args)]
pub struct Options {
    /// A file that `thalweg export` wrote, or - for standard input.
    file: PathBuf,
}

/// What the agent did.
#[derive(Deserialize, Serialize)]
struct Imported {
    imported: u64,
    left_out: u64,
}

/// Puts the host records of a document into the agent; all of it is checked first.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let name = options.file.display();
    let text = read(&options.file)?;
    thalweg_agent::store::check_document(|| Ok(text.as_bytes()))
        .map_err(|error| anyhow!("{name}: {error}; nothing was imported"))?;
    let answer: Imported = global.client()?.post("/v1/import", text)?;
    if global.json {
        return output::print_json(&answer);
    }
    let left_out = match answer.left_out {
        0 => String::new(),
        n => format!(", {n} left out"),
    };
    output::print(&format!(
        "{} host records imported{left_out}\n",
        answer.imported
    ))
}

fn read(path: &Path) -> Result<String, ReadError> {
    if path == Path::new("-") {
        return file::standard_input(IMPORT_MAX_BYTES);
    }
    Ok(file::text(file::read(path, IMPORT_MAX_BYTES)?, path)?)
}
