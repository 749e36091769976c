//! Two namespaces, a cgroup, the real agent on it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::Value;
use thalweg_control::system;
use thalweg_lab::host::{Pair, PairOptions, Side};
use thalweg_learner::{Control, HostKey};

use super::commands::has_thalweg;
use super::traffic::LOAD;
use super::{
    CONNECTIONS, Load, PATIENCE, SINK, Traffic, end_of, thalweg, wait_for, wait_within, was_killed,
};

/// Namespaces, cgroup, directories and an agent.
pub struct Bed {
    /// Client and server, in namespaces of their own.
    pub pair: Pair,
    /// Configuration, state, socket and logs of the agent, and files of the test.
    pub directory: tempfile::TempDir,
    /// Directory of what the agent pins.
    pub pin: PathBuf,
    agent: Option<Child>,
}

impl Bed {
    /// A bed with a path from `options` and an agent with `settings` added to its paths.
    pub fn new(options: &PairOptions, settings: &str) -> Self {
        let pair = Pair::new(options).expect("a pair of namespaces");
        let directory = tempfile::tempdir().expect("a directory");
        // The agent mounts a bpffs here if there is none yet.
        static BEDS: AtomicU32 = AtomicU32::new(0);
        let pin = PathBuf::from(format!(
            "/sys/fs/bpf/thalweg-test-{}-{}-{}",
            std::process::id(),
            BEDS.fetch_add(1, Ordering::Relaxed),
            options.label
        ));
        let bed = Self {
            pair,
            directory,
            pin,
            agent: None,
        };
        bed.configure(settings);
        bed
    }

    /// A bed on a clean path with its agent running.
    pub fn running(label: &str, settings: &str) -> Self {
        let mut bed = Self::new(&plain(label), settings);
        bed.start();
        bed
    }

    /// Writes the configuration: root keys of `settings` first, its sections after the paths.
    pub fn configure(&self, settings: &str) {
        let (root, sections) = match settings.find('[') {
            Some(at) => settings.split_at(at),
            None => (settings, ""),
        };
        // Whoever wants a control group asks for it: it is drawn by chance.
        let control = match sections.contains("[control]") {
            true => "",
            false => "[control]\nshare = 0.0\npermanent = 0.0\n",
        };
        let text = format!(
            "cgroup = {:?}\n{root}\n[paths]\npin = {:?}\nstate = {:?}\nsocket = {:?}\n{control}{sections}\n",
            self.pair.cgroup_path(),
            self.pin,
            self.state(),
            self.socket(),
        );
        fs::write(self.configuration(), text).expect("writing the configuration");
    }

    /// File of the configuration.
    pub fn configuration(&self) -> PathBuf {
        self.directory.path().join("agent.toml")
    }

    /// Directory of the store.
    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// The agent's API.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("agent.log")
    }

    /// The agents' log so far.
    pub fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Command that runs the agent.
    pub fn run_command(&self) -> Command {
        let mut command = Command::new(thalweg());
        command
            .arg("--config")
            .arg(self.configuration())
            .arg("run")
            .stdin(Stdio::null());
        command
    }

    /// The last line of an agent that must refuse to run.
    pub fn refused(&self) -> String {
        self.refuses(self.run_command())
    }

    /// The last line of an agent that is started by a command, and must refuse to run.
    pub fn refuses(&self, mut command: Command) -> String {
        let path = self.directory.path().join("refused.log");
        let log = fs::File::create(&path).expect("log");
        let mut child = command
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("the agent starts");
        let status = end_of(&mut child);
        let text = fs::read_to_string(&path).expect("log");
        let status = status.unwrap_or_else(|| panic!("it runs: {text}"));
        assert!(!status.success(), "it ended well: {text}");
        text
    }

    /// Starts the agent and waits until it answers.
    pub fn start(&mut self) {
        self.start_by(self.run_command());
    }

    /// Starts the agent by a command and waits until it answers.
    pub fn start_by(&mut self, mut command: Command) {
        assert!(self.agent.is_none(), "the agent runs already");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("log");
        let mut child = command
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("the agent starts");
        // Restoring a million hosts takes time; an agent that ends is noticed at once.
        wait_within(10 * PATIENCE, "the agent's socket", || {
            if let Some(status) = child.try_wait().expect("waiting for the agent") {
                panic!("the agent ended ({status}): {}", self.logged());
            }
            UnixStream::connect(self.socket()).ok()
        });
        self.agent = Some(child);
    }

    /// Starts an agent that ends itself at a point, as by kill -9.
    pub fn dies_at(&self, point: &str) {
        let mut command = self.run_command();
        command.env("FAILPOINTS", point);
        let mut child = self.spawn(command);
        assert!(was_killed(&mut child, point), "{point}");
    }

    /// Starts a process that will be killed.
    pub fn spawn(&self, mut command: Command) -> Child {
        let log = self.directory.path().join("killed.log");
        let log = fs::File::create(log).expect("log");
        command
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("the process starts")
    }

    /// Process number of the running agent.
    pub fn pid(&self) -> u32 {
        self.agent.as_ref().expect("the agent runs").id()
    }

    /// Sends the agent a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid() as i32);
        nix::sys::signal::kill(pid, signal).expect("signalling the agent");
    }

    /// Ends the agent with a signal and waits for its end.
    pub fn end(&mut self, signal: nix::sys::signal::Signal) -> std::process::ExitStatus {
        self.signal(signal);
        let mut child = self.agent.take().expect("the agent runs");
        child.wait().expect("waiting for the agent")
    }

    /// Waits for the end of an agent that was told to end.
    pub fn reap(&mut self) {
        let mut child = self.agent.take().expect("the agent runs");
        assert!(child.wait().expect("waiting for the agent").success());
    }

    /// Gives up the running agent: the test waits for it.
    pub fn leave(&mut self) -> Child {
        self.agent.take().expect("the agent runs")
    }

    /// Waits for the end of such an agent.
    pub fn collect(&self, mut agent: Child) {
        let status = agent.wait().expect("waiting for the agent");
        assert!(status.success(), "{status}: {}", self.logged());
    }

    /// Number of the program of the pinned link; `None` without a link.
    pub fn running_program(&self) -> Option<u32> {
        let link = libbpf_rs::Link::open(self.pin.join("link_sockops")).ok()?;
        Some(link.info().ok()?.prog_id)
    }

    /// Runs the command line against this agent.
    pub fn thalweg(&self, arguments: &[&str]) -> Output {
        Command::new(thalweg())
            .arg("--config")
            .arg(self.configuration())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("running thalweg")
    }

    /// The `--json` output; fails the test if the command fails.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.thalweg(&[&["--json"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "thalweg {arguments:?}: {}\nlog: {}",
            String::from_utf8_lossy(&output.stderr),
            self.logged()
        );
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// A counter of `status`.
    pub fn counter(&self, name: &str) -> u64 {
        self.json(&["status"])["counters"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name}"))
    }

    /// Waits until a counter has reached a value; returns the counter.
    pub fn counter_reaches(&self, name: &str, least: u64) -> u64 {
        wait_for(&format!("{name} >= {least}"), || {
            Some(self.counter(name)).filter(|value| *value >= least)
        })
    }

    /// Connections that were scored, or would have been but for their receiver: one that waits for a
    /// processor limits them now and then.
    pub fn measured(&self) -> u64 {
        let status = self.json(&["status"]);
        let counter = |name: &str| status["counters"][name].as_u64().expect("a counter");
        counter("scored") + counter("skipped_app_limited")
    }

    /// Waits until so many are measured.
    pub fn measured_reaches(&self, least: u64) {
        wait_for(&format!("{least} measured connections"), || {
            (self.measured() >= least).then_some(())
        });
    }

    /// Puts a policy in force.
    pub fn apply(&self, policy: &str) -> Value {
        let file = self.directory.path().join("policy.toml");
        fs::write(&file, policy).expect("writing the policy");
        self.json(&["policy", "apply", file.to_str().expect("plain path")])
    }

    /// A rule of the policy in force.
    pub fn rule(&self, name: &str) -> Value {
        let report = self.json(&["policy", "show"]);
        let rules = report["rules"].as_array().expect("rules").clone();
        let found = rules.into_iter().find(|rule| rule["name"] == name);
        found.unwrap_or_else(|| panic!("no rule {name} in {report}"))
    }

    /// The records of all hosts.
    pub fn hosts(&self) -> Vec<Value> {
        let hosts = self.json(&["hosts"]);
        hosts["hosts"].as_array().expect("a list").clone()
    }

    /// The record of a host, if there is one.
    pub fn host(&self, address: &str) -> Option<Value> {
        let mut hosts = self.hosts().into_iter();
        hosts.find(|host| host["address"] == address)
    }

    /// Checks that the programs are in force, complete, and see new connections; `what` is the
    /// preceding step.
    pub fn sees_traffic(&self, what: &str) {
        assert!(self.running_program().is_some(), "{what}: no program");
        assert!(!self.pin.join("next").exists(), "{what}: not settled");
        let before = self.counter("established");
        self.counter_reaches("established", before + 10);
    }

    /// All events in the store, oldest first, once their number has reached `least`.
    pub fn events(&self, least: usize) -> Vec<Value> {
        wait_for(&format!("{least} events"), || {
            let mut events = self
                .json(&["events", "--limit", "10000"])
                .as_array()
                .expect("a list of events")
                .clone();
            events.sort_by_key(|event| event["id"].as_i64());
            Some(events).filter(|events| events.len() >= least)
        })
    }

    /// The server's first address.
    pub fn server_address(&self) -> String {
        self.pair.first_address(Side::Server).to_string()
    }

    /// Keys of `[control]`: a control group of half of the hosts, for good, in which the server, as its
    /// client sees it, is or is not.
    pub fn control_half(&self, held: bool) -> String {
        let client = Path::new("/run/netns").join(self.pair.namespace_name(Side::Client));
        let netns = system::netns_cookie_of(&client).expect("the client's namespace");
        let address = self.pair.first_address(Side::Server);
        let key = HostKey::new(netns, address, 32, 64).expect("prefixes");
        let group = |salt| Control {
            share_q16: 0,
            permanent_q16: 1 << 15,
            salt,
        };
        let salt = (0..).find(|salt| group(*salt).contains_cluster(key.tag(), 0) == held);
        let salt = salt.expect("one of them does");
        format!("share = 0.0\npermanent = 0.5\nsalt = {salt}\n")
    }

    /// Runs `ip` in a side's namespace.
    pub fn ip(&self, side: Side, arguments: &str) {
        self.ip_output(side, arguments);
    }

    fn ip_output(&self, side: Side, arguments: &str) -> String {
        let output = Command::new("ip")
            .args(["-n", self.pair.namespace_name(side)])
            .args(arguments.split_whitespace())
            .output()
            .expect("running ip");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// A counter of a side's /proc/net/netstat.
    pub fn netstat(&self, side: Side, counter: &str) -> u64 {
        let mut command = self.pair.command_in(side, "cat").expect("a command");
        let output = command.arg("/proc/net/netstat").output();
        let text = String::from_utf8(output.expect("cat").stdout).expect("text");
        // Lines of names, each followed by one of numbers.
        let lines: Vec<&str> = text.lines().collect();
        let found = lines.chunks(2).find_map(|pair| {
            let mut fields = pair[0].split(' ').zip(pair[1].split(' '));
            fields.find(|(name, _)| *name == counter)
        });
        let (_, number) = found.unwrap_or_else(|| panic!("no {counter} in {text}"));
        number.parse().expect("a number")
    }

    /// The device by which a side reaches an address.
    pub fn device(&self, side: Side, address: &str) -> String {
        let text = self.ip_output(side, &format!("route get {address}"));
        let mut words = text.split_whitespace();
        words.find(|word| *word == "dev");
        words.next().expect("a route with a device").to_owned()
    }

    /// The hardware address of a device.
    pub fn mac(&self, side: Side, device: &str) -> String {
        let text = self.ip_output(side, &format!("-j link show dev {device}"));
        let shown: Value = serde_json::from_str(&text).expect("JSON");
        shown[0]["address"].as_str().expect("an address").to_owned()
    }

    /// A Python program on one side, in the cgroup.
    pub fn python(&self, side: Side, program: &str, arguments: &[&str]) -> Traffic {
        let mut command = self.pair.command_in(side, "python3").expect("a command");
        command.args(["-u", "-c", program]).args(arguments);
        Traffic::spawn(command)
    }

    /// Makes connections to a sink, one by one, and sends `bytes` on each.
    pub fn connect(&self, address: &str, number: u32, bytes: u32) {
        let (number, bytes) = (number.to_string(), bytes.to_string());
        self.python(
            Side::Client,
            CONNECTIONS,
            &[address, "5001", &number, &bytes],
        )
        .finish();
    }

    /// Transfers to a sink until one is measured. On a busy machine the ends hold some back, which are
    /// not measured where the host is known to be faster.
    pub fn measure(&self, address: &str) {
        let scored = self.counter("scored");
        wait_for("a measurement", || {
            let closed = self.counter("closed");
            self.connect(address, 1, 1_000_000);
            // Both ends are in the agent's cgroup.
            self.counter_reaches("closed", closed + 2);
            (self.counter("scored") > scored).then_some(())
        });
    }

    /// Connections to a sink from a number of threads, each at a rate per second.
    pub fn load(&self, address: &str, threads: u32, rate: u32) -> Load {
        // Ports in TIME_WAIT are reused.
        let client = self.pair.namespace_name(Side::Client);
        let ports = Command::new("ip")
            .args(["netns", "exec", client, "sysctl", "-qw"])
            .args([
                "net.ipv4.ip_local_port_range=1024 65000",
                "net.ipv4.tcp_tw_reuse=1",
            ])
            .status();
        assert!(ports.expect("sysctl").success());
        let (threads, rate) = (threads.to_string(), rate.to_string());
        let mut traffic = self.python(Side::Client, LOAD, &[address, "5001", &threads, &rate]);
        assert_eq!(traffic.line(), "up");
        Load {
            traffic,
            began: Instant::now(),
        }
    }

    /// A server that accepts and drains until the bed is dropped; returns once it listens.
    pub fn sink(&self, address: &str) -> Traffic {
        let mut server = self.python(Side::Server, SINK, &[address, "5001"]);
        assert_eq!(server.line(), "listening");
        server
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A failure here would show by the leftovers.
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // The kernel unregisters congestion controls that are no longer pinned; draining would only
        // wait.
        for directory in ["cc", "sockops"] {
            let _ = fs::remove_dir_all(self.pin.join(directory));
        }
        let is_panicking = std::thread::panicking();
        // A test that failed because the command is missing has applied nothing, and a second panic
        // would end the other tests.
        if !is_panicking || has_thalweg() {
            let _ = self.thalweg(&["policy", "remove"]);
            let _ = self.thalweg(&["detach"]);
        }
        if is_panicking {
            eprintln!("agent's log:\n{}", self.logged());
        }
    }
}

/// Options of a path without loss or limit, with `cubic` as the default on both sides.
pub fn plain(label: &str) -> PairOptions {
    PairOptions {
        label: label.to_string(),
        congestion_control: Some("cubic".to_string()),
        ..Default::default()
    }
}
