//! Whom a question about the whole fleet is put to: this machine's agent, or the servers.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use serde::de::DeserializeOwned;
use thalweg_agent::features::fleet::Statuses;
use thalweg_terminal::Failure;

use super::access::ServerAccess;
use crate::options::Global;

/// Without a directory it is the agent.
#[derive(Debug, Args)]
pub struct FleetSource {
    /// Ask the servers themselves, without an agent: the directory of `thalweg fleet init`.
    #[arg(long = "fleet", id = "directory", value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    access: ServerAccess,
}

impl FleetSource {
    /// Statuses from the servers; `None`: the agent is to be asked.
    pub fn server_statuses(&self) -> Result<Option<Statuses>> {
        let Some(directory) = &self.directory else {
            if self.access.is_given() {
                let text = "--server and --port need --fleet DIR: the agent is asked without";
                return Err(Failure::Usage(text.to_owned()).into());
            }
            return Ok(None);
        };
        let mut operator = self.access.connect_operator(directory)?;
        Ok(Some(Statuses::new(operator.statuses()?)))
    }

    /// Asks the servers or the agent about the fleet.
    pub fn ask_fleet<T: DeserializeOwned>(
        &self,
        global: &Global,
        path: &str,
        of: impl FnOnce(&Statuses) -> T,
    ) -> Result<T> {
        if let Some(statuses) = self.server_statuses()? {
            return Ok(of(&statuses));
        }
        let found: Option<T> = global.agent_client()?.get(path)?;
        found.ok_or_else(|| {
            anyhow!(
                "this agent is in no fleet ([fleet] servers = []); with --fleet DIR the servers are asked"
            )
        })
    }
}
