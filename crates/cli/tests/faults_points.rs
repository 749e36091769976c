//! The agent killed at named points and at random moments: nothing that was learned is lost, no
//! connection fails, and the next start needs no hand. `make faults` runs the long forms too.
//!
//! The points are in test builds alone (`crates/agent/src/faults.rs`).

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::{Bed, PATIENCE, THALWEG, Traffic, privileged};
use thalweg_lab::host::Side;

/// Makes connections until its input ends, from as many threads as asked for, each so many a
/// second; says how many there were, and fails where one of them does.
/// Arguments: address, port, threads, connections a second of each.
const LOAD: &str = r#"
import socket, sys, threading, time
address, port, threads, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
over, made, failed = threading.Event(), [0] * threads, []
def connect(own):
    due = time.monotonic()
    while not over.is_set():
        try:
            with socket.create_connection((address, port), 30) as connection:
                connection.sendall(bytes(1000))
                connection.shutdown(socket.SHUT_WR)
                if connection.recv(1):
                    raise OSError("an answer")
        except OSError as error:
            failed.append(error)
        made[own] += 1
        due = max(due + 1 / rate, time.monotonic() - 1)
        over.wait(max(0, due - time.monotonic()))
workers = [threading.Thread(target=connect, args=(own,)) for own in range(threads)]
for worker in workers:
    worker.start()
print("up")
sys.stdin.read()
over.set()
for worker in workers:
    worker.join()
assert not failed, failed[:3]
print(sum(made))
"#;

/// Known hosts beside the one that traffic goes to.
const HOSTS: u32 = 100;

/// A bed with traffic, one host that was learned, and hosts that were imported.
struct Field {
    bed: Bed,
    address: String,
    load: Traffic,
    _sink: Traffic,
    began: Instant,
}

impl Field {
    fn new(label: &str, threads: u32, rate: u32) -> Self {
        let bed = Bed::running(label, SNAPSHOTS);
        let address = bed.server_address();
        let sink = bed.sink(&address);
        bed.connect(&address, 1, 1_000_000);
        bed.counter_reaches("scored", 1);
        let file = bed.directory.path().join("hosts.json");
        let file = file.to_str().unwrap();
        assert!(bed.thalweg(&["export", file]).status.success());
        let mut document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let hosts = document["hosts"].as_array_mut().unwrap();
        let one = hosts[0].clone();
        for number in 0..HOSTS {
            let mut host = one.clone();
            host["address"] = format!("198.51.100.{number}").into();
            hosts.push(host);
        }
        std::fs::write(file, document.to_string()).unwrap();
        assert!(bed.thalweg(&["import", file]).status.success());
        // Ports whose connection is over but for the wait are taken again.
        let client = bed.pair.namespace(Side::Client);
        let ports = Command::new("ip")
            .args(["netns", "exec", client, "sysctl", "-qw"])
            .args([
                "net.ipv4.ip_local_port_range=1024 65000",
                "net.ipv4.tcp_tw_reuse=1",
            ])
            .status();
        assert!(ports.unwrap().success());
        let (threads, rate) = (threads.to_string(), rate.to_string());
        let mut load = bed.python(Side::Client, LOAD, &[&address, "5001", &threads, &rate]);
        assert_eq!(load.line(), "up");
        let began = Instant::now();
        Self {
            bed,
            address,
            load,
            _sink: sink,
            began,
        }
    }

    /// An agent that ends itself at a point.
    fn start_and_die(&self, point: &str) {
        let mut command = self.bed.run_command();
        command.env("FAILPOINTS", point);
        let mut child = self.spawn(command);
        assert_eq!(outcome(&mut child, point).signal(), Some(9), "{point}");
    }

    fn spawn(&self, mut command: Command) -> Child {
        let log = self.bed.directory.path().join("killed.log");
        let log = std::fs::File::create(log).unwrap();
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// The next start succeeds, all hosts are known, and the programs are in force and attended.
    fn check(&mut self, what: &str) {
        self.bed.start();
        let hosts = self.bed.json(&["hosts"]);
        let hosts = hosts["hosts"]
            .as_array()
            .or_else(|| hosts.as_array())
            .unwrap();
        let known = |address: &str| {
            hosts.iter().any(|host| {
                host["address"] == address && host["scored"].as_u64().is_some_and(|n| n > 0)
            })
        };
        assert!(known(&self.address), "{what}: {} is lost", self.address);
        for number in 0..HOSTS {
            let address = format!("198.51.100.{number}");
            assert!(known(&address), "{what}: {address} is lost");
        }
        assert!(self.bed.running_program().is_some(), "{what}: no program");
        assert!(!self.bed.pin.join("next").exists(), "{what}: not settled");
        let before = self.bed.counter("established");
        self.bed.counter_reaches("established", before + 10);
    }

    /// Ends the traffic, of which no connection may have failed; connections a second.
    fn finish(self) -> f64 {
        let seconds = self.began.elapsed().as_secs_f64();
        let made: f64 = self.load.finish().trim().parse().unwrap();
        made / seconds
    }
}

/// Hosts are in the store soon; no interval matters for those that were imported once saved.
const SNAPSHOTS: &str = "[snapshot]\ninterval = \"1s\"\n";
/// Another mode, and another size of table.
const CLASSIC: &str = "mode = \"classic\"\n[snapshot]\ninterval = \"1s\"\n";
const SMALLER: &str = "[hosts]\nmax = 1000\n[snapshot]\ninterval = \"1s\"\n";

/// Points of a start, in the order in which it passes them.
const POINTS: [&str; 7] = [
    "start::prepared=return",
    "start::restored=return",
    "start::pinned=return",
    "start::link=return",
    "start::link=1*off->return",
    "start::name=return",
    "start::name=4*off->return",
];

fn outcome(child: &mut Child, what: &str) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} is never passed");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn killed_while_it_takes_over() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointstake", 2, 20);
    for point in POINTS {
        field.bed.end(Signal::SIGKILL);
        field.start_and_die(point);
        field.check(point);
    }
    field.finish();
}

#[test]
fn killed_while_it_starts_from_the_store() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointsfresh", 2, 20);
    for point in POINTS
        .into_iter()
        .chain(["start::beside=return", "start::beside=1*off->return"])
    {
        field.bed.json(&["detach"]);
        field.bed.reap();
        field.start_and_die(point);
        field.check(point);
    }
    field.finish();
}

#[test]
fn killed_while_it_changes_mode_and_size() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointsmode", 2, 20);
    for point in POINTS {
        for settings in [CLASSIC, SMALLER] {
            field.bed.end(Signal::SIGTERM);
            field.bed.configure(settings);
            field.start_and_die(point);
            // Once more, and then as it was.
            field.start_and_die("start::attached=return");
            field.bed.configure(SNAPSHOTS);
            field.check(point);
        }
    }
    field.finish();
}

#[test]
fn killed_while_it_saves_and_detaches() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointsend", 2, 20);
    for point in [
        "snapshot::begun=return",
        "detach::saved=return",
        "detach::pin=return",
        "detach::pin=1*off->return",
        "detach::pin=5*off->return",
        "detach::removed=return",
    ] {
        field.bed.end(Signal::SIGTERM);
        let mut command = field.bed.run_command();
        command.env("FAILPOINTS", point);
        let mut child = field.spawn(command);
        support::wait_for("the agent", || {
            std::os::unix::net::UnixStream::connect(field.bed.socket()).ok()
        });
        if point.starts_with("detach") {
            // It gets no answer, so it says so.
            assert!(!field.bed.thalweg(&["detach"]).status.success());
        }
        assert_eq!(outcome(&mut child, point).signal(), Some(9), "{point}");
        field.check(point);
    }
    field.finish();
}

#[test]
fn a_policy_killed_while_it_comes_is_there_or_not() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointspolicy", 2, 20);
    let file = field.bed.directory.path().join("policy.toml");
    std::fs::write(
        &file,
        support::policies::one_rule("timeout_init = \"60ms\""),
    )
    .unwrap();
    for point in ["policy::prepared", "policy::swapped"] {
        let mut command = Command::new(THALWEG);
        command
            .arg("--config")
            .arg(field.bed.configuration())
            .args(["policy", "apply"])
            .arg(&file)
            .env("FAILPOINTS", format!("{point}=return"));
        let mut child = field.spawn(command);
        assert_eq!(outcome(&mut child, point).signal(), Some(9), "{point}");
        field.bed.end(Signal::SIGKILL);
        field.check(point);
        field.bed.json(&["policy", "apply", file.to_str().unwrap()]);
        assert_eq!(field.bed.rule("all")["name"], "all", "{point}");
    }
    field.finish();
}

/// Kills the agent at moments of which some lie within its start; the seed is fixed.
fn killed_at_random(label: &str, times: u32, threads: u32, rate: u32) -> f64 {
    let mut field = Field::new(label, threads, rate);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    field.bed.end(Signal::SIGKILL);
    for time in 0..times {
        let mut child = field.spawn(field.bed.run_command());
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let wait = Duration::from_micros((random >> 33) % 1_000_000);
        std::thread::sleep(wait);
        child.kill().unwrap();
        child.wait().unwrap();
        if time % 10 == 9 || time + 1 == times {
            field.check(&format!("kill {time} after {wait:?}"));
            field.bed.end(Signal::SIGKILL);
        }
    }
    field.finish()
}

#[test]
fn five_kills_at_random_moments_fail_no_connection() {
    if !privileged() {
        return;
    }
    killed_at_random("random", 5, 4, 50);
}

#[test]
#[ignore = "slow: a hundred kills under 1,000 connections a second, two minutes"]
fn a_hundred_kills_at_random_moments_fail_no_connection() {
    if !privileged() {
        return;
    }
    let rate = killed_at_random("random100", 100, 20, 50);
    eprintln!("{rate:.0} connections a second, none failed");
}
