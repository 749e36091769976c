//! `thalweg config show`.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use thalweg_agent::config::{Config, DEFAULT_FILE, KeyDescription};
use thalweg_terminal::output;
use thalweg_units::file::{self, MAX_FILE_BYTES};
use thalweg_units::reader::decode_text;

use crate::options::Global;

/// One key.
#[derive(Serialize)]
struct Key {
    key: String,
    /// As TOML.
    value: String,
    default: String,
    accepts: String,
    /// "default", "FILE:LINE", or the option that overrides both.
    from: String,
}

/// Shows every key.
pub fn run(global: &Global) -> Result<()> {
    let file = global.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let keys = match file::read_bytes(file, MAX_FILE_BYTES) {
        Err(error) if global.config.is_none() && error.is_absent() => Config::keys(),
        read => {
            // Every command reports faults in these words.
            Config::load(file)?;
            Config::describe(decode_text(&read?, file)?, file)?.1
        }
    };
    let keys: Vec<Key> = keys
        .into_iter()
        .map(|key| key_with_value(key, file, global))
        .collect();
    output::show_value(&global.format, &keys, || toml_text(&keys))
}

fn key_with_value(key: KeyDescription, file: &Path, global: &Global) -> Key {
    let (value, from) = match (&global.socket, key.line) {
        (Some(socket), _) if key.key == "paths.socket" => (
            format!("{:?}", socket.display().to_string()),
            "--socket".to_owned(),
        ),
        (_, Some(line)) => (key.value, format!("{}:{line}", file.display())),
        (_, None) => (key.value, "default".to_owned()),
    };
    Key {
        key: key.key,
        value,
        default: key.default,
        accepts: key.expected,
        from,
    }
}

/// A configuration, with a comment behind each value.
fn toml_text(keys: &[Key]) -> String {
    let name = |key: &Key| match key.key.rsplit_once('.') {
        None => (String::new(), key.key.clone()),
        Some((table, name)) => (table.to_owned(), name.to_owned()),
    };
    let setting = |key: &Key| format!("{} = {}", name(key).1, key.value);
    // A long list does not widen the column.
    let width = keys.iter().map(|key| setting(key).chars().count());
    let width = width.filter(|width| *width <= 50).max().unwrap_or(0);
    let mut table = String::new();
    let mut text = String::new();
    for key in keys {
        let own = name(key).0;
        if own != table {
            text += &format!("\n[{own}]\n");
            table = own;
        }
        text += &format!("{:width$}  # {}\n", setting(key), key.from);
    }
    text
}
