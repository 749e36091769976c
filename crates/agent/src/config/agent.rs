//! Sections of the agent itself: files, events, ports, fleet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thalweg_fleet::keys::PublicKey;
use thalweg_fleet::{Identity, Name, NameError, Settings};

use super::reader::{DAY, PATH_MAX, Section};

/// Longest path of a Unix socket (`sun_path` less the closing NUL).
const SOCKET_PATH_MAX: usize = 107;
const MINUTE: Duration = Duration::from_secs(60);
/// The least share of host-hours that may be asked for.
const SHARE_MIN: f64 = 0.0001;

/// `[paths]`: files and directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `pin`: directory on a bpf file system for programs, links and maps.
    pub pin: PathBuf,
    /// `state`: directory of the store.
    pub state: PathBuf,
    /// `socket`: Unix socket of the local API.
    pub socket: PathBuf,
    /// `socket_group`: group whose members may read the agent's state; `None`: root only.
    pub socket_group: Option<String>,
}

/// `[events]`: decisions and ends of connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Events {
    /// `ring`: buffer between kernel and agent, bytes; a power of two.
    pub ring_bytes: u32,
    /// `retention`: age at which events are removed from the store.
    pub retention: Duration,
    /// `retention_max`: number beyond which the oldest events are removed from the store.
    pub retention_max: u64,
    /// `share`: share of the host-hours whose events are stored; `None`: as many as there is room
    /// for.
    pub share: Option<f64>,
    /// `log`: which events are also logged.
    pub log: EventLog,
    /// `log_rate`: most log lines of events in a second.
    pub log_rate: u32,
}

/// Events that go to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLog {
    /// Changes of a connection, and refusals.
    Changes,
    /// All events.
    All,
    /// No events.
    None,
}

/// `[snapshot]`: saving host records to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// `interval`: time between two snapshots.
    pub interval: Duration,
}

/// `[http]`: the API over TCP, to read only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// `listen`: loopback address and port; `None`: the API is on its socket alone.
    pub listen: Option<SocketAddr>,
    /// `token_file`: file whose content every request must bring; `None`: metrics alone are served.
    pub token_file: Option<PathBuf>,
}

/// `[fleet]`: agents that share reports of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    /// `servers`: NATS servers; any of them will do.
    pub servers: Vec<String>,
    /// `name`: the agent's name in the fleet; `None` = `auto`, the host's.
    pub name: Option<Name>,
    /// `nkey`: file with the agent's seed.
    pub nkey: Option<PathBuf>,
    /// `credentials`: credentials file, instead of a seed.
    pub credentials: Option<PathBuf>,
    /// `ca`: certificates of the servers' CA; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// `share`: reports its own measurements to other agents.
    pub share: bool,
    /// `take`: uses the reports of other agents.
    pub take: bool,
    /// `labels`: labels whose policies the agent obeys, beside `all`; the first that has a policy
    /// wins.
    pub labels: Vec<Name>,
    /// `keys`: public keys whose policies the agent obeys.
    pub keys: Vec<PublicKey>,
}

impl FleetMember {
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let servers = section.servers((
            "servers",
            "NATS servers, as `tls://nats.example.com:4222`; any of them will do. None: no fleet.",
        ));
        let member = Self {
            name: section.name_or_auto(("name", "The agent's name in the fleet, by which the server permits it to write. Of a host's name, dots become `_` and `_` becomes `__`.")),
            nkey: section.path_or_none(("nkey", "File with the agent's seed (`agent.nk`), mode 0600."), PATH_MAX),
            credentials: section.path_or_none(("credentials", "Credentials file, instead of a seed."), PATH_MAX),
            ca: section.path_or_none(("ca", "Certificates of the servers' CA; else the system's."), PATH_MAX),
            share: section.boolean(("share", "Reports what it measures itself."), true),
            take: section.boolean(("take", "Others' reports decide where the agent knows nothing itself."), true),
            labels: section.labels(("labels", "Labels whose [policies](../guide/fleet.md#6-policies) the agent obeys, beside `all`. The first one that has a policy wins.")),
            keys: section.keys(("keys", "Public keys (`thalweg fleet key`) whose policies the agent obeys. Without any it obeys none.")),
            servers,
        };
        (!member.servers.is_empty()).then_some(member)
    }

    /// Settings of the fleet's client.
    ///
    /// # Errors
    /// The host's name cannot be an agent's.
    pub fn settings(&self) -> Result<Settings, NameError> {
        let agent = match &self.name {
            Some(name) => name.clone(),
            None => Name::of_host(&host_name())?,
        };
        let identity = match (&self.nkey, &self.credentials) {
            (Some(file), _) => Identity::Nkey(file.clone()),
            (None, Some(file)) => Identity::Credentials(file.clone()),
            (None, None) => Identity::None,
        };
        let mut settings = Settings::new(self.servers.clone(), agent, identity);
        settings.ca.clone_from(&self.ca);
        settings.take = self.take;
        settings.labels = self.labels.iter().cloned().chain([Name::all()]).collect();
        settings.keys.clone_from(&self.keys);
        Ok(settings)
    }
}

fn host_name() -> String {
    let names = nix::sys::utsname::uname();
    names.map_or_else(
        |_| String::new(),
        |it| it.nodename().to_string_lossy().into_owned(),
    )
}

impl Paths {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            pin: section.path(
                (
                    "pin",
                    "Directory on a bpf file system for pinned programs, links and maps.",
                ),
                PATH_MAX,
                "/sys/fs/bpf/thalweg",
            ),
            state: section.path(
                ("state", "Directory of the store, `thalweg.db`."),
                PATH_MAX,
                "/var/lib/thalweg",
            ),
            socket: section.path(
                ("socket", "Unix socket of the local API."),
                SOCKET_PATH_MAX,
                "/run/thalweg/agent.sock",
            ),
            socket_group: section.group_or_none((
                "socket_group",
                "Group whose members may [read](security.md).",
            )),
        }
    }
}

impl Events {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let logs = [
            ("changes", EventLog::Changes),
            ("all", EventLog::All),
            ("none", EventLog::None),
        ];
        let ring = section.size(("ring", "Buffer between kernel and agent. Events beyond it are counted and lost; learning goes on."), 64 << 10..=1 << 30, true, 4 << 20);
        Self {
            // The range is far below 2^32.
            ring_bytes: u32::try_from(ring.value).unwrap_or(u32::MAX),
            retention: section.duration(("retention", "Events older than this leave the store."), MINUTE..=3650 * DAY, None, 7 * DAY),
            retention_max: section.integer(("retention_max", "Most events in the store, some 0.3 KB each."), 1000..=100_000_000, 1_000_000),
            share: section.number_or_auto(("share", "Share of the host-hours whose events are [stored](gain.md#sampling). `auto`: as many as fit."), SHARE_MIN..=1.0),
            log: section.word(("log", "Events to log: changes of connections and refusals, every one, or none."), &logs, EventLog::Changes),
            log_rate: section.integer(("log_rate", "Most lines of events a second; the log counts the rest."), 1..=100_000, 10),
        }
    }
}

impl Snapshot {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let interval = section.duration(("interval", "Time between two copies of host records to the store. A reboot loses what was learned since."),
            Duration::from_secs(1)..=DAY,
            None,
            Duration::from_secs(30),
        );
        Self { interval }
    }
}

impl Http {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            listen: section.loopback_or_none(("listen", "Port of the API. If another process has it, `status` says so, and the agent tries again.")),
            token_file: section.path_or_none(("token_file", "File with the token of each request, readable by its owner alone. Without one, only `/metrics` is answered."), PATH_MAX),
        }
    }
}
