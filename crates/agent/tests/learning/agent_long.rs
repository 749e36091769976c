//! Long connections: scored in stretches on their way, and decided anew where that pays.

use std::process::Command;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::{PairOptions, Side};

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, Traffic, plain, privileged, thalweg, wait_for};

/// Looks come this often; the first stretch takes a second.
const LOOKS: &str = "[arms]\nallow = [\"cubic\", \"reno\"]\n[learning]\nstretch = \"2s\"\n";

/// Sends without end, and for each line of input prints its congestion control. A further argument
/// is one that it chooses itself.
const ENDLESS: &str = r#"
import socket, sys, threading
connection = socket.create_connection((sys.argv[1], 5001))
if len(sys.argv) > 2:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, sys.argv[2].encode())
over = threading.Event()
def send():
    while not over.is_set():
        connection.sendall(bytes(20000))
sender = threading.Thread(target=send)
sender.start()
print("up")
for line in sys.stdin:
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    print(name.rstrip(b"\0").decode())
over.set()
sender.join()
connection.close()
"#;

/// A path whose rate a guest can carry.
fn path(label: &str) -> PairOptions {
    let mut options = plain(label);
    options.path.rate = Some("8mbit".parse().unwrap());
    options.path.queue = Some("60kb".parse().unwrap());
    options
}

fn running(label: &str, settings: &str) -> Bed {
    let mut bed = Bed::new(&path(label), settings);
    bed.start();
    bed
}

/// A flow that sends from now on.
fn endless(bed: &Bed, own: &[&str]) -> Traffic {
    let address = bed.server_address();
    let arguments = [&[address.as_str()], own].concat();
    let mut flow = bed.python(Side::Client, ENDLESS, &arguments);
    assert_eq!(flow.line(), "up");
    flow
}

fn ask(flow: &mut Traffic) -> String {
    flow.go_on();
    flow.line()
}

/// Makes the record say that an arm costs so many bits more than cubic; both are well known.
fn believe(bed: &Bed, arm: &str, bits: i64) {
    let mut document = bed.json(&["export"]);
    let host = &mut document["hosts"][0];
    host["queue_q16"] = 0.into();
    let mut cubic = host["arms"]["cubic"].clone();
    for (key, number) in [("weight_q16", 8 << 16), ("segs", 4096), ("retrans", 0)] {
        cubic[key] = number.into();
    }
    let mut other = cubic.clone();
    for (key, worse) in [("value", bits << 16), ("log_rate_q16", -bits << 16)] {
        other[key] = (cubic[key].as_i64().unwrap() + worse).into();
    }
    host["arms"][arm] = other;
    host["arms"]["cubic"] = cubic;
    let file = bed.directory.path().join("known.json");
    std::fs::write(&file, document.to_string()).unwrap();
    assert_eq!(bed.json(&["import", file.to_str().unwrap()])["imported"], 1);
}

/// A bed whose agent knows the host by one connection.
fn known(label: &str, settings: &str) -> (Bed, Traffic) {
    known_on(&path(label), settings)
}

fn known_on(path: &PairOptions, settings: &str) -> (Bed, Traffic) {
    let mut bed = Bed::new(path, settings);
    bed.start();
    let address = bed.server_address();
    let sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    (bed, sink)
}

/// Waits for some more looks.
fn looks(bed: &Bed, more: u64) {
    let number = || bed.json(&["status"])["looks"]["number"].as_u64().unwrap();
    let least = number() + more;
    wait_for("looks", || (number() >= least).then_some(()));
}

fn event(bed: &Bed, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || bed.events(1).into_iter().find(|event| is(event)))
}

fn a_flow_of_minutes_is_scored_several_times_and_counts_once() {
    let bed = running("minutes", LOOKS);
    let _sink = bed.sink(&bed.server_address());
    let flow = endless(&bed, &[]);
    // Stretches take 1 s, 2 s, 4 s, 8 s, 16 s, and 16 s again, rounded up to looks.
    bed.counter_reaches("stretches", 6);
    assert_eq!(bed.counter("scored"), 6);
    std::thread::sleep(Duration::from_secs(2));
    flow.finish();
    bed.counter_reaches("scored", 7);
    let events = wait_for("the events", || {
        let mut events = bed.events(7);
        events.retain(|event| event["kind"] == "close");
        (events.len() == 7).then_some(events)
    });
    let mut walls = Vec::new();
    for (number, event) in events.iter().enumerate() {
        let measured = &event["measurement"];
        assert_eq!(event["connection"], events[0]["connection"]);
        assert_eq!(measured["outcome"], "scored", "{event}");
        let end = if number < 6 { "stretch" } else { "fin-local" };
        assert_eq!(measured["end"], end, "{event}");
        walls.push(measured["wall_us"].as_f64().unwrap() / 1e6);
        // The path carries 8 Mbit/s.
        let bits = measured["bytes"].as_f64().unwrap() * 8.0;
        let rate = bits / measured["duration_us"].as_f64().unwrap();
        assert!((7.0..=8.0).contains(&rate), "{rate} Mbit/s: {event}");
    }
    for (wall, least) in walls.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 16.0]) {
        assert!((least..least + 2.3).contains(wall), "{walls:?}");
    }
    let address = bed.server_address();
    assert_eq!(bed.host(&address).unwrap()["scored"], 7);
    // Nothing else was known, so nothing was decided.
    assert_eq!((bed.counter("anew"), bed.counter("moved")), (0, 0));
    let said = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(said.contains("6 times scored on their way"), "{said}");
}

fn a_flow_leaves_a_bad_arm_at_once() {
    let (bed, _sink) = known("bad", LOOKS);
    believe(&bed, "reno", -3);
    let mut flow = endless(&bed, &[]);
    assert_eq!(ask(&mut flow), "reno");
    bed.counter_reaches("stretches", 1);
    // On the best arm it stays.
    assert_eq!((ask(&mut flow).as_str(), bed.counter("anew")), ("reno", 0));
    believe(&bed, "reno", 3);
    bed.counter_reaches("moved", 1);
    assert_eq!(ask(&mut flow), "cubic");
    let back = event(&bed, "the way back", |event| event["reason"] == "returned");
    assert_eq!(
        (&back["arm"], &back["chosen"], &back["system_arm"]),
        (&"cubic".into(), &"cubic".into(), &"cubic".into())
    );
    assert_eq!(back["propensity"], 1.0);
    assert_eq!(back["propensities"], serde_json::json!({ "cubic": 1.0 }));
    assert_eq!(back["switched"], true);
    let events = bed.events(1);
    let of_flow = |event: &&Value| event["connection"] == back["connection"];
    let before: Vec<&Value> = events.iter().filter(of_flow).collect();
    let at = before
        .iter()
        .position(|event| event["reason"] == "returned");
    let stretch = before[at.unwrap() - 1];
    assert_eq!(
        (&stretch["arm"], &stretch["measurement"]["end"]),
        (&"reno".into(), &"stretch".into())
    );
    flow.finish();
    // Of the end only what came after the move is cubic's.
    event(&bed, "the end", |event| {
        event["connection"] == back["connection"] && event["measurement"]["end"] == "fin-local"
    });
    assert_eq!(bed.counter("anew"), 1);
}

fn a_flow_goes_to_a_better_arm_and_then_stays_for_an_hour() {
    // Where the default fills a long queue, a higher rate is taken from others.
    let mut path = path("better");
    path.path.delay = "100ms".parse().unwrap();
    path.path.queue = Some("36kb".parse().unwrap());
    let (bed, _sink) = known_on(&path, LOOKS);
    // Half a bit: too little to leave cubic at once.
    let mut flow = endless(&bed, &[]);
    assert_eq!(ask(&mut flow), "cubic");
    believe(&bed, "reno", -3);
    let moved = event(&bed, "a new decision", |event| event["reason"] == "anew");
    assert_eq!(moved["arm"], "reno", "{moved}");
    assert_eq!(ask(&mut flow), "reno");
    let shares = moved["propensities"].as_object().unwrap();
    let sum: f64 = shares.values().map(|share| share.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-3, "{moved}");
    let own = shares["reno"].as_f64().unwrap() - moved["propensity"].as_f64().unwrap();
    assert!(own.abs() < 1e-4 && shares.contains_key("cubic"), "{moved}");
    let allowed = moved["allowed"].as_array().unwrap();
    assert!(allowed.contains(&"cubic".into()) && allowed.contains(&"reno".into()));
    // A little worse than the default, by a fifth of a bit: that can wait.
    believe(&bed, "reno", 0);
    let before = bed.counter("stretches");
    bed.counter_reaches("stretches", before + 1);
    looks(&bed, 1);
    assert_eq!((ask(&mut flow).as_str(), bed.counter("anew")), ("reno", 1));
    drop(flow);
}

fn a_flow_of_the_control_group_is_scored_and_never_moved() {
    let mut bed = Bed::new(&path("group"), "");
    let address = bed.server_address();
    bed.configure(&format!("{LOOKS}[control]\n{}", bed.control_half(true)));
    bed.start();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    believe(&bed, "reno", -3);
    let mut flow = endless(&bed, &[]);
    bed.counter_reaches("stretches", 3);
    assert_eq!(ask(&mut flow), "cubic");
    assert_eq!((bed.counter("anew"), bed.counter("moved")), (0, 0));
}

fn an_applications_own_choice_stays() {
    let (bed, _sink) = known("own", LOOKS);
    believe(&bed, "reno", 3);
    let mut own = endless(&bed, &["reno"]);
    let other = endless(&bed, &[]);
    bed.counter_reaches("stretches", 3);
    assert_eq!(ask(&mut own), "reno");
    let events = bed.events(1);
    // All stretches are the other's.
    let stretches = events
        .iter()
        .filter(|event| event["measurement"]["end"] == "stretch");
    for stretch in stretches {
        assert_eq!(stretch["arm"], "cubic", "{stretch}");
    }
    assert_eq!(bed.counter("moved"), 0);
    drop(other);
}

fn a_dry_run_scores_and_changes_nothing() {
    let (bed, _sink) = known("dry", &format!("dry_run = true\n{LOOKS}"));
    believe(&bed, "reno", -3);
    let mut flow = endless(&bed, &[]);
    bed.counter_reaches("stretches", 3);
    assert_eq!(ask(&mut flow), "cubic");
    assert_eq!((bed.counter("changed"), bed.counter("anew")), (0, 0));
}

/// Iterators in the kernel.
fn iterators() -> usize {
    let programs = ProgInfoIter::default();
    programs
        .filter(|program| program.name.to_string_lossy() == "learn_open")
        .count()
}

fn without_the_agent_nothing_looks() {
    let (mut bed, _sink) = known("death", LOOKS);
    believe(&bed, "reno", -3);
    let mut flow = endless(&bed, &[]);
    bed.counter_reaches("stretches", 1);
    believe(&bed, "reno", 3);
    let with = iterators();
    bed.end(Signal::SIGKILL);
    wait_for("the iterator's end", || {
        (iterators() + 1 == with).then_some(())
    });
    assert!(bed.running_program().is_some(), "the others go on");
    // There would be two looks.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(ask(&mut flow), "reno");
    // Another agent goes on with the same stretch.
    bed.start();
    bed.counter_reaches("moved", 1);
    assert_eq!(ask(&mut flow), "cubic");
    flow.finish();
    // Both ends of two connections.
    bed.counter_reaches("closed", 4);
}

fn each_agent_looks_at_its_own_connections() {
    let (one, _sink) = known("one", LOOKS);
    let (two, _other) = known("two", LOOKS);
    believe(&two, "reno", -3);
    let mut flow = endless(&one, &[]);
    one.counter_reaches("stretches", 2);
    looks(&two, 1);
    assert_eq!((two.counter("stretches"), two.counter("visited")), (0, 0));
    assert_eq!(ask(&mut flow), "cubic");
    let mut second = endless(&two, &[]);
    two.counter_reaches("stretches", 1);
    assert_eq!(ask(&mut second), "reno");
    assert_eq!(one.counter("moved"), 0);
}

fn short_and_idle_connections_keep_their_stretch() {
    let (bed, _sink) = known("idle", LOOKS);
    let idle = r#"
import socket, sys
held = [socket.create_connection((sys.argv[1], 5001)) for _ in range(20)]
for connection in held:
    connection.sendall(bytes(300000))
print("up")
sys.stdin.readline()
for connection in held:
    connection.close()
"#;
    let mut held = bed.python(Side::Client, idle, &[&bed.server_address()]);
    assert_eq!(held.line(), "up");
    looks(&bed, 3);
    assert!(bed.counter("visited") >= 20);
    assert_eq!(bed.counter("stretches"), 0);
    let scored = bed.counter("scored");
    held.go_on();
    // Then they are scored once each.
    bed.counter_reaches("scored", scored + 20);
    held.finish();
}

fn a_kernel_without_types_scores_connections_at_their_end() {
    let hidden = |bed: &Bed| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c"])
            .arg("mount -t tmpfs none /sys/kernel/btf && exec \"$@\"")
            .args(["sh", thalweg(), "--config"])
            .arg(bed.configuration())
            .arg("run");
        command
    };
    let mut bed = Bed::new(&plain("untyped"), LOOKS);
    let command = hidden(&bed);
    bed.start_by(command);
    let status = bed.json(&["status"]);
    assert_eq!(status["looks"], Value::Null);
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    let said = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(said.contains("scored when they end"), "{said}");
    // The same agent with types, and with none wanted.
    bed.end(Signal::SIGTERM);
    bed.start();
    assert!(bed.json(&["status"])["looks"].is_object());
    bed.end(Signal::SIGTERM);
    bed.configure("[learning]\nstretch = \"0\"\n");
    bed.start();
    assert_eq!(bed.json(&["status"])["looks"], Value::Null);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_iterator_is_there_where_types_are_and_looks_are_wanted() {
    if privileged() {
        a_kernel_without_types_scores_connections_at_their_end();
    }
}

in_virtual_time!(
    #[ignore = "slow: three minutes of a processor"]
    [],
    a_flow_of_minutes_is_scored_several_times_and_counts_once,
    a_flow_leaves_a_bad_arm_at_once,
    a_flow_goes_to_a_better_arm_and_then_stays_for_an_hour,
    a_flow_of_the_control_group_is_scored_and_never_moved,
    an_applications_own_choice_stays,
    a_dry_run_scores_and_changes_nothing,
    without_the_agent_nothing_looks,
    each_agent_looks_at_its_own_connections,
    short_and_idle_connections_keep_their_stretch,
);
