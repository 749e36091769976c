//! `thalweg policy`, one sub-command a file.

mod check;
mod diff;
mod test;

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use clap::Subcommand;
use thalweg_policy::{Faults, Policy};

use crate::options::Global;

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Check policy files; exit code 1 if one has a fault.
    ///
    /// Faults and warnings are told with file, line and column. Needs no agent and no privilege.
    Check(check::Options),
    /// Say which rule of a policy a flow gets, what that sets, and why no other rule.
    Test(test::Options),
    /// Say what differs between two policies, rule by rule.
    Diff(diff::Options),
}

/// Does it.
pub fn run(global: &Global, what: &What) -> Result<()> {
    match what {
        What::Check(options) => check::run(global, options),
        What::Test(options) => test::run(global, options),
        What::Diff(options) => diff::run(global, options),
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// A policy that can be used; of several faults the first is told.
fn load(file: &Path) -> Result<Policy> {
    let policy = Policy::parse(&read(file)?, file).map_err(|faults| first(file, &faults))?;
    policy.compile().map_err(|faults| first(file, &faults))?;
    Ok(policy)
}

fn first(file: &Path, faults: &Faults) -> anyhow::Error {
    let more = match faults.0.len() {
        0 | 1 => String::new(),
        count => format!(
            " ({} more: `thalweg policy check {}`)",
            count - 1,
            file.display()
        ),
    };
    match faults.0.first() {
        Some(fault) => anyhow!("{fault}{more}"),
        None => anyhow!("{} cannot be used", file.display()),
    }
}
