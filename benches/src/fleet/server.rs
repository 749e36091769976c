//! nats-server: found, started, killed.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use thalweg_process::{Process, interrupt};

/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(30);

/// nats-server: installed, or where scripts/setup.sh unpacks it, in the target directory of `binary`.
pub fn program(binary: &Path) -> Result<PathBuf> {
    let unpacked = binary.with_file_name("../nats-server/usr/sbin/nats-server");
    let mut places = [
        PathBuf::from("nats-server"),
        "/usr/sbin/nats-server".into(),
        unpacked,
    ]
    .into_iter();
    let works = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
    places
        .find(works)
        .context("no nats-server: scripts/setup.sh --fleet brings it")
}

/// A server of a configuration. Dropped, it is killed.
pub struct Server {
    program: PathBuf,
    configuration: PathBuf,
    log: PathBuf,
    /// The namespace in which it runs, of `ip netns`; none: this one.
    namespace: Option<String>,
    process: Option<Process>,
}

impl Server {
    /// A server that is not started yet.
    pub fn new(program: &Path, configuration: PathBuf, namespace: Option<String>) -> Self {
        Self {
            program: program.to_owned(),
            log: configuration.with_extension("log"),
            configuration,
            namespace,
            process: None,
        }
    }

    /// Starts it.
    pub fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = within(self.namespace.as_deref(), &self.program);
        command
            .arg("-c")
            .arg(&self.configuration)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    /// Kills it, as by kill -9.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Fails if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && let Some(status) = process.exit_status()?
        {
            bail!("nats-server ended ({status}): {}", self.said());
        }
        Ok(())
    }
}

/// A command in a namespace of `ip netns`. Unlike `ip netns exec` this leaves /sys as it is.
pub fn within(namespace: Option<&str>, program: &Path) -> Command {
    let Some(namespace) = namespace else {
        return Command::new(program);
    };
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{namespace}"))
        .arg("--")
        .arg(program);
    command
}

/// A port of loopback that nobody has.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits for something, until it is there, or a signal ends the wait.
pub fn wait_for<T>(what: &str, condition: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_within(PATIENCE, what, condition)
}

/// The same, at most so long.
pub fn wait_within<T>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        interrupt::check_interrupt()?;
        let began = Instant::now();
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("waited in vain for {what}");
        }
        // Looks take a fifth of a processor at most.
        std::thread::sleep(Duration::from_millis(20).max(4 * began.elapsed()));
    }
}

/// `[fleet]` of an agent that `thalweg fleet init` made in a directory.
pub fn keys(directory: &Path, agent: &str, servers: &[String]) -> String {
    let files = directory.join("agents").join(agent);
    format!(
        "[fleet]\nservers = {servers:?}\nname = {agent:?}\nnkey = {:?}\nca = {:?}\n",
        files.join("agent.nk"),
        files.join("ca.pem"),
    )
}
