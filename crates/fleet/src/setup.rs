//! A server's set-up: configuration, certificates, and a key for each user with its permissions.
//!
//! ```text
//! DIR/ca.pem, ca.key                 the CA, made for these servers
//! DIR/operator.nk                    seed of the operator, who may make buckets and write policies
//! DIR/operator.creds                 goes before it, where servers get accounts as JWTs; not made here
//! DIR/policy.nk, policy.pub          the key that signs policies
//! DIR/users/NAME.pub                 public keys of agents, from which users.conf is written
//! DIR/agents/NAME/agent.nk, ca.pem   what an agent needs
//! DIR/servers/NAME/…                 what a server needs: nats-server.conf, users.conf, server.pem, …
//! ```
//!
//! A second call keeps keys and certificates and adds what is new.

mod certificates;
mod configuration;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use thalweg_units::file::{self, Draft};

use crate::keys::{KeyError, SigningKey, UserKey};
use crate::names::Name;

pub use certificates::{Authority, Validity};
pub use configuration::{
    AgentUser, Cluster, ServerConfig, server_configuration, users_configuration,
};

/// The operator's name, which no agent may have.
pub const OPERATOR: &str = "operator";

/// Why a server cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file.
    #[error("{}: {why}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// A key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A certificate.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// Something that was asked for.
    #[error("{0}")]
    Wrong(String),
}

impl SetupError {
    /// For `map_err`: the file.
    fn of_file(file: &Path) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |why| Self::File { file, why }
    }
}

/// Fleet that is to be set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Host names or addresses of the servers; several are a cluster.
    pub servers: Vec<String>,
    /// Names of agents.
    pub agents: Vec<Name>,
    /// Address at which servers listen.
    pub listen: IpAddr,
    /// Port for agents.
    pub port: u16,
    /// Port for the other servers of a cluster.
    pub cluster_port: u16,
    /// Where a server's files will be on its machine.
    pub at: PathBuf,
    /// Where a server keeps the buckets.
    pub store: PathBuf,
    /// Most that it keeps, bytes.
    pub store_bytes: u64,
    /// Makes certificates of servers anew.
    pub renew: bool,
}

/// Files and keys that were set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// All agents, those of earlier calls included.
    pub agents: Vec<Name>,
    /// All servers, those of earlier calls included.
    pub servers: Vec<String>,
    /// The public key of policies.
    pub policy_key: String,
}

/// Sets up servers and agents below a directory, which is made with mode 0700 if it is not there. Of
/// several calls at a time each waits for the one before.
///
/// # Errors
/// A name, or a file. What was written until then stays; the next call goes on from there.
pub fn set_up_fleet(directory: &Path, plan: &Plan) -> Result<Report, SetupError> {
    check_plan(plan)?;
    create_directory(directory)?;
    let lock = fs::File::open(directory);
    let lock = lock.and_then(|opened| opened.lock().map(|()| opened));
    let _lock = lock.map_err(SetupError::of_file(directory))?;
    for part in ["users", "agents", "servers"] {
        create_directory(&directory.join(part))?;
    }
    let authority = Authority::read_or_create(directory)?;
    let operator = UserKey::read_or_create(&directory.join("operator.nk"))?;
    let signing = SigningKey::read_or_create(&directory.join("policy.nk"))?;
    let policy_key = signing.public_key().to_string();
    write_file(
        &directory.join("policy.pub"),
        &format!("{policy_key}\n"),
        0o644,
    )?;
    for agent in &plan.agents {
        add_agent(directory, agent, &authority)?;
    }
    let agents = known_agents(&directory.join("users"))?;
    let mut servers: Vec<String> = Vec::new();
    for name in directory_names(&directory.join("servers"))?
        .iter()
        .chain(&plan.servers)
    {
        if !servers.contains(name) {
            servers.push(name.clone());
        }
    }
    let list = users_configuration(&operator.public_key(), &agents);
    for server in &servers {
        let place = directory.join("servers").join(server);
        create_directory(&place)?;
        let certificate = place.join("server.pem");
        if plan.renew || !certificate.exists() {
            let (pem, key) = authority.server_certificate(server, Validity::default())?;
            write_file(&place.join("server.key"), &key, 0o600)?;
            write_file(&certificate, &pem, 0o644)?;
        }
        write_file(&place.join("ca.pem"), authority.certificate_pem(), 0o644)?;
        write_file(&place.join("users.conf"), &list, 0o644)?;
        let conf = place.join("nats-server.conf");
        // Without a server in the call, only users and certificates change.
        if !plan.servers.is_empty() {
            let others = (servers.len() > 1).then(|| Cluster {
                port: plan.cluster_port,
                routes: servers
                    .iter()
                    .map(|host| (host.clone(), plan.cluster_port))
                    .collect(),
            });
            let text = server_configuration(&ServerConfig {
                name: server,
                listen: &match plan.listen {
                    IpAddr::V4(address) => address.to_string(),
                    IpAddr::V6(address) => format!("[{address}]"),
                },
                port: plan.port,
                at: &plan.at,
                store: &plan.store,
                store_bytes: plan.store_bytes,
                cluster: others,
            });
            write_file(&conf, &text, 0o644)?;
        }
    }
    Ok(Report {
        agents: agents.into_iter().map(|agent| agent.name).collect(),
        servers,
        policy_key,
    })
}

fn check_plan(plan: &Plan) -> Result<(), SetupError> {
    for server in &plan.servers {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
        if server.is_empty()
            || server.len() > 253
            || !server.bytes().all(good)
            || server.starts_with(['.', '-'])
        {
            let shown = crate::text::one_line(server, 80);
            let text = format!("server: found {shown:?}, expected a host name or an address");
            return Err(SetupError::Wrong(text));
        }
    }
    for place in [&plan.at, &plan.store] {
        let text = place.to_str().unwrap_or("");
        if !place.is_absolute() || text.contains(['"', '\\', '\n', '$']) {
            let text = format!("found {place:?}, expected an absolute path of plain characters");
            return Err(SetupError::Wrong(text));
        }
    }
    if plan.agents.iter().any(|agent| agent.as_str() == OPERATOR) {
        let text = format!("agent: found {OPERATOR:?}, which is the operator's name");
        return Err(SetupError::Wrong(text));
    }
    Ok(())
}

/// Makes an agent's key, unless it has one: its seed may have been moved to the agent. Without a
/// public key the seed is one that was revoked, and must not come back.
fn add_agent(directory: &Path, agent: &Name, authority: &Authority) -> Result<(), SetupError> {
    let public = directory.join(format!("users/{agent}.pub"));
    let place = directory.join(format!("agents/{agent}"));
    if public.exists() {
        return Ok(());
    }
    create_directory(&place)?;
    let seed = place.join("agent.nk");
    match fs::remove_file(&seed) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        removed => removed.map_err(SetupError::of_file(&seed))?,
    }
    let key = UserKey::generate();
    key.write_new(&seed)?;
    write_file(&place.join("ca.pem"), authority.certificate_pem(), 0o644)?;
    write_file(&public, &format!("{}\n", key.public_key()), 0o644)
}

/// The agents whose public keys are there, in order.
fn known_agents(users: &Path) -> Result<Vec<AgentUser>, SetupError> {
    let mut agents = Vec::new();
    for file in directory_names(users)? {
        let path = users.join(&file);
        let wrong = |why: String| SetupError::Wrong(format!("{}: {why}", path.display()));
        let name = file
            .strip_suffix(".pub")
            .ok_or_else(|| wrong("expected NAME.pub".to_owned()))?;
        let name = Name::new(name).map_err(|why| wrong(why.to_string()))?;
        let text = file::read_text(&path).map_err(|why| wrong(why.to_string()))?;
        let key = text.trim();
        let user = nkeys::KeyPair::from_public_key(key).ok();
        if !user.is_some_and(|it| it.key_pair_type() == nkeys::KeyPairType::User) {
            return Err(wrong(
                "found no public key of a user (U and 55 characters)".to_owned(),
            ));
        }
        agents.push(AgentUser {
            name,
            key: key.to_owned(),
        });
    }
    Ok(agents)
}

/// Names in a directory, in order.
fn directory_names(directory: &Path) -> Result<Vec<String>, SetupError> {
    let entries = fs::read_dir(directory).and_then(|all| all.collect::<io::Result<Vec<_>>>());
    let entries = entries.map_err(SetupError::of_file(directory))?.into_iter();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

fn create_directory(directory: &Path) -> Result<(), SetupError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(SetupError::of_file(directory))
}

fn write_file(file: &Path, text: &str, mode: u32) -> Result<(), SetupError> {
    let written = Draft::new(file, mode).and_then(|draft| draft.replace(text.as_bytes()));
    written.map_err(SetupError::of_file(file))
}
