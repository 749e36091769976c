//! How an operator's commands reach the servers of a fleet.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use thalweg_fleet::{Identity, Name, Operator, Settings, setup};

/// The directory of `thalweg fleet init`, and servers.
#[derive(Debug, Args)]
pub struct ServerAccess {
    /// A server, such as tls://nats.example.com:4222. Default: those of the directory.
    #[arg(long = "server", value_name = "URL")]
    servers: Vec<String>,
    /// Port of the directory's servers. Default: 4222.
    #[arg(long)]
    port: Option<u16>,
}

impl ServerAccess {
    /// Whether any option is given.
    pub fn is_given(&self) -> bool {
        !self.servers.is_empty() || self.port.is_some()
    }

    /// Connects with the operator's key, or as `operator.creds` says where servers get their accounts as
    /// JWTs.
    pub fn connect_operator(&self, directory: &Path) -> Result<Operator> {
        let hosts = server_hosts(directory)?;
        let port = self.port.unwrap_or(4222);
        let url = |host: &String| match host.contains(':') {
            true => format!("tls://[{host}]:{port}"),
            false => format!("tls://{host}:{port}"),
        };
        let servers = match self.servers.is_empty() {
            true => hosts.iter().map(url).collect(),
            false => self.servers.clone(),
        };
        let operator = Name::new(setup::OPERATOR).expect("a name");
        let credentials = directory.join("operator.creds");
        let identity = match credentials.exists() {
            true => Identity::Credentials(credentials),
            false => Identity::Nkey(directory.join("operator.nk")),
        };
        let mut settings = Settings::new(servers, operator, identity);
        settings.ca = Some(directory.join("ca.pem"));
        Ok(Operator::connect(&settings)?)
    }
}

/// The servers of a directory.
pub fn server_hosts(directory: &Path) -> Result<Vec<String>> {
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
