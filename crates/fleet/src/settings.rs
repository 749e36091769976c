//! What a client needs to know.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;

use crate::keys::{KeyError, PublicKey, UserKey, read_secret};
use crate::names::Name;
use crate::text::one_line;

/// How an agent says who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// No credentials: the server lets everybody in.
    None,
    /// A file with an NKey's seed.
    Nkey(PathBuf),
    /// A credentials file, of a JWT and a seed.
    Credentials(PathBuf),
}

/// Times of a client. Tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two messages of one shard, at least.
    pub priors: Duration,
    /// Between two statuses, at least.
    pub status: Duration,
    /// Between two looks at the buckets.
    pub look: Duration,
    /// A server that does not answer for so long is left.
    pub timeout: Duration,
    /// Longest pause between attempts to reach a server.
    pub unreachable: Duration,
    /// Longest pause after a server has refused.
    pub refused: Duration,
    /// Between two PINGs.
    pub ping: Duration,
    /// While servers come and go, word of a policy may be lost on its way between two of them. So an
    /// agent that had to connect anew asks for policies more often for so long.
    pub uneasy: Duration,
    /// An agent whose name and key another one has is alone again after so long without a status of the
    /// other one.
    pub namesake: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            priors: seconds(600),
            status: seconds(30),
            look: seconds(600),
            timeout: seconds(5),
            // With a request that is not answered, an agent is back within ten seconds of its servers.
            unreachable: seconds(4),
            refused: seconds(60),
            ping: seconds(600),
            uneasy: seconds(180),
            // Statuses come every ten minutes: two would have come.
            namesake: seconds(1500),
        }
    }
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers, as `tls://nats.example.com:4222`; any of them will do.
    pub servers: Vec<String>,
    /// Name of this agent.
    pub agent: Name,
    /// Labels whose policies the agent obeys.
    pub labels: Vec<Name>,
    /// Identity towards the servers.
    pub identity: Identity,
    /// Certificates of the CA; without it, those of the system.
    pub ca: Option<PathBuf>,
    /// Keys whose policies the agent obeys.
    pub keys: Vec<PublicKey>,
    /// Number of the last policy that the agent had, by label.
    pub policies: BTreeMap<Name, u64>,
    /// Whether the agent wants the priors of others.
    pub take: bool,
    /// Intervals and timeouts.
    pub pace: Timing,
}

/// Settings that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There is no server.
    #[error("servers: found none, expected at least one, such as tls://nats.example.com:4222")]
    NoServer,
    /// A server's address is none.
    #[error("servers: found {0:?}, expected tls://HOST:PORT, or nats://HOST:PORT on this machine")]
    Server(String),
    /// A server elsewhere without TLS.
    #[error("servers: found {0:?}, expected tls://: without TLS anybody on the way could write")]
    Plain(String),
    /// A key or credentials file.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The CA's file.
    #[error("ca: {why}")]
    Ca {
        /// The file, and the error.
        why: String,
        /// Whether the error may pass.
        may_pass: bool,
    },
}

impl SettingsError {
    /// Whether the error may pass by itself, as one of a disk.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Key(KeyError::Unread(_)) | Self::Ca { may_pass: true, .. }
        )
    }
}

/// A secret as the client has it.
#[derive(Clone)]
pub(crate) enum Secret {
    None,
    Seed(String),
    Credentials(String),
}

/// Settings that were checked, with files read: an agent may not be allowed to read them later.
pub(crate) struct Checked {
    pub settings: Settings,
    pub servers: Vec<ServerAddr>,
    pub secret: Secret,
}

impl Settings {
    /// Settings for this server with the defaults of everything else.
    pub fn new(servers: Vec<String>, agent: Name, identity: Identity) -> Self {
        Self {
            servers,
            agent,
            labels: vec![Name::all()],
            identity,
            ca: None,
            keys: Vec::new(),
            policies: BTreeMap::new(),
            take: true,
            pace: Timing::default(),
        }
    }

    /// Checks them, and reads the secret.
    ///
    /// # Errors
    /// An address, or a file.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.read_checked().map(drop)
    }

    pub(crate) fn read_checked(&self) -> Result<Checked, SettingsError> {
        if self.servers.is_empty() {
            return Err(SettingsError::NoServer);
        }
        let servers = self.servers.iter().map(|text| parse_server(text));
        let servers = servers.collect::<Result<_, _>>()?;
        let secret = match &self.identity {
            Identity::None => Secret::None,
            Identity::Nkey(file) => Secret::Seed(UserKey::read_file(file)?.seed_text()),
            Identity::Credentials(file) => {
                let text = read_secret(file)?;
                let parsed = async_nats::ConnectOptions::with_credentials(&text);
                parsed.map_err(|_| {
                    let file = file.display();
                    KeyError::Wrong(format!(
                        "{file}: found no JWT and seed, expected a credentials file"
                    ))
                })?;
                Secret::Credentials(text)
            }
        };
        if let Some(file) = &self.ca {
            let text = thalweg_units::file::read_text(file).map_err(|error| SettingsError::Ca {
                may_pass: error.may_pass(),
                why: error.to_string(),
            })?;
            if !text.contains("-----BEGIN CERTIFICATE-----") {
                return Err(SettingsError::Ca {
                    why: format!("{}: found no certificate, expected PEM", file.display()),
                    may_pass: false,
                });
            }
        }
        Ok(Checked {
            settings: self.clone(),
            servers,
            secret,
        })
    }
}

/// Checks the address of a server.
///
/// # Errors
/// The address is none, or without TLS although the server is elsewhere.
pub fn check_server(text: &str) -> Result<(), SettingsError> {
    parse_server(text).map(drop)
}

fn parse_server(text: &str) -> Result<ServerAddr, SettingsError> {
    let wrong = || SettingsError::Server(one_line(text, 100));
    let address: ServerAddr = text.parse().map_err(|_| wrong())?;
    let secret = address.has_user_pass() || address.username().is_some();
    if !text.contains("://") || secret || address.host().is_empty() {
        return Err(wrong());
    }
    match address.scheme() {
        "tls" => Ok(address),
        "nats" if is_here(address.host()) => Ok(address),
        "nats" => Err(SettingsError::Plain(one_line(text, 100))),
        _ => Err(wrong()),
    }
}

fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
