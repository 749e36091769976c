//! `thalweg export`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

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

/// Writes beside the file, then puts it in its place.
fn write(path: &Path, document: &[u8]) -> Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(document)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
