//! `thalweg export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use thalweg_units::file::Draft;

use crate::options::Global;
use crate::output;

/// Where to.
#[derive(Debug, Args)]
pub struct Options {
    /// File to write; it is replaced whole or not at all. Default: standard output.
    file: Option<PathBuf>,
}

/// Writes all host records as a JSON document.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let document = global.client()?.get_text("/v1/export")?;
    match options.file.as_deref() {
        None => output::print(&format!(
            "{}\n",
            String::from_utf8_lossy(&document).trim_end()
        )),
        Some(path) if path == Path::new("-") => output::print(&format!(
            "{}\n",
            String::from_utf8_lossy(&document).trim_end()
        )),
        Some(path) => {
            write(path, &document).with_context(|| format!("cannot write {}", path.display()))
        }
    }
}

/// Not for all to read: it tells with whom this machine speaks.
fn write(path: &Path, document: &[u8]) -> std::io::Result<()> {
    Draft::new(path, 0o600)?.replace(&[document, b"\n"].concat())
}
