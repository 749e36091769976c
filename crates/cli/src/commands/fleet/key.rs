//! `thalweg fleet key`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use thalweg_fleet::keys::SigningKey;
use thalweg_terminal::output;

use crate::options::Global;

/// Options of `fleet key`.
#[derive(Debug, Args)]
pub struct Options {
    /// The seed's file, with mode 0600. If it exists, its public key is printed.
    file: PathBuf,
}

/// Makes a key, or reads it, and prints its public half.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let public = SigningKey::read_or_create(&options.file)?
        .public_key()
        .to_string();
    output::show_value(&global.format, &json!({ "key": public }), || {
        format!("{public}\n")
    })
}
