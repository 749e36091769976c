//! Sections of the agent itself: files, events, ports.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
        let ring = section.size(("ring", "Buffer between kernel and agent. Events beyond it are counted and lost; learning goes on."), 64 << 10..=1 << 30, true, 1 << 20);
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
