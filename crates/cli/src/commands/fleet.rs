//! `thalweg fleet`, one sub-command a file.

mod access;
mod buckets;
mod init;
mod key;
mod policy;
mod status;

use anyhow::Result;
use clap::Subcommand;

use crate::options::Global;

/// Sub-commands for fleets.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Show how this machine's agent stands in its fleet.
    Status,
    /// Write a NATS server's configuration, certificates, and a key for each agent.
    ///
    /// Several servers are a cluster. A second call keeps all keys, and adds what is new. Needs no
    /// server.
    Init(init::Options),
    /// Make the buckets at a running server, or change their limits.
    Buckets(buckets::Options),
    /// Make a key that signs policies; prints its public key.
    ///
    /// Agents obey keys that their configuration names (`[fleet] keys`).
    Key(key::Options),
    /// Publish policies, and see how far each agent is.
    #[command(subcommand)]
    Policy(policy::What),
}

/// Runs the sub-command.
pub fn run(global: &Global, what: &What) -> Result<()> {
    match what {
        What::Status => status::run(global),
        What::Init(options) => init::run(global, options),
        What::Buckets(options) => buckets::run(global, options),
        What::Key(options) => key::run(global, options),
        What::Policy(what) => policy::run(global, what),
    }
}
