//! Rules with a share of flows: `thalweg gain --rule`, and what is worse suspended.

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::{Side, WireKind};

use crate::interference::attach_setter;
use thalweg_testbed::policies::policy;
use thalweg_testbed::{Bed, COLLECTOR, plain, privileged, wait_for};

const ARMS: &str = "[arms]\nallow = [\"cubic\"]\n";

/// Connections of some bytes, each closed by the peer once it has all. Arguments: number to each
/// address, bytes, addresses.
const CLIENT: &str = r#"
import socket, sys
from concurrent.futures import ThreadPoolExecutor
number, size, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
def one(address):
    with socket.create_connection((address, 5001)) as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
with ThreadPoolExecutor(16) as pool:
    list(pool.map(one, addresses * number))
"#;

fn connect(bed: &Bed, number: usize, bytes: usize, addresses: &[String]) {
    let (number, bytes) = (number.to_string(), bytes.to_string());
    let mut arguments: Vec<&str> = vec![&number, &bytes];
    arguments.extend(addresses.iter().map(String::as_str));
    bed.python(Side::Client, CLIENT, &arguments).finish();
}

/// A rule with a share of the client's connections.
fn rule(name: &str, share: &str, set: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\n\
         match = {{ remote_port = 5001, direction = \"active\", sample = \"{share}\" }}\n\
         set = {{ {set} }}\n"
    )
}

/// Classes of the time of a handshake.
const CLASSES: u64 = 5;

/// Flows that a rule took and left, once there are so many together. A class of size and handshake
/// time begins with a flow that is its yardstick alone; a busy machine makes handshakes of more
/// classes than one.
fn flows(bed: &Bed, name: &str, sum: u64) -> (u64, u64) {
    wait_for(&format!("{sum} flows of {name}"), || {
        let told = bed.json(&["gain", "--rule", name]);
        let of = |key: &str| told["rule"][key].as_u64().unwrap();
        (of("taken") + of("left") + CLASSES > sum).then(|| (of("taken"), of("left")))
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_a_share_takes_and_leaves_sums_to_all() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("share"), ARMS);
    let addresses = [bed.server_address()];
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    // Set after the handshake; from the SYN on, so that the rule is remembered until then.
    for (name, set) in [
        ("iw", "initial_window = 40"),
        ("early", "initial_window = 40, mark = 3"),
    ] {
        bed.apply(&policy(&rule(name, "50%", set)));
        connect(&bed, 80, 30_000, &addresses);
        let (taken, left) = flows(&bed, name, 80);
        let matched = bed.rule(name)["matched"].as_u64().unwrap();
        assert!(
            (taken..taken + CLASSES).contains(&matched),
            "{matched} {taken}"
        );
        // 80 draws: beyond six deviations of a half.
        assert!(taken > 13 && left > 13, "{taken} {left}");
    }
    // Of a ladder each rule is compared with what all of it left.
    let ladder = [("one", "25%"), ("two", "50%"), ("three", "75%")];
    let texts = ladder.map(|(name, share)| rule(name, share, "initial_window = 40"));
    bed.apply(&policy(
        &(texts.concat() + "[[rule]]\nname = \"all\"\nset = { mark = 4 }\n"),
    ));
    connect(&bed, 80, 30_000, &addresses);
    let all = wait_for("the end of all", || {
        let told = ladder.map(|(name, _)| bed.json(&["gain", "--rule", name])["rule"].clone());
        let taken: u64 = told
            .iter()
            .map(|rule| rule["taken"].as_u64().unwrap())
            .sum();
        let left = told[0]["left"].as_u64().unwrap();
        (taken + left + CLASSES > 80).then_some((told, left))
    });
    for rule in &all.0 {
        assert!(
            rule["left"].as_u64().unwrap().abs_diff(all.1) <= 1,
            "{all:?}"
        );
        assert!(rule["taken"].as_u64().unwrap() > 2, "{all:?}");
    }
    // Nothing else is an experiment.
    for (arguments, why) in [
        (&["gain", "--rule", "all"][..], "has no share"),
        (
            &["gain", "--rule", "iw"],
            "expected one with a share: one, two, three",
        ),
        (
            &["gain", "--rule", "one", "--by", "arm"],
            "expected all, prefix or port",
        ),
    ] {
        let output = bed.thalweg(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
    bed.json(&["policy", "remove"]);
    let output = bed.thalweg(&["gain", "--rule", "one"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no policy is in force"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_rule_that_helps_is_found_and_one_that_slows_down_is_suspended() {
    if !privileged() {
        return;
    }
    let mut options = plain("slower");
    options.path.delay = serde_json::from_value(Value::from("10ms")).unwrap();
    options.wire = WireKind::Tun;
    options.further_addresses = 120;
    let mut bed = Bed::new(&options, ARMS);
    let addresses = bed.pair.server_addresses();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let sum = 4 * addresses.len() as u64;
    // Without this window the transfer takes a round trip more.
    bed.apply(&policy(&rule("wide", "50%", "initial_window = 40")));
    connect(&bed, 4, 30_000, &addresses);
    flows(&bed, "wide", sum);
    let told = bed.json(&["gain", "--rule", "wide"]);
    assert_eq!(told["groups"][0]["rows"][0]["verdict"], "better", "{told}");
    let text = policy(&rule("tiny", "50%", "cwnd_clamp = 2"));
    bed.apply(&text);
    connect(&bed, 4, 30_000, &addresses);
    let before = flows(&bed, "tiny", sum);
    // A restart keeps the sums, and looks at once.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    wait_for("the suspension", || {
        (bed.rule("tiny")["suspended"] == true).then_some(())
    });
    let told = bed.json(&["gain", "--rule", "tiny"]);
    assert!(told["rule"]["taken"].as_u64() >= Some(before.0), "{told}");
    let why = told["reverts"][0]["why"].as_str().unwrap();
    assert!(
        why.starts_with("Transfers") && why.contains("more time"),
        "{why}"
    );
    let problems = bed.json(&["status"])["problems"].to_string();
    assert!(
        problems.contains("no flow gets rule tiny for 24 hours"),
        "{problems}"
    );
    let shown = bed.thalweg(&["policy", "show"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("tiny (suspended)"), "{shown}");
    // The same rule again, in another policy, is still the one that was worse.
    bed.apply(&(text + "[[rule]]\nname = \"more\"\nmatch.remote_port = 9\nset = { mark = 1 }\n"));
    bed.json(&["gain", "--rule", "tiny"]);
    connect(&bed, 1, 30_000, &addresses);
    assert_eq!(bed.rule("tiny")["matched"], 0);
    assert_eq!(bed.json(&["gain", "--resume"])["resumed"], 1);
    assert_eq!(bed.rule("tiny")["suspended"], false);
    connect(&bed, 1, 30_000, &addresses);
    assert!(bed.rule("tiny")["matched"].as_u64().unwrap() > 20);
}

/// As [`CLIENT`], and each connection takes back what a rule set: small segments wait again.
const REPLACING: &str = r#"
import socket, sys
for _ in range(int(sys.argv[1])):
    with socket.create_connection((sys.argv[2], 5001)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        connection.sendall(bytes(30000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

/// Connections of each rule, half of which its share takes.
const NUMBER: usize = 60;

/// Applies a rule with half of the connections, makes them, and tells how many flows of it are
/// compared, are not, and were left.
fn compared(bed: &Bed, name: &str, set: &str, connect: impl Fn()) -> [u64; 3] {
    bed.apply(&policy(&rule(name, "50%", set)));
    connect();
    wait_for(&format!("the flows of {name}"), || {
        let told = bed.json(&["gain", "--rule", name])["rule"].clone();
        let of = ["taken", "overridden", "left"].map(|key| told[key].as_u64().unwrap_or(0));
        (of.iter().sum::<u64>() + CLASSES > NUMBER as u64).then_some(of)
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn flows_whose_setting_was_refused_or_replaced_are_not_compared_and_told() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("unheld"), ARMS);
    let addresses = [bed.server_address()];
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let usual = || connect(&bed, NUMBER, 30_000, &addresses);
    let replacing = || {
        let number = NUMBER.to_string();
        let arguments = [number.as_str(), addresses[0].as_str()];
        bed.python(Side::Client, REPLACING, &arguments).finish();
    };
    // What holds, though the kernel doubles buffers, sets ECN's bits and moves clamps.
    let all = "sndbuf = \"300KiB\", rcvbuf = \"300KiB\", tos = 0x40, nodelay = true, \
               notsent_lowat = \"64KiB\", max_pacing_rate = \"1Gbit\", user_timeout = \"9s\", \
               window_clamp = \"200KiB\", congestion = \"reno\", keepalive = true, mark = 3";
    let held = compared(&bed, "held", all, usual);
    assert!(held[0] > 5 && held[1] == 0, "{held:?}");
    let problems = |bed: &Bed| bed.json(&["status"])["problems"].to_string();
    assert!(!problems(&bed).contains("ended without"));
    let setter = attach_setter(&bed, "-DAT_ESTABLISHED");
    let of = compared(&bed, "cubic", "congestion = \"cubic\"", usual);
    assert!(of[0] == 0 && of[1] > 5 && of[2] > 5, "program: {of:?}");
    wait_for("the program's name", || {
        problems(&bed).contains("setter (number ").then_some(())
    });
    drop(setter);
    let said = bed.thalweg(&["gain", "--rule", "cubic"]).stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains(&format!("{} flows taken without its settings", of[1])),
        "{said}"
    );
    // Refused once established, and before the SYN.
    for (name, set) in [
        ("refused", "congestion = \"absent\""),
        (
            "early",
            "nodelay = true } \non.connect = { congestion = \"absent\"",
        ),
    ] {
        let of = compared(&bed, name, set, usual);
        assert!(of[0] == 0 && of[1] > 5 && of[2] > 5, "{name}: {of:?}");
    }
    let told = wait_for("a problem", || {
        let told = problems(&bed);
        told.contains("that rule early took ended without its settings")
            .then_some(told)
    });
    assert!(!told.contains("rule held took"), "{told}");
    let of = compared(&bed, "nodelay", "nodelay = true", replacing);
    assert!(of[0] == 0 && of[1] > 5 && of[2] > 5, "application: {of:?}");
}

/// Renames a table of the store. Arguments: the store, and both names.
const RENAME: &str = r#"
import sqlite3, sys
with sqlite3.connect(sys.argv[1], timeout=60) as store:
    store.execute(f"ALTER TABLE {sys.argv[2]} RENAME TO {sys.argv[3]}")
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn rules_that_cannot_be_compared_are_a_problem_until_they_can() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("unadopted"), ARMS);
    let addresses = [bed.server_address()];
    let mut server = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let store = bed.state().join("thalweg.db");
    let rename = |from: &str, to: &str| {
        let arguments = [store.to_str().unwrap(), from, to];
        bed.python(Side::Client, RENAME, &arguments).finish();
    };
    rename("gain_strata", "strata_away");
    bed.apply(&policy(&rule("iw", "50%", "initial_window = 40")));
    connect(&bed, 1, 1000, &addresses);
    wait_for("the problem", || {
        let metrics = bed.thalweg(&["metrics"]).stdout;
        let metrics = String::from_utf8_lossy(&metrics);
        metrics
            .contains("thalweg_problem{kind=\"rules\"} 1")
            .then_some(())
    });
    // It stands although later passes meet no flow that ended.
    let is_over = || bed.logged().contains("problem is gone: rules");
    assert!(!is_over(), "{}", bed.logged());
    rename("strata_away", "gain_strata");
    wait_for("the end of the problem", || is_over().then_some(()));
}
