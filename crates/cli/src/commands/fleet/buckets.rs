//! `thalweg fleet buckets`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use thalweg_fleet::{BucketChange, WantedLimits};
use thalweg_terminal::{output, whole_number};
use thalweg_units::grammar;

use super::access::{self, ServerAccess};
use crate::options::Global;

/// Where, and with which limits.
#[derive(Debug, Args)]
pub struct Options {
    /// The directory of `thalweg fleet init`.
    directory: PathBuf,
    #[command(flatten)]
    access: ServerAccess,
    /// Size of the bucket of priors; the others have a sixteenth. Default: as it is; in a new one 1GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// How long priors and statuses of a silent agent are kept, days. Default: as it is; in a new one 30.
    #[arg(long, value_name = "DAYS", value_parser = whole_number(1..=3650u64))]
    days: Option<u64>,
    /// Copies in a cluster: 1, 3 or 5. Default: as it is, but 3 at least if the directory has three
    /// servers.
    #[arg(long, value_name = "COUNT", value_parser = whole_number(1..=5u8))]
    replicas: Option<u8>,
}

/// A size of a server's store, in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bytes = grammar::parse_bytes(text).filter(|bytes| (1 << 20..=1 << 50).contains(bytes));
    bytes.ok_or_else(|| "expected a size such as 4GB, at least 1MiB".to_owned())
}

/// Makes all buckets.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let hosts = access::server_hosts(&options.directory)?;
    let usual = if hosts.len() >= 3 { 3 } else { 1 };
    let wanted = WantedLimits {
        bytes: options.size,
        age: options.days.map(|days| Duration::from_secs(days * 86_400)),
        replicas: options.replicas,
        least_replicas: usual,
    };
    let mut operator = options.access.connect_operator(&options.directory)?;
    let made = operator.make_all(wanted)?;
    let word = |made: &BucketChange| match made {
        BucketChange::New => "made",
        BucketChange::Same => "as it was",
        BucketChange::Changed => "changed",
    };
    if global.format.json {
        let row = |(bucket, made): &(thalweg_fleet::Bucket, BucketChange)| json!({ "bucket": bucket.name(), "outcome": word(made) });
        return output::print_json(&made.iter().map(row).collect::<Vec<_>>());
    }
    let row = |(bucket, made): &(thalweg_fleet::Bucket, BucketChange)| {
        (bucket.name(), word(made).to_owned())
    };
    output::print(&output::pairs_table(made.iter().map(row).collect()))
}
