//! Initial windows that are learned, on real connections.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::Side;

use crate::interference::attach;
use thalweg_testbed::virtual_time::{self, in_virtual_time};
use thalweg_testbed::{Bed, COLLECTOR, Traffic, compile, plain, wait_for};

const ENABLED: &str =
    "[arms]\nallow = [\"cubic\"]\n[initial_window]\nenabled = true\nsegments = [16]\n";

/// Makes connections one by one that send 40 segments, after a pause if there is a third argument.
/// Prints of each its first window, and whether its pacing rate is finite.
const FIRST_WINDOWS: &str = r#"
import socket, struct, sys, time
for _ in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 5001)) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        rate = connection.getsockopt(socket.SOL_SOCKET, 47, 8)
        print(struct.unpack_from("I", info, 80)[0], int(struct.unpack("Q", rate)[0] != (1 << 64) - 1))
        if len(sys.argv) > 3:
            time.sleep(float(sys.argv[3]))
        connection.sendall(bytes(57920))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

/// An agent on a path of 25 ms each way.
fn bed(label: &str, settings: &str) -> (Bed, Traffic) {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!("25ms")).unwrap();
    let mut bed = Bed::new(&options, settings);
    bed.start();
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    (bed, reader)
}

/// The first windows of so many connections, and whether each is paced.
fn connect(bed: &Bed, number: u32) -> Vec<(u32, bool)> {
    let (server, count) = (bed.server_address(), number.to_string());
    let said = bed.python(Side::Client, FIRST_WINDOWS, &[&server, &count]);
    let said = said.finish();
    let read = |line: &str| {
        let (window, paced) = line.split_once(' ')?;
        Some((window.parse().ok()?, paced == "1"))
    };
    let found: Vec<_> = said.lines().filter_map(read).collect();
    assert_eq!(found.len(), number as usize, "{said}");
    found
}

fn network(bed: &Bed, level: &str) -> Value {
    let found = bed.json(&["windows"]);
    let networks = found["networks"].as_array().unwrap();
    let found = networks.iter().find(|network| network["level"] == level);
    found.unwrap_or_else(|| panic!("no {level}")).clone()
}

fn a_larger_window_is_tried_and_kept_where_it_saves_round_trips() {
    let (mut bed, _reader) = bed("window", ENABLED);
    assert_eq!(bed.json(&["windows"])["segments"], json!([10, 16]));
    // The kernel's own comes first.
    let first = connect(&bed, 128);
    assert!(first.iter().all(|&one| one == (10, false)), "{first:?}");
    bed.counter_reaches("windows_scored", 128);
    assert_eq!(bed.counter("windows_raised"), 0);
    let next = connect(&bed, 120);
    bed.counter_reaches("windows_scored", 248);
    // Nothing is left set on them.
    assert!(next.iter().all(|&(_, limited)| !limited), "{next:?}");
    let larger = next.iter().filter(|&&(window, _)| window == 16).count() as u64;
    assert!(larger >= 60, "{next:?}");
    assert_eq!(bed.counter("windows_raised"), larger);
    assert_eq!(bed.counter("windows_refused"), 0);
    for level in ["prefix", "service", "namespace"] {
        let known = network(&bed, level);
        assert_eq!(
            (&known["decides"], &known["best"], &known["largest"]),
            (&json!(true), &json!(16), &json!(16)),
            "{known}"
        );
        // 40 segments take 10 + 20 + 10, or 16 + 24.
        let difference = known["windows"][1]["difference_bits"].as_f64().unwrap();
        assert!((-0.8..-0.3).contains(&difference), "{known}");
    }
    let event = wait_for("an event with its window", || {
        let events = bed.events(1);
        let scored = |event: &&Value| event["window"]["cost_bits"].is_f64();
        events.iter().find(scored).cloned()
    });
    assert!(
        event["window"]["propensity"].as_f64() > Some(0.0),
        "{event}"
    );

    // A replay gets each with the probability of what it was.
    let file = bed.directory.path().join("decisions");
    let name = file.to_str().unwrap();
    let lines = wait_for("all decisions", || {
        assert!(
            bed.thalweg(&["export", "--decisions", name])
                .status
                .success()
        );
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let lines: Vec<Value> = lines
            .filter(|line: &Value| line["window"].is_object())
            .collect();
        (lines.len() == 248).then_some(lines)
    });
    let mut raised = 0;
    for line in &lines {
        let window = &line["window"];
        let propensity = window["propensity"].as_f64().unwrap();
        assert!(
            window["cost_bits"].is_f64() && (0.0..=1.0).contains(&propensity),
            "{line}"
        );
        raised += u64::from(window["segments"] == 16);
        // A larger window is never certain: 10 segments are for comparison.
        assert!(window["segments"] == 10 || propensity < 1.0, "{line}");
    }
    assert_eq!(raised, larger);
    let said = bed.thalweg(&["replay", name]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("an effective sample of 1 hosts is too small"),
        "{said}"
    );

    // Its transfers were too small for a record of the host; those of its networks tell of it.
    let address = bed.server_address();
    let explained = bed.json(&["explain", &address]);
    let levels = explained[0]["windows"].as_array().unwrap().iter();
    let levels: Vec<_> = levels.map(|network| &network["level"]).collect();
    assert_eq!(levels, ["prefix", "namespace"], "{explained}");
    let text = bed.thalweg(&["explain", &address]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let after = text
        .split_once("\nInitial windows:\nNetwork ")
        .map(|(_, after)| after);
    assert!(text.contains("No record of its own"), "{text}");
    assert!(after.is_some_and(|after| after.contains("16 *")), "{text}");

    // It outlives the agent.
    bed.end(Signal::SIGTERM);
    bed.start();
    assert_eq!(network(&bed, "prefix")["largest"], 16);
    assert_eq!(network(&bed, "prefix")["scored"], 248);
}

pub fn what_routes_and_policies_set_stays() {
    let (bed, _reader) = bed("windowleft", ENABLED);
    connect(&bed, 3);
    assert_eq!(bed.counter("windows_left"), 0);
    let server = bed.server_address();
    bed.ip(
        Side::Client,
        &format!(
            "route add {server}/32 dev {} initcwnd 20",
            bed.device(Side::Client, &server)
        ),
    );
    assert_eq!(connect(&bed, 2), [(20, false); 2]);
    assert_eq!(bed.counter("windows_left"), 2);
    bed.ip(Side::Client, &format!("route del {server}/32"));
    bed.apply("name = \"own\"\n[[rule]]\nname = \"first\"\nset = { initial_window = 14 }\n");
    assert_eq!(connect(&bed, 2), [(14, false); 2]);
    bed.apply("name = \"own\"\n[[rule]]\nname = \"most\"\nset = { cwnd_clamp = 12 }\n");
    assert_eq!(connect(&bed, 2), [(10, false); 2]);
    // The policies are also those of the other end, which is in the cgroup, too.
    assert_eq!(bed.counter("windows_left"), 10);
    // None of these was scored.
    bed.counter_reaches("windows_scored", 3);
    assert_eq!(bed.counter("windows_scored"), 3);
}

/// Has windows raised, and waits until they are.
fn raised(bed: &Bed) {
    connect(bed, 128);
    bed.counter_reaches("windows_scored", 128);
    let next = connect(bed, 20);
    assert!(next.contains(&(16, false)), "{next:?}");
    bed.counter_reaches("windows_scored", 148);
}

fn a_window_that_another_program_or_a_pause_replaces_is_not_scored() {
    let (bed, _reader) = bed("windowother", ENABLED);
    raised(&bed);
    let server = bed.server_address();
    // After more than a retransmission timeout TCP restarts from ten segments.
    let said = bed.python(Side::Client, FIRST_WINDOWS, &[&server, "20", "0.5"]);
    let raised = said.finish().matches("16 ").count() as u64;
    assert!(raised > 5, "{raised}");
    bed.counter_reaches("windows_scored", 168 - raised);
    assert_eq!(bed.counter("windows_overridden"), raised);
    wait_for("a problem", || {
        let said = bed.json(&["status"])["problems"].to_string();
        said.contains("initial windows were replaced").then_some(())
    });
}

/// A program that sets a window of 40 segments. It is compiled outside the guest, which has no compiler.
fn setter() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("window.bpf.o")
}

fn the_usual_window_that_another_program_replaces_is_not_scored() {
    let (bed, _reader) = bed("windowusual", ENABLED);
    connect(&bed, 4);
    bed.counter_reaches("windows_scored", 4);
    let _setter = attach(&bed, &setter());
    let found = connect(&bed, 4);
    assert!(found.iter().all(|it| it.0 == 40), "{found:?}");
    // The accepting ends are of this agent, too.
    bed.counter_reaches("windows_overridden", 8);
    assert_eq!(bed.counter("windows_scored"), 4);
}

/// Makes connections whose pacing rate the application limits to 40 Gbit/s, more than 32 bits of bytes
/// a second; prints of each its first window, and the limit then.
const LIMITED: &str = r#"
import socket, struct, sys
for _ in range(int(sys.argv[2])):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, 47, struct.pack("Q", 5_000_000_000))
    connection.connect((sys.argv[1], 5001))
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    rate = connection.getsockopt(socket.SOL_SOCKET, 47, 8)
    print(struct.unpack_from("I", info, 80)[0], struct.unpack("Q", rate)[0])
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    connection.close()
"#;

/// Sends 16 segments at once by each connection; the other end prints how long after the first
/// byte the last of them came, µs.
const SPREAD: &str = r#"
import socket, sys, time
if sys.argv[1] == "listen":
    listener = socket.create_server(("", 5002))
    print("listening", flush=True)
    while True:
        connection = listener.accept()[0]
        got = first = 0
        while got < 16 * 1448:
            got += len(connection.recv(1448))
            first = first or time.monotonic()
        print(int((time.monotonic() - first) * 1e6), flush=True)
        connection.close()
for _ in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 5002)) as connection:
        window = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[80]
        connection.sendall(bytes(16 * 1448))
        connection.recv(1)
        print(window, flush=True)
"#;

pub fn a_larger_window_is_paced() {
    let (bed, _reader) = bed("windowpaced", ENABLED);
    raised(&bed);
    let mut listener = bed.python(Side::Server, SPREAD, &["listen"]);
    assert_eq!(listener.line(), "listening");
    let server = bed.server_address();
    let windows = bed.python(Side::Client, SPREAD, &[&server, "20"]).finish();
    let mut seen = 0;
    for window in windows.lines() {
        let spread_us: u64 = listener.line().parse().unwrap();
        // Ten segments go out at once. TCP paces the other six at twice ten segments a round trip
        // of 50 ms; a second flight comes a round trip later.
        let bounds = if window == "16" {
            8_000..30_000
        } else {
            45_000..60_000
        };
        assert!(bounds.contains(&spread_us), "{window}: {spread_us} us");
        seen += u64::from(window == "16");
    }
    assert!(seen > 0, "{windows}");
    let limited = bed.python(Side::Client, LIMITED, &[&server, "20"]).finish();
    let raised = limited.matches("16 5000000000").count();
    let left = limited.matches("10 5000000000").count();
    assert!(raised > 0 && raised + left == 20, "{limited}");
}

fn a_short_path_keeps_the_kernels_window() {
    let mut options = plain("windowshort");
    options.path.delay = serde_json::from_value(json!("500us")).unwrap();
    let mut bed = Bed::new(&options, ENABLED);
    bed.start();
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    assert_eq!(connect(&bed, 3), [(10, false); 3]);
    assert_eq!(bed.counter("windows_left"), 6);
}

fn a_dry_run_decides_and_sets_nothing() {
    let (bed, _reader) = bed("windowdry", &format!("dry_run = true\n{ENABLED}"));
    let all = connect(&bed, 180);
    assert!(all.iter().all(|&one| one == (10, false)), "{all:?}");
    assert_eq!(bed.counter("windows_raised"), 0);
    assert!(bed.counter("windows") > 100);
    let chosen = wait_for("a larger choice", || {
        let events = bed.events(1);
        let larger = |event: &&Value| event["window"]["chosen"] == 16;
        events.iter().find(larger).cloned()
    });
    assert_eq!(chosen["window"]["segments"], 10, "{chosen}");
}

fn they_are_left_alone_unless_enabled() {
    let (bed, _reader) = bed("windowoff", "");
    assert_eq!(connect(&bed, 3), [(10, false); 3]);
    assert_eq!(
        bed.json(&["windows"]),
        json!({"segments": [], "networks": []})
    );
    let text = bed.thalweg(&["windows"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("are not learned"));
    assert_eq!(bed.counter("windows_left"), 0);
}

#[test]
#[ignore = "slow: a boot of its own"]
fn usual_in_virtual_time() {
    let setter = setter();
    if !virtual_time::is_inside() {
        let directory = setter.parent().unwrap();
        compile("setter", directory, "window.bpf.o", &["-DWINDOW"]);
    }
    virtual_time::run(
        concat!(module_path!(), "::usual_in_virtual_time"),
        virtual_time::LIMIT,
        &[setter.to_str().unwrap()],
        &[(
            "the_usual_window_that_another_program_replaces_is_not_scored",
            the_usual_window_that_another_program_replaces_is_not_scored,
        )],
    );
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [],
    a_larger_window_is_tried_and_kept_where_it_saves_round_trips,
    a_window_that_another_program_or_a_pause_replaces_is_not_scored,
    a_short_path_keeps_the_kernels_window,
    a_dry_run_decides_and_sets_nothing,
    they_are_left_alone_unless_enabled,
);
