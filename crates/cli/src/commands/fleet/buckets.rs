//! `thalweg fleet buckets`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use thalweg_fleet::{Limits, Made};
use thalweg_units::Size;

use super::access::{self, Access};
use crate::options::{Global, whole};
use crate::output;

/// Where, and with which limits.
#[derive(Debug, Args)]
pub struct Options {
    /// The directory of `thalweg fleet init`.
    directory: PathBuf,
    #[command(flatten)]
    access: Access,
    /// Size of the bucket of priors; the others have a sixteenth.
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    size: Size,
    /// How long priors and statuses of a silent agent are kept, days.
    #[arg(long, value_name = "DAYS", default_value = "30", value_parser = whole(1..=3650u64))]
    days: u64,
    /// Copies in a cluster: 1, 3 or 5. Default: 3 if the directory has three servers.
    #[arg(long, value_name = "COUNT", value_parser = whole(1..=5u8))]
    replicas: Option<u8>,
}

/// A size in bytes.
pub fn size(text: &str) -> Result<Size, String> {
    text.parse()
}

/// Makes all buckets.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let hosts = access::hosts(&options.directory)?;
    let usual = if hosts.len() >= 3 { 3 } else { 1 };
    let limits = Limits {
        bytes: options.size.bytes(),
        age: Duration::from_secs(options.days * 86_400),
        replicas: options.replicas.unwrap_or(usual),
    };
    let mut operator = options.access.connect(&options.directory)?;
    let made = operator.make_all(&limits)?;
    let word = |made: &Made| match made {
        Made::New => "made",
        Made::Same => "as it was",
        Made::Changed => "changed",
    };
    if global.json {
        let row = |(bucket, made): &(thalweg_fleet::Bucket, Made)| json!({ "bucket": bucket.name(), "outcome": word(made) });
        return output::print_json(&made.iter().map(row).collect::<Vec<_>>());
    }
    let row =
        |(bucket, made): &(thalweg_fleet::Bucket, Made)| (bucket.name(), word(made).to_owned());
    output::print(&output::pairs(made.iter().map(row).collect()))
}
