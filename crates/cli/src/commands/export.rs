//! `thalweg export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use thalweg_terminal::output;
use thalweg_units::file::Draft;

use crate::options::Global;

mod decisions;

/// Where to.
#[derive(Debug, Args)]
pub struct Options {
    /// File to write. Default: standard output.
    file: Option<PathBuf>,
    /// Instead of host records, write the stored decisions with what became of their connections,
    /// for `thalweg replay`.
    #[arg(long)]
    decisions: bool,
}

/// Writes all host records as a JSON document, or decisions as lines of JSON.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let client = global.agent_client()?;
    let get = |write: &mut dyn FnMut(&[u8]) -> Result<()>| {
        if options.decisions {
            return decisions::write_decisions(&client, write);
        }
        client.get_parts("/v1/export", &mut *write)?;
        write(b"\n")
    };
    match options.file.as_deref() {
        None => get(&mut output::write_bytes),
        Some(path) if path == Path::new("-") => get(&mut output::write_bytes),
        Some(path) => {
            let context = || format!("cannot write {}", path.display());
            // Private: it shows with whom this machine communicates.
            let mut draft = Draft::new(path, 0o600).with_context(context)?;
            get(&mut |part| draft.append_bytes(part).with_context(context))?;
            draft.persist().with_context(context)
        }
    }
}
