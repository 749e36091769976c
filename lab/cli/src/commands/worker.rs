//! `thalweg-lab worker`, which `run` starts inside its hosts.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use thalweg_lab::worker::Job;

/// The work.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Receive on an address until killed.
    Serve {
        /// Address and port.
        address: std::net::SocketAddr,
    },
    /// Send what the plan on standard input says.
    Send {
        /// Where the result goes.
        result: PathBuf,
    },
    /// Ask a web server for the pages of the plan on standard input.
    Fetch {
        /// Where the result goes.
        result: PathBuf,
    },
    /// Run the programs that are ordered on standard input, one after the other.
    Turns,
    /// Measure how late timers are.
    Timers,
}

/// Makes the traffic of a scenario.
///
/// # Errors
/// The plan cannot be read, or a step of it fails.
pub fn run(what: &WorkerCommand) -> Result<()> {
    Ok(thalweg_lab::worker::run_job(&match what {
        WorkerCommand::Serve { address } => Job::Serve { address: *address },
        WorkerCommand::Send { result } => Job::Send {
            result: result.clone(),
        },
        WorkerCommand::Fetch { result } => Job::Fetch {
            result: result.clone(),
        },
        WorkerCommand::Turns => Job::Turns,
        WorkerCommand::Timers => Job::Timers,
    })?)
}
