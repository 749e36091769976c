//! `limit`, `cc` and `policy apply --existing` killed at named points. The next command finds the
//! old or the requested state, needs no manual repair, and leaves nothing.
//!
//! The points are only in test builds (`crates/control/src/faults.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{self, Bed, THALWEG, Traffic, plain, privileged, was_killed};
use serde_json::Value;
use thalweg_lab::host::Side;

/// A command that ends itself at a point.
fn dies(bed: &Bed, arguments: &[&str], point: &str) {
    let mut command = Command::new(THALWEG);
    command
        .arg("--config")
        .arg(bed.configuration())
        .args(arguments)
        .env("FAILPOINTS", point);
    let mut child = bed.spawn(command);
    assert!(was_killed(&mut child, point), "{arguments:?} {point}");
}

/// Makes a connection, reports it, and answers each line with its pacing rate, in bytes per second.
/// Enters a cgroup before that or after. Arguments: address, cgroup, when.
const PACED: &str = r#"
import socket, sys
def enter():
    with open(sys.argv[2] + "/cgroup.procs", "w") as procs:
        procs.write("0")
if sys.argv[3] == "before":
    enter()
connection = socket.create_connection((sys.argv[1], 5001))
if sys.argv[3] == "after":
    enter()
print("up", flush=True)
for line in sys.stdin:
    print(connection.getsockopt(socket.SOL_SOCKET, 47), flush=True)
"#;
/// The kernel's pacing rate of a connection that is not paced.
const UNLIMITED: &str = "-1";

/// A cgroup with a connection created in it, and one moved into it; both without a limit.
struct Limited {
    bed: Bed,
    cgroup: PathBuf,
    connections: [Traffic; 2],
    _sink: Traffic,
}

impl Limited {
    fn new(label: &str) -> Self {
        let bed = Bed::new(&plain(label), "");
        let address = bed.server_address();
        let sink = bed.sink(&address);
        let cgroup = bed.pair.cgroup().join("limited");
        fs::create_dir(&cgroup).unwrap();
        let connections = ["before", "after"].map(|when| {
            let arguments = [&address, cgroup.to_str().unwrap(), when];
            let mut connection = bed.python(Side::Client, PACED, &arguments);
            assert_eq!(connection.line(), "up");
            connection
        });
        Self {
            bed,
            cgroup,
            connections,
            _sink: sink,
        }
    }

    fn paced(&mut self) -> [String; 2] {
        self.connections.each_mut().map(|connection| {
            connection.say("rate");
            connection.line()
        })
    }

    fn arguments<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let cgroup = self.cgroup.to_str().unwrap();
        [&["limit"], words, &["--cgroup", cgroup]].concat()
    }

    /// Whether the limit has this link.
    fn has_link(&self, limit: &Value, name: &str) -> bool {
        let own = self.bed.pin.join("limits");
        let own = own.join(limit["cgroup_id"].to_string());
        own.join(format!("link_{name}")).exists()
    }

    /// The rate of the limit that is listed, if one is. The listed sockets are really limited.
    fn listed(&self) -> Option<u64> {
        let limits = self.bed.json(&["limit", "list"]);
        let limits = limits.as_array().unwrap();
        assert!(limits.len() <= 1, "{limits:?}");
        for limit in limits {
            let looks = ["egress_moved", "sockops_moved"].map(|name| self.has_link(limit, name));
            let not_reached = &limit["sockets"]["not_reached"];
            assert!(
                *not_reached == 1 || looks == [true; 2],
                "{limit}: {looks:?}"
            );
        }
        limits
            .first()
            .map(|limit| limit["rate_bps"].as_u64().unwrap())
    }

    /// A limit is set, applies to both connections, is removed, and leaves nothing.
    fn check(&mut self, point: &str) {
        let set = self.bed.json(&self.arguments(&["--rate", "9mbit"]));
        let sockets = &set["limit"]["sockets"];
        assert_eq!(sockets["sockets"], 1, "{point}: {set}");
        assert_eq!(sockets["not_reached"], 0, "{point}: {set}");
        assert_eq!(sockets["not_paced"], 0, "{point}: {set}");
        for name in ["egress", "sockops", "egress_moved", "sockops_moved"] {
            assert!(self.has_link(&set["limit"], name), "{point}: {name}");
        }
        assert!(!self.paced().contains(&UNLIMITED.to_owned()), "{point}");
        let removed = self.bed.thalweg(&self.arguments(&["remove"]));
        assert!(removed.status.success(), "{point}");
        self.check_gone(point);
    }

    fn check_gone(&mut self, point: &str) {
        assert_eq!(self.listed(), None, "{point}");
        assert_eq!(self.paced(), [UNLIMITED; 2], "{point}");
        assert!(!self.bed.pin.join("limits").exists(), "{point}");
    }

    fn sets(&mut self, points: &[&str]) {
        for point in points {
            let more = if point.starts_with("limit::metered") {
                vec!["--work-conserving", "--line-rate", "100mbit"]
            } else {
                Vec::new()
            };
            let words = [&["--rate", "5mbit"], &more[..]].concat();
            dies(&self.bed, &self.arguments(&words), point);
            // The next command finds a limit or none, and none that is half in force.
            match self.listed() {
                Some(rate) => assert_eq!(rate, 5_000_000, "{point}"),
                None => self.check_gone(point),
            }
            self.check(point);
            dies(&self.bed, &self.arguments(&words), point);
            // Without `list` in between.
            self.check(point);
        }
    }

    fn changes(&mut self, points: &[&str]) {
        for point in points {
            self.bed.json(&self.arguments(&["--rate", "3mbit"]));
            dies(&self.bed, &self.arguments(&["--rate", "5mbit"]), point);
            assert_eq!(self.listed(), Some(5_000_000), "{point}");
            self.check(point);
        }
    }

    fn removes(&mut self, points: &[&str]) {
        for point in points {
            self.bed.json(&self.arguments(&["--rate", "3mbit"]));
            dies(&self.bed, &self.arguments(&["remove"]), point);
            self.check_gone(point);
            // Without `list` in between.
            self.bed.json(&self.arguments(&["--rate", "3mbit"]));
            dies(&self.bed, &self.arguments(&["remove"]), point);
            self.check(point);
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A failure here would show by the leftovers.
        let _ = self.bed.thalweg(&["limit", "remove", "--all"]);
    }
}

#[test]
fn a_limit_killed_while_it_comes_or_goes_is_there_or_not() {
    if !privileged() {
        return;
    }
    let mut limited = Limited::new("limitkill");
    limited.sets(&["limit::loaded=return", "limit::paces=return"]);
    limited.changes(&["limit::reached=return"]);
    limited.removes(&["limit::unlinked=1*off->return"]);
}

#[test]
#[ignore = "slow: some twenty points"]
fn a_limit_killed_at_every_point_is_there_or_not() {
    if !privileged() {
        return;
    }
    let mut limited = Limited::new("limitkillall");
    limited.sets(&[
        "limit::made=return",
        "limit::loaded=return",
        "limit::metered=return",
        "limit::paces=return",
        "limit::limits=return",
        "limit::moved=return",
        "limit::moved=1*off->return",
        "limit::awaits=return",
        "limit::reached=return",
    ]);
    limited.changes(&[
        "limit::changed=return",
        "limit::awaits=return",
        "limit::reached=return",
    ]);
    limited.removes(&[
        "limit::unlinked=return",
        "limit::unlinked=1*off->return",
        "limit::unlinked=2*off->return",
        "limit::given_back=return",
        "pins::removed=return",
        "pins::removed=1*off->return",
        "pins::removed=2*off->return",
    ]);
}

/// A congestion control killed at points of its commands.
fn control(label: &str, points: &[(&[&str], &str)]) {
    let bed = Bed::new(&plain(label), "");
    let name = format!("{label}{}", std::process::id());
    let offered = || {
        let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let names = fs::read_to_string(path).unwrap();
        names.split_whitespace().any(|have| have == name)
    };
    let state = || {
        let list = bed.json(&["cc", "list"]);
        let mut all = list.as_array().unwrap().iter();
        let control = all.find(|control| control["name"] == *name);
        control.map(|control| control["state"].as_str().unwrap().to_owned())
    };
    let load = ["cc", "load", "htcp", "--name", &name];
    for (command, point) in points {
        let arguments: Vec<&str> = command
            .iter()
            .map(|word| if *word == "NAME" { &name } else { *word })
            .collect();
        if command[1] != "load" {
            assert!(bed.thalweg(&load).status.success(), "{point}");
        }
        dies(&bed, &arguments, point);
        support::wait_for("the end of what was never pinned", || {
            (state().as_deref() == Some("loaded") || !offered()).then_some(())
        });
        match state().as_deref() {
            Some("loaded") => assert!(offered(), "{point}"),
            // A load that was undone can be repeated, and no message mentions the earlier one.
            Some("draining") | None => assert!(bed.thalweg(&load).status.success(), "{point}"),
            other => panic!("{point}: {other:?}"),
        }
        let swap = bed.thalweg(&["cc", "swap", &name, "htcp"]);
        assert!(swap.status.success(), "{point}");
        let unload = bed.thalweg(&["cc", "unload", &name]);
        assert!(unload.status.success(), "{point}");
        assert!(!offered(), "{point}");
        assert!(!bed.pin.join("cc").exists(), "{point}");
    }
}

const LOAD: &[&str] = &["cc", "load", "htcp", "--name", "NAME"];
const SWAP: &[&str] = &["cc", "swap", "NAME", "htcp"];
const UNLOAD: &[&str] = &["cc", "unload", "NAME"];

#[test]
fn a_congestion_control_killed_while_it_comes_or_goes_is_there_or_not() {
    if privileged() {
        control(
            "killed",
            &[
                (LOAD, "cc::registered=return"),
                (SWAP, "cc::in_force=return"),
                (UNLOAD, "cc::unpinned=return"),
            ],
        );
    }
}

#[test]
#[ignore = "slow: twelve points"]
fn a_congestion_control_killed_at_every_point_is_there_or_not() {
    if !privileged() {
        return;
    }
    control(
        "every",
        &[
            (LOAD, "cc::map=return"),
            (LOAD, "cc::prepared=return"),
            (LOAD, "cc::registered=return"),
            (LOAD, "cc::in_force=return"),
            (LOAD, "cc::in_place=return"),
            (SWAP, "cc::map=return"),
            (SWAP, "cc::linked=return"),
            (SWAP, "cc::in_force=return"),
            (SWAP, "cc::in_place=return"),
            (SWAP, "pins::removed=return"),
            (UNLOAD, "cc::unpinned=return"),
            (UNLOAD, "pins::removed=return"),
        ],
    );
}

/// `policy apply --existing`, killed; then once more to its end.
#[test]
fn a_policy_killed_while_it_reaches_open_connections_reaches_them_the_next_time() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("existingkill"), "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let cgroup = bed.pair.cgroup().to_str().unwrap().to_owned();
    let mut connection = bed.python(Side::Client, PACED, &[&address, &cgroup, "before"]);
    assert_eq!(connection.line(), "up");
    let file = |name: &str| {
        let path = bed.directory.path().join(format!("{name}.toml"));
        let text = support::policies::one_rule("max_pacing_rate = \"8mbit\"");
        fs::write(&path, text.replace("\"test\"", &format!("{name:?}"))).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (old, new) = (file("old"), file("new"));
    let shown = || bed.json(&["policy", "show"])["name"].clone();
    let generations = |pin: &Path| {
        let entries = fs::read_dir(pin.join("policy")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.parse::<u32>().is_ok()).count()
    };
    for (point, name) in [
        ("existing::pinned=return", "old"),
        ("existing::visited=return", "new"),
        ("policy::linked=return", "new"),
    ] {
        bed.json(&["policy", "apply", &old]);
        dies(&bed, &["policy", "apply", "--existing", &new], point);
        assert_eq!(shown(), name, "{point}");
        let applied = bed.json(&["policy", "apply", "--existing", &new]);
        assert_eq!(shown(), "new", "{point}");
        assert_eq!(generations(&bed.pin), 1, "{point}");
        assert!(applied["existing"]["open"].as_u64() >= Some(1), "{applied}");
        connection.say("rate");
        assert_eq!(connection.line(), "1000000", "{point}");
        assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
        assert_ne!(shown(), Value::from("new"), "{point}");
    }
}
