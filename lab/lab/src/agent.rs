//! The agent under test: a child process with a configuration of its own, asked over its local API.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thalweg_process::Process;
use thalweg_process::http;
use thalweg_process::interrupt::OnSignal;
use thalweg_units::random::mix;

use crate::error::Error;
use crate::mode::Mode;
use crate::scenario::Learning;

/// The agent's socket in its directory.
const SOCKET: &str = "agent.sock";
/// Time within which an agent must answer.
const START: Duration = Duration::from_secs(20);
/// Time that an agent gets to end after each way of asking.
const END: Duration = Duration::from_secs(5);
/// The networks of the laboratory's hosts. They are private, so dctcp may be chosen there.
const HOSTS: [&str; 2] = ["10.0.0.0/8", "fd00::/8"];
/// Share of the host-hours in the control group of mode `gain`: two halves tell most.
const SHARE: f64 = 0.5;
/// Pause between two requests to an agent that is not ready.
const RETRY: Duration = Duration::from_millis(20);

/// How an agent is to learn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Learner<'a> {
    /// A mode with an agent.
    pub(crate) mode: &'a Mode,
    /// What it may do.
    pub(crate) learning: &'a Learning,
    /// Seed of the control group.
    pub(crate) seed: u64,
}

/// A running agent; dropped, it is detached and ended.
#[derive(Debug)]
pub(crate) struct Agent {
    mode: Mode,
    process: Process,
    socket: PathBuf,
    log: PathBuf,
    pin: PathBuf,
    detached: bool,
}

/// An agent's record of one remote host. Fields that the agent does not report are absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LearnedHost {
    /// The remote host's address or prefix.
    #[serde(default)]
    pub address: String,
    /// One entry per congestion control.
    #[serde(default)]
    pub arms: Vec<LearnedArm>,
}

/// An agent's estimate of one congestion control towards one host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LearnedArm {
    /// Name of the congestion control.
    #[serde(default)]
    pub arm: String,
    /// Learned cost; lower is better.
    pub metric: Option<f64>,
    /// Connections scored.
    pub count: Option<u64>,
    /// Times that it was chosen as the best, not to explore.
    pub greedy: Option<u64>,
    /// Smallest round-trip time, µs.
    pub min_rtt_us: Option<f64>,
    /// Largest delivery rate, in the agent's own unit.
    pub max_rate: Option<f64>,
}

/// The places that an agent uses.
#[derive(Debug)]
pub(crate) struct AgentPaths<'a> {
    /// A directory for configuration, socket and state.
    pub(crate) directory: &'a Path,
    /// A BPF file system.
    pub(crate) bpf: &'a Path,
    /// The cgroup to attach to.
    pub(crate) cgroup: &'a Path,
}

impl Agent {
    /// Starts an agent and waits until it answers.
    pub(crate) fn start_agent(
        binary: &Path,
        learner: Learner<'_>,
        places: &AgentPaths<'_>,
    ) -> Result<Self, Error> {
        let mode = learner.mode;
        let label = mode.file_label();
        let directory = places.directory.join(&label);
        fs::create_dir(&directory).map_err(Error::io("cannot create", &directory))?;
        let socket = directory.join(SOCKET);
        let pin = places.bpf.join(&label);
        let configuration = write_configuration(Some(learner), places.cgroup, &pin, &directory)?;
        let log = directory.join("agent.log");
        let output = File::create(&log).map_err(Error::io("cannot create", &log))?;
        let errors = output
            .try_clone()
            .map_err(Error::io("cannot duplicate", &log))?;
        let process = Process::spawn(
            Command::new(binary)
                .arg("--socket")
                .arg(&socket)
                .args(["run", "--config"])
                .arg(&configuration)
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(errors),
        )?;
        let mut agent = Self {
            mode: mode.clone(),
            process,
            socket,
            log,
            pin,
            detached: false,
        };
        agent.await_ready()?;
        Ok(agent)
    }

    fn await_ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START;
        loop {
            let answer = http::request_once(&self.socket, "GET", "/v1/status");
            if matches!(&answer, Ok(response) if response.status == 200) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let last = match answer {
                    Ok(response) => format!("its last answer was status {}", response.status),
                    Err(error) => error.to_string(),
                };
                return Err(
                    self.agent_error(&format!("not ready after {} s: {last}", START.as_secs()))
                );
            }
            self.check_alive_until(Instant::now() + RETRY)?;
        }
    }

    /// Fails if the agent has ended or ends before the given time.
    fn check_alive_until(&mut self, time: Instant) -> Result<(), Error> {
        match self.process.wait_until(time, OnSignal::Fail)? {
            None => Ok(()),
            Some(status) => Err(self.agent_error(&format!("it ended ({status})"))),
        }
    }

    /// Fails if the agent has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), Error> {
        self.check_alive_until(Instant::now())
    }

    /// The unparsed answer of GET /v1/hosts.
    pub(crate) fn fetch_hosts(&self) -> Result<String, Error> {
        self.http_get("/v1/hosts")
    }

    /// The unparsed answer of GET /v1/gain.
    pub(crate) fn fetch_gain(&self) -> Result<String, Error> {
        self.http_get("/v1/gain")
    }

    fn http_get(&self, path: &str) -> Result<String, Error> {
        let answer = http::request_once(&self.socket, "GET", path)
            .map_err(|error| self.agent_error(&format!("GET {path}: {error}")))?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(self.agent_error(&format!("GET {path}: status {status}"))),
        }
    }

    /// Tells the agent to remove its programs and end, and waits for that.
    pub(crate) fn detach_and_end(mut self) -> Result<(), Error> {
        self.ask_to_go();
        match self.process.exit_status()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                Err(self.agent_error(&format!("asked to detach, it ended with {status}")))
            }
            None => Err(self.agent_error("asked to detach, it had to be killed")),
        }
    }

    fn ask_to_go(&mut self) {
        if std::mem::replace(&mut self.detached, true) {
            return;
        }
        let asked = http::request_once(&self.socket, "POST", "/v1/detach");
        let patience = if asked.is_ok() { END } else { Duration::ZERO };
        let deadline = Instant::now() + patience;
        if matches!(
            self.process.wait_until(deadline, OnSignal::KeepWaiting),
            Ok(None)
        ) {
            self.process.terminate(END);
        }
        // Pins that the agent left behind.
        match fs::remove_dir_all(&self.pin) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", self.pin.display());
            }
            _ => {}
        }
    }

    /// The file with the agent's standard output and error.
    pub(crate) fn log_file(&self) -> &Path {
        &self.log
    }

    fn agent_error(&self, why: &str) -> Error {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        let said = if tail.is_empty() {
            "; it wrote nothing".to_owned()
        } else {
            let lines: Vec<&str> = tail.into_iter().rev().collect();
            format!("; it wrote:\n{}", lines.join("\n"))
        };
        Error::Agent {
            mode: self.mode.to_string(),
            why: format!("{why}{said}"),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.ask_to_go();
    }
}

/// Writes a configuration whose state and socket are in the directory, and returns its path.
/// Commands that need no agent have no learner.
pub(crate) fn write_configuration(
    learner: Option<Learner<'_>>,
    cgroup: &Path,
    pin: &Path,
    directory: &Path,
) -> Result<PathBuf, Error> {
    let file = directory.join("agent.toml");
    let (state, socket) = (directory.join("state"), directory.join(SOCKET));
    let text = configuration_text(learner, cgroup, pin, &state, &socket);
    fs::write(&file, text).map_err(Error::io("cannot write", &file))?;
    Ok(file)
}

fn configuration_text(
    learner: Option<Learner<'_>>,
    cgroup: &Path,
    pin: &Path,
    state: &Path,
    socket: &Path,
) -> String {
    let quoted = |path: &Path| toml::Value::String(path.display().to_string()).to_string();
    let (mut mode, mut arms, mut window) = (String::new(), String::new(), String::new());
    let mut control = "share = 0.0".to_owned();
    if let Some(learner) = learner {
        let name = match learner.mode {
            Mode::Gain | Mode::Null => &Mode::Thalweg,
            other => other,
        };
        mode = format!("mode = \"{name}\"\n");
        let learning = learner.learning;
        if !learning.arms.is_empty() {
            arms = format!("allow = {0:?}\nload = {0:?}\n", learning.arms);
        }
        if !learning.windows.is_empty() && *learner.mode != Mode::Classic {
            window = format!(
                "\n[initial_window]\nenabled = true\nsegments = {:?}\n",
                learning.windows
            );
        }
        if learning.clamp && *learner.mode != Mode::Classic {
            window += &format!("\n[clamp]\nprefixes = {HOSTS:?}\n");
        }
        if *learner.mode != Mode::Classic {
            let sections = learning.features.keys();
            window.extend(sections.map(|it| format!("\n[{it}]\nenabled = true\n")));
        }
        if learner.mode.has_control_group() {
            // A salt has 63 bits.
            let salt = mix(learner.seed) >> 1;
            // What is compared must stay the same to the end.
            control = format!("share = {SHARE:?}\nsalt = {salt}\nrevert = false");
        }
    }
    format!(
        "{mode}cgroup = {}\n\n[paths]\npin = {}\nstate = {}\nsocket = {}\n\n\
         [arms]\n{arms}ecn_prefixes = {HOSTS:?}\n\n[control]\n{control}\npermanent = 0.0\n{window}",
        quoted(cgroup),
        quoted(pin),
        quoted(state),
        quoted(socket),
    )
}

/// The hosts in the answer of GET /v1/hosts. Records that do not parse are left out; the report
/// keeps the answer itself.
pub(crate) fn parse_hosts(body: &str) -> Vec<LearnedHost> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        hosts: Vec<serde_json::Value>,
    }
    let Ok(answer) = serde_json::from_str::<Answer>(body) else {
        return Vec::new();
    };
    answer
        .hosts
        .into_iter()
        .filter_map(|host| serde_json::from_value(host).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_toml_whatever_the_paths() {
        let learner = Learner {
            mode: &Mode::Classic,
            learning: &Learning::default(),
            seed: 1,
        };
        let text = configuration_text(
            Some(learner),
            Path::new("/a \"b\"\\c"),
            Path::new("/p"),
            Path::new("/s"),
            Path::new("/k"),
        );
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["mode"].as_str(), Some("classic"));
        assert_eq!(table["cgroup"].as_str(), Some("/a \"b\"\\c"));
        assert_eq!(table["paths"]["socket"].as_str(), Some("/k"));
        assert_eq!(table["arms"]["ecn_prefixes"][1].as_str(), Some("fd00::/8"));
        assert_eq!(table["control"]["share"].as_float(), Some(0.0));
    }

    #[test]
    fn mode_gain_has_a_control_group() {
        let learning = Learning {
            arms: ["cubic", "vegas"].map(str::to_owned).into(),
            windows: vec![10, 32],
            clamp: true,
            features: [("timers", true), ("buffers", true)].into(),
        };
        let learner = Learner {
            mode: &Mode::Gain,
            learning: &learning,
            seed: u64::MAX,
        };
        let place = Path::new("/p");
        let text = configuration_text(Some(learner), place, place, place, place);
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["mode"].as_str(), Some("thalweg"));
        assert_eq!(table["arms"]["allow"][1].as_str(), Some("vegas"));
        let windows = &table["initial_window"];
        assert_eq!(windows["enabled"].as_bool(), Some(true));
        assert_eq!(windows["segments"][1].as_integer(), Some(32));
        assert_eq!(table["clamp"]["prefixes"][1].as_str(), Some("fd00::/8"));
        assert_eq!(table["timers"]["enabled"].as_bool(), Some(true));
        assert_eq!(table["buffers"]["enabled"].as_bool(), Some(true));
        assert_eq!(table["control"]["share"].as_float(), Some(0.5));
        assert!(table["control"]["salt"].as_integer().unwrap() >= 0);
    }

    #[test]
    fn hosts_may_lack_fields_and_have_more() {
        let body = r#"{"more":1,"hosts":[
            {"address":"10.0.0.2","arms":[{"arm":"bbr","metric":1.5,"count":3,"new":true},{"arm":"reno"}]},
            {"address":7},
            {"prefix":"x"}]}"#;
        let hosts = parse_hosts(body);
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[0].arms[0].metric, Some(1.5));
        assert_eq!(
            hosts[0].arms[1],
            LearnedArm {
                arm: "reno".into(),
                ..Default::default()
            }
        );
        assert_eq!(parse_hosts("nonsense"), []);
    }
}
