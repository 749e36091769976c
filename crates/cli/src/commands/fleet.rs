//! `thalweg fleet`, one sub-command a file.

mod access;
mod ask;
mod buckets;
mod gain;
mod init;
mod key;
mod policy;
mod status;

use anyhow::Result;
use clap::Subcommand;

use crate::options::Global;

/// Sub-commands for fleets.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show how this machine's agent stands in its fleet, and all agents.
    Status(status::Options),
    /// Show what all agents gain against their control groups, as one.
    Gain(gain::Options),
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
    Policy(policy::FleetPolicyCommand),
}

/// Runs the sub-command.
pub fn run(global: &Global, what: &FleetCommand) -> Result<()> {
    match what {
        FleetCommand::Status(options) => status::run(global, options),
        FleetCommand::Gain(options) => gain::run(global, options),
        FleetCommand::Init(options) => init::run(global, options),
        FleetCommand::Buckets(options) => buckets::run(global, options),
        FleetCommand::Key(options) => key::run(global, options),
        FleetCommand::Policy(what) => policy::run(global, what),
    }
}
