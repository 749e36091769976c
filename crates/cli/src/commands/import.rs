//! `thalweg import`.

use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};
use thalweg_agent::store::HOST_MAX_BYTES;
use thalweg_terminal::output;
use thalweg_units::file;

use crate::options::Global;

/// Where from.
#[derive(Debug, Args)]
pub struct Options {
    /// A file that `thalweg export` wrote, or - for standard input.
    file: PathBuf,
}

/// The agent's response.
#[derive(Deserialize, Serialize)]
struct Imported {
    imported: u64,
    left_out: u64,
}

/// Sends the host records of a document to the agent, which checks all of it first.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let most = u64::from(global.readable_or_warn()?.hosts.max) * HOST_MAX_BYTES;
    let is_input = options.file == Path::new("-");
    let (document, name) = if is_input {
        (file::standard_input(most)?, "standard input".into())
    } else {
        (
            file::open_regular(&options.file, most)?,
            options.file.display().to_string(),
        )
    };
    let from_start = || {
        let mut document = &document;
        document.rewind()?;
        Ok(BufReader::new(document))
    };
    thalweg_agent::store::check_document(from_start)
        .map_err(|error| anyhow!("{name}: {error}; nothing was imported"))?;
    let answer: Imported = global.agent_client()?.post_file("/v1/import", document)?;
    output::show_value(&global.format, &answer, || {
        let left_out = match answer.left_out {
            0 => String::new(),
            n => format!(", {n} left out"),
        };
        format!("{} host records imported{left_out}\n", answer.imported)
    })
}
