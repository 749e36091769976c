//! The agent killed at named points and at random moments. No record is lost, no connection fails,
//! and the next start needs no manual repair. `make faults` also runs the long forms.
//!
//! The points are only in test builds (`crates/control/src/faults.rs`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libbpf_rs::{MapCore, MapHandle};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_testbed::{Bed, Load, Traffic, privileged, thalweg, was_killed};

/// Known hosts beside the one with traffic, and one that may be evicted.
const HOSTS: u32 = 100;

/// A bed with traffic, one learned host, and imported hosts.
struct Field {
    bed: Bed,
    address: String,
    load: Load,
    _sink: Traffic,
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
        let mut document: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let hosts = document["hosts"].as_array_mut().unwrap();
        let one = hosts[0].clone();
        for number in 0..=HOSTS {
            let mut host = one.clone();
            host["address"] = format!("198.51.100.{number}").into();
            hosts.push(host);
        }
        fs::write(file, document.to_string()).unwrap();
        assert!(bed.thalweg(&["import", file]).status.success());
        let load = bed.load(&address, threads, rate);
        Self {
            bed,
            address,
            load,
            _sink: sink,
        }
    }

    /// Removes the evictable host's record from the kernel, as an eviction does.
    fn evict(&self) {
        let map = MapHandle::from_pinned_path(self.bed.pin.join("hosts")).unwrap();
        let key = map
            .keys()
            .find(|key| key[20..24] == [198, 51, 100, HOSTS as u8]);
        map.delete(&key.unwrap()).unwrap();
    }

    /// A command of `thalweg policy` that ends itself at a point.
    fn policy_dies(&self, arguments: &[&str], point: &str) {
        let mut command = Command::new(thalweg());
        command
            .arg("--config")
            .arg(self.bed.configuration())
            .arg("policy")
            .args(arguments)
            .env("FAILPOINTS", point);
        let mut child = self.bed.spawn(command);
        assert!(was_killed(&mut child, point), "{point}");
    }

    /// The next start succeeds, all hosts are known, and the programs are in force.
    fn check(&mut self, what: &str) {
        self.bed.start();
        let hosts = self.bed.hosts();
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
        self.bed.sees_traffic(what);
    }
}

/// Hosts are in the store soon; imported ones are saved without an interval.
const SNAPSHOTS: &str = "[snapshot]\ninterval = \"1s\"\n";
/// Another mode, and another size of table.
const CLASSIC: &str = "mode = \"classic\"\n[snapshot]\ninterval = \"1s\"\n";
const SMALLER: &str = "[hosts]\nmax = 1000\n[snapshot]\ninterval = \"1s\"\n";

/// Points of every start, in the order in which it passes them.
const POINTS: [&str; 12] = [
    "start::prepared=return",
    "start::restored=return",
    "start::version=return",
    "start::map=return",
    "start::map=5*off->return",
    "start::pinned=return",
    "start::link=return",
    "start::link=1*off->return",
    "start::name=return",
    "start::name=4*off->return",
    "start::named=return",
    "start::attached=return",
];

/// Every point of the agent is in a test.
#[test]
fn every_point_is_tried() {
    let mut points = BTreeSet::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for rest in source.split("fail_point!(\"").skip(1) {
                points.insert(rest.split('"').next().unwrap().to_owned());
            }
        }
    }
    let tests = [
        include_str!("faults_pins.rs"),
        include_str!("faults_points.rs"),
        include_str!("faults_slots.rs"),
        include_str!("faults_start.rs"),
        include_str!("upgrade.rs"),
    ]
    .concat();
    points.retain(|point| !tests.contains(&format!("\"{point}")));
    assert_eq!(points, BTreeSet::new());
}

/// Kills agents that take over from a killed one.
fn take_over(label: &str, points: impl IntoIterator<Item = &'static str>) {
    let mut field = Field::new(label, 2, 20);
    for point in points {
        field.bed.end(Signal::SIGKILL);
        field.bed.dies_at(point);
        field.check(point);
    }
    field.load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_while_it_takes_over() {
    if privileged() {
        take_over("take", ["start::link=1*off->return"]);
    }
}

#[test]
#[ignore = "slow: twelve points"]
fn killed_at_every_point_of_taking_over() {
    if privileged() {
        take_over("takeall", POINTS);
    }
}

/// Kills agents that find nothing in the kernel.
fn start_from_the_store(label: &str, points: impl IntoIterator<Item = &'static str>) {
    let mut field = Field::new(label, 2, 20);
    for point in points {
        field.bed.json(&["detach"]);
        field.bed.reap();
        field.bed.dies_at(point);
        field.check(point);
    }
    field.load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_while_it_starts_from_the_store() {
    if privileged() {
        start_from_the_store("fresh", ["restore::host=50*off->return"]);
    }
}

#[test]
#[ignore = "slow: sixteen points"]
fn killed_at_every_point_of_a_start_from_the_store() {
    if privileged() {
        let further = [
            "restore::host=return",
            "restore::host=50*off->return",
            "start::beside=return",
            "start::beside=1*off->return",
        ];
        start_from_the_store("freshall", POINTS.into_iter().chain(further));
    }
}

/// Kills agents of another mode, or with a table of another size.
fn change(label: &str, points: impl IntoIterator<Item = (&'static str, &'static str)>) {
    let mut field = Field::new(label, 2, 20);
    for (point, settings) in points {
        field.bed.end(Signal::SIGTERM);
        field.bed.configure(settings);
        field.bed.dies_at(point);
        // Once more, and then back to the old settings.
        field.bed.dies_at("start::attached=return");
        field.bed.configure(SNAPSHOTS);
        field.check(point);
    }
    field.load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_while_it_changes_mode() {
    if privileged() {
        change("mode", [("start::name=4*off->return", CLASSIC)]);
    }
}

#[test]
#[ignore = "slow: 27 points, three starts each"]
fn killed_at_every_point_of_a_change_of_mode_or_size() {
    if !privileged() {
        return;
    }
    let both = POINTS
        .into_iter()
        .flat_map(|point| [(point, CLASSIC), (point, SMALLER)]);
    change(
        "modeall",
        both.chain([
            ("mode::kept=return", CLASSIC),
            ("carry::host=return", SMALLER),
            ("carry::host=50*off->return", SMALLER),
        ]),
    );
}

/// Kills agents that save records, or detach.
fn save_and_detach(label: &str, points: impl IntoIterator<Item = &'static str>) {
    let mut field = Field::new(label, 2, 20);
    for point in points {
        field.bed.end(Signal::SIGTERM);
        if point.starts_with("snapshot::removed") {
            field.evict();
        }
        let mut command = field.bed.run_command();
        command.env("FAILPOINTS", point);
        let mut child = field.bed.spawn(command);
        if point.starts_with("detach") {
            thalweg_testbed::wait_for("the agent", || {
                std::os::unix::net::UnixStream::connect(field.bed.socket()).ok()
            });
            // The command gets no response, and does it itself.
            assert!(field.bed.thalweg(&["detach"]).status.success());
            assert!(!field.bed.pin.exists());
        }
        assert!(was_killed(&mut child, point), "{point}");
        field.check(point);
    }
    field.load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_while_it_saves_and_detaches() {
    if privileged() {
        save_and_detach("end", ["snapshot::written=return", "detach::pin=return"]);
    }
}

#[test]
#[ignore = "slow: nine points"]
fn killed_at_every_point_of_saving_and_detaching() {
    if !privileged() {
        return;
    }
    save_and_detach(
        "endall",
        [
            "snapshot::begun=return",
            "snapshot::written=return",
            "snapshot::removed=return",
            "snapshot::noted=return",
            "detach::saved=return",
            "detach::pin=return",
            "detach::pin=1*off->return",
            "detach::pin=5*off->return",
            "detach::removed=return",
        ],
    );
}

/// A policy file of this name.
fn policy(bed: &Bed, name: &str) -> String {
    let path = bed.directory.path().join(format!("{name}.toml"));
    let text = thalweg_testbed::policies::one_rule("timeout_init = \"60ms\"");
    let text = text.replace("\"test\"", &format!("{name:?}"));
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Points of the first policy beside a learner, which moves behind it.
const FIRST: [&str; 2] = ["policy::beside=return", "policy::behind=return"];

/// Kills `policy apply`, without a policy in force and with another one.
fn apply(label: &str, points: impl IntoIterator<Item = &'static str>) {
    let mut field = Field::new(label, 2, 20);
    let [old, new] = ["old", "new"].map(|name| policy(&field.bed, name));
    let shown = |bed: &Bed| bed.json(&["policy", "show"])["name"].clone();
    for point in points {
        for before in [None, Some(&old)] {
            if before.is_some() && FIRST.contains(&point) {
                continue;
            }
            if let Some(before) = before {
                field.bed.json(&["policy", "apply", before]);
            }
            field.policy_dies(&["apply", &new], point);
            let before = before.map_or(Value::Null, |_| "old".into());
            let now = shown(&field.bed);
            assert!(now == before || now == "new", "{point}: {now}");
            field.bed.end(Signal::SIGKILL);
            field.check(point);
            assert_eq!(shown(&field.bed), now, "{point}");
            field.bed.json(&["policy", "apply", &new]);
            assert_eq!(field.bed.rule("all")["name"], "all", "{point}");
            assert_eq!(field.bed.json(&["policy", "remove"])["removed"], true);
        }
    }
    field.load.finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_killed_while_it_comes_is_there_or_not() {
    if privileged() {
        apply("policy", ["policy::swapped=return"]);
    }
}

#[test]
#[ignore = "slow: nine points"]
fn a_policy_killed_at_every_point_of_its_coming_is_there_or_not() {
    if !privileged() {
        return;
    }
    let further = [
        "policy::written=return",
        "policy::map=return",
        "policy::map=3*off->return",
        "policy::prepared=return",
        "policy::linked=return",
        "policy::swapped=return",
        "policy::applied=return",
    ];
    apply("policyall", FIRST.into_iter().chain(further));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_killed_while_it_goes_is_there_or_not() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointsgone", 2, 20);
    let file = policy(&field.bed, "gone");
    for (point, stays) in [
        ("policy::unwanted=return", true),
        ("policy::unpinned=return", false),
        ("policy::detached=return", false),
    ] {
        field.bed.json(&["policy", "apply", &file]);
        field.policy_dies(&["remove"], point);
        field.bed.end(Signal::SIGKILL);
        field.check(point);
        let is_there = field.bed.json(&["policy", "show"]) != Value::Null;
        assert_eq!(is_there, stays, "{point}");
        let removed = field.bed.json(&["policy", "remove"])["removed"].clone();
        assert_eq!(removed, stays, "{point}");
    }
    field.load.finish();
}

/// Removes a directory of pins, as a restart of the machine does.
fn forget_pins(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget_pins(&path);
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    fs::remove_dir(directory).unwrap();
}

#[test]
#[ignore = "slow: six points"]
fn killed_while_it_puts_the_policy_back() {
    if !privileged() {
        return;
    }
    let mut field = Field::new("pointsback", 2, 20);
    let file = policy(&field.bed, "back");
    field.bed.json(&["policy", "apply", &file]);
    for point in [
        "policy::map=return",
        "policy::prepared=return",
        "policy::linked=return",
        "policy::beside=return",
        "policy::behind=return",
        "policy::swapped=return",
    ] {
        field.bed.end(Signal::SIGKILL);
        forget_pins(&field.bed.pin.join("policy"));
        field.bed.dies_at(point);
        field.check(point);
        assert_eq!(
            field.bed.json(&["policy", "show"])["name"],
            "back",
            "{point}"
        );
    }
    field.load.finish();
}

/// Kills the agent at random moments, some within its start; the seed is fixed.
fn killed_at_random(label: &str, times: u32, threads: u32, rate: u32) -> f64 {
    let mut field = Field::new(label, threads, rate);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    field.bed.end(Signal::SIGKILL);
    for time in 0..times {
        let mut child = field.bed.spawn(field.bed.run_command());
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
    field.load.finish().1
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
