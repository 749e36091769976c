//! The configuration of nats-server, as version 2.9 and later read it.

use std::fmt::Write as _;
use std::path::Path;

use crate::bucket::{BUCKETS, Bucket, notify_subject};
use crate::link::IMPORTED;
use crate::names::Name;
use crate::wire::Shard;

/// An agent as a user of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentUser {
    /// The agent.
    pub name: Name,
    /// Public key of the agent.
    pub key: String,
}

/// The other servers.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Port for them.
    pub port: u16,
    /// Hosts and ports of all.
    pub routes: Vec<(String, u16)>,
}

/// One server.
#[derive(Clone, Debug)]
pub struct ServerConfig<'a> {
    /// Name of the server, unique in the cluster.
    pub name: &'a str,
    /// The address at which it listens, in brackets for IPv6.
    pub listen: &'a str,
    /// Port for agents.
    pub port: u16,
    /// Where its files are: `server.pem`, `server.key`, `ca.pem`.
    pub at: &'a Path,
    /// Directory in which the server keeps the buckets.
    pub store: &'a Path,
    /// Most that it keeps, bytes.
    pub store_bytes: u64,
    /// The others, if there are any.
    pub cluster: Option<Cluster>,
}

/// `nats-server.conf`.
pub fn server_configuration(place: &ServerConfig) -> String {
    let ServerConfig {
        name,
        listen,
        port,
        at,
        store,
        store_bytes,
        cluster,
    } = place;
    let (at, store) = (at.display(), store.display());
    let mut text = format!(
        r#"# A server of a Thalweg fleet, written by `thalweg fleet init`.
# Needs nats-server 2.9 or newer. Start: nats-server -c nats-server.conf

server_name: "{name}"
listen: "{listen}:{port}"

tls {{
    cert_file: "{at}/server.pem"
    key_file: "{at}/server.key"
    timeout: 10
}}

jetstream {{
    store_dir: "{store}"
    max_memory_store: 64MB
    max_file_store: {store_bytes}
    # For nats-server 2.12 and newer, whose queue of 100,000 lets one member hold up all others:
    #max_buffered_msgs: 10000
}}

# Policies are the largest messages, 512 KiB.
max_payload: 1MB
# Agents are silent for minutes.
ping_interval: "4m"

include "users.conf"
"#
    );
    if let Some(Cluster { port, routes }) = cluster {
        let routes: String = routes
            .iter()
            .map(|(host, port)| format!("        \"tls://{}:{port}\"\n", bracketed_host(host)))
            .collect();
        // Writing to text does not fail.
        let _ = write!(
            text,
            r#"
cluster {{
    name: "thalweg-fleet"
    listen: "{listen}:{port}"
    # Servers show each other certificates of the fleet's CA.
    tls {{
        cert_file: "{at}/server.pem"
        key_file: "{at}/server.key"
        ca_file: "{at}/ca.pem"
        verify: true
        timeout: 10
    }}
    routes: [
{routes}    ]
}}
"#
        );
    }
    text
}

fn bracketed_host(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// `users.conf`: who may do what. After a change servers must start again: when they only read it
/// again (SIGHUP), new accounts lack what they import (tried with 2.9.10; nats-server issue 8560).
///
/// Each agent has an account of its own, which imports what it may ask of the buckets' account. In
/// one account permissions would not do: a server sends its answers to any subject that the asker
/// names, without asking whether that one may write there.
pub fn users_configuration(operator: &str, agents: &[AgentUser]) -> String {
    let mut text = String::from(
        "# Users of a Thalweg fleet, written by `thalweg fleet init`.\n\
         # After a change start the server again: by a reload new agents find no buckets.\n\naccounts {\n",
    );
    let exports: String = agent_subjects(None).iter().map(export_row).collect();
    // Writing to text does not fail.
    let _ = write!(
        text,
        r#"    # The buckets, and who may make them and write policies.
    FLEET {{
        jetstream: enabled
        users: [{{ nkey: {operator} }}]
        exports: [
{exports}        ]
    }}
"#
    );
    for AgentUser { name, key } in agents {
        let imports: String = agent_subjects(Some(name)).iter().map(import_row).collect();
        let _ = write!(
            text,
            r#"    agent-{name} {{
        users: [{{ nkey: {key} }}]
        imports: [
{imports}        ]
    }}
"#
        );
    }
    text.push_str("}\n");
    text
}

/// Subject that an agent's account imports from the account of the buckets.
enum SharedSubject {
    /// A request with one answer.
    Asks(String),
    /// A request with several answers.
    Reads(String),
    /// Messages that arrive without a request.
    Hears(String),
}

/// An agent writes its own keys, reads all buckets, and hears that there is a new policy. Those of any
/// agent are exported.
///
/// Nobody hears subjects of buckets: a server delivers to listeners alone, and who listens to one in
/// an account of its own could have it deliver messages there, into the bucket.
fn agent_subjects(agent: Option<&Name>) -> Vec<SharedSubject> {
    let name = agent.map_or("*", Name::as_str);
    let keys = match agent {
        None => vec!["*.*".to_owned()],
        Some(agent) => Shard::all().map(|it| format!("{agent}.{it}")).collect(),
    };
    let mut all: Vec<SharedSubject> = keys
        .iter()
        .map(|key| SharedSubject::Asks(Bucket::Priors.key_subject(key)))
        .collect();
    all.push(SharedSubject::Asks(Bucket::Status.key_subject(name)));
    all.push(SharedSubject::Hears(notify_subject("*")));
    for stream in BUCKETS.map(Bucket::stream_name) {
        all.push(SharedSubject::Asks(format!("$JS.API.STREAM.INFO.{stream}")));
        all.push(SharedSubject::Asks(format!(
            "$JS.API.CONSUMER.CREATE.{stream}"
        )));
        all.push(SharedSubject::Reads(format!(
            "$JS.API.CONSUMER.MSG.NEXT.{stream}.*"
        )));
    }
    all
}

fn export_row(shared: &SharedSubject) -> String {
    let row = match shared {
        SharedSubject::Asks(subject) => format!("service: \"{subject}\""),
        SharedSubject::Reads(subject) => format!("service: \"{subject}\", response_type: stream"),
        SharedSubject::Hears(subject) => format!("stream: \"{subject}\""),
    };
    format!("            {{ {row} }}\n")
}

fn import_row(shared: &SharedSubject) -> String {
    let row = match shared {
        SharedSubject::Asks(subject) | SharedSubject::Reads(subject) => {
            // Under its own name it would be a request to the agent's account.
            let to = match subject.strip_prefix("$JS.API.") {
                Some(rest) => format!(", to: \"{IMPORTED}.{rest}\""),
                None => String::new(),
            };
            format!("service: {{ account: FLEET, subject: \"{subject}\" }}{to}")
        }
        SharedSubject::Hears(subject) => {
            format!("stream: {{ account: FLEET, subject: \"{subject}\" }}")
        }
    };
    format!("            {{ {row} }}\n")
}
