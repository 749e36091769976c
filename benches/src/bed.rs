//! Two namespaces, workers in them, and an agent on their cgroup.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_lab::host::{Pair, PairOptions, Side};

use crate::fleet::server as fleet;

/// A path without loss or limit, with `cubic` as the default.
pub fn pair(label: &str) -> Result<Pair> {
    let missing = thalweg_lab::host::missing_requirements();
    if !missing.is_empty() {
        bail!("cannot measure here: {}", missing.join("; "));
    }
    Ok(Pair::new(&options(label))?)
}

/// Options of such a path.
pub fn options(label: &str) -> PairOptions {
    PairOptions {
        label: label.to_string(),
        congestion_control: Some("cubic".to_string()),
        ..Default::default()
    }
}

/// Moves `bytes` in one connection from client to server, with the default congestion control
/// if none is named.
pub fn transfer(pair: &Pair, bytes: usize, congestion_control: Option<&str>) -> Result<()> {
    let text = bytes.to_string();
    let mut server = Worker::start(pair, Side::Server, &["hold", "1", &text].map(String::from))?;
    server.line()?;
    let address = pair.first_address(Side::Server).to_string();
    let mut arguments = Vec::from(["open", &address, "1", &text].map(String::from));
    arguments.extend(congestion_control.map(String::from));
    let mut client = Worker::start(pair, Side::Client, &arguments)?;
    for _ in ["open", "send", "close"] {
        client.go_on()?;
        client.line()?;
    }
    server.line()?;
    Ok(())
}

/// A worker process in a namespace, with line-based input and output.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `thalweg-bench worker ARGUMENTS` on one side.
    pub fn start(pair: &Pair, side: Side, arguments: &[String]) -> Result<Self> {
        Self::start_in(pair, side, pair.cgroup_path(), arguments)
    }

    /// Starts it in the given cgroup: another pair's, if the agent should not see it.
    pub fn start_in(pair: &Pair, side: Side, cgroup: &Path, arguments: &[String]) -> Result<Self> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("the benchmark's path is not text")?;
        let mut command = pair.command_in(side, own)?;
        let join = fs::File::options()
            .write(true)
            .open(cgroup.join("cgroup.procs"))?;
        // Each end has a processor of its own, so that the scheduler adds no noise.
        let mut cpus = CpuSet::new();
        let processors = std::thread::available_parallelism()?.get();
        cpus.set(match side {
            Side::Client => 0,
            Side::Server => 1 % processors,
        })?;
        // SAFETY: a write to an open descriptor, and a system call: no allocation, no lock, between
        // fork and exec.
        unsafe {
            command.pre_exec(move || {
                (&join).write_all(b"0")?;
                Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
            });
        }
        let mut child = command
            .arg("worker")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    /// Its next line.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a worker ended early ({})", self.child.wait()?);
        }
        Ok(line.trim_end().to_string())
    }

    /// Sends it a line.
    pub fn go_on(&mut self) -> Result<()> {
        self.say("go")
    }

    /// Sends it these words as a line.
    pub fn say(&mut self, words: &str) -> Result<()> {
        writeln!(self.input, "{words}").context("a worker ended early")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent under measurement.
pub struct Agent {
    child: Child,
    namespace: Option<String>,
    binary: PathBuf,
    /// What its configuration always begins with.
    head: String,
    configuration: PathBuf,
    /// Its directory of pins.
    pub pin: PathBuf,
    /// The socket of its API.
    pub socket: PathBuf,
    directory: tempfile::TempDir,
}

impl Agent {
    /// Starts an agent on a pair's cgroup and waits until it answers.
    pub fn start(binary: &Path, pair: &Pair, label: &str) -> Result<Self> {
        Self::start_with(
            binary,
            pair,
            label,
            "[events]\nlog = \"none\"\n[snapshot]\ninterval = \"1s\"\n",
        )
    }

    /// The same with these keys in its configuration, after `[paths]`.
    pub fn start_with(binary: &Path, pair: &Pair, label: &str, keys: &str) -> Result<Self> {
        Self::start_within(binary, pair, label, keys, None)
    }

    /// The same, while the agent itself is in a namespace of `ip netns`.
    pub fn start_within(
        binary: &Path,
        pair: &Pair,
        label: &str,
        keys: &str,
        namespace: Option<&str>,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("agent.sock");
        let pin = PathBuf::from(format!(
            "/sys/fs/bpf/thalweg-bench-{}-{label}",
            std::process::id()
        ));
        let head = format!(
            "cgroup = {:?}\n[paths]\npin = {pin:?}\nstate = {:?}\nsocket = {socket:?}\n\
             [control]\nshare = 0.0\npermanent = 0.0\n",
            pair.cgroup_path(),
            directory.path().join("state"),
        );
        let configuration = directory.path().join("agent.toml");
        fs::write(&configuration, format!("{head}{keys}"))?;
        let child = spawn(
            fleet::within(namespace, binary),
            &configuration,
            &socket,
            &directory.path().join("log"),
        )?;
        Ok(Self {
            child,
            namespace: namespace.map(str::to_owned),
            binary: binary.to_path_buf(),
            head,
            configuration,
            pin,
            socket,
            directory,
        })
    }

    /// Directory of its store.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Writes these keys to its configuration, which it reads at its next start or reload.
    pub fn configure(&self, keys: &str) -> Result<()> {
        Ok(fs::write(
            &self.configuration,
            format!("{}{keys}", self.head),
        )?)
    }

    /// Ends it with a signal and starts another.
    pub fn restart(&mut self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal)?;
        self.child.wait()?;
        let log = self.directory.path().join("log");
        let command = fleet::within(self.namespace.as_deref(), &self.binary);
        self.child = spawn(command, &self.configuration, &self.socket, &log)?;
        Ok(())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs `thalweg ARGUMENTS` against it.
    pub fn command(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new(&self.binary)
            .arg("--config")
            .arg(&self.configuration)
            .args(arguments)
            .output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("thalweg {}: {text}", arguments.join(" "));
        }
        Ok(())
    }

    /// The output of `thalweg --json status`.
    pub fn status(&self) -> Result<Value> {
        self.answer("status")
    }

    /// The output of `thalweg --json COMMAND`.
    pub fn answer(&self, command: &str) -> Result<Value> {
        self.answers(&[command])
    }

    /// The output of `thalweg --json ARGUMENTS`.
    pub fn answers(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(&self.binary)
            .arg("--config")
            .arg(&self.configuration)
            .arg("--json")
            .args(arguments)
            .output()?;
        let command = arguments.join(" ");
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("thalweg {command}: {text}");
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("reading {command}"))
    }

    /// A number in the output of `status`, by JSON pointer.
    pub fn figure(&self, pointer: &str) -> Result<u64> {
        let status = self.status()?;
        status
            .pointer(pointer)
            .and_then(Value::as_u64)
            .with_context(|| format!("no {pointer}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let detach = Command::new(&self.binary)
            .arg("--config")
            .arg(&self.configuration)
            .arg("detach")
            .stdout(Stdio::null())
            .status();
        if !detach.is_ok_and(|status| status.success()) {
            eprintln!("could not detach {}", self.pin.display());
        }
        // After a detach it ends by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the agent of a configuration and waits until it answers.
fn spawn(mut command: Command, configuration: &Path, socket: &Path, log: &Path) -> Result<Child> {
    let mut child = command
        .arg("--config")
        .arg(configuration)
        .arg("run")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(log)?)
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    // Linux 6.1's verifier takes most of a minute in an emulator on a busy machine.
    let deadline = Instant::now() + Duration::from_secs(180);
    while UnixStream::connect(socket).is_err() {
        if child.try_wait()?.is_some() || Instant::now() > deadline {
            bail!("the agent did not start: {}", fs::read_to_string(log)?);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}
