//! `thalweg policy diff`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use thalweg_policy::{Change, Difference};
use thalweg_terminal::output;

use crate::options::Global;

/// Options of `policy diff`.
#[derive(Debug, Args)]
pub struct Options {
    /// The policy before.
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The policy after.
    #[arg(value_name = "B")]
    after: PathBuf,
}

/// Compares rules by their meaning, not by their text.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let (before, after) = (
        super::load_policy(&options.before)?,
        super::load_policy(&options.after)?,
    );
    let difference = Difference::between(&before, &after);
    output::show_value(&global.format, &difference, || difference_text(&difference))
}

fn difference_text(difference: &Difference) -> String {
    if difference.is_empty() {
        return "no difference\n".to_owned();
    }
    let mut text = String::new();
    for name in &difference.removed {
        text.push_str(&format!("removed  {name}\n"));
    }
    for name in &difference.added {
        text.push_str(&format!("added    {name}\n"));
    }
    for rule in &difference.changed {
        text.push_str(&format!("changed  {}\n", rule.name));
        for change in &rule.changes {
            text.push_str(&change_line(change));
        }
    }
    for name in &difference.moved {
        text.push_str(&format!("moved    {name}\n"));
    }
    text
}

fn change_line(change: &Change) -> String {
    let what = &change.what;
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => format!("           {what}: {before} -> {after}\n"),
        (Some(before), None) => format!("           {what}: no longer {before}\n"),
        (None, Some(after)) => format!("           {what}: now {after}\n"),
        (None, None) => String::new(),
    }
}
