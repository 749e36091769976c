//! `thalweg fleet buckets`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use thalweg_fleet::{Identity, Limits, Made, Name, Operator, Settings, setup};
use thalweg_units::Size;

use crate::options::{Global, whole};
use crate::output;

/// Where, and with which limits.
#[derive(Debug, Args)]
pub struct Options {
    /// The directory of `thalweg fleet init`.
    directory: PathBuf,
    /// A server, such as tls://nats.example.com:4222. Default: those of the directory.
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Port of the directory's servers.
    #[arg(long, default_value_t = 4222)]
    port: u16,
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
    let hosts = hosts(&options.directory)?;
    let url = |host: &String| match host.contains(':') {
        true => format!("tls://[{host}]:{}", options.port),
        false => format!("tls://{host}:{}", options.port),
    };
    let servers = match options.servers.is_empty() {
        true => hosts.iter().map(url).collect(),
        false => options.servers.clone(),
    };
    let usual = if hosts.len() >= 3 { 3 } else { 1 };
    let limits = Limits {
        bytes: options.size.bytes(),
        age: Duration::from_secs(options.days * 86_400),
        replicas: options.replicas.unwrap_or(usual),
    };
    let operator = Name::new(setup::OPERATOR).expect("a name");
    let key = Identity::Nkey(options.directory.join("operator.nk"));
    let mut settings = Settings::new(servers, operator, key);
    settings.ca = Some(options.directory.join("ca.pem"));
    let made = Operator::connect(&settings)?.make_all(&limits)?;
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

/// The servers of a directory.
fn hosts(directory: &Path) -> Result<Vec<String>> {
    let servers = directory.join("servers");
    let failed = || {
        let directory = directory.display();
        format!("{directory}: expected the directory of `thalweg fleet init`")
    };
    let mut hosts = Vec::new();
    for entry in std::fs::read_dir(servers).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name();
        hosts.extend(name.into_string());
    }
    hosts.sort();
    Ok(hosts)
}
