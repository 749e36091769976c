//! `cc` and `policy apply --existing` killed at named points. The next command finds the
//! old or the requested state, needs no manual repair, and leaves nothing.
//!
//! The points are only in test builds (`crates/control/src/faults.rs`).

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, plain, privileged, thalweg, was_killed};

/// A command that ends itself at a point.
fn dies(bed: &Bed, arguments: &[&str], point: &str) {
    let mut command = Command::new(thalweg());
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
        thalweg_testbed::wait_for("the end of what was never pinned", || {
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_killed_while_it_reaches_open_connections_reaches_them_the_next_time() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("existingkill"), "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let mut connection = bed.python(Side::Client, PACED, &[&address, &cgroup, "before"]);
    assert_eq!(connection.line(), "up");
    let file = |name: &str| {
        let path = bed.directory.path().join(format!("{name}.toml"));
        let text = thalweg_testbed::policies::one_rule("max_pacing_rate = \"8mbit\"");
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
