//! The configuration: one TOML file, parsed into types; absent keys have their defaults.
//!
//! `docs/reference/configuration.md` explains each key. A fault has file, line and column, the
//! value found and the expected one. All faults are reported, and then nothing of the file takes
//! effect.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_fleet::keys::PublicKey;
use thalweg_fleet::{Identity, Name, NameError, Settings};
use thalweg_learner::{Control, Mode, ONE_Q16, Params};
use thalweg_policy::Prefix;
use thalweg_units::file::MAX_FILE_BYTES;
use thalweg_units::grammar::size_text;

use crate::trusted;

mod error;
mod reader;
#[cfg(test)]
mod tests;

pub use error::ConfigError;
pub use reader::KeyDescription;
use reader::{Section, Source};
use thalweg_units::Faults;
use thalweg_units::reader::decode_text;
use thalweg_units::schema::Form;

/// Default configuration file.
pub const DEFAULT_FILE: &str = "/etc/thalweg/thalweg.toml";

/// Longest path of a Unix socket (`sun_path` less the closing NUL).
const SOCKET_PATH_MAX: usize = 107;
/// Longest path of a file.
const PATH_MAX: usize = 4095;
/// Most arms of one agent.
const ARMS_MAX: usize = thalweg_learner::MAX_ARMS;
/// Largest number of prefixes for arms that need ECN.
const ECN_PREFIXES_MAX: usize = thalweg_bpf_types::raw::THALWEG_ECN_PREFIXES as usize;
/// Largest number of prefixes of learned clamps.
const CLAMP_PREFIXES_MAX: usize = thalweg_bpf_types::raw::THALWEG_CLAMP_PREFIXES as usize;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
/// The least share of host-hours that may be asked for.
const SHARE_MIN: f64 = 0.0001;

/// Everything an operator can set.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `mode`: the learning algorithm.
    pub mode: Mode,
    /// `dry_run`: decide, log and score, but set nothing.
    pub dry_run: bool,
    /// `cgroup`: cgroup v2 directory whose connections are covered; `None` = `auto`, the root.
    pub cgroup: Option<PathBuf>,
    /// `[paths]`.
    pub paths: Paths,
    /// `[arms]`.
    pub arms: Arms,
    /// `[hosts]`.
    pub hosts: Hosts,
    /// `[networks]`.
    pub networks: Networks,
    /// `[initial_window]`.
    pub initial_window: InitialWindow,
    /// `[clamp]`.
    pub clamp: Clamp,
    /// `[learning]`.
    pub learning: Learning,
    /// `[control]`.
    pub control: ControlGroup,
    /// `[advise]`.
    pub advise: Advise,
    /// `[events]`.
    pub events: Events,
    /// `[snapshot]`.
    pub snapshot: Snapshot,
    /// `[http]`.
    pub http: Http,
    /// `[fleet]`; `None`: the agent is in none.
    pub fleet: Option<FleetMember>,
    /// File that it was read from; `None`: every key has its default.
    pub file: Option<PathBuf>,
}

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

/// `[arms]`: the congestion controls to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arms {
    /// `allow`: names; `None` = `auto`: what the kernel offered at the agent's start, what is named
    /// elsewhere here, and what `thalweg cc load` has loaded.
    pub allow: Option<Vec<String>>,
    /// `deny`: names never chosen, whatever `allow` says.
    pub deny: Vec<String>,
    /// `load`: kernel modules `tcp_NAME` to load at start, if the kernel has them.
    pub load: Vec<String>,
    /// `needs_ecn`: names chosen only within `ecn_prefixes`, for connections that negotiated
    /// ECN.
    pub needs_ecn: Vec<String>,
    /// `ecn_prefixes`: remote prefixes, of datacenters, where `needs_ecn` arms may be chosen.
    pub ecn_prefixes: Vec<Prefix>,
}

impl Arms {
    /// Whether a congestion control that the kernel offers may be chosen.
    pub fn permits(&self, name: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|other| other == name);
        self.allow.as_deref().is_none_or(named) && !named(&self.deny)
    }

    /// Whether the configuration names a congestion control as one to be used.
    pub fn names(&self, name: &str) -> bool {
        let allowed = self.allow.iter().flatten();
        let mut named = allowed.chain(&self.load).chain(&self.needs_ecn);
        named.any(|other| other == name)
    }
}

/// `[hosts]`: the records of remote hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// `max`: largest number of records; beyond it those measured once go first ([`crate::room`]).
    pub max: u32,
    /// `ipv4_prefix`: bits of an IPv4 address that distinguish hosts.
    pub ipv4_prefix: u32,
    /// `ipv6_prefix`: bits of an IPv6 address that distinguish hosts.
    pub ipv6_prefix: u32,
    /// `nat64`: prefixes of NAT64 beside the well-known one; `None` = `auto`, those of the resolver.
    pub nat64: Option<Vec<Prefix>>,
    /// `user_namespaces`: learn also for network namespaces that ordinary users created.
    pub user_namespaces: bool,
}

/// `[networks]`: what is known of a network decides about its new hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    /// `enabled`: networks learn and decide.
    pub enabled: bool,
    /// `ipv4_prefix`: bits of an IPv4 address that the hosts of a network share.
    pub ipv4_prefix: u32,
    /// `ipv6_prefix`: bits of an IPv6 address that the hosts of a network share.
    pub ipv6_prefix: u32,
    /// `table`: file of prefixes and the names of their networks.
    pub table: Option<PathBuf>,
}

/// `[initial_window]`: connections get an initial window by what is known of their networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialWindow {
    /// `enabled`: it is learned and set.
    pub enabled: bool,
    /// `segments`: mask of the windows to choose from (`window::arm`), the kernel's own among them.
    pub mask: u16,
}

/// `[clamp]`: inside datacenters the congestion window has a clamp by what its path carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clamp {
    /// `prefixes`: remote prefixes where it has; none: nowhere.
    pub prefixes: Vec<Prefix>,
}

/// `[learning]`: parameters of the mode `thalweg`; `loss_shift` applies to `classic` too.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// `warm_up`: measurements of a host before the first exploration.
    pub warm_up: u32,
    /// `gap_scale`: how fast exploration falls with cost gap × evidence.
    pub gap_scale: u32,
    /// `memory`: length of an arm's memory, measurements of full weight.
    pub memory: f64,
    /// `staleness_shift`: a measurement removes 1/2^this of the other arms' evidence.
    pub staleness_shift: u32,
    /// `half_life`: half-life of evidence; zero = never halved.
    pub half_life: Duration,
    /// `latency_weight`: bits of cost for a doubled RTT.
    pub latency_weight: f64,
    /// `latency_guard`: added to every RTT, so that small queues cost nothing.
    pub latency_guard: Duration,
    /// `score_min`: transfers of fewer bytes are not scored.
    pub score_min_bytes: u64,
    /// `score_full`: transfers of at least this many bytes have full weight.
    pub score_full_bytes: u64,
    /// `loss_shift`: a path is lossy above segments / 2^this retransmissions.
    pub loss_shift: u32,
    /// `loss_min_segments`: segments before a connection's arm may be changed.
    pub loss_min_segments: u32,
    /// `rescue`: congestion control that is tried first on lossy paths.
    pub rescue: Option<String>,
    /// `stretch`: interval of looks at long connections; zero = none.
    pub stretch: Duration,
}

/// `[control]`: connections that keep the system default, to compare with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlGroup {
    /// `share`: share of host-hours.
    pub share: f64,
    /// `permanent`: share of hosts that always belong to it.
    pub permanent: f64,
    /// `salt`: the draw differs with it; `None` = `auto`, drawn once and kept in the store.
    pub salt: Option<u64>,
    /// `cluster_ipv4`: bits of an IPv4 address that are drawn together.
    pub cluster_ipv4: u32,
    /// `cluster_ipv6`: bits of an IPv6 address that are drawn together.
    pub cluster_ipv6: u32,
    /// `revert`: what is worse than the group is taken back.
    pub revert: bool,
}

impl ControlGroup {
    /// The group as the programs draw it. Classic, as published, has none. Under advice it is all
    /// that has no trial.
    pub fn group(&self, mode: Mode, advise: &Advise, salt: u64) -> Control {
        let q16 = |share: f64| match mode {
            Mode::Classic => 0,
            Mode::Thalweg => (share * f64::from(ONE_Q16)).round() as u32,
        };
        Control {
            share_q16: q16(match advise.only {
                true => 1.0 - advise.trials,
                false => self.share,
            }),
            permanent_q16: q16(self.permanent),
            salt,
        }
    }
}

/// `[advise]`: measure what runs, and say what would be best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advise {
    /// `only`: nothing is set but trials.
    pub only: bool,
    /// `trials`: share of host-hours that get one of the arms, drawn at random.
    pub trials: f64,
}

impl Advise {
    /// What of the other settings contradicts it: what is found, and what is expected instead.
    ///
    /// # Errors
    /// They cannot both be in force.
    pub fn check(&self, mode: Mode, dry_run: bool) -> Result<(), (&'static str, &'static str)> {
        match () {
            () if !self.only => Ok(()),
            () if mode == Mode::Classic => Err((
                "advice in mode \"classic\"",
                "mode \"thalweg\": the published tuner measures nothing but its own choices",
            )),
            () if dry_run && self.trials > 0.0 => Err((
                "trials in a dry run",
                "dry_run = false, or trials = 0.0: a dry run sets nothing",
            )),
            () => Ok(()),
        }
    }

    fn read(section: &mut Section<'_>, mode: Mode, dry_run: bool) -> Self {
        let only = section.flag("only", false);
        let advise = Self {
            only: only.value,
            trials: section.number("trials", 0.0..=1.0, 0.0),
        };
        if let (Some(at), Err((found, expected))) = (only.at, advise.check(mode, dry_run)) {
            section.conflict("only", at, found.to_owned(), expected.to_owned());
        }
        advise
    }
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

/// Which events go to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLog {
    /// Changes of a connection, and refusals.
    Changes,
    /// All events.
    All,
    /// None.
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

/// `[fleet]`: agents that tell each other of networks.
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
    /// `share`: tells others what it measures.
    pub share: bool,
    /// `take`: uses what others tell.
    pub take: bool,
    /// `labels`: whose policies the agent obeys, those named first come first; beside `all`.
    pub labels: Vec<Name>,
    /// `keys`: whose policies it obeys.
    pub keys: Vec<PublicKey>,
}

impl FleetMember {
    fn read(section: &mut Section<'_>) -> Option<Self> {
        let servers = section.servers("servers");
        let member = Self {
            name: section.name_or_auto("name"),
            nkey: section.path_or_none("nkey", PATH_MAX),
            credentials: section.path_or_none("credentials", PATH_MAX),
            ca: section.path_or_none("ca", PATH_MAX),
            share: section.boolean("share", true),
            take: section.boolean("take", true),
            labels: section.labels("labels"),
            keys: section.keys("keys"),
            servers,
        };
        (!member.servers.is_empty()).then_some(member)
    }

    /// What the client needs.
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

impl Config {
    /// Reads a file that must exist, and that root or this process's user alone may change.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let bytes = trusted::read(file, MAX_FILE_BYTES)?;
        let mut config = Self::parse_bytes(&bytes, file)?;
        config.file = Some(file.to_owned());
        Ok(config)
    }

    /// Reads the named file, which must exist, or else [`DEFAULT_FILE`]. If that does not exist,
    /// every key has its default.
    pub fn load_or_default(named: Option<&Path>) -> Result<Self, ConfigError> {
        match (named, Self::load(named.unwrap_or(Path::new(DEFAULT_FILE)))) {
            (None, Err(ConfigError::Read(error))) if error.is_absent() => Ok(Self::default()),
            (_, loaded) => loaded,
        }
    }

    /// The readable part of the file that [`Config::load_or_default`] reads, whatever is wrong with
    /// the rest of it: a key that is faulty or absent has its default. For commands that need to
    /// find the agent, and nothing else.
    ///
    /// # Errors
    /// A named file cannot be read: nothing says where its agent is.
    pub fn load_readable(named: Option<&Path>) -> Result<Self, ConfigError> {
        let file = named.unwrap_or(Path::new(DEFAULT_FILE));
        let bytes = match (named, trusted::read(file, MAX_FILE_BYTES)) {
            (Some(_), bytes) => bytes?,
            (None, bytes) => bytes.unwrap_or_default(),
        };
        let text = String::from_utf8_lossy(&bytes);
        let read = Source::new(file, &text).read_readable(Self::read);
        Ok(read.unwrap_or_default())
    }

    /// Parses the bytes of a file; `file` is for messages only.
    pub fn parse_bytes(bytes: &[u8], file: &Path) -> Result<Self, ConfigError> {
        Ok(Self::parse(decode_text(bytes, file)?, file)?)
    }

    /// Parses a text; `file` is for messages only.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Faults> {
        Ok(Self::describe(text, file)?.0)
    }

    /// As [`Config::parse`], with a description of every key in the order of the documentation:
    /// accepted values, value, and origin.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn describe(text: &str, file: &Path) -> Result<(Self, Vec<KeyDescription>), Faults> {
        let source = Source::new(file, text);
        source.read(Self::read)
    }

    /// Each key's accepted values and default, in the order of the documentation.
    pub fn keys() -> Vec<KeyDescription> {
        let described = Self::describe("", Path::new(""));
        described.map(|(_, keys)| keys).unwrap_or_default()
    }

    /// The form of configurations.
    pub fn schema() -> Form {
        Source::schema(Self::read)
    }

    /// The parameters of the learner. `rescue_arm` stays `None`: the slot of `learning.rescue` is
    /// known only when the kernel's arms have been discovered.
    pub fn params(&self) -> Params {
        let learning = &self.learning;
        let q16 = |value: f64| (value * f64::from(thalweg_learner::ONE_Q16)).round() as u32;
        let micros = learning.latency_guard.as_micros();
        Params {
            mode: self.mode,
            warm_up: learning.warm_up,
            gap_scale: learning.gap_scale,
            weight_max_q16: q16(learning.memory),
            idle_shift: learning.staleness_shift,
            half_life_ns: u64::try_from(learning.half_life.as_nanos()).unwrap_or(u64::MAX),
            latency_weight_q16: q16(learning.latency_weight),
            latency_guard_us: u32::try_from(micros).unwrap_or(u32::MAX),
            score_min_bytes: learning.score_min_bytes,
            score_full_bytes: learning.score_full_bytes,
            loss_shift: learning.loss_shift,
            loss_min_segs: learning.loss_min_segments,
            rescue_arm: None,
            stretch_ns: u64::try_from(learning.stretch.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn read(root: &mut Section<'_>) -> Self {
        let modes = [Mode::Thalweg, Mode::Classic].map(|mode| (mode.name(), mode));
        let mode = root.word("mode", &modes, Params::default().mode);
        let dry_run = root.boolean("dry_run", false);
        Self {
            mode,
            dry_run,
            cgroup: root.path_or_auto("cgroup"),
            paths: root.section("paths", Paths::read),
            arms: root.section("arms", Arms::read),
            hosts: root.section("hosts", Hosts::read),
            networks: root.section("networks", Networks::read),
            initial_window: root.section("initial_window", InitialWindow::read),
            clamp: root.section("clamp", Clamp::read),
            learning: root.section("learning", Learning::read),
            control: root.section("control", ControlGroup::read),
            advise: root.section("advise", |section| Advise::read(section, mode, dry_run)),
            events: root.section("events", Events::read),
            snapshot: root.section("snapshot", Snapshot::read),
            http: root.section("http", Http::read),
            fleet: root.section("fleet", FleetMember::read),
            file: None,
        }
    }
}

impl Default for Config {
    /// The configuration of an empty file.
    fn default() -> Self {
        match Self::parse("", Path::new("")) {
            Ok(config) => config,
            Err(error) => unreachable!("an empty configuration is valid: {error}"),
        }
    }
}

impl Paths {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            pin: section.path("pin", PATH_MAX, "/sys/fs/bpf/thalweg"),
            state: section.path("state", PATH_MAX, "/var/lib/thalweg"),
            socket: section.path("socket", SOCKET_PATH_MAX, "/run/thalweg/agent.sock"),
            socket_group: section.group_or_none("socket_group"),
        }
    }
}

impl Arms {
    fn read(section: &mut Section<'_>) -> Self {
        let allow = section.arms_or_auto("allow", 1..=ARMS_MAX);
        let deny = section.arms("deny", 0..=64, &[]);
        let arms = Self {
            allow: allow.value,
            deny: deny.value,
            load: section
                .arms("load", 0..=64, &["bbr", "htcp", "dctcp"])
                .value,
            needs_ecn: section.arms("needs_ecn", 0..=64, &["dctcp"]).value,
            ecn_prefixes: section.prefixes("ecn_prefixes", ECN_PREFIXES_MAX),
        };
        if let (Some(names), Some(at)) = (&arms.allow, deny.at)
            && allow.is_sound
            && deny.is_sound
            && !names.iter().any(|name| arms.permits(name))
        {
            let found = "every name of arms.allow".to_owned();
            let expected = "at least one of them left".to_owned();
            section.conflict("deny", at, found, expected);
        }
        arms
    }
}

impl Hosts {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            max: section.integer("max", 64..=16_777_216, 65_536),
            ipv4_prefix: section.integer("ipv4_prefix", 8..=32, 32),
            ipv6_prefix: section.integer("ipv6_prefix", 16..=128, 64),
            nat64: section.nat64_or_auto("nat64"),
            user_namespaces: section.boolean("user_namespaces", false),
        }
    }
}

impl Networks {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            enabled: section.boolean("enabled", true),
            ipv4_prefix: section.integer("ipv4_prefix", 1..=32, 24),
            ipv6_prefix: section.integer("ipv6_prefix", 1..=128, 48),
            table: section.path_or_none("table", PATH_MAX),
        }
    }
}

impl Clamp {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            prefixes: section.prefixes("prefixes", CLAMP_PREFIXES_MAX),
        }
    }
}

impl InitialWindow {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            enabled: section.boolean("enabled", false),
            mask: section.windows("segments", &[10, 16, 24, 32]),
        }
    }
}

impl Learning {
    fn read(section: &mut Section<'_>) -> Self {
        let default = Params::default();
        let of_q16 = |value: u32| f64::from(value) / f64::from(thalweg_learner::ONE_Q16);
        let guard = Duration::from_micros(default.latency_guard_us.into());
        let half_life = Duration::from_nanos(default.half_life_ns);

        let warm_up = section.integer("warm_up", 0..=1000, default.warm_up);
        let gap_scale = section.integer("gap_scale", 1..=1 << 20, default.gap_scale);
        let memory = section.number("memory", 1.0..=64.0, of_q16(default.weight_max_q16));
        let staleness_shift = section.integer("staleness_shift", 1..=31, default.idle_shift);
        let half_life = section.duration(
            "half_life",
            Duration::from_secs(1)..=365 * DAY,
            Some("never"),
            half_life,
        );
        let latency_weight = section.number(
            "latency_weight",
            0.0..=4.0,
            of_q16(default.latency_weight_q16),
        );
        let latency_guard = section.duration(
            "latency_guard",
            Duration::from_micros(1)..=Duration::from_secs(10),
            Some("none"),
            guard,
        );
        let score_min = section.size("score_min", 0..=1 << 40, false, default.score_min_bytes);
        let score_full = section.size("score_full", 1..=1 << 40, false, default.score_full_bytes);
        if score_full.value < score_min.value && score_full.is_sound && score_min.is_sound {
            let min = size_text(score_min.value);
            let full = size_text(score_full.value);
            match score_full.at {
                Some(at) => {
                    let expected = format!("at least score_min, \"{min}\"");
                    section.conflict("score_full", at, format!("\"{full}\""), expected);
                }
                None => {
                    let at = score_min.at.unwrap_or(0);
                    let expected = format!("at most score_full, \"{full}\"");
                    section.conflict("score_min", at, format!("\"{min}\""), expected);
                }
            }
        }
        Self {
            warm_up,
            gap_scale,
            memory,
            staleness_shift,
            half_life,
            latency_weight,
            latency_guard,
            score_min_bytes: score_min.value,
            score_full_bytes: score_full.value,
            loss_shift: section.integer("loss_shift", 1..=16, default.loss_shift),
            loss_min_segments: section.integer(
                "loss_min_segments",
                1..=1_000_000,
                default.loss_min_segs,
            ),
            rescue: section.arm_or_none("rescue", Some("bbr")),
            stretch: section.duration(
                "stretch",
                Duration::from_secs(1)..=Duration::from_secs(3600),
                Some("never"),
                Duration::from_nanos(default.stretch_ns),
            ),
        }
    }
}

impl ControlGroup {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            share: section.number("share", 0.0..=0.5, 0.05),
            permanent: section.number("permanent", 0.0..=0.5, 0.01),
            salt: section.whole_or_auto("salt"),
            cluster_ipv4: section.integer("cluster_ipv4", 8..=32, 32),
            cluster_ipv6: section.integer("cluster_ipv6", 16..=128, 64),
            revert: section.boolean("revert", true),
        }
    }
}

impl Events {
    fn read(section: &mut Section<'_>) -> Self {
        let logs = [
            ("changes", EventLog::Changes),
            ("all", EventLog::All),
            ("none", EventLog::None),
        ];
        let ring = section.size("ring", 64 << 10..=1 << 30, true, 4 << 20);
        Self {
            // The range is far below 2^32.
            ring_bytes: u32::try_from(ring.value).unwrap_or(u32::MAX),
            retention: section.duration("retention", MINUTE..=3650 * DAY, None, 7 * DAY),
            retention_max: section.integer("retention_max", 1000..=100_000_000, 1_000_000),
            share: section.number_or_auto("share", SHARE_MIN..=1.0),
            log: section.word("log", &logs, EventLog::Changes),
            log_rate: section.integer("log_rate", 1..=100_000, 10),
        }
    }
}

impl Snapshot {
    fn read(section: &mut Section<'_>) -> Self {
        let interval = section.duration(
            "interval",
            Duration::from_secs(1)..=DAY,
            None,
            Duration::from_secs(30),
        );
        Self { interval }
    }
}

impl Http {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            listen: section.loopback_or_none("listen"),
            token_file: section.path_or_none("token_file", PATH_MAX),
        }
    }
}
