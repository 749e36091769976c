//! `thalweg fleet init`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use thalweg_fleet::Name;
use thalweg_fleet::setup::{self, Plan};
use thalweg_terminal::Failure;
use thalweg_terminal::output::{self, count_text};

use crate::options::Global;

/// Options of `fleet init`.
#[derive(Debug, Args)]
pub struct Options {
    /// Directory for everything. It holds the CA's key and the operator's: keep it apart from the
    /// servers.
    directory: PathBuf,
    /// Host name or address of a server; several are a cluster. Agents must reach it by this.
    #[arg(long = "server", value_name = "HOST")]
    servers: Vec<String>,
    /// Name of an agent: a-z, A-Z, 0-9, - and _. Agents call themselves by their host's name, with
    /// dots as _ and _ as __.
    #[arg(long = "agent", value_name = "NAME", value_parser = parse_agent)]
    agents: Vec<Name>,
    /// Address at which servers listen.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    listen: IpAddr,
    /// Port for agents.
    #[arg(long, default_value_t = 4222)]
    port: u16,
    /// Port for the other servers of a cluster.
    #[arg(long, default_value_t = 6222)]
    cluster_port: u16,
    /// Where a server's files will be on its machine.
    #[arg(long, value_name = "PATH", default_value = "/etc/thalweg-fleet")]
    at: PathBuf,
    /// Where a server keeps the buckets.
    #[arg(long, value_name = "PATH", default_value = "/var/lib/nats/thalweg")]
    store: PathBuf,
    /// Most that a server keeps, such as 4GB.
    #[arg(long, value_name = "SIZE", default_value = "4GB", value_parser = super::buckets::parse_size)]
    store_size: u64,
    /// Make the certificates of all servers anew. They hold for two years.
    #[arg(long)]
    renew: bool,
}

/// An agent's name, or that of its host, which has dots.
fn parse_agent(text: &str) -> Result<Name, String> {
    let name = match text.contains('.') {
        true => Name::of_host(text),
        false => Name::new(text),
    };
    name.map_err(|why| why.to_string())
}

/// Writes the files, and says what to do with them.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let mut names = BTreeSet::new();
    if let Some(twice) = options.agents.iter().find(|name| !names.insert(*name)) {
        let text = format!("--agent: two are named {twice}, expected a name for each");
        return Err(Failure::Usage(text).into());
    }
    let plan = Plan {
        servers: options.servers.clone(),
        agents: options.agents.clone(),
        listen: options.listen,
        port: options.port,
        cluster_port: options.cluster_port,
        at: options.at.clone(),
        store: options.store.clone(),
        store_bytes: options.store_size,
        renew: options.renew,
    };
    let report = setup::set_up_fleet(&options.directory, &plan)?;
    if global.format.json {
        return output::print_json(&json!({
            "servers": report.servers,
            "agents": report.agents,
            "policy_key": report.policy_key,
        }));
    }
    let directory = options.directory.display();
    let at = options.at.display();
    output::print(&format!(
        "{} and {} in {directory}\n\n\
         To each server: {directory}/servers/HOST/* as {at}, its user must read server.key\n\
         Start it:       nats-server -c {at}/nats-server.conf; after changes start it again\n\
         Then once:      thalweg fleet buckets {directory}\n\
         To each agent:  {directory}/agents/NAME/* (agent.nk with mode 0600)\n\
         Policies:       signed by {directory}/policy.nk; agents obey them whose [fleet] keys has its public key:\n\
         {}\n",
        count_text(report.servers.len(), "server"),
        count_text(report.agents.len(), "agent"),
        report.policy_key
    ))
}
