//! The configuration: one TOML file, parsed into types; absent keys have their defaults.
//!
//! `docs/reference/configuration.md` explains each key. A fault has file, line and column, the
//! value found and the expected one. All faults are reported, and then nothing of the file takes
//! effect.

use std::path::{Path, PathBuf};

use thalweg_learner::{Mode, Params};
use thalweg_units::file::MAX_FILE_BYTES;

use crate::feature::{Place, Sections};
use crate::features;
use crate::trusted;

pub mod agent;
mod error;
pub mod learner;
pub(crate) mod reader;
#[cfg(test)]
mod tests;

use agent::{Events, Http, Paths, Snapshot};
pub use error::ConfigError;
use learner::{Advise, Arms, ControlGroup, Hosts, Learning, Networks};
pub use reader::KeyDescription;
use reader::{Section, Source};
use thalweg_units::Faults;
use thalweg_units::reader::decode_text;
use thalweg_units::schema::Form;

/// Default configuration file.
pub const DEFAULT_FILE: &str = "/etc/thalweg/thalweg.toml";

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
    /// Sections of features.
    pub features: Sections,
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
    /// File that it was read from; `None`: every key has its default.
    pub file: Option<PathBuf>,
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
        let mode = root.word(("mode", "The algorithm; `classic` is the [published tuner](learner.md#mode-classic), for comparison."), &modes, Params::default().mode);
        let dry_run = root.boolean(
            ("dry_run", "Decides, logs and scores, but sets nothing."),
            false,
        );
        let mut config = Self {
            mode,
            dry_run,
            cgroup: root.path_or_auto(("cgroup", "cgroup v2 directory whose connections are reached, descendants included. `auto`: the whole machine.")),
            paths: root.section("paths", Paths::read),
            arms: root.section("arms", Arms::read),
            hosts: root.section("hosts", Hosts::read),
            networks: root.section("networks", Networks::read),
            features: features::read_sections(root, Place::Learner),
            learning: root.section("learning", Learning::read),
            control: root.section("control", ControlGroup::read),
            advise: root.section("advise", |section| Advise::read(section, mode, dry_run)),
            events: root.section("events", Events::read),
            snapshot: root.section("snapshot", Snapshot::read),
            http: root.section("http", Http::read),
            file: None,
        };
        let Sections(others) = features::read_sections(root, Place::Agent);
        config.features.0.extend(others);
        config
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
